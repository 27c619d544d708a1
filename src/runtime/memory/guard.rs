//! The state of a guard that is registered for eviction: its bytes, and the task that owns them.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;

use super::eviction::EvictionView;
use crate::batching::Tick;
use crate::clock::Clock;

/// Age beyond which the score of a guard grows with its bytes alone: a stream that is hours old is
/// no worse than a body that has stalled.
const AGE_MAX: Duration = Duration::from_secs(10);
/// Rate in bytes per second below which a guard is slow: a tenth of a slow mobile network.
const SLOW_RATE: u64 = 10 << 10;
/// Time without progress after which an upload counts as stalled.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(1);

/// The bytes of a registered guard, and the waker of its owner.
#[derive(Debug, Default)]
pub(super) struct GuardState {
    /// Number of bytes held; zero after the eviction.
    pub(super) bytes: AtomicUsize,
    /// Bytes held at the time of eviction, until the owner drops the guard.
    pub(super) evicted_bytes: AtomicUsize,
    /// The owner has dropped the guard.
    pub(super) dropped: AtomicBool,
    /// A [`HoldPhase`].
    pub(super) phase: AtomicU8,
    /// Tick at the start of the current phase.
    pub(super) phase_start: AtomicU64,
    /// Tick at which the client last sent or took bytes.
    pub(super) last_progress: AtomicU64,
    pub(super) evicted: AtomicBool,
    /// The guard occupies an upstream connection.
    pub(super) occupies_upstream: AtomicBool,
    /// Woken on eviction, so that the owner drops the guard.
    pub(super) owner: AtomicWaker,
}

/// A view of a registered guard, for the part of a call that its client uploads.
#[derive(Debug)]
pub struct EvictionWatch {
    pub(super) clock: Clock,
    pub(super) guard: EvictionView<GuardState>,
}

/// The side that a registered guard waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum HoldPhase {
    /// The client, which has not sent everything or takes nothing: the guard may be evicted.
    Client,
    /// The proxy or the model server: the guard is not evicted.
    Server,
}

// === impl GuardState ===

impl GuardState {
    /// Returns the rank of the guard for eviction: `true` if its bytes arrived slowly, and its
    /// bytes times the milliseconds for which they are held. `None` for a guard that is not
    /// evictable.
    pub(super) fn score(&self, now: Tick) -> Option<(bool, u64)> {
        let bytes = self.bytes.load(Ordering::Relaxed) as u64;
        if bytes == 0 || !self.is_evictable() {
            return None;
        }
        let age = now.since(Tick(self.phase_start.load(Ordering::Relaxed)));
        let is_slow = age > STALL_TIMEOUT && bytes / age.as_secs().max(1) < SLOW_RATE;
        let millis = u64::try_from(age.min(AGE_MAX).as_millis()).unwrap_or(u64::MAX);
        Some((is_slow, bytes.saturating_mul(1 + millis)))
    }

    /// Returns `true` for a guard of at most `max` bytes whose phase began less than
    /// [`STALL_TIMEOUT`] ago.
    pub(super) fn is_new(&self, now: Tick, max: usize) -> bool {
        let age = now.since(Tick(self.phase_start.load(Ordering::Relaxed)));
        self.bytes.load(Ordering::Relaxed) <= max && age < STALL_TIMEOUT
    }

    pub(super) fn set_phase(&self, phase: HoldPhase, clock: Clock) {
        let now = clock.now().0;
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.phase_start.store(now, Ordering::Relaxed);
        self.last_progress.store(now, Ordering::Relaxed);
    }

    pub(super) fn poll_evicted(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.owner.register(cx.waker());
        if self.evicted.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(super) fn is_evictable(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == HoldPhase::Client as u8 && !self.evicted.load(Ordering::Relaxed)
    }
}

// === impl EvictionWatch ===

impl EvictionWatch {
    /// Resolves once the guard is evicted.
    pub fn poll_evicted(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.guard.poll_evicted(cx)
    }

    /// Sets the side that the guard waits for.
    pub fn set_phase(&self, phase: HoldPhase) {
        self.guard.set_phase(phase, self.clock);
    }
}
