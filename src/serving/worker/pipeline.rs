//! Execution of jobs, with two in flight where the executor allows it.
//!
//! A job that fits into one batch is submitted while another one is executed, so that its inputs
//! are packed and copied meanwhile. Larger jobs, and those of an executor without a pipeline, are
//! executed alone. The scheduler sends a second job only if it has a second slot: `limits.slotsMax`
//! is 1 unless the policy sets it.
//!
//! A submitted batch that does not end within [`BATCH_TIME_MAX`] counts as the loss of the device.
//! Not covered is a call of the driver that does not return, because this thread is then inside of
//! it: the copy of results, and jobs that are executed alone.

use std::collections::VecDeque;
use std::time::Duration;

use groupage_batching::Tick;
use groupage_engine::{BATCHES_MAX, DeviceUsage, ExecuteError, Executor, PackedBatch, SequenceResult};
use groupage_runtime::clock::Clock;
use groupage_runtime::telemetry::Metrics;
use tokio::sync::{mpsc, oneshot};

use super::job::JobExecution;
use super::{ExecutedJob, ExecutionFailure, ExecutionJob, JobResult};
use crate::prepared::InputSequence;

/// Maximum time of a submitted batch. The largest one, 16 384 tokens of BERT large with its 302
/// million parameters in layers, takes 10^13 operations, and up to three times as many with the
/// attention of sequences of 8192 tokens: within this time at 0.5 TFLOP/s, which is far below the
/// GPUs that run the kernels.
pub(super) const BATCH_TIME_MAX: Duration = Duration::from_secs(60);

/// The executor and the jobs in flight.
pub(super) struct JobPipeline<'a> {
    executor: &'a mut dyn Executor,
    metrics: &'a Metrics,
    clock: Clock,
    /// [`BATCH_TIME_MAX`], except in tests.
    batch_time_max: Duration,
    /// Jobs with submitted batches, the oldest first.
    in_flight: VecDeque<SubmittedJob>,
    /// A job that is executed alone, once no other one is in flight.
    set_aside: Option<ExecutionJob>,
}

struct SubmittedJob {
    reply: oneshot::Sender<JobResult>,
    tokens: usize,
    sequences: usize,
    /// Start of its execution: the instant at which it was submitted or, if another job was in
    /// flight then, at which that job ended.
    began: Tick,
}

/// A job with an outcome.
pub(super) struct FinishedJob {
    pub(super) reply: oneshot::Sender<JobResult>,
    pub(super) result: JobResult,
}

// === impl JobPipeline ===

impl<'a> JobPipeline<'a> {
    pub(super) fn new(
        executor: &'a mut dyn Executor,
        metrics: &'a Metrics,
        clock: Clock,
        batch_time_max: Duration,
    ) -> Self {
        let in_flight = VecDeque::with_capacity(BATCHES_MAX);
        Self { executor, metrics, clock, batch_time_max, in_flight, set_aside: None }
    }

    /// Executes jobs until one has an outcome, and returns it. Returns `None` once no job is in
    /// flight and all senders are dropped. A panic of the executor is not caught; the jobs in
    /// flight fail when the pipeline is dropped.
    pub(super) fn advance(&mut self, inbox: &mut mpsc::Receiver<ExecutionJob>) -> Option<FinishedJob> {
        loop {
            // Take the next job: wait for one if nothing is in flight, and take none while the
            // pipeline is full or a job waits to be executed alone.
            let job = if self.in_flight.is_empty() {
                Some(self.set_aside.take().or_else(|| inbox.blocking_recv())?)
            } else if self.in_flight.len() < BATCHES_MAX && self.set_aside.is_none() {
                inbox.try_recv().ok()
            } else {
                None
            };
            if let Some(job) = job {
                match self.begin(job) {
                    Some(finished) => return Some(finished),
                    None => continue,
                }
            }
            // The time is taken first: a process that is stopped in between, perhaps for minutes,
            // finds the batch ended afterwards.
            let now = self.clock.now();
            if self.executor.pipeline().is_none_or(|pipeline| pipeline.is_ended()) {
                return self.finish_oldest();
            }
            if let Some(stalled) = self.take_stalled(now) {
                return Some(stalled);
            }
            // The thread waits for two events at once, a job and the device, so it polls both. The
            // driver would poll too while it waits for its device (`CU_CTX_SCHED_AUTO`), so that
            // this takes no more processor time.
            std::thread::yield_now();
        }
    }

