//! Validation rules for text values: paths, pointers, header names, addresses. Each rule describes
//! what it allows, and its parser is the one that fills the policy.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use http::HeaderName;
use tracing_subscriber::EnvFilter;

use super::app_listen;
use super::units::{CHARS_MAX as CHARS_MAX_OF_UNITS, parse_share, parse_size};
use super::upstream::UpstreamAddress;
use crate::protocol::Pointer;

/// Maximum length of any text, in characters. A path or a log filter has about a hundred.
const CHARS_MAX: usize = 4_096;
/// Maximum length of a header name. Intermediate proxies accept no longer ones, and the cost of
/// rules between headers depends on it.
const HEADER_CHARS_MAX: usize = 256;
/// Maximum length of a JSON Pointer, an address or a log filter.
const LINE_CHARS_MAX: usize = 1_024;

/// A validation rule for a text.
pub(super) struct TextRule {
    /// Description of the allowed texts.
    pub(super) allowed: &'static str,
    /// Maximum length, in characters.
    pub(super) chars_max: usize,
    /// Regular expression for a schema. It matches every text that `check` accepts, in the syntax
    /// that RE2 and the `regex` crate share.
    pub(super) pattern: &'static str,
    check: fn(&str) -> Result<(), RejectReason>,
}

/// Reason that a text is rejected: it violates the rule. The field may explain more and is empty
/// otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RejectReason(pub(super) &'static str);

const BAD: RejectReason = RejectReason("");

pub(super) const ANY: TextRule = TextRule { allowed: "a string", chars_max: CHARS_MAX, pattern: "", check: |_| Ok(()) };

pub(super) const NAME: TextRule = TextRule {
    allowed: "a name of 1 to 253 characters without spaces",
    chars_max: 253,
    pattern: r"^[^\pZ\p{Cc}]+$",
    check: |text| ok(!text.is_empty() && text.chars().all(|c| !c.is_whitespace() && !c.is_control())),
};

/// Path of a file.
pub(super) const FILE: TextRule = TextRule {
    allowed: "a path",
    chars_max: CHARS_MAX,
    pattern: r"^[^\x00]+$",
    check: |text| ok(!text.is_empty() && !text.contains('\0')),
};

/// The path of a route.
pub(super) const ROUTE_PATH: TextRule = TextRule {
    allowed: "a path that begins with `/`, exact or ending in `/*`",
    chars_max: CHARS_MAX,
    pattern: r#"^(/[!"$-)+->@-~]*(/\*)?|/\*)$"#,
    check: |text| {
        ok(is_path(text.strip_suffix("/*").map_or(text, |prefix| if prefix.is_empty() { "/" } else { prefix })))
    },
};

/// Path to which calls are sent.
pub(super) const PATH: TextRule = TextRule {
    allowed: "a path that begins with `/`",
    chars_max: CHARS_MAX,
    pattern: r#"^/[!"$-)+->@-~]*$"#,
    check: |text| ok(is_path(text)),
};

/// HTTP method.
pub(super) const METHOD: TextRule = TextRule {
    allowed: "a method in capitals, such as POST",
    chars_max: 32,
    pattern: "^[A-Z_-]+$",
    check: |text| ok(!text.is_empty() && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'-' || b == b'_')),
};

/// HTTP header name.
pub(super) const HEADER: TextRule = TextRule {
    allowed: "a header name, such as x-tenant-id",
    chars_max: HEADER_CHARS_MAX,
    pattern: "^[!#-'*+.0-9A-Z^-z|~-]+$",
    check: |text| ok(parse_header_name(text).is_some()),
};

/// JSON Pointer (RFC 6901).
pub(super) const POINTER: TextRule = TextRule {
    allowed: "a JSON Pointer: \"\" or a string that begins with `/`",
    chars_max: LINE_CHARS_MAX,
    pattern: "^(/([^/~]|~[01])*)*$",
    check: |text| ok(Pointer::parse(text).is_ok()),
};

/// Member of an item.
pub(super) const FIELD: TextRule = TextRule {
    allowed: "a field's name, or a JSON Pointer that begins with `/`",
    chars_max: LINE_CHARS_MAX,
    pattern: r"^([^/][\x00-\x{10FFFF}]*|(/([^/~]|~[01])*)+)$",
    check: |text| ok(!text.is_empty() && Pointer::parse_field(text).is_ok()),
};

