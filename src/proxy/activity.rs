//! The activity of one client connection, and the timeouts derived from it.
//!
//! hyper's own head timeout also closes idle connections, so the timeouts of a connection are
//! implemented here: an incomplete head, an idle connection, a client that does not take its
//! response. Each connection has a single timer, which is reset lazily.

mod active_call;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;

pub(super) use self::active_call::ActiveCall;
use super::ClientLimits;
use super::flood::FloodEvent;
use crate::batching::Tick;
use crate::clock::Clock;
use crate::telemetry::names::FloodReason;

/// Silence after which a relayed connection may be evicted. Protocols other than HTTP keep
/// connections open for long.
const RELAY_SILENCE: Duration = Duration::from_secs(10);
/// Sentinel for an instant that is not set: zero is before any connection.
const NEVER: u64 = 0;

/// The activity of one connection. Instants are the nanoseconds of a [`Tick`], or [`NEVER`].
#[derive(Debug)]
pub(super) struct ConnectionActivity {
    clock: Clock,
    /// Number of calls with a response that is not taken completely, plus the number of uploads.
    busy: AtomicUsize,
    /// Number of requests with an incomplete body.
    uploads: AtomicUsize,
    /// Number of calls with a response that has begun and is not taken completely.
    answers: AtomicUsize,
    /// Number of response bytes that were passed to hyper and are not written yet.
    unsent: AtomicUsize,
    /// Instant of the last read or write.
    moved_at: AtomicU64,
    /// Number of bytes of an HTTP/1 head that has begun.
    head_bytes: AtomicUsize,
    /// The connection is relayed as bytes, so its calls are not visible.
    relayed: AtomicBool,
    /// The connection is evicted to make room for others.
    evicted: AtomicBool,
    /// Set once the client exceeded a limit on control frames or header lines.
    flood: OnceLock<FloodEvent>,
    /// Number of responses with available bytes of which nothing has been taken.
    untaken: AtomicUsize,
    /// Instant at which response bytes were last taken, or the first untaken response became
    /// available.
    taken_at: AtomicU64,
    /// Instant since which a write has been blocked.
    blocked_since: AtomicU64,
    /// Instant of the first byte after the last response.
    head_since: AtomicU64,
    /// Instant at which the last call or upload in progress ended, or the connection was opened.
    idle_since: AtomicU64,
    /// The client uses HTTP/2.
    http2: AtomicBool,
    /// The connection drains: the client is directed to reconnect elsewhere.
    draining: AtomicBool,
    /// Number of calls since the connection was opened.
    calls: AtomicU64,
    /// The task that reads a relayed connection, which may differ from the connection's task.
    reader: AtomicWaker,
    /// The connection's task. HTTP/2 calls run in tasks of their own, and their changes may make a
    /// timeout due before the connection's task runs again.
    connection: AtomicWaker,
}

/// The next timeout of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeoutAction {
    /// No timeout applies in the current state.
    Nothing,
    /// Close the connection at this instant.
    Close(Tick),
    /// Shut the connection down gracefully at this instant.
    End(Tick),
}

// === impl ConnectionActivity ===

