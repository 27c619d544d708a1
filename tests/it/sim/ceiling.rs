//! The expected value of one learned ceiling, computed by simple counting.

use std::time::Duration;

use groupage::batching::Tick;

/// Initial interval between retests of a ceiling that was found by trial.
const FOUND: Duration = Duration::from_secs(1);
/// Initial interval between retests of a ceiling that the server named or that its memory imposes.
const FIRM: Duration = Duration::from_secs(600);
/// Maximum interval between retests.
const LONGEST: Duration = Duration::from_secs(86_400);

/// A ceiling by one measure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ceiling {
    /// Largest size that worked.
    pub(crate) worked: u64,
    published: Option<u64>,
    learned: Option<LearnedCeiling>,
}

#[derive(Debug, Clone)]
struct LearnedCeiling {
    max: u64,
    /// Smallest size that was refused.
    refused: u64,
    firm: bool,
    retest: Tick,
    wait: Duration,
    took: Duration,
    testing: bool,
}

// === impl Ceiling ===

impl Ceiling {
    pub(crate) fn max(&self) -> Option<u64> {
        [self.learned.as_ref().map(|learned| learned.max), self.published].into_iter().flatten().min()
    }

    pub(crate) fn publish(&mut self, max: u64) {
        self.published = Some(self.published.map_or(max, |known| known.min(max)));
    }

    /// Returns the size up to which the ceiling may be tested now, and the duration of the last
    /// refusal.
    pub(crate) fn retest(&self, now: Tick, counted: bool) -> Option<(u64, Duration)> {
        let learned = self.learned.as_ref().filter(|learned| !learned.testing && learned.retest <= now)?;
        let far = learned.refused > learned.max + learned.max / 8 + 1;
        let up_to = match () {
            // Only half-way, because running out of memory is expensive.
            () if learned.firm && far => midpoint(learned.max, learned.refused),
            () if counted => learned.refused,
            () => learned.refused + learned.refused / 8,
        };
        let up_to = self.published.map_or(up_to, |published| published.min(up_to));
        (up_to > learned.max).then_some((up_to, learned.took))
    }

    pub(crate) fn set_testing(&mut self, testing: bool) {
        self.learned.iter_mut().for_each(|learned| learned.testing = testing);
    }

    /// Ends a retest. A retest without a result is repeated later.
    pub(crate) fn end_retest(&mut self, now: Tick) {
        if let Some(learned) = self.learned.as_mut().filter(|learned| learned.testing) {
            learned.testing = false;
            learned.retest = now.after(learned.wait);
        }
    }

    pub(crate) fn on_success(&mut self, now: Tick, size: u64) {
        self.worked = self.worked.max(size);
        if self.learned.as_ref().is_some_and(|learned| learned.refused <= size) {
            self.learned = None;
        }
        let Some(learned) = &mut self.learned else { return };
        if size > learned.max {
            learned.testing = false;
            learned.wait = if learned.firm { FIRM } else { FOUND };
            learned.retest = now.after(learned.wait);
        }
        let found = if learned.firm { size } else { midpoint(self.worked, learned.refused) };
        learned.max = learned.max.max(found);
    }

    pub(crate) fn on_refusal(&mut self, now: Tick, size: u64, took: Duration) {
        self.reset_if_contradicted(size);
        let refused = self.refused_least(size).max(2);
        let found = midpoint(self.worked, refused);
        let max = self.learned.as_ref().map_or(found, |known| known.max.min(found));
        let firm = self.learned.as_ref().is_some_and(|known| known.firm && known.max == max);
        let same = self.learned.as_ref().is_some_and(|known| known.max < size);
        self.learn(now, (max, refused, firm), same, took);
    }

    pub(crate) fn on_named_limit(&mut self, now: Tick, limit: u64, took: Duration) {
        self.worked = self.worked.min(limit);
        match self.learned.clone().filter(|known| known.max <= limit) {
            // A lower ceiling stays.
            Some(known) => {
                let firm = known.firm || known.max == limit;
                self.learn(now, (known.max, known.refused.min(limit + 1), firm), true, took);
            }
            None => self.learn(now, (limit, limit + 1, true), false, took),
        }
    }

    pub(crate) fn on_out_of_memory(&mut self, now: Tick, size: u64, took: Duration) {
        self.reset_if_contradicted(size);
        let refused = self.refused_least(size);
        let known = self.learned.as_ref().map(|known| known.max).filter(|max| *max < size);
        let max = known.unwrap_or((size / 2).max(1));
        self.learn(now, (max, refused.max(max + 1), true), known.is_some(), took);
    }

    /// Forgets the largest size that worked if it contradicts a refusal of `size`: that was another
    /// server.
    fn reset_if_contradicted(&mut self, size: u64) {
        if size <= self.worked {
            self.worked = 0;
        }
    }

    fn refused_least(&self, size: u64) -> u64 {
        self.learned.as_ref().map_or(size, |known| known.refused.min(size))
    }

    /// Records a ceiling. `same` is set if it confirms the known one; the interval doubles if a
    /// retest confirmed it.
    fn learn(&mut self, now: Tick, (max, refused, firm): (u64, u64, bool), same: bool, took: Duration) {
        let first = if firm { FIRM } else { FOUND };
        let wait = match self.learned.as_ref().filter(|_| same) {
            Some(known) if known.testing => (known.wait * 2).clamp(first, LONGEST),
            Some(known) => known.wait,
            None => first,
        };
        self.learned = Some(LearnedCeiling { max, refused, firm, retest: now.after(wait), wait, took, testing: false });
    }
}

/// Returns the size half-way between one that worked and one that was refused, below the latter.
fn midpoint(worked: u64, refused: u64) -> u64 {
    let worked = worked.min(refused);
    (worked + (refused - worked) / 2).min(refused - 1).max(1)
}
