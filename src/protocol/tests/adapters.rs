//! A property of every adapter with a list of items and a list of results: merging and splitting
//! give each call the same bytes as the server would have sent to it alone.
//!
//! `route::tests` checks that no adapter is left out. Tensors and conversations have properties of
//! their own, in `v2::tests::round_trip`, `v2::grpc::tests::round_trip` and `chat`.

use proptest::prelude::*;

use super::*;

/// The format of the calls and responses of an adapter on one path.
pub(crate) struct WireFormat {
    pub(crate) protocol: RouteProtocol,
    pub(crate) path: &'static str,
    /// Formats an item, once for each kind of items. The number determines its value and its
    /// spelling; all items of one kind may share a batch.
    pub(super) items: &'static [fn(usize) -> String],
    /// Formats the body of a call with this list of items.
    pub(super) call: fn(&str) -> String,
    /// Formats a result with its index in the response.
    pub(super) result: fn(usize, &str) -> String,
    /// Formats the body of a response with this list of results.
    pub(super) response: fn(&str) -> String,
}

/// Returns a JSON string that would change if it were parsed and printed, such as one with escapes,
/// or that contains the delimiters of a list.
fn text(number: usize) -> String {
    match number % 8 {
        0 => format!("\"t{number}\""),
        1 => format!("\"\\u00e4\\u0074{number}\""),
        2 => format!("\"{number}\\\",]}}\""),
        3 => format!("\"汉{number}\\\\\""),
        4 => format!("\"\\ud83d\\ude00{number}\\/\""),
        5 => format!("\"[{{\\\"{number}\""),
        6 => format!("\"\\ud800{number}\""),
        _ => format!("\" {number}\\n\\t \u{7f}\""),
    }
}

/// Returns a list of one text.
fn text_list(number: usize) -> String {
    format!("[{} ]", text(number))
}

/// Returns a list of token ids, in one of several spellings.
fn tokens(number: usize) -> String {
    match number % 4 {
        0 => format!("[{number}]"),
        1 => format!("[ {number},7]"),
        2 => format!("[0 ,{number}]"),
        _ => format!("[{number},\n1,2]"),
    }
}

/// Returns a row of an integer and a float, in one of several spellings.
fn row(number: usize) -> String {
    match number % 6 {
        0 => format!("[{number}, 1.5]"),
        1 => format!("[ -{number} ,-0.0]"),
        2 => format!("[{number},1E5 ]"),
        3 => format!("[0,\n{number}.10]"),
        4 => format!("[9007199254740993, 0.20000000298023225{number}]"),
        _ => format!("[-0,2.50e-{}]", number % 300),
    }
}

