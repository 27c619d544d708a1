//! Embeddings of Ollama, Cohere and Voyage.

use super::*;

#[test]
fn ollama_counts_at_the_root_and_its_durations_are_copied() {
    let path = "/api/embed";
    let endpoint = endpoint(path, RouteProtocol::Ollama);
    let calls = [r#"{"model":"e","input":"abc"}"#, r#"{"model":"e","input":["de"]}"#];
    let response = |duration: &str| {
        format!(r#"{{"model":"e","embeddings":[[1],[2]],"total_duration":{duration},"prompt_eval_count":9}}"#)
    };
    assert_eq!(
        answers(&endpoint, path, &calls, &response("14143917")).unwrap(),
        [
            r#"{"model":"e","embeddings":[[1]],"total_duration":14143917,"prompt_eval_count":5}"#,
            r#"{"model":"e","embeddings":[[2]],"total_duration":14143917,"prompt_eval_count":4}"#,
        ]
    );
    for bad in ["\"1s\"", "1.5", "14143917000000"] {
        assert_eq!(answers(&endpoint, path, &calls, &response(bad)), Err(MismatchKind::Undeclared), "{bad}");
    }
    let quoted = [r#"{"model":"e","input":"4111"}"#, r#"{"model":"e","input":"b"}"#];
    assert_eq!(answers(&endpoint, path, &quoted, &response("4111")), Err(MismatchKind::Undeclared));
    for body in [r#"{"input":""}"#, r#"{"input":[]}"#, r#"{"input":[1,2]}"#, r#"{"prompt":"a"}"#] {
        assert_eq!(read(&endpoint, path, body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
    let other = read(&endpoint, path, r#"{"model":"e","input":"abc","keep_alive":0}"#);
    assert!(!may_share_batch(&read(&endpoint, path, calls[0]), &other));
}

#[test]
fn the_older_route_of_ollama_is_not_recognised() {
    let routes = routes_of(&[("/*", RouteProtocol::Ollama)]);
    let label = |path| routes.recognise(&Method::POST, path).map(|endpoint| endpoint.label);
    assert_eq!(label("/api/embed"), Some(ProtocolLabel::Ollama));
    assert_eq!(label("/v1/embeddings"), Some(ProtocolLabel::OpenAi));
    assert_eq!(label("/api/embeddings"), None);
    for path in ["/api/generate", "/api/chat", "/v1/completions"] {
        assert_eq!(label(path), Some(ProtocolLabel::Generation), "{path}");
    }
}

const COHERE: &str = "/v2/embed";
const TEXTS: [&str; 2] = [r#"{"model":"m","texts":["abc"]}"#, r#"{"model":"m","texts":["de","f"]}"#];

fn cohere(response: &str) -> Result<Vec<String>, MismatchKind> {
    answers(&endpoint(COHERE, RouteProtocol::Cohere), COHERE, &TEXTS, response)
}

#[test]
fn cohere_embeddings_are_divided_for_each_type_and_with_the_texts() {
    let by_type = r#"{"id":"0b7a3c1e-7f4b-4c56-9d0e-1f2a3b4c5d6e","embeddings":{"float":[[1],[2],[3]],"int8":[[4],[5],[6]],"binary":null},"texts":["abc","de","f"],"response_type":"embeddings_by_type"}"#;
    let replies = cohere(by_type).unwrap();
    assert!(replies[0].ends_with(
        r#""embeddings":{"float":[[1]],"int8":[[4]],"binary":null},"texts":["abc"],"response_type":"embeddings_by_type"}"#
    ));
    assert!(replies[1].contains(r#""float":[[2],[3]],"int8":[[5],[6]]"#) && replies[1].contains(r#"["de","f"]"#));
    assert!(!replies.iter().any(|reply| reply.contains("0b7a3c1e")), "{replies:?}");
    let version = r#"{"embeddings":[[1],[2],[3]],"meta":{"api_version":{"version":"1","is_deprecated":false}}}"#;
    assert!(cohere(version).unwrap()[0].ends_with(r#""meta":{"api_version":{"version":"1","is_deprecated":false}}}"#));
    let plain = r#"{"embeddings":[[1],[2],[3]],"meta":{"billed_units":{"input_tokens":6.0}}}"#;
    assert_eq!(
        cohere(plain).unwrap(),
        [
            r#"{"embeddings":[[1]],"meta":{"billed_units":{"input_tokens":3.0}}}"#,
            r#"{"embeddings":[[2],[3]],"meta":{"billed_units":{"input_tokens":3.0}}}"#,
        ]
    );
}

#[test]
fn a_cohere_response_with_a_list_of_another_length_or_name_is_a_mismatch() {
    for (response, what) in [
        (r#"{"embeddings":{"float":[[1],[2],[3]],"int8":[[4],[5]]}}"#, MismatchKind::Count),
        (r#"{"embeddings":{"float":[[1],[2],[3]]},"texts":["abc"]}"#, MismatchKind::Count),
        (r#"{"embeddings":{}}"#, MismatchKind::Shape),
        (r#"{"embeddings":{"float":1}}"#, MismatchKind::Shape),
        (r#"{"embeddings":null}"#, MismatchKind::Shape),
        (r#"{"embeddings":{"abc":[[1],[2],[3]]}}"#, MismatchKind::Undeclared),
        (r#"{"embeddings":[[1],[2],[3]],"response_type":"abc"}"#, MismatchKind::Undeclared),
        (r#"{"embeddings":[[1],[2],[3]],"meta":{"warnings":["abc"]}}"#, MismatchKind::Undeclared),
        (r#"{"embeddings":[[1],[2],[3]],"meta":{"api_version":{"version":"abc"}}}"#, MismatchKind::Undeclared),
        (r#"{"embeddings":[[1],[2],[3]],"meta":{"api_version":{"note":"abc"}}}"#, MismatchKind::Undeclared),
        (r#"{"embeddings":[[1],[2],[3]],"meta":{"api_version":"abc"}}"#, MismatchKind::Undeclared),
    ] {
        assert_eq!(cohere(response), Err(what), "{response}");
    }
    let endpoint = endpoint(COHERE, RouteProtocol::Cohere);
    for body in
        [r#"{"images":["data:"]}"#, r#"{"texts":["a"],"images":["data:"]}"#, r#"{"inputs":[]}"#, r#"{"texts":[1]}"#]
    {
        assert_eq!(read(&endpoint, COHERE, body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
}

#[test]
fn a_document_of_voyage_is_one_item() {
    let path = "/v1/contextualizedembeddings";
    let endpoint = endpoint(path, RouteProtocol::Voyage);
    let calls = [r#"{"inputs":[["a","b"]]}"#, r#"{"inputs":[["c"],["d","e","f"]]}"#];
    let response = r#"{"data":[{"data":[{"index":0},{"index":1}],"index":0},{"data":[{"index":0}],"index":1},{"data":[],"index":2}],"usage":{"total_tokens":6}}"#;
    let replies = answers(&endpoint, path, &calls, response).unwrap();
    assert_eq!(replies[0], r#"{"data":[{"data":[{"index":0},{"index":1}],"index":0}],"usage":{"total_tokens":2}}"#);
    assert!(replies[1].contains(r#"[{"data":[{"index":0}],"index":0},{"data":[],"index":1}]"#), "{}", replies[1]);
    for body in [r#"{"inputs":["a","b"]}"#, r#"{"inputs":[[]]}"#, r#"{"inputs":[["a"],"b"]}"#, r#"{"inputs":[[1]]}"#] {
        assert_eq!(read(&endpoint, path, body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
}
