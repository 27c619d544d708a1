//! The model server behind the proxy's traits: the model, the worker, and what both sides of the
//! proxy use of them.

mod answer;
mod backend;
mod counter;
mod forwarder;
mod stages;

use std::sync::Arc;
use std::time::Duration;

use groupage_engine::{Executor, ExecutorReport, SequenceResult};
use groupage_protocol::TokenCounter;
use groupage_proxy::backend::{Backend, Forwarder};
use groupage_proxy::upstream::ServerIdentity;
use groupage_runtime::clock::Clock;
use groupage_runtime::memory::BufferBudget;
use groupage_runtime::telemetry::Metrics;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};

use self::backend::EngineBackend;
use self::counter::ModelTokenCounter;
use self::forwarder::EngineForwarder;
use crate::executor_load::{ExecutorSettings, load_executor};
use crate::model::ServedModel;
use crate::prepared::InputSequence;
use crate::routes::views::CONCURRENT_CALLS_MAX;
use crate::worker::{ExecutionFailure, WorkerHandle, WorkerState};

/// Value of the server's name in its identity.
const SERVER: &str = concat!("groupage-engine/", env!("CARGO_PKG_VERSION"));

/// Components of the process that the server uses.
#[derive(Debug, Clone)]
pub struct EngineParts {
    /// Clock of the process.
    pub clock: Clock,
    /// Budget of bodies and responses.
    pub buffers: BufferBudget,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Maximum time between two reads of the body of a call that is not queued.
    pub body_idle_timeout: Duration,
}

/// A model server in this process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EngineServer {
    inner: Arc<EngineInner>,
}

#[derive(Debug)]
struct EngineInner {
    model: Arc<ServedModel>,
    worker: WorkerHandle,
    parts: EngineParts,
    /// Permits of calls that hold no slot of the scheduler.
    permits: Semaphore,
    identity: watch::Sender<ServerIdentity>,
    /// Number of recoveries, which stays 0: an engine that fails ends the process.
    recoveries: watch::Sender<u64>,
}

// === impl EngineServer ===

impl EngineServer {
    /// Starts the server with an executor on the chosen device. Weights are packed, or copied to
    /// the device, in the background; calls that arrive before wait.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn start(model: Arc<ServedModel>, settings: ExecutorSettings, parts: EngineParts) -> std::io::Result<Self> {
        let loaded = model.clone();
        Self::start_with(model, parts, move || load_executor(&loaded, settings))
    }

    /// Starts the server with any executor, which `load` creates.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn start_with<E: std::fmt::Display>(
        model: Arc<ServedModel>,
        parts: EngineParts,
        load: impl FnOnce() -> Result<Box<dyn Executor>, E> + Send + 'static,
    ) -> std::io::Result<Self> {
        tracing::info!(
            model = model.name(),
            architecture = ?model.model().config().architecture,
            layers = model.model().config().layers,
            hidden = model.model().config().hidden,
            sequence_tokens_max = model.model().tokens_max(),
            batch_tokens_max = model.batch_tokens_max(),
            "loading the model"
        );
        let worker = WorkerHandle::start(load, parts.metrics.clone(), parts.clock)?;
        let identity = ServerIdentity { server: Some(SERVER.to_owned()), model: Some(model.name().to_owned()) };
        Ok(Self {
            inner: Arc::new(EngineInner {
                model,
                worker,
                parts,
                permits: Semaphore::new(CONCURRENT_CALLS_MAX),
                identity: watch::Sender::new(identity),
                recoveries: watch::Sender::new(0),
            }),
        })
    }

    /// Returns the interface for batches.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(EngineBackend(self.inner.clone()))
    }

    /// Returns the interface for all other calls.
    #[must_use]
    pub fn forward(&self) -> Arc<dyn Forwarder> {
        Arc::new(EngineForwarder(self.inner.clone()))
    }

    /// Returns the counter of the tokens of texts.
    #[must_use]
    pub fn token_counter(&self) -> Arc<dyn TokenCounter> {
        Arc::new(ModelTokenCounter(self.inner.model.clone()))
    }

    /// Returns `true` once the weights are packed, unless the executor has failed since.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.inner.is_ready()
    }

    /// Resolves when the executor has failed. No call can be answered from then on, so the process
    /// has to end.
    pub async fn failed(&self) {
        self.inner.worker.failed().await;
    }

    /// Returns the identity of the server: this version, and the name of the model.
    #[must_use]
    pub fn identity(&self) -> watch::Receiver<ServerIdentity> {
        self.inner.identity.subscribe()
    }

    /// Returns the number of times that the server recovered, which is always 0.
    #[must_use]
    pub fn recoveries(&self) -> watch::Receiver<u64> {
        self.inner.recoveries.subscribe()
    }

    /// Returns the model and the choices of the executor, as JSON.
    #[must_use]
    pub fn report(&self) -> Value {
        let model = &self.inner.model;
        let (state, executor) = match self.inner.worker.state() {
            WorkerState::Loading => ("loading", None),
            WorkerState::Ready(report) => ("ready", Some(report_json(&report))),
            WorkerState::Failed => ("failed", None),
        };
        json!({
            "model": model.name(),
            "sequence_tokens_max": model.model().tokens_max(),
            "batch_tokens_max": model.batch_tokens_max(),
            "state": state,
            "executor": executor,
        })
    }
}

// === impl EngineInner ===

impl EngineInner {
    fn is_ready(&self) -> bool {
        matches!(self.worker.state(), WorkerState::Ready(_))
    }

    /// Executes sequences. A call without sequences needs no turn of the worker.
    async fn execute(&self, sequences: Vec<InputSequence>) -> Result<Vec<SequenceResult>, ExecutionFailure> {
        if sequences.is_empty() { Ok(Vec::new()) } else { self.worker.execute(sequences).await }
    }

    /// Number of threads of the executor; 0 until it exists.
    fn executor_threads(&self) -> usize {
        match self.worker.state() {
            WorkerState::Ready(report) => report.threads,
            WorkerState::Loading | WorkerState::Failed => 0,
        }
    }
}

fn report_json(report: &ExecutorReport) -> Value {
    json!({
        "kernels": report.kernels,
        "batch_invariant": report.batch_invariant,
        "rejected": report.rejected,
        "threads": report.threads,
        "tokens_max": report.tokens_max,
        "weight_bytes": report.weight_bytes,
        "scratch_bytes": report.scratch_bytes,
        "mapped_bytes": report.mapped_bytes,
    })
}
