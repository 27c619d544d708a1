//! A pinned HTTP/1 connection to the upstream, driven by the task of the client's connection.
//!
//! A pass-through call is then the work of a single task from its first byte to its last, so no
//! message waits for another task to be scheduled. The choice of calls and connections is left to
//! `forward`.

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

/// A slot for one connection, which is opened on demand.
#[derive(Debug, Default)]
pub(super) struct PinnedConnection {
    open: Mutex<Option<OpenConnection>>,
    /// Waker of the task that drives the connection.
    driver: AtomicWaker,
    /// Progress of the call on the connection.
    moved: ActivityFlag,
    /// The connection was closed because a request stalled.
    stalled: AtomicBool,
    /// The last call used a connection that had carried another call before.
    reused: AtomicBool,
}

#[derive(Debug)]
struct OpenConnection {
    sender: Http1Sender,
    connection: Http1Connection,
    /// Timer that expires when a request may have stalled.
    upload: Option<Pin<Box<Sleep>>>,
}

// === impl PinnedConnection ===

impl PinnedConnection {
    fn open(&self) -> MutexGuard<'_, Option<OpenConnection>> {
        // A panic in hyper leaves a broken connection at worst, which the next call detects.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends on the connection if it has nothing in flight. Otherwise the request is returned.
    #[expect(clippy::result_large_err, reason = "a box for the call would be made for every call, and is needed once")]
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

    /// Resolves when the connection has nothing in flight or does not exist. The end of the last
    /// response is noticed with a short delay.
    pub(super) async fn wait_idle(&self) {
        std::future::poll_fn(|cx| match &mut *self.open() {
            Some(open) => open.sender.poll_ready(cx).map(drop),
            None => Poll::Ready(()),
        })
        .await;
    }

    /// Replaces the connection by a new one on this stream, and sends the request on it.
    pub(super) async fn connect(&self, io: UpstreamIo, request: Request<Body>) -> Result<SendResult, SendError> {
        let (mut sender, connection) = handshake_http1(io).await?;
        self.reused.store(false, Ordering::Relaxed);
        self.stalled.store(false, Ordering::Relaxed);
        let sent = sender.try_send_request(request);
        *self.open() = Some(OpenConnection { sender, connection, upload: None });
        self.driver.wake();
        Ok(sent.await)
    }

    /// Returns the progress of the call that is sent next.
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

    /// Drives the connection. It is closed if a request makes no progress for `limit`.
    pub(super) fn poll_drive(&self, cx: &mut Context<'_>, limit: Duration) {
        let mut place = self.open();
        let Some(open) = &mut *place else {
            self.driver.register(cx.waker());
            return;
        };
        let ended = open.connection.poll_ended(cx).is_ready();
        let stalled = !ended && !self.moved.is_uploaded() && open.poll_stalled(cx, limit, &self.moved);
        if stalled {
            self.stalled.store(true, Ordering::Relaxed);
        }
        if ended || stalled {
            *place = None;
            self.driver.register(cx.waker());
        } else if self.moved.is_uploaded() {
            open.upload = None;
        }
    }
}

// === impl OpenConnection ===

impl OpenConnection {
    /// Returns `true` if nothing has moved for `limit`. Progress is checked once per `limit`.
    fn poll_stalled(&mut self, cx: &mut Context<'_>, limit: Duration, moved: &ActivityFlag) -> bool {
        let sleep = self.upload.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        while sleep.as_mut().poll(cx).is_ready() {
            if !moved.take() {
                return true;
            }
            sleep.as_mut().reset(tokio::time::sleep(limit).deadline());
        }
        false
    }
}
