//! Errors of a device while it executes batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::scripted_device::{OUT_OF_MEMORY, ScriptedDevice};
use super::*;
use crate::ExecuteError;

/// Codes of errors of the driver.
const ILLEGAL_ADDRESS: u32 = 700;
const CAPTURE_UNSUPPORTED: u32 = 900;

/// Number of rows of a launch that embeds tokens: its tenth argument.
fn embedded_rows(arguments: &[LaunchArgument]) -> u32 {
    match arguments {
        [.., LaunchArgument::Integer(rows), _, _] if arguments.len() == 12 => *rows,
        _ => 0,
    }
}

#[test]
fn a_batch_that_exceeds_the_memory_is_divided_and_the_size_is_remembered() {
    let model = TinyModel::new(BERT).open();
    let lengths = [40, 50, 60, 70, 80, 90];
    let expected = on_device(&model, SimulatedDevice::new(1)).execute(&batch(&model, &lengths)).unwrap();
    let device = ScriptedDevice::new(|arguments| (embedded_rows(arguments) > 192).then_some(OUT_OF_MEMORY));
    let mut gpu = on_device(&model, device);
    assert_eq!(gpu.execute(&batch(&model, &lengths)).unwrap(), expected, "results do not depend on the division");
    assert_eq!(gpu.device_usage().unwrap().token_ceiling, 195, "half of 390");
    let launches = gpu.device().inner.launches();
    assert_eq!(gpu.execute(&batch(&model, &lengths)).unwrap(), expected);
    let again = gpu.device().inner.launches() - launches;
    assert!(again <= launches, "{again} launches after {launches}: the size is remembered");
}

#[test]
fn a_shortage_beside_graphs_ends_their_use_and_divides_nothing() {
    let model = TinyModel::new(BERT).open();
    // The shape of the graph, for which a replay fails, and another one, for which a launch does.
    for lengths in [&[33, 20][..], &[80, 90]] {
        let expected = on_device(&model, SimulatedDevice::new(1)).execute(&batch(&model, lengths)).unwrap();
        let has_shortage = Arc::new(AtomicBool::new(false));
        let mut device = ScriptedDevice::new(|_| None);
        device.fails_beside_graphs = has_shortage.clone();
        let mut gpu = on_device(&model, device);
        for _ in 0..2 {
            gpu.execute(&batch(&model, &[33, 20])).unwrap();
        }
        assert_eq!(gpu.device().inner.graphs(), 1);
        has_shortage.store(true, Ordering::Relaxed);
        assert_eq!(gpu.execute(&batch(&model, lengths)).unwrap(), expected);
        let usage = gpu.device_usage().unwrap();
        assert_eq!((gpu.device().inner.graphs(), usage.token_ceiling), (0, BATCH_MAX), "{lengths:?}");
    }
}

#[test]
fn a_shortage_that_remains_without_graphs_divides_the_batch() {
    let model = TinyModel::new(BERT).open();
    let lengths = [70, 80, 90];
    let expected = on_device(&model, SimulatedDevice::new(1)).execute(&batch(&model, &lengths)).unwrap();
    let device = ScriptedDevice::new(|arguments| (embedded_rows(arguments) > 192).then_some(OUT_OF_MEMORY));
    let mut gpu = on_device(&model, device);
    for _ in 0..2 {
        gpu.execute(&batch(&model, &[33])).unwrap();
    }
    assert_eq!(gpu.device().inner.graphs(), 1);
    assert_eq!(gpu.execute(&batch(&model, &lengths)).unwrap(), expected);
    assert_eq!((gpu.device().inner.graphs(), gpu.device_usage().unwrap().token_ceiling), (0, 120));
}

#[test]
fn a_single_sequence_that_exceeds_the_memory_is_refused_and_later_ones_are_not() {
    let model = TinyModel::new(BERT).open();
    let device = ScriptedDevice::new(|arguments| (embedded_rows(arguments) > 64).then_some(OUT_OF_MEMORY));
    let mut gpu = on_device(&model, device);
    let error = gpu.execute(&batch(&model, &[130])).unwrap_err();
    assert!(matches!(error, ExecuteError::DeviceRefusal { code: OUT_OF_MEMORY, .. }) && !error.is_fatal());
    assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY (2): send shorter inputs"), "{error}");
    assert_eq!(gpu.execute(&batch(&model, &[10, 20])).unwrap().len(), 2);
}

#[test]
fn a_damaged_context_fails_every_later_batch_at_once() {
    let model = TinyModel::new(BERT).open();
    let mut count = 0;
    let device = ScriptedDevice::new(move |_| {
        count += 1;
        (count == 20).then_some(ILLEGAL_ADDRESS)
    });
    let mut gpu = on_device(&model, device);
    gpu.execute(&batch(&model, &[10])).unwrap();
    let error = gpu.execute(&batch(&model, &[90])).unwrap_err();
    assert!(error.is_fatal() && error.to_string().contains("restart the process"), "{error}");
    let launches = gpu.device().inner.launches();
    assert_eq!(gpu.execute(&batch(&model, &[10])).unwrap_err(), error);
    assert_eq!(gpu.device().inner.launches(), launches, "nothing is launched");
    assert_eq!(gpu.fault().map(|fault| fault.code), Some(ILLEGAL_ADDRESS));
}

#[test]
fn a_device_without_graphs_executes_eagerly() {
    let model = TinyModel::new(BERT).open();
    let expected = on_device(&model, SimulatedDevice::new(1)).execute(&batch(&model, &[33])).unwrap();
    let mut device = ScriptedDevice::new(|_| None);
    device.capture_error = Some(CAPTURE_UNSUPPORTED);
    let mut gpu = on_device(&model, device);
    for _ in 0..4 {
        assert_eq!(gpu.execute(&batch(&model, &[33])).unwrap(), expected);
    }
    assert_eq!((gpu.device().inner.graphs(), gpu.device().inner.replays()), (0, 0));
}

#[test]
fn numbers_that_are_not_finite_are_an_error_of_their_sequence() {
    let bias = "bert.encoder.layer.1.output.LayerNorm.bias";
    let model = TinyModel::new(RERANKER).set_first(RERANKER, &[(bias, f32::INFINITY)]).open();
    // The head turns the infinite element into finite logits.
    for kind in [OutputKind::TokenStates, OutputKind::Embedding, OutputKind::Logits] {
        let mut batch = PackedBatch::new(BATCH_MAX);
        for sequence in sequences(&model, &[3, 4]) {
            batch.push(&sequence, kind).unwrap();
        }
        let expected = executor(&model, 1).execute(&batch).unwrap();
        assert_eq!(expected, [const { Err(crate::NonFiniteOutput) }; 2]);
        assert_eq!(on_device(&model, SimulatedDevice::new(1)).execute(&batch).unwrap(), expected, "{kind:?}");
    }
}

#[test]
fn batches_for_another_model_are_refused() {
    let model = TinyModel::new(BERT).open();
    let mut gpu = on_device(&model, SimulatedDevice::new(1));
    let mut wrong = PackedBatch::new(BATCH_MAX);
    wrong.push(&sequences(&model, &[4])[0], OutputKind::Logits).unwrap();
    assert!(matches!(gpu.execute(&wrong), Err(ExecuteError::NoHead { sequence: 0, .. })));
    let mut large = PackedBatch::new(10_000);
    for sequence in sequences(&model, &[100; 6]) {
        large.push(&sequence, OutputKind::Embedding).unwrap();
    }
    assert_eq!(gpu.execute(&large), Err(ExecuteError::TooManyTokens { tokens: 600, tokens_max: BATCH_MAX }));
}
