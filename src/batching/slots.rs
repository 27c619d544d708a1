//! How many batches the upstream runs side by side, and how early the next one may leave.
//!
//! Nobody says how many slots an upstream has, and it has no sign of its own: all that is seen is how long a batch took that was sent while others were
//! out. One that took no longer than alone ran beside them; one that took longer by the time until the first of them came back had queued; what lies
//! between is free overlap, such as work on the host before and after the device's. So one measurement finds both the slots and the *lead*: the time by
//! which the next batch may leave before one comes back. Now and then a batch leaves earlier than it should, to see whether that is still too late.
//!
//! A slot can also vanish, which shows in the same way: batches sent to it come back late by just the wait for another.
//!
//! What it leaves out: the curve that says how long a batch takes alone (`cost`), when a slot is used (`gather`, `plan`), slots held back by policy
//! beyond their number, and unlike slots: the slots of one upstream are alike.

mod keep;
mod seen;

pub use keep::UpstreamSnapshot;
pub(super) use seen::{Flight, Sample};

use seen::{Seen, WAITED_MAX};

use super::draw::Draw;
use super::math::{float, whole};
use super::tick::Tick;

/// Slots at most, whatever the wall allows: the bound of what is kept per slot (`groupage.py`; the policy's default wall is 16).
pub(super) const COUNT_MAX: u32 = 64;
const COUNT_LEN: usize = 64;

// Without another source named, the constants below are those of `scheduling.md` §2.2 and §3, rows "slot seen" to "lead too long".

/// A lead needs a curve that is known: so many samples.
const SAMPLES_MIN: u64 = 8;

/// A lead below this part of T is left unused: it would cost clean samples and save nothing.
const LEAD_MIN: f64 = 0.04;
/// This much of the lead is used, so that noise does not make a batch wait upstream...
const LEAD_USED: f64 = 0.9;
/// ...and all of it in backlog, where waiting upstream delays nobody.
const LEAD_USED_BACKLOG: f64 = 1.0;
/// How much earlier an exploring batch leaves, in T.
const EXPLORE_LEAD: f64 = 0.3;
/// And after this many hits in a row, to see whether it runs beside the others for most of its life.
const EXPLORE_LEAD_LONG: f64 = 0.7;
const LONG_AFTER: u32 = 2;
/// With one slot this part of the completions is followed by a lone batch, and less in backlog: the curve needs samples.
const CLEAN: f64 = 0.07;
const CLEAN_BACKLOG: f64 = 0.02;

/// A slot is judged by batches that could have waited this part of their time, or of a turn where many are out...
const JUDGED_WAIT: f64 = 0.2;
const JUDGED_WAIT_TURN: f64 = 0.5;
/// Numbers up to this are judged: among more a wait is shorter than the noise of an execution.
const JUDGED_COUNT_MAX: u32 = 16;
/// ...starting from this doubt...
const DOUBT_START: f64 = 0.3;
/// ...with this weight for a new one...
const DOUBT_WEIGHT: f64 = 0.1;
/// ...and after more than this many it is gone if the doubt is above this.
const DOUBT_COUNT: u32 = 10;
const DOUBT_MAX: f64 = 0.8;
/// A batch on a slot in more doubt than this, itself counted, is no sample; a new slot is in less. It may have waited upstream, and a curve that learns
/// the wait takes the slot for real, then the next one too: before 4 slots, with wake-ups that come 1 ms late, up to 8 and more, and twice the latency.
const DOUBT_SAMPLED: f64 = 0.4;
/// How many are left then: a running mean of this weight of how many ran side by side, from all that are in use, rounded with a little in favour of one more. Several often
/// vanish at once, and one after the other each would cost the same time again while batches queue upstream.
const BESIDE_WEIGHT: f64 = 0.3;
const BESIDE_UP: f64 = 0.1;
/// The lead, in turns, that is left when a slot has vanished: its batches had some overlap.
const LEAD_AFTER_VANISH: f64 = 0.2;

