//! Permits for upstream connections: limits for the process, by purpose.
//!
//! - `Client`: one for each client connection, which carries its calls or relayed bytes.
//! - `Http2Client`: one for each concurrent call of an HTTP/2 client, if the server speaks only
//!   HTTP/1. The limit is a quarter of the client connections. A client has 16 of them, and more
//!   while less than half of all are in use.
//! - `Batch`: one for each batch or unbatched call in flight. The limit is a quarter of the client
//!   connections.
//!
//! Calls that one client sends over HTTP/2 can therefore exhaust neither the file descriptors of
//! the process nor the permits of others. A call waits briefly for a permit, and stalled uploads
//! are evicted to release some.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::batching::Tick;
use crate::clock::Clock;
use crate::memory::BufferBudget;

/// Maximum time of one wait for a permit. Evicted uploads release their permits within it.
const WAIT: Duration = Duration::from_millis(500);
/// Number of waits before a call is refused. Uploads that stall during one are evicted before the
/// next one.
const WAITS: u32 = 2;
/// Number of purposes.
const PURPOSES: usize = 3;
/// Index of the purpose `Http2Client`.
const HTTP2_CLIENT: usize = 1;
/// Queue of the calls of HTTP/2 clients that have [`CLIENT_BASE`] connections or more. They cannot
/// use every permit, and must not consume the notifications for calls that can.
const HTTP2_CLIENT_MORE: usize = PURPOSES;
const QUEUES: usize = PURPOSES + 1;
/// Number of connections that an HTTP/2 client may have while at least half of the permits of its
/// purpose are in use.
const CLIENT_BASE: usize = 16;
/// Divisor of the number of client connections: the quotient is the maximum number of uploads to
/// evict at once, so that one search serves many waiting calls.
const EVICTION_DIVISOR: usize = 64;
/// Minimum interval between evictions.
const EVICTION_INTERVAL: Duration = Duration::from_millis(100);

/// Divisor of the number of client connections: up to the quotient, connections read as much at
/// once as hyper has room for, which grows to 64 KiB.
const LARGE_READS_DIVISOR: usize = 8;
/// Maximum number of bytes that each of more connections reads at once: a read that does not fill
/// 16 KiB keeps hyper's buffer, which lives as long as the connection, within `memory::UPSTREAM`.
const CROWDED_READ_MAX: usize = (16 << 10) - 1;

/// Purpose of a connection.
#[derive(Debug, Clone)]
pub(super) enum ConnectionPurpose {
    /// A batch or an unbatched call.
    Batch,
    /// All calls of a client connection, or its relayed bytes.
    Client,
    /// A concurrent call of an HTTP/2 client, with the counter of the client's connections.
    Http2Client(Arc<AtomicUsize>),
}

/// The connection permits of a process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct UpstreamPermits(Arc<PermitState>);

#[derive(Debug)]
struct PermitState {
    /// Number of permits in use, by purpose.
    used: [AtomicUsize; PURPOSES],
    /// Maximum number of client connections, from which all limits are derived.
    clients_max: usize,
    clock: Clock,
    /// Tick of the last eviction of uploads; 0 if there was none.
    evicted_at: AtomicU64,
    /// Number of calls that wait for a permit.
    waiting: AtomicUsize,
    /// Notified when a permit is released, by queue: one for each purpose, and
    /// [`HTTP2_CLIENT_MORE`].
    freed: [Notify; QUEUES],
    buffers: BufferBudget,
}

/// A guard that counts a call waiting for a permit.
#[derive(Debug)]
struct WaitingCall<'a>(&'a PermitState);

/// A permit, held while its connection is open.
#[derive(Debug)]
pub(super) struct UpstreamPermit {
    permits: UpstreamPermits,
    /// Index of the purpose.
    index: usize,
    /// Counter of the connections of an HTTP/2 client.
    of_client: Option<Arc<AtomicUsize>>,
}

/// Error returned if no permit is available.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("all upstream connections are in use")]
pub(super) struct NoPermit;

// === impl ConnectionPurpose ===

impl ConnectionPurpose {
    /// Returns the index of the purpose in the arrays of [`PermitState`].
    const fn index(&self) -> usize {
        match self {
            Self::Client => 0,
            Self::Http2Client(_) => HTTP2_CLIENT,
            Self::Batch => 2,
        }
    }

    /// Returns `true` for a client that takes permits only from the first half.
    fn is_above_base(&self) -> bool {
        matches!(self, Self::Http2Client(count) if count.load(Ordering::Relaxed) >= CLIENT_BASE)
    }
}

// === impl UpstreamPermits ===

