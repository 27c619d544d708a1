//! Live counts of a proxy instance, which the process itself reads too.

use std::sync::atomic::{AtomicBool, AtomicU64};

/// Live counts of a proxy instance.
#[derive(Debug, Default)]
pub struct LiveCounts {
    /// Calls with received headers.
    pub seen: AtomicU64,
    /// Recognised calls that were passed to the scheduler, which fixes their relative order.
    pub offered: AtomicU64,
    /// Calls answered, by the upstream or by the proxy.
    pub answered: AtomicU64,
    /// Items accepted into the queue.
    pub items_accepted: AtomicU64,
    /// Number of executions.
    pub batches: AtomicU64,
    /// Items in executions.
    pub batch_items: AtomicU64,
    /// Executions of more than one call.
    pub shared_batches: AtomicU64,
    /// Executions that failed, except those cancelled by their clients.
    pub executions_failed: AtomicU64,
    /// Batch responses that could not be split.
    pub mismatches: AtomicU64,
    /// Upstream calls made by isolation.
    pub isolation_executions: AtomicU64,
    /// Items answered by isolation.
    pub items_isolated: AtomicU64,
    /// Items queued now.
    pub queue_items: AtomicU64,
    /// Executions in flight now.
    pub in_flight: AtomicU64,
    /// `true` while the server's concurrency is being learned or another limit is being tried:
    /// current latencies do not predict later ones.
    pub settling: AtomicBool,
}
