//! Server model of a [`super::Shadow`]: execution times, learned from calls that are forwarded one
//! by one.
//!
//! A call that has the server for itself until its answer shows its execution time. If no call ever
//! does, the calls at loads at which none waits inside the server are used instead (`light_load`),
//! and, if the server is measured to run one call after the other, the time between two of its
//! answers. If the load rises once and never falls again, the few calls that were sent when nothing
//! was in flight are used. A client's own batch shows the time of several items; beyond the largest
//! of those, [`CostModel`] assumes that half of a lone call's time is shared by all items. The
//! number of calls that the server runs side by side is measured too (`concurrency`). If it is
//! below one, the server is slower under load than lone calls show. No prediction is below the time
//! of the fastest call that was sent when nothing was in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::call::{Call, CallId, CostClassId, KeyId, Weight};
use super::super::cost::{CostModel, CostSample};
use super::super::rng::SplitMix64;
use super::super::tick::{Tick, nanos};
use super::closed_loop::ClosedLoopDetector;
use super::concurrency::{AnsweredCall, ConcurrencyEstimator};
use super::light_load::{LightLoadBound, LoadVerdict};

/// Minimum number of samples for a prediction. From there on the core uses its curve too.
const LEARNED: u32 = 8;
/// Number of answers after which the load is taken to be steady, if no call was alone until then:
/// as many as the time between answers needs to be known.
const STEADY_CALLS: u32 = LEARNED * BUSY_CALLS;
/// Maximum number of cost classes, equal to the number of curves that the core keeps.
const CLASSES_MAX: usize = 64;
/// Maximum number of calls in flight that are timed, equal to the number of events that a scheduler
/// queues. Beyond it the oldest are dropped.
const PASSING_MAX: usize = 8192;
/// Age at which a call without an answer is dropped. The event of its end may be lost, and then no
/// call would ever seem to be alone.
const PASSING_AGE: Duration = Duration::from_secs(120);
/// Number of answers of a busy server that form one sample, because single ones arrive in any
/// order.
const BUSY_CALLS: u32 = 16;
/// Minimum pace of a busy server in relation to lone calls, in thousandths. Lower measurements are
/// clamped.
const PACE_MIN: u64 = 100;
/// Probability that an execution takes as long as the slowest ones that were observed
/// (`CostModel::tail_time`), in thousandths.
const LATE_PERMILLE: u32 = 20;
/// Minimum number of calls over which the fastest one is kept: a server may become slower.
const FASTEST_CALLS: u32 = 512;

/// A model of the server that answers the batches of the shadow.
#[derive(Debug, Clone)]
pub(super) struct ServerModel {
    classes: BTreeMap<CostClassId, ClassCosts>,
    /// Number of uses of classes, by which the least recently used one is found.
    uses: u64,
    /// Forwarded calls without an answer.
    passing: BTreeMap<CallId, ForwardedCall>,
    /// Number of calls in flight that may be merged, by key.
    in_flight: BTreeMap<KeyId, u32>,
    /// Instant of the last answer.
    last: Tick,
    load: ConcurrencyEstimator,
    closed_loop: ClosedLoopDetector,
    draw: SplitMix64,
}

/// Measurements of one cost class.
#[derive(Debug, Clone, Default)]
struct ClassCosts {
    /// Curve of calls that had the server for themselves.
    lone: CostModel,
    /// Curve of calls at light loads.
    light: CostModel,
    loads: LightLoadBound,
    /// Curve of calls that were sent when nothing was in flight, although others may have followed
    /// before the answer.
    first: CostModel,
    /// Curve of the times between answers of a busy server, valid if it runs one call after the
    /// other.
    busy: CostModel,
    gathered: BusySample,
    /// Least latency over all calls.
    fastest: MinLatency,
    /// The same over calls that were sent when nothing was in flight.
    fastest_first: MinLatency,
    /// Number of calls that were answered successfully.
    answered: u32,
    /// Value of `ServerModel::uses` at the last use.
    used: u64,
}

/// Answers of a busy server that do not form a sample yet.
#[derive(Debug, Clone, Copy, Default)]
struct BusySample {
    calls: u32,
    items: u64,
    weight: Weight,
    nanos: u64,
}

/// Least latency of the last calls. Periods of [`FASTEST_CALLS`] calls alternate, so that it is
/// known over at least as many.
#[derive(Debug, Clone, Copy)]
struct MinLatency {
    /// Number of calls in the current period.
    calls: u32,
    /// Least latency in the current period, in nanoseconds; `u64::MAX` without a call.
    now: u64,
    /// The same in the period before.
    before: u64,
}

