//! Ceilings of one cost class: batch size limits that the server publishes or that are learned from
//! its refusals.
//!
//! There are three ceilings: items, total weight, and padded weight (items × the heaviest item). A
//! "too large" response that names its limit sets the ceiling. One that does not is attributed to
//! the measure that grew most beyond the largest successful batch, and the ceiling is then found by
//! bisection between the largest success and the smallest refusal. An out-of-memory response halves
//! the ceiling at once, because another attempt is expensive. Learned ceilings are retested at
//! intervals that double; published ones are never retested.
//!
//! Left out: overload, which depends on load and not on size (`class`), and the decision whether
//! the members of a retest can afford it (`batcher::retest`).

mod cap;

use std::time::Duration;

use super::tick::Tick;
use cap::Cap;

/// The measure of a batch that a ceiling bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SizeMeasure {
    /// Number of items.
    Items,
    /// Total weight of all items.
    Weight,
    /// Number of items × the weight of the heaviest one.
    PaddedWeight,
}

/// The origin of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitSource {
    /// The user's policy.
    Policy,
    /// The server's own metadata.
    Published,
    /// A refusal of the server.
    Learned,
}

/// A ceiling of a cost class, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CeilingReport {
    /// Bounded measure.
    pub bounded: SizeMeasure,
    /// Maximum for a shared batch.
    pub max: u64,
    /// Origin of the ceiling.
    pub source: LimitSource,
    /// Time at which the ceiling took this value.
    pub since: Tick,
    /// Time of the next retest with a larger batch; `None` if it is never retested.
    pub retest: Option<Tick>,
}

/// A learned ceiling, for persistence across restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CeilingSnapshot {
    /// Bounded measure.
    pub bounded: SizeMeasure,
    /// Maximum for a shared batch.
    pub max: u64,
    /// Smallest refused size.
    pub refused: u64,
    /// Largest successful size.
    pub worked: u64,
    /// Set if the server named the ceiling or it reflects the server's memory: it is not refined by
    /// bisection.
    pub firm: bool,
    /// Interval to the next retest, in nanoseconds.
    pub retest_nanos: u64,
}

/// The size of a batch in each measure.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BatchExtent {
    pub(super) items: u32,
    /// Sum of the weights.
    pub(super) sum: u64,
    /// Weight of the heaviest item.
    pub(super) heaviest: u64,
}

/// The ceilings of one cost class.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ceilings {
    items: Cap,
    sum: Cap,
    padded: Cap,
}

// === impl BatchExtent ===

impl BatchExtent {
    /// Returns the size in one measure.
    pub(super) fn in_measure(self, bounded: SizeMeasure) -> u64 {
        match bounded {
            SizeMeasure::Items => u64::from(self.items),
            SizeMeasure::Weight => self.sum,
            SizeMeasure::PaddedWeight => self.heaviest.saturating_mul(u64::from(self.items)),
        }
    }
}

// === impl Ceilings ===

impl Ceilings {
    /// Returns the ceiling in one measure, or `u64::MAX` if none is known.
    pub(super) fn max(&self, bounded: SizeMeasure) -> u64 {
        self.cap(bounded).max()
    }

    /// Returns the smallest size that the server certainly refuses, or `u64::MAX` if there is none:
    /// one above the maximum that it published or named, or one for which it had no memory. A
    /// refusal that names no limit may have another cause, and a published weight does not count,
    /// since servers publish it for the batches that they form themselves.
    pub(super) fn refused_from(&self, bounded: SizeMeasure) -> u64 {
        let cap = self.cap(bounded);
        let published = if bounded == SizeMeasure::Items { cap.published_max() } else { u64::MAX };
        cap.firmly_refused_from().min(published.saturating_add(1))
    }

    /// Applies a published ceiling. The smallest published value is kept.
    pub(super) fn set_published(&mut self, now: Tick, bounded: SizeMeasure, max: u64) {
        self.cap_mut(bounded).set_published(now, max);
    }

    /// Applies a published ceiling on weight. There is one such limit, and it holds in the measure
    /// that currently determines the cost; that measure can change as costs are learned.
    pub(super) fn set_published_weight(&mut self, now: Tick, bounded: SizeMeasure, max: u64) {
        let other = if bounded == SizeMeasure::Weight { SizeMeasure::PaddedWeight } else { SizeMeasure::Weight };
        if let Some((known, since)) = self.cap_mut(other).take_published() {
            self.set_published(since, bounded, known);
        }
        self.set_published(now, bounded, max);
    }

    pub(super) fn on_success(&mut self, now: Tick, extent: BatchExtent) {
        for bounded in SizeMeasure::ALL {
            self.cap_mut(bounded).on_success(now, extent.in_measure(bounded));
        }
    }

