//! Decisions of the core, and the observations reported back to it.

use std::ops::Range;
use std::time::Duration;

use super::call::{CallId, CostClassId, KeyId};

/// Identifier of an execution. Ids are assigned in dispatch order and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// The event that triggered the dispatch of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DispatchCause {
    /// The batch reached its maximum number of items.
    Full,
    /// One more call would exceed the weight limit.
    Weight,
    /// One more call would exceed the byte limit.
    Bytes,
    /// A member's deadline did not allow a longer wait, or a larger batch.
    Deadline,
    /// The batch was held for more calls and the hold ended.
    Delay,
    /// A slot was idle.
    Idle,
    /// Dispatched shortly before a slot frees.
    Lead,
    /// Dispatched to measure something.
    Probe,
    /// The process is draining: nothing is held.
    Drain,
}

/// The reason for dispatching a mergeable call unbatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnbatchedReason {
    /// The call holds more items than a batch may.
    ClientBatchFull,
    /// Its merge key is in quarantine after a mismatch or a refused batch.
    Quarantined,
    /// Its merge key is in quarantine after a response that differed from the response to the same
    /// call alone.
    Different,
    /// Merging was measured not to pay, or the server batches by itself.
    NoGain,
    /// The server refused batches of its cost class and answered their members when sent alone, or
    /// it accepts one item per call.
    Refused,
    /// Failed batches have used up the replay budget.
    BudgetEmpty,
}

/// The response of a server to a batch that it refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BatchRefusal {
    /// An error with this status.
    Status(u16),
    /// An error with a status or text that indicates a too large batch.
    TooLarge(u16),
    /// A successful response with a body that cannot be split.
    Mismatch,
    /// A successful response whose counters cover the first item only, so that they cannot be
    /// divided.
    Usage,
    /// The connection was closed.
    Reset,
    /// An error that indicates that the server ran out of memory.
    OutOfMemory,
    /// No response within the route's timeout.
    Timeout,
    /// 429 or 503, while unbatched calls are answered.
    Overload,
    /// A response that differs from the response to the same call alone.
    Different,
}

/// A member of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Id of the call.
    pub id: CallId,
    /// Range of the batch's items that belong to this call.
    pub items: Range<u32>,
}

/// Calls that are dispatched together in one execution and occupy one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Id of the execution.
    pub id: BatchId,
    /// Merge key that all members share.
    pub key: KeyId,
    /// Cost class that all members share.
    pub cost_class: CostClassId,
    /// Members in the order in which they were taken from the queue; never empty.
    pub members: Vec<Member>,
    /// Total number of items.
    pub items: u32,
    /// Total weight.
    pub weight: u64,
    /// Total size in bytes.
    pub bytes: u64,
    /// The event that triggered the dispatch.
    pub cause: DispatchCause,
    /// Set if the batch is a single mergeable call that is dispatched alone by a decision of the
    /// proxy.
    pub unbatched_reason: Option<UnbatchedReason>,
    /// Set if the batch is a single call, to compare batches with. It has to be sent as a batch is,
    /// over a connection of its own if batches have one.
    pub own_connection: bool,
    /// Expected time from now to the response; `None` while the cost is unknown.
    pub predicted: Option<Duration>,
}

/// The reason for expiring a queued call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryReason {
    /// Its deadline passed.
    Deadline,
    /// Its response would be late, or serving it would make more other calls late.
    LatePredicted,
    /// It was late already, and its place in the queue was needed for a call that can be in time.
    QueueFull,
}

/// The next action for the caller of [`Batcher::poll`](super::Batcher::poll).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Send these calls together.
    Dispatch(Batch),
    /// Answer this queued call with an error: it is too late.
    Expire {
        /// Id of the call.
        id: CallId,
        /// Reason for the expiry.
        reason: ExpiryReason,
    },
    /// Every member was cancelled: abort the execution, then `complete` it as cancelled.
    Abort(BatchId),
}

/// The outcome of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchOutcome {
    /// The response was complete and was split.
    Ok,
    /// The upstream does not accept a batch of this size.
    TooLarge {
        /// Maximum number of items, if the response names it.
        limit: Option<u32>,
    },
    /// The upstream ran out of memory.
    OutOfMemory,
    /// The upstream answered 429 or 503.
    Overloaded {
        /// Value of the `Retry-After` header.
        retry_after: Option<Duration>,
    },
    /// The response had a wrong count, index or shape. Batches of this merge key are quarantined.
    Mismatched,
    /// The response was complete, but a part of it may quote the input of a member, so none
    /// received it. The server accepts batches.
    Withheld,
    /// The batch failed, and members that failed together succeeded when sent alone: the server
    /// does not accept batches.
    Refused(BatchRefusal),
    /// The batch failed with this response, and its members with it, because the route does not
    /// permit a retry. They might have succeeded alone.
    NotRetried(BatchRefusal),
    /// No response within the route's timeout. Nothing was replayed.
    TimedOut,
    /// Any other failure: members failed alone too, or the batch did not reach the server.
    Failed,
    /// Every member was cancelled before the end.
    Cancelled,
}

/// Measurements of a completed execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// Time from dispatch to the complete response, or to the end of isolation if members were
    /// isolated.
    pub duration: Duration,
    /// Time from dispatch to the first byte of the response, if one arrived.
    pub first_byte: Option<Duration>,
    /// Outcome of the execution.
    pub outcome: BatchOutcome,
}

// === impl BatchRefusal ===

impl BatchRefusal {
    /// Returns the name used in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Status(_) => "status",
            Self::TooLarge(_) => "too_large",
            Self::Mismatch => "mismatch",
            Self::Usage => "usage",
            Self::Reset => "reset",
            Self::OutOfMemory => "out_of_memory",
            Self::Timeout => "silence",
            Self::Overload => "overload",
            Self::Different => "different",
        }
    }

    /// Returns the status code of the response, if it was an error.
    #[must_use]
    pub const fn status(self) -> Option<u16> {
        match self {
            Self::Status(status) | Self::TooLarge(status) => Some(status),
            Self::Mismatch
            | Self::Usage
            | Self::Reset
            | Self::OutOfMemory
            | Self::Timeout
            | Self::Overload
            | Self::Different => None,
        }
    }
}

// === impl ExpiryReason ===

impl ExpiryReason {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::Deadline, Self::LatePredicted, Self::QueueFull];

    /// Returns the name used in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::LatePredicted => "late_predicted",
            Self::QueueFull => "queue_full",
        }
    }
}

// === impl DispatchCause ===

impl DispatchCause {
    /// All causes, in the order used by `docs/metrics.md`.
    pub const ALL: [Self; 9] = [
        Self::Full,
        Self::Weight,
        Self::Bytes,
        Self::Deadline,
        Self::Delay,
        Self::Idle,
        Self::Lead,
        Self::Probe,
        Self::Drain,
    ];

    /// Returns the value of the metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Weight => "weight",
            Self::Bytes => "bytes",
            Self::Deadline => "deadline",
            Self::Delay => "delay",
            Self::Idle => "idle",
            Self::Lead => "lead",
            Self::Probe => "probe",
            Self::Drain => "drain",
        }
    }
}
