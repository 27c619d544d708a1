//! One evaluation of one policy's rollout: the profile of each pod, and the events to emit. Pure.
//!
//! ```text
//! the current profile ─▶ nothing to do
//! a new profile ─▶ Progressing: step 0 ─┬─▶ hold is over, enough calls, no regression ─▶ step 1 …
//!                                       │     ─▶ Promoted
//!                                       └─▶ regression ─▶ RolledBack, and not retried until the
//!                                             policy specifies another profile; or Paused
//! an experiment ─▶ Progressing ─┬─▶ an arm is better ─▶ Promoted
//!                               └─▶ all are worse or it is inconclusive ─▶ the first arm stays
//! a pin (manual rollback) ─▶ RolledBack at once, until the policy specifies another profile or the
//!                              pin is removed
//! ```

mod arms;
mod canary;
mod decision;
mod experiment;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use self::decision::{ProfileVerdict, RolloutDecision, RolloutEvent};
use super::comparison::Comparison;
use super::plan::{RolloutPlan, RolloutStrategy};
use super::{ArmCounts, UnixSeconds};
use crate::api::v1alpha1::{OnFailure, RolloutPhase, VerdictOutcome};

/// State of a rollout. A status records it without the counts of the arms ([`ArmState::counts`],
/// [`ArmState::since_look`]) and the time of the last evaluation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RolloutState {
    /// Profile in force, which is the control arm while another one is tried.
    pub current: Option<String>,
    /// Profile that is being tried, or that was tried and failed.
    pub candidate: Option<String>,
    /// Profile that was in force before `current`.
    pub previous: Option<String>,
    /// Phase of the rollout.
    pub phase: RolloutPhase,
    /// Index of the canary step, from 0.
    pub step: usize,
    /// Start of the step or of the phase.
    pub since: UnixSeconds,
    /// Time of the last evaluation.
    pub looked: UnixSeconds,
    /// Machine-readable reason.
    pub reason: String,
    /// Human-readable explanation.
    pub message: String,
    /// Arms that are compared; the first is the control arm.
    pub arms: Vec<ArmState>,
}

/// Measurements of an arm.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ArmState {
    /// Name of its profile.
    pub profile: String,
    /// Number of pods assigned to it.
    pub pods: u32,
    /// Number of completed calls.
    pub samples: u64,
    /// Number of completed calls that were not served.
    pub errors: u64,
    /// Comparison with the control arm; empty for the control arm itself.
    pub comparison: Comparison,
    /// `true` if the arm was found worse and receives no pods.
    pub stopped: bool,
    /// Counts since the start; not kept in a status.
    pub counts: ArmCounts,
    /// Counts since the last evaluation; not kept in a status.
    pub since_look: ArmCounts,
}

/// Measurements of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodReport {
    /// UID of the pod.
    pub uid: String,
    /// Profile that its sidecar has in force, if reported.
    pub profile: Option<String>,
    /// Time from which on the profile has been in force.
    pub in_force_since: UnixSeconds,
    /// Start of the period that the counts cover.
    pub from: UnixSeconds,
    /// End of that period.
    pub to: UnixSeconds,
    /// Calls served in that period, since the last call of [`evaluate`].
    pub counts: ArmCounts,
}

/// Evaluates a rollout and returns the next state and assignment. It is deterministic. Another
/// controller continues from the state stored in a status.
#[must_use]
pub fn evaluate(state: RolloutState, plan: &RolloutPlan, pods: &[PodReport], now: UnixSeconds) -> RolloutDecision {
    // The times may have been written by another controller with a clock ahead of this one. They
    // are clamped, or nothing would be counted or evaluated until this clock has caught up.
    let state = RolloutState { since: state.since.min(now), looked: state.looked.min(now), ..state };
    let mut rollout = Rollout { state, plan, pods, now, events: Vec::new(), verdicts: Vec::new() };
    let assignments = rollout.advance();
    let Rollout { state, events, verdicts, .. } = rollout;
    let mut next = RolloutDecision { profiles: BTreeMap::new(), frozen: BTreeSet::new(), events, verdicts, state };
    for (pod, assignment) in pods.iter().zip(assignments) {
        next.profiles.insert(pod.uid.clone(), assignment.profile);
        if assignment.frozen {
            next.frozen.insert(pod.uid.clone());
        }
    }
    next
}

/// An evaluation: its inputs, the state that it changes, and its results.
struct Rollout<'a> {
    state: RolloutState,
    plan: &'a RolloutPlan,
    pods: &'a [PodReport],
    now: UnixSeconds,
    events: Vec<RolloutEvent>,
    verdicts: Vec<ProfileVerdict>,
}

struct Assignment {
    profile: String,
    /// `true` if the pod must not be tuned ([`RolloutDecision::frozen`]).
    frozen: bool,
}

// === impl Rollout ===

