//! An estimator of the arrival process: the arrival rate, and the arrivals that a completion or a
//! first call causes.
//!
//! The rate selects the load at which the plan is read. The two profiles show when a short hold
//! pays: clients that wait for an answer return soon after it (a closed loop), and the first item
//! of a burst announces the others (a fan-out). Both are learned as arrivals *in excess of* the
//! mean rate in bins after an event. A stream of independent arrivals has no excess, so nothing is
//! held for it.
//!
//! Left out: the decision to hold (`hold`), seasonality and forecasts, and timers. An estimate
//! ages when it is updated or read.

use super::math::{exp, round_to_u64, to_f64};
use super::tick::Tick;

/// Length of the rate window, in mean executions.
const WINDOW_TIMES: u64 = 8;
/// Minimum length of the rate window, in nanoseconds (20 ms).
const WINDOW_MIN: u64 = 20_000_000;

/// Number of bins of a profile.
const BINS: usize = 17;
/// Edges of the bins, in nanoseconds after the event: 0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2, 3,
/// 5, 8, 12, 20, 30, 50, 80 and 120 ms.
pub(super) const EDGES: [u64; BINS + 1] = [
    0,
    50_000,
    100_000,
    200_000,
    300_000,
    500_000,
    800_000,
    1_200_000,
    2_000_000,
    3_000_000,
    5_000_000,
    8_000_000,
    12_000_000,
    20_000_000,
    30_000_000,
    50_000_000,
    80_000_000,
    120_000_000,
];
/// Decay factor of the sums of a profile at each event: about 33 events are remembered.
const DECAY: f64 = 0.97;
/// Minimum coverage of a bin, in events, before its values are used.
const COVERAGE_MIN: f64 = 0.5;
/// Maximum ratio of observed to expected arrivals that is used. A mean rate near zero would
/// otherwise predict any number.
const RATIO_MAX: f64 = 1000.0;

/// Number of completions in a window over which the maximum number of items present is taken.
const PEAK_EVENTS: u32 = 8;
/// Number of earlier windows that are considered. Together they cover as many completions as the
/// profiles remember. With fewer, a mean rate that is still rising would mistake chance arrivals
/// for caused ones; with this bound, clients that have left are soon no longer counted.
const PEAKS: usize = 4;
/// Minimum share of the answered items that must be followed, within one execution, by arrivals in
/// excess of the mean rate for the loop to count as closed. Independent arrivals reach about a
/// tenth by chance over the remembered events.
const CLOSED_MIN: f64 = 0.25;
/// Required steadiness of the maximum for the loop to count as closed: over all windows it varies
/// by at most one part in this number. Independent arrivals fluctuate more.
const CLOSED_STEADY: u64 = 8;
/// If more than one item in this number of answered ones expires as late, the windows are reset:
/// the items present are then bounded by what can be served in time, not by the number of clients.
const EXPIRED_PARTS: u64 = 16;
/// Minimum share of the absent items that are not expected back yet. It keeps a measured return
/// share near 1 from being read as certainty.
const AWAY_MIN: f64 = 0.05;

/// An arrival rate in thousandths of an item per second. An integer of this resolution covers the
/// slowest rate that matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct ArrivalRate(pub(super) u64);

/// The arrival statistics of one merge key.
#[derive(Debug, Clone, Default)]
pub(super) struct ArrivalEstimator {
    /// Exponentially decayed count of arrived items.
    weight: f64,
    /// Instant of the last arrival, to which `weight` applies.
    latest: Tick,
    /// Arrivals after a completion.
    returns: ArrivalProfile,
    /// Arrivals after an arrival at an idle upstream.
    fan_outs: ArrivalProfile,
    /// Maximum number of items present at once, queued or in flight: in the current window,
    /// followed by the previous ones.
    peaks: [u64; 1 + PEAKS],
    /// Number of completions in the current window.
    completions: u32,
    /// Number of answered items in the current window.
    answered: u64,
    /// Number of expired items in the current window.
    expired: u64,
}

/// A histogram of arrivals by the time since the last event of one kind, per item of the event.
#[derive(Debug, Clone, Default)]
pub(super) struct ArrivalProfile {
    bins: [Bin; BINS],
    event: Option<ProfileEvent>,
}

/// Arrivals in one interval of time after an event. All sums decay with each event that reaches the
/// bin.
#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    /// Arrivals in excess of the mean rate, per item of the event, summed over the remembered
    /// events.
    caused: f64,
    /// Number of events that covered the bin completely. An event cut short by the next one counts
    /// in part.
    watched: f64,
    /// Number of arrived items.
    arrived: f64,
    /// Number of items expected at the mean rate.
    usual: f64,
    /// Items of the events that covered the bin.
    items: f64,
    /// Number of items that arrived since the current event. They are added to the sums when the
    /// next one begins.
    present: u64,
}

