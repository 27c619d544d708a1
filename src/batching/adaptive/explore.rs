//! How much may be spent on learning: batches of another size than seems best (`scheduling.md` §3, "Exploration budget").
//!
//! At the start, and when the server is another one, every size may be tried a few times whatever comes: what is not known then costs more than the
//! trials, most of all under load (`pow2 shapes` and `k=4 slots` miss their bars without it). After that trials have 2 % of the executions' time, none in
//! backlog, none while calls miss their deadlines, and none that could make a member late. What it leaves out: longer leads, which cost no execution (`slots`); asking whether the server batches by itself (`guard`); ceilings,
//! which are asked only where nobody is late for it (`batcher::retest`); and sizes that a guess rules out for an urgent head (`choose`): they are for
//! the overload in which calls are late.

use super::super::cost::Cost;
use super::super::tick::Tick;
use super::Line;

/// Of the last ten seconds, in buckets of one; one more is under way.
const BUCKETS: usize = 11;
/// No trial while more than one in so many items missed its deadline (§3: 1 %).
const MISSED_PARTS: u64 = 100;
/// One part in so many of the executions' time (§3: 2 %).
const SHARE_PARTS: u64 = 50;
/// What a start has, in thousandths of a mean execution: 14 round sizes three times each, which is all that it can want.
const START: u64 = 14 * 3 * 1000;
/// What a trial takes, in the same: one execution must have been saved up.
const TRIAL: u64 = 1000;
/// The most that can be saved up after it, in the same: each round size once.
const CREDIT_MAX: u64 = 14 * 1000;

/// What is left to spend.
#[derive(Debug, Clone)]
pub(super) struct Exploration {
    buckets: [Bucket; BUCKETS],
    start: u64,
    credit: u64,
    spent_nanos: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    second: u64,
    ended: u64,
    missed: u64,
}

/// Items of a batch that have a deadline, and the first and last one of those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) struct Deadlines {
    items: u64,
    first: Tick,
    last: Tick,
}

// === impl Exploration ===

impl Default for Exploration {
    fn default() -> Self {
        Self { buckets: [Bucket::default(); BUCKETS], start: START, credit: 0, spent_nanos: 0 }
    }
}

impl Exploration {
    /// Whether the start's trials are not used up.
    pub(super) fn starts(&self) -> bool {
        self.start > 0
    }

    /// Whether there is something to spend after the start, and calls are in time.
    pub(super) fn may(&self, now: Tick) -> bool {
        let second = now.0 / 1_000_000_000;
        let recent = self.buckets.iter().filter(|bucket| second.saturating_sub(bucket.second) < 10);
        let (ended, missed) = recent.fold((0, 0), |sum, bucket| (sum.0 + bucket.ended, sum.1 + bucket.missed));
        self.credit >= TRIAL && missed * MISSED_PARTS <= ended
    }

    /// Items ended, and so many of them after their deadline.
    pub(super) fn ended(&mut self, now: Tick, items: u64, missed: u64) {
        let second = now.0 / 1_000_000_000;
        let index = usize::try_from(second % 11).unwrap_or(0);
        let bucket = &mut self.buckets[index];
        if bucket.second != second {
            *bucket = Bucket { second, ..Bucket::default() };
        }
        bucket.ended += items;
        bucket.missed += missed;
    }

    /// An execution took so long; `mean`: what one takes. A trial is paid for, the others earn.
    pub(super) fn took(&mut self, nanos: u64, mean: u64, trial: bool) {
        // No execution counts for more than ten: a stall is not the trial's doing.
        let milli = nanos.saturating_mul(1000).checked_div(mean).unwrap_or(1000).clamp(1, 10_000);
        if trial {
            let paid = self.start.min(milli);
            self.start -= paid;
            self.credit = self.credit.saturating_sub(milli - paid);
            self.spent_nanos = self.spent_nanos.saturating_add(nanos);
        } else {
            self.credit = (self.credit + milli.div_ceil(SHARE_PARTS)).min(CREDIT_MAX);
        }
    }

    /// The server is another one: all is to be learned again.
    pub(super) fn changed(&mut self) {
        self.start = START;
    }

    /// What trials took in all, in nanoseconds.
    pub(super) fn spent_nanos(&self) -> u64 {
        self.spent_nanos
    }
}

// === impl Deadlines ===

impl Deadlines {
    /// One more call.
    pub(in super::super) fn add(&mut self, items: u32, deadline: Tick) {
        self.first = if self.items == 0 { deadline } else { self.first.min(deadline) };
        self.last = self.last.max(deadline);
        self.items += u64::from(items);
    }

    /// How many items there are, and how many of them were missed by an answer at this instant: as if their deadlines were spread evenly.
    pub(super) fn missed(&self, now: Tick) -> (u64, u64) {
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

/// Whether a batch of this size is answered in time for the line's head even if the largest one that is known grows in proportion.
pub(super) fn in_time(line: &Line<'_>, cost: &Cost, size: u32) -> bool {
    let largest = cost.largest().max(1);
    let known = u128::from(cost.late(cost.time(size.min(largest))));
    let scaled = known * u128::from(size.max(largest)) / u128::from(largest);
    u128::from(line.slack(line.head).saturating_sub(line.wait)) >= scaled
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn after_the_start_trials_have_a_fiftieth_of_the_time() {
        let (mut exploration, mut trials) = (Exploration::default(), 0_u64);
        for _ in 0..100_000 {
            let trial = exploration.starts() || exploration.may(Tick::default());
            trials += u64::from(trial);
            exploration.took(5 * MS, 5 * MS, trial);
        }
        assert!((1900..=2100).contains(&trials), "{trials} of 100000");
        assert_eq!(exploration.spent_nanos(), trials * 5 * MS);
    }

    #[test]
    fn nothing_is_tried_while_more_than_one_in_a_hundred_is_late() {
        let mut exploration = Exploration::default();
        (0..1000).for_each(|_| exploration.took(5 * MS, 5 * MS, false));
        let at = |seconds: u64| Tick::from_millis(seconds * 1000);
        exploration.ended(at(1), 200, 2);
        assert!(exploration.may(at(1)));
        exploration.ended(at(2), 0, 1);
        assert!(!exploration.may(at(2)) && !exploration.may(at(10)));
        assert!(exploration.may(at(12)), "ten seconds later it is forgotten");
    }

    #[test]
    fn late_items_are_counted_between_the_first_and_the_last_deadline() {
        let mut deadlines = Deadlines::default();
        [10, 30, 20, 40].into_iter().for_each(|at| deadlines.add(2, Tick(at)));
        let missed = |at| deadlines.missed(Tick(at));
        assert_eq!((missed(10), missed(25), missed(41)), ((8, 0), (8, 4), (8, 8)));
        assert_eq!(Deadlines::default().missed(Tick(5)), (0, 0));
    }
}
