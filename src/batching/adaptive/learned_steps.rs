//! The steps of the adaptive policy that use a learned part, as a table of functions. An ablation
//! run replaces one of them by the same decision without that part, so that no step tests whether
//! its part exists.

use std::ops::ControlFlow;

use super::super::ablation::Feature;
use super::super::batch::DispatchCause;
use super::super::call::CostClassId;
use super::super::limiter::ConcurrencyLimiter;
use super::super::plan::PlanInput;
use super::super::slots::SlotAvailability;
use super::batch_draft::BatchDraft;
use super::decision::KeyDecision;
use super::queue_view::KeyContext;
use super::slot_permit::LeadStep;
use super::state::Adaptive;

type HoldStep = fn(&mut Adaptive, &BatchDraft<'_>) -> ControlFlow<KeyDecision>;
type GroupStep = fn(&mut Adaptive, &BatchDraft<'_>, DispatchCause) -> ControlFlow<KeyDecision>;
type SizeStep = fn(&mut Adaptive, &BatchDraft<'_>) -> ControlFlow<KeyDecision, u32>;
type PlanStep = fn(&mut Adaptive, u32) -> Option<(CostClassId, PlanInput)>;

/// The replaceable steps.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct LearnedSteps {
    /// Runs before a key queue requests a permit of its class.
    pub(super) prepare_class: fn(&mut Adaptive, &KeyContext<'_>),
    pub(super) use_lead: LeadStep,
    pub(super) await_cohort: HoldStep,
    pub(super) hold_for_arrivals: HoldStep,
    pub(super) group_by_weight: GroupStep,
    pub(super) choose_size: SizeStep,
    /// Returns the input of a plan that is due, for batches of at most this many items.
    pub(in super::super) take_plan_input: PlanStep,
}

// === impl LearnedSteps ===

impl LearnedSteps {
    /// Returns the table without a feature. Shedding is a property of the core, not a step.
    pub(in super::super) fn without(self, feature: Feature) -> Self {
        match feature {
            Feature::Shedding => self,
            Feature::Grouping => Self { group_by_weight: |_, _, _| ControlFlow::Continue(()), ..self },
            Feature::Lead => Self { use_lead: |_, _, _| SlotAvailability::Busy, ..self },
            Feature::Cost => Self { choose_size: take_all, take_plan_input: |_, _| None, ..self },
            Feature::Plan => Self { take_plan_input: |_, _| None, ..self },
            Feature::Gather => Self {
                await_cohort: |_, _| ControlFlow::Continue(()),
                hold_for_arrivals: |_, _| ControlFlow::Continue(()),
                ..self
            },
            Feature::StandAside => Self { prepare_class: limit_to_one, ..self },
        }
    }
}

impl Default for LearnedSteps {
    fn default() -> Self {
        Self {
            prepare_class: |_, _| {},
            use_lead: Adaptive::use_lead,
            await_cohort: Adaptive::await_cohort,
            hold_for_arrivals: Adaptive::hold_for_arrivals,
            group_by_weight: Adaptive::group_by_weight,
            choose_size: Adaptive::choose_size,
            take_plan_input: Adaptive::plan_due,
        }
    }
}

fn take_all(_: &mut Adaptive, draft: &BatchDraft<'_>) -> ControlFlow<KeyDecision, u32> {
    ControlFlow::Continue(draft.view.items.min(draft.view.cap).max(1))
}

/// Sets a limit of one wherever calls would be passed through.
fn limit_to_one(adaptive: &mut Adaptive, queue: &KeyContext<'_>) {
    adaptive.ensure_model(queue.class_id());
    let unbatched = adaptive.begin.mean_nanos;
    if let Some(model) = adaptive.models.get_mut(&queue.class_id()).filter(|model| model.flow.is_open()) {
        model.flow = ConcurrencyLimiter::limited(1, unbatched);
    }
}
