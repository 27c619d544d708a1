//! One round of the leader: the configuration of every pod, pushed to the sidecars that do not have
//! it yet.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use super::policy_runtime::{Inputs, Outputs, PolicyRuntime};
use super::push::{ARM_RENEWAL_INTERVAL, AssignedProfiles, ConfigBuilder, PushedConfig};
use super::registry::{SidecarRegistry, SidecarState};
use super::{SidecarController, State};
use crate::api::v1alpha1::{BatchPolicySpec, BatchProfileSpec};
use crate::attachment::{Attachment, AttachmentMap, RequestedProfile};
use crate::batching::Tick;
use crate::cluster_state::{ClusterState, ObjectKey};
use crate::control::server::StreamRegistry;
use crate::observed_state::{ObservedState, PodObserved, PolicyObserved};
use crate::rollout::UnixSeconds;
use crate::tuner;
use crate::tuner::learned::InitialState;

// === impl SidecarController ===

impl SidecarController {
    /// Runs one round on the leader: advances every policy and computes the configuration of every
    /// pod.
    pub(super) fn run_leader_round(
        &self,
        state: &mut State,
        cluster: &ClusterState,
        attached: &AttachmentMap,
        now: Timestamp,
    ) -> ObservedState {
        let mut live = ObservedState::default();
        let wall = UnixSeconds(u64::try_from(now.as_second()).unwrap_or(0));
        let mut configs: HashMap<String, (Arc<PushedConfig>, Option<InitialState>)> = HashMap::new();
        for (key, attachment) in attached.policies.iter().filter(|(_, found)| found.accepted.is_applied()) {
            let Some(outputs) = self.run_policy_round(state, cluster, (key, attachment), wall) else { continue };
            outputs.moved.iter().for_each(|word| self.needs.metrics.record_tuner_change(word.as_str()));
            live.notices.extend(outputs.notices);
            configs.extend(outputs.configs);
            live.policies.insert(key.clone(), outputs.live);
        }
        self.reset_detached_pods(state, cluster, attached, &mut configs);
        // A policy that is not obeyed at present keeps its state and its pushed configuration.
        // Experiment arms are dropped: without a round for the policy they are not renewed and
        // expire.
        for (uid, before) in state.configs.drain().filter(|(_, (pushed, _))| !pushed.needs_renewal) {
            configs.entry(uid).or_insert(before);
        }
        live.pods = observe_sidecars(state, &configs, &live.policies, attached);
        configs.retain(|uid, _| state.pods.contains_key(uid));
        state.runtimes.retain(|key, _| attached.policies.contains_key(key));
        state.configs = configs;
        live
    }

    /// Runs the round of one policy. Returns `None` if the policy cannot be parsed.
    fn run_policy_round(
        &self,
        state: &mut State,
        cluster: &ClusterState,
        (key, attachment): (&ObjectKey, &Attachment),
        wall: UnixSeconds,
    ) -> Option<Outputs> {
        let policy = cluster.policies.get(key)?;
        let spec = policy.spec.as_ref().ok()?;
        let profile = |name: &str| match &attachment.requested {
            RequestedProfile::Own(own, spec) if own == name => Some((**spec).clone()),
            _ => cluster.profiles.get(&ObjectKey::new(&key.namespace, name))?.spec.clone().ok(),
        };
        let requested = match &attachment.requested {
            RequestedProfile::Named(_, false) => None,
            requested => requested.name(),
        };
        let pods = attachment.pods.iter().filter_map(|key| cluster.pods.get(key));
        let view = Inputs {
            policy,
            spec,
            requested,
            profile: &profile,
            pods: pods.map(|pod| (&**pod, cluster.machine(pod).unwrap_or_default())).collect(),
            default_mode: self.needs.mode,
            tuning_interval: self.needs.tuner,
            now: self.needs.clock.now(),
            wall,
        };
        let resume = || PolicyRuntime::resume(&policy.meta.uid, &policy.status);
        let runtime = state.runtimes.entry(key.clone()).or_insert_with(resume);
        if !runtime.is_of(&policy.meta.uid) {
            // The policy was deleted and recreated between two rounds: the old state does not
            // apply.
            *runtime = resume();
        }
        Some(runtime.run_round(&view, &mut state.registry))
    }

