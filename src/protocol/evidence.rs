//! Evidence from unbatched responses: the headers, members and error bodies that are the same for
//! every call of a merge key.
//!
//! A part of a batch response that belongs to no single result may quote the input of any member.
//! It is copied to all members only if the protocol or the policy declares it, or if it is known to
//! be a constant, such as a version: several unbatched responses to different inputs had the same
//! bytes there. Names, values and inputs are kept as keyed digests of 64 bits, never as text.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName};

use crate::batching::Tick;
use crate::call::{Call, MergeEligibility};

/// Number of unbatched responses to different inputs that have to agree. A single response proves
/// nothing.
const RUN_FIRST: u32 = 2;
/// The same for a member with few possible values: a flag, a number, or a short word. In a batch it may
/// be that of any member, such as a mark that one of the texts was cut off, and inputs often agree in
/// it by chance.
const RUN_FLAG: u32 = 1 << 6;
const RUN_WORD: u32 = 1 << 4;
/// Maximum length of such a word in bytes, with its quotes.
const WORD_MAX: usize = 10;
/// Factor by which the required number grows after each change of a value, up to `RUN_MAX`, because
/// a value may repeat by chance. During a rolling update, responses of the old and the new version
/// alternate.
const RUN_GROWTH: u32 = 4;
const RUN_MAX: u32 = 1 << 6;
/// Maximum number of undeclared members of a batch response.
pub(crate) const MEMBERS_MAX: usize = 32;
/// Maximum number of facts for one key: those members and some headers.
const FACTS_MAX: usize = MEMBERS_MAX + 16;
/// Maximum number of keys in each of the two generations. With a full set of facts, this is 2 MiB.
const KEYS_MAX: usize = 512;
/// Maximum number of consecutive isolated batches of a key with undeclared parts that occur in no
/// unbatched response. After that, calls of the key are sent unbatched: members that are named
/// after inputs never become known.
const UNKNOWN_MAX: u32 = 3;
/// Number of changes of the input after which the name of a part that occurs in all the responses
/// is not considered an input. Before that it is not logged.
const NAME_INPUTS: u32 = 32;
/// Initial and maximum time for which calls of a key are sent unbatched because their responses
/// differ outside the results. The time doubles on each repetition. Equal to the defaults of
/// `failure.quarantine`.
const UNBATCHED_TIME: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));
/// Number of bytes of a call's items that distinguish two inputs. Longer inputs with the same
/// beginning count as one, which may delay a conclusion but never makes a wrong one.
const INPUT_MAX: usize = 16 * 1024;

/// Facts observed in unbatched responses, by merge key. Shared by all connections.
#[derive(Debug, Default)]
pub struct UnbatchedEvidence {
    state: RandomState,
    keys: Mutex<KeyCache>,
}

/// Result of a comparison between parts of a batch response and the constants of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Constancy {
    /// All parts are constants.
    Constant,
    /// Unbatched responses do not yet prove it.
    Unknown,
    /// A part is not constant: unbatched responses differ in it, or the batch response differs from
    /// them. Contains the index of the part if unbatched responses to different inputs have a part
    /// of this name, so that the name cannot be an input.
    Varies(Option<usize>),
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

/// A part of a response as digests.
#[derive(Debug, Clone, Copy)]
struct PartDigest {
    name: u64,
    value: u64,
    /// The part is a member of the body.
    is_member: bool,
    /// Number of unbatched responses to different inputs that have to agree.
    needed: u32,
}

/// The facts of one merge key.
#[derive(Debug, Default)]
struct KeyFacts {
    facts: Vec<PartFact>,
    /// Input of the last unbatched response, and number of changes of the input. Counted for calls
    /// of guarded classes only.
    input: u64,
    inputs: u32,
    /// Members of unbatched responses are observed, because a batch response had an undeclared one.
    is_watched: bool,
    /// Number of batches isolated for unknown parts although an unbatched response arrived since
    /// the previous batch. Each batch that is split decrements it.
    unknown: u32,
    /// An unbatched response arrived since the last batch.
    has_new_answer: bool,
    apart_until: Tick,
    apart: Duration,
}

