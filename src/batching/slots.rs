//! An estimator of the upstream's concurrency (its slots) and of the lead by which the next batch
//! may be dispatched early.
//!
//! The number of slots of an upstream is neither configured nor reported. It is inferred from the
//! duration of batches that were sent while others were in flight. A batch that took no longer than
//! alone ran beside them. One that took longer by the time until the first of them completed was
//! queued. Values in between are free overlap, such as host work before and after the device's
//! work. One measurement therefore yields both the slots and the *lead*: the time by which the next
//! batch may be dispatched before another one completes. Now and then a batch is dispatched earlier
//! than the lead allows, to explore whether that is still too late.
//!
//! A slot can also vanish, which shows in the same way: batches sent to it complete late by just
//! the wait for another one.
//!
//! Left out: the execution time of a batch alone (`cost`), the use of a slot (`hold`, `plan`),
//! slots that a policy holds back, and unequal slots: all slots of an upstream are taken to be
//! alike.

mod snapshot;
mod observation;

pub(super) use observation::{SampleUse, SlotFlight};
pub use snapshot::UpstreamSnapshot;

use observation::{SlotObservation, WAITED_MAX};

use super::math::{round_to_u64, to_f64};
use super::rng::SplitMix64;
use super::tick::Tick;

/// Maximum number of slots, whatever the configured limit is. It bounds the memory per upstream.
pub(super) const COUNT_MAX: u32 = 64;
const COUNT_LEN: usize = 64;

// The fractions below are relative to T (the mean execution time), to the execution time of the
// batch itself, or to a *turn*: the execution time of the batch, divided by the number of other
// batches in flight. A turn is the mean time between two completions of these others. The *possible
// wait* of a batch is the time from its dispatch until the first of the others completes.

/// Number of samples of the cost curve from which on a lead is used.
const SAMPLES_MIN: u64 = 8;

/// Minimum lead that is used, in T. A shorter one would cost clean samples and save nothing.
const LEAD_MIN: f64 = 0.04;
/// Share of the lead that is used, so that noise does not make a batch wait upstream.
const LEAD_USED: f64 = 0.9;
/// Share of the lead that is used in backlog, where a wait upstream delays no call.
const LEAD_USED_BACKLOG: f64 = 1.0;
/// Additional lead of an exploring batch, in T.
const EXPLORE_LEAD: f64 = 0.3;
/// Additional lead after this many consecutive hits, in T, to see whether the batch runs beside the
/// others for most of its time.
const EXPLORE_LEAD_LONG: f64 = 0.7;
const LONG_AFTER: u32 = 2;
/// With one slot, share of the completions after which the next batch is sent alone, and that share
/// in backlog: the cost curve needs samples without overlap.
const CLEAN: f64 = 0.07;
const CLEAN_BACKLOG: f64 = 0.02;

/// Minimum possible wait of a batch for it to be evidence about its slot, as a share of its
/// execution time, or of a turn if many batches are in flight.
const JUDGED_WAIT: f64 = 0.2;
const JUDGED_WAIT_TURN: f64 = 0.5;
/// Maximum number of slots for which batches are evidence. With more slots, a wait is shorter than
/// the noise of an execution.
const JUDGED_COUNT_MAX: u32 = 16;
/// Initial doubt about a slot: the expected share of the possible wait that its batches wait.
const DOUBT_START: f64 = 0.3;
/// EWMA weight of a new observation in the doubt.
const DOUBT_WEIGHT: f64 = 0.1;
/// A slot is considered gone after more than this many observations if its doubt exceeds the
/// maximum.
const DOUBT_COUNT: u32 = 10;
const DOUBT_MAX: f64 = 0.8;
/// Maximum doubt about a slot, including the current batch, at which its batches are samples of the
/// cost curve; a new slot is below it. A batch on a doubtful slot may have waited upstream. A curve
/// that learns this wait takes the slot for real, then the next one too: in front of a server with
/// 4 slots, with wake-ups that are 1 ms late, this led to 8 and more slots, and to twice the
/// latency.
const DOUBT_SAMPLED: f64 = 0.4;
/// EWMA weight and rounding offset of the number of slots that ran concurrently, starting from all
/// slots in use. The rounded value is the number of slots left after some have vanished. Several
/// often vanish at once; removing them one by one would repeat the detection time for each, while
/// batches queue upstream.
const BESIDE_WEIGHT: f64 = 0.3;
const BESIDE_UP: f64 = 0.1;
/// Lead after a slot has vanished, in turns: its batches had some overlap.
const LEAD_AFTER_VANISH: f64 = 0.2;

