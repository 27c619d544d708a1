//! A simulated model server with hidden properties: slots, cost curve, refusals, and batching by
//! itself.

use std::time::Duration;

use groupage::batching::{Batch, BatchId, BatchOutcome, Observation, Tick};

use crate::sim::random::RandomSource;

const MS: Duration = Duration::from_millis(1);
/// Maximum number of items that a server that batches by itself runs together.
const INNER_MAX: u32 = 32;

/// The properties of a server, until they change.
#[derive(Debug, Clone)]
pub(super) struct ServerProperties {
    slots: usize,
    /// `true` if it collects requests during a run and then runs them together.
    batches: bool,
    /// Constant time of an execution.
    base: Duration,
    /// Time for each item.
    each: Duration,
    /// Time for each item and unit of the heaviest item's weight, in nanoseconds.
    padded: u64,
    /// `true` if a batch costs as much as one of the next power of two.
    steps: bool,
    /// Maximum random increase of the execution time, in percent.
    noise: u64,
    /// Probability that an execution stalls, in thousandths.
    stalls: u64,
    /// Maximum number of items of a batch, and `true` if a refusal names it.
    items_max: Option<(u32, bool)>,
    /// Maximum of the number of items times the weight of the heaviest one. The server runs out of
    /// memory above it.
    weight_max: Option<u64>,
    /// Maximum number of batches in flight. Further ones are refused as an overload.
    running_max: Option<usize>,
    /// Probability that a response has the wrong shape, in thousandths.
    mismatches: u64,
    /// Probability that a response is a failure, in thousandths.
    failures: u64,
}

/// The simulated server.
#[derive(Debug)]
pub(super) struct Upstream {
    properties: ServerProperties,
    /// Instant from which each slot is free.
    free: Vec<Tick>,
    /// Batches collected for the next run by a server that batches by itself: id, number of items
    /// and time of dispatch.
    waiting: Vec<(BatchId, u32, Tick)>,
    /// Batches of the current run of such a server: id and time of dispatch.
    running: Vec<(BatchId, Tick)>,
}

/// The reaction to a batch.
#[derive(Debug)]
pub(super) enum ServerReaction {
    /// The batch is answered at this instant.
    Ends(Tick, Observation),
    /// The batch is collected for a later run.
    Collects,
    /// A run starts that ends at this instant.
    Runs(Tick),
}

// === impl ServerProperties ===

impl ServerProperties {
    pub(super) fn new(draw: &mut RandomSource) -> Self {
        let misbehaves = draw.chance(300);
        Self {
            slots: usize::try_from(draw.between(1, 4)).unwrap_or(1),
            batches: draw.chance(250),
            base: *draw.pick(&[1, 4, 4, 20]) * MS,
            each: *draw.pick(&[0, 10, 250, 3000]) * (MS / 1000),
            padded: *draw.pick(&[0, 0, 2000]),
            steps: draw.chance(200),
            noise: *draw.pick(&[0, 4, 10]),
            stalls: *draw.pick(&[0, 0, 10]),
            items_max: draw.chance(200).then(|| (draw.count(1, 24), draw.chance(500))),
            weight_max: draw.chance(100).then(|| draw.between(50, 5000)),
            running_max: draw.chance(100).then_some(usize::try_from(draw.between(1, 4)).unwrap_or(1)),
            mismatches: if misbehaves { *draw.pick(&[0, 3, 30]) } else { 0 },
            failures: if misbehaves { *draw.pick(&[0, 10, 300]) } else { 0 },
        }
    }

    /// Returns the properties of a server that batches by itself and refuses nothing.
    pub(super) fn batching(draw: &mut RandomSource) -> Self {
        Self { batches: true, items_max: None, weight_max: None, running_max: None, stalls: 0, ..Self::new(draw) }
    }

    /// Returns the properties of a server that runs one call at a time, takes as long for each item
    /// in a batch as for one alone, and refuses nothing.
    pub(super) fn linear(draw: &mut RandomSource) -> Self {
        let (base, each) = (Duration::ZERO, 4 * MS);
        Self { slots: 1, batches: false, base, each, padded: 0, steps: false, noise: 4, ..Self::batching(draw) }
    }

    /// Changes some or all properties.
    fn change(&mut self, draw: &mut RandomSource) {
        match draw.between(0, 4) {
            0 => (self.base, self.each) = (self.base * 2, self.each * 2),
            1 => (self.base, self.each) = (self.base / 2, self.each / 2),
            2 => self.slots = usize::try_from(draw.between(1, 4)).unwrap_or(1),
            3 => self.items_max = draw.chance(500).then(|| (draw.count(1, 24), draw.chance(500))),
            _ => *self = Self::new(draw),
        }
    }

