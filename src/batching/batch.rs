//! What the core decides, and what it is told back.

use std::ops::Range;
use std::time::Duration;

use super::call::{CallId, CostClassId, KeyId};

/// One execution. Ids are given in order of dispatch and never twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// Why a batch left when it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// It reached the most items it may hold.
    Full,
    /// One more call would have passed the weight limit.
    Weight,
    /// One more call would have passed the byte limit.
    Bytes,
    /// A member's deadline would not have waited.
    Deadline,
    /// It was held for company and the hold ended.
    Delay,
    /// A slot was idle.
    Idle,
    /// Sent just before a slot frees.
    Lead,
    /// Sent to learn.
    Probe,
    /// The process is ending: nothing waits.
    Drain,
}

/// Why a call that could have shared was sent alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lone {
    /// It holds at least as many items as a batch may.
    ClientBatchFull,
    /// Its cost class is in quarantine after a mismatch.
    Quarantined,
    /// The server batches by itself, and better.
    NoGain,
    /// The server refused batches of its cost class and answered their members alone.
    Refused,
    /// Failed batches have used up the extra upstream calls that they may cost.
    BudgetEmpty,
}

/// How a server answered a batch that it refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// With this status.
    Status(u16),
    /// With a status or text that means: too large.
    TooLarge(u16),
    /// With success, and a body that cannot be split.
    Mismatch,
    /// It closed the connection.
    Reset,
    /// Not within the time that the route allows.
    Silence,
    /// With 429 or 503, while lone calls are served.
    Overload,
}

/// A member of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The call.
    pub id: CallId,
    /// Which items of the batch are its own.
    pub items: Range<u32>,
}

/// Calls that leave together in one execution, holding one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Which execution.
    pub id: BatchId,
    /// What all members have equal.
    pub key: KeyId,
    /// What it costs like.
    pub cost_class: CostClassId,
    /// In the order in which they were taken from the line; never empty.
    pub members: Vec<Member>,
    /// Items in all.
    pub items: u32,
    /// Weight in all.
    pub weight: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// Why now.
    pub cause: Cause,
    /// Why a mergeable call leaves alone, if it does for a reason of ours.
    pub lone: Option<Lone>,
    /// When its answer is expected, from now on; `None` while nothing is known of its cost.
    pub predicted: Option<Duration>,
}

/// Why a queued call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Its deadline passed.
    Deadline,
    /// It would be answered too late, or waiting for it would make more others late.
    LatePredicted,
    /// It was late already, and the room was wanted for a call that can be in time.
    QueueFull,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Send these together.
    Dispatch(Batch),
    /// Answer this queued call: too late.
    Expire {
        /// Which call.
        id: CallId,
        /// Why.
        reason: Expiry,
    },
    /// Every member has left: end the execution, then `complete` it as cancelled.
    Abort(BatchId),
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservedOutcome {
    /// Answered whole and split.
    Ok,
    /// The upstream takes no batch of this size; the most items, if it named them.
    TooLarge {
        /// The limit that the answer names.
        limit: Option<u32>,
    },
    /// The upstream ran out of memory.
    OutOfMemory,
    /// 429 or 503.
    Overloaded {
        /// What the upstream asks for.
        retry_after: Option<Duration>,
    },
    /// The answer had a wrong count, index or shape: batches of this merge key cannot be trusted for a while.
    Mismatched,
    /// It failed as a batch, and members that failed together were answered alone: the server takes no batch.
    Refused(Refusal),
    /// No answer within the route's time; nothing was sent again.
    TimedOut,
    /// Any other failure: members failed alone too, or were not sent again.
    Failed,
    /// Every member left before the end.
    Cancelled,
}

/// What the shell saw of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// From dispatch to the whole answer; with isolation, to the end of it.
    pub duration: Duration,
    /// From dispatch to the first byte of the answer, if one came.
    pub first_byte: Option<Duration>,
    /// How it ended.
    pub outcome: ObservedOutcome,
}

// === impl Refusal ===

impl Refusal {
    /// The word in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Status(_) => "status",
            Self::TooLarge(_) => "too_large",
            Self::Mismatch => "mismatch",
            Self::Reset => "reset",
            Self::Silence => "silence",
            Self::Overload => "overload",
        }
    }

    /// The status of the answer, where it was one of an error.
    #[must_use]
    pub const fn status(self) -> Option<u16> {
        match self {
            Self::Status(status) | Self::TooLarge(status) => Some(status),
            Self::Mismatch | Self::Reset | Self::Silence | Self::Overload => None,
        }
    }
}

// === impl Expiry ===

impl Expiry {
    /// Every reason.
    pub const ALL: [Self; 3] = [Self::Deadline, Self::LatePredicted, Self::QueueFull];

    /// The word in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::LatePredicted => "late_predicted",
            Self::QueueFull => "queue_full",
        }
    }
}

// === impl Cause ===

impl Cause {
    /// Every cause, in the order of the metrics page.
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

    /// The label value.
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
