//! Submitted batches, with results that are not collected yet.

use std::collections::VecDeque;

use super::batch_inputs::BatchInputs;
use super::device::StagingArea;
use crate::batch::PackedBatch;
use crate::executor::BATCHES_MAX;

/// State of a submitted batch.
#[derive(Debug)]
pub(crate) enum BatchState {
    /// Nothing of it is on the device. It is executed when it is collected, in parts if necessary.
    Waiting,
    /// Its inputs are copied to the region of its area.
    Staged(BatchInputs),
    /// Its kernels are launched.
    Started(BatchInputs),
}

/// A submitted batch. Its sequences are kept until it is collected, because a shortage of memory
/// may require to execute it again in parts.
#[derive(Debug)]
pub(crate) struct SubmittedBatch {
    pub(crate) batch: PackedBatch,
    pub(crate) area: StagingArea,
    pub(crate) state: BatchState,
}

/// Submitted batches, the oldest first: at most [`BATCHES_MAX`].
#[derive(Debug)]
pub(crate) struct SubmittedBatches {
    queue: VecDeque<SubmittedBatch>,
    /// Area of the next batch. Areas alternate, so that two batches in flight never share one.
    area: StagingArea,
}

// === impl SubmittedBatch ===

impl SubmittedBatch {
    /// Numbers of tokens of its sequences.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.batch.spans().map(|(_, tokens)| tokens).collect()
    }
}

// === impl SubmittedBatches ===

impl SubmittedBatches {
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= BATCHES_MAX
    }

    /// Returns the area of the next batch.
    pub(crate) fn area(&self) -> StagingArea {
        self.area
    }

    /// Adds a batch in the area of [`Self::area`].
    pub(crate) fn push(&mut self, batch: PackedBatch, state: BatchState) {
        self.queue.push_back(SubmittedBatch { batch, area: self.area, state });
        self.area = self.area.next();
    }

    pub(crate) fn oldest(&mut self) -> Option<&mut SubmittedBatch> {
        self.queue.front_mut()
    }

    pub(crate) fn pop(&mut self) -> Option<SubmittedBatch> {
        self.queue.pop_front()
    }

    /// Forgets that a batch was started, so that it is executed when it is collected.
    pub(crate) fn restart(&mut self) {
        for submitted in &mut self.queue {
            if matches!(submitted.state, BatchState::Started(_)) {
                submitted.state = BatchState::Waiting;
            }
        }
    }
}

impl Default for SubmittedBatches {
    fn default() -> Self {
        Self { queue: VecDeque::with_capacity(BATCHES_MAX), area: StagingArea::First }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_batches_in_flight_have_different_areas() {
        let mut submitted = SubmittedBatches::default();
        let push = |submitted: &mut SubmittedBatches| submitted.push(PackedBatch::new(1), BatchState::Waiting);
        push(&mut submitted);
        for _ in 0..3 {
            assert!(!submitted.is_full());
            push(&mut submitted);
            assert!(submitted.is_full());
            let oldest = submitted.pop().unwrap();
            assert_ne!(oldest.area, submitted.oldest().unwrap().area);
        }
    }
}
