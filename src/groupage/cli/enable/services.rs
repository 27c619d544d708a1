//! `--fix-services`: changes Services to refer to a port by its name, once the pods have a port of
//! that name.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};

use super::FIELD_MANAGER;
use crate::cli::cluster::{ClusterClient, describe_api_error};
use crate::cli::pods::is_live;
use crate::injector::ServiceFix;

/// Refuses to change an object that another controller owns, because that controller would revert
/// the change.
///
/// # Errors
/// An object has a controller as its owner, or the API server refuses a request.
pub(super) async fn check_ownership(
    cluster: &ClusterClient,
    workload: &DynamicObject,
    fixes: &[ServiceFix],
) -> Result<(), String> {
    let keeper = |what: String, owners: Option<Vec<OwnerReference>>| {
        let keeper = owners.into_iter().flatten().find(|owner| owner.controller == Some(true));
        keeper.map_or(Ok(()), |owner| {
            Err(format!(
                "{what} is managed by {}/{}: change the port there",
                owner.kind.to_ascii_lowercase(),
                owner.name
            ))
        })
    };
    keeper("the workload".to_owned(), workload.metadata.owner_references.clone())?;
    for name in fixes.iter().map(|fix| fix.service.as_str()).collect::<BTreeSet<_>>() {
        keeper(format!("svc/{name}"), get_service(cluster, name).await?.metadata.owner_references)?;
    }
    Ok(())
}

/// Checks that every pod selected by a Service has a port of that name. A pod without it would no
/// longer receive calls.
///
/// # Errors
/// A pod has no port of that name, or the API server refuses a request.
pub(super) async fn check_port_names(cluster: &ClusterClient, fixes: &[ServiceFix]) -> Result<(), String> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    for fix in fixes {
        let selector =
            get_service(cluster, &fix.service).await?.spec.and_then(|spec| spec.selector).unwrap_or_default();
        let labels = selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
        let found =
            pods.list(&ListParams::default().labels(&labels)).await.map_err(|error| describe_api_error(&error))?;
        if let Some(other) = found.items.iter().find(|pod| is_live(pod) && !has_port(pod, &fix.name)) {
            return Err(format!(
                "svc/{} also selects pod/{}, which has no port named {}: name its port first",
                fix.service,
                other.metadata.name.as_deref().unwrap_or("?"),
                fix.name
            ));
        }
    }
    Ok(())
}

fn has_port(pod: &Pod, name: &str) -> bool {
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    containers.flat_map(|container| container.ports.iter().flatten()).any(|port| port.name.as_deref() == Some(name))
}

async fn get_service(cluster: &ClusterClient, name: &str) -> Result<Service, String> {
    let api: Api<Service> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    api.get(name).await.map_err(|error| format!("svc/{name}: {}", describe_api_error(&error)))
}

/// Writes the port names into the Services.
///
/// # Errors
/// The API server refuses a request, or a Service has changed in the meantime.
pub(super) async fn patch_services(cluster: &ClusterClient, fixes: &[ServiceFix]) -> Result<(), String> {
    let api: Api<Service> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    for fix in fixes {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let done = api.patch(&fix.service, &params, &Patch::Json::<()>(fix.patch())).await;
        done.map_err(|error| {
            format!("svc/{}: {}; it still bypasses the sidecar", fix.service, describe_api_error(&error))
        })?;
        println!(
            "svc/{0}: targetPort of port {1} is now {2}, was {3} (for git: in svc/{0})",
            fix.service, fix.port, fix.name, fix.number
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_named_port_is_found_in_any_container() {
        let pod = |ports| {
            serde_json::from_value::<Pod>(
                json!({"spec": {"containers": [{"name": "m"}, {"name": "n", "ports": ports}]}}),
            )
            .unwrap()
        };
        assert!(has_port(&pod(json!([{"containerPort": 1, "name": "http-8000"}])), "http-8000"));
        assert!(!has_port(&pod(json!([{"containerPort": 8000}])), "http-8000"));
    }
}
