//! The budget for bytes of calls: heads, bodies, responses and streams together, for the whole
//! process.
//!
//! Bytes are held by a guard, which releases them when dropped. A guard that waits for its client
//! is *listed*: if the budget is exhausted, listed guards are evicted in favour of new bytes, first
//! those that grew slowly, and among them by bytes × age. A full budget therefore consists of calls
//! in progress. If the listed guards together do not hold enough, none is evicted.
//!
//! Socket buffers and HTTP/2 windows are not counted here; the memory pressure bounds them
//! (`pressure`).

mod buffer_guard;

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

pub use self::buffer_guard::BufferGuard;
use super::eviction::EvictionSet;
use super::guard::{GuardState, STALL_TIMEOUT};
use super::pressure::PressureLevel;
use crate::clock::Clock;

/// Maximum size of a guard that may use the whole budget. Larger ones may use all but an eighth, so
/// that a call of typical size is admitted next to uploads that fill the rest.
const SMALL_MAX: usize = 64 << 10;
/// Maximum size of a guard that is spared while it is new: the charge of an upload in transit
/// (`proxy::upload`), and the first step of a request head.
const NEW_MAX: usize = 16 << 10;
/// Denominator of the fraction of the budget that is freed at once, so that one search serves many
/// new guards.
const EVICTION_DIVISOR: usize = 64;

/// Denominator of the fraction of the budget that evicted guards may hold in excess of it until
/// their owners run. This excess is covered by the factor 5/4 in the memory bound of the process.
const EVICTED_DIVISOR: usize = 4;

/// Just below the 8 KiB of hyper's initial read buffer, which hyper doubles when a read fills it.
const READ_MAX: usize = (8 << 10) - 1;

/// The byte budget of a process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BufferBudget {
    inner: Arc<BudgetState>,
}

#[derive(Debug)]
struct BudgetState {
    clock: Clock,
    held: AtomicUsize,
    /// Bytes of guards that are evicted and not yet dropped by their owners.
    evicted_bytes: AtomicUsize,
    max: usize,
    level: AtomicU8,
    listed: EvictionSet<GuardState>,
    /// Number of guards evicted since the start.
    evictions: AtomicU64,
}

/// The part of the budget that a guard may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HoldClass {
    /// The whole budget, for guards of at most [`SMALL_MAX`].
    Small,
    /// All but an eighth.
    Large,
    /// All but a quarter.
    Answer,
}

/// The policy for evicting a number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EvictionPolicy {
    /// For new bytes, which are rejected if eviction cannot free enough: nothing is evicted in
    /// vain.
    WholeOrNone,
    /// For bytes that are already held: those of calls that have just begun are kept, as long as
    /// the excess is covered by the memory bound of the process.
    SparingNew,
    /// For memory pressure and a larger excess.
    AsFarAsPossible,
}

/// The error for an exhausted budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("buffers full")]
pub struct BuffersFull;

/// The error for an evicted guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an unfinished upload was evicted to free memory")]
pub struct EvictedError;

// === impl BufferBudget ===

impl BufferBudget {
    /// Creates a budget of `max` bytes.
    #[must_use]
    pub fn new(max: usize, clock: Clock) -> Self {
        let inner = BudgetState {
            clock,
            held: AtomicUsize::new(0),
            evicted_bytes: AtomicUsize::new(0),
            max,
            level: AtomicU8::new(PressureLevel::None as u8),
            listed: EvictionSet::default(),
            evictions: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns a guard without bytes.
    #[must_use]
    pub fn empty(&self) -> BufferGuard {
        BufferGuard::new(self.clone(), 0)
    }

    /// Returns a guard without bytes for a response. Responses arrive regardless of the budget, so
    /// they leave an additional eighth to uploads: a large call is admitted while others are
    /// answered.
    #[must_use]
    pub fn empty_for_answer(&self) -> BufferGuard {
        let mut guard = self.empty();
        guard.mark_answer();
        guard
    }

    /// Takes bytes that already exist, even beyond the limit: a response that was produced within
    /// the limit is not discarded because of a copy.
    #[must_use]
    pub fn charge_unchecked(&self, bytes: usize) -> BufferGuard {
        self.inner.held.fetch_add(bytes, Ordering::Relaxed);
        BufferGuard::new(self.clone(), bytes)
    }

    /// Returns the number of bytes held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.inner.held.load(Ordering::Relaxed)
    }

    /// Returns `true` if at least half of the budget is held.
    #[must_use]
    pub fn is_half_full(&self) -> bool {
        self.held() >= self.inner.max / 2
    }

    /// Returns the maximum number of bytes of one read: unlimited while less than half of the
    /// budget is held, then less than hyper's initial buffer, so that hyper does not enlarge the
    /// buffer of the connection.
    #[must_use]
    pub fn read_max(&self) -> usize {
        if self.is_half_full() { READ_MAX } else { usize::MAX }
    }

    /// Returns the number of guards evicted since the start.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.inner.evictions.load(Ordering::Relaxed)
    }

