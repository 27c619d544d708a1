//! One client connection: hyper serves it, a timer enforces its timeouts, and the lane pinned to it
//! is driven by the same task. Its calls are handled in `session`.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use super::activity::{ConnectionActivity, TimeoutAction};
use super::connections::{ClientConnectionPermit, ConnectionGuard};
use super::memory_accounting::ConnectionMemory;
use super::poll_sides::{PollResult, TaskSides};
use super::session::CallService;
use super::state::ListenerState;
use super::stream::{ClientStream, MonitoredStream};
use super::{ClientLimits, Proxy};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::protocol::PeerIdentity;

/// Maximum time to the first call of an HTTP/2 connection that was accepted just before the drain.
const FIRST_CALL_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum idle time of a connection that is to be closed, so that a call already on its way is
/// still answered.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Maximum age of a connection that was opened while half of the byte budget was held. If it speaks
/// HTTP/2, it has few streams, and hyper cannot raise their number later.
const TIGHT_AGE_MAX: Duration = Duration::from_secs(60);
/// hyper's default for the number of headers. With any other setting it clears an array of that
/// size before each head.
const HYPER_HEADERS_MAX: usize = 100;
/// The sides of a connection's task, in polling order. The last, unnamed one observes the events
/// that end the connection.
const UPSTREAM: usize = 0;
const CLIENT: usize = 1;

/// Serves a connection to its end. `prefix` contains the bytes already read from it, and `peer` the
/// identity from its client certificate, if any. `guard` is held as long as the stream, also inside
/// a tunnel.
pub(super) async fn run(
    proxy: Arc<Proxy>,
    (stream, peer): (ClientStream, Option<PeerIdentity>),
    prefix: Bytes,
    mut state: watch::Receiver<ListenerState>,
    guard: ConnectionGuard,
) {
    let clock = proxy.clock;
    let (activity, client) = (guard.permit.activity(), guard.permit.peer());
    let lane = proxy.forward.lane();
    let is_tight = proxy.buffers.is_half_full();
    let builder = builder(&proxy.config.client, &guard.permit, is_tight);
    let memory = ConnectionMemory::new(&proxy.buffers, &activity);
    let calls = CallService::new(&proxy, &lane, (&activity, &memory), (client, peer));
    let io = TokioIo::new(MonitoredStream::new(
        stream,
        prefix,
        (&activity, &memory),
        (proxy.config.client.head_bytes_max, guard),
    ));
    let mut connection = pin!(builder.serve_connection_with_upgrades(io, calls));
    // A connection with calls in progress is shut down gracefully at its maximum age. Jitter keeps
    // connections that were opened together from closing together.
    let age = proxy.config.client.http2.age_max.min(if is_tight { TIGHT_AGE_MAX } else { Duration::MAX });
    let age_end = clock.now().after(age.mul_f64(1.0 + 0.1 * rand::random::<f64>()));
    let mut timer = LazyTimer::new(clock);
    let mut state = pin!(async {
        // An error means that the sender was dropped because the process ends: treated the same.
        state.wait_for(|state| *state != ListenerState::Serving).await.ok();
    });
    let mut drain_end = pin!(proxy.shutdown.cancelled());
    let (mut draining_since, mut shutdown_at): (Option<Tick>, Option<Tick>) = (None, None);
    let (mut cut, mut is_flood_recorded) = (false, false);
    let sides = TaskSides::<3>::new();
    std::future::poll_fn(|cx| {
        let polled = sides.poll(cx, |side, cx| match side {
            UPSTREAM => {
                lane.poll_drive(cx);
                Poll::Pending
            }
            // An error at this point is caused by the client, such as a malformed head or a reset.
            // hyper has sent a response where one is possible.
            CLIENT => connection.as_mut().poll(cx).map(drop),
            // The unnamed side.
            _ => {
                if draining_since.is_none() && state.as_mut().poll(cx).is_ready() {
                    draining_since = Some(clock.now());
                    activity.start_draining();
                }
                if !cut && drain_end.as_mut().poll(cx).is_ready() {
                    cut = true;
                    // Pass-through calls are polled by this task, and fail with `draining` now.
                    sides.mark_woken(CLIENT);
                }
                Poll::Pending
            }
        });
        if !is_flood_recorded && let Some(flood) = activity.flood() {
            is_flood_recorded = true;
            proxy.floods.on_flood(clock.now(), client, flood.reason, &proxy.metrics);
        }
        if polled == PollResult::Done {
            return Poll::Ready(());
        }
        activity.register_task(cx.waker());
        loop {
            let due = next_action((shutdown_at, draining_since), &activity, &proxy.config.client, age_end);
            let (TimeoutAction::Close(at) | TimeoutAction::End(at)) = due else { return Poll::Pending };
            if !timer.poll_due(cx, at, polled) {
                return Poll::Pending;
            }
            match due {
                TimeoutAction::End(_) => {
                    shutdown_at = Some(clock.now());
                    connection.as_mut().graceful_shutdown();
                    // The shutdown frames are written in the next poll.
                    sides.mark_woken(CLIENT);
                    cx.waker().wake_by_ref();
                }
                TimeoutAction::Close(_) | TimeoutAction::Nothing => return Poll::Ready(()),
            }
        }
    })
    .await;
}

