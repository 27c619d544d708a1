//! Runtime state of one policy: the profile of each of its pods, the tuned settings, and the
//! resulting status. Pure.
//!
//! Each round takes the counts of the sidecars, passes them to `rollout`, which assigns a profile
//! to each pod, runs `tuner` every ten seconds, and builds the configuration to push. State that
//! must survive this controller is part of the policy's status, from which a successor resumes.

mod configs;
mod tuning;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::learned_convert;
use super::merging::merging_state;
use super::push::PushedConfig;
use super::registry::SidecarRegistry;
use super::summary_window::SummaryWindow;
use crate::api::v1alpha1::{
    BatchPolicySpec, BatchPolicyStatus, BatchProfileSpec, BatchingSummary, Mode, OpenEnum, PodTuning, ProfileVerdict,
    RolloutPhase, TuningMode,
};
use crate::batching::Tick;
use crate::cluster_state::{Pod, Policy};
use crate::config::parse_duration;
use crate::control::wire::RouteReport;
use crate::events::{EventNotice, EventTarget};
use crate::observed_state::PolicyObserved;
use crate::rollout::pin::{ANNOTATION, ManualRollback};
use crate::rollout::status::{state_from_status, to_share_text, to_time, verdict, write_state};
use crate::rollout::{PodReport, RolloutDecision, RolloutPlan, RolloutState, RolloutStrategy, UnixSeconds, evaluate};
use crate::status::{ConditionState, ConditionStatus};
use crate::tuner::learned::{InitialState, LearnedProfile};
use crate::tuner::status_list;
use crate::tuner::{self, PodProposal, TunedSettings, Tuner};

/// State of a policy that is kept between rounds.
#[derive(Debug, Default)]
pub(super) struct PolicyRuntime {
    policy_uid: String,
    rollout: RolloutState,
    tuner: Tuner,
    /// Time of the last run of the slow loop.
    tuned: Option<Tick>,
    /// Its last proposals, by UID of the pod.
    proposals: BTreeMap<String, PodProposal>,
    /// Current settings of each pod, and the time since which it has them.
    since: BTreeMap<String, (TunedSettings, UnixSeconds)>,
    /// Pods excluded from tuning, since they serve as the baseline of a comparison.
    frozen: BTreeSet<String>,
    /// State learned by the pods, from which new pods start.
    learned: Vec<LearnedProfile>,
    /// Results of the recent calls of all pods.
    recent: SummaryWindow,
    /// Predicted results of batching, in mode `Observe`.
    predicted: SummaryWindow,
    /// Largest number of items per call that the predictions have measurements for.
    measured_items: u32,
    /// The last verdict on each profile by name, with the number of calls behind it.
    verdicts: BTreeMap<String, (u64, Option<ProfileVerdict>)>,
    /// The first experiment arm without a profile.
    missing: Option<String>,
    /// Tuned settings that the status publishes, and the time of their selection.
    listed: Vec<status_list::PodTuning>,
    listed_at: Option<Tick>,
}

/// Inputs of a round.
pub(super) struct Inputs<'a> {
    pub(super) policy: &'a Policy,
    pub(super) spec: &'a BatchPolicySpec,
    /// The profile that the policy requests, if it is known.
    pub(super) requested: Option<&'a str>,
    /// Looks up the spec of a profile.
    pub(super) profile: &'a dyn Fn(&str) -> Option<BatchProfileSpec>,
    /// The policy's injected pods, with their machine types.
    pub(super) pods: Vec<(&'a Pod, &'a str)>,
    /// Mode that applies if none is specified.
    pub(super) default_mode: Mode,
    /// Interval of the slow loop; `None` disables it.
    pub(super) tuning_interval: Option<Duration>,
    pub(super) now: Tick,
    pub(super) wall: UnixSeconds,
}

/// Outputs of a round.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    pub(super) live: PolicyObserved,
    /// Configuration to push to each pod, by UID, and its starting values.
    pub(super) configs: BTreeMap<String, (Arc<PushedConfig>, Option<InitialState>)>,
    pub(super) notices: Vec<EventNotice>,
    /// Reasons of changed settings, one for each pod concerned.
    pub(super) moved: Vec<tuner::ReasonCode>,
}

// === impl PolicyRuntime ===

impl PolicyRuntime {
    /// Restores the state that a status records.
    pub(super) fn resume(policy: &str, status: &BatchPolicyStatus) -> Self {
        let learned = status.learned.iter().map(learned_convert::from_status).collect();
        Self { policy_uid: policy.to_owned(), rollout: state_from_status(status), learned, ..Self::default() }
    }

    /// Returns `true` if the state belongs to the policy of this UID, not to another one of its
    /// name.
    pub(super) fn is_of(&self, policy: &str) -> bool {
        self.policy_uid == policy
    }

