//! The rules of text values: paths, pointers, header names, addresses. Each rule says what it allows, and the parsers are those that fill the policy.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use http::HeaderName;
use tracing_subscriber::EnvFilter;

use super::policy::Upstream;
use crate::protocol::Pointer;

/// Longest text of any kind; a path or a log filter has some hundred bytes.
const BYTES_MAX: usize = 4_096;

/// A rule for a text.
pub(super) struct Text {
    /// What is allowed, in words.
    pub(super) allowed: &'static str,
    /// Whether a text is.
    pub(super) check: fn(&str) -> Result<(), Refusal>,
}

/// Why a text is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It breaks the rule; the text may say more.
    Bad(&'static str),
    /// Right, but not built yet.
    Later(&'static str),
}

const BAD: Refusal = Refusal::Bad("");

/// Any text.
pub(super) const ANY: Text = Text { allowed: "a text", check: |text| ok(text.len() <= BYTES_MAX) };

/// A name.
pub(super) const NAME: Text = Text {
    allowed: "a name of 1 to 253 characters without spaces",
    check: |text| ok((1..=253).contains(&text.len()) && text.chars().all(|c| !c.is_whitespace() && !c.is_control())),
};

/// A file's path.
pub(super) const FILE: Text =
    Text { allowed: "a path", check: |text| ok(!text.is_empty() && text.len() <= BYTES_MAX && !text.contains('\0')) };

/// The path of a route.
pub(super) const ROUTE_PATH: Text = Text {
    allowed: "a path that begins with `/`, exact or ending in `/*`",
    check: |text| {
        ok(is_path(text.strip_suffix("/*").map_or(text, |prefix| if prefix.is_empty() { "/" } else { prefix })))
    },
};

/// A path to send to.
pub(super) const PATH: Text = Text { allowed: "a path that begins with `/`", check: |text| ok(is_path(text)) };

/// A method.
pub(super) const METHOD: Text = Text {
    allowed: "a method in capitals, such as POST",
    check: |text| {
        ok((1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'-' || b == b'_'))
    },
};

/// A header name.
pub(super) const HEADER: Text =
    Text { allowed: "a header name, such as x-tenant-id", check: |text| ok(header(text).is_some()) };

/// A JSON Pointer.
pub(super) const POINTER: Text =
    Text { allowed: "a JSON Pointer: \"\" or a text that begins with `/`", check: |text| ok(is_pointer(text)) };

/// A member of an item.
pub(super) const FIELD: Text = Text {
    allowed: "a field's name, or a JSON Pointer that begins with `/`",
    check: |text| ok(!text.is_empty() && text.len() <= BYTES_MAX && Pointer::parse_field(text).is_ok()),
};

/// What the items of a batch are weighed by.
pub(super) const WEIGHT: Text = Text {
    allowed: "Items, Bytes, Chars, ListLen, or a JSON Pointer that begins with `/`",
    check: |text| ok(text == "Items" || is_weight(text)),
};

/// What results are weighed by.
pub(super) const RESULT_WEIGHT: Text = Text {
    allowed: "Bytes, Chars, ListLen, or a JSON Pointer that begins with `/`",
    check: |text| ok(is_weight(text)),
};

/// A captured port.
pub(super) const CAPTURED_PORT: Text = Text {
    allowed: "a port from 1 to 65535, or its name",
    check: |text| {
        let number = text.parse::<u32>().ok();
        let name = text.len() <= 15 && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        ok(number.map_or(name && !text.is_empty(), |number| (1..=65_535).contains(&number)))
    },
};

/// An address to listen on.
pub(super) const ADDRESS: Text = Text {
    allowed: "an address such as 127.0.0.1:8080, [::1]:8080 or :8080",
    check: |text| ok(address(text).is_some()),
};

/// An address to listen on, or none.
pub(super) const ADDRESS_OR_OFF: Text = Text {
    allowed: "an address such as 127.0.0.1:9190, or off",
    check: |text| ok(text == "off" || address(text).is_some()),
};

/// A loopback address to listen on, or none.
pub(super) const LOCAL_OR_OFF: Text = Text {
    allowed: "a loopback address such as 127.0.0.1:9191, or off",
    check: |text| match address(text) {
        Some(address) if !address.ip().is_loopback() => Err(Refusal::Bad("whoever reaches it can change the proxy")),
        found => ok(text == "off" || found.is_some()),
    },
};

/// The model server.
pub(super) const UPSTREAM: Text =
    Text { allowed: "http://HOST:PORT or unix:/PATH", check: |text| upstream(text).map(|_| ()) };

/// A log filter.
pub(super) const LEVEL: Text = Text {
    allowed: "error, warn, info, debug, trace, off, or directives such as info,groupage::proxy=debug",
    check: level,
};

/// An address; without a host it is every IPv4 address.
pub(super) fn address(text: &str) -> Option<SocketAddr> {
    let port = |port: &str| port.bytes().all(|b| b.is_ascii_digit()).then(|| port.parse::<u16>().ok()).flatten();
    match text.rsplit_once(':') {
        Some(("", number)) => Some((IpAddr::V4(Ipv4Addr::UNSPECIFIED), port(number)?).into()),
        Some(("localhost", number)) => Some((IpAddr::V4(Ipv4Addr::LOCALHOST), port(number)?).into()),
        _ => text.parse().ok(),
    }
}

/// The model server's address.
pub(super) fn upstream(text: &str) -> Result<Upstream, Refusal> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        // 107 bytes are what the kernel takes.
        let fits = path.starts_with('/') && path.len() > 1 && path.len() <= 107 && !path.contains('\0');
        return if fits { Ok(Upstream::Unix(PathBuf::from(path))) } else { Err(BAD) };
    }
    if text.starts_with("https://") {
        return Err(Refusal::Later("TLS to the upstream comes later; use http:// or unix:"));
    }
    let rest = text.strip_prefix("http://").ok_or(Refusal::Bad("it begins with http:// or unix:"))?;
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#']) {
        return Err(Refusal::Bad("without a path: every call keeps its own"));
    }
    if authority.contains('@') {
        return Err(Refusal::Bad("without a user: callers' credentials are sent on as they are"));
    }
    let parsed: http::uri::Authority = authority.parse().map_err(|_| BAD)?;
    // The URL type takes an empty or oversized port for none.
    let port = match authority.strip_prefix(parsed.host()) {
        Some("") => 80,
        Some(port) => port.strip_prefix(':').and_then(|port| port.parse().ok()).filter(|port| *port > 0).ok_or(BAD)?,
        None => return Err(BAD),
    };
    let host = parsed.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() {
        return Err(BAD);
    }
    Ok(Upstream::Http { host, port, authority: authority.to_owned() })
}

