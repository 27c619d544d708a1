//! What is remembered for each cost class: ceilings, overload, whether it is merged, recent execution times.

pub(super) mod merging;

use std::collections::BTreeMap;
use std::time::Duration;

use super::batch::{BatchId, Lone, Observed, ObservedOutcome, Refusal};
use super::budget::ReplayBudget;
use super::call::{Call, CostClassId};
use super::ceiling::{Bounded, CeilingReport, CeilingSnapshot, Ceilings, Extent, LimitSource};
use super::limits::Limits;
use super::tick::Tick;
use merging::{Bound, Ended, Keys, Merging, MergingChange, Suspension};

/// Cost classes remembered at once; beyond it the one unused for longest goes (`scheduling.md` §1 keeps 64 curves; these are smaller).
const CLASSES_MAX: usize = 256;
/// Whole batches after which a quarantine starts small again (README R4).
const TRUSTED_AFTER: u32 = 100;
/// Full good batches for each item that an overload ceiling rises again (`scheduling.md` §2.6).
const RISE_AFTER: u32 = 8;
/// Changes of merging kept until they are taken: a log has no use for more.
const CHANGES_MAX: usize = 64;
/// Executions whose shortest one says what a lone call can hope for.
const RECENT: usize = 16;

/// The memory of one cost class.
#[derive(Debug, Clone)]
pub(super) struct Class {
    used: Tick,
    merging: Merging,
    ceilings: Ceilings,
    /// Most items since the upstream said that it is overloaded, and since when.
    overload_max: Option<(u32, Tick)>,
    full_good: u32,
    /// It said when to come back, and nothing was answered well since: it would refuse any size.
    refusing: bool,
    recent: [Duration; RECENT],
    executions: usize,
}

/// All cost classes, and what bounds attempts to merge.
#[derive(Debug, Clone)]
pub(super) struct Classes {
    map: BTreeMap<CostClassId, Class>,
    keys: Keys,
    /// Extra upstream calls that failed batches may cost, as far as can be told from here: without the policy's share, and every failed batch counted
    /// as if each of its members had been sent again.
    replays: ReplayBudget,
    changes: Vec<MergingChange>,
}

// === impl Class ===

impl Class {
    fn new(now: Tick) -> Self {
        Self {
            used: now,
            merging: Merging::default(),
            ceilings: Ceilings::default(),
            overload_max: None,
            full_good: 0,
            refusing: false,
            recent: [Duration::ZERO; RECENT],
            executions: 0,
        }
    }

    /// The time without merging that it is in.
    pub(super) const fn suspension(&self) -> Option<Suspension> {
        self.merging.suspension()
    }

    /// Most items in a batch of this class: the smallest of what was learned.
    pub(super) fn ceiling(&self) -> u32 {
        let known = u32::try_from(self.ceilings.max(Bounded::Items)).unwrap_or(u32::MAX);
        known.min(self.overload_max.map_or(u32::MAX, |(max, _)| max)).max(1)
    }

    /// The most by one measure, but for overload; `u64::MAX` where nothing is known.
    pub(super) fn max(&self, bounded: Bounded) -> u64 {
        self.ceilings.max(bounded)
    }

    /// A ceiling to be asked again: what it bounds, up to how much a batch may hold for it, and how long a refusal took the last time. None while the
    /// server is overloaded: then it would refuse anything.
    pub(super) fn retest(&self, now: Tick) -> Option<(Bounded, u64, Duration)> {
        self.ceilings.retest(now).filter(|_| self.overload_max.is_none())
    }

    /// What is in force.
    pub(super) fn ceilings(&self) -> Vec<CeilingReport> {
        let overload = self.overload_max.map(|(max, since)| CeilingReport {
            bounded: Bounded::Items,
            max: u64::from(max),
            source: LimitSource::Learned,
            since,
            retest: None,
        });
        self.ceilings.report().chain(overload).collect()
    }

    /// The shortest of the recent executions: an SLO below it cannot be met by any batch. `None` before the first.
    pub(super) fn fastest(&self) -> Option<Duration> {
        self.recent.iter().take(self.executions.min(RECENT)).min().copied()
    }

    /// The last execution's time.
    pub(super) fn last(&self) -> Option<Duration> {
        self.executions.checked_sub(1).and_then(|i| self.recent.get(i % RECENT)).copied()
    }

