//! A map by call id for ids that arrive in ascending order: a sorted deque with tombstones and a
//! slab of values.
//!
//! Ids are assigned in arrival order, so new ids are appended to the deque, and a look-up is an
//! index computation or a binary search. Nothing is moved or allocated when calls come and go; a
//! search tree would do both for every few of them. A removed id leaves a tombstone in the deque.
//! The deque is compacted when tombstones outnumber the calls, so memory stays proportional to the
//! content, and a map that is empty again releases the memory of a peak.
//!
//! The worst case is not optimized: inserting an id that precedes many later ones moves them.

use std::collections::VecDeque;

use super::call::CallId;

/// Number of tombstones the deque may hold before it is compacted, beyond the number of its calls.
const GAPS_MAX: usize = 32;

/// Capacity that an empty map keeps, in values; the memory of a larger peak is released. As large
/// as the capacity that a queue's deque keeps: loads that empty the queue between batches must not
/// reallocate for each of them.
const ROOM_MAX: usize = 1024;

/// A map from call id to value.
#[derive(Debug, Clone)]
pub(super) struct CallMap<T> {
    /// Ids in order, each with the index of its value, or `None` for a tombstone. The first entry
    /// is never a tombstone.
    row: VecDeque<(CallId, Option<usize>)>,
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

// === impl CallMap ===

impl<T> Default for CallMap<T> {
    fn default() -> Self {
        Self { row: VecDeque::new(), places: Vec::new(), free: Vec::new() }
    }
}

impl<T> CallMap<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.row.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns the value of the smallest id.
    pub(super) fn first(&self) -> Option<&T> {
        let (_, place) = self.row.front()?;
        self.places.get((*place)?)?.as_ref()
    }

    pub(super) fn get(&self, id: CallId) -> Option<&T> {
        let (_, place) = self.row.get(self.find(id).ok()?)?;
        self.places.get((*place)?)?.as_ref()
    }

    /// Inserts a value for an id that has none.
    pub(super) fn insert(&mut self, id: CallId, value: T) {
        let at = self.find(id);
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place] = Some(value);
                place
            }
            None => {
                self.places.push(Some(value));
                self.places.len() - 1
            }
        };
        match at {
            Ok(gap) => self.row[gap].1 = Some(place),
            Err(at) => self.row.insert(at, (id, Some(place))),
        }
    }

    pub(super) fn remove(&mut self, id: CallId) -> Option<T> {
        let at = self.find(id).ok()?;
        let place = self.row.get_mut(at)?.1.take()?;
        let value = self.places.get_mut(place)?.take();
        self.free.push(place);
        while self.row.front().is_some_and(|(_, place)| place.is_none()) {
            self.row.pop_front();
        }
        if self.row.len() > 2 * self.len() + GAPS_MAX {
            self.row.retain(|(_, place)| place.is_some());
        }
        if self.row.is_empty() && self.places.len() > ROOM_MAX {
            *self = Self::default();
        }
        value
    }

    /// Iterates over the values in descending order of their ids.
    pub(super) fn values_rev(&self) -> impl Iterator<Item = &T> {
        self.row.iter().rev().filter_map(|(_, place)| self.places.get((*place)?)?.as_ref())
    }

    /// Iterates over the values in ascending order of their ids.
    pub(super) fn into_values(mut self) -> impl Iterator<Item = T> {
        self.row.into_iter().filter_map(move |(_, place)| self.places.get_mut(place?)?.take())
    }

    /// Returns the position of an id, or the position at which to insert it.
    fn find(&self, id: CallId) -> Result<usize, usize> {
        let Some((first, _)) = self.row.front() else { return Err(0) };
        // While the deque has no gaps, the position is the difference to the first id.
        let guess = usize::try_from(id.0.wrapping_sub(first.0)).unwrap_or(usize::MAX);
        match self.row.get(guess) {
            Some((there, _)) if *there == id => Ok(guess),
            _ if self.row.back().is_some_and(|(last, _)| *last < id) => Err(self.row.len()),
            _ => self.row.binary_search_by_key(&id, |(there, _)| *there),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    use super::*;

    #[test]
    fn it_holds_what_a_map_holds() {
        let (mut shelf, mut map, mut random) = (CallMap::default(), BTreeMap::new(), 1_u64);
        for turn in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = CallId((turn / 20 + (random >> 40) % 100).saturating_sub(50));
            if random >> 63 == 0 {
                assert_eq!(shelf.remove(id), map.remove(&id));
            } else if let Entry::Vacant(entry) = map.entry(id) {
                entry.insert(random);
                shelf.insert(id, random);
            }
            assert_eq!((shelf.get(id), shelf.len()), (map.get(&id), map.len()));
            assert_eq!(shelf.first(), map.first_key_value().map(|(_, value)| value));
            assert!(shelf.row.len() <= 2 * map.len() + GAPS_MAX);
        }
        for id in map.into_keys() {
            assert!(shelf.remove(id).is_some() && shelf.get(id).is_none());
        }
        assert!(shelf.is_empty());
    }

    #[test]
    fn freed_places_are_reused() {
        let mut shelf = CallMap::default();
        for id in 0..10_000 {
            shelf.insert(CallId(id), ());
            if id >= 100 {
                shelf.remove(CallId(id - 100));
            }
        }
        assert!(shelf.places.len() <= 101);
    }

    #[test]
    fn a_peak_leaves_no_room_behind() {
        let mut shelf = CallMap::default();
        (0..10_000).for_each(|id| shelf.insert(CallId(id), ()));
        assert!((0..10_000).all(|id| shelf.remove(CallId(id)).is_some()));
        assert!(shelf.row.capacity() <= ROOM_MAX && shelf.free.capacity() <= ROOM_MAX);
    }
}
