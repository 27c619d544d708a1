//! Evidence from unbatched responses: the headers, members and error bodies that are the same for
//! every call of a merge key.
//!
//! A part of a batch response that belongs to no single result may quote the input of any member.
//! It is copied to all members only if the protocol or the policy declares it, or if it is known to
//! be a constant, such as a version: several unbatched responses to different inputs had the same
//! bytes there. Names, values and inputs are kept as keyed digests of 64 bits, never as text.

mod facts;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use http::header::{HeaderMap, HeaderName};

pub(crate) use self::facts::Constancy;
use self::facts::{KeyFacts, PartDigest};
use crate::batching::Tick;
use crate::call::{Call, MergeEligibility};

/// Number of unbatched responses to different inputs that have to agree. A single response proves
/// nothing, and more are needed for a short word, and for a flag or a number.
pub(crate) const AGREEMENT_MIN: u32 = 2;
pub(crate) const AGREEMENT_WORD: u32 = 1 << 4;
pub(crate) const AGREEMENT_FLAG: u32 = 1 << 6;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// Maximum number of undeclared members of a batch response.
pub(crate) const MEMBERS_MAX: usize = 32;
/// Maximum number of keys in each of the two generations. With a full set of facts, this is 2 MiB.
const KEYS_MAX: usize = 512;
/// Number of isolated batches of a key, less the batches that were split, after which calls of the key
/// are sent unbatched: their parts are in no unbatched response, or differ from it. A part that is
/// known to vary counts twice.
const ISOLATED_MAX: u32 = 3;
/// Number of bytes of a call's items that distinguish two inputs. Longer inputs with the same
/// beginning count as one, which may delay a conclusion but never makes a wrong one.
const INPUT_MAX: usize = 16 * 1024;

/// Facts observed in unbatched responses, by merge key. Shared by all connections.
#[derive(Debug, Default)]
pub struct UnbatchedEvidence {
    state: RandomState,
    keys: Mutex<KeyCache>,
    /// A batch of some key had an undeclared part.
    has_watched: AtomicBool,
    /// Wall-clock time at tick 0 in seconds since the Unix epoch, if it is known.
    epoch: Option<u64>,
}

/// Facts of the most recently used keys, in two generations that approximate an LRU cache: when the
/// young generation is full, it replaces the old one.
#[derive(Debug, Default)]
struct KeyCache {
    young: HashMap<u64, KeyFacts>,
    old: HashMap<u64, KeyFacts>,
    /// Cost classes of calls that may not be retried and whose responses have undeclared members. A
    /// key of such a class is merged only once its members are known to be constant, because the
    /// members of a batch that cannot be split would fail. At most [`KEYS_MAX`] entries.
    guarded: HashSet<u64>,
}

/// Properties of the response to an unbatched call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObservedAnswer {
    /// The call may not be retried.
    pub(crate) guards: bool,
    /// The members of the body are among the parts.
    pub(crate) is_complete: bool,
}

/// A part of a response that belongs to no single result.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AnswerPart<'a> {
    /// All values of a header.
    Header(&'a HeaderName, &'a HeaderMap),
    /// A member of the body: the path to it, its bytes, and the number of unbatched responses to
    /// different inputs that have to agree in it.
    Member { path: &'a [u8], value: &'a [u8], agreement: u32 },
    /// The body of an error response with this status.
    Body(StatusCode, &'a [u8]),
}

// === impl UnbatchedEvidence ===

impl UnbatchedEvidence {
    /// Creates an empty set of evidence. `now` is the tick at a wall-clock time in seconds since the
    /// Unix epoch.
    #[must_use]
    pub fn new(now: Tick, wall_seconds: u64) -> Self {
        Self { epoch: wall_seconds.checked_sub(now.0 / NANOS_PER_SECOND), ..Self::default() }
    }

    /// Returns the wall-clock time at a tick, in seconds since the Unix epoch, if it is known.
    pub(crate) fn wall_time(&self, now: Tick) -> Option<u64> {
        self.epoch.map(|epoch| epoch.saturating_add(now.0 / NANOS_PER_SECOND))
    }

