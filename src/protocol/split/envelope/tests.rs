use super::*;
use crate::openai;
use crate::route::RouteProtocol;
use crate::tests::{endpoint, read};

fn undeclared(shape: &ProtocolShape, fields: &[&str], doc: &str) -> Vec<String> {
    let fields: Vec<Pointer> = fields.iter().map(|field| Pointer::from_static(field)).collect();
    let call = read(&endpoint("/v1/embeddings", RouteProtocol::OpenAi), "/v1/embeddings", r#"{"input":"text"}"#);
    let batch = BatchContext { members: &[&call], now: None };
    let found = undeclared_in_batch(doc.as_bytes(), shape, &fields, batch);
    found.into_iter().map(|part| String::from_utf8(part.path).unwrap()).collect()
}

#[test]
fn the_envelope_of_embeddings_is_declared() {
    let openai = openai::embeddings(false);
    let doc = r#"{"id":"embd-0f0f","object":"list","created":1,"model":"m","data":[{"x":"y"}],
            "usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens":null}}"#;
    assert!(undeclared(&openai, &[], doc).is_empty());
    assert_eq!(undeclared(&openai, &[], r#"{"data":[],"warning":"a","model":["a"]}"#), ["/warning", "/model"]);
    assert_eq!(
        undeclared(&openai, &[], r#"{"data":[],"usage":{"note":"a","n":[0,"b"]}}"#),
        ["/usage/note", "/usage/note", "/usage/n", "/usage/n/1"]
    );
    assert_eq!(undeclared(&openai, &[], r#"{"data":[],"id":{"a":1}}"#), ["/id"]);
    assert_eq!(undeclared(&openai, &["/warning"], r#"{"data":[],"warning":{"a":1}}"#), [""; 0]);
}

#[test]
fn members_beside_nested_results_are_undeclared() {
    let shape = ProtocolShape::plain("/in", "/out/0/vectors");
    let doc = r#"{"out":[{"vectors":[1],"note":1},2],"model":"m"}"#;
    assert_eq!(undeclared(&shape, &[], doc), ["/out/0/note", "/out/1", "/model"]);
    assert_eq!(undeclared(&shape, &["/out/0/note", "/model"], doc), ["/out/1"]);
}

#[test]
fn many_parts_are_not_all_listed() {
    let doc = format!(r#"{{"data":[],{}}}"#, (0..999).map(|n| format!(r#""n{n}":1"#)).collect::<Vec<_>>().join(","));
    assert_eq!(undeclared(&openai::embeddings(false), &[], &doc).len(), MEMBERS_MAX + 1);
}
