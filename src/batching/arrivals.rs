//! How fast items come, and which of them something brings about.
//!
//! The rate says which load the plan is read at. The two profiles say when a short hold pays: clients that wait for an answer come back soon after it
//! (a closed loop), and the first item of a burst announces the others (a fan-out). Both are learned as arrivals *beyond* the mean rate in bins after an
//! event, so a stream of independent arrivals promises nothing, and nothing is held for it.
//!
//! What it leaves out: whether to hold (`gather`), seasons and forecasts, and any timer. An estimate ages when it is touched or read.

use super::math::{exp, float, whole};
use super::tick::Tick;

/// The rate looks back over this many executions (`scheduling.md` §3, "rate λ")...
const WINDOW_TIMES: u64 = 8;
/// ...and at least over this.
const WINDOW_MIN: u64 = 20_000_000;

/// Bins of a profile.
const BINS: usize = 17;
/// Where the bins begin and end, in nanoseconds after the event: 0 .05 .1 .2 .3 .5 .8 1.2 2 3 5 8 12 20 30 50 80 120 ms (`scheduling.md` §3).
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
/// What an event leaves of what was known before it: about 33 events are remembered (`scheduling.md` §3).
const MEMORY: f64 = 0.97;
/// A bin speaks once it was watched at least this much of an event.
const WATCHED_MIN: f64 = 0.5;
/// Arrivals over the mean are believed up to this: a mean of nearly nothing would promise any number.
const RELATIVE_MAX: f64 = 1000.0;

/// Completions in a stretch, over which the most items that were here at once are looked for.
const PEAK_EVENTS: u32 = 8;
/// Stretches that are looked back on: as many events as are remembered. Before, a mean rate that is still rising takes what comes by chance for what was caused;
/// and clients that have gone are counted no longer after them.
const PEAKS: usize = 4;
/// A loop is closed where at least this part of the items answered is followed by arrivals beyond the mean rate, within an execution. Independent arrivals come
/// to a tenth or so, by chance, over the events that are remembered.
const CLOSED_MIN: f64 = 0.25;
/// And where that most is the same within one part in so many in all stretches: independent arrivals fluctuate.
const CLOSED_STEADY: u64 = 8;
/// Where more than one part in so many is ended as late, those who are here are as many as can be in time, whoever else comes.
const ENDED_PARTS: u64 = 16;
/// Of those who are away this part at least is taken for not expected yet, so that a share of nearly all promises no certainty.
const AWAY_MIN: f64 = 0.05;

/// Thousandths of an item a second: as fine as the slowest rate that matters, and whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Rate(pub(super) u64);

/// What is known of arrivals.
#[derive(Debug, Clone, Default)]
pub(super) struct Arrivals {
    /// Items that came, each worth less as it ages.
    weight: f64,
    latest: Tick,
    returns: Profile,
    fan_outs: Profile,
    /// Most items that were here at once, queued or in flight: in this stretch of completions, and in those before it.
    peaks: [u64; 1 + PEAKS],
    /// Of this stretch: completions, items answered, and items ended before.
    stretch: u32,
    answered: u64,
    ended: u64,
}

/// Arrivals in the bins after events of one kind, per item of the event.
#[derive(Debug, Clone, Default)]
pub(super) struct Profile {
    bins: [Bin; BINS],
    event: Option<Event>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    /// Arrivals beyond the mean rate, per item of the event, summed over remembered events.
    caused: f64,
    /// Events that watched it to its end; one cut short by the next counts in part.
    watched: f64,
    /// Arrivals, summed likewise.
    came: f64,
    /// What the mean rate would have brought.
    usual: f64,
    /// Items of the events that watched it.
    items: f64,
    /// Arrivals since the present event.
    present: u64,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    at: Tick,
    items: u32,
    rate: Rate,
}

// === impl Rate ===

impl Rate {
    /// Items expected within a span, in thousandths.
    pub(super) fn over(self, nanos: u64) -> u64 {
        let items = u128::from(self.0) * u128::from(nanos) / 1_000_000_000;
        u64::try_from(items).unwrap_or(u64::MAX)
    }

