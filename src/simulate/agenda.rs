//! The event queue of a run: a binary heap ordered by time and, at equal times, by insertion.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::batching::{CallId, Tick};

use super::policy::{SentId, Status};

/// A scheduled event.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A client of a closed loop sends its next call.
    Client(u32),
    /// A client cancels its call.
    Cancel(CallId),
    /// A step inside the upstream.
    Upstream(Step),
    /// A response reaches the proxy.
    Answer(SentId, Status),
}

/// A step inside an upstream.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// The next batch in transit enters the queue.
    Enter,
    /// A slot completes a batch.
    Done(SentId, Status),
    /// The number of slots changes.
    Slots,
    /// The iteration of an engine ends.
    Round,
    /// A request of a shared server completes, if this is still the newest event of the server.
    Tick(u32),
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    at: Tick,
    sequence: u64,
    event: Event,
}

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
    /// Reversed, since the heap pops the greatest entry first: the earliest entry is the greatest.
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
