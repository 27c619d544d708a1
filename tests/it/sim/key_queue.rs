//! The expected dispatch time and members of a key queue, derived directly from the invariants.

use std::collections::BTreeSet;
use std::time::Duration;

use groupage::batching::{
    Batcher, Call, DeadlineSource, DispatchCause, DispatchPolicy, KeyId, Limits, ScopeLimits, SizeMeasure, Tick,
    UnbatchedReason,
};

use super::learned::CostClassState;

/// A queued call.
#[derive(Debug, Clone)]
pub(crate) struct QueuedCall {
    pub(crate) call: Call,
    pub(crate) arrived: Tick,
    /// Time for which it has waited while a slot was free.
    pub(crate) beside_slot: Duration,
    /// `true` if no execution could have met its SLO. The SLO then expires nothing, and the later
    /// deadline applies.
    pub(crate) slo_ignored: bool,
}

/// The queued calls of one key, in order of arrival; never empty.
#[derive(Debug)]
pub(crate) struct KeyQueue<'a> {
    pub(crate) key: KeyId,
    pub(crate) calls: Vec<&'a QueuedCall>,
}

/// The inputs of a decision about a key queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecisionInputs<'a> {
    pub(crate) now: Tick,
    pub(crate) limits: &'a Limits,
    pub(crate) learned: Option<&'a CostClassState>,
    pub(crate) draining: bool,
    /// Number of replays left in the budget.
    pub(crate) replays: u64,
    /// The core before the event. Whether a call may be merged is covered by the core's own tests;
    /// the consequences are checked here.
    pub(crate) core: Option<&'a Batcher>,
}

/// The limits of a batch, except for its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchCaps {
    pub(crate) items: u32,
    pub(crate) weight: u64,
    /// Cost of the items on a server that pads: their number times the weight of the heaviest one.
    pub(crate) padded: u64,
}

/// Dispatch time of a key queue while a slot is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DispatchTime {
    Now(DispatchCause),
    At(Tick),
}

/// The batch that a key queue must dispatch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ExpectedBatch {
    /// Number of calls, from the front.
    pub(crate) calls: usize,
    /// The limit that excluded the next call, or that was reached.
    pub(crate) bound: Option<DispatchCause>,
    /// Reason for a batch of one, if it is reported.
    pub(crate) unbatched_reason: Option<UnbatchedReason>,
    /// `true` if an exclusive value excluded the next call: it may occur only once in a batch.
    pub(crate) exclusive: bool,
    /// The limits that applied.
    pub(crate) caps: BatchCaps,
    /// The ceiling that the batch exceeds as a retest.
    pub(crate) retest: Option<SizeMeasure>,
    /// `true` if the batch tests whether the server accepts batches.
    pub(crate) trial: bool,
}

// === impl QueuedCall ===

impl QueuedCall {
    /// Returns the instant after which the call must not be dispatched.
    pub(crate) fn deadline(&self) -> Option<Tick> {
        let applicable = if self.slo_ignored { self.call.fallback_deadline } else { self.call.deadline };
        applicable.map(|deadline| deadline.at)
    }
}

// === impl DecisionInputs ===

impl DecisionInputs<'_> {
    /// Returns the maximum number of items in a batch: the limit, or the learned ceiling if that is
    /// lower.
    pub(crate) fn cap(&self, scope: &ScopeLimits) -> u32 {
        self.learned.and_then(CostClassState::ceiling).unwrap_or(u32::MAX).min(scope.batch_items_max)
    }

    /// Returns the smallest of the limits and learned ceilings.
    pub(crate) fn caps(&self, scope: &ScopeLimits) -> BatchCaps {
        let known = |bounded| self.learned.and_then(|learned| learned.max(bounded)).unwrap_or(u64::MAX);
        BatchCaps {
            items: self.cap(scope),
            weight: known(SizeMeasure::Weight).min(scope.batch_weight_max.unwrap_or(u64::MAX)),
            padded: known(SizeMeasure::PaddedWeight),
        }
    }

    /// Returns the number of items at which a batch is full: `cap`, or `items` of the policies
    /// `Window` and `Static` if that is less.
    fn fill(&self, cap: u32) -> u32 {
        match self.limits.policy {
            DispatchPolicy::WorkConserving | DispatchPolicy::Adaptive { .. } => cap,
            DispatchPolicy::Window { items, .. } | DispatchPolicy::Static { items, .. } => cap.min(items),
        }
    }

    /// Returns the expected execution time: the last one plus a quarter of it, or plus 4 ms if that
    /// is more.
    fn expected_duration(&self) -> Option<Duration> {
        let last = self.learned.and_then(CostClassState::last_duration)?;
        Some(last + (last / 4).max(Duration::from_millis(4)))
    }

    /// Returns the maximum number of calls that may be dispatched with this one, and the reason if
    /// it is one.
    pub(crate) fn merge_limit(&self, call: &Call) -> (usize, Option<UnbatchedReason>) {
        self.core.map_or((usize::MAX, None), |core| core.merge_limit(self.now, call))
    }
}

