//! Interns byte strings as small ids by full comparison: two keys are equal only if every byte is,
//! so that a hash collision never merges calls.

use std::collections::HashMap;
use std::hash::Hash;

/// Minimum number of unused values that keep their id, because otherwise the arrival statistics of
/// an id would be lost whenever its queue is momentarily empty. Equal to the number of keys that
/// the core tracks.
const IDLE: u64 = 64;

/// Reference-counted values with their ids, and the values released last. Ids are never reused.
#[derive(Debug)]
pub(super) struct Interner<K> {
    ids: HashMap<K, InternedValue>,
    next: u64,
    in_use: usize,
    /// Number of times that the last user of a value released it.
    left: u64,
}

#[derive(Debug, Clone, Copy)]
struct InternedValue {
    id: u64,
    users: usize,
    left: u64,
}

/// Recently used values, at most `max` of them, with least-recently-used eviction.
#[derive(Debug)]
pub(super) struct RecentInterner<K> {
    ids: HashMap<K, (u32, u64)>,
    next: u32,
    uses: u64,
    max: usize,
}

// === impl Interner ===

impl<K: Hash + Eq> Interner<K> {
    pub(super) fn new() -> Self {
        Self { ids: HashMap::new(), next: 0, in_use: 0, left: 0 }
    }

    /// Returns the id of a value and adds a user to it.
    pub(super) fn acquire<Q>(&mut self, value: &Q) -> u64
    where
        K: std::borrow::Borrow<Q> + for<'a> From<&'a Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.acquire_or_insert(value).0
    }

    /// Like [`acquire`](Self::acquire), and also returns `true` if the value was not interned
    /// before.
    pub(super) fn acquire_or_insert<Q>(&mut self, value: &Q) -> (u64, bool)
    where
        K: std::borrow::Borrow<Q> + for<'a> From<&'a Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some(entry) = self.ids.get_mut(value) {
            self.in_use += usize::from(entry.users == 0);
            entry.users += 1;
            return (entry.id, false);
        }
        let id = self.next_id();
        self.ids.insert(value.into(), InternedValue { id, users: 1, left: 0 });
        self.in_use += 1;
        (id, true)
    }

    /// Returns an id that belongs to no value.
    pub(super) fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Removes a user from a value. A value without users is retained for a while.
    pub(super) fn release<Q>(&mut self, value: &Q)
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some(entry) = self.ids.get_mut(value) else { return };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        self.in_use -= 1;
        self.left += 1;
        entry.left = self.left;
        // Swept only once twice as many values are idle, so that the cost is amortised over many
        // releases.
        let idle = u64::try_from(self.ids.len() - self.in_use).unwrap_or(u64::MAX);
        if idle > 2 * IDLE {
            let oldest = self.left - IDLE;
            self.ids.retain(|_, entry| entry.users > 0 || entry.left > oldest);
        }
    }
}

// === impl RecentInterner ===

impl<K: Hash + Eq + Clone> RecentInterner<K> {
    pub(super) fn new(max: usize) -> Self {
        Self { ids: HashMap::new(), next: 0, uses: 0, max }
    }

    /// Iterates over all interned values and their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, u32)> {
        self.ids.iter().map(|(key, (id, _))| (key, *id))
    }

    /// Returns the id of a value, which becomes the most recently used one.
    pub(super) fn get<Q>(&mut self, value: &Q) -> u32
    where
        K: std::borrow::Borrow<Q> + for<'a> From<&'a Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.uses += 1;
        if let Some((id, used)) = self.ids.get_mut(value) {
            *used = self.uses;
            return *id;
        }
        if self.ids.len() >= self.max {
            let oldest = self.ids.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.ids.remove(oldest.borrow());
            }
        }
        // The id wraps only after four thousand million cost classes.
        self.next = self.next.wrapping_add(1);
        self.ids.insert(value.into(), (self.next, self.uses));
        self.next
    }

    /// Returns the value of an id by a linear search, which is acceptable for operations that run
    /// once a minute.
    pub(super) fn name(&self, id: u32) -> Option<&K> {
        self.ids.iter().find(|(_, (own, _))| *own == id).map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_keeps_its_number_while_it_has_users_and_for_a_while_after() {
        let mut interner = Interner::<Box<[u8]>>::new();
        let a = interner.acquire(&b"a"[..]);
        assert_eq!(interner.acquire(&b"a"[..]), a);
        assert_ne!(interner.acquire(&b"b"[..]), a);
        interner.release(&b"a"[..]);
        interner.release(&b"a"[..]);
        assert_eq!(interner.acquire(&b"a"[..]), a, "no other value was used");
        interner.release(&b"a"[..]);
        for other in 0..1000_u16 {
            interner.acquire(&other.to_be_bytes()[..]);
            interner.release(&other.to_be_bytes()[..]);
        }
        assert_ne!(interner.acquire(&b"a"[..]), a);
        assert_eq!(interner.in_use, 2);
        assert!(interner.ids.len() <= 2 + 2 * 64, "idle values are bounded");
    }

    #[test]
    fn only_the_value_unused_for_longest_is_forgotten() {
        let mut interner = RecentInterner::<Box<[u8]>>::new(2);
        let (a, b) = (interner.get(&b"a"[..]), interner.get(&b"b"[..]));
        assert_eq!(interner.get(&b"a"[..]), a);
        interner.get(&b"c"[..]);
        assert_eq!(interner.get(&b"a"[..]), a);
        assert_ne!(interner.get(&b"b"[..]), b);
    }
}
