//! What lone answers show of a merge key: the headers, members and error bodies that are the same
//! for every call.
//!
//! A part of a shared answer that belongs to no single result may quote the input of any member of
//! the batch. It is repeated to all of them only where it is on the protocol's list, or is known to
//! be a constant, such as a version: several lone answers to different inputs have had the same
//! bytes there. Names, values and inputs are kept as keyed digests of 64 bits, never as text.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName};

use crate::batching::Tick;
use crate::protocol::call::{Call, Merge};

/// Lone answers to different inputs that have to agree: one alone shows nothing.
const RUN_FIRST: u32 = 2;
/// A value that changed has to agree this many times as often, up to the second number: it may
/// repeat by chance. While a server is replaced pod by pod, both versions answer in turns.
const RUN_GROWTH: u32 = 4;
const RUN_MAX: u32 = 1 << 6;
/// Undeclared members of a shared answer that may all be constants.
pub(crate) const MEMBERS_MAX: usize = 32;
/// Facts of one key: those members, and some headers.
const FACTS_MAX: usize = MEMBERS_MAX + 16;
/// Keys in each of two generations: with a full set of facts 2 MiB.
const KEYS_MAX: usize = 512;
/// Batches of a key that were isolated for parts that no lone answer has had, in a row, after which
/// its calls go alone: members that are named after inputs are never known.
const UNKNOWN_MAX: u32 = 3;
/// Different inputs whose answers have a part of the same name, from which on it is no input.
const NAME_INPUTS: u32 = 32;
/// How long calls of a key go alone whose answers differ outside the results: at first, and at most
/// after doubling. The defaults of `failure.quarantine`.
const APART: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));
/// Bytes of a call's items that tell two inputs apart. Longer equal beginnings count as one input,
/// which delays a conclusion and never makes a wrong one.
const INPUT_MAX: usize = 16 * 1024;

/// The facts that lone answers have shown, for each merge key. Shared by all connections.
#[derive(Debug, Default)]
pub struct LoneEvidence {
    state: RandomState,
    keys: Mutex<KeyCache>,
}

/// Whether parts of a shared answer are constants of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// All of them are.
    Constant,
    /// Lone answers have not shown it yet.
    Unknown,
    /// One is not: lone answers differ in it, or the shared one differs from them. Its place, where
    /// lone answers to different inputs have a part of this name: then the name is no input.
    Varies(Option<usize>),
}

/// The facts of the keys used last, in two generations: when the younger one is full it replaces
/// the older.
#[derive(Debug, Default)]
struct KeyCache {
    young: HashMap<u64, KeyFacts>,
    old: HashMap<u64, KeyFacts>,
}

/// The facts of one key.
#[derive(Debug, Default)]
struct KeyFacts {
    facts: Vec<Fact>,
    /// Members of lone answers are looked at: a shared answer had one that is not declared.
    is_watched: bool,
    /// Batches that were isolated for parts that were not known although lone answers came since the
    /// one before; one less for each that was split.
    unknown: u32,
    /// A lone answer came since the last batch.
    is_fed: bool,
    apart_until: Tick,
    apart: Duration,
}

/// A part of lone answers; digests.
#[derive(Debug)]
struct Fact {
    name: u64,
    value: u64,
    /// The input of the last answer that counted.
    input: u64,
    /// Answers in a row to different inputs that had this value, and how many are needed.
    run: u32,
    needed: u32,
    /// Changes of the input of the answers that have a part of this name.
    inputs: u32,
}

/// A part of an answer that belongs to no single result.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part<'a> {
    /// All values of a header.
    Header(&'a HeaderName, &'a HeaderMap),
    /// A member of the body: the names on the way to it, and its bytes.
    Member(&'a [u8], &'a [u8]),
    /// The body of an error of this status.
    Body(StatusCode, &'a [u8]),
}

// === impl LoneEvidence ===

