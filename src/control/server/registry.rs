//! The table of all streams: pushes to sidecars, and the sweep that enforces timeouts.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;

use super::mailbox::{EncodedPush, Mailbox};
use super::stream_events::StreamEventCounters;
use super::{Authenticate, ControllerStreamHandler, PodIdentity, ServerLimits, StreamEvent};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::delivery::DuplicateFilter;
use crate::permits::{ConnectionLimiter, ConnectionLimits};
use crate::wire::{Acknowledgement, Hello};

/// Interval of the sweep. The shortest timeout is six times as long.
pub(super) const SWEEP: Duration = Duration::from_secs(5);
/// Limits on connections without an accepted `Hello`, in total and per address. A node may run a
/// hundred sidecars behind one address, which reconnect at the same time. Each of them can make
/// rustls buffer at most 64 KiB, for a second, so those of an address hold at most 8 MiB.
const HANDSHAKE_LIMITS: ConnectionLimits = ConnectionLimits { total: 4096, per_peer: 128 };
/// Maximum number of evicted connections that are not yet closed while new ones are accepted.
const EVICTED_MAX: usize = 64;
/// Time without a write after which a sidecar is sent a keep-alive. Reports are acknowledged every
/// 5 s, so it is rarely needed.
const PING_AFTER: Duration = Duration::from_secs(20);
/// Time for which the acknowledgement state of a closed stream is kept. It far exceeds the time of
/// a reconnect.
const INBOX_TTL: Duration = Duration::from_secs(600);

/// Handle to all open streams. Cheap to clone.
#[derive(Clone)]
pub struct StreamRegistry(pub(super) Arc<ServerState>);

pub(super) struct ServerState {
    pub(super) limits: ServerLimits,
    pub(super) clock: Clock,
    pub(super) counts: StreamEventCounters,
    pub(super) auth: Arc<dyn Authenticate>,
    pub(super) handler: Arc<dyn ControllerStreamHandler>,
    /// Connections without an accepted `Hello`. At a limit the oldest is evicted.
    pub(super) waiting: ConnectionLimiter,
    pub(super) handshakes: Semaphore,
    /// All connections, by `Connection::id`.
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    pods: Mutex<OpenPods>,
    /// Serializes opening and closing, so that the handler is notified in the order in which they
    /// happened. It is taken before any other lock.
    lifecycle_lock: Mutex<()>,
    next_id: AtomicU64,
}

/// A connection of a sidecar. It has a stream once its `Hello` is accepted.
#[derive(Debug)]
pub(super) struct Connection {
    id: u64,
    /// Time at which the connection was accepted.
    accepted: Tick,
    /// Time of the last received frame, in nanoseconds; 0 before `Hello`.
    last_frame_at: AtomicU64,
    /// Time of the last write, in nanoseconds; 0 before the first one.
    last_write_at: AtomicU64,
    pub(super) mailbox: Mailbox,
    /// Handle of the task that serves the connection.
    abort: OnceLock<AbortHandle>,
    /// Notified when the `Hello` is accepted.
    pub(super) opened: Notify,
    /// `true` once the sweep aborted the connection, so that it is counted once.
    dropped: AtomicBool,
}

/// The pods that have a stream, or had one recently.
#[derive(Default)]
struct OpenPods {
    /// Open streams by UID of the pod.
    open: HashMap<String, OpenStream>,
    /// Acknowledgement state by UID, with the time of its last use. It includes streams that were
    /// closed recently.
    inboxes: HashMap<String, (DuplicateFilter, Tick)>,
}

struct OpenStream {
    connection: Arc<Connection>,
    identity: Arc<PodIdentity>,
}

// === impl StreamRegistry ===

impl StreamRegistry {
    pub(super) fn new(
        limits: ServerLimits,
        clock: Clock,
        auth: Arc<dyn Authenticate>,
        handler: Arc<dyn ControllerStreamHandler>,
    ) -> Self {
        Self(Arc::new(ServerState {
            waiting: ConnectionLimiter::new(ConnectionLimits {
                total: HANDSHAKE_LIMITS.total.min(limits.streams_max / 2),
                ..HANDSHAKE_LIMITS
            }),
            handshakes: Semaphore::new(limits.handshakes_max.clamp(1, Semaphore::MAX_PERMITS)),
            limits,
            clock,
            counts: StreamEventCounters::default(),
            auth,
            handler,
            connections: Mutex::default(),
            pods: Mutex::default(),
            lifecycle_lock: Mutex::default(),
            next_id: AtomicU64::new(1),
        }))
    }

    /// Pushes a message to the sidecar of a pod, replacing a pending one of the same kind. Returns
    /// `false` if the pod has no stream.
    #[must_use]
    pub fn push(&self, uid: &str, push: &EncodedPush) -> bool {
        let now = self.0.clock.now();
        let connection = self.0.pods().open.get(uid).map(|open| open.connection.clone());
        connection.inspect(|connection| connection.mailbox.push(now, push)).is_some()
    }

    /// Pushes a message to every sidecar. Returns the number of sidecars.
    pub fn push_all(&self, push: &EncodedPush) -> usize {
        let now = self.0.clock.now();
        let connections: Vec<Arc<Connection>> =
            self.0.pods().open.values().map(|open| open.connection.clone()).collect();
        // Push outside the lock, because each push wakes a task.
        connections.iter().for_each(|connection| connection.mailbox.push(now, push));
        connections.len()
    }

    /// Returns the pods with an open stream.
    #[must_use]
    pub fn pods(&self) -> Vec<Arc<PodIdentity>> {
        self.0.pods().open.values().map(|open| open.identity.clone()).collect()
    }

