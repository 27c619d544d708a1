//! Status of a gRPC call. A server writes it in the trailers of its response, or in the head of one
//! that has no message ("Trailers-Only").
//!
//! The path of a call judges responses by HTTP statuses, so the codes are translated as
//! `google.rpc.Code` documents them.

use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Header with the code of a call.
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// Header with the message of a failed call, percent-encoded.
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Maximum number of bytes of a message that are read: servers put a traceback there, and limits are
/// named in the first line.
const MESSAGE_MAX: usize = 4096;

/// Codes of the protocol that are used here.
const DEADLINE_EXCEEDED: u16 = 4;
const RESOURCE_EXHAUSTED: u16 = 8;
const INTERNAL: u16 = 13;
const UNAVAILABLE: u16 = 14;

/// Parts of the messages, in lower case, of servers that received a larger message than they accept.
/// Their code is that of an overloaded server.
const TOO_LARGE: [&[u8]; 2] = [
    // gRPC Core, grpc-go and grpc-js.
    b"received message larger than max",
    // grpc-java.
    b"exceeds maximum size",
];

/// Returns the HTTP status of a response with the same meaning, and the message of an error.
///
/// A response of HTTP without a gRPC status is an error, even one with status 200.
pub(crate) fn as_http(status: StatusCode, headers: &HeaderMap, trailers: Option<&HeaderMap>) -> (StatusCode, Bytes) {
    if status != StatusCode::OK {
        let error = if status.is_success() { StatusCode::BAD_GATEWAY } else { status };
        return (error, Bytes::new());
    }
    let find = |name: &HeaderName| trailers.and_then(|map| map.get(name)).or_else(|| headers.get(name));
    let code = find(&STATUS).and_then(|value| value.to_str().ok()?.parse::<u16>().ok());
    let message = find(&MESSAGE).map(decode_message).unwrap_or_default();
    let http = match code {
        Some(0) => 200,
        Some(RESOURCE_EXHAUSTED) if is_too_large(&message) => 413,
        Some(RESOURCE_EXHAUSTED) => 429,
        Some(UNAVAILABLE) => 503,
        Some(1) => 499,
        Some(3 | 9 | 11) => 400,
        Some(DEADLINE_EXCEEDED) => 504,
        Some(5) => 404,
        Some(6 | 10) => 409,
        Some(7) => 403,
        Some(12) => 501,
        Some(16) => 401,
        Some(_) => 500,
        None => 502,
    };
    (StatusCode::from_u16(http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), message)
}

/// Returns the trailers of a successful call.
pub(crate) fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    trailers
}

/// Writes the status of a failed call into the head of a response without a message. `message` is a
/// constant text that needs no encoding.
pub(crate) fn write_failure(status: StatusCode, message: &'static str, headers: &mut HeaderMap) {
    // A call that ended with 502 may have been executed, and clients repeat a call that ended with
    // `UNAVAILABLE`.
    let code = match status {
        StatusCode::TOO_MANY_REQUESTS => RESOURCE_EXHAUSTED,
        StatusCode::SERVICE_UNAVAILABLE => UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => DEADLINE_EXCEEDED,
        _ => INTERNAL,
    };
    headers.insert(STATUS, HeaderValue::from(code));
    headers.insert(MESSAGE, HeaderValue::from_static(message));
}

fn is_too_large(message: &[u8]) -> bool {
    let message = message.to_ascii_lowercase();
    TOO_LARGE.iter().any(|text| memchr::memmem::find(&message, text).is_some())
}

/// Decodes the percent-encoding of a message. A sequence that is no encoding is kept.
fn decode_message(value: &HeaderValue) -> Bytes {
    let mut text = Vec::with_capacity(value.len().min(MESSAGE_MAX));
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if text.len() == MESSAGE_MAX {
            break;
        }
        let digit = |place: usize| after.get(place).and_then(|byte| char::from(*byte).to_digit(16));
        let escaped = match (*first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => u8::try_from(high << 4 | low).ok(),
            _ => None,
        };
        text.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    Bytes::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::headers_of;

    fn status(headers: &[(&str, &str)], trailers: &[(&str, &str)]) -> (u16, Vec<u8>) {
        let (status, message) = as_http(StatusCode::OK, &headers_of(headers), Some(&headers_of(trailers)));
        (status.as_u16(), message.to_vec())
    }

    #[test]
    fn the_status_is_in_the_trailers_or_in_a_head_without_a_message() {
        assert_eq!(status(&[], &[("grpc-status", "0")]), (200, Vec::new()));
        assert_eq!(status(&[], &[("grpc-status", "14"), ("grpc-message", "a%20b%")]), (503, b"a b%".to_vec()));
        assert_eq!(status(&[("grpc-status", "8")], &[]), (429, Vec::new()));
        assert_eq!(status(&[], &[]), (502, Vec::new()));
        assert_eq!(status(&[], &[("grpc-status", "x")]), (502, Vec::new()));
        assert_eq!(as_http(StatusCode::NO_CONTENT, &HeaderMap::new(), None).0, StatusCode::BAD_GATEWAY);
        assert_eq!(as_http(StatusCode::NOT_FOUND, &HeaderMap::new(), None).0, StatusCode::NOT_FOUND);
    }

    #[test]
    fn a_message_larger_than_the_server_accepts_is_no_overload() {
        for text in [
            "Received message larger than max (5000000 vs. 4194304)",
            "grpc: received message larger than max (5 vs. 4)",
            "gRPC message exceeds maximum size 4194304: 5000000",
        ] {
            assert_eq!(status(&[], &[("grpc-status", "8"), ("grpc-message", text)]).0, 413, "{text}");
        }
        assert_eq!(status(&[], &[("grpc-status", "8"), ("grpc-message", "Too many requests")]).0, 429);
    }

    #[test]
    fn a_failure_of_the_proxy_has_the_code_of_its_status() {
        for (http, code) in [(429, "8"), (503, "14"), (504, "4"), (408, "4"), (502, "13")] {
            let mut headers = HeaderMap::new();
            write_failure(StatusCode::from_u16(http).unwrap(), "queue full", &mut headers);
            assert_eq!(headers, headers_of(&[("grpc-status", code), ("grpc-message", "queue full")]));
        }
    }
}
