//! The server of a [`super::Shadow`]: what an execution would take, learned from calls that pass one by one.
//!
//! A call that has the server for itself until its answer shows what it takes. Where calls never
//! do, those at loads at which none waits inside the server stand for it (`light`), and where the
//! server is measured to run one call after the other the time between two of its answers. A
//! client's own batch shows what several items take; beyond the largest of those, [`Cost`] takes
//! half of a lone call's time as shared by all items. How many calls the server runs side by side
//! is measured too (`load`); where that is less than one, it is slower under load than lone calls
//! say. Nothing is ever predicted to take less than the fastest call that was seen.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::call::{CallId, CostClassId, Weight};
use super::super::cost::{Cost, Sample};
use super::super::draw::Draw;
use super::super::tick::{Tick, nanos};
use super::light::{LightLoads, LoadVerdict};
use super::load::{Answered, ServerLoad};

/// Samples from which on something is predicted: the core itself trusts its curve from there.
const LEARNED: u32 = 8;
/// Cost classes remembered: as many as the core keeps curves of.
const CLASSES_MAX: usize = 64;
/// Calls that pass at once and are timed; of more the oldest are not. As many as the events that a scheduler queues.
const PASSING_MAX: usize = 8192;
/// A call that has had no answer for so long is taken for gone: what is told of its end may be lost, and then no call would ever seem to be alone.
const PASSING_AGE: Duration = Duration::from_secs(120);
/// Answers of a busy server that make one sample: single ones come in any order.
const BUSY_CALLS: u32 = 16;
/// In thousandths, how much of a lone call's pace a busy server keeps at least, as far as is believed.
const PACE_MIN: u64 = 100;
/// In thousandths, how often an execution takes as long as the slowest ones of what was seen do (`Cost::late`).
const LATE_PERMILLE: u32 = 20;
/// Calls over which the fastest one is remembered, at least: a server may become slower.
const FASTEST_CALLS: u32 = 512;

/// A server that answers in the shadow.
#[derive(Debug, Clone)]
pub(super) struct Server {
    classes: BTreeMap<CostClassId, Class>,
    uses: u64,
    passing: BTreeMap<CallId, Passing>,
    /// When the last call was answered.
    last: Tick,
    load: ServerLoad,
    draw: Draw,
}

/// What is known of a cost class.
#[derive(Debug, Clone, Default)]
struct Class {
    /// Of calls that had the server for themselves.
    lone: Cost,
    /// Of calls at light loads.
    light: Cost,
    loads: LightLoads,
    /// Of answers of a busy server, if it ran them one after the other.
    busy: Cost,
    gathered: Gathered,
    fastest: Fastest,
    used: u64,
}

/// Answers of a busy server that are not a sample yet.
#[derive(Debug, Clone, Copy, Default)]
struct Gathered {
    calls: u32,
    items: u64,
    weight: Weight,
    nanos: u64,
}

/// The least latency of the last calls, in nanoseconds: of those since the last turn, and of those
/// before it.
#[derive(Debug, Clone, Copy)]
struct Fastest {
    calls: u32,
    now: u64,
    before: u64,
}

/// A call on its way.
#[derive(Debug, Clone, Copy)]
struct Passing {
    sent: Tick,
    /// Calls in flight then, itself among them.
    beside: u32,
    /// No other was on its way since it was sent.
    lone: bool,
    /// What it is; `None` where it says nothing of what merged calls take.
    work: Option<(CostClassId, u32, Weight)>,
}

// === impl Server ===