impl Rollout<'_> {
    /// Advances the state. Returns the assignments in the order of `pods`.
    fn advance(&mut self) -> Vec<Assignment> {
        let desired = self.plan.desired.clone();
        // A manual rollback overrides every strategy.
        if let Some(pin) = self.plan.pin.as_ref().filter(|pin| pin.holds(&desired)) {
            return self.apply_pin(&pin.to.clone());
        }
        if let RolloutStrategy::Experiment(experiment) = &self.plan.strategy {
            return self.evaluate_experiment(experiment);
        }
        let Some(current) = self.state.current.clone() else {
            self.finish(
                desired.clone(),
                RolloutPhase::Promoted,
                "FirstProfile",
                format!("{desired} is the first profile"),
                false,
            );
            return self.assign_all(&desired);
        };
        // The spec may have been edited back to the profile in force while another one was tried.
        if desired == current {
            if self.state.phase != RolloutPhase::Promoted {
                let message = format!("the policy specifies {current} again");
                self.finish(current.clone(), RolloutPhase::Promoted, "Reverted", message, false);
            }
            return self.assign_all(&current);
        }
        self.try_profile(&current, &desired)
    }

    /// Puts the specified profile in force, by the strategy of the policy.
    fn try_profile(&mut self, current: &str, desired: &str) -> Vec<Assignment> {
        let is_candidate = self.state.candidate.as_deref() == Some(desired);
        let steps = match &self.plan.strategy {
            RolloutStrategy::Canary(steps) => steps,
            RolloutStrategy::Immediate | RolloutStrategy::Experiment(_) => {
                // This also applies to a profile that was rolled back before: the strategy demands
                // no comparison.
                self.promote(desired, "Immediate", format!("{desired} is in force, without a comparison"));
                return self.assign_all(desired);
            }
        };
        // The specified profile is not in force. Depending on the phase it has failed already, is
        // being tried, or is new.
        match self.state.phase {
            RolloutPhase::RolledBack if is_candidate => return self.assign_all(current),
            RolloutPhase::Paused if is_candidate && self.plan.on_failure == OnFailure::Pause => {}
            // `onFailure` was changed to `Rollback` while the rollout was paused.
            RolloutPhase::Paused if is_candidate => {
                let detail = self.state.message.clone();
                self.roll_back(&detail, "PolicyChanged");
                return self.assign_all(current);
            }
            RolloutPhase::Progressing if is_candidate => {}
            _ => self.begin_canary(current, desired, steps),
        }
        self.evaluate_canary(current, desired, steps)
    }

    /// Puts the pinned profile in force.
    fn apply_pin(&mut self, to: &str) -> Vec<Assignment> {
        let pinned = self.state.phase == RolloutPhase::RolledBack
            && self.state.current.as_deref() == Some(to)
            && self.state.reason == "ManualRollback";
        if !pinned {
            let message = format!("{to} is in force instead of {} after a manual rollback", self.plan.desired);
            self.finish(to.to_owned(), RolloutPhase::RolledBack, "ManualRollback", message, true);
            // After the pin is removed, the specified profile is tried like any other change.
            self.state.candidate = None;
        }
        self.assign_all(to)
    }

    /// Pauses the rollout after a regression.
    fn pause(&mut self, detail: &str, reason: &'static str) {
        self.state.phase = RolloutPhase::Paused;
        self.state.since = self.now;
        reason.clone_into(&mut self.state.reason);
        self.state.message = format!("{detail}: rollout paused, all pods keep their profile");
        let message = self.state.message.clone();
        self.emit_event(true, "RolloutPaused", message);
    }

    /// Ends the trial of the candidate after a regression. It remains recorded as the candidate, so
    /// that it is not tried again.
    fn roll_back(&mut self, detail: &str, reason: &str) {
        let candidate = self.state.candidate.clone().unwrap_or_default();
        let current = self.state.current.clone().unwrap_or_default();
        self.state.phase = RolloutPhase::RolledBack;
        self.state.since = self.now;
        reason.clone_into(&mut self.state.reason);
        self.state.message = format!("{candidate} was rolled back, all pods get {current}: {detail}");
        let message = self.state.message.clone();
        self.emit_event(true, "RolledBack", message);
    }

    /// Puts a profile in force because the strategy selected it.
    fn promote(&mut self, to: &str, reason: &'static str, message: String) {
        self.emit_event(false, "Promoted", message.clone());
        self.finish(to.to_owned(), RolloutPhase::Promoted, reason, message, false);
    }

    /// Ends all comparisons and puts a profile in force. For a manual rollback or a reverted spec
    /// it also emits an event, of type `Warning` if `warning` is set.
    fn finish(&mut self, current: String, phase: RolloutPhase, reason: &'static str, message: String, warning: bool) {
        let before = self.state.current.take().filter(|before| *before != current);
        if phase == RolloutPhase::RolledBack || reason == "Reverted" {
            self.emit_event(warning, if warning { "RolledBack" } else { "RolloutReverted" }, message.clone());
        }
        self.state = RolloutState {
            previous: before.or_else(|| self.state.previous.take()),
            current: Some(current),
            candidate: None,
            phase,
            step: 0,
            since: self.now,
            looked: self.now,
            reason: reason.to_owned(),
            message,
            arms: std::mem::take(&mut self.state.arms),
        };
    }

    fn record_verdict(&mut self, arm: &ArmState, outcome: VerdictOutcome, reason: &str, message: String) {
        let control_profile = self.state.arms.first().map(|control| control.profile.clone()).unwrap_or_default();
        self.verdicts.push(ProfileVerdict {
            profile: arm.profile.clone(),
            control_profile,
            outcome,
            reason: reason.to_owned(),
            message,
            p99: arm.counts.latency.quantile(990).map(Duration::from_micros),
            calls: arm.samples,
            unserved_calls: arm.errors,
        });
    }

    fn emit_event(&mut self, warning: bool, reason: &'static str, message: String) {
        self.events.push(RolloutEvent { warning, reason, message });
    }
}

// === impl ArmState ===

impl ArmState {
    fn of(profile: impl Into<String>) -> Self {
        Self { profile: profile.into(), ..Self::default() }
    }
}