/// An exploring batch hit if less than this part of the possible wait was seen.
const HIT: f64 = 0.3;
/// So many hits in a row are a slot, if the last ran beside all others for this part of its time, or of a turn where many are out.
const HITS: u32 = 3;
const HIT_BESIDE: f64 = 0.5;
const HIT_BESIDE_TURN: f64 = 0.8;
/// So is a lead longer than this part of a turn.
const LEAD_IS_SLOT: f64 = 0.6;
/// The lead, in turns, that is left when a slot is found.
const LEAD_AFTER_FOUND: f64 = 0.1;
/// The lead moves by this part of what it was wrong by while little is known, and by one part in the tries or this later.
const GAIN: f64 = 0.3;
const GAIN_MIN: f64 = 0.1;
/// Little is known while exploring is more likely than this.
const GAIN_EXPLORE: f64 = 0.15;
/// One measurement is believed up to this part of an execution.
const STEP_MAX: f64 = 0.5;
/// The lead may learn to be this part of an execution negative: without it, noise about zero would push it up.
const LEAD_FLOOR: f64 = -0.05;

/// How often a completion is followed by an exploring batch: at first, at least, and how hits and misses move it.
const EXPLORE_START: f64 = 0.5;
const EXPLORE_MIN: f64 = 0.03;
const EXPLORE_HIT: (f64, f64) = (1.5, 0.1);
const EXPLORE_MISS: f64 = 0.85;

/// Batches inside the learned lead are judged if they may have waited at least this part of their time;
const EXCESS_WAIT: f64 = 0.05;
/// a running mean of this weight,
const EXCESS_WEIGHT: f64 = 0.1;
/// above this the lead is too long,
const EXCESS_MAX: f64 = 0.5;
/// and is cut to this part.
const EXCESS_CUT: f64 = 0.7;

/// What is learned of one upstream's slots and lead.
///
/// # Properties
/// In flight stays at or below the learned number plus one, and at or below `slots_max`. There is always at least one slot.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    count: u32,
    slots_max: u32,
    /// Nanoseconds; may be a little below zero.
    lead: f64,
    /// By the number of others in flight.
    doubts: [Doubt; COUNT_LEN],
    explore: f64,
    tries: u32,
    hits: u32,
    excess: f64,
    /// Drawn once per completion, when first asked for.
    drawn: Option<Drawn>,
}

/// Whether the slot beside so many others is real: the part of the possible wait that its batches had, 0 to 1 and a little over.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    wait: f64,
    count: u32,
    /// Slots that ran side by side, as a running mean.
    beside: f64,
}

#[derive(Debug, Clone, Copy)]
struct Drawn {
    /// The next lead is a longer one.
    explore: bool,
    /// The next batch goes alone.
    clean: bool,
}

/// What the decision looks at.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    /// Batches in flight.
    pub(super) in_flight: u32,
    /// When the first of them is expected back.
    pub(super) earliest_due: Option<Tick>,
    /// The wall: no more in flight than this.
    pub(super) slots_max: u32,
    /// Samples that the cost curve has.
    pub(super) samples: u64,
    /// T: the running mean of execution times, in nanoseconds.
    pub(super) mean_time: u64,
    /// The last dispatch left a full batch behind.
    pub(super) backlog: bool,
}

/// Whether another batch may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// Now.
    Free,
    /// At this instant, if nothing comes back before.
    At(Tick),
    /// Not before something comes back.
    No,
}

// === impl Slots ===

impl Slots {
    pub(super) const fn new() -> Self {
        Self {
            count: 1,
            slots_max: u32::MAX,
            lead: 0.0,
            doubts: [Doubt::NONE; COUNT_LEN],
            explore: EXPLORE_START,
            tries: 0,
            hits: 0,
            excess: 0.0,
            drawn: None,
        }
    }

    /// C: the slots that are used.
    pub(super) fn in_use(&self) -> u32 {
        self.count.min(self.slots_max)
    }

    /// Takes over the number that was found by the limiter. Doubts about another number say nothing of this one.
    pub(super) fn set_count(&mut self, count: u32) {
        if self.count != count.max(1) {
            self.count = count.max(1);
            self.doubts = [Doubt::NONE; COUNT_LEN];
            self.hits = 0;
        }
    }

    /// o: by how many nanoseconds the next batch may leave before one comes back.
    pub(super) fn lead(&self) -> u64 {
        whole(self.lead)
    }

