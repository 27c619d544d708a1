//! The facts observed in unbatched responses of one merge key, as digests.

use std::time::Duration;

use super::{AGREEMENT_FLAG, AGREEMENT_MIN, MEMBERS_MAX};
use crate::batching::Tick;

/// Factor by which the required number grows after each change of a value, up to `RUN_MAX`, because
/// a value may repeat by chance. During a rolling update, responses of the old and the new version
/// alternate.
const RUN_GROWTH: u32 = 4;
const RUN_MAX: u32 = AGREEMENT_FLAG;
/// Maximum number of facts for one key: those members and some headers.
pub(super) const FACTS_MAX: usize = MEMBERS_MAX + 16;
/// Number of changes of the input after which the name of a part that occurs in all the responses
/// is not considered an input. Before that it is not logged.
pub(super) const NAME_INPUTS: u32 = 32;
/// Initial and maximum time for which calls of a key are sent unbatched because their responses
/// differ outside the results. The time doubles on each repetition. Equal to the defaults of
/// `failure.quarantine`.
const UNBATCHED_TIME: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));

/// Result of a comparison between parts of a batch response and the constants of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Constancy {
    /// All parts are constants.
    Constant,
    /// Unbatched responses do not yet prove it.
    Unknown,
    /// All unbatched responses agree with it, and more of them are needed.
    Learning,
    /// A part is not constant: unbatched responses differ in it, or the batch response differs from
    /// them. Contains the index of the part if unbatched responses to different inputs have a part
    /// of this name, so that the name cannot be an input.
    Varies(Option<usize>),
}

/// A part of a response as digests.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartDigest {
    pub(super) name: u64,
    pub(super) value: u64,
    /// The part is a member of the body.
    pub(super) is_member: bool,
    /// Number of unbatched responses to different inputs that have to agree.
    pub(super) needed: u32,
}

/// The facts of one merge key.
#[derive(Debug, Default)]
pub(super) struct KeyFacts {
    pub(super) facts: Vec<PartFact>,
    /// Input of the last unbatched response, and number of changes of the input. Counted for calls
    /// of guarded classes only.
    input: u64,
    inputs: u32,
    /// Members of unbatched responses are observed, because a batch response had an undeclared one.
    pub(super) is_watched: bool,
    /// Number of batches isolated for their parts although an unbatched response arrived since the
    /// previous batch. A part that varies counts twice, and each batch that is split decrements it.
    isolated: u32,
    /// Number of unbatched responses, up to [`AGREEMENT_FLAG`].
    answers: u32,
    /// An unbatched response arrived since the last batch.
    has_new_answer: bool,
    /// Number of unbatched responses that agreed, at the last batch with a part to be learned.
    agreed: u32,
    pub(super) unbatched_until: Tick,
    unbatched_time: Duration,
}

/// A part observed in unbatched responses, as digests.
#[derive(Debug)]
pub(super) struct PartFact {
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

// === impl KeyFacts ===

impl KeyFacts {
    pub(super) fn observe(&mut self, part: PartDigest, input: impl FnOnce() -> u64) {
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

    /// Records an unbatched response. `is_complete`: its members were observed.
    pub(super) fn on_answer(&mut self, is_complete: bool) {
        self.has_new_answer = true;
        self.answers = self.answers.saturating_add(u32::from(is_complete)).min(AGREEMENT_FLAG);
    }

    /// Returns `true` if the members of further unbatched responses are evidence.
    pub(super) fn is_observed(&self) -> bool {
        self.is_watched || self.answers < AGREEMENT_FLAG
    }

    pub(super) fn on_input(&mut self, input: u64) {
        self.inputs = self.inputs.saturating_add(u32::from(input != self.input));
        self.input = input;
    }

    /// Returns `true` if unbatched responses to several inputs agree in all of their members.
    pub(super) fn is_settled(&self) -> bool {
        let mut members = self.facts.iter().filter(|fact| fact.is_member);
        self.inputs >= AGREEMENT_MIN && members.all(|fact| fact.run >= fact.needed)
    }

    pub(super) fn standing(&self, PartDigest { name, value, .. }: PartDigest) -> Constancy {
        let Some(fact) = self.facts.iter().find(|fact| fact.name == name) else { return Constancy::Unknown };
        // A fact that is not settled varies if its value has changed before. Otherwise it has only
        // been observed too rarely.
        let (settled, same) = (fact.run >= fact.needed, fact.value == value);
        match (settled, same) {
            (true, true) => Constancy::Constant,
            (true, false) => Constancy::Varies(None),
            (false, _) if fact.has_changed => Constancy::Varies(None),
            (false, true) => Constancy::Learning,
            (false, false) => Constancy::Unknown,
        }
    }

    /// Updates the key after a batch. Of several batches in flight that fail together, only one is
    /// counted. A batch with a part that is being learned counts only if nothing was learned since
    /// the previous one, as if all inputs are equal.
    pub(super) fn on_batch(&mut self, now: Tick, standing: Constancy, isolated_max: u32) {
        // Batches that were in flight before do not extend the time of a key that is already sent
        // unbatched.
        if now < self.unbatched_until {
            return;
        }
        let is_counted = self.has_new_answer || self.isolated == 0;
        match standing {
            Constancy::Constant => {
                self.isolated = self.isolated.saturating_sub(1);
                self.unbatched_time = Duration::ZERO;
            }
            Constancy::Learning if isolated_max > 1 => {
                let agreed = self.facts.iter().map(|fact| fact.run).sum();
                let has_learned = std::mem::replace(&mut self.agreed, agreed) < agreed;
                self.isolated += u32::from(is_counted && !has_learned);
            }
            Constancy::Learning | Constancy::Unknown => self.isolated += u32::from(is_counted),
            Constancy::Varies(_) => self.isolated += 2 * u32::from(is_counted),
        }
        self.has_new_answer = false;
        if self.isolated >= isolated_max {
            self.isolated = 0;
            self.suspend_merging(now);
        }
    }

    fn suspend_merging(&mut self, now: Tick) {
        self.unbatched_time = (self.unbatched_time * 2).clamp(UNBATCHED_TIME.0, UNBATCHED_TIME.1);
        self.unbatched_until = now.after(self.unbatched_time);
    }
}

// === impl PartFact ===

impl PartFact {
    /// Returns `true` if this is the fact of that name and the name cannot be an input.
    pub(super) fn is_known_name(&self, name: u64) -> bool {
        self.inputs >= NAME_INPUTS && self.name == name
    }

    pub(super) fn observe(&mut self, value: u64, needed: u32, input: impl FnOnce() -> u64) {
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
