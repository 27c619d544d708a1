//! The executor for GPUs on the simulated device, beside the executor on the CPU.
//!
//! The interpreter stops at races, accesses out of bounds and reads of memory that nothing has
//! written, so each test also holds that there are none.

mod failures;
mod library;
mod pipeline;
mod refusals;
mod scripted_device;
mod storage;
mod tiny_model;

use super::minilm::minilm;
use super::*;
use crate::{
    CudaExecutor, CudaOptions, DeviceProperties, DeviceUsage, GpuDevice, LaunchArgument, MemoryLimit, NumberType,
    SimulatedDevice, finish_embedding,
};
use tiny_model::{TinyModel, TinyShape};

/// Least cosine of the results of both executors. Rounding to bfloat16 has a relative error of at
/// most 2^-9, uniform, in each of some 20 results in a row: about 20 · (2^-9 / √3)² / 2 = 1.3e-5
/// from one.
const COSINE_MIN: f64 = 0.9999;
/// Tokens of a batch of the tiny models.
const BATCH_MAX: usize = 512;

const BERT: TinyShape = TinyShape { golden: "bert", hidden: 64, heads: 2, intermediate: 96 };
const RERANKER: TinyShape = TinyShape { golden: "bert-rerank", hidden: 64, heads: 1, intermediate: 96 };

fn on_device<D: GpuDevice>(model: &Model, device: D) -> CudaExecutor<D> {
    let options = CudaOptions { tokens_max: BATCH_MAX, memory: MemoryLimit::default(), batch_invariant: true };
    CudaExecutor::new(model, device, options).unwrap()
}

/// Sequences of these lengths with ids of the vocabulary.
fn sequences(model: &Model, lengths: &[usize]) -> Vec<TokenSequence> {
    let id = |sequence: usize, at: usize| u32::try_from((sequence * 31 + at * 7919) % 160).unwrap();
    let ids = |(sequence, length): (usize, &usize)| (0..*length).map(|at| id(sequence, at)).collect::<Vec<_>>();
    let encode = |ids: Vec<u32>| model.tokenizer().encode_ids(&ids, false).unwrap();
    lengths.iter().enumerate().map(ids).map(encode).collect()
}

