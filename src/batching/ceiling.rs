//! Ceilings of one cost class: what the server publishes, and what its refusals taught (`scheduling.md` §2.6).
//!
//! Three walls: items, weight in all, and padded weight (items × the heaviest). A "too large" answer that names its limit sets it. One that does not is
//! blamed on what grew most beyond what had worked, and the wall is then found by bisection between what worked and what was refused. Out of memory
//! halves the padded weight at once: asking again is dear there. What was learned is retested now and then, rarer each time; what is published never.
//!
//! What it leaves out: overload, which is about load and not size (`class`); whether a retest's members can wait (`retest`).

use std::time::Duration;

use super::tick::{Tick, nanos};

/// The first retest of a ceiling that was found by trying. A refused batch costs well below one execution, and a ceiling that has gone costs throughput
/// each second (`groupage simulate --scenario "ceiling lifted"`), so it starts early; doubled each time, it is ten retests in the first quarter of an hour.
const RETEST_FOUND: Duration = Duration::from_secs(1);
/// Of one that the server named, or that stands for its memory: it knows, or it may die of the question (`scheduling.md` §2.6).
const RETEST_FIRM: Duration = Duration::from_secs(600);
/// The rarest retest (`scheduling.md` §2.6).
const RETEST_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a ceiling bounds in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bounded {
    /// Items.
    Items,
    /// The weight of all items together.
    Weight,
    /// Items × the weight of the heaviest one.
    PaddedWeight,
}

/// Where a limit comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitSource {
    /// The user's policy.
    Policy,
    /// The server says so when it is asked.
    Published,
    /// The server refused more.
    Learned,
}

/// A ceiling of a cost class, to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CeilingReport {
    /// What it bounds.
    pub bounded: Bounded,
    /// The most that a shared batch holds.
    pub max: u64,
    /// Who says so.
    pub source: LimitSource,
    /// Since when it has this value.
    pub since: Tick,
    /// From when on a larger batch is tried again; `None`: never.
    pub retest: Option<Tick>,
}

/// A learned ceiling, as it is kept for a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CeilingSnapshot {
    /// What it bounds.
    pub bounded: Bounded,
    /// The most that a shared batch holds.
    pub max: u64,
    /// The least that was refused.
    pub refused: u64,
    /// The most that worked.
    pub worked: u64,
    /// The server named it, or it stands for its memory: no bisection.
    pub firm: bool,
    /// Nanoseconds between the retests to come.
    pub retest_nanos: u64,
}

/// How large a batch is, by each measure.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extent {
    pub(super) items: u32,
    /// Σw.
    pub(super) sum: u64,
    /// Of the heaviest item.
    pub(super) heaviest: u64,
}

/// The walls of one cost class.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ceilings {
    items: Wall,
    sum: Wall,
    padded: Wall,
}

#[derive(Debug, Clone, Copy, Default)]
struct Wall {
    /// The most that worked; 0 before anything did, or once it is known to be of another server.
    worked: u64,
    published: Option<(u64, Tick)>,
    learned: Option<Learned>,
}

#[derive(Debug, Clone, Copy)]
struct Learned {
    max: u64,
    refused: u64,
    firm: bool,
    since: Tick,
    retest: Tick,
    wait: Duration,
    /// How long the server took to refuse.
    took: Duration,
    /// A retest is in flight.
    testing: bool,
}

// === impl Extent ===

impl Extent {
    /// By one measure.
    pub(super) fn of(self, bounded: Bounded) -> u64 {
        match bounded {
            Bounded::Items => u64::from(self.items),
            Bounded::Weight => self.sum,
            Bounded::PaddedWeight => self.heaviest.saturating_mul(u64::from(self.items)),
        }
    }
}

// === impl Ceilings ===

impl Ceilings {
    /// The most by one measure; `u64::MAX` where nothing is known.
    pub(super) fn max(&self, bounded: Bounded) -> u64 {
        self.wall(bounded).max()
    }

    /// The server says so when it is asked; the smaller one stays.
    pub(super) fn publish(&mut self, now: Tick, bounded: Bounded, max: u64) {
        let wall = self.wall_mut(bounded);
        if wall.published.is_none_or(|(known, _)| max < known) {
            wall.published = Some((max.max(1), now));
        }
    }

    /// The same of weight. It is one limit, which holds by the measure that the cost goes by now; that can change as costs are learned.
    pub(super) fn publish_weight(&mut self, now: Tick, bounded: Bounded, max: u64) {
        let other = if bounded == Bounded::Weight { Bounded::PaddedWeight } else { Bounded::Weight };
        if let Some((known, since)) = self.wall_mut(other).published.take() {
            self.publish(since, bounded, known);
        }
        self.publish(now, bounded, max);
    }

    /// A batch was answered well.
    pub(super) fn worked(&mut self, now: Tick, extent: Extent) {
        for bounded in Bounded::ALL {
            self.wall_mut(bounded).worked(now, extent.of(bounded));
        }
    }

