//! Permits for upstream connections: limits on the open connections of the process, by purpose.
//! They are derived from the maximum number of client connections.
//!
//! - `Client`: one for each client connection. Its upstream connection carries the calls that are
//!   forwarded unmerged, or relayed bytes. The limit is the maximum number of client connections.
//! - `Http2Client`: one for each concurrent call of an HTTP/2 client, if the server supports only
//!   HTTP/1. The limit is a quarter of the maximum number of client connections. A client that
//!   holds 16 permits or more takes further ones only while less than half of the limit is in use.
//! - `Batch`: one for each batch or unbatched call in flight. The limit is the same quarter.
//!
//! Calls that one client sends over HTTP/2 can therefore exhaust neither the file descriptors of
//! the process nor the permits of other clients. A call without a permit waits for up to a second,
//! and uploads that make no progress are evicted meanwhile, because they hold permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::batching::Tick;
use crate::clock::Clock;
use crate::memory::BufferBudget;

/// Maximum duration of one wait for a permit. It is long enough for evicted uploads to release
/// their permits.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// Number of waits before a call is refused. Each begins with an eviction, so that uploads which
/// stalled during the first wait are evicted for the second.
const WAITS_MAX: u32 = 2;
const PURPOSES: usize = 3;
/// Index of the purpose `Http2Client`.
const HTTP2_CLIENT: usize = 1;
/// Index of the queue for calls of HTTP/2 clients that have [`CLIENT_BASE`] connections or more.
/// Such a call cannot use every released permit. In a common queue, it would consume a notification
/// that another call could have used.
const HTTP2_CLIENT_MORE: usize = PURPOSES;
/// Number of queues of waiting calls: one for each purpose, and [`HTTP2_CLIENT_MORE`].
const QUEUES: usize = PURPOSES + 1;
/// Number of connections that an HTTP/2 client may have while at least half of the permits of its
/// purpose are in use.
const CLIENT_BASE: usize = 16;
/// Divisor of the maximum number of client connections. The quotient is the number of uploads that
/// may be evicted at once, so that one search releases permits for many waiting calls.
const EVICTION_DIVISOR: usize = 64;
/// Minimum interval between evictions.
const EVICTION_INTERVAL: Duration = Duration::from_millis(100);

/// Divisor of the maximum number of client connections. While at most the quotient of upstream
/// connections is open, the size of a read is limited only by hyper's buffer, which grows to 64
/// KiB.
const LARGE_READS_DIVISOR: usize = 8;
/// Maximum number of bytes of a read while more connections are open. Hyper enlarges its buffer,
/// which is kept as long as the connection, only after a read that fills it. Reads of less than
/// 16 KiB therefore keep it within `memory::UPSTREAM`.
const CROWDED_READ_MAX: usize = (16 << 10) - 1;

#[derive(Debug, Clone)]
pub(super) enum ConnectionPurpose {
    /// A batch or an unbatched call.
    Batch,
    /// All calls of a client connection, or its relayed bytes.
    Client,
    /// A concurrent call of an HTTP/2 client, with the number of upstream connections that the
    /// client has open.
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
    index: usize,
    /// Number of open upstream connections of the HTTP/2 client, which the permit decreases on
    /// drop.
    client_connections: Option<Arc<AtomicUsize>>,
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

    /// Returns `true` for an HTTP/2 client with [`CLIENT_BASE`] connections or more. It takes a
    /// permit only while less than half of the permits for this purpose are in use.
    fn is_above_base(&self) -> bool {
        matches!(self, Self::Http2Client(count) if count.load(Ordering::Relaxed) >= CLIENT_BASE)
    }
}

// === impl UpstreamPermits ===

impl UpstreamPermits {
    /// Creates permits for this maximum number of client connections. Uploads that `buffers` lists
    /// may be evicted to release permits.
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
        for _ in 0..WAITS_MAX {
            self.evict_stalled_uploads(purpose);
            if let Ok(permit) = timeout(WAIT_MAX, self.wait(purpose)).await {
                return Ok(permit);
            }
        }
        Err(NoPermit)
    }

    /// Counts the call as waiting. Fails if as many calls wait as there may be client connections.
    fn enter_queue(&self) -> Result<WaitingCall<'_>, NoPermit> {
        let state = &*self.0;
        // The guard exists before the counter is increased, so that its drop also subtracts a call
        // that is refused here.
        let waiting = WaitingCall(state);
        if state.waiting.fetch_add(1, Ordering::Relaxed) < state.clients_max { Ok(waiting) } else { Err(NoPermit) }
    }

    /// Evicts stalled uploads, once for all waiting calls: a separate search for each of them would
    /// visit all uploads every time.
    fn evict_stalled_uploads(&self, purpose: &ConnectionPurpose) {
        let state = &self.0;
        let (now, before) = (state.clock.now().0, state.evicted_at.load(Ordering::Relaxed));
        let is_due = Tick(now).since(Tick(before)) >= EVICTION_INTERVAL || before == 0;
        let claims_eviction =
            || state.evicted_at.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // Uploads hold permits of the other two purposes only, so an eviction releases none for a
        // batch. Of several waiting calls, only one succeeds in the exchange, and evicts.
        if !matches!(purpose, ConnectionPurpose::Batch) && is_due && claims_eviction() {
            state.buffers.evict_stalled_uploads(state.clients_max / EVICTION_DIVISOR + 1);
        }
    }

    /// Waits until a permit is available, and takes it.
    async fn wait(&self, purpose: &ConnectionPurpose) -> UpstreamPermit {
        loop {
            // `notify_one` stores a notification if no task waits, so a release between the attempt
            // and the wait is not missed.
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
        let client_connections = match purpose {
            ConnectionPurpose::Http2Client(count) => Some(count.clone()),
            ConnectionPurpose::Batch | ConnectionPurpose::Client => None,
        };
        if let Some(count) = &client_connections {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Some(UpstreamPermit { permits: self.clone(), index, client_connections })
    }

    /// Returns the maximum number of permits of a purpose that may be in use, with the one to take.
    /// It is half as large for a client with [`CLIENT_BASE`] connections or more.
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
        if let Some(count) = &self.client_connections {
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
