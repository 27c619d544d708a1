//! What is remembered for each cost class: ceilings, overload, quarantine, recent execution times.

use std::collections::BTreeMap;
use std::time::Duration;

use super::batch::{Observed, ObservedOutcome};
use super::call::CostClassId;
use super::ceiling::{Bounded, CeilingReport, CeilingSnapshot, Ceilings, Extent, LimitSource};
use super::limits::Limits;
use super::tick::Tick;

/// Cost classes remembered at once; beyond it the one unused for longest goes (`scheduling.md` §1 keeps 64 curves; these are smaller).
const CLASSES_MAX: usize = 256;
/// Whole batches after which a quarantine starts small again (README R4).
const TRUSTED_AFTER: u32 = 100;
/// Full good batches for each item that an overload ceiling rises again (`scheduling.md` §2.6).
const RISE_AFTER: u32 = 8;
/// Executions whose shortest one says what a lone call can hope for.
const RECENT: usize = 16;

/// The memory of one cost class.
#[derive(Debug, Clone)]
pub(super) struct Class {
    used: Tick,
    quarantined_until: Option<Tick>,
    quarantine_next: Duration,
    whole_batches: u32,
    ceilings: Ceilings,
    /// Most items since the upstream said that it is overloaded, and since when.
    overload_max: Option<(u32, Tick)>,
    full_good: u32,
    /// It said when to come back, and nothing was answered well since: it would refuse any size.
    refusing: bool,
    recent: [Duration; RECENT],
    executions: usize,
}

/// All cost classes.
#[derive(Debug, Clone, Default)]
pub(super) struct Classes {
    map: BTreeMap<CostClassId, Class>,
}

// === impl Class ===

impl Class {
    fn new(now: Tick) -> Self {
        Self {
            used: now,
            quarantined_until: None,
            quarantine_next: Duration::ZERO,
            whole_batches: 0,
            ceilings: Ceilings::default(),
            overload_max: None,
            full_good: 0,
            refusing: false,
            recent: [Duration::ZERO; RECENT],
            executions: 0,
        }
    }

    pub(super) fn quarantined(&self, now: Tick) -> bool {
        self.quarantined_until.is_some_and(|until| now < until)
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
                if shared {
                    self.whole_batches += 1;
                    if self.whole_batches >= TRUSTED_AFTER {
                        self.quarantine_next = Duration::ZERO;
                    }
                }
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
            ObservedOutcome::TooLarge { .. } => self.ceilings.too_large(now, extent, retest, took),
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
            ObservedOutcome::Mismatched => {
                self.whole_batches = 0;
                let this_time = self.quarantine_next.max(limits.quarantine).min(Limits::QUARANTINE_MAX);
                self.quarantined_until = Some(now.after(this_time));
                self.quarantine_next = this_time.saturating_mul(2).min(Limits::QUARANTINE_MAX);
            }
            ObservedOutcome::Failed | ObservedOutcome::Cancelled => {}
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
    /// The upstream is another one. What it did wrong since it was met is not forgotten: quarantines and overloads stay.
    pub(super) fn forget_ceilings(&mut self) {
        self.map.values_mut().for_each(|class| class.ceilings = Ceilings::default());
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
        batch: &BatchSize,
        observed: &Observed,
    ) {
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
    use super::*;

    const ID: CostClassId = CostClassId(3);

    fn observe(classes: &mut Classes, at: u64, items: u32, outcome: ObservedOutcome) {
        let observed = Observed { duration: Duration::from_millis(5), first_byte: None, outcome };
        let extent = Extent { items, sum: u64::from(items), heaviest: 1 };
        let size = BatchSize { extent, shared: items > 1, full: true, memory: Bounded::PaddedWeight, retest: None };
        classes.observe(Tick::from_millis(at), ID, &Limits::default(), &size, &observed);
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
            classes.observe(Tick::default(), ID, &Limits::default(), &size, &observed);
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
    fn a_quarantine_doubles_and_starts_small_again_after_a_hundred_whole_batches() {
        let mut classes = Classes::default();
        observe(&mut classes, 0, 2, ObservedOutcome::Mismatched);
        assert!(classes.get(ID).unwrap().quarantined(Tick::from_millis(29_999)));
        assert!(!classes.get(ID).unwrap().quarantined(Tick::from_millis(30_000)));
        observe(&mut classes, 30_000, 2, ObservedOutcome::Mismatched);
        assert!(classes.get(ID).unwrap().quarantined(Tick::from_millis(89_999)));
        for _ in 0..100 {
            observe(&mut classes, 90_000, 2, ObservedOutcome::Ok);
        }
        observe(&mut classes, 100_000, 2, ObservedOutcome::Mismatched);
        assert!(!classes.get(ID).unwrap().quarantined(Tick::from_millis(130_000)));
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
