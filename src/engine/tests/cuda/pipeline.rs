//! Two batches in flight, beside the same batches one at a time.

use groupage_batching::rng::SplitMix64;

use super::scripted_device::{OUT_OF_MEMORY, ScriptedDevice};
use super::*;
use crate::{BATCHES_MAX, BatchPipeline, ExecuteError, SequenceResult};

/// Codes of errors of the driver.
const INVALID_VALUE: u32 = 1;
const ILLEGAL_ADDRESS: u32 = 700;
const LAUNCH_OUT_OF_RESOURCES: u32 = 701;

/// A batch of up to four sequences with results of all kinds.
fn random_batch(model: &Model, random: &mut SplitMix64) -> PackedBatch {
    let mut below = |limit: u64| usize::try_from(random.next_u64() % limit).unwrap();
    let lengths: Vec<usize> = (0..=below(4)).map(|_| 1 + below(90)).collect();
    let mut batch = PackedBatch::new(BATCH_MAX);
    for sequence in sequences(model, &lengths) {
        let kinds = [OutputKind::TokenStates, OutputKind::Logits, OutputKind::Embedding];
        batch.push(&sequence, kinds[below(3)]).unwrap();
    }
    batch
}

/// The bits of all numbers of a batch.
fn result_bits(results: Vec<SequenceResult>) -> Vec<Vec<u32>> {
    let bits = |result: SequenceResult| match result.unwrap() {
        SequenceOutput::Embedding(values)
        | SequenceOutput::Logits(values)
        | SequenceOutput::TokenStates { values, .. } => values.iter().map(|value| value.to_bits()).collect(),
    };
    results.into_iter().map(bits).collect()
}

fn one_at_a_time(model: &Model, batches: &[PackedBatch]) -> Vec<Vec<Vec<u32>>> {
    let mut gpu = on_device(model, SimulatedDevice::new(1));
    batches.iter().map(|batch| result_bits(gpu.execute(batch).unwrap())).collect()
}

/// Executes batches with one or two in flight, by a random choice between submitting the next one
/// and collecting the oldest.
fn in_pipeline<D: GpuDevice>(
    gpu: &mut CudaExecutor<D>,
    batches: &[PackedBatch],
    random: &mut SplitMix64,
) -> Vec<Vec<Vec<u32>>> {
    let (mut rest, mut results) = (batches.iter(), Vec::new());
    let mut in_flight = 0;
    while results.len() < batches.len() {
        let may_submit = in_flight < BATCHES_MAX && (in_flight == 0 || random.next_bool(700));
        match rest.as_slice().first().filter(|_| may_submit) {
            Some(batch) => {
                gpu.submit(batch.clone()).unwrap();
                rest.next();
                in_flight += 1;
            }
            None => {
                results.push(result_bits(gpu.collect().unwrap()));
                in_flight -= 1;
            }
        }
    }
    results
}

#[test]
fn batches_in_flight_have_the_bits_of_single_ones() {
    let model = TinyModel::new(RERANKER).open();
    for seed in 0..3 {
        let mut random = SplitMix64::new(seed);
        let mut batches: Vec<PackedBatch> = (0..6).map(|_| random_batch(&model, &mut random)).collect();
        // A shape that is recorded and replayed, with other tokens each time.
        batches.extend([[33], [40], [35], [50]].map(|lengths| batch(&model, &lengths)));
        let expected = one_at_a_time(&model, &batches);
        let mut gpu = on_device(&model, SimulatedDevice::new(seed));
        assert_eq!(in_pipeline(&mut gpu, &batches, &mut random), expected, "seed {seed}");
        assert!(gpu.device().replays() >= 2, "graphs read the inputs of both areas");
        assert_eq!(gpu.collect(), Ok(Vec::new()), "nothing is in flight");
    }
}

#[test]
fn a_shortage_of_memory_divides_batches_in_flight() {
    let model = TinyModel::new(RERANKER).open();
    for seed in 10..12 {
        let mut random = SplitMix64::new(seed);
        let mut batches: Vec<PackedBatch> = (0..4).map(|_| random_batch(&model, &mut random)).collect();
        batches.insert(2, batch(&model, &[90, 80, 70]));
        let expected = one_at_a_time(&model, &batches);
        let rows = |arguments: &[LaunchArgument]| match arguments {
            [.., LaunchArgument::Integer(rows), _, _] if arguments.len() == 12 => *rows,
            _ => 0,
        };
        let device = ScriptedDevice::new(move |arguments| (rows(arguments) > 128).then_some(OUT_OF_MEMORY));
        let mut gpu = on_device(&model, device);
        assert_eq!(in_pipeline(&mut gpu, &batches, &mut random), expected, "seed {seed}");
        assert!(gpu.device_usage().unwrap().token_ceiling <= 128);
    }
}

