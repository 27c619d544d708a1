//! Profiles: creation of those generated from policies, deletion of unused ones, and usage.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

use super::RecomputeInput;
use crate::api::v1alpha1::{BatchProfileStatus, OpenEnum, SchedulingPolicy, USED_BY_MAX};
use crate::attachment::{Attachment, RequestedProfile};
use crate::cluster_state::{ObjectKey, Policy, in_namespace};
use crate::desired::{DesiredState, NewProfile};

/// Number of unused profiles kept if the policy does not set `rollout.historyLimit`.
const HISTORY_LIMIT_DEFAULT: u32 = 10;

/// Adds the profiles to create and to delete, and the status of every profile.
pub(super) fn add_profiles(input: &RecomputeInput<'_>, desired: &mut DesiredState) {
    let mut used_by: BTreeMap<ObjectKey, BTreeSet<String>> = BTreeMap::new();
    for (key, policy) in input.cluster.policies.iter() {
        let Some(attachment) = input.attached.policies.get(key) else { continue };
        desired.make.extend(profile_to_create(input, policy, attachment));
        let used = used_profiles(input, key, attachment, desired);
        for name in &used {
            used_by.entry(ObjectKey::new(&key.namespace, name)).or_default().insert(key.name.clone());
        }
        desired.remove.extend(profiles_to_delete(input, policy, &used));
    }
    for (key, profile) in input.cluster.profiles.iter().filter(|(_, profile)| !profile.is_deleting) {
        let users = used_by.remove(key).unwrap_or_default();
        let observed = input.observed.policies.iter().filter(|(policy, _)| policy.namespace == key.namespace);
        let reported = observed.filter_map(|(_, observed)| observed.verdicts.get(&key.name)).next();
        // Without new results the last reported ones are kept.
        let (samples, verdict) = match reported {
            Some((samples, verdict)) => (Some(*samples), verdict.clone().or_else(|| profile.status.verdict.clone())),
            None => (profile.status.samples, profile.status.verdict.clone()),
        };
        let used_by = users.into_iter().take(USED_BY_MAX).collect();
        let scheduling = profile.spec.as_ref().ok().map(|spec| spec.scheduling.as_ref()?.policy.clone());
        let policy = scheduling.map(|policy| policy.unwrap_or(OpenEnum::Known(SchedulingPolicy::Adaptive)));
        desired.profiles.insert(key.clone(), BatchProfileStatus { used_by, policy, samples, verdict });
    }
}

/// Returns the profile that is generated from a policy if it does not exist.
fn profile_to_create(input: &RecomputeInput<'_>, policy: &Policy, attachment: &Attachment) -> Option<NewProfile> {
    let RequestedProfile::Own(name, spec) = &attachment.requested else { return None };
    let key = ObjectKey::new(&policy.meta.key.namespace, name);
    let needed = attachment.accepted.is_applied() && !input.cluster.profiles.contains_key(&key);
    let owner = (policy.meta.key.name.clone(), policy.meta.uid.clone());
    needed.then(|| NewProfile { key, spec: (**spec).clone(), owner })
}

/// Returns the profiles that a policy uses or may use again at once.
fn used_profiles(
    input: &RecomputeInput<'_>,
    key: &ObjectKey,
    attachment: &Attachment,
    desired: &DesiredState,
) -> BTreeSet<String> {
    let mut used: BTreeSet<String> = attachment.requested.name().map(str::to_owned).into_iter().collect();
    if let Some(status) = desired.policies.get(key) {
        used.extend(status.current_profile.clone());
        used.extend(status.candidate_profile.clone());
        let rollout = status.rollout.as_ref();
        used.extend(rollout.and_then(|rollout| rollout.previous_profile.clone()));
        used.extend(rollout.into_iter().flat_map(|rollout| rollout.arms.iter().map(|arm| arm.profile.clone())));
    }
    if let Some(observed) = input.observed.policies.get(key) {
        used.extend(observed.used.iter().cloned());
    }
    used
}

/// Returns unused profiles generated for a policy that exceed its history limit.
fn profiles_to_delete(
    input: &RecomputeInput<'_>,
    policy: &Policy,
    used: &BTreeSet<String>,
) -> Vec<(ObjectKey, String)> {
    let spec = policy.spec.as_ref().ok();
    let limit = spec.and_then(|spec| spec.rollout.as_ref()?.history_limit).unwrap_or(HISTORY_LIMIT_DEFAULT);
    let namespace = policy.meta.key.namespace.as_str();
    // Other policies may refer to a profile generated for this one.
    let referred = in_namespace(&input.cluster.policies, namespace);
    let referred = referred.filter_map(|(_, other)| other.spec.as_ref().ok()?.profile_ref.as_ref()?.name.as_deref());
    let used: BTreeSet<&str> = used.iter().map(String::as_str).chain(referred).collect();
    let mut unused: Vec<_> = in_namespace(&input.cluster.profiles, namespace)
        .filter(|(_, profile)| profile.owner.as_ref() == Some(&policy.meta.uid) && !profile.is_deleting)
        .filter(|(key, _)| !used.contains(key.name.as_str()))
        .collect();
    // Newest first, and by name among those of one second.
    unused.sort_by_key(|(_, profile)| Reverse(profile.meta.created.parse::<Timestamp>().unwrap_or_default()));
    let surplus = unused.into_iter().skip(usize::try_from(limit).unwrap_or(usize::MAX));
    surplus.map(|(key, profile)| (key.clone(), profile.meta.uid.clone())).collect()
}
