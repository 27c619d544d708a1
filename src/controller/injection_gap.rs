//! The reason for which a pod that requests injection has no sidecar.
//!
//! `webhook` determines it, `uninjected` keeps it for each such pod, and `recompute` reports it.

/// Reason for which a pod that requests injection has no sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InjectionGap {
    /// The pod is injectable: the webhook was unavailable at its creation.
    WebhookUnavailable,
    /// The pod is not injectable, for this reason.
    NotInjectable(String),
}
