//! Checks a GPU and prints the findings as JSON: `gpu_check MODEL [CACHE]`.
//!
//! `MODEL` is the directory of a BERT encoder such as all-MiniLM-L6-v2, and `CACHE` one for compiled
//! kernels. The object has the device, the load of every kernel, its agreement with the interpreter, the
//! cosine of embeddings to those of the CPU, and tokens per second by length and number of sequences.
//! The exit status is 0 only if everything agrees.

#![expect(clippy::disallowed_methods, reason = "it measures times")]
#![expect(clippy::print_stdout, reason = "it prints its findings")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use groupage_engine::{
    CpuExecutor, CpuOptions, CubinCache, CudaDevice, CudaExecutor, CudaOptions, DeviceChoice, DevicePreference,
    Executor, GpuDevice, KernelImage, Model, OutputKind, PackedBatch, SequenceOutput, TokenSequence, choose_device,
    compare_kernels,
};
use serde_json::{Value, json};
use tempfile::TempDir;

type CheckResult<T> = Result<T, Box<dyn Error>>;

/// Lengths and numbers of sequences of the table.
const LENGTHS: [usize; 4] = [16, 64, 128, 512];
const COUNTS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Tokens of the largest batch of the table.
const TOKENS_MAX: usize = 512 * 256;
/// Executions before the first that is measured: the second one of a shape records its graph.
const WARM_UPS: usize = 3;
/// Executions that are measured: until this time has passed, and at least and at most these numbers.
const SECONDS: f64 = 0.2;
const RUNS_MIN: usize = 5;
const RUNS_MAX: usize = 200;
/// Least cosine to the CPU, as in the tests on the interpreter.
const COSINE_MIN: f64 = 0.9999;

const TEXTS: [&str; 4] = [
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "Deep learning on graphics processors multiplies matrices in sixteen bits and adds in thirty-two.",
    "Yes.",
];

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let Some(model) = arguments.first() else {
        println!("{}", json!({ "error": "usage: gpu_check MODEL [CACHE]" }));
        return ExitCode::from(2);
    };
    match check(model, arguments.get(1).map(PathBuf::as_path)) {
        Ok((findings, true)) => {
            println!("{findings:#}");
            ExitCode::SUCCESS
        }
        Ok((findings, false)) => {
            println!("{findings:#}");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("{}", json!({ "error": error.to_string() }));
            ExitCode::FAILURE
        }
    }
}

/// Returns the findings, and whether all comparisons agree.
fn check(model: &Path, cache: Option<&Path>) -> CheckResult<(Value, bool)> {
    let report = choose_device(DevicePreference::Cuda)?;
    let DeviceChoice::Cuda { ordinal } = report.choice else { return Err("no GPU was chosen".into()) };
    let cache = cache.map(CubinCache::new);
    let loads = load_kernels(&mut CudaDevice::open(ordinal, cache.clone())?)?;
    let parities = compare_kernels(&mut CudaDevice::open(ordinal, cache.clone())?);
    let agrees = parities.iter().all(groupage_engine::KernelParity::agrees);
    let parity = parities.iter().map(|parity| match &parity.error {
        Ok(error) => json!({ "kernel": parity.kernel, "relative_error": error, "agrees": parity.agrees() }),
        Err(error) => json!({ "kernel": parity.kernel, "error": error.to_string() }),
    });
    let parity: Vec<Value> = parity.collect();

    let long = with_longest_sequences(model)?;
    let model = Model::open(long.path())?;
    let options = CudaOptions { tokens_max: TOKENS_MAX, memory_max: None };
    let start = Instant::now();
    let mut gpu = CudaExecutor::new(&model, CudaDevice::open(ordinal, cache)?, options)?;
    let seconds = start.elapsed().as_secs_f64();
    let cosines = compare_embeddings(&model, &mut gpu)?;
    let is_close = cosines.iter().all(|cosine| *cosine >= COSINE_MIN);
    let memory = json!({ "weights": gpu.report().weight_bytes, "workspace": gpu.report().scratch_bytes });
    let start = json!({ "seconds": seconds, "compiled_kernels": gpu.device().compiled_kernels(), "bytes": memory });
    let findings = json!({
        "device": report.to_string().lines().collect::<Vec<_>>(),
        "loads": loads,
        "parity": parity,
        "start": start,
        "cosines": cosines,
        "throughput": measure_table(&model, &mut gpu)?,
    });
    Ok((findings, agrees && is_close))
}

/// Loads every kernel and returns the times.
fn load_kernels(device: &mut CudaDevice) -> CheckResult<Vec<Value>> {
    let mut loads = Vec::new();
    for image in KernelImage::all()? {
        let start = Instant::now();
        let loaded = device.load_kernel(&image);
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        loads.push(match loaded {
            Ok(_) => json!({ "kernel": image.name, "milliseconds": milliseconds }),
            Err(error) => json!({ "kernel": image.name, "error": error.to_string() }),
        });
    }
    Ok(loads)
}

/// Copies a model with the longest sequences that its positions allow, up to that of the table.
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

/// Returns the cosine of the embedding of each text on the GPU and on the CPU.
fn compare_embeddings(model: &Model, gpu: &mut impl Executor) -> CheckResult<Vec<f64>> {
    let mut cpu = CpuExecutor::new(model, CpuOptions { threads: None, tokens_max: 4096 })?;
    let mut batch = PackedBatch::new(4096);
    for text in TEXTS {
        batch.push(&model.tokenizer().encode_text(text, true)?, OutputKind::Embedding)?;
    }
    let (found, expected) = (embeddings(gpu, &batch)?, embeddings(&mut cpu, &batch)?);
    Ok(found.iter().zip(&expected).map(|(found, expected)| cosine(found, expected)).collect())
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

/// Measures every length and number of sequences.
fn measure_table(model: &Model, gpu: &mut impl Executor) -> CheckResult<Vec<Value>> {
    let mut table = Vec::new();
    for length in LENGTHS.into_iter().filter(|length| *length <= model.tokens_max()) {
        for count in COUNTS {
            let mut batch = PackedBatch::new(TOKENS_MAX);
            for sequence in 0..count {
                batch.push(&sequence_of(model, sequence, length)?, OutputKind::Embedding)?;
            }
            let seconds = median_seconds(gpu, &batch)?;
            let tokens = f64::from(u32::try_from(length * count)?);
            table.push(json!({
                "length": length,
                "sequences": count,
                "milliseconds": seconds * 1e3,
                "tokens_per_second": (tokens / seconds).round(),
            }));
        }
    }
    Ok(table)
}

/// Returns a sequence with ids from all of the vocabulary, so that its embeddings are not in a cache.
fn sequence_of(model: &Model, sequence: usize, length: usize) -> CheckResult<TokenSequence> {
    let vocabulary = model.config().vocabulary;
    let id = |at: usize| u32::try_from((sequence * 8191 + at * 7919 + 1000) % vocabulary);
    let ids = (0..length).map(id).collect::<Result<Vec<u32>, _>>()?;
    Ok(model.tokenizer().encode_ids(&ids, false)?)
}

fn median_seconds(gpu: &mut impl Executor, batch: &PackedBatch) -> CheckResult<f64> {
    for _ in 0..WARM_UPS {
        gpu.execute(batch)?;
    }
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.len() < RUNS_MIN || (times.len() < RUNS_MAX && begin.elapsed().as_secs_f64() < SECONDS) {
        let start = Instant::now();
        gpu.execute(batch)?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().ok_or_else(|| "no execution was measured".into())
}
