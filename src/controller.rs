//! The controller: runs once in a cluster, beside the data path.
//!
//! ```text
//! API server ─▶ watch: one reflector per kind ─▶ world::ClusterState
//!   state ─┬─▶ reconcile: one second after a change, and every five seconds
//!          │     ├─ attachment::attached   policy of every pod                      (pure)
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

pub mod apply;
pub mod attach;
pub mod attachment;
pub mod certs;
pub mod events;
pub mod health;
pub mod lease;
pub mod missed;
pub mod reconcile;
pub mod recompute;
mod run;
pub mod sidecars;
pub mod status;
pub mod watch;
pub mod webhook;
pub mod world;

pub use self::reconcile::{EmptySource, ObservationSource, ReconcileResult};
pub use self::run::{ControllerConfig, ControllerHandles, RunningController, ServerCertificate, prepared, start};

/// Field manager of server-side apply. It must never change: fields applied by an older version
/// under another name could not be removed.
pub const MANAGER: &str = "groupage-controller";
/// Name of the Lease. The RBAC roles name the Lease, the Secret and the webhook configuration
/// explicitly.
pub const LEASE: &str = "groupage-controller";
/// Name of the certificates' Secret. See [`LEASE`].
pub const SECRET: &str = "groupage-tls";
/// Name of the `MutatingWebhookConfiguration`. See [`LEASE`].
pub const WEBHOOKS: &str = "groupage-injector";
