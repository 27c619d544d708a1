//! Identities of callers, and random spellings of their calls. Every spelling of an identity means
//! the same to a server that follows RFC 9110 and RFC 8259.

use std::fmt::Write as _;

use groupage::batching::rng::SplitMix64;

use super::super::support::json;
use super::super::support::upstream::Request;
use super::super::support::wire::values;

/// Headers that belong to an identity, or that may change the answer.
const HEADERS: [&str; 7] =
    ["authorization", "x-api-key", "cookie", "x-tenant-id", "x-forwarded-user", "x-anything", "accept-language"];
/// The header of [`HEADERS`] that a `connection` header may nominate. It is then a header of the
/// connection, which a proxy does not forward.
const NOMINATED: usize = 5;
/// Values of a part. The second differs from the first in case only.
const VALUES: [&str; 3] = ["alice", "Alice", "bob"];
const QUERIES: [&str; 3] = ["", "?version=1", "?version=%31"];
const HOSTS: [&str; 2] = ["a.example", "b.example"];
const PATHS: [&str; 2] = ["/v1/models/m:predict", "/v1/models/M:predict"];

/// Everything of a call that may change its answer, apart from its instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    path: usize,
    query: usize,
    host: usize,
    /// Index into [`VALUES`] for each of [`HEADERS`].
    headers: [Option<usize>; HEADERS.len()],
    /// The field `user` of the body.
    user: Option<usize>,
    /// Set if the call nominates the header [`NOMINATED`].
    nominates: bool,
}

// === impl Identity ===

impl Identity {
    /// Draws one of `bases` identities, or one that differs from it in a single part.
    pub(super) fn draw(draw: &mut SplitMix64, bases: u64) -> Self {
        let base = index(draw, bases);
        let mut identity = Self {
            path: 0,
            query: 0,
            host: 0,
            headers: [None; HEADERS.len()],
            user: (base == 1).then_some(0),
            nominates: false,
        };
        identity.headers[base] = Some(0);
        if draw.next_bool(600) {
            return identity;
        }
        match index(draw, 12) {
            0 => identity.path = 1,
            1 => identity.query = 1 + index(draw, 2),
            2 => identity.host = 1,
            3 => identity.user = Some(1 + index(draw, 2)),
            4 => {
                (identity.headers[NOMINATED], identity.nominates) = (Some(2), true);
            }
            part => identity.headers[part - 5] = Some(1 + index(draw, 2)),
        }
        identity
    }

    /// Returns the identity as the server receives it: the text of [`received`] for this call.
    pub(super) fn received(&self) -> String {
        let headers = self.headers.iter().enumerate().map(|(index, value)| {
            let is_removed = self.nominates && index == NOMINATED;
            value.filter(|_| !is_removed).map(|value| VALUES[value]).unwrap_or_default().to_owned()
        });
        let user = self.user.map(|value| VALUES[value]).unwrap_or_default();
        describe(&self.target(), HOSTS[self.host], headers, user)
    }

    fn target(&self) -> String {
        format!("{}{}", PATHS[self.path], QUERIES[self.query])
    }

    /// Returns a call of this identity with one instance, in a random spelling.
    pub(super) fn spell(&self, nonce: &str, draw: &mut SplitMix64) -> Vec<u8> {
        let mut headers = vec![("host", HOSTS[self.host]), ("content-type", "application/json")];
        headers.extend((0..).zip(self.headers).filter_map(|(index, value)| Some((HEADERS[index], VALUES[value?]))));
        headers.extend(self.nominates.then_some(("connection", HEADERS[NOMINATED])));
        // Headers of the trace and of other hops do not belong to an identity.
        headers.extend(draw.next_bool(300).then_some(("x-forwarded-for", "10.0.0.1")));
        headers.extend(draw.next_bool(300).then_some(("traceparent", "00-0123-4567-01")));
        let mut head = format!("POST {} HTTP/1.1\r\n", self.target());
        while !headers.is_empty() {
            let (name, value) = headers.swap_remove(index(draw, headers.len() as u64));
            let space = ["", " ", "  ", "\t"];
            let (before, after) = (space[index(draw, 4)], space[index(draw, 4)]);
            // Writing to a string does not fail.
            write!(head, "{}:{before}{value}{after}\r\n", spell_case(name, draw)).ok();
        }
        let body = self.spell_body(nonce, draw);
        if draw.next_bool(500) {
            return format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes();
        }
        // Extensions of chunks and trailers are no part of a call: neither may become one.
        let (first, second) = body.split_at(index(draw, body.len() as u64).max(1));
        let chunks = [first, second].map(|text| format!("{:x};x-api-key=mallory\r\n{text}\r\n", text.len()));
        let trailer = if draw.next_bool(500) { "x-api-key: mallory\r\n" } else { "" };
        format!("{head}transfer-encoding: chunked\r\n\r\n{}0\r\n{trailer}\r\n", chunks.concat()).into_bytes()
    }

    fn spell_body(&self, nonce: &str, draw: &mut SplitMix64) -> String {
        let mut members = vec![("instances", format!("[{}]", spell_string(nonce, draw)))];
        members.extend(self.user.map(|value| ("user", spell_string(VALUES[value], draw))));
        if draw.next_bool(500) {
            members.reverse();
        }
        let space = ["", " ", "\n", "\t "];
        let mut member = |(name, value): (&str, String)| {
            format!("{}{}:{}{value}", space[index(draw, 4)], spell_string(name, draw), space[index(draw, 4)])
        };
        let members: Vec<_> = members.into_iter().map(&mut member).collect();
        format!("{{{}}}", members.join(","))
    }
}

/// Returns the identity of a request that arrived at the server.
pub(super) fn received(request: &Request) -> String {
    let header = |name: &str| {
        let values = values(&request.headers, name).into_iter().map(String::from_utf8_lossy);
        values.collect::<Vec<_>>().join(",")
    };
    let body = json::parse(&request.body).ok();
    let user = body.as_ref().and_then(|body| body.get("user")).and_then(json::Json::as_str).unwrap_or_default();
    describe(&request.target, &header("host"), HEADERS.iter().map(|name| header(name)), &user)
}

fn describe(target: &str, host: &str, headers: impl Iterator<Item = String>, user: &str) -> String {
    let headers: Vec<_> = HEADERS.iter().zip(headers).map(|(name, value)| format!("{name}={value}")).collect();
    format!("{target} {host} {} user={user}", headers.join(" "))
}

fn index(draw: &mut SplitMix64, below: u64) -> usize {
    usize::try_from(draw.next_u64() % below.max(1)).unwrap_or(0)
}

fn spell_case(name: &str, draw: &mut SplitMix64) -> String {
    name.chars().map(|c| if draw.next_bool(300) { c.to_ascii_uppercase() } else { c }).collect()
}

/// Returns a JSON string in which any character may be an escape.
fn spell_string(text: &str, draw: &mut SplitMix64) -> String {
    let spelled: String = text
        .chars()
        .map(|c| if draw.next_bool(100) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() })
        .collect();
    format!("\"{spelled}\"")
}