    fn observe(&mut self, now: Tick, limits: &Limits, batch: &BatchSize, observed: &Observed) {
        let &BatchSize { extent, shared, full, memory, retest } = batch;
        let items = extent.items;
        // With isolation the whole takes longer than the refusal did.
        let took = observed.first_byte.unwrap_or(observed.duration);
        match observed.outcome {
            ObservedOutcome::Ok => {
                if let Some(slot) = self.recent.get_mut(self.executions % RECENT) {
                    *slot = observed.duration;
                }
                self.executions += 1;
                self.refusing = false;
                self.ceilings.worked(now, extent);
                if full && let Some((max, since)) = self.overload_max {
                    self.full_good += 1;
                    if self.full_good >= RISE_AFTER {
                        self.full_good = 0;
                        let risen = max.saturating_add(1);
                        // What bounds nothing any more is over.
                        let most = limits.scopes.iter().map(|scope| scope.batch_items_max).max().unwrap_or(u32::MAX);
                        let over = u64::from(risen) >= u64::from(most).min(self.ceilings.max(Bounded::Items));
                        self.overload_max = (!over).then_some((risen, since));
                    }
                }
            }
            ObservedOutcome::TooLarge { limit } if let Some(found) = named(limit, items) => {
                self.ceilings.named(now, found, took);
            }
            // A call alone says nothing about size unless the answer names the limit.
            ObservedOutcome::TooLarge { .. } | ObservedOutcome::OutOfMemory | ObservedOutcome::Overloaded { .. }
                if !shared => {}
            ObservedOutcome::TooLarge { .. } | ObservedOutcome::Refused(Refusal::TooLarge(_)) => {
                self.ceilings.too_large(now, extent, retest, took);
            }
            ObservedOutcome::OutOfMemory => self.ceilings.out_of_memory(now, extent, memory, took),
            ObservedOutcome::Overloaded { retry_after: Some(_) } if self.refusing => {}
            ObservedOutcome::Overloaded { retry_after } => {
                self.refusing = retry_after.is_some();
                // A larger batch that was sent before and fails after does not raise it again.
                let found = (items / 2).max(1);
                let known = self.overload_max.filter(|(known, _)| *known <= found);
                self.overload_max = Some(known.unwrap_or((found, now)));
                self.full_good = 0;
            }
            ObservedOutcome::Mismatched
            | ObservedOutcome::Refused(_)
            | ObservedOutcome::TimedOut
            | ObservedOutcome::Failed
            | ObservedOutcome::Cancelled => {}
        }
        if let Some(retest) = retest {
            self.ceilings.retest_over(now, retest);
        }
    }
}

/// The limit that an answer names, if it is one: a number that the refused batch already kept cannot be what was meant.
fn named(limit: Option<u32>, items: u32) -> Option<u32> {
    limit.filter(|limit| (1..items).contains(limit))
}

// === impl Classes ===

impl Classes {
    /// The upstream is another one, which may take other batches. An overload stays.
    pub(super) fn forget(&mut self) {
        self.keys = Keys::default();
        for (id, class) in &mut self.map {
            class.ceilings = Ceilings::default();
            if class.merging.forget() {
                note(&mut self.changes, MergingChange { class: *id, suspension: None, again: false });
            }
        }
    }

    /// How many calls of this call's line may leave together. `eager`: batches are sent as configured before one was answered.
    pub(super) fn merge_bound(&self, now: Tick, call: &Call, eager: bool) -> Bound {
        let eager = eager && call.replayable;
        let class = self.map.get(&call.cost_class).map(|class| class.merging.bound(now, eager));
        let bound = class.unwrap_or(if eager { Bound::Free } else { Bound::Trial });
        match bound {
            Bound::Alone(_) => bound,
            _ if self.keys.quarantined(now, call.key) => Bound::Alone(Some(Lone::Quarantined)),
            _ if self.replays.room(now) == 0 => Bound::Alone(Some(Lone::BudgetEmpty)),
            _ => bound,
        }
    }

    /// Whether some calls of this class go alone for now since a batch could not be split or was refused.
    pub(super) fn quarantined(&self, now: Tick, id: CostClassId) -> bool {
        let suspended = self.get(id).and_then(Class::suspension).is_some_and(|suspension| now < suspension.retest);
        suspended || self.keys.any_quarantined(now, id)
    }

    /// A batch of several leaves; `trial`: to learn whether the server takes one.
    pub(super) fn sent(&mut self, now: Tick, id: CostClassId, batch: BatchId, members: usize, trial: bool) {
        (0..members).for_each(|_| self.replays.client(now));
        self.replays.upstream(now);
        if trial {
            self.entry(now, id).merging.trying(batch);
        }
    }

