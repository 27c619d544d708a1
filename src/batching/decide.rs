//! When a line may leave, and who of it leaves together. Pure functions of what is queued and what the limits say.

use std::collections::BTreeSet;
use std::time::Duration;

use super::batch::{Cause, Lone};
use super::call::{CallId, KeyId};
use super::ceiling::{Bounded, Extent};
use super::class::Class;
use super::class::merging::Bound;
use super::limits::{Limits, Policy, ScopeLimits};
use super::queue::{Queue, Queued};
use super::tick::Tick;

/// Least spare time between the expected end of an execution and the deadline it is to meet: one tick of a kernel's scheduler at 250 Hz. A quarter of an
/// execution of 1 ms would be used up by one wake-up that comes late.
const LEAD_SPARE: Duration = Duration::from_millis(4);

/// Room made at once for the calls of a batch: the default of `limits.batchItemsMax`. A larger batch grows.
const ROOM_MAX: usize = 128;

/// Whether a line may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    /// Now, for this reason unless a limit cuts the batch.
    Now(Cause),
    /// Not before this instant.
    At(Tick),
}

/// The calls chosen from a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) ids: Vec<CallId>,
    pub(super) items: u32,
    pub(super) weight: u64,
    /// Of the heaviest item.
    pub(super) heaviest: u64,
    pub(super) bytes: u64,
    /// The limit that ended the batch, if one did.
    pub(super) bound: Option<Cause>,
    pub(super) lone: Option<Lone>,
}

/// What bounds a batch, but for its bytes: of the policy, what is published and what was learned the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Walls {
    pub(super) items: u32,
    /// Σw.
    pub(super) sum: u64,
    /// Items × the heaviest one's weight.
    pub(super) padded: u64,
}

/// What a decision looks at besides the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) now: Tick,
    pub(super) limits: &'a Limits,
    pub(super) draining: bool,
    /// How long in all a slot has been free.
    pub(super) free: Duration,
}

/// When the line of `key`, whose first call is `head`, may leave, a slot being free.
pub(super) fn ready(
    view: View<'_>,
    queue: &Queue,
    (key, head): (KeyId, &Queued),
    class: Option<&Class>,
    together: Bound,
) -> Ready {
    if view.draining {
        return Ready::Now(Cause::Drain);
    }
    // What it has waited beside a free slot counts, whatever came between: several keys take turns, and the waits would add up otherwise.
    let beside_slot = view.free.saturating_sub(head.free_before);
    let hold_ends = |delay: Duration| view.now.after(delay.saturating_sub(beside_slot));
    let (threshold, delay, end) = match view.limits.policy {
        Policy::WorkConserving | Policy::Adaptive { .. } => return Ready::Now(Cause::Idle),
        Policy::Window { items, delay } => (items, delay, hold_ends(delay)),
        Policy::Static { items, delay } => (items, delay, head.arrived.after(delay)),
    };
    // A trial of two has all that it may hold.
    let complete = together == Bound::Trial && queue.line(key).nth(1).is_some();
    if head.call.alone || complete || matches!(together, Bound::Alone(_)) {
        return Ready::Now(Cause::Idle);
    }
    let scope = view.limits.scope(head.call.scope);
    let walls = Walls::new(scope, class, false);
    let cap = walls.items.min(threshold);
    let line = queue.line_held(key);
    if line.items >= u64::from(cap) {
        return Ready::Now(Cause::Full);
    }
    // A batch that a limit cuts does not grow by waiting.
    if line.weight > walls.sum {
        return Ready::Now(Cause::Weight);
    }
    if line.bytes > scope.batch_bytes_max {
        return Ready::Now(Cause::Bytes);
    }
    // queue_delay_max bounds deliberate holding beside a free slot, whatever the policy's own delay says.
    let hold_end = end.min(hold_ends(scope.queue_delay_max));
    let within = usize::try_from(cap).unwrap_or(usize::MAX);
    let urgent = queue.line_deadline(key, within).map(|at| at.before(lead(class, head, at)));
    match urgent {
        _ if view.now >= hold_end => Ready::Now(if delay.is_zero() { Cause::Idle } else { Cause::Delay }),
        Some(urgent) if view.now >= urgent => Ready::Now(Cause::Deadline),
        Some(urgent) => Ready::At(hold_end.min(urgent)),
        None => Ready::At(hold_end),
    }
}

/// How long before a deadline a held batch must leave: what is expected of an execution, half of the whole budget while nothing is known.
fn lead(class: Option<&Class>, head: &Queued, at: Tick) -> Duration {
    class.and_then(expected).unwrap_or_else(|| at.since(head.arrived) / 2)
}

