//! Calls and responses as a whole: what may share a batch, and what each member receives.

mod comparison;
mod division;
mod round_trip;

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, Version};

use super::{MESSAGE_BYTES_MAX, PATH};
use crate::batching::Tick;
use crate::tests::{endpoint, headers_of, key, routes_of, secret};
use crate::{
    BatchResponse, Call, Endpoint, LimitsSource, MismatchKind, PublishedLimits, Reply, RouteProtocol, SharedRequest,
    UnbatchedEvidence, UnmergeableReason,
};

pub(super) fn grpc() -> Arc<Endpoint> {
    // Calls of two endpoints never share a batch.
    static ENDPOINT: LazyLock<Arc<Endpoint>> = LazyLock::new(|| endpoint(PATH, RouteProtocol::OpenInferenceV2));
    Arc::clone(&ENDPOINT)
}

/// Returns a field with bytes.
pub(super) fn field(number: u8, value: &[u8]) -> Vec<u8> {
    // Tags and lengths of tests are varints of one or two bytes.
    let varint = |value: usize| match u8::try_from(value) {
        Ok(low @ 0..=127) => vec![low],
        _ => vec![u8::try_from(value % 128).unwrap() | 128, u8::try_from(value / 128).unwrap()],
    };
    [varint(usize::from(number) << 3 | 2), varint(value.len()), value.to_vec()].concat()
}

/// Returns the body with a message.
pub(super) fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    Bytes::from([&[0], &length[..], message].concat())
}

/// Returns a tensor as the value of its field.
pub(super) fn tensor(name: &str, datatype: &str, shape: &[u8], contents: Option<&[u8]>) -> Vec<u8> {
    let mut out = [field(1, name.as_bytes()), field(2, datatype.as_bytes()), field(3, shape)].concat();
    out.extend(contents.map(|contents| field(5, contents)).unwrap_or_default());
    out
}

fn read_with(endpoint: &Endpoint, lines: &[(&str, &str)], body: Bytes) -> Call {
    let mut head = http::Request::post(PATH).version(Version::HTTP_2).header("te", "trailers");
    if !lines.iter().any(|(name, _)| *name == "content-type") {
        head = head.header("content-type", "application/grpc");
    }
    for (name, value) in lines {
        head = head.header(*name, *value);
    }
    endpoint.parse_call(&head.body(()).unwrap().into_parts().0, body, &secret())
}

pub(super) fn read(message: &[u8]) -> Call {
    read_with(&grpc(), &[], framed(message))
}

/// Returns a message with an input of raw numbers, and other fields.
fn raw(shape: &[u8], data: &[u8], others: &[u8]) -> Vec<u8> {
    let input = tensor("x", "INT16", shape, None);
    [field(1, b"m"), others.to_vec(), field(5, &input), field(7, data)].concat()
}

fn split_with(
    calls: &[Call],
    answer: impl Fn(&str) -> Vec<u8>,
    evidence: &UnbatchedEvidence,
) -> Result<Vec<Reply>, MismatchKind> {
    let members: Vec<&Call> = calls.iter().collect();
    assert!(calls.iter().all(|call| key(call).is_some() && key(call) == key(&calls[0])), "{calls:?}");
    let sent = grpc().write_batch(&members, None);
    let body = framed(&answer(&sent.request_id));
    let headers = headers_of(&[("content-type", "application/grpc")]);
    let answer = BatchResponse { status: StatusCode::OK, headers: &headers, body: &body };
    grpc().split_batch(&members, &sent, answer, Some((Tick(0), evidence))).map_err(|mismatch| mismatch.what)
}

/// Splits a response between a member with one row and one with two.
fn split_one_and_two(answer: &[u8]) -> Result<Vec<Bytes>, MismatchKind> {
    let calls = [read(&raw(b"\x01", b"aa", b"")), read(&raw(b"\x02", b"bbcc", b""))];
    let replies = split_with(&calls, |_| answer.to_vec(), &UnbatchedEvidence::default())?;
    Ok(replies.into_iter().map(|reply| reply.body).collect())
}

