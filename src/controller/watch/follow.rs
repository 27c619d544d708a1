//! Watches one kind: applies the events of its reflector to its table.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::Resource;
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::client_layer::{Backoff, wrap_client};
use super::{SharedState, WatchTiming, WatchedKind};
use crate::cluster_state::{self, ClusterState, NATIVE_SIDECAR_MINOR_MIN, ObjectKey, ObjectTable, OwnerObject};
use crate::telemetry::ControllerMetrics;

/// Interval between two checks of the API server's version.
const VERSION_INTERVAL: Duration = Duration::from_secs(600);
/// Number of objects per page of a list.
const PAGE_OBJECTS: u32 = 500;

/// Parameters common to all kinds.
#[derive(Clone)]
pub(super) struct KindWatcher {
    pub(super) client: kube::Client,
    pub(super) shared: SharedState,
    pub(super) timing: WatchTiming,
    pub(super) metrics: ControllerMetrics,
    pub(super) stop: watch::Receiver<bool>,
}

/// Mapping of a kind to the cluster state.
pub(super) struct TableAccess<K, T> {
    /// Returns its table, and creates the table of an optional kind.
    table: fn(&mut ClusterState) -> &mut ObjectTable<T>,
    /// Extracts the stored value of an object.
    read: fn(K) -> (ObjectKey, T),
    /// Removes the table of a kind that is not installed.
    absent: Option<fn(&mut ClusterState)>,
}

type PartialList<T> = BTreeMap<ObjectKey, Arc<T>>;

// === impl TableAccess ===

impl<K, T> TableAccess<K, T> {
    /// Creates the mapping of a kind that is always installed.
    pub(super) fn new(table: fn(&mut ClusterState) -> &mut ObjectTable<T>, read: fn(K) -> (ObjectKey, T)) -> Self {
        Self { table, read, absent: None }
    }

    /// Creates the mapping of a kind that may not be installed.
    pub(super) fn optional(
        table: fn(&mut ClusterState) -> &mut ObjectTable<T>,
        read: fn(K) -> (ObjectKey, T),
        absent: fn(&mut ClusterState),
    ) -> Self {
        Self { table, read, absent: Some(absent) }
    }
}

// === impl KindWatcher ===

