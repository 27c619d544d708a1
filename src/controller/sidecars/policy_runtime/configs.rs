//! Builds the configuration of every pod of one policy.

use std::collections::BTreeMap;

use super::tuning::TuningLimits;
use super::{Inputs, Outputs, PolicyRuntime};
use crate::api::v1alpha1::{BatchProfileSpec, OpenEnum, RolloutPhase};
use crate::events::{EventNotice, EventTarget};
use crate::sidecars::push::{AssignedProfiles, ConfigBuilder};
use crate::sidecars::registry::{SidecarRegistry, SidecarState, from_wire};
use crate::tuner::learned::{InitialState, initial_state};
use crate::tuner::{GroupKey, TunedSettings, TuningBounds};

/// A profile and its name.
type KnownProfile<'a> = (&'a str, &'a BatchProfileSpec);

/// A pod, its profile, and its sidecar.
struct ConfiguredPod<'a> {
    uid: &'a str,
    machine: &'a str,
    profile: KnownProfile<'a>,
    sidecar: Option<&'a SidecarState>,
}

// === impl PolicyRuntime ===

impl PolicyRuntime {
    /// Builds the configuration of every pod.
    pub(super) fn build_configs(
        &self,
        inputs: &Inputs<'_>,
        registry: &SidecarRegistry,
        profiles: &BTreeMap<String, String>,
        outputs: &mut Outputs,
    ) {
        let mut builder = ConfigBuilder::new(Some(&inputs.policy.meta), inputs.spec, inputs.default_mode);
        let specs = self.look_up_profiles(inputs, profiles);
        let spec_of = |name: &str| specs.get(name).and_then(Option::as_ref);
        let base = self.rollout.current.as_deref().and_then(|name| Some((name, spec_of(name)?)));
        let rollout_in_progress = matches!(self.rollout.phase, RolloutPhase::Progressing | RolloutPhase::Paused);
        let mut bounds: BTreeMap<&str, Option<TuningBounds>> = BTreeMap::new();
        let mut size_error = None;
        for (pod, machine) in &inputs.pods {
            let uid = pod.meta.uid.as_str();
            let Some(name) = profiles.get(uid) else { continue };
            // If its profile was deleted, a pod keeps the one in force.
            let Some(profile) = spec_of(name).map(|spec| (name.as_str(), spec)).or(base) else {
                continue;
            };
            let configured = ConfiguredPod { uid, machine, profile, sidecar: registry.get(uid) };
            let assigned = assign_profiles(&configured, base.filter(|_| rollout_in_progress));
            let start = self.initial_state_of(&configured);
            let settings = self.settings_to_push(inputs, &configured, start.as_ref(), &mut bounds);
            match builder.build(&pod.annotations, assigned, settings) {
                Ok(pushed) => drop(outputs.configs.insert(uid.to_owned(), (pushed, start))),
                Err(error) => size_error = Some(error.to_string()),
            }
        }
        if let Some(reason) = size_error {
            let note = format!("cannot push the policy to sidecars: {reason}");
            outputs.notices.push(EventNotice::warning(
                EventTarget::policy(&inputs.policy.meta),
                "PolicyTooLarge",
                note,
            ));
        }
    }

    /// Returns the profiles of the pods and the one in force; `None` for one that does not exist.
    fn look_up_profiles<'a>(
        &'a self,
        inputs: &Inputs<'_>,
        profiles: &'a BTreeMap<String, String>,
    ) -> BTreeMap<&'a str, Option<BatchProfileSpec>> {
        let mut specs = BTreeMap::new();
        for name in profiles.values().map(String::as_str).chain(self.rollout.current.as_deref()) {
            specs.entry(name).or_insert_with(|| (inputs.profile)(name));
        }
        specs
    }

    /// Returns the learned state to start with, for a pod without a configuration in force.
    fn initial_state_of(&self, pod: &ConfiguredPod<'_>) -> Option<InitialState> {
        let in_force = pod.sidecar.and_then(|sidecar| sidecar.in_force.as_ref());
        if in_force.is_none() { initial_state(&self.learned, pod.profile.0, pod.machine) } else { None }
    }

    /// Returns the settings of a pod, within the bounds of its profile, which are computed once.
    fn settings_to_push<'a>(
        &self,
        inputs: &Inputs<'_>,
        pod: &ConfiguredPod<'a>,
        start: Option<&InitialState>,
        bounds: &mut BTreeMap<&'a str, Option<TuningBounds>>,
    ) -> TunedSettings {
        let (name, spec) = pod.profile;
        let first = match self.proposals.get(pod.uid) {
            Some(found) if found.group.profile == name => return found.proposal.pushed,
            // The proposal still refers to the profile that the pod runs at present.
            Some(found) => found.proposal.pushed,
            None if inputs.tuning_interval.is_none() => return TunedSettings::default(),
            None => self.settings_before_tuning(inputs, pod, start),
        };
        let compute_bounds = || Some(TuningLimits::of(inputs, spec.clone())?.bounds);
        let bounds = bounds.entry(name).or_insert_with(compute_bounds);
        bounds.as_ref().map_or_else(TunedSettings::default, |bounds| bounds.initial_settings(first))
    }

    /// Returns the settings of a pod that the slow loop has not evaluated yet. Settings pushed by
    /// the previous controller are kept; otherwise the pod starts with those of its group, or with
    /// the last learned ones.
    fn settings_before_tuning(
        &self,
        inputs: &Inputs<'_>,
        pod: &ConfiguredPod<'_>,
        start: Option<&InitialState>,
    ) -> TunedSettings {
        let in_force = pod.sidecar.and_then(|sidecar| sidecar.in_force.as_ref());
        let own = in_force.filter(|now| now.source == inputs.policy.meta.uid).map(|now| from_wire(&now.settings));
        let of_group = || self.tuner.settings(&group_of(inputs, pod.profile.0, (pod.uid, pod.machine)));
        let learned = || start.map(|start| start.settings);
        own.or_else(of_group).or_else(learned).unwrap_or_default()
    }
}

/// Returns the profiles to push to a pod. While another profile than the one in force, `base`, is
/// tried, a pod gets it as an arm, which expires.
fn assign_profiles<'a>(pod: &ConfiguredPod<'a>, base: Option<KnownProfile<'a>>) -> AssignedProfiles<'a> {
    // A sidecar without support for arms gets the arm's profile as if it were the policy's own.
    let supports_arms = pod.sidecar.is_none_or(|sidecar| sidecar.supports_arms);
    match base {
        Some(base) if pod.profile.0 != base.0 && supports_arms => AssignedProfiles { base, arm: Some(pod.profile) },
        _ => AssignedProfiles { base: pod.profile, arm: None },
    }
}

/// Returns the group of pods with common settings for a pod that the slow loop has not evaluated
/// yet.
fn group_of(inputs: &Inputs<'_>, profile: &str, (uid, machine): (&str, &str)) -> GroupKey {
    let granularity =
        inputs.spec.tuning.as_ref().and_then(|tuning| tuning.granularity.as_ref()).and_then(OpenEnum::as_known);
    GroupKey::new(granularity.unwrap_or_default(), profile, (uid, machine))
}
