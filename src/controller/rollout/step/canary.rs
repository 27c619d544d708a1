//! Canary strategy: a growing share of the pods runs the candidate, step by step, while the others
//! form the control arm.

use super::super::comparison::{ComparisonResult, SWITCHBACK_EVALUATIONS_MIN, THRESHOLD_CALLS_MIN};
use super::super::plan::CanaryStep;
use super::{ArmState, Assignment, OnFailure, Rollout, RolloutPhase, RolloutState, VerdictOutcome};

/// Minimum number of calls of each arm before the next step: five are expected beyond the 99th
/// percentile.
const CANARY_SAMPLES: u64 = 500;
/// Minimum number of evaluations of both arms. A hold that is too short for them is no test.
const CANARY_LOOKS: u32 = 3;

// === impl Rollout ===

impl Rollout<'_> {
    /// Starts the first step.
    pub(super) fn begin_canary(&mut self, current: &str, desired: &str, steps: &[CanaryStep]) {
        let percent = steps.first().map_or(100, |step| step.percent);
        let message = format!("{percent}% of the pods get {desired}, the others keep {current}");
        self.state = RolloutState {
            current: Some(current.to_owned()),
            candidate: Some(desired.to_owned()),
            previous: self.state.previous.take(),
            phase: RolloutPhase::Progressing,
            step: 0,
            since: self.now,
            looked: self.now,
            reason: "Started".to_owned(),
            message: message.clone(),
            arms: [current, desired].map(ArmState::of).into(),
        };
        self.emit_event(false, "RolloutStarted", message);
    }

    /// Evaluates the current step and returns the assignment of every pod.
    pub(super) fn evaluate_canary(&mut self, current: &str, desired: &str, steps: &[CanaryStep]) -> Vec<Assignment> {
        let switchback = self.is_switchback(&self.weights(steps), false);
        self.add_counts(switchback.then_some(CanaryStep::PERIOD));
        if self.state.phase == RolloutPhase::Progressing {
            if let Some((_, ComparisonResult::Worse { word: reason, detail })) =
                self.compare_arms(switchback).into_iter().next()
            {
                return self.on_regression(current, reason.as_str(), &detail, steps);
            }
            if let Some(assignments) = self.advance_step(desired, steps, switchback) {
                return assignments;
            }
        }
        self.assign_to_arms(&self.weights(steps), CanaryStep::PERIOD, false)
    }

    /// Returns the shares of the arms at the current step.
    fn weights(&self, steps: &[CanaryStep]) -> Vec<u32> {
        let at = self.state.step.min(steps.len().saturating_sub(1));
        let percent = steps.get(at).map_or(100, |step| step.percent);
        vec![100 - percent, percent]
    }

    /// Advances to the next step if the hold of this one is over and enough was measured.
    fn advance_step(&mut self, desired: &str, steps: &[CanaryStep], switchback: bool) -> Option<Vec<Assignment>> {
        let hold = steps.get(self.state.step).map_or(0, |step| step.hold);
        if self.now.since(self.state.since) < hold {
            return None;
        }
        // A step without a control arm has no comparison to wait for, so only its hold applies.
        let without_control = self.weights(steps).first() == Some(&0);
        if !without_control && self.must_wait(switchback) {
            return None;
        }
        self.state.step += 1;
        self.state.since = self.now;
        let Some(next) = steps.get(self.state.step).filter(|_| self.state.step < steps.len()) else {
            let summary = self.describe_arms();
            let arm = self.state.arms.get(1).cloned().unwrap_or_default();
            if arm.comparison.looks() > 0 {
                self.record_verdict(&arm, VerdictOutcome::Same, "Promoted", format!("not worse: {summary}"));
            } else {
                self.record_verdict(&arm, VerdictOutcome::Undecided, "Promoted", format!("not compared: {summary}"));
            }
            self.promote(desired, "Promoted", format!("{desired} is in force: {summary}"));
            return Some(self.assign_all(desired));
        };
        "Progressing".clone_into(&mut self.state.reason);
        self.state.message = format!("{}% of the pods get {desired}: {}", next.percent, self.describe_arms());
        let message = self.state.message.clone();
        self.emit_event(false, "RolloutStep", message);
        None
    }

    /// Returns `true` if there are too few measurements for the next step, and records the reason.
    fn must_wait(&mut self, switchback: bool) -> bool {
        let fewest = self.state.arms.iter().map(|arm| arm.samples).min().unwrap_or(0);
        if fewest < CANARY_SAMPLES {
            "WaitingForCalls".clone_into(&mut self.state.reason);
            self.state.message =
                format!("{fewest} calls in the smaller arm, {CANARY_SAMPLES} are needed before the next step");
            return true;
        }
        let looks = self.state.arms.get(1).map_or(0, |arm| arm.comparison.looks());
        let needed = if switchback { SWITCHBACK_EVALUATIONS_MIN } else { CANARY_LOOKS };
        if looks < needed {
            "WaitingForLooks".clone_into(&mut self.state.reason);
            self.state.message = format!("compared {looks} times, {needed} are needed before the next step");
            return true;
        }
        let looks = self.state.arms.get(1).map_or(0, |arm| arm.comparison.latency_looks());
        if looks < CANARY_LOOKS {
            "WaitingForLatency".clone_into(&mut self.state.reason);
            let control = self.state.arms.first().map_or(0, |arm| arm.samples);
            self.state.message = if control < THRESHOLD_CALLS_MIN {
                format!("{control} calls in the control arm, {THRESHOLD_CALLS_MIN} are needed to compare latencies")
            } else {
                format!("latencies compared {looks} times, {CANARY_LOOKS} are needed before the next step")
            };
            return true;
        }
        false
    }

    /// Rolls the candidate back or pauses the rollout, as the policy specifies.
    fn on_regression(
        &mut self,
        current: &str,
        reason: &'static str,
        detail: &str,
        steps: &[CanaryStep],
    ) -> Vec<Assignment> {
        let arm = self.state.arms.get(1).cloned().unwrap_or_default();
        self.record_verdict(&arm, VerdictOutcome::Worse, reason, detail.to_owned());
        match self.plan.on_failure {
            OnFailure::Rollback => {
                self.roll_back(detail, reason);
                self.assign_all(current)
            }
            OnFailure::Pause => {
                self.pause(detail, reason);
                self.assign_to_arms(&self.weights(steps), CanaryStep::PERIOD, false)
            }
        }
    }
}