    /// The upstream has changed: one slot again, and nothing known.
    pub(super) fn forget(&mut self) {
        *self = Self { slots_max: self.slots_max, ..Self::new() };
    }

    /// Whether another batch may leave now, and if not, when to look again.
    pub(super) fn decide(&mut self, now: Tick, view: View, draw: &mut Draw) -> Slot {
        self.slots_max = view.slots_max.max(1);
        let count = self.in_use();
        if view.in_flight < count {
            return Slot::Free;
        }
        let Some(due) = view.earliest_due else { return Slot::No };
        if view.in_flight > count || view.in_flight >= self.slots_max || view.samples < SAMPLES_MIN {
            return Slot::No;
        }
        let drawn = self.drawn(view.backlog, draw);
        let lead = self.used(drawn, view);
        if lead == 0 || drawn.clean && count == 1 {
            return Slot::No;
        }
        let at = Tick(due.0.saturating_sub(lead));
        if now >= at { Slot::Free } else { Slot::At(at) }
    }

    /// A batch leaves while this many others are in flight.
    pub(super) fn sent(&self, now: Tick, others: u32) -> Flight {
        let explores = others >= self.in_use() && self.drawn.is_some_and(|drawn| drawn.explore);
        Flight { sent: now, others, explores, returns: [None; seen::RETURNS] }
    }

    /// A batch came back well that would take `alone` nanoseconds alone. Not for batches sent against these rules (probes, passed calls, isolation).
    pub(super) fn returned(&mut self, now: Tick, flight: &Flight, alone: u64) -> Sample {
        self.drawn = None;
        if flight.others == 0 {
            return Sample::Alone;
        }
        let seen = Seen::new(now, flight, alone);
        if flight.others < self.in_use() {
            self.judge_slot(flight.others, seen);
            let doubted = self.doubt(flight.others).is_some_and(|doubt| doubt.wait > DOUBT_SAMPLED);
            return if doubted || seen.late() { Sample::No } else { Sample::Beside };
        }
        if flight.explores {
            self.explored(seen);
        } else {
            self.judge_lead(seen);
        }
        Sample::No
    }

    /// How long a batch sent now is expected to wait upstream, in nanoseconds.
    pub(super) fn wait(&self, in_flight: u32, earliest_due: Option<Tick>, now: Tick) -> u64 {
        let Some(due) = earliest_due.filter(|_| in_flight > 0) else { return 0 };
        let rest = due.0.saturating_sub(now.0);
        if in_flight >= self.in_use() {
            return rest.saturating_sub(self.lead());
        }
        let doubt = self.doubt(in_flight).map_or(0.0, Doubt::believed);
        whole(float(rest) * doubt)
    }

    /// When a batch in flight is expected now that another came back: one that left early starts with the first return, so a late one makes it late.
    /// Without this, leads that are all planned from the one before would drift upstream's queue to a full wait. Before [`Flight::saw_return`].
    pub(super) fn due_after_return(&self, flight: &Flight, due: Tick, now: Tick, alone: u64) -> Tick {
        if flight.first_return().is_some() || flight.others < self.in_use() {
            return due;
        }
        due.max(Tick(now.0.saturating_add(alone.saturating_sub(self.lead()))))
    }

    fn drawn(&mut self, backlog: bool, draw: &mut Draw) -> Drawn {
        let explore = self.explore;
        *self.drawn.get_or_insert_with(|| {
            let unit = draw.unit();
            let clean = if backlog { CLEAN_BACKLOG } else { CLEAN };
            Drawn { explore: unit < explore, clean: unit > 1.0 - clean }
        })
    }

    /// The lead that the next batch gets, in nanoseconds.
    fn used(&self, drawn: Drawn, view: View) -> u64 {
        let time = float(view.mean_time);
        let mut lead = 0.0;
        if self.lead > LEAD_MIN * time {
            lead = self.lead * if view.backlog { LEAD_USED_BACKLOG } else { LEAD_USED };
        }
        if drawn.explore {
            lead += time * if self.hits < LONG_AFTER { EXPLORE_LEAD } else { EXPLORE_LEAD_LONG };
        }
        whole(lead)
    }

