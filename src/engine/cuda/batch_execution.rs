//! The execution of one batch: in parts if memory is short, and with graphs and a library as long as
//! they do not fail.

use super::CudaExecutor;
use super::batch_inputs::{BatchInputs, BatchPart};
use super::batch_outputs::download_outputs;
use super::device::GpuDevice;
use super::fault::{DeviceError, FaultSeverity};
use super::graph_cache::GraphDecision;
use crate::batch::PackedBatch;
use crate::executor::SequenceResult;

impl<D: GpuDevice> CudaExecutor<D> {
    /// Executes a batch in as few parts as the memory allows.
    pub(super) fn run(&mut self, batch: &PackedBatch) -> Result<Vec<SequenceResult>, DeviceError> {
        self.device.bind_thread()?;
        let spans: Vec<(usize, usize)> = batch.spans().collect();
        let lengths: Vec<usize> = spans.iter().map(|(_, tokens)| *tokens).collect();
        let mut results = Vec::with_capacity(lengths.len());
        // The next part is the last one.
        let mut pending = self.ceiling.divide(&lengths, 0..lengths.len());
        pending.reverse();
        while let Some(range) = pending.pop() {
            let start = spans.get(range.start).map_or(0, |(start, _)| *start);
            let part_lengths = lengths.get(range.clone()).unwrap_or_default();
            let tokens: usize = part_lengths.iter().sum();
            let part = BatchPart {
                ids: batch.ids().get(start..start + tokens).unwrap_or_default(),
                type_ids: batch.type_ids().get(start..start + tokens).unwrap_or_default(),
                lengths: part_lengths,
                kinds: batch.kinds().get(range.clone()).unwrap_or_default(),
            };
            match self.run_part(part) {
                Ok(part) => results.extend(part),
                // Graphs have memory of their own, and save time only. Without them the batch may fit, so
                // it is not divided yet. There are none the next time.
                Err(error) if error.severity == FaultSeverity::Memory && self.release_graphs() > 0 => {
                    pending.push(range);
                }
                // A library saves time only, too, and loads kernels into memory of its own.
                Err(error) if !error.is_fatal() && self.release_library() => {
                    pending.push(range);
                }
                Err(error) if error.severity == FaultSeverity::Memory => {
                    if !self.ceiling.on_shortage(tokens, range.len()) {
                        return Err(error);
                    }
                    pending.extend(self.ceiling.divide(&lengths, range).into_iter().rev());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(results)
    }

    fn run_part(&mut self, part: BatchPart<'_>) -> Result<Vec<SequenceResult>, DeviceError> {
        let inputs = BatchInputs::new(part, &self.pass.config.positions);
        self.device.upload(self.pass.arena.inputs, &inputs.bytes)?;
        self.run_encoder(&inputs)?;
        self.usage.padding_tokens += (inputs.key.tokens - part.ids.len()) as u64;
        Ok(download_outputs(&mut self.device, &self.pass, part, &inputs)?.divide(part))
    }

    /// Computes the hidden states of a batch.
    pub(super) fn run_encoder(&mut self, inputs: &BatchInputs) -> Result<(), DeviceError> {
        let step = self.graphs.decide(inputs.key);
        if let Some(graph) = step.evicted {
            self.device.release_graph(graph);
        }
        if let GraphDecision::Replay(graph) = step.decision {
            self.usage.replayed += 1;
            return self.device.replay_graph(graph);
        }
        let operations = self.pass.encoder_operations(&mut self.device, &mut self.plans, inputs)?;
        if step.decision == GraphDecision::Capture {
            match self.device.capture_graph(&operations) {
                Ok(graph) => {
                    self.graphs.insert(inputs.key, graph);
                    self.usage.recorded += 1;
                    return self.device.replay_graph(graph);
                }
                Err(error) if error.is_fatal() => return Err(error),
                // Graphs save time only, so a device without them executes the batch all the same.
                Err(_) => _ = self.release_graphs(),
            }
        }
        self.usage.eager += 1;
        operations.iter().try_for_each(|operation| self.device.perform(operation))
    }

    /// Ends the use of a library, and of the graphs with its products. Returns `false` if none is
    /// used.
    fn release_library(&mut self) -> bool {
        let is_used = self.plans.disable();
        if is_used {
            self.graphs.clear().into_iter().for_each(|graph| self.device.release_graph(graph));
        }
        is_used
    }

    /// Frees all graphs, and executes later batches without. Returns their number.
    fn release_graphs(&mut self) -> usize {
        let graphs = self.graphs.disable();
        graphs.iter().for_each(|graph| self.device.release_graph(*graph));
        graphs.len()
    }
}
