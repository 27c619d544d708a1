//! Admission of client connections across all ports of a process.
//!
//! At the limit, a new connection evicts connections that wait only for their client, first those
//! of the address with the most connections, and among them the ones that have been silent the
//! longest. Idle and stalled connections therefore block no calls, from any address.
//!
//! For a new connection of an address that holds more connections than the mean of all addresses,
//! waiting connections of that address are evicted or, if it has none, those of any address that
//! have been silent for [`SILENCE_MIN`]. This happens at most once in [`OWN_EVICTION_INTERVAL`].
//! The other new connections of the address are refused.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::activity::ConnectionActivity;
use crate::batching::Tick;
use crate::clock::Clock;
use crate::memory::{EvictionMember, EvictionSet, PressureLevel, STREAM};
use crate::telemetry::Metrics;

/// Denominator of the fraction of the permits that is freed at once, so that one search serves many
/// new connections. With a fraction of a 64th, the searches took a quarter of the time of a process
/// to which thousands of connections were opened at once.
const EVICTION_DIVISOR: usize = 16;
/// Minimum number of streams of a connection regardless of the number of connections. A client that
/// needs more opens another connection.
const STREAMS_MIN: u32 = 8;
/// Memory that `h2` keeps for a reset stream: 400 bytes of state and 320 bytes for a frame to be
/// written, in vectors that grow by doubling.
const RESET_STREAM_BYTES: usize = 1 << 10;
/// Minimum number of resets of a connection under any load. A client that has not yet received the
/// stream limit sends a few resets more than the limit.
const RESETS_MIN: usize = 16;
/// The initial window size of HTTP/2 (RFC 9113, 6.9.2).
const WINDOW_MIN: u32 = 65_535;
/// Minimum interval between evictions for new connections of an address that holds more connections
/// than the mean of all addresses. Its other new connections are refused meanwhile: to accept and
/// close one takes 10 µs, and to serve one in the place of another 200 µs, for which the
/// connections of all addresses would wait in the accept queue of the kernel.
const OWN_EVICTION_INTERVAL: Duration = Duration::from_millis(100);
/// Denominator of the fraction of the permits that connections being closed may occupy.
const CLOSING_DIVISOR: usize = 8;
/// Maximum number of yields to the runtime while evicted connections are closed: a few
/// milliseconds. A tunnel with a stalled other end may take longer.
const YIELDS_MAX: usize = 1_000;
/// Minimum silence of a connection that is evicted under memory pressure, or for an address above
/// the mean. A shorter silence may be the pause between two calls.
const SILENCE_MIN: Duration = Duration::from_secs(5);

/// The open connections of a process, on all its ports.
#[derive(Debug)]
pub struct Connections {
    set: EvictionSet<EvictionHandle>,
    open: AtomicUsize,
    /// Number of open connections that are aborted but not yet closed.
    closing: AtomicUsize,
    max: usize,
    /// Memory budget of their calls in bytes, which HTTP/2 connections share.
    buffered_bytes: usize,
    clock: Clock,
    /// Addresses with open connections.
    peers: Mutex<HashMap<IpAddr, PeerState>>,
    /// Notified when the last connection is closed.
    none: Notify,
    /// Set under the highest memory pressure, when no connection is accepted.
    stopped: watch::Sender<bool>,
    metrics: Arc<Metrics>,
}

/// An address with open connections.
#[derive(Debug, Clone, Copy, Default)]
struct PeerState {
    /// Number of open connections.
    open: usize,
    /// Time of the last eviction for a new one while the address held more than the mean.
    evicted_at: Option<Tick>,
}

#[derive(Debug)]
pub(super) struct ClientConnectionPermit {
    connections: Arc<Connections>,
    member: EvictionMember<EvictionHandle>,
}

/// The resources that a connection holds from accept to its end, also inside a tunnel.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    pub(super) permit: ClientConnectionPermit,
    _alive: TaskTrackerToken,
}

/// A handle to evict a connection. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct EvictionHandle(Arc<EvicteeState>);

#[derive(Debug)]
struct EvicteeState {
    peer: IpAddr,
    activity: Arc<ConnectionActivity>,
    task: OnceLock<AbortHandle>,
    evicted: AtomicBool,
}

// === impl Connections ===