    /// Returns counts of the work of the device.
    pub(super) fn device_usage(&self) -> Option<DeviceUsage> {
        self.executor.device_usage()
    }

    /// Submits a job, executes it, or sets it aside. Returns it if it has an outcome.
    fn begin(&mut self, job: ExecutionJob) -> Option<FinishedJob> {
        if job.reply.is_closed() {
            return None;
        }
        let tokens_max = self.executor.report().tokens_max;
        let batch = self.executor.pipeline().and_then(|_| pack_whole(&job.sequences, tokens_max));
        if let Some((pipeline, batch)) = self.executor.pipeline().zip(batch) {
            let (tokens, sequences, began) = (batch.tokens(), batch.len(), self.clock.now());
            let ExecutionJob { reply, .. } = job;
            if let Err(error) = pipeline.submit(batch) {
                return Some(FinishedJob { reply, result: Err(error.into()) });
            }
            self.in_flight.push_back(SubmittedJob { reply, tokens, sequences, began });
            return None;
        }
        if !self.in_flight.is_empty() {
            self.set_aside = Some(job);
            return None;
        }
        Some(self.execute_lone_job(job))
    }

    /// Executes a job in as many batches as it needs.
    fn execute_lone_job(&mut self, job: ExecutionJob) -> FinishedJob {
        let ExecutionJob { sequences, reply } = job;
        let began = self.clock.now();
        let execution = JobExecution::new(self.executor, self.metrics, self.clock);
        let results = execution.run(&sequences, || reply.is_closed());
        let duration = self.clock.now().since(began);
        FinishedJob { reply, result: results.map(|results| ExecutedJob { results, began, duration }) }
    }

    /// Returns the oldest job in flight if its time has passed. It is not collected, since that
    /// would wait for the device.
    fn take_stalled(&mut self, now: Tick) -> Option<FinishedJob> {
        let time_max = self.batch_time_max;
        let SubmittedJob { reply, .. } = self.in_flight.pop_front_if(|oldest| now.since(oldest.began) > time_max)?;
        Some(FinishedJob { reply, result: Err(ExecuteError::DeviceStall { time_max }.into()) })
    }

    /// Waits for the oldest job in flight.
    fn finish_oldest(&mut self) -> Option<FinishedJob> {
        let SubmittedJob { reply, tokens, sequences, began } = self.in_flight.pop_front()?;
        let collected = self.executor.pipeline()?.collect();
        let now = self.clock.now();
        if let Some(next) = self.in_flight.front_mut() {
            next.began = now;
        }
        let duration = now.since(began);
        let check = |results: Vec<SequenceResult>| match results.len() {
            found if found == sequences => Ok(results),
            results => Err(ExecutionFailure::WrongCount { results, sequences }),
        };
        if collected.is_ok() {
            self.metrics.engine_batch(tokens, sequences, duration);
        }
        let results = collected.map_err(ExecutionFailure::from).and_then(check);
        Some(FinishedJob { reply, result: results.map(|results| ExecutedJob { results, began, duration }) })
    }
}

/// Packs all sequences into one batch. Returns `None` if they exceed the limit of tokens.
fn pack_whole(sequences: &[InputSequence], tokens_max: usize) -> Option<PackedBatch> {
    let mut batch = PackedBatch::new(tokens_max);
    let fits = sequences.iter().all(|sequence| batch.push(&sequence.tokens, sequence.kind).is_ok());
    fits.then_some(batch)
}