    /// Is the slot beside so many others real?
    fn judge_slot(&mut self, others: u32, seen: Seen) {
        if seen.wait <= (JUDGED_WAIT * seen.alone).min(JUDGED_WAIT_TURN * seen.turn) {
            return;
        }
        if self.count > JUDGED_COUNT_MAX {
            return;
        }
        let Some(doubt) = self.doubt_mut(others) else { return };
        doubt.wait += DOUBT_WEIGHT * (seen.waited(-WAITED_MAX) - doubt.wait);
        let before = if doubt.count == 0 { f64::from(others) + 1.0 } else { doubt.beside };
        doubt.beside = before + BESIDE_WEIGHT * (seen.beside - before);
        doubt.count = doubt.count.saturating_add(1);
        // Where more were out than returns are remembered, one after the other.
        let few = usize::try_from(others).is_ok_and(|others| others <= seen::RETURNS);
        let left = if few { whole(doubt.beside + BESIDE_UP) } else { u64::from(others) };
        if doubt.count > DOUBT_COUNT && doubt.wait > DOUBT_MAX {
            self.count = u32::try_from(left).unwrap_or(1).clamp(1, others.max(1));
            self.lead = LEAD_AFTER_VANISH * seen.alone / f64::from(self.count);
            self.doubts = [Doubt::NONE; COUNT_LEN];
            self.hits = 0;
        }
    }

    /// A batch left earlier than the lead: how much of its time was overlap, and is there one more slot?
    fn explored(&mut self, seen: Seen) {
        self.tries = self.tries.saturating_add(1);
        let hit = seen.extra < HIT * seen.wait;
        self.hits = if hit { self.hits.saturating_add(1) } else { 0 };
        if self.hits >= HITS
            && seen.wait > (HIT_BESIDE * seen.alone).min(HIT_BESIDE_TURN * seen.turn)
            && self.grow(seen)
        {
            return;
        }
        let moved = if hit { self.explore * EXPLORE_HIT.0 + EXPLORE_HIT.1 } else { self.explore * EXPLORE_MISS };
        self.explore = moved.clamp(EXPLORE_MIN, 1.0);
        if seen.stalled() {
            return;
        }
        let gain = if self.explore > GAIN_EXPLORE { GAIN } else { (1.0 / f64::from(self.tries)).max(GAIN_MIN) };
        let limit = STEP_MAX * seen.alone;
        let step = (seen.wait - seen.extra - self.lead).clamp(-limit, limit);
        self.lead = (self.lead + gain * step).clamp(LEAD_FLOOR * seen.alone, seen.alone);
        if self.lead > LEAD_IS_SLOT * seen.turn {
            self.grow(seen);
        }
    }

    /// A batch inside the learned lead: steady extra time means that the lead is too long.
    fn judge_lead(&mut self, seen: Seen) {
        if seen.wait <= EXCESS_WAIT * seen.alone {
            return;
        }
        self.excess += EXCESS_WEIGHT * (seen.waited(-1.0) - self.excess);
        if self.excess > EXCESS_MAX {
            self.lead *= EXCESS_CUT;
            self.excess = 0.0;
        }
    }

    /// One slot more, if the wall allows.
    fn grow(&mut self, seen: Seen) -> bool {
        if self.in_use() >= self.slots_max.min(COUNT_MAX) {
            return false;
        }
        self.count = self.in_use() + 1;
        self.lead = LEAD_AFTER_FOUND * seen.turn;
        self.hits = 0;
        true
    }

    fn doubt(&self, others: u32) -> Option<Doubt> {
        usize::try_from(others).ok().and_then(|index| self.doubts.get(index)).copied()
    }

    fn doubt_mut(&mut self, others: u32) -> Option<&mut Doubt> {
        usize::try_from(others).ok().and_then(|index| self.doubts.get_mut(index))
    }
}

// === impl Doubt ===

impl Doubt {
    const NONE: Self = Self { wait: DOUBT_START, count: 0, beside: 0.0 };

    /// The part of the possible wait to count with: none before it was seen.
    const fn believed(self) -> f64 {
        if self.count == 0 { 0.0 } else { self.wait.clamp(0.0, 1.0) }
    }
}

#[cfg(test)]
mod tests;
