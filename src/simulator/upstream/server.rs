//! The state of a server with slots.

use std::collections::VecDeque;
use std::time::Duration;

use crate::batching::Tick;

use super::super::batch::{ResponseStatus, SimBatchId};
use super::super::curve::BatchLoad;
use super::super::event_queue::{EventQueue, SimEvent, UpstreamStep};
use super::super::random::RandomStream;
use super::{REFUSAL_TIME, SlotServer, duration, millis};

/// A [`SlotServer`] in a run.
#[derive(Debug)]
pub(crate) struct SlotServerState {
    spec: SlotServer,
    random: RandomStream,
    /// Batches in transit or in host work before the slots, in order of sending.
    arriving: VecDeque<(SimBatchId, BatchLoad)>,
    /// Batches that wait for a slot.
    queue: VecDeque<(SimBatchId, BatchLoad)>,
    /// Number of slots in use.
    running: u32,
    /// Number of executions that were begun.
    served: u32,
    /// Total time of the executions.
    busy_millis: f64,
}

// === impl SlotServerState ===

impl SlotServerState {
    pub(super) fn new(spec: SlotServer, random: RandomStream) -> Self {
        Self {
            spec,
            random,
            arriving: VecDeque::new(),
            queue: VecDeque::new(),
            running: 0,
            served: 0,
            busy_millis: 0.0,
        }
    }

    pub(super) fn start(&self, events: &mut EventQueue) {
        for (at, _) in &self.spec.slot_changes {
            events.schedule(*at, SimEvent::Upstream(UpstreamStep::Slots));
        }
    }

    pub(super) fn submit(&mut self, now: Tick, id: SimBatchId, load: BatchLoad, events: &mut EventQueue) {
        if let Some(status) = self.refusal(now, load) {
            events.schedule(now.after(self.spec.round_trip + REFUSAL_TIME), SimEvent::Answer(id, status));
            return;
        }
        self.arriving.push_back((id, load));
        let jitter = self.draw_jitter();
        let enters = now.after(self.spec.round_trip / 2 + self.spec.host_before + jitter);
        events.schedule(enters, SimEvent::Upstream(UpstreamStep::Enter));
    }

    pub(super) fn step(&mut self, now: Tick, step: UpstreamStep, events: &mut EventQueue) {
        match step {
            // Transit keeps the order of sending.
            UpstreamStep::Enter => self.queue.extend(self.arriving.pop_front()),
            UpstreamStep::Done(id, status) => {
                self.running -= 1;
                let jitter = self.draw_jitter();
                let back = now.after(self.spec.host_after + self.spec.round_trip / 2 + jitter);
                events.schedule(back, SimEvent::Answer(id, status));
            }
            UpstreamStep::Slots | UpstreamStep::IterationEnd | UpstreamStep::Tick(_) => {}
        }
        self.fill(now, events);
    }

    pub(super) fn busy_share(&self, now: Tick) -> f64 {
        let mut capacity = 0.0;
        let (mut from, mut slots) = (Tick::default(), self.spec.slots);
        for &(at, next) in self.spec.slot_changes.iter().filter(|(at, _)| *at < now) {
            capacity += f64::from(slots) * millis(at.since(from));
            (from, slots) = (at, next);
        }
        capacity += f64::from(slots) * millis(now.since(from));
        if capacity > 0.0 { self.busy_millis / capacity } else { 0.0 }
    }

    /// Returns the number of slots at this instant.
    fn slots(&self, now: Tick) -> u32 {
        let changed = self.spec.slot_changes.iter().rev().find(|(at, _)| *at <= now);
        changed.map_or(self.spec.slots, |(_, slots)| *slots)
    }

    /// Returns the status with which a batch is refused before it is queued, if it exceeds a limit.
    fn refusal(&self, now: Tick, load: BatchLoad) -> Option<ResponseStatus> {
        let ceilings = &self.spec.ceilings;
        if ceilings.lifted_at.is_some_and(|at| now >= at) {
            return None;
        }
        let exceeds_items = ceilings.items_max.is_some_and(|max| load.items > max);
        let exceeds_weight = ceilings.weight_max.is_some_and(|max| load.sum > max);
        let limit = ceilings.items_max.filter(|_| ceilings.named && exceeds_items);
        (exceeds_items || exceeds_weight).then_some(ResponseStatus::TooLarge { limit })
    }

    fn exceeds_memory(&self, now: Tick, load: BatchLoad) -> bool {
        let ceilings = &self.spec.ceilings;
        ceilings.lifted_at.is_none_or(|at| now < at)
            && ceilings.memory_max.is_some_and(|max| load.padded_weight() > max)
    }

    /// Begins executions while batches wait and slots are free.
    fn fill(&mut self, now: Tick, events: &mut EventQueue) {
        while self.running < self.slots(now) {
            let Some((id, load)) = self.queue.pop_front() else { return };
            let mut time = self.draw_execution_time(now, load);
            let mut status = ResponseStatus::Ok;
            if self.exceeds_memory(now, load) {
                (time, status) = (time / 2.0, ResponseStatus::OutOfMemory);
            }
            self.running += 1;
            self.busy_millis += time;
            events.schedule(now.after(duration(time)), SimEvent::Upstream(UpstreamStep::Done(id, status)));
        }
    }

    /// Draws the delay of one direction. Without jitter no number is drawn, so that a disabled
    /// feature does not change other draws.
    fn draw_jitter(&mut self) -> Duration {
        let mean = self.spec.jitter;
        if mean.is_zero() { mean } else { duration(self.random.exponential(millis(mean))) }
    }

    /// Draws the time of an execution that begins now, in milliseconds.
    fn draw_execution_time(&mut self, now: Tick, load: BatchLoad) -> f64 {
        let spec = &self.spec;
        let mut time = spec.curve.millis(load) * (self.random.normal() * spec.sigma).exp();
        time *= 1.0 + spec.contention * f64::from(self.running);
        if let Some(stalls) = spec.stalls
            && self.random.bernoulli(stalls.share)
        {
            time += self.random.exponential(millis(stalls.mean));
        }
        if let Some((_, factor)) = spec.shift.filter(|(from, _)| now >= *from) {
            time *= factor;
        }
        if let Some((_, factor)) = spec.cold.filter(|(first, _)| self.served < *first) {
            time *= factor;
        }
        self.served = self.served.saturating_add(1);
        time
    }
}