/// A part observed in unbatched responses, as digests.
#[derive(Debug)]
struct PartFact {
    name: u64,
    value: u64,
    is_member: bool,
    /// Input of the last response that was counted.
    input: u64,
    /// Number of consecutive responses to different inputs with this value, and the number
    /// required.
    run: u32,
    needed: u32,
    /// The value has changed.
    has_changed: bool,
    /// Number of changes of the input among the responses that have a part of this name.
    inputs: u32,
}

/// A part of a response that belongs to no single result.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AnswerPart<'a> {
    /// All values of a header.
    Header(&'a HeaderName, &'a HeaderMap),
    /// A member of the body: the path to it, and its bytes.
    Member(&'a [u8], &'a [u8]),
    /// The body of an error response with this status.
    Body(StatusCode, &'a [u8]),
}

/// Returns the number of unbatched responses to different inputs that have to agree in the value of a
/// member.
fn agreement_needed(value: &[u8]) -> u32 {
    let is_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    match value {
        b"" => RUN_FIRST,
        b"true" | b"false" | b"null" => RUN_FLAG,
        [b'"', ..] if value.len() <= WORD_MAX => RUN_WORD,
        _ if value.iter().all(is_number) => RUN_FLAG,
        _ => RUN_FIRST,
    }
}

// === impl UnbatchedEvidence ===

