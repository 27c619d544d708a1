//! The controller: runs once in a cluster, beside the data path.
//!
//! ```text
//! API server ─▶ watch: one reflector per kind ─▶ cluster_state::ClusterState
//!   state ─┬─▶ reconcile: one second after a change, and every five seconds
//!          │     ├─ attachment   policy of every pod                      (pure)
//!          │     ├─ ObservationSource      sidecar reports, rollout, tuner
//!          │     └─ recompute::recompute   statuses, profiles, notices              (pure)
//!          │           ├─▶ apply (leader): server-side apply of the differences
//!          │           └─▶ events: notices
//!          └─▶ webhook::answer: adds the sidecar to a pod at its creation           (pure)
//! ```
//! Several replicas serve. One of them, elected by `lease`, writes to the API server and configures
//! the sidecars (`sidecars`). `certs` holds the certificates of both TLS ports. Serving calls never
//! depends on the controller.
//!
//! The mechanics of a control stream are in `control`; the decisions about tuning and rollouts are
//! in `tuner` and `rollout`.

pub mod tuner;
pub mod rollout;

use groupage_batching as batching;
use groupage_control as control;
use groupage_injector as injector;
use groupage_policy::api;
use groupage_policy::config;
use groupage_protocol::error;
use groupage_runtime::clock;
use groupage_runtime::permits;
use groupage_runtime::socket;
use groupage_runtime::telemetry;
use groupage_runtime::tls;

pub mod apply;
pub mod matching;
pub mod attachment;
pub mod certs;
pub mod desired;
pub mod events;
pub mod injection_gap;
pub mod health;
pub mod lease;
pub mod uninjected;
pub mod observed_state;
pub mod reconcile;
pub mod recompute;
mod run;
pub mod sidecars;
pub mod status;
pub mod watch;
pub mod webhook;
pub mod cluster_state;

pub use self::desired::ReconcileResult;
pub use self::observed_state::{EmptySource, ObservationSource};
pub use self::run::{
    ControllerConfig, ControllerHandles, RunningController, ServerCertificate, prepare_client_config, start,
};

/// Field manager of server-side apply. It must never change: fields applied by an older version
/// under another name could not be removed.
pub const FIELD_MANAGER: &str = "groupage-controller";
/// Name of the Lease. The RBAC roles name the Lease, the Secret and the webhook configuration
/// explicitly.
pub const LEASE: &str = "groupage-controller";
/// Name of the certificates' Secret. See [`LEASE`].
pub const SECRET: &str = "groupage-tls";
/// Name of the `MutatingWebhookConfiguration`. See [`LEASE`].
pub const WEBHOOKS: &str = "groupage-injector";

/// Resolves at shutdown, also if the sender is dropped.
async fn wait_for_shutdown(stop: &mut tokio::sync::watch::Receiver<bool>) {
    // The guard that `wait_for` returns must not be held.
    drop(stop.wait_for(|stop| *stop).await);
}
