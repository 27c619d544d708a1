//! What was decided and why, put together for whoever asks.

use super::super::adaptive::{Learned, OperatingPoint, PlanAge};
use super::super::call::CostClassId;
use super::super::class::Class;
use super::super::class::merging::Suspension;
use super::super::tally::{Tally, Totals};
use super::super::tick::Tick;
use super::Batcher;

/// What was decided and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// Since the start.
    pub totals: Totals,
    /// How often the upstream was judged to be another one.
    pub changes: u64,
    /// When last.
    pub changed: Option<Tick>,
    /// By cost class, of late.
    pub classes: Vec<ClassWhy>,
}

/// What was decided for one cost class, and where it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassWhy {
    /// Which.
    pub id: CostClassId,
    /// Counts of its last batches.
    pub tally: Tally,
    /// Where on its curve it works; `None` before the first answer.
    pub point: Option<OperatingPoint>,
    /// How old its plan is; `None` without one.
    pub plan: Option<PlanAge>,
    /// Most items that were learned or published.
    pub ceiling: Option<u32>,
    /// Some calls are not merged for now: an answer could not be split, or batches were refused.
    pub quarantined: bool,
    /// Nothing is merged for now, since the server refuses batches.
    pub suspension: Option<Suspension>,
}

// === impl Batcher ===

impl Batcher {
    /// What was decided and why.
    #[must_use]
    pub fn why(&self, now: Tick) -> Why {
        let now = self.now.max(now);
        let classes = self.tallies.classes().map(|(id, tally)| {
            let ceiling = self.ceiling(id);
            let cap = tally.items_max.min(ceiling.unwrap_or(u32::MAX)).max(1);
            ClassWhy {
                id,
                tally,
                point: self.adaptive.operating_point(now, id, tally.last_items, cap),
                plan: self.adaptive.plan_age(id),
                ceiling,
                quarantined: self.classes.quarantined(now, id),
                suspension: self.classes.get(id).and_then(Class::suspension),
            }
        });
        let (changes, changed) = self.adaptive.changes();
        Why {
            totals: Totals { holds: self.adaptive.holds(), ..self.tallies.totals() },
            changes,
            changed,
            classes: classes.collect(),
        }
    }

    /// What was learned, for gauges: cheap enough for every batch.
    #[must_use]
    pub fn learned(&self) -> Learned {
        let learned = self.adaptive.learned();
        // Other policies keep to their settings, and their limiters learn nothing.
        Learned { settling: learned.settling && self.is_adaptive(), ..learned }
    }
}
