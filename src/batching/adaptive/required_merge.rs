//! Merging on routes with `merge: Always`, while the limiter has no limit and
//! would forward each call.
//!
//! Nagle's algorithm (RFC 896) decides: a call leaves at once if no call of its key queue is in
//! flight. Otherwise it waits for one of them to return, and leaves with the calls that came
//! meanwhile. The wait ends at the route's maximum for a deliberate hold at the latest, so that a
//! server that runs calls side by side is not limited to one of them.

use super::super::batch::DispatchCause;
use super::super::select::BatchCaps;
use super::super::stats::HoldReason;
use super::super::tick::Tick;
use super::batch_draft::fitting_items;
use super::decision::{Action, DispatchKind, KeyDecision};
use super::fair_queueing;
use super::queue_view::{KeyContext, QueueView};
use super::state::Adaptive;

// === impl Adaptive ===

impl Adaptive {
    /// Sends the calls of a key queue together, or holds them for others while calls of the key
    /// queue are in flight.
    pub(super) fn merge_or_forward(&mut self, queue: &KeyContext<'_>, caps: BatchCaps) -> KeyDecision {
        let KeyContext { ctx, key, head, .. } = *queue;
        let queued = ctx.queue.load_of_key(key).items;
        if queued < u64::from(caps.items)
            && let Some(until) = self.gathering_end(queue)
        {
            self.note_hold(key, HoldReason::Gather);
            return KeyDecision::Hold(until);
        }
        if queued <= u64::from(head.call.items) {
            return self.forward_call(queue, caps);
        }
        let cause = if self.held.remove(&key) { DispatchCause::Delay } else { DispatchCause::Idle };
        // The limiter measures how the server works without batches, so it learns from none of
        // these.
        let kind = DispatchKind::Plain;
        let cap = fitting_items(caps, ctx.queue.calls_of(key), caps.items);
        if queue.is_mixed
            && let Some(model) = self.models.get(&queue.class_id())
        {
            let items = fair_queueing::sizing_items(ctx, key);
            let view = QueueView { ctx, key, head, items, cap, wait: 0, caps };
            fair_queueing::choose_fair(&view, &model.cost, &self.clocks, cap, &mut self.room, &mut self.chosen);
            return KeyDecision::Do(Action::Chosen { key, cause, kind });
        }
        KeyDecision::Do(Action::Send { key, items: cap, cause, kind })
    }

    /// Returns the instant until which a key queue waits for one of its calls to return; `None` if
    /// none is in flight, or the head has waited for long enough. Half of the time to its deadline
    /// is left for the batch.
    fn gathering_end(&self, queue: &KeyContext<'_>) -> Option<Tick> {
        let now = queue.ctx.now;
        let in_flight = self.keys.get(&queue.key).map_or(0, |known| known.requests_in_flight);
        let hold_max = queue.ctx.limits.scope(queue.head.call.scope).queue_delay_max;
        let urgent = queue.head.call.deadline.map_or(Tick(u64::MAX), |deadline| {
            let arrived = queue.head.arrived;
            arrived.after(deadline.at.since(arrived) / 2)
        });
        let until = queue.head.arrived.after(hold_max).min(urgent);
        (in_flight > 0 && until > now).then_some(until)
    }
}
