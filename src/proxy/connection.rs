//! One client connection: hyper serves it, a timer watches it, a lane is pinned to it and driven
//! beside it. What becomes of a call is `session`'s.

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

use super::connections::{ConnectionGuard, ConnectionPlace};
use super::drive::{PollTurn, TaskSides};
use super::flow::ClientFlow;
use super::io::{Client, Watched};
use super::listener::Welcome;
use super::session::CallService;
use super::watch::Due;
use super::{ClientLimits, Proxy};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::protocol::Peer;

/// How long a connection of HTTP/2 that was accepted just before the end may take to send its first
/// call.
const FIRST_CALL: Duration = Duration::from_millis(100);
/// How long a connection that is to end may be idle: a call that was on its way is still answered.
const GOODBYE: Duration = Duration::from_secs(1);
/// The headers that hyper reads of a head unless it is given another bound, with which it clears
/// room for this many before each head.
const HYPER_HEADERS_MAX: usize = 100;
/// The sides of a connection's task, in the order in which they are polled; the last is what may
/// end it.
const UPSTREAM: usize = 0;
const CLIENT: usize = 1;

/// Serves a connection to its end; `ahead` was read of it already, and `peer` is whom it belongs
/// to, if TLS said so. `guard` goes with the stream, also into a tunnel.
pub(super) async fn run(
    proxy: Arc<Proxy>,
    (stream, peer): (Client, Option<Peer>),
    ahead: Bytes,
    mut told: watch::Receiver<Welcome>,
    guard: ConnectionGuard,
) {
    let clock = proxy.clock;
    let activity = guard.place.activity();
    let lane = proxy.forward.lane();
    let builder = builder(&proxy.config.client, &guard.place);
    let flow = ClientFlow::new(&proxy.buffers, &activity);
    let calls = CallService::new(&proxy, &lane, (&activity, &flow), peer);
    let io = TokioIo::new(Watched::new(stream, ahead, (&activity, &flow), (proxy.config.client.head_bytes_max, guard)));
    let mut connection = pin!(builder.serve_connection_with_upgrades(io, calls));
    // HTTP/2 connections end some time; jitter keeps those that came together from leaving
    // together.
    let age = proxy.config.client.http2.age_max;
    let old = clock.now().after(age.mul_f64(1.0 + 0.1 * rand::random::<f64>()));
    let mut timer = Timer::new(clock);
    let mut told = pin!(async {
        // An error means that the process ends without a word: the same.
        told.wait_for(|welcome| *welcome != Welcome::Stay).await.ok();
    });
    let mut over = pin!(proxy.cut.over());
    let (mut leaving, mut ending): (Option<Tick>, Option<Tick>) = (None, None);
    let mut cut = false;
    let sides = TaskSides::<3>::new();
    std::future::poll_fn(|cx| {
        let turn = sides.poll(cx, |side, cx| match side {
            UPSTREAM => {
                lane.poll_drive(cx);
                Poll::Pending
            }
            // An error here is the client's: a broken head, a reset. hyper has answered what can be
            // answered.
            CLIENT => connection.as_mut().poll(cx).map(drop),
            _ => {
                if leaving.is_none() && told.as_mut().poll(cx).is_ready() {
                    leaving = Some(clock.now());
                    activity.leave();
                }
                if !cut && over.as_mut().poll(cx).is_ready() {
                    cut = true;
                    sides.raise(CLIENT);
                }
                Poll::Pending
            }
        });
        if turn == PollTurn::Done {
            return Poll::Ready(());
        }
        activity.watched_by(cx.waker());
        loop {
            let due = match (ending, leaving, activity.due(&proxy.config.client)) {
                // HTTP/2 can be told at once (GOAWAY), and loses no call by it; the first one may
                // be on its way.
                (None, Some(since), _) if activity.is_http2() => {
                    Due::End(if activity.calls() == 0 { since.after(FIRST_CALL) } else { since })
                }
                // HTTP/1 is told by the answer to a call. One that has none is left alone for a
                // moment, since the call may be on its way.
                (None, Some(since), Due::End(_)) => Due::End(since.max(activity.idle_since()).after(GOODBYE)),
                (None, _, Due::Nothing) => Due::End(old),
                // It was told to end and has nothing to do: its peer has a moment to hear of it.
                (Some(since), _, Due::End(_)) => Due::Close(since.max(activity.idle_since()).after(GOODBYE)),
                (_, _, due) => due,
            };
            let (Due::Close(at) | Due::End(at)) = due else { return Poll::Pending };
            if !timer.poll_due(cx, at, turn) {
                return Poll::Pending;
            }
            match due {
                Due::End(_) => {
                    ending = Some(clock.now());
                    connection.as_mut().graceful_shutdown();
                    // What it has to say now is said in the next turn.
                    sides.raise(CLIENT);
                    cx.waker().wake_by_ref();
                }
                Due::Close(_) | Due::Nothing => return Poll::Ready(()),
            }
        }
    })
    .await;
}

fn builder(limits: &ClientLimits, place: &ConnectionPlace) -> Builder<TokioExecutor> {
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
    let resets_max = place.resets_max();
    builder
        .http2()
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(http2.streams_max.min(place.streams_max()))
        .initial_stream_window_size(http2.stream_window)
        .initial_connection_window_size(http2.connection_window.min(place.window_max()))
        .keep_alive_interval(http2.ping_interval)
        .keep_alive_timeout(http2.ping_timeout)
        .max_header_list_size(u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(http2.resets_max.min(resets_max))
        .max_local_error_reset_streams(http2.resets_max.min(resets_max));
    builder
}

/// A timer that moves only when it must ring earlier, or has rung too early.
struct Timer {
    clock: Clock,
    sleep: Option<Pin<Box<Sleep>>>,
}

// === impl Timer ===

impl Timer {
    const fn new(clock: Clock) -> Self {
        Self { clock, sleep: None }
    }

    /// Whether `at` has come; if not, the task is woken then at the latest. A turn in which the
    /// sides were busy does not look at a timer that has not rung.
    fn poll_due(&mut self, cx: &mut Context<'_>, at: Tick, turn: PollTurn) -> bool {
        let at: Instant = self.clock.instant(at);
        if let Some(sleep) = &self.sleep
            && turn == PollTurn::Busy
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
