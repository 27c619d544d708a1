//! Classification of request headers, and removal of hop-by-hop headers.
//!
//! A header that is not listed here has class [`HeaderClass::Behaviour`] and must be equal in all
//! members of a batch (default deny). Digests and signatures over the body have class
//! [`HeaderClass::Unbatched`], since no merged body could satisfy them.

use std::sync::LazyLock;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Effect of a request header on merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderClass {
    /// Identifies the client: calls that differ in it are never merged. Kept in memory only as a
    /// keyed digest.
    Identity,
    /// May change the response: calls are merged only if it is equal. Every header that is not
    /// listed has this class.
    Behaviour,
    /// Belongs to a single call: neither compared nor sent on a shared call.
    Ignored,
    /// Belongs to a single connection.
    HopByHop,
    /// Only meaningful for a call that is sent unbatched.
    Unbatched,
}

/// A set of header names in lower case, as exact names and prefixes.
#[derive(Debug)]
pub struct HeaderNames {
    exact: &'static [&'static str],
    prefixes: &'static [&'static str],
}

/// Headers that identify the client. A more exact name of another class takes precedence over a
/// prefix.
pub static IDENTITY: HeaderNames = HeaderNames {
    exact: &[
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-api-key",
        "api-key",
        "x-goog-api-key",
        "x-forwarded-user",
        "x-forwarded-groups",
        "x-forwarded-email",
        "x-forwarded-client-cert",
        "x-tenant",
        "x-tenant-id",
        "x-scope-orgid",
        "openai-organization",
        "openai-project",
    ],
    prefixes: &["x-amz-", "x-auth-request-"],
};

/// Headers that belong to a single call, such as its trace.
static IGNORED: HeaderNames = HeaderNames {
    exact: &[
        "traceparent",
        "tracestate",
        "b3",
        "x-cloud-trace-context",
        "x-amzn-trace-id",
        "baggage",
        "sentry-trace",
        "uber-trace-id",
        "x-amz-cf-id",
        "cf-ray",
        "grpc-timeout",
        "grpc-accept-encoding",
        "grpc-previous-rpc-attempts",
        "grpc-tags-bin",
        "grpc-trace-bin",
        "x-request-id",
        "x-correlation-id",
        "user-agent",
        "date",
        "via",
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-real-ip",
        "referer",
        "cache-control",
        "pragma",
        "accept-encoding",
        "content-length",
        "expect",
        "priority",
    ],
    prefixes: &["x-b3-", "x-datadog-", "x-groupage-", "x-stainless-", "x-envoy-"],
};

/// Headers that belong to a single connection (RFC 9110, section 7.6.1).
static HOP_BY_HOP: HeaderNames = HeaderNames {
    exact: &["connection", "proxy-connection", "keep-alive", "te", "trailer", "transfer-encoding", "http2-settings"],
    prefixes: &[],
};

/// Headers that refer to the body of the call or to its single execution.
static UNBATCHED: HeaderNames = HeaderNames {
    exact: &[
        "idempotency-key",
        "range",
        "upgrade",
        "content-encoding",
        "content-digest",
        "repr-digest",
        "digest",
        "content-md5",
        "x-amz-content-sha256",
        "signature",
        "signature-input",
    ],
    prefixes: &["if-", "ce-"],
};

/// Headers that are never removed, even if a `Connection` header nominates them. Identity headers
/// are protected as well.
const PROTECTED_HEADERS: [HeaderName; 3] = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::HOST];

/// Marks a response with counters that are estimated shares rather than counts. The value is
/// `estimated`.
pub const USAGE: HeaderName = HeaderName::from_static("x-groupage-usage");
/// Stable error code of a response that the proxy generated.
pub const ERROR: HeaderName = HeaderName::from_static("x-groupage-error");
/// Requests a report on the treatment of a call. The value is `1`.
pub const DEBUG: HeaderName = HeaderName::from_static("x-groupage-debug");
/// Reason of a response that the proxy generated.
pub const REASON: HeaderName = HeaderName::from_static("x-groupage-reason");
/// Name of the policy key or request header that defines the limit which ended a call, in a
/// response that the proxy generated.
pub const LIMIT: HeaderName = HeaderName::from_static("x-groupage-limit");
/// Positions of the items of a call to which an error of the server belongs, from 0 and both
/// included: the server received only these, because the call was divided.
pub const ITEMS: HeaderName = HeaderName::from_static("x-groupage-items");
pub(crate) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Codings of messages that a gRPC client accepts.
pub const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// Deadline of a gRPC call.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
pub(crate) const COMPUTE_CHARACTERS: HeaderName = HeaderName::from_static("x-compute-characters");
pub(crate) const COMPUTE_TOKENS: HeaderName = HeaderName::from_static("x-compute-tokens");
/// The kind of device, which the inference servers of Hugging Face state.
const COMPUTE_TYPE: HeaderName = HeaderName::from_static("x-compute-type");

