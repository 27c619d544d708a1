//! The places of client connections, on all ports of a process.
//!
//! A full port makes room: connections that wait for nothing but their client give way to the
//! newcomer: of the address that holds most first, and of these the ones that were silent longest.
//! So idle and stalled connections keep out no call, from any address.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;

use super::watch::Activity;
use crate::batching::Tick;
use crate::clock::Clock;
use crate::memory::{EvictionMember, EvictionSet, PressureLevel, STREAM};
use crate::telemetry::Metrics;

/// The part of the places that is made free at once, so that a search serves many newcomers.
const RELIEF: usize = 64;
/// Streams of a connection however many are open: a client that needs more opens another.
const STREAMS_MIN: u32 = 8;
/// Memory that `h2` keeps for a stream that was reset: 400 bytes of state and 320 of a frame to be written,
/// in vectors that double.
const RESET: usize = 1 << 10;
/// Resets that a connection may have under any load: a client that has not yet seen the bound on
/// streams sends a few more than that.
const RESETS_MIN: usize = 16;
/// The initial window of HTTP/2 (RFC 9113, 6.9.2).
const WINDOW_MIN: u32 = 65_535;
/// The part of the places that may be held by connections that are going.
const GOING: usize = 8;
/// Turns of the runtime that are waited for them: some ms. A tunnel whose other end takes nothing
/// may take longer.
const TURNS_MAX: usize = 1_000;
/// Under pressure a connection that was silent for less makes no room: it may be between two calls.
const SILENCE_MIN: Duration = Duration::from_secs(5);

/// The connections of a process, on all its ports.
#[derive(Debug)]
pub struct Connections {
    set: EvictionSet<Evictee>,
    open: AtomicUsize,
    /// Those of the open ones that have been aborted and are not gone yet.
    going: AtomicUsize,
    max: usize,
    /// Bytes that their calls may hold, which the connections of HTTP/2 share.
    buffered_bytes: usize,
    clock: Clock,
    /// Notified when none is left.
    none: Notify,
    /// Under the highest pressure none is accepted.
    stopped: watch::Sender<bool>,
    metrics: Arc<Metrics>,
}

/// A place among the open connections.
#[derive(Debug)]
pub(super) struct ConnectionPlace {
    connections: Arc<Connections>,
    member: EvictionMember<Evictee>,
}

/// The resources of a connection from its accept to its end, also inside a tunnel.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    pub(super) place: ConnectionPlace,
    _alive: mpsc::Sender<()>,
}

/// A connection that may have to make room. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Evictee(Arc<EvicteeState>);

#[derive(Debug)]
struct EvicteeState {
    peer: IpAddr,
    activity: Arc<Activity>,
    task: OnceLock<AbortHandle>,
    evicted: AtomicBool,
}

// === impl Connections ===

