//! Last steps of a decision: the size of the batch and its members.

use std::ops::ControlFlow;

use super::super::batch::DispatchCause;
use super::super::stats::HoldReason;
use super::batch_draft::{BatchDraft, TestSubject};
use super::batch_size::SizeDecision;
use super::deadline::{self, DeadlineChoice};
use super::decision::KeyDecision;
use super::models::model_of;
use super::state::Adaptive;
use super::{fair_queueing, weight_group};

/// Size of the candidate list for grouping by weight while several flows are queued, in batches.
/// The bound keeps a flow that is passed over because of its weight within a few batches of its
/// fair share.
const GROUP_BATCHES: u32 = 4;

// === impl Adaptive ===

impl Adaptive {
    /// Dispatches calls of similar weight, if weights determine the cost and no calls are fillers.
    pub(super) fn group_by_weight(&mut self, draft: &BatchDraft<'_>, cause: DispatchCause) -> ControlFlow<KeyDecision> {
        let view = &draft.view;
        if !draft.weights_matter || draft.may_hold_fillers() {
            return ControlFlow::Continue(());
        }
        let model = model_of(&self.models, draft.class_id())?;
        let in_turn = if draft.is_mixed {
            let items = view.cap.saturating_mul(GROUP_BATCHES);
            fair_queueing::list_candidates(view, &model.cost, &self.clocks, items, &mut self.room)
        } else {
            Vec::new()
        };
        let rate = self.rate(view.key, view.ctx.now);
        self.chosen = weight_group::choose_group(view, &model.cost, rate, self.mean_time, &in_turn);
        if self.chosen.is_empty() {
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(draft.send_chosen(cause))
    }

    /// Returns the size of the batch without regard to deadlines. The plan may hold the key queue.
    pub(super) fn choose_size(&mut self, draft: &BatchDraft<'_>) -> ControlFlow<KeyDecision, u32> {
        let items = match self.decide_size(&draft.view) {
            // The test is about the limit, or about the cost of a batch of the newest size.
            _ if draft.is_testing() || draft.merges_always() => draft.view.items.min(draft.view.cap),
            SizeDecision::Send(items) => items,
            SizeDecision::Hold { until, otherwise } => {
                self.hold_line(draft, until, HoldReason::Plan)?;
                otherwise
            }
        };
        ControlFlow::Continue(items)
    }

    /// Dispatches calls in fair order, if several flows are queued.
    pub(super) fn choose_in_turn(
        &mut self,
        draft: &BatchDraft<'_>,
        items: u32,
        cause: DispatchCause,
    ) -> ControlFlow<KeyDecision> {
        if !draft.is_mixed {
            return ControlFlow::Continue(());
        }
        let model = model_of(&self.models, draft.class_id())?;
        fair_queueing::choose_fair(&draft.view, &model.cost, &self.clocks, items, &mut self.room, &mut self.chosen);
        ControlFlow::Break(draft.send_chosen(cause))
    }

    /// Dispatches the earliest deadlines first: the batch shrinks for an urgent head, or urgent
    /// heads are given up for more calls served in time.
    pub(super) fn meet_deadlines(
        &mut self,
        draft: &BatchDraft<'_>,
        want: u32,
        cause: DispatchCause,
    ) -> ControlFlow<KeyDecision> {
        // Deadlines would select smaller sizes for ever, and the larger size that meets more of
        // them would never be measured. The limiter allows only a few batches of it at once.
        if draft.subject == TestSubject::BatchSize {
            return ControlFlow::Break(draft.send(want, cause));
        }
        let view = &draft.view;
        let model = model_of(&self.models, draft.class_id())?;
        let rate = self.rate(view.key, view.ctx.now);
        let decision = match deadline::adjust_to_deadlines(view, &model.cost, rate, want, &mut self.draw) {
            DeadlineChoice::First(items) => {
                let cause = match () {
                    () if items < want => DispatchCause::Deadline,
                    () if draft.is_cut_by_weight && items == view.cap => DispatchCause::Weight,
                    () => cause,
                };
                draft.send(items, cause)
            }
            DeadlineChoice::GiveUp(heads) => {
                self.given_up = view.ctx.queue.calls_of(view.key).take(heads).map(|queued| queued.call.id).collect();
                match self.given_up.pop() {
                    Some(id) => KeyDecision::expire_late(id),
                    None => draft.send(want, DispatchCause::Idle),
                }
            }
        };
        ControlFlow::Break(decision)
    }
}