/// Returns `true` if the headers of a response show that the server publishes the document of
/// [`LimitsSource::Info`](crate::LimitsSource::Info).
#[must_use]
pub fn publishes_info(headers: &HeaderMap) -> bool {
    headers.contains_key(COMPUTE_TYPE)
}

/// Returns the class of a request header.
#[must_use]
pub fn classify(name: &HeaderName) -> HeaderClass {
    let name = name.as_str();
    // This runs several times for every header of every call. Few names have the same length, and
    // fewer the same last byte.
    let last = name.as_bytes().last();
    let candidates = EXACT.get(name.len()).into_iter().flatten();
    let is_name = |(exact, _): &&(&str, _)| exact.as_bytes().last() == last && *exact == name;
    if let Some((_, class)) = candidates.into_iter().find(is_name) {
        return *class;
    }
    // `x-amz-cf-id` and `x-amz-content-sha256` match a prefix of the identity class, so exact names
    // take precedence.
    CLASSES.iter().find(|(names, _)| names.matches_prefix(name)).map_or(HeaderClass::Behaviour, |(_, class)| *class)
}

/// The classes that have names, in the order in which their prefixes are tried.
static CLASSES: [(&HeaderNames, HeaderClass); 4] = [
    (&HOP_BY_HOP, HeaderClass::HopByHop),
    (&UNBATCHED, HeaderClass::Unbatched),
    (&IGNORED, HeaderClass::Ignored),
    (&IDENTITY, HeaderClass::Identity),
];

/// The exact names of all classes, by their length. No name belongs to two classes.
static EXACT: LazyLock<Vec<Vec<(&'static str, HeaderClass)>>> = LazyLock::new(|| {
    let mut by_length: Vec<Vec<_>> = Vec::new();
    for (name, class) in CLASSES.iter().flat_map(|(names, class)| names.exact.iter().map(|name| (*name, *class))) {
        if by_length.len() <= name.len() {
            by_length.resize(name.len() + 1, Vec::new());
        }
        by_length[name.len()].push((name, class));
    }
    by_length
});

/// Returns `true` if the header identifies the client. Such a header can neither be merged over nor
/// nominated away.
#[must_use]
pub fn is_identity(name: &HeaderName) -> bool {
    classify(name) == HeaderClass::Identity
}

/// Returns `true` if the header is end-to-end rather than hop-by-hop.
#[must_use]
pub fn is_end_to_end(name: &HeaderName) -> bool {
    *name == header::TRAILER || (!HOP_BY_HOP.contains(name.as_str()) && *name != header::UPGRADE)
}

/// Removes the headers that belong to the connection of a message: hop-by-hop headers, `Upgrade`,
/// and the headers that `Connection` nominates.
///
/// # Exceptions
/// `te: trailers` and `trailer` are kept. Host, identity headers and `content-length` are kept even
/// if they are nominated: a peer must not be able to remove the framing or a credential.
/// `transfer-encoding` is removed if its only coding is `chunked`, which the framing of the next
/// hop replaces. With any other coding the body remains encoded, so the header stays.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    // Most heads contain none of these headers, or only a `Connection` that nominates nothing else.
    // A single pass over the present names is cheaper than one look-up for each possible name.
    let (mut has_connection, mut has_others) = (false, false);
    for (name, value) in headers.iter() {
        match name.as_str() {
            "connection" => {
                has_connection = true;
                has_others |= !["keep-alive", "close"]
                    .iter()
                    .any(|option| value.as_bytes().eq_ignore_ascii_case(option.as_bytes()));
            }
            "proxy-connection" | "keep-alive" | "te" | "trailer" | "transfer-encoding" | "http2-settings"
            | "upgrade" => {
                has_others = true;
            }
            _ => {}
        }
    }
    if has_connection && !has_others {
        headers.remove(header::CONNECTION);
    }
    if !has_others {
        return;
    }
    // With both headers present, the transfer coding takes precedence and the length is wrong (RFC
    // 9112, section 6.3).
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    for name in nominated_headers(headers) {
        headers.remove(name);
    }
    let keeps_trailers = accepts_trailers(headers);
    let keeps_coding = has_other_coding(headers);
    // Most heads contain one of these headers at most, so a search among the present names is
    // cheaper than one removal for each possible name.
    let is_removed = |name: &&HeaderName| match name.as_str() {
        "trailer" => false,
        "transfer-encoding" => !keeps_coding,
        name => HOP_BY_HOP.exact.contains(&name),
    };
    while let Some(name) = headers.keys().find(is_removed).cloned() {
        headers.remove(name);
    }
    headers.remove(header::UPGRADE);
    if keeps_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Returns the names that the `Connection` headers nominate, without those that must be kept.