/// An exploring batch is a hit if it waited for less than this share of the possible wait.
const HIT: f64 = 0.3;
/// Number of consecutive hits that prove a slot, if the last one ran beside all others for at least
/// this share of its execution time, or of a turn if many batches are in flight.
const HITS: u32 = 3;
const HIT_BESIDE: f64 = 0.5;
const HIT_BESIDE_TURN: f64 = 0.8;
/// A lead longer than this share of a turn also proves a slot.
const LEAD_IS_SLOT: f64 = 0.6;
/// Lead after a slot has been found, in turns.
const LEAD_AFTER_FOUND: f64 = 0.1;
/// Share of the error by which the lead is corrected while little is known. Later the share is one
/// part in the number of tries, but at least the minimum.
const GAIN: f64 = 0.3;
const GAIN_MIN: f64 = 0.1;
/// Little is known while the exploration probability exceeds this value.
const GAIN_EXPLORE: f64 = 0.15;
/// Maximum correction of the lead by one measurement, as a share of the execution time.
const STEP_MAX: f64 = 0.5;
/// Minimum lead, as a share of the execution time. It is slightly negative, because noise around
/// zero would otherwise push the lead up.
const LEAD_FLOOR: f64 = -0.05;

/// Probability that a completion is followed by an exploring batch: its initial value, its minimum,
/// its factor and increment after a hit, and its factor after a miss.
const EXPLORE_START: f64 = 0.5;
const EXPLORE_MIN: f64 = 0.03;
const EXPLORE_HIT: (f64, f64) = (1.5, 0.1);
const EXPLORE_MISS: f64 = 0.85;

/// Minimum possible wait, as a share of the execution time, of a batch within the lead for it to be
/// evidence that the lead is too long.
const EXCESS_WAIT: f64 = 0.05;
/// EWMA weight of a new observation of such a wait.
const EXCESS_WEIGHT: f64 = 0.1;
/// The lead is too long if the mean exceeds this value.
const EXCESS_MAX: f64 = 0.5;
/// Factor by which a lead that is too long is cut.
const EXCESS_CUT: f64 = 0.7;

/// The learned slots and lead of one upstream.
///
/// # Properties
/// The number in flight stays at or below the learned number plus one, and at or below `slots_max`.
/// There is always at least one slot.
#[derive(Debug, Clone)]
pub(super) struct SlotEstimator {
    /// Number of slots, whatever the configured limit is.
    count: u32,
    /// Configured maximum number of batches in flight.
    slots_max: u32,
    /// Lead in nanoseconds; may be slightly negative.
    lead: f64,
    /// Doubts by the number of other batches in flight.
    doubts: [SlotEvidence; COUNT_LEN],
    /// Probability that the next batch explores.
    explore: f64,
    /// Number of exploring batches that returned.
    tries: u32,
    /// Number of consecutive exploring batches that were hits.
    hits: u32,
    /// EWMA of the share of the possible wait that batches within the lead waited.
    excess: f64,
    /// Random draws for the next dispatch, made once per completion on first use.
    drawn: Option<RandomDraws>,
}

/// Evidence about the slot that is used beside this many others.
#[derive(Debug, Clone, Copy)]
struct SlotEvidence {
    /// The doubt: EWMA of the share of the possible wait that batches on the slot waited, from
    /// about 0 for a slot that exists to slightly above 1.
    wait: f64,
    /// Number of observations.
    count: u32,
    /// EWMA of the number of slots that ran concurrently.
    beside: f64,
}