/// A completion, or an arrival at an idle upstream.
#[derive(Debug, Clone, Copy)]
struct ProfileEvent {
    at: Tick,
    items: u32,
    /// Mean arrival rate at that instant.
    rate: ArrivalRate,
}

// === impl ArrivalRate ===

impl ArrivalRate {
    /// Returns the expected number of items within a time span, in thousandths.
    pub(super) fn items_within(self, nanos: u64) -> u64 {
        let items = u128::from(self.0) * u128::from(nanos) / 1_000_000_000;
        u64::try_from(items).unwrap_or(u64::MAX)
    }

    /// Returns the rate divided evenly among the slots.
    pub(super) fn per_slot(self, slots: u32) -> Self {
        Self(self.0 / u64::from(slots.max(1)))
    }

    /// Returns the mean time between two items, in nanoseconds.
    pub(super) fn mean_interval(self) -> u64 {
        1_000_000_000_000u64.checked_div(self.0).unwrap_or(u64::MAX)
    }
}

// === impl ArrivalEstimator ===

impl ArrivalEstimator {
    /// Records an arrival. If `idle` is set, nothing was queued or in flight before it, so the call
    /// may be the first of a burst. `mean_time` is T, in nanoseconds.
    pub(super) fn on_arrival(&mut self, now: Tick, items: u32, idle: bool, mean_time: u64) {
        self.weight = self.decayed_weight(now, mean_time) + f64::from(items);
        self.latest = now;
        if idle {
            // Counts as one event whatever its number of items: the profile describes the calls
            // that follow.
            self.fan_outs.start(now, 1, self.rate(now, mean_time));
        } else {
            self.fan_outs.count_arrival(now, items);
        }
        self.returns.count_arrival(now, items);
    }

    /// Records a completed batch of this many items.
    pub(super) fn on_completion(&mut self, now: Tick, items: u32, mean_time: u64) {
        self.returns.start(now, items, self.rate(now, mean_time));
        self.completions += 1;
        self.answered += u64::from(items);
        if self.completions < PEAK_EVENTS {
            return;
        }
        self.peaks.rotate_right(1);
        self.peaks[0] = 0;
        if self.expired > self.answered / EXPIRED_PARTS {
            self.peaks = [0; 1 + PEAKS];
        }
        (self.completions, self.answered, self.expired) = (0, 0, 0);
    }

    /// Records the number of items that are queued or in flight.
    pub(super) fn record_present(&mut self, items: u64) {
        self.peaks[0] = self.peaks[0].max(items);
    }

    /// Records items that expired as late.
    pub(super) fn on_expiry(&mut self, items: u32) {
        self.expired += u64::from(items);
    }

    /// Returns the number of recently present items that are absent now, or `None` if the clients
    /// do not form a closed loop.
    pub(super) fn absent_items(&self, here: u64, mean_time: u64) -> Option<u64> {
        let [present, before @ ..] = self.peaks;
        let (least, most) =
            before.into_iter().fold((u64::MAX, present), |(least, most), peak| (least.min(peak), most.max(peak)));
        // With a constant number of clients that wait for answers, every window has about the same
        // maximum, and answers cause arrivals.
        let is_closed = least > 0
            && most - least <= most / CLOSED_STEADY
            && self.returns.max_excess_arrivals(mean_time) >= CLOSED_MIN;
        is_closed.then(|| most.saturating_sub(here))
    }

    /// Returns λ, the arrival rate over an exponential window.
    pub(super) fn rate(&self, now: Tick, mean_time: u64) -> ArrivalRate {
        ArrivalRate(round_to_u64(self.decayed_weight(now, mean_time) / to_f64(window(mean_time)) * 1e12))
    }

    /// Returns the profile of arrivals after a completion, per item of it.
    pub(super) const fn returns(&self) -> &ArrivalProfile {
        &self.returns
    }

    /// Returns the profile of arrivals after an arrival at an idle upstream.
    pub(super) const fn fan_outs(&self) -> &ArrivalProfile {
        &self.fan_outs
    }

    fn decayed_weight(&self, now: Tick, mean_time: u64) -> f64 {
        let age = now.0.saturating_sub(self.latest.0);
        self.weight * exp(-to_f64(age) / to_f64(window(mean_time)))
    }
}

// === impl ArrivalProfile ===

impl ArrivalProfile {
    /// Returns the time since the current event, in nanoseconds, and its number of items.
    pub(super) fn current_event(&self, now: Tick) -> Option<(u64, u32)> {
        self.event.map(|event| (now.0.saturating_sub(event.at.0), event.items))
    }

    /// Returns the number of arrivals, in thousandths, that an event of `items` items causes
    /// between two offsets from it. Returns 0 if there are fewer arrivals than the mean rate
    /// predicts.
    pub(super) fn caused_arrivals(&self, items: u32, from: u64, to: u64) -> u64 {
        let each = self.sum(from, to, |bin, part, _| part * bin.caused / bin.watched);
        round_to_u64(each * f64::from(items) * 1000.0)
    }

