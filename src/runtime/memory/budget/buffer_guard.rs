//! The guard of bytes taken from the budget: it grows with the bytes of a call, is listed for
//! eviction, and releases its bytes when dropped.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use super::super::eviction::EvictionMember;
use super::super::guard::{EvictionWatch, GuardState, HoldPhase};
use super::{BufferBudget, BuffersFull, EVICTED_DIVISOR, EvictionPolicy, HoldClass, SMALL_MAX};

/// A guard of bytes taken from the budget.
#[derive(Debug)]
pub struct BufferGuard {
    budget: BufferBudget,
    /// Number of bytes; zero once the guard is listed, since `listed` has them from then on.
    bytes: usize,
    /// `true` if the guard is that of an upload that occupies an upstream connection.
    occupies_upstream: bool,
    /// The guard will hold more than [`SMALL_MAX`].
    is_large: bool,
    /// The guard is that of a response.
    is_answer: bool,
    /// The state of the guard in the set of listed guards.
    listed: Option<EvictionMember<GuardState>>,
}

// === impl BufferGuard ===

impl BufferGuard {
    /// Creates a guard of bytes that the budget counts as held already.
    pub(super) const fn new(budget: BufferBudget, bytes: usize) -> Self {
        Self { budget, bytes, occupies_upstream: false, is_large: false, is_answer: false, listed: None }
    }

    /// Marks the guard as that of a response.
    pub(super) const fn mark_answer(&mut self) {
        self.is_answer = true;
    }

    /// Records the announced length of a body. A large body counts as large from its first byte, so
    /// that the beginnings of many large bodies do not use the part reserved for small ones.
    pub fn announce(&mut self, bytes: usize) {
        self.is_large = bytes > SMALL_MAX;
    }

    /// Takes more bytes, evicting listed guards if necessary.
    ///
    /// # Errors
    /// Returns [`BuffersFull`] if there is no room, in which case nothing is taken.
    pub fn grow(&mut self, bytes: usize) -> Result<(), BuffersFull> {
        if self.is_evicted() {
            return Err(BuffersFull);
        }
        let inner = &self.budget.inner;
        let class = match (self.is_large || self.bytes() + bytes > SMALL_MAX, self.is_answer) {
            (false, _) => HoldClass::Small,
            (true, false) => HoldClass::Large,
            (true, true) => HoldClass::Answer,
        };
        if !inner.try_charge(bytes, class) {
            // Evict listed guards to make room, and try again.
            let (held, evicted) = (inner.held.load(Ordering::Relaxed), inner.evicted_bytes.load(Ordering::Relaxed));
            let excess = (held + bytes).saturating_sub(inner.limit_for(class));
            // Further evictions are useless until the evicted guards are dropped.
            if class != HoldClass::Small && evicted + excess > inner.max / EVICTED_DIVISOR {
                return Err(BuffersFull);
            }
            inner.evict_for(excess, EvictionPolicy::WholeOrNone);
            if self.is_evicted() || !inner.try_charge(bytes, class) {
                return Err(BuffersFull);
            }
        }
        match &self.listed {
            None => self.bytes += bytes,
            Some(guard) => _ = guard.bytes.fetch_add(bytes, Ordering::Relaxed),
        }
        Ok(())
    }

    /// Moves bytes that already exist to a new guard. Those that this guard does not hold are taken
    /// even beyond the limit.
    #[must_use]
    pub fn split_off(&mut self, bytes: usize) -> Self {
        debug_assert!(self.listed.is_none(), "a listed guard keeps its bytes elsewhere");
        let moved = bytes.min(self.bytes);
        self.bytes -= moved;
        let mut other = self.budget.charge_unchecked(bytes - moved);
        other.bytes += moved;
        other
    }

