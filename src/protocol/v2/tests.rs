//! Calls and responses as a whole: what may share a batch, and what each member receives.

mod comparison;
mod division;
pub(super) mod round_trip;

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::binary::HEADER_LENGTH;
use crate::batching::Tick;
use crate::tests::{endpoint, headers_of, key, parts, read, routes_of, secret};
use crate::{
    BatchResponse, Call, Endpoint, LimitsSource, MismatchKind, PublishedLimits, Reply, RouteProtocol,
    UnbatchedEvidence, UnmergeableReason,
};

pub(super) const PATH: &str = "/v2/models/m/infer";

pub(super) fn v2() -> Arc<Endpoint> {
    // Calls of two endpoints never share a batch.
    static ENDPOINT: LazyLock<Arc<Endpoint>> = LazyLock::new(|| endpoint(PATH, RouteProtocol::OpenInferenceV2));
    Arc::clone(&ENDPOINT)
}

/// Reads a call with a body of a JSON document of `length` bytes and tensors after it.
pub(super) fn read_binary(endpoint: &Endpoint, length: usize, body: Vec<u8>) -> Call {
    endpoint.parse_call(&head_of_binary(PATH, length), Bytes::from(body), &secret())
}

fn fp32(shape: &str, data: &str) -> String {
    format!(r#"{{"inputs":[{{"name":"x","shape":{shape},"datatype":"FP32","data":{data}}}]}}"#)
}

fn split(
    bodies: &[&str],
    headers: &[(&str, &str)],
    answer: impl Fn(&str) -> Vec<u8>,
    evidence: &UnbatchedEvidence,
) -> Result<Vec<Reply>, MismatchKind> {
    let endpoint = v2();
    let calls: Vec<Call> = bodies.iter().map(|body| read(&endpoint, PATH, body)).collect();
    let members: Vec<&Call> = calls.iter().collect();
    assert!(calls.iter().all(|call| key(call).is_some() && key(call) == key(&calls[0])), "{calls:?}");
    let sent = endpoint.write_batch(&members, None);
    let body = Bytes::from(answer(&sent.request_id));
    let headers = headers_of(headers);
    let answer = BatchResponse { status: StatusCode::OK, headers: &headers, body: &body };
    endpoint.split_batch(&members, &sent, answer, Some((Tick(0), evidence))).map_err(|mismatch| mismatch.what)
}

/// Splits a response between a member with one row and one with two.
fn split_one_and_two(answer: &str) -> Result<Vec<String>, MismatchKind> {
    let calls = [fp32("[1,1]", "[1]"), fp32("[2,1]", "[ 2, 3 ]")];
    let replies = split(&[&calls[0], &calls[1]], &[], |_| answer.as_bytes().to_vec(), &UnbatchedEvidence::default())?;
    Ok(replies.into_iter().map(|reply| String::from_utf8(reply.body.to_vec()).unwrap()).collect())
}

fn outputs(rest: &str) -> String {
    format!(r#"{{"model_name":"m","outputs":[{{"name":"o","datatype":"FP32","shape":[3],"data":[1.0,2.0,3.0]{rest}"#)
}

#[test]
fn calls_differ_in_everything_but_their_rows() {
    let endpoint = v2();
    let base = read(&endpoint, PATH, &fp32("[1,2]", "[1,2]"));
    for other in [fp32("[2,2]", "[1,2, 3, 4.5e3]"), fp32("[ 1 , 2 ]", "[ 0.10 ,1 ]")] {
        assert_eq!(key(&read(&endpoint, PATH, &other)), key(&base), "{other}");
    }
    assert_eq!(read(&endpoint, PATH, &fp32("[2,2]", "[1,2,3,4]")).items, 2);
    let x = r#""name":"x","shape":[1,2],"datatype":"FP32""#;
    for other in [
        fp32("[1,2]", "[[1,2]]"),
        fp32("[1,3]", "[1,2,3]"),
        fp32("[1,2,1]", "[1,2]"),
        fp32("[1,2]", "[1,NaN]"),
        format!(r#"{{"id":"a","inputs":[{{{x},"data":[1,2]}}]}}"#),
        format!(r#"{{"inputs":[{{{x},"data":[1,2]}}],"parameters":{{}}}}"#),
        format!(r#"{{"inputs":[{{{x},"data":[1,2]}}],"outputs":[{{"name":"o"}}]}}"#),
        format!(r#"{{"inputs":[{{{x},"data":[1,2],"parameters":{{"content_type":"np"}}}}]}}"#),
        format!(r#"{{"inputs":[{{{x},"data":[1,2]}},{{"name":"y","shape":[1],"datatype":"INT8","data":[1]}}]}}"#),
        r#"{"inputs":[{"name":"y","shape":[1,2],"datatype":"FP32","data":[1,2]}]}"#.to_owned(),
        r#"{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP64","data":[1,2]}]}"#.to_owned(),
    ] {
        let other = read(&endpoint, PATH, &other);
        assert!(key(&other).is_some() && key(&other) != key(&base), "{:?}", other.body);
    }
}

#[test]
fn only_a_document_with_its_length_may_precede_binary_data() {
    let endpoint = v2();
    let doc = r#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP16","parameters":{"binary_data_size":2}}]}"#;
    let body = |tail: &[u8]| [doc.as_bytes(), tail].concat();
    let call = read_binary(&endpoint, doc.len(), body(b"ab"));
    assert_eq!((call.items, call.unbatched_reason()), (1, None));
    for (length, tail) in [(doc.len(), &b"a"[..]), (doc.len(), b"abc"), (0, b"ab"), (doc.len() + 9, b"ab")] {
        let reason = read_binary(&endpoint, length, body(tail)).unbatched_reason();
        assert_eq!(reason, Some(UnmergeableReason::ItemForm), "{length} {tail:?}");
    }
    let json = fp32("[1]", "[1]");
    let framed = read_binary(&endpoint, json.len(), json.clone().into_bytes());
    assert!(key(&framed).is_some() && key(&framed) != key(&read(&endpoint, PATH, &json)));
    let embeddings = endpoint_for_embeddings();
    let head = embeddings.parse_call(&head_of_binary("/v1/embeddings", doc.len()), Bytes::from(body(b"ab")), &secret());
    assert_eq!(head.unbatched_reason(), Some(UnmergeableReason::Encoding));
}

/// Reads calls without a content type, as Triton's client sends them.
fn read_untyped(length: Option<usize>, body: &[u8]) -> Call {
    let mut head = parts(PATH, &[("host", "h")]);
    if let Some(length) = length {
        head.headers.insert(HEADER_LENGTH, length.into());
    }
    v2().parse_call(&head, Bytes::copy_from_slice(body), &secret())
}

#[test]
fn calls_without_a_content_type_share_batches_that_have_none() {
    let typed = read(&v2(), PATH, &fp32("[1]", "[1]"));
    let json = [read_untyped(None, fp32("[1]", "[1]").as_bytes()), read_untyped(None, fp32("[1]", "[2]").as_bytes())];
    assert!(key(&json[0]).is_some() && key(&json[0]) == key(&json[1]));
    assert_ne!(key(&json[0]), key(&typed));
    let doc = r#"{"inputs":[{"name":"x","shape":[1],"datatype":"INT16","parameters":{"binary_data_size":2}}]}"#;
    let call = |data: &[u8]| read_untyped(Some(doc.len()), &[doc.as_bytes(), data].concat());
    let binary = [call(b"aa"), call(b"bb")];
    assert!(key(&binary[0]).is_some() && key(&binary[0]) == key(&binary[1]));
    for calls in [&json, &binary] {
        let sent = v2().write_batch(&[&calls[0], &calls[1]], None);
        assert!(!sent.headers.contains_key("content-type"), "{:?}", sent.headers);
        assert_eq!(sent.headers.contains_key(HEADER_LENGTH), calls[0].body.ends_with(b"aa"));
    }
    let call = endpoint_for_embeddings().parse_call(&parts("/v1/embeddings", &[]), Bytes::from("{}"), &secret());
    assert_eq!(call.unbatched_reason(), Some(UnmergeableReason::Encoding));
}

fn endpoint_for_embeddings() -> Arc<Endpoint> {
    endpoint("/v1/embeddings", RouteProtocol::OpenAi)
}

fn head_of_binary(path: &str, length: usize) -> http::request::Parts {
    let mut head = parts(path, &[("host", "h"), ("content-type", "application/octet-stream")]);
    head.headers.insert(HEADER_LENGTH, length.into());
    head
}

#[test]
fn an_output_without_exactly_the_rows_of_the_batch_is_a_mismatch() {
    for (answer, what) in [
        (outputs("}]}").replace("[3]", "[1]"), MismatchKind::Count),
        (outputs("}]}").replace("[3]", "[4]"), MismatchKind::Count),
        (outputs("}]}").replace("[3]", "[3,2]"), MismatchKind::Shape),
        (outputs("}]}").replace("[3]", "[3,0]"), MismatchKind::Shape),
        (outputs("}]}").replace("[3]", "[]"), MismatchKind::Shape),
        (outputs("}]}").replace("FP32", "secret"), MismatchKind::Shape),
        (outputs("}]}").replace("3.0]", "{\"a\":1}]"), MismatchKind::Shape),
        (outputs("},{\"name\":\"s\",\"datatype\":\"FP32\",\"shape\":[1],\"data\":[6.0]}]}"), MismatchKind::Count),
        (outputs("},7]}"), MismatchKind::Shape),
        (outputs(",\"data\":[7,8,9]}]}"), MismatchKind::Shape),
        (outputs(",\"Data\":[7,8,9]}]}"), MismatchKind::Shape),
        (outputs(",\"parameters\":{\"binary_data_size\":12}}]}"), MismatchKind::Shape),
        (r#"{"model_name":"m","outputs":[]}"#.to_owned(), MismatchKind::Shape),
        (
            r#"{"model_name":"m","outputs":[{"name":"o","datatype":"FP32","shape":[3]}]}"#.to_owned(),
            MismatchKind::Shape,
        ),
        ("[]".to_owned(), MismatchKind::Shape),
        (outputs(""), MismatchKind::NotJson),
    ] {
        assert_eq!(split_one_and_two(&answer), Err(what), "{answer}");
    }
}

#[test]
fn a_part_outside_the_rows_is_shared_only_if_it_cannot_quote_a_neighbour() {
    let plain = outputs(",\"parameters\":{}}],\"parameters\":null,\"model_version\":\"1\"}");
    let split = split_one_and_two(&plain).unwrap();
    assert_eq!(split[0], plain.replace("[3]", "[1]").replace("[1.0,2.0,3.0]", "[1.0]"));
    assert_eq!(split[1], plain.replace("[3]", "[2]").replace("[1.0,2.0,3.0]", "[2.0,3.0]"));
    for answer in [
        outputs(",\"parameters\":{\"seen\":1}}]}"),
        outputs(",\"note\":\"x\"}]}"),
        outputs("}],\"parameters\":{\"seen\":1}}"),
        outputs("}],\"extra\":1}"),
        outputs("}],\"model_version\":\"a b\"}"),
        outputs("}]}").replace("\"o\"", "\"a b\""),
        outputs("}]}").replace("\"o\"", "[1]"),
        outputs("}]}").replace("\"m\"", "\"m n\""),
    ] {
        assert_eq!(split_one_and_two(&answer), Err(MismatchKind::Undeclared), "{answer}");
    }
}

#[test]
fn a_parameter_that_unbatched_responses_have_is_shared() {
    let endpoint = v2();
    let evidence = UnbatchedEvidence::default();
    let parameters = r#","parameters":{"codec":"np"}}]}"#;
    let calls = [fp32("[1,1]", "[1]"), fp32("[2,1]", "[2,3]")];
    let bodies = [calls[0].as_str(), calls[1].as_str()];
    let batch = || split(&bodies, &[], |_| outputs(parameters).into_bytes(), &evidence);
    assert_eq!(batch().unwrap_err(), MismatchKind::Undeclared);
    for input in 0..16 {
        let call = read(&endpoint, PATH, &fp32("[1,1]", &format!("[{input}]")));
        let body = Bytes::from(outputs(parameters).replace("[3]", "[1]").replace(",2.0,3.0", ""));
        let answer = BatchResponse { status: StatusCode::OK, headers: &HeaderMap::new(), body: &body };
        endpoint.observe_unbatched(&call, answer, &evidence);
    }
    assert_eq!(batch().unwrap().len(), 2);
}

#[test]
fn the_codecs_of_mlserver_are_known() {
    for (codec, expected) in [("np", true), ("hg_json", true), ("private-0", false)] {
        let outputs = outputs(&format!(
            r#","parameters":{{"content_type":"{codec}"}}}}],"parameters":{{"content_type":"{codec}"}}}}"#
        ));
        assert_eq!(split_one_and_two(&outputs).is_ok(), expected, "{codec}");
    }
}

#[test]
fn a_name_that_quotes_text_of_an_input_is_not_shared() {
    let call =
        |text: &str| format!(r#"{{"inputs":[{{"name":"x","shape":[1],"datatype":"BYTES","data":["{text}"]}}]}}"#);
    let calls = [call("private-token"), call("b")];
    let answer = |name: &str| {
        let output = r#"{"name":"NAME","datatype":"INT8","shape":[2],"data":[1,2]}"#.replace("NAME", name);
        format!(r#"{{"model_name":"m","model_version":"1","outputs":[{output}]}}"#).into_bytes()
    };
    let split = |name: &str| {
        split(&[&calls[0], &calls[1]], &[], |_| answer(name), &UnbatchedEvidence::default())
            .map(|replies| replies.len())
    };
    assert_eq!(split("output_0"), Ok(2));
    assert_eq!(split("Private-Token"), Err(MismatchKind::Undeclared));
}

#[test]
fn each_member_receives_its_own_id() {
    let call = |id: &str| fp32("[1]", "[1]").replacen('{', &format!("{{\"id\" : {id},"), 1);
    let calls = [call(r#""\u0061b""#), call(r#""c""#)];
    let answer = |id: &str| {
        format!(r#"{{"id":"{id}","outputs":[{{"name":"o","datatype":"FP32","shape":[2],"data":[1,2]}}]}}"#).into_bytes()
    };
    let evidence = UnbatchedEvidence::default();
    let replies = split(&[&calls[0], &calls[1]], &[], answer, &evidence).unwrap();
    assert!(replies[0].body.starts_with(br#"{"id":"\u0061b","#), "{:?}", replies[0].body);
    assert!(replies[1].body.starts_with(br#"{"id":"c","#));
    let replies = split(&[&calls[0], &calls[1]], &[], |_| answer("0f0f0f0f0f0f"), &evidence).unwrap();
    assert!(!replies.iter().any(|reply| reply.body.starts_with(br#"{"id":"0f0f0f0f0f0f"#)));
    assert_ne!(replies[0].body, replies[1].body);
}

#[test]
fn an_empty_id_is_none() {
    let call = |id: &str| fp32("[1]", "[1]").replacen('{', &format!("{{\"id\":\"{id}\","), 1);
    let endpoint = v2();
    let calls = [call(""), call("")].map(|body| read(&endpoint, PATH, &body));
    let sent = endpoint.write_batch(&[&calls[0], &calls[1]], None);
    assert!(sent.body.starts_with(br#"{"id":"","#), "{:?}", sent.body);
    let named = read(&endpoint, PATH, &call("a"));
    assert!(key(&calls[0]).is_some() && key(&calls[0]) != key(&named));
}

#[test]
fn a_response_with_binary_outputs_is_cut_after_its_document() {
    let calls = [fp32("[1,1]", "[1]"), fp32("[2,1]", "[2,3]")];
    let doc = r#"{"model_name":"m","outputs":[{"name":"o","datatype":"INT16","shape":[3,1],"parameters":{"binary_data_size":6}},{"name":"s","datatype":"BYTES","shape":[3],"data":["a","b","c"]}]} "#;
    let length = doc.len().to_string();
    let headers = [("inference-header-content-length", length.as_str()), ("content-type", "application/octet-stream")];
    let answer = |tail: &'static [u8]| move |_: &str| [doc.as_bytes(), tail].concat();
    let evidence = UnbatchedEvidence::default();
    let replies = split(&[&calls[0], &calls[1]], &headers, answer(b"aabbcc"), &evidence).unwrap();
    let own = doc.replace("[3,1]", "[2,1]").replace("[3]", "[2]").replace(":6", ":4").replace("\"a\",", "");
    assert_eq!(replies[1].body, [own.as_bytes(), b"bbcc"].concat());
    assert_eq!(replies[1].headers[HEADER_LENGTH], own.len().to_string());
    assert_eq!(replies[1].headers["content-type"], "application/octet-stream");
    assert!(replies[0].body.ends_with(b"]} aa"));
    for tail in [&b"aabbc"[..], b"aabbccd", b""] {
        let cut = split(&[&calls[0], &calls[1]], &headers, |_| [doc.as_bytes(), tail].concat(), &evidence);
        assert_eq!(cut.unwrap_err(), MismatchKind::Shape, "{tail:?}");
    }
}

#[test]
fn a_model_publishes_its_configuration_beside_its_calls() {
    let source = |path: &str| {
        let endpoint = endpoint(path, RouteProtocol::OpenInferenceV2);
        endpoint.limits_source(&read(&endpoint, path, "{}"), false)
    };
    let config = |path: &str| Some(LimitsSource::ModelConfig(path.to_owned()));
    assert_eq!(source(PATH), config("/v2/models/m/config"));
    assert_eq!(source("/ns/v2/models/m/versions/2/infer"), config("/ns/v2/models/m/versions/2/config"));
    assert_eq!(source("/custom/infer"), None);
    let default = routes_of(&[]);
    for (path, is_automatic) in [(PATH, true), ("/ns/v2/models/m/infer", true), ("/v2/models/m/generate", false)] {
        let found = default.recognise(&http::Method::POST, path);
        let reason = found.and_then(|endpoint| endpoint.unmergeable_model(None));
        assert_eq!(reason, is_automatic.then_some(UnmergeableReason::OpenInference), "{path}");
    }
    let automatic = default.recognise(&http::Method::POST, PATH).unwrap();
    let limits = |batches_itself| Some(PublishedLimits { items_max: Some(8), batches_itself, ..Default::default() });
    assert_eq!(automatic.unmergeable_model(limits(false)), None);
    assert_eq!(automatic.unmergeable_model(limits(true)), Some(UnmergeableReason::NoGain));
    assert_eq!((v2().unmergeable_model(None), v2().unmergeable_model(limits(true))), (None, None));
    let source = LimitsSource::ModelConfig("/v2/models/m/config".to_owned());
    assert!(source.is_model_config() && !LimitsSource::Info.is_model_config());
    for config in [r#"{"max_batch_size":0}"#, r#"{"max_batch_size":8,"dynamic_batching":{},"sequence_batching":{}}"#] {
        let published = source.parse(config.as_bytes()).unwrap();
        for endpoint in [&automatic, &v2()] {
            assert_eq!(endpoint.unmergeable_model(published), Some(UnmergeableReason::OpenInference), "{config}");
        }
    }
}
