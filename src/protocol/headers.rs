//! Header classes as data, and what a proxy must take off.
//!
//! A header that is not named here is behaviour: it is part of what must be equal (default deny). The lists are those of the protocol reference,
//! section 3; digests and signatures over the body are added to those that keep a call alone, since no merged body could satisfy them.

use std::sync::LazyLock;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// How a request header bears on sharing a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Who calls: partitions always, kept in memory as a keyed digest only.
    Identity,
    /// May change the answer: equal or separate. Whatever is not named is of this class.
    Behaviour,
    /// Belongs to one call: not compared, not on a shared call.
    Ignored,
    /// Belongs to one connection.
    HopByHop,
    /// Only makes sense for the call alone.
    Alone,
}

/// A class of names: exact ones and prefixes.
struct Names {
    exact: &'static [&'static str],
    prefixes: &'static [&'static str],
}

const IDENTITY: Names = Names {
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

const IGNORED: Names = Names {
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

const HOP_BY_HOP: Names = Names {
    exact: &["connection", "proxy-connection", "keep-alive", "te", "trailer", "transfer-encoding", "http2-settings"],
    prefixes: &[],
};

const ALONE: Names = Names {
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

/// Never taken off, whatever a `Connection` header nominates: framing, host and who calls.
const FRAMING: [HeaderName; 3] = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::HOST];

/// `x-groupage-usage: estimated` says that a counter is a share by rule, not a count.
pub const USAGE: HeaderName = HeaderName::from_static("x-groupage-usage");
/// The stable code of an answer of our own.
pub const ERROR: HeaderName = HeaderName::from_static("x-groupage-error");
/// `x-groupage-debug: 1` asks what became of a call.
pub const DEBUG: HeaderName = HeaderName::from_static("x-groupage-debug");
/// The reason word of an answer of our own.
pub const REASON: HeaderName = HeaderName::from_static("x-groupage-reason");
/// The policy key or the header of the caller that ended a call, in an answer of ours.
pub const LIMIT: HeaderName = HeaderName::from_static("x-groupage-limit");
pub(crate) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
pub(crate) const COMPUTE_CHARACTERS: HeaderName = HeaderName::from_static("x-compute-characters");
pub(crate) const COMPUTE_TOKENS: HeaderName = HeaderName::from_static("x-compute-tokens");

/// The class of a request header.
#[must_use]
pub fn classify(name: &HeaderName) -> Class {
    let name = name.as_str();
    // Every header of every call comes here several times: exact names are found by halving, and prefixes are few.
    if let Ok(found) = EXACT.binary_search_by(|(exact, _)| exact.cmp(&name)) {
        return EXACT.get(found).map_or(Class::Behaviour, |(_, class)| *class);
    }
    // `x-amz-cf-id` and `x-amz-content-sha256` carry the prefix of an identity, so exact names come first.
    CLASSES.iter().find(|(names, _)| names.begins(name)).map_or(Class::Behaviour, |(_, class)| *class)
}

/// Every class that has names, in the order in which they are asked.
static CLASSES: [(&Names, Class); 4] =
    [(&HOP_BY_HOP, Class::HopByHop), (&ALONE, Class::Alone), (&IGNORED, Class::Ignored), (&IDENTITY, Class::Identity)];

/// The exact names of all classes, in order; the classes share none.
static EXACT: LazyLock<Vec<(&'static str, Class)>> = LazyLock::new(|| {
    let names = CLASSES.iter().flat_map(|(names, class)| names.exact.iter().map(|name| (*name, *class)));
    let mut exact: Vec<_> = names.collect();
    exact.sort_unstable_by_key(|(name, _)| *name);
    exact
});

/// Whether the header says who calls; such a header can neither be merged over nor nominated away.
#[must_use]
pub fn is_identity(name: &HeaderName) -> bool {
    classify(name) == Class::Identity
}

/// Whether the header is meant for the other end, not for one connection.
#[must_use]
pub fn is_end_to_end(name: &HeaderName) -> bool {
    *name == header::TRAILER || (!HOP_BY_HOP.have(name.as_str()) && *name != header::UPGRADE)
}

/// Takes off what belongs to the connection a message came on: the connection set, `Upgrade`, and what `Connection` nominates.
///
/// # What stays
/// `te: trailers`, `trailer`, and, although nominated, host, identity and content-length (a peer must not be able to nominate away the framing
/// or a credential). `transfer-encoding` goes if it says `chunked` alone, which the next hop's framing replaces; with another coding the body
/// still bears it, so the label stays.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    // Most heads have none of them, or a `Connection` that nominates nothing else: one look at the names there are instead of one look-up for each name
    // that might be.
    let (mut connection, mut others) = (false, false);
    for (name, value) in headers.iter() {
        match name.as_str() {
            "connection" => {
                connection = true;
                others |=
                    !["keep-alive", "close"].iter().any(|own| value.as_bytes().eq_ignore_ascii_case(own.as_bytes()));
            }
            "proxy-connection" | "keep-alive" | "te" | "trailer" | "transfer-encoding" | "http2-settings"
            | "upgrade" => {
                others = true;
            }
            _ => {}
        }
    }
    if connection && !others {
        headers.remove(header::CONNECTION);
    }
    if !others {
        return;
    }
    // Where both stand the coding decides, and the length is a lie (RFC 9112, 6.3).
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    for name in nominated(headers) {
        headers.remove(name);
    }
    let trailers = accepts_trailers(headers);
    let coded = has_other_coding(headers);
    // Most heads have none of them or one, so looking for what is there is cheaper than removing each name there is.
    let dropped = |name: &&HeaderName| match name.as_str() {
        "trailer" => false,
        "transfer-encoding" => !coded,
        name => HOP_BY_HOP.exact.contains(&name),
    };
    while let Some(name) = headers.keys().find(dropped).cloned() {
        headers.remove(name);
    }
    headers.remove(header::UPGRADE);
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// The names that the `Connection` headers nominate, but for those that must stay.
pub(crate) fn nominated(headers: &HeaderMap) -> Vec<HeaderName> {
    let mut names = Vec::new();
    for value in headers.get_all(header::CONNECTION) {
        for token in value.as_bytes().split(|byte| *byte == b',') {
            let Ok(name) = HeaderName::from_bytes(token.trim_ascii()) else { continue };
            let stays = FRAMING.contains(&name) || is_identity(&name) || HOP_BY_HOP.have(name.as_str());
            if !stays {
                names.push(name);
            }
        }
    }
    names
}

/// Whether the body bears a transfer coding besides `chunked`.
pub(crate) fn has_other_coding(headers: &HeaderMap) -> bool {
    let chunked = |token: &[u8]| token.trim_ascii().is_empty() || token.trim_ascii().eq_ignore_ascii_case(b"chunked");
    let values = headers.get_all(header::TRANSFER_ENCODING);
    values.iter().any(|value| value.as_bytes().split(|byte| *byte == b',').any(|token| !chunked(token)))
}

/// The least time that the headers leave, and the header that says so, as an index of `names`: these in whole milliseconds, and `grpc-timeout` after them.
/// What cannot be read is no deadline, as for Envoy.
#[must_use]
pub fn time_left(headers: &HeaderMap, names: &[HeaderName]) -> Option<(Duration, usize)> {
    let grpc = headers.get_all(&GRPC_TIMEOUT).iter().filter_map(|value| grpc_timeout(value.as_bytes()));
    let own = names.iter().enumerate().filter(|(_, name)| **name != GRPC_TIMEOUT);
    let own = own.flat_map(|(index, name)| headers.get_all(name).iter().map(move |value| (index, value)));
    let own = own.filter_map(|(index, value)| {
        let millis = value.to_str().ok()?.trim().parse().ok()?;
        Some((Duration::from_millis(millis), index))
    });
    grpc.map(|left| (left, names.len())).chain(own).min()
}

/// How long the server asks to wait, where it says so in seconds; a date is not read.
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// At most eight digits and a unit (gRPC over HTTP/2, "Timeout").
fn grpc_timeout(value: &[u8]) -> Option<Duration> {
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

/// A deadline in the form of the header `name`.
pub(crate) fn deadline_value(name: &HeaderName, ms: u64) -> HeaderValue {
    if *name != GRPC_TIMEOUT {
        return HeaderValue::from(ms);
    }
    // Eight digits at most, so long waits are told in seconds.
    let text = if ms < 100_000_000 { format!("{ms}m") } else { format!("{}S", (ms / 1000).min(99_999_999)) };
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("99999999S"))
}

fn accepts_trailers(headers: &HeaderMap) -> bool {
    headers.get_all(header::TE).iter().any(|value| {
        value.as_bytes().split(|byte| *byte == b',').any(|token| token.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    })
}

// === impl Names ===

impl Names {
    fn have(&self, name: &str) -> bool {
        self.exact.contains(&name) || self.begins(name)
    }

    fn begins(&self, name: &str) -> bool {
        self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class_of(name: &'static str) -> Class {
        classify(&HeaderName::from_static(name))
    }

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn headers_fall_into_the_classes_of_the_reference() {
        for name in ["authorization", "cookie", "x-amz-date", "x-auth-request-user", "x-tenant-id", "openai-project"] {
            assert_eq!(class_of(name), Class::Identity, "{name}");
        }
        for name in ["x-acme-mode", "accept-language", "origin", "x-vllm-priority", "x_tenant", "x-amzn-sagemaker-x"] {
            assert_eq!(class_of(name), Class::Behaviour, "{name}");
        }
        for name in
            ["traceparent", "x-b3-traceid", "x-datadog-origin", "x-amz-cf-id", "x-amzn-trace-id", "x-groupage-debug"]
        {
            assert_eq!(class_of(name), Class::Ignored, "{name}");
        }
        for name in ["idempotency-key", "if-match", "range", "upgrade", "ce-id", "content-encoding", "content-md5"] {
            assert_eq!(class_of(name), Class::Alone, "{name}");
        }
        assert_eq!(class_of("te"), Class::HopByHop);
    }

    #[test]
    fn every_name_of_a_list_is_of_its_class_and_of_no_other() {
        for (names, class) in &CLASSES {
            for name in names.exact {
                assert_eq!(class_of(name), *class, "{name}");
            }
            for prefix in names.prefixes {
                let name = HeaderName::from_bytes(format!("{prefix}z9").as_bytes()).unwrap();
                assert_eq!(classify(&name), *class, "{prefix}");
            }
        }
        assert!(EXACT.is_sorted_by(|(one, _), (other, _)| one < other), "a name stands in two lists");
    }

    #[test]
    fn nominated_headers_go_but_never_framing_host_or_identity() {
        let mut headers = map(&[
            ("connection", "x-hop, content-length, host, Authorization, keep-alive"),
            ("x-hop", "1"),
            ("content-length", "3"),
            ("host", "h"),
            ("authorization", "k"),
            ("keep-alive", "5"),
            ("http2-settings", "AAMAAABkAAQAAP__"),
            ("upgrade", "h2c"),
            ("trailer", "x-sum"),
            ("te", "gzip, trailers"),
            ("x-kept", "1"),
        ]);
        strip_hop_by_hop(&mut headers);
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "content-length", "host", "te", "trailer", "x-kept"]);
        assert_eq!(headers["te"], "trailers");
    }

    #[test]
    fn a_length_beside_a_coding_is_a_lie_and_goes() {
        let mut headers = map(&[("content-length", "5"), ("transfer-encoding", "chunked")]);
        strip_hop_by_hop(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn a_coding_besides_chunked_keeps_its_label() {
        let mut headers = map(&[("transfer-encoding", "gzip, chunked")]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers["transfer-encoding"], "gzip, chunked");
    }

    #[test]
    fn the_earliest_deadline_counts_and_nonsense_does_not() {
        let own = [HeaderName::from_static("x-request-timeout-ms")];
        let left = |headers: &[(&'static str, &'static str)]| time_left(&map(headers), &own).map(|(left, _)| left);
        let ms = Duration::from_millis;
        assert_eq!(left(&[("grpc-timeout", "2S"), ("x-request-timeout-ms", "1500")]), Some(ms(1500)));
        assert_eq!(left(&[("grpc-timeout", "100u")]), Some(Duration::from_micros(100)));
        assert_eq!(left(&[("grpc-timeout", "250m"), ("grpc-timeout", "9H")]), Some(ms(250)));
        for bad in ["", "S", "1", "123456789S", "-1S", "1.5S", "1s"] {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, HeaderValue::from_static(bad));
            assert_eq!(time_left(&headers, &own), None, "{bad}");
        }
        assert_eq!(deadline_value(&GRPC_TIMEOUT, 250), "250m");
        assert_eq!(deadline_value(&GRPC_TIMEOUT, 100_000_000), "100000S");
        assert_eq!(deadline_value(&own[0], 250), "250");
    }
}