impl UpstreamPermits {
    /// Creates permits for this number of client connections. Uploads in `buffers` may be evicted
    /// to release permits.
    #[must_use]
    pub fn new(clients_max: usize, clock: Clock, buffers: BufferBudget) -> Self {
        Self(Arc::new(PermitState {
            used: std::array::from_fn(|_| AtomicUsize::new(0)),
            clients_max: clients_max.max(1),
            clock,
            evicted_at: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            freed: std::array::from_fn(|_| Notify::new()),
            buffers,
        }))
    }

    /// Takes a permit, after a short wait if none is available.
    pub(super) async fn acquire(&self, purpose: &ConnectionPurpose) -> Result<UpstreamPermit, NoPermit> {
        if let Some(permit) = self.try_acquire(purpose) {
            return Ok(permit);
        }
        let _waiting = self.enter_queue()?;
        for _ in 0..WAITS {
            self.evict_stalled_uploads(purpose);
            if let Ok(permit) = timeout(WAIT, self.wait(purpose)).await {
                return Ok(permit);
            }
        }
        Err(NoPermit)
    }

    /// Enters the set of waiting calls, which is limited to the number of client connections.
    fn enter_queue(&self) -> Result<WaitingCall<'_>, NoPermit> {
        let state = &*self.0;
        // The guard is created first, so that a refused call is subtracted again.
        let waiting = WaitingCall(state);
        if state.waiting.fetch_add(1, Ordering::Relaxed) < state.clients_max { Ok(waiting) } else { Err(NoPermit) }
    }

    /// Evicts stalled uploads, once for all waiting calls: a separate search for each of them would
    /// visit all uploads every time.
    fn evict_stalled_uploads(&self, purpose: &ConnectionPurpose) {
        let state = &self.0;
        let (now, before) = (state.clock.now().0, state.evicted_at.load(Ordering::Relaxed));
        let is_due = Tick(now).since(Tick(before)) >= EVICTION_INTERVAL || before == 0;
        let claims = || state.evicted_at.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // Uploads hold only permits of the other purposes. One of the waiting calls claims the
        // eviction.
        if !matches!(purpose, ConnectionPurpose::Batch) && is_due && claims() {
            state.buffers.evict_stalled_uploads(state.clients_max / EVICTION_DIVISOR + 1);
        }
    }

    async fn wait(&self, purpose: &ConnectionPurpose) -> UpstreamPermit {
        loop {
            // `notify_one` stores a notification, so a release before the wait is not missed.
            let queue = if purpose.is_above_base() { HTTP2_CLIENT_MORE } else { purpose.index() };
            let freed = self.0.freed[queue].notified();
            if let Some(permit) = self.try_acquire(purpose) {
                return permit;
            }
            freed.await;
        }
    }

    fn try_acquire(&self, purpose: &ConnectionPurpose) -> Option<UpstreamPermit> {
        let limit = self.limit_for(purpose);
        let take = |used: usize| (used < limit).then_some(used + 1);
        let index = purpose.index();
        self.0.used[index].fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        let of_client = match purpose {
            ConnectionPurpose::Http2Client(count) => Some(count.clone()),
            ConnectionPurpose::Batch | ConnectionPurpose::Client => None,
        };
        if let Some(count) = &of_client {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Some(UpstreamPermit { permits: self.clone(), index, of_client })
    }

    /// Returns the maximum number of permits of a purpose in use after one is taken. A client with
    /// [`CLIENT_BASE`] connections or more takes permits only from the first half.
    fn limit_for(&self, purpose: &ConnectionPurpose) -> usize {
        let (clients, quarter) = (self.0.clients_max, (self.0.clients_max / 4).max(1));
        match purpose {
            ConnectionPurpose::Client => clients,
            ConnectionPurpose::Http2Client(_) if purpose.is_above_base() => quarter.div_ceil(2),
            ConnectionPurpose::Http2Client(_) | ConnectionPurpose::Batch => quarter,
        }
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl UpstreamPermit ===

impl UpstreamPermit {
    /// Returns the maximum number of bytes that the connection reads at once.
    pub(super) fn read_max(&self) -> usize {
        let state = &self.permits.0;
        let open: usize = state.used.iter().map(|used| used.load(Ordering::Relaxed)).sum();
        let crowded = if open > state.clients_max / LARGE_READS_DIVISOR { CROWDED_READ_MAX } else { usize::MAX };
        crowded.min(state.buffers.read_max())
    }
}

impl Drop for UpstreamPermit {
    fn drop(&mut self) {
        if let Some(count) = &self.of_client {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        let state = &self.permits.0;
        state.used[self.index].fetch_sub(1, Ordering::Relaxed);
        state.freed[self.index].notify_one();
        if self.index == HTTP2_CLIENT {
            state.freed[HTTP2_CLIENT_MORE].notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