impl KindWatcher {
    /// Watches a typed kind in all namespaces.
    pub(super) async fn watch_typed<K, T>(
        &self,
        kind: WatchedKind,
        labels: &str,
        fields: &str,
        access: TableAccess<K, T>,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
        T: PartialEq + Clone,
    {
        self.follow(kind, (labels, fields), access, Api::<K>::all).await;
    }

    /// Watches an untyped kind in all namespaces.
    pub(super) async fn watch_dynamic<T>(
        &self,
        resource: ApiResource,
        kind: WatchedKind,
        access: TableAccess<DynamicObject, T>,
    ) where
        T: PartialEq + Clone,
    {
        self.follow(kind, ("", ""), access, |client| Api::all_with(client, &resource)).await;
    }

    /// Watches the metadata of an untyped kind.
    pub(super) async fn watch_dynamic_metadata<T>(
        &self,
        resource: ApiResource,
        kind: WatchedKind,
        access: TableAccess<PartialObjectMeta<DynamicObject>, T>,
    ) where
        T: PartialEq + Clone,
    {
        self.follow(kind, ("", ""), access, |client| Api::all_with(client, &resource)).await;
    }

    /// Watches the metadata of a kind of workload.
    pub(super) async fn watch_owners<K>(
        &self,
        kind: WatchedKind,
        table: fn(&mut ClusterState) -> &mut ObjectTable<OwnerObject>,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let read = |object: PartialObjectMeta<K>| cluster_state::from_owner(&object.metadata);
        self.watch_typed(kind, "", "", TableAccess::new(table, read)).await;
    }

    /// Determines the API server's support for native sidecars. It is checked periodically, since
    /// clusters are upgraded. While the API server is unreachable, these requests detect its
    /// return.
    pub(super) async fn poll_server_version(&self) {
        let mut backoff = Backoff::new(self.timing.backoff);
        let work = async {
            loop {
                let result = tokio::time::timeout(self.timing.answer, self.client.apiserver_version()).await;
                let reach = self.shared.reach();
                let wait = match result {
                    Ok(Ok(version)) => {
                        reach.on_answer();
                        let native = cluster_state::parse_minor_version(&version.git_version)
                            .is_some_and(|minor| minor >= NATIVE_SIDECAR_MINOR_MIN);
                        self.shared.update(|cluster| cluster.server_native.replace(native) != Some(native));
                        VERSION_INTERVAL
                    }
                    Ok(Err(error @ (kube::Error::HyperError(_) | kube::Error::Service(_)))) => {
                        reach.on_failure(&error);
                        self.timing.probe
                    }
                    Ok(Err(_)) => {
                        reach.on_answer();
                        backoff.after_error(self.shared.clock.now(), rand::random())
                    }
                    Err(_) => {
                        reach.on_failure(&format_args!("no answer within {:?}", self.timing.answer));
                        self.timing.probe
                    }
                };
                // An unanswered request of any kind triggers a check, at most one per `probe`.
                tokio::time::sleep(wait.min(self.timing.probe)).await;
                tokio::select! {
                    () = tokio::time::sleep(wait.saturating_sub(self.timing.probe)) => {}
                    () = reach.wait_for_check_request() => {}
                }
            }
        };
        self.until_stopped(work).await;
    }

    /// Watches a kind until shutdown, and restarts the watch after errors.
    async fn follow<K, T>(
        &self,
        kind: WatchedKind,
        (labels, fields): (&str, &str),
        access: TableAccess<K, T>,
        api: impl Fn(kube::Client) -> Api<K>,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        T: PartialEq + Clone,
    {
        let api = api(wrap_client(&self.client, kind, &self.shared, self.timing));
        let seconds = u32::try_from(self.timing.watch.as_secs()).unwrap_or(200);
        let mut config = watcher::Config::default().timeout(seconds).page_size(PAGE_OBJECTS);
        config.label_selector = (!labels.is_empty()).then(|| labels.to_owned());
        config.field_selector = (!fields.is_empty()).then(|| fields.to_owned());
        let mut backoff = Backoff::new(self.timing.backoff);
        let mut last_error = String::new();
        let work = async {
            let mut events = pin!(watcher(api.clone(), config.clone()));
            let mut partial = PartialList::new();
            while let Some(event) = events.next().await {
                self.shared.on_response(kind);
                let error = match event {
                    Ok(event) => {
                        self.apply_event(kind, event, &mut partial, &access);
                        continue;
                    }
                    Err(error) => error,
                };
                let wait = self.on_error((kind, access.absent), &error, &mut backoff, &mut last_error);
                // Restart the watcher. After 410 it would continue to request the expired resource
                // version, and if the kind was uninstalled, its listed objects are obsolete.
                if is_gone(&error) || is_absent(&error) {
                    events.set(watcher(api.clone(), config.clone()));
                }
                if self.pause(wait).await && is_unanswered(&error) {
                    backoff.reset();
                }
            }
        };
        self.until_stopped(work).await;
    }

    /// Handles an error, and returns the time until the next attempt.
    fn on_error(
        &self,
        (kind, absent): (WatchedKind, Option<fn(&mut ClusterState)>),
        error: &watcher::Error,
        backoff: &mut Backoff,
        last_error: &mut String,
    ) -> Duration {
        // An optional kind that is not installed counts as listed, and is tried again slowly, with
        // jitter.
        if let Some(absent) = absent.filter(|_| is_absent(error)) {
            self.on_absent(kind, absent);
            return self.timing.absent.mul_f64(1.0 + rand::random::<f64>());
        }
        self.metrics.record_watch_error(kind.as_str());
        if !is_unanswered(error) {
            log_once(last_error, kind, error);
        }
        backoff.after_error(self.shared.clock.now(), rand::random())
    }

    /// Waits between attempts, at most until the API server is reachable again. Returns `true` if
    /// its return ended the wait; jitter then keeps the kinds from sending their requests
    /// simultaneously.
    async fn pause(&self, wait: Duration) -> bool {
        let returned = tokio::select! {
            () = tokio::time::sleep(wait) => false,
            () = self.shared.reach().wait_for_return() => true,
        };
        if returned {
            tokio::time::sleep(self.timing.probe.mul_f64(rand::random())).await;
        }
        returned
    }

    /// Runs a future until shutdown is signalled.
    async fn until_stopped(&self, work: impl Future<Output = ()>) {
        let mut stop = self.stop.clone();
        tokio::select! {
            () = work => {}
            () = crate::wait_for_shutdown(&mut stop) => {}
        }
    }

    /// Applies an event to the table of the kind. The objects of a list are collected in `partial`
    /// and replace the table when the list is complete, so that no round reads a part of it.
    fn apply_event<K, T: PartialEq + Clone>(
        &self,
        kind: WatchedKind,
        event: Event<K>,
        partial: &mut PartialList<T>,
        access: &TableAccess<K, T>,
    ) {
        match event {
            Event::Init => partial.clear(),
            Event::InitApply(object) => {
                let (key, value) = (access.read)(object);
                partial.insert(key, Arc::new(value));
            }
            Event::InitDone => {
                let whole = std::mem::take(partial);
                self.shared.update(|cluster| {
                    let table = (access.table)(cluster);
                    // An unchanged table stays the same allocation, also for snapshots that
                    // reference it.
                    let changed = **table != whole;
                    if changed {
                        *table = Arc::new(whole);
                    }
                    changed
                });
                self.shared.on_listed(kind);
            }
            Event::Apply(object) => {
                let (key, value) = (access.read)(object);
                self.shared.update(|cluster| {
                    let table = (access.table)(cluster);
                    let changed = table.get(&key).is_none_or(|before| **before != value);
                    if changed {
                        Arc::make_mut(table).insert(key, Arc::new(value));
                    }
                    changed
                });
            }
            Event::Delete(object) => {
                let (key, _) = (access.read)(object);
                self.shared.update(|cluster| {
                    let table = (access.table)(cluster);
                    table.contains_key(&key) && Arc::make_mut(table).remove(&key).is_some()
                });
            }
        }
    }

    /// Removes the table of a kind that is not installed, which counts as listed.
    fn on_absent(&self, kind: WatchedKind, absent: fn(&mut ClusterState)) {
        self.shared.update(|cluster| {
            absent(cluster);
            true
        });
        self.shared.on_listed(kind);
    }
}

/// Returns `true` if the API server does not know the kind.
fn is_absent(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) = error else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Returns `true` if a watch cannot resume from the last resource version: the response status is
/// 410. A 410 in the first event of a watch is handled by the watcher itself.
fn is_gone(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

/// Returns `true` if there was no response. An unreachable API server is logged once for all kinds.
fn is_unanswered(error: &watcher::Error) -> bool {
    use kube::Error::{HyperError, ReadEvents, Service};
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    let (InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error)) = error else { return false };
    matches!(error, HyperError(_) | ReadEvents(_) | Service(_))
}

/// Logs an error unless it repeats the last one.
fn log_once(last_error: &mut String, kind: WatchedKind, error: &watcher::Error) {
    let text = error.to_string();
    if *last_error == text {
        return;
    }
    let hint = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404 => {
            "install the CRDs: groupage crds prints them"
        }
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 403 => {
            "the RBAC roles of the controller do not grant this permission"
        }
        _ => "retrying",
    };
    tracing::warn!(kind = kind.as_str(), error = text, hint, "the watch failed");
    *last_error = text;
}
