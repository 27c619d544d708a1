//! The head of a response to a shared call: selection of the upstream headers that every member may
//! receive.
//!
//! A header is forwarded only if it is listed here or in the policy. A header with a listed name and
//! with values that consist of numbers, times and fixed words, which occur in no item, is forwarded
//! unchanged. Any other text may quote an input, and so may a name of which only the prefix is
//! listed. Such a header is forwarded only if unbatched responses of the same key have the same
//! value ([`UnbatchedEvidence`]).

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::quote;
use crate::call::{Call, SharedRequest};
use crate::evidence::{AnswerPart, UnbatchedEvidence};
use crate::route::Endpoint;
use crate::shape::Payload;
use crate::{headers, ids};

/// Names of headers that may be forwarded: those of HTTP and CORS, of the rate limits of OpenAI and
/// of common gateways, and of the times of TEI and FastAPI.
const LISTED: [&str; 45] = [
    "content-type",
    "server",
    "www-authenticate",
    "allow",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "x-compute-type",
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "access-control-allow-private-network",
    "access-control-expose-headers",
    "access-control-max-age",
    "openai-model",
    "openai-organization",
    "openai-processing-ms",
    "openai-project",
    "openai-version",
    "x-compute-time",
    "x-inference-time",
    "x-process-time",
    "x-queue-time",
    "x-response-time",
    "x-tokenization-time",
    "x-total-time",
    "x-validation-time",
    "x-ratelimit-limit",
    "x-ratelimit-limit-day",
    "x-ratelimit-limit-hour",
    "x-ratelimit-limit-minute",
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-second",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining",
    "x-ratelimit-remaining-day",
    "x-ratelimit-remaining-hour",
    "x-ratelimit-remaining-minute",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-second",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
];
/// Prefixes of headers that may be forwarded if unbatched responses have the same one.
const LISTED_PREFIXES: [&str; 3] = ["x-ratelimit-", "openai-", "access-control-"];
/// Words that may occur in the values of such headers, besides numbers and units.
const WORDS: [&str; 18] = [
    "*",
    "true",
    "false",
    "application/json",
    "application/json;charset=utf-8",
    "application/json; charset=utf-8",
    "application/json; charset=UTF-8",
    "application/octet-stream",
    "text/event-stream",
    "text/event-stream;charset=utf-8",
    "text/event-stream; charset=utf-8",
    "text/event-stream; charset=UTF-8",
    "application/grpc",
    "application/grpc+proto",
    "text/plain; charset=utf-8",
    "cpu",
    "gpu",
    "gpu+optimized",
];
/// Maximum length of a measure in bytes and in digits: those of a time of day with its date.
const MEASURE_MAX: (usize, usize) = (32, 14);
/// Letters of units and dates: `6m0s`, `1.5ms`, `100;w=60`, `2026-11-24T10:00:00Z`.
const UNITS: &[u8] = b"dhmsunwTZ";

/// Headers that describe a single response or body, and are never forwarded.
const NEVER: [HeaderName; 6] = [
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::TRAILER,
    headers::COMPUTE_CHARACTERS,
    headers::COMPUTE_TOKENS,
    headers::REQUEST_ID,
];

/// The part of an upstream's head that all members of a shared call may receive.
pub(super) struct SharedHead {
    listed: HeaderMap,
    /// The upstream's head contains a request id.
    has_id: bool,
}

/// Returns the headers of a response that may be forwarded but may quote an input.
pub(super) fn free_text_headers(headers: &HeaderMap) -> impl Iterator<Item = &HeaderName> {
    let is_plain = |name: &HeaderName| is_listed(name) && !headers.get_all(name).iter().any(is_text);
    headers.keys().filter(move |name| is_allowed(name) && !is_plain(name))
}

fn is_listed(name: &HeaderName) -> bool {
    LISTED.contains(&name.as_str())
}

fn is_allowed(name: &HeaderName) -> bool {
    let text = name.as_str();
    is_listed(name)
        || LISTED_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
        || (text.starts_with("x-") && text.ends_with("-time"))
}

/// Returns `true` if the response allows the origin of the request. Members have the same origin,
/// because it is a part of the merge key.
fn allows_own_origin(name: &HeaderName, headers: &HeaderMap, call: &Call) -> bool {
    let origin = call.head.headers.get(header::ORIGIN);
    *name == header::ACCESS_CONTROL_ALLOW_ORIGIN
        && origin.is_some_and(|origin| headers.get_all(name).iter().all(|value| value == origin))
}

fn is_text(value: &HeaderValue) -> bool {
    let value = value.as_bytes();
    !is_measure(value) && !WORDS.iter().any(|word| word.as_bytes() == value) && !is_date(value)
}

