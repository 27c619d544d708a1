//! The state of one cost class: its ceilings, overload, and recent execution times; and
//! [`ClassSample`], the properties of an ended batch from which it learns.
//!
//! Overload bounds the size of batches like a ceiling, but depends on load: it rises again with
//! full batches that succeed, and a change of the server does not end it.

use std::time::Duration;

use super::super::batch::{BatchOutcome, BatchRefusal, Observation};
use super::super::ceiling::{BatchExtent, CeilingReport, Ceilings, LimitSource, SizeMeasure};
use super::super::limits::Limits;
use super::super::tick::Tick;
use super::merging::{MergeState, Suspension};

/// Number of full, successful batches after which an overload ceiling rises by one item.
const RISE_AFTER: u32 = 8;
/// Number of recent executions. The shortest of them bounds the time of an unbatched call.
const RECENT: usize = 16;

/// The learned state of one cost class.
#[derive(Debug, Clone)]
pub(in super::super) struct ClassState {
    pub(super) used: Tick,
    pub(super) merging: MergeState,
    /// The limits that the server publishes are not known yet, so calls are not merged.
    pub(super) deferred: bool,
    pub(super) ceilings: Ceilings,
    /// Maximum number of items since the upstream reported an overload, and the time of the report.
    overload_max: Option<(u32, Tick)>,
    full_good: u32,
    /// Set after an overload response with `Retry-After` until the next success: meanwhile the
    /// server would refuse a batch of any size.
    refusing: bool,
    recent: [Duration; RECENT],
    executions: usize,
}

/// The properties of a batch that matter to its class.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct ClassSample {
    pub(in super::super) extent: BatchExtent,
    /// Set if the batch has more than one member.
    pub(in super::super) shared: bool,
    /// Set if the batch has the maximum number of items.
    pub(in super::super) full: bool,
    /// The measure that reflects the server's memory, which is the one that determines the cost.
    pub(in super::super) memory: SizeMeasure,
    /// The ceiling that the batch was sent to retest.
    pub(in super::super) retest: Option<SizeMeasure>,
}

// === impl ClassState ===

impl ClassState {
    pub(super) fn new(now: Tick) -> Self {
        Self {
            used: now,
            merging: MergeState::default(),
            deferred: false,
            ceilings: Ceilings::default(),
            overload_max: None,
            full_good: 0,
            refusing: false,
            recent: [Duration::ZERO; RECENT],
            executions: 0,
        }
    }

    /// Returns the suspension of merging in force, if any.
    pub(in super::super) const fn suspension(&self) -> Option<Suspension> {
        self.merging.suspension()
    }

    /// Returns the maximum number of items in a batch of this class: the smallest of the learned
    /// and published ceilings.
    pub(in super::super) fn ceiling(&self) -> u32 {
        let known = u32::try_from(self.ceilings.max(SizeMeasure::Items)).unwrap_or(u32::MAX);
        known.min(self.overload_max.map_or(u32::MAX, |(max, _)| max)).max(1)
    }

    /// Returns the ceiling in one measure without overload, or `u64::MAX` if none is known.
    pub(in super::super) fn max(&self, bounded: SizeMeasure) -> u64 {
        self.ceilings.max(bounded)
    }

    /// Returns `true` if the server is known to refuse a call of this size.
    pub(in super::super) fn refuses(&self, extent: BatchExtent) -> bool {
        SizeMeasure::ALL.into_iter().any(|bounded| extent.in_measure(bounded) >= self.ceilings.refused_from(bounded))
    }

    /// Returns the ceiling to retest: its measure, the maximum size of the retesting batch, and the
    /// duration of the last refusal. Returns `None` while the server is overloaded, because it
    /// would then refuse any batch.
    pub(in super::super) fn retest(&self, now: Tick) -> Option<(SizeMeasure, u64, Duration)> {
        self.ceilings.due_retest(now).filter(|_| self.overload_max.is_none())
    }

    /// Returns `true` if the server accepts only one item per call, so that nothing can be merged,
    /// until that limit is due for a retest. An overload does not count: it passes with the load.
    pub(super) fn accepts_one_item(&self, now: Tick) -> bool {
        let is_due = || self.retest(now).is_some_and(|(bounded, ..)| bounded == SizeMeasure::Items);
        self.max(SizeMeasure::Items) == 1 && !is_due()
    }

