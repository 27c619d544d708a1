//! Accepts connections within a limit, and drains them on shutdown.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::activity::ConnectionActivity;
use super::connections::{ConnectionGuard, Connections};
use super::state::{ListenerChannel, ListenerControl, ListenerState};
use super::stream::ClientStream;
use super::{Proxy, captured, connection, terminate};

/// Bounds of the pause after a failed accept, which backs off exponentially. Descriptor exhaustion
/// passes in a moment or lasts, and must neither cause a busy loop nor end the accept loop.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// A running listener of the data port.
#[derive(Debug)]
pub struct ListenerHandle {
    control: ListenerControl,
    /// Counts the accept loops and the open connections.
    alive: TaskTracker,
}

/// Spawns the accept loops of these ports, which run until the state is `Closed`. Must be called
/// inside a tokio runtime.
#[must_use]
pub fn serve(
    proxy: &Arc<Proxy>,
    ports: Vec<TcpListener>,
    ListenerChannel { control, state }: ListenerChannel,
    connections: &Arc<Connections>,
) -> ListenerHandle {
    let alive = TaskTracker::new();
    for port in ports {
        let (proxy, state, tracker, connections) = (proxy.clone(), state.clone(), alive.clone(), connections.clone());
        alive.spawn(async move { accept_all(&proxy, &port, state, &tracker, &connections).await });
    }
    ListenerHandle { control, alive }
}

// === impl ListenerHandle ===

impl ListenerHandle {
    /// Stops accepting, lets every call in progress end, and closes idle connections. Resolves when
    /// all connections have ended.
    pub async fn stop(&self) {
        self.control.set_state(ListenerState::Closed);
        self.alive.close();
        self.alive.wait().await;
    }
}

async fn accept_all(
    proxy: &Arc<Proxy>,
    port: &TcpListener,
    mut state: watch::Receiver<ListenerState>,
    alive: &TaskTracker,
    connections: &Arc<Connections>,
) {
    let mut pause = PAUSE_MIN;
    loop {
        let accepted = tokio::select! {
            accepted = port.accept() => accepted,
            // An error means that the sender was dropped because the process ends: treated the
            // same.
            _ = state.wait_for(|state| *state == ListenerState::Closed) => match port.accept().now_or_never() {
                // Connections already in the kernel's accept queue are served, since one may
                // contain a whole call.
                Some(accepted) => accepted,
                None => return,
            },
        };
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, peer.ip()),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                proxy.metrics.record_shed_connection();
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
                continue;
            }
        };
        pause = PAUSE_MIN;
        let Some(permit) = connections.acquire(peer, ConnectionActivity::new(proxy.clock)) else {
            proxy.metrics.record_shed_connection();
            drop(stream);
            continue;
        };
        spawn(proxy, stream, state.clone(), ConnectionGuard::new(permit, alive.token()));
        tokio::select! {
            () = connections.wait_for_capacity() => {}
            // On shutdown the loop continues, to serve the kernel's accept queue even under memory
            // pressure.
            _ = state.wait_for(|state| *state == ListenerState::Closed) => {}
        }
    }
}

fn spawn(proxy: &Arc<Proxy>, stream: TcpStream, state: watch::Receiver<ListenerState>, guard: ConnectionGuard) {
    // With Nagle's algorithm an HTTP/2 call over loopback takes 40 ms. The option fails only on a
    // socket that is already closed.
    stream.set_nodelay(true).ok();
    let proxy = proxy.clone();
    let evictee = guard.permit.evictee();
    let task = if let Some(tls) = proxy.config.tls.clone() {
        tokio::spawn(async move {
            // Boxed, because the handshake future is large and short-lived.
            let Some(client) = Box::pin(terminate::run(&proxy, &tls, stream, state.clone())).await else { return };
            if proxy.config.captured {
                Box::pin(captured::run(proxy, client, state, guard)).await;
            } else {
                Box::pin(connection::run(proxy, client, bytes::Bytes::new(), state, guard)).await;
            }
        })
    } else if proxy.config.captured {
        tokio::spawn(captured::run(proxy, (ClientStream::Plain(stream), None), state, guard))
    } else {
        tokio::spawn(connection::run(proxy, (ClientStream::Plain(stream), None), bytes::Bytes::new(), state, guard))
    };
    evictee.set_task(&task.abort_handle());
}