/// Returns `true` for a few numbers with units and separators.
fn is_measure(value: &[u8]) -> bool {
    // A unit follows its number. Such a letter elsewhere is part of a word.
    let unit = |place: usize| {
        let before = |back: usize| place.checked_sub(back).and_then(|place| value.get(place)).copied().unwrap_or(b' ');
        let second = value[place] == b's' && matches!(before(1), b'm' | b'u' | b'n') && before(2).is_ascii_digit();
        before(1).is_ascii_digit() || second || value[place] == b'w' && before(1) == b';'
    };
    let known = |place: usize| match value[place] {
        byte if byte.is_ascii_digit() => true,
        byte if UNITS.contains(&byte) => unit(place),
        byte => b" .,:;=+-".contains(&byte),
    };
    value.len() <= MEASURE_MAX.0
        && value.iter().filter(|byte| byte.is_ascii_digit()).count() <= MEASURE_MAX.1
        && (0..value.len()).all(known)
}

/// Returns `true` for the format of an HTTP date: `Tue, 24 Nov 2026 10:00:00 GMT`.
fn is_date(value: &[u8]) -> bool {
    const DAYS: [&[u8]; 7] = [b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun"];
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let part = |from, to| value.get(from..to).unwrap_or_default();
    let form = |from, form: &[u8]| {
        form.iter()
            .zip(part(from, from + form.len()))
            .all(|(form, byte)| if *form == b'0' { byte.is_ascii_digit() } else { form == byte })
    };
    value.len() == 29
        && DAYS.contains(&part(0, 3))
        && form(3, b", 00 ")
        && MONTHS.contains(&part(8, 11))
        && form(11, b" 0000 00:00:00 GMT")
}

// === impl SharedHead ===

impl SharedHead {
    /// Selects the headers of a response to a shared call of `members`.
    pub(super) fn new(
        endpoint: &Endpoint,
        members: &[&Call],
        headers: &HeaderMap,
        evidence: Option<&UnbatchedEvidence>,
    ) -> Self {
        let leader = members.first();
        let nominated = headers::nominated_headers(headers);
        let is_visible = |name: &&HeaderName| {
            if !headers::is_end_to_end(name) || NEVER.contains(name) || nominated.contains(name) {
                return false;
            }
            let may_quote = |value| is_text(value) || quote::quotes_digits(value.as_bytes(), members);
            let is_plain = || is_listed(name) && !headers.get_all(*name).iter().any(may_quote);
            let is_known = |call: &&&Call| {
                allows_own_origin(name, headers, call)
                    || evidence.is_some_and(|known| known.is_constant(call, AnswerPart::Header(name, headers)))
            };
            endpoint.rules.respond_with_headers.contains(name)
                || is_allowed(name) && (is_plain() || leader.is_some_and(|leader| is_known(&leader)))
        };
        let mut listed = HeaderMap::with_capacity(headers.len());
        for name in headers.keys().filter(is_visible) {
            headers.get_all(name).iter().for_each(|value| {
                listed.append(name.clone(), value.clone());
            });
        }
        if headers.contains_key(header::CONTENT_TYPE) && !listed.contains_key(header::CONTENT_TYPE) {
            let is_grpc = endpoint.shape.payload == Payload::GrpcTensors;
            let plain = match leader {
                Some(leader) if leader.stream.is_some() => "text/event-stream",
                _ if is_grpc => "application/grpc",
                _ => "application/json",
            };
            listed.insert(header::CONTENT_TYPE, HeaderValue::from_static(plain));
        }
        Self { listed, has_id: headers.contains_key(headers::REQUEST_ID) }
    }

    /// Returns the head for a member, with the member's own request id wherever the upstream echoed
    /// that of the shared call.
    pub(super) fn of_member(&self, call: &Call, sent: &SharedRequest) -> HeaderMap {
        let own_id = || {
            let given = call.head.headers.get(headers::REQUEST_ID).cloned();
            given.unwrap_or_else(|| HeaderValue::from_str(&ids::request_id()).unwrap_or(HeaderValue::from_static("-")))
        };
        let mut out = self.listed.clone();
        for value in out.values_mut() {
            if memchr::memmem::find(value.as_bytes(), sent.request_id.as_bytes()).is_some() {
                *value = own_id();
            }
        }
        if self.has_id {
            out.insert(headers::REQUEST_ID, own_id());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_times_and_fixed_words_are_not_free_text() {
        for value in [
            "149984",
            "6m0s",
            "1.5ms",
            "100, 100;w=60",
            "2026-11-24T10:00:00Z",
            "Tue, 24 Nov 2026 10:00:00 GMT",
            "true",
            "*",
            "gpu+optimized",
            "application/json",
        ] {
            assert!(!is_text(&HeaderValue::from_static(value)), "{value}");
        }
    }

    #[test]
    fn any_other_text_may_quote_an_input() {
        for value in [
            "uvicorn",
            "Bearer realm=\"private\"",
            "private-0",
            "musum",
            "Tue, 24 Nov 2026 private-0 GM",
            "Tue, 24 Nov 2026 411111111 GMT",
            "4111 1111 1111 1111",
            "d.u.m",
            "12; private",
            "application/json; note=private",
        ] {
            assert!(is_text(&HeaderValue::from_static(value)), "{value}");
        }
    }
}
