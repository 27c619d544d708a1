//! Label values. They are enums, so that a label never contains a path, an id or a tenant.

use strum::{IntoStaticStr, VariantArray};

use crate::error::FailureKind;

/// Outcome of a call or an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    /// Answered by the upstream, unbatched or in a batch.
    Served,
    /// Rejected at admission, for lack of room.
    Rejected,
    /// Expired: the deadline passed in the queue.
    Expired,
    /// Cancelled by the client.
    Cancelled,
    /// Answered by the proxy with an error.
    Failed,
    /// Not mergeable: forwarded unmodified.
    Passed,
}

/// Value of the label `route` for routes beyond the maximum number of values.
pub const OTHER_ROUTE: &str = "other";

/// Reason why a call waited before it was dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum WaitReason {
    /// The limit on concurrent requests, of the server or of the policy, was reached.
    Limit,
    /// The call waited for other calls to form a batch with.
    #[strum(serialize = "batch")]
    Batching,
    /// The server had requested a pause with `Retry-After`.
    Pause,
}

/// Result of a reload of configuration or certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ReloadResult {
    /// The new version is in force.
    Applied,
    /// The new version is invalid; the previous one stays in force.
    Refused,
}

/// Result of a verification: a member of a batch was also sent unbatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum VerifyResult {
    /// The responses are equal.
    Equal,
    /// Numbers differ by as much as rounding explains.
    Rounded,
    /// The responses differ by more than that.
    Different,
    /// The unbatched call had no successful response.
    Unanswered,
    /// The call was not sent: too many others were verified, or the replay budget or the memory was
    /// exhausted.
    Skipped,
}

/// Reason why a connection of a captured port is relayed as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum RelayReason {
    /// No route applies to the port.
    NoRoute,
    /// The client does not use HTTP.
    NotHttp,
    /// The server sent data first.
    ServerFirst,
}

/// Limit that the client of an HTTP/2 connection exceeded, for which the connection was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum FloodReason {
    /// The rate of frames that belong to no call.
    ControlFrames,
    /// The number of header lines of a call, by far.
    HeaderLines,
}

/// Reason why a TLS handshake with a client failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum HandshakeResult {
    /// The client sent nothing.
    Silent,
    /// Too many other handshakes were in progress.
    Busy,
    /// The client did not complete the handshake in time.
    Slow,
    /// The client does not use TLS.
    NotTls,
    /// The client certificate is missing or not accepted.
    ClientCertificate,
    /// The client rejected the handshake with an alert, often because it does not trust the server
    /// certificate.
    Refused,
    /// Client and server have no common protocol version or parameters.
    Protocol,
    /// The client disconnected, or the listener was draining.
    Left,
}

/// Stage of the proxy's own processing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum OverheadStage {
    /// Parsing a call and computing its merge key.
    Read,
    /// Encoding a batch.
    Merge,
    /// Validating and splitting a batch response.
    Split,
    /// Encoding the response of one call.
    Write,
}

/// Reason why a call in mode `Observe` has no prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum UnpredictedReason {
    /// Too few calls were observed to predict execution times.
    Unlearned,
    /// The call exceeds the maximum size of a merged call.
    TooLarge,
    /// The process has reached its limit on buffered bytes.
    BuffersFull,
    /// Calls arrive faster than they are evaluated.
    Behind,
}

/// Reasons for rejecting items, in the order of `docs/metrics.md`.
pub const REJECT_REASONS: [FailureKind; 5] = [
    FailureKind::QueueFull,
    FailureKind::BytesFull,
    FailureKind::TenantShare,
    FailureKind::LatePredicted,
    FailureKind::Draining,
];

/// Reasons for expiring items, in the order of `docs/metrics.md`.
pub const EXPIRE_REASONS: [FailureKind; 2] = [FailureKind::Deadline, FailureKind::LatePredicted];

/// Results of calls with an SLO.
pub const SLO_RESULTS: [&str; 2] = ["met", "missed"];

label_values!(
    Outcome,
    WaitReason,
    ReloadResult,
    RelayReason,
    FloodReason,
    HandshakeResult,
    UnpredictedReason,
    OverheadStage
);
