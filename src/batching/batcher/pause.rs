//! Merge keys that the upstream asked to come back later: `Retry-After` of a 429 or 503.
//!
//! By key and not by upstream: what an overload answer says holds for the whole merge key (G13), in which the caller's identity is, so one whose rate
//! is limited pauses nobody else. Where all callers have one key that is the whole upstream.
//!
//! What it leaves out: the drain, which waits for nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::call::{CostClassId, KeyId};
use super::super::tick::Tick;

/// The longest pause. `Retry-After` is for whoever sent the call, and gets it; ten batches a second are no load to speak of beside what clients would send,
/// and those who wait are told so soon, instead of being kept until their own deadline has passed.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Keys paused at once: as many as arrivals are watched for; beyond it the one that ends first goes.
const PAUSED_MAX: usize = 64;
/// Cost classes whose pauses are counted: as many as have a curve. Beyond it the one paused longest ago goes.
const CLASSES_MAX: usize = 64;

/// How often the calls of a cost class were paused, to be shown: a pause is over before anybody looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// Which.
    pub class: CostClassId,
    /// How often.
    pub count: u64,
    /// When last.
    pub last: Tick,
    /// What the upstream asked for then.
    pub asked: Duration,
    /// For how long nothing of the key was sent then, counted from the answer.
    pub held: Duration,
}

/// The keys that are paused.
#[derive(Debug, Clone, Default)]
pub(super) struct Paused {
    keys: BTreeMap<KeyId, (Tick, CostClassId)>,
    classes: BTreeMap<CostClassId, Pauses>,
}

// === impl Paused ===

impl Paused {
    /// The upstream wants no more of this key for a while.
    pub(super) fn pause(&mut self, now: Tick, key: KeyId, class: CostClassId, after: Duration) {
        self.keys.retain(|_, (until, _)| *until > now);
        let held = after.min(PAUSE_MAX);
        self.count(Pauses { class, count: 1, last: now, asked: after, held });
        let until = now.after(held);
        let known = self.keys.get(&key).map_or(until, |(known, _)| until.max(*known));
        self.keys.insert(key, (known, class));
        if self.keys.len() > PAUSED_MAX
            && let Some(first) = self.keys.iter().min_by_key(|(key, (until, _))| (*until, **key)).map(|(key, _)| *key)
        {
            self.keys.remove(&first);
        }
    }

    fn count(&mut self, pause: Pauses) {
        let before = self.classes.get(&pause.class).map_or(0, |known| known.count);
        self.classes.insert(pause.class, Pauses { count: before + pause.count, ..pause });
        if self.classes.len() > CLASSES_MAX
            && let Some(oldest) = self.classes.values().min_by_key(|known| known.last).map(|known| known.class)
        {
            self.classes.remove(&oldest);
        }
    }

    /// How often each cost class was paused.
    pub(super) fn classes(&self) -> impl Iterator<Item = Pauses> {
        self.classes.values().copied()
    }

    /// Until when a key is paused, if it is.
    pub(super) fn until(&self, now: Tick, key: KeyId) -> Option<Tick> {
        self.keys.get(&key).map(|(until, _)| *until).filter(|until| *until > now)
    }

    /// When the last pause of a key ends or ended, as long as it is remembered.
    pub(super) fn end(&self, key: KeyId) -> Option<Tick> {
        self.keys.get(&key).map(|(until, _)| *until)
    }

    /// All of them, with their classes.
    pub(super) fn all(&self, now: Tick) -> impl Iterator<Item = (KeyId, CostClassId, Tick)> {
        self.keys.iter().filter(move |(_, (until, _))| *until > now).map(|(key, (until, class))| (*key, *class, *until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_counted_by_class_and_the_classes_are_bounded() {
        let mut paused = Paused::default();
        let (short, long) = (Duration::from_millis(30), Duration::from_secs(30));
        paused.pause(Tick::from_millis(1), KeyId(1), CostClassId(7), long);
        paused.pause(Tick::from_millis(2), KeyId(2), CostClassId(7), short);
        let last = Tick::from_millis(2);
        let expected = Pauses { class: CostClassId(7), count: 2, last, asked: short, held: short };
        assert_eq!(paused.classes().collect::<Vec<_>>(), [expected]);
        for class in 100..300 {
            paused.pause(Tick::from_millis(class.into()), KeyId(1), CostClassId(class), long);
        }
        assert_eq!(paused.classes().count(), CLASSES_MAX);
        assert!(paused.classes().all(|pauses| pauses.class.0 >= 236 && pauses.held == PAUSE_MAX));
    }
}
