//! Binds and serves the admin ports.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use super::{AdminState, hook, local, read_only};
use crate::permits::serve_router;
use crate::socket;

/// Maximum time to write pending responses on shutdown. A kubelet or a scraper reads a response in
/// milliseconds, and the end of the process waits no longer for one that does not.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(200);

/// Addresses of the ports. `None` disables a port.
#[derive(Debug, Clone, Copy, Default)]
pub struct AdminAddresses {
    /// `/metrics /livez /readyz`.
    pub metrics: Option<SocketAddr>,
    /// `/api`.
    pub local: Option<SocketAddr>,
}

/// The running admin ports, which stop when this is dropped.
#[derive(Debug)]
pub struct AdminServer {
    /// The addresses that are bound.
    pub bound: AdminAddresses,
    runtime: tokio::runtime::Handle,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// Binds the ports and serves them.
///
/// # Errors
/// Returns an error if an address cannot be bound, or the system provides no thread.
pub fn start(ports: AdminAddresses, state: AdminState) -> io::Result<AdminServer> {
    let metrics = ports.metrics.map(|address| bind(address, "metrics")).transpose()?;
    let local = ports.local.map(|address| bind(address, "admin")).transpose()?;
    let address = |listener: &Option<TcpListener>| listener.as_ref().map(TcpListener::local_addr).transpose();
    let bound = AdminAddresses { metrics: address(&metrics)?, local: address(&local)? };
    let (stop, mut stopped) = watch::channel(false);
    let routers =
        [(metrics, read_only::router(state.clone()).merge(hook::router(state.clone()))), (local, local::router(state))];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let thread = std::thread::Builder::new().name("admin".into()).spawn(move || {
        runtime.block_on(async move {
            let mut serving = tokio::task::JoinSet::new();
            for (listener, router) in routers {
                let Some(listener) = listener else { continue };
                let mut server_stopped = stopped.clone();
                match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => {
                        serving.spawn(async move {
                            let end = async move {
                                // An error means that the sender was dropped, which also stops the
                                // server.
                                server_stopped.wait_for(|stopped| *stopped).await.ok();
                            };
                            serve_router(listener, router, end).await;
                        });
                    }
                    Err(error) => tracing::error!(%error, "cannot serve an admin port"),
                }
            }
            stopped.wait_for(|stopped| *stopped).await.ok();
            // The last responses, such as that of a hook to a kubelet, are still written.
            tokio::time::timeout(SHUTDOWN_GRACE, async { while serving.join_next().await.is_some() {} }).await.ok();
        });
    })?;
    Ok(AdminServer { bound, runtime: handle, stop, thread: Some(thread) })
}

fn bind(address: SocketAddr, name: &str) -> io::Result<TcpListener> {
    socket::bind(address).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on the {name} address {address}: {error}"))
    })
}

// === impl AdminServer ===

impl AdminServer {
    /// Spawns a task on the runtime of the ports, off the threads of the data path. It ends with
    /// the ports.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        // Sending fails only if the thread has already ended.
        self.stop.send(true).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
