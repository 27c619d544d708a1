//! The admission webhook: adds the sidecar as a patch to a pod that is being created.
//!
//! It never blocks a pod: a review that it does not understand, or cannot decide yet, is allowed
//! unchanged, with a warning at most. The decision in `decide` is a pure function of the review and
//! the cluster state; [`serve`] does the I/O with bounds on bytes, time and connections. No
//! template or program runs and no other service is called: the response depends only on the state
//! of the reflectors.
//!
//! The changes of the pod are made in `injector`. The registration with the API server is part of
//! the installation's manifests, and its CA bundle is maintained by `certs`.

mod decide;
mod bodies;
mod review;
mod server;

pub use self::decide::{ReviewContext, ReviewResponse, answer, explain_gap};
pub use self::review::{AdmissionRequest, ReviewError, decode, to_warnings};
pub use self::server::{WebhookConfig, WebhookHandle, serve};

/// The path of the webhook.
pub const PATH: &str = "/inject";
/// Maximum size of a review in bytes: etcd accepts objects of 1.5 MiB, and an update contains two.
pub const REVIEW_BYTES_MAX: usize = 3 << 20;
