//! Records of an execution: at dispatch, in flight, and at its end.

use super::super::math::to_f64;
use super::super::tick::Tick;
use super::latency_line::nanos_between;
use super::permit::Permit;

/// The record of an execution in flight.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct InFlightExecution {
    pub(super) sent: Tick,
    pub(super) in_flight: u32,
    pub(super) unmergeable: bool,
    pub(super) newest: bool,
    pub(super) permit: Permit,
    pub(super) probe: u32,
    pub(super) items: u32,
    /// Its number in the wave test, if it takes part in one.
    pub(super) wave: Option<usize>,
    /// `true` if no batch was in flight at its dispatch.
    pub(super) clean: bool,
    pub(in super::super) connection: ConnectionUse,
    /// Expected time with its slot idle, in nanoseconds; 0 if unknown.
    pub(super) expected: u64,
    /// The load until its dispatch.
    pub(super) load: LoadIntegral,
}

/// Connection of an unbatched call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum ConnectionUse {
    /// That of its client.
    Client,
    /// One of its own, as a batch has.
    Own,
}

/// The integral of the number of executions in flight over time, of which two values give the mean
/// number between them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LoadIntegral {
    /// Execution-nanoseconds, modulo 2^64.
    area: u64,
    until: Tick,
}

/// An execution at dispatch.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct ExecutionStart {
    pub(in super::super) items: u32,
    pub(in super::super) calls: u32,
    /// `true` if it cannot share a batch.
    pub(in super::super) unmergeable: bool,
    pub(in super::super) permit: Permit,
    /// Items of the class that stay queued.
    pub(in super::super) queued: u64,
    /// Expected time with its slot idle, in nanoseconds; 0 if unknown.
    pub(in super::super) expected: u64,
}

/// An execution at its end.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct ExecutionEnd {
    /// `true` if it was answered successfully, in the form in which it was sent.
    pub(in super::super) answered: bool,
    pub(in super::super) calls: u32,
    /// Arrival times of its first and its last call.
    pub(in super::super) first: Tick,
    pub(in super::super) last: Tick,
    /// Items of the class that are queued.
    pub(in super::super) queued: u64,
    /// Largest batch that the limits allow.
    pub(in super::super) items_max: u32,
    pub(super) items: u32,
    /// Items queued and in flight up to now, its own included.
    pub(super) items_in_system: u64,
    /// Nanoseconds to the first byte of its answer, if that was observed. It shows the load of the
    /// server if the call streams.
    pub(in super::super) first_byte: Option<f64>,
    /// Tokens of all streams of the class so far, if the answer was generated and streamed.
    pub(in super::super) tokens: Option<u64>,
}

// === impl LoadIntegral ===

impl LoadIntegral {
    /// Advances to `now`. `flights`: the executions in flight since the last call.
    pub(super) fn advance(&mut self, now: Tick, flights: u32) {
        let nanos = now.0.saturating_sub(self.until.0);
        self.area = self.area.wrapping_add(nanos.wrapping_mul(u64::from(flights)));
        self.until = self.until.max(now);
    }

    /// Returns the mean number of executions in flight since `before`, and at least one.
    pub(super) fn mean_since(&self, before: &Self) -> f64 {
        let area = to_f64(self.area.wrapping_sub(before.area));
        (area / nanos_between(before.until, self.until).max(1.0)).max(1.0)
    }
}

// === impl ExecutionEnd ===

impl ExecutionEnd {
    pub(in super::super) fn new(
        answered: bool,
        calls: u32,
        first: Tick,
        last: Tick,
        queued: u64,
        items_max: u32,
    ) -> Self {
        Self {
            answered,
            calls,
            first,
            last,
            queued,
            items_max,
            items: 1,
            items_in_system: 1,
            first_byte: None,
            tokens: None,
        }
    }

    /// Returns the items of the calls that arrived from `from` on, and their mean time until now.
    /// Arrivals are assumed to be spread evenly.
    pub(super) fn since(&self, now: Tick, from: Tick) -> (u64, f64) {
        let items = u64::from(self.items);
        if self.last < from {
            return (0, 0.0);
        }
        if self.first >= from {
            return (items, (nanos_between(self.first, now) + nanos_between(self.last, now)) / 2.0);
        }
        let part = nanos_between(from, self.last) / nanos_between(self.first, self.last).max(1.0);
        let counted = super::super::math::round_to_u64(part * to_f64(items)).clamp(1, items);
        (counted, (nanos_between(from, now) + nanos_between(self.last, now)) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_load_of_an_execution_is_weighted_by_time() {
        let mut load = LoadIntegral::default();
        load.advance(Tick(100), 3);
        let sent = load;
        load.advance(Tick(130), 1);
        load.advance(Tick(140), 9);
        assert!((load.mean_since(&sent) - 3.0).abs() < 1e-9, "30 ns of one and 10 ns of nine");
        assert!((load.mean_since(&load) - 1.0).abs() < 1e-9, "at least itself");
    }
}
