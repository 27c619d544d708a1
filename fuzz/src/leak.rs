//! Fuzz targets for isolation: no member of a batch receives an input of another one, and calls
//! with different credentials have different merge keys.

use bytes::Bytes;
use groupage::batching::Tick;
use groupage::protocol::{
    BatchResponse, Call, DigestKey, MergeEligibility, Reply, UnbatchedEvidence, headers, is_overload,
};
use http::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use serde_json::Value;

use super::common::{PathEndpoint, path_endpoints, read};

/// Unique texts for the inputs of two unbatched calls and of two members. Fuzz inputs that contain
/// one are skipped.
const CANARIES: [&str; 4] = ["5f3a91c07be2", "c48d06e9a1b7", "07e1f9d25a3c", "b92c64d8f013"];
/// Names of the response members that contain results.
const RESULTS: [&str; 8] =
    ["data", "choices", "predictions", "results", "explanations", "scores", "embeddings", "texts"];

/// Head of the answers of a server.
struct AnswerHead<'a> {
    status: StatusCode,
    /// Names and values, in which `@0` and `@1` stand for inputs.
    lines: Vec<(&'a str, &'a str)>,
}

/// Splits an answer between two members and asserts that none receives the input of the other.
///
/// The input has three lines with a call and two answers to unbatched calls, followed by an answer
/// to a batch of two calls. `@` in the call or in an unbatched answer is replaced by the input of
/// its client, `@0` and `@1` in the answer to the batch by those of the members.
///
/// The answer to the batch may begin with a line that is a status, followed by `name: value` lines
/// and an empty line. The unbatched answers then have the same status and headers, in which `@0`
/// and `@1` are the input of their client.
pub fn split_leak(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if CANARIES.iter().any(|canary| text.contains(canary)) {
        return;
    }
    let mut lines = text.splitn(4, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (call, unbatched, answer) = (line(), [line(), line()], line());
    let (head, body) = AnswerHead::parse(answer);
    for endpoint in path_endpoints() {
        leak(&endpoint, call, unbatched, (&head, body));
    }
}

fn leak(endpoint: &PathEndpoint, call: &str, unbatched: [&str; 2], (head, body): (&AnswerHead<'_>, &str)) {
    let [one, other, first, second] = CANARIES.map(|canary| read(endpoint, call.replace('@', canary).as_bytes()));
    let members = [&first, &second];
    if first.unbatched_reason().is_some() || first.merge != second.merge {
        return;
    }
    let body = quote(body, [CANARIES[2], CANARIES[3]]);
    // The results of an error are not split.
    if head.status.is_success() && quotes_in_results(&body) {
        return;
    }
    let (headers, body) = (head.headers([CANARIES[2], CANARIES[3]]), Bytes::from(body));
    let shared = BatchResponse { status: head.status, headers: &headers, body: &body };
    let evidence = UnbatchedEvidence::default();
    for (call, (text, canary)) in [&one, &other].into_iter().zip(unbatched.into_iter().zip(CANARIES)) {
        // A batch that cannot be split marks its key, and the following unbatched answers of the
        // key are observed. The first split happens before any unbatched answer.
        check(endpoint, members, shared, &evidence);
        let body = Bytes::from(text.replace('@', canary));
        let headers = head.headers([canary; 2]);
        endpoint.1.observe_unbatched(
            call,
            BatchResponse { status: head.status, headers: &headers, body: &body },
            &evidence,
        );
    }
    check(endpoint, members, shared, &evidence);
}

/// Asserts that no reply to a member contains the input of the other one. An error that does not
/// report overload has no replies: its members are sent again alone.
fn check(endpoint: &PathEndpoint, members: [&Call; 2], shared: BatchResponse<'_>, evidence: &UnbatchedEvidence) {
    let sent = endpoint.1.write_batch(&members, None);
    let split = endpoint.1.split_batch(&members, &sent, shared, Some((Tick(1), evidence)));
    assert!(shared.status.is_success() || split.is_err(), "an error was split");
    let replies = if is_overload(shared.status) {
        endpoint.1.overload_replies(&members, &sent, shared, evidence)
    } else {
        split.unwrap_or_default()
    };
    for (reply, strange) in replies.iter().zip([CANARIES[3], CANARIES[2]]) {
        let text = written(reply);
        assert!(
            !text.contains(strange),
            "{}: an answer contains the input of another client: {text}",
            endpoint.1.label.as_str()
        );
    }
}

/// Returns the headers, the body and the trailers of a reply.
fn written(reply: &Reply) -> String {
    let lines = reply.headers.iter().chain(reply.trailers.iter().flatten());
    let lines = lines.map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    lines.collect::<String>() + &String::from_utf8_lossy(&reply.body)
}

/// Replaces `@0` and `@1` by these inputs.
fn quote(text: &str, [first, second]: [&str; 2]) -> String {
    text.replace("@0", first).replace("@1", second)
}

// === impl AnswerHead ===

impl<'a> AnswerHead<'a> {
    /// Splits an answer into its head and its body. An answer without a status is a success without
    /// headers of its own.
    fn parse(answer: &'a str) -> (Self, &'a str) {
        let status = |line: &str| line.parse().ok().and_then(|status: u16| StatusCode::from_u16(status).ok());
        let head = answer.split_once("\n\n").and_then(|(head, body)| {
            let mut lines = head.lines();
            let status = lines.next().and_then(status)?;
            let lines = lines.filter_map(|line| line.split_once(": ")).collect();
            Some((Self { status, lines }, body))
        });
        head.unwrap_or((Self { status: StatusCode::OK, lines: Vec::new() }, answer))
    }

    /// Returns the headers with these inputs. Invalid ones are left out.
    fn headers(&self, inputs: [&str; 2]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.lines {
            let (name, value) = (quote(name, inputs).parse::<HeaderName>(), quote(value, inputs).parse());
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.append(name, value);
            }
        }
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        headers
    }
}

/// Returns `true` if a result contains an input: the answer of the server to an item belongs to the
/// member that sent it.
fn quotes_in_results(answer: &str) -> bool {
    let quotes = |value: &Value| CANARIES.iter().any(|canary| value.to_string().contains(canary));
    match serde_json::from_str(answer) {
        Ok(Value::Object(members)) => {
            members.iter().any(|(name, value)| RESULTS.contains(&name.as_str()) && quotes(value))
        }
        // An answer of TEI consists of the results alone.
        Ok(value) => quotes(&value),
        Err(_) => true,
    }
}

fn json() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers
}

