//! Permits: the decision of the limiter about the items that a key queue may send now.

use super::super::math::to_f64;
use super::super::tick::Tick;
use super::{ConcurrencyLimiter, count};

/// A key queue that requests a permit.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct PermitRequest {
    pub(in super::super) now: Tick,
    /// `true` if the first call may not be merged.
    pub(in super::super) unmergeable: bool,
    /// Arrival of the key queue's first call.
    pub(in super::super) arrived: Tick,
    /// `true` if a second call of the key queue may join the first.
    pub(in super::super) has_second: bool,
    /// Items of the class that are queued.
    pub(in super::super) queued: u64,
}

/// Permission of a key queue to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Permit {
    /// Forward one call now.
    Forward,
    /// Send one call as a batch would be sent, to compare a pair with it.
    Control,
    /// Send two calls together, to measure the cost of a pair.
    Pair,
    /// Send a batch of at most this many items.
    Share(u32),
    /// Send a batch beyond the limit, to measure whether the server has room.
    Probe(u32),
    /// Send nothing before this instant.
    Hold(Tick),
    /// Send nothing, because the limit is reached.
    Full,
}

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    /// Returns the permit for a key queue of the class.
    pub(in super::super) fn permit(&mut self, request: &PermitRequest) -> Permit {
        self.now = self.now.max(request.now);
        // A released queue leaves in order, a few executions at a time.
        if let Some(gate) = self.gate {
            return if f64::from(self.flights) < gate.limit { Permit::Forward } else { Permit::Full };
        }
        if self.is_open() {
            return self.permit_open(request);
        }
        let in_force = self.trial_limit.or(self.limit).unwrap_or(f64::INFINITY);
        if self.begin_split(request) {
            return Permit::Share(self.equal_share(2.0, request.queued));
        }
        if f64::from(self.flights) < in_force.floor().max(1.0) {
            return if request.unmergeable {
                Permit::Forward
            } else {
                Permit::Share(self.equal_share(in_force, request.queued))
            };
        }
        // A trial that lowers an open limit holds each call for a bounded time only.
        if let Some(trial) = &self.trial {
            return match trial.held_until(request.arrived) {
                Some(until) if request.now >= until => {
                    if request.unmergeable {
                        Permit::Forward
                    } else {
                        Permit::Share(2)
                    }
                }
                Some(until) => Permit::Hold(until),
                None => Permit::Full,
            };
        }
        if !request.unmergeable && self.try_probe(request) {
            return Permit::Probe(self.equal_share(in_force, request.queued));
        }
        Permit::Full
    }

    /// Returns the items of a batch that leaves just before another one returns: all that wait if
    /// one is in flight at a time, otherwise an equal share.
    pub(in super::super) fn lead_share(&self, queued: u64) -> u32 {
        match self.limit {
            Some(limit) if limit >= 2.0 => self.equal_share(limit, queued),
            _ => u32::MAX,
        }
    }

    /// Returns the items queued and in flight, those that cannot be merged included.
    pub(super) fn items_here(&self, queued: u64) -> u64 {
        let others = u64::from(self.flights - self.merged_flights.min(self.flights));
        queued.saturating_add(self.merged_items).saturating_add(others)
    }

    /// Returns the items of a batch if everything queued and in flight is shared equally among this
    /// many executions.
    pub(super) fn equal_share(&self, limit: f64, queued: u64) -> u32 {
        let all = to_f64(self.items_here(queued));
        let share = (all / limit.max(1.0)).ceil().max(1.0);
        let cap = self.growth.cap_with_in_flight(self.newest, limit);
        // A lower limit is tested with the larger batches that follow from it.
        let lowers = self.trial.is_some_and(|trial| !trial.is_upward());
        let cap = if lowers { cap.saturating_mul(2) } else { cap };
        if share >= f64::from(cap) { cap } else { count(share) }
    }
}