impl LoneEvidence {
    /// Records parts of an answer that a call got alone.
    pub(crate) fn observe<'a>(&self, call: &Call, parts: impl Iterator<Item = Part<'a>>) {
        let Some(key) = self.key(call) else { return };
        let mut parts = parts.map(|part| self.digests(part)).peekable();
        if parts.peek().is_none() {
            return;
        }
        let mut keys = self.lock();
        let known = keys.entry(key);
        let mut input = None;
        for (name, value) in parts {
            known.observe(name, value, || *input.get_or_insert_with(|| self.input(call)));
        }
    }

    /// Returns `true` if a part of an answer to a shared call is as in lone answers of its key.
    pub(crate) fn knows(&self, call: &Call, part: Part<'_>) -> bool {
        let Some(key) = self.key(call) else { return false };
        let (name, value) = self.digests(part);
        self.lock().get(key).is_some_and(|known| known.standing(name, value) == Standing::Constant)
    }

    /// Judges the undeclared members of a shared answer to calls of one key, of which `call` is one.
    /// From then on the members of its lone answers are looked at. Where members are not sent again
    /// (`isolates` is false), one batch is enough to have calls go alone.
    pub(crate) fn judge<'a>(
        &self,
        now: Tick,
        call: &Call,
        isolates: bool,
        members: impl Iterator<Item = Part<'a>>,
    ) -> Standing {
        let Some(key) = self.key(call) else { return Standing::Unknown };
        let mut keys = self.lock();
        let known = keys.entry(key);
        known.is_watched = true;
        let mut standing = Standing::Constant;
        for (place, part) in members.enumerate() {
            let (name, value) = self.digests(part);
            match known.standing(name, value) {
                _ if place >= MEMBERS_MAX => standing = Standing::Varies(None),
                Standing::Constant => {}
                Standing::Unknown => standing = Standing::Unknown,
                Standing::Varies(_) => {
                    standing = Standing::Varies(known.facts.iter().any(|fact| fact.names(name)).then_some(place));
                }
            }
            if matches!(standing, Standing::Varies(_)) {
                break;
            }
        }
        known.conclude(now, standing, if isolates { UNKNOWN_MAX } else { 1 });
        standing
    }

    /// Returns `true` if the members of lone answers of this key are to be observed.
    pub(crate) fn is_watched(&self, call: &Call) -> bool {
        self.key(call).is_some_and(|key| self.lock().get(key).is_some_and(|known| known.is_watched))
    }

    /// Returns `true` while calls of this key go alone since their answers differ outside the
    /// results.
    pub fn is_apart(&self, now: Tick, call: &Call) -> bool {
        let Some(key) = self.key(call) else { return false };
        let keys = self.lock();
        keys.get(key).is_some_and(|known| now < known.apart_until)
    }

    fn key(&self, call: &Call) -> Option<u64> {
        match &call.merge {
            Merge::With(key) => Some(self.digest(key)),
            Merge::Alone(_) => None,
        }
    }

    /// A digest of the items of a call.
    fn input(&self, call: &Call) -> u64 {
        let mut hasher = self.state.build_hasher();
        let mut left = INPUT_MAX;
        for item in call.found.slots.iter().flat_map(|slot| &slot.items) {
            let bytes = item.of(&call.body);
            let bytes = bytes.get(..left).unwrap_or(bytes);
            bytes.hash(&mut hasher);
            left -= bytes.len();
        }
        hasher.finish()
    }

    /// Digests of the name and of the value.
    fn digests(&self, part: Part<'_>) -> (u64, u64) {
        match part {
            Part::Header(name, headers) => {
                let mut value = self.state.build_hasher();
                headers.get_all(name).iter().for_each(|one| one.as_bytes().hash(&mut value));
                (self.digest((0, name.as_str())), value.finish())
            }
            Part::Member(path, value) => (self.digest((1, path)), self.digest(value)),
            Part::Body(status, body) => (self.digest((2, status.as_u16())), self.digest(body)),
        }
    }

    fn digest(&self, value: impl Hash) -> u64 {
        self.state.hash_one(value)
    }

    fn lock(&self) -> MutexGuard<'_, KeyCache> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl KeyCache ===

impl KeyCache {
    fn get(&self, key: u64) -> Option<&KeyFacts> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    fn entry(&mut self, key: u64) -> &mut KeyFacts {
        if !self.young.contains_key(&key) {
            let known = self.old.remove(&key).unwrap_or_default();
            if self.young.len() >= KEYS_MAX {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(key, known);
        }
        self.young.entry(key).or_default()
    }
}

// === impl KeyFacts ===

impl KeyFacts {
    fn observe(&mut self, name: u64, value: u64, input: impl FnOnce() -> u64) {
        self.is_fed = true;
        if let Some(fact) = self.facts.iter_mut().find(|fact| fact.name == name) {
            return fact.observe(value, input);
        }
        if self.facts.len() >= FACTS_MAX {
            self.facts.remove(0);
        }
        self.facts.push(Fact { name, value, input: input(), run: 1, needed: RUN_FIRST, inputs: 0 });
    }

