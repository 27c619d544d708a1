//! Pairs of generated calls that differ in one thing which must be equal never have the same merge
//! key, and pairs that differ only in what need not be equal have.
//!
//! `GROUPAGE_KEY_PAIRS` sets the number of pairs: 10 000 by default, a million in `just key-pairs`.

use rand::rngs::StdRng;
use rand::seq::{IndexedMutRandom as _, IndexedRandom as _, SliceRandom as _};
use rand::{Rng as _, SeedableRng as _};

use self::formats::{FORMATS, KeyFormat};
use super::*;

pub(crate) mod formats;

/// Headers that must be equal, each with values.
const HEADERS: [&str; 12] = [
    "authorization",
    "x-api-key",
    "cookie",
    "x-tenant-id",
    "openai-organization",
    "x-amz-target",
    "accept-language",
    "x-mode",
    "x-acme-version",
    "content-language",
    "prefer",
    "origin",
];
const HEADER_VALUES: [&str; 7] = ["a", "A", "b", "a, b", "a,b", "Bearer 1", "Bearer 2"];
/// Headers of a single call.
const OWN_HEADERS: [&str; 6] =
    ["user-agent", "x-request-id", "traceparent", "accept-encoding", "x-forwarded-for", "x-stainless-retry-count"];
const QUERIES: [&str; 6] = ["", "?", "?a=1", "?a=%31", "?a=1&b=2", "?b=2&a=1"];
const HOSTS: [&str; 4] = ["h", "H", "h:80", "i"];
/// Fields that no adapter knows. Some names contain others, or the separators of a key.
const FIELDS: [&str; 10] = ["u", "u1", "dims", "a/b", "a~1b", "汉", "top", "k,", "k", "opt"];
/// Values of fields, each of which is another one to some server.
const VALUES: [&str; 22] = [
    "1",
    "1.0",
    "1e0",
    "10",
    "\"1\"",
    "-0",
    "0",
    "123456789012345678901",
    "123456789012345678902",
    "true",
    "false",
    "null",
    "\"a\"",
    "\"\\u0061\"",
    "\"A\"",
    "\"\"",
    "[]",
    "{}",
    "[1,[]]",
    "[1]",
    r#"{"a":1}"#,
    r#"{"a":[1],"b":{"c":null}}"#,
];

/// A call as its parts.
#[derive(Clone)]
struct GeneratedCall {
    path: &'static str,
    query: &'static str,
    host: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    fields: Vec<(&'static str, &'static str)>,
    /// The fields that the format requires.
    required: Vec<(&'static str, &'static str)>,
    /// Index of the names of the items.
    position: usize,
    class: usize,
}

/// A generator of calls for one adapter.
struct PairGenerator<'a> {
    format: &'a KeyFormat,
    random: StdRng,
}

fn pick<T: Copy>(random: &mut StdRng, from: &[T]) -> T {
    *from.choose(random).unwrap()
}

fn pick_other<T: Copy + PartialEq>(random: &mut StdRng, from: &[T], than: T) -> T {
    loop {
        let other = pick(random, from);
        if other != than {
            return other;
        }
    }
}

/// Returns another index below `count`, or `None` if there is no other one.
fn pick_index(random: &mut StdRng, count: usize, than: usize) -> Option<usize> {
    let others: Vec<usize> = (0..count).filter(|index| *index != than).collect();
    others.choose(random).copied()
}

// === impl PairGenerator ===