/// A header name, in lower case.
pub(super) fn header(text: &str) -> Option<HeaderName> {
    HeaderName::from_bytes(text.as_bytes()).ok()
}

/// A log filter that `tracing` would take for a target's name, such as `inof`, is nearly always a misspelt level.
fn level(text: &str) -> Result<(), Refusal> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    if text.trim().is_empty() || text.len() > BYTES_MAX || EnvFilter::builder().parse(text).is_err() {
        return Err(BAD);
    }
    for directive in text.split(',').map(str::trim) {
        let word = directive.to_ascii_lowercase();
        let bare = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric());
        let known = LEVELS.contains(&word.as_str()) || word.parse::<u8>().is_ok_and(|level| level <= 5);
        let meant = |level: &&str| word.starts_with(*level) || strsim::osa_distance(level, &word) <= 2;
        if bare && !known && LEVELS.iter().any(meant) {
            return Err(Refusal::Bad("that is no level"));
        }
    }
    Ok(())
}

fn is_path(text: &str) -> bool {
    text.starts_with('/')
        && text.len() <= BYTES_MAX
        && text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'?' | b'#' | b'*'))
}

fn is_pointer(text: &str) -> bool {
    text.len() <= BYTES_MAX && Pointer::parse(text).is_ok()
}

fn is_weight(text: &str) -> bool {
    matches!(text, "Bytes" | "Chars" | "ListLen") || (text.starts_with('/') && is_pointer(text))
}