    /// Extra upstream calls that failed batches may still cost.
    pub(super) fn replay_room(&self, now: Tick) -> u64 {
        self.replays.room(now)
    }

    /// Each of this many members is sent again.
    pub(super) fn replayed(&mut self, now: Tick, members: usize) {
        (0..members).for_each(|_| self.replays.replay(now));
    }

    /// How many classes are not merged.
    pub(super) fn suspended(&self) -> usize {
        self.map.values().filter(|class| class.suspension().is_some()).count()
    }

    /// For which classes merging ended or began again since the last time.
    pub(super) fn take_changes(&mut self) -> Vec<MergingChange> {
        std::mem::take(&mut self.changes)
    }

    fn observe_merging(&mut self, now: Tick, id: CostClassId, base: Duration, ended: Ended, observed: &Observed) {
        let many =
            ended.shared && ended.key.is_some_and(|key| self.keys.observe((now, base), id, key, observed.outcome));
        let class = self.entry(now, id);
        let before = class.suspension().is_some();
        let last = class.last();
        let mut change = class.merging.observe((now, base), ended, observed, last);
        if many && change.is_none() && !before {
            let refusal = match observed.outcome {
                ObservedOutcome::Refused(refusal) => refusal,
                _ => Refusal::Mismatch,
            };
            change = Some(Some(class.merging.suspend(now, base, refusal)));
        }
        if let Some(suspension) = change {
            let again = before && suspension.is_some();
            note(&mut self.changes, MergingChange { class: id, suspension, again });
        }
    }

    pub(super) fn least_ceiling(&self) -> Option<u32> {
        self.map.values().map(Class::ceiling).min()
    }

    pub(super) fn get(&self, id: CostClassId) -> Option<&Class> {
        self.map.get(&id)
    }

    /// The most items that a server itself publishes for this class; the smaller one stays.
    pub(super) fn publish(&mut self, now: Tick, id: CostClassId, items_max: u32) {
        self.entry(now, id).ceilings.publish(now, Bounded::Items, u64::from(items_max));
    }

    /// The most weight that a server itself publishes, by the measure that its cost goes by; the smaller one stays.
    pub(super) fn publish_weight(&mut self, now: Tick, id: CostClassId, bounded: Bounded, weight_max: u64) {
        self.entry(now, id).ceilings.publish_weight(now, bounded, weight_max);
    }

    /// A batch leaves to ask a ceiling again.
    pub(super) fn testing(&mut self, id: CostClassId, bounded: Bounded) {
        if let Some(class) = self.map.get_mut(&id) {
            class.ceilings.testing(bounded);
        }
    }

    /// The server was judged another one.
    pub(super) fn changed(&mut self, now: Tick, id: CostClassId) {
        if let Some(class) = self.map.get_mut(&id) {
            class.ceilings.changed(now);
        }
    }

    /// What was learned of a class, to be kept.
    pub(super) fn snapshot(&self, id: CostClassId) -> Vec<CeilingSnapshot> {
        self.map.get(&id).map(|class| class.ceilings.snapshot().collect()).unwrap_or_default()
    }

    /// Takes up what an earlier process learned.
    pub(super) fn restore(&mut self, now: Tick, id: CostClassId, kept: &[CeilingSnapshot]) {
        let class = self.entry(now, id);
        kept.iter().for_each(|kept| class.ceilings.restore(now, kept));
    }

    /// The least of all ceilings by one measure; `u64::MAX` where there is none.
    pub(super) fn least(&self, bounded: Bounded) -> u64 {
        self.map.values().map(|class| class.max(bounded)).min().unwrap_or(u64::MAX)
    }

    pub(super) fn observe(
        &mut self,
        now: Tick,
        id: CostClassId,
        limits: &Limits,
        (ended, batch): (Ended, &BatchSize),
        observed: &Observed,
    ) {
        self.observe_merging(now, id, limits.quarantine, ended, observed);
        self.entry(now, id).observe(now, limits, batch, observed);
    }

    fn entry(&mut self, now: Tick, id: CostClassId) -> &mut Class {
        if !self.map.contains_key(&id) && self.map.len() >= CLASSES_MAX {
            let oldest = self.map.iter().min_by_key(|(id, class)| (class.used, **id)).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                self.map.remove(&oldest);
            }
        }
        let class = self.map.entry(id).or_insert_with(|| Class::new(now));
        class.used = now;
        class
    }
}

