//! Tuning of many pods: pods are pooled into groups as the policy requires, each with its own
//! [`TuningState`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::learned::{LearnedProfile, initial_state};
use super::{GroupReport, Proposal, TunedSettings, TuningBounds, TuningGranularity, TuningState, evaluate};
use crate::batching::Tick;

/// A group without reports is dropped after this time. It covers restarts of pods and reconnects of
/// control streams.
const ABSENT_MAX: Duration = Duration::from_secs(900);

/// Identifies a group of pods that share one set of values. Pods of different profiles are never in
/// one group, since their settings are being compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// Name of the profile in force.
    pub profile: String,
    /// A pod's UID, an accelerator or instance type, or empty, depending on the
    /// [`TuningGranularity`].
    pub of: String,
}

/// Proposal for one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodProposal {
    /// UID of the pod.
    pub pod: String,
    /// Group of the pod.
    pub group: GroupKey,
    /// Proposed settings, and the reason.
    pub proposal: Proposal,
}

/// The slow loop of one policy.
///
/// # Bounds
/// One history for each group with a report in the last 15 minutes, and one counter for each pod.
#[derive(Debug, Clone, Default)]
pub struct Tuner {
    groups: BTreeMap<GroupKey, GroupState>,
    /// The last reported [`GroupReport::changes`] of each pod.
    changes: BTreeMap<String, u64>,
}

#[derive(Debug, Clone)]
struct GroupState {
    history: TuningState,
    last_report: Tick,
    /// Sum of the upstream replacements seen by its pods. The sum is kept here because pods come
    /// and go.
    changes: u64,
}

// === impl Tuner ===

impl Tuner {
    /// Evaluates every group, given one observation for each pod that reported since the last call,
    /// within the bounds of the pod's profile.
    ///
    /// A new group starts from the settings that its sidecars have in force, otherwise from those
    /// that similar pods learned.
    pub fn evaluate(
        &mut self,
        now: Tick,
        bounds: impl Fn(&str) -> TuningBounds,
        observations: &[GroupReport],
        learned: &[LearnedProfile],
    ) -> Vec<PodProposal> {
        let mut pooled: BTreeMap<GroupKey, Vec<&GroupReport>> = BTreeMap::new();
        for observation in observations {
            let granularity = bounds(&observation.profile).granularity;
            let pod = (observation.pod.as_str(), observation.node_class.as_str());
            let key = GroupKey::new(granularity, &observation.profile, pod);
            pooled.entry(key).or_default().push(observation);
        }
        let mut proposals = Vec::with_capacity(observations.len());
        for (key, pods) in pooled {
            let known = self.count_upstream_changes(&pods);
            let bounds = bounds(&key.profile);
            let group = self.groups.entry(key.clone()).or_insert_with(|| GroupState {
                history: TuningState::resume(bounds.clamp(initial_settings(&pods, learned))),
                last_report: now,
                changes: 0,
            });
            group.last_report = now;
            group.changes += known;
            let report = GroupReport { changes: group.changes, ..merge_observations(&pods, group.history.settings()) };
            let (proposal, history) = evaluate(now, &report, &bounds, std::mem::take(&mut group.history));
            group.history = history;
            let one = |pod: &&GroupReport| PodProposal {
                pod: pod.pod.clone(),
                group: key.clone(),
                proposal: proposal.clone(),
            };
            proposals.extend(pods.iter().map(one));
        }
        self.groups.retain(|_, group| now.since(group.last_report) < ABSENT_MAX);
        let here: BTreeSet<&str> = observations.iter().map(|observation| observation.pod.as_str()).collect();
        self.changes.retain(|pod, _| here.contains(pod.as_str()));
        proposals
    }

    /// Returns the settings in force for a group that reports at present. Pods of the group that
    /// have not reported yet start with them.
    #[must_use]
    pub fn settings(&self, key: &GroupKey) -> Option<TunedSettings> {
        self.groups.get(key).map(|group| group.history.settings())
    }

    /// Returns the number of pods with an upstream replaced since the last call. A pod seen for the
    /// first time does not count.
    fn count_upstream_changes(&mut self, pods: &[&GroupReport]) -> u64 {
        let mut changed = 0;
        for pod in pods {
            let before = self.changes.insert(pod.pod.clone(), pod.changes);
            changed += u64::from(before.is_some_and(|before| before != pod.changes));
        }
        changed
    }
}

// === impl GroupKey ===

impl GroupKey {
    /// Returns the group of a pod with this profile, UID and node class.
    #[must_use]
    pub fn new(granularity: TuningGranularity, profile: &str, (pod, node_class): (&str, &str)) -> Self {
        let of = match granularity {
            TuningGranularity::Pod => pod,
            TuningGranularity::NodeClass => node_class,
            TuningGranularity::Workload => "",
        };
        Self { profile: profile.to_owned(), of: of.to_owned() }
    }
}

/// Initial settings of a new group: those that most of its sidecars report as in force, so that a
/// new leader continues where the previous one ended. If none are reported, or only the default,
/// those that were learned before.
fn initial_settings(pods: &[&GroupReport], learned: &[LearnedProfile]) -> TunedSettings {
    let in_force: Vec<TunedSettings> = pods.iter().filter_map(|pod| pod.in_force).collect();
    let count = |settings: &TunedSettings| in_force.iter().filter(|other| *other == settings).count();
    let common = in_force.iter().max_by_key(|settings| count(settings)).copied();
    let known = || {
        pods.first().and_then(|pod| initial_state(learned, &pod.profile, &pod.node_class)).map(|start| start.settings)
    };
    common.filter(|settings| *settings != TunedSettings::default()).or_else(known).or(common).unwrap_or_default()
}

/// Merges the reports of several pods into one. `expected` are the settings that each should have
/// applied.
fn merge_observations(pods: &[&GroupReport], expected: TunedSettings) -> GroupReport {
    let mut all = GroupReport::default();
    let mut learning = 0;
    for pod in pods {
        all.node_class.clone_from(&pod.node_class);
        all.profile.clone_from(&pod.profile);
        all.frozen |= pod.frozen;
        all.over = all.over.max(pod.over);
        all.latency.merge(&pod.latency);
        all.late = all.late.saturating_add(pod.late);
        all.lost = all.lost.saturating_add(pod.lost);
        all.shift_permille = all.shift_permille.max(pod.shift_permille);
        all.slots = all.slots.max(pod.slots);
        // A single pod that has just started is no reason to wait: the majority must be learning.
        learning += usize::from(pod.learning);
        all.lone_late = all.lone_late.max(pod.lone_late);
        all.weight_ceiling = all.weight_ceiling.into_iter().chain(pod.weight_ceiling).min();
    }
    all.learning = learning * 2 > pods.len();
    // A single pod that has not applied the settings keeps the group unsettled.
    let reported = || pods.iter().filter_map(|pod| pod.in_force);
    all.in_force = reported().find(|own| *own != expected).or_else(|| reported().next());
    all
}
