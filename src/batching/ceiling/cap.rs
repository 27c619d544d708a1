//! The ceiling in one measure: the smaller of a published and a learned one.
//!
//! A learned one lies between the largest success and the smallest refusal. Each of them moves it,
//! and schedules its next retest.

use std::time::Duration;

use super::super::tick::Tick;
use super::{CeilingReport, LimitSource, SizeMeasure};

/// Interval before the first retest of a ceiling found by bisection. A refused batch costs well
/// below one execution, and a ceiling that no longer exists costs throughput every second
/// (`groupage simulate --scenario "ceiling lifted"`), so retests start early. The interval doubles,
/// which makes ten retests in the first quarter of an hour.
pub(super) const RETEST_FOUND: Duration = Duration::from_secs(1);
/// Interval before the first retest of a ceiling that the server named, or that reflects its
/// memory. The first is reliable, and a retest of the second may crash the server.
pub(super) const RETEST_FIRM: Duration = Duration::from_secs(600);
/// Maximum interval between retests.
pub(super) const RETEST_MAX: Duration = Duration::from_secs(24 * 3600);

/// The ceiling in one measure.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cap {
    /// Largest successful size; 0 before the first success, or once it is known to stem from
    /// another server.
    pub(super) worked: u64,
    pub(super) published: Option<(u64, Tick)>,
    pub(super) learned: Option<LearnedCap>,
}

/// A ceiling that refusals showed, and the schedule of its retests.
#[derive(Debug, Clone, Copy)]
pub(super) struct LearnedCap {
    pub(super) max: u64,
    pub(super) refused: u64,
    pub(super) firm: bool,
    pub(super) since: Tick,
    pub(super) retest: Tick,
    pub(super) wait: Duration,
    /// Time that the server took to refuse.
    pub(super) took: Duration,
    /// Set while a retest is in flight.
    pub(super) testing: bool,
}

// === impl Cap ===

impl Cap {
    pub(super) fn max(&self) -> u64 {
        let learned = self.learned.map_or(u64::MAX, |learned| learned.max);
        learned.min(self.published.map_or(u64::MAX, |(max, _)| max))
    }

    pub(super) fn worked(&mut self, now: Tick, size: u64) {
        self.worked = self.worked.max(size);
        let Some(learned) = &mut self.learned else { return };
        if size >= learned.refused {
            self.learned = None;
            return;
        }
        if size > learned.max {
            // A retest that succeeded at a larger size.
            learned.testing = false;
            learned.wait = if learned.firm { RETEST_FIRM } else { RETEST_FOUND };
            learned.retest = now.after(learned.wait);
        }
        let found = if learned.firm { size } else { bisect(self.worked, learned.refused) };
        if found > learned.max {
            (learned.max, learned.since) = (found, now);
        }
    }

    pub(super) fn refused(&mut self, now: Tick, size: u64, took: Duration) {
        if size <= self.worked {
            // A size that succeeded before is refused now, so the success stems from another
            // server.
            self.worked = 0;
        }
        let known = self.learned;
        let refused = known.map_or(size, |known| known.refused.min(size)).max(2);
        let again = known.filter(|known| size > known.max);
        let max = bisect(self.worked, refused);
        let max = known.map_or(max, |known| known.max.min(max));
        self.learn(
            now,
            LearnedCap {
                max,
                refused,
                firm: known.is_some_and(|known| known.firm && known.max == max),
                took,
                ..LearnedCap::new(now)
            },
            again,
        );
    }

    pub(super) fn named(&mut self, now: Tick, limit: u64, took: Duration) {
        self.worked = self.worked.min(limit);
        let again = self.learned.filter(|known| known.max <= limit);
        let max = again.map_or(limit, |known| known.max);
        let refused = again.map_or(limit.saturating_add(1), |known| known.refused.min(limit.saturating_add(1)));
        let firm = again.is_none_or(|known| known.firm || known.max == limit);
        self.learn(now, LearnedCap { max, refused, firm, took, ..LearnedCap::new(now) }, again);
    }

    pub(super) fn out_of_memory(&mut self, now: Tick, size: u64, took: Duration) {
        if size <= self.worked {
            self.worked = 0;
        }
        let again = self.learned.filter(|known| size > known.max);
        let half = (size / 2).max(1);
        let max = again.map_or(half, |known| known.max);
        let refused = self.learned.map_or(size, |known| known.refused.min(size)).max(max.saturating_add(1));
        self.learn(now, LearnedCap { max, refused, firm: true, took, ..LearnedCap::new(now) }, again);
    }

    /// Stores a learned ceiling. `again` is the known ceiling if this refusal confirms it, in which
    /// case the retest interval doubles.
    fn learn(&mut self, now: Tick, learned: LearnedCap, again: Option<LearnedCap>) {
        let first = if learned.firm { RETEST_FIRM } else { RETEST_FOUND };
        // Only the refusal of a retest extends the interval. Batches sent before the ceiling was
        // known are refused in large numbers at once.
        let wait = again.map_or(first, |known| {
            if known.testing { known.wait.saturating_mul(2).clamp(first, RETEST_MAX) } else { known.wait }
        });
        let since = again.filter(|known| known.max == learned.max).map_or(now, |known| known.since);
        self.learned = Some(LearnedCap { since, wait, retest: now.after(wait), ..learned });
    }

    pub(super) fn report(&self, bounded: SizeMeasure) -> Option<CeilingReport> {
        let published = self.published.map(|(max, since)| (max, since, LimitSource::Published, None));
        let learned = self.learned.map(|known| (known.max, known.since, LimitSource::Learned, Some(known.retest)));
        let least = published.into_iter().chain(learned).min_by_key(|(max, ..)| *max);
        least.map(|(max, since, source, retest)| CeilingReport { bounded, max, source, since, retest })
    }
}

// === impl LearnedCap ===

impl LearnedCap {
    fn new(now: Tick) -> Self {
        Self {
            max: u64::MAX,
            refused: u64::MAX,
            firm: false,
            since: now,
            retest: now,
            wait: RETEST_FOUND,
            took: Duration::ZERO,
            testing: false,
        }
    }

    /// Returns the maximum size of a retesting batch: the refused size, or half-way to it where a
    /// refusal is expensive.
    pub(super) fn retest_size(&self, bounded: SizeMeasure) -> u64 {
        let far = self.refused > self.max.saturating_add(self.max / 8).saturating_add(1);
        if self.firm && far {
            return bisect(self.max, self.refused);
        }
        // Weights are never matched exactly, so an eighth is added.
        if bounded == SizeMeasure::Items { self.refused } else { self.refused.saturating_add(self.refused / 8) }
    }
}

/// Returns the middle between the largest success and the smallest refusal: below the refusal, and
/// not below the success.
fn bisect(worked: u64, refused: u64) -> u64 {
    let worked = worked.min(refused);
    (worked + (refused - worked) / 2).min(refused.saturating_sub(1)).max(1)
}
