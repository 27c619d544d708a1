//! When a line must leave, and who of it, by the plain reading of the promises.

use std::collections::BTreeSet;
use std::time::Duration;

use groupage::batching::{
    Batcher, Bounded, Call, Cause, DeadlineSource, KeyId, Limits, Lone, Policy, ScopeLimits, Tick,
};

use super::learned::Learned;

/// A queued call.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) call: Call,
    pub(crate) arrived: Tick,
    /// How long it has waited while a slot was free.
    pub(crate) beside_slot: Duration,
    /// Its SLO could not be met by any execution, so it ends nothing; its later deadline does.
    pub(crate) forgiven: bool,
}

/// The queued calls of one key, in order of arrival; never empty.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    pub(crate) key: KeyId,
    pub(crate) calls: Vec<&'a Waiting>,
}

/// What a line is judged by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) now: Tick,
    pub(crate) limits: &'a Limits,
    pub(crate) learned: Option<&'a Learned>,
    pub(crate) draining: bool,
    /// Replays in hand.
    pub(crate) replays: u64,
    /// The core before the event: whether a call is merged is predicted by its own tests, what follows from it here.
    pub(crate) core: Option<&'a Batcher>,
}

/// What bounds a batch, but for its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Walls {
    pub(crate) items: u32,
    pub(crate) weight: u64,
    /// Items × the heaviest one.
    pub(crate) padded: u64,
}

/// When a line must leave, a slot being free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Now(Cause),
    At(Tick),
}

/// Who must leave when a line does.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leaving {
    /// How many, from the front.
    pub(crate) calls: usize,
    /// The limit that kept the next one out, or that was reached.
    pub(crate) bound: Option<Cause>,
    pub(crate) lone: Option<Lone>,
    /// A value that may stand in a batch once kept the next one out.
    pub(crate) exclusive: bool,
    /// What bounded it.
    pub(crate) walls: Walls,
    /// The ceiling that it passes, to ask it again.
    pub(crate) retest: Option<Bounded>,
    /// It asks whether the server takes batches.
    pub(crate) trial: bool,
}

// === impl Waiting ===

impl Waiting {
    /// Until when it may be sent.
    pub(crate) fn deadline(&self) -> Option<Tick> {
        let counts = if self.forgiven { self.call.later } else { self.call.deadline };
        counts.map(|deadline| deadline.at)
    }
}

// === impl Rules ===

impl Rules<'_> {
    /// Most items in a batch: the limit, or what was learned if that is less.
    pub(crate) fn cap(&self, scope: &ScopeLimits) -> u32 {
        self.learned.and_then(Learned::ceiling).unwrap_or(u32::MAX).min(scope.batch_items_max)
    }

    /// The smallest of the limits and of what was learned.
    pub(crate) fn walls(&self, scope: &ScopeLimits) -> Walls {
        let known = |bounded| self.learned.and_then(|learned| learned.max(bounded)).unwrap_or(u64::MAX);
        Walls {
            items: self.cap(scope),
            weight: known(Bounded::Weight).min(scope.batch_weight_max.unwrap_or(u64::MAX)),
            padded: known(Bounded::PaddedWeight),
        }
    }

    /// Items up to which a batch is filled: under `Window` and `Static` their `items`, if that is less.
    fn fill(&self, cap: u32) -> u32 {
        match self.limits.policy {
            Policy::WorkConserving | Policy::Adaptive { .. } => cap,
            Policy::Window { items, .. } | Policy::Static { items, .. } => cap.min(items),
        }
    }

    /// What is expected of an execution: the last one and a quarter of it, at least 4 ms.
    fn expected(&self) -> Option<Duration> {
        let last = self.learned.and_then(Learned::last)?;
        Some(last + (last / 4).max(Duration::from_millis(4)))
    }

    /// The most calls that may leave with this one, and why it is one.
    pub(crate) fn merge_limit(&self, call: &Call) -> (usize, Option<Lone>) {
        self.core.map_or((usize::MAX, None), |core| core.merge_limit(self.now, call))
    }
}

// === impl Line ===