impl Default for Classes {
    fn default() -> Self {
        Self { map: BTreeMap::new(), keys: Keys::default(), replays: ReplayBudget::new(0), changes: Vec::new() }
    }
}

/// Keeps a change until it is taken, the first ones where there are too many.
fn note(changes: &mut Vec<MergingChange>, change: MergingChange) {
    if changes.len() < CHANGES_MAX {
        changes.push(change);
    }
}

/// What of a batch matters to its class.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchSize {
    pub(super) extent: Extent,
    /// More than one member.
    pub(super) shared: bool,
    /// As many items as allowed.
    pub(super) full: bool,
    /// The measure that stands for the server's memory: the one that its cost goes by.
    pub(super) memory: Bounded,
    /// The ceiling that it was sent to ask again.
    pub(super) retest: Option<Bounded>,
}

#[cfg(test)]
mod tests {
    use super::super::call::KeyId;
    use super::*;

    const ID: CostClassId = CostClassId(3);

    fn observe(classes: &mut Classes, at: u64, items: u32, outcome: ObservedOutcome) {
        let observed = Observed { duration: Duration::from_millis(5), first_byte: None, outcome };
        let extent = Extent { items, sum: u64::from(items), heaviest: 1 };
        let size = BatchSize { extent, shared: items > 1, full: true, memory: Bounded::PaddedWeight, retest: None };
        let ended = Ended { batch: BatchId(at), key: Some(KeyId(1)), shared: size.shared, replayable: true };
        classes.observe(Tick::from_millis(at), ID, &Limits::default(), (ended, &size), &observed);
    }

    #[test]
    fn a_named_limit_is_remembered_and_never_raised_by_a_larger_one() {
        let mut classes = Classes::default();
        observe(&mut classes, 0, 64, ObservedOutcome::TooLarge { limit: Some(16) });
        observe(&mut classes, 1, 64, ObservedOutcome::TooLarge { limit: Some(32) });
        assert_eq!(classes.get(ID).unwrap().ceiling(), 16);
    }

    #[test]
    fn without_a_named_limit_it_is_the_middle_between_what_worked_and_what_was_refused() {
        let mut classes = Classes::default();
        observe(&mut classes, 0, 16, ObservedOutcome::Ok);
        observe(&mut classes, 1, 64, ObservedOutcome::TooLarge { limit: None });
        assert_eq!(classes.get(ID).unwrap().ceiling(), 40);
    }

    #[test]
    fn a_lone_refusal_says_nothing_unless_it_names_the_limit() {
        let mut classes = Classes::default();
        let lone = |classes: &mut Classes, outcome| {
            let observed = Observed { duration: Duration::from_millis(5), first_byte: None, outcome };
            let extent = Extent { items: 64, sum: 64, heaviest: 1 };
            let size = BatchSize { extent, shared: false, full: true, memory: Bounded::PaddedWeight, retest: None };
            let ended = Ended { batch: BatchId(0), key: None, shared: false, replayable: true };
            classes.observe(Tick::default(), ID, &Limits::default(), (ended, &size), &observed);
            classes.get(ID).unwrap().ceiling()
        };
        for outcome in [ObservedOutcome::TooLarge { limit: None }, ObservedOutcome::OutOfMemory] {
            assert_eq!(lone(&mut classes, outcome), u32::MAX);
        }
        assert_eq!(lone(&mut classes, ObservedOutcome::TooLarge { limit: Some(16) }), 16);
    }

    #[test]
    fn an_overload_halves_the_size_and_eight_full_good_batches_raise_it_by_one() {
        let mut classes = Classes::default();
        observe(&mut classes, 0, 64, ObservedOutcome::Overloaded { retry_after: None });
        assert_eq!(classes.get(ID).unwrap().ceiling(), 32);
        for at in 1..=8 {
            observe(&mut classes, at, 32, ObservedOutcome::Ok);
        }
        assert_eq!(classes.get(ID).unwrap().ceiling(), 33);
    }

    #[test]
    fn the_classes_remembered_are_bounded() {
        let mut classes = Classes::default();
        for i in 0..2_000_u32 {
            classes.publish(Tick::from_millis(u64::from(i)), CostClassId(i), 4);
        }
        assert_eq!(classes.map.len(), CLASSES_MAX);
        assert!(classes.get(CostClassId(1_999)).is_some());
    }
}
