//! Merges closed-loop cohorts that are served in turn and have no slack to wait for each other.
//!
//! Closed-loop clients can split into two cohorts: one is served while the other waits, and the one
//! that waited has no slack left for a batch of all. Each batch is then as small as the remaining
//! deadlines allow, and calls that do not fit are refused for ever, although all of them would be
//! in time if they arrived at once. From time to time, therefore, the waiting cohort is held until
//! the one in flight has been answered and has returned, and leaves with it, late once. From then
//! on they arrive together.
//!
//! Out of scope: clients with slack to wait (`hold`), several slots, and deadlines set by
//! clients, for which a later answer is useless.

use std::time::Duration;

use super::super::arrivals::EDGES;
use super::super::batch::DispatchCause;
use super::super::call::DeadlineSource;
use super::super::math::to_f64;
use super::super::queue::QueuedCall;
use super::super::stats::HoldReason;
use super::super::tick::{Tick, nanos};
use super::cohort_merge::{BACK, PRICE, PendingMerge};
use super::deadline::max_items_within;
use super::decision::{Action, DispatchKind, KeyDecision};
use super::models::InFlight;
use super::queue_view::{QueueView, slo_of};
use super::state::Adaptive;

/// Part of the returning items for which the key queue is held, in hundredths.
const ALMOST_ALL: u64 = 95;
/// Minimum ratio of the throughput of all together to that of two cohorts. The prediction is an
/// estimate, and the held calls are late for it.
const FASTER: f64 = 1.2;

// === impl Adaptive ===

impl Adaptive {
    /// Returns the decision for a key queue that waits for its other cohort, or begins to; `None`
    /// if it does neither. `hold_max` returns the time for which the key queue may still be held,
    /// `hold` a hold until an instant, cut to every bound.
    pub(super) fn decide_cohort(
        &mut self,
        view: &QueueView<'_>,
        leading: bool,
        hold_max: impl Fn() -> Duration,
        hold: impl Fn(Tick) -> Option<KeyDecision>,
    ) -> Option<KeyDecision> {
        let (key, items) = (view.key, view.items);
        if self.keys.get(&key)?.cohort_merge.open.is_none() {
            if view.late_head(&self.models.get(&view.head.call.cost_class)?.cost).is_some() {
                return None;
            }
            let open =
                self.find_merge(view, leading).filter(|open| Duration::from_nanos(open.return_nanos) <= hold_max())?;
            if !self.keys.get_mut(&key)?.cohort_merge.begin(open) {
                return None;
            }
        }
        let key_model = self.keys.get_mut(&key)?;
        let open = key_model.cohort_merge.open?;
        if leading {
            // The other cohort is not answered yet.
            key_model.cohort_merge.wait(items);
            self.note_hold(key, HoldReason::Gather);
            return Some(KeyDecision::NoSlot(None));
        }
        let now = view.ctx.now;
        let elapsed = key_model.arrivals.returns().current_event(now).map_or(0, |(elapsed, _)| elapsed);
        let until = Tick(now.0.saturating_sub(elapsed).saturating_add(open.return_nanos));
        // Held until the expected return of the other cohort, or until no more calls would be in
        // time.
        if items < open.most.min(view.cap)
            && let Some(held) = hold(until)
        {
            self.note_hold(key, HoldReason::Gather);
            return Some(held);
        }
        if !open.is_nearly_complete(items) && items < view.cap {
            key_model.cohort_merge.end();
            return None;
        }
        self.held.remove(&key);
        let next =
            Action::Send { key, items: items.min(view.cap), cause: DispatchCause::Delay, kind: DispatchKind::Batch };
        Some(KeyDecision::Do(next))
    }

    /// Returns the merge to start, if one would serve more items in time from then on.
    fn find_merge(&self, view: &QueueView<'_>, leading: bool) -> Option<PendingMerge> {
        let cost = &self.models.get(&view.head.call.cost_class)?.cost;
        let slo = nanos(slo_of(view.head)?);
        if self.slots() > 1 || view.ctx.queue.heads().nth(1).is_some() {
            return None;
        }
        let now = view.ctx.now;
        let returns = self.keys.get(&view.key)?.arrivals.returns();
        let (answered, items) = self.other_cohort(view, leading)?;
        // The cohort counts as returning if enough of its items return within a quarter of the SLO.
        // `span` is the time from its answer in which almost all of these are back.
        let returned_by = |edge: u64| returns.caused_arrivals(items, 0, edge);
        let edges = || EDGES.into_iter().take_while(|edge| *edge <= slo / 4);
        let returning = edges().map(returned_by).max().filter(|milli| *milli >= u64::from(items) * BACK * 100)?;
        let span = edges().find(|edge| returned_by(*edge) * 100 >= returning * ALMOST_ALL)?;
        let until = answered.0.saturating_add(span);
        let most = max_items_within(cost, slo.saturating_sub(span), view.cap);
        let all = view.items.saturating_add(items).min(most);
        let together = cost.time(all);
        let hold = until.saturating_sub(now.0);
        // A hold ends half-way to the head's deadline, and the held calls must still be queued when
        // the others are back. No merge is needed if it adds no item, or if all would be in time
        // together after an ordinary hold.
        if hold == 0
            || view.first_slack() / 2 <= hold
            || all <= view.items
            || view.first_slack() >= hold.saturating_add(cost.tail_time(together))
        {
            return None;
        }
        // Without a merge: the items that fit now, then the items of the rest that fit after them.
        // `lost` are those of neither batch. The merge pays if the held items, which may be late,
        // are at most `PRICE` times as many, and if the throughput rises enough.
        let first = max_items_within(cost, view.first_slack().saturating_sub(view.wait), view.items);
        let first_time = cost.time(first.max(1));
        let second = max_items_within(cost, slo.saturating_sub(first_time), all.saturating_sub(first));
        let lost = (view.items - first) + all.saturating_sub(first + second);
        let worthwhile = u64::from(lost) * PRICE >= u64::from(view.items);
        let rate = |items: u32, nanos: u64| f64::from(items) / to_f64(nanos.max(1));
        let in_turns = rate(first + second, first_time.saturating_add(cost.time(second.max(1))));
        let faster = rate(all, together.saturating_add(span)) > FASTER * in_turns;
        let has_other_deadline =
            |queued: &QueuedCall| queued.call.deadline.is_some_and(|deadline| deadline.source != DeadlineSource::Slo);
        if view.ctx.queue.calls_of(view.key).any(has_other_deadline) {
            return None;
        }
        (worthwhile && faster).then_some(PendingMerge { return_nanos: span, paid: view.items, items: all, most })
    }

    /// Returns the instant at which the other cohort is answered, and its items. In a lead the
    /// answer is still to come.
    fn other_cohort(&self, view: &QueueView<'_>, leading: bool) -> Option<(Tick, u32)> {
        if leading {
            let is_own = |sent: &&InFlight| sent.batch.key == view.key && sent.batch.kind == DispatchKind::Batch;
            let ahead = self.flights.values().filter(is_own).min_by_key(|sent| sent.due)?;
            return Some((ahead.due, ahead.batch.items));
        }
        let now = view.ctx.now;
        let (elapsed, items) = self.keys.get(&view.key)?.arrivals.returns().current_event(now)?;
        Some((Tick(now.0.saturating_sub(elapsed)), items))
    }
}
