//! Failures: errors with which Groupage itself answers a call.
//!
//! Responses of the upstream are never failures: they are delivered unmodified. A [`Failure`] is
//! one row of the table in `docs/errors.md`: a stable code, a reason, a status and a constant
//! message, so it cannot leak data of a caller or of the upstream. It is encoded by
//! `protocol::dialect`, and turned into a response by `proxy::response`.

mod explain;

use std::time::Duration;

use strum::VariantArray;

/// A boxed error, for places where no caller distinguishes kinds of errors.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Reason for which Groupage answers a call itself: one row of the error table. The kinds are
/// in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, VariantArray)]
pub enum FailureKind {
    /// The queue has reached its limit of items.
    QueueFull,
    /// The memory budget for requests and responses is exhausted.
    BytesFull,
    /// One identity occupies its whole share of the queue while others wait.
    TenantShare,
    /// The deadline cannot be met.
    LatePredicted,
    /// The process is shutting down and accepts no more calls.
    Draining,
    /// The client sent its body too slowly.
    SlowBody,
    /// All upstream connections available to this kind of call are in use.
    ConnectionsFull,
    /// The deadline has passed: in the queue, or in flight if the caller itself set it.
    Deadline,
    /// The upstream refused the connection or did not accept it in time.
    UpstreamRefused,
    /// The upstream connection broke after the call was sent.
    UpstreamBroken,
    /// The upstream was silent for too long.
    UpstreamTimeout,
    /// The response to a batch cannot be split, and the calls may not be retried.
    Mismatch,
    /// The upstream rejected a batch, and the calls may not be retried.
    BatchFailed,
    /// The response to a batch exceeds the size limit.
    AnswerTooLarge,
    /// TLS with the upstream failed: one side does not accept the other's certificate, or the
    /// upstream does not support TLS.
    UpstreamTls,
    /// The upstream rejected a batch because of overload, with 429 or 503; the response has its
    /// status.
    UpstreamOverloaded,
    /// A defect of Groupage.
    Internal,
}

/// The party responsible for a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCause {
    /// Load: more work than the configured limits allow, which is an error of no party.
    Load,
    /// The caller.
    Client,
    /// The model server.
    Upstream,
    /// Groupage.
    Internal,
}

/// A failure with which Groupage answers a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", kind.code(), kind.message())]
pub struct Failure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// Time after which a retry may succeed; sent only with 429 and 503.
    pub retry_after: Option<Duration>,
}

// === impl FailureKind ===

impl FailureKind {
    /// Returns the row of the table: code, reason, status and message.
    const fn table_row(self) -> (&'static str, &'static str, u16, &'static str) {
        match self {
            Self::QueueFull => ("GRP3101", "queue_full", 503, "queue full"),
            Self::BytesFull => ("GRP3102", "bytes_full", 503, "buffers full"),
            Self::TenantShare => ("GRP3103", "tenant_share", 429, "tenant's share of the queue is used up"),
            Self::LatePredicted => ("GRP3104", "late_predicted", 503, "would miss its deadline"),
            Self::Draining => ("GRP3105", "draining", 503, "shutting down; the call may have been executed"),
            Self::SlowBody => ("GRP3106", "slow_body", 408, "request body too slow"),
            Self::ConnectionsFull => ("GRP3107", "connections_full", 503, "all upstream connections in use"),
            Self::Deadline => ("GRP3201", "deadline", 504, "deadline passed"),
            Self::UpstreamRefused => ("GRP3301", "upstream_refused", 503, "upstream not reachable"),
            Self::UpstreamBroken => ("GRP3302", "upstream_broken", 502, "upstream connection broken"),
            Self::UpstreamTimeout => ("GRP3303", "upstream_timeout", 504, "upstream timeout"),
            Self::Mismatch => ("GRP3304", "mismatch", 502, "upstream response cannot be split"),
            Self::BatchFailed => ("GRP3305", "batch_failed", 502, "batch failed"),
            Self::AnswerTooLarge => ("GRP3306", "answer_too_large", 502, "upstream response too large"),
            Self::UpstreamTls => ("GRP3307", "upstream_tls", 502, "TLS handshake with the upstream failed"),
            Self::UpstreamOverloaded => ("GRP3308", "upstream_overloaded", 503, "upstream overloaded"),
            Self::Internal => ("GRP3401", "internal", 502, "internal error"),
        }
    }

    /// Returns the stable code, as sent in `x-groupage-error`.
    #[must_use]
    pub const fn code(self) -> &'static str {
        self.table_row().0
    }

    /// Returns the reason, as sent in `x-groupage-reason`.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        self.table_row().1
    }

    /// Returns the HTTP status.
    #[must_use]
    pub const fn status(self) -> u16 {
        self.table_row().2
    }

    /// Returns the constant message of the body.
    #[must_use]
    pub const fn message(self) -> &'static str {
        self.table_row().3
    }

    /// Returns the responsible party.
    #[must_use]
    pub const fn fault(self) -> FailureCause {
        match self {
            Self::QueueFull
            | Self::BytesFull
            | Self::TenantShare
            | Self::LatePredicted
            | Self::Draining
            | Self::ConnectionsFull
            | Self::Deadline => FailureCause::Load,
            Self::SlowBody => FailureCause::Client,
            Self::UpstreamRefused
            | Self::UpstreamBroken
            | Self::UpstreamTimeout
            | Self::Mismatch
            | Self::BatchFailed
            | Self::AnswerTooLarge
            | Self::UpstreamTls
            | Self::UpstreamOverloaded => FailureCause::Upstream,
            Self::Internal => FailureCause::Internal,
        }
    }
}

// === impl FailureCause ===

impl FailureCause {
    /// Returns the responsible party as text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Load => "none: more load than the limits allow",
            Self::Client => "caller",
            Self::Upstream => "model server",
            Self::Internal => "Groupage",
        }
    }
}

// === impl Failure ===

impl Failure {
    /// Creates a failure with a retry hint.
    #[must_use]
    pub const fn retry(kind: FailureKind, after: Duration) -> Self {
        Self { kind, retry_after: Some(after) }
    }
}

impl From<FailureKind> for Failure {
    fn from(kind: FailureKind) -> Self {
        Self { kind, retry_after: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_and_reasons_are_unique() {
        for (i, a) in FailureKind::VARIANTS.iter().enumerate() {
            for b in FailureKind::VARIANTS.iter().skip(i + 1) {
                assert_ne!(a.code(), b.code());
                assert_ne!(a.reason(), b.reason());
            }
        }
    }

    #[test]
    fn overload_is_attributed_to_load_and_a_mismatch_to_the_upstream() {
        assert_eq!(FailureKind::QueueFull.fault(), FailureCause::Load);
        assert_eq!(FailureKind::Mismatch.fault(), FailureCause::Upstream);
    }
}