impl Connections {
    /// Creates an empty set of at most `max` connections. `buffered_bytes` is the memory budget of
    /// their calls.
    #[must_use]
    pub fn new(max: usize, buffered_bytes: usize, clock: Clock, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            set: EvictionSet::default(),
            open: AtomicUsize::new(0),
            closing: AtomicUsize::new(0),
            max,
            buffered_bytes,
            clock,
            peers: Mutex::default(),
            none: Notify::new(),
            stopped: watch::Sender::new(false),
            metrics,
        })
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Resolves when no connection is open.
    pub async fn wait_until_closed(&self) {
        loop {
            let none = self.none.notified();
            // `Notified` observes every `notify_waiters` call after its creation, so none is missed
            // after this check.
            if self.open_count() == 0 {
                return;
            }
            none.await;
        }
    }

    /// Applies a memory pressure level. The highest level stops accepting, and from the level below
    /// it on, an eighth of the connections is evicted if they have been silent for `SILENCE_MIN`.
    pub fn set_pressure(&self, level: PressureLevel) {
        self.stopped.send_if_modified(|stopped| {
            let stop = level >= PressureLevel::Stop;
            std::mem::replace(stopped, stop) != stop
        });
        if level >= PressureLevel::Refuse {
            self.evict(self.open_count() / 8 + 1, SILENCE_MIN, None);
        }
    }

    /// Resolves once connections may be accepted: all but a few of the evicted ones are closed, and
    /// the memory pressure is below the highest level.
    pub(super) async fn wait_for_capacity(&self) {
        for _ in 0..YIELDS_MAX {
            if self.closing.load(Ordering::Relaxed) <= self.max / CLOSING_DIVISOR {
                break;
            }
            // An evicted connection is dropped when its aborted task runs next.
            tokio::task::yield_now().await;
        }
        // Cannot fail, because the sender lives as long as `self`.
        self.stopped.subscribe().wait_for(|stopped| !*stopped).await.ok();
    }

    /// Takes a permit, evicting other connections if necessary. Returns `None` if all are busy, or
    /// the address holds more connections than the mean and has just evicted some.
    pub(super) fn acquire(
        self: &Arc<Self>,
        peer: IpAddr,
        activity: Arc<ConnectionActivity>,
    ) -> Option<ClientConnectionPermit> {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        let peer = peer.to_canonical();
        let is_above_mean = self.add_peer(peer, open);
        let state = EvicteeState { peer, activity, task: OnceLock::new(), evicted: AtomicBool::new(false) };
        // Connections that are being closed do not count: they release their permits when their
        // tasks run next.
        let has_room = open.saturating_sub(self.closing.load(Ordering::Relaxed)) <= self.max
            || if is_above_mean { self.evict_own(peer) } else { self.evict_for_room(None, Duration::ZERO) };
        let permit = ClientConnectionPermit {
            connections: self.clone(),
            member: self.set.insert(EvictionHandle(Arc::new(state))),
        };
        self.metrics.set_open_connections(open);
        has_room.then_some(permit)
    }

    /// Counts a connection of an address. Returns `true` if the address now has more connections
    /// than the mean of the addresses of all `open` ones.
    fn add_peer(&self, peer: IpAddr, open: usize) -> bool {
        let mut peers = self.peers();
        let state = peers.entry(peer).or_default();
        state.open += 1;
        state.open * peers.len() > open
    }

    fn remove_peer(&self, peer: IpAddr) {
        let mut peers = self.peers();
        let Some(state) = peers.get_mut(&peer) else { return };
        state.open -= 1;
        if state.open == 0 {
            peers.remove(&peer);
        }
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<IpAddr, PeerState>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evicts connections of an address for its new ones, or else silent ones of any address,
    /// unless it has done so just before. Returns `true` if any was evicted.
    fn evict_own(&self, peer: IpAddr) -> bool {
        let now = self.clock.now();
        let before = self.peers().get(&peer).and_then(|state| state.evicted_at);
        let is_due = before.is_none_or(|before| now.since(before) >= OWN_EVICTION_INTERVAL);
        if !is_due || !self.evict_for_room(Some(peer), Duration::ZERO) && !self.evict_for_room(None, SILENCE_MIN) {
            return false;
        }
        if let Some(state) = self.peers().get_mut(&peer) {
            state.evicted_at = Some(now);
        }
        true
    }

    /// Evicts connections, of one address if it is given. Returns `true` if any was evicted.
    fn evict_for_room(&self, of: Option<IpAddr>, silence: Duration) -> bool {
        self.evict(self.max / EVICTION_DIVISOR + 1, silence, of) > 0
    }

    /// Evicts up to `most` connections, of one address if it is given, that have been silent for at
    /// least `silence`, and returns their number.
    fn evict(&self, most: usize, silence: Duration, of: Option<IpAddr>) -> usize {
        let peers = self.peers().clone();
        let before = Tick(self.clock.now().0.saturating_sub(u64::try_from(silence.as_nanos()).unwrap_or(u64::MAX)));
        // The highest score first: the address with the most connections, connections that are not
        // relayed before those that are, and the longest silence.
        let ranked = self.set.ranked_by(|evictee| {
            let peer = evictee.0.peer;
            let (relayed, since) = evictee.waits_since().filter(|(_, since)| *since <= before)?;
            let is_candidate = of.is_none_or(|of| of == peer);
            is_candidate.then(|| (peers.get(&peer).map_or(0, |state| state.open), !relayed, Reverse(since)))
        });
        let mut evicted = 0;
        for evictee in ranked.iter().take(most) {
            // Counted before the abort: the permit of an evicted connection subtracts it on drop.
            self.closing.fetch_add(1, Ordering::Relaxed);
            if evictee.evict() {
                self.metrics.record_shed_connection();
                evicted += 1;
            } else {
                self.closing.fetch_sub(1, Ordering::Relaxed);
            }
        }
        evicted
    }
}

