//! Requests that are overdue, and those that are lost.
//!
//! A call without a timeout stays in flight for as long as its caller waits. A server that loses an
//! answer goes on, and a limit that counts the lost request would stop all others: at a limit of
//! one, for ever. But a server that has become slow has lost nothing. So a request is lost only
//! once one that was sent after it became overdue has been answered; where all in flight are
//! overdue, one call goes to see.

use std::time::Duration;

use super::super::call::CostClassId;
use super::super::class::merging::Bound;
use super::super::tick::{Tick, nanos};
use super::Adaptive;
use super::learn::Sent;

/// A request is overdue once it took this many times what was expected, and at least this long: the
/// slowest of usual answers, and a pause of the machine, are below both.
const OVERDUE_FACTOR: u64 = 4;
const OVERDUE_MIN: Duration = Duration::from_secs(1);

/// The requests that a class at its limit may send all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpareRoom {
    /// Nothing, before the next request becomes overdue.
    None(Option<Tick>),
    /// One call, to see whether the server answers.
    OneCall,
    /// As usual: lost requests keep no place.
    Lost,
}

// === impl Adaptive ===

impl Adaptive {
    /// The room of a class at its limit that overdue requests leave.
    pub(super) fn spare_room(&self, class: CostClassId, merge: Bound, now: Tick) -> SpareRoom {
        let Some(model) = self.models.get(&class) else { return SpareRoom::None(None) };
        let (Some(limit), false) = (model.flow.limit(), model.flow.is_draining(now)) else {
            return SpareRoom::None(None);
        };
        let lone = model.lone_nanos().unwrap_or(self.mean_time);
        let own = self.flights.values().filter(|sent| sent.batch.class == class);
        let (mut count, mut overdue, mut lost, mut next) = (0_u32, 0_u32, 0_u32, None);
        let settled = model.flow.settled_since();
        for at in own.map(|sent| overdue_from(sent, settled, merge, lone)) {
            count += 1;
            overdue += u32::from(at <= now);
            lost += u32::from(at <= now && model.answered_sent >= at);
            next = next.into_iter().chain([at].into_iter().filter(|at| *at > now)).min();
        }
        if lost > 0 && model.flow.flights().saturating_sub(lost) < limit {
            SpareRoom::Lost
        } else if count > 0 && overdue == count {
            SpareRoom::OneCall
        } else {
            SpareRoom::None(next)
        }
    }
}

/// The instant at which a request becomes overdue; `lone`: nanoseconds of a lone call. One that was
/// sent before the limit was `settled` has waited for what was there then.
fn overdue_from(sent: &Sent, settled: Tick, merge: Bound, lone: u64) -> Tick {
    let sent_at = sent.flight.sent_at();
    let began = sent_at.max(settled);
    // A server that takes no lists may never answer one: what a call alone takes is known.
    let tries = merge == Bound::Alone(None) && sent.batch.calls > 1;
    let (expected, least) = if tries { (lone, 0) } else { (sent.due.0.saturating_sub(sent_at.0), nanos(OVERDUE_MIN)) };
    Tick(began.0.saturating_add(OVERDUE_FACTOR.saturating_mul(expected).max(least)))
}