    /// Returns the maximum size of one response: half of the budget.
    #[must_use]
    pub fn answer_max(&self) -> usize {
        self.inner.max / 2
    }

    /// Returns the part of the budget that responses may use: all of them together, or a single one.
    #[must_use]
    pub fn answers_max(&self) -> usize {
        self.inner.max - self.inner.max / 4
    }

    /// Returns the maximum size of the response to a batch: half of the part of the budget that
    /// responses may use, for it and for the copies that its members get.
    #[must_use]
    pub fn shared_answer_max(&self) -> usize {
        self.answers_max() / 2
    }

    /// Evicts up to `max` stalled uploads that occupy upstream connections, those with the longest
    /// silence first.
    pub fn evict_stalled_uploads(&self, max: usize) {
        let inner = &self.inner;
        let stall_cutoff =
            inner.clock.now().0.saturating_sub(u64::try_from(STALL_TIMEOUT.as_nanos()).unwrap_or(u64::MAX));
        let stalled = inner.listed.ranked_by(|guard| {
            let last_progress = guard.last_progress.load(Ordering::Relaxed);
            let is_stalled = guard.occupies_upstream.load(Ordering::Relaxed)
                && guard.is_evictable()
                && last_progress <= stall_cutoff;
            is_stalled.then_some(Reverse(last_progress))
        });
        for guard in stalled.iter().take(max) {
            inner.evict(guard);
        }
    }

    /// Adjusts the limit to the memory pressure of the process, and evicts listed guards that
    /// exceed it.
    pub fn set_pressure(&self, level: PressureLevel) {
        self.inner.level.store(level as u8, Ordering::Relaxed);
        let excess = self.held().saturating_sub(self.inner.limit_for(HoldClass::Small));
        if excess > 0 {
            self.inner.evict_for(excess, EvictionPolicy::AsFarAsPossible);
        }
    }
}

// === impl BudgetState ===

impl BudgetState {
    /// Returns the limit that applies to a class of guards.
    fn limit_for(&self, class: HoldClass) -> usize {
        let level = self.level.load(Ordering::Relaxed);
        let max = if level >= PressureLevel::Refuse as u8 {
            self.max / 8
        } else if level >= PressureLevel::Shrink as u8 {
            self.max / 2
        } else {
            self.max
        };
        match class {
            HoldClass::Small => max,
            HoldClass::Large => max - max / 8,
            HoldClass::Answer => max - max / 4,
        }
    }

    /// Takes `bytes` for a guard of a class. Evicted bytes that are not dropped yet lower the limit
    /// once they exceed their fraction of the budget, except for small guards, for which a part of
    /// the budget is always reserved.
    fn try_charge(&self, bytes: usize, class: HoldClass) -> bool {
        let limit = self.limit_for(class);
        let evicted = if class == HoldClass::Small { 0 } else { self.evicted_bytes.load(Ordering::Relaxed) };
        let limit = limit.min((limit + self.max / EVICTED_DIVISOR).saturating_sub(evicted));
        self.held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes).filter(|sum| *sum <= limit)
            })
            .is_ok()
    }

    /// Evicts listed guards to free `bytes`. Their owners release the memory when they are polled
    /// next, which is immediately.
    fn evict_for(&self, bytes: usize, policy: EvictionPolicy) {
        let now = self.clock.now();
        let is_spared = |guard: &GuardState| policy == EvictionPolicy::SparingNew && guard.is_new(now, NEW_MAX);
        let candidates = self.listed.ranked_by(|guard| guard.score(now).filter(|_| !is_spared(guard)));
        let sum: usize = candidates.iter().map(|guard| guard.bytes.load(Ordering::Relaxed)).sum();
        if policy == EvictionPolicy::WholeOrNone && sum < bytes {
            return;
        }
        let target = bytes.max(self.max / EVICTION_DIVISOR);
        let mut freed = 0;
        for guard in &candidates {
            freed += self.evict(guard);
            if freed >= target {
                return;
            }
        }
    }

    /// Evicts a guard: takes its bytes out of the budget and wakes its owner.
    fn evict(&self, guard: &GuardState) -> usize {
        if guard.evicted.swap(true, Ordering::AcqRel) {
            return 0;
        }
        let bytes = guard.bytes.swap(0, Ordering::AcqRel);
        self.evicted_bytes.fetch_add(bytes, Ordering::Relaxed);
        guard.evicted_bytes.store(bytes, Ordering::SeqCst);
        if guard.dropped.load(Ordering::SeqCst) {
            self.on_dropped(guard);
        }
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.evictions.fetch_add(1, Ordering::Relaxed);
        guard.owner.wake();
        bytes
    }

    /// Ends the accounting of an evicted guard that its owner has dropped.
    fn on_dropped(&self, guard: &GuardState) {
        self.evicted_bytes.fetch_sub(guard.evicted_bytes.swap(0, Ordering::SeqCst), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