// === impl ConnectionGuard ===

impl ConnectionGuard {
    pub(super) const fn new(permit: ClientConnectionPermit, alive: TaskTrackerToken) -> Self {
        Self { permit, _alive: alive }
    }
}

// === impl ClientConnectionPermit ===

impl ClientConnectionPermit {
    pub(super) fn activity(&self) -> Arc<ConnectionActivity> {
        self.member.0.activity.clone()
    }

    /// Returns the address of the client.
    pub(super) fn peer(&self) -> IpAddr {
        self.member.0.peer
    }

    /// Returns the largest window of a new HTTP/2 connection: an equal share, over all open
    /// connections, of a quarter of the memory budget of calls, but at least the protocol's
    /// default.
    pub(super) fn window_max(&self) -> u32 {
        self.share(self.connections.buffered_bytes / 4).max(WINDOW_MIN)
    }

    /// Returns the maximum number of streams of a new HTTP/2 connection: an equal share, over all
    /// open connections, of the streams that fit into half the memory budget of calls. hyper spawns
    /// a task for each stream before it polls any. [`STREAMS_MIN`] while that half is held: a
    /// client whose connection was evicted because it takes no responses would begin all of its
    /// calls again. A stream beyond the limit is refused before it is a call, so it may be
    /// repeated.
    pub(super) fn streams_max(&self, is_tight: bool) -> u32 {
        let share = self.share(self.connections.buffered_bytes / 2 / STREAM);
        if is_tight { STREAMS_MIN } else { share.max(STREAMS_MIN) }
    }

    /// Returns the maximum number of streams of a new HTTP/2 connection that may be reset before it
    /// is closed: an equal share, over all open connections, of the resets that fit into half the
    /// memory budget of calls. `h2` keeps memory for the largest number of concurrent streams until
    /// the connection ends, also for streams that it has refused.
    pub(super) fn resets_max(&self) -> usize {
        (self.share(self.connections.buffered_bytes / 2 / RESET_STREAM_BYTES) as usize).max(RESETS_MIN)
    }

    /// Returns the share of one connection in `whole`.
    fn share(&self, whole: usize) -> u32 {
        u32::try_from(whole / self.connections.open_count().max(1)).unwrap_or(u32::MAX)
    }

    /// Returns the handle that evicts the connection.
    pub(super) fn evictee(&self) -> EvictionHandle {
        self.member.clone()
    }
}

impl Drop for ClientConnectionPermit {
    fn drop(&mut self) {
        let connections = &self.connections;
        connections.remove_peer(self.peer());
        if self.member.0.evicted.swap(true, Ordering::AcqRel) {
            connections.closing.fetch_sub(1, Ordering::Relaxed);
        }
        let left = connections.open.fetch_sub(1, Ordering::Relaxed) - 1;
        connections.metrics.set_open_connections(left);
        if left == 0 {
            connections.none.notify_waiters();
        }
    }
}

// === impl EvictionHandle ===

impl EvictionHandle {
    /// Sets the task that serves the connection.
    pub(super) fn set_task(&self, task: &AbortHandle) {
        self.0.task.set(task.clone()).ok();
        // An eviction before the task was set could not abort it.
        if self.0.evicted.load(Ordering::Acquire) {
            task.abort();
        }
    }

    /// Returns `true` if the connection is relayed as bytes, and the start of its silence. `None`
    /// if it does not wait for its client, or is evicted already.
    fn waits_since(&self) -> Option<(bool, Tick)> {
        if self.0.evicted.load(Ordering::Relaxed) { None } else { self.0.activity.waits_since() }
    }

    /// Closes the connection. Returns `false` if it was already evicted.
    fn evict(&self) -> bool {
        if self.0.evicted.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Some(task) = self.0.task.get() {
            task.abort();
        }
        // A tunnel runs in another task by now, which the abort does not end.
        self.0.activity.eviction_waker().wake();
        true
    }
}

#[cfg(test)]
mod tests;
