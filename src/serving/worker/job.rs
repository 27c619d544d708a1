//! Execution of one job in packed batches.

use groupage_engine::{BatchFull, ExecuteError, Executor, PackedBatch, SequenceResult};
use groupage_runtime::clock::Clock;
use groupage_runtime::telemetry::Metrics;

use super::ExecutionFailure;
use crate::prepared::InputSequence;

pub(super) struct JobExecution<'a> {
    executor: &'a mut dyn Executor,
    metrics: &'a Metrics,
    clock: Clock,
    batch: PackedBatch,
    results: Vec<SequenceResult>,
}

// === impl JobExecution ===

impl<'a> JobExecution<'a> {
    pub(super) fn new(executor: &'a mut dyn Executor, metrics: &'a Metrics, clock: Clock) -> Self {
        let batch = PackedBatch::new(executor.report().tokens_max);
        Self { executor, metrics, clock, batch, results: Vec::new() }
    }

    /// Executes sequences in their order, as many at a time as the limit of tokens allows (next
    /// fit). They are not sorted by length: packed sequences need no padding, and the caller waits
    /// for all of them.
    ///
    /// `is_cancelled` is called before each batch; if it returns `true`, the job ends without the
    /// remaining results.
    pub(super) fn run(
        mut self,
        sequences: &[InputSequence],
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Vec<SequenceResult>, ExecutionFailure> {
        for InputSequence { tokens, kind, .. } in sequences {
            if self.batch.push(tokens, *kind).is_ok() {
                continue;
            }
            if is_cancelled() {
                return Ok(self.results);
            }
            self.execute_batch()?;
            let too_large =
                |full: BatchFull| ExecuteError::TooManyTokens { tokens: full.added, tokens_max: full.tokens_max };
            self.batch.push(tokens, *kind).map_err(too_large)?;
        }
        if !is_cancelled() {
            self.execute_batch()?;
        }
        Ok(self.results)
    }

    fn execute_batch(&mut self) -> Result<(), ExecutionFailure> {
        let sequences = self.batch.len();
        if sequences == 0 {
            return Ok(());
        }
        let began = self.clock.now();
        let executed = self.executor.execute(&self.batch)?;
        self.metrics.engine_batch(self.batch.tokens(), sequences, self.clock.now().since(began));
        self.batch.clear();
        if executed.len() != sequences {
            return Err(ExecutionFailure::WrongCount { results: executed.len(), sequences });
        }
        self.results.extend(executed);
        Ok(())
    }
}