#[test]
fn inputs_that_cannot_be_staged_are_copied_when_they_are_needed() {
    let model = TinyModel::new(BERT).open();
    let batches = [batch(&model, &[10, 70]), batch(&model, &[20])];
    let mut device = ScriptedDevice::new(|_| None);
    device.stage_error = Some(INVALID_VALUE);
    let mut gpu = on_device(&model, device);
    let found = in_pipeline(&mut gpu, &batches, &mut SplitMix64::new(1));
    assert_eq!(found, one_at_a_time(&model, &batches));
}

#[test]
fn the_next_batch_is_started_when_the_oldest_is_collected() {
    let model = TinyModel::new(BERT).open();
    let mut gpu = on_device(&model, SimulatedDevice::new(1));
    gpu.submit(batch(&model, &[10])).unwrap();
    let first = gpu.device().launches();
    assert!(first > 0, "the only batch is started at once");
    gpu.submit(batch(&model, &[20])).unwrap();
    assert_eq!(gpu.device().launches(), first, "only its inputs are copied");
    gpu.collect().unwrap();
    assert_eq!(gpu.device().launches(), 2 * first);
    assert!(gpu.is_ended());
}

#[test]
fn a_batch_that_is_refused_affects_no_other() {
    let model = TinyModel::new(BERT).open();
    let batches = [batch(&model, &[10]), batch(&model, &[20, 5])];
    let expected = one_at_a_time(&model, &batches);
    let mut gpu = on_device(&model, SimulatedDevice::new(2));
    gpu.submit(batches[0].clone()).unwrap();
    let mut wrong = PackedBatch::new(BATCH_MAX);
    wrong.push(&sequences(&model, &[4])[0], OutputKind::Logits).unwrap();
    assert!(matches!(gpu.submit(wrong), Err(ExecuteError::NoHead { .. })));
    gpu.submit(batches[1].clone()).unwrap();
    assert_eq!(gpu.submit(batches[0].clone()), Err(ExecuteError::TooManyBatches { batches_max: 2 }));
    // A batch that is not submitted uses the memory of the started one.
    assert_eq!(result_bits(gpu.execute(&batches[1]).unwrap()), expected[1]);
    let found = [gpu.collect(), gpu.collect()].map(|results| result_bits(results.unwrap()));
    assert_eq!(found.as_slice(), expected);
}

#[test]
fn a_failed_launch_is_an_error_of_its_batch_only() {
    let model = TinyModel::new(BERT).open();
    let batches = [batch(&model, &[10]), batch(&model, &[70]), batch(&model, &[20])];
    let expected = one_at_a_time(&model, &batches);
    // The second batch is the only one with 128 rows.
    let device = ScriptedDevice::new(|arguments| {
        (arguments.len() == 12 && arguments.contains(&LaunchArgument::size(128))).then_some(LAUNCH_OUT_OF_RESOURCES)
    });
    let mut gpu = on_device(&model, device);
    gpu.submit(batches[0].clone()).unwrap();
    gpu.submit(batches[1].clone()).unwrap();
    assert_eq!(result_bits(gpu.collect().unwrap()), expected[0]);
    gpu.submit(batches[2].clone()).unwrap();
    let error = gpu.collect().unwrap_err();
    assert!(matches!(error, ExecuteError::DeviceRefusal { code: LAUNCH_OUT_OF_RESOURCES, .. }), "{error}");
    assert_eq!(result_bits(gpu.collect().unwrap()), expected[2]);
}

#[test]
fn a_damaged_context_fails_every_batch_in_flight() {
    let model = TinyModel::new(BERT).open();
    let batches = [batch(&model, &[10]), batch(&model, &[70])];
    let expected = one_at_a_time(&model, &batches);
    let mut count = 0;
    // The first batch has 1 + 2 * 7 launches before it is collected.
    let device = ScriptedDevice::new(move |_| {
        count += 1;
        (count == 17).then_some(ILLEGAL_ADDRESS)
    });
    let mut gpu = on_device(&model, device);
    gpu.submit(batches[0].clone()).unwrap();
    gpu.submit(batches[1].clone()).unwrap();
    assert_eq!(result_bits(gpu.collect().unwrap()), expected[0], "its results were complete before");
    assert!(gpu.is_ended());
    let error = gpu.collect().unwrap_err();
    assert!(error.is_fatal(), "{error}");
    assert_eq!(gpu.submit(batches[0].clone()), Err(error));
    assert_eq!(gpu.execute(&batches[0]), Err(error));
    assert_eq!(gpu.fault().map(|fault| fault.code), Some(ILLEGAL_ADDRESS));
}
