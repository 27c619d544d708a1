//! The decision of the adaptive policy: the order in which merge keys are considered, and the steps
//! that decide each of them.

use std::ops::ControlFlow;

use super::super::batch::ExpiryReason;
use super::super::call::KeyId;
use super::super::class::ClassTable;
use super::super::queue::QueuedCall;
use super::batch_draft::{BatchDraft, TestSubject, fitting_items};
use super::decision::{Action, DecisionContext, KeyDecision};
use super::fair_queueing;
use super::learned_steps::LearnedSteps;
use super::models::{in_flight_of, model_of};
use super::queue_view::{KeyContext, QueueView};
use super::slot_permit::SlotPermit;
use super::state::{Adaptive, KEY_QUEUES_MAX};

/// Maximum number of cost classes at their limit that are remembered within one decision. Each key
/// of a further class is evaluated, with the same result, so only time is lost.
const FULL_CLASSES_MAX: usize = 8;

// === impl Adaptive ===

impl Adaptive {
    /// Decides the next action. `heads` yields the key queues with a free slot on their route, in
    /// service order.
    pub(in super::super) fn next<'a>(
        &mut self,
        ctx: DecisionContext<'a>,
        heads: impl Iterator<Item = (KeyId, &'a QueuedCall)>,
        classes: &ClassTable,
        steps: LearnedSteps,
    ) -> Action {
        self.wake = None;
        self.explores_size = false;
        // Calls given up by an earlier decision expire first; some may have left the queue
        // meanwhile.
        while let Some(id) = self.given_up.pop() {
            if ctx.queue.get(id).is_some() {
                return Action::Expire { id, reason: ExpiryReason::LatePredicted };
            }
        }
        // The configured slots and the AIMD limit on forwarded calls bound all classes together.
        let in_flight = self.in_flight();
        if in_flight >= ctx.limits.slots
            || self.admission.limit(self.known_batching).is_some_and(|limit| in_flight >= limit)
        {
            return Action::Nothing;
        }
        // With a single flow, nothing is shared, and the queues are evaluated in the given order.
        if ctx.queue.flows() <= 1 {
            return self.find_action(ctx, heads.take(KEY_QUEUES_MAX), classes, steps).unwrap_or(Action::Nothing);
        }
        let mut order = std::mem::take(&mut self.order);
        self.sort_by_turn(ctx, heads, &mut order);
        let filler_due = self.remove_fillers(ctx, &mut order);
        let in_turn = order.iter().take(KEY_QUEUES_MAX).filter_map(|(_, key)| Some((*key, ctx.queue.head(*key)?)));
        let action = self.find_action(ctx, in_turn, classes, steps);
        self.order = order;
        if action.is_none() {
            self.wake = self.wake.into_iter().chain(filler_due).min();
        }
        action.unwrap_or(Action::Nothing)
    }

    /// Evaluates the key queues in order until one of them yields an action.
    fn find_action<'a>(
        &mut self,
        ctx: DecisionContext<'a>,
        heads: impl Iterator<Item = (KeyId, &'a QueuedCall)>,
        classes: &ClassTable,
        steps: LearnedSteps,
    ) -> Option<Action> {
        // Limits apply to cost classes: once one key of a class is at its limit, the other keys of
        // that class are skipped.
        let mut full_classes = [None; FULL_CLASSES_MAX];
        for (key, head) in heads {
            let class_id = head.call.cost_class;
            if full_classes.contains(&Some(class_id)) {
                continue;
            }
            let queue = KeyContext {
                ctx,
                key,
                head,
                class: classes.get(class_id),
                merge: classes.merge_bound(ctx.now, &head.call, ctx.limits.merges_eagerly(head.call.scope)),
                is_mixed: ctx.queue.is_mixed(key),
            };
            let ControlFlow::Break(decision) = self.run_steps(&queue, steps) else { continue };
            match decision {
                KeyDecision::Do(action) => return Some(action),
                KeyDecision::Hold(until) => {
                    if self.held.len() >= KEY_QUEUES_MAX {
                        self.held.clear();
                    }
                    self.held.insert(key);
                    self.wake = Some(self.wake.map_or(until, |wake| wake.min(until)));
                }
                KeyDecision::NoSlot(at) => {
                    if let Some(entry) = full_classes.iter_mut().find(|class| class.is_none()) {
                        *entry = Some(class_id);
                    }
                    self.wake = self.wake.into_iter().chain(at).min();
                }
                KeyDecision::Skip => {}
            }
        }
        None
    }

