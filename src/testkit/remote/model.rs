//! A simulated model server that is controlled over HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::Method;
use tokio::net::TcpListener;

use super::{CommandError, CommandHandler, ModelUpdate, parse_json, serve, to_json};
use crate::boxed_future::BoxedFuture;
use crate::server::{Server, ServerConfig, ServerHandle};

/// A simulated model server with a control port. Dropping it stops both.
#[derive(Debug)]
pub struct RemoteModel {
    shared: Arc<ModelState>,
    /// Address of the control port.
    control: SocketAddr,
    control_task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct ModelState {
    config: ServerConfig,
    running: RwLock<Option<ServerHandle>>,
}

// === impl RemoteModel ===

impl RemoteModel {
    /// Starts the server on the current runtime. If `closed`, the data port is bound only by a
    /// command.
    ///
    /// # Errors
    /// An address cannot be bound.
    pub fn start(config: ServerConfig, control: SocketAddr, closed: bool) -> BoxedFuture<'static, io::Result<Self>> {
        Box::pin(async move {
            let listener = TcpListener::bind(control).await?;
            let control = listener.local_addr()?;
            let running = if closed { None } else { Some(Server::start(config.clone()).await?) };
            let shared = Arc::new(ModelState { config, running: RwLock::new(running) });
            let control_task = tokio::spawn(serve(listener, Arc::clone(&shared)));
            Ok(Self { shared, control, control_task })
        })
    }

    /// Returns the address of the control port.
    #[must_use]
    pub fn control_addr(&self) -> SocketAddr {
        self.control
    }

    /// Returns the address of the data port, or `None` while it is closed.
    #[must_use]
    pub fn data_addr(&self) -> Option<SocketAddr> {
        self.shared.running.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(ServerHandle::addr)
    }

    /// Drains the server, see [`ServerHandle::drain`].
    pub fn drain(self, limit: Duration) -> BoxedFuture<'static, bool> {
        Box::pin(async move {
            let running = self.shared.running.write().unwrap_or_else(PoisonError::into_inner).take();
            match running {
                Some(running) => running.drain(limit).await,
                None => true,
            }
        })
    }
}

impl Drop for RemoteModel {
    fn drop(&mut self) {
        self.control_task.abort();
    }
}

// === impl ModelState ===

impl ModelState {
    fn with_running<T>(&self, read: impl FnOnce(&ServerHandle) -> T) -> Result<T, CommandError> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        running
            .as_ref()
            .map(read)
            .ok_or_else(|| CommandError::conflict("the model server does not listen; POST /listen first"))
    }

    async fn listen(&self) -> Result<(), CommandError> {
        let running =
            Server::start(self.config.clone()).await.map_err(|error| CommandError::failed(error.to_string()))?;
        self.running.write().unwrap_or_else(PoisonError::into_inner).get_or_insert(running);
        Ok(())
    }
}

impl CommandHandler for ModelState {
    async fn handle(&self, method: &Method, path: &str, body: &[u8]) -> Result<String, CommandError> {
        match (method, path) {
            (&Method::GET, "/stats") => to_json(&self.with_running(ServerHandle::stats)?),
            (&Method::POST, "/listen") => {
                self.listen().await?;
                to_json(&())
            }
            (&Method::POST, "/model") => {
                let change: ModelUpdate = parse_json(body)?;
                self.with_running(|running| change.apply(running))?;
                to_json(&())
            }
            _ => Err(CommandError::unknown()),
        }
    }
}

// === impl ModelUpdate ===

impl ModelUpdate {
    fn apply(&self, running: &ServerHandle) {
        if let Some((base, per_item)) = self.curve {
            running.set_curve(base, per_item);
        }
        if let Some(slots) = self.slots {
            running.set_slots(slots);
        }
        if let Some(items_max) = self.items_max {
            running.set_items_max(Some(items_max).filter(|&max| max > 0));
        }
    }
}
