//! A sorted row to which most things are added at the end and from which most are taken at the front.
//!
//! That is what lines and deadlines are, and a search tree would allocate and free a node for every few of them. What is taken elsewhere leaves a gap,
//! which is closed when gaps outnumber what is there: work and memory stay in proportion to what the row holds, and once it is as long as it gets,
//! nothing is allocated.
//!
//! What it leaves out: a good worst case. What comes before most others moves all that stand behind it.

use std::collections::VecDeque;

/// Gaps a row may hold before it is closed up, beyond the number of its entries.
pub(super) const GAPS_MAX: usize = 32;

/// Room that a row keeps when its last entry goes; a larger one is given back, or the memory of a peak would stay.
const ROOM_MAX: usize = 1024;

/// Entries in order; none is there twice.
#[derive(Debug, Clone)]
pub(in super::super) struct Order<K> {
    /// Each with whether it is still there. The first one always is.
    row: VecDeque<(K, bool)>,
    live: usize,
}

// === impl Order ===

impl<K> Default for Order<K> {
    fn default() -> Self {
        Self { row: VecDeque::new(), live: 0 }
    }
}

impl<K: Ord + Copy> Order<K> {
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

    /// The first of those that come after this one.
    pub(in super::super) fn after(&self, key: K) -> Option<K> {
        let from = self.row.partition_point(|(other, _)| *other <= key);
        self.row.range(from..).find(|(_, here)| *here).map(|(key, _)| *key)
    }

    /// Adds one that is not there.
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

    /// Takes one out; whether it was there.
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
    pub(super) fn len_with_gaps(&self) -> usize {
        self.row.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn it_holds_what_a_set_holds_in_the_same_order() {
        let (mut order, mut set, mut random) = (Order::default(), BTreeSet::new(), 1_u64);
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
            assert!(order.len_with_gaps() <= 2 * set.len() + GAPS_MAX);
        }
        assert!(order.iter().eq(set.iter().copied()));
        assert!(order.iter().rev().eq(set.iter().rev().copied()));
    }

    #[test]
    fn a_peak_leaves_no_room_behind() {
        let mut order = Order::default();
        (0..100_000).for_each(|key| order.insert(key));
        assert!((0..100_000).all(|key| order.remove(key)));
        assert!(order.row.capacity() <= ROOM_MAX);
    }
}