    /// Runs the steps of a decision until one of them is final (`Break`). The order is part of the
    /// behaviour, because steps draw random numbers and record holds:
    ///
    /// 1. **Slot.** The concurrency limiter permits a request, and bounds its items by a share.
    /// 2. **Quarantine.** A call that shares no batch leaves alone.
    /// 3. **Bounds.** The limits, the sizes that have worked so far and the share bound the batch.
    /// 4. **Cohort.** The key queue waits for its other cohort, or leaves with it.
    /// 5. **Late.** A head that cannot be in time expires. A key queue that waits for its cohort is late
    ///    on purpose, so this comes after it.
    /// 6. **Hold.** The key queue is held for arrivals that the profiles predict, then for the share of
    ///    the SLO that a preset spends on an idle upstream. The end of all holds but that of the
    ///    plan fixes the cause of the batch.
    /// 7. **Group.** If weights determine the cost, the members are those of similar weight.
    /// 8. **Size.** The plan and the cost curve choose the size, or hold the key queue for the next
    ///    arrival.
    /// 9. **Turn.** If several flows are queued, the members are chosen in fair order.
    /// 10. **Deadline.** The batch shrinks for an urgent head, or urgent heads are given up. This
    ///     step is always final.
    fn run_steps(&mut self, queue: &KeyContext<'_>, steps: LearnedSteps) -> ControlFlow<KeyDecision> {
        (steps.prepare_class)(self, queue);
        let slot = self.obtain_permit(queue)?;
        let share = self.apply_permit(queue, &slot, steps.use_lead)?;
        self.send_unbatched_call(queue, &slot)?;
        let draft = self.bound_batch(queue, &slot, share)?;
        (steps.await_cohort)(self, &draft)?;
        self.expire_late_head(&draft)?;
        (steps.hold_for_arrivals)(self, &draft)?;
        self.hold_for_preset(&draft)?;
        let cause = draft.dispatch_cause(self.held.remove(&queue.key));
        (steps.group_by_weight)(self, &draft, cause)?;
        let items = (steps.choose_size)(self, &draft)?;
        self.choose_in_turn(&draft, items, cause)?;
        self.meet_deadlines(&draft, items, cause)
    }

    /// Bounds the batch by the limits, by twice the largest size that has worked so far, and by the
    /// share.
    fn bound_batch<'a>(
        &self,
        queue: &KeyContext<'a>,
        slot: &SlotPermit,
        share: u32,
    ) -> ControlFlow<KeyDecision, BatchDraft<'a>> {
        let KeyContext { ctx, key, head, is_mixed, .. } = *queue;
        let SlotPermit { subject, in_flight, caps, .. } = *slot;
        let model = model_of(&self.models, queue.class_id())?;
        let slots = model.slots.in_use();
        // Where several requests may be in flight, each takes an equal share of the items present.
        let shared = if slots > 1 || subject != TestSubject::Nothing { share } else { u32::MAX };
        let most = caps.items.min(model.largest_answered.saturating_mul(2).max(2)).min(shared).max(1);
        // If the weight limit ends a batch before its item limit does, only sizes up to that point
        // are available. Grouping by weight selects its own members instead.
        let weights_matter = model.cost.weights_matter();
        let cap = if weights_matter { most } else { fitting_items(caps, ctx.queue.calls_of(key), most) };
        let items = fair_queueing::sizing_items(ctx, key);
        let earliest_due = model.earliest_due(in_flight_of(&self.flights, queue.class_id()));
        let wait = model.slots.expected_wait(in_flight, earliest_due, ctx.now);
        ControlFlow::Continue(BatchDraft {
            view: QueueView { ctx, key, head, items, cap, wait, caps },
            kind: slot.kind(),
            subject,
            in_flight,
            slots,
            is_mixed,
            is_cut_by_weight: cap < most,
            weights_matter,
        })
    }
}