/// Returns an object with the field `a`, in one of several spellings.
fn object(number: usize) -> String {
    match number % 3 {
        0 => format!(r#"{{"a":{number}}}"#),
        1 => format!(r#"{{ "\u0061" : -{number} }}"#),
        _ => "{\"a\"\n:0}".to_owned(),
    }
}

/// Texts and token ids at a path of TEI, with a list of results.
const EMBED: WireFormat = WireFormat {
    protocol: RouteProtocol::Tei,
    path: "/embed",
    items: &[text, tokens],
    call: |items| format!(r#"{{"inputs": {items}}}"#),
    result: |_, value| format!("[{value}]"),
    response: str::to_owned,
};

const EMBEDDINGS: WireFormat = WireFormat {
    protocol: RouteProtocol::OpenAi,
    path: "/v1/embeddings",
    items: &[text, tokens],
    call: |items| format!(r#"{{"model" : "m","input":{items}}}"#),
    result: |index, value| format!(r#"{{"index": {index},"embedding":{value}}}"#),
    response: |results| format!(r#"{{"object":"list" ,"data":{results},"model":"m"}}"#),
};

const COMPLETIONS: WireFormat = WireFormat {
    protocol: RouteProtocol::Vllm,
    path: "/v1/completions",
    items: &[text, tokens],
    call: |items| format!(r#"{{"prompt" : {items},"return_token_ids":false}}"#),
    result: |index, value| format!(r#"{{ "index":{index},"text":{value}}}"#),
    response: |results| format!(r#"{{"object":"text_completion","choices": {results} }}"#),
};

const CLASSIFY: WireFormat = WireFormat {
    protocol: RouteProtocol::Vllm,
    path: "/classify",
    items: &[text, tokens],
    call: |items| format!(r#"{{"model":"m","input":{items}}}"#),
    result: |index, value| format!(r#"{{"index": {index},"value":{value}}}"#),
    response: |results| format!(r#"{{"object":"list","data":{results}}}"#),
};

const RERANK: WireFormat = WireFormat {
    path: "/rerank",
    items: &[text],
    call: |items| format!(r#"{{"query":"q","documents":{items}}}"#),
    response: |results| format!(r#"{{"results":{results}}}"#),
    ..CLASSIFY
};

/// Prompts of SGLang as texts.
const GENERATE: WireFormat = WireFormat {
    protocol: RouteProtocol::SgLang,
    path: "/generate",
    items: &[text],
    call: |items| format!(r#"{{"text":{items},"sampling_params":{{"max_new_tokens":2}}}}"#),
    result: |_, value| format!(r#"{{"text": "x","meta_info":{{"id":{value}}}}}"#),
    response: str::to_owned,
};

const PREDICT: WireFormat = WireFormat {
    protocol: RouteProtocol::KServeV1,
    path: "/v1/models/m:predict",
    items: &[row],
    call: |items| format!(r#"{{"instances":{items}, "signature_name" :"s"}}"#),
    result: |_, value| value.to_owned(),
    response: |results| format!(r#"{{ "predictions": {results} }}"#),
};

const EXPLAIN: WireFormat = WireFormat {
    path: "/v1/models/m:explain",
    response: |results| format!(r#"{{ "explanations": {results} }}"#),
    ..PREDICT
};

const REGRESS: WireFormat = WireFormat {
    protocol: RouteProtocol::TfServing,
    path: "/v1/models/m:regress",
    items: &[object],
    call: |items| format!(r#"{{"examples":{items}, "signature_name" :"s"}}"#),
    response: |results| format!(r#"{{ "results": {results} }}"#),
    ..PREDICT
};

const DATAFRAME: WireFormat = WireFormat {
    protocol: RouteProtocol::MlFlow,
    path: "/invocations",
    items: &[row],
    call: |items| format!(r#"{{"dataframe_split":{{"columns":["a","b"],"data":{items}}}}}"#),
    result: |_, value| value.to_owned(),
    response: |results| format!(r#"{{"predictions": {results}}}"#),
};

/// The formats of all adapters with a list of items, on each protocol that has them.
pub(crate) const FORMATS: [WireFormat; 48] = [
    WireFormat { call: |items| format!(r#"{{"inputs": {items}, "truncate":true}}"#), ..EMBED },
    WireFormat { path: "/embed_all", ..EMBED },
    WireFormat { path: "/embed_sparse", ..EMBED },
    WireFormat { path: "/predict", items: &[text_list], ..EMBED },
    WireFormat { path: "/tokenize", items: &[text], ..EMBED },
    WireFormat {
        path: "/decode",
        items: &[tokens],
        call: |items| format!(r#"{{"ids":{items}}}"#),
        result: |_, value| format!("\"{}\"", value.len()),
        ..EMBED
    },
    WireFormat {
        path: "/rerank",
        items: &[text],
        call: |items| format!(r#"{{"query":"q","texts":{items}}}"#),
        result: |index, value| format!(r#"{{"index":{index},"score": {value}}}"#),
        ..EMBED
    },
    WireFormat {
        path: "/similarity",
        items: &[text],
        call: |items| format!(r#"{{"inputs":{{"sentences":{items},"source_sentence":"s"}}}}"#),
        result: |_, value| value.len().to_string(),
        ..EMBED
    },
    WireFormat {
        protocol: RouteProtocol::SageMaker,
        path: "/invocations",
        items: &[text],
        call: |items| format!(r#"{{"inputs":{items}}}"#),
        result: |_, value| value.to_owned(),
        ..EMBED
    },
    WireFormat {
        protocol: RouteProtocol::BentoMl,
        path: "/encode",
        items: &[text],
        call: |items| format!(r#"{{ "texts" :{items}}}"#),
        result: |_, value| value.to_owned(),
        ..EMBED
    },
    EMBEDDINGS,
    WireFormat { protocol: RouteProtocol::Vllm, ..EMBEDDINGS },
    WireFormat { protocol: RouteProtocol::SgLang, ..EMBEDDINGS },
    WireFormat { protocol: RouteProtocol::Infinity, path: "/embeddings", ..EMBEDDINGS },
    WireFormat { protocol: RouteProtocol::Ollama, ..EMBEDDINGS },
    WireFormat { protocol: RouteProtocol::Voyage, ..EMBEDDINGS },
    WireFormat { protocol: RouteProtocol::Jina, ..EMBEDDINGS },
    WireFormat { protocol: RouteProtocol::Tei, ..EMBEDDINGS },
    COMPLETIONS,
    WireFormat { protocol: RouteProtocol::SgLang, ..COMPLETIONS },
    WireFormat {
        protocol: RouteProtocol::OpenAi,
        call: |items| format!(r#"{{"prompt" : {items},"n":1}}"#),
        ..COMPLETIONS
    },
    WireFormat {
        protocol: RouteProtocol::Tgi,
        items: &[text],
        call: |items| format!(r#"{{"prompt" : {items},"temperature":0}}"#),
        ..COMPLETIONS
    },
    CLASSIFY,
    WireFormat { protocol: RouteProtocol::SgLang, items: &[text], ..CLASSIFY },
    WireFormat { path: "/pooling", items: &[tokens, text], ..CLASSIFY },
    WireFormat {
        path: "/v1/score",
        items: &[text],
        call: |items| format!(r#"{{"text_1":{items},"text_2":{items}}}"#),
        ..CLASSIFY
    },
    WireFormat {
        protocol: RouteProtocol::Voyage,
        path: "/contextualizedembeddings",
        items: &[text_list],
        call: |items| format!(r#"{{"inputs":{items}}}"#),
        ..CLASSIFY
    },
    WireFormat {
        protocol: RouteProtocol::Infinity,
        items: &[text],
        result: |_, value| format!("[{value}]"),
        response: |results| format!(r#"{{"object":"classify","data":{results}}}"#),
        ..CLASSIFY
    },
    RERANK,
    WireFormat { protocol: RouteProtocol::Infinity, ..RERANK },
    WireFormat {
        protocol: RouteProtocol::SgLang,
        path: "/v1/rerank",
        result: |index, value| format!(r#"{{"score":0.5,"document":{value},"index": {index},"meta_info":null}}"#),
        response: str::to_owned,
        ..RERANK
    },
    GENERATE,
    WireFormat {
        items: &[tokens],
        call: |items| format!(r#"{{"input_ids":{items},"sampling_params":{{"max_new_tokens":2}}}}"#),
        ..GENERATE
    },
    WireFormat {
        path: "/score",
        call: |items| format!(r#"{{"query":"q","items":{items}}}"#),
        result: |_, value| format!("[{value}]"),
        response: |results| format!(r#"{{"scores":{results}}}"#),
        ..GENERATE
    },
    PREDICT,
    WireFormat { protocol: RouteProtocol::TfServing, items: &[text], ..PREDICT },
    WireFormat { items: &[object], ..EXPLAIN },
    WireFormat { protocol: RouteProtocol::TfServing, ..EXPLAIN },
    REGRESS,
    WireFormat {
        path: "/v1/models/m:classify",
        call: |items| format!(r#"{{"examples":{items},"context":{{"c":1}}}}"#),
        ..REGRESS
    },
    DATAFRAME,
    WireFormat {
        items: &[object],
        call: |items| format!(r#"{{"params":{{"k":1}},"dataframe_records":{items}}}"#),
        ..DATAFRAME
    },
    WireFormat { call: |items| format!(r#"{{"inputs":{items}}}"#), ..DATAFRAME },
    WireFormat {
        protocol: RouteProtocol::Seldon,
        path: "/api/v1.0/predictions",
        call: |items| format!(r#"{{"data":{{"names":["a","b"],"ndarray":{items}}}}}"#),
        response: |results| format!(r#"{{"data":{{"names":["p"],"ndarray":{results}}}}}"#),
        ..DATAFRAME
    },
    WireFormat {
        protocol: RouteProtocol::Generic,
        path: "/g",
        items: &[object],
        call: |items| format!(r#"{{"in" : {{"rows":{items}}}}}"#),
        response: |results| format!(r#"{{"out" :{{"rows": {results} }} }}"#),
        ..DATAFRAME
    },
    WireFormat {
        protocol: RouteProtocol::Ollama,
        path: "/api/embed",
        items: &[text],
        call: |items| format!(r#"{{"model":"m","input":{items}}}"#),
        result: |_, value| format!("[{value}]"),
        response: |results| format!(r#"{{"model":"m","embeddings":{results}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::Cohere,
        path: "/v1/embed",
        items: &[text],
        call: |items| format!(r#"{{"texts":{items}}}"#),
        result: |_, value| value.to_owned(),
        response: |results| format!(r#"{{"embeddings":{{"float":{results}}}}}"#),
    },
    WireFormat {
        protocol: RouteProtocol::OpenAi,
        path: "/v1/moderations",
        items: &[text],
        call: |items| format!(r#"{{"input":{items}}}"#),
        result: |_, value| format!(r#"{{"scores" :{value}}}"#),
        response: |results| format!("{{\"results\":{results}}}\n"),
    },
];

/// Formats values as a list with the given white space.
pub(super) fn list_of(values: &[String], blank: &str) -> String {
    format!("[{blank}{}{blank}]", values.join(&format!(",{blank}")))
}

/// Generates results in spellings that have to be copied unchanged.
pub(super) fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?",
        r#""([ -!#-\[\]-~]|ä|😀|\\n|\\"|\\\\|\\ud800){0,12}""#,
        "\\[(0\\.[0-9]{1,9}, ){0,3}NaN\\]",
        Just("null".to_owned()),
        Just(r#"{"a" : [1,{"index":5}]}"#.to_owned()),
    ]
}

/// Generates values of a field that no adapter knows.
pub(super) fn unknown() -> impl Strategy<Value = String> {
    prop_oneof![
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,18})?",
        r#""([ -!#-\[\]-~]|ä|😀|\\n|\\"|\\\\|\\ud800){0,12}""#,
        Just("[ 1E5 ,{\"\\u0061\" :-0}, [ ] ]".to_owned()),
    ]
}

/// Formats results as the server would number them in a response to one call.
pub(super) fn results_of(format: &WireFormat, values: &[String]) -> Vec<String> {
    values.iter().enumerate().map(|(index, value)| (format.result)(index, value)).collect()
}

/// Returns the endpoint for calls of a format.
pub(super) fn endpoint_of_format(format: &WireFormat) -> Arc<Endpoint> {
    endpoint_of(declared_rules(format.path, format.protocol), format.path)
}

/// Adds a field in front of those of the call.
pub(super) fn with_field(call: &str, field: &str) -> String {
    format!("{{{field},{}", call.strip_prefix('{').unwrap())
}

/// Merges calls with these results, each with the number of its item, and splits the response to
/// the batch, in which results with indexes are rotated by `turn`. `between` is written between two
/// results, and `field` is one that no adapter knows.
fn check_round_trip(
    format: &WireFormat,
    item: fn(usize) -> String,
    results: &[Vec<(usize, String)>],
    (blank, between, field): (&str, &str, &str),
    turn: usize,
) -> Result<(), TestCaseError> {
    let endpoint = endpoint_of_format(format);
    let format_call = |items: &[String], blank: &str| {
        let call = (format.call)(&list_of(items, blank));
        // A call to BentoML is merged only if it has no field beside the items.
        if format.protocol == RouteProtocol::BentoMl { call } else { with_field(&call, field) }
    };
    let format_items = |own: &[(usize, String)]| own.iter().map(|(number, _)| item(*number)).collect::<Vec<String>>();
    let calls: Vec<Call> =
        results.iter().map(|own| read(&endpoint, format.path, &format_call(&format_items(own), blank))).collect();
    for call in &calls {
        prop_assert_eq!(call.unbatched_reason(), None, "{} {:?}", format.path, call.body);
        prop_assert!(call.merge == calls[0].merge, "{} {:?} {:?}", format.path, call.body, calls[0].body);
    }
    let members: Vec<&Call> = calls.iter().collect();
    let sent = endpoint.write_batch(&members, None);
    // The batch has the items of all calls in their original order.
    let all = format_items(&results.concat());
    prop_assert_eq!(one_spelling(&sent.body), one_spelling(format_call(&all, "").as_bytes()));

    let results: Vec<Vec<String>> =
        results.iter().map(|own| own.iter().map(|(_, value)| value.clone()).collect()).collect();
    let response = |results: &[String]| (format.response)(&format!("[{blank}{}{blank}]", results.join(between)));
    let mut all = results_of(format, &results.concat());
    // A server that sorts its results determines their order for each client.
    if endpoint.shape.index.is_some() && !endpoint.shape.sorted {
        let count = all.len();
        all.rotate_left(turn % count);
    }
    let replies = split(&endpoint, &members, &response(&all)).unwrap();
    for (own, body) in results.iter().zip(bodies(&replies)) {
        prop_assert_eq!(body, response(&results_of(format, own)));
    }
    Ok(())
}

proptest! {
    // Half of the default number of cases, because each case has a batch for each format.
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Splitting the response to a batch yields the bytes that each call would have received alone.
    #[test]
    fn splitting_undoes_merging_for_every_adapter(
        results in prop::collection::vec(prop::collection::vec((1..1000_usize, value()), 1..5), 2..6),
        blank in "[ \n]{0,2}",
        before in "[ \t]{0,2}",
        turn in 0..20_usize,
        unknown in unknown(),
    ) {
        let (between, field) = (format!("{before},{blank}"), format!("\"\\u0078x\"{blank}:{unknown}"));
        for format in &FORMATS {
            for item in format.items {
                check_round_trip(format, *item, &results, (&blank, &between, &field), turn)?;
            }
        }
    }
}
