//! Models and devices for which no executor is created.

use super::*;
use crate::CudaLoadError;

fn refuse(model: &Model, device: SimulatedDevice, options: CudaOptions) -> String {
    CudaExecutor::new(model, device, options).unwrap_err().to_string()
}

/// Enough for the weights and for a sequence, and less than the largest batch needs.
const MEMORY_MAX: usize = 600_000;
const OPTIONS: CudaOptions =
    CudaOptions { tokens_max: BATCH_MAX, memory: MemoryLimit::FreeShare(850_000), batch_invariant: true };

#[test]
fn models_without_kernels_are_refused_by_field() {
    let refused = |model: Model| refuse(&model, SimulatedDevice::new(1), OPTIONS);
    let golden = |name: &str| refused(Model::open(&goldens().join(name)).unwrap());
    let edited = |old: &str, new: &str| refused(TinyModel::new(BERT).edit("config.json", old, new).open());
    for (message, parts) in [
        (golden("bert"), ["bert/config.json: field `hidden_size`: found 48", "a multiple of 32 up to 1024"]),
        (golden("modernbert"), ["field `architectures`: found ModernBERT", "expected BERT"]),
        (golden("distilbert-classify"), ["field `architectures`: found a head with Relu", "Tanh"]),
        (edited("\"gelu\"", "\"relu\""), ["field `hidden_act`: found Relu", "expected gelu or gelu_new"]),
        (edited("attention_heads\": 2", "attention_heads\": 4"), ["`num_attention_heads`: found 4 heads of 16", "32"]),
        (
            refused(TinyModel::new(TinyShape { intermediate: 72, ..BERT }).open()),
            ["field `intermediate_size`: found 72", "32"],
        ),
    ] {
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        assert!(message.ends_with("run this model on the CPU"), "{message}");
    }
    let pooled = TinyModel::new(BERT).edit("1_Pooling/config.json", "mean", "max").open();
    assert!(refused(pooled).contains("1_Pooling/config.json: field `pooling_mode`: found max"));
}

#[test]
fn a_device_without_enough_memory_is_refused_with_the_sum() {
    let model = TinyModel::new(BERT).open();
    let options = CudaOptions { memory: MemoryLimit::Bytes(MEMORY_MAX), ..OPTIONS };
    let error = CudaExecutor::new(&model, SimulatedDevice::new(1), options).unwrap_err();
    let CudaLoadError::Memory(shortage) = error else { panic!("{error}") };
    assert_eq!(shortage.total, shortage.weights + shortage.workspace + shortage.results);
    assert!(shortage.available == MEMORY_MAX && shortage.total > MEMORY_MAX, "{shortage:?}");
    let possible = CudaOptions { tokens_max: shortage.tokens_possible, ..options };
    assert!(shortage.tokens_possible >= tiny_model::TOKENS_MAX, "{shortage}");
    CudaExecutor::new(&model, SimulatedDevice::new(1), possible).unwrap();
}

#[test]
fn old_devices_and_wrong_limits_are_refused() {
    let model = TinyModel::new(BERT).open();
    let properties = SimulatedDevice::new(1).properties().clone();
    let old = DeviceProperties { capability: (7, 5), ..properties };
    let message = refuse(&model, SimulatedDevice::with_properties(1, old), OPTIONS);
    assert!(message.contains("compute capability 7.5 is below 8.0"), "{message}");
    let message = refuse(&model, SimulatedDevice::new(1), CudaOptions { tokens_max: 0, ..OPTIONS });
    assert!(message.contains("tokens of a batch: found 0"), "{message}");
}

/// Another process may write to the files of a model between its two uses.
#[test]
fn weights_that_cannot_be_read_are_refused() {
    let tiny = TinyModel::new(BERT);
    let model = tiny.open();
    let weights = std::fs::File::options().write(true).open(tiny.folder.path().join("model.safetensors")).unwrap();
    weights.set_len(100).unwrap();
    let message = refuse(&model, SimulatedDevice::new(1), OPTIONS);
    assert!(message.contains("model.safetensors: the file: found failed to fill whole buffer"), "{message}");
}

#[test]
fn weights_that_do_not_fit_are_refused_as_on_the_cpu() {
    let model = TinyModel::new(BERT).edit("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3").open();
    let message = refuse(&model, SimulatedDevice::new(1), OPTIONS);
    assert!(
        message.contains("tensor `encoder.layer.2.attention.self.query.weight`: found no such tensor"),
        "{message}"
    );
}
