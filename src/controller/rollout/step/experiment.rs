//! Experiment strategy: arms run side by side until one is better, all others are worse, or the
//! result is inconclusive.

use super::super::comparison::ComparisonResult;
use super::super::plan::{ArmPlan, ExperimentPlan};
use super::{ArmState, Assignment, OnFailure, Rollout, RolloutPhase, RolloutState, VerdictOutcome};

/// An experiment ends as inconclusive once every arm has this many times the calls that a verdict
/// needs, and this many evaluations.
const SAMPLES_TIMES_MAX: u64 = 20;
const LOOKS_MAX: u32 = 40;
/// Reasons with which an experiment ends. It does not restart while its arms are the same.
const WON: &str = "ExperimentWon";
const KEPT: &str = "ExperimentKept";
const INCONCLUSIVE: &str = "Inconclusive";

// === impl Rollout ===

impl Rollout<'_> {
    /// Evaluates the experiment and returns the assignment of every pod.
    pub(super) fn evaluate_experiment(&mut self, experiment: &ExperimentPlan) -> Vec<Assignment> {
        let same_arms =
            self.state.arms.iter().map(|arm| &arm.profile).eq(experiment.arms.iter().map(|arm| &arm.profile));
        let is_over = [WON, KEPT, INCONCLUSIVE].contains(&self.state.reason.as_str());
        let control = experiment.arms.first().map(|arm| arm.profile.clone()).unwrap_or_default();
        match self.state.phase {
            // The experiment has ended. Its result stays in force.
            RolloutPhase::Promoted | RolloutPhase::RolledBack if same_arms && is_over => {
                let current = self.state.current.clone().unwrap_or(control);
                return self.assign_all(&current);
            }
            // The experiment is running. A canary with the same profiles has a candidate instead.
            RolloutPhase::Progressing | RolloutPhase::Paused if same_arms && self.state.candidate.is_none() => {}
            _ => self.begin_experiment(experiment, &control),
        }
        let switchback = self.is_switchback(&self.live_weights(experiment), experiment.switchback);
        self.add_counts(switchback.then_some(experiment.period));
        // `onFailure` was changed while the experiment was paused: it continues, and the next
        // evaluation that finds the regression again stops the arm.
        if self.state.phase == RolloutPhase::Paused && self.plan.on_failure == OnFailure::Rollback {
            self.state.phase = RolloutPhase::Progressing;
        }
        if self.state.phase == RolloutPhase::Progressing {
            for (at, finding) in self.compare_arms(switchback) {
                // A regression found before may have paused the experiment, which then has no
                // winner.
                if self.state.phase != RolloutPhase::Progressing {
                    break;
                }
                if let Some(winner) = self.on_finding(at, finding, experiment) {
                    return self.assign_all(&winner);
                }
            }
            if let Some(profile) = self.conclude(experiment, &control) {
                return self.assign_all(&profile);
            }
            self.report_progress(experiment, &control, switchback);
        }
        self.assign_to_arms(&self.live_weights(experiment), experiment.period, experiment.switchback)
    }

    /// Returns the weights of the arms; 0 for stopped ones.
    fn live_weights(&self, experiment: &ExperimentPlan) -> Vec<u32> {
        let weight = |(arm, plan): (&ArmState, &ArmPlan)| if arm.stopped { 0 } else { plan.weight };
        self.state.arms.iter().zip(&experiment.arms).map(weight).collect()
    }

    /// Starts the experiment with its first arm, the control arm, in force.
    fn begin_experiment(&mut self, experiment: &ExperimentPlan, control: &str) {
        let before = self.state.current.take().filter(|before| before != control);
        let others: Vec<&str> = experiment.arms.iter().skip(1).map(|arm| arm.profile.as_str()).collect();
        let message = format!("{} compared with {control}", others.join(", "));
        self.state = RolloutState {
            current: Some(control.to_owned()),
            candidate: None,
            previous: before.or_else(|| self.state.previous.take()),
            phase: RolloutPhase::Progressing,
            step: 0,
            since: self.now,
            looked: self.now,
            reason: "Started".to_owned(),
            message: message.clone(),
            arms: experiment.arms.iter().map(|arm| ArmState::of(&arm.profile)).collect(),
        };
        self.emit_event(false, "ExperimentStarted", message);
    }

    /// Records the progress of the experiment, and the condition that it waits for.
    fn report_progress(&mut self, experiment: &ExperimentPlan, control: &str, switchback: bool) {
        let live = self.state.arms.iter().filter(|arm| !arm.stopped);
        let Some(fewest) = live.min_by_key(|arm| arm.samples).filter(|_| self.state.phase == RolloutPhase::Progressing)
        else {
            return;
        };
        let most = self.state.arms.iter().map(|arm| arm.samples).max().unwrap_or(0);
        if most == 0 {
            return;
        }
        let (reason, message) = if fewest.samples == 0 && most >= experiment.samples_min && !switchback {
            (
                "WaitingForCalls",
                format!(
                    "{} received no calls and cannot be compared: clients with persistent connections may reach only pods of other arms",
                    fewest.profile
                ),
            )
        } else if fewest.samples < experiment.samples_min {
            let (profile, calls, least) = (&fewest.profile, fewest.samples, experiment.samples_min);
            ("WaitingForCalls", format!("{profile} received {calls} calls, {least} are needed for a winner"))
        } else {
            ("Progressing", format!("compared with {control}: {}", self.describe_arms()))
        };
        reason.clone_into(&mut self.state.reason);
        self.state.message = message;
    }

    /// Handles a finding about an arm. Returns the profile that has won, if any.
    fn on_finding(&mut self, at: usize, finding: ComparisonResult, experiment: &ExperimentPlan) -> Option<String> {
        let arm = self.state.arms.get(at)?.clone();
        match finding {
            ComparisonResult::Nothing => None,
            ComparisonResult::Worse { word, detail } => {
                self.record_verdict(&arm, VerdictOutcome::Worse, word.as_str(), detail.clone());
                if self.plan.on_failure == OnFailure::Pause {
                    self.pause(&format!("{}: {detail}", arm.profile), word.as_str());
                    return None;
                }
                if let Some(arm) = self.state.arms.get_mut(at) {
                    arm.stopped = true;
                }
                self.emit_event(true, "ArmStopped", format!("{} gets no more pods: {detail}", arm.profile));
                None
            }
            ComparisonResult::Better { detail } => {
                let control = self.state.arms.first()?;
                if arm.samples.min(control.samples) < experiment.samples_min {
                    return None;
                }
                self.record_verdict(&arm, VerdictOutcome::Better, WON, detail.clone());
                let message = format!("{0} has won: {detail}; set profileRef to {0} to keep it", arm.profile);
                self.promote(&arm.profile, WON, message);
                Some(arm.profile)
            }
        }
    }

    /// Returns the profile to keep if the experiment is over without a winner.
    fn conclude(&mut self, experiment: &ExperimentPlan, control: &str) -> Option<String> {
        let most = experiment.samples_min.saturating_mul(SAMPLES_TIMES_MAX);
        let live: Vec<ArmState> = self.state.arms.iter().skip(1).filter(|arm| !arm.stopped).cloned().collect();
        let enough = self.state.arms.iter().filter(|arm| !arm.stopped).all(|arm| arm.samples >= most)
            && live.iter().all(|arm| arm.comparison.looks() >= LOOKS_MAX);
        let (reason, message) = if live.is_empty() {
            (KEPT, format!("{control} stays in force: every other arm was worse"))
        } else if enough && self.state.phase == RolloutPhase::Progressing {
            (
                INCONCLUSIVE,
                format!("{control} stays in force: after {most} calls of each arm no significant difference was found"),
            )
        } else {
            return None;
        };
        for arm in &live {
            self.record_verdict(arm, VerdictOutcome::Undecided, INCONCLUSIVE, self.describe_arms());
        }
        self.emit_event(false, "ExperimentEnded", message.clone());
        self.finish(control.to_owned(), RolloutPhase::Promoted, reason, message, false);
        Some(control.to_owned())
    }
}