    /// Returns the number of open streams.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.pods().open.len()
    }

    /// Returns `true` if no stream is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value of a counter.
    #[must_use]
    pub fn count(&self, count: StreamEvent) -> u64 {
        self.0.counts.get(count)
    }
}

impl fmt::Debug for StreamRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamRegistry").field("open", &self.len()).finish_non_exhaustive()
    }
}

// === impl ServerState ===

impl ServerState {
    /// Adds a connection of an address. At `streams_max`, another connection without an accepted
    /// `Hello` is evicted for it. Returns `None` if no such connection exists, or if too many
    /// evicted connections are still open.
    pub(super) fn add_connection(&self, peer: IpAddr) -> Option<Arc<Connection>> {
        let mut connections = self.connections();
        let excess = (connections.len() + 1).saturating_sub(self.limits.streams_max);
        // An evicted connection is removed only when its task runs, so the table may exceed its
        // maximum meanwhile.
        if excess > EVICTED_MAX || excess > 0 && !self.waiting.make_room(peer) {
            return None;
        }
        let connection = Arc::new(Connection {
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            accepted: self.clock.now(),
            last_frame_at: AtomicU64::new(0),
            last_write_at: AtomicU64::new(0),
            mailbox: Mailbox::default(),
            abort: OnceLock::new(),
            opened: Notify::new(),
            dropped: AtomicBool::new(false),
        });
        connections.insert(connection.id, connection.clone());
        Some(connection)
    }

    pub(super) fn remove_connection(&self, connection: &Connection) {
        self.connections().remove(&connection.id);
    }

    /// Returns `true` if there are no connections.
    pub(super) fn is_idle(&self) -> bool {
        self.connections().is_empty()
    }

    /// Registers the stream of a pod after its `Hello`, and ends an earlier one of the same pod.
    pub(super) fn open(self: &Arc<Self>, connection: &Arc<Connection>, identity: &Arc<PodIdentity>, hello: &Hello) {
        connection.on_frame(self.clock.now());
        connection.opened.notify_one();
        let _guard = self.lifecycle_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let open = OpenStream { connection: connection.clone(), identity: identity.clone() };
        let before = self.pods().open.insert(identity.uid.clone(), open);
        if let Some(before) = before {
            self.counts.increment(StreamEvent::Replaced);
            before.connection.abort();
        }
        self.counts.increment(StreamEvent::Opened);
        self.handler.on_open(&StreamRegistry(self.clone()), identity, hello);
    }

    /// Unregisters the stream of a connection. The handler is notified unless the stream was
    /// replaced.
    pub(super) fn close(&self, connection: &Connection, identity: &Arc<PodIdentity>) {
        let _guard = self.lifecycle_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let was_open = {
            let mut pods = self.pods();
            let own = pods.open.get(&identity.uid).is_some_and(|open| open.connection.id == connection.id);
            if own {
                pods.open.remove(&identity.uid);
            }
            own
        };
        if was_open {
            self.handler.on_close(identity);
        }
    }

    /// Accesses the acknowledgement state of a pod, creating it if necessary.
    pub(super) fn with_inbox<T>(&self, uid: &str, access: impl FnOnce(&mut DuplicateFilter) -> T) -> T {
        let now = self.clock.now();
        let mut pods = self.pods();
        if let Some((inbox, used)) = pods.inboxes.get_mut(uid) {
            *used = now;
            return access(inbox);
        }
        let mut inbox = DuplicateFilter::default();
        let result = access(&mut inbox);
        pods.inboxes.insert(uid.to_owned(), (inbox, now));
        result
    }

    /// Returns the acknowledgement to send to a pod.
    pub(super) fn acked(&self, uid: &str) -> Acknowledgement {
        self.with_inbox(uid, |inbox| inbox.acked())
    }

    /// Aborts connections that exceeded a timeout, sends keep-alives, and drops old acknowledgement
    /// state.
    pub(super) fn sweep(&self, now: Tick) {
        let limits = &self.limits;
        for connection in self.connections().values() {
            let last_frame = Tick(connection.last_frame_at.load(Ordering::Relaxed));
            let slow = connection.mailbox.pending_since().is_some_and(|since| now.since(since) > limits.slow_timeout);
            let late = if last_frame == Tick(0) {
                now.since(connection.accepted) > limits.hello_timeout
            } else {
                now.since(last_frame) > limits.idle_timeout
            };
            if slow || late {
                if !connection.dropped.swap(true, Ordering::Relaxed) {
                    self.counts.increment(if slow { StreamEvent::Slow } else { StreamEvent::Idle });
                }
                connection.abort();
            } else if last_frame != Tick(0)
                && now.since(Tick(connection.last_write_at.load(Ordering::Relaxed))) > PING_AFTER
            {
                connection.mailbox.ping(now);
            }
        }
        let mut pods = self.pods();
        let OpenPods { open, inboxes } = &mut *pods;
        inboxes.retain(|uid, (_, used)| open.contains_key(uid) || now.since(*used) < INBOX_TTL);
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pods(&self) -> MutexGuard<'_, OpenPods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Connection ===

impl Connection {
    /// Sets the task that serves the connection, so that it can be aborted.
    pub(super) fn set_task(&self, task: AbortHandle) {
        self.abort.get_or_init(|| task);
    }

    pub(super) fn on_frame(&self, now: Tick) {
        self.last_frame_at.store(now.0.max(1), Ordering::Relaxed);
    }

    pub(super) fn on_write(&self, now: Tick) {
        self.last_write_at.store(now.0, Ordering::Relaxed);
    }

    fn abort(&self) {
        if let Some(task) = self.abort.get() {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests;
