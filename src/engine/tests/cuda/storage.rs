//! The storage format, which the weights of a model decide.

use super::*;
use crate::{ExecutorReport, NonFiniteOutput, SimulatedLibrary, StorageFormat};

/// Least cosine in half precision: its roundings are an eighth of those of bfloat16, so that the
/// expected distance from one, 1.3e-5, is divided by 64.
const HALF_COSINE_MIN: f64 = 0.999_99;
/// Largest difference by element of numbers of about one, less than half of that of bfloat16.
const DIFFERENCE_MAX: f32 = 0.02;
/// Tokens of two sequences: few, because they are executed for each kind of result.
const LENGTHS: [usize; 2] = [5, 17];

fn in_half(shape: TinyShape) -> Model {
    TinyModel::new(shape).store_half(|_| true).open()
}

/// Checks that hidden states agree with those of the CPU.
fn compare_states(model: &Model, gpu: &mut impl Executor) {
    let batch = sequences(model, &LENGTHS);
    let expected = execute(&mut executor(model, 2), &batch, OutputKind::TokenStates);
    let found = execute(gpu, &batch, OutputKind::TokenStates);
    assert_eq!(found.len(), LENGTHS.len());
    for (found, expected) in found.iter().zip(&expected) {
        let cosine = cosine(found, expected);
        assert!(cosine >= HALF_COSINE_MIN, "cosine {cosine}");
    }
}

#[test]
fn only_weights_that_are_all_in_f16_decide_for_it() {
    let (bf16, f16) = (StorageFormat::Bf16, StorageFormat::F16);
    for (golden, expected) in [("bert", bf16), ("bert-rerank", bf16), ("roberta", f16), ("xlm-roberta", f16)] {
        let model = Model::open(&goldens().join(golden)).unwrap();
        assert_eq!(StorageFormat::of_model(&model), expected, "{golden}");
    }
    let whole = in_half(BERT);
    assert_eq!(whole.weight_types().into_iter().collect::<Vec<_>>(), ["F16", "I64"]);
    assert_eq!(StorageFormat::of_model(&whole), f16, "a table of integers does not count");
    let mixed = TinyModel::new(BERT).store_half(|name| !name.contains("LayerNorm")).open();
    assert_eq!(StorageFormat::of_model(&mixed), bf16);
    for (model, number_type) in [(&whole, NumberType::Float16), (&mixed, NumberType::Bfloat16)] {
        let ExecutorReport { kernels, number_type: found, .. } =
            on_device(model, SimulatedDevice::new(1)).report().clone();
        assert_eq!(found, number_type);
        assert!(kernels.ends_with(&format!(", {}", number_type.name())), "{kernels}");
    }
}

#[test]
fn weights_in_f16_are_executed_in_f16() {
    let encoder = in_half(BERT);
    compare_states(&encoder, &mut on_device(&encoder, SimulatedDevice::new(3)));
    let reranker = in_half(RERANKER);
    let batch = sequences(&reranker, &LENGTHS);
    for kind in [OutputKind::Embedding, OutputKind::Logits] {
        let expected = execute(&mut executor(&reranker, 2), &batch, kind);
        let found = execute(&mut on_device(&reranker, SimulatedDevice::new(4)), &batch, kind);
        for (found, expected) in found.iter().zip(&expected) {
            assert!(difference(found, expected) < DIFFERENCE_MAX, "{kind:?}: {found:?}, {expected:?}");
        }
    }
}

#[test]
fn a_library_multiplies_in_the_format_of_the_weights() {
    let model = in_half(BERT);
    let options = CudaOptions { tokens_max: BATCH_MAX, memory: MemoryLimit::default(), batch_invariant: false };
    let device = SimulatedDevice::new(1).with_library(SimulatedLibrary::default());
    let mut gpu = CudaExecutor::new(&model, device, options).unwrap();
    assert!(gpu.report().kernels.ends_with("float16, products by a simulated library"), "{:?}", gpu.report());
    compare_states(&model, &mut gpu);
    let library = gpu.device().library().unwrap();
    assert!(library.products > 0 && library.plans.iter().all(|shape| shape.storage == StorageFormat::F16));
}

/// The factor is the largest number of half precision, and elements of normalised states are
/// larger than one in some of the tokens.
#[test]
fn numbers_beyond_the_range_are_an_error_and_no_wrong_result() {
    let factor = "bert.encoder.layer.0.attention.output.LayerNorm.weight";
    let tiny = || TinyModel::new(RERANKER).set_first(RERANKER, &[(factor, 65_504.0)]);
    let (whole, half) = (tiny().open(), tiny().store_half(|_| true).open());
    for kind in [OutputKind::TokenStates, OutputKind::Logits] {
        let mut batch = PackedBatch::new(BATCH_MAX);
        batch.push(&sequences(&whole, &[40])[0], kind).unwrap();
        let on_gpu = |model| on_device(model, SimulatedDevice::new(1)).execute(&batch).unwrap();
        assert_eq!(on_gpu(&half), [Err(NonFiniteOutput)], "{kind:?}");
        assert!(on_gpu(&whole).iter().all(Result::is_ok), "bfloat16 has the range of the CPU");
        assert!(executor(&half, 1).execute(&batch).unwrap().iter().all(Result::is_ok), "{kind:?}");
    }
}

/// An element of a normalised row of 64 is at most √63 = 7.94. That of token 0 nearly is, so that
/// it exceeds the range times 9,000. Those of the others are below 4.
#[test]
fn numbers_beyond_the_range_fail_no_other_sequence() {
    let [words, factor] = ["word_embeddings", "LayerNorm"].map(|name| format!("bert.embeddings.{name}.weight"));
    let values = [(words.as_str(), 60_000.0), (factor.as_str(), 9000.0)];
    let model = TinyModel::new(RERANKER).set_first(RERANKER, &values).store_half(|_| true).open();
    // The first sequence begins with token 0, which the others do not have.
    let all = sequences(&model, &[5, 17, 9]);
    let batch_of = |numbers: &[usize]| {
        let mut batch = PackedBatch::new(BATCH_MAX);
        for number in numbers {
            batch.push(&all[*number], OutputKind::TokenStates).unwrap();
        }
        batch
    };
    let mut gpu = on_device(&model, SimulatedDevice::new(2));
    let together = gpu.execute(&batch_of(&[1, 0, 2])).unwrap();
    assert_eq!(together[1], Err(NonFiniteOutput));
    for (result, number) in [(&together[0], 1), (&together[2], 2)] {
        assert!(result.is_ok(), "sequence {number}");
        assert_eq!(gpu.execute(&batch_of(&[number])).unwrap(), std::slice::from_ref(result), "sequence {number}");
    }
}
