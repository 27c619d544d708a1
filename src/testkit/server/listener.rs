//! Connections of the simulated server: the listener, its accept loop, and HTTP on each connection.

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::handler::ServerState;
use crate::http1::ServerAddr;

/// Delay after a failed accept: long enough to prevent a busy loop, short enough to be negligible.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A bound port or socket. Dropping it closes the port and removes the file of the socket.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

// === impl Listener ===

impl Listener {
    pub(super) async fn bind(target: &ServerAddr) -> io::Result<Self> {
        match target {
            ServerAddr::Tcp(addr) => Ok(Self::Tcp(TcpListener::bind(addr).await?)),
            ServerAddr::Unix(path) => Ok(Self::Unix(UnixListener::bind(path)?, path.clone())),
        }
    }

    /// Accepts one connection and spawns its task.
    async fn accept(
        &self,
        connections: &mut JoinSet<()>,
        shared: &Arc<ServerState>,
        closes: watch::Receiver<bool>,
    ) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                stream.set_nodelay(true).ok();
                connections.spawn(serve(stream, Arc::clone(shared), closes));
            }),
            Self::Unix(listener, _) => listener.accept().await.map(|(stream, _)| {
                connections.spawn(serve(stream, Arc::clone(shared), closes));
            }),
        }
    }

    pub(super) fn target(&self) -> io::Result<ServerAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ServerAddr::Tcp),
            Self::Unix(_, path) => Ok(ServerAddr::Unix(path.clone())),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // The file may have been removed already.
            std::fs::remove_file(path).ok();
        }
    }
}

/// Accepts connections until the server closes, and waits for the end of those that are open.
pub(super) async fn accept_loop(listener: Listener, shared: Arc<ServerState>, mut closes: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        let closing = closes.clone();
        let accepted = tokio::select! {
            // An error means that the sender was dropped, which also ends the server.
            _ = closes.wait_for(|closes| *closes) => break,
            accepted = listener.accept(&mut connections, &shared, closing) => accepted,
        };
        match accepted {
            Ok(()) => {
                shared.counts.connections.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    connections.join_all().await;
}

/// Serves one connection.
async fn serve<S>(stream: S, shared: Arc<ServerState>, mut closes: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    let http2 = shared.config.http2;
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { shared.answer(request).await }
    });
    let closing = closes.wait_for(|closes| *closes);
    // A broken connection is the client's concern and is ignored.
    if http2 {
        let builder = auto::Builder::new(TokioExecutor::new());
        let mut connection = pin!(builder.serve_connection(io, service));
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = closing => connection.as_mut().graceful_shutdown(),
        }
        connection.await.ok();
    } else {
        let mut connection = pin!(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = closing => connection.as_mut().graceful_shutdown(),
        }
        connection.await.ok();
    }
}