    /// Pods that had a policy before get the defaults. Pods that never had one keep the
    /// configuration that they were admitted with.
    fn reset_detached_pods(
        &self,
        state: &mut State,
        cluster: &ClusterState,
        attached: &AttachmentMap,
        configs: &mut HashMap<String, (Arc<PushedConfig>, Option<InitialState>)>,
    ) {
        let (spec, profile) = (BatchPolicySpec::default(), BatchProfileSpec::default());
        let mut builder = ConfigBuilder::new(None, &spec, self.needs.mode);
        let followed: BTreeSet<&ObjectKey> = attached.followed.keys().collect();
        for (key, pod) in cluster.pods.iter().filter(|(key, _)| !followed.contains(key)) {
            let Some(sidecar) = state.registry.get_mut(&pod.meta.uid) else { continue };
            sidecar.take_fresh();
            let had = sidecar.in_force.as_ref().is_some_and(|now| !now.source.is_empty())
                || state.configs.contains_key(&pod.meta.uid);
            let given = AssignedProfiles { base: ("", &profile), arm: None };
            if had && let Ok(found) = builder.build(&pod.annotations, given, tuner::TunedSettings::default()) {
                tracing::debug!(pod = %key, "the pod has no policy any more; pushing the defaults");
                configs.insert(pod.meta.uid.clone(), (found, None));
            }
        }
    }

    /// Pushes configurations that sidecars do not have yet, and renews those that expire.
    pub(super) fn push_pending(&self, state: &mut State) {
        let Some(streams) = self.streams.get() else { return };
        let State { registry, configs, .. } = state;
        for (uid, pushed) in configs.iter() {
            push_config(streams, registry, uid, pushed, self.needs.clock.now());
        }
    }
}

/// Pushes its configuration to a sidecar unless it has it already.
fn push_config(
    streams: &StreamRegistry,
    registry: &mut SidecarRegistry,
    uid: &str,
    (pushed, start): &(Arc<PushedConfig>, Option<InitialState>),
    now: Tick,
) {
    let Some(sidecar) = registry.get_mut(uid).filter(|sidecar| sidecar.is_connected) else { return };
    let due = match &sidecar.last_pushed {
        Some((hash, at)) if *hash == pushed.hash => pushed.needs_renewal && now.since(*at) >= ARM_RENEWAL_INTERVAL,
        Some(_) => true,
        // The sidecar may have reported this configuration in its `Hello`.
        None => pushed.needs_renewal || sidecar.in_force.as_ref().is_none_or(|now| now.hash != pushed.hash),
    };
    if !due {
        return;
    }
    let knows_nothing = sidecar.last_pushed.is_none() && sidecar.in_force.is_none() && sidecar.takes_starts;
    let push = match start.as_ref().filter(|_| knows_nothing) {
        Some(start) => pushed.with_start(start),
        None => pushed.push.clone(),
    };
    if streams.push(uid, &push) {
        sidecar.last_pushed = Some((pushed.hash.clone(), now));
    }
}

/// Returns the state of each connected sidecar, relative to its new configuration.
fn observe_sidecars(
    state: &State,
    configs: &HashMap<String, (Arc<PushedConfig>, Option<InitialState>)>,
    policies: &BTreeMap<ObjectKey, PolicyObserved>,
    attached: &AttachmentMap,
) -> BTreeMap<String, PodObserved> {
    let current = |uid: &str| {
        let key = state.pods.get(uid)?;
        policies.get(attached.followed.get(key)?)?.current.clone()
    };
    let observe = |(uid, sidecar): (&String, &SidecarState)| {
        let in_force = sidecar.in_force.as_ref();
        let pushed = configs.get(uid).map(|(pushed, _)| pushed);
        let refused = sidecar.refused.as_ref().filter(|(hash, _)| pushed.is_some_and(|pushed| pushed.hash == *hash));
        let pod = PodObserved {
            current: in_force.map(|now| now.profile.clone()) == current(uid),
            programmed: in_force.zip(pushed).is_some_and(|(now, pushed)| pushed.is_in_force(now)),
            refused: refused.map(|(_, reason)| reason.clone()),
            pending: match in_force.map_or(0, |now| now.pending) {
                0 => Vec::new(),
                1 => vec!["1 setting".to_owned()],
                count => vec![format!("{count} settings")],
            },
        };
        (uid.clone(), pod)
    };
    state.registry.connected().map(observe).collect()
}