    /// Records parts of the response to an unbatched call.
    pub(crate) fn observe<'a>(
        &self,
        call: &Call,
        ObservedAnswer { guards, is_complete }: ObservedAnswer,
        parts: impl Iterator<Item = AnswerPart<'a>>,
    ) {
        let Some(key) = self.key(call) else { return };
        let parts: Vec<PartDigest> = parts.map(|part| self.digests(part)).collect();
        let class = guards.then(|| self.digest(&call.cost_class));
        let mut keys = self.lock();
        if let Some(class) = class.filter(|_| parts.iter().any(|part| part.is_member)) {
            keys.guard(class);
        }
        let is_guarded = class.is_some_and(|class| keys.guarded.contains(&class));
        // A response without such parts is evidence too: a part of a batch response is not in it.
        let known = keys.entry(key);
        known.on_answer(is_complete);
        let mut input = None;
        let mut input = || *input.get_or_insert_with(|| self.input(call));
        if is_guarded {
            known.on_input(input());
        }
        for part in parts {
            known.observe(part, &mut input);
        }
    }

    /// Returns `true` if a part of a batch response equals that of unbatched responses of its key.
    pub(crate) fn is_constant(&self, call: &Call, part: AnswerPart<'_>) -> bool {
        let Some(key) = self.key(call) else { return false };
        let part = self.digests(part);
        self.lock().get(key).is_some_and(|known| known.standing(part) == Constancy::Constant)
    }

    /// Checks the undeclared members of a batch response, where `call` is one of the members of the
    /// batch. Afterwards, members of unbatched responses of the key are observed as well. If the
    /// members of a batch are not retried (`isolates` is false), a single batch of unknown parts is
    /// enough to send calls of the key unbatched.
    pub(crate) fn check_members<'a>(
        &self,
        now: Tick,
        call: &Call,
        isolates: bool,
        members: impl Iterator<Item = AnswerPart<'a>>,
    ) -> Constancy {
        let Some(key) = self.key(call) else { return Constancy::Unknown };
        let mut keys = self.lock();
        if !isolates {
            keys.guard(self.digest(&call.cost_class));
        }
        let known = keys.entry(key);
        known.is_watched = true;
        self.has_watched.store(true, Ordering::Relaxed);
        let mut standing = Constancy::Constant;
        for (place, part) in members.enumerate() {
            // A part that varies decides at once, and so does an excess of parts. An unknown part
            // leaves the result open.
            let part = self.digests(part);
            match known.standing(part) {
                _ if place >= MEMBERS_MAX => standing = Constancy::Varies(None),
                Constancy::Constant => {}
                Constancy::Learning if standing == Constancy::Unknown => {}
                Constancy::Learning => standing = Constancy::Learning,
                Constancy::Unknown => standing = Constancy::Unknown,
                Constancy::Varies(_) => {
                    standing = Constancy::Varies(
                        known.facts.iter().any(|fact| fact.is_known_name(part.name)).then_some(place),
                    );
                }
            }
            if matches!(standing, Constancy::Varies(_)) {
                break;
            }
        }
        known.on_batch(now, standing, isolated_max(isolates));
        standing
    }

    /// Records a batch whose response had no undeclared members.
    pub(crate) fn on_plain_batch(&self, now: Tick, call: &Call) {
        if !self.has_watched.load(Ordering::Relaxed) {
            return;
        }
        let Some(key) = self.key(call) else { return };
        if let Some(known) = self.lock().get_mut(key).filter(|known| known.is_watched) {
            known.on_batch(now, Constancy::Constant, ISOLATED_MAX);
        }
    }

    /// Records a batch in which the results of all members had items of others.
    pub(crate) fn on_quote(&self, now: Tick, call: &Call, isolates: bool) {
        let Some(key) = self.key(call) else { return };
        self.has_watched.store(true, Ordering::Relaxed);
        let mut keys = self.lock();
        let known = keys.entry(key);
        known.is_watched = true;
        known.on_batch(now, Constancy::Unknown, isolated_max(isolates));
    }

    /// Returns `true` if the members of unbatched responses of this key are observed: those of the
    /// first ones, and of all once a batch response had an undeclared member.
    pub(crate) fn is_observed(&self, call: &Call) -> bool {
        self.key(call).is_some_and(|key| self.lock().get(key).is_none_or(KeyFacts::is_observed))
    }

    /// Returns `true` while calls of this key are sent unbatched because their responses differ
    /// outside the results, or may do so and the members of a batch could not be retried.
    pub fn is_unbatched(&self, now: Tick, call: &Call) -> bool {
        let Some(key) = self.key(call) else { return false };
        let keys = self.lock();
        let known = keys.get(key);
        known.is_some_and(|known| now < known.unbatched_until)
            || !keys.guarded.is_empty()
                && keys.guarded.contains(&self.digest(&call.cost_class))
                && !known.is_some_and(KeyFacts::is_settled)
    }

    fn key(&self, call: &Call) -> Option<u64> {
        match &call.merge {
            MergeEligibility::With(key) => Some(self.digest(key)),
            MergeEligibility::Unbatched(_) => None,
        }
    }

    /// Returns a digest of the items of a call.
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

    /// Returns the digests of the name and of the value of a part.
    fn digests(&self, part: AnswerPart<'_>) -> PartDigest {
        let (is_member, needed) = match part {
            AnswerPart::Member { agreement, .. } => (true, agreement),
            AnswerPart::Header(..) | AnswerPart::Body(..) => (false, AGREEMENT_MIN),
        };
        let (name, value) = match part {
            AnswerPart::Header(name, headers) => {
                let mut value = self.state.build_hasher();
                headers.get_all(name).iter().for_each(|one| one.as_bytes().hash(&mut value));
                (self.digest((0, name.as_str())), value.finish())
            }
            AnswerPart::Member { path, value, .. } => (self.digest((1, path)), self.digest(value)),
            AnswerPart::Body(status, body) => (self.digest((2, status.as_u16())), self.digest(body)),
        };
        PartDigest { name, value, is_member, needed }
    }

    fn digest(&self, value: impl Hash) -> u64 {
        self.state.hash_one(value)
    }

    fn lock(&self) -> MutexGuard<'_, KeyCache> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of isolated batches after which calls of a key are sent unbatched.
const fn isolated_max(isolates: bool) -> u32 {
    if isolates { ISOLATED_MAX } else { 1 }
}

// === impl KeyCache ===

impl KeyCache {
    fn get(&self, key: u64) -> Option<&KeyFacts> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    fn get_mut(&mut self, key: u64) -> Option<&mut KeyFacts> {
        self.young.get_mut(&key).or_else(|| self.old.get_mut(&key))
    }

    fn guard(&mut self, class: u64) {
        if self.guarded.len() >= KEYS_MAX {
            self.guarded.clear();
        }
        self.guarded.insert(class);
    }

    fn entry(&mut self, key: u64) -> &mut KeyFacts {
        if !self.young.contains_key(&key) {
            let known = self.old.remove(&key).unwrap_or_default();
            if self.young.len() >= KEYS_MAX {
                let dropped = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
                // Callers may use any number of keys. Those with batches that were isolated are kept.
                self.young.extend(dropped.into_iter().filter(|(_, known)| known.is_watched).take(KEYS_MAX / 2));
            }
            self.young.insert(key, known);
        }
        self.young.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests;
