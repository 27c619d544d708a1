//! Quotations in other forms than the input as written: in names of headers, as numbers, in part,
//! with other escapes. And the evidence that is needed where nothing may be retried.

use super::quoting::{EMBEDDINGS, PREDICT, Server};
use super::*;

const PREDICTIONS: &str = r#"{"predictions":[1,2]}"#;

fn names(replies: &[Reply]) -> Vec<&str> {
    replies.iter().flat_map(|reply| reply.headers.keys().map(HeaderName::as_str)).collect()
}

#[test]
fn a_header_that_is_named_after_an_input_is_given_to_no_caller() {
    let headers = [
        ("x-ratelimit-private", "1"),
        ("openai-private", "1"),
        ("access-control-private", "true"),
        ("x-private-time", "5"),
    ];
    for status in [200, 429, 503] {
        let server = Server::new(PREDICT, RouteProtocol::KServeV1);
        let replies = server.shared(["private", "b"], status, &headers, PREDICTIONS).unwrap();
        assert!(!names(&replies).iter().any(|name| name.contains("private")), "{status}");
    }
    // A name with a listed prefix is forwarded once unbatched responses had it with this value.
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    let headers = [("x-ratelimit-tier", "1")];
    for input in ["a", "b"] {
        server.observe(input, 200, &headers, r#"{"predictions":[1]}"#);
    }
    assert!(names(&server.shared(["a", "b"], 200, &headers, PREDICTIONS).unwrap()).contains(&"x-ratelimit-tier"));
}

#[test]
fn a_number_of_an_input_is_given_to_no_caller() {
    let number = "624744626462";
    let headers = ["retry-after", "retry-after-ms", "x-process-time", "x-ratelimit-remaining", "openai-processing-ms"];
    for status in [200, 503] {
        let server = Server::new(PREDICT, RouteProtocol::KServeV1);
        let given = headers.map(|name| (name, number));
        let replies = server.shared([number, "b"], status, &given, PREDICTIONS).unwrap();
        assert!(!names(&replies).iter().any(|name| headers.contains(name)), "{status}");
        let replies = server.shared(["a", "b"], status, &headers.map(|name| (name, "1500")), PREDICTIONS).unwrap();
        assert!(headers.iter().all(|name| names(&replies).contains(name)), "{status}");
    }
    let server = Server::new(EMBEDDINGS, RouteProtocol::OpenAi);
    for part in [r#""created":624744626462"#, r#""model":624744626462"#, r#""usage":{"total_tokens":624744626462}"#] {
        let body = format!(r#"{{"data":[{{"index":0}},{{"index":1}}],{part}}}"#);
        assert_eq!(server.shared([number, "b"], 200, &[], &body).map(|_| ()), Err(MismatchKind::Undeclared), "{part}");
    }
}

/// Splits a response with this model to a call that names the model `m`, and to another one.
fn split_with_model(item: &str, model: &str) -> Result<(), MismatchKind> {
    let server = Server::new(EMBEDDINGS, RouteProtocol::OpenAi);
    let calls = [item, r#""other""#]
        .map(|item| read(&server.endpoint, EMBEDDINGS, &format!(r#"{{"model":"m","input":[{item}]}}"#)));
    let body = format!(r#"{{"model":"{model}","data":[{{"index":0}},{{"index":1}}]}}"#);
    server.split(&calls, 200, &[], &body).map(|_| ())
}

#[test]
fn a_model_that_shares_a_part_with_an_input_is_given_to_no_caller() {
    for (item, model) in [
        (r#""private data""#, "private data"),
        (r#""private data""#, "m:privat"),
        (r#""private data""#, "M/PRIVATE"),
        (r#""private data""#, "m about it"),
        (r#""Gr\u00fc\u00dfe""#, "Grüße"),
        (r#""Grüße aus Ulm""#, r"Gr\u00fc\u00dfe"),
        (r#""ab""#, "ab"),
        (r#""4111""#, "4111"),
        (r#""i am ill""#, "ill"),
        (r#""annabel""#, "anna"),
        (r#""he is ill""#, "he-is-ill"),
        (r#""born 24121990""#, "24-12-19-90"),
        (r#""annabel""#, "a-n-n-a-b-e-l"),
        (r#""lat 48.8566""#, "v-488566"),
        (r#""i am ill""#, "v1-ill"),
        (r#""my pin: 1234""#, "v12-34x"),
    ] {
        assert_eq!(split_with_model(item, model), Err(MismatchKind::Undeclared), "{item} {model}");
    }
    for (item, model) in
        [(r#""4711""#, "emb-4711"), (r#""call 0815""#, "m-0815"), (r#""bob""#, "ns/bob"), (r#""Bob""#, "bob-v2")]
    {
        assert_eq!(split_with_model(item, model), Err(MismatchKind::Undeclared), "{item} {model}");
    }
    assert_eq!(split_with_model(r#""bob""#, "bobsled"), Ok(()), "a part of a word is common by chance");
    // The model of the calls, and the name or the path of another one.
    for (item, model) in [(r#""m""#, "m"), (r#""private data""#, "m-v2"), (r#""a""#, "/models/m.gguf")] {
        assert_eq!(split_with_model(item, model), Ok(()), "{item} {model}");
    }
}

#[test]
fn a_name_of_a_response_with_a_short_text_of_a_tensor_is_given_to_no_caller() {
    const INFER: &str = "/v2/models/m/infer";
    let endpoint = endpoint(INFER, RouteProtocol::OpenInferenceV2);
    let call = |text: &str| {
        let body = format!(r#"{{"inputs":[{{"name":"x","datatype":"BYTES","shape":[1],"data":["{text}"]}}]}}"#);
        read(&endpoint, INFER, &body)
    };
    let (one, other) = (call("bob"), call("alicia"));
    for (model, output, expected) in
        [("m", "y", true), ("bob", "y", false), ("m", "bob", false), ("m", "bob-v2", false), ("m", "bobsled", true)]
    {
        let body = format!(
            r#"{{"model_name":"{model}","outputs":[{{"name":"{output}","datatype":"FP32","shape":[2],"data":[1,2]}}]}}"#
        );
        assert_eq!(split(&endpoint, &[&one, &other], &body).is_ok(), expected, "{model} {output}");
    }
}

#[test]
fn digits_of_an_input_with_other_separators_are_given_to_no_caller() {
    for (input, header, value) in [
        (r#""01 23 45 67 89""#, "x-process-time", "01 23 45 67 89"),
        (r#""24.12.90""#, "retry-after", "24.12.90"),
        (r#""4111111111111""#, "retry-after", "41-11-11-11-11-11-1"),
        (r#""4111111111111""#, "x-process-time", "41h11m11s"),
        ("[9.9,9.8,9.7,9.6]", "x-process-time", "9.9,9.8,9.7,9.6"),
        ("[12345]", "x-ratelimit-remaining", "12345"),
        ("[84250.75]", "x-process-time", "84250.75"),
        (r#""4111 1111 1111 1111""#, "x-process-time", "4111111.1111111"),
        (r#""24.12.1990""#, "x-process-time", "241219.90"),
        (r#""4111111111111""#, "x-process-time", "9h41m11s11ms11us"),
        (r#""4111111111111""#, "x-ratelimit-reset", "2026-41-11T11:11:11Z"),
        (r#""my pin: 1234""#, "x-process-time", "12h34m"),
        (r#""it is 4 1 1 1 1""#, "x-ratelimit-remaining", "41111"),
    ] {
        for status in [200, 429, 503] {
            let replies = shared_numbers([input, "[1]"], status, &[(header, value)]);
            assert!(!names(&replies).contains(&header), "{status} {input} {value}");
        }
    }
}

#[test]
fn a_delay_before_a_retry_is_forwarded_whatever_the_inputs() {
    for (input, value, forwarded) in [
        (r#""120 mg of it""#, "120", "120"),
        ("[12345]", "12345", "13000"),
        (r#""in 2026 we""#, "Sat, 28 Nov 2026 03:00:00 GMT", "Sat, 28 Nov 2026 03:00:00 GMT"),
        (r#""none""#, "1234", "1234"),
    ] {
        for status in [429, 503] {
            let replies = shared_numbers([input, "[1]"], status, &[("retry-after", value)]);
            assert!(replies.iter().all(|reply| reply.headers["retry-after"] == forwarded), "{status} {value}");
        }
    }
    let replies =
        shared_numbers([r#""281126030000""#, "[1]"], 503, &[("retry-after", "Sat, 28 Nov 2026 03:00:00 GMT")]);
    assert_eq!(replies.len(), 2);
}

/// Splits a response of this status and these headers to two calls with these instances.
fn shared_numbers(instances: [&str; 2], status: u16, headers: &[(&str, &str)]) -> Vec<Reply> {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    let calls = instances.map(|instance| read(&server.endpoint, PREDICT, &format!(r#"{{"instances":[{instance}]}}"#)));
    server.split(&calls, status, headers, PREDICTIONS).unwrap()
}

#[test]
fn a_counter_that_is_no_number_of_tokens_is_given_to_no_caller() {
    let number = "9999000011112222";
    for (path, protocol, field, part) in [
        (
            "/api/embed",
            RouteProtocol::Ollama,
            "input",
            format!(r#""embeddings":[[1],[2]],"prompt_eval_count":{number}"#),
        ),
        (
            EMBEDDINGS,
            RouteProtocol::OpenAi,
            "input",
            format!(r#""data":[{{"index":0}},{{"index":1}}],"usage":{{"prompt_tokens":0.{number}}}"#),
        ),
    ] {
        let endpoint = endpoint(path, protocol);
        let call = |text: &str| read(&endpoint, path, &format!(r#"{{"model":"m","{field}":["{text}"]}}"#));
        let split = split(&endpoint, &[&call(number), &call("a text of us two")], &format!("{{{part}}}"));
        assert_eq!(split.map(|_| ()).map_err(|mismatch| mismatch.what), Err(MismatchKind::Undeclared), "{part}");
    }
}

#[test]
fn a_flag_is_a_constant_only_after_many_unbatched_responses() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    let body = |flag: &str, results: &str| format!(r#"{{"predictions":[{results}],"flagged":{flag}}}"#);
    let is_split = |server: &Server| server.shared(["a", "b"], 200, &[], &body("true", "1,2")).is_ok();
    assert!(!is_split(&server), "the members of unbatched responses are observed from now on");
    for number in 0..63 {
        server.observe(&format!("call {number}"), 200, &[], &body("true", "1"));
    }
    assert!(!is_split(&server));
    server.observe("call 63", 200, &[], &body("true", "1"));
    assert!(is_split(&server));
}

#[test]
fn a_count_that_is_nearly_whole_is_given_to_no_caller() {
    let server = Server::new(EMBEDDINGS, RouteProtocol::OpenAi);
    for (count, expected) in [("12", true), ("12.0", true), ("12.00000000000004111", false)] {
        let body = format!(r#"{{"data":[{{"index":0}},{{"index":1}}],"usage":{{"total_tokens":{count}}}}}"#);
        assert_eq!(server.shared(["a", "b"], 200, &[], &body).is_ok(), expected, "{count}");
    }
}

#[test]
fn a_flag_in_an_object_is_a_constant_only_after_many_unbatched_responses() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    let body = |results: &str| {
        format!(r#"{{"predictions":[{results}],"details":{{"version":"2026.11.1-a","flags":[true]}}}}"#)
    };
    let is_split = |server: &Server| server.shared(["a", "b"], 200, &[], &body("1,2")).is_ok();
    assert!(!is_split(&server));
    for number in 0..64 {
        server.observe(&format!("call {number}"), 200, &[], &body("1"));
        assert_eq!(is_split(&server), number == 63, "{number}");
    }
}

#[test]
fn an_allowed_origin_is_forwarded_if_it_is_that_of_the_callers() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    let origins = |given: &str| {
        let mut calls = ["a", "b"].map(|text| server.call(text));
        for call in &mut calls {
            call.head.headers.insert("origin", HeaderValue::from_static("https://app.example"));
        }
        let replies = server.split(&calls, 200, &[("access-control-allow-origin", given)], PREDICTIONS).unwrap();
        names(&replies).contains(&"access-control-allow-origin")
    };
    assert!(origins("https://app.example"));
    assert!(!origins("https://private.example"));
}

#[test]
fn a_call_that_may_not_be_retried_is_merged_only_once_its_members_are_known() {
    let server = Server::generic_once();
    let body = |text: &str| format!(r#"{{"vectors":[{text}],"version":"2026.11.1"}}"#);
    assert!(!server.is_unbatched(Tick(0)), "nothing is known of the route");
    server.observe("a", 200, &[], &body("1"));
    assert!(server.is_unbatched(Tick(0)), "a single input shows nothing");
    server.observe("b", 200, &[], &body("2"));
    assert!(!server.is_unbatched(Tick(0)));
    assert!(server.shared(["a", "b"], 200, &[], r#"{"vectors":[1,2],"version":"2026.11.1"}"#).is_ok());
    // Another key of the route needs evidence of its own.
    let other = read(&server.endpoint, "/e", r#"{"texts":["a"],"user":"u"}"#);
    assert!(server.evidence.is_unbatched(Tick(0), &other));
    // A member that varies is never known.
    server.observe("c", 200, &[], r#"{"vectors":[1],"version":"2026.11.2"}"#);
    assert!(server.is_unbatched(Tick(0)));
}

#[test]
fn a_member_that_only_batches_have_ends_merging_for_a_while() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    for round in 0..3 {
        assert!(!server.is_unbatched(Tick(0)), "{round}");
        assert!(server.shared(["a", "b"], 200, &[], r#"{"predictions":[1,2],"batch_size":2}"#).is_err());
        server.observe("a", 200, &[], r#"{"predictions":[1]}"#);
    }
    assert!(server.is_unbatched(Tick(0)));
}
