//! Batches that show whether the server takes lists, and are not answered.
//!
//! Without a timeout of the route such a batch stays in flight for as long as its callers wait. It keeps
//! no place from others meanwhile: each of its calls alone would have been answered long ago.

use super::super::call::CostClassId;
use super::super::class::merging::Bound;
use super::super::tick::Tick;
use super::Adaptive;
use super::learn::Sent;

/// A batch counts as silent once it took so many times a lone call, like a trial that its callers left
/// (`class`).
const SILENT_FACTOR: u64 = 4;

// === impl Adaptive ===

impl Adaptive {
    /// Whether a class has room for a lone call once its silent batches are left out. While such a batch
    /// is out, the other calls of a class without a whole batch go alone.
    pub(super) fn has_silent_room(&self, class: CostClassId, merge: Bound, now: Tick) -> bool {
        let Some(limit) = self.models.get(&class).and_then(|model| model.flow.limit()) else { return false };
        let silent = self.trial_ends(class, merge).filter(|at| *at <= now).count();
        let flights = self.models.get(&class).map_or(0, |model| model.flow.flights());
        silent > 0 && (flights as usize).saturating_sub(silent) < limit as usize
    }

    /// When the next batch of a class becomes silent.
    pub(super) fn silent_until(&self, class: CostClassId, merge: Bound, now: Tick) -> Option<Tick> {
        self.trial_ends(class, merge).filter(|at| *at > now).min()
    }

    /// The instants at which the batches of a class in flight become silent, where no batch of it was
    /// answered whole.
    fn trial_ends(&self, class: CostClassId, merge: Bound) -> impl Iterator<Item = Tick> {
        let lone = self.models.get(&class).and_then(|model| model.lone_nanos()).unwrap_or(self.mean_time);
        let patience = SILENT_FACTOR.saturating_mul(lone);
        let tries =
            move |sent: &&Sent| merge == Bound::Alone(None) && sent.batch.class == class && sent.batch.calls > 1;
        self.flights.values().filter(tries).map(move |sent| Tick(sent.flight.sent_at().0.saturating_add(patience)))
    }
}
