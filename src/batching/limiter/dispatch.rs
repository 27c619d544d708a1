//! Dispatch of an execution: counts it as in flight, and records the circumstances under which its
//! answer will be evidence.

use super::super::tick::Tick;
use super::ConcurrencyLimiter;
use super::execution_record::{ConnectionUse, ExecutionStart, InFlightExecution};
use super::pair_probe::PairControl;
use super::permit::Permit;

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    /// Records the dispatch of an execution.
    pub(in super::super) fn on_dispatch(&mut self, now: Tick, leaving: &ExecutionStart) -> InFlightExecution {
        let ExecutionStart { items, calls, unmergeable, permit, queued, expected } = *leaving;
        let clean = self.batches == 0;
        self.batches += u32::from(calls > 1);
        self.now = self.now.max(now);
        self.load.advance(now, self.flights);
        self.flights += 1;
        let newest = !unmergeable && self.growth.is_newest(items);
        if !unmergeable {
            self.merged_flights += 1;
            self.merged_items += u64::from(items);
            self.last_sent = now;
            self.newest += u32::from(newest);
        }
        if queued == 0 {
            self.gate = None;
        }
        if permit == Permit::Control {
            self.pairs.control = PairControl::Sent;
        }
        if matches!(permit, Permit::Probe(_)) && self.probe.sent == Tick::default() {
            (self.probe.sent, self.probe.companions) = (now, self.flights - 1);
        }
        let free = self.is_open() && self.gate.is_none();
        let compared = calls == 1 && !unmergeable && self.compares_unbatched_calls(permit);
        let observed = calls == 1 && clean && free && !compared;
        let wave = observed.then(|| self.wave.on_send(now, self.flights));
        if observed {
            self.burst.on_send(now, self.flights);
        } else {
            self.burst.reset();
        }
        if !free {
            self.wave.reset();
        }
        InFlightExecution {
            sent: now,
            wave,
            in_flight: self.flights,
            unmergeable,
            newest,
            permit,
            probe: self.probe.id,
            items,
            clean,
            connection: if compared { ConnectionUse::Own } else { ConnectionUse::Client },
            expected,
            load: self.load,
        }
    }

    /// Returns `true` if a batch is compared with the unbatched calls that are sent now. They have
    /// connections of their own then, as the batch has.
    fn compares_unbatched_calls(&self, permit: Permit) -> bool {
        permit == Permit::Control || self.limit.is_some() && self.ordering.is_none() && !self.growth.is_uncapped()
    }
}
