//! A listed guard: the bytes of a call that may have to make room, and the task that holds them.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;

use super::eviction::EvictionView;
use crate::batching::Tick;
use crate::clock::Clock;

/// The age after which guards differ by their bytes alone: a stream that is hours old is no
/// worse holder than a body that has stalled.
const AGE_MAX: Duration = Duration::from_secs(10);
/// Bytes a second below which a guard came slowly: a slow mobile network has ten times as many.
const SLOW_RATE: u64 = 10 << 10;
/// Uploads that moved within this time are not still.
pub(super) const STILL: Duration = Duration::from_secs(1);

/// The bytes of a listed guard, and its owner's task.
#[derive(Debug)]
pub(super) struct GuardState {
    pub(super) bytes: AtomicUsize,
    /// The bytes that it had when it was evicted, until its owner drops it.
    pub(super) going: AtomicUsize,
    pub(super) dropped: AtomicBool,
    pub(super) phase: AtomicU8,
    /// The start of its phase.
    pub(super) since: AtomicU64,
    /// The last time that its client sent or took something.
    pub(super) moved: AtomicU64,
    pub(super) evicted: AtomicBool,
    /// It holds an upstream connection.
    pub(super) passing: AtomicBool,
    pub(super) owner: AtomicWaker,
}

/// A view of a listed guard, for the part of a call that its client sends.
#[derive(Debug)]
pub struct EvictionWatch {
    pub(super) clock: Clock,
    pub(super) holding: EvictionView<GuardState>,
}

/// The side that the bytes of a listed guard wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum HoldPhase {
    /// Its client, which has not sent all or takes nothing: it may have to make room.
    Client,
    /// The proxy or the model server: it stays.
    Server,
}

// === impl GuardState ===

impl GuardState {
    /// Returns whether it came slowly, and its byte-seconds; `None` for one that stays.
    pub(super) fn score(&self, now: Tick) -> Option<(bool, u64)> {
        let bytes = self.bytes.load(Ordering::Relaxed) as u64;
        if bytes == 0 || !self.is_evictable() {
            return None;
        }
        let age = now.since(Tick(self.since.load(Ordering::Relaxed)));
        let is_slow = age > STILL && bytes / age.as_secs().max(1) < SLOW_RATE;
        let millis = u64::try_from(age.min(AGE_MAX).as_millis()).unwrap_or(u64::MAX);
        Some((is_slow, bytes.saturating_mul(1 + millis)))
    }

    pub(super) fn set_phase(&self, phase: HoldPhase, clock: Clock) {
        let now = clock.now().0;
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.since.store(now, Ordering::Relaxed);
        self.moved.store(now, Ordering::Relaxed);
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
    /// Ready once the guard had to make room.
    pub fn poll_evicted(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.holding.poll_evicted(cx)
    }

    /// Sets what the guard waits for.
    pub fn set_phase(&self, phase: HoldPhase) {
        self.holding.set_phase(phase, self.clock);
    }
}
