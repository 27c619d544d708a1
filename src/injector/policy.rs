//! Selection of a pod's policy, and the sidecar configuration derived from it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::access::{at, matches_selector};
use super::annotation::runtime_settings;
use super::effective::InjectionSettings;
use super::{InjectionContext, NamedPolicy, NamedProfile};
use crate::api::v1alpha1::{BatchPolicySpec, DurationText, Mode, OpenEnum};
use crate::config;

/// Keys of `spec` that concern the controller and not the sidecar.
const CONTROLLER_KEYS: [&str; 5] = ["targetRefs", "selector", "profileRef", "rollout", "injection"];

/// Maximum size of the initial configuration. The kernel limits one environment variable to 128 KiB
/// (`MAX_ARG_STRLEN`); a container with a larger one does not start.
const SNAPSHOT_BYTES_MAX: usize = 64 << 10;

/// Selects the policy of a pod: the one that it names, otherwise the oldest that selects it or
/// targets its workload, otherwise the oldest for the whole namespace.
pub(super) fn select_policy<'a>(
    pod: &Value,
    context: &'a InjectionContext,
    named: Option<&str>,
    warnings: &mut Vec<String>,
) -> Option<&'a NamedPolicy> {
    if let Some(name) = named {
        let found = context.policies.iter().find(|policy| policy.name == name);
        if found.is_none() {
            warnings.push(format!("BatchPolicy {name} does not exist: the defaults apply until it does"));
        }
        return found;
    }
    let oldest = |applies: &dyn Fn(&NamedPolicy) -> bool| {
        let found = context.policies.iter().filter(|policy| applies(policy));
        found.min_by_key(|policy| (policy.created.as_str(), policy.name.as_str()))
    };
    oldest(&|policy| is_targeted(pod, context, &policy.spec)).or_else(|| oldest(&|policy| is_default(&policy.spec)))
}

/// Returns `true` if a policy applies to all pods of its namespace that have no other policy.
fn is_default(spec: &BatchPolicySpec) -> bool {
    spec.selector.is_none() && spec.target_refs.as_ref().is_none_or(Vec::is_empty)
}

/// Returns `true` if a policy selects this pod, or targets its workload or an object that leads to
/// it.
fn is_targeted(pod: &Value, context: &InjectionContext, spec: &BatchPolicySpec) -> bool {
    let labels = at(pod, &["metadata", "labels"]);
    if let Some(selector) = &spec.selector {
        return serde_json::to_value(selector).is_ok_and(|selector| matches_selector(labels, &selector));
    }
    spec.target_refs.iter().flatten().any(|target| {
        let (Some(kind), Some(name)) = (target.kind.as_deref(), target.name.as_deref()) else { return false };
        // Without a group, the reference matches any group that has the kind.
        let in_group = |group: &str| target.group.as_deref().is_none_or(|own| own == group);
        let workload = &context.workload;
        if workload.kind == kind && workload.name == name && in_group(&workload.group) {
            return true;
        }
        if kind == "InferenceService" && in_group("serving.kserve.io") {
            // KServe names the workload of the pods itself, and labels them with the name of the
            // service.
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

/// Label of pods that KServe created, with the name of their `InferenceService`.
const INFERENCE_SERVICE: &str = "serving.kserve.io/inferenceservice";

fn group(object: &Value) -> &str {
    at(object, &["apiVersion"]).as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group)
}

/// Returns the initial configuration of the sidecar as JSON: the sidecar's part of the policy,
/// overridden by the annotations. If it is too large, the sidecar starts in pass-through mode until
/// the controller pushes the configuration.
pub(super) fn initial_config_json(
    overrides: &InjectionSettings,
    context: &InjectionContext,
    warnings: &mut Vec<String>,
) -> String {
    let json = initial_config(overrides, context).to_string();
    if json.len() <= SNAPSHOT_BYTES_MAX {
        return json;
    }
    let name = overrides.policy.as_ref().map_or("", |policy| policy.name.as_str());
    warnings.push(format!(
        "policy {name} has {} bytes and does not fit into an environment variable: calls pass through until the controller pushes it",
        json.len()
    ));
    json!({"mode": "Passthrough"}).to_string()
}

fn initial_config(overrides: &InjectionSettings, context: &InjectionContext) -> Value {
    let mut spec = overrides.policy.as_ref().map(|policy| policy.spec.clone()).unwrap_or_default();
    if let Some(profile) = find_profile(&spec, context) {
        // A policy has either these keys or a profile. If both are present, the policy takes
        // precedence.
        spec.limits = spec.limits.take().or_else(|| profile.spec.limits.clone());
        spec.scheduling = spec.scheduling.take().or_else(|| profile.spec.scheduling.clone());
    }
    let mut value = build_config(spec, overrides.mode, overrides.drain_timeout, context.sidecar.mode);
    // The bounds of tuning apply to settings that the controller pushes, and it pushes the bounds
    // with them.
    if let Some(map) = value.as_object_mut() {
        map.remove("tuning");
    }
    value
}

/// Returns the configuration of a running sidecar: the sidecar's part of the policy, overridden by
/// the pod's annotations, of which invalid ones are ignored. `default_mode` applies if
/// neither sets a mode.
#[must_use]
pub fn runtime_config(spec: BatchPolicySpec, annotations: &BTreeMap<String, String>, default_mode: Mode) -> Value {
    let (mode, drain) = runtime_settings(annotations);
    let policy_drain = spec.injection.as_ref().and_then(|injection| injection.drain_timeout.as_ref());
    let drain = drain.or_else(|| config::parse_duration(&policy_drain?.0));
    build_config(spec, mode, drain, default_mode)
}

/// Returns the part of a policy that concerns the sidecar, with the mode and the drain timeout that
/// annotations set.
fn build_config(mut spec: BatchPolicySpec, mode: Option<Mode>, drain: Option<Duration>, default_mode: Mode) -> Value {
    match (mode, &spec.mode) {
        (Some(mode), _) => spec.mode = Some(OpenEnum::Known(mode)),
        (None, None) if default_mode != Mode::Batch => spec.mode = Some(OpenEnum::Known(default_mode)),
        _ => {}
    }
    if let Some(limit) = drain {
        let drain = spec.proxy.get_or_insert_default().drain.get_or_insert_default();
        drain.limit = Some(DurationText(config::format_duration(limit)));
    }
    let mut value = serde_json::to_value(spec).unwrap_or_else(|_| json!({}));
    if let Some(map) = value.as_object_mut() {
        for key in CONTROLLER_KEYS {
            map.remove(key);
        }
        if let Some(proxy) = map.get_mut("proxy").and_then(Value::as_object_mut) {
            for key in config::LOCAL_PROXY_KEYS {
                proxy.remove(key);
            }
        }
        map.retain(|_, value| !value.as_object().is_some_and(serde_json::Map::is_empty));
    }
    value
}

/// Returns a warning if the profile of a policy does not exist.
pub(super) fn missing_profile(spec: &BatchPolicySpec, context: &InjectionContext) -> Option<String> {
    let name = spec.profile_ref.as_ref()?.name.as_deref()?;
    let missing = find_profile(spec, context).is_none();
    missing.then(|| format!("BatchProfile {name} does not exist: the defaults apply until it does"))
}

/// Returns the profile that a policy refers to, if it exists.
pub(super) fn find_profile<'a>(spec: &BatchPolicySpec, context: &'a InjectionContext) -> Option<&'a NamedProfile> {
    let name = spec.profile_ref.as_ref()?.name.as_deref()?;
    context.profiles.iter().find(|profile| profile.name == name)
}