/// Random decisions about the next batch.
#[derive(Debug, Clone, Copy)]
struct RandomDraws {
    /// The next batch gets a longer lead.
    explore: bool,
    /// The next batch is sent alone.
    clean: bool,
}

/// Inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotInputs {
    /// Batches in flight.
    pub(super) in_flight: u32,
    /// Expected completion of the first of them.
    pub(super) earliest_due: Option<Tick>,
    /// Configured maximum number of batches in flight.
    pub(super) slots_max: u32,
    /// Number of samples of the cost curve.
    pub(super) samples: u64,
    /// T: the running mean of execution times, in nanoseconds.
    pub(super) mean_time: u64,
    /// `true` if the last dispatch left at least another batch of its size in the queue.
    pub(super) backlog: bool,
}

/// The availability of a slot for another batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotAvailability {
    /// Available now.
    Free,
    /// Available at this instant, if no batch completes before.
    At(Tick),
    /// Not available before a batch completes.
    Busy,
}

// === impl SlotEstimator ===

impl SlotEstimator {
    pub(super) const fn new() -> Self {
        Self {
            count: 1,
            slots_max: u32::MAX,
            lead: 0.0,
            doubts: [SlotEvidence::NONE; COUNT_LEN],
            explore: EXPLORE_START,
            tries: 0,
            hits: 0,
            excess: 0.0,
            drawn: None,
        }
    }

    /// Returns C, the number of slots in use.
    pub(super) fn in_use(&self) -> u32 {
        self.count.min(self.slots_max)
    }

    /// Sets the number of slots found by the limiter. Doubts about another number do not apply to
    /// it.
    pub(super) fn set_count(&mut self, count: u32) {
        if self.count != count.max(1) {
            self.count = count.max(1);
            self.doubts = [SlotEvidence::NONE; COUNT_LEN];
            self.hits = 0;
        }
    }

    /// Returns the lead in nanoseconds.
    pub(super) fn lead(&self) -> u64 {
        round_to_u64(self.lead)
    }

    /// Resets to one slot and discards everything learned, because the upstream has changed.
    pub(super) fn forget(&mut self) {
        *self = Self { slots_max: self.slots_max, ..Self::new() };
    }

    /// Decides whether another batch may be dispatched now, and if not, at what time to decide
    /// again.
    pub(super) fn decide(&mut self, now: Tick, view: SlotInputs, draw: &mut SplitMix64) -> SlotAvailability {
        self.slots_max = view.slots_max.max(1);
        let count = self.in_use();
        if view.in_flight < count {
            return SlotAvailability::Free;
        }
        let Some(due) = view.earliest_due else { return SlotAvailability::Busy };
        // At most one batch is sent beyond the learned slots, and only once the cost curve is
        // known.
        if view.in_flight > count || view.in_flight >= self.slots_max || view.samples < SAMPLES_MIN {
            return SlotAvailability::Busy;
        }
        let drawn = self.drawn(view.backlog, draw);
        let lead = self.next_lead(drawn, view);
        // Without a lead, or if a clean sample is due, the next batch waits for a completion.
        if lead == 0 || drawn.clean && count == 1 {
            return SlotAvailability::Busy;
        }
        let at = Tick(due.0.saturating_sub(lead));
        if now >= at { SlotAvailability::Free } else { SlotAvailability::At(at) }
    }

    /// Records the dispatch of a batch while this many others are in flight.
    pub(super) fn on_dispatch(&self, now: Tick, others: u32) -> SlotFlight {
        let explores = others >= self.in_use() && self.drawn.is_some_and(|drawn| drawn.explore);
        SlotFlight { sent: now, others, explores, returns: [None; observation::RETURNS_MAX] }
    }

