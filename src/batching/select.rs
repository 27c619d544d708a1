//! Pure decision functions shared by all policies: the instant at which a merge key may be
//! dispatched under a fixed policy, and the calls that fit into one batch. Their inputs are the
//! queue and the limits.

use std::collections::BTreeSet;
use std::time::Duration;

use super::batch::{DispatchCause, UnbatchedReason};
use super::call::{Call, CallId, KeyId};
use super::ceiling::{BatchExtent, SizeMeasure};
use super::class::ClassState;
use super::class::merging::MergeLimit;
use super::limits::{DispatchPolicy, Limits, ScopeLimits};
use super::queue::{Load, Queue, QueuedCall};
use super::tick::Tick;

/// Minimum margin between the expected end of an execution and the deadline that it has to meet:
/// one tick of a kernel scheduler at 250 Hz. For short executions, the usual margin of a quarter of
/// the execution would be used up by a single late wake-up.
const LEAD_SPARE: Duration = Duration::from_millis(4);

/// Maximum initial capacity for the calls of a batch: the default of `limits.batchItemsMax`. The
/// vector of a larger batch grows.
const ROOM_MAX: usize = 128;

/// The readiness of a merge key for dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Ready now. The cause applies unless a limit cuts the batch.
    Now(DispatchCause),
    /// Not ready before this instant.
    At(Tick),
}

/// The calls selected from a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) ids: Vec<CallId>,
    pub(super) items: u32,
    pub(super) weight: u64,
    /// Weight of the heaviest item.
    pub(super) heaviest: u64,
    pub(super) bytes: u64,
    /// The limit that ended the batch, if one did.
    pub(super) bound: Option<DispatchCause>,
    pub(super) unbatched_reason: Option<UnbatchedReason>,
}

/// The limits of a batch except for its bytes: for each measure the smallest of the configured, the
/// published and the learned limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchCaps {
    pub(super) items: u32,
    /// Sum of the weights.
    pub(super) sum: u64,
    /// Items × the weight of the heaviest one.
    pub(super) padded: u64,
}

/// Room of a batch for further calls.
#[derive(Debug, Clone, Copy)]
struct BatchRoom {
    /// Number of items at which the batch is complete.
    fill: u32,
    calls_max: usize,
    bytes_max: u64,
    caps: BatchCaps,
    /// Cause to report if `fill` ends the batch; `None` if `fill` is a desired size and no limit.
    bound: Option<DispatchCause>,
}

/// Inputs of a decision other than the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecisionView<'a> {
    pub(super) now: Tick,
    pub(super) limits: &'a Limits,
    pub(super) draining: bool,
    /// Total time for which a slot has been free.
    pub(super) free: Duration,
}

/// Decides at what time the queue of `key` may be dispatched, given that a slot is free. `head` is
/// its first call.
pub(super) fn ready(
    view: DecisionView<'_>,
    queue: &Queue,
    (key, head): (KeyId, &QueuedCall),
    class: Option<&ClassState>,
    together: MergeLimit,
) -> Readiness {
    if view.draining {
        return Readiness::Now(DispatchCause::Drain);
    }
    // The time waited beside a free slot accumulates over all periods with a free slot. If it began
    // anew in each, the waits of several keys that are dispatched in turn would add up.
    let beside_slot = view.free.saturating_sub(head.free_before);
    let hold_ends = |delay: Duration| view.now.after(delay.saturating_sub(beside_slot));
    let (threshold, delay, end) = match view.limits.policy {
        DispatchPolicy::WorkConserving | DispatchPolicy::Adaptive { .. } => return Readiness::Now(DispatchCause::Idle),
        DispatchPolicy::Window { items, delay } => (items, delay, hold_ends(delay)),
        DispatchPolicy::Static { items, delay } => (items, delay, head.arrived.after(delay)),
    };
    // A trial batch of two calls is complete.
    let complete = together == MergeLimit::Trial && queue.calls_of(key).nth(1).is_some();
    if head.call.unmergeable || complete || matches!(together, MergeLimit::Unbatched(_)) {
        return Readiness::Now(DispatchCause::Idle);
    }
    let scope = view.limits.scope(head.call.scope);
    let caps = BatchCaps::new(scope, class, false);
    let cap = caps.items.min(threshold);
    // A batch that is cut by a limit does not grow by waiting.
    if let Some(cause) = reached_limit(queue.load_of_key(key), cap, caps, scope) {
        return Readiness::Now(cause);
    }
    // `queue_delay_max` bounds deliberate holding beside a free slot, whatever the policy's own
    // delay is.
    let hold_end = end.min(hold_ends(scope.queue_delay_max));
    let within = usize::try_from(cap).unwrap_or(usize::MAX);
    let urgent = queue.earliest_deadline(key, within).map(|at| at.before(hold_margin(class, head, at)));
    match urgent {
        _ if view.now >= hold_end => {
            Readiness::Now(if delay.is_zero() { DispatchCause::Idle } else { DispatchCause::Delay })
        }
        Some(urgent) if view.now >= urgent => Readiness::Now(DispatchCause::Deadline),
        Some(urgent) => Readiness::At(hold_end.min(urgent)),
        None => Readiness::At(hold_end),
    }
}

