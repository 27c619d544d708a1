//! Permits: whether a line may send now, and how many items.

use super::super::math::float;
use super::super::tick::Tick;
use super::{Flow, count};

/// A line that has calls to send.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Ask {
    pub(in super::super) now: Tick,
    /// The first call may not be merged.
    pub(in super::super) alone: bool,
    /// The arrival of the line's first call.
    pub(in super::super) arrived: Tick,
    /// A second call of the line may join the first.
    pub(in super::super) has_second: bool,
    /// Items of the class that are queued.
    pub(in super::super) queued: u64,
}

/// The permission of a line to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Permit {
    /// Forward one call now.
    Forward,
    /// Send two calls together, to learn what that costs.
    Pair,
    /// Send a batch of at most this many items.
    Share(u32),
    /// Send a batch beyond the limit, to see whether the server has room.
    Probe(u32),
    /// Nothing before then.
    Hold(Tick),
    /// The limit is reached.
    Full,
}

// === impl Flow ===

impl Flow {
    /// Decides what a line of the class may send now.
    pub(in super::super) fn permit(&mut self, ask: &Ask) -> Permit {
        self.now = self.now.max(ask.now);
        if let Some(gate) = self.gate {
            return if f64::from(self.flights) < gate.limit { Permit::Forward } else { Permit::Full };
        }
        if self.is_open() {
            return self.permit_open(ask);
        }
        let in_force = self.in_force.or(self.limit).unwrap_or(f64::INFINITY);
        if self.splits(ask) {
            return Permit::Share(self.share(2.0, ask.queued));
        }
        if f64::from(self.flights) < in_force.floor().max(1.0) {
            return if ask.alone { Permit::Forward } else { Permit::Share(self.share(in_force, ask.queued)) };
        }
        if let Some(trial) = &self.trial {
            return match trial.held_until(ask.arrived) {
                Some(until) if ask.now >= until => {
                    if ask.alone {
                        Permit::Forward
                    } else {
                        Permit::Share(2)
                    }
                }
                Some(until) => Permit::Hold(until),
                None => Permit::Full,
            };
        }
        if !ask.alone && self.probes(ask) {
            return Permit::Probe(self.share(in_force, ask.queued));
        }
        Permit::Full
    }

    /// Items of a batch that leaves just before another returns: all that wait where one is in
    /// flight at a time, else an equal share.
    pub(in super::super) fn lead_share(&self, queued: u64) -> u32 {
        match self.limit {
            Some(limit) if limit >= 2.0 => self.share(limit, queued),
            _ => u32::MAX,
        }
    }

    /// Items that are here: queued and in flight, those that cannot be merged included.
    pub(super) fn items_here(&self, queued: u64) -> u64 {
        let others = u64::from(self.flights - self.merged_flights.min(self.flights));
        queued.saturating_add(self.merged_items).saturating_add(others)
    }

    /// Items of a batch when all that is queued and in flight is shared equally among this many
    /// requests.
    pub(super) fn share(&self, limit: f64, queued: u64) -> u32 {
        let all = float(self.items_here(queued));
        let share = (all / limit.max(1.0)).ceil().max(1.0);
        let cap = self.growth.cap_beside(self.newest, limit);
        // A lower limit is tried with the larger batches that follow from it.
        let lowers = self.trial.is_some_and(|trial| !trial.is_upward());
        let cap = if lowers { cap.saturating_mul(2) } else { cap };
        if share >= f64::from(cap) { cap } else { count(share) }
    }
}
