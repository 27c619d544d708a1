//! The upstream side of one client connection: the connections that are opened for it.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use super::Inner;
use super::client::Http2Sender;
use super::failure::SendError;
use super::http1::Http1Sender;
use super::permits::ConnectionPurpose;
use super::pinned::PinnedConnection;

/// Maximum number of idle HTTP/1 connections that one HTTP/2 client connection keeps open upstream.
const IDLE_MAX: usize = 8;

/// The upstream side of one client connection.
#[derive(Debug)]
pub(super) struct PinnedUpstream {
    pub(super) inner: Arc<Inner>,
    /// The connection for an HTTP/1 client, which sends one call after the other.
    pub(super) wire: PinnedConnection,
    pub(super) connections: ClientConnections,
}

/// The upstream connections of an HTTP/2 client. Its calls are concurrent, so each of them and each
/// connection runs in a task of its own.
#[derive(Debug, Default)]
pub(super) struct ClientConnections {
    idle: Mutex<VecDeque<Http1Sender>>,
    h2: tokio::sync::Mutex<Option<Http2Sender>>,
    open: Arc<AtomicUsize>,
}

// === impl PinnedUpstream ===

impl PinnedUpstream {
    /// Creates the upstream side of a client connection, without any connection.
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self { inner, wire: PinnedConnection::default(), connections: ClientConnections::default() }
    }
}

// === impl ClientConnections ===

impl ClientConnections {
    /// Returns the HTTP/2 connection, which is opened if there is none.
    pub(super) async fn http2(&self, inner: &Arc<Inner>) -> Result<Http2Sender, SendError> {
        let mut shared = self.h2.lock().await;
        if let Some(h2) = shared.as_ref().filter(|h2| !h2.is_closed()) {
            return Ok(h2.clone());
        }
        let fresh = inner.open_http2(&ConnectionPurpose::Client).await?;
        Ok(shared.insert(fresh).clone())
    }

    /// Drops the HTTP/2 connection.
    pub(super) async fn forget_http2(&self) {
        self.h2.lock().await.take();
    }

    /// Returns the purpose of a further HTTP/1 connection.
    pub(super) fn purpose(&self) -> ConnectionPurpose {
        ConnectionPurpose::Http2Client(self.open.clone())
    }

    /// Takes an idle HTTP/1 connection that is open and has nothing in flight.
    pub(super) fn take_idle(&self) -> Option<Http1Sender> {
        let mut idle = self.idle.lock().ok()?;
        idle.retain(|sender| !sender.is_closed());
        let ready = idle.iter().position(Http1Sender::is_ready)?;
        idle.remove(ready)
    }

    /// Keeps an HTTP/1 connection for later calls.
    pub(super) fn keep(&self, sender: Http1Sender) {
        if let Ok(mut idle) = self.idle.lock()
            && idle.len() < IDLE_MAX
        {
            idle.push_back(sender);
        }
    }
}
