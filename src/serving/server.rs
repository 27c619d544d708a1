//! The model server that implements the proxy's traits. It owns the model and the worker, and gives
//! the proxy two interfaces: `backend` executes the batches of the scheduler, and `forwarder`
//! answers all other calls.

mod answer;
mod backend;
mod forwarder;
mod measures;
mod ready_call;
mod stages;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use groupage_batching::ReplayBudget;
use groupage_engine::{ExecutorReport, NumberType, StorageFormat};
use groupage_proxy::backend::{Backend, Forwarder};
use groupage_proxy::upstream::ServerIdentity;
use groupage_runtime::clock::Clock;
use groupage_runtime::memory::BufferBudget;
use groupage_runtime::telemetry::Metrics;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};

use self::backend::EngineBackend;
use self::forwarder::EngineForwarder;
use crate::executor_load::{ExecutorSettings, LoadedExecutor, load_executor};
use crate::model::ServedModel;
use crate::prepared::InputSequence;
use crate::routes::views::CONCURRENT_CALLS_MAX;
use crate::worker::{ExecutedJob, ExecutionFailure, ReadyExecutor, WorkerHandle, WorkerState};

/// Name and version of the server, as it reports its identity.
const SERVER: &str = concat!("groupage-engine/", env!("CARGO_PKG_VERSION"));

/// The device that was chosen for the executor, before the model was loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceNote {
    /// `true` for a GPU.
    pub is_gpu: bool,
    /// Reason of the choice.
    pub reason: String,
}

/// The device on which a loaded model is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedDevice {
    /// Description for people, with the reason.
    pub description: String,
    /// `true` if a GPU was chosen and cannot execute the model.
    pub is_fallback: bool,
}

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
    /// Maximum number of calls that `verify` executes again, in millionths of the number of calls.
    pub replay_ppm: u32,
    /// The chosen device, for reports.
    pub device: DeviceNote,
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
    /// Permits of forwarded calls, which hold no slot of the scheduler.
    permits: Semaphore,
    /// Permits of threads that tokenise.
    tokenizing: Arc<Semaphore>,
    /// Budget of calls that are executed again for the setting `verify`, which compares the result
    /// of a call in a batch with that of the unbatched call.
    budget: Mutex<ReplayBudget>,
    identity: watch::Sender<ServerIdentity>,
    /// Number of recoveries, which stays 0: an engine that fails ends the process.
    recoveries: watch::Sender<u64>,
}

// === impl EngineServer ===

impl EngineServer {
    /// Starts the server with an executor on the chosen device. Weights are packed, or copied to
    /// the device, on the thread of the worker; calls that arrive meanwhile wait.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn start(model: Arc<ServedModel>, settings: ExecutorSettings, parts: EngineParts) -> std::io::Result<Self> {
        let loaded = model.clone();
        Self::start_with(model, parts, move || load_executor(&loaded, &settings))
    }

    /// Starts the server with any executor, which `load` creates.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn start_with<L: Into<LoadedExecutor>, E: std::fmt::Display>(
        model: Arc<ServedModel>,
        parts: EngineParts,
        load: impl FnOnce() -> Result<L, E> + Send + 'static,
    ) -> std::io::Result<Self> {
        tracing::info!(
            model = model.name(),
            architecture = ?model.model().config().architecture,
            layers = model.model().config().layers,
            hidden = model.model().config().hidden,
            pooling = ?model.model().pooling(),
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
                permits: Semaphore::new(CONCURRENT_CALLS_MAX),
                tokenizing: Arc::new(Semaphore::new(available_cores())),
                budget: Mutex::new(ReplayBudget::new(parts.replay_ppm)),
                parts,
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

    /// Updates [`EngineParts::replay_ppm`].
    pub fn set_replay_share(&self, replay_ppm: u32) {
        if let Ok(mut budget) = self.inner.budget.lock() {
            budget.set_share(replay_ppm);
        }
    }

    /// Returns `true` once the executor is created, unless it has failed since.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.inner.is_ready()
    }

    /// Resolves with the device once the executor is created; with `None` if it cannot be.
    pub async fn loaded(&self) -> Option<LoadedDevice> {
        let executor = self.inner.worker.loaded().await?;
        Some(describe_device(self.inner.model.name(), &self.inner.parts.device, &executor))
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
            WorkerState::Ready(executor) => ("ready", Some(report_json(&executor.report))),
            WorkerState::Failed => ("failed", None),
        };
        json!({
            "model": model.name(),
            "sequence_tokens_max": model.model().tokens_max(),
            "batch_tokens_max": self.inner.batch_tokens_max(),
            "state": state,
            "executor": executor,
            "device_reason": self.inner.parts.device.reason,
        })
    }
}

// === impl EngineInner ===

impl EngineInner {
    fn is_ready(&self) -> bool {
        matches!(self.worker.state(), WorkerState::Ready(_))
    }

    /// Returns the maximum number of tokens that are executed at once. Before the executor is
    /// created, it is that with enough memory.
    fn batch_tokens_max(&self) -> usize {
        let limit = self.model.batch_tokens_max();
        self.worker.tokens_max().map_or(limit, |tokens| tokens.min(limit))
    }

    /// Returns the type of the numbers of the executor. Before the executor is created, it is that of
    /// the model on the chosen device.
    fn number_type(&self) -> NumberType {
        match self.worker.state() {
            WorkerState::Ready(executor) => executor.report.number_type,
            WorkerState::Loading | WorkerState::Failed if self.parts.device.is_gpu => {
                StorageFormat::of_model(self.model.model()).number_type()
            }
            WorkerState::Loading | WorkerState::Failed => NumberType::Float32,
        }
    }

    /// Executes sequences on the worker, which is not used if there are none.
    async fn execute(&self, sequences: Vec<InputSequence>) -> Result<ExecutedJob, ExecutionFailure> {
        if sequences.is_empty() {
            return Ok(ExecutedJob { results: Vec::new(), began: self.parts.clock.now(), duration: Duration::ZERO });
        }
        self.worker.execute(sequences).await
    }

    /// Records calls of clients. The budget of `verify` is a share of them.
    fn record_calls(&self, count: usize) {
        let now = self.parts.clock.now();
        if let Ok(mut budget) = self.budget.lock() {
            for _ in 0..count {
                budget.record_client_call(now);
                budget.record_first_send(now);
            }
        }
    }
}

/// Describes the device of an executor: the chosen one, or the CPU if the chosen GPU refuses the
/// model.
fn describe_device(model: &str, chosen: &DeviceNote, executor: &ReadyExecutor) -> LoadedDevice {
    let ReadyExecutor { report: ExecutorReport { kernels, threads, .. }, refusal } = executor;
    let executed = if chosen.is_gpu && refusal.is_none() {
        format!("the model {model} is executed on a GPU ({kernels})")
    } else {
        format!("the model {model} is executed on the CPU ({kernels}, {threads} threads)")
    };
    let reason =
        refusal.as_ref().map_or_else(|| chosen.reason.clone(), |error| format!("the GPU cannot execute it: {error}"));
    LoadedDevice { description: format!("{executed}: {reason}"), is_fallback: refusal.is_some() }
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
        "file_bytes": report.file_bytes,
    })
}

/// Number of cores that this process may use, which is that of the threads that tokenise.
fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
