//! Middle steps of a decision: reasons to hold a batch beside a free slot, and the expiry of a head
//! that would be late.

use std::ops::ControlFlow;

use super::super::stats::HoldReason;
use super::super::tick::Tick;
use super::batch_draft::BatchDraft;
use super::decision::KeyDecision;
use super::models::model_of;
use super::queue_view::slo_of;
use super::state::Adaptive;

// === impl Adaptive ===

impl Adaptive {
    /// Holds a key queue of one flow until its other cohort has returned, or dispatches both.
    pub(super) fn await_cohort(&mut self, draft: &BatchDraft<'_>) -> ControlFlow<KeyDecision> {
        let head = draft.view.head;
        let may_gather = !draft.is_testing() && !draft.is_mixed && !draft.weights_matter;
        if !may_gather || slo_of(head).is_none() {
            return ControlFlow::Continue(());
        }
        let decision =
            self.decide_cohort(&draft.view, draft.is_leading(), || draft.hold_max(), |until| draft.hold(until));
        decision.map_or(ControlFlow::Continue(()), ControlFlow::Break)
    }

    /// Expires a head that would be answered too late even alone.
    pub(super) fn expire_late_head(&self, draft: &BatchDraft<'_>) -> ControlFlow<KeyDecision> {
        let model = model_of(&self.models, draft.class_id())?;
        let late = draft.view.late_head(&model.cost).map(KeyDecision::expire_late);
        late.map_or(ControlFlow::Continue(()), ControlFlow::Break)
    }

    /// Holds the key queue for arrivals that the profiles predict, before the last slot is taken.
    pub(super) fn hold_for_arrivals(&mut self, draft: &BatchDraft<'_>) -> ControlFlow<KeyDecision> {
        let ctx = draft.view.ctx;
        if draft.is_testing() || draft.in_flight + 1 < draft.slots {
            return ControlFlow::Continue(());
        }
        let gain = self.hold_duration(&draft.view, draft.is_leading(), || draft.hold_max());
        if gain == 0 {
            return ControlFlow::Continue(());
        }
        self.hold_line(draft, Tick(ctx.now.0.saturating_add(gain)), HoldReason::Gather)
    }

    /// Holds the key queue beside an idle upstream, for the share of the SLO that a preset spends.
    pub(super) fn hold_for_preset(&mut self, draft: &BatchDraft<'_>) -> ControlFlow<KeyDecision> {
        if draft.in_flight > 0 || draft.is_testing() {
            return ControlFlow::Continue(());
        }
        let until = draft.view.preset_hold(&model_of(&self.models, draft.class_id())?.cost);
        match until {
            Some(until) => self.hold_line(draft, until, HoldReason::Preset),
            None => ControlFlow::Continue(()),
        }
    }

    /// Holds the key queue until an instant, cut to every bound, unless that is past.
    pub(super) fn hold_line(
        &mut self,
        draft: &BatchDraft<'_>,
        until: Tick,
        reason: HoldReason,
    ) -> ControlFlow<KeyDecision> {
        let Some(held) = draft.hold(until) else { return ControlFlow::Continue(()) };
        self.note_hold(draft.view.key, reason);
        ControlFlow::Break(held)
    }
}