/// What is expected of an execution, by the last one: a quarter more, or [`LEAD_SPARE`] if that is more than the quarter.
pub(super) fn expected(class: &Class) -> Option<Duration> {
    class.last().map(|last| last.saturating_add(LEAD_SPARE.max(last / 4)))
}

// === impl Walls ===

impl Walls {
    /// `padded`: the class pays for every item as if it were the heaviest, so that is what a policy's weight bounds too.
    pub(super) fn new(scope: &ScopeLimits, class: Option<&Class>, padded: bool) -> Self {
        let known = |bounded| class.map_or(u64::MAX, |class| class.max(bounded));
        let weight_max = scope.batch_weight_max.unwrap_or(u64::MAX);
        let (sum_max, padded_max) = if padded { (u64::MAX, weight_max) } else { (weight_max, u64::MAX) };
        Self {
            items: scope.batch_items_max.min(class.map_or(u32::MAX, Class::ceiling)).max(1),
            sum: known(Bounded::Weight).min(sum_max),
            padded: known(Bounded::PaddedWeight).min(padded_max),
        }
    }

    /// With one of them set to this much, where the policy allows it.
    pub(super) fn raised(self, scope: &ScopeLimits, padded: bool, bounded: Bounded, max: u64) -> Self {
        let own = Self::new(scope, None, padded);
        match bounded {
            Bounded::Items => Self { items: u32::try_from(max).unwrap_or(u32::MAX).min(own.items), ..self },
            Bounded::Weight => Self { sum: max.min(own.sum), ..self },
            Bounded::PaddedWeight => Self { padded: max.min(own.padded), ..self },
        }
    }

    /// Whether a batch keeps the walls of weight.
    pub(super) fn hold_weight(&self, sum: u64, items: u32, heaviest: u64) -> bool {
        sum <= self.sum && Extent { items, sum, heaviest }.of(Bounded::PaddedWeight) <= self.padded
    }

    /// Whether weights are bounded at all.
    pub(super) fn bound_weight(&self) -> bool {
        self.sum < u64::MAX || self.padded < u64::MAX
    }
}

/// The calls that leave together: from the front, in order, while every limit holds and up to `want` items. The first always leaves, however large it is.
pub(super) fn choose<'a>(
    view: View<'_>,
    mut line: impl Iterator<Item = &'a Queued>,
    together: Bound,
    walls: Walls,
    want: Option<u32>,
) -> Option<Choice> {
    let first = &line.next()?.call;
    let scope = view.limits.scope(first.scope);
    let cap = walls.items;
    let full = match view.limits.policy {
        Policy::WorkConserving | Policy::Adaptive { .. } => cap,
        Policy::Window { items, .. } | Policy::Static { items, .. } => cap.min(items.max(1)),
    };
    let fill = want.map_or(full, |want| want.clamp(1, full));
    let mut ids = Vec::with_capacity(usize::try_from(fill).unwrap_or(usize::MAX).min(ROOM_MAX));
    ids.push(first.id);
    let mut choice = Choice {
        ids,
        items: first.items,
        weight: first.weight.sum,
        heaviest: first.weight.max,
        bytes: first.bytes,
        bound: None,
        lone: None,
    };
    if first.alone {
        return Some(choice);
    }
    if first.items > cap {
        choice.lone = Some(Lone::ClientBatchFull);
        return Some(choice);
    }
    if let Bound::Alone(lone) = together {
        choice.lone = lone;
        return Some(choice);
    }
    let calls_max = if together == Bound::Trial { 2 } else { usize::MAX };
    // What was wanted is no limit.
    let bound = (fill == full).then_some(Cause::Full);
    let mut exclusive: BTreeSet<u64> = first.exclusive.iter().copied().collect();
    for queued in line {
        if choice.items >= fill || choice.ids.len() >= calls_max {
            break;
        }
        let call = &queued.call;
        if call.alone {
            break;
        }
        if choice.items + call.items > fill {
            choice.bound = bound;
            break;
        }
        let weight = choice.weight.saturating_add(call.weight.sum);
        let heaviest = choice.heaviest.max(call.weight.max);
        if !walls.hold_weight(weight, choice.items + call.items, heaviest) {
            choice.bound = Some(Cause::Weight);
            break;
        }
        if choice.bytes.saturating_add(call.bytes) > scope.batch_bytes_max {
            choice.bound = Some(Cause::Bytes);
            break;
        }
        if call.exclusive.iter().any(|value| exclusive.contains(value)) {
            break;
        }
        exclusive.extend(call.exclusive.iter().copied());
        choice.ids.push(call.id);
        choice.items += call.items;
        choice.weight = weight;
        choice.heaviest = heaviest;
        choice.bytes += call.bytes;
    }
    if choice.items >= fill {
        choice.bound = bound;
    }
    Some(choice)
}
