//! A call in the simulator, and how it ended.

use std::time::Duration;

use crate::batching::{Call, Tick};

/// A call that will come, or came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// When it comes.
    pub at: Tick,
    /// What the core is told. Its id is given when it comes: ids count from 0 in order of arrival.
    pub call: Call,
    /// Its priority class.
    pub class: u8,
    /// When its caller leaves, unless it has its answer by then.
    pub cancel_at: Option<Tick>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It has its answer, in time or late.
    Answered,
    /// Given up in the queue.
    Expired,
    /// Not taken into the queue.
    Rejected,
    /// The upstream refused it.
    Refused,
    /// Its caller left.
    Cancelled,
    /// The run ended first.
    Unanswered,
}

/// A call that came, and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The call.
    pub arrival: Arrival,
    /// How it ended.
    pub outcome: Outcome,
    /// When.
    pub at: Tick,
}

// === impl Arrival ===

impl Arrival {
    /// The instant after which its answer is useless; the end of time if it set none.
    #[must_use]
    pub fn deadline(&self) -> Tick {
        self.call.deadline.map_or(Tick(u64::MAX), |deadline| deadline.at)
    }
}

// === impl Ended ===

impl Ended {
    /// From arrival to the end.
    #[must_use]
    pub fn latency(&self) -> Duration {
        self.at.since(self.arrival.at)
    }

    /// Answered by its deadline.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.outcome == Outcome::Answered && self.at <= self.arrival.deadline()
    }
}