/// Reads two heads and asserts that they have the same merge key only if their identity headers are
/// equal, and that no `Connection` header removes an identity header.
///
/// The input has two heads of `name: value` lines, separated by an empty line.
pub fn merge_key(data: &[u8]) {
    let cut = data.windows(2).position(|pair| pair == b"\n\n");
    let Some((first, second)) = cut.map(|at| (&data[..at], &data[at + 2..])) else { return };
    let heads = [first, second].map(head_of);
    for endpoint in path_endpoints() {
        let keys = heads.each_ref().map(|headers| {
            let mut request = http::Request::new(());
            (*request.method_mut(), *request.headers_mut()) = (Method::POST, headers.clone());
            *request.uri_mut() = http::Uri::from_static("/v1/embeddings");
            let body = Bytes::from_static(b"{\"model\":\"m\",\"input\":[\"a\"],\"instances\":[1],\"inputs\":[\"a\"]}");
            endpoint.1.parse_call(&request.into_parts().0, body, &DigestKey::from_bytes([7; 32])).merge
        });
        let [MergeEligibility::With(one), MergeEligibility::With(other)] = &keys else { continue };
        if one == other {
            assert_eq!(
                callers(&heads[0]),
                callers(&heads[1]),
                "clients with different credentials have the same merge key"
            );
        }
    }
    for mut headers in heads {
        let before = callers(&headers);
        headers::strip_hop_by_hop(&mut headers);
        assert_eq!(callers(&headers), before, "a `Connection` header removed an identity header");
        assert!(!headers.contains_key(CONNECTION), "hop-by-hop headers are not forwarded");
    }
}

fn head_of(lines: &[u8]) -> HeaderMap {
    let mut headers = json();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    headers
}

/// Returns the identity headers, sorted by name.
fn callers(headers: &HeaderMap) -> Vec<(String, Vec<Vec<u8>>)> {
    let mut found: Vec<_> = headers
        .keys()
        .filter(|name| headers::is_identity(name))
        .map(|name| (name.to_string(), headers.get_all(name).iter().map(|value| value.as_bytes().to_vec()).collect()))
        .collect();
    found.sort();
    found
}
