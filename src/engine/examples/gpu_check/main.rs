//! Checks a GPU in stages, and prints the findings of one as JSON: `gpu_check STAGE [MODEL
//! [CACHE]]`.
//!
//! | stage | finding |
//! |---|---|
//! | `device` | the driver and its devices |
//! | `load` | the time to compile and load each kernel in each storage format |
//! | `kernels` | the agreement of each of them with the interpreter, on small inputs |
//! | `embeddings` | the cosine of embeddings of MODEL to those of the CPU |
//! | `library` | the same with cuBLASLt, if it is installed, and the products that it cannot execute |
//! | `throughput` | tokens per second of MODEL, by length and number of sequences |
//!
//! `MODEL` is the directory of a BERT encoder such as all-MiniLM-L6-v2, and `CACHE` one for
//! compiled kernels. The exit status is 0 only if a GPU was used and everything agrees.
//! `tests/gpu/run.py` runs all stages.

#![expect(clippy::disallowed_methods, reason = "it measures times")]
#![expect(clippy::print_stdout, reason = "it prints its findings")]

mod throughput;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use groupage_engine::{
    CpuExecutor, CpuOptions, CubinCache, CudaDevice, CudaExecutor, CudaOptions, DeviceChoice, DevicePreference,
    Executor, GpuDevice, KernelImage, KernelParity, MemoryLimit, Model, OutputKind, PackedBatch, SequenceOutput,
    choose_device, compare_kernels,
};
use serde_json::{Value, json};
use tempfile::TempDir;

type CheckResult<T> = Result<T, Box<dyn Error>>;

/// Tokens of the largest batch of the throughput: 256 sequences of 512 tokens.
const TOKENS_MAX: usize = 512 * 256;
/// Tokens of the texts, with room.
const TEXT_TOKENS_MAX: usize = 4096;
/// Least cosine to the CPU: the bar of the report, which has the figure. That of the tests on the
/// interpreter is higher.
const COSINE_MIN: f64 = 0.999;
const USAGE: &str = "usage: gpu_check device|load|kernels, or gpu_check embeddings|library|throughput MODEL [CACHE]";

const TEXTS: [&str; 4] = [
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "Deep learning on graphics processors multiplies matrices in sixteen bits and adds in thirty-two.",
    "Yes.",
];