/// A batch of such sequences that requests token states.
fn batch(model: &Model, lengths: &[usize]) -> PackedBatch {
    let mut batch = PackedBatch::new(BATCH_MAX);
    for sequence in sequences(model, lengths) {
        batch.push(&sequence, OutputKind::TokenStates).unwrap();
    }
    batch
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn bits(results: &[Vec<f32>]) -> Vec<Vec<u32>> {
    results.iter().map(|values| values.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Checks that both executors agree on embeddings and hidden states of sequences of many lengths.
fn compare_encoders(name: &str, model: &Model, device: SimulatedDevice) {
    let batch = sequences(model, &[1, 70, 5, 64, 17]);
    let (mut cpu, mut gpu) = (executor(model, 2), on_device(model, device));
    let types = [cpu.report().number_type, gpu.report().number_type];
    assert_eq!(types, [NumberType::Float32, NumberType::Bfloat16], "{name}");
    for kind in [OutputKind::Embedding, OutputKind::TokenStates] {
        let (expected, found) = (execute(&mut cpu, &batch, kind), execute(&mut gpu, &batch, kind));
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let cosine = cosine(found, expected);
            assert!(cosine >= COSINE_MIN, "{name}: {kind:?} of sequence {at}: cosine {cosine}");
        }
        let [first, second] = [&expected[0], &expected[2]].map(|values| &values[..model.config().hidden]);
        assert!(cosine(first, second) < 0.9, "{name}: the sequences differ, so the comparison is not of constants");
    }
}

#[test]
fn tiny_encoders_agree_with_the_cpu() {
    let shapes = [
        BERT,
        TinyShape { golden: "roberta", hidden: 128, heads: 2, intermediate: 160 },
        TinyShape { golden: "bert-rerank", hidden: 128, heads: 1, intermediate: 64 },
        TinyShape { golden: "xlm-roberta-rerank", hidden: 96, heads: 3, intermediate: 32 },
    ];
    for shape in shapes {
        compare_encoders(shape.golden, &TinyModel::new(shape).open(), SimulatedDevice::new(3));
    }
    let distil = TinyModel::new(TinyShape { golden: "distilbert-classify", ..BERT });
    let encoder = distil.edit("config.json", "DistilBertForSequenceClassification", "DistilBertModel");
    let encoder = encoder.edit("1_Pooling/config.json", "max", "mean");
    compare_encoders("DistilBERT without types", &encoder.open(), SimulatedDevice::new(4));
}

#[test]
fn large_tiles_have_the_bits_of_small_ones() {
    let model = TinyModel::new(BERT).open();
    let batch = sequences(&model, &[100, 90]);
    let small = SimulatedDevice::new(1);
    let large = DeviceProperties { multiprocessors: 1, ..small.properties().clone() };
    let found = [small, SimulatedDevice::with_properties(2, large)]
        .map(|device| bits(&execute(&mut on_device(&model, device), &batch, OutputKind::TokenStates)));
    assert_eq!(found[0], found[1]);
}

#[test]
fn heads_agree_with_the_cpu() {
    // Three labels, of a model with an activation function that has no kernel.
    let shape = TinyShape { golden: "roberta-classify", ..BERT };
    let classifier = TinyModel::new(shape).edit("config.json", "\"relu\"", "\"gelu\"");
    for model in [TinyModel::new(RERANKER).open(), classifier.open()] {
        let batch = sequences(&model, &[9, 1, 66, 30]);
        let expected = execute(&mut executor(&model, 2), &batch, OutputKind::Logits);
        let found = execute(&mut on_device(&model, SimulatedDevice::new(6)), &batch, OutputKind::Logits);
        for (found, expected) in found.iter().zip(&expected) {
            // Logits are sums of 64 products of numbers below one, each with the error of the
            // states.
            assert!(difference(found, expected) < 0.05, "{found:?}, {expected:?}");
        }
        let differs = |other: &Vec<f32>| difference(other, &expected[0]) > 0.2;
        assert!(expected.iter().any(differs), "the logits differ by much more than the bound");
    }
}

#[test]
fn a_sequence_has_the_same_bits_alone_and_in_any_batch() {
    let model = TinyModel::new(RERANKER).open();
    let all = sequences(&model, &[3, 65, 1, 20, 128, 7]);
    for kind in [OutputKind::TokenStates, OutputKind::Logits] {
        let mut gpu = on_device(&model, SimulatedDevice::new(8));
        let together = bits(&execute(&mut gpu, &all, kind));
        let mut reversed: Vec<_> = all.clone();
        reversed.reverse();
        let mut backwards = bits(&execute(&mut gpu, &reversed, kind));
        backwards.reverse();
        assert_eq!(together, backwards);
        for (sequence, expected) in all.iter().zip(together) {
            let single = execute(&mut on_device(&model, SimulatedDevice::new(9)), std::slice::from_ref(sequence), kind);
            assert_eq!(bits(&single), [expected]);
        }
    }
}

/// With four multiprocessors, the products of a sequence alone have small tiles, and some of those
/// of the batch have large ones.
#[test]
fn neither_tiles_nor_graphs_change_the_bits_of_a_sequence() {
    let model = TinyModel::new(BERT).open();
    let all = sequences(&model, &[3, 65, 1, 100]);
    let few = DeviceProperties { multiprocessors: 4, ..SimulatedDevice::new(1).properties().clone() };
    let mut gpu = on_device(&model, SimulatedDevice::with_properties(5, few));
    let expected = bits(&execute(&mut on_device(&model, SimulatedDevice::new(1)), &all, OutputKind::TokenStates));
    // The first time, kernels are launched one by one; the second time, they are a graph.
    for replays in [0, 1] {
        assert_eq!(bits(&execute(&mut gpu, &all, OutputKind::TokenStates)), expected);
        assert_eq!(gpu.device().replays(), replays);
    }
    for (sequence, expected) in all.iter().zip(expected) {
        let single = execute(&mut gpu, std::slice::from_ref(sequence), OutputKind::TokenStates);
        assert_eq!(bits(&single), [expected]);
    }
}

#[test]
fn results_of_different_kinds_keep_their_order() {
    let model = TinyModel::new(RERANKER).open();
    let all = sequences(&model, &[3, 12, 5, 9, 1, 2]);
    let mut gpu = on_device(&model, SimulatedDevice::new(10));
    check_mixed_kinds(&mut gpu, &all, [OutputKind::TokenStates, OutputKind::Logits, OutputKind::Embedding]);
}

#[test]
fn a_replayed_graph_has_the_bits_of_single_launches() {
    let model = TinyModel::new(BERT).open();
    let mut gpu = on_device(&model, SimulatedDevice::new(11));
    // The same shape each time, and other tokens.
    let all = sequences(&model, &[40, 30, 20, 33, 37]);
    let mut launches = Vec::new();
    for sequence in &all {
        let found = bits(&execute(&mut gpu, std::slice::from_ref(sequence), OutputKind::TokenStates));
        let eager = execute(
            &mut on_device(&model, SimulatedDevice::new(12)),
            std::slice::from_ref(sequence),
            OutputKind::TokenStates,
        );
        assert_eq!(found, bits(&eager));
        launches.push(gpu.device().launches());
    }
    assert_eq!((gpu.device().graphs(), gpu.device().replays()), (1, 4), "the first batch is executed eagerly");
    let steps: Vec<u64> = launches.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(steps, [launches[0]; 4], "a replay has the launches of an eager execution");
    let usage = gpu.device_usage().unwrap();
    assert_eq!((usage.eager, usage.recorded, usage.replayed), (1, 1, 3));
    // Each batch is padded to 64 tokens.
    assert_eq!(usage.padding_tokens, 5 * 64 - 160);
}

#[test]
fn an_executor_reports_device_and_memory() {
    let model = TinyModel::new(RERANKER).open();
    let gpu = on_device(&model, SimulatedDevice::new(1));
    let report = gpu.report();
    assert_eq!(report.kernels, "CUDA, simulated device, compute capability 8.0, bfloat16");
    assert_eq!((report.tokens_max, report.batch_invariant), (BATCH_MAX, true));
    let unused = DeviceUsage { token_ceiling: BATCH_MAX, ..DeviceUsage::default() };
    assert_eq!(gpu.device_usage(), Some(unused));
    let mut device = SimulatedDevice::new(1);
    let free = device.free_bytes().unwrap();
    drop(on_device(&model, device));
    assert!(report.weight_bytes > 150_000 && report.scratch_bytes > BATCH_MAX * 64 * 2 * 6, "{report:?}");
    assert!(report.weight_bytes + report.scratch_bytes < free);
}

#[test]
fn a_sentence_of_minilm_agrees_with_the_cpu() {
    let Some(folder) = minilm() else { return };
    let model = Model::open(&folder).unwrap();
    let sequence = model.tokenizer().encode_text("A man is eating a piece of bread.", true).unwrap();
    let embed = |mut embedding: Vec<f32>| {
        finish_embedding(&mut embedding, None, model.normalizes());
        embedding
    };
    let batch = [sequence];
    let expected = embed(execute(&mut executor(&model, 2), &batch, OutputKind::Embedding).swap_remove(0));
    let options = CudaOptions { tokens_max: 64, memory: MemoryLimit::default(), batch_invariant: true };
    let mut gpu = CudaExecutor::new(&model, SimulatedDevice::new(1), options).unwrap();
    let found = embed(execute(&mut gpu, &batch, OutputKind::Embedding).swap_remove(0));
    let cosine = cosine(&found, &expected);
    println!("cosine of MiniLM on the simulated device and on the CPU: {cosine}");
    assert!(cosine >= COSINE_MIN);
    // An embedding, six layers of seven launches, and the pooling.
    assert_eq!(gpu.device().launches(), 1 + 6 * 7 + 1);
}