pub(crate) fn nominated_headers(headers: &HeaderMap) -> Vec<HeaderName> {
    let mut names = Vec::new();
    for value in headers.get_all(header::CONNECTION) {
        for token in value.as_bytes().split(|byte| *byte == b',') {
            let Ok(name) = HeaderName::from_bytes(token.trim_ascii()) else { continue };
            let is_protected =
                PROTECTED_HEADERS.contains(&name) || is_identity(&name) || HOP_BY_HOP.contains(name.as_str());
            if !is_protected {
                names.push(name);
            }
        }
    }
    names
}

/// Returns `true` if the body of a response is a stream of server-sent events.
#[must_use]
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    const EVENT_STREAM: &[u8] = b"text/event-stream";
    headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        value.as_bytes().get(..EVENT_STREAM.len()).is_some_and(|start| start.eq_ignore_ascii_case(EVENT_STREAM))
    })
}

/// Returns `true` if the body has a transfer coding other than `chunked`.
pub(crate) fn has_other_coding(headers: &HeaderMap) -> bool {
    let is_chunked =
        |token: &[u8]| token.trim_ascii().is_empty() || token.trim_ascii().eq_ignore_ascii_case(b"chunked");
    let values = headers.get_all(header::TRANSFER_ENCODING);
    values.iter().any(|value| value.as_bytes().split(|byte| *byte == b',').any(|token| !is_chunked(token)))
}

/// Returns the shortest remaining time among the deadline headers, with the index of its header in
/// `names`. Headers in `names` carry whole milliseconds; `grpc-timeout` has the index
/// `names.len()`. A value that cannot be parsed is ignored, as in Envoy.
#[must_use]
pub fn parse_timeout(headers: &HeaderMap, names: &[HeaderName]) -> Option<(Duration, usize)> {
    let grpc = headers.get_all(&GRPC_TIMEOUT).iter().filter_map(|value| parse_grpc_timeout(value.as_bytes()));
    let configured = names.iter().enumerate().filter(|(_, name)| **name != GRPC_TIMEOUT);
    let values = configured.flat_map(|(index, name)| headers.get_all(name).iter().map(move |value| (index, value)));
    let configured = values.filter_map(|(index, value)| {
        let millis = value.to_str().ok()?.trim().parse().ok()?;
        Some((Duration::from_millis(millis), index))
    });
    grpc.map(|remaining| (remaining, names.len())).chain(configured).min()
}

/// Returns the delay of a `Retry-After` header in seconds. A date is ignored.
#[must_use]
pub fn parse_retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Parses a `grpc-timeout` value: at most eight digits and a unit (gRPC over HTTP/2, "Timeout").
fn parse_grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.trim_ascii().split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(amount * 3_600)),
        b'M' => Some(Duration::from_secs(amount * 60)),
        b'S' => Some(Duration::from_secs(amount)),
        b'm' => Some(Duration::from_millis(amount)),
        b'u' => Some(Duration::from_micros(amount)),
        b'n' => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

/// Formats a deadline for the header `name`.
pub(crate) fn format_deadline(name: &HeaderName, ms: u64) -> HeaderValue {
    if *name != GRPC_TIMEOUT {
        return HeaderValue::from(ms);
    }
    // `grpc-timeout` allows eight digits at most, and long timeouts are therefore written in
    // seconds.
    let text = if ms < 100_000_000 { format!("{ms}m") } else { format!("{}S", (ms / 1000).min(99_999_999)) };
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("99999999S"))
}

fn accepts_trailers(headers: &HeaderMap) -> bool {
    headers.get_all(header::TE).iter().any(|value| {
        value.as_bytes().split(|byte| *byte == b',').any(|token| token.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    })
}

// === impl HeaderNames ===

impl HeaderNames {
    /// Returns the names as patterns, in which `*` ends a prefix.
    pub fn patterns(&self) -> impl Iterator<Item = String> {
        let prefixes = self.prefixes.iter().map(|prefix| format!("{prefix}*"));
        self.exact.iter().map(|name| (*name).to_owned()).chain(prefixes)
    }

    /// Returns `true` if the name, in lower case, is in the set.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.exact.contains(&name) || self.matches_prefix(name)
    }

    fn matches_prefix(&self, name: &str) -> bool {
        // The comparison of one byte excludes most names at a lower cost.
        let first = name.as_bytes().first();
        self.prefixes.iter().any(|prefix| prefix.as_bytes().first() == first && name.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests;
