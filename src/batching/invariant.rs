//! What must always hold, by name, so that a failing run says which promise broke.

/// A promise of the core. The simulator, the property tests and the core itself check the same list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InvariantId {
    /// Every accepted call leaves exactly once: dispatched, expired or cancelled.
    LeavesOnce,
    /// The members of a batch have one merge key.
    OneKey,
    /// No batch passes a limit on items, weight or bytes, but for a single call that is larger by itself.
    WithinLimits,
    /// Batches in flight never pass the slots.
    WithinSlots,
    /// The queue never passes its limits.
    QueueBound,
    /// After `poll` says `None`, `next_wakeup() > now`.
    WakesLater,
    /// Nothing waits beside a free slot longer than its hold allows.
    NoIdleWait,
    /// Nothing is dispatched after its deadline.
    NotLate,
    /// A value that may stand in a batch once stands there once.
    Exclusive,
    /// Counters agree with what is held.
    Balanced,
    /// The calls of a key leave in order of arrival, and of the lines that may leave the longest waiting goes first.
    InOrder,
    /// A hold lasts as long as the policy says, unless a full batch, a deadline or the drain ends it.
    HoldsOut,
    /// A queued call expires at its deadline, never before; one from an SLO that no execution could meet ends nothing.
    OnTime,
    /// No batch is shared in a cost class that is in quarantine.
    Quarantined,
    /// A batch names the reason it left for.
    TrueCause,
    /// A refused call is told whole seconds, at least 1, that follow the queue's pace.
    RetryLater,
    /// An execution is aborted exactly when its last member goes unanswered.
    Aborts,
    /// The same events give the same decisions.
    Deterministic,
    /// Whatever comes, it ends: no decision without an end, no call or batch for ever.
    Ends,
}

/// Checks an invariant in builds with debug assertions.
macro_rules! check_invariant {
    ($id:expr, $held:expr) => {
        debug_assert!($held, "invariant {:?} broken", $id)
    };
}

pub(super) use check_invariant;
