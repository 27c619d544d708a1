//! Dispatch: forms the next batch, removes its calls from the queue, and records it.
//!
//! The conditions under which a line may leave and the calls of it that fit together are in
//! `select`, the choices of the adaptive policy in `adaptive`.

use std::time::Duration;

use super::super::ablation::Feature;
use super::super::adaptive::{Action, BatchWork, DeadlineSpread, DecisionContext, Dispatch, DispatchKind, slo_of};
use super::super::batch::{Batch, BatchId, Decision, DispatchCause, Member, UnbatchedReason};
use super::super::call::{Call, DeadlineSource, KeyId, ScopeId, Weight};
use super::super::ceiling::{BatchExtent, SizeMeasure};
use super::super::class::ClassSample;
use super::super::class::merging::MergeLimit;
use super::super::invariant::{InvariantId, check_invariant};
use super::super::limits::DispatchPolicy;
use super::super::queue::QueuedCall;
use super::super::select::{BatchCaps, Readiness, Selection, choose};
use super::super::stats::DispatchEvent;
use super::super::tick::Tick;
use super::{Batcher, InFlightBatch};

/// Maximum number of lines scanned for calls of other keys that wait beside a batch.
const BESIDE_MAX: usize = 16;

/// Maximum number of remaining calls examined to find whether weight kept them out: a few batches'
/// worth.
const LEFT_MAX: usize = 64;

/// Selection of the calls of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) enum Who {
    /// The front of the line, up to this many items if a number is given.
    Front(Option<u32>),
    /// The calls that the adaptive policy chose.
    Chosen,
}

// === impl Batcher ===

impl Batcher {
    /// Returns the first line, by the arrival of its head, that may leave now. A line that is held
    /// does not keep the others from leaving.
    pub(super) fn pick(&self, now: Tick) -> Option<(KeyId, DispatchCause)> {
        if !self.slot_is_free() {
            return None;
        }
        debug_assert_eq!(now, self.now);
        let lines = self.queue.lines().filter(|(_, head)| self.scope_is_free(head.call.scope));
        lines.filter(|(key, _)| self.paused_until(*key).is_none()).find_map(|(key, head)| {
            match self.ready(&self.queue, key, head) {
                Readiness::Now(cause) => Some((key, cause)),
                Readiness::At(_) => None,
            }
        })
    }

    /// Returns `true` if calls remain in the line and weight kept each of them out of a batch like
    /// this one. Among chosen calls no single one marks the end of the batch, so all are checked.
    fn is_cut_by_weight(&self, key: KeyId, batch: Weight, items: u32, walls: BatchCaps) -> bool {
        let left = || self.queue.line(key).take(LEFT_MAX).map(|queued| &queued.call);
        let joins = |call: &Call| {
            let (more, sum) = (items.saturating_add(call.items), batch.sum.saturating_add(call.weight.sum));
            more > walls.items || walls.admits_weight(sum, more, batch.max.max(call.weight.max))
        };
        walls.has_weight_cap() && left().next().is_some() && !left().any(joins)
    }

    pub(super) fn next_adaptive(&mut self, now: Tick, hold_permille: u32) -> Option<Decision> {
        loop {
            return match self.wanted(now, hold_permille) {
                Action::Send { key, items, cause, kind } => {
                    self.dispatch(now, key, cause, Who::Front(Some(items)), kind)
                }
                Action::Chosen { key, cause, kind } => self.dispatch(now, key, cause, Who::Chosen, kind),
                // Deferred calls move behind those that can be in time. Each is deferred at most
                // once.
                Action::Expire { id, .. } if self.defer(now, id) => continue,
                Action::Expire { id, reason } => Some(self.expire_call(now, id, reason)),
                Action::Nothing => None,
            };
        }
    }

    fn wanted(&mut self, now: Tick, hold_permille: u32) -> Action {
        let free = self.free.total(now);
        let missing = self.missing;
        let ctx = DecisionContext { now, limits: &self.limits, queue: &self.queue, free, hold_permille, missing };
        let scopes = &self.scopes_in_flight;
        let scope_is_free =
            |scope: ScopeId| scopes.get(&scope).copied().unwrap_or(0) < self.limits.scope(scope).slots_max;
        let (paused, draining) = (&self.paused, self.draining);
        let lines = self.queue.lines().filter(|(_, head)| scope_is_free(head.call.scope));
        let lines = lines.filter(|(key, _)| draining || paused.until(now, *key).is_none());
        self.adaptive.next(ctx, lines, &self.classes)
    }

