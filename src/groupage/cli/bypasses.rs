//! Finds traffic that bypasses the sidecars of a cluster, from the current objects.
//!
//! A pod carries a record of the bypasses that existed when it was created; Services and similar
//! objects may have changed since. The rules are the controller's own. If some objects cannot be
//! read, the record is used.

use std::sync::Arc;

use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

use super::cluster::describe_api_error;
use crate::controller::cluster_state::{self, ClusterState, ObjectKey, ObjectTable, Pod, in_namespace};
use crate::controller::matching::selected_by;
use crate::injector::{STATUS, ServiceFix, current_bypasses, remedy, service_fixes};

/// Page size of a list request, the same as `kubectl`'s.
const PAGE: u32 = 500;

/// Objects that lead traffic to pods, by kind.
#[derive(Debug, Default)]
pub(super) struct BypassObjects {
    tables: Vec<ObjectTable<Value>>,
    /// `true` if all kinds could be read.
    is_complete: bool,
}

/// Lists all objects of a kind in a namespace or in the cluster, page by page, and maps each with
/// `take`. Empty for a kind that the cluster does not have.
///
/// # Errors
/// A message if the objects cannot be read.
pub(super) async fn list<T>(
    client: &Client,
    space: Option<&str>,
    resource: &ApiResource,
    take: impl Fn(DynamicObject) -> T,
) -> Result<Vec<T>, String> {
    let api: Api<DynamicObject> = match space {
        Some(space) => Api::namespaced_with(client.clone(), space, resource),
        None => Api::all_with(client.clone(), resource),
    };
    match list_pages(&api, &ListParams::default(), take).await {
        Ok(found) => Ok(found),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        // The API server checks permissions before it checks that the kind exists, so that a 403
        // may mean an absent kind.
        Err(kube::Error::Api(status)) if status.code == 403 && !is_served(client, &resource.group).await => {
            Ok(Vec::new())
        }
        Err(error) => Err(format!("{}: {}", resource.plural, describe_api_error(&error))),
    }
}

/// Returns `true` if the cluster serves kinds of this group, or if that is unknown. Discovery needs
/// no permission.
async fn is_served(client: &Client, group: &str) -> bool {
    let groups = client.list_api_groups().await;
    group.is_empty() || groups.map_or(true, |groups| groups.groups.iter().any(|one| one.name == group))
}

/// Lists all objects page by page, and maps each with `take` to keep only what is needed: a cluster
/// has thousands of objects, and the pod of the chart's test has little memory.
///
/// # Errors
/// The error of the API server.
pub(super) async fn list_pages<K, T>(
    api: &Api<K>,
    params: &ListParams,
    take: impl Fn(K) -> T,
) -> Result<Vec<T>, kube::Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut params = params.clone().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = api.list(&params).await?;
        found.extend(page.items.into_iter().map(&take));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// Builds a table of objects by name, in the controller's format.
pub(super) fn table<T>(items: impl Iterator<Item = (ObjectKey, T)>) -> ObjectTable<T> {
    Arc::new(items.map(|(key, item)| (key, Arc::new(item))).collect())
}

// === impl BypassObjects ===

impl BypassObjects {
    /// Reads the objects, and returns errors for the kinds that could not be read.
    pub(super) async fn read(client: &Client, space: Option<&str>) -> (Self, Vec<String>) {
        let mut objects = Self { is_complete: true, ..Self::default() };
        let mut refused = Vec::new();
        let kinds = [
            ("", "v1", "Service"),
            ("networking.k8s.io", "v1", "NetworkPolicy"),
            ("inference.networking.k8s.io", "v1", "InferencePool"),
        ];
        for (group, version, kind) in kinds {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let take = |object| cluster_state::from_referrer(&resource.api_version, kind, object);
            match list(client, space, &resource, take).await {
                Ok(found) => objects.tables.push(table(found.into_iter())),
                Err(reason) => {
                    objects.is_complete = false;
                    refused.push(reason);
                }
            }
        }
        (objects, refused)
    }

    /// Creates a value with the objects of a single kind.
    #[cfg(test)]
    pub(super) fn of(api_version: &str, kind: &str, found: Vec<DynamicObject>) -> Self {
        let found = found.into_iter().map(|one| cluster_state::from_referrer(api_version, kind, one));
        Self { tables: vec![table(found)], is_complete: true }
    }

    /// Returns `true` if current bypasses are known, and `false` if only those recorded at the
    /// creation of a pod are.
    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the bypasses of a pod's sidecar.
    pub(super) fn bypasses_of(&self, pod: &Pod) -> Vec<String> {
        let record = pod.annotations.get(STATUS).map(String::as_str).unwrap_or_default();
        if !self.is_complete {
            return recorded(record);
        }
        current_bypasses(record, &pod.labels, &self.objects_for(pod)).unwrap_or_default()
    }

    /// Returns the Services that have to refer to a port of the pod by name, as far as known.
    pub(super) fn fixes(&self, pod: &Pod) -> Vec<ServiceFix> {
        let record = pod.annotations.get(STATUS).map(String::as_str).unwrap_or_default();
        service_fixes(record, &self.objects_for(pod))
    }

    /// Returns the remedy for a bypass, for the workload that created the pod.
    pub(super) fn remedy(&self, pod: &Pod) -> String {
        let workload = ClusterState::default().workload(&pod.meta.key.namespace, pod.owner.as_ref(), &pod.labels);
        let workload = workload.as_ref().map(|workload| (workload.kind.as_str(), workload.name.as_str()));
        let record = pod.annotations.get(STATUS).map_or("", String::as_str);
        remedy(record, &self.fixes(pod), &pod.meta.key.namespace, workload)
    }

    fn objects_for<'a>(&'a self, pod: &'a Pod) -> Vec<&'a Value> {
        let objects = self.tables.iter().flat_map(|table| in_namespace(table, &pod.meta.key.namespace));
        objects.map(|(_, object)| &**object).filter(|object| selected_by(object, &pod.labels)).collect()
    }
}

/// Returns the bypasses that existed when the pod was created.
fn recorded(record: &str) -> Vec<String> {
    let status: Value = serde_json::from_str(record).unwrap_or_default();
    let ports = status["capture"].as_array().map_or(&[][..], Vec::as_slice);
    let ways = ports.iter().filter_map(|port| port["bypass"].as_array()).flatten();
    ways.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bypasses_are_those_of_current_services_or_else_of_the_record() {
        let capture = json!([{"container": "c", "name": "http", "port": 8080, "mode": "Named", "listen": 15080,
            "bypass": ["hostPort 80 leads directly to the application"]}]);
        let record = json!({"version": "0.1.0", "form": "native", "metrics": 9190, "admin": 9191, "hash": "h", "capture": capture});
        let pod = serde_json::from_value(json!({"metadata": {
            "name": "web-1", "namespace": "ml", "labels": {"app": "web"}, "annotations": {STATUS: record.to_string()},
        }}));
        let (_, pod) = cluster_state::from_pod(&pod.unwrap());
        let service = |port: Value| {
            serde_json::from_value::<DynamicObject>(json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "ml"},
                "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": port}]},
            }))
            .unwrap()
        };
        let found = |service: DynamicObject| BypassObjects::of("v1", "Service", vec![service]).bypasses_of(&pod);
        let numeric = found(service(json!(8080)));
        assert!(numeric.iter().any(|way| way.starts_with("svc/web:80")), "{numeric:?}");
        assert!(!found(service(json!("http"))).iter().any(|way| way.starts_with("svc/web:80")));
        assert_eq!(BypassObjects::default().bypasses_of(&pod), ["hostPort 80 leads directly to the application"]);
    }
}
