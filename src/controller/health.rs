//! The controller's read-only port for probes and scrapes: `/metrics /livez /readyz`.
//!
//! A replica is ready when it can answer admission reviews: every mandatory kind was listed once
//! and a certificate is loaded. Leadership does not matter, nor do optional kinds that the cluster
//! lacks. A replica is alive while the watch of no kind is stuck: without any object or error for
//! ten minutes. An API server that is unreachable or refuses requests causes errors, so it does not
//! fail the liveness probe: a restart would not help.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use strum::VariantArray as _;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::certs::ServingCertificate;
use super::lease::Leadership;
use super::watch::{SharedState, WatchedKind};
use crate::permits::{host, serve_router};
use crate::telemetry::ControllerMetrics;

/// State behind the probes and the metrics.
#[derive(Clone)]
pub struct HealthServer {
    /// The cluster state and the liveness of its watches.
    pub shared: SharedState,
    /// The certificates.
    pub certificate: ServingCertificate,
    /// The leadership state.
    pub leadership: Leadership,
    /// Metrics registry.
    pub metrics: ControllerMetrics,
    /// Set once the process shuts down.
    pub is_draining: Arc<AtomicBool>,
}

// === impl HealthServer ===

impl HealthServer {
    /// Returns the reasons for which the process is not ready; empty if it is ready.
    #[must_use]
    pub fn unready_reasons(&self) -> Vec<String> {
        let mut reasons: Vec<String> =
            self.shared.unlisted_kinds().map(|kind| format!("{} are not listed yet", kind.as_str())).collect();
        if !self.certificate.is_loaded() {
            reasons.push("no certificate is loaded yet".to_owned());
        }
        if self.is_draining.load(Ordering::Relaxed) {
            reasons.push("the process is shutting down".to_owned());
        }
        reasons
    }

    /// Updates the sampled gauges and renders all metrics.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        let cluster = self.shared.cluster();
        for &kind in WatchedKind::VARIANTS {
            self.metrics.set_objects(kind.as_str(), count_objects(&cluster, kind));
            self.metrics.set_watch_silence(kind.as_str(), self.shared.time_since_response(kind));
        }
        self.metrics.set_leader(self.leadership.is_leader());
        let expires = self.certificate.subscribe().borrow().as_ref().map_or(0, |info| info.expires);
        self.metrics.set_cert_expiry(expires);
        self.metrics.render()
    }
}

impl fmt::Debug for HealthServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthServer").field("not_ready", &self.unready_reasons()).finish_non_exhaustive()
    }
}

fn count_objects(cluster: &super::cluster_state::ClusterState, kind: WatchedKind) -> usize {
    match kind {
        WatchedKind::Policies => cluster.policies.len(),
        WatchedKind::Profiles => cluster.profiles.len(),
        WatchedKind::Namespaces => cluster.namespaces.len(),
        WatchedKind::Services => cluster.services.len(),
        WatchedKind::Networks => cluster.network_policies.len(),
        WatchedKind::Pods => cluster.pods.len(),
        WatchedKind::Bare => cluster.uninjected_pods.len(),
        WatchedKind::Deployments => cluster.deployments.len(),
        WatchedKind::StatefulSets => cluster.stateful_sets.len(),
        WatchedKind::DaemonSets => cluster.daemon_sets.len(),
        WatchedKind::ReplicaSets => cluster.replica_sets.len(),
        WatchedKind::Nodes => cluster.nodes.len(),
        WatchedKind::Pools => cluster.pools.as_ref().map_or(0, |pools| pools.len()),
        WatchedKind::InferenceServices => cluster.inference_services.as_ref().map_or(0, |services| services.len()),
    }
}

/// Serves until shutdown is signalled.
pub async fn serve(listener: TcpListener, health: HealthServer, mut stop: watch::Receiver<bool>) {
    let router = Router::new()
        .route("/metrics", get(serve_metrics))
        .route("/livez", get(serve_livez))
        .route("/readyz", get(serve_readyz))
        .with_state(health);
    let stopped = async move { crate::wait_for_shutdown(&mut stop).await };
    serve_router(listener, router, stopped).await;
}

/// Serves the metrics, except to a web page that reads them through a forwarded port, which its
/// `Host` shows. The probes have no such check: they reveal little, and a kubelet may send any
/// `Host`.
async fn serve_metrics(State(health): State<HealthServer>, request: Request) -> Response {
    if !host::is_remote_or_loopback(&request) {
        return (StatusCode::FORBIDDEN, host::REFUSAL).into_response();
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], health.render_metrics()).into_response()
}

async fn serve_livez(State(health): State<HealthServer>) -> Response {
    let stuck: Vec<&str> = health.shared.stuck_kinds().map(WatchedKind::as_str).collect();
    if stuck.is_empty() {
        return "ok\n".into_response();
    }
    let text = format!("no response to the watch of {} for ten minutes\n", stuck.join(", "));
    (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}

async fn serve_readyz(State(health): State<HealthServer>) -> Response {
    let reasons = health.unready_reasons();
    if reasons.is_empty() {
        return "ready\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", reasons.join("; "))).into_response()
}
