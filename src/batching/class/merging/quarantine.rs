//! Quarantine of merge keys whose batches failed while their members succeed alone.
//!
//! A key is quarantined by itself first, because the form of a single client's calls may be the
//! cause. The number of keys and tenants in quarantine shows whether it is the server instead.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::batch::{BatchOutcome, BatchRefusal};
use crate::call::{CostClassId, KeyId, TenantId};
use crate::limits::Limits;
use crate::tick::Tick;

/// Number of successful batches after which the next quarantine of a merge key, and the next
/// suspension of merging, has its initial length again.
pub(super) const TRUSTED_AFTER: u32 = 100;
/// Number of consecutive refused batches that put a merge key in quarantine, or suspend merging. A
/// single one may be an accident.
pub(super) const REFUSED_MAX: u32 = 2;
/// Number of tenants with a merge key in quarantine that suspends merging for the cost class if no
/// batch of the class was answered since: three tenants are not a single odd one.
const TENANTS_END_CLASS: usize = 3;
/// Number of such keys that suspends merging whatever their tenants, so that a tenant with ever new
/// keys does not test each of them.
const KEYS_END_CLASS: usize = 16;
/// Maximum number of merge keys kept, several times the number of keys with tracked arrivals.
/// Beyond it the least recently used one is evicted.
const KEYS_MAX: usize = 256;

/// Merge keys with a failed batch.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct KeyQuarantine {
    map: BTreeMap<KeyId, KeyState>,
}

/// State of one merge key, kept since a batch of it failed.
#[derive(Debug, Clone)]
struct KeyState {
    class: CostClassId,
    /// Tenant of the last failed batch.
    tenant: TenantId,
    /// Number of batches of the class that had been answered as a whole before that one.
    whole_before: u64,
    last_used: Tick,
    /// Number of batches that failed in a row.
    row: u32,
    /// Number of batches that were answered as a whole since the last quarantine began.
    whole: u32,
    /// End of the last quarantine.
    until: Option<Tick>,
    /// Length of the next quarantine.
    next: Duration,
    /// Response to the last batch that put the key in quarantine.
    refusal: BatchRefusal,
}

// === impl KeyQuarantine ===

impl KeyQuarantine {
    /// Returns the response that put a merge key in the quarantine that is in force.
    pub(in super::super) fn quarantine_cause(&self, now: Tick, key: KeyId) -> Option<BatchRefusal> {
        let memory = self.map.get(&key)?;
        memory.until.is_some_and(|until| now < until).then_some(memory.refusal)
    }

    /// Returns the end of the quarantine of a merge key that is in force.
    pub(in super::super) fn quarantine_end(&self, now: Tick, key: KeyId) -> Option<Tick> {
        self.map.get(&key).and_then(|memory| memory.until).filter(|until| now < *until)
    }

    /// Returns `true` if no batch of this merge key was answered as a whole since its quarantine
    /// began. It counts for one more quarantine after its end, because the next batch may leave
    /// much later.
    pub(in super::super) fn is_failing(&self, now: Tick, key: KeyId) -> bool {
        self.map.get(&key).is_some_and(|memory| memory.is_failing(now))
    }

    /// Returns the response that put a merge key of this class in quarantine, if one is failing:
    /// that of the latest quarantine.
    pub(in super::super) fn refusal(&self, now: Tick, class: CostClassId) -> Option<BatchRefusal> {
        let failing = self.map.values().filter(|memory| memory.class == class && memory.is_failing(now));
        failing.max_by_key(|memory| memory.until).map(|memory| memory.refusal)
    }

    /// Returns `true` if a merge key of this class is in quarantine.
    pub(in super::super) fn has_quarantined(&self, now: Tick, class: CostClassId) -> bool {
        self.map.values().any(|memory| memory.is_quarantined(now, class))
    }

    /// Records the end of a shared batch. `whole_total`: the number of batches of the class that
    /// were answered before. Returns `true` if the quarantined keys of the class now rule out the
    /// form of a single client's calls as the cause.
    pub(in super::super) fn observe(
        &mut self,
        (now, base): (Tick, Duration),
        (class, key, tenant): (CostClassId, KeyId, TenantId),
        whole_total: u64,
        outcome: BatchOutcome,
    ) -> bool {
        match outcome {
            BatchOutcome::Ok => {
                if let Some(memory) = self.map.get_mut(&key) {
                    (memory.row, memory.whole) = (0, memory.whole + 1);
                    if memory.whole >= TRUSTED_AFTER {
                        self.map.remove(&key);
                    }
                }
                return false;
            }
            BatchOutcome::Mismatched | BatchOutcome::Refused(_) | BatchOutcome::NotRetried(_) => {}
            _ => return false,
        }
        let memory = self.entry(now, class, key);
        (memory.tenant, memory.whole_before) = (tenant, whole_total);
        memory.row += 1;
        if outcome != BatchOutcome::Mismatched && memory.row < REFUSED_MAX {
            return false;
        }
        let refusal = match outcome {
            BatchOutcome::Refused(refusal) | BatchOutcome::NotRetried(refusal) => refusal,
            _ => BatchRefusal::Mismatch,
        };
        self.quarantine((now, base), (class, key), refusal);
        let failing = || {
            self.map.values().filter(|memory| memory.is_quarantined(now, class) && memory.whole_before == whole_total)
        };
        let tenants: BTreeSet<TenantId> = failing().map(|memory| memory.tenant).collect();
        tenants.len() >= TENANTS_END_CLASS || failing().count() >= KEYS_END_CLASS
    }

    /// Puts a merge key in quarantine, for twice as long as the last time. `base`: length of the
    /// first quarantine.
    pub(in super::super) fn quarantine(
        &mut self,
        (now, base): (Tick, Duration),
        (class, key): (CostClassId, KeyId),
        refusal: BatchRefusal,
    ) {
        let memory = self.entry(now, class, key);
        memory.refusal = refusal;
        let length = memory.next.max(base).min(Limits::QUARANTINE_MAX);
        memory.until = Some(now.after(length));
        memory.next = length.saturating_mul(2).min(Limits::QUARANTINE_MAX);
        memory.whole = 0;
    }

    fn entry(&mut self, now: Tick, class: CostClassId, key: KeyId) -> &mut KeyState {
        if !self.map.contains_key(&key) && self.map.len() >= KEYS_MAX {
            let oldest = self.map.iter().min_by_key(|(key, memory)| (memory.last_used, **key)).map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                self.map.remove(&oldest);
            }
        }
        let fresh = KeyState {
            class,
            tenant: TenantId(0),
            whole_before: 0,
            last_used: now,
            row: 0,
            whole: 0,
            until: None,
            next: Duration::ZERO,
            refusal: BatchRefusal::Mismatch,
        };
        let memory = self.map.entry(key).or_insert(fresh);
        memory.last_used = now;
        memory
    }
}

// === impl KeyState ===

impl KeyState {
    fn is_quarantined(&self, now: Tick, class: CostClassId) -> bool {
        self.class == class && self.until.is_some_and(|until| now < until)
    }

    fn is_failing(&self, now: Tick) -> bool {
        self.whole == 0 && self.until.is_some_and(|until| now < until.after(self.next))
    }
}
