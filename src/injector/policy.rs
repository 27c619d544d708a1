//! Which policy a pod has, and what of it the sidecar is told at its start.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::access::{at, selected};
use super::overrides::{Overrides, running, written};
use super::{Context, NamedPolicy, NamedProfile};
use crate::api::v1alpha1::{BatchPolicySpec, DurationText, Mode, Word};
use crate::config;

/// The keys of `spec.proxy` that hold for a local file only; in a pod they come from the injection (`policy.yaml`).
const LOCAL: [&str; 7] = ["listen", "upstream", "tls", "upstreamTls", "admin", "log", "state"];

/// The keys of `spec` that say something to the controller and nothing to the sidecar.
const CONTROLLER: [&str; 5] = ["targetRefs", "selector", "profileRef", "rollout", "injection"];

/// Of what the sidecar is told at its start. The kernel takes 128 KiB for one variable (`MAX_ARG_STRLEN`); beyond it the container could not start.
const SNAPSHOT_BYTES_MAX: usize = 64 << 10;

/// The policy for a pod: the one that it names, else the oldest of those that select it or name its workload, else the oldest that is for the whole namespace.
pub(super) fn choose<'a>(
    pod: &Value,
    context: &'a Context,
    named: Option<&str>,
    warnings: &mut Vec<String>,
) -> Option<&'a NamedPolicy> {
    if let Some(name) = named {
        let found = context.policies.iter().find(|policy| policy.name == name);
        if found.is_none() {
            warnings.push(format!("there is no BatchPolicy {name}: the defaults hold until there is"));
        }
        return found;
    }
    let oldest = |wanted: &dyn Fn(&NamedPolicy) -> bool| {
        let found = context.policies.iter().filter(|policy| wanted(policy));
        found.min_by_key(|policy| (policy.created.as_str(), policy.name.as_str()))
    };
    oldest(&|policy| attached(pod, context, &policy.spec)).or_else(|| oldest(&|policy| is_default(&policy.spec)))
}

/// Whether a policy is for everything in its namespace that has no other.
fn is_default(spec: &BatchPolicySpec) -> bool {
    spec.selector.is_none() && spec.target_refs.as_ref().is_none_or(Vec::is_empty)
}

/// Whether a policy selects this pod, or names what made it or what leads to it.
fn attached(pod: &Value, context: &Context, spec: &BatchPolicySpec) -> bool {
    let labels = at(pod, &["metadata", "labels"]);
    if let Some(selector) = &spec.selector {
        return serde_json::to_value(selector).is_ok_and(|selector| selected(labels, &selector));
    }
    spec.target_refs.iter().flatten().any(|target| {
        let (Some(kind), Some(name)) = (target.kind.as_deref(), target.name.as_deref()) else { return false };
        // Absent, it is any group that has the kind.
        let in_group = |group: &str| target.group.as_deref().is_none_or(|wanted| wanted == group);
        let made = &context.workload;
        if made.kind == kind && made.name == name && in_group(&made.group) {
            return true;
        }
        if kind == "InferenceService" && in_group("serving.kserve.io") {
            return labels.get(INFERENCE_SERVICE).is_some_and(|service| service == name);
        }
        context.referrers.iter().any(|object| {
            at(object, &["kind"]) == kind
                && at(object, &["metadata", "name"]) == name
                && in_group(group(object))
                && super::referrers::selects(object, labels)
        })
    })
}

/// The label of pods that KServe made, with the name of what they are for.
const INFERENCE_SERVICE: &str = "serving.kserve.io/inferenceservice";

fn group(object: &Value) -> &str {
    at(object, &["apiVersion"]).as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group)
}

/// What the sidecar is told at its start, as text: the policy's part that concerns it, with the annotations laid over. What is too large to be told is told by the
/// controller; until then everything passes through.
pub(super) fn snapshot(overrides: &Overrides, context: &Context, warnings: &mut Vec<String>) -> String {
    let told = at_start(overrides, context).to_string();
    if told.len() <= SNAPSHOT_BYTES_MAX {
        return told;
    }
    let name = overrides.policy.as_ref().map_or("", |policy| policy.name.as_str());
    warnings.push(format!(
        "policy {name} has {} bytes and does not fit into a variable: calls pass through until the controller has told it",
        told.len()
    ));
    json!({"mode": "Passthrough"}).to_string()
}

fn at_start(overrides: &Overrides, context: &Context) -> Value {
    let mut spec = overrides.policy.as_ref().map(|policy| policy.spec.clone()).unwrap_or_default();
    if let Some(profile) = profile(&spec, context) {
        // A policy has either these or a profile; where both stand all the same, what is written in the policy holds.
        spec.limits = spec.limits.take().or_else(|| profile.spec.limits.clone());
        spec.scheduling = spec.scheduling.take().or_else(|| profile.spec.scheduling.clone());
    }
    let mut value = laid_over(spec, overrides.mode, overrides.drain_timeout, context.sidecar.mode);
    if let Some(map) = value.as_object_mut() {
        map.remove("tuning");
    }
    value
}

/// What a running sidecar is told of a policy: what of it concerns a sidecar, with the annotations of its pod laid over, of which those that cannot be read
/// count for nothing. `otherwise` is the mode where neither says one.
#[must_use]
pub fn settings(spec: BatchPolicySpec, annotations: &BTreeMap<String, String>, otherwise: Mode) -> Value {
    let (mode, drain) = running(annotations);
    let under = spec.injection.as_ref().and_then(|injection| injection.drain_timeout.as_ref());
    let drain = drain.or_else(|| config::parse_duration(&under?.0));
    laid_over(spec, mode, drain, otherwise)
}

fn laid_over(mut spec: BatchPolicySpec, mode: Option<Mode>, drain: Option<Duration>, otherwise: Mode) -> Value {
    match (mode, &spec.mode) {
        (Some(mode), _) => spec.mode = Some(Word::Known(mode)),
        (None, None) if otherwise != Mode::Batch => spec.mode = Some(Word::Known(otherwise)),
        _ => {}
    }
    if let Some(limit) = drain {
        let drain = spec.proxy.get_or_insert_default().drain.get_or_insert_default();
        drain.limit = Some(DurationText(written(limit)));
    }
    let mut value = serde_json::to_value(spec).unwrap_or_else(|_| json!({}));
    if let Some(map) = value.as_object_mut() {
        for key in CONTROLLER {
            map.remove(key);
        }
        if let Some(proxy) = map.get_mut("proxy").and_then(Value::as_object_mut) {
            for key in LOCAL {
                proxy.remove(key);
            }
        }
        map.retain(|_, value| !value.as_object().is_some_and(serde_json::Map::is_empty));
    }
    value
}

/// What is worth a warning of the profile that a policy refers to.
pub(super) fn missing_profile(spec: &BatchPolicySpec, context: &Context) -> Option<String> {
    let name = spec.profile_ref.as_ref()?.name.as_deref()?;
    let missing = profile(spec, context).is_none();
    missing.then(|| format!("there is no BatchProfile {name}: the defaults hold until there is"))
}

/// The profile that a policy refers to.
pub(super) fn profile<'a>(spec: &BatchPolicySpec, context: &'a Context) -> Option<&'a NamedProfile> {
    let name = spec.profile_ref.as_ref()?.name.as_deref()?;
    context.profiles.iter().find(|profile| profile.name == name)
}
