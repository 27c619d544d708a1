//! Input and result of a decision of the adaptive policy.

use std::time::Duration;

use super::super::batch::{DispatchCause, ExpiryReason};
use super::super::call::{CallId, KeyId};
use super::super::limits::Limits;
use super::super::queue::Queue;
use super::super::tick::Tick;

/// Inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct DecisionContext<'a> {
    pub(in super::super) now: Tick,
    pub(in super::super) limits: &'a Limits,
    pub(in super::super) queue: &'a Queue,
    /// Total time for which a slot has been free.
    pub(in super::super) free: Duration,
    /// Share of an SLO that a call may be held beside an idle upstream, in thousandths.
    pub(in super::super) hold_permille: u32,
    /// `true` if calls that would be late are ended early, so that others are in time.
    pub(in super::super) sheds: bool,
}

/// The next action of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Action {
    /// Dispatch up to `items` items from the front of this key's queue.
    Send { key: KeyId, items: u32, cause: DispatchCause, kind: DispatchKind },
    /// Dispatch the calls of `Adaptive::chosen`.
    Chosen { key: KeyId, cause: DispatchCause, kind: DispatchKind },
    /// Expire this queued call: it would be late, or it was given up in favour of others.
    Expire { id: CallId, reason: ExpiryReason },
    /// Do nothing before `Adaptive::wake`.
    Nothing,
}

/// Purpose of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum DispatchKind {
    /// A regular batch.
    Batch,
    /// A request beyond the limit, to measure whether the server has room.
    Probe,
    /// Two calls together while the limiter is open, to measure the cost of a pair.
    Pair,
    /// One call to compare the next pair with.
    Control,
    /// A single call, forwarded as it arrived.
    Forward,
    /// A batch of another policy, or of a drain. It is a cost sample only if it did not overlap
    /// others.
    Plain,
}

/// The decision for one merge key.
pub(super) enum KeyDecision {
    Do(Action),
    /// Hold the queue deliberately until this instant.
    Hold(Tick),
    /// No slot is free. One may be available at this instant, if it is known.
    NoSlot(Option<Tick>),
    Skip,
}

// === impl KeyDecision ===

impl KeyDecision {
    /// Expires a call that would be late.
    pub(super) const fn expire_late(id: CallId) -> Self {
        Self::Do(Action::Expire { id, reason: ExpiryReason::LatePredicted })
    }
}
