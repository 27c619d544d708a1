//! Calls of the simulator and their outcomes.

use std::time::Duration;

use crate::batching::{Call, Tick};

/// A call of the workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Instant of arrival.
    pub at: Tick,
    /// The call as it is offered to the core. Its id is assigned on arrival: ids count from 0 in
    /// order of arrival.
    pub call: Call,
    /// Priority class.
    pub class: u8,
    /// Instant at which the client cancels the call, unless the call has ended by then.
    pub cancel_at: Option<Tick>,
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallOutcome {
    /// It was answered, in time or late.
    Answered,
    /// It expired in the queue.
    Expired,
    /// It was not admitted to the queue.
    Rejected,
    /// The upstream refused it.
    Refused,
    /// Its client cancelled it.
    Cancelled,
    /// It had no outcome when the run ended.
    Unanswered,
}

/// A call with its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletedCall {
    /// The call.
    pub arrival: Arrival,
    /// Outcome of the call.
    pub outcome: CallOutcome,
    /// Instant at which the call ended.
    pub at: Tick,
}

// === impl Arrival ===

impl Arrival {
    /// Returns the instant after which the answer is useless, or the largest instant if the call
    /// has no deadline.
    #[must_use]
    pub fn deadline(&self) -> Tick {
        self.call.deadline.map_or(Tick(u64::MAX), |deadline| deadline.at)
    }
}

// === impl CompletedCall ===

impl CompletedCall {
    /// Returns the time from the arrival to the end of the call.
    #[must_use]
    pub fn latency(&self) -> Duration {
        self.at.since(self.arrival.at)
    }

    /// Returns `true` if the call was answered by its deadline.
    #[must_use]
    pub fn is_in_time(&self) -> bool {
        self.outcome == CallOutcome::Answered && self.at <= self.arrival.deadline()
    }
}
