//! Classifies uninjected pods that request injection: missed by the webhook, or not injectable.
//!
//! The watched metadata shows only that a pod requests injection. The reason why it has no sidecar
//! needs the whole pod: the leader reads it once and passes it to the decision function of the
//! webhook. This is slow background work that nothing waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::cluster_state::{ClusterState, ObjectKey, Pod};
use super::desired::ReconcileResult;
use super::injection_gap::InjectionGap;
use super::lease::Leadership;
use super::watch::SharedState;
use super::webhook::{AdmissionRequest, ReviewContext, explain_gap};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::injector::InjectionContext;

/// Maximum number of pods read per round; the others wait for the next one.
const READ_MAX: usize = 50;
/// Timeout of one API call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Age at which a result is computed again, since policies and the installation's values change.
const RECHECK_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum number of results kept. Further pods are not recorded.
const RESULTS_MAX: usize = 10_000;

/// Results by UID of the pod. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct InjectionGaps(Arc<Mutex<BTreeMap<String, GapEntry>>>);

#[derive(Debug, Clone)]
struct GapEntry {
    /// The pod as it was when it was classified.
    pod: Arc<Pod>,
    gap: InjectionGap,
    at: Tick,
}

// === impl InjectionGaps ===

impl InjectionGaps {
    /// Returns all results.
    #[must_use]
    pub fn results(&self) -> BTreeMap<String, InjectionGap> {
        self.lock().iter().map(|(uid, entry)| (uid.clone(), entry.gap.clone())).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, GapEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the entries of pods that no longer exist, and returns the pods to classify next.
    fn take_due(&self, round: &ReconcileResult, now: Tick) -> Vec<Arc<Pod>> {
        let mut entries = self.lock();
        let requesting: Vec<&Arc<Pod>> =
            round.attached.uninjected.keys().filter_map(|key| round.cluster.uninjected_pods.get(key)).collect();
        let uids: BTreeSet<&str> = requesting.iter().map(|pod| pod.meta.uid.as_str()).collect();
        entries.retain(|uid, _| uids.contains(uid.as_str()));
        let is_due = |pod: &&&Arc<Pod>| {
            let entry = entries.get(&pod.meta.uid);
            entry.is_none_or(|entry| entry.pod != ***pod || now.since(entry.at) >= RECHECK_INTERVAL)
        };
        requesting.iter().filter(is_due).take(READ_MAX).map(|pod| Arc::clone(pod)).collect()
    }

    /// Stores the result for a pod. Returns `true` if it is new or has changed.
    #[expect(clippy::needless_pass_by_value, reason = "the pod is stored in the entry")]
    fn record(&self, pod: Arc<Pod>, gap: InjectionGap, at: Tick) -> bool {
        let mut entries = self.lock();
        if entries.len() >= RESULTS_MAX && !entries.contains_key(&pod.meta.uid) {
            return false;
        }
        let uid = pod.meta.uid.clone();
        let before = entries.insert(uid, GapEntry { pod, gap: gap.clone(), at });
        before.is_none_or(|before| before.gap != gap)
    }
}

/// The installation's values, as the webhook uses them.
pub struct InstallationValues {
    /// Builds the injection context common to all pods.
    pub build_context: Arc<dyn Fn() -> InjectionContext + Send + Sync>,
    /// The controller's own namespace.
    pub own_namespace: String,
    /// Overrides the sidecar form: `Some` forces the native or the classic form.
    pub native: Option<bool>,
}

/// Classifies uninjected pods while this replica leads, until shutdown is signalled.
pub async fn classify_uninjected(
    (client, shared, leadership): (kube::Client, SharedState, Leadership),
    gaps: InjectionGaps,
    installation: InstallationValues,
    clock: Clock,
    mut rounds: watch::Receiver<Arc<ReconcileResult>>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        tokio::select! {
            changed = rounds.changed() => if changed.is_err() { return },
            () = crate::wait_for_shutdown(&mut stop) => return,
        }
        let round = rounds.borrow_and_update().clone();
        if !leadership.is_leader() {
            continue;
        }
        let mut changed = false;
        for pod in gaps.take_due(&round, clock.now()) {
            if *stop.borrow() || !leadership.is_leader() {
                break;
            }
            match tokio::time::timeout(CALL_TIMEOUT, read(&client, &pod.meta.key)).await {
                Ok(Ok(Some(object))) if object["metadata"]["uid"] == pod.meta.uid.as_str() => {
                    if let Some(gap) = installation.classify(&pod.meta.key, object, &round.cluster) {
                        changed |= gaps.record(pod, gap, clock.now());
                    }
                }
                // The pod was deleted, or another pod has its name now.
                Ok(Ok(_)) => {}
                // The next round follows within seconds.
                Ok(Err(error)) => {
                    tracing::debug!(%error, pod = %pod.meta.key, "cannot read a pod without a sidecar");
                    break;
                }
                Err(_) => break,
            }
        }
        if changed {
            shared.update(|_| true);
        }
    }
}

// === impl InstallationValues ===

