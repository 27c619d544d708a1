//! What Groupage itself decides against a call, and how it says so.
//!
//! The upstream's own answers are never errors here: they are delivered as they came. A [`Failure`] is one row of the table in the protocol
//! reference (5.11): a stable code, a reason word, a status and a constant message, so nothing of a caller or of the upstream can leak into it.
//! Turning one into bytes is `protocol::dialect`'s work, choosing to do so is `proxy::rescue`'s.

mod explained;

use std::time::Duration;

/// A boxed error, for the edges where nobody acts on the kind.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why Groupage answered a call itself: one row of the table of own errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The queue holds as many items as it may.
    QueueFull,
    /// Request and answer buffers are at their budget.
    BytesFull,
    /// One identity holds its whole share of the queue while others wait.
    TenantShare,
    /// The deadline cannot be met any more.
    LatePredicted,
    /// The client sent its body too slowly.
    SlowBody,
    /// The process is shutting down and does not accept any more.
    Draining,
    /// All upstream connections that a call of its kind may use are in use.
    ConnectionsFull,
    /// The deadline passed: in the queue, or in flight where the caller itself set it.
    Deadline,
    /// The upstream refused the connection or did not answer the connect in time.
    UpstreamRefused,
    /// The upstream connection broke after the call was sent.
    UpstreamBroken,
    /// The upstream stayed silent too long.
    UpstreamTimeout,
    /// The upstream's answer to a batch cannot be split, and nothing may be sent again.
    Mismatch,
    /// The upstream refused a batch, and nothing may be sent again.
    BatchFailed,
    /// The answer to a batch is larger than the cap.
    AnswerTooLarge,
    /// There is no TLS with the upstream: one does not accept the other's certificate, or it speaks none.
    UpstreamTls,
    /// The upstream refused a batch for load, with 429 or 503; the answer has its status.
    UpstreamOverloaded,
    /// A defect of ours.
    Internal,
}

/// Whose doing a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Too much work for the limits set: not an error of anybody.
    Load,
    /// The caller's.
    Client,
    /// The model server's.
    Upstream,
    /// Ours.
    Internal,
}

/// A call that Groupage answers itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", kind.code(), kind.message())]
pub struct Failure {
    /// What happened.
    pub kind: FailureKind,
    /// When trying again may help; sent with 429 and 503 only.
    pub retry_after: Option<Duration>,
}

// === impl FailureKind ===

impl FailureKind {
    /// Every kind, in the order of the table.
    pub const ALL: [Self; 17] = [
        Self::QueueFull,
        Self::BytesFull,
        Self::TenantShare,
        Self::LatePredicted,
        Self::Draining,
        Self::SlowBody,
        Self::ConnectionsFull,
        Self::Deadline,
        Self::UpstreamRefused,
        Self::UpstreamBroken,
        Self::UpstreamTimeout,
        Self::Mismatch,
        Self::BatchFailed,
        Self::AnswerTooLarge,
        Self::UpstreamTls,
        Self::UpstreamOverloaded,
        Self::Internal,
    ];

    /// Code, reason word, status, message: the table itself.
    const fn row(self) -> (&'static str, &'static str, u16, &'static str) {
        match self {
            Self::QueueFull => ("GRP3101", "queue_full", 503, "queue full"),
            Self::BytesFull => ("GRP3102", "bytes_full", 503, "buffers full"),
            Self::TenantShare => ("GRP3103", "tenant_share", 429, "share of the queue used up"),
            Self::LatePredicted => ("GRP3104", "late_predicted", 503, "would be late"),
            Self::Draining => ("GRP3105", "draining", 503, "shutting down; the call may have been executed"),
            Self::SlowBody => ("GRP3106", "slow_body", 408, "request body too slow"),
            Self::ConnectionsFull => ("GRP3107", "connections_full", 503, "all upstream connections in use"),
            Self::Deadline => ("GRP3201", "deadline", 504, "deadline passed"),
            Self::UpstreamRefused => ("GRP3301", "upstream_refused", 503, "upstream not reachable"),
            Self::UpstreamBroken => ("GRP3302", "upstream_broken", 502, "upstream connection broken"),
            Self::UpstreamTimeout => ("GRP3303", "upstream_timeout", 504, "upstream timeout"),
            Self::Mismatch => ("GRP3304", "mismatch", 502, "upstream answer cannot be split"),
            Self::BatchFailed => ("GRP3305", "batch_failed", 502, "batch failed"),
            Self::AnswerTooLarge => ("GRP3306", "answer_too_large", 502, "upstream answer too large"),
            Self::UpstreamTls => ("GRP3307", "upstream_tls", 502, "no TLS with the upstream"),
            Self::UpstreamOverloaded => ("GRP3308", "upstream_overloaded", 503, "upstream overloaded"),
            Self::Internal => ("GRP3401", "internal", 502, "internal error"),
        }
    }

    /// The stable code, as sent in `x-groupage-error`.
    #[must_use]
    pub const fn code(self) -> &'static str {
        self.row().0
    }

    /// The reason word, as sent in `x-groupage-reason`.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        self.row().1
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(self) -> u16 {
        self.row().2
    }

    /// The constant message of the body.
    #[must_use]
    pub const fn message(self) -> &'static str {
        self.row().3
    }

    /// Whose doing it is.
    #[must_use]
    pub const fn fault(self) -> Fault {
        match self {
            Self::QueueFull
            | Self::BytesFull
            | Self::TenantShare
            | Self::LatePredicted
            | Self::Draining
            | Self::ConnectionsFull
            | Self::Deadline => Fault::Load,
            Self::SlowBody => Fault::Client,
            Self::UpstreamRefused
            | Self::UpstreamBroken
            | Self::UpstreamTimeout
            | Self::Mismatch
            | Self::BatchFailed
            | Self::AnswerTooLarge
            | Self::UpstreamTls
            | Self::UpstreamOverloaded => Fault::Upstream,
            Self::Internal => Fault::Internal,
        }
    }
}

// === impl Fault ===

impl Fault {
    /// Whose doing it is, in words.
    #[must_use]
    pub const fn whose(self) -> &'static str {
        match self {
            Self::Load => "nobody's: more work than the limits allow",
            Self::Client => "the caller's",
            Self::Upstream => "the model server's",
            Self::Internal => "ours",
        }
    }
}

// === impl Failure ===

impl Failure {
    /// A failure with a hint when to try again.
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
    fn every_code_and_every_reason_word_stands_once() {
        for (i, a) in FailureKind::ALL.iter().enumerate() {
            for b in FailureKind::ALL.iter().skip(i + 1) {
                assert_ne!(a.code(), b.code());
                assert_ne!(a.reason(), b.reason());
            }
        }
    }

    #[test]
    fn overload_is_nobodys_fault_and_a_mismatch_is_the_upstreams() {
        assert_eq!(FailureKind::QueueFull.fault(), Fault::Load);
        assert_eq!(FailureKind::Mismatch.fault(), Fault::Upstream);
    }
}
