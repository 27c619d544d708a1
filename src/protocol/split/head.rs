//! The head of a response to a shared call: selection of the upstream headers that every member may
//! receive.
//!
//! A header is forwarded only if it is listed here or in the policy. A header with a listed name and
//! with values that consist of numbers, times and fixed words, which occur in no item, is forwarded
//! unchanged. Any other text may quote an input, and so may a name of which only the prefix is
//! listed. Such a header is forwarded only if unbatched responses of the same key have the same
//! value ([`UnbatchedEvidence`]). A `Retry-After` of up to a day is forwarded, rounded up if an
//! item has its digits: otherwise one caller could deprive the others of it.

mod measure;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use self::measure::{is_date, is_measure};
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
/// Maximum delay in a `Retry-After` that is forwarded whatever the inputs: a day.
const RETRY_SECONDS_MAX: u64 = 86_400;

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

/// Returns the delay that the server requests before a retry, for a value that would be dropped
/// because an item has its digits. It is rounded up to two digits, so that it quotes no more. A
/// date is forwarded unless all of its digits occur in an item.
fn retry_delay(name: &HeaderName, value: &HeaderValue, members: &[&Call]) -> Option<HeaderValue> {
    let units = match name {
        _ if *name == header::RETRY_AFTER => 1,
        _ if *name == headers::RETRY_AFTER_MS => 1000,
        _ => return None,
    };
    if is_date(value.as_bytes()) {
        return (!quote::quotes_all_digits(value.as_bytes(), members)).then(|| value.clone());
    }
    let delay: u64 = value.to_str().ok()?.parse().ok().filter(|delay| *delay <= RETRY_SECONDS_MAX * units)?;
    let place = 10_u64.pow(delay.checked_ilog10().unwrap_or(0).saturating_sub(1));
    Some(HeaderValue::from(delay.next_multiple_of(place)))
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
        let is_forwardable =
            |name: &&HeaderName| headers::is_end_to_end(name) && !NEVER.contains(name) && !nominated.contains(name);
        let is_visible = |name: &HeaderName| {
            let may_quote = |value| is_text(value) || quote::quotes_digits(value.as_bytes(), members);
            let is_plain = || is_listed(name) && !headers.get_all(name).iter().any(may_quote);
            let is_known = |call: &&&Call| {
                allows_own_origin(name, headers, call)
                    || evidence.is_some_and(|known| known.is_constant(call, AnswerPart::Header(name, headers)))
            };
            endpoint.rules.respond_with_headers.contains(name)
                || is_allowed(name) && (is_plain() || leader.is_some_and(|leader| is_known(&leader)))
        };
        let mut listed = HeaderMap::with_capacity(headers.len());
        for name in headers.keys().filter(is_forwardable) {
            if is_visible(name) {
                headers.get_all(name).iter().for_each(|value| {
                    listed.append(name.clone(), value.clone());
                });
            } else if let Some(delay) = headers.get(name).and_then(|value| retry_delay(name, value, members)) {
                listed.insert(name.clone(), delay);
            }
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
mod tests;
