//! Watches the cluster: one reflector per kind, each with its own backoff, into one
//! [`ClusterState`].
//!
//! Kinds share nothing but the cluster state that they write to: a kind that fails, hangs or is
//! forbidden delays no other, which a common backoff would do. Requests and responses are bounded
//! (`client_layer`); an interrupted list starts again. The last state of a kind remains until a
//! complete list replaces it. Optional kinds may appear and disappear and never delay readiness.
//!
//! The reactions to a change are in `recompute`.

mod follow;
mod client_layer;
mod reachability;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1 as core;
use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::core::GroupVersionKind;
use strum::{IntoStaticStr, VariantArray};
use tokio::sync::watch;

use self::follow::{KindWatcher, TableAccess};
pub use self::reachability::ApiReach;
use super::cluster_state::{self, ClusterState};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::telemetry::ControllerMetrics;

/// Time without any response, successful or not, after which a kind counts as stuck and the
/// liveness probe fails.
pub const STUCK: Duration = Duration::from_secs(600);

/// A watched kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum WatchedKind {
    /// `BatchPolicy`.
    #[strum(serialize = "batchpolicies")]
    Policies,
    /// `BatchProfile`.
    #[strum(serialize = "batchprofiles")]
    Profiles,
    /// Namespaces.
    Namespaces,
    /// Services.
    Services,
    /// `NetworkPolicy`.
    #[strum(serialize = "networkpolicies")]
    Networks,
    /// Injected pods.
    Pods,
    /// Pods without a sidecar.
    #[strum(serialize = "pods_without")]
    Bare,
    /// Deployments.
    Deployments,
    /// `StatefulSet`.
    StatefulSets,
    /// `DaemonSet`.
    DaemonSets,
    /// `ReplicaSet`.
    ReplicaSets,
    /// Nodes.
    Nodes,
    /// `InferencePool`; optional.
    #[strum(serialize = "inferencepools")]
    Pools,
    /// `InferenceService`; optional.
    InferenceServices,
}

/// Timeouts and intervals of the watches. Tests use shorter ones than the defaults.
#[derive(Debug, Clone, Copy)]
pub struct WatchTiming {
    /// Requested duration of a watch. It is below the 240 s after which cloud load balancers drop
    /// idle connections.
    pub watch: Duration,
    /// Timeout of a whole list, and of the response head of a watch.
    pub answer: Duration,
    /// Bounds of the exponential backoff after an error, with jitter.
    pub backoff: (Duration, Duration),
    /// Minimum interval between two watches of a kind that end successfully at once, to prevent a
    /// busy loop.
    pub pace: Duration,
    /// Interval between two probes of an unreachable API server, sent by one task.
    pub probe: Duration,
    /// Interval between two attempts to list a kind that is not installed.
    pub absent: Duration,
    /// Upper bound of a `Retry-After` that is honored.
    pub retry_after_max: Duration,
}

/// The cluster state and its change notification, shared by all parts. Cheap to clone.
#[derive(Clone)]
pub struct SharedState {
    cluster: Arc<RwLock<ClusterState>>,
    changed: watch::Sender<u64>,
    beats: Arc<[KindLiveness; WatchedKind::VARIANTS.len()]>,
    reach: ApiReach,
    clock: Clock,
}

/// Liveness of a kind.
#[derive(Debug, Default)]
struct KindLiveness {
    /// Instant of the last response or error.
    responded_at: AtomicU64,
    /// 0 until the kind was listed, then 1.
    listed: AtomicU64,
}

// === impl WatchedKind ===

impl WatchedKind {
    /// Returns the label for metrics and messages: the name of the resource, with a separate one
    /// for pods without a sidecar.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns `true` if a cluster may lack the kind.
    #[must_use]
    pub const fn is_optional(self) -> bool {
        matches!(self, Self::Pools | Self::InferenceServices)
    }
}

impl Default for WatchTiming {
    fn default() -> Self {
        Self {
            watch: Duration::from_secs(200),
            answer: Duration::from_secs(60),
            backoff: (Duration::from_millis(500), Duration::from_secs(30)),
            pace: Duration::from_secs(1),
            probe: Duration::from_secs(1),
            absent: Duration::from_secs(30),
            retry_after_max: Duration::from_secs(300),
        }
    }
}

// === impl SharedState ===

