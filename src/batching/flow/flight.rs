//! A request in flight, and how it ended.

use std::time::Duration;

use super::super::math::float;
use super::super::tick::{Tick, nanos};
use super::level::span;
use super::permit::Permit;

/// The record of a request in flight.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct FlightMark {
    pub(super) sent: Tick,
    pub(super) beside: u32,
    pub(super) alone: bool,
    pub(super) newest: bool,
    pub(super) permit: Permit,
    pub(super) probe: u32,
    pub(super) items: u32,
    /// Its number in the busy period, where that is measured.
    pub(super) wave: Option<usize>,
    /// No batch was in flight when it was sent.
    pub(super) clean: bool,
    /// The time that it takes with its slot idle, in nanoseconds; 0 where that is not known.
    pub(super) expected: u64,
}

/// A request that leaves.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Departure {
    pub(in super::super) items: u32,
    pub(in super::super) calls: u32,
    /// It cannot share a batch.
    pub(in super::super) alone: bool,
    pub(in super::super) permit: Permit,
    /// Items of the class that stay queued.
    pub(in super::super) queued: u64,
    /// The time that it takes with its slot idle, in nanoseconds; 0 where that is not known.
    pub(in super::super) expected: u64,
}

/// A request that ended.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Completion {
    /// It was answered well, as it was sent.
    pub(in super::super) answered: bool,
    pub(in super::super) calls: u32,
    /// The arrivals of its first and its last call.
    pub(in super::super) first: Tick,
    pub(in super::super) last: Tick,
    /// Items of the class that are queued.
    pub(in super::super) queued: u64,
    /// The largest batch that any limit allows.
    pub(in super::super) items_max: u32,
    pub(super) items: u32,
    /// Items that were here until now, itself included.
    pub(super) here: u64,
    /// Nanoseconds to the first byte of its answer, where that was seen.
    pub(super) first_byte: Option<f64>,
}

// === impl Completion ===

impl Completion {
    pub(in super::super) fn new(
        answered: bool,
        calls: u32,
        first: Tick,
        last: Tick,
        queued: u64,
        items_max: u32,
    ) -> Self {
        Self { answered, calls, first, last, queued, items_max, items: 1, here: 1, first_byte: None }
    }

    /// The same with the time to the first byte of its answer: a call that streams shows by it how
    /// busy the server is.
    pub(in super::super) fn with_first_byte(self, first_byte: Option<Duration>) -> Self {
        Self { first_byte: first_byte.map(|time| float(nanos(time))), ..self }
    }

    /// The items whose calls arrived from `from` on, with their mean time until now: as if arrivals
    /// were spread evenly.
    pub(super) fn since(&self, now: Tick, from: Tick) -> (u64, f64) {
        let items = u64::from(self.items);
        if self.last < from {
            return (0, 0.0);
        }
        if self.first >= from {
            return (items, (span(self.first, now) + span(self.last, now)) / 2.0);
        }
        let part = span(from, self.last) / span(self.first, self.last).max(1.0);
        let counted = super::super::math::whole(part * float(items)).clamp(1, items);
        (counted, (span(from, now) + span(self.last, now)) / 2.0)
    }
}
