//! Exploration budget: the execution time that may be spent on batches of other sizes than the best
//! known one.
//!
//! At the start, and after the server was replaced, every size may be tried a few times
//! unconditionally: an unknown curve costs more than the exploration, most of all under load (the
//! simulator's scenarios `pow2 shapes` and `k=4 slots` miss their targets without it). Afterwards
//! exploring batches get 2 % of the execution time. None is sent in backlog, while calls miss their
//! deadlines, or if it could make a member late.
//!
//! Out of scope: longer leads, which cost no execution (`slots`); detection of a server that
//! batches by itself (`limiter`); ceilings, which are retested only where no call is late for it
//! (`batcher::retest`); and sizes that an estimate rules out for an urgent head (`deadline`), which
//! serve an overload in which calls are late.

use super::super::cost::CostModel;
use super::super::tick::Tick;
use super::queue_view::QueueView;

/// Number of one-second buckets. Ten of them are evaluated, that of the current second included.
const BUCKETS: usize = 11;
/// Exploration stops while more than one item in this many misses its deadline (1 %).
const MISSED_PARTS: u64 = 100;
/// Inverse share of the execution time that exploring batches may use (2 %).
const SHARE_PARTS: u64 = 50;
/// Initial budget in thousandths of a mean execution: three batches of each of the 14 round
/// sizes, the most that is ever requested.
const START: u64 = 14 * 3 * 1000;
/// Credit that an exploring batch requires, in the same unit: one mean execution.
const BATCH_CREDIT: u64 = 1000;
/// Maximum credit after the start, in the same unit: one batch of each round size.
const CREDIT_MAX: u64 = 14 * 1000;

/// The remaining exploration budget.
#[derive(Debug, Clone)]
pub(super) struct ExplorationBudget {
    buckets: [SecondBucket; BUCKETS],
    /// Rest of the initial budget, in thousandths of a mean execution.
    start: u64,
    /// Credit earned since, in the same unit.
    credit: u64,
    /// Total execution time of exploring batches, in nanoseconds.
    spent_nanos: u64,
}

/// Counts of one second.
#[derive(Debug, Clone, Copy, Default)]
struct SecondBucket {
    /// The second, since the start of the process.
    second: u64,
    /// Number of items with a deadline that ended.
    ended: u64,
    /// Number of those that missed it.
    missed: u64,
}

/// Number of items of a batch that have a deadline, and the first and last of these deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) struct DeadlineSpread {
    items: u64,
    first: Tick,
    last: Tick,
}

// === impl ExplorationBudget ===

impl Default for ExplorationBudget {
    fn default() -> Self {
        Self { buckets: [SecondBucket::default(); BUCKETS], start: START, credit: 0, spent_nanos: 0 }
    }
}

impl ExplorationBudget {
    /// Returns `true` while the initial budget is not used up.
    pub(super) fn is_starting(&self) -> bool {
        self.start > 0
    }

    /// Returns `true` if there is credit for an exploring batch and calls meet their deadlines.
    pub(super) fn has_credit(&self, now: Tick) -> bool {
        let second = now.0 / 1_000_000_000;
        let recent = self.buckets.iter().filter(|bucket| second.saturating_sub(bucket.second) < 10);
        let (ended, missed) = recent.fold((0, 0), |sum, bucket| (sum.0 + bucket.ended, sum.1 + bucket.missed));
        self.credit >= BATCH_CREDIT && missed * MISSED_PARTS <= ended
    }

    /// Records that items ended, `missed` of them after their deadline.
    pub(super) fn record_ended(&mut self, now: Tick, items: u64, missed: u64) {
        let second = now.0 / 1_000_000_000;
        let index = usize::try_from(second % 11).unwrap_or(0);
        let bucket = &mut self.buckets[index];
        if bucket.second != second {
            *bucket = SecondBucket { second, ..SecondBucket::default() };
        }
        bucket.ended += items;
        bucket.missed += missed;
    }