/// Quantity by which the items of a batch are weighed.
pub(super) const WEIGHT: TextRule = TextRule {
    allowed: "Items, Bytes, Chars, ListLen, or a JSON Pointer that begins with `/`",
    chars_max: LINE_CHARS_MAX,
    pattern: "^(Items|Bytes|Chars|ListLen|(/([^/~]|~[01])*)+)$",
    check: |text| ok(text == "Items" || is_weight(text)),
};

/// Quantity by which results are weighed.
pub(super) const RESULT_WEIGHT: TextRule = TextRule {
    allowed: "Bytes, Chars, ListLen, or a JSON Pointer that begins with `/`",
    chars_max: LINE_CHARS_MAX,
    pattern: "^(Bytes|Chars|ListLen|(/([^/~]|~[01])*)+)$",
    check: |text| ok(is_weight(text)),
};

/// Range of port numbers. A schema applies it to values that are numbers.
pub(super) const PORTS: (u64, u64) = (1, 65_535);

/// A captured port.
pub(super) const CAPTURED_PORT: TextRule = TextRule {
    allowed: "a port from 1 to 65535, or its name",
    chars_max: 15,
    pattern: "^([a-z0-9-]*[a-z-][a-z0-9-]*|0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6([0-4][0-9]{3}|5([0-4][0-9]{2}|5([0-2][0-9]|3[0-5])))))$",
    check: |text| {
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return ok(text.parse().is_ok_and(|number| (PORTS.0..=PORTS.1).contains(&number)));
        }
        ok(text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'))
    },
};

/// Setting that makes an application listen on loopback.
pub(super) const APP_LISTEN: TextRule = TextRule {
    allowed: "env:NAME=ADDRESS or arg:--FLAG=ADDRESS, where ADDRESS is a loopback address or a port and the name is a known setting of a server, such as HOST, UVICORN_PORT or --host (listed in docs/injection.md); separate several by commas; prefix with CONTAINER/ if the pod has several containers",
    chars_max: LINE_CHARS_MAX,
    pattern: app_listen::PATTERN,
    check: |text| ok(app_listen::is_app_listen(text)),
};

/// Name of a recipe.
pub(super) const RECIPE: TextRule = TextRule {
    allowed: "Auto, None or the name of a recipe, such as uvicorn",
    chars_max: LINE_CHARS_MAX,
    pattern: r"^[A-Za-z][A-Za-z0-9.-]*$",
    check: |text| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
        ok(text.starts_with(|first: char| first.is_ascii_alphabetic()) && text.bytes().all(fits))
    },
};

/// Memory on a device: a size, or a share of what is free.
pub(super) const DEVICE_MEMORY: TextRule = TextRule {
    allowed: "a size such as 4Gi (bytes, or Ki Mi Gi), or a share of the free memory such as 50%; not 0",
    chars_max: CHARS_MAX_OF_UNITS,
    pattern: r"^([0-9]+(Ki|Mi|Gi)?|0*(100(\.0{1,4})?|[0-9]{1,2}(\.[0-9]{1,4})?)%)$",
    check: |text| {
        let size = parse_size(text).is_some_and(|bytes| bytes > 0);
        ok(size || parse_share(text).is_some_and(|share| share.ppm() > 0))
    },
};

/// An address to listen on.
pub(super) const ADDRESS: TextRule = TextRule {
    allowed: "an address such as 127.0.0.1:8080, [::1]:8080 or :8080",
    chars_max: LINE_CHARS_MAX,
    pattern: r"^(localhost|[0-9.]+|\[[0-9A-Fa-f:.%]+\])?:[0-9]+$",
    check: |text| ok(parse_address(text).is_some()),
};

/// An address to listen on, or `off`.
pub(super) const ADDRESS_OR_OFF: TextRule = TextRule {
    allowed: "an address such as 127.0.0.1:9190, or off",
    chars_max: LINE_CHARS_MAX,
    pattern: r"^(off|(localhost|[0-9.]+|\[[0-9A-Fa-f:.%]+\])?:[0-9]+)$",
    check: |text| ok(text == "off" || parse_address(text).is_some()),
};

/// A loopback address to listen on, or `off`.
pub(super) const LOCAL_OR_OFF: TextRule = TextRule {
    allowed: "a loopback address such as 127.0.0.1:9191, or off",
    chars_max: LINE_CHARS_MAX,
    pattern: r"^(off|(localhost|127\.[0-9.]+|\[[0-9A-Fa-f:.%]+\]):[0-9]+)$",
    check: |text| match parse_address(text) {
        Some(address) if !address.ip().is_loopback() => {
            Err(RejectReason("every client that can reach it can change the proxy"))
        }
        found => ok(text == "off" || found.is_some()),
    },
};

