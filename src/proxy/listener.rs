//! Accepting connections, within a bound, and ending them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};

use super::Proxy;
use super::connection;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: u32 = 1024;
/// Pauses after a failed accept: out of descriptors is over in a moment or lasts, and neither may spin or end the loop.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// A data port that accepts.
#[derive(Debug)]
pub struct Listening {
    stop: watch::Sender<bool>,
    /// Closed when the last connection is gone.
    gone: mpsc::Receiver<()>,
}

/// Binds a data port.
///
/// # Errors
/// When the address cannot be bound.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted sidecar takes its port back although old connections linger in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves connections from these ports until told to stop.
#[must_use]
pub fn serve(proxy: &Arc<Proxy>, ports: Vec<TcpListener>) -> Listening {
    let (stop, stopped) = watch::channel(false);
    let (alive, gone) = mpsc::channel(1);
    let open = Arc::new(AtomicUsize::new(0));
    for port in ports {
        let (proxy, stopped, alive, open) = (proxy.clone(), stopped.clone(), alive.clone(), open.clone());
        tokio::spawn(async move { accept_all(&proxy, &port, stopped, &alive, &open).await });
    }
    Listening { stop, gone }
}

// === impl Listening ===

impl Listening {
    /// Accepts no more, lets every call in progress end, and closes idle connections. Resolves when all are gone.
    pub async fn stop(&mut self) {
        // No receiver: every connection and every accept loop has ended already.
        self.stop.send(true).ok();
        while self.gone.recv().await.is_some() {}
    }
}

async fn accept_all(
    proxy: &Arc<Proxy>,
    port: &TcpListener,
    mut stopped: watch::Receiver<bool>,
    alive: &mpsc::Sender<()>,
    open: &Arc<AtomicUsize>,
) {
    let mut pause = PAUSE_MIN;
    loop {
        let accepted = tokio::select! {
            accepted = port.accept() => accepted,
            // An error means that the process ends without a stop: the same.
            _ = stopped.wait_for(|stopped| *stopped) => match port.accept().now_or_never() {
                // What the kernel has accepted for us is served; a whole call may be in it.
                Some(accepted) => accepted,
                None => return,
            },
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                proxy.metrics.connection_shed();
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
                continue;
            }
        };
        pause = PAUSE_MIN;
        let Some(place) = Place::take(proxy, open) else {
            proxy.metrics.connection_shed();
            drop(stream);
            continue;
        };
        spawn(proxy, stream, stopped.clone(), (alive.clone(), place));
    }
}

fn spawn(proxy: &Arc<Proxy>, stream: TcpStream, stopped: watch::Receiver<bool>, held: (mpsc::Sender<()>, Place)) {
    // Without it an HTTP/2 call over loopback takes 40 ms; a socket that refuses is closed already.
    stream.set_nodelay(true).ok();
    let proxy = proxy.clone();
    tokio::spawn(async move {
        connection::run(proxy, stream, stopped, held).await;
    });
}

/// A place among the open connections.
#[derive(Debug)]
struct Place {
    proxy: Arc<Proxy>,
    open: Arc<AtomicUsize>,
}

// === impl Place ===

impl Place {
    fn take(proxy: &Arc<Proxy>, open: &Arc<AtomicUsize>) -> Option<Self> {
        let now_open = open.fetch_add(1, Ordering::Relaxed) + 1;
        let place = Self { proxy: proxy.clone(), open: open.clone() };
        proxy.metrics.connections(now_open);
        (now_open <= proxy.config.connections_max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let left = self.open.fetch_sub(1, Ordering::Relaxed) - 1;
        self.proxy.metrics.connections(left);
    }
}
