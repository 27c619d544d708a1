//! A set of values that can be ranked by a score, to select members for eviction.
//!
//! Insertion and removal take constant time: the set is a list, each member has its index, and a
//! removed member is replaced by the last one (`Vec::swap_remove`). An [`EvictionMember`] is a
//! guard: the value leaves the set when it is dropped. Views share the ownership of a value, so it
//! can be inspected after it has left.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A set of evictable values. Cheap to clone.
#[derive(Debug)]
pub struct EvictionSet<T>(Arc<Mutex<Vec<Arc<EvictionSlot<T>>>>>);

/// A guard that keeps a value in the set until it is dropped.
#[derive(Debug)]
pub struct EvictionMember<T> {
    set: EvictionSet<T>,
    slot: Arc<EvictionSlot<T>>,
}

/// A shared reference to the value of a member, valid after the member has left the set.
#[derive(Debug)]
pub struct EvictionView<T>(Arc<EvictionSlot<T>>);

/// A value with its position in the list of the set.
#[derive(Debug)]
struct EvictionSlot<T> {
    value: T,
    /// Index of the slot in the list, changed only under the lock.
    index: AtomicUsize,
}

// === impl EvictionSet ===

impl<T> EvictionSet<T> {
    /// Adds a value to the set, until the returned guard is dropped.
    pub fn insert(&self, value: T) -> EvictionMember<T> {
        let mut all = self.lock();
        let slot = Arc::new(EvictionSlot { value, index: AtomicUsize::new(all.len()) });
        all.push(slot.clone());
        drop(all);
        EvictionMember { set: self.clone(), slot }
    }

    /// Calls `visit` for every member while the set is locked, so `visit` must not change the set.
    pub fn for_each(&self, mut visit: impl FnMut(&T)) {
        self.lock().iter().for_each(|slot| visit(&slot.value));
    }

    /// Returns the members for which `score` returns a value, in descending order of that value.
    /// The set is locked while the scores are computed, and not while they are sorted.
    #[must_use]
    pub fn ranked_by<S: Ord>(&self, score: impl Fn(&T) -> Option<S>) -> Vec<EvictionView<T>> {
        let mut scored: Vec<(S, Arc<EvictionSlot<T>>)> = {
            let all = self.lock();
            all.iter().filter_map(|slot| Some((score(&slot.value)?, slot.clone()))).collect()
        };
        scored.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
        scored.into_iter().map(|(_, slot)| EvictionView(slot)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<EvictionSlot<T>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for EvictionSet<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for EvictionSet<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

// === impl EvictionMember ===

impl<T> EvictionMember<T> {
    /// Returns a view of the value, which remains valid after the member has left the set.
    #[must_use]
    pub fn share(&self) -> EvictionView<T> {
        EvictionView(self.slot.clone())
    }
}

impl<T> Deref for EvictionView<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Deref for EvictionMember<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.slot.value
    }
}

impl<T> Drop for EvictionMember<T> {
    fn drop(&mut self) {
        let mut all = self.set.lock();
        let index = self.slot.index.load(Ordering::Relaxed);
        all.swap_remove(index);
        if let Some(moved) = all.get(index) {
            moved.index.store(index, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_leave_in_any_order_and_the_highest_score_is_ranked_first() {
        let set = EvictionSet::default();
        let mut members: Vec<_> = (0..5).map(|value| set.insert(value)).collect();
        drop(members.remove(1));
        drop(members.remove(3));
        let ranked = set.ranked_by(|value| (*value != 2).then_some(*value));
        assert_eq!(ranked.iter().map(|view| **view).collect::<Vec<_>>(), [3, 0]);
        drop(members);
        set.for_each(|value| panic!("{value} has left"));
    }
}
