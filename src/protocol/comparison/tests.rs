//! Pairs of responses that are equal, rounded, or different.

use bytes::Bytes;
use http::header::HeaderMap;

use super::*;
use crate::RouteProtocol;
use crate::tests::{endpoint, read};

fn compare(call: &str, merged: &str, unbatched: &str) -> AnswerComparison {
    let endpoint = endpoint("/v1/embeddings", RouteProtocol::OpenAi);
    let call = read(&endpoint, "/v1/embeddings", call);
    compare_bodies(&endpoint, &call, merged.as_bytes(), unbatched.as_bytes())
}

fn compare_bodies(endpoint: &Endpoint, call: &Call, merged: &[u8], unbatched: &[u8]) -> AnswerComparison {
    compare_with(endpoint, call, &HeaderMap::new(), [merged, unbatched])
}

fn compare_with(endpoint: &Endpoint, call: &Call, headers: &HeaderMap, bodies: [&[u8]; 2]) -> AnswerComparison {
    let [merged, unbatched] = bodies.map(Bytes::copy_from_slice);
    let content = |body| AnswerContent { headers, body };
    endpoint.compare_answers(call, content(&merged), content(&unbatched))
}

fn vector(values: &str) -> String {
    format!(r#"{{"data":[{{"index":0,"embedding":{values}}}],"model":"m"}}"#)
}

fn different(at: &str, kind: DifferenceKind) -> AnswerComparison {
    AnswerComparison::Different(AnswerDifference { at: at.to_owned(), kind })
}

const CALL: &str = r#"{"input":"a"}"#;

#[test]
fn ids_times_counters_and_spelling_are_no_difference() {
    let merged = r#"{"id":"embd-1","created":17,"data":[{"embedding":[1.0,2e-1]}],"usage":{"total_tokens":3}}"#;
    let unbatched = r#"{ "id": "embd-2", "created": 18, "data": [ {"embedding": [1, 0.20]} ], "usage": null }"#;
    assert_eq!(compare(CALL, merged, unbatched), AnswerComparison::Equal);
}

#[test]
fn rounding_is_measured_relative_to_the_largest_component() {
    let compared = compare(CALL, &vector("[0.8,1e-9]"), &vector("[0.8,3e-9]"));
    let AnswerComparison::Rounded(difference) = compared else { panic!("{compared:?}") };
    assert!((difference - 2.5e-9).abs() < 1e-12, "{difference}");
}

#[test]
fn the_vectors_of_a_call_are_compared_one_by_one() {
    let two = |second: &str| {
        format!(r#"{{"data":[{{"index":0,"embedding":[100.0,1.0]}},{{"index":1,"embedding":{second}}}]}}"#)
    };
    let compared = compare(r#"{"input":["a","b"]}"#, &two("[0.5,0.1]"), &two("[0.1,0.5]"));
    assert!(matches!(compared, AnswerComparison::Different(_)), "{compared:?}");
}

#[test]
fn other_numbers_texts_and_structures_are_different() {
    let numbers = compare(CALL, &vector("[0.8,0.1]"), &vector("[0.8,0.3]"));
    let AnswerComparison::Different(found) = numbers else { panic!("{numbers:?}") };
    assert_eq!(found.at, "/data/0/embedding/1");
    assert!(matches!(found.kind, DifferenceKind::Number(difference) if (difference - 0.25).abs() < 1e-9));
    assert_eq!(
        compare(CALL, &vector("[0.8,0.1]"), &vector("[0.8]")),
        different("/data/0/embedding", DifferenceKind::Structure)
    );
    assert_eq!(
        compare(CALL, &vector("[0.8]"), &vector("[0.8]").replace(r#""m""#, r#""n""#)),
        different("/model", DifferenceKind::Value)
    );
    assert_eq!(
        compare(CALL, &vector("[0.8]"), r#"{"data":[{"index":0,"embedding":[0.8]}]}"#),
        different("/model", DifferenceKind::Structure)
    );
    assert_eq!(compare(CALL, "{}", "<html>"), different("", DifferenceKind::Structure));
}

#[test]
fn an_integer_of_its_own_has_to_be_equal_and_a_component_does_not() {
    let endpoint = endpoint("/m:predict", RouteProtocol::KServeV1);
    let call = read(&endpoint, "/m:predict", r#"{"instances":[[1]]}"#);
    let compare =
        |merged: &str, unbatched: &str| compare_bodies(&endpoint, &call, merged.as_bytes(), unbatched.as_bytes());
    assert_eq!(
        compare(r#"{"predictions":[1000]}"#, r#"{"predictions":[1001]}"#),
        different("/predictions/0", DifferenceKind::Value)
    );
    let components = compare(r#"{"predictions":[[1000,3]]}"#, r#"{"predictions":[[1001,3]]}"#);
    assert!(matches!(components, AnswerComparison::Rounded(_)), "{components:?}");
    assert_eq!(compare("[0]", "[0]"), AnswerComparison::Equal);
}

#[test]
fn base64_is_compared_as_the_numbers_that_it_encodes() {
    // [0.5, 0.25], [0.5, 0.250001] and [0.5, -0.25].
    let [one, near, far] = ["AAAAPwAAgD4=", "AAAAPyIAgD4=", "AAAAPwAAgL4="].map(|text| vector(&format!("\"{text}\"")));
    let call = r#"{"input":"a","encoding_format":"base64"}"#;
    assert!(matches!(compare(call, &one, &near), AnswerComparison::Rounded(_)));
    assert!(matches!(compare(call, &one, &far), AnswerComparison::Different(_)));
    assert_eq!(compare(CALL, &one, &near), different("/data/0/embedding", DifferenceKind::Value));
}

#[test]
fn results_that_the_server_sorts_are_compared_by_index() {
    let endpoint = endpoint("/rerank", RouteProtocol::Tei);
    let call = read(&endpoint, "/rerank", r#"{"query":"q","texts":["a","b"]}"#);
    let merged = br#"[{"index":1,"score":0.5000},{"index":0,"score":0.4999}]"#;
    let unbatched = br#"[{"index":0,"score":0.5000},{"index":1,"score":0.4999}]"#;
    let compared = compare_bodies(&endpoint, &call, merged, unbatched);
    assert!(matches!(compared, AnswerComparison::Rounded(_)), "{compared:?}");
}

#[test]
fn generated_texts_are_compared_without_the_ids_and_counters_beside_them() {
    let texts = |endpoint: &Endpoint, call: &Call, one: &str, other: &str| {
        assert!(endpoint.generates_text() && !endpoint.is_comparable(call));
        compare_bodies(endpoint, call, one.as_bytes(), other.as_bytes())
    };
    let completions = endpoint("/v1/completions", RouteProtocol::OpenAi);
    let call = read(&completions, "/v1/completions", r#"{"prompt":"p"}"#);
    let answer = |text: &str, id: u32| {
        format!(r#"{{"id":"c{id}","created":{id},"choices":[{{"index":0,"text":"{text}"}}],"usage":{{"a":{id}}}}}"#)
    };
    assert_eq!(texts(&completions, &call, &answer("a", 1), &answer("a", 2)), AnswerComparison::Equal);
    assert_eq!(
        texts(&completions, &call, &answer("a", 1), &answer("b", 1)),
        different("/choices/0/text", DifferenceKind::Value)
    );
    let generate = endpoint("/generate", RouteProtocol::SgLang);
    let call = read(&generate, "/generate", r#"{"text":"p"}"#);
    let answer = |text: &str, id: u32| format!(r#"{{"text":"{text}","meta_info":{{"id":"{id}","e2e_latency":{id}}}}}"#);
    assert_eq!(texts(&generate, &call, &answer("a", 1), &answer("a", 2)), AnswerComparison::Equal);
    assert_eq!(texts(&generate, &call, &answer("a", 1), &answer("b", 1)), different("/text", DifferenceKind::Value));
}

#[test]
fn tensors_of_floating_point_numbers_may_be_rounded_and_others_have_to_be_equal() {
    let endpoint = endpoint("/v2/models/m/infer", RouteProtocol::OpenInferenceV2);
    let body = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}]}"#;
    let call = read(&endpoint, "/v2/models/m/infer", body);
    let answer = |datatype: &str, data: &str| {
        format!(
            r#"{{"id":"{}","model_name":"m","outputs":[{{"name":"y","datatype":"{datatype}","shape":[1,2],"data":{data}}}]}}"#,
            data.len()
        )
    };
    let compare = |datatype: &str, one: &str, other: &str| {
        let [one, other] = [one, other].map(|data| answer(datatype, data));
        compare_bodies(&endpoint, &call, one.as_bytes(), other.as_bytes())
    };
    assert_eq!(compare("FP32", "[800,0.5]", "[800.0,0.50]"), AnswerComparison::Equal);
    let rounded = compare("FP32", "[800,0.5]", "[801,0.5]");
    assert!(matches!(rounded, AnswerComparison::Rounded(_)), "{rounded:?}");
    for (datatype, one, other) in [
        ("FP32", "[800,0.5]", "[800,90]"),
        ("INT64", "[800,1]", "[801,1]"),
        ("BOOL", "[true,true]", "[true,false]"),
        ("BYTES", r#"["a","b"]"#, r#"["a","c"]"#),
    ] {
        let compared = compare(datatype, one, other);
        assert!(matches!(compared, AnswerComparison::Different(_)), "{datatype} {one}: {compared:?}");
    }
    let reshaped = answer("FP32", "[800,0.5]");
    let shape = reshaped.replace("[1,2]", "[2,1]");
    let reshaped = compare_bodies(&endpoint, &call, reshaped.as_bytes(), shape.as_bytes());
    assert_eq!(reshaped, different("/outputs/0/shape/0", DifferenceKind::Value));
    let compare = |one: &[u8], other: &[u8]| compare_bodies(&endpoint, &call, one, other);
    assert_eq!(compare(b"{}", b"<html>"), different("", DifferenceKind::Structure));
}

#[test]
fn tensors_without_a_datatype_are_compared_as_a_whole() {
    let path = "/api/v1.0/predictions";
    let endpoint = endpoint(path, RouteProtocol::Seldon);
    let call = read(&endpoint, path, r#"{"data":{"tensor":{"shape":[1,2],"values":[1,2]}}}"#);
    let answer = |shape: &str, values: &str| {
        format!(r#"{{"meta":{{"puid":"{}"}},"data":{{"tensor":{{"shape":{shape},"values":{values}}}}}}}"#, values.len())
    };
    let compare = |one: &str, other: &str| {
        let [one, other] = [one, other].map(|values| answer("[1,2]", values));
        compare_bodies(&endpoint, &call, one.as_bytes(), other.as_bytes())
    };
    assert_eq!(compare("[800,0.5]", "[800.0, 0.50]"), AnswerComparison::Equal);
    for (one, other) in [("[800,1e-9]", "[801,3e-9]"), ("[-800.5,0.1]", "[-800.5,0.4]")] {
        let compared = compare(one, other);
        assert!(matches!(compared, AnswerComparison::Rounded(_)), "{one}: {compared:?}");
    }
    for (one, other) in [("[800,0.5]", "[800,90.5]"), ("[800,1]", "[801,1]"), ("[0.5,null]", "[0.5,1]")] {
        let compared = compare(one, other);
        assert!(matches!(compared, AnswerComparison::Different(_)), "{one}: {compared:?}");
    }
    let [one, other] = ["[1,2]", "[2,1]"].map(|shape| answer(shape, "[800,0.5]"));
    let reshaped = compare_bodies(&endpoint, &call, one.as_bytes(), other.as_bytes());
    assert_eq!(reshaped, different("/data/tensor/shape/0", DifferenceKind::Value));
    let list = br#"{"data":{"ndarray":[[800,0.5]]}}"#;
    assert!(matches!(compare_bodies(&endpoint, &call, one.as_bytes(), list), AnswerComparison::Different(_)));
}

#[test]
fn small_scores_differ_by_the_rounding_of_larger_numbers() {
    let endpoint = endpoint("/rerank", RouteProtocol::Tei);
    let call = read(&endpoint, "/rerank", r#"{"query":"q","texts":["a","b"]}"#);
    let compare = |first: &str, second: &str, others: [&str; 2]| {
        let list =
            |scores: [&str; 2]| format!(r#"[{{"index":0,"score":{}}},{{"index":1,"score":{}}}]"#, scores[0], scores[1]);
        let compared = compare_bodies(&endpoint, &call, list([first, second]).as_bytes(), list(others).as_bytes());
        matches!(compared, AnswerComparison::Rounded(_))
    };
    assert!(compare("-11.5", "0.02", ["-11.5", "0.05"]), "logits of one call");
    assert!(!compare("-11.5", "0.02", ["-11.5", "0.30"]));
    assert!(compare("0.000010", "0.000020", ["0.000010", "0.0000205"]), "probabilities");
    assert!(!compare("0.000010", "0.000020", ["0.000010", "0.000040"]));
}
