//! Comparison of bodies and headers with a case: matching modes, placeholders for generated ids,
//! and the test whether a request is a client's original call. All functions are pure, so that
//! `selfcheck` verifies them in every run.

use std::collections::{BTreeMap, BTreeSet};

use crate::open_inference_grpc::MessageKind;
use crate::support::json::{self, Json};
use crate::support::report::difference;
use crate::support::wire::{self, Headers};

/// Mode of a comparison between two bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Equal bytes.
    Bytes,
    /// Equal JSON tokens, by spelling and in order.
    Tokens,
    /// Equal JSON tokens by spelling, with object members in any order.
    Json,
    /// A JSON part, with its length in a header, followed by equal bytes.
    OipBinary,
    /// Equal messages of gRPC, floats by their bits, without unknown fields.
    Protobuf(MessageKind),
}

/// Values of the placeholders of one message, by prefix. Placeholders with the same prefix have the
/// same value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bindings(BTreeMap<Vec<u8>, Vec<u8>>);

/// Minimum length of a generated id after its prefix.
const UID_MIN: usize = 8;
/// Header with the length of the JSON part of a V2 body.
const JSON_LENGTH: &str = "inference-header-content-length";

// === impl Bindings ===

impl Bindings {
    /// Returns the bound values.
    pub(crate) fn values(&self) -> impl Iterator<Item = &[u8]> {
        self.0.values().map(Vec::as_slice)
    }

