//! Configuration of `groupage controller`, the handles that its parts share, and its shutdown.

mod start;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use self::start::start;
use super::certs::ServingCertificate;
use super::desired::ReconcileResult;
use super::events::EventNotice;
use super::lease::Leadership;
use super::watch::{SharedState, WatchTiming};
use super::webhook;
use crate::clock::Clock;
use crate::injector::{RedirectUse, SidecarDefaults};
use crate::telemetry::ControllerMetrics;

/// Divisor of the drain time. One such part passes between losing readiness and closing the
/// webhook: until the endpoint is removed, the API server still sends reviews, which are answered.
const LINGER_DIVISOR: u32 = 3;

/// Configuration of a controller.
#[derive(Debug, Clone)]
pub struct ControllerConfig {
    /// Namespace of the controller.
    pub namespace: String,
    /// Unique name of this replica: the name of its pod.
    pub name: String,
    /// Address at which this replica serves streams, for sidecars that are redirected to the
    /// leader.
    pub replica_stream_address: Option<String>,
    /// Address of the controller for sidecars: `https://HOST:PORT`; empty if there is none.
    pub stream_address: String,
    /// Name of the Lease; `None` if there is a single replica, which always leads.
    pub lease: Option<String>,
    /// Listen address of the webhook.
    pub webhook: SocketAddr,
    /// Listen address of probes and scrapes.
    pub health: SocketAddr,
    /// Source of the certificates.
    pub certificate: ServerCertificate,
    /// DNS names of the certificate: those of the webhook's Service and of the stream's.
    pub names: Vec<String>,
    /// CA certificates in PEM that clients of the webhook are verified with; `None` disables client
    /// authentication.
    pub client_ca: Option<Vec<u8>>,
    /// Enables injection for pods that neither request nor reject it, in namespaces that do
    /// neither.
    pub inject_by_default: bool,
    /// Namespaces excluded from injection, besides `kube-system` and the controller's own.
    pub excluded: BTreeSet<String>,
    /// Permission of capture by `Redirect`.
    pub redirect: RedirectUse,
    /// Overrides the sidecar form; `None` selects the native form where the cluster supports it.
    pub native: Option<bool>,
    /// Defaults of every sidecar.
    pub sidecar: SidecarDefaults,
    /// Timeouts and intervals of the watches.
    pub timing: WatchTiming,
    /// Listen address of the control streams; `None` disables pushing and tuning.
    pub streams: Option<SocketAddr>,
    /// Interval of the slow loop; `None` disables tuning.
    pub tuner: Option<Duration>,
    /// Time allowed for shutdown.
    pub drain: Duration,
}

/// Source of the certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerCertificate {
    /// Issued by the controller, stored in this Secret, and published as CA bundle in this
    /// `MutatingWebhookConfiguration`.
    Own {
        /// Name of the Secret.
        secret: String,
        /// Name of the webhook configuration.
        webhooks: Option<String>,
    },
    /// Files issued elsewhere: `tls.crt`, `tls.key` and `ca.crt` in this directory.
    Files(PathBuf),
}

/// Handles shared by the parts.
#[derive(Clone)]
pub struct ControllerHandles {
    /// Client of the API server.
    pub client: kube::Client,
    /// The cluster state.
    pub shared: SharedState,
    /// The leadership state.
    pub leadership: Leadership,
    /// The certificates in use and the CA bundle.
    pub certificate: ServingCertificate,
    /// Result of every round: the policy of every pod, and the desired state.
    pub rounds: watch::Receiver<Arc<ReconcileResult>>,
    /// Queue of Events to publish.
    pub notices: mpsc::Sender<EventNotice>,
    /// Metrics registry.
    pub metrics: ControllerMetrics,
    /// The clock of the process.
    pub clock: Clock,
    /// Becomes `true` at shutdown.
    pub stop: watch::Receiver<bool>,
}

/// A running controller.
pub struct RunningController {
    /// Bound address of the webhook.
    pub webhook: SocketAddr,
    /// Bound address of the probes.
    pub health: SocketAddr,
    /// Bound address of the control streams.
    pub streams: Option<SocketAddr>,
    /// Handles shared by the parts.
    pub handles: ControllerHandles,
    webhook_handle: webhook::WebhookHandle,
    is_draining: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
    /// Closes the health port, after the webhook has been drained.
    close_health: watch::Sender<bool>,
    elector: Option<tokio::task::JoinHandle<()>>,
    tasks: JoinSet<()>,
    drain: Duration,
}

/// Prepares a client configuration for the controller: no built-in retries, since every part has
/// its own backoff, and timeouts for silent connections.
#[must_use]
pub fn prepare_client_config(mut config: kube::Config) -> kube::Config {
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(10));
    // Longer than the longest watch, which it would interrupt otherwise.
    config.read_timeout = Some(WatchTiming::default().watch + Duration::from_secs(30));
    config.reset_reader_on_write = true;
    config
}

// === impl ControllerHandles ===

impl fmt::Debug for ControllerHandles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerHandles")
            .field("shared", &self.shared)
            .field("leadership", &self.leadership)
            .finish_non_exhaustive()
    }
}

// === impl RunningController ===

impl RunningController {
    /// Resolves if a part ends by itself, which is a defect: the process cannot work without it.
    pub async fn wait_for_failure(&mut self) -> String {
        let Self { elector, tasks, .. } = self;
        let elector_end = async {
            match elector {
                Some(elector) => elector.await,
                None => std::future::pending().await,
            }
        };
        let result = tokio::select! {
            result = tasks.join_next() => result.unwrap_or(Ok(())),
            result = elector_end => result,
        };
        match result {
            Err(error) if error.is_panic() => format!("a task of the controller panicked: {error}"),
            _ => "a task of the controller ended unexpectedly".to_owned(),
        }
    }

    /// Shuts down in order: fails readiness and gives up leadership, answers reviews for a while
    /// longer, drains the webhook, and stops the remaining parts.
    pub async fn shut_down(self) {
        let Self { webhook_handle, is_draining, stop, close_health, elector, mut tasks, drain, .. } = self;
        is_draining.store(true, Ordering::Relaxed);
        // An error means that all receivers are dropped, which is ignored.
        stop.send(true).ok();
        let linger = drain / LINGER_DIVISOR;
        if let Some(elector) = elector {
            // The elector releases the lease, so another replica can lead at once. A panic was
            // reported by `wait_for_failure` already.
            tokio::time::timeout(linger, elector).await.ok();
        }
        // The API server may not have observed yet that this replica is no endpoint any more.
        tokio::time::sleep(linger).await;
        webhook_handle.drain(linger).await;
        close_health.send(true).ok();
        let remaining = async { while tasks.join_next().await.is_some() {} };
        // The remaining tasks are aborted when the set is dropped.
        tokio::time::timeout(linger / LINGER_DIVISOR, remaining).await.ok();
    }
}

impl fmt::Debug for RunningController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningController")
            .field("webhook", &self.webhook)
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}