    pub(super) fn run_round(&mut self, inputs: &Inputs<'_>, registry: &mut SidecarRegistry) -> Outputs {
        let mut outputs = Outputs::default();
        let profiles = self.advance_rollout(inputs, registry, &mut outputs);
        if inputs.tuning_interval.is_some_and(|every| self.tuned.is_none_or(|at| inputs.now.since(at) >= every)) {
            self.tuned = Some(inputs.now);
            self.tune(inputs, registry, &mut outputs);
        }
        if inputs.tuning_interval.is_none() {
            self.proposals.clear();
        }
        self.build_configs(inputs, registry, &profiles, &mut outputs);
        self.fill_observed(inputs, registry, &mut outputs);
        outputs
    }

    /// Advances the rollout and returns the profile of each pod, by UID. Returns no pod while the
    /// requested profile is unknown.
    fn advance_rollout(
        &mut self,
        inputs: &Inputs<'_>,
        registry: &mut SidecarRegistry,
        outputs: &mut Outputs,
    ) -> BTreeMap<String, String> {
        let pods = self.take_reports(inputs, registry);
        // If the requested profile was deleted, the profile in force takes its place, which ends a
        // rollout.
        let Some(requested) = inputs.requested.or(self.rollout.current.as_deref()).map(str::to_owned) else {
            return BTreeMap::new();
        };
        let plan = self.plan_rollout(inputs, requested);
        let next = evaluate(std::mem::take(&mut self.rollout), &plan, &pods, inputs.wall);
        self.record_decision(inputs, &plan, next, outputs)
    }

    /// Takes the counts of every pod since the last round, and adds them to the recent summaries.
    fn take_reports(&mut self, inputs: &Inputs<'_>, registry: &mut SidecarRegistry) -> Vec<PodReport> {
        let mut all = RouteReport::default();
        let mut predicted: Option<(RouteReport, u32)> = None;
        let pods: Vec<PodReport> = inputs
            .pods
            .iter()
            .map(|(pod, _)| {
                let uid = pod.meta.uid.clone();
                let Some(sidecar) = registry.get_mut(&uid) else { return PodReport { uid, ..PodReport::default() } };
                let fresh = sidecar.take_fresh();
                if let Some((counts, items)) = sidecar.predicted.take() {
                    let (all, most) = predicted.get_or_insert_default();
                    all.merge(&counts);
                    *most = items.max(*most);
                }
                all.merge(&fresh.counts);
                PodReport {
                    uid,
                    in_force_since: fresh.since,
                    from: fresh.from,
                    to: fresh.to,
                    counts: fresh.to_rollout_counts(),
                    profile: fresh.profile,
                }
            })
            .collect();
        self.recent.add(inputs.now, all);
        let (counts, items) = predicted.unwrap_or_default();
        self.predicted.add(inputs.now, counts);
        self.measured_items = if items > 0 { items } else { self.measured_items };
        pods
    }

    /// Returns the plan of the policy, and suspends an experiment with an arm that has no profile.
    fn plan_rollout(&mut self, inputs: &Inputs<'_>, requested: String) -> RolloutPlan {
        let pin = inputs.policy.annotations.get(ANNOTATION).and_then(|text| ManualRollback::read(text));
        let mut plan = RolloutPlan::new(requested, inputs.spec.rollout.as_ref(), pin);
        self.missing = None;
        if let RolloutStrategy::Experiment(experiment) = &plan.strategy {
            let mut arms = experiment.arms.iter().map(|arm| &arm.profile);
            self.missing = arms.find(|arm| (inputs.profile)(arm).is_none()).cloned();
        }
        if self.missing.is_some() {
            // Without its profile the pods of the missing arm would run another profile and be
            // counted for the arm, so the experiment is suspended.
            plan.strategy = RolloutStrategy::Immediate;
        }
        plan
    }

    /// Keeps the state and the verdicts of a decision, and returns the profile of each pod.
    fn record_decision(
        &mut self,
        inputs: &Inputs<'_>,
        plan: &RolloutPlan,
        next: RolloutDecision,
        outputs: &mut Outputs,
    ) -> BTreeMap<String, String> {
        self.frozen = next.frozen;
        let about = EventTarget::policy(&inputs.policy.meta);
        outputs.notices.extend(next.events.into_iter().map(|event| EventNotice {
            about: about.clone(),
            warning: event.warning,
            reason: event.reason,
            note: event.message,
        }));
        for result in &next.verdicts {
            let reported = (result.calls, Some(verdict(result, inputs.wall)));
            self.verdicts.insert(result.profile.clone(), reported);
        }
        let mut status = BatchPolicyStatus::default();
        write_state(&next.state, plan, &mut status);
        outputs.live.rollout = status.rollout;
        self.rollout = next.state;
        next.profiles
    }