    /// Returns the execution time of this many items of weight 0.
    pub(super) fn unbatched_time(&self, items: u32) -> Duration {
        self.base + self.each * if self.steps { items.next_power_of_two() } else { items }
    }

    fn execution_time(&self, draw: &mut RandomSource, items: u32, heaviest: u64) -> Duration {
        let padded = Duration::from_nanos(self.padded * heaviest * u64::from(items));
        let mut duration = (self.unbatched_time(items) + padded) / 1000
            * draw.count(1000, 1000 + 10 * u32::try_from(self.noise).unwrap_or(0));
        if draw.chance(self.stalls) {
            duration += draw.span(false, 80);
        }
        duration
    }
}

// === impl Upstream ===

impl Upstream {
    pub(super) fn new(properties: ServerProperties) -> Self {
        Self { properties, free: Vec::new(), waiting: Vec::new(), running: Vec::new() }
    }

    /// Changes the server. Returns the new execution time of a single item.
    pub(super) fn change(&mut self, draw: &mut RandomSource) -> Duration {
        self.properties.change(draw);
        self.properties.unbatched_time(1)
    }

    /// Handles a dispatched batch. `heaviest` is the weight of its heaviest item, and `others` the
    /// number of other batches in flight.
    pub(super) fn handle_batch(
        &mut self,
        draw: &mut RandomSource,
        now: Tick,
        batch: &Batch,
        heaviest: u64,
        others: usize,
    ) -> ServerReaction {
        let ServerProperties { items_max, weight_max, running_max, batches, mismatches, failures, slots, .. } =
            self.properties;
        let refuses = |outcome| {
            ServerReaction::Ends(now.after(MS / 2), Observation { duration: MS / 2, first_byte: None, outcome })
        };
        if let Some((max, named)) = items_max.filter(|(max, _)| batch.items > *max) {
            return refuses(BatchOutcome::TooLarge { limit: named.then_some(max) });
        }
        if weight_max.is_some_and(|max| heaviest * u64::from(batch.items) > max) {
            return refuses(BatchOutcome::OutOfMemory);
        }
        if running_max.is_some_and(|max| others >= max) {
            return refuses(BatchOutcome::Overloaded { retry_after: draw.chance(500).then_some(MS) });
        }
        if batches {
            self.waiting.push((batch.id, batch.items, now));
            return if self.running.is_empty() {
                self.run(draw, now).map_or(ServerReaction::Collects, ServerReaction::Runs)
            } else {
                ServerReaction::Collects
            };
        }
        self.free.resize(slots, now);
        let duration = self.properties.execution_time(draw, batch.items, heaviest);
        let Some(slot) = self.free.iter_mut().min() else { return ServerReaction::Collects };
        let end = now.max(*slot).after(duration);
        *slot = end;
        let outcome = match () {
            () if batch.members.len() > 1 && draw.chance(mismatches) => BatchOutcome::Mismatched,
            () if draw.chance(failures) => BatchOutcome::Failed,
            () => BatchOutcome::Ok,
        };
        ServerReaction::Ends(end, Observation { duration: end.since(now), first_byte: None, outcome })
    }

    /// Starts a run of the collected batches. Returns its end, or `None` if there are none.
    fn run(&mut self, draw: &mut RandomSource, now: Tick) -> Option<Tick> {
        let mut items = 0;
        while let Some((id, added, sent)) = self.waiting.first().copied() {
            if items > 0 && items + added > INNER_MAX {
                break;
            }
            items += added;
            self.waiting.remove(0);
            self.running.push((id, sent));
        }
        (items > 0).then(|| now.after(self.properties.execution_time(draw, items, 0)))
    }

    /// Ends a run. Returns the answered batches and the end of the next run.
    pub(super) fn on_run_end(&mut self, draw: &mut RandomSource, now: Tick) -> (Vec<(BatchId, Tick)>, Option<Tick>) {
        let answered = std::mem::take(&mut self.running);
        let next = self.run(draw, now);
        (answered, next)
    }

    /// Drops a batch that its clients have cancelled. A run in progress continues.
    pub(super) fn cancel_batch(&mut self, batch: BatchId) {
        self.waiting.retain(|(id, ..)| *id != batch);
    }
}