impl Connections {
    /// None is open; `max` may be at once, whose calls may hold `buffered_bytes`.
    #[must_use]
    pub fn new(max: usize, buffered_bytes: usize, clock: Clock, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            set: EvictionSet::default(),
            open: AtomicUsize::new(0),
            going: AtomicUsize::new(0),
            max,
            buffered_bytes,
            clock,
            none: Notify::new(),
            stopped: watch::Sender::new(false),
            metrics,
        })
    }

    /// How many are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Resolves when none is open.
    pub async fn none(&self) {
        loop {
            let none = self.none.notified();
            // The notification is registered by its making, so none is missed after this look.
            if self.open() == 0 {
                return;
            }
            none.await;
        }
    }

    /// Accepts none under the highest pressure; from the one before it on, connections that are
    /// silent make room.
    pub fn set_pressure(&self, level: PressureLevel) {
        self.stopped.send_if_modified(|stopped| {
            let stop = level >= PressureLevel::Stop;
            std::mem::replace(stopped, stop) != stop
        });
        if level >= PressureLevel::Refuse {
            self.evict(self.open() / 8 + 1, SILENCE_MIN);
        }
    }

    /// Resolves once connections may be accepted: those that made room are gone but for a few, and
    /// the pressure is not the highest.
    pub(super) async fn relaxed(&self) {
        for _ in 0..TURNS_MAX {
            if self.going.load(Ordering::Relaxed) <= self.max / GOING {
                break;
            }
            // They go when their tasks run next.
            tokio::task::yield_now().await;
        }
        // The sender lives as long as `self`.
        self.stopped.subscribe().wait_for(|stopped| !*stopped).await.ok();
    }

    /// Takes a place, for which others make room if need be; `None` where all are busy.
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr, activity: Arc<Activity>) -> Option<ConnectionPlace> {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        let state = EvicteeState {
            peer: peer.to_canonical(),
            activity,
            task: OnceLock::new(),
            evicted: AtomicBool::new(false),
        };
        let has_room = open.saturating_sub(self.going.load(Ordering::Relaxed)) <= self.max
            || self.evict(self.max / RELIEF + 1, Duration::ZERO) > 0;
        let place = ConnectionPlace { connections: self.clone(), member: self.set.join(Evictee(Arc::new(state))) };
        self.metrics.connections(open);
        has_room.then_some(place)
    }

    /// Has up to `most` connections make room that were silent for that time; returns their number.
    fn evict(&self, most: usize, silence: Duration) -> usize {
        let mut peers: HashMap<IpAddr, usize> = HashMap::new();
        self.set.for_each(|evictee| *peers.entry(evictee.0.peer).or_default() += 1);
        let before = Tick(self.clock.now().0.saturating_sub(u64::try_from(silence.as_nanos()).unwrap_or(u64::MAX)));
        let worst = self.set.worst(|evictee| {
            let (relayed, since) = evictee.waits_since().filter(|(_, since)| *since <= before)?;
            Some((peers.get(&evictee.0.peer).copied().unwrap_or(0), !relayed, Reverse(since)))
        });
        let mut evicted = 0;
        for evictee in worst.iter().take(most) {
            self.going.fetch_add(1, Ordering::Relaxed);
            if evictee.evict() {
                self.metrics.connection_shed();
                evicted += 1;
            } else {
                self.going.fetch_sub(1, Ordering::Relaxed);
            }
        }
        evicted
    }
}

// === impl ConnectionGuard ===

impl ConnectionGuard {
    pub(super) const fn new(place: ConnectionPlace, alive: mpsc::Sender<()>) -> Self {
        Self { place, _alive: alive }
    }
}

// === impl ConnectionPlace ===

impl ConnectionPlace {
    /// The signs of life of its connection.
    pub(super) fn activity(&self) -> Arc<Activity> {
        self.member.0.activity.clone()
    }

    /// The largest window of a new connection of HTTP/2: a quarter of what calls may hold, shared
    /// by all connections that are open; no less than HTTP/2 has without a word.
    pub(super) fn window_max(&self) -> u32 {
        self.share(self.connections.buffered_bytes / 4).max(WINDOW_MIN)
    }

    /// The most streams of a new connection of HTTP/2: as many as half of what calls may hold has
    /// room for, shared by all connections that are open. hyper makes a task for each before it
    /// looks at any.
    pub(super) fn streams_max(&self) -> u32 {
        self.share(self.connections.buffered_bytes / 2 / STREAM).max(STREAMS_MIN)
    }

    /// The most streams of a new connection of HTTP/2 that may be reset before it is ended: as many
    /// as half of what calls may hold has room for, shared by all connections that are open.
    /// `h2` keeps room for the most there were at once until the connection ends, also for those
    /// that it has refused.
    pub(super) fn resets_max(&self) -> usize {
        (self.share(self.connections.buffered_bytes / 2 / RESET) as usize).max(RESETS_MIN)
    }