    /// A shared batch was too large. `retest`: what it was sent to ask.
    pub(super) fn too_large(&mut self, now: Tick, extent: Extent, retest: Option<Bounded>, took: Duration) {
        let bounded = retest.unwrap_or_else(|| self.blamed(extent));
        self.wall_mut(bounded).refused(now, extent.of(bounded), took);
    }

    /// A batch was too large by items, and the server named its limit.
    pub(super) fn named(&mut self, now: Tick, items_max: u32, took: Duration) {
        self.items.named(now, u64::from(items_max), took);
    }

    /// A shared batch was more than the server's memory holds, by the measure that its cost goes by.
    pub(super) fn out_of_memory(&mut self, now: Tick, extent: Extent, bounded: Bounded, took: Duration) {
        // What weighs nothing is counted.
        let bounded = if extent.of(bounded) == 0 { Bounded::Items } else { bounded };
        self.wall_mut(bounded).out_of_memory(now, extent.of(bounded), took);
    }

    /// A retest ended. If what came of it was no answer to its question, it is asked another time.
    pub(super) fn retest_over(&mut self, now: Tick, bounded: Bounded) {
        if let Some(learned) = self.wall_mut(bounded).learned.as_mut().filter(|learned| learned.testing) {
            learned.testing = false;
            learned.retest = now.after(learned.wait);
        }
    }

    /// The first wall whose retest is due: what it bounds, up to how much a batch may hold to ask, and how long a refusal took the last time.
    pub(super) fn retest(&self, now: Tick) -> Option<(Bounded, u64, Duration)> {
        Bounded::ALL.into_iter().find_map(|bounded| {
            let wall = self.wall(bounded);
            let learned = wall.learned.filter(|learned| !learned.testing && learned.retest <= now)?;
            let target = learned.target(bounded).min(wall.published.map_or(u64::MAX, |(max, _)| max));
            (target > learned.max).then_some((bounded, target, learned.took))
        })
    }

    /// A retest has left.
    pub(super) fn testing(&mut self, bounded: Bounded) {
        if let Some(learned) = &mut self.wall_mut(bounded).learned {
            learned.testing = true;
        }
    }

    /// The server is another one: what was learned is asked again at once.
    pub(super) fn changed(&mut self, now: Tick) {
        for bounded in Bounded::ALL {
            if let Some(learned) = &mut self.wall_mut(bounded).learned {
                learned.retest = now;
                learned.wait = RETEST_FOUND;
                learned.testing = false;
            }
        }
    }

    /// What is in force.
    pub(super) fn report(&self) -> impl Iterator<Item = CeilingReport> {
        Bounded::ALL.into_iter().filter_map(|bounded| self.wall(bounded).report(bounded))
    }

    /// What was learned, to be kept.
    pub(super) fn snapshot(&self) -> impl Iterator<Item = CeilingSnapshot> {
        Bounded::ALL.into_iter().filter_map(|bounded| {
            let Wall { worked, learned, .. } = *self.wall(bounded);
            learned.map(|learned| CeilingSnapshot {
                bounded,
                max: learned.max,
                refused: learned.refused,
                worked,
                firm: learned.firm,
                retest_nanos: nanos(learned.wait),
            })
        })
    }

    /// Takes up what an earlier process learned, whatever is in it. It is asked again early: the server may be another one.
    pub(super) fn restore(&mut self, now: Tick, kept: &CeilingSnapshot) {
        let wait = Duration::from_nanos(kept.retest_nanos).clamp(RETEST_FOUND, RETEST_MAX);
        let max = kept.max.max(1);
        let wall = self.wall_mut(kept.bounded);
        wall.worked = wall.worked.max(kept.worked.min(max));
        wall.learned = Some(Learned {
            max,
            refused: kept.refused.max(max.saturating_add(1)),
            firm: kept.firm,
            since: now,
            retest: now.after(wait.min(RETEST_FIRM)),
            wait,
            took: Duration::ZERO,
            testing: false,
        });
    }

    /// What a refusal without a name was about: that which grew most beyond what had worked; items, if nothing tells them apart. §2.6 blames items
    /// whenever there are more than ever worked, but while sizes still grow there always are, and a limit of tokens would stay hidden behind them.
    fn blamed(&self, extent: Extent) -> Bounded {
        let (items, sum) = (u128::from(extent.items), u128::from(extent.sum));
        let (items_worked, sum_worked) = (u128::from(self.items.worked), u128::from(self.sum.worked));
        let grew = items * sum_worked >= sum * items_worked;
        if sum <= sum_worked || items > items_worked && grew { Bounded::Items } else { Bounded::Weight }
    }

    fn wall(&self, bounded: Bounded) -> &Wall {
        match bounded {
            Bounded::Items => &self.items,
            Bounded::Weight => &self.sum,
            Bounded::PaddedWeight => &self.padded,
        }
    }

    fn wall_mut(&mut self, bounded: Bounded) -> &mut Wall {
        match bounded {
            Bounded::Items => &mut self.items,
            Bounded::Weight => &mut self.sum,
            Bounded::PaddedWeight => &mut self.padded,
        }
    }
}

// === impl Bounded ===

impl Bounded {
    /// Every measure.
    pub const ALL: [Self; 3] = [Self::Items, Self::Weight, Self::PaddedWeight];