fn outputs(shape: &[u8], data: &[u8], others: &[u8]) -> Vec<u8> {
    let output = tensor("o", "INT16", shape, None);
    [field(1, b"m"), field(2, b"1"), field(5, &output), others.to_vec(), field(6, data)].concat()
}

/// Returns an entry of the map at a field.
fn parameter(number: u8, name: &str) -> Vec<u8> {
    field(number, &[field(1, name.as_bytes()), field(2, b"\x10\x01")].concat())
}

#[test]
fn calls_differ_in_everything_but_their_rows() {
    let base = read(&raw(b"\x01\x02", b"aabb", b""));
    for other in [raw(b"\x02\x02", b"aabbccdd", b""), raw(b"\x01\x02", b"zzzz", b"")] {
        assert_eq!(key(&read(&other)), key(&base), "{other:?}");
    }
    assert_eq!(read(&raw(b"\x02\x02", b"aabbccdd", b"")).items, 2);
    let typed = [field(1, b"m"), field(5, &tensor("x", "INT16", b"\x01\x02", Some(b"\x12\x02\x01\x02")))].concat();
    for other in [
        typed,
        raw(b"\x02", b"aabb", b""),
        raw(b"\x01\x01\x02", b"aabb", b""),
        raw(b"\x01\x02", b"aabb", &field(2, b"1")),
        raw(b"\x01\x02", b"aabb", &field(3, b"id")),
        raw(b"\x01\x02", b"aabb", &parameter(4, "priority")),
        raw(b"\x01\x02", b"aabb", &field(6, &field(1, b"o"))),
        raw(b"\x01\x02", b"aabb", &field(15, b"")),
    ] {
        let call = read(&other);
        assert!(key(&call).is_some() && key(&call) != key(&base), "{other:?}");
    }
    let proto =
        read_with(&grpc(), &[("content-type", "application/grpc+proto")], framed(&raw(b"\x01\x02", b"aabb", b"")));
    assert!(key(&proto).is_some() && key(&proto) != key(&base));
}

#[test]
fn a_call_with_empty_contents_beside_a_blob_is_sent_unbatched() {
    let input = tensor("x", "INT16", b"\x01", Some(b""));
    let call = read(&[field(1, b"m"), field(5, &input), field(7, b"aa")].concat());
    assert_eq!(call.unbatched_reason(), Some(UnmergeableReason::ItemForm));
}

#[test]
fn blobs_with_empty_contents_beside_them_are_cut() {
    let answer = |shape: &[u8], data: &[u8]| {
        let output = [field(1, b"o"), field(2, b"INT16"), field(5, b""), field(3, shape)].concat();
        [field(1, b"m"), field(5, &output), field(6, data)].concat()
    };
    let split = split_one_and_two(&answer(b"\x03", b"aabbcc")).unwrap();
    assert_eq!(split, [framed(&answer(b"\x01", b"aa")), framed(&answer(b"\x02", b"bbcc"))]);
}

#[test]
fn ids_and_the_order_of_parameters_do_not_separate_calls() {
    let call = |id: &[u8], first: &str, second: &str| {
        let fields = [field(3, id), parameter(4, first), field(15, b"new"), parameter(4, second)].concat();
        read(&raw(b"\x01", b"aa", &fields))
    };
    assert_eq!(key(&call(b"1", "a", "b")), key(&call(b"2", "b", "a")));
    assert_eq!(key(&call(b"1", "a", "a")), None, "the last one counts");
    let lines = [("grpc-timeout", "1S"), ("grpc-accept-encoding", "gzip"), ("user-agent", "grpc-go/1.0")];
    let other = read_with(&grpc(), &lines, framed(&raw(b"\x01", b"aa", b"")));
    assert_eq!(key(&other), key(&read(&raw(b"\x01", b"aa", b""))));
}

