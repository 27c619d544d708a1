//! A pinned HTTP/1 connection to the upstream, driven by the task of the client's connection.
//!
//! A pass-through call is then handled by a single task from its first byte to its last, so no
//! message waits until another task is scheduled. The selection of the calls that use a pinned
//! connection is left to `forward`.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::time::Sleep;

use super::connect::UpstreamIo;
use super::failure::SendError;
use super::http1::{Http1Connection, Http1Sender, handshake_http1};
use crate::body::{ActivityFlag, Body};

/// Result of a sent call: its response, or an error that contains the request if none of it was
/// sent.
pub(super) type SendResult = Result<Response<Incoming>, TrySendError<Request<Body>>>;

/// A holder of at most one upstream connection, which is opened on demand and replaced if it
/// closes.
#[derive(Debug, Default)]
pub(super) struct PinnedConnection {
    open: Mutex<Option<OpenConnection>>,
    /// Waker of the task that drives the connection.
    driver: AtomicWaker,
    /// Activity of the bodies of the current call.
    moved: ActivityFlag,
    /// `true` if the connection was closed because the upload of a request made no progress.
    stalled: AtomicBool,
    /// `true` if the last call used a connection that had carried another call before.
    reused: AtomicBool,
}

#[derive(Debug)]
struct OpenConnection {
    sender: Http1Sender,
    connection: Http1Connection,
    /// Timer of the upload in progress. When it expires, the progress is checked.
    stall_timer: Option<Pin<Box<Sleep>>>,
}

// === impl PinnedConnection ===

impl PinnedConnection {
    fn open(&self) -> MutexGuard<'_, Option<OpenConnection>> {
        // A panic in hyper leaves a broken connection at worst, which the next call detects.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends on the connection if it is open and has nothing in flight. Otherwise the request is
    /// returned.
    #[expect(clippy::result_large_err, reason = "a box would be an allocation for each request that is returned")]
    pub(super) fn try_send(
        &self,
        request: Request<Body>,
    ) -> Result<impl Future<Output = SendResult> + Send + use<>, Request<Body>> {
        match &mut *self.open() {
            Some(open) if open.sender.is_ready() => {
                self.reused.store(true, Ordering::Relaxed);
                self.stalled.store(false, Ordering::Relaxed);
                Ok(open.sender.try_send_request(request))
            }
            _ => Err(request),
        }
    }

    /// Resolves when the connection has nothing in flight or is not open. It may resolve shortly
    /// after the end of the last response.
    pub(super) async fn wait_idle(&self) {
        std::future::poll_fn(|cx| match &mut *self.open() {
            Some(open) => open.sender.poll_ready(cx).map(drop),
            None => Poll::Ready(()),
        })
        .await;
    }

    /// Performs the HTTP/1 handshake on this stream, replaces the connection by the new one, and
    /// sends the request on it.
    pub(super) async fn connect(&self, io: UpstreamIo, request: Request<Body>) -> Result<SendResult, SendError> {
        let (mut sender, connection) = handshake_http1(io).await?;
        self.reused.store(false, Ordering::Relaxed);
        self.stalled.store(false, Ordering::Relaxed);
        let sent = sender.try_send_request(request);
        *self.open() = Some(OpenConnection { sender, connection, stall_timer: None });
        self.driver.wake();
        Ok(sent.await)
    }

    /// Returns the activity flag that the bodies of the next call set.
    pub(super) fn moved(&self) -> ActivityFlag {
        self.moved.clone()
    }

    /// Returns `true` if the last call used a connection that had carried another call before.
    pub(super) fn was_reused(&self) -> bool {
        self.reused.load(Ordering::Relaxed)
    }

    /// Returns `true` if the call failed because its request stalled, and clears the flag.
    pub(super) fn has_stalled(&self) -> bool {
        self.stalled.swap(false, Ordering::Relaxed)
    }

    /// Drives the connection, and closes it if the upload of a request makes no progress for
    /// `limit`. The task is woken when a connection is opened.
    pub(super) fn poll_drive(&self, cx: &mut Context<'_>, limit: Duration) {
        let mut guard = self.open();
        let Some(open) = &mut *guard else {
            self.driver.register(cx.waker());
            return;
        };
        let ended = open.connection.poll_ended(cx).is_ready();
        let stalled = !ended && !self.moved.is_uploaded() && open.poll_stalled(cx, limit, &self.moved);
        if stalled {
            self.stalled.store(true, Ordering::Relaxed);
        }
        if ended || stalled {
            *guard = None;
            self.driver.register(cx.waker());
        } else if self.moved.is_uploaded() {
            open.stall_timer = None;
        }
    }
}

// === impl OpenConnection ===

impl OpenConnection {
    /// Returns `true` if the upload had no activity between two expirations of the timer. As
    /// activity is checked once per `limit`, a stall is detected after one to two times `limit`.
    fn poll_stalled(&mut self, cx: &mut Context<'_>, limit: Duration, moved: &ActivityFlag) -> bool {
        let sleep = self.stall_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        while sleep.as_mut().poll(cx).is_ready() {
            if !moved.take() {
                return true;
            }
            sleep.as_mut().reset(tokio::time::sleep(limit).deadline());
        }
        false
    }
}
