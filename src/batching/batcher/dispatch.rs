//! Dispatch: forms the next batch, removes its calls from the queue, and records it.
//!
//! The conditions under which a key queue may leave and the calls of it that fit together are in
//! `select`, the key queue that leaves next in `policy`, the choices of the adaptive policy in
//! `adaptive`.

use std::time::Duration;

use super::super::adaptive::{BatchWork, Dispatch, DispatchKind};
use super::super::batch::{Batch, BatchId, Decision, DispatchCause, UnbatchedReason};
use super::super::call::{Call, KeyId};
use super::super::ceiling::{BatchExtent, SizeMeasure};
use super::super::class::ClassSample;
use super::super::class::merging::MergeLimit;
use super::super::invariant::{InvariantId, check_invariant};
use super::super::queue::QueuedCall;
use super::super::select::{Selection, select_members};
use super::super::stats::DispatchEvent;
use super::super::tick::Tick;
use super::Batcher;
use super::in_flight::InFlightBatch;
use super::selected_batch::{MemberChoice, SelectedBatch, TakenCalls};

/// Maximum number of key queues scanned for calls of other keys that wait while a batch leaves.
const OTHER_KEYS_MAX: usize = 16;

/// Maximum number of remaining calls examined to find whether weight kept them out of a batch: the
/// calls of a few batches.
const LEFT_MAX: usize = 64;

// === impl Batcher ===

impl Batcher {
    /// Dispatches a batch of this key queue. Returns `None` if no call of it can leave.
    ///
    /// The steps are selection, removal from the queue, and the records of the batch: for merging,
    /// as a batch in flight, in the learned state, and in the statistics.
    pub(super) fn dispatch(
        &mut self,
        now: Tick,
        key: KeyId,
        cause: DispatchCause,
        members: MemberChoice,
        kind: DispatchKind,
    ) -> Option<Decision> {
        let mut batch = self.select_batch(now, key, members, kind)?;
        check_invariant!(InvariantId::WithinSlots, self.in_flight.len() < self.limits.slots as usize);
        let id = BatchId(self.next_batch);
        self.next_batch += 1;
        let taken = self.take_members(now, id, &batch);
        let trial = self.record_merging(now, id, &batch, taken.members.len());
        self.record_in_flight(id, &mut batch, taken.members.len());
        let predicted = self.record_departure(now, id, &batch, &taken);
        self.free.set_free(now, self.has_free_slot());
        let cause = self.true_cause(&batch, cause, trial);
        self.count_dispatch(now, &batch, &taken, cause);
        let (cost_class, members) = (batch.cost_class, taken.members);
        let Selection { items, weight, bytes, unbatched_reason, .. } = batch.choice;
        let own_connection = self.is_adaptive() && self.adaptive.has_own_connection(id);
        Some(Decision::Dispatch(Batch {
            id,
            key,
            cost_class,
            members,
            items,
            weight,
            bytes,
            cause,
            unbatched_reason,
            own_connection,
            predicted,
        }))
    }

    /// Selects the calls of a batch, or of a larger one that retests a ceiling in its place.
    fn select_batch(
        &mut self,
        now: Tick,
        key: KeyId,
        members: MemberChoice,
        kind: DispatchKind,
    ) -> Option<SelectedBatch> {
        let head = &self.queue.calls_of(key).next()?.call;
        let (cost_class, scope, tenant, shareable) = (head.cost_class, head.scope, head.tenant, !head.unmergeable);
        let (replayable, together) = (head.replayable, self.merge_bound(head));
        let members = self.shorten_late_batch(key, members);
        let caps = self.caps(cost_class, scope);
        let selected = match members {
            MemberChoice::Front(want) => select_members(self.view(), self.queue.calls_of(key), together, caps, want)?,
            MemberChoice::Chosen => {
                let chosen = self.adaptive.chosen().iter().filter_map(|id| self.queue.get(*id));
                select_members(self.view(), chosen, together, caps, None)?
            }
        };
        let (mut choice, retest) = match self.retest_batch(now, key, members, kind, &selected) {
            Some((larger, bounded)) => (larger, Some(bounded)),
            None => (selected, None),
        };
        let merges_always = self.limits.scope(scope).merges_always;
        if kind == DispatchKind::Forward && !merges_always && self.adaptive.finds_no_gain(cost_class) {
            choice.unbatched_reason = choice.unbatched_reason.or(Some(UnbatchedReason::NoGain));
        }
        Some(SelectedBatch {
            key,
            tenant,
            kind,
            members,
            cost_class,
            scope,
            shareable,
            replayable,
            together,
            caps,
            choice,
            retest,
        })
    }

    /// Removes the selected calls from the queue, and charges them to their flows.
    fn take_members(&mut self, now: Tick, id: BatchId, batch: &SelectedBatch) -> TakenCalls {
        let Selection { ids, items, weight, .. } = &batch.choice;
        let work = BatchWork { items: *items, weight: *weight };
        let adaptive = self.is_adaptive();
        let sole_flow = self.queue.flows() <= 1 && self.late.queue.flows() <= 1;
        let mut taken = TakenCalls::new(now, ids.len());
        for &call in ids {
            let Some(queued) = self.queue.remove(call) else { continue };
            check_invariant!(InvariantId::OneKey, queued.call.key == batch.key);
            let late = queued.call.deadline.is_some_and(|deadline| deadline.at <= now);
            check_invariant!(InvariantId::NotLate, !late || !self.sheds);
            if adaptive {
                let share = self.limits.fair_weight(&queued.call);
                self.adaptive.charge(&queued.call, work, share, sole_flow);
            }
            self.members.insert(call, id);
            taken.add(now, &queued);
        }
        check_invariant!(InvariantId::Balanced, taken.items == *items);
        taken
    }

