//! Properties of every adapter with a list of items and a list of results.

use proptest::prelude::*;

use super::*;

/// The formats of an adapter's calls and responses.
struct WireFormat {
    protocol: RouteProtocol,
    path: &'static str,
    /// Formats the item with this number.
    item: fn(usize) -> String,
    /// Formats a call around a list of items.
    call: fn(&str) -> String,
    /// Formats a result with its index in the response.
    result: fn(usize, &str) -> String,
    /// Formats a response around a list of results.
    response: fn(&str) -> String,
}

fn text(number: usize) -> String {
    format!("\"t{number}\"")
}

const FORMATS: [WireFormat; 25] = [
    WireFormat {
        protocol: RouteProtocol::BentoMl,
        path: "/encode",
        item: text,
        call: |items| format!(r#"{{ "texts" :{items}}}"#),
        result: |_, value| value.to_owned(),
        response: str::to_owned,
    },
    WireFormat {
        protocol: RouteProtocol::OpenAi,
        path: "/v1/completions",
        item: text,
        call: |items| format!(r#"{{"prompt" : {items},"n":1}}"#),
        result: |index, value| format!(r#"{{ "index":{index},"text":{value}}}"#),
        response: |results| format!(r#"{{"object":"text_completion","choices": {results} }}"#),
    },
    WireFormat {
        protocol: RouteProtocol::OpenAi,
        path: "/v1/moderations",
        item: text,
        call: |items| format!(r#"{{"input":{items}}}"#),
        result: |_, value| format!(r#"{{"scores" :{value}}}"#),
        response: |results| format!("{{\"results\":{results}}}\n"),
    },
    WireFormat {
        protocol: RouteProtocol::Tei,
        path: "/embed_sparse",
        item: text,
        call: |items| format!(r#"{{"inputs": {items}}}"#),
        result: |_, value| format!("[{value}]"),
        response: str::to_owned,
    },
    WireFormat {
        protocol: RouteProtocol::Tei,
        path: "/embed_all",
        item: text,
        call: |items| format!(r#"{{"inputs": {items}}}"#),
        result: |_, value| format!("[{value}]"),
        response: str::to_owned,
    },
    WireFormat {
        protocol: RouteProtocol::Tei,
        path: "/predict",
        item: |number| format!("[\"t{number}\"]"),
        call: |items| format!(r#"{{"inputs": {items}}}"#),
        result: |_, value| format!("[{value}]"),
        response: str::to_owned,
    },
    WireFormat {
        protocol: RouteProtocol::Tei,
        path: "/rerank",
        item: text,
        call: |items| format!(r#"{{"query":"q","texts":{items}}}"#),
        result: |index, value| format!(r#"{{"index":{index},"score": {value}}}"#),
        response: str::to_owned,
    },
    WireFormat {
        protocol: RouteProtocol::Tei,
        path: "/similarity",
        item: text,
        call: |items| format!(r#"{{"inputs":{{"sentences":{items},"source_sentence":"s"}}}}"#),
        result: |_, value| value.len().to_string(),
        response: str::to_owned,
    },
    WireFormat {
        protocol: RouteProtocol::Tei,
        path: "/tokenize",
        item: text,
        call: |items| format!(r#"{{"inputs": {items}}}"#),
        result: |_, value| format!("[{value}]"),
        response: str::to_owned,
    },
    WireFormat {
        protocol: RouteProtocol::Tei,
        path: "/decode",
        item: |number| format!("[{number}, 7]"),
        call: |items| format!(r#"{{"ids":{items}}}"#),
        result: |_, value| format!("\"{}\"", value.len()),
        response: str::to_owned,
    },
    WireFormat {
        protocol: RouteProtocol::MlFlow,
        path: "/invocations",
        item: |number| format!("[{number}, 1.5]"),
        call: |items| format!(r#"{{"dataframe_split":{{"columns":["a","b"],"data":{items}}}}}"#),
        result: |_, value| value.to_owned(),
        response: |results| format!(r#"{{"predictions": {results}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::MlFlow,
        path: "/invocations",
        item: |number| format!(r#"{{"a":{number}}}"#),
        call: |items| format!(r#"{{"params":{{"k":1}},"dataframe_records":{items}}}"#),
        result: |_, value| value.to_owned(),
        response: |results| format!(r#"{{"predictions": {results}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::MlFlow,
        path: "/invocations",
        item: |number| format!("[{number}, 1.5]"),
        call: |items| format!(r#"{{"inputs":{items}}}"#),
        result: |_, value| value.to_owned(),
        response: |results| format!(r#"{{"predictions": {results}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::Seldon,
        path: "/api/v1.0/predictions",
        item: |number| format!("[{number}, 1.5]"),
        call: |items| format!(r#"{{"data":{{"names":["a","b"],"ndarray":{items}}}}}"#),
        result: |_, value| value.to_owned(),
        response: |results| format!(r#"{{"data":{{"names":["p"],"ndarray":{results}}}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::SageMaker,
        path: "/invocations",
        item: text,
        call: |items| format!(r#"{{"inputs":{items}}}"#),
        result: |_, value| value.to_owned(),
        response: str::to_owned,
    },
    WireFormat {
        protocol: RouteProtocol::TfServing,
        path: "/v1/models/m:classify",
        item: |number| format!(r#"{{"x":{number}}}"#),
        call: |items| format!(r#"{{"examples":{items},"context":{{"c":1}}}}"#),
        result: |_, value| value.to_owned(),
        response: |results| format!(r#"{{ "results": {results} }}"#),
    },
    WireFormat {
        protocol: RouteProtocol::Ollama,
        path: "/api/embed",
        item: text,
        call: |items| format!(r#"{{"model":"m","input":{items}}}"#),
        result: |_, value| format!("[{value}]"),
        response: |results| format!(r#"{{"model":"m","embeddings":{results}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::Cohere,
        path: "/v1/embed",
        item: text,
        call: |items| format!(r#"{{"texts":{items}}}"#),
        result: |_, value| value.to_owned(),
        response: |results| format!(r#"{{"embeddings":{{"float":{results}}},"texts":{results}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::Voyage,
        path: "/contextualizedembeddings",
        item: |number| format!(r#"["t{number}"]"#),
        call: |items| format!(r#"{{"inputs":{items}}}"#),
        result: |index, value| format!(r#"{{"index": {index},"value":{value}}}"#),
        response: |results| format!(r#"{{"object":"list","data":{results}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::Vllm,
        path: "/classify",
        item: text,
        call: |items| format!(r#"{{"model":"m","input":{items}}}"#),
        result: |index, value| format!(r#"{{"index": {index},"value":{value}}}"#),
        response: |results| format!(r#"{{"object":"list","data":{results}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::Vllm,
        path: "/pooling",
        item: |number| format!("[{number}]"),
        call: |items| format!(r#"{{"model":"m","input":{items}}}"#),
        result: |index, value| format!(r#"{{"index": {index},"value":{value}}}"#),
        response: |results| format!(r#"{{"object":"list","data":{results}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::Vllm,
        path: "/v1/score",
        item: text,
        call: |items| format!(r#"{{"text_1":{items},"text_2":{items}}}"#),
        result: |index, value| format!(r#"{{"index": {index},"value":{value}}}"#),
        response: |results| format!(r#"{{"object":"list","data":{results}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::Vllm,
        path: "/rerank",
        item: text,
        call: |items| format!(r#"{{"query":"q","documents":{items}}}"#),
        result: |index, value| format!(r#"{{"index": {index},"value":{value}}}"#),
        response: |results| format!(r#"{{"results":{results}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::SgLang,
        path: "/score",
        item: text,
        call: |items| format!(r#"{{"query":"q","items":{items}}}"#),
        result: |_, value| format!("[{value}]"),
        response: |results| format!(r#"{{"scores":{results}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::Infinity,
        path: "/classify",
        item: text,
        call: |items| format!(r#"{{"model":"m","input":{items}}}"#),
        result: |_, value| format!("[{value}]"),
        response: |results| format!(r#"{{"object":"classify","data":{results}}}"#),
    },
];

/// Formats values as a list with the given white space.
fn list_of(values: &[String], blank: &str) -> String {
    format!("[{blank}{}{blank}]", values.join(&format!(",{blank}")))
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?",
        r#""([ -!#-\[\]-~]|ä|😀|\\n|\\"|\\\\|\\ud800){0,12}""#,
        "\\[(0\\.[0-9]{1,9}, ){0,3}NaN\\]",
        Just(r#"{"a" : [1,{"index":5}]}"#.to_owned()),
    ]
}

/// Returns the results of one client as it would receive them alone.
fn results_of(format: &WireFormat, values: &[String]) -> Vec<String> {
    values.iter().enumerate().map(|(index, value)| (format.result)(index, value)).collect()
}

proptest! {
    /// Joining and splitting yields exactly the bytes that each call would have received alone.
    #[test]
    fn split_undoes_join_for_every_adapter(
        results in prop::collection::vec(prop::collection::vec(value(), 1..5), 2..5),
        blank in "[ \n]{0,2}",
    ) {
        for format in &FORMATS {
            let endpoint = endpoint(format.path, format.protocol);
            let mut next = 0;
            let calls: Vec<Call> = results.iter().map(|own| {
                let items: Vec<String> = own.iter().map(|_| { next += 1; (format.item)(next) }).collect();
                read(&endpoint, format.path, &(format.call)(&list_of(&items, &blank)))
            }).collect();
            for call in &calls {
                prop_assert!(call.merge == calls[0].merge, "{}", format.path);
            }
            let members: Vec<&Call> = calls.iter().collect();
            let sent = endpoint.write_batch(&members, None);
            let all: Vec<String> = (1..=next).map(format.item).collect();
            prop_assert_eq!(one_spelling(&sent.body), one_spelling((format.call)(&list_of(&all, "")).as_bytes()));

            let flat: Vec<String> = results.iter().flatten().cloned().collect();
            let response = (format.response)(&list_of(&results_of(format, &flat), &blank));
            let replies = split(&endpoint, &members, &response).unwrap();
            for (own, body) in results.iter().zip(bodies(&replies)) {
                prop_assert_eq!(body, (format.response)(&list_of(&results_of(format, own), &blank)));
            }
        }
    }
}
