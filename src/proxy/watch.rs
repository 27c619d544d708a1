//! What a connection is doing, and until when it may.
//!
//! hyper's own head timeout also ends idle connections, so the times of a connection are kept here:
//! a head that does not end, an idle connection, a client that does not take its answer. One timer
//! a connection, moved lazily.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;

use super::ClientLimits;
use crate::batching::Tick;
use crate::clock::Clock;

/// The silence after which a connection that is carried on as bytes may make room: protocols that
/// are not HTTP keep connections open for long.
const RELAY_SILENCE: Duration = Duration::from_secs(10);
/// Never: zero is before any connection.
const NEVER: u64 = 0;

/// The signs of life of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    clock: Clock,
    /// Calls whose answer has not been taken whole, and uploads.
    busy: AtomicUsize,
    /// Requests whose body has not come whole.
    uploads: AtomicUsize,
    /// Calls whose answer has begun.
    answers: AtomicUsize,
    /// Bytes of answers that were given to hyper and not written.
    unsent: AtomicUsize,
    /// The last time that bytes came or went.
    moved_at: AtomicU64,
    /// Bytes of a head of HTTP/1 that has begun.
    head_bytes: AtomicUsize,
    /// It is carried on as bytes, which shows no calls.
    relayed: AtomicBool,
    /// It has to make room for others.
    evicted: AtomicBool,
    /// Its client sends what costs more than it may.
    flooded: AtomicBool,
    /// Answers that are there and of which nothing has been taken.
    untaken: AtomicUsize,
    /// When something of an answer was last taken, or the first untaken one came.
    taken_at: AtomicU64,
    /// Since when a write has been blocked.
    blocked_since: AtomicU64,
    /// When the first byte after the last answer came.
    head_since: AtomicU64,
    idle_since: AtomicU64,
    http2: AtomicBool,
    /// The client is to go elsewhere.
    leaving: AtomicBool,
    calls: AtomicU64,
    /// The task that reads what is carried on as bytes, which may be another than the connection's.
    reader: AtomicWaker,
    /// The connection's task: on HTTP/2 calls have tasks of their own, and what they change may be
    /// due before it runs again.
    connection: AtomicWaker,
}

/// A call that keeps its connection busy.
#[derive(Debug)]
pub(super) struct Busy {
    activity: Arc<Activity>,
    untaken: bool,
    upload: bool,
    answer: bool,
}

/// What is due for a connection, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing while it goes on like this.
    Nothing,
    /// Close it.
    Close(Tick),
    /// Let it end.
    End(Tick),
}

// === impl Activity ===