    /// Records a successful batch that would take `expected` nanoseconds alone, and returns its use
    /// as a sample. Not to be called for batches that were sent regardless of these decisions
    /// (probes, forwarded calls, isolation).
    pub(super) fn on_completion(&mut self, now: Tick, flight: &SlotFlight, expected: u64) -> SampleUse {
        self.drawn = None;
        if flight.others == 0 {
            return SampleUse::Lone;
        }
        let observation = SlotObservation::new(now, flight, expected);
        if flight.others < self.in_use() {
            self.judge_slot(flight.others, observation);
            let doubted = self.doubt(flight.others).is_some_and(|doubt| doubt.wait > DOUBT_SAMPLED);
            return if doubted || observation.is_late() { SampleUse::No } else { SampleUse::Beside };
        }
        if flight.explores {
            self.learn_from_exploration(observation);
        } else {
            self.judge_lead(observation);
        }
        SampleUse::No
    }

    /// Returns the time that a batch sent now is expected to wait upstream, in nanoseconds.
    pub(super) fn expected_wait(&self, in_flight: u32, earliest_due: Option<Tick>, now: Tick) -> u64 {
        let Some(due) = earliest_due.filter(|_| in_flight > 0) else { return 0 };
        let rest = due.0.saturating_sub(now.0);
        if in_flight >= self.in_use() {
            return rest.saturating_sub(self.lead());
        }
        let doubt = self.doubt(in_flight).map_or(0.0, SlotEvidence::expected_share);
        round_to_u64(to_f64(rest) * doubt)
    }

    /// Returns the expected completion of a batch in flight after another one has completed. A
    /// batch that was sent early starts with the first completion, so if that is late, the batch is
    /// late too. Without this correction, each lead would be planned from the one before, and the
    /// queue upstream would grow to a full wait. To be called before
    /// [`SlotFlight::on_other_return`].
    pub(super) fn due_after_return(&self, flight: &SlotFlight, due: Tick, now: Tick, expected: u64) -> Tick {
        if flight.first_return().is_some() || flight.others < self.in_use() {
            return due;
        }
        due.max(Tick(now.0.saturating_add(expected.saturating_sub(self.lead()))))
    }

    fn drawn(&mut self, backlog: bool, draw: &mut SplitMix64) -> RandomDraws {
        let explore = self.explore;
        *self.drawn.get_or_insert_with(|| {
            let unit = draw.next_f64();
            let clean = if backlog { CLEAN_BACKLOG } else { CLEAN };
            RandomDraws { explore: unit < explore, clean: unit > 1.0 - clean }
        })
    }

    /// Returns the lead of the next batch, in nanoseconds.
    fn next_lead(&self, drawn: RandomDraws, view: SlotInputs) -> u64 {
        let time = to_f64(view.mean_time);
        let mut lead = 0.0;
        if self.lead > LEAD_MIN * time {
            lead = self.lead * if view.backlog { LEAD_USED_BACKLOG } else { LEAD_USED };
        }
        if drawn.explore {
            lead += time * if self.hits < LONG_AFTER { EXPLORE_LEAD } else { EXPLORE_LEAD_LONG };
        }
        round_to_u64(lead)
    }

    /// Updates the evidence about the slot beside `others`, and drops slots that have vanished.
    fn judge_slot(&mut self, others: u32, observation: SlotObservation) {
        if observation.wait <= (JUDGED_WAIT * observation.expected).min(JUDGED_WAIT_TURN * observation.mean_interval) {
            return;
        }
        if self.count > JUDGED_COUNT_MAX {
            return;
        }
        let Some(doubt) = self.doubt_mut(others) else { return };
        doubt.wait += DOUBT_WEIGHT * (observation.waited_fraction(-WAITED_MAX) - doubt.wait);
        let before = if doubt.count == 0 { f64::from(others) + 1.0 } else { doubt.beside };
        doubt.beside = before + BESIDE_WEIGHT * (observation.concurrency - before);
        doubt.count = doubt.count.saturating_add(1);
        // If more batches were in flight than completions are remembered, slots are removed one by
        // one.
        let are_remembered = usize::try_from(others).is_ok_and(|others| others <= observation::RETURNS_MAX);
        let left = if are_remembered { round_to_u64(doubt.beside + BESIDE_UP) } else { u64::from(others) };
        if doubt.count > DOUBT_COUNT && doubt.wait > DOUBT_MAX {
            self.count = u32::try_from(left).unwrap_or(1).clamp(1, others.max(1));
            self.lead = LEAD_AFTER_VANISH * observation.expected / f64::from(self.count);
            self.doubts = [SlotEvidence::NONE; COUNT_LEN];
            self.hits = 0;
        }
    }