    /// Records a batch of several calls as evidence about merging, and the retest of a ceiling.
    /// Returns `true` if the batch tests whether the server accepts batches.
    fn record_merging(&mut self, now: Tick, id: BatchId, batch: &SelectedBatch, calls: usize) -> bool {
        let trial = batch.together == MergeLimit::Trial && calls > 1;
        if calls > 1 {
            self.classes.on_dispatch(now, batch.cost_class, id, calls, trial);
        }
        if let Some(bounded) = batch.retest {
            self.classes.begin_retest(batch.cost_class, bounded);
        }
        trial
    }

    /// Records a batch in flight. The ids of its members are moved to the record.
    fn record_in_flight(&mut self, id: BatchId, batch: &mut SelectedBatch, calls: usize) {
        let SelectedBatch { key, tenant, cost_class, scope, shareable, replayable, retest, .. } = *batch;
        let choice = &mut batch.choice;
        let memory =
            if self.is_adaptive() { self.adaptive.memory_measure(cost_class) } else { SizeMeasure::PaddedWeight };
        let size = ClassSample {
            extent: BatchExtent { items: choice.items, sum: choice.weight, heaviest: choice.heaviest },
            shared: calls > 1,
            full: choice.items >= batch.caps.items,
            memory,
            retest,
        };
        let members = std::mem::take(&mut choice.ids);
        let key = shareable.then_some(key);
        let waiting = calls;
        self.in_flight.insert(id, InFlightBatch { key, tenant, replayable, cost_class, scope, size, members, waiting });
        *self.scopes_in_flight.entry(scope).or_default() += 1;
    }

    /// Records a batch in the learned state. Returns the time until it is expected back.
    fn record_departure(
        &mut self,
        now: Tick,
        id: BatchId,
        batch: &SelectedBatch,
        taken: &TakenCalls,
    ) -> Option<Duration> {
        // Recorded under every policy: requests in flight count when the policy changes, and those
        // that run without overlap are cost samples.
        let leaving = Dispatch {
            key: batch.key,
            class: batch.cost_class,
            items: batch.choice.items,
            weight: batch.weight(),
            kind: batch.kind,
            calls: u32::try_from(taken.members.len()).unwrap_or(u32::MAX),
            first: taken.first,
            last: taken.last,
            unbatched: !batch.shareable
                || batch.choice.unbatched_reason.is_some_and(|reason| reason != UnbatchedReason::NoGain),
            queued: self.held_by_class(batch.cost_class),
            left: self.queue.load_of_key(batch.key).items,
            deadlines: taken.deadlines,
            is_retest: batch.retest.is_some(),
        };
        self.adaptive.on_dispatch(now, id, leaving).map(Duration::from_nanos)
    }

    /// Returns the cause to report, the first that applies: the drain, a test, the limit that cut
    /// the batch short, or else `cause`, the event that triggered the dispatch.
    fn true_cause(&self, batch: &SelectedBatch, cause: DispatchCause, trial: bool) -> DispatchCause {
        match cause {
            DispatchCause::Drain => cause,
            _ if batch.retest.is_some() || trial => DispatchCause::Probe,
            _ => match (batch.choice.bound, batch.members) {
                (Some(bound), _) => bound,
                (None, MemberChoice::Chosen) if batch.kind == DispatchKind::Batch && self.is_cut_by_weight(batch) => {
                    DispatchCause::Weight
                }
                (None, _) => cause,
            },
        }
    }

    /// Returns `true` if calls remain in the key queue and weight kept each of them out of a batch
    /// like this one. Among chosen calls no single one marks the end of the batch, so all are
    /// checked.
    fn is_cut_by_weight(&self, batch: &SelectedBatch) -> bool {
        let (own, caps) = (batch.weight(), batch.caps);
        let left = || self.queue.calls_of(batch.key).take(LEFT_MAX).map(|queued| &queued.call);
        let joins = |call: &Call| {
            let more = batch.choice.items.saturating_add(call.items);
            let sum = own.sum.saturating_add(call.weight.sum);
            more > caps.items || caps.admits_weight(sum, more, own.max.max(call.weight.max))
        };
        caps.has_weight_cap() && left().next().is_some() && !left().any(joins)
    }

    /// Counts a batch in the statistics.
    fn count_dispatch(&mut self, now: Tick, batch: &SelectedBatch, taken: &TakenCalls, cause: DispatchCause) {
        let items = batch.choice.items;
        let other = |(key, head): (KeyId, &QueuedCall)| {
            key != batch.key && head.call.cost_class == batch.cost_class && !head.call.unmergeable
        };
        self.tallies.on_dispatch(DispatchEvent {
            now,
            class: batch.cost_class,
            cause,
            unbatched_reason: batch.choice.unbatched_reason,
            unbatched: !batch.shareable,
            calls: taken.members.len(),
            items,
            items_max: self.limits.scope(batch.scope).batch_items_max,
            concurrent: self.in_flight.len() > 1,
            other_keys_waiting: items < batch.caps.items && self.queue.heads().take(OTHER_KEYS_MAX).any(other),
            waited: taken.waited,
            slo: taken.slo,
        });
    }
}
