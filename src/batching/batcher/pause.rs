//! Merge keys that the upstream paused with the `Retry-After` of a 429 or 503.
//!
//! A pause applies to a merge key with all its length buckets, not to the upstream. The key
//! includes the identity of the client, so a rate limit of one client pauses no other. If all
//! clients share one key, the pause applies to the whole upstream. A drain ignores pauses.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::call::{CostClassId, KeyId};
use super::super::tick::Tick;

/// Maximum pause. `Retry-After` is addressed to the sender of the call, which receives it. Ten
/// batches per second are a small load beside what clients would send, and queued calls are refused
/// soon instead of being kept until their own deadlines.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Maximum number of paused keys, equal to the number of keys with tracked arrivals. Beyond it the
/// pause that ends first is dropped.
const PAUSED_MAX: usize = 64;
/// Maximum number of cost classes with counted pauses, equal to the number of cost curves. Beyond
/// it the class paused longest ago is dropped.
const CLASSES_MAX: usize = 64;

/// Count of the pauses of a cost class, for reports: a single pause ends before a report shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseStats {
    /// The cost class.
    pub class: CostClassId,
    /// Number of pauses.
    pub count: u64,
    /// Start of the last pause.
    pub last: Tick,
    /// Delay that the upstream requested in the last pause.
    pub requested: Duration,
    /// Time for which no call of the key was sent in the last pause, counted from the answer.
    pub applied: Duration,
}

/// Merge keys that are paused.
#[derive(Debug, Clone, Default)]
pub(super) struct PausedKeys {
    keys: BTreeMap<KeyId, (Tick, CostClassId)>,
    classes: BTreeMap<CostClassId, PauseStats>,
}

// === impl PausedKeys ===

impl PausedKeys {
    /// Pauses a key after the upstream requested a delay.
    pub(super) fn pause(&mut self, now: Tick, key: KeyId, class: CostClassId, after: Duration) {
        self.keys.retain(|_, (until, _)| *until > now);
        let key = key.without_bucket();
        let held = after.min(PAUSE_MAX);
        self.count(PauseStats { class, count: 1, last: now, requested: after, applied: held });
        let until = now.after(held);
        let known = self.keys.get(&key).map_or(until, |(known, _)| until.max(*known));
        self.keys.insert(key, (known, class));
        if self.keys.len() > PAUSED_MAX
            && let Some(first) = self.keys.iter().min_by_key(|(key, (until, _))| (*until, **key)).map(|(key, _)| *key)
        {
            self.keys.remove(&first);
        }
    }

    fn count(&mut self, pause: PauseStats) {
        let before = self.classes.get(&pause.class).map_or(0, |known| known.count);
        self.classes.insert(pause.class, PauseStats { count: before + pause.count, ..pause });
        if self.classes.len() > CLASSES_MAX
            && let Some(oldest) = self.classes.values().min_by_key(|known| known.last).map(|known| known.class)
        {
            self.classes.remove(&oldest);
        }
    }

    pub(super) fn classes(&self) -> impl Iterator<Item = PauseStats> {
        self.classes.values().copied()
    }

    /// Returns the end of a key's pause, if the key is paused.
    pub(super) fn until(&self, now: Tick, key: KeyId) -> Option<Tick> {
        self.end(key).filter(|until| *until > now)
    }

    /// Returns the end of the last pause of a key, past or not, as long as it is remembered.
    pub(super) fn end(&self, key: KeyId) -> Option<Tick> {
        self.keys.get(&key.without_bucket()).map(|(until, _)| *until)
    }

    /// Returns all pauses in force with their cost classes.
    pub(super) fn all(&self, now: Tick) -> impl Iterator<Item = (KeyId, CostClassId, Tick)> {
        self.keys.iter().filter(move |(_, (until, _))| *until > now).map(|(key, (until, class))| (*key, *class, *until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_counted_by_class_and_the_classes_are_bounded() {
        let mut paused = PausedKeys::default();
        let (short, long) = (Duration::from_millis(30), Duration::from_secs(30));
        paused.pause(Tick::from_millis(1), KeyId(1), CostClassId(7), long);
        paused.pause(Tick::from_millis(2), KeyId(2), CostClassId(7), short);
        let last = Tick::from_millis(2);
        let expected = PauseStats { class: CostClassId(7), count: 2, last, requested: short, applied: short };
        assert_eq!(paused.classes().collect::<Vec<_>>(), [expected]);
        for class in 100..300 {
            paused.pause(Tick::from_millis(class.into()), KeyId(1), CostClassId(class), long);
        }
        assert_eq!(paused.classes().count(), CLASSES_MAX);
        assert!(paused.classes().all(|pauses| pauses.class.0 >= 236 && pauses.applied == PAUSE_MAX));
    }
}
