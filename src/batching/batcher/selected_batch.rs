//! A batch on its way out of the queue: its selection, and the calls that were taken for it.

use std::time::Duration;

use super::super::adaptive::{DeadlineSpread, DispatchKind, slo_of};
use super::super::batch::Member;
use super::super::call::{CostClassId, DeadlineSource, KeyId, ScopeId, TenantId, Weight};
use super::super::ceiling::SizeMeasure;
use super::super::class::merging::MergeLimit;
use super::super::queue::QueuedCall;
use super::super::select::{BatchCaps, Selection};
use super::super::tick::Tick;

/// Calls from which the members of a batch are selected.
#[derive(Debug, Clone, Copy)]
pub(super) enum MemberChoice {
    /// The front of the key queue, up to this many items if a number is given.
    Front(Option<u32>),
    /// The calls that the adaptive policy chose.
    Chosen,
}

/// A selected batch. Its calls are queued until they are taken.
#[derive(Debug)]
pub(super) struct SelectedBatch {
    pub(super) key: KeyId,
    /// Tenant of the first call.
    pub(super) tenant: TenantId,
    pub(super) kind: DispatchKind,
    /// The calls from which `choice` was selected.
    pub(super) members: MemberChoice,
    pub(super) cost_class: CostClassId,
    pub(super) scope: ScopeId,
    /// `true` if other calls may have the key of its first call.
    pub(super) shareable: bool,
    pub(super) replayable: bool,
    /// Bound on the number of calls that may share it.
    pub(super) together: MergeLimit,
    pub(super) caps: BatchCaps,
    pub(super) choice: Selection,
    /// The ceiling that the batch retests.
    pub(super) retest: Option<SizeMeasure>,
}

/// The calls of a batch that were taken from the queue.
#[derive(Debug)]
pub(super) struct TakenCalls {
    pub(super) members: Vec<Member>,
    pub(super) items: u32,
    /// Arrival times of the first and the last of them.
    pub(super) first: Tick,
    pub(super) last: Tick,
    /// Total waiting time.
    pub(super) waited: Duration,
    /// SLO of the last call that has one.
    pub(super) slo: Option<Duration>,
    pub(super) deadlines: DeadlineSpread,
}

// === impl SelectedBatch ===

impl SelectedBatch {
    pub(super) fn weight(&self) -> Weight {
        Weight { sum: self.choice.weight, max: self.choice.heaviest }
    }
}

// === impl TakenCalls ===

impl TakenCalls {
    /// Creates an empty set with room for this many calls.
    pub(super) fn new(now: Tick, capacity: usize) -> Self {
        Self {
            members: Vec::with_capacity(capacity),
            items: 0,
            first: now,
            last: Tick(0),
            waited: Duration::ZERO,
            slo: None,
            deadlines: DeadlineSpread::default(),
        }
    }

    pub(super) fn add(&mut self, now: Tick, queued: &QueuedCall) {
        let call = &queued.call;
        self.waited = self.waited.saturating_add(now.since(queued.arrived));
        self.slo = slo_of(queued).map(|left| call.slo.unwrap_or(left)).or(self.slo);
        if let Some(deadline) = call.deadline.filter(|deadline| deadline.source != DeadlineSource::Timeout) {
            self.deadlines.add(call.items, deadline.at);
        }
        (self.first, self.last) = (self.first.min(queued.arrived), self.last.max(queued.arrived));
        self.members.push(Member { id: call.id, items: self.items..self.items + call.items });
        self.items += call.items;
    }
}