/// Address of the model server.
pub(super) const UPSTREAM: TextRule = TextRule {
    allowed: "http://HOST:PORT, https://HOST:PORT or unix:/PATH",
    chars_max: LINE_CHARS_MAX,
    pattern: r"^(https?://[^/?#@]+/?|unix:/[^\x00]+)$",
    check: |text| parse_upstream(text).map(|_| ()),
};

/// A log filter.
pub(super) const LEVEL: TextRule = TextRule {
    allowed: "error, warn, info, debug, trace, off, or directives such as info,groupage_proxy=debug",
    chars_max: LINE_CHARS_MAX,
    pattern: r"^[\x00-\x{10FFFF}]+$",
    check: check_log_filter,
};

// === impl TextRule ===

impl TextRule {
    pub(super) fn validate(&self, text: &str) -> Result<(), RejectReason> {
        if text.chars().nth(self.chars_max).is_some() {
            return Err(BAD);
        }
        (self.check)(text)
    }
}

/// Parses an address. Without a host it is every IPv4 address.
pub(super) fn parse_address(text: &str) -> Option<SocketAddr> {
    let port = |port: &str| port.bytes().all(|b| b.is_ascii_digit()).then(|| port.parse::<u16>().ok()).flatten();
    match text.rsplit_once(':') {
        Some(("", number)) => Some((IpAddr::V4(Ipv4Addr::UNSPECIFIED), port(number)?).into()),
        Some(("localhost", number)) => Some((IpAddr::V4(Ipv4Addr::LOCALHOST), port(number)?).into()),
        _ => text.parse().ok(),
    }
}

/// Parses the address of the model server.
pub(super) fn parse_upstream(text: &str) -> Result<UpstreamAddress, RejectReason> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        // The kernel accepts at most 107 bytes for the path of a Unix socket.
        let fits = path.starts_with('/') && path.len() > 1 && path.len() <= 107 && !path.contains('\0');
        return if fits { Ok(UpstreamAddress::Unix(PathBuf::from(path))) } else { Err(BAD) };
    }
    let (tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) => (false, rest),
        (None, Some(rest)) => (true, rest),
        (None, None) => return Err(RejectReason("it must begin with http://, https:// or unix:")),
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#']) {
        return Err(RejectReason("remove the path: every call keeps its own"));
    }
    if authority.contains('@') {
        return Err(RejectReason("remove the user: callers' credentials are forwarded unchanged"));
    }
    let parsed: http::uri::Authority = authority.parse().map_err(|_| BAD)?;
    // `http::uri::Authority` treats an empty or oversized port as absent.
    let port = match authority.strip_prefix(parsed.host()) {
        Some("") if tls => 443,
        Some("") => 80,
        Some(port) => port.strip_prefix(':').and_then(|port| port.parse().ok()).filter(|port| *port > 0).ok_or(BAD)?,
        None => return Err(BAD),
    };
    let host = parsed.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() {
        return Err(BAD);
    }
    Ok(UpstreamAddress::Http { host, port, authority: authority.to_owned(), tls })
}

/// Parses a header name and converts it to lower case.
pub(super) fn parse_header_name(text: &str) -> Option<HeaderName> {
    HeaderName::from_bytes(text.as_bytes()).ok()
}

/// Validates a log filter. `tracing` treats a bare word, such as `inof` or `verbose`, as the name
/// of a target and then logs nothing else. It is nearly always meant as a level, so it is rejected.
fn check_log_filter(text: &str) -> Result<(), RejectReason> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    if text.trim().is_empty() || EnvFilter::builder().parse(text).is_err() {
        return Err(BAD);
    }
    // Fields of a span are separated by commas too, so such a filter is not split.
    if text.contains('[') {
        return Ok(());
    }
    for directive in text.split(',').map(str::trim) {
        let word = directive.to_ascii_lowercase();
        let known = LEVELS.contains(&word.as_str()) || word.parse::<u8>().is_ok_and(|level| level <= 5);
        // A target is written with a level (`h2=debug`), or is a path.
        let target = word.contains('=') || word.contains("::");
        if !known && !target && !word.is_empty() {
            return Err(RejectReason("unknown log level"));
        }
    }
    Ok(())
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'?' | b'#' | b'*'))
}

fn is_weight(text: &str) -> bool {
    matches!(text, "Bytes" | "Chars" | "ListLen") || (text.starts_with('/') && Pointer::parse(text).is_ok())
}

const fn ok(holds: bool) -> Result<(), RejectReason> {
    if holds { Ok(()) } else { Err(BAD) }
}

#[cfg(test)]
mod tests;
