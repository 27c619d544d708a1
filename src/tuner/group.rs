//! Many pods: pooled as the policy says, each group with a history of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::learned::{Learned, start};
use super::{Bounds, Granularity, History, Observation, Proposal, Settings, propose};
use crate::batching::Tick;

/// A group that nobody reports for is remembered this long: a pod that restarts, a stream that is dialled anew.
const ABSENT_MAX: Duration = Duration::from_secs(900);

/// Which pods share one set of values: never pods of unlike profiles, whose settings are what is being compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// The profile in force.
    pub profile: String,
    /// A pod's UID, an accelerator or instance type, or nothing: as [`Granularity`] says.
    pub of: String,
}

/// What is to be for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodProposal {
    /// Its UID.
    pub pod: String,
    /// Whom it shares it with.
    pub group: GroupKey,
    /// What, and why.
    pub proposal: Proposal,
}

/// The slow loop of one policy.
///
/// # Bounds
/// A history for each group of the last quarter of an hour, and a number for each pod.
#[derive(Debug, Clone, Default)]
pub struct Tuner {
    groups: BTreeMap<GroupKey, Kept>,
    /// How often each pod's upstream was another one.
    changes: BTreeMap<String, u64>,
}

#[derive(Debug, Clone)]
struct Kept {
    history: History,
    seen: Tick,
    /// Changes of its pods' upstreams, added up here: pods come and go.
    changes: u64,
}

// === impl Tuner ===

impl Tuner {
    /// Looks at what the pods of the policy reported since the last look, one observation for each that did, within the bounds of the profile that each runs. A
    /// group that is new begins with what its
    /// sidecars have in force, else with what others like them ended with.
    pub fn look(
        &mut self,
        now: Tick,
        bounds: impl Fn(&str) -> Bounds,
        observations: &[Observation],
        learned: &[Learned],
    ) -> Vec<PodProposal> {
        let mut pooled: BTreeMap<GroupKey, Vec<&Observation>> = BTreeMap::new();
        for observation in observations {
            let granularity = bounds(&observation.profile).granularity;
            pooled.entry(GroupKey::of(granularity, observation)).or_default().push(observation);
        }
        let mut proposals = Vec::with_capacity(observations.len());
        for (key, pods) in pooled {
            let known = self.changes_of(&pods);
            let bounds = bounds(&key.profile);
            let kept = self.groups.entry(key.clone()).or_insert_with(|| Kept {
                history: History::resume(bounds.within(begin(&pods, learned))),
                seen: now,
                changes: 0,
            });
            kept.seen = now;
            kept.changes += known;
            let seen = Observation { changes: kept.changes, ..pool(&pods) };
            let (proposal, history) = propose(now, &seen, &bounds, std::mem::take(&mut kept.history));
            kept.history = history;
            let one = |pod: &&Observation| PodProposal {
                pod: pod.pod.clone(),
                group: key.clone(),
                proposal: proposal.clone(),
            };
            proposals.extend(pods.iter().map(one));
        }
        self.groups.retain(|_, kept| now.since(kept.seen) < ABSENT_MAX);
        let here: BTreeSet<&str> = observations.iter().map(|observation| observation.pod.as_str()).collect();
        self.changes.retain(|pod, _| here.contains(pod.as_str()));
        proposals
    }

    /// What is in force for the pods of a group that reports at present; for those that come and have not reported.
    #[must_use]
    pub fn settings(&self, key: &GroupKey) -> Option<Settings> {
        self.groups.get(key).map(|kept| kept.history.settings())
    }

    /// How many of these pods have found another upstream since they were looked at last. One that is new has not.
    fn changes_of(&mut self, pods: &[&Observation]) -> u64 {
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
    /// The group of a pod that runs this profile, by its UID and its kind of machine.
    #[must_use]
    pub fn new(granularity: Granularity, profile: &str, (pod, node_class): (&str, &str)) -> Self {
        let of = match granularity {
            Granularity::Pod => pod,
            Granularity::NodeClass => node_class,
            Granularity::Workload => "",
        };
        Self { profile: profile.to_owned(), of: of.to_owned() }
    }

    fn of(granularity: Granularity, observation: &Observation) -> Self {
        Self::new(granularity, &observation.profile, (&observation.pod, &observation.node_class))
    }
}

/// What a new group begins with: what most of its sidecars say is in force, so that another leader carries on where the last one was; where they say nothing,
/// what was learned before.
fn begin(pods: &[&Observation], learned: &[Learned]) -> Settings {
    let told: Vec<Settings> = pods.iter().filter_map(|pod| pod.in_force).collect();
    let count = |settings: &Settings| told.iter().filter(|other| *other == settings).count();
    let common = told.iter().max_by_key(|settings| count(settings)).copied();
    let known =
        || pods.first().and_then(|pod| start(learned, &pod.profile, &pod.node_class)).map(|start| start.settings);
    common.filter(|settings| *settings != Settings::default()).or_else(known).or(common).unwrap_or_default()
}

/// The reports of several pods as one.
fn pool(pods: &[&Observation]) -> Observation {
    let mut all = Observation::default();
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
        // One of many that has just started is no reason to wait: most must be learning.
        learning += usize::from(pod.learning);
        all.lone_late = all.lone_late.max(pod.lone_late);
        all.weight_ceiling = all.weight_ceiling.into_iter().chain(pod.weight_ceiling).min();
    }
    all.learning = learning * 2 > pods.len();
    // One that lags behind speaks for all: the group has what it was told once each of them has.
    let told = pods.iter().filter_map(|pod| pod.in_force);
    let newest = told.clone().max_by_key(|own| pods.iter().filter(|pod| pod.in_force == Some(*own)).count());
    all.in_force = told.clone().find(|own| Some(*own) != newest).or(newest);
    all
}
