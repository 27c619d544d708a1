//! What a batch will take: the learned cost curve of one cost class.
//!
//! Every decision about size, deadline and lead asks this first, and nobody configures it: it is learned from batches that found their slot idle.
//! A straight line in items and weights ([`Base`]), a shape on top where a line does not fit, a ratio for the tail, and a watch that notices when
//! the server is another one. Floats stay inside; what leaves is whole nanoseconds, so decisions compare integers and replay.
//!
//! What it leaves out: which samples are clean (the caller offers only those), ceilings, slots, and anything about arrivals.

mod base;
mod load;
mod report;
mod reservoir;
mod shape;
mod tail;
#[cfg(test)]
mod tests;

use super::call::Weight;
use super::math::{float, whole};
pub use base::Base;
use base::Models;
use load::{Load, Typical};
pub use report::{Point, Report, Snapshot};
use reservoir::{Reading, Reservoir};
use shape::{Mean, Shape};
use tail::{Tail, Verdict, Watch};

/// Sizes with a price of their own; larger ones go by the line (`scheduling.md` §3, "t, t98 for n = 1…512").
const SIZE_MAX: u32 = 512;
/// Expected before the first sample: so little that nothing is shed on a guess (`scheduling.md` §2.8).
const UNKNOWN_NANOS: u64 = 1_000_000;
/// No batch takes less than a microsecond or more than eleven days: bounds for arithmetic, not for servers.
const NANOS_MIN: f64 = 1e3;
const NANOS_MAX: f64 = 1e15;
/// Samples a cell keeps, and what a size's mean counts, after a drift or a restart (`scheduling.md` §3).
const KEPT: u32 = 3;
/// Samples before one is judged: the first few say little about the rest.
const JUDGED_MIN: u32 = 6;
/// Samples before the models are compared.
const COMPARED_MIN: u32 = 3;
/// Samples before what a size took is converted to typical weights.
const CONVERTED_MIN: u32 = 8;
/// Solved at each of so many samples, then at every eighth (`scheduling.md` §3).
const SOLVED_EACH: u32 = 40;
const SOLVED_EVERY: u32 = 8;
/// Weights matter from this padding and this share of the time on, and no longer below the last (`scheduling.md` §3).
const PADDING_ON: f64 = 0.05;
const WEIGHT_PART_ON: f64 = 0.1;
const PADDING_OFF: f64 = 0.03;

/// One batch that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Its items, at least 1.
    pub items: u32,
    /// What they weigh: the sum, and the heaviest one.
    pub weight: Weight,
    /// From dispatch to answer.
    pub nanos: u64,
}

/// The learned cost curve of one cost class.
///
/// # Bounds
/// 96 kinds of batches × 8 samples, 512 sizes: some 50 KB at most, a few KB usually.
///
/// # Cost
/// [`Cost::observe`] takes some 100 ns, at every eighth sample some µs; it allocates only for kinds and sizes not seen before. [`Cost::time`] is a look
/// into a table, [`Cost::time_of`] a few multiplications.
#[derive(Debug, Clone)]
pub(super) struct Cost {
    reservoir: Reservoir,
    typical: Typical,
    models: Models,
    shape: Shape,
    tail: Tail,
    watch: Watch,
    /// What the first sample took: the scale of the ridge.
    first: f64,
    /// Since the last change.
    samples: u32,
    /// Since the last change or drift.
    recent: u32,
    largest: u32,
    weights_matter: bool,
    /// Nanoseconds at typical weights of 1 to [`SIZE_MAX`] items, non-decreasing; empty before the first sample.
    table: Vec<u64>,
}

// === impl Cost ===

impl Default for Cost {
    fn default() -> Self {
        Self {
            reservoir: Reservoir::default(),
            typical: Typical::default(),
            models: Models::new(Base::SizeOnly),
            shape: Shape::default(),
            tail: Tail::default(),
            watch: Watch::default(),
            first: 0.0,
            samples: 0,
            recent: 0,
            largest: 0,
            weights_matter: false,
            table: Vec::new(),
        }
    }
}

impl Cost {
    /// Learns from a batch that found its slot idle. True if the server was judged changed for good: all is forgotten but this sample.
    pub(super) fn observe(&mut self, sample: Sample) -> bool {
        let reading = Reading::new(sample);
        let verdict = self.judge(&reading);
        match verdict {
            Verdict::Outlier => return false,
            Verdict::Normal => {}
            Verdict::Drifted(factor) => self.rescale(factor),
            Verdict::Changed => self.forget(),
        }
        self.learn(reading);
        verdict == Verdict::Changed
    }

