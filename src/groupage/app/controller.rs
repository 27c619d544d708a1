//! The process of `groupage controller`: connects to the cluster, and runs the controller until it
//! is stopped.

use std::path::PathBuf;
use std::time::Duration;

use super::process::{EXIT_INTERNAL, LOG_FLUSH, ProcessError, StopSignals, build_runtime};
use crate::clock::Clock;
use crate::config::{self, MachineLimits};
use crate::controller::{ControllerConfig, RunningController, prepare_client_config, start};
use crate::error::BoxError;
use crate::telemetry::log::{self, LineFormat};

/// A controller that is ready to start.
#[derive(Debug)]
pub(crate) struct ControllerProcess {
    pub(crate) config: ControllerConfig,
    /// Path of the kubeconfig file. Without one, it is looked up as for kubectl.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Log level, or a filter.
    pub(crate) log_level: String,
    /// Interval of the tuner, also while the tuner is off, for the log.
    pub(crate) tuner_interval: Duration,
}

// === impl ControllerProcess ===

impl ControllerProcess {
    /// Runs until the process is stopped. Returns its exit code.
    ///
    /// # Errors
    /// If the log or the runtime cannot be started. Later errors are logged.
    pub(crate) fn run(self, threads: usize) -> Result<u8, ProcessError> {
        let format = if MachineLimits::read().terminal { LineFormat::Pretty } else { LineFormat::Json };
        let (_, writer) = log::init(format, &log_filter(&self.log_level)).map_err(ProcessError::Log)?;
        let runtime = build_runtime(threads).map_err(ProcessError::Runtime)?;
        let code = runtime.block_on(self.serve());
        runtime.shutdown_background();
        writer.flush(LOG_FLUSH);
        Ok(code)
    }

    async fn serve(self) -> u8 {
        let Ok(stop) = StopSignals::install() else {
            tracing::error!("cannot listen for signals");
            return EXIT_INTERNAL;
        };
        let (tuner, tuner_interval) = (self.config.tuner.is_some(), self.tuner_interval);
        let running = match self.connect_and_start().await {
            Ok(running) => running,
            Err(error) => {
                tracing::error!(%error, "cannot start");
                return config::EXIT_CONFIG;
            }
        };
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            webhook = %running.webhook,
            metrics = %running.health,
            streams = running.streams.map(tracing::field::display),
            tuner,
            ?tuner_interval,
            "the controller is running"
        );
        serve_until_stopped(running, stop).await
    }

    async fn connect_and_start(self) -> Result<RunningController, BoxError> {
        let cluster = match &self.kubeconfig {
            Some(path) => {
                let file = kube::config::Kubeconfig::read_from(path)?;
                kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?
            }
            None => kube::Config::infer().await?,
        };
        let client = kube::Client::try_from(prepare_client_config(cluster))?;
        start(client, self.config, Clock::start())
    }
}

/// Silences the per-request error log of the client library at the given level: an unreachable API
/// server is one log line of the controller (`watch::reachability`). A filter that names targets is used
/// unchanged.
fn log_filter(level: &str) -> String {
    if level.contains('=') { level.to_owned() } else { format!("{level},kube_client::client=off") }
}

/// Runs until a signal requests the end, and then shuts down in order. Returns the exit code.
async fn serve_until_stopped(mut running: RunningController, mut stop: StopSignals) -> u8 {
    tokio::select! {
        () = stop.recv() => {}
        what = running.wait_for_failure() => {
            tracing::error!(what, "ending");
            return EXIT_INTERNAL;
        }
    }
    tracing::info!("stopping: another replica may lead, and requests are still answered for a while");
    tokio::select! {
        () = running.shut_down() => {}
        () = stop.recv() => tracing::warn!("second stop signal: exiting immediately"),
    }
    0
}
