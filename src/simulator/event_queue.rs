//! The event queue of a run, ordered by time and, at equal times, by insertion.

use std::collections::BTreeMap;

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

#[derive(Debug, Default)]
pub(super) struct EventQueue {
    /// Events by instant and number.
    events: BTreeMap<(Tick, u64), SimEvent>,
    /// Number of the last event.
    sequence: u64,
}

// === impl EventQueue ===

impl EventQueue {
    pub(super) fn schedule(&mut self, at: Tick, event: SimEvent) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }

    pub(super) fn next_at(&self) -> Option<Tick> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn pop(&mut self) -> Option<SimEvent> {
        self.events.pop_first().map(|(_, event)| event)
    }
}
