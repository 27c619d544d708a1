//! The process of `groupage proxy`: from its initial settings to the end of its drain.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::compose::{AppOptions, RunningApp, start};
use super::process::{EXIT_INTERNAL, LOG_FLUSH, ProcessError, StopSignals, build_runtime};
use super::reload::Reloader;
use super::settings_log::log_notices;
use super::sources::{InitialSettings, LoadedSettings, SettingsOrigin, SettingsSources};
use super::stream::StreamState;
use crate::api::v1alpha1::LogFormat;
use crate::config::{self, LoadError};
use crate::telemetry::log::{self, LevelHandle, LineFormat};

/// Time to write the responses of failed calls before the process ends because of an internal
/// error: enough for some thousand small responses, and short beside the restart that follows.
const FAILED_RESPONSES_MAX: Duration = Duration::from_millis(500);

/// A proxy that has settings to start with.
#[derive(Debug)]
pub(crate) struct ProxyProcess {
    sources: SettingsSources,
    stream: StreamState,
    began: InitialSettings,
}

// === impl ProxyProcess ===

impl ProxyProcess {
    /// Determines the initial settings. Those that the controller pushed last come first.
    ///
    /// # Errors
    /// If no valid settings exist.
    pub(crate) fn load(sources: SettingsSources) -> Result<Self, LoadError> {
        let stream = StreamState::read(&sources);
        let began = stream.began().map_or_else(|| sources.begin(), Ok)?;
        Ok(Self { sources, stream, began })
    }

    /// Serves until the process is stopped. Returns its exit code.
    ///
    /// # Errors
    /// If the log or the runtime cannot be started. Later errors are logged.
    pub(crate) fn run(self, threads: usize) -> Result<u8, ProcessError> {
        let settings = &self.began.read.policy.proxy.log;
        let format = match settings.format {
            LogFormat::Pretty => LineFormat::Pretty,
            LogFormat::Json => LineFormat::Json,
        };
        let (level, writer) = log::init(format, &settings.level).map_err(ProcessError::Log)?;
        let runtime = build_runtime(threads).map_err(ProcessError::Runtime)?;
        let code = runtime.block_on(self.serve(level));
        // Remaining tasks belong to calls past the drain limit.
        runtime.shutdown_background();
        writer.flush(LOG_FLUSH);
        Ok(code)
    }

    /// Starts the proxy and everything that changes its settings, and serves.
    async fn serve(self, level: LevelHandle) -> u8 {
        let Self { sources, stream, began } = self;
        // Install the handlers before any port is open: an earlier signal would end the process
        // without a drain.
        let (Ok(hangup), Ok(stop)) = (signal(SignalKind::hangup()), StopSignals::install()) else {
            tracing::error!("cannot listen for signals");
            return EXIT_INTERNAL;
        };
        let policy = began.read.policy.clone();
        let drain_token = sources.pod.drain_token.clone();
        let running = match start(AppOptions { policy, level, seed: rand::random(), drain_token }) {
            Ok(running) => running,
            Err(error) => {
                tracing::error!(%error, "cannot start");
                return config::EXIT_CONFIG;
            }
        };
        began.log();
        let InitialSettings { read: LoadedSettings { policy, notices, text }, wrong, from } = began;
        log_notices(&notices);
        for setting in policy.effective() {
            tracing::debug!(path = %setting.path, value = %setting.value, source = %setting.source, "setting");
        }
        stream.connect(&running, sources.clone());
        let mut reloader = Reloader::new(sources, running.control(), running.state_folder(), text);
        if from == SettingsOrigin::StandIn {
            wrong.into_iter().for_each(|error| reloader.began_with_last_good(error));
        }
        // The task ends with the runtime: settings may change as long as calls are served.
        tokio::spawn(reloader.run(hangup));
        serve_until_stopped(running, stop).await
    }
}

/// Serves until a signal requests the end, and then drains. Returns the exit code.
async fn serve_until_stopped(mut running: RunningApp, mut stop: StopSignals) -> u8 {
    tokio::select! {
        () = stop.recv() => {}
        reason = running.failed() => {
            tracing::error!(reason, "the process ends");
            // Calls that have failed receive their responses.
            tokio::time::timeout(FAILED_RESPONSES_MAX, running.drain()).await.ok();
            return EXIT_INTERNAL;
        }
    }
    tokio::select! {
        whole = running.drain() => {
            if whole {
                tracing::info!("drained");
            } else {
                tracing::warn!("the drain limit passed with calls unanswered");
            }
        }
        () = stop.recv() => tracing::warn!("second stop signal: exiting immediately"),
    }
    0
}
