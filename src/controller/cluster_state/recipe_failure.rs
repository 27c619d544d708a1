//! Detection of servers that do not start at the listen address to which a recipe has moved them.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::jiff::SignedDuration;
use serde_json::Value;

use crate::injector::STATUS;

/// Longest run that may end before the server has started. The longest startup probe among the
/// golden guide pods, KServe's for vLLM (60 times 30 s), fails by then.
const START_MAX: SignedDuration = SignedDuration::from_mins(30);

/// Returns a description of the failure if the pod's application was moved by a recipe and has
/// exited, or was killed by its startup probe, without becoming ready again. Otherwise returns
/// `None`.
#[must_use]
pub fn recipe_failure(pod: &Pod) -> Option<String> {
    let record = pod.metadata.annotations.as_ref()?.get(STATUS)?;
    let record: Value = serde_json::from_str(record).ok()?;
    let recipes: Vec<&str> = record["recipes"].as_array()?.iter().filter_map(Value::as_str).collect();
    let moved: Vec<&str> = record["capture"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|port| matches!(port["mode"].as_str(), Some("Loopback" | "Moved")))
        .filter_map(|port| port["container"].as_str())
        .collect();
    let containers = pod.status.as_ref()?.container_statuses.as_deref()?;
    let is_down = |status: &&ContainerStatus| {
        let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref()?.reason.as_deref());
        let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        // A container that ran out of memory had started; its failure is not caused by the move.
        moved.contains(&status.name.as_str())
            && last.is_none_or(|last| last.reason.as_deref() != Some("OOMKilled"))
            && (waiting == Some("CrashLoopBackOff")
                || status.restart_count > 0 && last.is_none_or(is_short) && !is_up(pod, status))
    };
    let ContainerStatus { name, restart_count, .. } = containers.iter().find(is_down)?;
    let (pod, space) = (pod.metadata.name.as_deref()?, pod.metadata.namespace.as_deref().unwrap_or("default"));
    (!recipes.is_empty()).then(|| {
        format!(
            "container {name} does not start ({restart_count} restarts) at the listen address set by recipe {}; for the \
             cause: kubectl logs -n {space} {pod} -c {name} --previous; to keep the original listen address, set \
             groupage.dev/recipe: None in the pod template",
            recipes.join(", ")
        )
    })
}

/// Returns `true` for a run in which a server may not have come up.
fn is_short(run: &ContainerStateTerminated) -> bool {
    let (Some(from), Some(to)) = (&run.started_at, &run.finished_at) else { return true };
    to.0.duration_since(from.0) < START_MAX
}

/// Returns `true` for a container that has come up. Without a startup probe a container counts as
/// started even while it is about to exit, so the pod's readiness is used instead: the sidecar is
/// ready only once the server accepts connections.
fn is_up(pod: &Pod, status: &ContainerStatus) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let is_probed = containers.filter(|one| one.name == status.name).any(|one| one.startup_probe.is_some());
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|one| one.type_ == "Ready" && one.status == "True");
    if is_probed { status.started == Some(true) } else { ready.next().is_some() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Builds a pod with a moved container that is up or down after the given number of restarts.
    fn pod(recipes: &[&str], is_up: bool, restarts: u32) -> Value {
        let record = json!({"recipes": recipes, "capture": [{"container": "web", "mode": "Loopback"}]});
        json!({
            "metadata": {"name": "web-1", "annotations": {STATUS: record.to_string()}},
            "spec": {"containers": [{"name": "web"}]},
            "status": {
                "conditions": [{"type": "Ready", "status": if is_up { "True" } else { "False" }}],
                "containerStatuses": [
                    {"name": "other", "image": "", "imageID": "", "ready": false, "started": false, "restartCount": 9},
                    {
                        "name": "web", "image": "", "imageID": "", "ready": true, "started": true,
                        "restartCount": restarts, "state": {"running": {}},
                    },
                ],
            },
        })
    }

    fn failure_of(pod: Value) -> Option<String> {
        recipe_failure(&serde_json::from_value(pod).unwrap())
    }

    fn failure(recipes: &[&str], is_up: bool, restarts: u32) -> Option<String> {
        failure_of(pod(recipes, is_up, restarts))
    }

    #[test]
    fn a_moved_container_that_ended_and_is_not_ready_is_named_with_the_way_back() {
        let text = failure(&["uvicorn"], false, 3).unwrap();
        assert!(text.contains("web") && text.contains("3 restarts") && text.contains("recipe: None"), "{text}");
    }

    #[test]
    fn a_container_that_starts_runs_or_was_not_moved_has_no_recipe_failure() {
        assert_eq!(failure(&["uvicorn"], false, 0), None);
        assert_eq!(failure(&["uvicorn"], true, 3), None);
        assert_eq!(failure(&[], false, 3), None);
    }

    #[test]
    fn a_container_with_a_startup_probe_is_up_once_it_has_passed() {
        let mut pod = pod(&["uvicorn"], false, 1);
        pod["spec"]["containers"][0]["startupProbe"] = json!({"httpGet": {"port": 8000}});
        assert_eq!(failure_of(pod.clone()), None);
        pod["status"]["containerStatuses"][1]["started"] = json!(false);
        assert!(failure_of(pod).is_some());
    }

    #[test]
    fn a_container_that_ran_for_a_day_has_no_recipe_failure() {
        for (finished, fails) in [("2026-01-01T00:00:09Z", true), ("2026-01-02T00:00:00Z", false)] {
            let mut pod = pod(&["uvicorn"], false, 1);
            pod["status"]["containerStatuses"][1]["lastState"] = json!({
                "terminated": {"exitCode": 1, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": finished},
            });
            assert_eq!(failure_of(pod).is_some(), fails, "{finished}");
        }
    }
}
