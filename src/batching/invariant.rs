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
}

/// Checks an invariant in builds with debug assertions.
macro_rules! check_invariant {
    ($id:expr, $held:expr) => {
        debug_assert!($held, "invariant {:?} broken", $id)
    };
}

pub(super) use check_invariant;
