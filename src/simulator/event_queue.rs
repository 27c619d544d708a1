//! The event queue of a run: a binary heap ordered by time and, at equal times, by insertion.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::batching::{CallId, Tick};

use super::batch::{ResponseStatus, SimBatchId};

/// A scheduled event.
#[derive(Debug, Clone, Copy)]
pub(super) enum SimEvent {
    /// A client of a closed loop sends its next call.
    Client(u32),
    /// A client cancels its call.
    Cancel(CallId),
    /// A step inside the upstream.
    Upstream(UpstreamStep),
    /// A response reaches the proxy.
    Answer(SimBatchId, ResponseStatus),
}

/// A step inside an upstream.
#[derive(Debug, Clone, Copy)]
pub(super) enum UpstreamStep {
    /// The next batch in transit enters the queue.
    Enter,
    /// A slot completes a batch.
    Done(SimBatchId, ResponseStatus),
    /// The number of slots changes.
    Slots,
    /// The iteration of an engine ends.
    IterationEnd,
    /// A request of a shared server completes, if this is still the latest event of the server.
    Tick(u32),
}

#[derive(Debug, Clone, Copy)]
struct ScheduledEvent {
    at: Tick,
    sequence: u64,
    event: SimEvent,
}

#[derive(Debug, Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<ScheduledEvent>,
    sequence: u64,
}

// === impl EventQueue ===

impl EventQueue {
    pub(super) fn schedule(&mut self, at: Tick, event: SimEvent) {
        self.sequence += 1;
        self.heap.push(ScheduledEvent { at, sequence: self.sequence, event });
    }

    pub(super) fn next_at(&self) -> Option<Tick> {
        self.heap.peek().map(|entry| entry.at)
    }

    pub(super) fn pop(&mut self) -> Option<SimEvent> {
        self.heap.pop().map(|entry| entry.event)
    }
}

// === impl ScheduledEvent ===

impl Ord for ScheduledEvent {
    /// Reversed, since the heap pops the greatest entry first: the earliest entry is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ScheduledEvent {}