impl InstallationValues {
    /// Returns the decision that the webhook would have made about a pod.
    fn classify(&self, key: &ObjectKey, pod: Value, cluster: &ClusterState) -> Option<InjectionGap> {
        let Self { build_context, own_namespace, native } = self;
        let base = build_context();
        classify(key, pod, ReviewContext { cluster, base: &base, own_namespace, token: "", native: *native })
    }
}

impl fmt::Debug for InstallationValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InstallationValues").field("own_namespace", &self.own_namespace).finish_non_exhaustive()
    }
}

/// Reads one whole pod. It uses a list, since the RBAC rules grant no `get` on pods.
async fn read(client: &kube::Client, key: &ObjectKey) -> kube::Result<Option<Value>> {
    let pods: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &key.namespace, &ApiResource::erase::<core::Pod>(&()));
    let list = pods.list(&ListParams::default().fields(&format!("metadata.name={}", key.name)).limit(1)).await?;
    let Some(mut object) = list.items.into_iter().next() else { return Ok(None) };
    object.metadata.managed_fields = None;
    Ok(serde_json::to_value(object).ok())
}

/// Returns the webhook's decision about a pod that already runs. The status is removed, since an
/// admission review does not contain it.
fn classify(key: &ObjectKey, mut pod: Value, context: ReviewContext<'_>) -> Option<InjectionGap> {
    if let Some(fields) = pod.as_object_mut() {
        fields.remove("status");
        fields.insert("apiVersion".to_owned(), json!("v1"));
        fields.insert("kind".to_owned(), json!("Pod"));
    }
    let request =
        AdmissionRequest { uid: String::new(), makes_pod: true, namespace: key.namespace.clone(), pod, dry_run: true };
    explain_gap(&request, context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attachment::attach_all;
    use crate::cluster_state::fixtures::*;

    fn round(cluster: ClusterState) -> ReconcileResult {
        let attached = attach_all(&cluster, true, &BTreeSet::new());
        ReconcileResult { cluster, attached, ..ReconcileResult::default() }
    }

    #[test]
    fn a_pod_is_checked_once_and_again_after_a_change_or_ten_minutes() {
        let mut cluster = ClusterState::default();
        uninjected(&mut cluster, pod("a", "p", &[]));
        let gaps = InjectionGaps::default();
        let at = |seconds: u64| Tick::from_millis(seconds * 1000);
        let first = gaps.take_due(&round(cluster.clone()), at(0));
        assert_eq!(first.len(), 1);
        assert!(gaps.record(first[0].clone(), InjectionGap::WebhookUnavailable, at(0)));
        assert!(gaps.take_due(&round(cluster.clone()), at(599)).is_empty());
        assert_eq!(gaps.take_due(&round(cluster.clone()), at(600)).len(), 1);
        uninjected(&mut cluster, pod("a", "p", &[("other", "label")]));
        assert_eq!(gaps.take_due(&round(cluster.clone()), at(1)).len(), 1);
        assert!(!gaps.record(first[0].clone(), InjectionGap::WebhookUnavailable, at(1)), "no news");
        gaps.take_due(&round(ClusterState::default()), at(2));
        assert!(gaps.results().is_empty(), "it is gone");
    }

    #[test]
    fn an_uninjected_pod_is_classified_by_the_function_of_the_webhook() {
        let cluster = ClusterState { is_synced: true, ..ClusterState::default() };
        let base = InjectionContext { inject_by_default: true, ..InjectionContext::default() };
        let context =
            ReviewContext { cluster: &cluster, base: &base, own_namespace: "", token: "", native: Some(true) };
        let pod = |host: bool| json!({"metadata": {"name": "p"}, "spec": {"hostNetwork": host, "containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}, "status": {"phase": "Running"}});
        assert_eq!(classify(&ObjectKey::new("a", "p"), pod(false), context), Some(InjectionGap::WebhookUnavailable));
        assert!(matches!(
            classify(&ObjectKey::new("a", "p"), pod(true), context),
            Some(InjectionGap::NotInjectable(reason)) if reason.starts_with("HostNetwork")
        ));
        let none = InjectionContext::default();
        let with = |native, own: &str| InstallationValues {
            build_context: Arc::new(|| InjectionContext { inject_by_default: true, ..InjectionContext::default() }),
            own_namespace: own.to_owned(),
            native,
        };
        let native_cluster = ClusterState { server_native: Some(true), ..cluster.clone() };
        let mut job = pod(false);
        job["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]);
        let classify_job = |installation: InstallationValues| {
            installation.classify(&ObjectKey::new("a", "p"), job.clone(), &native_cluster)
        };
        assert_eq!(classify_job(with(None, "g")), Some(InjectionGap::WebhookUnavailable));
        assert!(
            matches!(
                classify_job(with(Some(false), "g")),
                Some(InjectionGap::NotInjectable(reason)) if reason.starts_with("JobNeedsNativeSidecar")
            ),
            "the installation disables the native form"
        );
        assert_eq!(classify_job(with(None, "a")), None, "the controller's own namespace");
        assert_eq!(
            classify(&ObjectKey::new("a", "p"), pod(false), ReviewContext { base: &none, ..context }),
            None,
            "it does not request injection"
        );
    }
}
