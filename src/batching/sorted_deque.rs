//! A sorted deque with tombstones, for keys that are mostly inserted at the back and removed at the
//! front.
//!
//! Key queues, deadlines and calls by id are such sequences, and a search tree would allocate and
//! free nodes all the time. A key removed elsewhere leaves a tombstone, and tombstones are
//! compacted when they outnumber the live entries: work and memory stay proportional to the number
//! of entries, and nothing is allocated once the deque has reached its maximum length. The worst
//! case is not bounded: an insertion before most others moves every entry behind it.
//!
//! Values are stored beside their keys and move with them, so they should be small.

use std::collections::VecDeque;

use super::call::{CallId, KeyId};
use super::tick::Tick;

/// Maximum number of tombstones beyond the number of live entries before the deque is compacted.
pub(super) const GAPS_MAX: usize = 32;

/// Maximum capacity that is kept when the last entry is removed. A larger buffer is freed, or the
/// memory of a peak would be held; a smaller one is kept, or loads that empty the queue between
/// batches would reallocate it for each of them.
pub(super) const ROOM_MAX: usize = 1024;

/// A key of a [`SortedDeque`].
pub(super) trait SortKey: Ord + Copy {
    /// Returns the position at which a search begins, in a deque that starts with `first`: the
    /// front, where most keys are removed.
    fn guess_position(self, _first: Self) -> usize {
        0
    }
}

/// A map from key to value in the order of the keys; a set if no value is stored.
#[derive(Debug, Clone)]
pub(super) struct SortedDeque<K, V = ()> {
    /// Keys with their values, or with `None` for a tombstone. The first one is always live.
    row: VecDeque<(K, Option<V>)>,
    live: usize,
}

// === impl SortKey ===

impl SortKey for CallId {
    /// Returns the difference to the first id. Ids are assigned in arrival order, so it is the
    /// position while no id is missing.
    fn guess_position(self, first: Self) -> usize {
        usize::try_from(self.0.wrapping_sub(first.0)).unwrap_or(usize::MAX)
    }
}

impl SortKey for (Tick, CallId) {}

impl SortKey for (Tick, CallId, KeyId) {}

// === impl SortedDeque ===

impl<K, V> Default for SortedDeque<K, V> {
    fn default() -> Self {
        Self { row: VecDeque::new(), live: 0 }
    }
}

impl<K: SortKey, V> SortedDeque<K, V> {
    pub(super) const fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub(super) const fn len(&self) -> usize {
        self.live
    }

    pub(super) fn first(&self) -> Option<K> {
        self.row.front().map(|(key, _)| *key)
    }

    pub(super) fn last(&self) -> Option<K> {
        self.keys().next_back()
    }

    /// Returns the first live key after this one.
    pub(super) fn after(&self, key: K) -> Option<K> {
        let from = self.row.partition_point(|(other, _)| *other <= key);
        self.row.range(from..).find(|(_, value)| value.is_some()).map(|(key, _)| *key)
    }

    pub(super) fn get(&self, key: K) -> Option<&V> {
        let (_, value) = self.row.get(self.find(key).ok()?)?;
        value.as_ref()
    }

    /// Iterates over the keys in order.
    pub(super) fn keys(&self) -> impl DoubleEndedIterator<Item = K> {
        self.row.iter().filter(|(_, value)| value.is_some()).map(|(key, _)| *key)
    }

    /// Iterates over the values in the order of their keys.
    pub(super) fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.row.iter().filter_map(|(_, value)| value.as_ref())
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = V> {
        self.row.into_iter().filter_map(|(_, value)| value)
    }

    /// Inserts a value for a key that has none.
    pub(super) fn insert(&mut self, key: K, value: V) {
        self.live += 1;
        // Most keys follow all others, and are not searched for.
        let at = match self.row.back() {
            Some((last, _)) if *last >= key => self.find(key),
            _ => Err(self.row.len()),
        };
        match at {
            Ok(gap) => self.row[gap].1 = Some(value),
            Err(at) => self.row.insert(at, (key, Some(value))),
        }
    }

    /// Removes a key and returns its value, if it was present.
    pub(super) fn remove(&mut self, key: K) -> Option<V> {
        let at = self.find(key).ok()?;
        let value = self.row.get_mut(at)?.1.take()?;
        self.live -= 1;
        while self.row.front().is_some_and(|(_, value)| value.is_none()) {
            self.row.pop_front();
        }
        if self.row.len() > 2 * self.live + GAPS_MAX {
            self.row.retain(|(_, value)| value.is_some());
        }
        if self.live == 0 && self.row.capacity() > ROOM_MAX {
            self.row = VecDeque::new();
        }
        Some(value)
    }

    /// Returns the position of a key, or the position at which to insert it.
    fn find(&self, key: K) -> Result<usize, usize> {
        let Some((first, _)) = self.row.front() else { return Err(0) };
        let guess = key.guess_position(*first);
        match self.row.get(guess) {
            Some((there, _)) if *there == key => Ok(guess),
            _ if self.row.back().is_some_and(|(last, _)| *last < key) => Err(self.row.len()),
            _ => self.row.binary_search_by_key(&key, |(there, _)| *there),
        }
    }

    #[cfg(test)]
    pub(super) fn len_with_tombstones(&self) -> usize {
        self.row.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;
    use std::ops::Bound;

    use super::*;

    impl SortKey for u64 {}

    /// Inserts and removes random keys. `key_of` returns the key of a turn and a random number.
    fn assert_matches_btree_map<K: SortKey>(key_of: impl Fn(u64, u64) -> K) {
        let (mut order, mut map) = (SortedDeque::<K, u64>::default(), BTreeMap::<K, u64>::new());
        let mut random = 1_u64;
        for turn in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = key_of(turn, random >> 40);
            if random >> 63 == 0 {
                assert_eq!(order.remove(key), map.remove(&key));
            } else if let Entry::Vacant(entry) = map.entry(key) {
                entry.insert(random);
                order.insert(key, random);
            }
            assert_eq!((order.get(key), order.len()), (map.get(&key), map.len()));
            assert!(order.first() == map.keys().next().copied() && order.is_empty() == map.is_empty());
            assert!(order.last() == map.keys().next_back().copied());
            let after = map.range((Bound::Excluded(key), Bound::Unbounded)).next();
            assert!(order.after(key) == after.map(|(key, _)| *key));
            assert!(order.len_with_tombstones() <= 2 * map.len() + GAPS_MAX);
        }
        assert!(order.keys().eq(map.keys().copied()) && order.keys().rev().eq(map.keys().rev().copied()));
        assert!(order.values().eq(map.values()) && order.values().rev().eq(map.values().rev()));
        assert!(order.clone().into_values().eq(map.values().copied()));
        for key in map.into_keys() {
            assert!(order.remove(key).is_some() && order.get(key).is_none());
        }
        assert!(order.is_empty());
    }

    #[test]
    fn order_matches_btree_map() {
        assert_matches_btree_map(|_, random| random % 200);
    }

    #[test]
    fn ascending_ids_match_btree_map() {
        assert_matches_btree_map(|turn, random| CallId((turn / 20 + random % 100).saturating_sub(50)));
    }

    #[test]
    fn capacity_is_released_after_a_peak() {
        let mut order = SortedDeque::default();
        (0..100_000_u64).for_each(|key| order.insert(key, ()));
        assert!((0..100_000).all(|key| order.remove(key).is_some()));
        assert!(order.row.capacity() <= ROOM_MAX);
    }
}
