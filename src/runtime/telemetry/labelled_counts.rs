//! Counts by label that the process itself reads, such as for its reports to the controller. The
//! handles of metrics cannot be read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Counts by label. The number of labels is bounded by their source: an enum, or
/// [`RouteLabelSet`](super::routes::RouteLabelSet).
#[derive(Debug)]
pub(super) struct LabelledCounts<L>(Mutex<Vec<(L, Arc<AtomicU64>)>>);

// === impl LabelledCounts ===

impl<L: Clone + PartialEq> LabelledCounts<L> {
    /// Returns the count of a label, which is added if it is new. Equal labels share a count.
    pub(super) fn get_or_insert(&self, label: L) -> Arc<AtomicU64> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = known.iter().find(|(own, _)| *own == label) {
            return count.clone();
        }
        let count = Arc::default();
        known.push((label, Arc::clone(&count)));
        count
    }

    /// Returns the counts in the order in which their labels were added.
    pub(super) fn counts(&self) -> Vec<(L, u64)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(label, count)| (label.clone(), count.load(Ordering::Relaxed))).collect()
    }
}

impl<L> Default for LabelledCounts<L> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_labels_share_a_count() {
        let counts = LabelledCounts::default();
        counts.get_or_insert("a").fetch_add(2, Ordering::Relaxed);
        counts.get_or_insert("b").fetch_add(1, Ordering::Relaxed);
        counts.get_or_insert("a").fetch_add(3, Ordering::Relaxed);
        assert_eq!(counts.counts(), [("a", 5), ("b", 1)]);
    }
}