/// Returns the limit at which a batch of all queued calls ends, if there is one. `cap`: the number
/// of items that fill a batch.
fn reached_limit(load: Load, cap: u32, caps: BatchCaps, scope: &ScopeLimits) -> Option<DispatchCause> {
    match () {
        () if load.items >= u64::from(cap) => Some(DispatchCause::Full),
        () if load.weight > caps.sum => Some(DispatchCause::Weight),
        () if load.bytes > scope.batch_bytes_max => Some(DispatchCause::Bytes),
        () => None,
    }
}

/// Returns the time before a deadline at which a held batch must be dispatched: the expected
/// execution time, or half of the call's whole budget while nothing is known.
fn hold_margin(class: Option<&ClassState>, head: &QueuedCall, at: Tick) -> Duration {
    class.and_then(expected_execution).unwrap_or_else(|| at.since(head.arrived) / 2)
}

/// Returns the expected execution time: the last one plus a quarter, or plus [`LEAD_SPARE`] if that
/// is more.
pub(super) fn expected_execution(class: &ClassState) -> Option<Duration> {
    class.last_execution().map(|last| last.saturating_add(LEAD_SPARE.max(last / 4)))
}

// === impl BatchCaps ===

impl BatchCaps {
    /// Creates the limits for a route and a cost class. If `padded` is set, the class pays for
    /// every item as if it were the heaviest, so the configured weight limit applies to padded
    /// weight too.
    pub(super) fn new(scope: &ScopeLimits, class: Option<&ClassState>, padded: bool) -> Self {
        let known = |bounded| class.map_or(u64::MAX, |class| class.max(bounded));
        let weight_max = scope.batch_weight_max.unwrap_or(u64::MAX);
        let (sum_max, padded_max) = if padded { (u64::MAX, weight_max) } else { (weight_max, u64::MAX) };
        Self {
            items: scope.batch_items_max.min(class.map_or(u32::MAX, ClassState::ceiling)).max(1),
            sum: known(SizeMeasure::Weight).min(sum_max),
            padded: known(SizeMeasure::PaddedWeight).min(padded_max),
        }
    }

    /// Returns the limits with one of them raised to `max`, as far as the policy allows it.
    pub(super) fn raised(self, scope: &ScopeLimits, padded: bool, bounded: SizeMeasure, max: u64) -> Self {
        let own = Self::new(scope, None, padded);
        match bounded {
            SizeMeasure::Items => Self { items: u32::try_from(max).unwrap_or(u32::MAX).min(own.items), ..self },
            SizeMeasure::Weight => Self { sum: max.min(own.sum), ..self },
            SizeMeasure::PaddedWeight => Self { padded: max.min(own.padded), ..self },
        }
    }

    /// Returns `true` if a batch of this size satisfies the weight limits.
    pub(super) fn admits_weight(&self, sum: u64, items: u32, heaviest: u64) -> bool {
        sum <= self.sum && BatchExtent { items, sum, heaviest }.in_measure(SizeMeasure::PaddedWeight) <= self.padded
    }

