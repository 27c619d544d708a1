//! The diversity of merge keys within a cost class: the parts in which the keys differ and
//! therefore prevent merging.
//!
//! The most recent keys of a class are kept as [`RecentKeys`], with a digest of each part and no
//! values, which may be secret. The digests have a random key in each process, so that values
//! cannot be guessed from them. The work is done only for keys that are not interned yet; calls
//! with a known key cost nothing.
//!
//! The core counts the batches that were not full while calls with another key waited
//! ([`crate::batching::ClassStats::other_keys_waiting`]).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::batching::{self, CostClassId, DispatchPolicy, Tick};
use crate::protocol::{DifferingPart, Endpoint, KEY_BYTES_MAX, KeyPart, RecentKeys};

/// Maximum number of cost classes with compared keys; beyond it the least recently used one is
/// evicted. With all their keys they occupy at most about two megabytes.
const CLASSES_MAX: usize = 16;
/// Maximum number of keys inspected per [`SPAN`]. The work runs in the driver and delays all calls,
/// and a client may send a new key with every call. With [`KEY_BYTES_MAX`] it is at most half a
/// mebibyte per second, about 0.2 % of a core.
const KEYS_PER_SPAN_MAX: u32 = 32;
/// Window of the rate limit.
const SPAN: Duration = Duration::from_secs(1);

/// The parts of the most recent merge keys by cost class.
#[derive(Debug, Default)]
pub(super) struct KeyDiversity {
    hasher: RandomState,
    /// For each class, the value of `uses` when a key was last recorded, and the keys.
    classes: HashMap<CostClassId, (u64, RecentKeys)>,
    /// Number of keys inspected so far, which orders the classes for eviction.
    uses: u64,
    /// Start of the current span, and the number of keys counted in it.
    span: (Tick, u32),
}

/// The current decisions of the scheduler and their reasons.
#[derive(Debug, Clone)]
pub struct DecisionReport {
    /// Decisions and reasons of the core.
    pub core: batching::DecisionStats,
    /// Instant of the report.
    pub now: Tick,
    /// Names of the cost classes, which [`crate::protocol::decode_cost_class`] parses.
    pub names: Vec<(CostClassId, Box<[u8]>)>,
    /// Differences between merge keys by cost class.
    pub key_diversity: Vec<ClassDiversity>,
    /// Limit on executions in flight.
    pub slots_max: u32,
    /// The policy in effect.
    pub policy: DispatchPolicy,
}

/// Differences between the merge keys of one cost class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassDiversity {
    /// The cost class.
    pub class: CostClassId,
    /// Number of merge keys compared, at most 64.
    pub keys: usize,
    /// The parts that differ, sorted so that the part that alone separates most keys comes first.
    pub differs: Vec<DifferingPart>,
}

// === impl KeyDiversity ===

