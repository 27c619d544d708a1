//! The upstream side of one client connection: the connections that are opened for it.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::Inner;
use super::client::ReusedConnections;
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
    /// The connections for an HTTP/2 client. Its calls are concurrent, so each of them and each
    /// connection runs in a task of its own.
    pub(super) connections: ReusedConnections,
    /// Number of open HTTP/1 connections for an HTTP/2 client.
    pub(super) open: Arc<AtomicUsize>,
}

// === impl PinnedUpstream ===

impl PinnedUpstream {
    /// Creates the upstream side of a client connection, without any connection.
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        let connections = ReusedConnections::new(ConnectionPurpose::Client, IDLE_MAX);
        Self { inner, wire: PinnedConnection::default(), connections, open: Arc::default() }
    }
}
