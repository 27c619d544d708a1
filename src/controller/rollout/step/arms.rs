//! Arms of a comparison: assignment of the pods to them, their counts, and the findings about them.

use std::time::Duration;

use super::super::assign::{assign_arms, switchback_period, washout};
use super::super::comparison::{ComparisonDesign, ComparisonResult};
use super::super::{ArmCounts, UnixSeconds};
use super::{ArmState, Assignment, Rollout};
use crate::tuner::{format_rounded, format_share};

/// Time after a change of a pod's profile, in seconds, during which measurements still belong to
/// the previous one: calls in flight, and a report that spans the change.
const SETTLE: u64 = 5;

// === impl Rollout ===

impl Rollout<'_> {
    /// Returns `true` if every pod serves all arms in alternating periods: the plan requires it, or
    /// there are fewer pods than arms.
    pub(super) fn is_switchback(&self, weights: &[u32], requested: bool) -> bool {
        requested || self.pods.len() < weights.iter().filter(|weight| **weight > 0).count()
    }

    /// Adds the counts of each pod to the arm that it served, unless the counts may include calls
    /// of another arm. `period` is the length of a switchback period in seconds, if pods alternate
    /// between the arms.
    pub(super) fn add_counts(&mut self, period: Option<u64>) {
        let settle = period.map_or(SETTLE, washout);
        for pod in self.pods {
            let is_unmixed =
                pod.from >= UnixSeconds(pod.in_force_since.0.saturating_add(settle)) && pod.from >= self.state.since;
            let is_served = |arm: &&mut ArmState| pod.profile.as_deref() == Some(arm.profile.as_str());
            if let Some(arm) = self.state.arms.iter_mut().find(is_served).filter(|_| is_unmixed) {
                arm.samples = arm.samples.saturating_add(pod.counts.calls());
                arm.errors = arm.errors.saturating_add(pod.counts.errors);
                arm.counts.add(&pod.counts);
                arm.since_look.add(&pod.counts);
            }
        }
    }

    /// Returns the findings about arms that are not stopped, with their indices, regressions first.
    /// The full evaluation takes place once per interval of the analysis; in between, only jumps
    /// are found. In a switchback experiment the evaluation waits until every arm has calls.
    pub(super) fn compare_arms(&mut self, switchback: bool) -> Vec<(usize, ComparisonResult)> {
        let all_have_calls = || self.state.arms.iter().filter(|arm| !arm.stopped).all(|arm| arm.since_look.calls() > 0);
        let due = self.now.since(self.state.looked) >= self.plan.analysis.interval && (!switchback || all_have_calls());
        let mut found = Vec::new();
        let Some((control, others)) = self.state.arms.split_first_mut() else { return found };
        let design = ComparisonDesign { candidates: others.len(), turns: switchback };
        for (at, arm) in others.iter_mut().enumerate().filter(|(_, arm)| !arm.stopped) {
            let finding = if due {
                arm.comparison.evaluate(&control.since_look, &arm.since_look, &self.plan.analysis, design)
            } else {
                arm.comparison.check_jump(&control.since_look, &arm.since_look)
            };
            if finding != ComparisonResult::Nothing {
                found.push((at + 1, finding));
            }
        }
        if due {
            self.state.looked = self.now;
            self.state.arms.iter_mut().for_each(|arm| arm.since_look = ArmCounts::default());
        }
        found.sort_by_key(|(_, finding)| !matches!(finding, ComparisonResult::Worse { .. }));
        found
    }

    /// Returns the assignment of every pod while arms are compared. `period` is the length of a
    /// switchback period in seconds; `requested` is `true` if the plan requires a switchback.
    pub(super) fn assign_to_arms(&mut self, weights: &[u32], period: u64, requested: bool) -> Vec<Assignment> {
        let names: Vec<String> = self.state.arms.iter().map(|arm| arm.profile.clone()).collect();
        let weighted: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(weights.iter().copied()).collect();
        // The salt is derived from the compared profiles, so that other arms lead to an independent
        // assignment.
        let salt = names.join(" ");
        let uids: Vec<&str> = self.pods.iter().map(|pod| pod.uid.as_str()).collect();
        let switchback = self.is_switchback(weights, requested);
        let arm_of_pod = if switchback {
            // Periods are counted from a fixed origin, so that a new canary step does not restart
            // the period of every pod.
            let clock = (UnixSeconds(0), self.now);
            uids.iter().map(|uid| switchback_period(uid, &salt, &weighted, clock, period).arm).collect()
        } else {
            assign_arms(&uids, &salt, &weighted)
        };
        for (at, arm) in self.state.arms.iter_mut().enumerate() {
            arm.pods = u32::try_from(arm_of_pod.iter().filter(|own| **own == at).count()).unwrap_or(u32::MAX);
        }
        let assignment = |arm: &usize| Assignment {
            profile: names.get(*arm).cloned().unwrap_or_default(),
            // In a switchback experiment every pod serves the control arm at times.
            frozen: *arm == 0 || switchback,
        };
        arm_of_pod.iter().map(assignment).collect()
    }

    /// Assigns one profile to every pod.
    pub(super) fn assign_all(&mut self, profile: &str) -> Vec<Assignment> {
        let pods = u32::try_from(self.pods.len()).unwrap_or(u32::MAX);
        self.state.arms.iter_mut().for_each(|arm| arm.pods = if arm.profile == profile { pods } else { 0 });
        self.pods.iter().map(|_| Assignment { profile: profile.to_owned(), frozen: false }).collect()
    }

    /// Returns the measurements of all arms in one sentence.
    pub(super) fn describe_arms(&self) -> String {
        let describe = |arm: &ArmState| {
            let p99 = arm.counts.latency.quantile(990).map_or_else(
                || "no p99 yet".to_owned(),
                |p99| format!("p99 {}", format_rounded(Duration::from_micros(p99))),
            );
            format!("{p99} and error rate {} in {} calls", format_share(arm.errors, arm.samples), arm.samples)
        };
        match self.state.arms.as_slice() {
            [control, candidate] => format!("{}; control: {}", describe(candidate), describe(control)),
            arms => arms.iter().map(|arm| format!("{}: {}", arm.profile, describe(arm))).collect::<Vec<_>>().join("; "),
        }
    }
}