impl Activity {
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
            flooded: AtomicBool::new(false),
            untaken: AtomicUsize::new(0),
            taken_at: AtomicU64::new(now),
            blocked_since: AtomicU64::new(NEVER),
            head_since: AtomicU64::new(NEVER),
            idle_since: AtomicU64::new(now),
            http2: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            reader: AtomicWaker::new(),
            connection: AtomicWaker::new(),
        })
    }

    /// The connection's task looks at what is due, and wants to be woken when that changes.
    pub(super) fn watched_by(&self, task: &Waker) {
        self.connection.register(task);
    }

    /// A waker that ends the connection: of what has to make room for others.
    pub(super) fn evictor(self: &Arc<Self>) -> Waker {
        self.clone().into()
    }

    /// Ends the connection with `GOAWAY`, since its client sends what costs more than it may:
    /// control frames or lines of heads.
    pub(super) fn end_flood(&self) {
        self.flooded.store(true, Ordering::Relaxed);
        self.connection.wake();
    }

    /// It ends since its client sent what costs more than it may.
    pub(super) fn is_flooded(&self) -> bool {
        self.flooded.load(Ordering::Relaxed)
    }

    /// The clock of the process.
    pub(super) const fn clock(&self) -> Clock {
        self.clock
    }

    /// It is carried on as bytes.
    pub(super) fn is_relayed(&self) -> bool {
        self.relayed.load(Ordering::Relaxed)
    }

    /// It is carried on as bytes from now on.
    pub(super) fn relay(&self) {
        self.relayed.store(true, Ordering::Relaxed);
        self.head_bytes.store(0, Ordering::Relaxed);
    }

    /// Returns `true` where it is carried on as bytes and has to make room; `reader` is woken when
    /// it has.
    pub(super) fn is_relay_evicted(&self, reader: &Waker) -> bool {
        if !self.is_relayed() {
            return false;
        }
        self.reader.register(reader);
        self.evicted.load(Ordering::Relaxed)
    }

    /// Returns whether it is carried on as bytes, and the start of its silence, if nothing but its
    /// client is waited for: it is idle, or no body of its calls has come whole. What is carried on
    /// counts once nothing moved for [`RELAY_SILENCE`].
    pub(super) fn waits_since(&self) -> Option<(bool, Tick)> {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let moved = self.moved_at.load(Ordering::Relaxed).max(self.idle_since.load(Ordering::Relaxed));
        if self.relayed.load(Ordering::Relaxed) {
            let is_silent = self.clock.now().since(Tick(moved)) >= RELAY_SILENCE;
            return is_silent.then_some((true, Tick(moved)));
        }
        // Each upload counts as busy beside its call.
        let waits = load(&self.busy) <= 2 * load(&self.uploads) && load(&self.answers) == 0 && load(&self.unsent) == 0;
        waits.then_some((false, Tick(moved)))
    }

    /// Bytes of answers that were given to hyper and not written.
    pub(super) const fn unsent(&self) -> &AtomicUsize {
        &self.unsent
    }

    /// Bytes came.
    pub(super) fn read(&self, first: &[u8]) {
        let now = self.clock.now().0;
        self.moved_at.store(now, Ordering::Relaxed);
        if self.busy.load(Ordering::Relaxed) > 0 || self.relayed.load(Ordering::Relaxed) {
            return;
        }
        if self.head_since.load(Ordering::Relaxed) == NEVER {
            self.head_since.store(now, Ordering::Relaxed);
        }
        if !self.http2.load(Ordering::Relaxed) {
            self.head_bytes.fetch_add(first.len(), Ordering::Relaxed);
        }
    }

    /// HTTP/2 is spoken from now on: its preface has come.
    pub(super) fn speak_http2(&self) {
        self.http2.store(true, Ordering::Relaxed);
        self.head_bytes.store(0, Ordering::Relaxed);
    }

    /// Bytes of a head of HTTP/1 that has begun and is not whole.
    pub(super) fn head_bytes(&self) -> usize {
        self.head_bytes.load(Ordering::Relaxed)
    }

    /// A write could, or could not, be done.
    pub(super) fn write(&self, blocked: bool) {
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

    /// A call begins; the bytes of its head under HTTP/1, and the number of calls so far, this one
    /// counted.
    pub(super) fn begin(self: &Arc<Self>, http2: bool) -> (Busy, usize, u64) {
        if http2 {
            self.http2.store(true, Ordering::Relaxed);
        }
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.head_since.store(NEVER, Ordering::Relaxed);
        let head_bytes = self.head_bytes.swap(0, Ordering::Relaxed);
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        (Busy { activity: self.clone(), untaken: false, upload: false, answer: false }, head_bytes, calls)
    }

    /// A request's body is being read.
    pub(super) fn upload(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.uploads.fetch_add(1, Ordering::Relaxed);
        Busy { activity: self.clone(), untaken: false, upload: true, answer: false }
    }

    /// Calls so far.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// HTTP/2 is spoken.
    pub(super) fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// From now on answers tell the client to go elsewhere.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Whether the client is to go elsewhere.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Since when nothing was in progress.
    pub(super) fn idle_since(&self) -> Tick {
        Tick(self.idle_since.load(Ordering::Relaxed))
    }

    /// What is due next.
    pub(super) fn due(&self, limits: &ClientLimits) -> Due {
        if self.evicted.load(Ordering::Relaxed) {
            return Due::Close(Tick(0));
        }
        if self.flooded.load(Ordering::Relaxed) {
            return Due::End(Tick(0));
        }
        let blocked = self.blocked_since.load(Ordering::Relaxed);
        if blocked != NEVER {
            return Due::Close(Tick(blocked).after(limits.write_timeout));
        }
        if self.untaken.load(Ordering::Relaxed) > 0 {
            return Due::Close(Tick(self.taken_at.load(Ordering::Relaxed)).after(limits.write_timeout));
        }
        if self.busy.load(Ordering::Relaxed) > 0 {
            return Due::Nothing;
        }
        let idle = Tick(self.idle_since.load(Ordering::Relaxed));
        if self.unsent.load(Ordering::Relaxed) > 0 && self.http2.load(Ordering::Relaxed) {
            // The end of an answer that is not taken; of one that was reset, the count of it.
            return Due::End(idle.after(limits.write_timeout));
        }
        let head = self.head_since.load(Ordering::Relaxed);
        if head != NEVER && !self.http2.load(Ordering::Relaxed) {
            return Due::Close(Tick(head).after(limits.head_timeout));
        }
        Due::End(idle.after(limits.keep_alive_timeout))
    }
}

