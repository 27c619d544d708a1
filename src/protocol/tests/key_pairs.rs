//! Pairs of generated calls that differ in one thing which must be equal never have the same merge
//! key, and pairs that differ only in what need not be equal have.
//!
//! `GROUPAGE_KEY_PAIRS` sets the number of pairs: 10 000 by default, a million in `just key-pairs`.

use rand::rngs::StdRng;
use rand::seq::{IndexedMutRandom as _, IndexedRandom as _, SliceRandom as _};
use rand::{Rng as _, SeedableRng as _};

use super::*;

/// The calls of one adapter.
struct KeyFormat {
    protocol: RouteProtocol,
    paths: [&'static str; 2],
    /// Name of the items.
    items: &'static str,
    /// Lists of items, one for each class. Lists with the same class have the same length.
    classes: &'static [[&'static str; 3]],
}

const TEXTS: [&str; 3] = [r#"["a","b"]"#, r#"[ "\u0061" , "longer, \"text\" [" ]"#, "[\"汉\",\n\"]}\"]"];
const TOKENS: [&str; 3] = ["[[1,2],[3]]", "[ [7] , [8, 9] ]", "[[0],[1]]"];
const INTEGERS: [&str; 3] = ["[[1,2],[3,4]]", "[ [-7 , 0],[8, 9] ]", "[[0,1],[1,0]]"];
const FLOATS: [&str; 3] = ["[[1.0,2.5],[3.5,4e1]]", "[ [-7.0 , 0.5],[8e0, 9.1] ]", "[[0.0,1.0],[1.0,-0.0]]"];
const WIDER: [&str; 3] = ["[[1,2,3],[3,4,5]]", "[ [-7 , 0,1],[8, 9, 1] ]", "[[0,1,0],[1,0,0]]"];
const OBJECTS: [&str; 3] = [
    r#"[{"x":1,"y":2},{"x":0,"y":1}]"#,
    r#"[ {"x":3, "y" :1},{"x":2,"y":9}]"#,
    r#"[{"\u0078":1,"y":2},{"x":0,"y":1}]"#,
];
const REORDERED: [&str; 3] = [
    r#"[{"y":1,"x":2},{"y":0,"x":1}]"#,
    r#"[ {"y":3, "x" :1},{"y":2,"x":9}]"#,
    r#"[{"y":1,"\u0078":2},{"y":0,"x":1}]"#,
];
const STRINGS: [&str; 3] = [r#"[["a","b"],["c","d"]]"#, r#"[["", "b"],["c","\n"]]"#, r#"[["1","2"],["c","d"]]"#];

const FORMATS: [KeyFormat; 9] = [
    KeyFormat {
        protocol: RouteProtocol::OpenAi,
        paths: ["/v1/embeddings", "/x/v1/embeddings"],
        items: "input",
        classes: &[TEXTS, TOKENS],
    },
    KeyFormat {
        protocol: RouteProtocol::OpenAi,
        paths: ["/v1/completions", "/x/v1/completions"],
        items: "prompt",
        classes: &[TEXTS, TOKENS],
    },
    KeyFormat {
        protocol: RouteProtocol::Vllm,
        paths: ["/classify", "/x/classify"],
        items: "input",
        classes: &[TEXTS, TOKENS],
    },
    KeyFormat {
        protocol: RouteProtocol::KServeV1,
        paths: ["/v1/models/m:predict", "/v1/models/n:predict"],
        items: "instances",
        classes: &[TEXTS, INTEGERS, FLOATS, WIDER, OBJECTS, STRINGS],
    },
    KeyFormat {
        protocol: RouteProtocol::TfServing,
        paths: ["/v1/models/m:predict", "/v1/models/m/versions/2:predict"],
        items: "instances",
        classes: &[TEXTS, INTEGERS, FLOATS, WIDER, OBJECTS, STRINGS],
    },
    KeyFormat {
        protocol: RouteProtocol::MlFlow,
        paths: ["/invocations", "/x/invocations"],
        items: "dataframe_records",
        classes: &[OBJECTS, REORDERED],
    },
    KeyFormat { protocol: RouteProtocol::Cohere, paths: ["/v1/embed", "/v2/embed"], items: "texts", classes: &[TEXTS] },
    KeyFormat {
        protocol: RouteProtocol::SgLang,
        paths: ["/generate", "/x/generate"],
        items: "text",
        classes: &[TEXTS],
    },
    KeyFormat {
        protocol: RouteProtocol::Ollama,
        paths: ["/api/embed", "/x/api/embed"],
        items: "input",
        classes: &[TEXTS],
    },
];

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

// === impl PairGenerator ===

impl PairGenerator<'_> {
    fn call(&mut self) -> GeneratedCall {
        let random = &mut self.random;
        let count = random.random_range(0..4);
        let headers = HEADERS.choose_multiple(random, count).copied().collect::<Vec<_>>();
        let headers = headers.into_iter().map(|name| (name, pick(random, &HEADER_VALUES))).collect();
        let count = random.random_range(0..4);
        let fields = FIELDS.choose_multiple(random, count).copied().collect::<Vec<_>>();
        let fields = fields.into_iter().map(|name| (name, pick(random, &VALUES))).collect();
        GeneratedCall {
            path: pick(random, &self.format.paths),
            query: pick(random, &QUERIES),
            host: pick(random, &HOSTS),
            headers,
            fields,
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
        match random.random_range(0..12) {
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
            _ => {
                let classes: Vec<usize> = (0..self.format.classes.len()).filter(|class| *class != call.class).collect();
                call.class = *classes.choose(random)?;
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
        let mut members: Vec<(&str, &str)> = call.fields.clone();
        members.push((self.format.items, items));
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
    let same = |a: &Call, b: &Call| matches!((&a.merge, &b.merge), (MergeEligibility::With(a), MergeEligibility::With(b)) if a == b);
    let pairs = pairs() / FORMATS.len();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for (seed, format) in (0..).zip(&FORMATS) {
        let endpoint = endpoint_of(rules("/*", format.protocol), format.paths[0]);
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
                same(&a, &again),
                "{:?}\n{:?} {:?}\n{:?} {:?}",
                a.unbatched_reason(),
                a.head.headers,
                a.body,
                again.head.headers,
                again.body
            );
            assert!(b.unbatched_reason().is_none(), "{:?} {:?}", b.unbatched_reason(), b.body);
            assert!(
                !same(&a, &b),
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
    assert!(kinds.len() == 7 && kinds.values().all(|count| *count > pairs / 8), "{kinds:?}");
}
