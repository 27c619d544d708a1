//! The controller: what runs once in a cluster, beside the data path and never in its way.
//!
//! ```text
//! API server ─▶ watch: one reflector a kind ─▶ world::World ─▶ reconcile: a second after a change, and every five
//!                                                 │               ├─ attachment::attached   who follows which policy       (pure)
//!                                                 │               ├─ Source::look           what sidecars say, rollout, tuner
//!                                                 │               └─ recompute::recompute   statuses, profiles, notices    (pure)
//!                                                 │                     └─▶ apply (leader): server-side apply, only differences   events: notices
//!                                                 └─▶ webhook::answer: a pod that is made gets its sidecar                  (pure)
//! ```
//! Several replicas serve; one of them, chosen by `lease`, writes and tells sidecars what to do (`sidecars`). `certs` holds what both TLS ports show. Serving
//! calls never depends on any of it.
//!
//! It leaves out how a stream works (`control`), and what is right to tune or try (`tuner`, `rollout`).

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

pub use self::reconcile::{NoStreams, Round, Source};
pub use self::run::{Certificate, Config, Parts, Running, prepared, start};

/// The name under which fields are owned: one and the same for ever, or what an older version applied could not be taken back.
pub const MANAGER: &str = "groupage-controller";
/// The Lease, the Secret and the webhook's configuration, as the roles name them.
pub const LEASE: &str = "groupage-controller";
/// See [`LEASE`].
pub const SECRET: &str = "groupage-tls";
/// See [`LEASE`].
pub const WEBHOOKS: &str = "groupage-injector";
