//! Requests that are not answered.
//!
//! A call without a timeout stays in flight for as long as its caller waits. A request that took some times
//! what was expected of it keeps no place from others: a server that lost its answer goes on, and one that
//! works on it all the while has more to do than a limit knows.

use std::time::Duration;

use super::super::call::CostClassId;
use super::super::class::merging::Bound;
use super::super::tick::{Tick, nanos};
use super::Adaptive;
use super::learn::Sent;

/// A request counts as silent once it took so many times what was expected, and at least so long: the
/// slowest of usual answers, and a pause of the machine, are below both.
const SILENT_FACTOR: u64 = 4;
const SILENT_MIN: Duration = Duration::from_secs(1);

// === impl Adaptive ===

impl Adaptive {
    /// Whether a class has room for another request once its silent ones are left out.
    pub(super) fn has_silent_room(&self, class: CostClassId, merge: Bound, now: Tick) -> bool {
        let Some(model) = self.models.get(&class) else { return false };
        let Some(limit) = model.flow.limit() else { return false };
        let silent = self.silent_from(class, merge).filter(|at| *at <= now).count();
        silent > 0 && (model.flow.flights() as usize).saturating_sub(silent) < limit as usize
    }

    /// When the next request of a class becomes silent.
    pub(super) fn silent_until(&self, class: CostClassId, merge: Bound, now: Tick) -> Option<Tick> {
        self.silent_from(class, merge).filter(|at| *at > now).min()
    }

    /// The instants at which the requests of a class in flight become silent.
    fn silent_from(&self, class: CostClassId, merge: Bound) -> impl Iterator<Item = Tick> {
        let lone = self.models.get(&class).and_then(|model| model.lone_nanos()).unwrap_or(self.mean_time);
        let from = move |sent: &Sent| {
            let began = sent.flight.sent_at();
            // A server that takes no lists may never answer one: it is known at once that a call alone takes less.
            let tries = merge == Bound::Alone(None) && sent.batch.calls > 1;
            let (expected, least) =
                if tries { (lone, 0) } else { (sent.due.0.saturating_sub(began.0), nanos(SILENT_MIN)) };
            Tick(began.0.saturating_add(SILENT_FACTOR.saturating_mul(expected).max(least)))
        };
        self.flights.values().filter(move |sent| sent.batch.class == class).map(from)
    }
}