    /// Fills in the results that the status reports.
    fn fill_observed(&mut self, inputs: &Inputs<'_>, registry: &SidecarRegistry, outputs: &mut Outputs) {
        let live = &mut outputs.live;
        live.current.clone_from(&self.rollout.current);
        live.candidate.clone_from(&self.rollout.candidate);
        let in_force = inputs.pods.iter().filter_map(|(pod, _)| registry.get(&pod.meta.uid)?.in_force.as_ref());
        let used: BTreeSet<String> =
            in_force.map(|now| now.profile.clone()).filter(|profile| !profile.is_empty()).collect();
        live.used = used.into_iter().collect();
        live.healthy =
            self.missing.as_deref().map_or_else(|| rollout_health(&self.rollout), |arm| Some(missing_arm_state(arm)));
        live.summary = self.recent.summary();
        live.predicted = self
            .predicted
            .summary()
            .map(|summary| BatchingSummary { measured_items: Some(self.measured_items), ..summary });
        let is_any_connected =
            inputs.pods.iter().any(|(pod, _)| registry.get(&pod.meta.uid).is_some_and(|sidecar| sidecar.is_connected));
        let reasons = self.proposals.values().map(|proposal| &proposal.proposal.reason);
        let reasons = reasons
            .filter(|reason| reason.code != tuner::ReasonCode::Held && reason.code != tuner::ReasonCode::FewSamples);
        let explanation = reasons.map(|reason| reason.text.as_str()).next();
        live.slo = is_any_connected.then(|| self.recent.evaluate_slo(slo(inputs.spec), explanation));
        let mode = inputs.spec.mode.as_ref().and_then(OpenEnum::as_known).unwrap_or(inputs.default_mode);
        let connected = inputs
            .pods
            .iter()
            .filter_map(|(pod, _)| registry.get(&pod.meta.uid))
            .filter(|sidecar| sidecar.is_connected);
        live.merging = merging_state(mode, connected);
        live.pod_tunings = self.listed.iter().map(|listed| self.tuning(inputs, listed)).collect();
        live.learned = self.learned.iter().map(learned_convert::to_status).collect();
        live.verdicts.clone_from(&self.verdicts);
    }

    fn tuning(&self, inputs: &Inputs<'_>, listed: &status_list::PodTuning) -> PodTuning {
        let pod = inputs.pods.iter().find(|(pod, _)| pod.meta.key.name == listed.pod);
        let uid = pod.map(|(pod, _)| pod.meta.uid.clone());
        let since = uid.as_ref().and_then(|uid| self.since.get(uid)).and_then(|(_, since)| to_time(*since));
        let mode = inputs.spec.tuning.as_ref().and_then(|tuning| tuning.mode.clone());
        let TunedSettings { shift_permille, slots_max, batch_weight_max } = listed.settings;
        PodTuning {
            pod: listed.pod.clone(),
            uid,
            profile: Some(listed.profile.clone()).filter(|profile| !profile.is_empty()),
            accelerator: pod.map(|(_, machine)| (*machine).to_owned()).filter(|machine| !machine.is_empty()),
            mode: mode.or(Some(OpenEnum::Known(TuningMode::Auto))),
            slots_max,
            batch_weight_max,
            deadline_shift: to_share_text(shift_permille.into(), 1000).filter(|_| shift_permille > 0),
            reason: Some(listed.code.as_str().to_owned()),
            message: Some(listed.reason.clone()),
            since,
        }
    }
}

fn rollout_health(state: &RolloutState) -> Option<ConditionState> {
    let with_message =
        |holds, reason: &str| ConditionState { holds, reason: reason.to_owned(), message: state.message.clone() };
    match state.phase {
        RolloutPhase::Promoted => None,
        RolloutPhase::Progressing => Some(with_message(ConditionStatus::True, "Progressing")),
        RolloutPhase::Paused => Some(with_message(ConditionStatus::False, "Paused")),
        // A manual rollback is no detected harm.
        RolloutPhase::RolledBack if state.reason == "ManualRollback" => {
            Some(with_message(ConditionStatus::True, "ManualRollback"))
        }
        RolloutPhase::RolledBack => Some(with_message(ConditionStatus::False, "RolledBack")),
    }
}

/// Returns the SLO that applies to all routes.
fn slo(spec: &BatchPolicySpec) -> Option<Duration> {
    parse_duration(&spec.slo.as_ref()?.latency_p99.as_ref()?.0)
}

fn missing_arm_state(arm: &str) -> ConditionState {
    let message = format!("the experiment is waiting: BatchProfile {arm}, one of its arms, does not exist");
    ConditionState { holds: ConditionStatus::False, reason: "ProfileNotFound".to_owned(), message }
}

#[cfg(test)]
mod tests;