    fn standing(&self, name: u64, value: u64) -> Standing {
        let Some(fact) = self.facts.iter().find(|fact| fact.name == name) else { return Standing::Unknown };
        let (settled, same) = (fact.run >= fact.needed, fact.value == value);
        match (settled, same) {
            (true, true) => Standing::Constant,
            (true, false) => Standing::Varies(None),
            (false, _) if fact.needed > RUN_FIRST => Standing::Varies(None),
            (false, _) => Standing::Unknown,
        }
    }

    /// Takes the verdict on a batch. Of several in flight that fail together one counts.
    fn conclude(&mut self, now: Tick, standing: Standing, unknown_max: u32) {
        let is_varying = matches!(standing, Standing::Varies(_));
        match standing {
            Standing::Constant => {
                self.unknown = self.unknown.saturating_sub(1);
                self.apart = Duration::ZERO;
            }
            Standing::Unknown if self.is_fed || self.unknown == 0 => self.unknown += 1,
            Standing::Unknown | Standing::Varies(_) => {}
        }
        self.is_fed = false;
        if now >= self.apart_until && (is_varying || self.unknown >= unknown_max) {
            self.unknown = 0;
            self.set_apart(now);
        }
    }

    fn set_apart(&mut self, now: Tick) {
        self.apart = (self.apart * 2).clamp(APART.0, APART.1);
        self.apart_until = now.after(self.apart);
    }
}

// === impl Fact ===

impl Fact {
    /// Returns `true` if this is the fact of that name, which is no input.
    fn names(&self, name: u64) -> bool {
        self.inputs >= NAME_INPUTS && self.name == name
    }

    fn observe(&mut self, value: u64, input: impl FnOnce() -> u64) {
        if value == self.value && self.run >= self.needed {
            return;
        }
        let input = input();
        let is_other = input != self.input;
        self.inputs = self.inputs.saturating_add(u32::from(is_other));
        if value != self.value {
            self.needed = self.needed.saturating_mul(RUN_GROWTH).min(RUN_MAX);
            (self.value, self.run) = (value, 1);
        } else if is_other {
            self.run += 1;
        }
        self.input = input;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The standing of value 7 after these values of lone answers, each to another input.
    fn standing(values: &[u64]) -> Standing {
        let mut facts = KeyFacts::default();
        values.iter().zip(0..).for_each(|(value, input)| facts.observe(1, *value, || input));
        facts.standing(1, 7)
    }

    #[test]
    fn a_constant_is_what_several_lone_answers_have() {
        assert_eq!(standing(&[]), Standing::Unknown);
        assert_eq!(standing(&[7]), Standing::Unknown);
        assert_eq!(standing(&[7, 7]), Standing::Constant);
        assert_eq!(standing(&[8]), Standing::Unknown);
        assert_eq!(standing(&[8, 8]), Standing::Varies(None), "alone it is another");
        assert_eq!(standing(&[8, 7, 7]), Standing::Varies(None), "it may repeat by chance");
        assert_eq!(standing(&[8, 7, 7, 7, 7, 7, 7, 7, 7]), Standing::Constant, "a server of a new version");
    }

    #[test]
    fn answers_to_one_input_show_nothing() {
        let mut facts = KeyFacts::default();
        (0..9).for_each(|_| facts.observe(1, 7, || 3));
        assert_eq!(facts.standing(1, 7), Standing::Unknown);
    }

    #[test]
    fn facts_and_keys_are_bounded() {
        let mut cache = KeyCache::default();
        for key in 0..10_000 {
            (0..100).for_each(|name| cache.entry(key).observe(name, 7, || 1));
        }
        assert!(cache.young.len() + cache.old.len() <= 2 * KEYS_MAX);
        assert!(cache.entry(9_999).facts.len() <= FACTS_MAX);
        assert!(cache.get(9_999).is_some() && cache.get(9_500).is_some() && cache.get(1).is_none());
    }
}