    /// Records the duration of an execution; `mean` is the mean duration. An exploring execution is
    /// charged, and any other earns credit.
    pub(super) fn record_duration(&mut self, nanos: u64, mean: u64, explores: bool) {
        // An execution counts as ten mean executions at most: a stall is not caused by the size.
        let milli = nanos.saturating_mul(1000).checked_div(mean).unwrap_or(1000).clamp(1, 10_000);
        if explores {
            let paid = self.start.min(milli);
            self.start -= paid;
            self.credit = self.credit.saturating_sub(milli - paid);
            self.spent_nanos = self.spent_nanos.saturating_add(nanos);
        } else {
            self.credit = (self.credit + milli.div_ceil(SHARE_PARTS)).min(CREDIT_MAX);
        }
    }

    /// Restores the initial budget, because the server was replaced and everything is learned
    /// again.
    pub(super) fn restart(&mut self) {
        self.start = START;
    }

    /// Returns the total execution time of exploring batches, in nanoseconds.
    pub(super) fn spent_nanos(&self) -> u64 {
        self.spent_nanos
    }
}

// === impl DeadlineSpread ===

impl DeadlineSpread {
    pub(in super::super) fn add(&mut self, items: u32, deadline: Tick) {
        self.first = if self.items == 0 { deadline } else { self.first.min(deadline) };
        self.last = self.last.max(deadline);
        self.items += u64::from(items);
    }

    /// Returns the number of items, and the number of them that an answer at this instant is late
    /// for. The deadlines are assumed to be spread evenly between the first and the last.
    pub(super) fn count_missed(&self, now: Tick) -> (u64, u64) {
        let late = now.0.saturating_sub(self.first.0);
        let spread = self.last.0.saturating_sub(self.first.0);
        let missed = match () {
            () if now <= self.first => 0,
            () if now > self.last => self.items,
            () => {
                u64::try_from(u128::from(self.items) * u128::from(late) / u128::from(spread.max(1))).unwrap_or(u64::MAX)
            }
        };
        (self.items, missed)
    }
}

/// Returns `true` if a batch of this size is answered in time for the key queue's head, even if its
/// cost grows in proportion to its size from the largest known size on.
pub(super) fn fits_slack(view: &QueueView<'_>, cost: &CostModel, size: u32) -> bool {
    let largest = cost.largest().max(1);
    let known = u128::from(cost.tail_time(cost.time(size.min(largest))));
    let scaled = known * u128::from(size.max(largest)) / u128::from(largest);
    u128::from(view.first_slack().saturating_sub(view.wait)) >= scaled
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn after_the_start_exploration_has_a_fiftieth_of_the_time() {
        let (mut exploration, mut explored) = (ExplorationBudget::default(), 0_u64);
        for _ in 0..100_000 {
            let explores = exploration.is_starting() || exploration.has_credit(Tick::default());
            explored += u64::from(explores);
            exploration.record_duration(5 * MS, 5 * MS, explores);
        }
        assert!((1900..=2100).contains(&explored), "{explored} of 100000");
        assert_eq!(exploration.spent_nanos(), explored * 5 * MS);
    }

    #[test]
    fn nothing_is_tried_while_more_than_one_in_a_hundred_is_late() {
        let mut exploration = ExplorationBudget::default();
        (0..1000).for_each(|_| exploration.record_duration(5 * MS, 5 * MS, false));
        let at = |seconds: u64| Tick::from_millis(seconds * 1000);
        exploration.record_ended(at(1), 200, 2);
        assert!(exploration.has_credit(at(1)));
        exploration.record_ended(at(2), 0, 1);
        assert!(!exploration.has_credit(at(2)) && !exploration.has_credit(at(10)));
        assert!(exploration.has_credit(at(12)), "ten seconds later it is forgotten");
    }

    #[test]
    fn late_items_are_counted_between_the_first_and_the_last_deadline() {
        let mut deadlines = DeadlineSpread::default();
        [10, 30, 20, 40].into_iter().for_each(|at| deadlines.add(2, Tick(at)));
        let missed = |at| deadlines.count_missed(Tick(at));
        assert_eq!((missed(10), missed(25), missed(41)), ((8, 0), (8, 4), (8, 8)));
        assert_eq!(DeadlineSpread::default().count_missed(Tick(5)), (0, 0));
    }
}
