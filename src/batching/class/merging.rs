//! Permission to send batches of a cost class, by the outcomes of earlier ones.
//!
//! A server may speak a recognised route and yet take one item a call. Members that succeed alone
//! after their batch failed are the evidence for that, whatever the status. Two such batches in a
//! row end merging for the class; one batch of two retests it after a while. One merge key with an
//! odd form ends merging for itself first. It leaves out sizes (`ceiling`) and what isolation costs
//! (`budget`).

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::batch::{BatchId, Lone, Observed, ObservedOutcome, Refusal};
use super::super::call::{CostClassId, KeyId};
use super::super::limits::Limits;
use super::super::tick::Tick;
use super::TRUSTED_AFTER;

/// Refused batches in a row that end merging: one may be bad luck.
const REFUSED_MAX: u32 = 2;
/// Merge keys in quarantine at once that end merging for their cost class: three callers are no
/// single odd one.
const KEYS_END_CLASS: usize = 3;
/// Merge keys remembered at once: some times as many as arrivals are watched for. Beyond it the one
/// unused for longest goes.
const KEYS_MAX: usize = 256;
/// A trial that all callers left counts as unanswered once it took this many times the last
/// execution of its class.
const SILENT_FACTOR: u32 = 4;

/// How many calls may leave together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Bound {
    /// As many as limits allow.
    Free,
    /// Two, to learn whether the server takes batches.
    Trial,
    /// One, for this reason if it is to be reported.
    Alone(Option<Lone>),
}

/// A time without merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspension {
    /// When it began.
    pub since: Tick,
    /// When one batch of two is tried.
    pub retest: Tick,
    /// How the server answered the last batch.
    pub refusal: Refusal,
}

/// Merging ended for a cost class, or began again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergingChange {
    /// Which class.
    pub class: CostClassId,
    /// Since when it is suspended; `None`: merging began again.
    pub suspension: Option<Suspension>,
    /// The retest failed: it was suspended before.
    pub again: bool,
}

/// What of a batch matters here.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Ended {
    pub(in super::super) batch: BatchId,
    /// `None` for a call that shares nothing.
    pub(in super::super) key: Option<KeyId>,
    pub(in super::super) shared: bool,
    pub(in super::super) replayable: bool,
}

/// What the batches of one cost class have shown.
#[derive(Debug, Clone, Default)]
pub(super) struct Merging {
    /// A batch was answered whole.
    validated: bool,
    /// Its key.
    whole_key: Option<KeyId>,
    whole: u32,
    /// Batches in a row that were not answered for what may be their being batches.
    row: u32,
    /// The key of all of these; `None` where there are several.
    row_key: Option<KeyId>,
    /// A lone call was answered since the first of them failed.
    lone_answered: bool,
    suspension: Option<Suspension>,
    /// The length of the next suspension.
    next: Duration,
    /// The batch that retests.
    trial: Option<BatchId>,
}

/// What the batches of one merge key have shown, once one of them failed.
#[derive(Debug, Clone)]
struct KeyMemory {
    class: CostClassId,
    used: Tick,
    row: u32,
    whole: u32,
    until: Option<Tick>,
    next: Duration,
}

/// Merge keys of which a batch failed.
#[derive(Debug, Clone, Default)]
pub(super) struct Keys {
    map: BTreeMap<KeyId, KeyMemory>,
}

/// What an ended batch says about merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    Whole,
    LoneAnswered,
    /// Merging is the cause, beyond doubt.
    Refused(Refusal),
    /// It may be the cause: it is where lone calls succeed meanwhile.
    Doubtful(Refusal),
    /// Nothing.
    None,
}

// === impl Merging ===

impl Merging {
    /// How many calls may leave together. `eager`: batches are sent as configured before one was
    /// answered.
    pub(super) fn bound(&self, now: Tick, eager: bool) -> Bound {
        let alone = match self.suspension {
            Some(suspension) if now < suspension.retest => return Bound::Alone(Some(Lone::Refused)),
            Some(_) => Some(Lone::Refused),
            None if self.validated || eager => return Bound::Free,
            None => None,
        };
        if self.trial.is_some() { Bound::Alone(alone) } else { Bound::Trial }
    }

    pub(super) const fn suspension(&self) -> Option<Suspension> {
        self.suspension
    }

    /// This batch leaves as the one that retests.
    pub(super) fn trying(&mut self, batch: BatchId) {
        self.trial = Some(batch);
    }

    /// The server is another one. Whether merging begins again by that.
    pub(super) fn forget(&mut self) -> bool {
        let suspended = self.suspension.is_some();
        *self = Self { trial: self.trial, ..Self::default() };
        suspended
    }

    fn evidence(&self, ended: Ended, observed: &Observed, last: Option<Duration>) -> Evidence {
        if !ended.shared {
            return if observed.outcome == ObservedOutcome::Ok { Evidence::LoneAnswered } else { Evidence::None };
        }
        match observed.outcome {
            ObservedOutcome::Ok => Evidence::Whole,
            ObservedOutcome::Refused(refusal) => Evidence::Refused(refusal),
            // Quarantine of the key comes first, but where no batch of any key was answered.
            ObservedOutcome::Mismatched if !self.validated || self.trial == Some(ended.batch) => {
                Evidence::Refused(Refusal::Mismatch)
            }
            ObservedOutcome::TimedOut if self.validated => Evidence::Doubtful(Refusal::Silence),
            ObservedOutcome::TimedOut => Evidence::Refused(Refusal::Silence),
            ObservedOutcome::Overloaded { .. } => Evidence::Doubtful(Refusal::Overload),
            // Its members have not been tried alone: they failed for good. A server that has taken
            // batches may have restarted.
            ObservedOutcome::Failed | ObservedOutcome::OutOfMemory if !ended.replayable => {
                let doubtful = self.validated;
                if doubtful { Evidence::Doubtful(Refusal::Reset) } else { Evidence::Refused(Refusal::Reset) }
            }
            // The callers did not wait for what lone calls get at once.
            ObservedOutcome::Cancelled
                if self.trial == Some(ended.batch)
                    && observed.first_byte.is_none()
                    && last.is_some_and(|last| observed.duration > last.saturating_mul(SILENT_FACTOR)) =>
            {
                Evidence::Doubtful(Refusal::Silence)
            }
            _ => Evidence::None,
        }
    }