impl Wake for Activity {
    fn wake(self: Arc<Self>) {
        self.evicted.store(true, Ordering::Relaxed);
        self.connection.wake();
        self.reader.wake();
    }
}

// === impl Busy ===

impl Busy {
    /// The answer has begun.
    pub(super) fn answer(&mut self) {
        self.answer = true;
        self.activity.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// The answer is there, and nothing of it has been taken yet.
    pub(super) fn answered(&mut self) {
        self.untaken = true;
        if self.activity.untaken.fetch_add(1, Ordering::Relaxed) == 0 {
            self.activity.taken_at.store(self.activity.clock.now().0, Ordering::Relaxed);
            self.activity.connection.wake();
        }
    }

    /// Something of the answer was taken.
    pub(super) fn taken(&mut self) {
        if std::mem::take(&mut self.untaken) {
            self.activity.untaken.fetch_sub(1, Ordering::Relaxed);
            self.activity.taken_at.store(self.activity.clock.now().0, Ordering::Relaxed);
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.taken();
        if self.answer {
            self.activity.answers.fetch_sub(1, Ordering::Relaxed);
        }
        if self.upload {
            self.activity.uploads.fetch_sub(1, Ordering::Relaxed);
        }
        if self.activity.busy.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.activity.idle_since.store(self.activity.clock.now().0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::proxy::Http2Limits;
    use std::time::Duration;

    pub(in crate::proxy) fn limits() -> ClientLimits {
        let second = Duration::from_secs(1);
        ClientLimits {
            head_bytes_max: 1,
            headers_max: 1,
            head_timeout: 5 * second,
            body_idle_timeout: second,
            body_timeout: second,
            pass_through_idle_timeout: second,
            keep_alive_timeout: 75 * second,
            write_timeout: 10 * second,
            requests_per_connection_max: 1,
            http2: Http2Limits {
                streams_max: 1,
                stream_window: 1,
                connection_window: 1,
                ping_interval: second,
                ping_timeout: second,
                resets_max: 1,
                age_max: second,
            },
        }
    }

    fn seconds_left(activity: &Activity) -> Option<u128> {
        match activity.due(&limits()) {
            Due::Nothing => None,
            Due::Close(at) | Due::End(at) => Some(at.since(activity.clock.now()).as_millis().div_ceil(1000)),
        }
    }

    #[test]
    fn an_idle_connection_may_stay_and_a_head_that_has_begun_must_end() {
        let activity = Activity::new(Clock::start());
        assert_eq!(seconds_left(&activity), Some(75), "opened ahead");
        let (busy, _, calls) = activity.begin(false);
        assert_eq!((calls, activity.due(&limits())), (1, Due::Nothing));
        drop(busy);
        assert_eq!(seconds_left(&activity), Some(75));
        activity.read(b"POST");
        assert_eq!(seconds_left(&activity), Some(5), "the next head has begun");
    }

    #[test]
    fn an_http2_connection_without_streams_is_idle_not_late() {
        let activity = Activity::new(Clock::start());
        activity.speak_http2();
        assert_eq!(seconds_left(&activity), Some(75));
    }

    #[test]
    fn a_connection_waits_for_its_client_until_a_call_is_whole() {
        let activity = Activity::new(Clock::start());
        assert!(activity.waits_since().is_some(), "it has sent nothing");
        let (call, ..) = activity.begin(false);
        let upload = activity.upload();
        assert!(activity.waits_since().is_some(), "the body has not come");
        drop(upload);
        assert_eq!(activity.waits_since(), None);
        drop(call);
        assert!(activity.waits_since().is_some(), "it is idle");
        activity.relay();
        assert_eq!(activity.waits_since(), None, "something moved a moment ago");
    }

    #[test]
    fn what_has_to_make_room_is_closed_at_once_also_inside_a_tunnel() {
        let activity = Activity::new(Clock::start());
        let reader = futures_util::task::noop_waker();
        activity.evictor().wake();
        assert!(!activity.is_relay_evicted(&reader), "hyper serves it");
        activity.relay();
        assert!(activity.is_relay_evicted(&reader));
        assert_eq!(activity.due(&limits()), Due::Close(Tick(0)));
    }

    #[test]
    fn a_blocked_write_or_an_untaken_answer_ends_a_busy_connection() {
        let activity = Activity::new(Clock::start());
        let (mut busy, ..) = activity.begin(false);
        activity.write(true);
        assert_eq!(seconds_left(&activity), Some(10));
        activity.write(false);
        assert_eq!(activity.due(&limits()), Due::Nothing);
        busy.answered();
        assert_eq!(seconds_left(&activity), Some(10));
        busy.taken();
        assert_eq!(activity.due(&limits()), Due::Nothing);
    }
}