impl Server {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            classes: BTreeMap::new(),
            uses: 0,
            passing: BTreeMap::new(),
            last: Tick::default(),
            load: ServerLoad::default(),
            draw: Draw::new(seed),
        }
    }

    /// A call passes.
    pub(super) fn sent(&mut self, now: Tick, id: CallId, work: Option<(CostClassId, u32, Weight)>) {
        while let Some(oldest) = self.passing.first_entry() {
            if now.since(oldest.get().sent) < PASSING_AGE {
                break;
            }
            oldest.remove();
        }
        if self.passing.len() >= PASSING_MAX {
            self.passing.pop_first();
        }
        let lone = self.passing.is_empty();
        // Of a burst the first one may be the last to reach the server: it says what it takes only if no other came before its answer.
        if self.passing.len() == 1 {
            self.passing.values_mut().for_each(|only| only.lone = false);
        }
        let beside = u32::try_from(self.passing.len() + 1).unwrap_or(u32::MAX);
        self.passing.insert(id, Passing { sent: now, beside, lone, work });
    }

    /// Its answer is there, or it is known that none comes.
    pub(super) fn ended(&mut self, now: Tick, id: CallId, well: bool) {
        let Some(Passing { sent, beside, lone, work }) = self.passing.remove(&id) else { return };
        let busy = nanos(now.since(sent.max(self.last)));
        self.last = self.last.max(now);
        let (true, Some((id, items, weight))) = (well, work) else { return };
        let took = nanos(now.since(sent));
        let class = self.class(id);
        class.learn(Sample { items, weight, nanos: took }, beside, lone);
        if let Some(sample) = class.gathered.add(items, weight, busy) {
            class.busy.observe(sample);
        }
        if let Some(takes) = class.cost().map(|cost| cost.time_of(items, weight)) {
            self.load.observe(Answered { takes, took, busy, beside });
        }
    }

    fn class(&mut self, id: CostClassId) -> &mut Class {
        self.uses += 1;
        if !self.classes.contains_key(&id) && self.classes.len() >= CLASSES_MAX {
            let oldest = self.classes.iter().min_by_key(|(_, class)| class.used).map(|(id, _)| *id);
            oldest.and_then(|oldest| self.classes.remove(&oldest));
        }
        let class = self.classes.entry(id).or_default();
        class.used = self.uses;
        class
    }

    /// Whether anything can be said of what a batch of this class takes.
    pub(super) fn knows(&self, id: CostClassId) -> bool {
        self.classes.get(&id).and_then(Class::cost).is_some()
    }

    /// What one execution takes, in nanoseconds.
    pub(super) fn time(&mut self, id: CostClassId, items: u32, weight: Weight) -> u64 {
        let Some(class) = self.classes.get(&id) else { return 0 };
        let (Some(cost), fastest) = (class.cost(), class.fastest.least()) else { return 0 };
        let time = if cost.weights_matter() { cost.time_of(items, weight) } else { cost.time(items) };
        let time = if self.draw.chance(LATE_PERMILLE) { cost.late(time) } else { time };
        // Under load it may be slower than lone calls say.
        let pace = self.load.pace().clamp(PACE_MIN, 1000);
        (time.saturating_mul(1000) / pace).max(fastest)
    }

    /// Executions that may run at once.
    pub(super) fn places(&self) -> usize {
        self.load.places()
    }

    /// Executions that it was seen to run side by side, at least 1.
    pub(super) fn side_by_side(&self) -> usize {
        self.load.side_by_side()
    }

    /// What a lone call takes, in nanoseconds, and the most items in one call of which that was learned; by class.
    pub(super) fn learned(&self) -> impl Iterator<Item = (CostClassId, u64, u32)> {
        let learned = |(id, class): (&CostClassId, &Class)| Some((*id, class.cost()?.time(1), class.cost()?.largest()));
        self.classes.iter().filter_map(learned)
    }
}

// === impl Class ===

impl Class {
    /// The best one of what is known.
    fn cost(&self) -> Option<&Cost> {
        let busy = self.loads.is_serial().then_some(&self.busy);
        [Some(&self.lone), Some(&self.light), busy].into_iter().flatten().find(|cost| cost.samples() >= LEARNED)
    }

    /// Learns from a call that was answered well.
    fn learn(&mut self, sample: Sample, beside: u32, lone: bool) {
        self.fastest.observe(sample.nanos);
        if lone {
            self.lone.observe(sample);
        }
        let LoadVerdict { light, mistaken } = self.loads.judge(beside, sample.nanos);
        if mistaken {
            self.light = Cost::default();
        }
        if light {
            self.light.observe(sample);
        }
    }
}

// === impl Fastest ===

impl Default for Fastest {
    fn default() -> Self {
        Self { calls: 0, now: u64::MAX, before: u64::MAX }
    }
}

impl Fastest {
    fn observe(&mut self, nanos: u64) {
        self.now = self.now.min(nanos);
        self.calls += 1;
        if self.calls >= FASTEST_CALLS {
            *self = Self { calls: 0, now: u64::MAX, before: self.now };
        }
    }

    /// 0 before the first call.
    fn least(&self) -> u64 {
        let least = self.now.min(self.before);
        if least == u64::MAX { 0 } else { least }
    }
}

// === impl Gathered ===

impl Gathered {
    /// Another answer; a sample of the mean call once there are enough.
    fn add(&mut self, items: u32, weight: Weight, nanos: u64) -> Option<Sample> {
        self.calls += 1;
        self.items += u64::from(items);
        self.weight.sum = self.weight.sum.saturating_add(weight.sum);
        self.weight.max = self.weight.max.saturating_add(weight.max);
        self.nanos = self.nanos.saturating_add(nanos);
        if self.calls < BUSY_CALLS {
            return None;
        }
        let of = u64::from(BUSY_CALLS);
        let all = std::mem::take(self);
        Some(Sample {
            items: u32::try_from((all.items + of / 2) / of).unwrap_or(u32::MAX).max(1),
            weight: Weight { sum: all.weight.sum / of, max: all.weight.max / of },
            nanos: all.nanos / of,
        })
    }
}

#[cfg(test)]
impl Server {
    /// Cost classes and calls that are remembered.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.classes.len(), self.passing.len())
    }
}
