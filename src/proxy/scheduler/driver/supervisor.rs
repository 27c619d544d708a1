//! The supervisor of the driver: restarts it after a panic, and gives up after several in a row.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, watch};

use super::super::{COMPLETIONS_MAX, DriverEvent, SchedulerConfig};
use super::Driver;
use crate::backend::Backend;
use crate::batching::Tick;
use crate::clock::{Alarm, Clock};
use crate::telemetry::Metrics;

/// Number of panics within [`PANIC_WINDOW`] that end the process.
const PANICS_MAX: usize = 3;
const PANIC_WINDOW: Duration = Duration::from_secs(60);

/// Restarts the driver after a panic, and holds the state that survives it.
#[derive(Debug)]
pub(in super::super) struct Supervisor {
    pub(super) config: SchedulerConfig,
    pub(super) clock: Clock,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) events: mpsc::WeakSender<DriverEvent>,
    pub(super) alarm: Alarm,
    /// The scheduler drains, so no call is held back.
    pub(super) draining: bool,
}

// === impl Supervisor ===

impl Supervisor {
    pub(in super::super) fn new(
        config: SchedulerConfig,
        clock: Clock,
        backend: Arc<dyn Backend>,
        metrics: Arc<Metrics>,
        events: mpsc::WeakSender<DriverEvent>,
    ) -> std::io::Result<Self> {
        Ok(Self { config, clock, backend, metrics, events, alarm: Alarm::new(clock)?, draining: false })
    }

    /// Runs the driver until every handle is dropped, and restarts it after a panic.
    pub(in super::super) async fn run(mut self, mut inbox: mpsc::Receiver<DriverEvent>, failed: watch::Sender<bool>) {
        let capacity = usize::try_from(COMPLETIONS_MAX).unwrap_or(usize::MAX);
        let (completion_sender, mut completions) = mpsc::channel(capacity);
        let mut panics: Vec<Tick> = Vec::new();
        for generation in 0.. {
            let run = Driver::new(&mut self, generation, completion_sender.clone()).run(&mut inbox, &mut completions);
            if AssertUnwindSafe(run).catch_unwind().await.is_ok() {
                return;
            }
            let now = self.clock.now();
            panics.retain(|at| now.since(*at) < PANIC_WINDOW);
            panics.push(now);
            tracing::error!(panics = panics.len(), "the scheduler panicked and restarts with an empty queue");
            if panics.len() >= PANICS_MAX {
                // Sending fails only if the process is already shutting down.
                failed.send(true).ok();
                return;
            }
        }
    }
}
