//! The slow loop of one policy: collects the observations of its pods, passes them to `tuner`, and
//! keeps its proposals, some of which the status publishes.

use std::collections::BTreeMap;

use super::{Inputs, Outputs, PolicyRuntime, slo};
use crate::api::v1alpha1::{BatchPolicySpec, BatchProfileSpec};
use crate::config::{self, MachineLimits, Overrides, SchedulingPolicy};
use crate::events::{EventNotice, EventTarget};
use crate::sidecars::learned_convert;
use crate::sidecars::registry::SidecarRegistry;
use crate::tuner::learned::{LearnedProfile, update_entries};
use crate::tuner::status_list::{self, select_pods};
use crate::tuner::{self, GroupReport, PodProposal, TunedSettings, TuningBounds};

/// Parameters of the slow loop under one profile.
#[derive(Debug, Clone)]
pub(super) struct TuningLimits {
    pub(super) bounds: TuningBounds,
    /// The configured number of slots of a policy other than `Adaptive`. Only `Adaptive` learns how
    /// many executions the server runs concurrently and limits itself to them.
    configured_slots: Option<u32>,
}

/// Observations of the pods that follow their configuration.
#[derive(Default)]
struct PodObservations {
    reports: Vec<GroupReport>,
    /// Parameters under each profile that the pods run.
    profiles: BTreeMap<String, TuningLimits>,
    learned: Vec<LearnedProfile>,
}

// === impl TuningLimits ===

impl TuningLimits {
    /// Returns `None` if the policy cannot be parsed, which its condition reports.
    pub(super) fn of(inputs: &Inputs<'_>, profile: BatchProfileSpec) -> Option<Self> {
        let spec = BatchPolicySpec { limits: profile.limits, scheduling: profile.scheduling, ..inputs.spec.clone() };
        let text = crate::injector::runtime_config(spec, &BTreeMap::new(), inputs.default_mode).to_string();
        let loaded = config::load(&text, &inputs.policy.meta.key.name).ok()?;
        let policy = config::build(Some(&loaded), &Overrides::default(), &MachineLimits::default()).ok()?;
        let objective = (slo(inputs.spec), inputs.spec.has_latency_target());
        let scheduling = &policy.scheduling;
        Some(Self {
            bounds: TuningBounds::new(inputs.spec.tuning.as_ref(), objective, &policy.limits),
            configured_slots: (scheduling.policy != SchedulingPolicy::Adaptive).then_some(scheduling.slots),
        })
    }
}

// === impl PolicyRuntime ===

impl PolicyRuntime {
    /// Runs the slow loop, within the policy's bounds for the profile that each pod runs.
    pub(super) fn tune(&mut self, inputs: &Inputs<'_>, registry: &mut SidecarRegistry, outputs: &mut Outputs) {
        let requested = inputs.requested.and_then(|requested| (inputs.profile)(requested)).unwrap_or_default();
        let Some(requested) = TuningLimits::of(inputs, requested) else { return };
        let PodObservations { reports, profiles, learned } = self.observe_pods(inputs, registry, &requested);
        let before = std::mem::take(&mut self.proposals);
        let bounds = |profile: &str| profiles.get(profile).unwrap_or(&requested).bounds.clone();
        let proposals = self.tuner.evaluate(inputs.now, bounds, &reports, &self.learned);
        for proposal in proposals {
            let previous = before.get(&proposal.pod).map(|before| before.proposal.settings).unwrap_or_default();
            notify_of_change(inputs, &proposal, previous, outputs);
            self.keep_proposal(inputs, proposal);
        }
        let proposals = &self.proposals;
        self.since.retain(|uid, _| proposals.contains_key(uid));
        // Entries of profiles that new pods may still run are the last to be removed.
        let keep: Vec<&str> =
            [&self.rollout.current, &self.rollout.candidate].into_iter().filter_map(Option::as_deref).collect();
        if let Some(next) = update_entries(&self.learned, &learned, &keep, inputs.wall.0) {
            self.learned = next;
        }
        self.select_tunings(inputs, registry);
    }

