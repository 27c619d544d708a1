//! What happens next: events in order of time, and in order of making where times are equal.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::batching::{CallId, Tick};

use super::policy::{SentId, Status};

/// Something that is due.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A client of a closed loop sends its next call.
    Client(u32),
    /// A caller leaves.
    Cancel(CallId),
    /// The upstream's own business.
    Upstream(Step),
    /// An answer reaches the proxy.
    Answer(SentId, Status),
}

/// What happens inside an upstream.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// The next batch that is on its way reaches the queue.
    Enter,
    /// A slot is done with a batch.
    Done(SentId, Status),
    /// The number of slots is another one.
    Slots,
    /// The engine's iteration ends.
    Round,
    /// A request inside a shared server is done, if this is still its newest event.
    Tick(u32),
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    at: Tick,
    sequence: u64,
    event: Event,
}

/// The events to come.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Entry>,
    sequence: u64,
}

// === impl Agenda ===

impl Agenda {
    pub(super) fn at(&mut self, at: Tick, event: Event) {
        self.sequence += 1;
        self.heap.push(Entry { at, sequence: self.sequence, event });
    }

    pub(super) fn next_at(&self) -> Option<Tick> {
        self.heap.peek().map(|entry| entry.at)
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|entry| entry.event)
    }
}

// === impl Entry ===

impl Ord for Entry {
    /// The heap gives the greatest first: the earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}
