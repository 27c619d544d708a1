//! A set that can be ranked by a score to select members for eviction, with insertion and removal
//! in constant time. The set and its views share ownership of a value, and its membership ends with
//! its `EvictionMember`.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A set of evictable values. Cheap to clone.
#[derive(Debug)]
pub struct EvictionSet<T>(Arc<Mutex<Vec<Arc<EvictionSlot<T>>>>>);

/// A membership in the set, which ends when it is dropped.
#[derive(Debug)]
pub struct EvictionMember<T> {
    set: EvictionSet<T>,
    slot: Arc<EvictionSlot<T>>,
}

/// A shared reference to a member's value, which outlives the membership.
#[derive(Debug)]
pub struct EvictionView<T>(Arc<EvictionSlot<T>>);

#[derive(Debug)]
struct EvictionSlot<T> {
    value: T,
    /// Index of the slot in the list, changed only under the lock.
    index: AtomicUsize,
}

// === impl EvictionSet ===

impl<T> EvictionSet<T> {
    /// Adds a value to the set.
    pub fn insert(&self, value: T) -> EvictionMember<T> {
        let mut all = self.lock();
        let slot = Arc::new(EvictionSlot { value, index: AtomicUsize::new(all.len()) });
        all.push(slot.clone());
        drop(all);
        EvictionMember { set: self.clone(), slot }
    }

    /// Calls `visit` for every member.
    pub fn for_each(&self, mut visit: impl FnMut(&T)) {
        self.lock().iter().for_each(|slot| visit(&slot.value));
    }

    /// Returns the members that have a score, the highest score first.
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
    /// Returns a view of the member, which remains valid after the membership ends.
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
    fn members_leave_in_any_order_and_the_highest_score_is_shown_first() {
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
