//! Streamed completions: the calls that are merged, and the split of their chunks under every cut of
//! the stream.

use proptest::prelude::*;

use super::*;
use crate::error::FailureKind;

const PATH: &str = "/v1/completions";
const AB: &str = r#"{"prompt":"ab","stream":true}"#;
const CDE: &str = r#"{"prompt":"cde","stream":true}"#;

/// A stream as the members of a batch receive it.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReceivedStream {
    /// The bodies, with a placeholder for each id.
    bodies: Vec<String>,
    /// The body of the member at this place is complete.
    complete: Vec<bool>,
    comments: Vec<Bytes>,
    has_end: bool,
}

/// A stream that is split for its members.
struct TestSplit {
    split: StreamSplit,
    evidence: UnbatchedEvidence,
    bodies: Vec<Vec<u8>>,
    received: ReceivedStream,
}

fn event_stream() -> HeaderMap {
    headers_of(&[("content-type", "text/event-stream; charset=utf-8")])
}

/// Returns the text with the ids of its chunks replaced, after checking that they are the same.
fn mask_ids(body: &[u8]) -> String {
    let body = String::from_utf8(body.to_vec()).unwrap();
    let ids: Vec<&str> =
        body.split(r#""id":""#).skip(1).map(|rest| rest.split('"').next().unwrap_or_default()).collect();
    let Some(first) = ids.first() else { return body };
    assert!(ids.iter().all(|id| id == first), "{ids:?}");
    assert!(first.starts_with("cmpl-") && first.len() == 21, "{first}");
    body.replace(first, "ID")
}

// === impl TestSplit ===

impl TestSplit {
    fn begin(protocol: RouteProtocol, calls: &[&str]) -> Self {
        let endpoint = endpoint(PATH, protocol);
        let calls: Vec<Arc<Call>> = calls.iter().map(|body| Arc::new(read(&endpoint, PATH, body))).collect();
        assert!(calls.iter().all(|call| may_share_batch(&calls[0], call)), "{calls:?}");
        let sent = endpoint.write_batch(&calls.iter().map(AsRef::as_ref).collect::<Vec<_>>(), None);
        let evidence = UnbatchedEvidence::default();
        let members = calls.len();
        let (split, heads) = endpoint.begin_stream(calls, sent, (StatusCode::OK, &event_stream()), &evidence).unwrap();
        assert!(heads.iter().all(|head| head["content-type"] == "text/event-stream; charset=utf-8"));
        let received = ReceivedStream { complete: vec![false; members], ..ReceivedStream::default() };
        Self { split, evidence, bodies: vec![Vec::new(); members], received }
    }

    fn push(&mut self, data: &[u8]) -> Result<(), MismatchKind> {
        self.split.push(data);
        while let Some(step) =
            self.split.next_step((Tick::default(), &self.evidence)).map_err(|mismatch| mismatch.what)?
        {
            match step {
                StreamStep::Member { member, bytes, is_last } => {
                    assert!(!self.received.complete[member], "bytes after the end");
                    self.bodies[member].extend_from_slice(&bytes);
                    self.received.complete[member] = is_last;
                }
                StreamStep::Comment(bytes) => self.received.comments.push(bytes),
                StreamStep::Error(ends) => self.end(ends),
                StreamStep::End => self.received.has_end = true,
            }
        }
        Ok(())
    }

    fn end(&mut self, ends: Vec<(usize, Bytes)>) {
        for (member, bytes) in ends {
            assert!(!self.received.complete[member], "bytes after the end");
            self.bodies[member].extend_from_slice(&bytes);
            self.received.complete[member] = true;
        }
    }

    fn received(mut self) -> ReceivedStream {
        assert_eq!(self.split.is_over(), self.received.complete.iter().all(|complete| *complete));
        self.received.bodies = self.bodies.iter().map(|body| mask_ids(body)).collect();
        self.received
    }
}

/// Splits a stream that arrives in these pieces.
fn split_pieces(protocol: RouteProtocol, calls: &[&str], pieces: &[&[u8]]) -> Result<ReceivedStream, MismatchKind> {
    let mut test = TestSplit::begin(protocol, calls);
    for piece in pieces {
        test.push(piece)?;
    }
    Ok(test.received())
}

fn split_text(calls: &[&str], text: &str) -> Result<ReceivedStream, MismatchKind> {
    split_pieces(RouteProtocol::OpenAi, calls, &[text.as_bytes()])
}

/// Returns the data of a chunk, with more members behind those of the protocol.
fn chunk_with(id: &str, index: usize, text: &str, finish: &str, more: &str) -> String {
    format!(
        r#"{{"id":"{id}","object":"text_completion","created":1700000000,"model":"m","choices":[{{"index":{index},"text":"{text}","finish_reason":{finish}}}]{more}}}"#
    )
}

/// Returns the event of a chunk.
fn event(index: usize, text: &str, finish: &str) -> String {
    format!("data: {}\n\n", chunk_with("cmpl-rq", index, text, finish, ""))
}

/// Returns that event as its member receives it.
fn own_event(index: usize, text: &str, finish: &str) -> String {
    format!("data: {}\n\n", chunk_with("ID", index, text, finish, ""))
}

const DONE: &str = "data: [DONE]\n\n";

#[test]
fn streams_share_a_batch_with_streams_of_the_same_options() {
    let endpoint = endpoint(PATH, RouteProtocol::Vllm);
    let call = |body: &str| read(&endpoint, PATH, body);
    let stream = call(AB);
    assert!(stream.is_mergeable_stream() && stream.streaming);
    assert!(may_share_batch(&stream, &call(r#"{"stream":true,"prompt":["c","d"]}"#)));
    for other in [
        r#"{"prompt":"cd"}"#,
        r#"{"prompt":"cd","stream":false}"#,
        r#"{"prompt":"cd","stream":true,"n":2}"#,
        r#"{"prompt":"cd","stream":true,"stream_options":{"include_usage":true}}"#,
        r#"{"prompt":"cd","stream":true,"stream_options":null}"#,
    ] {
        let other = call(other);
        assert_eq!(other.unbatched_reason(), None);
        assert!(!may_share_batch(&stream, &other));
    }
    assert_ne!(stream.cost_class, call(r#"{"prompt":"cd"}"#).cost_class);
    let accept = [("accept", "text/event-stream")];
    let accepting = read_with(&endpoint, PATH, &accept, AB);
    assert!(accepting.is_mergeable_stream() && !may_share_batch(&stream, &accepting));
    let plain = read_with(&endpoint, PATH, &accept, r#"{"prompt":"ab"}"#);
    assert_eq!(plain.unbatched_reason(), Some(UnmergeableReason::Streaming));
}

#[test]
fn streams_that_cannot_be_divided_are_sent_unbatched() {
    let body = |more: &str| format!(r#"{{"prompt":"a",{more}}}"#);
    for more in [
        r#""stream":1"#,
        r#""stream":"true""#,
        r#""stream":true,"stream_options":[]"#,
        r#""stream":true,"stream_options":{"include_usage":1}"#,
    ] {
        let call = read(&endpoint(PATH, RouteProtocol::Vllm), PATH, &body(more));
        assert_eq!(call.unbatched_reason(), Some(UnmergeableReason::Streaming), "{more}");
        assert!(call.streaming);
    }
    let usage = body(r#""stream":true,"stream_options":{"include_usage":true}"#);
    for (protocol, reason) in [
        (RouteProtocol::OpenAi, Some(UnmergeableReason::Streaming)),
        (RouteProtocol::Vllm, None),
        (RouteProtocol::SgLang, None),
    ] {
        assert_eq!(read(&endpoint(PATH, protocol), PATH, &usage).unbatched_reason(), reason);
    }
    let twice = body(r#""stream":true,"stream_options":{"include_usage":true,"include_usage":false}"#);
    let call = read(&endpoint(PATH, RouteProtocol::Vllm), PATH, &twice);
    assert_eq!(call.unbatched_reason(), Some(UnmergeableReason::AmbiguousJson));
    let over = RouteRules { merge_over_fields: vec![pointer("/stream_options")], ..rules(PATH, RouteProtocol::Vllm) };
    assert_eq!(
        read(&endpoint_of(over, PATH), PATH, AB).unbatched_reason(),
        Some(UnmergeableReason::Streaming),
        "members could differ in the options"
    );
}

#[test]
fn a_shared_stream_requests_counts_only_if_its_members_request_usage() {
    let endpoint = endpoint(PATH, RouteProtocol::Vllm);
    let sent = |options: &str| {
        let body = format!(r#"{{"prompt":"ab","stream":true{options}}}"#);
        let call = read(&endpoint, PATH, &body);
        String::from_utf8(endpoint.write_batch(&[&call, &call], None).body.to_vec()).unwrap()
    };
    let shared = |options: &str| format!(r#"{{"prompt":["ab","ab"],"stream":true{options}}}"#);
    assert_eq!(sent(""), shared(""));
    let counted = r#","stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
    assert_eq!(sent(r#","stream_options":{"include_usage":true}"#), shared(counted));
    assert_eq!(sent(counted), shared(counted));
    assert_eq!(
        sent(r#","stream_options":{"continuous_usage_stats":false,"include_usage":true}"#),
        shared(r#","stream_options":{"continuous_usage_stats":true,"include_usage":true}"#)
    );
}

#[test]
fn chunks_reach_their_members_with_own_indexes_and_ids() {
    let calls = [r#"{"prompt":["a","b"],"stream":true,"n":2}"#, r#"{"prompt":"c","stream":true,"n":2}"#];
    let mut text = String::new();
    for index in [5, 0, 3, 1] {
        text += &event(index, "x", "null");
    }
    for index in [4, 5, 3, 2, 1, 0] {
        text += &event(index, "y", "\"stop\"");
    }
    let received = split_text(&calls, &(text + DONE)).unwrap();
    let first = [
        own_event(0, "x", "null"),
        own_event(3, "x", "null"),
        own_event(1, "x", "null"),
        own_event(3, "y", "\"stop\""),
        own_event(2, "y", "\"stop\""),
        own_event(1, "y", "\"stop\""),
        own_event(0, "y", "\"stop\""),
        DONE.to_owned(),
    ];
    let second =
        [own_event(1, "x", "null"), own_event(0, "y", "\"stop\""), own_event(1, "y", "\"stop\""), DONE.to_owned()];
    assert_eq!(received.bodies, [first.concat(), second.concat()]);
    assert!(received.has_end);
}

#[test]
fn a_member_ends_with_its_last_result_and_an_unfinished_one_does_not() {
    let text = event(0, "x", "\"stop\"") + &event(1, "y", "null");
    let received = split_text(&[AB, CDE], &(text + DONE)).unwrap();
    assert_eq!(received.bodies, [own_event(0, "x", "\"stop\"") + DONE, own_event(0, "y", "null")]);
    assert_eq!(received.complete, [true, false]);
    assert!(received.has_end);
}

#[test]
fn usage_is_that_of_the_member_and_is_hidden_where_it_was_not_requested() {
    let call = |prompt: &str, more: &str| {
        format!(r#"{{"prompt":{prompt},"stream":true,"stream_options":{{"include_usage":true{more}}}}}"#)
    };
    let usage = |prompt: u32, completion: u32| {
        format!(
            r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{completion},"prompt_tokens_details":null}}"#,
            prompt + completion
        )
    };
    let chunk = |id, index, finish, more: &str| format!("data: {}\n\n", chunk_with(id, index, "x", finish, more));
    let total = |prompt, completion: u32| {
        format!(
            "data: {{\"id\":\"ID\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"m\",\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":{completion}}}}}\n\n",
            prompt + completion
        )
    };
    let text = [
        chunk("cmpl-rq", 2, "null", &usage(7, 1)),
        chunk("cmpl-rq", 0, "null", &usage(2, 1)),
        chunk("cmpl-rq", 1, "\"stop\"", &usage(3, 4)),
        chunk("cmpl-rq", 0, "\"stop\"", &usage(2, 2)),
        "data: {\"id\":\"cmpl-rq\",\"choices\":[],\"usage\":{\"prompt_tokens\":12}}\n\n".to_owned(),
        chunk("cmpl-rq", 2, "\"stop\"", &usage(7, 9)),
    ]
    .concat();
    let plain = [call(r#"["a","b"]"#, ""), call("\"c\"", "")];
    let plain: Vec<&str> = plain.iter().map(String::as_str).collect();
    let received = split_pieces(RouteProtocol::Vllm, &plain, &[text.as_bytes()]).unwrap();
    let hidden = r#","usage":null"#;
    let first = [
        chunk("ID", 0, "null", hidden),
        chunk("ID", 1, "\"stop\"", hidden),
        chunk("ID", 0, "\"stop\"", hidden),
        total(5, 6),
        DONE.to_owned(),
    ];
    let second = [chunk("ID", 0, "null", hidden), chunk("ID", 0, "\"stop\"", hidden), total(7, 9), DONE.to_owned()];
    assert_eq!(received.bodies, [first.concat(), second.concat()]);

    let more = r#","continuous_usage_stats":true"#;
    let counting = [call(r#"["a","b"]"#, more), call("\"c\"", more)];
    let counting: Vec<&str> = counting.iter().map(String::as_str).collect();
    let received = split_pieces(RouteProtocol::Vllm, &counting, &[text.as_bytes()]).unwrap();
    let second =
        [chunk("ID", 0, "null", &usage(7, 1)), chunk("ID", 0, "\"stop\"", &usage(7, 9)), total(7, 9), DONE.to_owned()];
    assert_eq!(received.bodies[1], second.concat());

    let cached =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\n";
    let received = |protocol| split_pieces(protocol, &plain, &[text.as_bytes(), cached.as_bytes()]);
    assert_eq!(received(RouteProtocol::Vllm).err(), Some(MismatchKind::Usage), "the totals of the last prompt alone");
    assert!(received(RouteProtocol::SgLang).is_ok());

    let uncounted = event(0, "x", "null");
    let received = split_pieces(RouteProtocol::Vllm, &plain, &[uncounted.as_bytes()]);
    assert_eq!(received.err(), Some(MismatchKind::Usage), "before any byte, so that the batch is isolated");
}

#[test]
fn the_usage_in_the_last_chunk_of_a_result_of_tgi_is_kept() {
    let chunk = |id, index, finish, more| format!("data: {}\n\n", chunk_with(id, index, "x", finish, more));
    let own = r#","usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}"#;
    let quoting = r#","usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,"prompt":"ab"}"#;
    let text = [
        chunk("cmpl-rq", 1, "\"\"", ""),
        chunk("cmpl-rq", 1, "\"length\"", own),
        chunk("cmpl-rq", 0, "\"stop\"", quoting),
        DONE.to_owned(),
    ]
    .concat();
    let hidden = r#","usage":null"#;
    let end = |more| chunk("ID", 0, "\"length\"", more) + DONE;
    for (protocol, usage) in [(RouteProtocol::Tgi, own), (RouteProtocol::OpenAi, hidden)] {
        let received = split_pieces(protocol, &[AB, CDE], &[text.as_bytes()]).unwrap();
        assert_eq!(received.bodies[0], chunk("ID", 0, "\"stop\"", hidden) + DONE);
        assert_eq!(received.bodies[1], chunk("ID", 0, "\"\"", "") + &end(usage));
    }
}

const SERVER_ERROR: &str = r#"{"error":{"message":"Internal server error","type":"InternalServerError","code":17}}"#;
const OWN_ERROR: &str =
    "data: {\"error\":{\"message\":\"batch failed\",\"type\":\"batch_failed\",\"param\":null,\"code\":502}}\n\n";

#[test]
fn an_error_of_the_server_reaches_the_only_member_left_if_it_quotes_no_other() {
    let error = |message: &str| format!("data: {message}\n\n");
    let one_left = event(0, "x", "\"stop\"");
    let received = split_text(&[AB, CDE], &[&one_left, &error(SERVER_ERROR), DONE].concat()).unwrap();
    assert_eq!(received.bodies[1], error(SERVER_ERROR) + DONE);
    assert_eq!(received.complete, [true, true]);

    let both_left = event(0, "x", "null");
    let received = split_text(&[AB, CDE], &[&both_left, &error(SERVER_ERROR), DONE].concat()).unwrap();
    let own = OWN_ERROR.to_owned() + DONE;
    assert_eq!(received.bodies, [own_event(0, "x", "null") + &own, own.clone()]);

    let secret = [r#"{"prompt":"a secret of A","stream":true}"#, CDE];
    for quoting in [r#"{"error":{"message":"cannot read \"A SECRET\""}}"#, r#"{"error":"\u0073ecret"}"#] {
        let received = split_text(&secret, &[&one_left, &error(quoting), DONE].concat()).unwrap();
        assert_eq!(received.bodies[1], own, "{quoting}");
    }
}

#[test]
fn a_failure_of_the_proxy_ends_only_the_streams_that_are_open() {
    let mut test = TestSplit::begin(RouteProtocol::OpenAi, &[AB, CDE]);
    test.push(event(0, "x", "\"stop\"").as_bytes()).unwrap();
    let ends = test.split.fail(FailureKind::Mismatch);
    assert_eq!(ends.len(), 1);
    test.end(ends);
    let received = test.received();
    assert!(received.bodies[1].contains("\"mismatch\"") && received.bodies[1].ends_with(DONE));
    assert_eq!(received.complete, [true, true]);
}

/// Older versions of SGLang write an empty text until the end.
#[test]
fn an_empty_reason_does_not_end_a_stream() {
    let calls = [r#"{"prompt":"a","stream":true}"#, r#"{"prompt":"b","stream":true}"#];
    let text = event(0, "x", "\"\"") + &event(1, "y", "\"\"") + &event(0, "z", "\"stop\"") + &event(1, "z", "\"stop\"");
    let received = split_text(&calls, &text).unwrap();
    assert!(received.bodies.iter().all(|body| body.contains("\"z\"") && body.ends_with(DONE)), "{received:?}");
}

#[test]
fn a_stream_of_comments_alone_has_no_bytes_for_its_members() {
    let received = split_text(&[AB, CDE], ": ping\n\n").unwrap();
    assert_eq!((received.bodies, received.comments), (vec![String::new(); 2], Vec::new()));
    assert_eq!((received.complete, received.has_end), (vec![false; 2], false));
}

#[test]
fn a_comment_that_may_quote_an_input_is_replaced() {
    let calls = [r#"{"prompt":"a secret of A","stream":true}"#, r#"{"prompt":"in 2026","stream":true}"#];
    let text = ": ping\n\n: ping\r\n\r\n: my secret\n\n: ping - 2026-11-27\n\n";
    assert!(split_text(&calls, text).unwrap().comments.is_empty(), "the batch may have to be isolated");
    let chunk = event(0, "x", "null");
    let received = split_text(&calls, &(text.to_owned() + &chunk)).unwrap();
    assert_eq!(received.comments, [&b":\n\n"[..]], "the last one before the first chunk");
    let received = split_text(&calls, &(chunk + text)).unwrap();
    assert_eq!(received.comments, [&b": ping\n\n"[..], b": ping\r\n\r\n", b":\n\n", b":\n\n"]);
}

#[test]
fn a_member_of_a_chunk_that_may_quote_an_input_isolates_the_batch_or_is_left_out() {
    let with = |index, more: &str| format!("data: {}\n\n", chunk_with("cmpl-rq", index, "x", "null", more));
    for more in [r#","prompt":"cde""#, r#","system_fingerprint":"f""#, r#","x":1"#] {
        assert_eq!(split_text(&[AB, CDE], &with(0, more)).err(), Some(MismatchKind::Undeclared), "{more}");
        let text = event(0, "y", "null") + &with(1, more) + &with(0, more);
        let received = split_text(&[AB, CDE], &text).unwrap();
        let plain = own_event(0, "x", "null");
        assert_eq!(received.bodies, [own_event(0, "y", "null") + &plain, plain], "{more}");
    }
    // An id with an unknown prefix in the first chunk of a member.
    let named = |index, id: &str| format!("data: {}\n\n", chunk_with(id, index, "x", "null", ""));
    let text = event(0, "y", "null") + &named(1, "john-0123456789abcdef") + &named(1, "cmpl-rq");
    let received = split_text(&[AB, CDE], &text).unwrap();
    assert!(received.bodies[1].starts_with(r#"data: {"object":"#) && !received.bodies[1].contains("john"));
    assert!(received.bodies[1].ends_with(&own_event(0, "x", "null")));

    let declared = r#","system_fingerprint":null,"usage":null"#;
    let received = split_text(&[AB, CDE], &with(1, declared)).unwrap();
    assert_eq!(received.bodies[1], format!("data: {}\n\n", chunk_with("ID", 0, "x", "null", declared)));
}

/// Splits the first chunk of a batch, with more members behind those of the protocol, and returns the
/// defect that is found.
fn split_first(endpoint: &Arc<Endpoint>, evidence: &UnbatchedEvidence, more: &str) -> Option<MismatchKind> {
    let calls: Vec<Arc<Call>> = [AB, CDE].map(|body| Arc::new(read(endpoint, PATH, body))).into();
    let sent = endpoint.write_batch(&[&calls[0], &calls[1]], None);
    let (mut split, _) = endpoint.begin_stream(calls, sent, (StatusCode::OK, &event_stream()), evidence).unwrap();
    split.push(format!("data: {}\n\n", chunk_with("cmpl-rq", 0, "x", "null", more)).as_bytes());
    split.next_step((Tick::default(), evidence)).err().map(|mismatch| mismatch.what)
}

/// Reads the stream that answers an unbatched call, in pieces of this size. Returns the number of
/// pieces after which no more are needed.
fn read_unbatched(
    endpoint: &Arc<Endpoint>,
    evidence: &UnbatchedEvidence,
    body: &str,
    text: &str,
    size: usize,
) -> Option<usize> {
    let call = Arc::new(read(endpoint, PATH, body));
    let mut chunk = FirstChunk::begin(endpoint, &call, (StatusCode::OK, &event_stream()), evidence).unwrap();
    let mut pieces = text.as_bytes().chunks(size);
    pieces.position(|piece| chunk.read(piece, (Tick::default(), evidence))).map(|place| place + 1)
}

fn unbatched_event(more: &str) -> String {
    format!("data: {}\r\n\r\n", chunk_with("cmpl-1", 0, "x", "null", more))
}

#[test]
fn the_first_chunk_of_an_unbatched_stream_is_evidence_about_its_members() {
    let fingerprint = r#","system_fingerprint":"fp_0123456789""#;
    let begin = ": ping\n\ndata: {\"choices\":[],\"unknown\":1}\n\n".to_owned() + &unbatched_event(fingerprint);
    let text = begin.clone() + &unbatched_event(r#","system_fingerprint":"another one""#);
    for size in [1, text.len()] {
        let (endpoint, evidence) = (endpoint(PATH, RouteProtocol::OpenAi), UnbatchedEvidence::default());
        assert_eq!(split_first(&endpoint, &evidence, fingerprint), Some(MismatchKind::Undeclared));
        for body in [AB, CDE] {
            let read = read_unbatched(&endpoint, &evidence, body, &text, size);
            assert_eq!(read, Some(begin.len().div_ceil(size)), "what follows is not read");
        }
        assert_eq!(split_first(&endpoint, &evidence, fingerprint), None);
        let other = r#","system_fingerprint":"fp_9876543210""#;
        assert_eq!(split_first(&endpoint, &evidence, other), Some(MismatchKind::Undeclared));
    }
}

#[test]
fn isolated_streams_whose_members_differ_end_merging_of_their_key() {
    let endpoint = endpoint(PATH, RouteProtocol::OpenAi);
    let fingerprint = |value: &str| format!(r#","system_fingerprint":"fp_0123456789_{value}""#);
    let many = |value: &str| (0..40).map(|name| format!(r#","m{name}":"{value}""#)).collect::<Vec<_>>().concat();
    let kinds: [&dyn Fn(&str) -> String; 2] = [&fingerprint, &many];
    for more in kinds {
        let evidence = UnbatchedEvidence::default();
        let is_unbatched = || evidence.is_unbatched(Tick::default(), &read(&endpoint, PATH, AB));
        assert_eq!(split_first(&endpoint, &evidence, &more("1")), Some(MismatchKind::Undeclared));
        assert!(!is_unbatched());
        for (body, value) in [(AB, "2"), (CDE, "3")] {
            assert_eq!(read_unbatched(&endpoint, &evidence, body, &unbatched_event(&more(value)), 1 << 20), Some(1));
        }
        assert_eq!(split_first(&endpoint, &evidence, &more("4")), Some(MismatchKind::Undeclared));
        assert!(is_unbatched());
    }
}

#[test]
fn an_unbatched_stream_without_a_chunk_is_no_evidence() {
    let (endpoint, evidence) = (endpoint(PATH, RouteProtocol::OpenAi), UnbatchedEvidence::default());
    let fingerprint = r#","system_fingerprint":"fp_0123456789""#;
    let huge = "data: ".to_owned() + &"x".repeat(2 << 20);
    for (text, read) in [
        ("", None),
        (": ping\n\n", None),
        (DONE, Some(1)),
        ("data: x\n\n", Some(1)),
        ("event: x\ndata: {}\n\n", Some(1)),
        ("data: {\"error\":{\"message\":\"no\"}}\n\n", Some(1)),
        (&*huge, Some(1)),
    ] {
        for body in [AB, CDE] {
            assert_eq!(read_unbatched(&endpoint, &evidence, body, text, 4 << 20), read, "{text:.40}");
        }
    }
    let begin = |body: &str, (name, value): (&'static str, &'static str), status| {
        let mut headers = event_stream();
        headers.insert(name, HeaderValue::from_static(value));
        let call = Arc::new(read(&endpoint, PATH, body));
        FirstChunk::begin(&endpoint, &call, (status, &headers), &evidence).is_some()
    };
    let plain = ("content-type", "text/event-stream");
    assert!(begin(AB, plain, StatusCode::OK));
    assert!(!begin(AB, plain, StatusCode::BAD_GATEWAY));
    assert!(!begin(r#"{"prompt":"ab"}"#, plain, StatusCode::OK));
    assert!(!begin(AB, ("content-type", "application/json"), StatusCode::OK));
    assert!(!begin(AB, ("content-encoding", "gzip"), StatusCode::OK));
    for _ in 0..2 {
        assert_eq!(split_first(&endpoint, &evidence, fingerprint), Some(MismatchKind::Undeclared));
        assert!(!evidence.is_unbatched(Tick::default(), &read(&endpoint, PATH, AB)), "nothing arrived in between");
    }
}

/// Where calls are not retried, a key is merged once all members of its streams are known. The time
/// is different in each of them.
#[test]
fn the_present_time_does_not_delay_the_merging_of_streams_that_are_not_retried() {
    let endpoint = endpoint_of(RouteRules { idempotent: Some(false), ..rules(PATH, RouteProtocol::OpenAi) }, PATH);
    let evidence = UnbatchedEvidence::new(Tick::default(), 1_700_000_000);
    let is_unbatched = || evidence.is_unbatched(Tick::default(), &read(&endpoint, PATH, AB));
    for number in 10..30 {
        let body = format!(r#"{{"prompt":"text {number}","stream":true}}"#);
        let text = unbatched_event("").replace("1700000000", &format!("17000000{number}"));
        read_unbatched(&endpoint, &evidence, &body, &text, 1 << 20);
        assert_eq!(is_unbatched(), number < 25, "sixteen inputs show that the name of the model is constant");
    }
}

#[test]
fn chunks_that_belong_to_no_result_are_a_mismatch() {
    let after_end = event(0, "x", "\"stop\"") + &event(0, "x", "null");
    let ended_twice = event(0, "x", "\"stop\"") + &event(0, "x", "\"stop\"");
    let huge = format!("data: {}", "x".repeat(2 << 20));
    for (text, expected) in [
        (&*event(2, "x", "null"), MismatchKind::Index),
        (&after_end, MismatchKind::Index),
        (&ended_twice, MismatchKind::Index),
        ("data: {\"choices\":[{\"text\":\"a\"}]}\n\n", MismatchKind::Index),
        ("data: {\"choices\":[{\"index\":-1}]}\n\n", MismatchKind::Index),
        ("data: {\"choices\":[{\"index\":0},{\"index\":1}]}\n\n", MismatchKind::Shape),
        ("data: {\"choices\":{}}\n\n", MismatchKind::Shape),
        ("data: {\"choices\":[],\"choices\":[]}\n\n", MismatchKind::Shape),
        ("data: {}\n\n", MismatchKind::Shape),
        ("data: x\n\n", MismatchKind::NotJson),
        ("event: x\ndata: {}\n\n", MismatchKind::Shape),
        (&huge, MismatchKind::NotJson),
    ] {
        assert_eq!(split_text(&[AB, CDE], text).err(), Some(expected), "{text:.200}");
    }
}

#[test]
fn only_a_plain_stream_of_events_is_split() {
    let endpoint = endpoint(PATH, RouteProtocol::OpenAi);
    let calls: Vec<Arc<Call>> = [AB, CDE].map(|body| Arc::new(read(&endpoint, PATH, body))).into();
    let begin = |status, change: (&'static str, &'static str)| {
        let mut headers = event_stream();
        headers.insert(change.0, HeaderValue::from_static(change.1));
        let sent = endpoint.write_batch(&[&calls[0], &calls[1]], None);
        let begun = endpoint.begin_stream(calls.clone(), sent, (status, &headers), &UnbatchedEvidence::default());
        begun.err().map(|mismatch| mismatch.what)
    };
    assert_eq!(begin(StatusCode::OK, ("content-type", "Text/Event-Stream")), None);
    assert_eq!(begin(StatusCode::OK, ("content-type", "application/json")), Some(MismatchKind::NotJson));
    assert_eq!(begin(StatusCode::OK, ("content-encoding", "gzip")), Some(MismatchKind::Compressed));
    assert_eq!(begin(StatusCode::OK, ("server", "llama.cpp")), Some(MismatchKind::Usage));
    assert_eq!(begin(StatusCode::NO_CONTENT, ("server", "x")), Some(MismatchKind::Status));
}

/// Each stream arrives in three pieces, for every pair of cuts. The chunks are short, so that there
/// are few thousand pairs.
#[test]
fn every_pair_of_cuts_of_a_stream_changes_nothing() {
    let chunk = |index: usize, finish: &str, more: &str| {
        format!("data: {{\"choices\":[{{\"index\":{index},\"text\":\"\u{1f600}\",\"finish_reason\":{finish}}}]{more}}}")
    };
    let usage = |tokens| format!(r#","usage":{{"prompt_tokens":{tokens},"total_tokens":9,"completion_tokens":1}}"#);
    let counted = r#"{"prompt":"ab","stream":true,"stream_options":{"include_usage":true}}"#;
    let error = format!("data: {SERVER_ERROR}\n\n");
    let streams = [
        (
            RouteProtocol::OpenAi,
            AB,
            format!(": \u{e9}\r\n\r\n{}\r\n\r\n\n{}\n\n{DONE}", chunk(1, "null", ""), chunk(0, "\"stop\"", "")),
        ),
        (RouteProtocol::OpenAi, AB, format!("{}\n\n{error}{DONE}", chunk(1, "\"stop\"", ""))),
        (
            RouteProtocol::Vllm,
            counted,
            format!("{}\n\n{}\r\n\r\n{DONE}", chunk(1, "\"stop\"", &usage(4)), chunk(0, "\"stop\"", &usage(5))),
        ),
    ];
    for (protocol, call, stream) in &streams {
        let calls = [*call, *call];
        let bytes = stream.as_bytes();
        let whole = split_pieces(*protocol, &calls, &[bytes]).unwrap();
        assert!(whole.bodies[1].contains("\u{1f600}"), "{whole:?}");
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(split_pieces(*protocol, &calls, &pieces).as_ref(), Ok(&whole), "{first} {second}");
            }
        }
    }
}

/// An event of the generated stream: the member that it belongs to, and whether it ends with CRLF.
fn events() -> impl Strategy<Value = Vec<(u8, bool)>> {
    prop::collection::vec((0..5_u8, any::<bool>()), 0..12)
}

proptest! {
    // Each case splits the stream once for each of its bytes.
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The members receive the same bytes however the stream is cut into reads: whole, at each of
    /// its bytes, or byte by byte.
    #[test]
    fn the_cuts_of_a_stream_change_nothing(events in events(), ends in any::<bool>(), text in "[a-z\\\\n\u{e9}{}\\[\\]:]{0,6}") {
        let calls = [AB, r#"{"prompt":["f","g"],"stream":true}"#];
        let text = text.replace('\\', "\\\\");
        let mut stream = String::new();
        let mut expected = [String::new(), String::new()];
        // Of the comments before the first chunk, the members receive the last one.
        let (mut early, mut comments) = (0, 0);
        let mut chunk = |index: usize, finish: &str, is_crlf: bool, stream: &mut String| {
            let end = if is_crlf { "\r\n\r\n" } else { "\n\n" };
            *stream += &format!("data: {}{end}", chunk_with("cmpl-rq", index, &text, finish, ""));
            let (member, own) = if index == 0 { (0, 0) } else { (1, index - 1) };
            expected[member] += &format!("data: {}{end}", chunk_with("ID", own, &text, finish, ""));
            if finish != "null" && index != 2 {
                expected[member] += &format!("data: [DONE]{end}");
            }
        };
        for (kind, is_crlf) in events {
            match kind {
                3 => {
                    let count = if stream.contains("data:") { &mut comments } else { &mut early };
                    *count += 1;
                    stream += ": ping\n\n";
                }
                4 => stream += "\r\n",
                index => chunk(index.into(), "null", is_crlf, &mut stream),
            }
        }
        if ends {
            for index in [2, 0, 1] {
                chunk(index, "\"stop\"", false, &mut stream);
            }
            stream += DONE;
        }
        let bytes = stream.as_bytes();
        let whole = split_pieces(RouteProtocol::OpenAi, &calls, &[bytes]).unwrap();
        prop_assert_eq!(&whole.bodies[..], &expected[..]);
        prop_assert_eq!(&whole.complete[..], &[ends, ends][..]);
        let early = if stream.contains("data:") { early.min(1) } else { 0 };
        prop_assert_eq!(whole.comments.len(), early + comments);
        for cut in 0..=bytes.len() {
            let (first, second) = bytes.split_at(cut);
            prop_assert_eq!(&split_pieces(RouteProtocol::OpenAi, &calls, &[first, second]).unwrap(), &whole);
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(&split_pieces(RouteProtocol::OpenAi, &calls, &single).unwrap(), &whole);
    }

    /// No stream of a server makes the split panic.
    #[test]
    fn any_stream_is_split_or_a_mismatch(text in "(data: |\\{|\\}|\\[|\\]|\"choices\":|\"index\":|[0-9]|,|\n\n|\r\n|:|\"id\":\"|\"error\":){0,60}") {
        // Which mismatch it is depends on the text.
        split_pieces(RouteProtocol::Vllm, &[AB, CDE], &[text.as_bytes()]).ok();
    }
}
