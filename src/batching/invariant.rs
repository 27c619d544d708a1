//! Named invariants of the core, so that a failing run reports the invariant that is broken.

/// An invariant of the core. The simulator, the property tests and the core itself check the same
/// list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InvariantId {
    /// Every accepted call leaves exactly once: dispatched, expired or cancelled.
    LeavesOnce,
    /// All members of a batch have the same merge key.
    OneKey,
    /// No batch exceeds a limit on items, weight or bytes, except for a single call that is larger
    /// by itself.
    WithinLimits,
    /// The number of batches in flight never exceeds the slots.
    WithinSlots,
    /// The queue never exceeds its limits.
    QueueBound,
    /// After `poll` has returned `None`, `next_wakeup() > now`.
    WakesLater,
    /// No call waits beside a free slot longer than its hold allows.
    NoIdleWait,
    /// No call is dispatched after its deadline.
    NotLate,
    /// An exclusive value occurs at most once in a batch.
    Exclusive,
    /// Counters agree with the calls and batches held.
    Balanced,
    /// The calls of a key are dispatched in arrival order, and of the keys that are ready the one
    /// that has waited longest is dispatched first.
    InOrder,
    /// A hold lasts as long as the policy demands, unless a full batch, a deadline or a drain ends
    /// it.
    HoldsOut,
    /// A queued call expires at its deadline, never before. A deadline from an SLO that no
    /// execution can meet expires nothing.
    OnTime,
    /// No batch is shared if its merge key or its cost class is in quarantine.
    Quarantined,
    /// A batch reports the true cause of its dispatch.
    TrueCause,
    /// A rejection carries a delay of whole seconds, at least 1, that follows the pace of the
    /// queue.
    RetryLater,
    /// An execution is aborted exactly when its last unanswered member is cancelled.
    Aborts,
    /// The same events lead to the same decisions.
    Deterministic,
    /// Every run terminates: `poll` eventually returns `None`, and no call or batch is held for
    /// ever.
    Ends,
}

/// Checks an invariant in builds with debug assertions.
macro_rules! check_invariant {
    ($id:expr, $held:expr) => {
        debug_assert!($held, "invariant {:?} broken", $id)
    };
}

pub(super) use check_invariant;