    /// Takes the observations since the last run.
    fn observe_pods(
        &self,
        inputs: &Inputs<'_>,
        registry: &mut SidecarRegistry,
        requested: &TuningLimits,
    ) -> PodObservations {
        let mut found = PodObservations::default();
        for (pod, machine) in &inputs.pods {
            let uid = pod.meta.uid.as_str();
            let Some(sidecar) = registry.get_mut(uid).filter(|sidecar| sidecar.is_following()) else { continue };
            let report = sidecar.take_observation(uid, machine, self.frozen.contains(uid));
            // Each pod is observed under the profile that it runs. A profile that cannot be
            // resolved is replaced by the requested one.
            let limits = found.profiles.entry(report.profile.clone()).or_insert_with_key(|name| {
                (inputs.profile)(name)
                    .and_then(|profile| TuningLimits::of(inputs, profile))
                    .unwrap_or_else(|| requested.clone())
            });
            found.reports.push(GroupReport { slots: limits.configured_slots.unwrap_or(report.slots), ..report });
            found.learned.extend(learned_convert::from_sidecar(sidecar, machine));
        }
        found
    }

    /// Keeps the proposal for a pod, and the time since which the pod has its settings.
    fn keep_proposal(&mut self, inputs: &Inputs<'_>, proposal: PodProposal) {
        let settings = proposal.proposal.settings;
        let since = self.since.entry(proposal.pod.clone()).or_insert((settings, inputs.wall));
        if since.0 != settings {
            *since = (settings, inputs.wall);
        }
        self.proposals.insert(proposal.pod.clone(), proposal);
    }

    /// Selects the proposals to publish in the status.
    fn select_tunings(&mut self, inputs: &Inputs<'_>, registry: &SidecarRegistry) {
        let slo = slo(inputs.spec);
        let candidates: Vec<status_list::PodTuning> = inputs
            .pods
            .iter()
            .filter_map(|(pod, _)| {
                let proposal = self.proposals.get(&pod.meta.uid)?;
                let sidecar = registry.get(&pod.meta.uid)?;
                let reason = &proposal.proposal.reason;
                // Manual tuning, or a policy without an SLO, has no reason to report.
                if matches!(reason.code, tuner::ReasonCode::Manual | tuner::ReasonCode::NoSlo) {
                    return None;
                }
                let p99 = sidecar.slo_p99;
                Some(status_list::PodTuning {
                    pod: pod.meta.key.name.clone(),
                    profile: proposal.group.profile.clone(),
                    settings: proposal.proposal.settings,
                    slots: sidecar.learned.iter().map(|learned| learned.slots).max().unwrap_or(0),
                    latency_p99: p99,
                    slo_met: p99.zip(slo).map(|(p99, slo)| p99 <= slo),
                    code: reason.code,
                    reason: reason.text.clone(),
                })
            })
            .collect();
        if let Some(next) = select_pods(inputs.now, &self.listed, self.listed_at, &candidates) {
            self.listed = next;
            self.listed_at = Some(inputs.now);
        }
    }
}

/// Adds an Event on the policy for changed settings.
fn notify_of_change(inputs: &Inputs<'_>, proposal: &PodProposal, previous: TunedSettings, outputs: &mut Outputs) {
    let reason = &proposal.proposal.reason;
    if !reason.code.is_change() || previous == proposal.proposal.settings {
        return;
    }
    outputs.moved.push(reason.code);
    if let Some((pod, _)) = inputs.pods.iter().find(|(pod, _)| pod.meta.uid == proposal.pod) {
        let about = EventTarget::policy(&inputs.policy.meta);
        let note = format!("pod {}: {}", pod.meta.key.name, reason.text);
        outputs.notices.push(EventNotice::normal(about, reason.code.as_str(), note));
    }
}
