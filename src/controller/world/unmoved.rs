//! Servers that do not come up where their recipe has moved them.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::Value;

use crate::injector::STATUS;

/// The sentence about a pod whose application was moved by a recipe and has ended, or was ended by
/// its startup probe, without coming up again; `None` for any other.
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
        let ended = status.last_state.as_ref().and_then(|state| state.terminated.as_ref()?.reason.as_deref());
        // One that ran out of memory has been up, and what it lacks is memory.
        moved.contains(&status.name.as_str())
            && ended != Some("OOMKilled")
            && (waiting == Some("CrashLoopBackOff") || status.started == Some(false) && status.restart_count > 0)
    };
    let ContainerStatus { name, restart_count, .. } = containers.iter().find(is_down)?;
    let (pod, space) = (pod.metadata.name.as_deref()?, pod.metadata.namespace.as_deref().unwrap_or("default"));
    (!recipes.is_empty()).then(|| {
        format!(
            "container {name} does not come up ({restart_count} restarts) where recipe {} has moved it; kubectl logs \
             -n {space} {pod} -c {name} --previous; groupage.dev/recipe: None in the pod template leaves it in its place",
            recipes.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failure(recipes: &[&str], started: bool, restarts: u32) -> Option<String> {
        let record = json!({"recipes": recipes, "capture": [{"container": "web", "mode": "Loopback"}]});
        let pod = json!({
            "metadata": {"name": "web-1", "annotations": {STATUS: record.to_string()}},
            "status": {"containerStatuses": [
                {"name": "other", "image": "", "imageID": "", "ready": false, "started": false, "restartCount": 9},
                {"name": "web", "image": "", "imageID": "", "ready": started, "started": started, "restartCount": restarts},
            ]},
        });
        recipe_failure(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_moved_container_that_ended_and_is_not_ready_is_named_with_the_way_back() {
        let text = failure(&["uvicorn"], false, 3).unwrap();
        assert!(text.contains("web") && text.contains("3 restarts") && text.contains("recipe: None"), "{text}");
    }

    #[test]
    fn what_starts_runs_or_was_not_moved_has_none() {
        assert_eq!(failure(&["uvicorn"], false, 0), None);
        assert_eq!(failure(&["uvicorn"], true, 3), None);
        assert_eq!(failure(&[], false, 3), None);
    }
}