    /// Returns the number of arrivals expected between two offsets at this mean rate, in
    /// thousandths: more than the rate alone predicts where arrivals cluster, fewer elsewhere.
    pub(super) fn expected_arrivals(&self, rate: ArrivalRate, from: u64, to: u64) -> u64 {
        let relative = self.sum(from, to, |bin, part, width| part * width * bin.relative());
        round_to_u64(relative * per_nano(rate) * 1000.0)
    }

    /// Returns the probability that an item that has not returned `from` nanoseconds after its
    /// answer returns by `to`.
    pub(super) fn return_probability(&self, from: u64, to: u64) -> f64 {
        // Conditional probability: the share that returns in the interval, of the share that is
        // away at its start.
        let share = |from, to| self.sum(from, to, |bin, part, _| part * bin.arrived / bin.items);
        (share(from, to) / (1.0 - share(0, from)).max(AWAY_MIN)).min(1.0)
    }

    /// Returns the maximum cumulative number of arrivals in excess of the mean rate up to any time
    /// within `within`, per answered item.
    fn max_excess_arrivals(&self, within: u64) -> f64 {
        let ended = self.bins.iter().zip(spans()).take_while(|(_, (start, width))| start + width <= within);
        let each =
            ended.filter(|(bin, _)| bin.watched > COVERAGE_MIN).map(|(bin, _)| (bin.arrived - bin.usual) / bin.items);
        let so_far = each.scan(0.0, |sum, caused| {
            *sum += caused;
            Some(*sum)
        });
        so_far.fold(0.0, f64::max)
    }

    /// Ends the current event and begins the next one.
    fn start(&mut self, now: Tick, items: u32, rate: ArrivalRate) {
        if let Some(event) = self.event {
            self.learn(now, event);
        }
        for bin in &mut self.bins {
            bin.present = 0;
        }
        self.event = Some(ProfileEvent { at: now, items: items.max(1), rate });
    }

    /// Counts an arrival in the bin of the time since the current event.
    fn count_arrival(&mut self, now: Tick, items: u32) {
        let Some((offset, _)) = self.current_event(now) else { return };
        // A bin includes its upper edge and excludes its lower one: a call that arrives at the very
        // instant of the event is already queued and predicts nothing.
        let index = EDGES.partition_point(|edge| *edge < offset);
        if let Some(bin) = index.checked_sub(1).and_then(|index| self.bins.get_mut(index)) {
            bin.present += u64::from(items);
        }
    }

    /// Adds an event that ends now to the sums of the bins that it covers.
    fn learn(&mut self, now: Tick, event: ProfileEvent) {
        let elapsed = now.0.saturating_sub(event.at.0);
        for (bin, (start, width)) in self.bins.iter_mut().zip(spans()) {
            if elapsed <= start {
                break;
            }
            let part = (to_f64(elapsed - start) / to_f64(width)).min(1.0);
            let usual = per_nano(event.rate) * part * to_f64(width);
            let arrived = to_f64(bin.present);
            bin.caused = DECAY * bin.caused + (arrived - usual) / f64::from(event.items);
            bin.arrived = DECAY * bin.arrived + arrived;
            bin.usual = DECAY * bin.usual + usual;
            bin.items = DECAY * bin.items + part * f64::from(event.items);
            bin.watched = DECAY * bin.watched + part;
        }
    }

    /// Sums `value` over the bins between two offsets. `value` is called with the bin, the share of
    /// the bin between the offsets, and the width of the bin.
    fn sum(&self, from: u64, to: u64, value: impl Fn(&Bin, f64, f64) -> f64) -> f64 {
        let mut sum = 0.0;
        for (bin, (start, width)) in self.bins.iter().zip(spans()) {
            let covered = to.min(start + width).saturating_sub(from.max(start));
            if covered > 0 && bin.watched > COVERAGE_MIN {
                sum += value(bin, to_f64(covered) / to_f64(width), to_f64(width));
            }
        }
        sum
    }
}

// === impl Bin ===

impl Bin {
    /// Returns the ratio of the observed to the expected arrivals.
    fn relative(&self) -> f64 {
        if self.usual > 0.0 { (self.arrived / self.usual).min(RATIO_MAX) } else { 1.0 }
    }
}

/// Returns the length of the rate window, in nanoseconds.
fn window(mean_time: u64) -> u64 {
    mean_time.saturating_mul(WINDOW_TIMES).max(WINDOW_MIN)
}

/// Returns a rate in items per nanosecond.
fn per_nano(rate: ArrivalRate) -> f64 {
    to_f64(rate.0) / 1e12
}

/// Iterates over the start and the width of each bin.
fn spans() -> impl Iterator<Item = (u64, u64)> {
    EDGES.iter().zip(EDGES.iter().skip(1)).map(|(start, end)| (*start, end - start))
}

#[cfg(test)]
mod tests;
