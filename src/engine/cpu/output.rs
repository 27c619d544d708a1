//! Results of sequences from their hidden states.

use crate::batch::{OutputKind, PackedBatch};
use crate::config::HeadPooling;
use crate::cpu::kernels::InputMatrix;
use crate::cpu::layers::{EncoderLayers, HeadLayers};
use crate::cpu::linear::{Device, OutputRows};
use crate::executor::{NonFiniteOutput, SequenceOutput, SequenceResult};
use crate::pooling::Pooling;

/// Returns the result of each sequence. `scratch` has room for a hidden state of each.
///
/// Hidden states are checked before they are pooled: an activation function of the head, such as
/// the hyperbolic tangent, turns infinite ones into finite logits.
pub(super) fn collect(
    device: Device<'_>,
    layers: &EncoderLayers,
    batch: &PackedBatch,
    states: &[f32],
    scratch: &mut [f32],
) -> Vec<SequenceResult> {
    let hidden = layers.config.hidden;
    let mut logits = layers.head.iter().flat_map(|head| head.logits(device, batch, states, scratch));
    let sequences = batch.spans().zip(batch.kinds());
    let output = |((start, tokens), kind): ((usize, usize), &OutputKind)| {
        let rows = states.get(start * hidden..(start + tokens) * hidden).unwrap_or_default();
        let logits = if *kind == OutputKind::Logits { logits.next() } else { None };
        if !rows.iter().all(|value| value.is_finite()) {
            return Err(NonFiniteOutput);
        }
        let output = match kind {
            OutputKind::Embedding => {
                let mut pooled = vec![0.0; hidden];
                layers.pooling.pool(rows, &mut pooled);
                SequenceOutput::Embedding(pooled)
            }
            OutputKind::TokenStates => SequenceOutput::TokenStates { values: rows.to_vec(), hidden },
            OutputKind::Logits => SequenceOutput::Logits(logits.unwrap_or_default()),
        };
        output.check_finite()
    };
    sequences.map(output).collect()
}

// === impl HeadLayers ===

impl HeadLayers {
    /// Returns the logits of the sequences that request them, in their order.
    fn logits(&self, device: Device<'_>, batch: &PackedBatch, states: &[f32], scratch: &mut [f32]) -> Vec<Vec<f32>> {
        let hidden = self.dense.weights.columns();
        let pooling = match self.pooling {
            HeadPooling::First => Pooling::First,
            HeadPooling::Mean => Pooling::Mean,
        };
        let requested = batch.spans().zip(batch.kinds()).filter(|(_, kind)| **kind == OutputKind::Logits);
        let spans: Vec<(usize, usize)> = requested.map(|(span, _)| span).collect();
        for ((start, tokens), pooled) in spans.iter().zip(scratch.chunks_exact_mut(hidden)) {
            pooling.pool(states.get(start * hidden..(start + tokens) * hidden).unwrap_or_default(), pooled);
        }
        let rows = spans.len();
        let mut dense = vec![0.0; rows * hidden];
        let output = OutputRows { data: &mut dense, stride: hidden, rows };
        self.dense.apply(device, InputMatrix { data: scratch, stride: hidden }, output, Some(self.activation));
        if let Some(norm) = &self.norm {
            norm.apply(device, &mut dense);
        }
        let labels = self.classifier.weights.columns();
        let mut logits = vec![0.0; rows * labels];
        let output = OutputRows { data: &mut logits, stride: labels, rows };
        self.classifier.apply(device, InputMatrix { data: &dense, stride: hidden }, output, None);
        logits.chunks_exact(labels).map(<[f32]>::to_vec).collect()
    }
}
