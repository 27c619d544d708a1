//! The ceiling in one measure: the smaller of a published and a learned one.
//!
//! A learned one lies between the largest success and the smallest refusal. Each of them moves it,
//! and schedules its next retest.

use std::time::Duration;

use super::super::tick::{Tick, nanos};
use super::{CeilingReport, CeilingSnapshot, LimitSource, SizeMeasure};

/// Interval before the first retest of a ceiling found by bisection. A refused batch costs well
/// below one execution, and a ceiling that no longer exists costs throughput every second
/// (`groupage simulate --scenario "ceiling lifted"`), so retests start early. The interval doubles,
/// which makes ten retests in the first quarter of an hour.
const RETEST_FOUND: Duration = Duration::from_secs(1);
/// Interval before the first retest of a ceiling that the server named, or that reflects its
/// memory. The first is reliable, and a retest of the second may crash the server.
const RETEST_FIRM: Duration = Duration::from_secs(600);
/// Maximum interval between retests.
const RETEST_MAX: Duration = Duration::from_secs(24 * 3600);

/// The ceiling in one measure.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cap {
    /// Largest successful size; 0 before the first success, or once it is known to stem from
    /// another server.
    worked: u64,
    /// The published ceiling, and the time at which it took its value.
    published: Option<(u64, Tick)>,
    learned: Option<LearnedCap>,
}

/// A ceiling that refusals showed, and the schedule of its retests.
#[derive(Debug, Clone, Copy)]
struct LearnedCap {
    /// The ceiling.
    max: u64,
    /// Smallest refused size.
    refused: u64,
    /// `true` if the server named the ceiling or it reflects the server's memory: it is not refined
    /// by bisection.
    firm: bool,
    /// Instant at which `max` took its value.
    since: Tick,
    /// Instant of the next retest.
    retest: Tick,
    /// Interval to the next retest.
    wait: Duration,
    /// Time that the server took to refuse.
    took: Duration,
    /// `true` while a retest is in flight.
    testing: bool,
}

// === impl Cap ===

impl Cap {
    /// Returns the ceiling, or `u64::MAX` if none is known.
    pub(super) fn max(&self) -> u64 {
        self.learned.map_or(u64::MAX, |learned| learned.max).min(self.published_max())
    }

    /// Returns the published ceiling, or `u64::MAX` if there is none.
    pub(super) fn published_max(&self) -> u64 {
        self.published.map_or(u64::MAX, |(max, _)| max)
    }

    /// Returns the largest successful size, or 0 if none is known.
    pub(super) const fn largest_success(&self) -> u64 {
        self.worked
    }

    /// Returns the smallest size that the server certainly refuses, as learned from its refusals,
    /// or `u64::MAX` if there is none.
    pub(super) fn firmly_refused_from(&self) -> u64 {
        self.learned.filter(|learned| learned.firm).map_or(u64::MAX, |learned| learned.refused)
    }

    /// Applies a published ceiling. The smallest published value is kept.
    pub(super) fn set_published(&mut self, now: Tick, max: u64) {
        if self.published.is_none_or(|(known, _)| max < known) {
            self.published = Some((max.max(1), now));
        }
    }

    /// Removes the published ceiling, and returns it with the time at which it took its value.
    pub(super) const fn take_published(&mut self) -> Option<(u64, Tick)> {
        self.published.take()
    }

    pub(super) fn on_success(&mut self, now: Tick, size: u64) {
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

    /// Records a refusal that names no limit.
    pub(super) fn on_refusal(&mut self, now: Tick, size: u64, took: Duration) {
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

    /// Records a refusal that names its limit.
    pub(super) fn on_named_limit(&mut self, now: Tick, limit: u64, took: Duration) {
        self.worked = self.worked.min(limit);
        let again = self.learned.filter(|known| known.max <= limit);
        let max = again.map_or(limit, |known| known.max);
        let refused = again.map_or(limit.saturating_add(1), |known| known.refused.min(limit.saturating_add(1)));
        let firm = again.is_none_or(|known| known.firm || known.max == limit);
        self.learn(now, LearnedCap { max, refused, firm, took, ..LearnedCap::new(now) }, again);
    }

    /// Records a size that exceeded the server's memory.
    pub(super) fn on_out_of_memory(&mut self, now: Tick, size: u64, took: Duration) {
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

    /// Returns the maximum size of a retesting batch and the duration of the last refusal, if a
    /// retest is due.
    pub(super) fn due_retest(&self, now: Tick, bounded: SizeMeasure) -> Option<(u64, Duration)> {
        let learned = self.learned.filter(|learned| !learned.testing && learned.retest <= now)?;
        let target = learned.retest_size(bounded).min(self.published_max());
        (target > learned.max).then_some((target, learned.took))
    }

    /// Records that a retest was dispatched.
    pub(super) const fn begin_retest(&mut self) {
        if let Some(learned) = &mut self.learned {
            learned.testing = true;
        }
    }

    /// Ends a retest. If its outcome was inconclusive, the retest is scheduled again.
    pub(super) fn end_retest(&mut self, now: Tick) {
        if let Some(learned) = self.learned.as_mut().filter(|learned| learned.testing) {
            learned.testing = false;
            learned.retest = now.after(learned.wait);
        }
    }

    /// Schedules a retest at once, because the server has changed.
    pub(super) const fn on_server_change(&mut self, now: Tick) {
        if let Some(learned) = &mut self.learned {
            learned.retest = now;
            learned.wait = RETEST_FOUND;
            learned.testing = false;
        }
    }

    /// Returns the ceiling in force, for reports.
    pub(super) fn report(&self, bounded: SizeMeasure) -> Option<CeilingReport> {
        let published = self.published.map(|(max, since)| (max, since, LimitSource::Published, None));
        let learned = self.learned.map(|known| (known.max, known.since, LimitSource::Learned, Some(known.retest)));
        let least = published.into_iter().chain(learned).min_by_key(|(max, ..)| *max);
        least.map(|(max, since, source, retest)| CeilingReport { bounded, max, source, since, retest })
    }

    /// Returns the learned ceiling, for persistence.
    pub(super) fn snapshot(&self, bounded: SizeMeasure) -> Option<CeilingSnapshot> {
        self.learned.map(|learned| CeilingSnapshot {
            bounded,
            max: learned.max,
            refused: learned.refused,
            worked: self.worked,
            firm: learned.firm,
            retest_nanos: nanos(learned.wait),
        })
    }

    /// Restores a ceiling learned by an earlier process; invalid values are clamped. It is retested
    /// early, because the server may have changed.
    pub(super) fn restore(&mut self, now: Tick, snapshot: &CeilingSnapshot) {
        let wait = Duration::from_nanos(snapshot.retest_nanos).clamp(RETEST_FOUND, RETEST_MAX);
        let max = snapshot.max.max(1);
        self.worked = self.worked.max(snapshot.worked.min(max));
        self.learned = Some(LearnedCap {
            max,
            refused: snapshot.refused.max(max.saturating_add(1)),
            firm: snapshot.firm,
            since: now,
            retest: now.after(wait.min(RETEST_FIRM)),
            wait,
            took: Duration::ZERO,
            testing: false,
        });
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
    fn retest_size(&self, bounded: SizeMeasure) -> u64 {
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
