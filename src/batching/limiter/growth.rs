//! Largest batch after a jump: the size doubles as long as each one is cheaper per item than
//! unbatched calls.

use super::super::math::to_f64;

/// Bounds on the number of unbatched calls under the new limit from which the base is measured: as
/// many as the limit, within these.
const UNBATCHED_MIN: f64 = 3.0;
const UNBATCHED_MAX: f64 = 8.0;
/// Maximum cost of an item in a batch that pays, as a part of the cost of an item in an unbatched
/// call: a linear cost is 1, and the noise over three samples is 7 %.
const PAYS_MAX: f64 = 0.9;
/// A mean cost outside of these bounds is clear, so that few samples are enough.
const CONCLUSIVE_COST: (f64, f64) = (0.75, 0.97);
/// Number of samples for a conclusion about the first size that is tested, a pair of usual calls,
/// if their mean is clear, and if it is not.
const PAIR_SAMPLES: u32 = 3;
const UNCLEAR_PAIRS: u32 = 8;
/// The same for larger sizes.
const SIZE_SAMPLES: u32 = 1;
const UNCLEAR_SIZES: u32 = 3;
/// Maximum number of batches of the newest size in flight, as a part of the limit, so that few
/// calls are late if it does not pay.
const NEWEST_PART: f64 = 0.34;
/// Maximum number of executions since the base was measured, as a multiple of the limit, at which a
/// batch is rejected by it: if the server has become slower meanwhile, every batch looks expensive.
/// An older base is measured again. The second value applies to such a base.
const BASE_EXECUTIONS: (f64, f64) = (8.0, 64.0);

/// Largest batch allowed, and the measured cost of the newest size.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrowthRamp {
    /// Items; `u32::MAX` once all sizes are allowed.
    cap: u32,
    /// Latency of unbatched calls while the base is measured, in nanoseconds.
    unbatched: SampleMean,
    /// Number of items of these calls.
    unbatched_items: SampleMean,
    /// Cost of an item in batches of the newest size, as a part of the cost of an item in an
    /// unbatched call.
    cost: SampleMean,
    /// Executions since the base was measured.
    executions: u32,
    /// `true` if the base was measured again because a batch looked expensive beside an older one,
    /// or beside other cost classes.
    renewed: bool,
}

/// Mean of the first samples.
#[derive(Debug, Clone, Copy, Default)]
struct SampleMean {
    sum: f64,
    count: u32,
}

/// An unbatched call under the limit. Latencies are in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnbatchedBase {
    pub(super) latency: f64,
    /// Part of the latency in service.
    pub(super) service: f64,
    pub(super) items: f64,
}

/// Conclusion from a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum GrowthOutcome {
    /// No conclusion yet.
    Nothing,
    /// The base is known: latency and items of an unbatched call.
    Base { latency: f64, items: f64 },
    /// The next size is allowed.
    Larger,
    /// A batch does not pay.
    NoGain { ratio: f64 },
}

// === impl GrowthRamp ===

impl Default for GrowthRamp {
    /// All sizes are allowed at the start.
    fn default() -> Self {
        let none = SampleMean::default();
        Self { cap: u32::MAX, unbatched: none, unbatched_items: none, cost: none, executions: 0, renewed: false }
    }
}

impl GrowthRamp {
    /// Creates a state in which all sizes are allowed.
    pub(super) fn uncapped() -> Self {
        Self::default()
    }

    /// Creates a state in which only unbatched calls are allowed, until their latency is known.
    pub(super) fn unbatched_only() -> Self {
        Self { cap: 1, ..Self::uncapped() }
    }

    pub(super) fn cap(&self) -> u32 {
        self.cap
    }

    /// Returns `true` if the base was measured again under the same limit.
    pub(super) fn is_renewed(&self) -> bool {
        self.renewed
    }

    /// Starts to measure the base again.
    pub(super) fn renew(&mut self) {
        *self = Self { renewed: true, ..Self::unbatched_only() };
    }

    pub(super) fn is_uncapped(&self) -> bool {
        self.cap == u32::MAX
    }

