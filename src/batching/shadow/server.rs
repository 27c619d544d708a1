//! The server of a [`super::Shadow`]: what an execution would take, learned from calls that pass one by one.
//!
//! A call that has the server for itself until its answer shows what it takes. Where calls never do, the time between two answers of a busy server stands for it. A
//! client's own batch shows what several items take; beyond the largest of those, [`Cost`] takes half of a lone call's time as shared by all items. How many
//! calls the server runs side by side is at least the work that it did in a while, in times of lone calls, over the while; where that is less than one, it is slower
//! under load than lone calls say.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::super::call::{CallId, CostClassId, Weight};
use super::super::cost::{Cost, Sample};
use super::super::draw::Draw;
use super::super::tick::{Tick, nanos};

/// Samples from which on something is predicted: the core itself trusts its curve from there (`scheduling.md` §2.8).
const LEARNED: u32 = 8;
/// Cost classes remembered: as many as the core keeps curves of.
const CLASSES_MAX: usize = 64;
/// Calls that pass at once and are timed; of more the oldest are not. As many as the events that a scheduler queues.
const PASSING_MAX: usize = 8192;
/// A call that has had no answer for so long is taken for gone: what is told of its end may be lost, and then no call would ever seem to be alone.
const PASSING_AGE: Duration = Duration::from_secs(120);
/// Answers of a busy server that make one sample: single ones come in any order.
const BUSY_CALLS: u32 = 16;
/// Answers in a look at how many calls run side by side, and looks of which the largest counts.
const LOOK_CALLS: u32 = 64;
const LOOKS: usize = 8;
/// In thousandths, how much of a lone call's pace a busy server keeps at least, as far as is believed.
const PACE_MIN: u64 = 100;
/// In thousandths, how often an execution takes as long as the slowest ones of what was seen do (`Cost::late`).
const LATE_PERMILLE: u32 = 20;

/// A server that answers in the shadow.
#[derive(Debug, Clone)]
pub(super) struct Server {
    classes: BTreeMap<CostClassId, Class>,
    uses: u64,
    passing: BTreeMap<CallId, Passing>,
    /// When the last call was answered.
    last: Tick,
    look: Look,
    /// Calls that ran side by side, in thousandths.
    looks: VecDeque<u64>,
    draw: Draw,
}

/// What is known of a cost class.
#[derive(Debug, Clone, Default)]
struct Class {
    /// Of calls that had the server for themselves.
    lone: Cost,
    /// Of answers of a busy server, if it ran them one after the other.
    busy: Cost,
    gathered: Gathered,
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

/// A call on its way.
#[derive(Debug, Clone, Copy)]
struct Passing {
    sent: Tick,
    /// No other was on its way since it was sent.
    lone: bool,
    /// What it is; `None` where it says nothing of what merged calls take.
    work: Option<(CostClassId, u32, Weight)>,
}

/// Work and time since the last look.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    calls: u32,
    work: u64,
    time: u64,
}

// === impl Server ===

impl Server {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            classes: BTreeMap::new(),
            uses: 0,
            passing: BTreeMap::new(),
            last: Tick::default(),
            look: Look::default(),
            looks: VecDeque::with_capacity(LOOKS),
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
        self.passing.insert(id, Passing { sent: now, lone, work });
    }

    /// Its answer is there, or it is known that none comes.
    pub(super) fn ended(&mut self, now: Tick, id: CallId, well: bool) {
        let Some(Passing { sent, lone, work }) = self.passing.remove(&id) else { return };
        let busy = nanos(now.since(sent.max(self.last)));
        self.last = self.last.max(now);
        let (true, Some((id, items, weight))) = (well, work) else { return };
        let class = self.class(id);
        if lone {
            class.lone.observe(Sample { items, weight, nanos: nanos(now.since(sent)) });
        }
        if let Some(sample) = class.gathered.add(items, weight, busy) {
            class.busy.observe(sample);
        }
        let alone = class.lone.samples() >= LEARNED;
        let takes = class.lone.time_of(items, weight);
        if alone {
            self.look(takes, busy);
        }
    }

    /// Looks at how many calls ran side by side.
    fn look(&mut self, work: u64, time: u64) {
        let look = &mut self.look;
        look.calls += 1;
        look.work = look.work.saturating_add(work);
        look.time = look.time.saturating_add(time);
        if look.calls < LOOK_CALLS {
            return;
        }
        let side_by_side = u128::from(look.work) * 1000 / u128::from(look.time.max(1));
        self.look = Look::default();
        if self.looks.len() >= LOOKS {
            self.looks.pop_front();
        }
        self.looks.push_back(u64::try_from(side_by_side).unwrap_or(u64::MAX));
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
        let Some(cost) = self.classes.get(&id).and_then(Class::cost) else { return 0 };
        let time = if cost.weights_matter() { cost.time_of(items, weight) } else { cost.time(items) };
        let time = if self.draw.chance(LATE_PERMILLE) { cost.late(time) } else { time };
        // Under load it may be slower than lone calls say.
        let pace = self.looks.back().copied().unwrap_or(1000).clamp(PACE_MIN, 1000);
        time.saturating_mul(1000) / pace
    }

    /// Executions that it runs side by side, at least 1.
    pub(super) fn side_by_side(&self) -> usize {
        let most = self.looks.iter().copied().max().unwrap_or(0).max(1000);
        usize::try_from((most.saturating_add(500)) / 1000).unwrap_or(usize::MAX)
    }

    /// What a lone call takes, in nanoseconds, and the most items in one call of which that was learned; by class.
    pub(super) fn learned(&self) -> impl Iterator<Item = (CostClassId, u64, u32)> {
        let learned = |(id, class): (&CostClassId, &Class)| Some((*id, class.cost()?.time(1), class.cost()?.largest()));
        self.classes.iter().filter_map(learned)
    }
}

// === impl Class ===

impl Class {
    /// The better one of what is known.
    fn cost(&self) -> Option<&Cost> {
        [&self.lone, &self.busy].into_iter().find(|cost| cost.samples() >= LEARNED)
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
