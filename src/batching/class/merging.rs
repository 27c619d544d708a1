//! Permission to merge calls of a cost class, derived from the outcomes of earlier batches.
//!
//! A server may serve a recognised route and still accept only one item per call. The evidence is a
//! batch that failed with members that succeed unbatched, whatever the status. Two such batches in
//! a row suspend merging for the class, and a batch of two retests it later. A single merge key
//! with calls of a form that the server does not accept in batches (an odd key) is quarantined by
//! itself first.
//!
//! A batch is *whole* if it was answered successfully and its response was split. A retest is left
//! to the key of the last whole batch for a while, and the failure of another key does not prolong
//! the suspension, because it shows nothing about that key. If no key is known to work, the retest
//! is left to keys other than the last that failed, so that one odd key does not end merging for
//! all.
//!
//! Batch sizes are handled in `ceiling`, the cost of isolation in `budget`.

mod quarantine;

use std::time::Duration;

use super::super::batch::{BatchId, BatchOutcome, BatchRefusal, Observation, UnbatchedReason};
use super::super::call::{CostClassId, KeyId, TenantId};
use super::super::limits::Limits;
use super::super::tick::Tick;
pub(super) use quarantine::KeyQuarantine;
use quarantine::{REFUSED_MAX, TRUSTED_AFTER};

/// Time for which a retest that is due is left to the preferred merge keys. Two calls of a key in
/// regular use are queued together well within it, and it is small beside the shortest suspension,
/// 30 s by default.
const PREFERENCE: Duration = Duration::from_secs(1);
/// Time after its last whole batch from which a key is no longer expected to return: the longest
/// suspension.
const KEY_EXPECTED: Duration = Limits::QUARANTINE_MAX;
/// A trial that all clients cancelled counts as unanswered after this multiple of the last
/// execution time of its class.
const SILENT_FACTOR: u32 = 4;

/// Number of calls that may leave together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum MergeLimit {
    /// As many as the limits allow.
    Free,
    /// Two, to test whether the server accepts batches.
    Trial,
    /// One, with the reason if it is to be reported.
    Unbatched(Option<UnbatchedReason>),
    /// One, until the limits that the server publishes are known. A hold goes on, since they may be
    /// known before it ends.
    Deferred,
}

/// A period without merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspension {
    /// Start of the suspension.
    pub since: Tick,
    /// Instant from which a batch of two is tried.
    pub retest: Tick,
    /// Response of the server to the last batch.
    pub refusal: BatchRefusal,
    /// `true` if the members of that batch were answered when they were sent unbatched afterwards.
    pub answered_unbatched: bool,
}

/// A suspension of merging for a cost class, or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergingChange {
    /// The cost class.
    pub class: CostClassId,
    /// The suspension; `None` if merging has resumed.
    pub suspension: Option<Suspension>,
    /// `true` if merging was suspended before and the retest failed.
    pub is_retest_failure: bool,
}

/// An ended batch, with the properties that matter for merging.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct EndedBatch {
    pub(in super::super) batch: BatchId,
    /// `None` for a call that shares no batch.
    pub(in super::super) key: Option<KeyId>,
    /// Tenant of the first call.
    pub(in super::super) tenant: TenantId,
    /// `true` if it had several members.
    pub(in super::super) shared: bool,
    /// `true` if its members may be sent again.
    pub(in super::super) replayable: bool,
}

/// State of merging for one cost class.
#[derive(Debug, Clone, Default)]
pub(super) struct MergeState {
    /// `true` once there was a whole batch.
    validated: bool,
    /// Merge key of the last whole batch.
    whole_key: Option<KeyId>,
    /// Time of its response.
    whole_at: Tick,
    /// Number of whole batches since the last suspension began.
    whole_batches: u32,
    /// Number of all whole batches.
    whole_total: u64,
    /// Merge key of the last batch that failed.
    failed_key: Option<KeyId>,
    /// Consecutive batches that failed, possibly because they were batches.
    failures_in_row: u32,
    /// `true` if a batch with the key of the last whole batch is among these failures.
    whole_key_failed: bool,
    /// `true` if an unbatched call was answered since the first of these failures.
    unbatched_answered: bool,
    suspension: Option<Suspension>,
    /// Length of the next suspension.
    next_suspension: Duration,
    /// The trial batch in flight.
    trial: Option<BatchId>,
}