    /// Returns `true` if `text` matches `pattern`, in which `{{uid:p}}` is a placeholder for a
    /// generated id with the prefix `p`. Values are bound only if the whole text matches.
    pub(crate) fn agrees(&mut self, pattern: &[u8], text: &[u8]) -> bool {
        let parts = parts(pattern);
        let mut taken = self.0.clone();
        let agrees = walk(&parts, text, &mut taken);
        if agrees {
            self.0 = taken;
        }
        agrees
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Part<'a> {
    Text(&'a [u8]),
    Uid(&'a [u8]),
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|w| w == what)
}

/// Returns `true` if `text` contains `what`. An empty `what` is never contained.
pub(crate) fn holds(text: &[u8], what: &[u8]) -> bool {
    !what.is_empty() && find(text, what).is_some()
}

fn parts(mut pattern: &[u8]) -> Vec<Part<'_>> {
    const OPEN: &[u8] = b"{{uid:";
    let mut parts = Vec::new();
    while let Some(open) = find(pattern, OPEN) {
        let (text, rest) = pattern.split_at(open);
        let name = rest.get(OPEN.len()..).unwrap_or_default();
        let Some(close) = find(name, b"}}") else { break };
        parts.push(Part::Text(text));
        parts.push(Part::Uid(name.get(..close).unwrap_or_default()));
        pattern = name.get(close + 2..).unwrap_or_default();
    }
    parts.push(Part::Text(pattern));
    parts
}

/// Matches parts by backtracking. A placeholder takes the longest value first, and a shorter one if
/// the text that follows it could be a part of the id.
fn walk(parts: &[Part<'_>], text: &[u8], taken: &mut BTreeMap<Vec<u8>, Vec<u8>>) -> bool {
    let Some((first, rest)) = parts.split_first() else { return text.is_empty() };
    match first {
        Part::Text(same) => text.strip_prefix(*same).is_some_and(|text| walk(rest, text, taken)),
        Part::Uid(prefix) => {
            if let Some(value) = taken.get(*prefix).cloned() {
                return text.strip_prefix(value.as_slice()).is_some_and(|text| walk(rest, text, taken));
            }
            let Some(tail) = text.strip_prefix(*prefix) else { return false };
            let run = tail.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'-').count();
            (UID_MIN..=run).rev().any(|n| {
                let (value, after) = text.split_at(prefix.len() + n);
                let mut tried = taken.clone();
                tried.insert(prefix.to_vec(), value.to_vec());
                let agrees = walk(rest, after, &mut tried);
                if agrees {
                    *taken = tried;
                }
                agrees
            })
        }
    }
}

/// Compares a body with the expected one. The error shows both around the first difference.
/// `headers` are those of the actual message.
pub(crate) fn body(mode: Mode, want: &[u8], got: &[u8], headers: &Headers, taken: &mut Bindings) -> Result<(), String> {
    // An empty expected body is not a JSON document.
    let mode = if want.is_empty() { Mode::Bytes } else { mode };
    let agrees = match mode {
        Mode::Bytes => taken.agrees(want, got),
        Mode::Tokens => {
            let got = json::parse(got).map_err(|e| format!("body: {e}: {}", crate::support::report::shown(got, 0)))?;
            same(&json::parse(want)?, &got, taken, true)
        }
        Mode::Json => {
            let got = json::parse(got).map_err(|e| format!("body: {e}: {}", crate::support::report::shown(got, 0)))?;
            same(&json::parse(want)?, &got, taken, false)
        }
        Mode::OipBinary => {
            let (want_json, want_end) = json::parse_prefix(want)?;
            let length =
                wire::values(headers, JSON_LENGTH).first().and_then(|v| std::str::from_utf8(v).ok()?.parse().ok());
            let length: usize = length.ok_or_else(|| format!("body: no {JSON_LENGTH}"))?;
            if length > got.len() {
                return Err(format!("body: {JSON_LENGTH} {length}, but {} bytes", got.len()));
            }
            let (got_json, got_rest) = got.split_at(length);
            let want_rest = want.get(want_end..).unwrap_or_default();
            let got_json = json::parse(got_json).map_err(|e| format!("body: {e}"))?;
            same(&want_json, &got_json, taken, false) && want_rest == got_rest
        }
        Mode::Protobuf(kind) => {
            let got = kind.decode(got).map_err(|e| format!("body: {e}: {}", crate::support::report::shown(got, 0)))?;
            same(&kind.decode(want)?, &got, taken, false)
        }
    };
    if agrees { Ok(()) } else { Err(format!("body ({mode:?}): {}", difference(want, got))) }
}

/// Returns `true` if two values have the same spelling. If `ordered` is `false`, members are first
/// sorted by name, and duplicates keep their order.
fn same(want: &Json, got: &Json, taken: &mut Bindings, ordered: bool) -> bool {
    match (want, got) {
        (Json::Scalar(want), Json::Scalar(got)) => taken.agrees(want, got),
        (Json::Array(want), Json::Array(got)) => {
            want.len() == got.len() && want.iter().zip(got).all(|(want, got)| same(want, got, taken, ordered))
        }
        (Json::Object(want), Json::Object(got)) => {
            let sorted = |members: &[(Vec<u8>, Json)]| {
                let mut members: Vec<_> = members.to_vec();
                if !ordered {
                    members.sort_by(|a, b| a.0.cmp(&b.0));
                }
                members
            };
            let (want, got) = (sorted(want), sorted(got));
            want.len() == got.len()
                && want.iter().zip(&got).all(|(want, got)| want.0 == got.0 && same(&want.1, &got.1, taken, ordered))
        }
        _ => false,
    }
}

/// Verifies that each expected header is present with exactly the expected values.
pub(crate) fn subset(want: &Headers, got: &Headers, taken: &mut Bindings) -> Result<(), String> {
    for (name, _) in want {
        let (want, got) = (wire::values(want, name), wire::values(got, name));
        if want.len() != got.len() || !want.iter().zip(&got).all(|(want, got)| taken.agrees(want, got)) {
            return Err(format!("header {name}: expected {}, actual {}", lines(&want), lines(&got)));
        }
    }
    Ok(())
}

/// Verifies that no header has one of the names.
pub(crate) fn absent(names: &[String], got: &Headers) -> Result<(), String> {
    match names.iter().find(|name| !wire::values(got, name).is_empty()) {
        Some(name) => Err(format!("header {name}: must be absent, actual {}", lines(&wire::values(got, name)))),
        None => Ok(()),
    }
}

fn lines(values: &[&[u8]]) -> String {
    let values: Vec<_> = values.iter().map(|v| format!("`{}`", String::from_utf8_lossy(v))).collect();
    if values.is_empty() { "none".to_owned() } else { values.join(" and ") }
}

/// Hop-by-hop headers, which belong to a connection and not to a call.
const HOP: [&str; 8] =
    ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings"];

/// Returns the end-to-end headers by lower-case name. Framing is left out: every hop generates it,
/// and [`framed_alike`] compares it.
fn end_to_end(headers: &Headers) -> BTreeMap<String, Vec<&[u8]>> {
    let nominated = wire::connection_options(headers);
    let mut kept = BTreeMap::<_, Vec<_>>::new();
    for (name, value) in headers {
        let lower = name.to_ascii_lowercase();
        let hop = HOP.contains(&lower.as_str()) || nominated.iter().any(|option| option.eq_ignore_ascii_case(name));
        if !hop && lower != "content-length" {
            kept.entry(lower).or_default().push(value.as_slice());
        }
    }
    kept
}

/// Verifies that the headers are those of the client: none is missing or added, and the values of a
/// name keep their number and order. `Expect: 100-continue` is answered by the proxy and not
/// forwarded.
pub(crate) fn original(own: &Headers, got: &Headers) -> Result<(), String> {
    let mut want = end_to_end(own);
    if let Some(expect) = want.get_mut("expect") {
        expect.retain(|value| !value.eq_ignore_ascii_case(b"100-continue"));
        if expect.is_empty() {
            want.remove("expect");
        }
    }
    let actual = end_to_end(got);
    let names: BTreeSet<_> = want.keys().chain(actual.keys()).collect();
    for name in names {
        let want = want.get(name).map(Vec::as_slice).unwrap_or_default();
        let actual = actual.get(name).map(Vec::as_slice).unwrap_or_default();
        if want != actual {
            return Err(format!(
                "header {name} of an original call: the client's {}, actual {}",
                lines(want),
                lines(actual)
            ));
        }
    }
    framed_alike(own, got)
}

/// Verifies that the framing is kept: a length stays a length, and no body stays no body. A chunked
/// request may be forwarded with a length.
fn framed_alike(own: &Headers, got: &Headers) -> Result<(), String> {
    let (own_length, got_length) = (wire::values(own, "content-length"), wire::values(got, "content-length"));
    let chunked = |headers| !wire::values(headers, "transfer-encoding").is_empty();
    if chunked(own) || (own_length.first() == Some(&b"0".as_slice()) && got_length.is_empty() && !chunked(got)) {
        return Ok(());
    }
    if own_length == got_length && !chunked(got) {
        return Ok(());
    }
    let got = if chunked(got) { "chunked".to_owned() } else { lines(&got_length) };
    Err(format!("framing of an original call: the client's content-length {}, actual {got}", lines(&own_length)))
}