    /// The part of one connection.
    fn share(&self, whole: usize) -> u32 {
        u32::try_from(whole / self.connections.open().max(1)).unwrap_or(u32::MAX)
    }

    /// The handle by which it makes room for others.
    pub(super) fn evictee(&self) -> Evictee {
        self.member.clone()
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let connections = &self.connections;
        if self.member.0.evicted.swap(true, Ordering::AcqRel) {
            connections.going.fetch_sub(1, Ordering::Relaxed);
        }
        let left = connections.open.fetch_sub(1, Ordering::Relaxed) - 1;
        connections.metrics.connections(left);
        if left == 0 {
            connections.none.notify_waiters();
        }
    }
}

// === impl Evictee ===

impl Evictee {
    /// Sets the task that serves the connection.
    pub(super) fn run_by(&self, task: &AbortHandle) {
        self.0.task.set(task.clone()).ok();
        if self.0.evicted.load(Ordering::Acquire) {
            task.abort();
        }
    }

    /// Returns whether it is carried on as bytes, and the start of its wait.
    fn waits_since(&self) -> Option<(bool, Tick)> {
        if self.0.evicted.load(Ordering::Relaxed) { None } else { self.0.activity.waits_since() }
    }

    /// Ends the connection; `false` if it has ended already.
    fn evict(&self) -> bool {
        if self.0.evicted.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Some(task) = self.0.task.get() {
            task.abort();
        }
        // A tunnel is another task's by now.
        self.0.activity.evictor().wake();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt as _;

    use super::*;

    fn connections(max: usize) -> Arc<Connections> {
        Connections::new(max, 1 << 20, Clock::start(), Arc::new(Metrics::new("local")))
    }

    fn take(connections: &Arc<Connections>, peer: u8) -> Option<ConnectionPlace> {
        connections.take(IpAddr::from(Ipv4Addr::new(10, 0, 0, peer)), Activity::new(connections.clock))
    }

    #[tokio::test]
    async fn places_are_bounded_by_busy_connections_and_the_last_one_that_goes_is_noticed() {
        let connections = connections(2);
        connections.none().await;
        let (one, two) = (take(&connections, 1).unwrap(), take(&connections, 1).unwrap());
        let calls = [one.activity().begin(false), two.activity().begin(false)];
        assert!(take(&connections, 1).is_none());
        assert_eq!(connections.open(), 2);
        drop((one, calls));
        let ((), ()) = tokio::join!(connections.none(), async { drop(two) });
        assert_eq!(connections.open(), 0);
    }

    #[tokio::test]
    async fn a_silent_connection_of_the_address_that_holds_most_makes_room() {
        let connections = connections(3);
        let places = [take(&connections, 1), take(&connections, 2), take(&connections, 2)].map(Option::unwrap);
        let busy = places[1].activity().begin(false);
        let tasks = places.map(|place| {
            let evictee = place.evictee();
            let task = tokio::spawn(async move {
                let _place = place;
                std::future::pending::<()>().await;
            });
            evictee.run_by(&task.abort_handle());
            task
        });
        let newcomer = take(&connections, 3).unwrap();
        let [other, answering, silent] = tasks;
        assert!(silent.await.unwrap_err().is_cancelled());
        assert!(!other.is_finished() && !answering.is_finished());
        assert_eq!((connections.open(), connections.going.load(Ordering::Relaxed)), (3, 0));
        drop((newcomer, busy));
        other.abort();
        answering.abort();
    }

    #[tokio::test]
    async fn under_pressure_silent_connections_go_and_none_is_accepted() {
        let connections = connections(10);
        let place = take(&connections, 1).unwrap();
        connections.set_pressure(PressureLevel::Stop);
        assert!(!place.evictee().0.evicted.load(Ordering::Relaxed), "it was not silent for long");
        assert!(connections.relaxed().now_or_never().is_none());
        connections.set_pressure(PressureLevel::None);
        connections.relaxed().await;
    }
}