    pub(in super::super) fn ceilings(&self) -> Vec<CeilingReport> {
        let overload = self.overload_max.map(|(max, since)| CeilingReport {
            bounded: SizeMeasure::Items,
            max: u64::from(max),
            source: LimitSource::Learned,
            since,
            retest: None,
        });
        self.ceilings.report().chain(overload).collect()
    }

    /// Returns the shortest of the recent executions, or `None` before the first. No batch can meet
    /// an SLO below it.
    pub(in super::super) fn fastest_execution(&self) -> Option<Duration> {
        self.recent.iter().take(self.executions.min(RECENT)).min().copied()
    }

    /// Returns the duration of the last execution.
    pub(in super::super) fn last_execution(&self) -> Option<Duration> {
        self.executions.checked_sub(1).and_then(|i| self.recent.get(i % RECENT)).copied()
    }

    pub(super) fn observe(&mut self, now: Tick, limits: &Limits, batch: &ClassSample, observed: &Observation) {
        let &ClassSample { extent, shared, full, memory, retest } = batch;
        let items = extent.items;
        // With isolation, the whole execution takes longer than the refusal did.
        let took = observed.first_byte.unwrap_or(observed.duration);
        match observed.outcome {
            BatchOutcome::Ok => {
                if let Some(slot) = self.recent.get_mut(self.executions % RECENT) {
                    *slot = observed.duration;
                }
                self.executions += 1;
                self.refusing = false;
                self.ceilings.on_success(now, extent);
                if full {
                    self.raise_overload_ceiling(limits);
                }
            }
            BatchOutcome::TooLarge { limit } if let Some(found) = plausible_limit(limit, items) => {
                self.ceilings.on_named_limit(now, found, took);
            }
            // An unbatched call carries no information about size unless the response names the
            // limit.
            BatchOutcome::TooLarge { .. } | BatchOutcome::OutOfMemory | BatchOutcome::Overloaded { .. } if !shared => {}
            BatchOutcome::TooLarge { .. } | BatchOutcome::Refused(BatchRefusal::TooLarge(_)) => {
                self.ceilings.on_too_large(now, extent, retest, took);
            }
            BatchOutcome::OutOfMemory => self.ceilings.on_out_of_memory(now, extent, memory, took),
            BatchOutcome::Overloaded { retry_after: Some(_) } if self.refusing => {}
            BatchOutcome::Overloaded { retry_after } => {
                self.refusing = retry_after.is_some();
                // A larger batch that was sent before and fails afterwards must not raise the
                // ceiling.
                let found = (items / 2).max(1);
                let known = self.overload_max.filter(|(known, _)| *known <= found);
                self.overload_max = Some(known.unwrap_or((found, now)));
                self.full_good = 0;
            }
            BatchOutcome::Mismatched
            | BatchOutcome::Withheld
            | BatchOutcome::Refused(_)
            | BatchOutcome::NotRetried(_)
            | BatchOutcome::TimedOut
            | BatchOutcome::Failed
            | BatchOutcome::Cancelled => {}
        }
        if let Some(retest) = retest {
            self.ceilings.end_retest(now, retest);
        }
    }

    /// Raises the overload ceiling by one item after a number of full, successful batches. It is
    /// dropped once another limit is lower.
    fn raise_overload_ceiling(&mut self, limits: &Limits) {
        let Some((max, since)) = self.overload_max else { return };
        self.full_good += 1;
        if self.full_good < RISE_AFTER {
            return;
        }
        self.full_good = 0;
        let risen = max.saturating_add(1);
        let most = limits.scopes.iter().map(|scope| scope.batch_items_max).max().unwrap_or(u32::MAX);
        let over = u64::from(risen) >= u64::from(most).min(self.ceilings.max(SizeMeasure::Items));
        self.overload_max = (!over).then_some((risen, since));
    }
}

/// Returns the limit that a response names if it is plausible: a limit that the refused batch
/// already satisfied cannot be the intended one.
fn plausible_limit(limit: Option<u32>, items: u32) -> Option<u32> {
    limit.filter(|limit| (1..items).contains(limit))
}