    pub(super) fn dispatch(
        &mut self,
        now: Tick,
        key: KeyId,
        cause: DispatchCause,
        who: Who,
        kind: DispatchKind,
    ) -> Option<Decision> {
        let head = &self.queue.line(key).next()?.call;
        let (cost_class, scope, shareable) = (head.cost_class, head.scope, !head.alone);
        let (replayable, together) = (head.replayable, self.merge_bound(head));
        let who = self.shorten_late_batch(key, who);
        let walls = self.walls(cost_class, scope);
        let cut = match who {
            Who::Front(want) => choose(self.view(), self.queue.line(key), together, walls, want)?,
            Who::Chosen => {
                let chosen = self.adaptive.chosen().iter().filter_map(|id| self.queue.get(*id));
                choose(self.view(), chosen, together, walls, None)?
            }
        };
        let (choice, retest) = match self.ask_again(now, key, who, kind, &cut).filter(|_| together == MergeLimit::Free)
        {
            Some((larger, bounded)) => (larger, Some(bounded)),
            None => (cut, None),
        };
        let Selection { ids, items, weight, heaviest: max, bytes, bound, mut lone } = choice;
        if kind == DispatchKind::Forward && self.adaptive.finds_no_gain(cost_class) {
            lone = lone.or(Some(UnbatchedReason::NoGain));
        }
        let (mut first, mut last) = (now, Tick(0));
        let mut deadlines = DeadlineSpread::default();
        check_invariant!(InvariantId::WithinSlots, self.in_flight.len() < self.limits.slots as usize);
        let id = BatchId(self.next_batch);
        self.next_batch += 1;
        let mut members = Vec::with_capacity(ids.len());
        let mut start = 0;
        let (mut waited, mut slo) = (Duration::ZERO, None);
        let adaptive = matches!(self.limits.policy, DispatchPolicy::Adaptive { .. });
        let alone = self.queue.flows() <= 1 && self.late.queue.flows() <= 1;
        for &call in &ids {
            let Some(queued) = self.queue.remove(call) else { continue };
            check_invariant!(InvariantId::OneKey, queued.call.key == key);
            let late = queued.call.deadline.is_some_and(|deadline| deadline.at <= now);
            check_invariant!(InvariantId::NotLate, !late || self.missing.has(Feature::Shedding));
            waited = waited.saturating_add(now.since(queued.arrived));
            slo = slo_of(&queued).map(|left| queued.call.slo.unwrap_or(left)).or(slo);
            if adaptive {
                let share = self.limits.share(&queued.call);
                self.adaptive.charge(&queued.call, BatchWork { items, weight }, share, alone);
            }
            if let Some(deadline) = queued.call.deadline.filter(|deadline| deadline.source != DeadlineSource::Timeout) {
                deadlines.add(queued.call.items, deadline.at);
            }
            (first, last) = (first.min(queued.arrived), last.max(queued.arrived));
            self.members.insert(call, id);
            members.push(Member { id: call, items: start..start + queued.call.items });
            start += queued.call.items;
        }
        check_invariant!(InvariantId::Balanced, start == items);
        let trial = together == MergeLimit::Trial && members.len() > 1;
        if members.len() > 1 {
            self.classes.sent(now, cost_class, id, members.len(), trial);
        }
        if let Some(bounded) = retest {
            self.classes.testing(cost_class, bounded);
        }
        let size = ClassSample {
            extent: BatchExtent { items, sum: weight, heaviest: max },
            shared: members.len() > 1,
            full: items >= walls.items,
            memory: if adaptive { self.adaptive.memory(cost_class) } else { SizeMeasure::PaddedWeight },
            retest,
        };
        self.in_flight.insert(
            id,
            InFlightBatch {
                key: shareable.then_some(key),
                replayable,
                cost_class,
                scope,
                size,
                members: ids,
                waiting: members.len(),
            },
        );
        *self.scopes_in_flight.entry(scope).or_default() += 1;
        // Recorded under every policy: requests in flight count when the policy changes, and those
        // that run without overlap are cost samples.
        let left = self.queue.load_of_key(key).items;
        let in_all = Weight { sum: weight, max };
        let leaving = Dispatch {
            key,
            class: cost_class,
            items,
            weight: in_all,
            kind,
            calls: u32::try_from(members.len()).unwrap_or(u32::MAX),
            first,
            last,
            alone: !shareable || lone.is_some_and(|lone| lone != UnbatchedReason::NoGain),
            queued: self.held_by_class(cost_class),
            left,
            deadlines,
            asks: retest.is_some(),
        };
        let predicted = self.adaptive.sent(now, id, leaving).map(Duration::from_nanos);
        self.free.note(now, self.slot_is_free());
        // The limit that cut a batch short is its cause. A drain is the cause of each of its
        // batches.
        let cause = match cause {
            DispatchCause::Drain => cause,
            _ if retest.is_some() || trial => DispatchCause::Probe,
            _ => match (bound, who) {
                (Some(bound), _) => bound,
                (None, Who::Chosen)
                    if kind == DispatchKind::Batch && self.is_cut_by_weight(key, in_all, items, walls) =>
                {
                    DispatchCause::Weight
                }
                (None, _) => cause,
            },
        };
        let other = |(other, head): (KeyId, &QueuedCall)| {
            other != key && head.call.cost_class == cost_class && !head.call.alone
        };
        self.tallies.sent(DispatchEvent {
            now,
            class: cost_class,
            cause,
            lone,
            alone: !shareable,
            calls: members.len(),
            items,
            items_max: self.limits.scope(scope).batch_items_max,
            beside: self.in_flight.len() > 1,
            apart: items < walls.items && self.queue.lines().take(BESIDE_MAX).any(other),
            waited,
            slo,
        });
        Some(Decision::Dispatch(Batch { id, key, cost_class, members, items, weight, bytes, cause, lone, predicted }))
    }
}
