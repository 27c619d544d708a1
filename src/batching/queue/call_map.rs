//! A map by call id whose values stay in place: a sorted deque of ids and a slab of values.
//!
//! A queued call is several times as large as its entry in the deque. The slab keeps it in place
//! when the deque is compacted or a call is inserted between others, and a tombstone takes no more
//! memory than an entry. Nothing is allocated when calls come and go, and a map that is empty again
//! releases the memory of a peak.

use super::super::call::CallId;
use super::super::sorted_deque::{ROOM_MAX, SortedDeque};

/// A map from call id to value.
#[derive(Debug, Clone)]
pub(super) struct CallMap<T> {
    /// Ids in order, each with the index of its value.
    row: SortedDeque<CallId, usize>,
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

// === impl CallMap ===

impl<T> Default for CallMap<T> {
    fn default() -> Self {
        Self { row: SortedDeque::default(), places: Vec::new(), free: Vec::new() }
    }
}

impl<T> CallMap<T> {
    pub(super) const fn is_empty(&self) -> bool {
        self.row.is_empty()
    }

    pub(super) const fn len(&self) -> usize {
        self.row.len()
    }

    /// Returns the value of the smallest id.
    pub(super) fn first(&self) -> Option<&T> {
        self.places.get(*self.row.values().next()?)?.as_ref()
    }

    pub(super) fn get(&self, id: CallId) -> Option<&T> {
        self.places.get(*self.row.get(id)?)?.as_ref()
    }

    /// Inserts a value for an id that has none.
    pub(super) fn insert(&mut self, id: CallId, value: T) {
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
        self.row.insert(id, place);
    }

    /// Removes an id and returns its value, if it was present.
    pub(super) fn remove(&mut self, id: CallId) -> Option<T> {
        let place = self.row.remove(id)?;
        let value = self.places.get_mut(place)?.take();
        self.free.push(place);
        if self.row.is_empty() && self.places.len() > ROOM_MAX {
            *self = Self::default();
        }
        value
    }

    /// Iterates over the values in descending order of their ids.
    pub(super) fn values_rev(&self) -> impl Iterator<Item = &T> {
        self.row.values().rev().filter_map(|place| self.places.get(*place)?.as_ref())
    }

    /// Iterates over the values in ascending order of their ids.
    pub(super) fn into_values(mut self) -> impl Iterator<Item = T> {
        self.row.into_values().filter_map(move |place| self.places.get_mut(place)?.take())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    use super::*;

    #[test]
    fn contents_match_btree_map() {
        let (mut call_map, mut map, mut random) = (CallMap::default(), BTreeMap::new(), 1_u64);
        for turn in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = CallId((turn / 20 + (random >> 40) % 100).saturating_sub(50));
            if random >> 63 == 0 {
                assert_eq!(call_map.remove(id), map.remove(&id));
            } else if let Entry::Vacant(entry) = map.entry(id) {
                entry.insert(random);
                call_map.insert(id, random);
            }
            assert_eq!((call_map.get(id), call_map.len()), (map.get(&id), map.len()));
            assert_eq!(call_map.first(), map.first_key_value().map(|(_, value)| value));
            assert_eq!(call_map.places.len() - call_map.free.len(), map.len());
        }
        assert!(call_map.values_rev().eq(map.values().rev()));
        assert!(call_map.clone().into_values().eq(map.values().copied()));
        for id in map.into_keys() {
            assert!(call_map.remove(id).is_some() && call_map.get(id).is_none());
        }
        assert!(call_map.is_empty());
    }

    #[test]
    fn freed_places_are_reused() {
        let mut call_map = CallMap::default();
        for id in 0..10_000 {
            call_map.insert(CallId(id), ());
            if id >= 100 {
                call_map.remove(CallId(id - 100));
            }
        }
        assert!(call_map.places.len() <= 101);
    }

    #[test]
    fn capacity_is_released_after_a_peak() {
        let mut call_map = CallMap::default();
        (0..10_000).for_each(|id| call_map.insert(CallId(id), ()));
        assert!((0..10_000).all(|id| call_map.remove(CallId(id)).is_some()));
        assert!(call_map.places.capacity() <= ROOM_MAX && call_map.free.capacity() <= ROOM_MAX);
    }
}