    /// Samples learned from since the last change.
    pub(super) fn samples(&self) -> u32 {
        self.samples
    }

    /// Nanoseconds a batch of this size takes if its items weigh what they usually do. Never less for more items.
    pub(super) fn time(&self, items: u32) -> u64 {
        let at = usize::try_from(items.clamp(1, SIZE_MAX) - 1).unwrap_or(usize::MAX);
        let Some(known) = self.table.get(at) else { return UNKNOWN_NANOS };
        if items <= SIZE_MAX { *known } else { whole(self.expect(items, self.typical.load(items))).max(*known) }
    }

    /// Nanoseconds a batch of this size and these weights takes.
    pub(super) fn time_of(&self, items: u32, weight: Weight) -> u64 {
        if self.samples == 0 { UNKNOWN_NANOS } else { whole(self.expect(items, Load::new(items, weight))) }
    }

    /// What a batch expected to take so long exceeds once in fifty times: q × `nanos`.
    pub(super) fn late(&self, nanos: u64) -> u64 {
        let late = u128::from(nanos) * u128::from(self.tail_permille()) / 1000;
        u64::try_from(late).unwrap_or(u64::MAX)
    }

    /// The tail ratio q, 1020 to 1600.
    pub(super) fn tail_permille(&self) -> u64 {
        self.tail.permille()
    }

    /// The largest batch since the last change.
    pub(super) fn largest(&self) -> u32 {
        self.largest
    }

    /// How often this size was observed since the last change: up to 16, at most 3 of them before a drift or a restart.
    pub(super) fn seen(&self, items: u32) -> u32 {
        self.shape.seen(items)
    }

    /// How often batches of this size or a larger one were observed, counted likewise.
    pub(super) fn seen_from(&self, items: u32) -> u32 {
        self.shape.seen_from(items)
    }

    /// Whether it pays to choose by weight who shares a batch.
    pub(super) fn weights_matter(&self) -> bool {
        self.weights_matter
    }

    /// What an item costs by.
    pub(super) fn base_kind(&self) -> Base {
        self.models.chosen()
    }

    /// What a later process may begin with.
    pub(super) fn snapshot(&self) -> Snapshot {
        let (weight_milli, heaviest_milli, padding_permille) = self.typical.keep();
        Snapshot {
            base: self.base_kind(),
            first_nanos: whole(self.first),
            samples: self.reservoir.newest().map(Sample::from).collect(),
            points: self.points(KEPT),
            largest: self.largest,
            tail_permille: self.tail_permille(),
            noise_ppm: whole(self.shape.noise() * 1e6),
            weights_matter: self.weights_matter,
            weight_milli,
            heaviest_milli,
            padding_permille,
        }
    }

    /// Begins with what an earlier process learned, whatever is in it: it counts little, so the first batches correct a wrong one.
    pub(super) fn restore(snapshot: &Snapshot) -> Self {
        let mut cost = Self::default();
        if snapshot.first_nanos == 0 || snapshot.samples.is_empty() {
            return cost;
        }
        for sample in &snapshot.samples {
            cost.reservoir.put(Reading::new(*sample));
        }
        cost.samples = u32::try_from(cost.reservoir.iter().count()).unwrap_or(u32::MAX);
        cost.first = Reading::new(Sample { nanos: snapshot.first_nanos, ..snapshot.samples[0] }).nanos;
        cost.models = Models::new(snapshot.base);
        cost.typical = Typical::kept(snapshot.weight_milli, &snapshot.heaviest_milli, snapshot.padding_permille);
        cost.shape = Shape::restored(snapshot.points.iter().map(Mean::from), float(snapshot.noise_ppm) / 1e6);
        cost.tail = Tail::restored(snapshot.tail_permille);
        cost.largest = snapshot.largest;
        cost.weights_matter = snapshot.weights_matter && snapshot.base != Base::SizeOnly;
        cost.solve();
        cost
    }

    /// What was learned, for people.
    pub(super) fn report(&self) -> Report {
        let line = self.models.line();
        Report {
            base: self.base_kind(),
            batch_nanos: whole(line.batch),
            item_nanos: whole(line.item),
            weight_picos: whole(line.weight * 1e3),
            shaped: self.shaped(),
            weights_matter: self.weights_matter,
            points: self.points(u32::MAX),
            samples: self.samples,
            error_permille: whole(self.models.error() * 1e3),
            tail_permille: self.tail_permille(),
        }
    }