const fn ok(holds: bool) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(BAD) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(rule: &Text, texts: &[&str]) {
        for text in texts {
            assert_eq!((rule.check)(text), Ok(()), "{text}");
        }
    }

    fn refuses(rule: &Text, texts: &[&str]) {
        for text in texts {
            assert!((rule.check)(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_route_is_a_path_or_a_prefix() {
        accepts(&ROUTE_PATH, &["/", "/*", "/v1/embeddings", "/v1/*", "/v1/models/m:predict", "/a%20b"]);
        refuses(&ROUTE_PATH, &["", "v1", "*", "/v1*", "/*/x", "/v1/**", "/a b", "/a?b", "/a#b", "/é"]);
    }

    #[test]
    fn a_pointer_escapes_its_tildes() {
        accepts(&POINTER, &["", "/", "/a", "/a/0/b", "/a~0b~1c"]);
        refuses(&POINTER, &["a", "a/b", "/a~", "/a~2", "$.a"]);
    }

    #[test]
    fn an_address_may_leave_out_the_host() {
        assert_eq!(address(":15080"), Some(([0, 0, 0, 0], 15080).into()));
        assert_eq!(address("[::]:80").map(|address| address.is_ipv6()), Some(true));
        accepts(&ADDRESS, &["127.0.0.1:0", "localhost:1", "[::1]:8080"]);
        refuses(&ADDRESS, &["", ":", ":65536", ":-1", ":+1", "8080", "host:80", "127.0.0.1", "off"]);
        accepts(&LOCAL_OR_OFF, &["off", "127.0.0.1:0", "[::1]:1"]);
        refuses(&LOCAL_OR_OFF, &["0.0.0.0:9191", ":9191", "no", "Off"]);
    }

    #[test]
    fn an_upstream_is_a_plain_host_or_a_socket() {
        let http = |host: &str, port, authority: &str| {
            Ok(Upstream::Http { host: host.to_owned(), port, authority: authority.to_owned() })
        };
        assert_eq!(upstream("http://127.0.0.1:8080"), http("127.0.0.1", 8080, "127.0.0.1:8080"));
        assert_eq!(upstream("http://model/"), http("model", 80, "model"));
        assert_eq!(upstream("http://[::1]:81"), http("::1", 81, "[::1]:81"));
        assert_eq!(upstream("unix:/run/m.sock"), Ok(Upstream::Unix("/run/m.sock".into())));
        assert_eq!(upstream("unix:///run/m.sock"), Ok(Upstream::Unix("/run/m.sock".into())));
        refuses(
            &UPSTREAM,
            &[
                "",
                "http://",
                "http:///x",
                "http://h:0",
                "http://h:",
                "http://h:70000",
                "http://h/v1",
                "http://u:p@h",
                "unix:x",
                "unix:",
                "ftp://h",
                "127.0.0.1:8080",
                "http://a b",
            ],
        );
        assert!(matches!(upstream("https://h"), Err(Refusal::Later(_))));
    }

    #[test]
    fn a_misspelt_level_is_not_a_target() {
        accepts(&LEVEL, &["info", "INFO", "off", "debug,hyper=warn", "groupage::proxy=trace", "info,h2=off", "3"]);
        refuses(&LEVEL, &["", "inof", "debgu", "groupage=loud", "warning", "info,trcae"]);
    }

    #[test]
    fn header_names_and_methods_are_tokens() {
        accepts(&HEADER, &["x-a", "X-A", "authorization"]);
        refuses(&HEADER, &["", "x a", "x:", "é"]);
        accepts(&METHOD, &["POST", "GET", "M-SEARCH"]);
        refuses(&METHOD, &["", "post", "P OST"]);
    }
}
