//! The credit of a key queue for merging its cohorts, and the merge in progress.
//!
//! Calls that are held for a merge may be late. Every call that is sent earns credit, a late one
//! costs eight times as much, and a merge that failed doubles the price, so that at most one call
//! in eight is late. When to merge is decided in `cohort`.

/// Part of an answered batch that must return within a quarter of the SLO, in tenths.
pub(super) const BACK: u64 = 8;
/// Credit that a late call costs, in calls that were sent before.
pub(super) const PRICE: u64 = 8;
/// Initial credit: enough for the largest batch of the default limits.
const CREDIT_START: u64 = 128 * PRICE;
/// Maximum credit.
const CREDIT_MAX: u64 = 2 * CREDIT_START;
/// Maximum factor on the price after merges that failed: then at most one call in eight times this
/// number is late without a gain.
const DEARER_MAX: u64 = 64;

/// Credit of a key queue for merging its cohorts, and the merge in progress.
#[derive(Debug, Clone)]
pub(super) struct CohortMerge {
    /// Credit in items that were sent.
    credit: u64,
    /// Factor on the price. It doubles with each merge that failed.
    price_factor: u64,
    /// The merge in progress.
    pub(super) open: Option<PendingMerge>,
}

/// A merge in progress, during which the key queue is held.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingMerge {
    /// Nanoseconds from the answer within which the other cohort returns.
    pub(super) return_nanos: u64,
    /// Held items that credit was spent on.
    pub(super) paid: u32,
    /// Expected items of both cohorts.
    pub(super) items: u32,
    /// Most items that would be in time together if they arrived at once. Clients that were refused
    /// may return too.
    pub(super) most: u32,
}

// === impl CohortMerge ===

impl Default for CohortMerge {
    fn default() -> Self {
        Self { credit: CREDIT_START, price_factor: 1, open: None }
    }
}

impl CohortMerge {
    /// Starts a merge if the credit pays for the held items, which may be late. Returns `true` if
    /// it does.
    pub(super) fn begin(&mut self, open: PendingMerge) -> bool {
        let price = self.price(open.paid);
        let is_affordable = price <= self.credit;
        if is_affordable {
            self.credit -= price;
            self.open = Some(open);
        }
        is_affordable
    }

    /// Charges items that joined the held ones before the other cohort is answered.
    pub(super) fn wait(&mut self, items: u32) {
        let Some(open) = &mut self.open else { return };
        let more = items.saturating_sub(open.paid);
        open.paid += more;
        self.credit = self.credit.saturating_sub(self.price(more));
    }

    /// Ends a merge that failed: too few items returned, or they can no longer leave together.
    pub(super) fn end(&mut self) {
        if self.open.take().is_some() {
            self.price_factor = (self.price_factor * 2).min(DEARER_MAX);
        }
    }

    /// Records the dispatch of a batch of the key queue.
    pub(super) fn on_dispatch(&mut self, items: u32) {
        self.credit = (self.credit + u64::from(items)).min(CREDIT_MAX);
        if self.open.is_some_and(|open| open.is_nearly_complete(items)) {
            self.open = None;
            self.price_factor = 1;
        }
        self.end();
    }

    fn price(&self, late: u32) -> u64 {
        u64::from(late) * PRICE * self.price_factor
    }
}

// === impl PendingMerge ===

impl PendingMerge {
    /// Returns `true` if these are nearly all of the expected items.
    pub(super) fn is_nearly_complete(&self, items: u32) -> bool {
        u64::from(items) * 10 >= u64::from(self.items) * BACK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(items: u32, late: u32) -> PendingMerge {
        PendingMerge { return_nanos: 1, paid: late, items, most: items }
    }

    #[test]
    fn price_doubles_after_failed_merge_and_resets_after_success() {
        let mut merge = CohortMerge::default();
        assert!(merge.begin(open(32, 16)) && merge.open.is_some());
        merge.on_dispatch(26);
        assert!(merge.open.is_none() && merge.price_factor == 1, "eight tenths arrived");
        for dearer in [2, 4, 8] {
            (0..100).for_each(|_| merge.on_dispatch(32));
            assert!(merge.begin(open(32, 1)));
            merge.on_dispatch(16);
            assert_eq!(merge.price_factor, dearer);
        }
    }

    #[test]
    fn cohort_merges_make_at_most_one_call_in_eight_late() {
        let mut merge = CohortMerge::default();
        let (mut late, mut sent) = (0_u64, 0_u64);
        for _ in 0..100_000 {
            if merge.begin(open(20, 4)) {
                late += 4;
            }
            merge.on_dispatch(20);
            sent += 20;
        }
        assert!(late * PRICE <= sent + CREDIT_START, "{late} of {sent}");
    }
}
