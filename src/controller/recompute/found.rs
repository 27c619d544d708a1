//! What is found of one policy: counts, and a finding for each condition.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::{Accepted, Attachment, Bare, Input, PodCounts, PodLive, PolicyLive, Said};
use crate::api::v1alpha1::BatchPolicySpec;
use crate::controller::attach::selected_by;
use crate::controller::attachment::Wanted;
use crate::controller::status::{Finding, Holds, NO_SLO, Type, some_of};
use crate::controller::world::{Key, Pod, Policy, within};
use crate::injector::{STATUS, around};

/// Pods or ways around that a message names.
const NAMED_MAX: usize = 3;

/// The ways around the sidecars of a policy's pods, in their order; `None` where a pod does not say how it was injected.
fn ways<'a>(input: &Input<'a>, attachment: &'a Attachment) -> Vec<(&'a Arc<Pod>, Option<Vec<String>>)> {
    let world = input.world;
    // Pods of one template follow each other and have the same labels.
    let mut last: Option<(&Arc<Pod>, Vec<&Value>)> = None;
    let mut all = Vec::new();
    for pod in injected(input, attachment) {
        let same = last
            .take()
            .filter(|(last, _)| last.labels == pod.labels && last.meta.key.namespace == pod.meta.key.namespace);
        let (_, objects) = last.insert(same.unwrap_or_else(|| {
            let tables = [Some(&world.services), Some(&world.networks), world.pools.as_ref()];
            let there = tables.into_iter().flatten().flat_map(|table| within(table, &pod.meta.key.namespace));
            let about = there.map(|(_, object)| &**object).filter(|object| selected_by(object, &pod.labels));
            (pod, about.collect())
        }));
        let status = pod.annotations.get(STATUS);
        all.push((pod, status.and_then(|status| around(status, &pod.labels, objects))));
    }
    all
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn injected<'a>(input: &Input<'a>, attachment: &'a Attachment) -> impl Iterator<Item = &'a Arc<Pod>> {
    let world = input.world;
    attachment.pods.iter().filter_map(|key| world.pods.get(key))
}

fn connected<'a>(input: &Input<'a>, attachment: &'a Attachment) -> impl Iterator<Item = (&'a Arc<Pod>, &'a PodLive)> {
    let live = input.live;
    injected(input, attachment).filter_map(|pod| Some((pod, live.pods.get(&pod.meta.uid)?)))
}

/// Pods, counted.
pub(super) fn counts(input: &Input<'_>, attachment: &Attachment) -> PodCounts {
    let ways = ways(input, attachment);
    let captured = ways.iter().filter(|(_, ways)| ways.as_ref().is_some_and(Vec::is_empty));
    PodCounts {
        matched: number(attachment.pods.len() + attachment.bare.len()),
        injected: number(attachment.pods.len()),
        connected: number(connected(input, attachment).count()),
        captured: number(captured.count()),
        on_current: number(connected(input, attachment).filter(|(_, live)| live.current).count()),
    }
}

/// A finding for each condition but `Ready`.
pub(super) fn findings(input: &Input<'_>, policy: &Policy, attachment: &Attachment, live: &PolicyLive) -> Vec<Finding> {
    vec![
        accepted(&attachment.accepted),
        programmed(input, attachment),
        captured(input, attachment),
        slo(policy, attachment, live),
        merging(attachment, live),
        rollout(live),
    ]
}

fn accepted(accepted: &Accepted) -> Finding {
    let (holds, message) = match accepted {
        Accepted::Accepted(note) => (Holds::True, note.as_deref().unwrap_or("the policy is obeyed")),
        Accepted::Conflicted(why) | Accepted::Invalid(why) | Accepted::TargetNotFound(why) => {
            (Holds::False, why.as_str())
        }
    };
    Finding::new(Type::Accepted, holds, accepted.reason(), message)
}

