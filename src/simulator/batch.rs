//! A batch that was sent upstream: its id, the status of its response, and its completion.

use crate::batching::{CallId, Tick};

/// Identifies a batch that was sent upstream. Ids count from 0 in order of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimBatchId(pub u64);

/// The status of an upstream response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseStatus {
    /// The batch was answered completely.
    Ok,
    /// Status 413: the batch exceeds the accepted number of items or weight.
    TooLarge {
        /// Maximum number of items, if the response names it.
        limit: Option<u32>,
    },
    /// The upstream ran out of memory.
    OutOfMemory,
    /// Status 429: the upstream holds too many items already.
    Overloaded,
}

/// The completion of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchCompletion {
    /// Id of the batch.
    pub id: SimBatchId,
    /// Instant of dispatch.
    pub sent: Tick,
    /// Number of items sent.
    pub items: u32,
    /// Status of the response.
    pub status: ResponseStatus,
    /// Members in order. If the batch was answered, these are all of them; otherwise they are the
    /// members that still wait, which the policy sends again or refuses.
    pub members: Vec<CallId>,
}
