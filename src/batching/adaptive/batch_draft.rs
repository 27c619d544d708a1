//! A candidate batch of one key queue, refined by the decision steps.

use std::time::Duration;

use super::super::batch::DispatchCause;
use super::super::call::CostClassId;
use super::super::queue::QueuedCall;
use super::super::select::BatchCaps;
use super::super::tick::Tick;
use super::decision::{Action, DispatchKind, KeyDecision};
use super::fair_queueing;
use super::queue_view::QueueView;

/// Quantity that the next batches of a class test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TestSubject {
    Nothing,
    /// The limit of the class, or whether a server at its limit still answers.
    Limit,
    /// The cost of a batch of the newest size.
    BatchSize,
}

/// A batch that may leave now.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchDraft<'a> {
    pub(super) view: QueueView<'a>,
    pub(super) kind: DispatchKind,
    pub(super) subject: TestSubject,
    /// Requests of the class in flight.
    pub(super) in_flight: u32,
    /// Slots of the class in use.
    pub(super) slots: u32,
    /// `true` if several flows are queued in the key queue.
    pub(super) is_mixed: bool,
    /// `true` if the weight limits end the batch before its item limit does.
    pub(super) is_cut_by_weight: bool,
    /// `true` if the weight of the items determines their cost.
    pub(super) weights_matter: bool,
}

// === impl BatchDraft ===

impl BatchDraft<'_> {
    pub(super) const fn class_id(&self) -> CostClassId {
        self.view.head.call.cost_class
    }

    /// Returns `true` if the batch is sent to test a limit or a size. Such a batch is not held.
    pub(super) fn is_testing(&self) -> bool {
        self.subject != TestSubject::Nothing
    }

    /// Returns `true` if the policy merges calls of the key queue whether or not that was measured
    /// to pay.
    pub(super) fn merges_always(&self) -> bool {
        self.view.ctx.limits.scope(self.view.head.call.scope).merges_always
    }

    /// Returns `true` if the batch would leave shortly before another one returns.
    pub(super) const fn is_leading(&self) -> bool {
        self.in_flight >= self.slots
    }

    /// Returns `true` if the key queue may hold calls that only fill other batches.
    pub(super) fn may_hold_fillers(&self) -> bool {
        self.is_mixed && self.view.ctx.limits.has_fillers()
    }

    /// Returns the time for which the key queue may still be held beside a free slot. Scans the
    /// whole key queue, so it is called only if a hold is considered.
    pub(super) fn hold_max(&self) -> Duration {
        let QueueView { ctx, key, head, .. } = self.view;
        let skips_fillers = self.may_hold_fillers();
        let held = ctx.queue.calls_of(key).filter(|queued| !skips_fillers || !fair_queueing::is_filler(ctx, queued));
        let first = held.map(|queued| queued.free_before).min().unwrap_or(head.free_before);
        ctx.limits.scope(head.call.scope).queue_delay_max.saturating_sub(ctx.free.saturating_sub(first))
    }

    /// Returns a hold until an instant, or `None` if its end is past. A hold ends at the latest at
    /// the route's limit, or half-way to the head's deadline.
    pub(super) fn hold(&self, until: Tick) -> Option<KeyDecision> {
        let now = self.view.ctx.now;
        let until = until.min(now.after(self.hold_max())).min(Tick(now.0.saturating_add(self.view.hold_max() / 2)));
        (until > now).then_some(KeyDecision::Hold(until))
    }

    /// Returns the cause of the batch if no limit or deadline cuts it short. `has_waited`: its key
    /// queue was held beside a free slot.
    pub(super) const fn dispatch_cause(&self, has_waited: bool) -> DispatchCause {
        match (self.is_leading(), has_waited) {
            (true, _) => DispatchCause::Lead,
            (false, true) => DispatchCause::Delay,
            (false, false) => DispatchCause::Idle,
        }
    }

    /// Dispatches this many items from the front of the key queue.
    pub(super) const fn send(&self, items: u32, cause: DispatchCause) -> KeyDecision {
        KeyDecision::Do(Action::Send { key: self.view.key, items, cause, kind: self.kind })
    }

    /// Dispatches the calls that were chosen.
    pub(super) const fn send_chosen(&self, cause: DispatchCause) -> KeyDecision {
        KeyDecision::Do(Action::Chosen { key: self.view.key, cause, kind: self.kind })
    }
}

/// Returns the number of items from the front of a queue that fit into one batch: `cap`, or less
/// where the weight limits end the batch earlier.
pub(super) fn fitting_items<'a>(caps: BatchCaps, calls: impl Iterator<Item = &'a QueuedCall>, cap: u32) -> u32 {
    if !caps.has_weight_cap() {
        return cap;
    }
    let (mut items, mut sum, mut heaviest) = (0_u32, 0_u64, 0_u64);
    for queued in calls {
        let call = &queued.call;
        let more = items.saturating_add(call.items);
        sum = sum.saturating_add(call.weight.sum);
        heaviest = heaviest.max(call.weight.max);
        if more > cap {
            return cap;
        }
        if !caps.admits_weight(sum, more, heaviest) {
            return items.max(1);
        }
        items = more;
    }
    cap
}
