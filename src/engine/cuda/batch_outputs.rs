//! Results of the sequences of a batch, copied from the device.

use super::batch_inputs::{BatchInputs, BatchPart};
use super::device::{DeviceAddress, GpuDevice};
use super::encoder_pass::EncoderPass;
use super::fault::DeviceError;
use super::storage_format::STORAGE_BYTES;
use crate::batch::OutputKind;
use crate::executor::{NonFiniteOutput, SequenceOutput, SequenceResult};

/// Numbers of a batch in host memory, one list for each kind of result. A kind that is not requested
/// has none.
#[derive(Debug, Default)]
pub(crate) struct HostOutputs {
    /// A pooled hidden state a sequence.
    pooled: Vec<f32>,
    /// The hidden state that the head reads, of each sequence.
    head_inputs: Vec<f32>,
    /// A hidden state a token.
    states: Vec<f32>,
    /// One number a label, for each sequence that requests them.
    logits: Vec<f32>,
    /// Number of elements of a hidden state.
    hidden: usize,
    /// Number of labels of the head.
    labels: usize,
}

/// Computes the requested results from the hidden states and copies them. Each list needs a launch
/// or a copy, so those that no sequence requests are left out.
pub(crate) fn download_outputs(
    device: &mut impl GpuDevice,
    pass: &EncoderPass,
    part: BatchPart<'_>,
    inputs: &BatchInputs,
) -> Result<HostOutputs, DeviceError> {
    let (hidden, arena, sequences) = (pass.config.hidden, pass.arena, part.lengths.len());
    let labels = pass.config.head.as_ref().map_or(0, |head| head.labels.len());
    let mut outputs = HostOutputs { hidden, labels, ..HostOutputs::default() };
    if part.kinds.contains(&OutputKind::Embedding) {
        device.launch(&pass.pool(&pass.kernels.pooling, inputs, sequences)?)?;
        outputs.pooled = download_floats(device, arena.pooled, sequences * hidden)?;
    }
    if let Some(kernels) = pass.kernels.head.as_ref().filter(|_| inputs.head_rows > 0) {
        device.launch(&pass.pool(&kernels.input, inputs, sequences)?)?;
        outputs.head_inputs = download_floats(device, arena.pooled, sequences * hidden)?;
        for launch in pass.head_launches(inputs)? {
            device.launch(&launch)?;
        }
        outputs.logits = download_floats(device, arena.logits, inputs.head_rows * labels)?;
    }
    if part.kinds.contains(&OutputKind::TokenStates) {
        let mut bytes = vec![0; part.ids.len() * hidden * STORAGE_BYTES];
        device.download(arena.states, &mut bytes)?;
        outputs.states = pass.kernels.storage.decode_all(&bytes);
    }
    Ok(outputs)
}

fn download_floats(device: &mut impl GpuDevice, from: DeviceAddress, count: usize) -> Result<Vec<f32>, DeviceError> {
    let mut bytes = vec![0; count * size_of::<f32>()];
    device.download(from, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

// === impl HostOutputs ===

impl HostOutputs {
    /// Divides the numbers among the sequences.
    pub(crate) fn divide(&self, part: BatchPart<'_>) -> Vec<SequenceResult> {
        let Self { hidden, labels, .. } = *self;
        let slice = |values: &[f32], start: usize, count: usize| {
            values.iter().skip(start).take(count).copied().collect::<Vec<_>>()
        };
        let (mut token, mut request) = (0, 0);
        let mut results = Vec::with_capacity(part.lengths.len());
        for (sequence, (length, kind)) in part.lengths.iter().zip(part.kinds).enumerate() {
            results.push(match kind {
                OutputKind::Embedding => {
                    SequenceOutput::Embedding(slice(&self.pooled, sequence * hidden, hidden)).check_finite()
                }
                OutputKind::TokenStates => {
                    let values = slice(&self.states, token * hidden, length * hidden);
                    SequenceOutput::TokenStates { values, hidden }.check_finite()
                }
                OutputKind::Logits => {
                    request += 1;
                    let logits = slice(&self.logits, (request - 1) * labels, labels);
                    // The hyperbolic tangent of the head turns infinite numbers into finite ones.
                    let input = slice(&self.head_inputs, sequence * hidden, hidden);
                    let is_finite = input.iter().all(|value| value.is_finite());
                    if is_finite { SequenceOutput::Logits(logits).check_finite() } else { Err(NonFiniteOutput) }
                }
            });
            token += length;
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_divided_in_the_order_of_the_sequences() {
        let outputs = HostOutputs {
            pooled: vec![1.0, 2.0, 0.0, 0.0, 0.0, 0.0, f32::NAN, 4.0],
            states: (0_u8..14).map(f32::from).collect(),
            head_inputs: vec![f32::INFINITY, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 2.0, f32::INFINITY],
            logits: vec![5.0, 6.0, 7.0, 8.0, 8.0, 8.0],
            hidden: 2,
            labels: 3,
        };
        let kinds = [OutputKind::Embedding, OutputKind::Logits, OutputKind::TokenStates, OutputKind::Embedding];
        let kinds = [kinds.as_slice(), &[OutputKind::Logits]].concat();
        let part = BatchPart { ids: &[0; 8], type_ids: &[0; 8], lengths: &[1, 3, 2, 1, 1], kinds: &kinds };
        let expected = [
            Ok(SequenceOutput::Embedding(vec![1.0, 2.0])),
            Ok(SequenceOutput::Logits(vec![5.0, 6.0, 7.0])),
            Ok(SequenceOutput::TokenStates { values: vec![8.0, 9.0, 10.0, 11.0], hidden: 2 }),
            Err(NonFiniteOutput),
            Err(NonFiniteOutput),
        ];
        assert_eq!(outputs.divide(part), expected);
    }
}
