//! Quotations in results, in declared members, and in names: items of other members are given to no
//! client, and honest servers keep their batches.

use super::quoting::{EMBEDDINGS, PREDICT, Server};
use super::*;

/// Splits a response to two calls with these bodies.
fn split_bodies(server: &Server, target: &str, calls: [&str; 2], body: &str) -> Result<(), MismatchKind> {
    server.split(&calls.map(|call| read(&server.endpoint, target, call)), 200, &[], body).map(|_| ())
}

const UNDECLARED: Result<(), MismatchKind> = Err(MismatchKind::Undeclared);

#[test]
fn a_result_with_an_item_of_another_member_is_given_to_no_caller() {
    let shared = |first: &str| {
        let server = Server::new(PREDICT, RouteProtocol::KServeV1);
        let body = format!(r#"{{"predictions":[{first},{{"label":"x"}}]}}"#);
        server.shared(["private-one", "private-two"], 200, &[], &body).map(|_| ())
    };
    for first in [
        r#""private-two""#,
        r#"{"batch":["private-one","private-two"]}"#,
        r#"{"note":"near private\u002dtwo, it is"}"#,
        r#"[["private-two and others"]]"#,
    ] {
        assert_eq!(shared(first), UNDECLARED, "{first}");
    }
    assert_eq!(shared(r#"{"text":"private-one","score":0.5}"#), Ok(()), "its own item");
    // A label that is also a short item, and an item that is a part of the own one.
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    let labels = r#"{"predictions":["good","bad"]}"#;
    assert!(server.shared(["bad", "good"], 200, &[], labels).is_ok());
    let echoes = r#"{"predictions":["a longer text about it","a longer text"]}"#;
    assert!(server.shared(["a longer text about it", "a longer text"], 200, &[], echoes).is_ok());
    // A word of the protocol, and a text in an object.
    let server = Server::new(EMBEDDINGS, RouteProtocol::OpenAi);
    let vectors = r#"{"data":[{"index":0,"object":"embedding"},{"index":1,"object":"embedding"}]}"#;
    assert!(server.shared(["embedding", "other text"], 200, &[], vectors).is_ok());
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    let objects = [r#"{"instances":[{"text":"private-one"}]}"#, r#"{"instances":[{"text":"private-two"}]}"#];
    let quoting = r#"{"predictions":[{"near":"private-two"},{}]}"#;
    assert_eq!(split_bodies(&server, PREDICT, objects, quoting), UNDECLARED);
    let vectors = [r#"{"instances":[[4111.5, 4222.5, 4333.5]]}"#, r#"{"instances":[[5111.5,5222.5,5333.5]]}"#];
    let quoting = r#"{"predictions":[{"near":[5111.5, 5222.5, 5333.5]},{"near":[]}]}"#;
    assert_eq!(split_bodies(&server, PREDICT, vectors, quoting), UNDECLARED);
}

#[test]
fn a_server_that_quotes_the_batch_in_its_results_is_not_merged_for_a_while() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    for _ in 0..3 {
        assert!(!server.is_unbatched(Tick(0)));
        let body = r#"{"predictions":["private-one private-two","private-one private-two"]}"#;
        assert!(server.shared(["private-one", "private-two"], 200, &[], body).is_err());
        server.observe("private-one", 200, &[], r#"{"predictions":["private-one"]}"#);
    }
    assert!(server.is_unbatched(Tick(0)));
}

#[test]
fn the_texts_that_cohere_repeats_are_those_of_their_callers() {
    let server = Server::new("/v2/embed", RouteProtocol::Cohere);
    let shared = |texts: &str| {
        let body = format!(r#"{{"id":"0f0f","texts":{texts},"embeddings":{{"float":[[1],[2]]}},"meta":{{}}}}"#);
        let calls = [r#"{"model":"m","texts":["Text of a"]}"#, r#"{"model":"m","texts":["Text of b"]}"#];
        split_bodies(&server, "/v2/embed", calls, &body)
    };
    assert_eq!(shared(r#"["Text of a","Text of b"]"#), Ok(()));
    assert_eq!(shared(r#"["Text","Text of b"]"#), Ok(()), "truncated");
    assert_eq!(shared(r#"["text of a","text of b"]"#), Ok(()), "in another case");
    assert_eq!(shared(r#"["Text of b","Text of a"]"#), UNDECLARED);
    assert_eq!(shared(r#"["Text of a Text of b","Text of b"]"#), UNDECLARED);
}

#[test]
fn a_name_with_numbers_of_an_item_is_given_to_no_caller() {
    let target = "/v2/models/m/infer";
    let server = Server::new(target, RouteProtocol::OpenInferenceV2);
    let call = |datatype: &str, number: &str| {
        format!(r#"{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[1,1],"data":[{number}]}}]}}"#)
    };
    let shared = |datatype: &str, numbers: [&str; 2], name: &str| {
        let calls = numbers.map(|number| call(datatype, number));
        let body = format!(
            r#"{{"model_name":"m","outputs":[{{"name":"{name}","datatype":"FP32","shape":[2,1],"data":[1.0,2.0]}}]}}"#
        );
        split_bodies(&server, target, [&calls[0], &calls[1]], &body)
    };
    assert_eq!(shared("INT32", ["4111", "5222"], "y_4111_5222"), UNDECLARED);
    assert_eq!(shared("FP32", ["5.1", "3.5"], "y_5.1"), UNDECLARED);
    assert_eq!(shared("FP32", ["5.1", "3.5"], "9.75"), UNDECLARED, "a number");
    assert_eq!(shared("FP32", ["0", "1"], "output-0"), Ok(()));
    assert_eq!(shared("INT32", ["4111", "5222"], "predict_proba"), Ok(()));
    let server = Server::new(EMBEDDINGS, RouteProtocol::OpenAi);
    let ids = [r#"{"input":[[4111,17]]}"#, r#"{"input":[[5222,18]]}"#];
    let body = r#"{"model":"m-4111-5222","data":[{"index":0},{"index":1}]}"#;
    assert_eq!(split_bodies(&server, EMBEDDINGS, ids, body), UNDECLARED);
}

#[test]
fn a_quote_in_some_results_is_taken_for_chance_where_calls_are_not_retried() {
    let server = Server::generic_once();
    let some = r#"{"vectors":["private-two","b"]}"#;
    assert!(server.shared(["private-one", "private-two"], 200, &[], some).is_ok());
    let all = r#"{"vectors":["private-two","private-one"]}"#;
    assert!(server.shared(["private-one", "private-two"], 200, &[], all).is_err());
    assert!(server.is_unbatched(Tick(0)));
}

#[test]
fn a_time_is_that_of_the_clock_or_no_number_of_an_item() {
    let shared = |texts: [&str; 2], now: Option<u64>, created: &str| {
        let mut server = Server::new(EMBEDDINGS, RouteProtocol::OpenAi);
        if let Some(now) = now {
            server.evidence = UnbatchedEvidence::new(Tick(0), now);
        }
        let calls = texts.map(|text| format!(r#"{{"input":"{text}"}}"#));
        let body = format!(r#"{{"created":{created},"data":[{{"index":0}},{{"index":1}}]}}"#);
        split_bodies(&server, EMBEDDINGS, [&calls[0], &calls[1]], &body)
    };
    let (texts, now) = (["at 1700000000.25 one", "at 1700000000.5 two"], Some(1_700_000_002));
    assert_eq!(shared(texts, now, "1700000001"), Ok(()));
    assert_eq!(shared(texts, now, "1700000001250"), Ok(()), "milliseconds");
    assert_eq!(shared(texts, None, "1700000000"), UNDECLARED);
    assert_eq!(shared(texts, Some(1_700_007_200), "1700000000"), UNDECLARED);
    for (created, expected) in
        [("0", Ok(())), ("1", Ok(())), ("1699999999", Ok(())), ("42", UNDECLARED), ("7444411", UNDECLARED)]
    {
        assert_eq!(shared(["of 42", "b"], now, created), expected, "{created}");
    }
}

#[test]
fn a_flag_among_counters_is_given_to_no_caller_without_evidence() {
    let server = Server::new(EMBEDDINGS, RouteProtocol::OpenAi);
    let body = |usage: &str| format!(r#"{{"data":[{{"index":0}},{{"index":1}}],"usage":{usage}}}"#);
    for usage in [r#"{"total_tokens":2,"cached_tokens":true}"#, r#"{"prompt_tokens_details":{"cached_tokens":false}}"#]
    {
        assert!(server.shared(["a", "b"], 200, &[], &body(usage)).is_err(), "{usage}");
    }
    assert!(server.shared(["a", "b"], 200, &[], &body(r#"{"prompt_tokens_details":null}"#)).is_ok());
    let object = r#"{"object":true,"data":[{"index":0},{"index":1}]}"#;
    assert!(server.shared(["a", "b"], 200, &[], object).is_err());
}

#[test]
fn unbatched_responses_before_the_first_batch_are_evidence() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    for number in 0..64 {
        server.observe(&format!("{number}"), 200, &[], r#"{"predictions":[1],"ok":true,"version":"v1"}"#);
    }
    let replies = server.shared(["a", "b"], 200, &[], r#"{"predictions":[1,2],"ok":true,"version":"v1"}"#);
    assert!(replies.is_ok(), "{replies:?}");
}

#[test]
fn a_constant_that_is_being_learned_never_ends_merging() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    let mut isolated = 0;
    for round in 0..40 {
        if server.shared(["a", "b"], 200, &[], r#"{"predictions":[1,2],"ok":true}"#).is_err() {
            isolated += 1;
            for member in ["a", "b"] {
                server.observe(&format!("{member}{round}"), 200, &[], r#"{"predictions":[1],"ok":true}"#);
            }
        }
        assert!(!server.is_unbatched(Tick(0)), "{round}");
    }
    assert_eq!(isolated, 32, "64 unbatched responses");
    // If all inputs are equal, nothing is learned.
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    for _ in 0..5 {
        assert!(server.shared(["a", "a"], 200, &[], r#"{"predictions":[1,2],"ok":true}"#).is_err());
        (0..2).for_each(|_| server.observe("a", 200, &[], r#"{"predictions":[1],"ok":true}"#));
    }
    assert!(server.is_unbatched(Tick(0)));
}

#[test]
fn an_odd_batch_among_others_does_not_end_merging() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    for round in 0..20 {
        let body = format!(r#"{{"predictions":[1,2],"warning":"odd-{round}"}}"#);
        assert!(server.shared(["odd", "b"], 200, &[], &body).is_err());
        server.observe("odd", 200, &[], &format!(r#"{{"predictions":[1],"warning":"odd-{round}"}}"#));
        server.observe("b", 200, &[], r#"{"predictions":[2]}"#);
        assert!(!server.is_unbatched(Tick(0)), "{round}");
        for _ in 0..2 {
            assert!(server.shared(["a", "b"], 200, &[], r#"{"predictions":[1,2]}"#).is_ok());
        }
    }
}