/// Evidence about merging from an ended batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// A batch was whole.
    Whole,
    /// An unbatched call was answered.
    UnbatchedAnswered,
    /// Merging is certainly the cause.
    Refused(BatchRefusal),
    /// Merging may be the cause, and is taken to be it if unbatched calls succeed meanwhile.
    Doubtful(BatchRefusal),
    /// The batch shows nothing about merging.
    None,
}

// === impl MergeState ===

impl MergeState {
    /// Returns the number of calls that may leave together. `eager`: batches are sent as configured
    /// before the first one was answered.
    pub(super) fn merge_limit(&self, now: Tick, eager: bool) -> MergeLimit {
        let reason = match self.suspension {
            Some(suspension) if now < suspension.retest => {
                return MergeLimit::Unbatched(Some(UnbatchedReason::Refused));
            }
            Some(_) => Some(UnbatchedReason::Refused),
            None if self.validated || eager => return MergeLimit::Free,
            None => None,
        };
        if self.trial.is_some() { MergeLimit::Unbatched(reason) } else { MergeLimit::Trial }
    }

    pub(super) const fn suspension(&self) -> Option<Suspension> {
        self.suspension
    }

    pub(super) fn on_trial_dispatch(&mut self, batch: BatchId) {
        self.trial = Some(batch);
    }

    /// Resets the state because the server was replaced. Returns `true` if that resumes merging.
    pub(super) fn reset(&mut self) -> bool {
        let suspended = self.suspension.is_some();
        *self = Self { trial: self.trial, ..Self::default() };
        suspended
    }

    /// Returns the merge key of the last batch that was answered as a whole.
    pub(super) const fn whole_key(&self) -> Option<KeyId> {
        self.whole_key
    }

    /// Returns `true` if a retest that is due is left to another merge key for now.
    pub(super) fn prefers_other_key(&self, now: Tick, key: KeyId) -> bool {
        let is_left = self.suspension.is_some_and(|suspension| now < suspension.retest.after(PREFERENCE));
        is_left && self.working_key(now).map_or(self.failed_key == Some(key), |working| working != key)
    }

    /// Returns the merge key of the last whole batch, unless it failed since or has gone.
    fn working_key(&self, now: Tick) -> Option<KeyId> {
        let has_failed = self.failures_in_row > 0 && self.whole_key_failed;
        self.whole_key.filter(|_| !has_failed && now.since(self.whole_at) <= KEY_EXPECTED)
    }

    /// Returns the number of whole batches.
    pub(super) const fn whole_total(&self) -> u64 {
        self.whole_total
    }

    /// Returns the evidence of an ended batch. `last`: the last execution time of its class.
    fn evidence(&self, ended: EndedBatch, observed: &Observation, last: Option<Duration>) -> Evidence {
        if !ended.shared {
            return if observed.outcome == BatchOutcome::Ok { Evidence::UnbatchedAnswered } else { Evidence::None };
        }
        match observed.outcome {
            BatchOutcome::Ok => Evidence::Whole,
            BatchOutcome::Refused(refusal) => Evidence::Refused(refusal),
            // A mismatch quarantines the merge key first, unless no batch of any key has been
            // answered.
            BatchOutcome::Mismatched if !self.validated || self.trial == Some(ended.batch) => {
                Evidence::Refused(BatchRefusal::Mismatch)
            }
            BatchOutcome::TimedOut if self.validated => Evidence::Doubtful(BatchRefusal::Timeout),
            BatchOutcome::TimedOut => Evidence::Refused(BatchRefusal::Timeout),
            BatchOutcome::Overloaded { .. } => Evidence::Doubtful(BatchRefusal::Overload),
            // The members were not sent again alone, so it is not known whether they would succeed.
            BatchOutcome::NotRetried(refusal) => self.evidence_of_unretried(refusal),
            BatchOutcome::OutOfMemory if !ended.replayable => self.evidence_of_unretried(BatchRefusal::OutOfMemory),
            // The clients did not wait as long as the trial took, while unbatched calls are
            // answered soon.
            BatchOutcome::Cancelled
                if self.trial == Some(ended.batch)
                    && observed.first_byte.is_none()
                    && last.is_some_and(|last| observed.duration > last.saturating_mul(SILENT_FACTOR)) =>
            {
                Evidence::Doubtful(BatchRefusal::Timeout)
            }
            _ => Evidence::None,
        }
    }

