//! An HTTP/1 connection to the upstream that the task of its client's connection drives.
//!
//! A call that passes through is then one task's work from its first byte to its last: no message
//! waits for another task to run. What it leaves out: what is sent, and over which connections
//! (`forward`).

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

use super::client::SendError;
use super::connect::Io;
use super::http1::{Http1, Http1Connection, shake_http1};
use crate::body::{Body, Moved};

/// What becomes of a call that was sent: its answer, or the call itself where nothing of it was.
pub(super) type SendResult = Result<Response<Incoming>, TrySendError<Request<Body>>>;

/// A place for one connection, opened when it is needed.
#[derive(Debug, Default)]
pub(super) struct PinnedWire {
    open: Mutex<Option<OpenWire>>,
    /// What drives the connection, once there is one.
    driver: AtomicWaker,
    /// The signs of life of the call on it.
    moved: Moved,
    /// The connection was closed since a request did not move for too long.
    stalled: AtomicBool,
    /// The last call went over a connection that had carried another.
    reused: AtomicBool,
}

#[derive(Debug)]
struct OpenWire {
    sender: Http1,
    connection: Http1Connection,
    /// Rings when a request may have stalled.
    upload: Option<Pin<Box<Sleep>>>,
}

// === impl PinnedWire ===

impl PinnedWire {
    fn open(&self) -> MutexGuard<'_, Option<OpenWire>> {
        // A panic of hyper's leaves a connection that is broken at worst, which the next call sees.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends on the connection, if there is one with nothing in flight; else the call comes back.
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

    /// Resolves when the connection has nothing in flight, or there is none. The end of the last
    /// answer takes a moment to be noticed.
    pub(super) async fn settle(&self) {
        std::future::poll_fn(|cx| match &mut *self.open() {
            Some(open) => open.sender.poll_ready(cx).map(drop),
            None => Poll::Ready(()),
        })
        .await;
    }

    /// Replaces the connection by one on this stream, and sends on it.
    pub(super) async fn connect(&self, io: Io, request: Request<Body>) -> Result<SendResult, SendError> {
        let (mut sender, connection) = shake_http1(io).await?;
        self.reused.store(false, Ordering::Relaxed);
        self.stalled.store(false, Ordering::Relaxed);
        let sent = sender.try_send_request(request);
        *self.open() = Some(OpenWire { sender, connection, upload: None });
        self.driver.wake();
        Ok(sent.await)
    }

    /// The signs of life of the call that is sent next.
    pub(super) fn moved(&self) -> Moved {
        self.moved.clone()
    }

    /// Whether the last call went over a connection that had carried another.
    pub(super) fn was_reused(&self) -> bool {
        self.reused.load(Ordering::Relaxed)
    }

    /// Whether the call failed since its request did not move for too long.
    pub(super) fn has_stalled(&self) -> bool {
        self.stalled.swap(false, Ordering::Relaxed)
    }

    /// Drives the connection. A request that does not move for `limit` ends it.
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

// === impl OpenWire ===

impl OpenWire {
    /// Whether nothing has moved for the limit, looked at once in it.
    fn poll_stalled(&mut self, cx: &mut Context<'_>, limit: Duration, moved: &Moved) -> bool {
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