// === impl KeyQueue ===

impl KeyQueue<'_> {
    pub(crate) fn head(&self) -> &QueuedCall {
        self.calls[0]
    }

    /// Returns the instant at which this queue must be dispatched.
    pub(crate) fn dispatch_time(&self, inputs: DecisionInputs<'_>) -> DispatchTime {
        if inputs.draining {
            return DispatchTime::Now(DispatchCause::Drain);
        }
        let head = self.head();
        let scope = inputs.limits.scope(head.call.scope);
        // A window is measured as time beside a free slot. Any hold ends once that time reaches the
        // limit of the route.
        let until = |beside_slot: Duration| inputs.now.after(beside_slot.saturating_sub(head.beside_slot));
        let (end, delay) = match inputs.limits.policy {
            DispatchPolicy::WorkConserving | DispatchPolicy::Adaptive { .. } => {
                return DispatchTime::Now(DispatchCause::Idle);
            }
            DispatchPolicy::Window { delay, .. } => (until(delay), delay),
            DispatchPolicy::Static { delay, .. } => (head.arrived.after(delay), delay),
        };
        let (calls_max, _) = inputs.merge_limit(&head.call);
        if head.call.unmergeable || calls_max <= self.calls.len().min(2) {
            return DispatchTime::Now(DispatchCause::Idle);
        }
        let caps = inputs.caps(scope);
        let fill = inputs.fill(caps.items);
        let sum = |of: fn(&Call) -> u64| self.calls.iter().map(|waiting| of(&waiting.call)).sum::<u64>();
        let items = sum(|call| u64::from(call.items));
        if items >= u64::from(fill) {
            return DispatchTime::Now(DispatchCause::Full);
        }
        // More is queued than one batch holds, so the next batch cannot grow any further.
        if sum(|call| call.weight.sum) > caps.weight {
            return DispatchTime::Now(DispatchCause::Weight);
        }
        if sum(|call| call.bytes) > scope.batch_bytes_max {
            return DispatchTime::Now(DispatchCause::Bytes);
        }
        let hold_ends = end.min(until(scope.queue_delay_max));
        if inputs.now >= hold_ends {
            return DispatchTime::Now(if delay == Duration::ZERO { DispatchCause::Idle } else { DispatchCause::Delay });
        }
        // A deadline within the hold dispatches the batch early enough to be answered in time.
        // Without a known execution, half of the time to the deadline is reserved.
        let urgent =
            self.calls.iter().filter_map(|waiting| waiting.deadline()).min().map(|deadline| {
                deadline.before(inputs.expected_duration().unwrap_or(deadline.since(head.arrived) / 2))
            });
        match urgent {
            Some(urgent) if inputs.now >= urgent => DispatchTime::Now(DispatchCause::Deadline),
            Some(urgent) => DispatchTime::At(urgent.min(hold_ends)),
            None => DispatchTime::At(hold_ends),
        }
    }

    /// Returns the calls that must be dispatched together: as many from the front as the limits
    /// allow, and at least one; or more, to retest a ceiling.
    pub(crate) fn expected_batch(&self, inputs: DecisionInputs<'_>) -> ExpectedBatch {
        let scope = inputs.limits.scope(self.head().call.scope);
        let cut = self.fill_batch(inputs, inputs.caps(scope));
        self.retest_batch(inputs, &cut).unwrap_or(cut)
    }

    /// Returns the larger batch in place of this one, if the ceiling that cuts it is due for a
    /// retest and no call would be late for it.
    fn retest_batch(&self, inputs: DecisionInputs<'_>, cut: &ExpectedBatch) -> Option<ExpectedBatch> {
        let (bounded, up_to, took) = inputs.learned?.retest(inputs.now)?;
        // While two calls are merged as a trial, a ceiling is exceeded only if it is one item.
        if inputs.merge_limit(&self.head().call).0 == 2 && inputs.learned?.max(SizeMeasure::Items) != Some(1) {
            return None;
        }
        let by = if bounded == SizeMeasure::Items { DispatchCause::Full } else { DispatchCause::Weight };
        if inputs.draining || cut.unbatched_reason.is_some() || self.head().call.unmergeable || cut.bound != Some(by) {
            return None;
        }
        let scope = inputs.limits.scope(self.head().call.scope);
        let caps = match bounded {
            SizeMeasure::Items => {
                let items = u32::try_from(up_to).unwrap_or(u32::MAX).min(scope.batch_items_max);
                BatchCaps { items, ..cut.caps }
            }
            SizeMeasure::Weight => {
                BatchCaps { weight: up_to.min(scope.batch_weight_max.unwrap_or(u64::MAX)), ..cut.caps }
            }
            SizeMeasure::PaddedWeight => BatchCaps { padded: up_to, ..cut.caps },
        };
        let larger = self.fill_batch(inputs, caps);
        let members = &self.calls[..larger.calls];
        let items: u32 = members.iter().map(|waiting| waiting.call.items).sum();
        let size = match bounded {
            SizeMeasure::Items => u64::from(items),
            SizeMeasure::Weight => members.iter().map(|waiting| waiting.call.weight.sum).sum(),
            SizeMeasure::PaddedWeight => {
                u64::from(items) * members.iter().map(|waiting| waiting.call.weight.max).max().unwrap_or(0)
            }
        };
        let exceeds_ceiling = inputs.learned.and_then(|learned| learned.max(bounded)).is_some_and(|max| size > max);
        let duration = inputs.expected_duration()?;
        // If the retest is refused, its halves are sent one after the other: a member of the first
        // half is answered after one more execution, one of the second half after two.
        let on_time = members.iter().enumerate().all(|(at, waiting)| {
            let parts = if at < members.len() / 2 { 1 } else { 2 };
            let applicable = if waiting.slo_ignored { waiting.call.fallback_deadline } else { waiting.call.deadline };
            let useful = applicable.filter(|deadline| deadline.source != DeadlineSource::Timeout);
            useful.is_none_or(|deadline| deadline.at.since(inputs.now) >= took + duration * parts)
        });
        let has_replays = inputs.replays >= u64::try_from(members.len()).unwrap_or(u64::MAX);
        (exceeds_ceiling && members.len() > 1 && on_time && has_replays)
            .then_some(ExpectedBatch { retest: Some(bounded), ..larger })
    }

    /// Returns as many calls from the front as these limits and the byte limit allow, and at least
    /// one.
    fn fill_batch(&self, inputs: DecisionInputs<'_>, caps: BatchCaps) -> ExpectedBatch {
        let head = &self.head().call;
        let scope = inputs.limits.scope(head.scope);
        let unbatched = |unbatched_reason| ExpectedBatch {
            calls: 1,
            bound: None,
            unbatched_reason,
            exclusive: false,
            caps,
            retest: None,
            trial: false,
        };
        if head.unmergeable {
            return unbatched(None);
        }
        if head.items > caps.items {
            return unbatched(Some(UnbatchedReason::ClientBatchFull));
        }
        let (calls_max, unbatched_reason) = inputs.merge_limit(head);
        if calls_max == 1 {
            return unbatched(unbatched_reason);
        }
        let fill = inputs.fill(caps.items);
        let mut expected = ExpectedBatch {
            calls: 0,
            bound: None,
            unbatched_reason: None,
            exclusive: false,
            caps,
            retest: None,
            trial: false,
        };
        let (mut items, mut weight, mut heaviest, mut bytes, mut values) = (0, 0, 0, 0, BTreeSet::new());
        // The first call always fits. Further calls join until one exceeds a limit, repeats an
        // exclusive value, goes alone, or the maximum number of members is reached.
        for QueuedCall { call, .. } in &self.calls {
            if expected.calls > 0 {
                if call.unmergeable || expected.calls >= calls_max {
                    break;
                }
                expected.bound = if items + call.items > fill {
                    Some(DispatchCause::Full)
                } else if weight + call.weight.sum > caps.weight
                    || u64::from(items + call.items) * call.weight.max.max(heaviest) > caps.padded
                {
                    Some(DispatchCause::Weight)
                } else if bytes + call.bytes > scope.batch_bytes_max {
                    Some(DispatchCause::Bytes)
                } else {
                    None
                };
                expected.exclusive =
                    expected.bound.is_none() && call.exclusive.iter().any(|value| values.contains(value));
                if expected.bound.is_some() || expected.exclusive {
                    break;
                }
            }
            expected.calls += 1;
            items += call.items;
            weight += call.weight.sum;
            heaviest = call.weight.max.max(heaviest);
            bytes += call.bytes;
            values.extend(call.exclusive.iter().copied());
        }
        if items >= fill {
            expected.bound = Some(DispatchCause::Full);
        }
        expected.trial = calls_max == 2 && expected.calls > 1;
        expected
    }
}