/// A call in flight.
#[derive(Debug, Clone, Copy)]
struct ForwardedCall {
    sent: Tick,
    /// Number of calls in flight at its dispatch, itself included.
    beside: u32,
    /// `true` if no other call was in flight since its dispatch.
    lone: bool,
    /// `None` if the call shows nothing about merged calls.
    work: Option<MergeableWork>,
}

/// The part of a call that may be merged.
#[derive(Debug, Clone, Copy)]
struct MergeableWork {
    key: KeyId,
    class: CostClassId,
    items: u32,
    weight: Weight,
}

// === impl ServerModel ===

impl ServerModel {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            classes: BTreeMap::new(),
            uses: 0,
            passing: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            last: Tick::default(),
            load: ConcurrencyEstimator::default(),
            closed_loop: ClosedLoopDetector::default(),
            draw: SplitMix64::new(seed),
        }
    }

    /// Records that a call is forwarded.
    pub(super) fn on_dispatch(&mut self, now: Tick, call: &Call) {
        while let Some((_, oldest)) = self.passing.first_key_value() {
            if self.passing.len() < PASSING_MAX && now.since(oldest.sent) < PASSING_AGE {
                break;
            }
            let oldest = self.passing.pop_first();
            self.count_end(oldest.and_then(|(_, call)| call.work));
        }
        let lone = self.passing.is_empty();
        // The first call of a burst may be the last to reach the server. It shows its own time only
        // if no other call arrived before its answer.
        if self.passing.len() == 1 {
            self.passing.values_mut().for_each(|only| only.lone = false);
        }
        let beside = u32::try_from(self.passing.len() + 1).unwrap_or(u32::MAX);
        self.closed_loop.on_dispatch(beside);
        let Call { id, key, cost_class, items, weight, .. } = *call;
        let work = (!call.unmergeable).then_some(MergeableWork { key, class: cost_class, items, weight });
        if work.is_some() {
            *self.in_flight.entry(key).or_default() += 1;
        }
        self.passing.insert(id, ForwardedCall { sent: now, beside, lone, work });
    }

    /// Removes a call from those in flight.
    fn count_end(&mut self, work: Option<MergeableWork>) {
        let Some(key) = work.map(|work| work.key) else { return };
        if let Some(count) = self.in_flight.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(&key);
            }
        }
    }

    /// Records that a call was answered, or that no answer will arrive.
    pub(super) fn on_completion(&mut self, now: Tick, id: CallId, succeeded: bool) {
        let Some(ForwardedCall { sent, beside, lone, work }) = self.passing.remove(&id) else { return };
        self.count_end(work);
        // Time since the last answer, or since the dispatch if that was later.
        let busy = nanos(now.since(sent.max(self.last)));
        self.last = self.last.max(now);
        let (true, Some(MergeableWork { class, items, weight, .. })) = (succeeded, work) else { return };
        let took = nanos(now.since(sent));
        let class = self.class(class);
        class.learn(CostSample { items, weight, nanos: took }, beside, lone);
        if let Some(sample) = class.gathered.add(items, weight, busy) {
            class.busy.observe(sample);
        }
        if let Some(takes) = class.cost().map(|cost| cost.predict_weighted(items, weight)) {
            self.load.observe(AnsweredCall { takes, took, busy, beside });
            self.closed_loop.on_answer(took, takes);
        }
    }

    /// Returns the number of calls of a key in flight if they are those of a closed loop. `None`
    /// before the number of calls that the server runs at once is known, because they would all be
    /// simulated to run at once.
    pub(super) fn closed_loop_calls(&self, key: KeyId) -> Option<u32> {
        let is_known = self.closed_loop.is_closed() && self.load.concurrency_limit() < usize::MAX;
        is_known.then(|| self.in_flight.get(&key).copied().unwrap_or(0))
    }

    /// Returns `true` if the time of a lone call of some class cannot be determined, however many
    /// are answered, because the load does not vary.
    pub(super) fn has_steady_load(&self) -> bool {
        self.classes.values().any(|class| class.answered >= STEADY_CALLS && class.cost().is_none())
    }

    fn class(&mut self, id: CostClassId) -> &mut ClassCosts {
        self.uses += 1;
        if !self.classes.contains_key(&id) && self.classes.len() >= CLASSES_MAX {
            let oldest = self.classes.iter().min_by_key(|(_, class)| class.used).map(|(id, _)| *id);
            oldest.and_then(|oldest| self.classes.remove(&oldest));
        }
        let class = self.classes.entry(id).or_default();
        class.used = self.uses;
        class
    }

    /// Returns `true` if the time of a batch of this class can be predicted.
    pub(super) fn can_predict(&self, id: CostClassId) -> bool {
        self.classes.get(&id).and_then(ClassCosts::cost).is_some()
    }

    /// Returns the time of one execution, in nanoseconds.
    pub(super) fn predict_time(&mut self, id: CostClassId, items: u32, weight: Weight) -> u64 {
        let Some(class) = self.classes.get(&id) else { return 0 };
        let (Some(cost), fastest) = (class.cost(), class.fastest()) else { return 0 };
        let time = cost.predict(items, weight);
        let time = if self.draw.next_bool(LATE_PERMILLE) { cost.tail_time(time) } else { time };
        // Under load the server may be slower than lone calls show.
        let pace = self.load.last_concurrency().clamp(PACE_MIN, 1000);
        (time.saturating_mul(1000) / pace).max(fastest)
    }

    pub(super) fn concurrency_limit(&self) -> usize {
        self.load.concurrency_limit()
    }

    /// Returns the number of executions that were observed to run side by side, at least 1.
    pub(super) fn measured_concurrency(&self) -> usize {
        self.load.measured_concurrency()
    }

    /// Returns by class the nanoseconds of a lone call, and the most items of a call that was
    /// learned from.
    pub(super) fn lone_times(&self) -> impl Iterator<Item = (CostClassId, u64, u32)> {
        let learned =
            |(id, class): (&CostClassId, &ClassCosts)| Some((*id, class.cost()?.time(1), class.cost()?.largest()));
        self.classes.iter().filter_map(learned)
    }
}

