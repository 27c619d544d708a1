//! A library that multiplies matrices in place of the kernels.

use super::*;
use crate::{BatchPipeline, CudaLoadError, ExecutorReport, GemmPlan, GemmShape, SimulatedLibrary, StorageFormat};

/// Products that are checked at the start.
const CHECKED: usize = 3;

fn open(model: &Model, library: SimulatedLibrary, batch_invariant: bool) -> CudaExecutor<SimulatedDevice> {
    let options = CudaOptions { tokens_max: BATCH_MAX, memory: MemoryLimit::default(), batch_invariant };
    let opened: Result<_, CudaLoadError> =
        CudaExecutor::new(model, SimulatedDevice::new(1).with_library(library), options);
    opened.unwrap()
}

fn library(gpu: &CudaExecutor<SimulatedDevice>) -> &SimulatedLibrary {
    gpu.device().library().unwrap()
}

fn states(gpu: &mut impl Executor, batch: &[TokenSequence]) -> Vec<Vec<f32>> {
    execute(gpu, batch, OutputKind::TokenStates)
}

#[test]
fn products_of_a_library_agree_with_the_cpu() {
    let model = TinyModel::new(BERT).open();
    let batch = sequences(&model, &[1, 70, 5]);
    let mut gpu = open(&model, SimulatedLibrary::default(), false);
    let ExecutorReport { kernels, batch_invariant, rejected, .. } = gpu.report().clone();
    assert!(kernels.ends_with("bfloat16, products by a simulated library"), "{kernels}");
    assert!(!batch_invariant && rejected.is_empty());
    let expected = states(&mut executor(&model, 2), &batch);
    for _ in 0..3 {
        for (found, expected) in states(&mut gpu, &batch).iter().zip(&expected) {
            assert!(cosine(found, expected) >= COSINE_MIN);
        }
    }
    // Two layers of three products: two batches with launches, and two replays of a graph.
    assert_eq!(library(&gpu).products, CHECKED + 3 * 2 * 3);
    assert_eq!(gpu.device().replays(), 2);
    // The three products of the check, and of the batch, which has more rows.
    assert_eq!(library(&gpu).planned, 2 * 3, "a shape is planned once");
}

#[test]
fn results_that_must_not_depend_on_the_batch_need_no_library() {
    let model = TinyModel::new(RERANKER).open();
    let all = sequences(&model, &[3, 65, 1, 100]);
    let mut gpu = open(&model, SimulatedLibrary::default(), true);
    assert!(gpu.report().batch_invariant);
    // Four multiprocessors: a sequence alone has products with small tiles, the batch with large
    // ones.
    let few = DeviceProperties { multiprocessors: 4, ..SimulatedDevice::new(1).properties().clone() };
    let mut tiles = on_device(&model, SimulatedDevice::with_properties(5, few));
    for kind in [OutputKind::TokenStates, OutputKind::Logits] {
        // The second time, graphs are recorded and replayed.
        for _ in 0..2 {
            let together = bits(&execute(&mut gpu, &all, kind));
            assert_eq!(bits(&execute(&mut tiles, &all, kind)), together);
            for (sequence, expected) in all.iter().zip(together) {
                assert_eq!(bits(&execute(&mut tiles, std::slice::from_ref(sequence), kind)), [expected]);
            }
        }
    }
    assert!(tiles.device().replays() > 0);
    assert_eq!((library(&gpu).planned, library(&gpu).products), (0, 0));
}

#[test]
fn products_without_a_plan_are_executed_by_the_kernels() {
    let model = TinyModel::new(BERT).open();
    let batch = sequences(&model, &[30, 20]);
    let mut gpu = open(&model, SimulatedLibrary { refuses_residuals: true, ..SimulatedLibrary::default() }, false);
    let expected = states(&mut executor(&model, 2), &batch);
    for (found, expected) in states(&mut gpu, &batch).iter().zip(&expected) {
        assert!(cosine(found, expected) >= COSINE_MIN);
    }
    assert_eq!(library(&gpu).products, 1 + 2, "of each layer, the product without a residual");
    let report = gpu.report();
    let rejected = ["output of the attention", "output of the feed-forward block"];
    assert_eq!(report.rejected, rejected.map(|role| format!("a simulated library, {role}: it has no plan")));
    assert!(!report.batch_invariant, "{report:?}");
    let planned = library(&gpu).planned;
    states(&mut gpu, &batch);
    assert_eq!(library(&gpu).planned, planned, "a refusal is remembered");
}

#[test]
fn a_library_with_wrong_results_is_rejected() {
    let model = TinyModel::new(BERT).open();
    let batch = sequences(&model, &[30, 20]);
    let mut gpu = open(&model, SimulatedLibrary { is_wrong: true, ..SimulatedLibrary::default() }, false);
    let report = gpu.report();
    assert_eq!((report.rejected.len(), report.batch_invariant), (CHECKED, true), "{report:?}");
    let reason = "a simulated library, queries, keys and values: its result differs from that of the kernel by";
    assert!(report.rejected[0].starts_with(reason), "{report:?}");
    assert!(!report.kernels.contains("library"), "{report:?}");
    let expected = bits(&states(&mut on_device(&model, SimulatedDevice::new(1)), &batch));
    assert_eq!(bits(&states(&mut gpu, &batch)), expected);
}

#[test]
fn a_library_that_fails_is_not_used_any_more() {
    let model = TinyModel::new(BERT).open();
    let all = sequences(&model, &[30, 20, 90]);
    let mut plain = on_device(&model, SimulatedDevice::new(1));
    // It fails within the first batch, when a graph is replayed, and with two batches in flight.
    for products in [2, 2 * 6 + 3, 7] {
        let failing = SimulatedLibrary { products_max: Some(CHECKED + products), ..SimulatedLibrary::default() };
        let mut gpu = open(&model, failing, false);
        for _ in 0..4 {
            let mut batch = PackedBatch::new(BATCH_MAX);
            all.iter().take(2).for_each(|sequence| batch.push(sequence, OutputKind::TokenStates).unwrap());
            gpu.submit(batch.clone()).unwrap();
            gpu.submit(batch).unwrap();
            assert!(gpu.collect().is_ok() && gpu.collect().is_ok());
        }
        assert_eq!(library(&gpu).products, CHECKED + products);
        assert_eq!(bits(&states(&mut gpu, &all)), bits(&states(&mut plain, &all)));
    }
}

/// The weights of the check are those of the model, so its products have the shapes of batches.
#[test]
fn plans_are_found_by_shape() {
    let mut device = SimulatedDevice::new(1).with_library(SimulatedLibrary::default());
    let provider = device.gemm_provider().unwrap();
    let shape = GemmShape { rows: 64, columns: 96, depth: 32, has_residual: false, storage: StorageFormat::Bf16 };
    assert_eq!(provider.plan(shape), Ok(Some(GemmPlan(0))));
    assert_eq!(provider.plan(GemmShape { rows: 128, ..shape }), Ok(Some(GemmPlan(1))));
    assert_eq!(provider.plan(GemmShape { storage: StorageFormat::F16, ..shape }), Ok(Some(GemmPlan(2))));
}