    /// Records a shared batch that was too large. `retest` is the measure that the batch was sent
    /// to retest.
    pub(super) fn on_too_large(&mut self, now: Tick, extent: BatchExtent, retest: Option<SizeMeasure>, took: Duration) {
        let bounded = retest.unwrap_or_else(|| self.attribute_refusal(extent));
        self.cap_mut(bounded).on_refusal(now, extent.in_measure(bounded), took);
    }

    /// Records a batch with too many items for which the server named its limit.
    pub(super) fn on_named_limit(&mut self, now: Tick, items_max: u32, took: Duration) {
        self.items.on_named_limit(now, u64::from(items_max), took);
    }

    /// Records a shared batch that exceeded the server's memory. `bounded` is the measure that
    /// determines its cost.
    pub(super) fn on_out_of_memory(&mut self, now: Tick, extent: BatchExtent, bounded: SizeMeasure, took: Duration) {
        // Without weights the number of items is bounded instead.
        let bounded = if extent.in_measure(bounded) == 0 { SizeMeasure::Items } else { bounded };
        self.cap_mut(bounded).on_out_of_memory(now, extent.in_measure(bounded), took);
    }

    /// Ends a retest. If its outcome was inconclusive, the retest is scheduled again.
    pub(super) fn end_retest(&mut self, now: Tick, bounded: SizeMeasure) {
        self.cap_mut(bounded).end_retest(now);
    }

    /// Returns the first ceiling that is due for a retest: its measure, the maximum size of the
    /// retesting batch, and the duration of the last refusal.
    pub(super) fn due_retest(&self, now: Tick) -> Option<(SizeMeasure, u64, Duration)> {
        SizeMeasure::ALL.into_iter().find_map(|bounded| {
            self.cap(bounded).due_retest(now, bounded).map(|(target, took)| (bounded, target, took))
        })
    }

    pub(super) fn begin_retest(&mut self, bounded: SizeMeasure) {
        self.cap_mut(bounded).begin_retest();
    }

    /// Schedules a retest of all learned ceilings at once, because the server has changed.
    pub(super) fn on_server_change(&mut self, now: Tick) {
        for bounded in SizeMeasure::ALL {
            self.cap_mut(bounded).on_server_change(now);
        }
    }

    /// Iterates over the ceilings in force.
    pub(super) fn report(&self) -> impl Iterator<Item = CeilingReport> {
        SizeMeasure::ALL.into_iter().filter_map(|bounded| self.cap(bounded).report(bounded))
    }

    /// Iterates over the learned ceilings, for persistence.
    pub(super) fn snapshot(&self) -> impl Iterator<Item = CeilingSnapshot> {
        SizeMeasure::ALL.into_iter().filter_map(|bounded| self.cap(bounded).snapshot(bounded))
    }

    /// Restores a ceiling learned by an earlier process; invalid values are clamped. It is retested
    /// early, because the server may have changed.
    pub(super) fn restore(&mut self, now: Tick, snapshot: &CeilingSnapshot) {
        self.cap_mut(snapshot.bounded).restore(now, snapshot);
    }

    /// Attributes a refusal without a named limit to the measure that grew most beyond its largest
    /// success, or to items if the two measures grew equally. Items are not always to blame if
    /// there are more of them than ever succeeded: while sizes still grow that is always so, and a
    /// limit on tokens would stay hidden behind it.
    fn attribute_refusal(&self, extent: BatchExtent) -> SizeMeasure {
        let (items, sum) = (u128::from(extent.items), u128::from(extent.sum));
        let (items_worked, sum_worked) =
            (u128::from(self.items.largest_success()), u128::from(self.sum.largest_success()));
        let grew = items * sum_worked >= sum * items_worked;
        if sum <= sum_worked || items > items_worked && grew { SizeMeasure::Items } else { SizeMeasure::Weight }
    }

    fn cap(&self, bounded: SizeMeasure) -> &Cap {
        match bounded {
            SizeMeasure::Items => &self.items,
            SizeMeasure::Weight => &self.sum,
            SizeMeasure::PaddedWeight => &self.padded,
        }
    }

    fn cap_mut(&mut self, bounded: SizeMeasure) -> &mut Cap {
        match bounded {
            SizeMeasure::Items => &mut self.items,
            SizeMeasure::Weight => &mut self.sum,
            SizeMeasure::PaddedWeight => &mut self.padded,
        }
    }
}

// === impl SizeMeasure ===

impl SizeMeasure {
    /// All measures.
    pub const ALL: [Self; 3] = [Self::Items, Self::Weight, Self::PaddedWeight];

    /// Returns the name of the limit, as in the policy and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Items => "batch_items_max",
            Self::Weight => "batch_weight_max",
            Self::PaddedWeight => "batch_padded_weight_max",
        }
    }
}

// === impl LimitSource ===

impl LimitSource {
    /// Returns the value of the metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Published => "published",
            Self::Learned => "learned",
        }
    }
}

#[cfg(test)]
mod tests;
