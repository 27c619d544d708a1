//! Waits for the rollout of a workload, as `kubectl rollout status` does, and returns early if it
//! cannot finish.

use futures_util::TryStreamExt as _;
use kube::api::{Api, DynamicObject};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::{Value, json};

use crate::cli::cluster::WorkloadName;

/// Waits until every pod is of the newest template and available, as `kubectl rollout status` does.
pub(super) async fn wait_for_rollout(
    api: &Api<DynamicObject>,
    workload: &WorkloadName,
    space: &str,
) -> Result<(), String> {
    let only = watcher::Config::default().fields(&format!("metadata.name={}", workload.name));
    let mut changes = std::pin::pin!(watcher(api.clone(), only).default_backoff().applied_objects());
    while let Some(object) =
        changes.try_next().await.map_err(|error| format!("cannot watch {}: {error}", workload.display_name()))?
    {
        let object = json!(object);
        if is_rolled_out(workload.kind, &object) {
            return Ok(());
        }
        if let Some(reason) = stuck_reason(workload, space, &object) {
            return Err(format!("{} cannot roll out: {reason}", workload.display_name()));
        }
    }
    Err(format!("the watch of {} ended", workload.display_name()))
}

/// Returns the reason that a rollout cannot finish, with the remedy; `None` while it can still
/// progress.
fn stuck_reason(workload: &WorkloadName, space: &str, object: &Value) -> Option<String> {
    let number = |path: &str| object.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    if object["spec"]["paused"] == true {
        return Some(format!("it is paused; kubectl rollout resume -n {space} {}", workload.display_name()));
    }
    if object["spec"]["updateStrategy"]["type"] == "OnDelete" {
        return Some(
            "its updateStrategy is OnDelete: delete its pods, and they are recreated with the change".to_owned(),
        );
    }
    let partition = number("/spec/updateStrategy/rollingUpdate/partition");
    if partition > 0 {
        return Some(format!("its updateStrategy does not update the pods below partition {partition}"));
    }
    if number("/status/observedGeneration") < number("/metadata/generation") {
        return None;
    }
    let conditions = object["status"]["conditions"].as_array()?;
    let late = conditions.iter().find(|condition| condition["reason"] == "ProgressDeadlineExceeded")?;
    Some(format!("{}; see kubectl get pods -n {space}", late["message"].as_str().unwrap_or("it makes no progress")))
}

fn is_rolled_out(kind: &str, object: &Value) -> bool {
    let number = |path: &str| object.pointer(path).and_then(Value::as_u64);
    if number("/status/observedGeneration").unwrap_or(0) < number("/metadata/generation").unwrap_or(0) {
        return false;
    }
    let (desired, updated, ready, all) = match kind {
        "DaemonSet" => (
            number("/status/desiredNumberScheduled").unwrap_or(0),
            number("/status/updatedNumberScheduled"),
            number("/status/numberAvailable"),
            None,
        ),
        _ => (
            number("/spec/replicas").unwrap_or(1),
            number("/status/updatedReplicas"),
            number("/status/availableReplicas"),
            number("/status/replicas"),
        ),
    };
    updated.unwrap_or(0) >= desired && ready.unwrap_or(0) >= desired && all.is_none_or(|all| all <= desired)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_is_over_when_only_new_pods_are_left_and_they_are_ready() {
        let deployment = |generation: u64, updated: u64, available: u64, all: u64| {
            json!({
                "metadata": {"generation": 2}, "spec": {"replicas": 2},
                "status": {"observedGeneration": generation, "updatedReplicas": updated, "availableReplicas": available, "replicas": all},
            })
        };
        assert!(is_rolled_out("Deployment", &deployment(2, 2, 2, 2)));
        for not_yet in [deployment(1, 2, 2, 2), deployment(2, 1, 2, 3), deployment(2, 2, 1, 2), deployment(2, 2, 2, 3)]
        {
            assert!(!is_rolled_out("Deployment", &not_yet), "{not_yet}");
        }
        let set = json!({
            "metadata": {"generation": 1},
            "status": {"observedGeneration": 1, "desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "numberAvailable": 3},
        });
        assert!(is_rolled_out("DaemonSet", &set));
    }

    #[test]
    fn a_rollout_that_cannot_end_is_not_waited_for() {
        let reason = |object: Value| {
            stuck_reason(&WorkloadName::parse("deploy/web").unwrap(), "ml", &object).unwrap_or_default()
        };
        assert!(reason(json!({"spec": {"paused": true}})).contains("kubectl rollout resume -n ml deployment/web"));
        assert!(reason(json!({"spec": {"updateStrategy": {"type": "OnDelete"}}})).contains("delete its pods"));
        assert!(
            reason(json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 2}}}})).contains("partition 2")
        );
        let late = |observed: u64| {
            json!({"metadata": {"generation": 2}, "status": {"observedGeneration": observed,
            "conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "timed out"}]}})
        };
        assert!(reason(late(2)).starts_with("timed out"));
        assert_eq!(reason(late(1)), "", "that was the rollout before");
    }
}
