//! One client connection: hyper serves it, a timer watches it, a lane is pinned to it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use super::io::{Client, Watched};
use super::listener::Welcome;
use super::watch::{Activity, Busy, Due};
use super::{ClientLimits, Proxy};
use crate::backend::Lane;
use crate::batching::Tick;
use crate::body::Body;
use crate::clock::Clock;
use crate::error::BoxError;
use crate::protocol::Peer;

/// What an HTTP/2 client is given at once: what it takes in the write timeout, or it is not taking.
const PIECE: usize = 64 << 10;

/// How long a connection of HTTP/2 that was accepted just before the end may take to send its first call.
const FIRST_CALL: Duration = Duration::from_millis(100);
/// How long a connection that is to end may be idle: a call that was on its way is still answered.
const GOODBYE: Duration = Duration::from_secs(1);

/// Serves a connection to its end; `ahead` was read of it already, and `peer` is whom it belongs to, if TLS said so. `held` goes with the stream, also into a
/// tunnel.
pub(super) async fn run(
    proxy: Arc<Proxy>,
    (stream, peer): (Client, Option<Peer>),
    ahead: Bytes,
    mut told: watch::Receiver<Welcome>,
    held: impl Send + Sync + Unpin + std::fmt::Debug + 'static,
) {
    let clock = proxy.clock;
    let activity = Activity::new(clock);
    let lane = proxy.forward.lane();
    let builder = builder(&proxy.config.client);
    let service = service_fn(|request: Request<Incoming>| {
        let (proxy, lane, activity) = (proxy.clone(), lane.clone(), activity.clone());
        async move { Ok::<_, Infallible>(answer(&proxy, (lane, peer), &activity, request).await) }
    });
    let io = TokioIo::new(Watched { stream, ahead, activity: activity.clone(), _held: held });
    let mut connection = pin!(builder.serve_connection_with_upgrades(io, service));
    // HTTP/2 connections end some time; jitter keeps those that came together from leaving together.
    let age = proxy.config.client.http2.age_max;
    let old = clock.now().after(age.mul_f64(1.0 + 0.1 * rand::random::<f64>()));
    let mut timer = Timer::new(clock);
    let mut told = pin!(async {
        // An error means that the process ends without a word: the same.
        told.wait_for(|welcome| *welcome != Welcome::Stay).await.ok();
    });
    let (mut leaving, mut ending): (Option<Tick>, Option<Tick>) = (None, None);
    std::future::poll_fn(|cx| {
        // An error here is the client's: a broken head, a reset. hyper has answered what can be answered.
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if leaving.is_none() && told.as_mut().poll(cx).is_ready() {
            leaving = Some(clock.now());
            activity.leave();
        }
        let mut end = false;
        activity.watched_by(cx.waker());
        loop {
            if std::mem::take(&mut end) {
                ending = Some(clock.now());
                connection.as_mut().graceful_shutdown();
                if connection.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
            }
            let due = match (ending, leaving, activity.due(&proxy.config.client)) {
                // HTTP/2 can be told at once (GOAWAY), and loses no call by it; the first one may be on its way.
                (None, Some(since), _) if activity.is_http2() => {
                    Due::End(if activity.calls() == 0 { since.after(FIRST_CALL) } else { since })
                }
                // HTTP/1 is told by the answer to a call. One that has none is left alone for a moment, since the call may be on its way.
                (None, Some(since), Due::End(_)) => Due::End(since.max(activity.idle_since()).after(GOODBYE)),
                (None, _, Due::Nothing) => Due::End(old),
                // It was told to end and has nothing to do: its peer has a moment to hear of it.
                (Some(since), _, Due::End(_)) => Due::Close(since.max(activity.idle_since()).after(GOODBYE)),
                (_, _, due) => due,
            };
            let (Due::Close(at) | Due::End(at)) = due else { return Poll::Pending };
            if !timer.poll_due(cx, at) {
                return Poll::Pending;
            }
            match due {
                Due::End(_) => end = true,
                Due::Close(_) | Due::Nothing => return Poll::Ready(()),
            }
        }
    })
    .await;
}

fn builder(limits: &ClientLimits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .auto_date_header(false)
        .max_headers(limits.headers_max)
        .max_buf_size(limits.head_bytes_max);
    let http2 = &limits.http2;
    builder
        .http2()
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(http2.streams_max)
        .initial_stream_window_size(http2.stream_window)
        .initial_connection_window_size(http2.connection_window)
        .keep_alive_interval(http2.ping_interval)
        .keep_alive_timeout(http2.ping_timeout)
        .max_header_list_size(u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(http2.resets_max)
        .max_local_error_reset_streams(http2.resets_max);
    builder
}

async fn answer(
    proxy: &Arc<Proxy>,
    (lane, peer): (Lane, Option<Peer>),
    activity: &Arc<Activity>,
    request: Request<Incoming>,
) -> Response<Taken> {
    let pieces = request.version() == Version::HTTP_2;
    let (mut busy, calls) = activity.begin(pieces);
    let mut request = request;
    if let Some(peer) = peer {
        request.extensions_mut().insert(peer);
    }
    if !request.body().is_end_stream() {
        // An upload may go on after its answer: until its end the connection is not idle.
        request.extensions_mut().insert(Uploading(Arc::new(activity.upload())));
    }
    let mut response = proxy.serve(lane, request).await;
    let last = calls >= proxy.config.client.requests_per_connection_max || activity.is_leaving();
    if last && !pieces && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    if !response.body().is_end_stream() && response.body().size_hint().exact().is_some() {
        busy.answered();
    }
    response.map(|body| Taken { body, busy, pieces, rest: Bytes::new() })
}

/// Keeps a connection busy for as long as a request's body is read.
#[derive(Debug, Clone)]
pub(super) struct Uploading(#[expect(dead_code, reason = "held for its drop")] Arc<Busy>);

/// An answer's body that says when it is taken.
///
/// A client of HTTP/1 that takes nothing blocks a write. One of HTTP/2 gives no window, which no write shows: nobody comes for the next piece.
#[derive(Debug)]
struct Taken {
    body: Body,
    busy: Busy,
    /// HTTP/2: small pieces, so that whoever takes slowly is seen to take.
    pieces: bool,
    rest: Bytes,
}

impl HttpBody for Taken {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        this.busy.taken();
        if !this.pieces {
            return Pin::new(&mut this.body).poll_frame(cx);
        }
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        this.busy.answered();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
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

    /// Whether `at` has come; if not, the task is woken then at the latest.
    fn poll_due(&mut self, cx: &mut Context<'_>, at: Tick) -> bool {
        let at: Instant = self.clock.instant(at);
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