    /// One slot's part.
    pub(super) fn per_slot(self, slots: u32) -> Self {
        Self(self.0 / u64::from(slots.max(1)))
    }

    /// The mean time from one item to the next, in nanoseconds.
    pub(super) fn gap(self) -> u64 {
        1_000_000_000_000u64.checked_div(self.0).unwrap_or(u64::MAX)
    }
}

// === impl Arrivals ===

impl Arrivals {
    /// A call came. `idle`: nothing was queued and nothing in flight, so it may lead a burst. `mean_time`: T, in nanoseconds.
    pub(super) fn came(&mut self, now: Tick, items: u32, idle: bool, mean_time: u64) {
        self.weight = self.left(now, mean_time) + f64::from(items);
        self.latest = now;
        if idle {
            // One event, however many items: the others are what it announces.
            self.fan_outs.start(now, 1, self.rate(now, mean_time));
        } else {
            self.fan_outs.hit(now, items);
        }
        self.returns.hit(now, items);
    }

    /// A batch of this many items was answered.
    pub(super) fn answered(&mut self, now: Tick, items: u32, mean_time: u64) {
        self.returns.start(now, items, self.rate(now, mean_time));
        self.stretch += 1;
        self.answered += u64::from(items);
        if self.stretch < PEAK_EVENTS {
            return;
        }
        self.peaks.rotate_right(1);
        self.peaks[0] = 0;
        if self.ended > self.answered / ENDED_PARTS {
            self.peaks = [0; 1 + PEAKS];
        }
        (self.stretch, self.answered, self.ended) = (0, 0, 0);
    }

    /// So many items are queued or in flight.
    pub(super) fn here(&mut self, items: u64) {
        self.peaks[0] = self.peaks[0].max(items);
    }

    /// So many items were ended as late.
    pub(super) fn ended_early(&mut self, items: u32) {
        self.ended += u64::from(items);
    }

    /// Where clients wait for their answers and come back: how many of those who were here lately are away.
    pub(super) fn away(&self, here: u64, mean_time: u64) -> Option<u64> {
        let [present, before @ ..] = self.peaks;
        let (least, most) =
            before.into_iter().fold((u64::MAX, present), |(least, most), peak| (least.min(peak), most.max(peak)));
        let closed =
            least > 0 && most - least <= most / CLOSED_STEADY && self.returns.caused_soon(mean_time) >= CLOSED_MIN;
        closed.then(|| most.saturating_sub(here))
    }

    /// λ, by an exponential window.
    pub(super) fn rate(&self, now: Tick, mean_time: u64) -> Rate {
        Rate(whole(self.left(now, mean_time) / float(window(mean_time)) * 1e12))
    }

    /// What follows a completion, per item of it.
    pub(super) const fn returns(&self) -> &Profile {
        &self.returns
    }

    /// What follows an arrival into idleness.
    pub(super) const fn fan_outs(&self) -> &Profile {
        &self.fan_outs
    }

    fn left(&self, now: Tick, mean_time: u64) -> f64 {
        let age = now.0.saturating_sub(self.latest.0);
        self.weight * exp(-float(age) / float(window(mean_time)))
    }
}

// === impl Profile ===

impl Profile {
    /// The present event: how long ago it was, and its items.
    pub(super) fn present(&self, now: Tick) -> Option<(u64, u32)> {
        self.event.map(|event| (now.0.saturating_sub(event.at.0), event.items))
    }

    /// Arrivals that an event of `items` brings about between two offsets from it, in thousandths; 0 where it keeps arrivals away.
    pub(super) fn caused(&self, items: u32, from: u64, to: u64) -> u64 {
        let each = self.sum(from, to, |bin, part, _| part * bin.caused / bin.watched);
        whole(each * f64::from(items) * 1000.0)
    }