impl SharedState {
    /// Creates an empty state.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let started_at = clock.now().0;
        let beats = std::array::from_fn(|_| KindLiveness {
            responded_at: AtomicU64::new(started_at),
            listed: AtomicU64::new(0),
        });
        Self {
            cluster: Arc::default(),
            changed: watch::channel(0).0,
            beats: Arc::new(beats),
            reach: ApiReach::default(),
            clock,
        }
    }

    /// Returns a snapshot of the cluster. Cloning it copies a few pointers.
    #[must_use]
    pub fn cluster(&self) -> ClusterState {
        self.cluster.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Modifies the cluster state. `change` returns `true` if it changed anything.
    pub fn update(&self, change: impl FnOnce(&mut ClusterState) -> bool) {
        if change(&mut self.cluster.write().unwrap_or_else(PoisonError::into_inner)) {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Returns a counter that is incremented by every change.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Returns the reachability of the API server.
    #[must_use]
    pub const fn reach(&self) -> &ApiReach {
        &self.reach
    }

    /// Records a response or an error of a kind.
    fn on_response(&self, kind: WatchedKind) {
        self.beats[kind as usize].responded_at.store(self.clock.now().0, Ordering::Relaxed);
    }

    /// Records that a kind was listed completely, or is not installed.
    fn on_listed(&self, kind: WatchedKind) {
        self.beats[kind as usize].listed.store(1, Ordering::Relaxed);
        let all = self.unlisted_kinds().next().is_none();
        self.update(|cluster| {
            let changed = cluster.is_synced != all;
            cluster.is_synced = all;
            changed
        });
    }

    /// Returns the mandatory kinds that were never listed.
    pub fn unlisted_kinds(&self) -> impl Iterator<Item = WatchedKind> {
        let listed = |kind: &WatchedKind| self.beats[*kind as usize].listed.load(Ordering::Relaxed) == 1;
        WatchedKind::VARIANTS.iter().copied().filter(move |kind| !kind.is_optional() && !listed(kind))
    }

    /// Returns the time since the last response or error of a kind.
    #[must_use]
    pub fn time_since_response(&self, kind: WatchedKind) -> Duration {
        self.clock.now().since(Tick(self.beats[kind as usize].responded_at.load(Ordering::Relaxed)))
    }

    /// Returns the kinds without any response or error for longer than [`STUCK`].
    pub fn stuck_kinds(&self) -> impl Iterator<Item = WatchedKind> {
        WatchedKind::VARIANTS.iter().copied().filter(|kind| self.time_since_response(*kind) > STUCK)
    }
}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedState")
            .field("missing", &self.unlisted_kinds().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// Watches all kinds until shutdown is signalled.
pub async fn watch_all(
    client: kube::Client,
    shared: SharedState,
    timing: WatchTiming,
    metrics: ControllerMetrics,
    stop: watch::Receiver<bool>,
) {
    let all = KindWatcher { client, shared, timing, metrics, stop };
    tokio::join!(watch_configuration(&all), watch_workloads(&all), all.poll_server_version());
}

/// Returns the API of a kind that has no Rust type.
fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// Watches policies, profiles, and the objects that refer to pods.
async fn watch_configuration(all: &KindWatcher) {
    let ours = |kind, plural| resource(crate::api::GROUP, "v1alpha1", kind, plural);
    let networks = resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies");
    let pools = resource("inference.networking.k8s.io", "v1", "InferencePool", "inferencepools");
    tokio::join!(
        all.watch_dynamic(
            ours("BatchPolicy", "batchpolicies"),
            WatchedKind::Policies,
            TableAccess::new(
                |cluster| &mut cluster.policies,
                |object: DynamicObject| cluster_state::from_policy(&object)
            )
        ),
        all.watch_dynamic(
            ours("BatchProfile", "batchprofiles"),
            WatchedKind::Profiles,
            TableAccess::new(
                |cluster| &mut cluster.profiles,
                |object: DynamicObject| cluster_state::from_profile(&object)
            )
        ),
        all.watch_dynamic(
            resource("", "v1", "Service", "services"),
            WatchedKind::Services,
            TableAccess::new(
                |cluster| &mut cluster.services,
                |object| cluster_state::from_referrer("v1", "Service", object)
            )
        ),
        all.watch_dynamic(
            networks,
            WatchedKind::Networks,
            TableAccess::new(
                |cluster| &mut cluster.network_policies,
                |object| cluster_state::from_referrer("networking.k8s.io/v1", "NetworkPolicy", object)
            )
        ),
        all.watch_dynamic(
            pools,
            WatchedKind::Pools,
            TableAccess::optional(
                |cluster| cluster.pools.get_or_insert_default(),
                |object| cluster_state::from_referrer("inference.networking.k8s.io/v1", "InferencePool", object),
                |cluster| cluster.pools = None
            )
        ),
    );
}

/// Watches pods, their owners, namespaces and nodes.
async fn watch_workloads(all: &KindWatcher) {
    let inference = resource("serving.kserve.io", "v1beta1", "InferenceService", "inferenceservices");
    // Terminated pods are excluded: they neither serve nor lack a sidecar.
    let alive = "status.phase!=Succeeded,status.phase!=Failed";
    tokio::join!(
        all.watch_dynamic_metadata(
            inference,
            WatchedKind::InferenceServices,
            TableAccess::optional(
                |cluster| cluster.inference_services.get_or_insert_default(),
                |object: PartialObjectMeta<DynamicObject>| cluster_state::from_owner(&object.metadata),
                |cluster| cluster.inference_services = None
            )
        ),
        all.watch_typed::<PartialObjectMeta<core::Namespace>, _>(
            WatchedKind::Namespaces,
            "",
            "",
            TableAccess::new(
                |cluster| &mut cluster.namespaces,
                |object| cluster_state::from_namespace(object.metadata)
            )
        ),
        all.watch_typed::<core::Pod, _>(
            WatchedKind::Pods,
            "groupage.dev/injected=true",
            alive,
            TableAccess::new(|cluster| &mut cluster.pods, |object| cluster_state::from_pod(&object))
        ),
        all.watch_typed::<PartialObjectMeta<core::Pod>, _>(
            WatchedKind::Bare,
            "groupage.dev/injected!=true",
            alive,
            TableAccess::new(
                |cluster| &mut cluster.uninjected_pods,
                |object| cluster_state::from_pod_metadata(&object.metadata)
            )
        ),
        all.watch_owners::<Deployment>(WatchedKind::Deployments, |cluster| &mut cluster.deployments),
        all.watch_owners::<StatefulSet>(WatchedKind::StatefulSets, |cluster| &mut cluster.stateful_sets),
        all.watch_owners::<DaemonSet>(WatchedKind::DaemonSets, |cluster| &mut cluster.daemon_sets),
        all.watch_owners::<ReplicaSet>(WatchedKind::ReplicaSets, |cluster| &mut cluster.replica_sets),
        all.watch_typed::<core::Node, _>(
            WatchedKind::Nodes,
            "",
            "",
            TableAccess::new(|cluster| &mut cluster.nodes, |object| cluster_state::from_node(&object))
        ),
    );
}