fn programmed(input: &Input<'_>, attachment: &Attachment) -> Finding {
    let say = |holds, reason: &str, message: String| Finding::new(Type::Programmed, holds, reason, message);
    if !attachment.accepted.is_obeyed() {
        let message = "sidecars keep what they were told before".to_owned();
        return say(Holds::False, attachment.accepted.reason(), message);
    }
    if let Wanted::Named(name, false) = &attachment.wanted {
        let message =
            format!("there is no BatchProfile {name} that can be read; sidecars keep what they were told before");
        return say(Holds::False, "ProfileNotFound", message);
    }
    if attachment.pods.is_empty() {
        return say(Holds::Unknown, "NoPods", "no pod with a sidecar follows this policy".to_owned());
    }
    let all: Vec<(&Arc<Pod>, &PodLive)> = connected(input, attachment).collect();
    let names = |pods: &[&Arc<Pod>]| {
        let names: Vec<String> = pods.iter().map(|pod| pod.meta.key.name.clone()).collect();
        some_of(&names, NAMED_MAX)
    };
    let refused: Vec<String> = all
        .iter()
        .filter_map(|(pod, live)| Some(format!("{}: {}", pod.meta.key.name, live.refused.as_ref()?)))
        .collect();
    if !refused.is_empty() {
        return say(Holds::False, "Refused", some_of(&refused, 1));
    }
    let (of, there) = (attachment.pods.len(), all.len());
    if there < of {
        let there: BTreeSet<&Key> = all.iter().map(|(pod, _)| &pod.meta.key).collect();
        let away: Vec<&Arc<Pod>> = injected(input, attachment).filter(|pod| !there.contains(&pod.meta.key)).collect();
        let message = format!("{} of {of} sidecars are not connected: {}", away.len(), names(&away));
        // One that is starting is not connected yet either; what it runs was given to it at admission.
        return say(Holds::False, "NotConnected", message);
    }
    let behind: Vec<&Arc<Pod>> = all.iter().filter(|(_, live)| !live.programmed).map(|(pod, _)| *pod).collect();
    if !behind.is_empty() {
        return say(
            Holds::False,
            "Pending",
            format!("{} of {of} sidecars run other settings still: {}", behind.len(), names(&behind)),
        );
    }
    let pending: BTreeSet<&String> = all.iter().flat_map(|(_, live)| &live.pending).collect();
    if !pending.is_empty() {
        let keys: Vec<String> = pending.into_iter().cloned().collect();
        let message = format!("{of} sidecars run it; {} hold from their next start on", some_of(&keys, NAMED_MAX));
        return say(Holds::True, "NextStart", message);
    }
    say(Holds::True, "Programmed", format!("{of} sidecars run it"))
}

fn captured(input: &Input<'_>, attachment: &Attachment) -> Finding {
    let say = |holds, reason: &str, message: String| Finding::new(Type::TrafficCaptured, holds, reason, message);
    let (mut missed, mut cannot) = (Vec::new(), Vec::new());
    for key in &attachment.bare {
        let found = input.world.bare.get(key).and_then(|pod| input.bare.get(&pod.meta.uid));
        match found {
            Some(Bare::Missed) => missed.push(key.name.clone()),
            Some(Bare::Cannot(why)) => cannot.push(format!("{}: {why}", key.name)),
            None => {}
        }
    }
    if !missed.is_empty() {
        return say(Holds::False, "SidecarMissing", format!("{}: {}", some_of(&missed, NAMED_MAX), super::AGAIN));
    }
    if !cannot.is_empty() {
        return say(Holds::False, "NotInjectable", some_of(&cannot, 1));
    }
    if attachment.pods.is_empty() {
        return say(Holds::Unknown, "NoPods", "no pod with a sidecar follows this policy".to_owned());
    }
    let (mut ways, mut silent) = (BTreeSet::new(), Vec::new());
    for (pod, found) in self::ways(input, attachment) {
        match found {
            Some(found) => ways.extend(found),
            None => silent.push(pod.meta.key.name.clone()),
        }
    }
    if !ways.is_empty() {
        let ways: Vec<String> = ways.into_iter().collect();
        return say(Holds::False, "Bypassed", format!("not through the sidecar: {}", some_of(&ways, NAMED_MAX)));
    }
    if !silent.is_empty() {
        let message = format!("{} do not say how they were injected", some_of(&silent, NAMED_MAX));
        return say(Holds::Unknown, "NotSaid", message);
    }
    say(
        Holds::True,
        "Captured",
        format!("all that is known to come to {} pods goes through their sidecars", attachment.pods.len()),
    )
}

fn slo(policy: &Policy, attachment: &Attachment, live: &PolicyLive) -> Finding {
    if !policy.spec.as_ref().is_ok_and(BatchPolicySpec::promises_latency) {
        return Finding::new(Type::SloMet, Holds::Unknown, NO_SLO, "the policy promises no latency");
    }
    match &live.slo {
        Some(said) => finding(Type::SloMet, said),
        None if attachment.pods.is_empty() => {
            Finding::new(Type::SloMet, Holds::Unknown, "NoPods", "no pod with a sidecar follows this policy")
        }
        None => Finding::new(Type::SloMet, Holds::Unknown, "NoReports", "no sidecar has reported yet"),
    }
}

fn merging(attachment: &Attachment, live: &PolicyLive) -> Finding {
    match &live.merging {
        Some(said) => finding(Type::Merging, said),
        None if attachment.pods.is_empty() => {
            Finding::new(Type::Merging, Holds::Unknown, "NoPods", "no pod with a sidecar follows this policy")
        }
        None => Finding::new(Type::Merging, Holds::Unknown, "NoReports", "no sidecar has reported yet"),
    }
}

fn rollout(live: &PolicyLive) -> Finding {
    match &live.healthy {
        Some(said) => finding(Type::RolloutHealthy, said),
        None => Finding::new(Type::RolloutHealthy, Holds::True, "NoRollout", "nothing is being tried"),
    }
}

fn finding(kind: Type, said: &Said) -> Finding {
    Finding::new(kind, said.holds, &said.reason, said.message.clone())
}