    /// Sets the number of bytes held, beyond the limit if necessary, since they already exist. In
    /// that case listed guards are evicted, possibly including this one.
    pub fn set_bytes(&mut self, bytes: usize) {
        let before = match &self.listed {
            None => std::mem::replace(&mut self.bytes, bytes),
            // An evicted guard is no longer counted, and ends with its connection.
            Some(guard) if guard.evicted.load(Ordering::Acquire) => return,
            Some(guard) => guard.bytes.swap(bytes, Ordering::Relaxed),
        };
        let inner = &self.budget.inner;
        if bytes < before {
            inner.held.fetch_sub(before - bytes, Ordering::Relaxed);
            return;
        }
        let sum = inner.held.fetch_add(bytes - before, Ordering::Relaxed) + bytes - before;
        let excess = sum.saturating_sub(inner.limit_for(HoldClass::Large));
        if excess > 0 {
            let is_covered = excess <= inner.max / EVICTED_DIVISOR;
            let policy = if is_covered { EvictionPolicy::SparingNew } else { EvictionPolicy::AsFarAsPossible };
            inner.evict_for(excess, policy);
        }
    }

    /// Returns the number of bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.listed.as_ref().map_or(self.bytes, |guard| guard.bytes.load(Ordering::Relaxed))
    }

    /// Lists the guard: from now on it may be evicted while it waits for its client.
    pub fn register_for_eviction(&mut self) {
        if self.listed.is_some() {
            return;
        }
        let now = self.budget.inner.clock.now().0;
        self.listed = Some(self.budget.inner.listed.insert(GuardState {
            bytes: AtomicUsize::new(std::mem::take(&mut self.bytes)),
            phase: AtomicU8::new(HoldPhase::Client as u8),
            phase_start: AtomicU64::new(now),
            last_progress: AtomicU64::new(now),
            occupies_upstream: AtomicBool::new(self.occupies_upstream),
            ..GuardState::default()
        }));
    }

    /// Lists the guard, and registers a waker for its eviction.
    pub fn register_waker(&mut self, owner: &Waker) {
        self.register_for_eviction();
        if let Some(guard) = &self.listed {
            guard.owner.register(owner);
        }
    }

    /// Marks the guard as that of an upload that occupies an upstream connection.
    pub fn mark_upstream(&mut self) {
        self.occupies_upstream = true;
        if let Some(guard) = &self.listed {
            guard.occupies_upstream.store(true, Ordering::Relaxed);
        }
    }

    /// Sets the side that the guard waits for, if it is listed.
    pub fn set_phase(&self, phase: HoldPhase) {
        if let Some(guard) = &self.listed {
            guard.set_phase(phase, self.budget.inner.clock);
        }
    }

    /// Records that the client sent or took bytes.
    pub fn on_move(&self) {
        if let Some(guard) = &self.listed {
            guard.last_progress.store(self.budget.inner.clock.now().0, Ordering::Relaxed);
        }
    }

    /// Lists the guard and returns a view of it.
    pub fn watch(&mut self) -> Option<EvictionWatch> {
        self.register_for_eviction();
        let guard = self.listed.as_ref()?.share();
        Some(EvictionWatch { clock: self.budget.inner.clock, guard })
    }

    /// Returns `true` if the guard is evicted.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.listed.as_ref().is_some_and(|guard| guard.evicted.load(Ordering::Acquire))
    }

    /// Lists the guard, and resolves once it is evicted.
    pub fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.register_for_eviction();
        self.listed.as_ref().map_or(Poll::Pending, |guard| guard.poll_evicted(cx))
    }

    /// Resolves once the guard is evicted. The first poll lists it.
    pub async fn evicted(&mut self) {
        std::future::poll_fn(|cx| self.poll_evicted(cx)).await;
    }
}

impl Drop for BufferGuard {
    fn drop(&mut self) {
        let bytes = match self.listed.take() {
            None => self.bytes,
            Some(guard) => {
                guard.dropped.store(true, Ordering::SeqCst);
                self.budget.inner.on_dropped(&guard);
                guard.bytes.swap(0, Ordering::AcqRel)
            }
        };
        self.budget.inner.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}
