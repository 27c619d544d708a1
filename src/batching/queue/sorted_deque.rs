//! A sorted deque with tombstones, for keys that are mostly inserted at the back and removed at the
//! front.
//!
//! Queue lines and deadlines are such sequences, and a search tree would allocate and free nodes
//! all the time. A key removed elsewhere leaves a tombstone, and tombstones are compacted when they
//! outnumber the live entries: work and memory stay proportional to the number of entries, and
//! nothing is allocated once the deque has reached its maximum length. The worst case is not
//! bounded: an insertion before most others moves every entry behind it.

use std::collections::VecDeque;

/// Maximum number of tombstones beyond the number of live entries before the deque is compacted.
pub(super) const GAPS_MAX: usize = 32;

/// Maximum capacity that is kept when the last entry is removed. A larger buffer is freed, or the
/// memory of a peak would be held.
const ROOM_MAX: usize = 1024;

/// A sorted set of keys.
#[derive(Debug, Clone)]
pub(in super::super) struct SortedDeque<K> {
    /// Keys with `true` if live, `false` for a tombstone. The first one is always live.
    row: VecDeque<(K, bool)>,
    live: usize,
}

// === impl SortedDeque ===

impl<K> Default for SortedDeque<K> {
    fn default() -> Self {
        Self { row: VecDeque::new(), live: 0 }
    }
}

impl<K: Ord + Copy> SortedDeque<K> {
    pub(in super::super) const fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub(in super::super) fn first(&self) -> Option<K> {
        self.row.front().map(|(key, _)| *key)
    }

    pub(in super::super) fn iter(&self) -> impl DoubleEndedIterator<Item = K> {
        self.row.iter().filter(|(_, here)| *here).map(|(key, _)| *key)
    }

    pub(in super::super) fn last(&self) -> Option<K> {
        self.iter().next_back()
    }

    /// Returns the first live key after this one.
    pub(in super::super) fn after(&self, key: K) -> Option<K> {
        let from = self.row.partition_point(|(other, _)| *other <= key);
        self.row.range(from..).find(|(_, here)| *here).map(|(key, _)| *key)
    }

    /// Inserts a key that is not present.
    pub(in super::super) fn insert(&mut self, key: K) {
        self.live += 1;
        let at = match self.row.back() {
            Some((last, _)) if *last >= key => self.row.partition_point(|(other, _)| *other < key),
            _ => self.row.len(),
        };
        match self.row.get_mut(at) {
            Some((gap, here)) if *gap == key => *here = true,
            _ => self.row.insert(at, (key, true)),
        }
    }

    /// Removes a key. Returns `true` if it was present.
    pub(in super::super) fn remove(&mut self, key: K) -> bool {
        let at = match self.row.front() {
            Some((first, _)) if *first == key => 0,
            _ => self.row.partition_point(|(other, _)| *other < key),
        };
        let Some((_, here)) = self.row.get_mut(at).filter(|(other, here)| *other == key && *here) else { return false };
        *here = false;
        self.live -= 1;
        while self.row.front().is_some_and(|(_, here)| !here) {
            self.row.pop_front();
        }
        if self.row.len() > 2 * self.live + GAPS_MAX {
            self.row.retain(|(_, here)| *here);
        }
        if self.live == 0 && self.row.capacity() > ROOM_MAX {
            self.row = VecDeque::new();
        }
        true
    }

    #[cfg(test)]
    pub(super) fn len_with_tombstones(&self) -> usize {
        self.row.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn order_matches_btree_set() {
        let (mut order, mut set, mut random) = (SortedDeque::default(), BTreeSet::new(), 1_u64);
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (random >> 40) % 200;
            if random >> 63 == 0 {
                assert_eq!(order.remove(key), set.remove(&key));
            } else if set.insert(key) {
                order.insert(key);
            }
            assert_eq!((order.first(), order.is_empty()), (set.first().copied(), set.is_empty()));
            assert_eq!(order.last(), set.last().copied());
            assert_eq!(order.after(key), set.range(key + 1..).next().copied());
            assert!(order.len_with_tombstones() <= 2 * set.len() + GAPS_MAX);
        }
        assert!(order.iter().eq(set.iter().copied()));
        assert!(order.iter().rev().eq(set.iter().rev().copied()));
    }

    #[test]
    fn a_peak_leaves_no_room_behind() {
        let mut order = SortedDeque::default();
        (0..100_000).for_each(|key| order.insert(key));
        assert!((0..100_000).all(|key| order.remove(key)));
        assert!(order.row.capacity() <= ROOM_MAX);
    }
}