    /// Takes in how a batch or a lone call ended; returns the change that this makes.
    pub(super) fn observe(
        &mut self,
        (now, base): (Tick, Duration),
        ended: Ended,
        observed: &Observed,
        last: Option<Duration>,
    ) -> Option<Option<Suspension>> {
        let trial = self.trial == Some(ended.batch);
        let evidence = self.evidence(ended, observed, last);
        if trial {
            self.trial = None;
        }
        let (refusal, sure) = match evidence {
            Evidence::Whole => return self.whole(ended.key),
            Evidence::LoneAnswered => {
                self.lone_answered = true;
                return None;
            }
            Evidence::None => {
                // The retest showed nothing: the next one waits as long as the first.
                if let Some(suspension) = self.suspension.as_mut().filter(|_| trial) {
                    suspension.retest = now.after(base);
                }
                return None;
            }
            Evidence::Refused(refusal) => (refusal, true),
            Evidence::Doubtful(refusal) => (refusal, false),
        };
        // Batches that left before merging ended say nothing new.
        if self.suspension.is_some() && !trial {
            return None;
        }
        self.lone_answered &= self.row > 0;
        self.row_key = if self.row == 0 { ended.key } else { self.row_key.filter(|key| Some(*key) == ended.key) };
        self.row += 1;
        let enough = if ended.replayable || self.validated { REFUSED_MAX } else { 1 };
        let ends = self.row >= enough && (sure || self.lone_answered);
        // Another key's batches are answered: this one's form is odd, and the others go on.
        let one_odd =
            self.validated && self.row_key.is_some() && self.whole_key.is_some_and(|whole| Some(whole) != self.row_key);
        let suspend = ends && (self.suspension.is_some() || !one_odd);
        suspend.then(|| Some(self.suspend(now, base, refusal)))
    }

    fn whole(&mut self, key: Option<KeyId>) -> Option<Option<Suspension>> {
        (self.validated, self.whole_key, self.row, self.lone_answered) = (true, key, 0, false);
        self.whole += 1;
        if self.whole >= TRUSTED_AFTER {
            self.next = Duration::ZERO;
        }
        self.suspension.take().map(|_| None)
    }

    pub(super) fn suspend(&mut self, now: Tick, base: Duration, refusal: Refusal) -> Suspension {
        let length = self.next.max(base).min(Limits::QUARANTINE_MAX);
        self.next = length.saturating_mul(2).min(Limits::QUARANTINE_MAX);
        self.whole = 0;
        let since = self.suspension.map_or(now, |before| before.since);
        let suspension = Suspension { since, retest: now.after(length), refusal };
        self.suspension = Some(suspension);
        suspension
    }
}

// === impl Keys ===

impl Keys {
    pub(super) fn quarantined(&self, now: Tick, key: KeyId) -> bool {
        self.map.get(&key).and_then(|memory| memory.until).is_some_and(|until| now < until)
    }

    /// Whether some key of this class is in quarantine.
    pub(super) fn any_quarantined(&self, now: Tick, class: CostClassId) -> bool {
        self.map.values().any(|memory| memory.is_quarantined(now, class))
    }

    /// Takes in how a shared batch ended. True if so many keys of the class are in quarantine by
    /// that, that it is not for their form.
    pub(super) fn observe(
        &mut self,
        (now, base): (Tick, Duration),
        class: CostClassId,
        key: KeyId,
        outcome: ObservedOutcome,
    ) -> bool {
        match outcome {
            ObservedOutcome::Ok => {
                if let Some(memory) = self.map.get_mut(&key) {
                    (memory.row, memory.whole) = (0, memory.whole + 1);
                    if memory.whole >= TRUSTED_AFTER {
                        self.map.remove(&key);
                    }
                }
                return false;
            }
            ObservedOutcome::Mismatched | ObservedOutcome::Refused(_) => {}
            _ => return false,
        }
        let memory = self.entry(now, class, key);
        memory.row += 1;
        if outcome != ObservedOutcome::Mismatched && memory.row < REFUSED_MAX {
            return false;
        }
        let length = memory.next.max(base).min(Limits::QUARANTINE_MAX);
        memory.until = Some(now.after(length));
        memory.next = length.saturating_mul(2).min(Limits::QUARANTINE_MAX);
        memory.whole = 0;
        self.map.values().filter(|memory| memory.is_quarantined(now, class)).count() >= KEYS_END_CLASS
    }

    fn entry(&mut self, now: Tick, class: CostClassId, key: KeyId) -> &mut KeyMemory {
        if !self.map.contains_key(&key) && self.map.len() >= KEYS_MAX {
            let oldest = self.map.iter().min_by_key(|(key, memory)| (memory.used, **key)).map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                self.map.remove(&oldest);
            }
        }
        let fresh = KeyMemory { class, used: now, row: 0, whole: 0, until: None, next: Duration::ZERO };
        let memory = self.map.entry(key).or_insert(fresh);
        memory.used = now;
        memory
    }
}

// === impl KeyMemory ===

impl KeyMemory {
    fn is_quarantined(&self, now: Tick, class: CostClassId) -> bool {
        self.class == class && self.until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests;