    /// Learns from a batch that was sent earlier than the lead allows: corrects the lead by the
    /// observed overlap, and adds a slot if there is evidence for one.
    fn learn_from_exploration(&mut self, observation: SlotObservation) {
        self.tries = self.tries.saturating_add(1);
        let hit = observation.extra < HIT * observation.wait;
        self.hits = if hit { self.hits.saturating_add(1) } else { 0 };
        if self.hits >= HITS
            && observation.wait > (HIT_BESIDE * observation.expected).min(HIT_BESIDE_TURN * observation.mean_interval)
            && self.try_add_slot(observation)
        {
            return;
        }
        // Hits suggest that more overlap is possible, so more batches explore; misses suggest less.
        let moved = if hit { self.explore * EXPLORE_HIT.0 + EXPLORE_HIT.1 } else { self.explore * EXPLORE_MISS };
        self.explore = moved.clamp(EXPLORE_MIN, 1.0);
        if observation.is_stalled() {
            return;
        }
        // The part of the possible wait that the batch did not wait is the overlap, which is the
        // lead to use. The lead approaches it.
        let gain = if self.explore > GAIN_EXPLORE { GAIN } else { (1.0 / f64::from(self.tries)).max(GAIN_MIN) };
        let limit = STEP_MAX * observation.expected;
        let step = (observation.wait - observation.extra - self.lead).clamp(-limit, limit);
        self.lead = (self.lead + gain * step).clamp(LEAD_FLOOR * observation.expected, observation.expected);
        if self.lead > LEAD_IS_SLOT * observation.mean_interval {
            self.try_add_slot(observation);
        }
    }

    /// Learns from a batch within the lead: a steady extra time means that the lead is too long.
    fn judge_lead(&mut self, observation: SlotObservation) {
        if observation.wait <= EXCESS_WAIT * observation.expected {
            return;
        }
        self.excess += EXCESS_WEIGHT * (observation.waited_fraction(-1.0) - self.excess);
        if self.excess > EXCESS_MAX {
            self.lead *= EXCESS_CUT;
            self.excess = 0.0;
        }
    }

    /// Adds a slot if the limits allow it. Returns `true` if one was added.
    fn try_add_slot(&mut self, observation: SlotObservation) -> bool {
        if self.in_use() >= self.slots_max.min(COUNT_MAX) {
            return false;
        }
        self.count = self.in_use() + 1;
        self.lead = LEAD_AFTER_FOUND * observation.mean_interval;
        self.hits = 0;
        true
    }

    fn doubt(&self, others: u32) -> Option<SlotEvidence> {
        usize::try_from(others).ok().and_then(|index| self.doubts.get(index)).copied()
    }

    fn doubt_mut(&mut self, others: u32) -> Option<&mut SlotEvidence> {
        usize::try_from(others).ok().and_then(|index| self.doubts.get_mut(index))
    }
}

// === impl SlotEvidence ===

impl SlotEvidence {
    const NONE: Self = Self { wait: DOUBT_START, count: 0, beside: 0.0 };

    /// Returns the share of the possible wait to expect: 0 before the first observation.
    const fn expected_share(self) -> f64 {
        if self.count == 0 { 0.0 } else { self.wait.clamp(0.0, 1.0) }
    }
}

#[cfg(test)]
mod tests;
