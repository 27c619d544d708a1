//! Two batches in flight: the inputs of the second one are copied while the first one is executed.
//!
//! Kernels of two batches are never executed at the same time, because they share the working
//! memory. The next batch is started as soon as the results of the oldest one are in host memory,
//! before they are divided among its sequences. All of this happens on the thread that calls the
//! executor.
//!
//! Staging is an optimisation. A batch that is too large for it, or for the memory of the device,
//! is executed when it is collected, like a batch that was not submitted.

use super::CudaExecutor;
use super::batch_inputs::{BatchInputs, BatchPart};
use super::batch_outputs::download_outputs;
use super::device::{GpuDevice, STAGED_BYTES_MAX, StagedBytes, StagingArea};
use super::fault::{DeviceError, FaultSeverity};
use super::submitted_batch::{BatchState, SubmittedBatch};
use crate::batch::PackedBatch;
use crate::executor::{BATCHES_MAX, BatchPipeline, ExecuteError, SequenceResult};

impl<D: GpuDevice> BatchPipeline for CudaExecutor<D> {
    fn submit(&mut self, batch: PackedBatch) -> Result<(), ExecuteError> {
        if let Some(fault) = &self.fault {
            return Err(fault.into());
        }
        if self.submitted.is_full() {
            return Err(ExecuteError::TooManyBatches { batches_max: BATCHES_MAX });
        }
        self.limits.check(&batch)?;
        let state = match self.stage_inputs(&batch) {
            Err(error) if error.is_fatal() => return self.report_failure(Err(error)),
            staged => staged.unwrap_or(BatchState::Waiting),
        };
        self.submitted.push(batch, state);
        self.start_oldest();
        Ok(())
    }

    fn is_ended(&mut self) -> bool {
        let is_started = |submitted: &mut SubmittedBatch| matches!(submitted.state, BatchState::Started(_));
        !self.submitted.oldest().is_some_and(is_started) || self.fault.is_some() || self.device.is_idle()
    }

    fn collect(&mut self) -> Result<Vec<SequenceResult>, ExecuteError> {
        let Some(submitted) = self.submitted.pop() else { return Ok(Vec::new()) };
        if let Some(fault) = &self.fault {
            return Err(fault.into());
        }
        let outcome = self.finish(submitted);
        let reported = self.report_failure(outcome);
        self.start_oldest();
        reported
    }
}

// === impl CudaExecutor ===

impl<D: GpuDevice> CudaExecutor<D> {
    /// Copies the inputs of a batch to the region of the next staging area, if the batch can be
    /// executed whole.
    fn stage_inputs(&mut self, batch: &PackedBatch) -> Result<BatchState, DeviceError> {
        self.device.bind_thread()?;
        if batch.is_empty() || !self.ceiling.allows(batch.tokens(), batch.len()) {
            return Ok(BatchState::Waiting);
        }
        let lengths: Vec<usize> = batch.spans().map(|(_, tokens)| tokens).collect();
        let inputs = BatchInputs::new(BatchPart::whole(batch, &lengths), &self.pass.config.positions);
        if inputs.bytes.len() > STAGED_BYTES_MAX {
            return Ok(BatchState::Waiting);
        }
        let area = self.submitted.area();
        self.device.stage(area, area.pick(self.pass.arena.staged), &inputs.bytes)?;
        Ok(BatchState::Staged(inputs))
    }

    /// Launches the kernels of the oldest batch, if its inputs are staged.
    fn start_oldest(&mut self) {
        let Some(oldest) = self.submitted.oldest().filter(|_| self.fault.is_none()) else { return };
        let area = oldest.area;
        let inputs = match std::mem::replace(&mut oldest.state, BatchState::Waiting) {
            BatchState::Staged(inputs) => inputs,
            other => {
                oldest.state = other;
                return;
            }
        };
        // The ceiling may have fallen since the inputs were staged.
        let is_whole = self.ceiling.allows(oldest.batch.tokens(), oldest.batch.len());
        let state = match is_whole.then(|| self.start(area, &inputs)) {
            Some(Ok(())) => BatchState::Started(inputs),
            Some(Err(error)) if error.is_fatal() => {
                self.fault = Some(error);
                BatchState::Waiting
            }
            // After another error, the batch is executed again when it is collected, where a second
            // error is handled.
            Some(Err(_)) | None => BatchState::Waiting,
        };
        if let Some(oldest) = self.submitted.oldest() {
            oldest.state = state;
        }
    }

    /// Launches the kernels of a batch with staged inputs.
    fn start(&mut self, area: StagingArea, inputs: &BatchInputs) -> Result<(), DeviceError> {
        let from = area.pick(self.pass.arena.staged);
        let staged = StagedBytes { area, from, bytes: inputs.bytes.len() };
        // The inputs are copied within the device, because a graph reads them at one address, which
        // cannot be that of both areas.
        self.device.copy_staged(staged, self.pass.arena.inputs)?;
        self.run_encoder(inputs)
    }

    /// Returns the results of a batch, and starts the next one once they are in host memory.
    fn finish(&mut self, submitted: SubmittedBatch) -> Result<Vec<SequenceResult>, DeviceError> {
        self.device.bind_thread()?;
        let lengths = submitted.lengths();
        let SubmittedBatch { batch, state, .. } = submitted;
        let inputs = match state {
            BatchState::Started(inputs) => inputs,
            BatchState::Waiting | BatchState::Staged(_) => return self.run(&batch),
        };
        let part = BatchPart::whole(&batch, &lengths);
        match download_outputs(&mut self.device, &self.pass, part, &inputs) {
            Ok(outputs) => {
                self.usage.padding_tokens += (inputs.key.tokens - batch.tokens()) as u64;
                self.start_oldest();
                Ok(outputs.divide(part))
            }
            Err(error) if error.severity == FaultSeverity::Memory => self.run(&batch),
            Err(error) => Err(error),
        }
    }

    /// Returns the outcome of a batch, and keeps an error that damaged the context.
    pub(super) fn report_failure<T>(&mut self, outcome: Result<T, DeviceError>) -> Result<T, ExecuteError> {
        outcome.map_err(|error| {
            let reported = ExecuteError::from(&error);
            self.fault = self.fault.take().or(Some(error).filter(DeviceError::is_fatal));
            reported
        })
    }
}