    /// Returns the evidence of a batch whose members were not retried. A server that has accepted
    /// batches before may have restarted.
    const fn evidence_of_unretried(&self, refusal: BatchRefusal) -> Evidence {
        if self.validated { Evidence::Doubtful(refusal) } else { Evidence::Refused(refusal) }
    }

    /// Records the end of a batch or of an unbatched call. Returns the change that results:
    /// `Some(None)` is the end of the suspension. `base`: length of the first suspension.
    pub(super) fn observe(
        &mut self,
        (now, base): (Tick, Duration),
        ended: EndedBatch,
        observed: &Observation,
        last: Option<Duration>,
    ) -> Option<Option<Suspension>> {
        let trial = self.trial == Some(ended.batch);
        let evidence = self.evidence(ended, observed, last);
        if trial {
            self.trial = None;
        }
        let (refusal, is_certain) = match evidence {
            Evidence::Whole => return self.on_whole_batch(now, ended.key),
            Evidence::UnbatchedAnswered => {
                self.unbatched_answered = true;
                return None;
            }
            Evidence::None => {
                self.postpone_retest(now, base, trial);
                return None;
            }
            // The retest of a key failed while another one is known to work.
            _ if trial && self.working_key(now).is_some_and(|working| Some(working) != ended.key) => {
                self.postpone_retest(now, base, trial);
                return None;
            }
            Evidence::Refused(refusal) => (refusal, true),
            Evidence::Doubtful(refusal) => (refusal, false),
        };
        // Batches that were dispatched before the suspension add no evidence.
        if self.suspension.is_some() && !trial {
            return None;
        }
        self.unbatched_answered &= self.failures_in_row > 0;
        self.whole_key_failed &= self.failures_in_row > 0;
        self.whole_key_failed |= ended.key == self.whole_key;
        self.failures_in_row += 1;
        self.failed_key = ended.key;
        // One failure extends a suspension, also one that stems from quarantined keys. It also
        // begins one if the members may not be sent again and no batch was whole before.
        let is_new = self.suspension.is_none();
        let enough = if is_new && (ended.replayable || self.validated) { REFUSED_MAX } else { 1 };
        let is_refusing = self.failures_in_row >= enough && (is_certain || self.unbatched_answered);
        // Batches of another key were whole and none of that key failed, so only the keys that
        // failed are odd. They are quarantined, and the others are still merged.
        let are_odd = self.validated && self.whole_key.is_some() && !self.whole_key_failed;
        let suspends = is_refusing && (!is_new || !are_odd);
        suspends.then(|| Some(self.suspend(now, base, refusal, is_answered_unbatched(observed.outcome))))
    }

    /// Schedules the next retest after the initial interval if this one was inconclusive.
    fn postpone_retest(&mut self, now: Tick, base: Duration, trial: bool) {
        if let Some(suspension) = self.suspension.as_mut().filter(|_| trial) {
            suspension.retest = now.after(base);
        }
    }

    /// Records a whole batch, which ends a suspension.
    fn on_whole_batch(&mut self, now: Tick, key: Option<KeyId>) -> Option<Option<Suspension>> {
        (self.validated, self.whole_key, self.failures_in_row, self.unbatched_answered) = (true, key, 0, false);
        self.whole_at = now;
        self.whole_total += 1;
        self.whole_batches += 1;
        if self.whole_batches >= TRUSTED_AFTER {
            self.next_suspension = Duration::ZERO;
        }
        self.suspension.take().map(|_| None)
    }

    /// Suspends merging, or extends a suspension. The length doubles each time, up to a maximum.
    pub(super) fn suspend(
        &mut self,
        now: Tick,
        base: Duration,
        refusal: BatchRefusal,
        answered_unbatched: bool,
    ) -> Suspension {
        let length = self.next_suspension.max(base).min(Limits::QUARANTINE_MAX);
        self.next_suspension = length.saturating_mul(2).min(Limits::QUARANTINE_MAX);
        self.whole_batches = 0;
        let since = self.suspension.map_or(now, |before| before.since);
        let suspension = Suspension { since, retest: now.after(length), refusal, answered_unbatched };
        self.suspension = Some(suspension);
        suspension
    }
}

/// Returns `true` if the members of a batch with this outcome were answered unbatched.
pub(super) const fn is_answered_unbatched(outcome: BatchOutcome) -> bool {
    matches!(outcome, BatchOutcome::Refused(_))
}

#[cfg(test)]
mod tests;