impl PairGenerator<'_> {
    fn call(&mut self) -> GeneratedCall {
        let random = &mut self.random;
        let count = random.random_range(0..4);
        let headers = HEADERS.choose_multiple(random, count).copied().collect::<Vec<_>>();
        let headers = headers.into_iter().map(|name| (name, pick(random, &HEADER_VALUES))).collect();
        let count = if self.format.takes_fields { random.random_range(0..4) } else { 0 };
        let fields = FIELDS.choose_multiple(random, count).copied().collect::<Vec<_>>();
        let fields = fields.into_iter().map(|name| (name, pick(random, &VALUES))).collect();
        GeneratedCall {
            path: pick(random, &self.format.paths),
            query: pick(random, &QUERIES),
            host: pick(random, &HOSTS),
            headers,
            fields,
            required: self.format.required.iter().map(|&(name, values)| (name, pick(random, values))).collect(),
            position: random.random_range(0..self.format.positions.len()),
            class: random.random_range(0..self.format.classes.len()),
        }
    }

    /// Changes one thing that must be equal, and returns its name; `None` if the call has no such
    /// thing.
    fn change(&mut self, call: &mut GeneratedCall) -> Option<&'static str> {
        let random = &mut self.random;
        let absent = |all: &[&'static str], present: Vec<&str>| -> Vec<&'static str> {
            all.iter().copied().filter(|name| !present.contains(name)).collect()
        };
        match random.random_range(0..14) {
            0 => call.path = pick_other(random, &self.format.paths, call.path),
            1 => call.query = pick_other(random, &QUERIES, call.query),
            2 => call.host = pick_other(random, &HOSTS, call.host),
            3 | 4 => {
                let absent = absent(&HEADERS, call.headers.iter().map(|(name, _)| *name).collect());
                call.headers.push((pick(random, &absent), pick(random, &HEADER_VALUES)));
                return Some("a further header");
            }
            5 | 6 => {
                let (_, value) = call.headers.choose_mut(random)?;
                *value = pick_other(random, &HEADER_VALUES, *value);
                return Some("the value of a header");
            }
            7 => {
                let (name, value) = *call.fields.choose(random)?;
                let absent = absent(&FIELDS, call.fields.iter().map(|(name, _)| *name).collect());
                call.fields.retain(|(own, _)| *own != name);
                call.fields.push((pick(random, &absent), value));
                return Some("the name of a field");
            }
            8 if !self.format.takes_fields => return None,
            8 => {
                let absent = absent(&FIELDS, call.fields.iter().map(|(name, _)| *name).collect());
                call.fields.push((pick(random, &absent), pick(random, &VALUES)));
                return Some("a further field");
            }
            9 | 10 => {
                let (_, value) = call.fields.choose_mut(random)?;
                *value = pick_other(random, &VALUES, *value);
                return Some("the value of a field");
            }
            11 => {
                let (name, value) = call.required.choose_mut(random)?;
                let &(_, values) = self.format.required.iter().find(|(own, _)| *own == *name)?;
                *value = pick_other(random, values, *value);
                return Some("a required field");
            }
            12 => {
                call.position = pick_index(random, self.format.positions.len(), call.position)?;
                return Some("the names of the items");
            }
            _ => {
                call.class = pick_index(random, self.format.classes.len(), call.class)?;
                return Some("the class of the items");
            }
        }
        Some("the path, the query or the host")
    }

    /// Parses a call, spelled with random spaces, orders, items, and headers of its own.
    fn parse(&mut self, endpoint: &Endpoint, call: &GeneratedCall) -> Call {
        let random = &mut self.random;
        let blank = |random: &mut StdRng| pick(random, &["", " ", "\n", "\t  "]);
        let items = pick(random, &self.format.classes[call.class]);
        let mut members: Vec<(&str, &str)> = [&call.fields[..], &call.required[..]].concat();
        members.extend(self.format.positions[call.position].iter().map(|name| (*name, items)));
        members.shuffle(random);
        let mut body = format!("{}{{", blank(random));
        for (place, (name, value)) in members.iter().enumerate() {
            let separator = if place > 0 { "," } else { "" };
            let [a, b, c, d] = [(); 4].map(|()| blank(random));
            body += &format!("{separator}{a}\"{name}\"{b}:{c}{value}{d}");
        }
        body += &format!("}}{}", blank(random));
        let mut headers = call.headers.clone();
        let count = random.random_range(0..3);
        headers.extend(OWN_HEADERS.choose_multiple(random, count).map(|name| (*name, "7")));
        headers.push(("host", call.host));
        headers.shuffle(random);
        read_with(endpoint, &format!("{}{}", call.path, call.query), &headers, &body)
    }
}

fn pairs() -> usize {
    #[expect(clippy::disallowed_methods, reason = "how much to test is no setting of the proxy")]
    let pairs = std::env::var("GROUPAGE_KEY_PAIRS").ok();
    pairs.and_then(|pairs| pairs.parse().ok()).unwrap_or(10_000)
}

#[test]
fn calls_that_differ_in_one_thing_that_must_be_equal_never_share_a_batch() {
    let pairs = pairs() / FORMATS.len();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for (seed, format) in (0..).zip(&FORMATS) {
        let endpoint = endpoint_of(format.rules(), format.paths[0]);
        let mut generator = PairGenerator { format, random: StdRng::seed_from_u64(seed) };
        let mut done = 0;
        while done < pairs {
            let call = generator.call();
            let mut other = call.clone();
            let Some(kind) = generator.change(&mut other) else { continue };
            let (a, again, b) = (
                generator.parse(&endpoint, &call),
                generator.parse(&endpoint, &call),
                generator.parse(&endpoint, &other),
            );
            // Otherwise the pair would show nothing.
            assert!(
                may_share_batch(&a, &again),
                "{:?}\n{:?} {:?}\n{:?} {:?}",
                a.unbatched_reason(),
                a.head.headers,
                a.body,
                again.head.headers,
                again.body
            );
            assert!(b.unbatched_reason().is_none(), "{:?} {:?}", b.unbatched_reason(), b.body);
            assert!(
                !may_share_batch(&a, &b),
                "{kind}: {} {:?}\n{:?}\n{} {:?}\n{:?}",
                a.head.uri,
                a.head.headers,
                a.body,
                b.head.uri,
                b.head.headers,
                b.body
            );
            *kinds.entry(kind).or_default() += 1;
            done += 1;
        }
    }
    assert!(kinds.len() == 9 && kinds.values().all(|count| *count > pairs / 8), "{kinds:?}");
}
