//! Detects from the container states of a pod why it does not run, with a command to investigate.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::controller::cluster_state;

/// Begin of the message about a pod that is not scheduled to a node.
pub(super) const UNPLACED: &str = "it is not scheduled";
/// Reasons of a waiting container that resolve without intervention.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Returns the first problem of a pod as a sentence with a command, or `None` if it runs or is
/// starting.
pub(super) fn pod_problem(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if let Some(found) = cluster_state::recipe_failure(pod) {
        return Some(found);
    }
    let (name, space) = (pod.metadata.name.as_deref()?, pod.metadata.namespace.as_deref().unwrap_or("default"));
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    if let Some(found) = containers.filter_map(|container| of_container(container, name, space)).next() {
        return Some(found);
    }
    let unplaced =
        status.conditions.iter().flatten().find(|one| one.type_ == "PodScheduled" && one.status == "False")?;
    let message = unplaced.message.as_deref().or(unplaced.reason.as_deref()).unwrap_or("no node fits");
    Some(format!("{UNPLACED}: {message}; kubectl describe pod -n {space} {name}"))
}

fn of_container(status: &ContainerStatus, pod: &str, space: &str) -> Option<String> {
    let name = &status.name;
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| !STARTING.contains(reason))?;
    let message = waiting.message.as_deref().unwrap_or_default();
    Some(match reason {
        "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" | "RegistryUnavailable" => {
            format!("container {name}: {reason}: the node cannot pull the image {}: {message}", status.image)
        }
        "CrashLoopBackOff" => {
            let ended = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
            let code = ended.map_or_else(String::new, |ended| format!(", exited with code {}", ended.exit_code));
            format!("container {name}: {reason}{code}; kubectl logs -n {space} {pod} -c {name} --previous")
        }
        _ => format!("container {name}: {reason}: {message}; kubectl describe pod -n {space} {pod}"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(status: &Value) -> Option<String> {
        let pod = json!({"metadata": {"name": "web-1", "namespace": "ml"}, "status": status});
        pod_problem(&serde_json::from_value(pod).unwrap())
    }

    fn waiting(key: &str, reason: &str) -> Option<String> {
        let container = json!({
            "name": "groupage", "image": "reg/groupage:1", "imageID": "", "ready": false, "restartCount": 3,
            "state": {"waiting": {"reason": reason, "message": "not found"}},
            "lastState": {"terminated": {"exitCode": 2}},
        });
        found(&json!({ key: [container] }))
    }

    #[test]
    fn the_cause_of_a_waiting_container_is_reported_with_advice() {
        let pull = waiting("initContainerStatuses", "ImagePullBackOff").unwrap();
        assert!(pull.contains("reg/groupage:1") && pull.contains("not found"), "{pull}");
        let crash = waiting("containerStatuses", "CrashLoopBackOff").unwrap();
        assert!(crash.contains("exited with code 2") && crash.ends_with("-c groupage --previous"), "{crash}");
        assert!(
            waiting("containerStatuses", "CreateContainerConfigError").unwrap().contains("describe pod -n ml web-1")
        );
    }

    #[test]
    fn a_pod_that_runs_or_is_starting_has_no_trouble() {
        assert_eq!(waiting("containerStatuses", "ContainerCreating"), None);
        assert_eq!(found(&json!({"phase": "Running"})), None);
        let unplaced = json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]});
        assert!(found(&unplaced).unwrap().contains("0/1 nodes"));
    }
}