    fn judge(&mut self, reading: &Reading) -> Verdict {
        if self.samples < JUDGED_MIN {
            return Verdict::Normal;
        }
        let z = reading.nanos / self.expect(reading.items, reading.load);
        // Past a knee that nobody had seen: the guess was wrong, and the server is the same.
        let guessed = z > 1.0 && reading.items > self.largest;
        if !guessed {
            self.tail.observe(z);
        }
        self.watch.observe(z, guessed)
    }

    fn learn(&mut self, reading: Reading) {
        if self.samples == 0 {
            self.first = reading.nanos;
        }
        self.typical.observe(reading.load, reading.items);
        let mut stale = self.recent < SOLVED_EACH || self.recent.is_multiple_of(SOLVED_EVERY);
        if self.samples >= COMPARED_MIN {
            stale |= self.models.judge(&reading);
        }
        stale |= self.weigh(&reading);
        self.shape.put(reading.items, self.at_typical_weights(&reading));
        self.reservoir.put(reading);
        self.samples = self.samples.saturating_add(1);
        self.recent = self.recent.saturating_add(1);
        self.largest = self.largest.max(reading.items);
        if stale {
            self.solve();
        }
    }

    /// Judges whether weights matter; true if that has changed.
    fn weigh(&mut self, reading: &Reading) -> bool {
        let padding = self.typical.padding();
        let dear = || self.models.weight_part(reading.load) > WEIGHT_PART_ON * reading.nanos;
        let matter = self.base_kind() != Base::SizeOnly
            && (padding > PADDING_ON && dear() || self.weights_matter && padding > PADDING_OFF);
        std::mem::replace(&mut self.weights_matter, matter) != matter
    }

    /// What a batch would have taken with typical weights, and [`SIZE_MAX`] items if it had more.
    fn at_typical_weights(&self, reading: &Reading) -> f64 {
        if self.samples < CONVERTED_MIN && reading.items <= SIZE_MAX {
            return reading.nanos;
        }
        let typical = self.models.time(self.typical.load(reading.items.min(SIZE_MAX)));
        (reading.nanos * typical / self.models.time(reading.load)).clamp(NANOS_MIN, NANOS_MAX)
    }

    /// Nanoseconds for this load: the line, corrected by the shape at this size.
    fn expect(&self, items: u32, load: Load) -> f64 {
        let line = self.models.time(load);
        if !self.shaped() {
            return line.min(NANOS_MAX);
        }
        // Past the ends of the curve the last ratio holds.
        let ratio = |(items, nanos)| nanos / self.models.time(self.typical.load(items));
        (line * self.shape.at(items).map_or(1.0, ratio)).clamp(NANOS_MIN, NANOS_MAX)
    }

    /// Means are per size, so they say nothing once weights matter.
    fn shaped(&self) -> bool {
        self.shape.drawn() && !self.weights_matter
    }

    fn solve(&mut self) {
        self.models.fit(&self.reservoir, &self.typical, self.first);
        let mut prices = [0.0; SIZE_MAX as usize];
        prices.iter_mut().zip(self.typical.loads()).for_each(|(price, load)| *price = self.models.time(load));
        self.shape.draw(&prices);
        if self.shaped() {
            self.shape.bend(&mut prices);
        }
        let mut longest = 0;
        self.table.clear();
        self.table.extend(prices.iter().map(|price| {
            longest = whole(price.max(NANOS_MIN)).max(longest);
            longest
        }));
    }

    fn rescale(&mut self, factor: f64) {
        self.first = (self.first * factor).clamp(NANOS_MIN, NANOS_MAX);
        self.reservoir.rescale(factor);
        self.models.rescale(factor);
        self.shape.rescale(factor, KEPT);
        self.recent = 0;
    }

    /// Forgets the server, not the traffic: what items weigh stays.
    fn forget(&mut self) {
        self.reservoir.clear();
        self.models = Models::new(Base::SizeOnly);
        self.shape.clear();
        self.tail.clear();
        self.samples = 0;
        self.recent = 0;
        self.largest = 0;
    }

    fn points(&self, count_max: u32) -> Vec<Point> {
        let point =
            |mean: &Mean| Point { items: mean.items, nanos: whole(mean.nanos), count: mean.count.min(count_max) };
        self.shape.means().iter().map(point).collect()
    }
}

impl From<&Point> for Mean {
    fn from(point: &Point) -> Self {
        let nanos = float(point.nanos).clamp(NANOS_MIN, NANOS_MAX);
        Self { items: point.items, nanos, count: point.count.clamp(1, KEPT) }
    }
}
