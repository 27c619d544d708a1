//! The state of an upstream that computes all requests at once, at a speed that falls with their
//! number.
//!
//! It uses virtual time, as is usual for processor sharing: each request has an amount of work, and
//! all requests inside advance at the same rate, so one clock serves them all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::batching::Tick;

use super::super::batch::{ResponseStatus, SimBatchId};
use super::super::curve::BatchLoad;
use super::super::event_queue::{EventQueue, SimEvent, UpstreamStep};
use super::super::random::RandomStream;
use super::{SharedServer, Slowdown, duration, millis, nanos};

#[derive(Debug)]
pub(crate) struct SharedServerState {
    spec: SharedServer,
    random: RandomStream,
    /// Min-heap of the running requests: the virtual work, in nanoseconds, at which a request
    /// completes, and its number of active items.
    running: BinaryHeap<Reverse<(u64, SimBatchId, u32)>>,
    active: u32,
    /// Accumulated virtual work, in milliseconds, and the instant at which it was computed.
    work: f64,
    at: Tick,
    /// Number of the latest event. Earlier events are obsolete.
    latest_event: u32,
    busy_millis: f64,
}

// === impl SharedServerState ===

impl SharedServerState {
    pub(super) fn new(spec: SharedServer, random: RandomStream) -> Self {
        let at = Tick::default();
        Self { spec, random, running: BinaryHeap::new(), active: 0, work: 0.0, at, latest_event: 0, busy_millis: 0.0 }
    }

    pub(super) fn submit(&mut self, now: Tick, id: SimBatchId, load: BatchLoad, events: &mut EventQueue) {
        self.advance(now);
        let (work, active) = match self.spec.slowdown {
            Slowdown::Cores(_) => (self.spec.curve.millis(load) * self.draw_noise(), 1),
            // The items of a batch run independently, and the slowest one ends it.
            Slowdown::Step { .. } => {
                let longest = (0..load.items.max(1)).map(|_| self.draw_noise()).fold(0.0, f64::max);
                (self.spec.curve.millis(BatchLoad::of_items(1)) * longest, load.items.max(1))
            }
        };
        self.active += active;
        self.running.push(Reverse((nanos(self.work + work), id, active)));
        self.schedule(now, events);
    }

    pub(super) fn step(&mut self, now: Tick, step: UpstreamStep, events: &mut EventQueue) {
        if !matches!(step, UpstreamStep::Tick(number) if number == self.latest_event) {
            return;
        }
        self.advance(now);
        while let Some(&Reverse((due, id, active))) = self.running.peek() {
            if due > nanos(self.work) + 1 {
                break;
            }
            self.running.pop();
            self.active -= active;
            events.schedule(now, SimEvent::Answer(id, ResponseStatus::Ok));
        }
        self.schedule(now, events);
    }

    pub(super) fn busy_share(&self, now: Tick) -> f64 {
        let capacity = millis(now.since(Tick::default()));
        if capacity > 0.0 { self.busy_millis / capacity } else { 0.0 }
    }

    /// Returns the virtual work done per millisecond.
    fn speed(&self) -> f64 {
        let active = f64::from(self.active.max(1));
        match self.spec.slowdown {
            Slowdown::Cores(cores) => (f64::from(cores) / active).min(1.0),
            Slowdown::Step { item } => 1.0 / (1.0 - item + item * active),
        }
    }

    fn advance(&mut self, now: Tick) {
        let span = millis(now.since(self.at));
        if self.active > 0 {
            self.busy_millis += span;
        }
        self.work += span * self.speed();
        self.at = now;
    }

    fn schedule(&mut self, now: Tick, events: &mut EventQueue) {
        self.latest_event = self.latest_event.wrapping_add(1);
        if let Some(Reverse((due, ..))) = self.running.peek() {
            let left = (*due as f64 / 1e6 - self.work).max(0.0) / self.speed();
            events.schedule(now.after(duration(left)), SimEvent::Upstream(UpstreamStep::Tick(self.latest_event)));
        }
    }

    fn draw_noise(&mut self) -> f64 {
        (self.random.normal() * self.spec.sigma).exp()
    }
}
