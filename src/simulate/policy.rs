//! The interface of a batching policy: Groupage itself or a baseline.

use crate::batching::{CallId, Tick};

use super::desk::SimProxy;

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

/// A batching policy. It observes only what a real proxy can observe: its queue, its batches in
/// flight, and their completions.
pub trait SimPolicy {
    /// Returns the name used in tables.
    fn name(&self) -> String;

    /// Handles the arrival of a call.
    fn arrival(&mut self, desk: &mut SimProxy, id: CallId);

    /// Handles the completion of a batch. If the status is not `Ok`, its members are queued again,
    /// and the policy decides on them.
    fn done(&mut self, desk: &mut SimProxy, done: &BatchCompletion);

    /// Handles the instant requested with [`SimProxy::wake`].
    fn tick(&mut self, desk: &mut SimProxy);

    /// Handles the cancellation of a call by its client. The call has already ended.
    fn cancel(&mut self, desk: &mut SimProxy, id: CallId);
}
