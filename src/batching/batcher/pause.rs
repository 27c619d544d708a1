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

/// The keys that are paused.
#[derive(Debug, Clone, Default)]
pub(super) struct Paused {
    keys: BTreeMap<KeyId, (Tick, CostClassId)>,
}

// === impl Paused ===

impl Paused {
    /// The upstream wants no more of this key for a while.
    pub(super) fn pause(&mut self, now: Tick, key: KeyId, class: CostClassId, after: Duration) {
        self.keys.retain(|_, (until, _)| *until > now);
        let until = now.after(after.min(PAUSE_MAX));
        let known = self.keys.get(&key).map_or(until, |(known, _)| until.max(*known));
        self.keys.insert(key, (known, class));
        if self.keys.len() > PAUSED_MAX
            && let Some(first) = self.keys.iter().min_by_key(|(key, (until, _))| (*until, **key)).map(|(key, _)| *key)
        {
            self.keys.remove(&first);
        }
    }

    /// Until when a key is paused, if it is.
    pub(super) fn until(&self, now: Tick, key: KeyId) -> Option<Tick> {
        self.keys.get(&key).map(|(until, _)| *until).filter(|until| *until > now)
    }

    /// All of them, with their classes.
    pub(super) fn all(&self, now: Tick) -> impl Iterator<Item = (KeyId, CostClassId, Tick)> {
        self.keys.iter().filter(move |(_, (until, _))| *until > now).map(|(key, (until, class))| (*key, *class, *until))
    }
}
