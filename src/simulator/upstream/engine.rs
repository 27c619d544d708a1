//! The state of an upstream that batches by itself: a front end with one thread, a queue, and
//! iterations that each take as much of the queue as fits.

use std::collections::{BTreeMap, VecDeque};

use crate::batching::Tick;

use super::super::batch::{ResponseStatus, SimBatchId};
use super::super::curve::BatchLoad;
use super::super::event_queue::{EventQueue, SimEvent, UpstreamStep};
use super::super::random::RandomStream;
use super::{BatchingServer, REFUSAL_TIME, duration, millis};

/// State of a [`BatchingServer`] in a run.
#[derive(Debug)]
pub(crate) struct BatchingServerState {
    spec: BatchingServer,
    random: RandomStream,
    /// Batches in the front end, in order of sending.
    arriving: VecDeque<BatchPart>,
    /// Batches, or the rest of one, that wait for an iteration.
    queue: VecDeque<BatchPart>,
    /// Parts that the current iteration processes.
    iteration: Vec<BatchPart>,
    /// Number of unfinished items of each batch.
    left: BTreeMap<SimBatchId, u32>,
    /// Instant at which the thread of the front end is free.
    front_free: Tick,
    /// Number of items in the server: in the front end, queued or in the current iteration.
    items_inside: u32,
    /// Total time of the iterations.
    busy_millis: f64,
}

/// Items of one batch. Each has the mean weight of the batch, and where padding counts, the weight
/// of its heaviest item.
#[derive(Debug, Clone, Copy)]
struct BatchPart {
    id: SimBatchId,
    items: u32,
    /// Mean weight of an item of the batch.
    weight: u64,
    /// Weight of the heaviest item of the batch.
    max: u64,
}

// === impl BatchingServerState ===

impl BatchingServerState {
    pub(super) fn new(spec: BatchingServer, random: RandomStream) -> Self {
        Self {
            spec,
            random,
            arriving: VecDeque::new(),
            queue: VecDeque::new(),
            iteration: Vec::new(),
            left: BTreeMap::new(),
            front_free: Tick::default(),
            items_inside: 0,
            busy_millis: 0.0,
        }
    }

    pub(super) fn submit(&mut self, now: Tick, id: SimBatchId, load: BatchLoad, events: &mut EventQueue) {
        let too_large = load.items > self.spec.batch_items_max;
        if too_large || self.items_inside + load.items > self.spec.items_inside_max {
            let status = if too_large { ResponseStatus::TooLarge { limit: None } } else { ResponseStatus::Overloaded };
            events.schedule(now.after(self.spec.round_trip + REFUSAL_TIME), SimEvent::Answer(id, status));
            return;
        }
        self.items_inside += load.items;
        let weight = load.sum / u64::from(load.items.max(1));
        self.arriving.push_back(BatchPart { id, items: load.items, weight, max: load.max });
        self.left.insert(id, load.items);
        let starts = self.front_free.max(now.after(self.spec.round_trip / 2));
        self.front_free = starts.after(self.spec.front + self.spec.front_item * load.items);
        events.schedule(self.front_free, SimEvent::Upstream(UpstreamStep::Enter));
    }

    pub(super) fn step(&mut self, now: Tick, step: UpstreamStep, events: &mut EventQueue) {
        match step {
            UpstreamStep::Enter => self.queue.extend(self.arriving.pop_front()),
            UpstreamStep::IterationEnd => self.end_iteration(now, events),
            UpstreamStep::Done(..) | UpstreamStep::Slots | UpstreamStep::Tick(_) => {}
        }
        self.start_iteration(now, events);
    }

    pub(super) fn busy_share(&self, now: Tick) -> f64 {
        let capacity = millis(now.since(Tick::default()));
        if capacity > 0.0 { self.busy_millis / capacity } else { 0.0 }
    }

    /// Ends an iteration, and answers the batches without unfinished items.
    fn end_iteration(&mut self, now: Tick, events: &mut EventQueue) {
        for part in self.iteration.drain(..) {
            self.items_inside -= part.items;
            let Some(left) = self.left.get_mut(&part.id) else { continue };
            *left -= part.items;
            if *left == 0 {
                self.left.remove(&part.id);
                events.schedule(now.after(self.spec.round_trip / 2), SimEvent::Answer(part.id, ResponseStatus::Ok));
            }
        }
    }

    /// Starts an iteration if none is in progress and batches are queued.
    fn start_iteration(&mut self, now: Tick, events: &mut EventQueue) {
        if !self.iteration.is_empty() || self.queue.is_empty() {
            return;
        }
        // Parts are taken in order of arrival. A batch may be divided between iterations.
        let mut load = BatchLoad::default();
        while let Some(part) = self.queue.front_mut() {
            let room_items = self.spec.items_max.saturating_sub(load.items);
            let room_weight = self.spec.weight_max.saturating_sub(load.sum) / part.weight.max(1);
            // An item above the maximum weight of an iteration runs alone.
            let room = u64::from(room_items).min(room_weight).max(u64::from(load.items == 0));
            let taken = part.items.min(u32::try_from(room).unwrap_or(u32::MAX));
            if taken == 0 {
                break;
            }
            load.items += taken;
            load.sum += part.weight * u64::from(taken);
            load.max = load.max.max(part.max);
            self.iteration.push(BatchPart { items: taken, ..*part });
            part.items -= taken;
            if part.items == 0 {
                self.queue.pop_front();
            }
        }
        let time = self.spec.curve.millis(load) * (self.random.normal() * self.spec.sigma).exp();
        self.busy_millis += time;
        events.schedule(now.after(duration(time)), SimEvent::Upstream(UpstreamStep::IterationEnd));
    }
}
