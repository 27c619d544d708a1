//! Check of the calls that the core displaces from a full queue: each is reported before the next
//! decision, and is of a lower class than a call that was accepted in its place.

use groupage::batching::{Call, InvariantId, Limits, PriorityClass, PriorityId, QueueGauges};

use crate::sim::invariant::{CheckResult, ensure_invariant};

/// Calls that the core displaced and has not reported yet.
#[derive(Debug, Default)]
pub(super) struct DisplacedCalls {
    calls: usize,
    items: u64,
    /// Classes of the calls that were accepted meanwhile, and the limits in force.
    accepted: Vec<(PriorityId, Limits)>,
}

// === impl DisplacedCalls ===

impl DisplacedCalls {
    /// Records an accepted call. `held`: the calls and items that it leaves queued or unreported.
    pub(super) fn on_accepted(&mut self, call: &Call, held: (usize, u64), counts: QueueGauges, limits: &Limits) {
        self.count(held, counts);
        if self.calls > 0 {
            self.accepted.push((call.priority, limits.clone()));
        }
    }

    /// Records a cancelled call, which the core may have displaced before.
    pub(super) fn on_cancelled(&mut self, held: (usize, u64), counts: QueueGauges) {
        if held.0 < counts.queue_calls + self.calls {
            self.count(held, counts);
        }
        self.forget();
    }

    /// Records and checks a call that was reported.
    pub(super) fn on_reported(&mut self, call: &Call) -> CheckResult {
        let lower = |(accepted, limits): &(PriorityId, Limits)| {
            let rank = |class: &PriorityClass| (class.strict, !class.filler, class.weight);
            rank(limits.priority(call.priority)) < rank(limits.priority(*accepted))
        };
        ensure_invariant(InvariantId::QueueBound, self.calls > 0 && self.accepted.iter().any(lower), || {
            let accepted: Vec<_> = self.accepted.iter().map(|(class, _)| class).collect();
            format!("call {} of class {:?} makes room for calls of {accepted:?}", call.id.0, call.priority)
        })?;
        (self.calls, self.items) = (self.calls - 1, self.items.saturating_sub(u64::from(call.items)));
        self.forget();
        Ok(())
    }

    /// Returns the numbers of calls and items that the core holds, if it is to hold these with those
    /// that are not reported.
    pub(super) fn without(&self, (calls, items): (usize, u64)) -> (usize, u64) {
        (calls.saturating_sub(self.calls), items.saturating_sub(self.items))
    }

    /// Checks that all were reported.
    pub(super) fn check_reported(&self) -> CheckResult {
        ensure_invariant(InvariantId::QueueBound, self.calls == 0, || {
            format!("{} displaced calls are not reported before another decision", self.calls)
        })
    }

    fn count(&mut self, (calls, items): (usize, u64), counts: QueueGauges) {
        (self.calls, self.items) = (calls.saturating_sub(counts.queue_calls), items.saturating_sub(counts.queue_items));
    }

    fn forget(&mut self) {
        if self.calls == 0 {
            self.accepted.clear();
        }
    }
}
