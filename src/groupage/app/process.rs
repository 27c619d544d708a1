//! What the processes of the proxy and of the controller have in common: their runtime, their stop
//! signals, and the errors that keep them from starting.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::BoxError;

/// Exit code of an internal error (sysexits: `EX_SOFTWARE`).
pub(crate) const EXIT_INTERNAL: u8 = 70;

/// Maximum time to write the last log lines.
pub(super) const LOG_FLUSH: Duration = Duration::from_millis(500);

/// Error that occurs before the log is open, so that it has to be printed.
#[derive(Debug, Error)]
pub(crate) enum ProcessError {
    /// The log cannot be opened, or its filter is invalid.
    #[error("cannot start the log: {0}")]
    Log(BoxError),
    /// The system provides no threads or no I/O events.
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
}

/// The signals that end a process: SIGTERM and SIGINT.
#[derive(Debug)]
pub(super) struct StopSignals {
    term: Signal,
    int: Signal,
}

// === impl StopSignals ===

impl StopSignals {
    /// Installs the handlers. Must be called inside a tokio runtime.
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Resolves on the next signal. Cancel safe.
    pub(super) async fn recv(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

/// Builds the runtime of the data path with the given number of worker threads.
pub(crate) fn build_runtime(threads: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("groupage")
        // Poll for I/O events after every 8 tasks instead of tokio's 61: the connection of a batch
        // must not wait until all answers of the previous batch have been delivered.
        .event_interval(8)
        .enable_all()
        .build()
}