    /// Returns `true` if a batch of this many items is of the newest size.
    pub(super) fn is_newest(&self, items: u32) -> bool {
        self.cap > 1 && !self.is_uncapped() && items > self.cap / 2
    }

    /// Returns the largest batch allowed while `newest` batches of the newest size are in flight.
    pub(super) fn cap_with_in_flight(&self, newest: u32, limit: f64) -> u32 {
        let most = (limit * NEWEST_PART).floor().max(1.0);
        if self.is_uncapped() || f64::from(newest) < most { self.cap } else { (self.cap / 2).max(1) }
    }

    /// Records an execution of this many items and calls that was sent under the limit, with its
    /// latency in nanoseconds. `items_max`: the largest batch that the limits allow.
    pub(super) fn observe(
        &mut self,
        (items, calls): (u32, u32),
        latency: f64,
        base: UnbatchedBase,
        limit: f64,
        items_max: u32,
    ) -> GrowthOutcome {
        if self.cap == 1 {
            return self.observe_unbatched(items, calls, latency, limit);
        }
        self.executions = self.executions.saturating_add(1);
        if self.is_uncapped() || calls < 2 || !self.is_newest(items) {
            return GrowthOutcome::Nothing;
        }
        // If the limit is above the server's own, unbatched calls have waited, and a batch among
        // them no longer than they have.
        let service = (latency - (base.latency - base.service)).max(0.0);
        self.cost.add(service / f64::from(items) / (base.service / base.items.max(1.0)).max(1.0));
        let is_first_size = f64::from(items) <= 2.0 * base.items.max(1.0);
        let ratio = self.cost.value();
        if self.cost.count < samples_needed(is_first_size, ratio) {
            return GrowthOutcome::Nothing;
        }
        self.cost = SampleMean::default();
        let executions_max = limit * if self.renewed { BASE_EXECUTIONS.1 } else { BASE_EXECUTIONS.0 };
        if ratio > PAYS_MAX && f64::from(self.executions) > executions_max {
            self.renew();
            return GrowthOutcome::Nothing;
        }
        if ratio > PAYS_MAX {
            return GrowthOutcome::NoGain { ratio };
        }
        if items < self.cap {
            return GrowthOutcome::Nothing;
        }
        self.renewed = false;
        self.cap = self.cap.saturating_mul(2);
        if self.cap > items_max {
            self.cap = u32::MAX;
        }
        GrowthOutcome::Larger
    }

    /// Records an unbatched call for the base. Once there are enough of them, batches of two such
    /// calls are allowed.
    fn observe_unbatched(&mut self, items: u32, calls: u32, latency: f64, limit: f64) -> GrowthOutcome {
        if calls != 1 {
            return GrowthOutcome::Nothing;
        }
        self.unbatched.add(latency);
        self.unbatched_items.add(f64::from(items));
        if f64::from(self.unbatched.count) < UNBATCHED_MIN.max(limit.min(UNBATCHED_MAX)) {
            return GrowthOutcome::Nothing;
        }
        let (latency, items) = (self.unbatched.value(), self.unbatched_items.value());
        self.cap = u32::try_from(super::super::math::round_to_u64((2.0 * items).ceil())).unwrap_or(u32::MAX).max(2);
        GrowthOutcome::Base { latency, items }
    }
}

/// Returns the number of samples that a conclusion requires. `is_first_size`: the batches are of
/// the first size that is tested; `ratio`: the mean cost of their items, relative to an unbatched
/// call.
fn samples_needed(is_first_size: bool, ratio: f64) -> u32 {
    let is_clear = ratio < CONCLUSIVE_COST.0 || ratio > CONCLUSIVE_COST.1;
    match (is_first_size, is_clear) {
        (true, true) => PAIR_SAMPLES,
        (true, false) => UNCLEAR_PAIRS,
        (false, true) => SIZE_SAMPLES,
        (false, false) => UNCLEAR_SIZES,
    }
}

// === impl SampleMean ===

impl SampleMean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn value(&self) -> f64 {
        self.sum / to_f64(u64::from(self.count.max(1)))
    }
}