impl ConnectionActivity {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        let now = clock.now().0.max(1);
        Arc::new(Self {
            clock,
            busy: AtomicUsize::new(0),
            uploads: AtomicUsize::new(0),
            answers: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            moved_at: AtomicU64::new(now),
            head_bytes: AtomicUsize::new(0),
            relayed: AtomicBool::new(false),
            evicted: AtomicBool::new(false),
            flood: OnceLock::new(),
            untaken: AtomicUsize::new(0),
            taken_at: AtomicU64::new(now),
            blocked_since: AtomicU64::new(NEVER),
            head_since: AtomicU64::new(NEVER),
            idle_since: AtomicU64::new(now),
            http2: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            reader: AtomicWaker::new(),
            connection: AtomicWaker::new(),
        })
    }

    /// Registers the connection's task, which is woken when the next timeout changes.
    pub(super) fn register_task(&self, task: &Waker) {
        self.connection.register(task);
    }

    /// Returns a waker that closes the connection, for use by memory eviction.
    pub(super) fn eviction_waker(self: &Arc<Self>) -> Waker {
        self.clone().into()
    }

    /// Shuts the connection down with `GOAWAY`, because its client exceeded a limit. Nothing more
    /// is read from it, and it is closed once the calls that were received are answered.
    pub(super) fn shut_down_flooded(&self, reason: FloodReason) {
        // Fails if another limit was exceeded before, which has the same effect.
        if self.flood.set(FloodEvent::new(reason, self.clock.now())).is_ok() {
            self.connection.wake();
        }
    }

    /// Returns the limit that the client exceeded, if the connection is shut down because of
    /// [`Self::shut_down_flooded`].
    pub(super) fn flood(&self) -> Option<FloodEvent> {
        self.flood.get().copied()
    }

    /// Returns `true` if the connection is shut down because of [`Self::shut_down_flooded`].
    pub(super) fn is_flooded(&self) -> bool {
        self.flood.get().is_some()
    }

    /// Returns the clock of the process.
    pub(super) const fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns `true` if the connection is relayed as bytes.
    pub(super) fn is_relayed(&self) -> bool {
        self.relayed.load(Ordering::Relaxed)
    }

    /// Marks the connection as relayed as bytes.
    pub(super) fn set_relayed(&self) {
        self.relayed.store(true, Ordering::Relaxed);
        self.head_bytes.store(0, Ordering::Relaxed);
    }

    /// Returns `true` if the connection is relayed as bytes and evicted. `reader` is woken on
    /// eviction.
    pub(super) fn is_relay_evicted(&self, reader: &Waker) -> bool {
        if !self.is_relayed() {
            return false;
        }
        self.reader.register(reader);
        self.evicted.load(Ordering::Relaxed)
    }

    /// Returns `true` for a relayed connection, and the start of the silence, if the connection
    /// waits only for its client; otherwise `None`. A relayed connection waits once no bytes have
    /// moved for [`RELAY_SILENCE`], and any other one while it is idle, or while its only calls are
    /// incomplete and unanswered.
    pub(super) fn waits_since(&self) -> Option<(bool, Tick)> {
        let moved = self.moved_at.load(Ordering::Relaxed).max(self.idle_since.load(Ordering::Relaxed));
        if self.relayed.load(Ordering::Relaxed) {
            let is_silent = self.clock.now().since(Tick(moved)) >= RELAY_SILENCE;
            return is_silent.then_some((true, Tick(moved)));
        }
        (!self.owes_response()).then_some((false, Tick(moved)))
    }

    /// Returns `true` if a call has arrived completely or is being answered, or response bytes are
    /// not written yet.
    fn owes_response(&self) -> bool {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        // Each upload is counted as busy in addition to its call.
        load(&self.busy) > 2 * load(&self.uploads) || load(&self.answers) > 0 || load(&self.unsent) > 0
    }

    /// Returns the number of response bytes that were passed to hyper and are not written yet.
    pub(super) const fn unsent(&self) -> &AtomicUsize {
        &self.unsent
    }

    /// Records received bytes.
    pub(super) fn on_read(&self, bytes: &[u8]) {
        let now = self.clock.now().0;
        self.moved_at.store(now, Ordering::Relaxed);
        if self.busy.load(Ordering::Relaxed) > 0 || self.relayed.load(Ordering::Relaxed) {
            return;
        }
        if self.head_since.load(Ordering::Relaxed) == NEVER {
            self.head_since.store(now, Ordering::Relaxed);
        }
        if !self.http2.load(Ordering::Relaxed) {
            self.head_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        }
    }

    /// Records that the client speaks HTTP/2: its preface is complete.
    pub(super) fn set_http2(&self) {
        self.http2.store(true, Ordering::Relaxed);
        self.head_bytes.store(0, Ordering::Relaxed);
    }

    /// Returns the bytes of the HTTP/1 head that has begun and is incomplete.
    pub(super) fn head_bytes(&self) -> usize {
        self.head_bytes.load(Ordering::Relaxed)
    }

    /// Records a write that succeeded or was blocked.
    pub(super) fn on_write(&self, blocked: bool) {
        let since = self.blocked_since.load(Ordering::Relaxed);
        if blocked && since == NEVER {
            self.blocked_since.store(self.clock.now().0, Ordering::Relaxed);
        } else if !blocked {
            self.moved_at.store(self.clock.now().0, Ordering::Relaxed);
            if since != NEVER {
                self.blocked_since.store(NEVER, Ordering::Relaxed);
            }
        }
    }

    /// Records the start of a call. Returns its guard, the bytes of its head on HTTP/1, and the
    /// number of calls including this one.
    pub(super) fn on_call_start(self: &Arc<Self>, http2: bool) -> (ActiveCall, usize, u64) {
        if http2 {
            self.http2.store(true, Ordering::Relaxed);
        }
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.head_since.store(NEVER, Ordering::Relaxed);
        let head_bytes = self.head_bytes.swap(0, Ordering::Relaxed);
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        (ActiveCall::new(self.clone(), false), head_bytes, calls)
    }

    /// Records the start of a request body and returns its guard.
    pub(super) fn on_upload_start(self: &Arc<Self>) -> ActiveCall {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.uploads.fetch_add(1, Ordering::Relaxed);
        ActiveCall::new(self.clone(), true)
    }

    /// Returns the number of calls since the connection was opened.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns `true` if the client speaks HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Starts to drain the connection: responses direct the client to reconnect elsewhere.
    pub(super) fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Returns the instant since which no call has been in progress.
    pub(super) fn idle_since(&self) -> Tick {
        Tick(self.idle_since.load(Ordering::Relaxed))
    }

    /// Returns the next timeout. The first condition that holds decides.
    pub(super) fn next_timeout(&self, limits: &ClientLimits) -> TimeoutAction {
        if self.evicted.load(Ordering::Relaxed) {
            return TimeoutAction::Close(Tick(0));
        }
        if let Some(flood) = self.flood.get() {
            let moved_at = Tick(self.moved_at.load(Ordering::Relaxed));
            return TimeoutAction::Close(flood.close_at(self.owes_response(), moved_at));
        }
        let blocked = self.blocked_since.load(Ordering::Relaxed);
        if blocked != NEVER {
            return TimeoutAction::Close(Tick(blocked).after(limits.write_timeout));
        }
        if self.untaken.load(Ordering::Relaxed) > 0 {
            return TimeoutAction::Close(Tick(self.taken_at.load(Ordering::Relaxed)).after(limits.write_timeout));
        }
        // Calls and uploads in progress have limits of their own.
        if self.busy.load(Ordering::Relaxed) > 0 {
            return TimeoutAction::Nothing;
        }
        let idle = Tick(self.idle_since.load(Ordering::Relaxed));
        if self.unsent.load(Ordering::Relaxed) > 0 && self.http2.load(Ordering::Relaxed) {
            // The rest of a response that the client does not take. After a stream reset it is only
            // a leftover count.
            return TimeoutAction::End(idle.after(limits.write_timeout));
        }
        let head = self.head_since.load(Ordering::Relaxed);
        if head != NEVER && !self.http2.load(Ordering::Relaxed) {
            return TimeoutAction::Close(Tick(head).after(limits.head_timeout));
        }
        TimeoutAction::End(idle.after(limits.keep_alive_timeout))
    }
}

impl Wake for ConnectionActivity {
    fn wake(self: Arc<Self>) {
        self.evicted.store(true, Ordering::Relaxed);
        self.connection.wake();
        self.reader.wake();
    }
}

#[cfg(test)]
pub(super) mod tests;
