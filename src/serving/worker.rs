//! The thread that owns the executor.
//!
//! Jobs wait in a bounded channel and are executed one after the other, each in as many packed
//! batches as its tokens need (`job`). An executor with a pipeline prepares the next job while it
//! executes one (`pipeline`). A job is not executed if its caller has dropped the receiver of its
//! results.
//!
//! An executor is not used after a panic, because its state is unknown, nor after the loss of its
//! device, because every later batch would fail. A device that does not end a batch counts as lost
//! (`pipeline`). The job in execution fails, later ones are refused, and the state becomes
//! [`WorkerState::Failed`], after which the process is expected to end.

mod job;
mod pipeline;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use groupage_batching::Tick;
use groupage_engine::{CudaLoadError, DeviceUsage, ExecuteError, ExecutorReport, SequenceResult};
use tokio::sync::{mpsc, oneshot, watch};

use self::pipeline::{BATCH_TIME_MAX, FinishedJob, JobPipeline};
use crate::executor_load::LoadedExecutor;
use crate::prepared::InputSequence;
use groupage_runtime::clock::Clock;
use groupage_runtime::telemetry::{EngineDeviceCounts, Metrics};

/// Number of jobs that wait in the channel; senders of further ones wait. The scheduler sends one
/// job for each slot, and forwarded calls are bounded by
/// [`CONCURRENT_CALLS_MAX`](crate::routes::views::CONCURRENT_CALLS_MAX). The channel is short, so
/// that most cancelled calls have not sent their job yet: a job in the channel occupies it until
/// the worker discards it.
const JOBS_MAX: usize = 8;
const THREAD: &str = "groupage-engine";

#[derive(Debug, Clone)]
pub(crate) enum WorkerState {
    /// The weights are being packed.
    Loading,
    /// Batches are executed.
    Ready(Arc<ReadyExecutor>),
    /// The executor could not be created, has panicked, or has lost its device.
    Failed,
}

/// The description of the created executor.
#[derive(Debug, Clone)]
pub(crate) struct ReadyExecutor {
    pub(crate) report: ExecutorReport,
    /// Error of the chosen GPU, if the CPU is used instead.
    pub(crate) refusal: Option<CudaLoadError>,
}

/// Reason for which a job has no results.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutionFailure {
    /// The executor panicked while it executed the job, or before.
    #[error("the engine has failed and ends")]
    Stopped,
    /// The executor refused a batch.
    #[error(transparent)]
    Refused(#[from] ExecuteError),
    /// The executor returned another number of results than sequences.
    #[error("the executor returned {results} results for {sequences} sequences")]
    WrongCount {
        /// Number of results.
        results: usize,
        /// Number of sequences.
        sequences: usize,
    },
}

// === impl ExecutionFailure ===

