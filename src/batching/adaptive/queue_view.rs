//! Views of one key queue for a decision: its head with the bounds on merging, and the batch that
//! may leave.

use std::time::Duration;

use super::super::call::{CallId, CostClassId, DeadlineSource, KeyId};
use super::super::class::ClassState;
use super::super::class::merging::MergeLimit;
use super::super::cost::CostModel;
use super::super::limits::CallOrder;
use super::super::queue::QueuedCall;
use super::super::select::BatchCaps;
use super::super::tick::Tick;
use super::decision::DecisionContext;

/// A key queue that is being decided, and the bounds on merging its calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyContext<'a> {
    pub(super) ctx: DecisionContext<'a>,
    pub(super) key: KeyId,
    /// The first call of the key queue.
    pub(super) head: &'a QueuedCall,
    /// Learned limits of the head's cost class.
    pub(super) class: Option<&'a ClassState>,
    pub(super) merge: MergeLimit,
    /// `true` if several flows are queued in the key queue.
    pub(super) is_mixed: bool,
}

/// A key queue with the values that a decision needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueView<'a> {
    pub(super) ctx: DecisionContext<'a>,
    pub(super) key: KeyId,
    pub(super) head: &'a QueuedCall,
    /// Items queued.
    pub(super) items: u32,
    /// Maximum number of items in a batch now.
    pub(super) cap: u32,
    /// Nanoseconds that a batch sent now is expected to wait upstream.
    pub(super) wait: u64,
    pub(super) caps: BatchCaps,
}

// === impl KeyContext ===

impl<'a> KeyContext<'a> {
    pub(super) const fn class_id(&self) -> CostClassId {
        self.head.call.cost_class
    }

    /// Returns `true` if the head shares no batch: it may not be merged, its merge key or its cost
    /// class is in quarantine, or merging is deferred.
    pub(super) const fn is_unbatched(&self) -> bool {
        self.head.call.unmergeable || matches!(self.merge, MergeLimit::Unbatched(_) | MergeLimit::Deferred)
    }

    /// Returns `true` if calls of the key queue are merged whether or not that was measured to pay.
    pub(super) fn merges_always(&self) -> bool {
        !self.is_unbatched() && self.ctx.limits.scope(self.head.call.scope).merges_always
    }

    /// Returns the view for a batch of a single call.
    pub(super) const fn single_call(&self, caps: BatchCaps) -> QueueView<'a> {
        QueueView { ctx: self.ctx, key: self.key, head: self.head, items: 1, cap: 1, wait: 0, caps }
    }
}

// === impl QueueView ===

impl QueueView<'_> {
    /// Returns the nanoseconds until a call's deadline; `u64::MAX` if it has none.
    pub(super) fn slack(&self, queued: &QueuedCall) -> u64 {
        slack_of(queued, self.ctx.now)
    }

    /// Returns the least slack of the calls that the next batch may hold. In the order by deadline,
    /// it is that of the head.
    pub(super) fn first_slack(&self) -> u64 {
        self.urgent_calls().map(|queued| self.slack(queued)).min().unwrap_or(u64::MAX)
    }

    /// Returns the maximum nanoseconds for which the key queue may be held: the calls of its next
    /// batch must still be queued when it leaves.
    pub(super) fn hold_max(&self) -> u64 {
        self.first_deadline().map_or(u64::MAX, |deadline| deadline.0.saturating_sub(self.ctx.now.0))
    }

    fn first_deadline(&self) -> Option<Tick> {
        self.urgent_calls().filter_map(|queued| Some(queued.call.deadline?.at)).min()
    }

    /// Iterates over the calls of which one has the first deadline of the next batch.
    fn urgent_calls(&self) -> impl Iterator<Item = &QueuedCall> {
        let behind = match self.ctx.limits.order {
            CallOrder::Deadline => 0,
            CallOrder::ShortFirst => usize::try_from(self.cap).unwrap_or(usize::MAX),
        };
        let calls = self.ctx.queue.calls_of(self.key);
        std::iter::once(self.head).chain(calls.take(behind))
    }

    /// Returns the time from the head's arrival to its deadline, if an SLO or the client set one.
    pub(super) fn time_budget(&self) -> Option<u64> {
        let deadline = self.head.call.deadline.filter(|deadline| deadline.source != DeadlineSource::Timeout)?;
        Some(deadline.at.0.saturating_sub(self.head.arrived.0))
    }

    /// Returns `true` if nothing is shed: the SLO is shorter than one execution, so shedding cannot
    /// meet it.
    pub(super) fn is_infeasible(&self, cost: &CostModel) -> bool {
        if !self.ctx.sheds {
            return true;
        }
        let slo = self.head.call.deadline.filter(|deadline| deadline.source == DeadlineSource::Slo);
        // The wait of a batch that leaves early is not included: it passes, and sending the batch
        // as if no deadline could be met would make every call late.
        slo.is_some_and(|slo| slo.at.0.saturating_sub(self.head.arrived.0) < cost.tail_time(cost.time(1)))
    }

    /// Returns the head if it would be answered too late even alone.
    pub(super) fn late_head(&self, cost: &CostModel) -> Option<CallId> {
        if cost.samples() == 0 || self.is_infeasible(cost) {
            return None;
        }
        let call = &self.head.call;
        let time = cost.predict(call.items, call.weight);
        (self.slack(self.head) < self.wait.saturating_add(time)).then_some(call.id)
    }

    /// Returns the head if the deadline of its client is nearer than the time of a call that has
    /// the server for itself: the answer would be useless.
    pub(super) fn head_late_for_client(&self, lone: Option<u64>) -> Option<CallId> {
        let call = &self.head.call;
        let own = call.deadline.filter(|deadline| deadline.source == DeadlineSource::Caller)?;
        (self.ctx.sheds && own.at.0.saturating_sub(self.ctx.now.0) < lone?).then_some(call.id)
    }

    /// Returns the instant until which an idle upstream may wait, under a preset that spends slack
    /// on size.
    pub(super) fn preset_hold(&self, cost: &CostModel) -> Option<Tick> {
        let share = u64::from(self.ctx.hold_permille);
        if share == 0 || self.items >= self.cap {
            return None;
        }
        let patience = self.head.arrived.0.saturating_add(self.time_budget()? / 1000 * share);
        let next = cost.tail_time(cost.time((self.items + 1).min(self.cap)));
        let deadline = self.first_deadline()?.0;
        Some(Tick(patience.min(deadline.saturating_sub(next + next / 10))))
    }
}

/// Returns the nanoseconds until a call's answer is useless; `u64::MAX` if it never is. A timeout
/// does not count.
pub(in super::super) fn slack_of(queued: &QueuedCall, now: Tick) -> u64 {
    let useful = queued.call.deadline.filter(|deadline| deadline.source != DeadlineSource::Timeout);
    useful.map_or(u64::MAX, |deadline| deadline.at.0.saturating_sub(now.0))
}

/// Returns the SLO of a call, if it has one.
pub(in super::super) fn slo_of(queued: &QueuedCall) -> Option<Duration> {
    let slo = queued.call.deadline.filter(|deadline| deadline.source == DeadlineSource::Slo)?;
    Some(slo.at.since(queued.arrived))
}