/// Findings of a stage, and whether they are as they should be.
struct StageFindings {
    findings: Value,
    agrees: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    match run_stage(&arguments) {
        Ok(StageFindings { findings, agrees }) => {
            println!("{findings:#}");
            if agrees { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            println!("{}", json!({ "error": error.to_string() }));
            ExitCode::FAILURE
        }
    }
}

fn run_stage(arguments: &[PathBuf]) -> CheckResult<StageFindings> {
    let stage = arguments.first().and_then(|stage| stage.to_str()).ok_or(USAGE)?;
    let model = || arguments.get(1).map(PathBuf::as_path).ok_or(USAGE);
    let cache = arguments.get(2).map(|path| CubinCache::new(path));
    let report = choose_device(DevicePreference::Cuda)?;
    let DeviceChoice::Cuda { ordinal } = report.choice else { return Err("no GPU was chosen".into()) };
    let open = || CudaDevice::open(ordinal, cache.clone());
    match stage {
        "device" => {
            let lines: Vec<String> = report.to_string().lines().map(str::to_owned).collect();
            Ok(StageFindings { findings: json!({ "device": lines }), agrees: true })
        }
        "load" => load_kernels(&mut open()?),
        "kernels" => Ok(compare_all(&mut open()?)),
        "embeddings" => compare_embeddings(model()?, open()?, true),
        "library" => compare_embeddings(model()?, open()?, false),
        "throughput" => measure(model()?, open()?),
        _ => Err(USAGE.into()),
    }
}

/// Loads every kernel and returns the times.
fn load_kernels(device: &mut CudaDevice) -> CheckResult<StageFindings> {
    let (mut loads, mut agrees) = (Vec::new(), true);
    for image in KernelImage::all()? {
        let start = Instant::now();
        let loaded = device.load_kernel(&image);
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        agrees &= loaded.is_ok();
        let (kernel, storage) = (image.name, image.storage.label());
        loads.push(match loaded {
            Ok(_) => json!({ "kernel": kernel, "storage": storage, "milliseconds": milliseconds }),
            Err(error) => json!({ "kernel": kernel, "storage": storage, "error": error.to_string() }),
        });
    }
    Ok(StageFindings { findings: json!({ "loads": loads }), agrees })
}

fn compare_all(device: &mut CudaDevice) -> StageFindings {
    let parities = compare_kernels(device);
    let agrees = parities.iter().all(KernelParity::agrees);
    let describe = |parity: KernelParity| {
        let (kernel, storage, agrees) = (parity.kernel, parity.storage.label(), parity.agrees());
        match parity.error {
            Ok(error) => json!({ "kernel": kernel, "storage": storage, "relative_error": error, "agrees": agrees }),
            Err(error) => {
                json!({ "kernel": kernel, "storage": storage, "error": error.to_string(), "agrees": agrees })
            }
        }
    };
    let kernels: Vec<Value> = parities.into_iter().map(describe).collect();
    StageFindings { findings: json!({ "kernels": kernels }), agrees }
}

/// Compares the embedding of each text on the GPU with that on the CPU. A library multiplies matrices
/// on the GPU only if results may depend on the batch.
fn compare_embeddings(model: &Path, device: CudaDevice, batch_invariant: bool) -> CheckResult<StageFindings> {
    let model = Model::open(model)?;
    let start = Instant::now();
    let options = CudaOptions { tokens_max: TEXT_TOKENS_MAX, memory: MemoryLimit::default(), batch_invariant };
    let mut gpu = CudaExecutor::new(&model, device, options)?;
    let seconds = start.elapsed().as_secs_f64();
    let mut cpu = CpuExecutor::new(&model, CpuOptions { threads: None, tokens_max: TEXT_TOKENS_MAX })?;
    let mut batch = PackedBatch::new(TEXT_TOKENS_MAX);
    for text in TEXTS {
        batch.push(&model.tokenizer().encode_text(text, true)?, OutputKind::Embedding)?;
    }
    let (found, expected) = (embeddings(&mut gpu, &batch)?, embeddings(&mut cpu, &batch)?);
    let cosines: Vec<f64> = found.iter().zip(&expected).map(|(found, expected)| cosine(found, expected)).collect();
    let agrees = cosines.len() == TEXTS.len() && cosines.iter().all(|cosine| *cosine >= COSINE_MIN);
    let findings = json!({
        "start_seconds": seconds,
        "kernels": gpu.report().kernels,
        "rejected": gpu.report().rejected,
        "compiled_kernels": gpu.device().compiled_kernels(),
        "weight_bytes": gpu.report().weight_bytes,
        "cosines": cosines,
    });
    Ok(StageFindings { findings, agrees })
}

fn embeddings(executor: &mut impl Executor, batch: &PackedBatch) -> CheckResult<Vec<Vec<f32>>> {
    let mut found = Vec::new();
    for result in executor.execute(batch)? {
        if let SequenceOutput::Embedding(values) = result? {
            found.push(values);
        }
    }
    Ok(found)
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Measures the throughput of a model with the longest sequences that its positions allow.
fn measure(model: &Path, device: CudaDevice) -> CheckResult<StageFindings> {
    let long = with_longest_sequences(model)?;
    let model = Model::open(long.path())?;
    let options = CudaOptions { tokens_max: TOKENS_MAX, memory: MemoryLimit::default(), batch_invariant: true };
    let mut gpu = CudaExecutor::new(&model, device, options)?;
    let rows = throughput::measure_rows(&model, &mut gpu)?;
    let usage = gpu.device_usage().unwrap_or_default();
    let findings = json!({
        "weight_bytes": gpu.report().weight_bytes,
        "scratch_bytes": gpu.report().scratch_bytes,
        "replayed": usage.replayed,
        "eager": usage.eager,
        "token_ceiling": usage.token_ceiling,
        "throughput": rows,
    });
    Ok(StageFindings { findings, agrees: true })
}

/// Copies a model with a limit of 512 tokens, that of its positions, in place of its own.
fn with_longest_sequences(model: &Path) -> CheckResult<TempDir> {
    let folder = TempDir::new()?;
    for entry in std::fs::read_dir(model)? {
        let path = entry?.path().canonicalize()?;
        let name = path.file_name().ok_or("a file without a name")?;
        std::os::unix::fs::symlink(&path, folder.path().join(name))?;
    }
    let limit = folder.path().join("sentence_bert_config.json");
    if limit.exists() {
        std::fs::remove_file(&limit)?;
    }
    std::fs::write(limit, "{\"max_seq_length\": 512}")?;
    Ok(folder)
}
