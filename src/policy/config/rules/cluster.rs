//! Rules between keys that have a meaning in a cluster only. They are applied to a file too, so
//! that a valid file is accepted by the cluster.

use serde_json::Value as Json;

use super::list;
use crate::config::check::Validator;

/// API group of each kind that a policy can target. Other kinds have none.
pub(in crate::config) const GROUPS: [(&str, &str); 6] = [
    ("Deployment", "apps"),
    ("StatefulSet", "apps"),
    ("DaemonSet", "apps"),
    ("InferenceService", "serving.kserve.io"),
    ("InferencePool", "inference.networking.k8s.io"),
    // The alpha version of the API.
    ("InferencePool", "inference.networking.x-k8s.io"),
];

/// Applies every rule.
pub(super) fn apply(check: &mut Validator, spec: &Json) {
    check_targets(check, spec);
    for (index, term) in list(&spec["selector"]["matchExpressions"]).iter().enumerate() {
        check_selector_term(check, &format!("selector.matchExpressions[{index}]"), term);
    }
    for key in ["slotsMax", "batchWeightMax"] {
        let bounds = &spec["tuning"]["bounds"][key];
        if let (Some(min), Some(max)) = (bounds["min"].as_u64(), bounds["max"].as_u64())
            && min > max
        {
            let at = format!("tuning.bounds.{key}.min");
            check.push_bad_value(
                &at,
                &format!("`{at}` cannot be {min}: `max` is {max}"),
                "swap them, or leave one of them out",
            );
        }
    }
    let rollout = &spec["rollout"];
    let mut before = None;
    for (index, step) in list(&rollout["canary"]["steps"]).iter().enumerate() {
        let percent = step["percent"].as_u64();
        if let (Some(percent), Some(before)) = (percent, before)
            && percent <= before
        {
            let at = format!("rollout.canary.steps[{index}].percent");
            let message = format!("`{at}` cannot be {percent}: the previous step has {before}");
            check.push_bad_value(&at, &message, "each step must reach more pods than the previous one");
        }
        before = percent.or(before);
    }
    check_experiment_arms(check, rollout);
}

/// Checks that a target has the API group of its kind. With another group it is another kind, and
/// matches nothing.
fn check_targets(check: &mut Validator, spec: &Json) {
    for (index, target) in list(&spec["targetRefs"]).iter().enumerate() {
        let Some(kind) = target["kind"].as_str() else { continue };
        // Problems of the target itself have to be corrected first.
        if check.findings.iter().any(|other| other.path.starts_with(&format!("targetRefs[{index}]"))) {
            continue;
        }
        let groups = || GROUPS.iter().filter(|(known, _)| *known == kind).map(|(_, group)| *group);
        let (written, group) = (target["group"].as_str().unwrap_or_default(), groups().next().unwrap_or_default());
        if written != group && !groups().any(|group| group == written) {
            let key = if target["group"].is_string() { "group" } else { "kind" };
            let message = if group.is_empty() {
                format!("`{kind}` has no group")
            } else {
                format!("`{kind}` belongs to the group `{group}`")
            };
            let help = if group.is_empty() { "leave `group` out".to_owned() } else { format!("set `group: {group}`") };
            check.push_bad_value(&format!("targetRefs[{index}].{key}"), &message, &help);
        }
    }
}

fn check_selector_term(check: &mut Validator, path: &str, term: &Json) {
    let Some(operator) = term["operator"].as_str() else { return };
    // Problems of the term itself have to be corrected first.
    if check.findings.iter().any(|other| other.path.starts_with(path)) {
        return;
    }
    let (has_values, there) = (matches!(operator, "In" | "NotIn"), !list(&term["values"]).is_empty());
    if has_values && !there {
        check.push_bad_value(
            &format!("{path}.operator"),
            &format!("`{path}.operator: {operator}` needs `values`"),
            "add values, or use Exists",
        );
    }
    if there && !has_values {
        check.excluded(&format!("{path}.values"), &format!("`{path}.operator: {operator}` takes no `values`"));
    }
}

fn check_experiment_arms(check: &mut Validator, rollout: &Json) {
    let arms = list(&rollout["experiment"]["arms"]);
    if rollout["strategy"] == "Experiment" && arms.len() < 2 {
        let help = "write arms: [{profileRef: {name: A}}, {profileRef: {name: B}}]";
        check.push_bad_value(
            "rollout.strategy",
            "`rollout.strategy: Experiment` needs two `rollout.experiment.arms` or more",
            help,
        );
    }
    for (index, arm) in arms.iter().enumerate() {
        let Some(name) = arm["profileRef"]["name"].as_str() else { continue };
        if arms.iter().take(index).any(|other| other["profileRef"]["name"] == name) {
            let at = format!("rollout.experiment.arms[{index}].profileRef.name");
            check.push_bad_value(
                &at,
                &format!("another arm already has the profile `{name}`"),
                "compare different profiles",
            );
        }
    }
}
