//! The pods of a workload.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::Selector;
use serde_json::Value;

use super::cluster::{ClusterClient, describe_api_error};

/// Returns the pods of a workload that have not ended and are not terminating.
pub(super) async fn list_live_pods(cluster: &ClusterClient, workload: &DynamicObject) -> Result<Vec<Pod>, String> {
    let selector = workload.data.pointer("/spec/selector").cloned().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let found = api
        .list(&ListParams::default().labels(&labels(&selector)?))
        .await
        .map_err(|error| describe_api_error(&error))?;
    Ok(found.items.into_iter().filter(is_live).collect())
}

/// Converts a label selector to the API's query syntax.
fn labels(selector: &Value) -> Result<String, String> {
    let selector: LabelSelector =
        serde_json::from_value(selector.clone()).map_err(|error| format!("its selector cannot be read: {error}"))?;
    let selector: Selector = selector.try_into().map_err(|error| format!("its selector cannot be read: {error}"))?;
    Ok(selector.to_string())
}

/// Returns `true` if a pod has not ended. Evicted and completed pods are listed for a long time.
pub(super) fn is_live(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_that_have_ended_are_not_judged_and_any_selector_is_kept() {
        let pod = |phase: &str| serde_json::from_value::<Pod>(json!({"status": {"phase": phase}})).unwrap();
        let alive = ["Running", "Pending", "Failed", "Succeeded"].map(|phase| is_live(&pod(phase)));
        assert_eq!(alive, [true, true, false, false]);
        let selector = json!({"matchLabels": {"app": "x"},
            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["gpu", "cpu"]}, {"key": "old", "operator": "DoesNotExist"}]});
        let written = labels(&selector).unwrap();
        for part in ["app=x", "tier in (", "!old"] {
            assert!(written.contains(part), "{written}");
        }
    }
}