#[test]
fn the_parts_of_a_key_have_the_names_of_their_fields() {
    let call = read(&raw(b"\x01", b"aa", &parameter(4, "priority")));
    let parts = grpc().key_parts(key(&call).unwrap()).unwrap();
    let names: Vec<&str> = parts.iter().map(|part| part.name.as_ref()).filter(|name| name.starts_with('/')).collect();
    assert_eq!(names, ["/model_name", "/model_version", "/parameters", "/inputs", "/outputs"]);
}

#[test]
fn a_call_that_a_batch_cannot_represent_is_not_merged() {
    let input = |contents: Option<&[u8]>| field(5, &tensor("x", "INT16", b"\x01", contents));
    for message in [
        raw(b"\x01", b"aaa", b""),
        raw(b"\x00", b"", b""),
        raw(b"\x01", b"aa", &field(7, b"aa")),
        [input(Some(b"\x12\x01\x01")), field(7, b"aa")].concat(),
        input(Some(b"\x12\x02\x01\x01")),
        input(None),
        field(1, b"m"),
        [input(Some(b"\x12\x01\x01")), field(5, &tensor("y", "INT8", b"\x02", Some(b"\x12\x02\x01\x01")))].concat(),
        field(5, &tensor("x", "FP16", b"\x01", Some(b"\x12\x01\x01"))),
        raw(b"\x01", b"aa", &parameter(4, "sequence_id")),
        raw(b"\x01", b"aa", &field(6, &parameter(2, "Shared_Memory_Region"))),
        raw(b"\x01", b"aa", &field(1, b"n")),
        raw(b"\x01", b"aa", &[field(3, b"a"), field(3, b"b")].concat()),
        raw(b"\x01", b"aa", b"\x0b\x0c"),
        raw(b"\x01", b"aa", b"\x08\x01"),
        {
            let mut long = raw(b"\x01", b"aa", b"");
            super::wire::write_bytes(&mut long, 15, &vec![0; 200 << 10]);
            long
        },
    ] {
        assert_eq!(read(&message).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{message:?}");
    }
    let body = framed(&raw(b"\x01", b"aa", b""));
    let reason = |lines: &[(&str, &str)], body: Bytes| read_with(&grpc(), lines, body).unbatched_reason();
    assert_eq!(reason(&[], body.clone()), None);
    assert_eq!(reason(&[], Bytes::from([&body[..], &body[..]].concat())), Some(UnmergeableReason::ItemForm));
    assert_eq!(reason(&[], Bytes::new()), Some(UnmergeableReason::ItemForm));
    let compressed = Bytes::from([b"\x01", &body[1..]].concat());
    assert_eq!(reason(&[], compressed), Some(UnmergeableReason::Encoding));
    for line in
        [("content-type", "application/json"), ("content-type", "application/grpc+json"), ("grpc-encoding", "gzip")]
    {
        assert_eq!(reason(&[line], body.clone()), Some(UnmergeableReason::Encoding), "{line:?}");
    }
    assert_eq!(reason(&[("grpc-encoding", "identity")], body.clone()), None);
    let head = http::Request::post(PATH).header("content-type", "application/grpc").body(()).unwrap().into_parts().0;
    let call = grpc().parse_call(&head, body, &secret());
    assert_eq!(call.unbatched_reason(), Some(UnmergeableReason::Encoding), "HTTP/1.1 has no form of gRPC");
}

#[test]
fn a_shared_call_keeps_unknown_fields_and_has_a_head_of_its_own() {
    let message = |data: &[u8], id: &[u8]| raw(b"\x01", data, &[field(3, id), field(15, b"new")].concat());
    let lines = [("grpc-accept-encoding", "gzip"), ("x-tag", "1"), ("grpc-timeout", "1S")];
    let calls = [b"aa", b"bb"].map(|data| read_with(&grpc(), &lines, framed(&message(data, b"own"))));
    let sent = grpc().write_batch(&[&calls[0], &calls[1]], Some(700));
    let expected = raw(b"\x02", b"aabb", &[field(3, sent.request_id.as_bytes()), field(15, b"new")].concat());
    assert_eq!(sent.body, framed(&expected));
    assert_eq!((sent.version, sent.target.as_str()), (Version::HTTP_2, PATH));
    for (name, value) in
        [("content-type", "application/grpc"), ("te", "trailers"), ("x-tag", "1"), ("grpc-timeout", "700m")]
    {
        assert_eq!(sent.headers[name], value);
    }
    assert!(!sent.headers.contains_key("grpc-accept-encoding"), "a compressed response could not be split");
}

#[test]
fn an_output_without_exactly_the_rows_of_the_batch_is_a_mismatch() {
    let typed = |contents: &[u8]| field(5, &tensor("o", "INT16", b"\x03", Some(contents)));
    for (answer, what) in [
        (outputs(b"\x01", b"aa", b""), MismatchKind::Count),
        (outputs(b"\x04", b"aabbccdd", b""), MismatchKind::Count),
        (outputs(b"\x03", b"aabbc", b""), MismatchKind::Shape),
        (outputs(b"\x03", b"aabbccd", b""), MismatchKind::Shape),
        (outputs(b"\x03\x02", b"aabbcc", b""), MismatchKind::Shape),
        (outputs(b"\x03\x00", b"", b""), MismatchKind::Shape),
        (outputs(b"", b"aabbcc", b""), MismatchKind::Shape),
        (outputs(b"\x03", b"aabbcc", &field(6, b"aabbcc")), MismatchKind::Shape),
        (outputs(b"\x03", b"aabbcc", &typed(b"\x12\x03\x01\x02\x03")), MismatchKind::Shape),
        (typed(b"\x12\x02\x01\x02"), MismatchKind::Shape),
        (typed(b""), MismatchKind::Shape),
        (field(1, b"m"), MismatchKind::Shape),
        (b"\x0a\x05m".to_vec(), MismatchKind::NotJson),
    ] {
        assert_eq!(split_one_and_two(&answer), Err(what), "{answer:?}");
    }
}

#[test]
fn each_member_receives_its_rows_in_the_form_of_the_server() {
    let split = split_one_and_two(&outputs(b"\x03\x01", b"aabbcc", b"")).unwrap();
    assert_eq!(split, [framed(&outputs(b"\x01\x01", b"aa", b"")), framed(&outputs(b"\x02\x01", b"bbcc", b""))]);
    let typed = |shape: &[u8], contents: &[u8]| field(5, &tensor("o", "INT64", shape, Some(contents)));
    let split = split_one_and_two(&typed(b"\x03", b"\x1a\x04\x96\x01\x02\x03")).unwrap();
    assert_eq!(split, [framed(&typed(b"\x01", b"\x1a\x02\x96\x01")), framed(&typed(b"\x02", b"\x1a\x02\x02\x03"))]);
}

#[test]
fn a_reply_ends_with_a_status_in_its_trailers() {
    let calls = [read(&raw(b"\x01", b"aa", b"")), read(&raw(b"\x01", b"bb", b""))];
    let answer = |_: &str| outputs(b"\x02", b"ccdd", b"");
    let replies = split_with(&calls, answer, &UnbatchedEvidence::default()).unwrap();
    for reply in replies {
        assert_eq!(
            (reply.status, &reply.headers["content-type"]),
            (StatusCode::OK, &"application/grpc".parse().unwrap())
        );
        assert_eq!(reply.trailers.unwrap()["grpc-status"], "0");
    }
}

#[test]
fn a_part_outside_the_rows_is_shared_only_if_it_cannot_quote_a_neighbour() {
    assert!(split_one_and_two(&outputs(b"\x03", b"aabbcc", b"")).is_ok());
    for answer in [
        outputs(b"\x03", b"aabbcc", &parameter(4, "seen")),
        outputs(b"\x03", b"aabbcc", &field(15, b"note")),
        outputs(b"\x03", b"aabbcc", &field(3, b"own-id")),
        [field(1, b"m n"), field(5, &tensor("o", "INT16", b"\x03", Some(b"\x12\x03\x01\x02\x03")))].concat(),
        field(5, &tensor("a b", "INT16", b"\x03", Some(b"\x12\x03\x01\x02\x03"))),
        field(5, &[tensor("o", "INT16", b"\x03", Some(b"\x12\x03\x01\x02\x03")), parameter(4, "seen")].concat()),
        field(5, &[tensor("o", "INT16", b"\x03", Some(b"\x12\x03\x01\x02\x03")), field(9, b"x")].concat()),
    ] {
        assert_eq!(split_one_and_two(&answer), Err(MismatchKind::Undeclared), "{answer:?}");
    }
}

/// Returns `true` if a batch with a parameter is split after some unbatched responses with it.
fn is_split_after(unbatched: u8, parameter: &[u8]) -> bool {
    let evidence = UnbatchedEvidence::default();
    let calls = [read(&raw(b"\x01", b"aa", b"")), read(&raw(b"\x01", b"bb", b""))];
    let batch = || split_with(&calls, |_| outputs(b"\x02", b"aabb", parameter), &evidence);
    let first = batch();
    for input in 0..unbatched {
        let body = framed(&outputs(b"\x01", b"cc", parameter));
        let answer = BatchResponse { status: StatusCode::OK, headers: &HeaderMap::new(), body: &body };
        grpc().observe_unbatched(&read(&raw(b"\x01", &[input, 0], b"")), answer, &evidence);
    }
    first.is_ok() || batch().is_ok()
}

#[test]
fn a_parameter_that_unbatched_responses_have_is_shared() {
    let text =
        |name: &str, text: &str| field(4, &[field(1, name.as_bytes()), field(2, &field(3, text.as_bytes()))].concat());
    for (parameter, needed) in [
        (parameter(4, "content_type"), 64),
        (text("mark", "clean"), 16),
        (text("version", "2026.11.1-a"), 2),
        (text("content_type", "private-0"), 2),
    ] {
        assert!(!is_split_after(needed - 1, &parameter), "{parameter:?}");
        assert!(is_split_after(needed, &parameter), "{parameter:?}");
    }
    assert!(is_split_after(0, &text("content_type", "np")), "a codec of the protocol");
}

#[test]
fn an_empty_id_is_none() {
    let calls = [field(3, b""), Vec::new(), field(3, b"a")].map(|id| read(&raw(b"\x01", b"aa", &id)));
    assert!(key(&calls[0]).is_some() && key(&calls[0]) == key(&calls[1]) && key(&calls[0]) != key(&calls[2]));
    let sent = grpc().write_batch(&[&calls[0], &calls[1]], None);
    assert_eq!(sent.body, framed(&raw(b"\x02", b"aaaa", &field(3, b""))));
}

#[test]
fn each_member_receives_its_own_id() {
    let calls = [b"own 1", b"own 2"].map(|id| read(&raw(b"\x01", b"aa", &field(3, id))));
    let answer = |id: &str| [field(3, id.as_bytes()), outputs(b"\x02", b"aabb", b"")].concat();
    let evidence = UnbatchedEvidence::default();
    let replies = split_with(&calls, answer, &evidence).unwrap();
    for (reply, own) in replies.iter().zip([b"own 1", b"own 2"]) {
        assert!(reply.body[5..].starts_with(&field(3, own)), "{:?}", reply.body);
    }
    let replies = split_with(&calls, |_| answer("0f0f0f0f0f0f"), &evidence).unwrap();
    assert!(!replies.iter().any(|reply| reply.body[5..].starts_with(&field(3, b"0f0f0f0f0f0f"))));
    assert_ne!(replies[0].body, replies[1].body);
}

fn sent_of(calls: &[Call]) -> (Vec<&Call>, SharedRequest) {
    let members: Vec<&Call> = calls.iter().collect();
    let sent = grpc().write_batch(&members, None);
    (members, sent)
}

#[test]
fn an_overload_of_a_batch_reaches_every_member_without_the_text_of_the_server() {
    let calls = [read(&raw(b"\x01", b"aa", b"")), read(&raw(b"\x01", b"bb", b""))];
    let (members, sent) = sent_of(&calls);
    let headers = headers_of(&[("grpc-status", "8"), ("grpc-message", "secret")]);
    let (status, text) = grpc().response_status(StatusCode::OK, (&headers, None), &Bytes::new());
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    let answer = BatchResponse { status, headers: &headers, body: &text };
    let replies = grpc().overload_replies(&members, &sent, answer, &UnbatchedEvidence::default());
    assert_eq!(replies.len(), 2);
    for reply in replies {
        assert_eq!((reply.status, reply.body.len()), (StatusCode::OK, 0));
        assert_eq!(
            (&reply.headers["grpc-status"], &reply.headers["grpc-message"]),
            (&"8".parse().unwrap(), &"upstream overloaded".parse().unwrap())
        );
    }
}

#[test]
fn a_limit_that_a_server_names_in_its_error_is_read() {
    let message = "inference request batch-size must be <= 4 for 'm'";
    let trailers = headers_of(&[("grpc-status", "3"), ("grpc-message", message)]);
    let (status, text) = grpc().response_status(StatusCode::OK, (&HeaderMap::new(), Some(&trailers)), &Bytes::new());
    assert_eq!(grpc().detect_too_large(status, &text).and_then(|too_large| too_large.limit), Some(4));
}

#[test]
fn a_shared_call_above_the_usual_limit_of_servers_is_not_sent() {
    let data = vec![7; MESSAGE_BYTES_MAX / 8];
    let rows = u64::try_from(data.len() / 2).unwrap();
    let mut shape = Vec::new();
    super::wire::write_varint(&mut shape, 1);
    super::wire::write_varint(&mut shape, rows);
    let mut message = field(5, &tensor("x", "INT16", &shape, None));
    super::wire::write_bytes(&mut message, 7, &data);
    let calls: Vec<Call> = (0..9).map(|_| read(&message)).collect();
    let oversize = |count: usize| {
        let (members, sent) = sent_of(&calls[..count]);
        grpc().detect_oversize(&members, &sent).and_then(|too_large| too_large.limit)
    };
    assert_eq!(oversize(7), None);
    assert_eq!(oversize(9), Some(7));
}

#[test]
fn a_model_publishes_its_configuration_by_a_method_beside_its_calls() {
    let default = routes_of(&[]);
    let automatic = default.recognise(&http::Method::POST, PATH).unwrap();
    let call = read_with(&automatic, &[], framed(&raw(b"\x01", b"aa", &field(2, b"3"))));
    let source = LimitsSource::ModelConfigMethod { model: Bytes::from("m"), version: Bytes::from("3") };
    assert_eq!(automatic.limits_source(&call, false), Some(source));
    assert_eq!(automatic.unmergeable_model(None), Some(UnmergeableReason::OpenInference));
    let limits = |batches_itself| Some(PublishedLimits { items_max: Some(8), batches_itself, ..Default::default() });
    assert_eq!(automatic.unmergeable_model(limits(false)), None);
    assert_eq!(automatic.unmergeable_model(limits(true)), Some(UnmergeableReason::NoGain));
    assert_eq!(grpc().unmergeable_model(None), None);
    let no_batch = Some(PublishedLimits { items_max: Some(1), has_no_batch: true, ..Default::default() });
    for endpoint in [&automatic, &grpc()] {
        assert_eq!(endpoint.unmergeable_model(no_batch), Some(UnmergeableReason::OpenInference));
    }
    for path in ["/inference.GRPCInferenceService/ModelStreamInfer", "/ns/inference.GRPCInferenceService/ModelInfer"] {
        assert!(default.recognise(&http::Method::POST, path).is_none(), "{path}");
    }
}