    /// The name of the limit, as in the policy and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Items => "batch_items_max",
            Self::Weight => "batch_weight_max",
            Self::PaddedWeight => "batch_padded_weight_max",
        }
    }
}

// === impl LimitSource ===

impl LimitSource {
    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Published => "published",
            Self::Learned => "learned",
        }
    }
}

// === impl Wall ===

impl Wall {
    fn max(&self) -> u64 {
        let learned = self.learned.map_or(u64::MAX, |learned| learned.max);
        learned.min(self.published.map_or(u64::MAX, |(max, _)| max))
    }

    fn worked(&mut self, now: Tick, size: u64) {
        self.worked = self.worked.max(size);
        let Some(learned) = &mut self.learned else { return };
        if size >= learned.refused {
            self.learned = None;
            return;
        }
        if size > learned.max {
            // A retest that found some more.
            learned.testing = false;
            learned.wait = if learned.firm { RETEST_FIRM } else { RETEST_FOUND };
            learned.retest = now.after(learned.wait);
        }
        let found = if learned.firm { size } else { middle(self.worked, learned.refused) };
        if found > learned.max {
            (learned.max, learned.since) = (found, now);
        }
    }

    fn refused(&mut self, now: Tick, size: u64, took: Duration) {
        if size <= self.worked {
            // It worked once and does no more: what worked was another server.
            self.worked = 0;
        }
        let known = self.learned;
        let refused = known.map_or(size, |known| known.refused.min(size)).max(2);
        let again = known.filter(|known| size > known.max);
        let max = middle(self.worked, refused);
        let max = known.map_or(max, |known| known.max.min(max));
        self.learn(
            now,
            Learned {
                max,
                refused,
                firm: known.is_some_and(|known| known.firm && known.max == max),
                took,
                ..Learned::new(now)
            },
            again,
        );
    }

    fn named(&mut self, now: Tick, limit: u64, took: Duration) {
        self.worked = self.worked.min(limit);
        let again = self.learned.filter(|known| known.max <= limit);
        let max = again.map_or(limit, |known| known.max);
        let refused = again.map_or(limit.saturating_add(1), |known| known.refused.min(limit.saturating_add(1)));
        let firm = again.is_none_or(|known| known.firm || known.max == limit);
        self.learn(now, Learned { max, refused, firm, took, ..Learned::new(now) }, again);
    }

    fn out_of_memory(&mut self, now: Tick, size: u64, took: Duration) {
        if size <= self.worked {
            self.worked = 0;
        }
        let again = self.learned.filter(|known| size > known.max);
        let half = (size / 2).max(1);
        let max = again.map_or(half, |known| known.max);
        let refused = self.learned.map_or(size, |known| known.refused.min(size)).max(max.saturating_add(1));
        self.learn(now, Learned { max, refused, firm: true, took, ..Learned::new(now) }, again);
    }

    /// Takes what was learned. `again`: what was known already, if this says the same once more; then it is asked half as often.
    fn learn(&mut self, now: Tick, learned: Learned, again: Option<Learned>) {
        let first = if learned.firm { RETEST_FIRM } else { RETEST_FOUND };
        // Only a retest's refusal is news about time: batches of before come back in crowds.
        let wait = again.map_or(first, |known| {
            if known.testing { known.wait.saturating_mul(2).clamp(first, RETEST_MAX) } else { known.wait }
        });
        let since = again.filter(|known| known.max == learned.max).map_or(now, |known| known.since);
        self.learned = Some(Learned { since, wait, retest: now.after(wait), ..learned });
    }

    fn report(&self, bounded: Bounded) -> Option<CeilingReport> {
        let published = self.published.map(|(max, since)| (max, since, LimitSource::Published, None));
        let learned = self.learned.map(|known| (known.max, known.since, LimitSource::Learned, Some(known.retest)));
        let least = published.into_iter().chain(learned).min_by_key(|(max, ..)| *max);
        least.map(|(max, since, source, retest)| CeilingReport { bounded, max, source, since, retest })
    }
}

// === impl Learned ===

impl Learned {
    fn new(now: Tick) -> Self {
        Self {
            max: u64::MAX,
            refused: u64::MAX,
            firm: false,
            since: now,
            retest: now,
            wait: RETEST_FOUND,
            took: Duration::ZERO,
            testing: false,
        }
    }

    /// Up to how much a batch may hold to ask again: what was refused, or half the way there where a refusal is dear.
    fn target(&self, bounded: Bounded) -> u64 {
        let far = self.refused > self.max.saturating_add(self.max / 8).saturating_add(1);
        if self.firm && far {
            return middle(self.max, self.refused);
        }
        // Weights are never met exactly: an eighth more.
        if bounded == Bounded::Items { self.refused } else { self.refused.saturating_add(self.refused / 8) }
    }
}

/// Between what worked and what was refused: below the one, not below the other.
fn middle(worked: u64, refused: u64) -> u64 {
    let worked = worked.min(refused);
    (worked + (refused - worked) / 2).min(refused.saturating_sub(1)).max(1)
}

#[cfg(test)]
mod tests;