// === impl ClassCosts ===

impl ClassCosts {
    /// Returns the most reliable curve that has enough samples.
    fn cost(&self) -> Option<&CostModel> {
        let busy = self.loads.is_serial().then_some(&self.busy);
        let mut known = [Some(&self.lone), Some(&self.light), busy].into_iter().flatten();
        // A few calls are enough if no more are to be expected.
        let first = || (self.answered >= STEADY_CALLS && self.loads.has_lone_call()).then_some(&self.first);
        known.find(|cost| cost.samples() >= LEARNED).or_else(first)
    }

    /// Returns the latency below which no execution is predicted. Calls that wait inside the server
    /// show it only if none was sent when nothing was in flight.
    fn fastest(&self) -> u64 {
        let [first, any] = [self.fastest_first.least(), self.fastest.least()];
        if first > 0 { first } else { any }
    }

    /// Learns from a call that was answered successfully.
    fn learn(&mut self, sample: CostSample, beside: u32, lone: bool) {
        self.answered = self.answered.saturating_add(1);
        self.fastest.observe(sample.nanos);
        if beside == 1 {
            self.fastest_first.observe(sample.nanos);
            self.first.observe(sample);
        }
        if lone {
            self.lone.observe(sample);
        }
        let LoadVerdict { light, mistaken } = self.loads.classify(beside, sample.nanos);
        if mistaken {
            self.light = CostModel::default();
        }
        if light {
            self.light.observe(sample);
        }
    }
}

// === impl MinLatency ===

impl Default for MinLatency {
    fn default() -> Self {
        Self { calls: 0, now: u64::MAX, before: u64::MAX }
    }
}

impl MinLatency {
    fn observe(&mut self, nanos: u64) {
        self.now = self.now.min(nanos);
        self.calls += 1;
        if self.calls >= FASTEST_CALLS {
            *self = Self { calls: 0, now: u64::MAX, before: self.now };
        }
    }

    /// Returns the least latency; 0 before the first call.
    fn least(&self) -> u64 {
        let least = self.now.min(self.before);
        if least == u64::MAX { 0 } else { least }
    }
}

// === impl BusySample ===

impl BusySample {
    /// Adds an answer. Returns a sample of the mean call once there are enough of them.
    fn add(&mut self, items: u32, weight: Weight, nanos: u64) -> Option<CostSample> {
        self.calls += 1;
        self.items += u64::from(items);
        self.weight.sum = self.weight.sum.saturating_add(weight.sum);
        self.weight.max = self.weight.max.saturating_add(weight.max);
        self.nanos = self.nanos.saturating_add(nanos);
        if self.calls < BUSY_CALLS {
            return None;
        }
        let count = u64::from(BUSY_CALLS);
        let all = std::mem::take(self);
        Some(CostSample {
            items: u32::try_from((all.items + count / 2) / count).unwrap_or(u32::MAX).max(1),
            weight: Weight { sum: all.weight.sum / count, max: all.weight.max / count },
            nanos: all.nanos / count,
        })
    }
}

#[cfg(test)]
impl ServerModel {
    /// Returns the number of cost classes and of calls that are tracked.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.classes.len(), self.passing.len())
    }
}