/// Returns the next action on a connection. `shutdown_at` is the instant at which its graceful
/// shutdown began, `draining_since` the instant at which the listener began to drain, and `age_end`
/// the end of its maximum age.
fn next_action(
    (shutdown_at, draining_since): (Option<Tick>, Option<Tick>),
    activity: &ConnectionActivity,
    limits: &ClientLimits,
    age_end: Tick,
) -> TimeoutAction {
    // The client was sent GOAWAY with the last stream that was received. A graceful shutdown would
    // raise that stream, which is not allowed (RFC 9113, 6.8).
    if activity.is_flooded() {
        return activity.next_timeout(limits);
    }
    match (shutdown_at, draining_since, activity.next_timeout(limits)) {
        // An HTTP/2 client can be notified at once (GOAWAY) without losing a call. Its first call
        // may be on its way.
        (None, Some(since), _) if activity.is_http2() => {
            TimeoutAction::End(if activity.calls() == 0 { since.after(FIRST_CALL_TIMEOUT) } else { since })
        }
        // An HTTP/1 client is notified by the response to a call. A connection without a call stays
        // open for a moment, because a call may be on its way.
        (None, Some(since), TimeoutAction::End(_)) => {
            TimeoutAction::End(since.max(activity.idle_since()).after(CLOSE_GRACE))
        }
        // A call is in progress.
        (None, _, TimeoutAction::Nothing) => TimeoutAction::End(age_end),
        // The shutdown was sent and the connection is idle: the peer has a moment to react.
        (Some(since), _, TimeoutAction::End(_)) => {
            TimeoutAction::Close(since.max(activity.idle_since()).after(CLOSE_GRACE))
        }
        // The timeouts of the connection itself.
        (_, _, due) => due,
    }
}

/// Returns the settings of a connection. `is_tight` is `true` if half of the byte budget is held.
fn builder(limits: &ClientLimits, permit: &ClientConnectionPermit, is_tight: bool) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .auto_date_header(false)
        .max_buf_size(limits.head_bytes_max);
    if limits.headers_max != HYPER_HEADERS_MAX {
        builder.http1().max_headers(limits.headers_max);
    }
    let http2 = &limits.http2;
    let resets_max = permit.resets_max();
    builder
        .http2()
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(http2.streams_max.min(permit.streams_max(is_tight)))
        .initial_stream_window_size(http2.stream_window)
        .initial_connection_window_size(http2.connection_window.min(permit.window_max()))
        .keep_alive_interval(http2.ping_interval)
        .keep_alive_timeout(http2.ping_timeout)
        .max_header_list_size(u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(http2.resets_max.min(resets_max))
        .max_local_error_reset_streams(http2.resets_max.min(resets_max));
    builder
}

/// A timer that is reset only to an earlier instant, or after it fired too early.
struct LazyTimer {
    clock: Clock,
    sleep: Option<Pin<Box<Sleep>>>,
}

// === impl LazyTimer ===

impl LazyTimer {
    const fn new(clock: Clock) -> Self {
        Self { clock, sleep: None }
    }

    /// Returns `true` if `at` has passed; otherwise the task is woken at that instant. If the sides
    /// were busy in this poll, a timer that has not fired is not polled.
    fn poll_due(&mut self, cx: &mut Context<'_>, at: Tick, polled: PollResult) -> bool {
        let at: Instant = self.clock.instant(at);
        if let Some(sleep) = &self.sleep
            && polled == PollResult::Busy
            && sleep.deadline() <= at
            && !sleep.is_elapsed()
        {
            return false;
        }
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if sleep.deadline() > at {
            sleep.as_mut().reset(at);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() >= at {
                return true;
            }
            sleep.as_mut().reset(at);
        }
        false
    }
}
