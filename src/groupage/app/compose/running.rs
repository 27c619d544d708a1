//! The running proxy, and the end of its process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};

use super::super::state_dir::StateDir;
use super::drain::DrainHandle;
use super::port::RunningPort;
use super::reconfigure::SettingsHandle;
use crate::access_log::AccessLog;
use crate::admin::{AdminAddresses, AdminServer};
use crate::clock::Clock;
use crate::config::DrainConfig;
use crate::telemetry::Metrics;

/// Minimum time for the final drain if a `preStop` hook has used up the drain limit: a moment for
/// the calls that are still in flight.
const FINAL_DRAIN_MIN: Duration = Duration::from_secs(1);

/// Final part of the drain limit, in which the remaining calls are answered with the error
/// `draining`: enough to write some thousand small responses. It is at most a quarter of the limit.
const FINAL_RESPONSES_MAX: Duration = Duration::from_millis(500);

/// A running proxy.
#[derive(Debug)]
pub struct RunningApp {
    /// Bound downstream addresses, port by port.
    pub listen: Vec<SocketAddr>,
    /// Bound addresses of the admin ports.
    pub admin: AdminAddresses,
    /// Metrics of the process. With several ports, those of the first port; all ports share its
    /// registry.
    pub metrics: Arc<Metrics>,
    pub(super) ports: Vec<RunningPort>,
    pub(super) clock: Clock,
    pub(super) drainer: DrainHandle,
    pub(super) access_log: Option<AccessLog>,
    pub(super) drain: DrainConfig,
    pub(super) control: SettingsHandle,
    pub(super) folder: Option<StateDir>,
    pub(super) admin_thread: AdminServer,
}

// === impl RunningApp ===

impl RunningApp {
    /// Drains the proxy: holds no call any longer and answers every accepted call, within the drain
    /// limit. Returns `true` if all calls were answered in time. The others receive the error
    /// `draining`, unless a part of their response has already been sent.
    ///
    /// Calls are accepted for another `drain.delay`, in which clients and load balancers learn to
    /// use other endpoints. Only then does readiness fail, and no more calls are accepted. If a
    /// `preStop` hook has started the drain earlier, both times count from the hook.
    pub async fn drain(&mut self) -> bool {
        // From here on the shutdown is deliberate: a kill because of slowness does not count as a
        // crash.
        let ended = self.folder.clone().map(|folder| tokio::task::spawn_blocking(move || folder.record_end()));
        let now = self.clock.now();
        let since = self.drainer.drain().await.unwrap_or(now);
        let limit = since.after(self.drain.limit).since(now).max(FINAL_DRAIN_MIN.min(self.drain.limit));
        let leaving = self.drainer.clone();
        let ports = &self.ports;
        let end = async {
            leaving.leaving().await;
            join_all(ports.iter().map(|port| port.listening.stop())).await;
            // The `preStop` hook of the application is answered before this process ends.
            leaving.flush().await;
        };
        // The last moment is reserved for calls that would otherwise end without a response: they
        // receive an error that contains the reason.
        let last = FINAL_RESPONSES_MAX.min(limit / 4);
        let whole = tokio::time::timeout(limit - last, end).await.is_ok();
        if !whole {
            self.ports.iter().for_each(|port| port.reach.proxy.cancel_waiting_calls());
            // Connections that have not taken their response by then are closed.
            let stopped = join_all(self.ports.iter().map(|port| port.listening.stop()));
            tokio::time::timeout(last, stopped).await.ok();
        }
        for keeper in self.ports.iter().filter_map(|port| port.keeper.as_ref()) {
            keeper.save().await;
        }
        if let Some(ended) = ended {
            // The task logs its own errors.
            ended.await.ok();
        }
        if let Some(log) = &self.access_log {
            log.flush(Duration::from_secs(1));
        }
        whole
    }

    /// Returns what the scheduler has learned, with several ports that of the first one, or `None`
    /// if the scheduler has stopped.
    pub async fn learned(&self) -> Option<crate::batching::BatcherReport> {
        self.ports.first()?.reach.scheduler.report().await
    }

    /// Resolves with a description of the device of the engine once its model is loaded. `None` if it
    /// cannot be loaded, and with an upstream.
    pub async fn engine_device(&self) -> Option<String> {
        let (description, _) = self.ports.first()?.reach.upstream.engine_device().await?;
        Some(description)
    }

    /// Returns the state folder, if one is configured.
    pub(in crate::app) fn state_folder(&self) -> Option<StateDir> {
        self.folder.clone()
    }

    /// Spawns a background task on the thread of the admin ports. It runs as long as the proxy
    /// does.
    pub(in crate::app) fn beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.admin_thread.spawn(work);
    }

    /// Returns the handle that applies new settings.
    #[must_use]
    pub fn control(&self) -> SettingsHandle {
        self.control.clone()
    }

    /// Resolves with the reason when a scheduler or the engine has failed permanently.
    pub async fn failed(&self) -> &'static str {
        select_all(self.ports.iter().map(|port| Box::pin(port_failure(port)))).await.0
    }
}

/// Resolves with the reason when the scheduler or the engine of a port has failed permanently.
async fn port_failure(port: &RunningPort) -> &'static str {
    tokio::select! {
        () = port.scheduler.failed() => "the scheduler panicked three times in a minute",
        () = port.reach.upstream.failed() => "the engine has failed",
    }
}
