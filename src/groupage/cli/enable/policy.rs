//! The `BatchPolicy` that `groupage enable --slo-p99` creates: one workload and its latency
//! objective.

use std::time::Duration;

use clap::ValueEnum;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use super::FIELD_MANAGER;
use crate::cli::cluster::{self, ClusterClient, WorkloadName, describe_api_error};
use crate::config::parse_duration;

/// Treatment of calls that can no longer meet their deadline: `slo.late`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(super) enum LatePolicy {
    /// Serve late calls after those that can still meet their deadline
    Serve,
    /// Answer late calls while they are queued, with 503 or 504
    Refuse,
}

/// Returns the smallest useful policy: one target and its latency objective.
///
/// # Errors
/// The latency is not a duration of at least 1 ms.
pub(super) fn build_policy(workload: &WorkloadName, slo: &str, late: Option<LatePolicy>) -> Result<Value, String> {
    if parse_duration(slo).is_none_or(|time| time < Duration::from_millis(1)) {
        return Err(format!("--slo-p99 {slo:?} is not a duration such as 150ms"));
    }
    let mut promise = json!({"latencyP99": slo});
    if let Some(late) = late {
        promise["late"] = json!(format!("{late:?}"));
    }
    Ok(json!({
        "apiVersion": crate::api::v1alpha1::API_VERSION,
        "kind": "BatchPolicy",
        "metadata": {"name": workload.name},
        "spec": {
            "targetRefs": [{"group": "apps", "kind": workload.kind, "name": workload.name}],
            "slo": promise,
        },
    }))
}

/// Applies the policy, unless a policy of the same name has other targets.
///
/// # Errors
/// A policy of that name has other targets, or the API server refuses the request.
pub(super) async fn apply(cluster: &ClusterClient, workload: &WorkloadName, policy: &Value) -> Result<(), String> {
    let api: Api<DynamicObject> = Api::namespaced_with(
        cluster.client.clone(),
        &cluster.namespace,
        &cluster::groupage_resource("BatchPolicy", "batchpolicies"),
    );
    let name = &workload.name;
    let failed = |error: &kube::Error| {
        // Here 404 means that the kind is not installed; a missing object is `None`.
        let hint = match error {
            kube::Error::Api(status) if status.code == 404 => {
                "; are the CRDs installed? groupage install | kubectl apply --server-side -f -"
            }
            _ => "",
        };
        format!("batchpolicy/{name}: {}{hint}", describe_api_error(error))
    };
    let there = api.get_opt(name).await.map_err(|error| failed(&error))?;
    if let Some(targets) = there.and_then(|there| other_targets(&there.data, workload)) {
        let (space, display_name) = (&cluster.namespace, workload.display_name());
        let hint = if targets.split(", ").any(|target| target == display_name) {
            "set its slo.latencyP99, or omit --slo-p99".to_owned()
        } else {
            "create one with another name; groupage enable --dry-run prints it".to_owned()
        };
        return Err(format!("batchpolicy/{name} in {space} targets {targets}, not {display_name} alone: {hint}"));
    }
    let applied = api.patch(name, &PatchParams::apply(FIELD_MANAGER), &Patch::Apply(policy)).await;
    applied.map(drop).map_err(|error| failed(&error))
}

/// Returns the targets of a policy as text, or `None` if this workload is its only target.
fn other_targets(policy: &Value, workload: &WorkloadName) -> Option<String> {
    let targets = policy["spec"]["targetRefs"].as_array().map_or(&[][..], Vec::as_slice);
    if let [one] = targets
        && one["kind"] == workload.kind
        && one["name"] == workload.name.as_str()
    {
        return None;
    }
    let describe = |target: &Value| {
        let word = |key: &str| target[key].as_str().unwrap_or("*").to_owned();
        format!("{}/{}", word("kind").to_ascii_lowercase(), word("name"))
    };
    let named = targets.iter().map(describe).collect::<Vec<_>>().join(", ");
    Some(if named.is_empty() { "pods of any workload".to_owned() } else { named })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_policy_has_a_target_and_an_slo_only() {
        let workload = WorkloadName::parse("deploy/web").unwrap();
        let made = build_policy(&workload, "150ms", None).unwrap();
        let spec: crate::api::v1alpha1::BatchPolicySpec = serde_json::from_value(made["spec"].clone()).unwrap();
        let slo = spec.slo.unwrap();
        assert_eq!((slo.latency_p99.unwrap().0.as_str(), slo.late), ("150ms", None));
        let refusing = build_policy(&workload, "150ms", Some(LatePolicy::Refuse)).unwrap();
        assert_eq!(refusing["spec"]["slo"], json!({"latencyP99": "150ms", "late": "Refuse"}));
        assert!(build_policy(&workload, "fast", None).is_err());
    }

    #[test]
    fn other_targets_of_a_policy_are_found() {
        let workload = WorkloadName::parse("sts/web").unwrap();
        let target = |kind: &str, name: &str| json!({"group": "apps", "kind": kind, "name": name});
        let of = |targets: &[Value]| other_targets(&json!({"spec": {"targetRefs": targets}}), &workload);
        assert_eq!(of(&[target("StatefulSet", "web")]), None);
        assert_eq!(of(&[target("Deployment", "web")]).as_deref(), Some("deployment/web"));
        let both = of(&[target("StatefulSet", "web"), target("StatefulSet", "other")]);
        assert_eq!(both.as_deref(), Some("statefulset/web, statefulset/other"));
        assert_eq!(of(&[]).as_deref(), Some("pods of any workload"), "by label, or all of the namespace");
    }
}
