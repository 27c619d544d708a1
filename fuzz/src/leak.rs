//! Fuzz targets for isolation: no member of a batch receives an input of another one, and calls
//! with different credentials have different merge keys.

use bytes::Bytes;
use groupage::batching::Tick;
use groupage::protocol::{BatchResponse, Call, DigestKey, MergeEligibility, Reply, UnbatchedEvidence, headers};
use http::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use serde_json::Value;

use super::common::{PathEndpoint, path_endpoints, read};

/// Unique texts for the inputs of two unbatched calls and of two members. Fuzz inputs that contain
/// one are skipped.
const CANARIES: [&str; 4] = ["5f3a91c07be2", "c48d06e9a1b7", "07e1f9d25a3c", "b92c64d8f013"];
/// Names of the response members that contain results.
const RESULTS: [&str; 4] = ["data", "predictions", "results", "explanations"];

/// Splits an answer between two members and asserts that none receives the input of the other.
///
/// The input has four lines: a call, two answers to unbatched calls, and an answer to a batch of
/// two calls. `@` in the call or in an unbatched answer is replaced by the input of its client,
/// `@0` and `@1` in the last line by those of the members.
pub fn split_leak(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if CANARIES.iter().any(|canary| text.contains(canary)) {
        return;
    }
    let mut lines = text.splitn(4, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (call, lone, answer) = (line(), [line(), line()], line());
    for endpoint in path_endpoints() {
        leak(&endpoint, call, lone, answer);
    }
}

fn leak(endpoint: &PathEndpoint, call: &str, lone: [&str; 2], answer: &str) {
    let [alone, other, first, second] = CANARIES.map(|canary| read(endpoint, call.replace('@', canary).as_bytes()));
    let members = [&first, &second];
    if first.unbatched_reason().is_some() || first.merge != second.merge {
        return;
    }
    let answer = answer.replace("@0", CANARIES[2]).replace("@1", CANARIES[3]);
    if quotes_in_results(&answer) {
        return;
    }
    let evidence = UnbatchedEvidence::default();
    for (call, (text, canary)) in [&alone, &other].into_iter().zip(lone.into_iter().zip(CANARIES)) {
        // A batch that cannot be split marks its key, and the following unbatched answers of the
        // key are observed. The first split happens before any unbatched answer.
        split(endpoint, members, &answer, &evidence);
        let body = Bytes::from(text.replace('@', canary));
        let headers = json();
        endpoint.1.observe_lone(
            call,
            BatchResponse { status: StatusCode::OK, headers: &headers, body: &body },
            &evidence,
        );
    }
    let Some(replies) = split(endpoint, members, &answer, &evidence) else { return };
    for (reply, strange) in replies.iter().zip([CANARIES[3], CANARIES[2]]) {
        let text = String::from_utf8_lossy(&reply.body);
        assert!(
            !text.contains(strange),
            "{}: an answer contains the input of another client: {text}",
            endpoint.1.label.as_str()
        );
    }
}

fn split(
    endpoint: &PathEndpoint,
    members: [&Call; 2],
    answer: &str,
    evidence: &UnbatchedEvidence,
) -> Option<Vec<Reply>> {
    let sent = endpoint.1.write_batch(&members, None);
    let (headers, body) = (json(), Bytes::from(answer.to_owned()));
    let shared = BatchResponse { status: StatusCode::OK, headers: &headers, body: &body };
    endpoint.1.split_batch(&members, &sent, shared, Some((Tick(1), evidence))).ok()
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