impl KeyDiversity {
    /// Records a key that was not interned before. A key that is too long, or exceeds the rate
    /// limit, is skipped.
    pub(super) fn on_new_key(&mut self, now: Tick, class: CostClassId, endpoint: &Endpoint, key: &[u8]) {
        if key.len() > KEY_BYTES_MAX || !self.is_within_rate(now) {
            return;
        }
        let whole = self.hasher.hash_one(key);
        self.uses += 1;
        if !self.classes.contains_key(&class) && self.classes.len() >= CLASSES_MAX {
            let oldest = self.classes.iter().min_by_key(|(_, (used, _))| *used).map(|(class, _)| *class);
            if let Some(oldest) = oldest {
                self.classes.remove(&oldest);
            }
        }
        let (used, recent) = self.classes.entry(class).or_default();
        *used = self.uses;
        if recent.contains(whole) {
            return;
        }
        let Some(parts) = endpoint.key_parts(key) else { return };
        let digest = |part: KeyPart<'_>| {
            let digest = self.hasher.hash_one((part.kind, &part.name, &part.value));
            (part.kind, part.name.into(), digest)
        };
        recent.push(whole, parts.into_iter().map(digest));
    }

    /// Counts a key, and returns `true` if the rate limit, a fixed-window counter, admits it.
    fn is_within_rate(&mut self, now: Tick) -> bool {
        let (since, count) = &mut self.span;
        if now.since(*since) >= SPAN {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count <= KEYS_PER_SPAN_MAX
    }

    /// Returns the differences by cost class. Classes with a single key are omitted.
    pub(super) fn report(&self) -> Vec<ClassDiversity> {
        let several = self.classes.iter().filter(|(_, (_, recent))| recent.len() > 1);
        let mut report: Vec<_> = several
            .map(|(class, (_, recent))| ClassDiversity {
                class: *class,
                keys: recent.len(),
                differs: recent.differing_parts(),
            })
            .collect();
        report.sort_unstable_by_key(|diversity| diversity.class);
        report
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use http::{Method, Request};

    use super::*;
    use crate::protocol::{
        DigestKey, MergeEligibility, PartKind, PathPattern, RouteProtocol, RouteRules, Routes, SharedHeaderRules,
    };

    const CLASS: CostClassId = CostClassId(3);

    fn endpoint() -> Arc<Endpoint> {
        let rules = RouteRules {
            merge_on_headers: vec!["x-request-id".parse().unwrap()],
            ..RouteRules::new(PathPattern::parse("/*").unwrap(), RouteProtocol::Auto)
        };
        let routes = Routes::new(Vec::new(), rules, SharedHeaderRules::default());
        routes.recognise(&Method::POST, "/v1/embeddings").unwrap()
    }

    /// Records a call with these headers and this body.
    fn observe_key(state: &mut KeyDiversity, endpoint: &Endpoint, target: &str, headers: &[(&str, &str)], body: &str) {
        let mut request = Request::post(target).header("host", "h").header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let call = endpoint.parse_call(&head, Bytes::copy_from_slice(body.as_bytes()), &DigestKey::from_bytes([1; 32]));
        let MergeEligibility::With(key) = &call.merge else { panic!("{:?}", call.merge) };
        state.on_new_key(later(state), CLASS, endpoint, key);
    }

    /// Returns an instant at which the rate limit has been reset.
    fn later(state: &KeyDiversity) -> Tick {
        state.span.0.after(SPAN)
    }

    fn reported_parts(state: &KeyDiversity) -> Vec<(PartKind, String, usize, usize)> {
        let report = state.report();
        let differs = report.into_iter().find(|class| class.class == CLASS).map(|class| class.differs);
        differs.into_iter().flatten().map(|d| (d.kind, d.name, d.values, d.keys_without)).collect()
    }

    const BODY: &str = r#"{"model": "m", "input": "x"}"#;
    const EMBED: &str = "/v1/embeddings";

    #[test]
    fn the_header_that_keeps_calls_apart_is_named_and_none_that_does_not() {
        let (mut state, endpoint) = (KeyDiversity::default(), endpoint());
        for user in 0..17 {
            let user = format!("u{user}");
            observe_key(
                &mut state,
                &endpoint,
                EMBED,
                &[("x-user", &user), ("x-version", "3"), ("user-agent", &user)],
                BODY,
            );
        }
        assert_eq!(reported_parts(&state), [(PartKind::Header, "x-user".to_owned(), 17, 1)]);
        assert!(!format!("{state:?}{:?}", state.report()).contains("u3"), "no value is stored");
    }

    #[test]
    fn every_part_of_a_key_has_a_name() {
        let two = |first: (&str, &[(&str, &str)], &str), second: (&str, &[(&str, &str)], &str)| {
            let (mut state, endpoint) = (KeyDiversity::default(), endpoint());
            for (target, headers, body) in [first, second] {
                observe_key(&mut state, &endpoint, target, headers, body);
            }
            reported_parts(&state)
        };
        let one = |kind, name: &str| vec![(kind, name.to_owned(), 2, 1)];
        let plain: (&str, &[(&str, &str)], &str) = (EMBED, &[], BODY);
        assert_eq!(two(plain, (EMBED, &[("x-a", "1")], BODY)), one(PartKind::Header, "x-a"));
        assert_eq!(two(plain, (EMBED, &[("authorization", "a")], BODY)), one(PartKind::Caller, ""));
        assert_eq!(two(plain, ("/v1/embeddings?v=2", &[], BODY)), one(PartKind::Query, ""));
        assert_eq!(two(plain, (EMBED, &[("accept", "text/plain")], BODY)), one(PartKind::Accept, ""));
        assert_eq!(two(plain, (EMBED, &[("x-request-id", "7")], BODY)), one(PartKind::OnHeader, "x-request-id"));
        let other = r#"{"model": "m", "input": "x", "dimensions": 8}"#;
        assert_eq!(two(plain, (EMBED, &[], other)), one(PartKind::Field, "/dimensions"));
        let same = r#"{"input":"x","model":"m"}"#;
        assert_eq!(two(plain, (EMBED, &[], same)), []);
    }

    #[test]
    fn key_parts_are_ordered_by_the_calls_they_would_join() {
        let (mut state, endpoint) = (KeyDiversity::default(), endpoint());
        for n in 0..12 {
            let (user, version) = (format!("u{n}"), format!("v{}", n % 2));
            observe_key(&mut state, &endpoint, EMBED, &[("x-user", &user), ("x-version", &version)], BODY);
        }
        let parts = reported_parts(&state);
        assert_eq!(parts[0], (PartKind::Header, "x-user".to_owned(), 12, 2));
        assert_eq!(parts[1], (PartKind::Header, "x-version".to_owned(), 2, 12));
    }

    #[test]
    fn the_number_of_kept_keys_and_classes_is_bounded() {
        let (mut state, endpoint) = (KeyDiversity::default(), endpoint());
        for n in 0..200 {
            let user = format!("u{n}");
            observe_key(&mut state, &endpoint, EMBED, &[("x-user", &user)], BODY);
        }
        assert_eq!(state.report()[0].keys, 64);
        for class in 0..100 {
            state.on_new_key(later(&state), CostClassId(class), &endpoint, b"no key");
        }
        assert!(state.classes.len() <= CLASSES_MAX);
    }

    #[test]
    fn keys_beyond_a_burst_and_long_keys_are_skipped() {
        let (mut state, endpoint) = (KeyDiversity::default(), endpoint());
        let now = Tick::from_millis(5000);
        for class in 0..=KEYS_PER_SPAN_MAX {
            state.on_new_key(now, CostClassId(class % 2), &endpoint, &class.to_be_bytes());
        }
        assert_eq!(state.uses, u64::from(KEYS_PER_SPAN_MAX));
        state.on_new_key(now.after(SPAN), CLASS, &endpoint, &[0; KEY_BYTES_MAX + 1]);
        assert_eq!(state.uses, u64::from(KEYS_PER_SPAN_MAX));
        state.on_new_key(now.after(SPAN), CLASS, &endpoint, b"short");
        assert_eq!(state.uses, u64::from(KEYS_PER_SPAN_MAX) + 1);
    }
}
