//! A set whose worst members can be found, with constant time to join and to leave.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A set of things of which some may have to go. Cheap to clone.
#[derive(Debug)]
pub struct Crowd<T>(Arc<Mutex<Vec<Arc<CrowdSlot<T>>>>>);

/// A member, until it is dropped.
#[derive(Debug)]
pub struct CrowdMember<T> {
    crowd: Crowd<T>,
    slot: Arc<CrowdSlot<T>>,
}

/// A view of a member.
#[derive(Debug)]
pub struct CrowdView<T>(Arc<CrowdSlot<T>>);

#[derive(Debug)]
struct CrowdSlot<T> {
    value: T,
    /// Its place in the list, changed under the lock only.
    index: AtomicUsize,
}

// === impl Crowd ===

impl<T> Crowd<T> {
    /// Takes one in.
    pub fn join(&self, value: T) -> CrowdMember<T> {
        let mut all = self.lock();
        let slot = Arc::new(CrowdSlot { value, index: AtomicUsize::new(all.len()) });
        all.push(slot.clone());
        drop(all);
        CrowdMember { crowd: self.clone(), slot }
    }

    /// Shows all members.
    pub fn for_each(&self, mut show: impl FnMut(&T)) {
        self.lock().iter().for_each(|slot| show(&slot.value));
    }

    /// The members with a score, the highest first.
    #[must_use]
    pub fn worst<S: Ord>(&self, score: impl Fn(&T) -> Option<S>) -> Vec<CrowdView<T>> {
        let mut scored: Vec<(S, Arc<CrowdSlot<T>>)> = {
            let all = self.lock();
            all.iter().filter_map(|slot| Some((score(&slot.value)?, slot.clone()))).collect()
        };
        scored.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
        scored.into_iter().map(|(_, slot)| CrowdView(slot)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<CrowdSlot<T>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Crowd<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Crowd<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

// === impl CrowdMember ===

impl<T> CrowdMember<T> {
    /// A view of the member, also after it has left.
    #[must_use]
    pub fn share(&self) -> CrowdView<T> {
        CrowdView(self.slot.clone())
    }
}

impl<T> Deref for CrowdView<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Deref for CrowdMember<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.slot.value
    }
}

impl<T> Drop for CrowdMember<T> {
    fn drop(&mut self) {
        let mut all = self.crowd.lock();
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
        let crowd = Crowd::default();
        let mut members: Vec<_> = (0..5).map(|value| crowd.join(value)).collect();
        drop(members.remove(1));
        drop(members.remove(3));
        let worst = crowd.worst(|value| (*value != 2).then_some(*value));
        assert_eq!(worst.iter().map(|view| **view).collect::<Vec<_>>(), [3, 0]);
        drop(members);
        crowd.for_each(|value| panic!("{value} has left"));
    }
}