impl ExecutionFailure {
    /// Returns `true` if the executor can execute no later job.
    pub(crate) fn is_fatal(&self) -> bool {
        match self {
            Self::Stopped => true,
            Self::Refused(error) => error.is_fatal(),
            Self::WrongCount { .. } => false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct ExecutedJob {
    /// Results of the sequences, in their order.
    pub(crate) results: Vec<SequenceResult>,
    /// Instant at which the execution of its first batch began.
    pub(crate) began: Tick,
    /// Time from then to the end of its last batch.
    pub(crate) duration: Duration,
}

pub(crate) type JobResult = Result<ExecutedJob, ExecutionFailure>;

/// Sequences to execute, and the receiver of their results.
#[derive(Debug)]
pub(crate) struct ExecutionJob {
    sequences: Vec<InputSequence>,
    reply: oneshot::Sender<JobResult>,
}

/// Handle to the worker thread, which ends when all handles are dropped.
#[derive(Debug, Clone)]
pub(crate) struct WorkerHandle {
    jobs: mpsc::Sender<ExecutionJob>,
    state: watch::Receiver<WorkerState>,
    tokens_max: Arc<AtomicUsize>,
}

/// The state of the worker thread.
struct Worker {
    /// Jobs that the handles have sent.
    inbox: mpsc::Receiver<ExecutionJob>,
    state: watch::Sender<WorkerState>,
    /// Maximum number of tokens that are executed at once; `usize::MAX` before the executor exists.
    tokens_max: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

// === impl WorkerHandle ===

impl WorkerHandle {
    /// Starts the thread. `load` creates the executor on it, which takes long for a large model.
    ///
    /// # Errors
    /// The system provides no thread.
    pub(crate) fn start<L, E>(
        load: impl FnOnce() -> Result<L, E> + Send + 'static,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> std::io::Result<Self>
    where
        L: Into<LoadedExecutor>,
        E: std::fmt::Display,
    {
        let (jobs, inbox) = mpsc::channel(JOBS_MAX);
        let (state, watched) = watch::channel(WorkerState::Loading);
        let tokens_max = Arc::new(AtomicUsize::new(usize::MAX));
        let worker = Worker { inbox, state, tokens_max: tokens_max.clone(), metrics, clock };
        thread::Builder::new().name(THREAD.to_owned()).spawn(move || worker.run(load))?;
        Ok(Self { jobs, state: watched, tokens_max })
    }

    /// Executes sequences. Dropping the future before the job is executed cancels it.
    ///
    /// # Errors
    /// The executor has failed or refuses the sequences.
    pub(crate) async fn execute(&self, sequences: Vec<InputSequence>) -> JobResult {
        let (reply, results) = oneshot::channel();
        self.jobs.send(ExecutionJob { sequences, reply }).await.map_err(|_| ExecutionFailure::Stopped)?;
        results.await.unwrap_or(Err(ExecutionFailure::Stopped))
    }

    pub(crate) fn state(&self) -> WorkerState {
        self.state.borrow().clone()
    }

    /// Returns the maximum number of tokens that are executed at once: that of the executor, or
    /// less after a shortage of memory on its device. `None` before the executor is created.
    pub(crate) fn tokens_max(&self) -> Option<usize> {
        Some(self.tokens_max.load(Ordering::Relaxed)).filter(|tokens| *tokens != usize::MAX)
    }

    /// Resolves with the executor's report once it is created; with `None` if it cannot be.
    pub(crate) async fn loaded(&self) -> Option<Arc<ReadyExecutor>> {
        let mut state = self.state.clone();
        let state = state.wait_for(|state| !matches!(state, WorkerState::Loading)).await.ok()?;
        match &*state {
            WorkerState::Ready(executor) => Some(executor.clone()),
            WorkerState::Loading | WorkerState::Failed => None,
        }
    }

    /// Resolves when the executor has failed.
    pub(crate) async fn failed(&self) {
        let mut state = self.state.clone();
        // An error means that the thread has ended, which it does only after a failure while a
        // handle exists.
        state.wait_for(|state| matches!(state, WorkerState::Failed)).await.ok();
    }
}

// === impl Worker ===

impl Worker {
    fn run<L: Into<LoadedExecutor>, E: std::fmt::Display>(mut self, load: impl FnOnce() -> Result<L, E>) {
        let began = self.clock.now();
        // After a panic, nothing that the closure captured is used.
        let LoadedExecutor { mut executor, refusal } = match catch_unwind(AssertUnwindSafe(load)) {
            Ok(Ok(loaded)) => loaded.into(),
            Ok(Err(error)) => return self.fail(&format!("the model cannot be loaded: {error}")),
            Err(_) => return self.fail("loading the model panicked"),
        };
        let report = executor.report();
        log_ready(report, self.clock.now().since(began));
        self.metrics.engine_loaded(report.weight_bytes, report.scratch_bytes);
        self.tokens_max.store(report.tokens_max, Ordering::Relaxed);
        self.state.send_replace(WorkerState::Ready(Arc::new(ReadyExecutor { report: report.clone(), refusal })));
        let metrics = self.metrics.clone();
        let mut pipeline = JobPipeline::new(&mut *executor, &metrics, self.clock, BATCH_TIME_MAX);
        loop {
            // After a panic or a fatal error, the executor is not used any more. It is not dropped
            // either, since that would wait for a device that does not end its work: the process
            // ends.
            let FinishedJob { reply, result } =
                match catch_unwind(AssertUnwindSafe(|| pipeline.advance(&mut self.inbox))) {
                    Ok(Some(finished)) => finished,
                    Ok(None) => return,
                    Err(_) => {
                        drop(pipeline);
                        let _leaked = Box::leak(executor);
                        return self.fail("the executor panicked");
                    }
                };
            if let Some(usage) = pipeline.device_usage() {
                self.record_usage(usage);
            }
            let fatal = result.as_ref().err().filter(|failure| failure.is_fatal()).map(ToString::to_string);
            // Sending fails if the caller has gone and needs no results.
            reply.send(result).ok();
            if let Some(reason) = fatal {
                drop(pipeline);
                let _leaked = Box::leak(executor);
                return self.fail(&reason);
            }
        }
    }

    /// Records the work of a device. A token ceiling that has fallen becomes the maximum, and is
    /// logged.
    fn record_usage(&self, usage: DeviceUsage) {
        let DeviceUsage { replayed, recorded, eager, padding_tokens, token_ceiling } = usage;
        let counts = EngineDeviceCounts { replayed, recorded, eager, padding_tokens, token_ceiling };
        self.metrics.engine_device(counts);
        if token_ceiling < self.tokens_max.fetch_min(token_ceiling, Ordering::Relaxed) {
            tracing::warn!(tokens = token_ceiling, "larger batches are divided, for lack of device memory");
        }
    }

    /// Refuses all jobs from here on. Those in the channel are dropped, so that they fail.
    fn fail(mut self, reason: &str) {
        tracing::error!(reason, "the engine has failed");
        self.state.send_replace(WorkerState::Failed);
        self.inbox.close();
        while self.inbox.try_recv().is_ok() {}
    }
}

fn log_ready(report: &ExecutorReport, took: Duration) {
    let ExecutorReport { kernels, batch_invariant, rejected, threads, tokens_max, .. } = report;
    let ExecutorReport { weight_bytes, scratch_bytes, file_bytes, .. } = report;
    tracing::info!(
        kernels,
        batch_invariant,
        threads,
        tokens_max,
        weight_bytes,
        scratch_bytes,
        file_bytes,
        load_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        "engine is ready"
    );
    if !rejected.is_empty() {
        tracing::warn!(
            ?rejected,
            "kernels or products of a library are not used: they failed their check, or have no plan"
        );
    }
}

#[cfg(test)]
mod tests;