    /// Arrivals expected between two offsets at this mean rate, in thousandths: more than the rate alone where they cluster, fewer where they do not.
    pub(super) fn expected(&self, rate: Rate, from: u64, to: u64) -> u64 {
        let relative = self.sum(from, to, |bin, part, width| part * width * bin.relative());
        whole(relative * per_nano(rate) * 1000.0)
    }

    /// Of an item that is not back at `from` after its answer, the chance that it is at `to`.
    pub(super) fn back(&self, from: u64, to: u64) -> f64 {
        let share = |from, to| self.sum(from, to, |bin, part, _| part * bin.came / bin.items);
        (share(from, to) / (1.0 - share(0, from)).max(AWAY_MIN)).min(1.0)
    }

    /// The most arrivals beyond the mean rate up to some time within this one, per item answered.
    fn caused_soon(&self, within: u64) -> f64 {
        let ended = self.bins.iter().zip(spans()).take_while(|(_, (start, width))| start + width <= within);
        let each =
            ended.filter(|(bin, _)| bin.watched > WATCHED_MIN).map(|(bin, _)| (bin.came - bin.usual) / bin.items);
        let so_far = each.scan(0.0, |sum, caused| {
            *sum += caused;
            Some(*sum)
        });
        so_far.fold(0.0, f64::max)
    }

    fn start(&mut self, now: Tick, items: u32, rate: Rate) {
        if let Some(event) = self.event {
            self.learn(now, event);
        }
        for bin in &mut self.bins {
            bin.present = 0;
        }
        self.event = Some(Event { at: now, items: items.max(1), rate });
    }

    fn hit(&mut self, now: Tick, items: u32) {
        let Some((offset, _)) = self.present(now) else { return };
        // A bin holds its end, not its start: what came in the very same instant is queued already and promises nothing.
        let index = EDGES.partition_point(|edge| *edge < offset);
        if let Some(bin) = index.checked_sub(1).and_then(|index| self.bins.get_mut(index)) {
            bin.present += u64::from(items);
        }
    }

    fn learn(&mut self, now: Tick, event: Event) {
        let elapsed = now.0.saturating_sub(event.at.0);
        for (bin, (start, width)) in self.bins.iter_mut().zip(spans()) {
            if elapsed <= start {
                break;
            }
            let part = (float(elapsed - start) / float(width)).min(1.0);
            let usual = per_nano(event.rate) * part * float(width);
            let came = float(bin.present);
            bin.caused = MEMORY * bin.caused + (came - usual) / f64::from(event.items);
            bin.came = MEMORY * bin.came + came;
            bin.usual = MEMORY * bin.usual + usual;
            bin.items = MEMORY * bin.items + part * f64::from(event.items);
            bin.watched = MEMORY * bin.watched + part;
        }
    }

    /// Sums over the bins between two offsets; `value` is given the bin, the part of it that lies between them, and its width.
    fn sum(&self, from: u64, to: u64, value: impl Fn(&Bin, f64, f64) -> f64) -> f64 {
        let mut sum = 0.0;
        for (bin, (start, width)) in self.bins.iter().zip(spans()) {
            let covered = to.min(start + width).saturating_sub(from.max(start));
            if covered > 0 && bin.watched > WATCHED_MIN {
                sum += value(bin, float(covered) / float(width), float(width));
            }
        }
        sum
    }
}

// === impl Bin ===

impl Bin {
    fn relative(&self) -> f64 {
        if self.usual > 0.0 { (self.came / self.usual).min(RELATIVE_MAX) } else { 1.0 }
    }
}

fn window(mean_time: u64) -> u64 {
    mean_time.saturating_mul(WINDOW_TIMES).max(WINDOW_MIN)
}

fn per_nano(rate: Rate) -> f64 {
    float(rate.0) / 1e12
}

/// Start and width of each bin.
fn spans() -> impl Iterator<Item = (u64, u64)> {
    EDGES.iter().zip(EDGES.iter().skip(1)).map(|(start, end)| (*start, end - start))
}

#[cfg(test)]
mod tests;