impl Line<'_> {
    pub(crate) fn head(&self) -> &Waiting {
        self.calls[0]
    }

    /// When this line must leave.
    pub(crate) fn due(&self, rules: Rules<'_>) -> Due {
        if rules.draining {
            return Due::Now(Cause::Drain);
        }
        let head = self.head();
        let scope = rules.limits.scope(head.call.scope);
        // A window is time beside a free slot; any hold ends when that is as much as the limit of the route.
        let until = |beside_slot: Duration| rules.now.after(beside_slot.saturating_sub(head.beside_slot));
        let (end, delay) = match rules.limits.policy {
            Policy::WorkConserving | Policy::Adaptive { .. } => return Due::Now(Cause::Idle),
            Policy::Window { delay, .. } => (until(delay), delay),
            Policy::Static { delay, .. } => (head.arrived.after(delay), delay),
        };
        let (most, _) = rules.merge_limit(&head.call);
        if head.call.alone || most <= self.calls.len().min(2) {
            return Due::Now(Cause::Idle);
        }
        let walls = rules.walls(scope);
        let fill = rules.fill(walls.items);
        let sum = |of: fn(&Call) -> u64| self.calls.iter().map(|waiting| of(&waiting.call)).sum::<u64>();
        let items = sum(|call| u64::from(call.items));
        if items >= u64::from(fill) {
            return Due::Now(Cause::Full);
        }
        // More than one batch holds: the next one is as large now as it will ever be.
        if sum(|call| call.weight.sum) > walls.weight {
            return Due::Now(Cause::Weight);
        }
        if sum(|call| call.bytes) > scope.batch_bytes_max {
            return Due::Now(Cause::Bytes);
        }
        let hold_ends = end.min(until(scope.queue_delay_max));
        if rules.now >= hold_ends {
            return Due::Now(if delay == Duration::ZERO { Cause::Idle } else { Cause::Delay });
        }
        // A deadline within the hold sends the batch early enough to be answered: by the last execution's time and a quarter of it, at least 4 ms.
        let urgent = self
            .calls
            .iter()
            .filter_map(|waiting| waiting.deadline())
            .min()
            .map(|deadline| deadline.before(rules.expected().unwrap_or(deadline.since(head.arrived) / 2)));
        match urgent {
            Some(urgent) if rules.now >= urgent => Due::Now(Cause::Deadline),
            Some(urgent) => Due::At(urgent.min(hold_ends)),
            None => Due::At(hold_ends),
        }
    }

    /// Who must leave together: as many from the front as the limits allow, and always the first; or some more, to ask a ceiling again.
    pub(crate) fn leaving(&self, rules: Rules<'_>) -> Leaving {
        let scope = rules.limits.scope(self.head().call.scope);
        let cut = self.up_to(rules, rules.walls(scope));
        self.asking(rules, &cut).unwrap_or(cut)
    }

    /// The larger batch in place of this one, if a ceiling that cuts it is to be asked again and nobody would be late for it.
    fn asking(&self, rules: Rules<'_>, cut: &Leaving) -> Option<Leaving> {
        let (bounded, up_to, took) = rules.learned?.retest(rules.now)?;
        let by = if bounded == Bounded::Items { Cause::Full } else { Cause::Weight };
        if rules.draining || cut.lone.is_some() || self.head().call.alone || cut.bound != Some(by) {
            return None;
        }
        let scope = rules.limits.scope(self.head().call.scope);
        let walls = match bounded {
            Bounded::Items => {
                let items = u32::try_from(up_to).unwrap_or(u32::MAX).min(scope.batch_items_max);
                Walls { items, ..cut.walls }
            }
            Bounded::Weight => Walls { weight: up_to.min(scope.batch_weight_max.unwrap_or(u64::MAX)), ..cut.walls },
            Bounded::PaddedWeight => Walls { padded: up_to, ..cut.walls },
        };
        let larger = self.up_to(rules, walls);
        let members = &self.calls[..larger.calls];
        let items: u32 = members.iter().map(|waiting| waiting.call.items).sum();
        let size = match bounded {
            Bounded::Items => u64::from(items),
            Bounded::Weight => members.iter().map(|waiting| waiting.call.weight.sum).sum(),
            Bounded::PaddedWeight => {
                u64::from(items) * members.iter().map(|waiting| waiting.call.weight.max).max().unwrap_or(0)
            }
        };
        let beyond = rules.learned.and_then(|learned| learned.max(bounded)).is_some_and(|max| size > max);
        let one = rules.expected()?;
        // If it is refused, its halves are sent one after the other.
        let on_time = members.iter().enumerate().all(|(at, waiting)| {
            let parts = if at < members.len() / 2 { 1 } else { 2 };
            let counts = if waiting.forgiven { waiting.call.later } else { waiting.call.deadline };
            let useful = counts.filter(|deadline| deadline.source != DeadlineSource::Timeout);
            useful.is_none_or(|deadline| deadline.at.since(rules.now) >= took + one * parts)
        });
        let in_hand = rules.replays >= u64::try_from(members.len()).unwrap_or(u64::MAX);
        (beyond && members.len() > 1 && on_time && in_hand).then_some(Leaving { retest: Some(bounded), ..larger })
    }

    /// As many from the front as these walls and the bytes allow, and always the first.
    fn up_to(&self, rules: Rules<'_>, walls: Walls) -> Leaving {
        let head = &self.head().call;
        let scope = rules.limits.scope(head.scope);
        let alone = |lone| Leaving { calls: 1, bound: None, lone, exclusive: false, walls, retest: None, trial: false };
        if head.alone {
            return alone(None);
        }
        if head.items > walls.items {
            return alone(Some(Lone::ClientBatchFull));
        }
        let (most, lone) = rules.merge_limit(head);
        if most == 1 {
            return alone(lone);
        }
        let fill = rules.fill(walls.items);
        let mut leaving =
            Leaving { calls: 0, bound: None, lone: None, exclusive: false, walls, retest: None, trial: false };
        let (mut items, mut weight, mut heaviest, mut bytes, mut values) = (0, 0, 0, 0, BTreeSet::new());
        for Waiting { call, .. } in &self.calls {
            if leaving.calls > 0 {
                if call.alone || leaving.calls >= most {
                    break;
                }
                leaving.bound = if items + call.items > fill {
                    Some(Cause::Full)
                } else if weight + call.weight.sum > walls.weight
                    || u64::from(items + call.items) * call.weight.max.max(heaviest) > walls.padded
                {
                    Some(Cause::Weight)
                } else if bytes + call.bytes > scope.batch_bytes_max {
                    Some(Cause::Bytes)
                } else {
                    None
                };
                leaving.exclusive =
                    leaving.bound.is_none() && call.exclusive.iter().any(|value| values.contains(value));
                if leaving.bound.is_some() || leaving.exclusive {
                    break;
                }
            }
            leaving.calls += 1;
            items += call.items;
            weight += call.weight.sum;
            heaviest = call.weight.max.max(heaviest);
            bytes += call.bytes;
            values.extend(call.exclusive.iter().copied());
        }
        if items >= fill {
            leaving.bound = Some(Cause::Full);
        }
        leaving.trial = most == 2 && leaving.calls > 1;
        leaving
    }
}