impl UnbatchedEvidence {
    /// Records parts of the response to an unbatched call. `guards`: the call may not be retried.
    pub(crate) fn observe<'a>(&self, call: &Call, guards: bool, parts: impl Iterator<Item = AnswerPart<'a>>) {
        let Some(key) = self.key(call) else { return };
        let parts: Vec<PartDigest> = parts.map(|part| self.digests(part)).collect();
        let class = guards.then(|| self.digest(&call.cost_class));
        let mut keys = self.lock();
        if let Some(class) = class.filter(|_| parts.iter().any(|part| part.is_member)) {
            keys.guard(class);
        }
        let is_guarded = class.is_some_and(|class| keys.guarded.contains(&class));
        if parts.is_empty() && !is_guarded {
            // A response without such parts is evidence too: a part of a batch response is not in it.
            keys.get_mut(key).into_iter().for_each(|known| known.has_new_answer = true);
            return;
        }
        let known = keys.entry(key);
        known.has_new_answer = true;
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
        let mut standing = Constancy::Constant;
        for (place, part) in members.enumerate() {
            // A part that varies decides at once, and so does an excess of parts. An unknown part
            // leaves the result open.
            let part = self.digests(part);
            match known.standing(part) {
                _ if place >= MEMBERS_MAX => standing = Constancy::Varies(None),
                Constancy::Constant => {}
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
        known.on_batch(now, standing, if isolates { UNKNOWN_MAX } else { 1 });
        standing
    }

    /// Returns `true` if the members of unbatched responses of this key are observed.
    pub(crate) fn is_watched(&self, call: &Call) -> bool {
        self.key(call).is_some_and(|key| self.lock().get(key).is_some_and(|known| known.is_watched))
    }

    /// Returns `true` while calls of this key are sent unbatched because their responses differ
    /// outside the results, or may do so and the members of a batch could not be retried.
    pub fn is_unbatched(&self, now: Tick, call: &Call) -> bool {
        let Some(key) = self.key(call) else { return false };
        let keys = self.lock();
        let known = keys.get(key);
        known.is_some_and(|known| now < known.apart_until)
            || !keys.guarded.is_empty()
                && keys.guarded.contains(&self.digest(&call.cost_class))
                && !known.is_some_and(KeyFacts::is_settled)
    }

    fn key(&self, call: &Call) -> Option<u64> {
        match &call.merge {
            MergeEligibility::With(key) => Some(self.digest(key)),
            MergeEligibility::Alone(_) => None,
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
        let (name, value) = match part {
            AnswerPart::Header(name, headers) => {
                let mut value = self.state.build_hasher();
                headers.get_all(name).iter().for_each(|one| one.as_bytes().hash(&mut value));
                (self.digest((0, name.as_str())), value.finish())
            }
            AnswerPart::Member(path, value) => (self.digest((1, path)), self.digest(value)),
            AnswerPart::Body(status, body) => (self.digest((2, status.as_u16())), self.digest(body)),
        };
        let needed = match part {
            AnswerPart::Member(_, value) => agreement_needed(value),
            AnswerPart::Header(..) | AnswerPart::Body(..) => RUN_FIRST,
        };
        PartDigest { name, value, is_member: matches!(part, AnswerPart::Member(..)), needed }
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
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(key, known);
        }
        self.young.entry(key).or_default()
    }
}

// === impl KeyFacts ===

impl KeyFacts {
    fn observe(&mut self, part: PartDigest, input: impl FnOnce() -> u64) {
        let PartDigest { name, value, is_member, needed } = part;
        if let Some(fact) = self.facts.iter_mut().find(|fact| fact.name == name) {
            return fact.observe(value, needed, input);
        }
        if self.facts.len() >= FACTS_MAX {
            self.facts.remove(0);
        }
        let input = input();
        self.facts.push(PartFact { name, value, is_member, input, run: 1, needed, has_changed: false, inputs: 0 });
    }

    fn on_input(&mut self, input: u64) {
        self.inputs = self.inputs.saturating_add(u32::from(input != self.input));
        self.input = input;
    }

    /// Returns `true` if unbatched responses to several inputs agree in all of their members.
    fn is_settled(&self) -> bool {
        let mut members = self.facts.iter().filter(|fact| fact.is_member);
        self.inputs >= RUN_FIRST && members.all(|fact| fact.run >= fact.needed)
    }

    fn standing(&self, PartDigest { name, value, .. }: PartDigest) -> Constancy {
        let Some(fact) = self.facts.iter().find(|fact| fact.name == name) else { return Constancy::Unknown };
        // A fact that is not settled varies if its value has changed before. Otherwise it has only
        // been observed too rarely.
        let (settled, same) = (fact.run >= fact.needed, fact.value == value);
        match (settled, same) {
            (true, true) => Constancy::Constant,
            (true, false) => Constancy::Varies(None),
            (false, _) if fact.has_changed => Constancy::Varies(None),
            (false, _) => Constancy::Unknown,
        }
    }

    /// Updates the key after a batch. Of several batches in flight that fail together, only one is
    /// counted.
    fn on_batch(&mut self, now: Tick, standing: Constancy, unknown_max: u32) {
        let is_varying = matches!(standing, Constancy::Varies(_));
        match standing {
            Constancy::Constant => {
                self.unknown = self.unknown.saturating_sub(1);
                self.apart = Duration::ZERO;
            }
            Constancy::Unknown if self.has_new_answer || self.unknown == 0 => self.unknown += 1,
            Constancy::Unknown | Constancy::Varies(_) => {}
        }
        self.has_new_answer = false;
        // Batches that were in flight before do not extend the time of a key that is already sent
        // unbatched.
        if now >= self.apart_until && (is_varying || self.unknown >= unknown_max) {
            self.unknown = 0;
            self.suspend_merging(now);
        }
    }

    fn suspend_merging(&mut self, now: Tick) {
        self.apart = (self.apart * 2).clamp(UNBATCHED_TIME.0, UNBATCHED_TIME.1);
        self.apart_until = now.after(self.apart);
    }
}

// === impl PartFact ===

impl PartFact {
    /// Returns `true` if this is the fact of that name and the name cannot be an input.
    fn is_known_name(&self, name: u64) -> bool {
        self.inputs >= NAME_INPUTS && self.name == name
    }

    fn observe(&mut self, value: u64, needed: u32, input: impl FnOnce() -> u64) {
        if value == self.value && self.run >= self.needed {
            return;
        }
        let input = input();
        let is_other = input != self.input;
        self.inputs = self.inputs.saturating_add(u32::from(is_other));
        if value != self.value {
            self.needed = self.needed.saturating_mul(RUN_GROWTH).min(RUN_MAX).max(needed);
            (self.value, self.run, self.has_changed) = (value, 1, true);
        } else if is_other {
            self.run += 1;
        }
        self.input = input;
    }
}

#[cfg(test)]
mod tests;