    /// Returns `true` if any weight limit is set.
    pub(super) fn has_weight_cap(&self) -> bool {
        self.sum < u64::MAX || self.padded < u64::MAX
    }
}

/// Selects the calls of a batch from the front of a queue, in order, while every limit holds and up
/// to `want` items. The first call is always selected, however large it is.
pub(super) fn select_members<'a>(
    view: DecisionView<'_>,
    mut calls: impl Iterator<Item = &'a QueuedCall>,
    together: MergeLimit,
    caps: BatchCaps,
    want: Option<u32>,
) -> Option<Selection> {
    let first = &calls.next()?.call;
    let cap = caps.items;
    let full = match view.limits.policy {
        DispatchPolicy::WorkConserving | DispatchPolicy::Adaptive { .. } => cap,
        DispatchPolicy::Window { items, .. } | DispatchPolicy::Static { items, .. } => cap.min(items.max(1)),
    };
    let fill = want.map_or(full, |want| want.clamp(1, full));
    let mut choice = Selection::of_first(first, fill);
    // The first call determines whether the batch is shared at all.
    if first.unmergeable {
        return Some(choice);
    }
    if first.items > cap {
        choice.unbatched_reason = Some(UnbatchedReason::ClientBatchFull);
        return Some(choice);
    }
    match together {
        MergeLimit::Free | MergeLimit::Trial => {}
        MergeLimit::Unbatched(reason) => {
            choice.unbatched_reason = reason;
            return Some(choice);
        }
        MergeLimit::Deferred => return Some(choice),
    }
    let room = BatchRoom {
        fill,
        calls_max: if together == MergeLimit::Trial { 2 } else { usize::MAX },
        bytes_max: view.limits.scope(first.scope).batch_bytes_max,
        caps,
        // The desired size is not a limit, so reaching it is not reported as `Full`.
        bound: (fill == full).then_some(DispatchCause::Full),
    };
    choice.extend(calls, &room, first.exclusive.iter().copied().collect());
    Some(choice)
}

// === impl Selection ===

impl Selection {
    /// Creates the selection of the first call of a batch, with room for `fill` calls.
    fn of_first(first: &Call, fill: u32) -> Self {
        let mut ids = Vec::with_capacity(usize::try_from(fill).unwrap_or(usize::MAX).min(ROOM_MAX));
        ids.push(first.id);
        Self {
            ids,
            items: first.items,
            weight: first.weight.sum,
            heaviest: first.weight.max,
            bytes: first.bytes,
            bound: None,
            unbatched_reason: None,
        }
    }

    /// Adds `calls` in order while there is room, and records the limit that ended the
    /// batch. `exclusive`: the exclusive values of the calls selected so far.
    fn extend<'a>(
        &mut self,
        calls: impl Iterator<Item = &'a QueuedCall>,
        room: &BatchRoom,
        mut exclusive: BTreeSet<u64>,
    ) {
        for queued in calls {
            if self.items >= room.fill || self.ids.len() >= room.calls_max {
                break;
            }
            let call = &queued.call;
            if call.unmergeable {
                break;
            }
            if self.items + call.items > room.fill {
                self.bound = room.bound;
                break;
            }
            let weight = self.weight.saturating_add(call.weight.sum);
            let heaviest = self.heaviest.max(call.weight.max);
            if !room.caps.admits_weight(weight, self.items + call.items, heaviest) {
                self.bound = Some(DispatchCause::Weight);
                break;
            }
            if self.bytes.saturating_add(call.bytes) > room.bytes_max {
                self.bound = Some(DispatchCause::Bytes);
                break;
            }
            // A second call with the same exclusive value would be ambiguous in a response that is
            // a map.
            if call.exclusive.iter().any(|value| exclusive.contains(value)) {
                break;
            }
            exclusive.extend(call.exclusive.iter().copied());
            self.ids.push(call.id);
            self.items += call.items;
            self.weight = weight;
            self.heaviest = heaviest;
            self.bytes += call.bytes;
        }
        if self.items >= room.fill {
            self.bound = room.bound;
        }
    }
}
