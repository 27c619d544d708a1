//! The report about a model: its files, and what the engine would do with it.

use std::path::Path;

use groupage_engine::{CpuFeatures, DeviceProperties, Executor, ExecutorReport, Model, OutputKind, PackedBatch};
use groupage_serving::{LoadedExecutor, ModelRoute, ServedModel, load_executor};

use super::device::{chosen_gpu, device_lines};
use super::{Inspection, ReportLines, format_bytes, to_u64};
use crate::api::v1alpha1::EngineDevice;
use crate::app::{EnginePlan, plan_engine};
use crate::config::{self, MachineLimits, Overrides, Policy, SourcedValue};
use crate::error::BoxError;
use crate::memory::MachineMemory;

/// Text that the model executes to show that it works.
const SAMPLE: &str = "A man is eating food.";

/// What was loaded, for the lines of the plan.
struct ModelPlan<'a> {
    served: &'a ServedModel,
    report: &'a ExecutorReport,
    /// The GPU that executes the model; `None` for the CPU.
    gpu: Option<&'a DeviceProperties>,
    /// Number of tokens of the text that was executed.
    sample_tokens: usize,
}

/// Returns the lines about the engine of this build, and about the driver of GPUs.
pub(super) fn engine_lines(features: &CpuFeatures) -> ReportLines {
    let CpuFeatures { supported, chosen, rejected } = features;
    let gpu =
        if cfg!(feature = "cuda") { ", and one on GPUs in bfloat16, or in float16 for weights in F16" } else { "" };
    let mut lines = vec![
        ("build", format!("has the engine, with an executor on the CPU in 32-bit floating point{gpu}")),
        ("kernels", format!("{chosen} (this CPU has: {})", supported.join(", "))),
    ];
    if !rejected.is_empty() {
        lines.push(("rejected", format!("{}: results differ from those of portable code", rejected.join(", "))));
    }
    lines
}

/// Loads a model as `groupage proxy --engine` does, on the device that it would choose and within the
/// memory that it would take, executes one text, and reports it.
///
/// # Errors
/// Those of a start: the model cannot be loaded or executed, needs more memory than there is, or a
/// GPU is required and there is none. The error names the file and the field or tensor.
pub(super) fn inspect(inspection: Inspection<'_>) -> Result<Vec<(&'static str, ReportLines)>, BoxError> {
    let Inspection { model, device, memory } = inspection;
    let EnginePlan { served, choice } = plan_engine(&build_policy(model, device)?, memory)?;
    let LoadedExecutor { mut executor, refusal } = load_executor(&served, &choice.settings)?;
    let sample_tokens = execute_sample(served.model(), &mut *executor)?;
    let gpu = chosen_gpu(&choice).filter(|_| refusal.is_none());
    let mut device = device_lines(&choice);
    if let Some(error) = refusal {
        device.push(("", format!("‼ the GPU cannot execute the model, so the CPU does: {error}")));
    }
    let plan = ModelPlan { served: &served, report: executor.report(), gpu, sample_tokens };
    Ok(vec![("model", model_lines(served.model())), ("device", device), ("plan", plan_lines(&plan, memory))])
}

/// Returns the settings of a start with a model and without a file.
fn build_policy(model: &Path, device: EngineDevice) -> Result<Policy, String> {
    let overrides = Overrides {
        engine: Some(SourcedValue::flag("--engine", model.display().to_string())),
        engine_device: Some(SourcedValue::flag("--engine-device", format!("{device:?}"))),
        ..Overrides::default()
    };
    config::build(None, &overrides, &MachineLimits::read()).map_err(|errors| errors.render(false))
}

/// Executes a text. Returns its number of tokens.
fn execute_sample(model: &Model, executor: &mut dyn Executor) -> Result<usize, BoxError> {
    let tokens = model.tokenizer().encode_text(SAMPLE, true)?;
    let kind = if model.head().is_some() { OutputKind::Logits } else { OutputKind::Embedding };
    let mut batch = PackedBatch::new(tokens.len());
    batch.push(&tokens, kind)?;
    for result in executor.execute(&batch)? {
        result?;
    }
    Ok(tokens.len())
}

fn model_lines(model: &Model) -> ReportLines {
    let config = model.config();
    let prompts: Vec<&str> = model.prompts().by_name.keys().map(String::as_str).collect();
    let types: Vec<String> = model.weight_types().into_iter().collect();
    let mut lines = vec![
        ("name", model.name().to_owned()),
        (
            "architecture",
            format!(
                "{:?}: {} layers, {} heads, {} dimensions, {} between the matrices of a layer, {:?}",
                config.architecture, config.layers, config.heads, config.hidden, config.intermediate, config.activation
            ),
        ),
        ("vocabulary", format!("{} tokens", config.vocabulary)),
        ("tokens", format!("at most {} in a text ({} positions)", model.tokens_max(), config.positions_max)),
        ("weights", types.join(", ")),
    ];
    match model.head() {
        Some(head) => lines.push(("head", format!("{} labels", head.labels.len()))),
        None => {
            let scaling = if model.normalizes() { "scaled to unit length" } else { "not scaled by the model" };
            lines.push(("head", format!("none: embeddings by {:?} pooling, {scaling}", model.pooling())));
            if model.lacks_head() {
                lines.push(("", "‼ the head that `config.json` names is not used: its weights are absent".to_owned()));
            }
        }
    }
    if !prompts.is_empty() {
        lines.push(("prompts", prompts.join(", ")));
    }
    lines
}

fn plan_lines(plan: &ModelPlan<'_>, memory: MachineMemory) -> ReportLines {
    let ModelPlan { served, report, gpu, sample_tokens } = plan;
    let device = match gpu {
        Some(_) => report.kernels.clone(),
        None => format!("{}, {} threads", report.kernels, report.threads),
    };
    let [weights, scratch, files] =
        [report.weight_bytes, report.scratch_bytes, report.file_bytes].map(|bytes| format_bytes(to_u64(bytes)));
    let (memory, fits) = match gpu {
        Some(gpu) => {
            let whole = format_bytes(to_u64(gpu.memory_bytes));
            let reserved = format!("{weights} of weights and {scratch} of working memory on the GPU, of {whole}");
            (reserved, "√ reserved".to_owned())
        }
        None => (
            format!(
                "{weights} of packed weights, {scratch} of scratch, and up to {files} of the page cache for the files"
            ),
            describe_fit(report, memory),
        ),
    };
    vec![
        ("serve", routes(served).to_owned()),
        ("device", device),
        ("batches", format!("up to {} tokens, packed without padding", report.tokens_max)),
        ("memory", memory),
        ("", fits),
        ("sample", format!("√ a text of {sample_tokens} tokens was executed")),
    ]
}

/// Compares the memory of an executor on the CPU with what is available now. A start that has too
/// little in all is refused before.
fn describe_fit(report: &ExecutorReport, memory: MachineMemory) -> String {
    let own = to_u64(report.weight_bytes).saturating_add(to_u64(report.scratch_bytes));
    let whole = own.saturating_add(to_u64(report.file_bytes));
    match memory.usable() {
        Some(usable) if usable < own => {
            format!("‼ more than the {} that is available now: end other processes", format_bytes(usable))
        }
        Some(usable) if usable < whole => {
            format!("‼ embeddings are read from the disk where {} is not enough for all", format_bytes(usable))
        }
        _ => "√ fits".to_owned(),
    }
}

/// Returns the routes of a model.
fn routes(served: &ServedModel) -> &'static str {
    match served.root_route() {
        ModelRoute::Rerank => "POST /rerank, /v1/rerank, /v2/rerank, /predict, /tokenize, /decode",
        ModelRoute::Predict => "POST /predict, /tokenize, /decode",
        _ => "POST /v1/embeddings, /embed, /embed_all, /similarity, /tokenize, /decode",
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::tests::gpu;
    use super::*;

    fn golden(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine/tests/goldens").join(name)
    }

    fn text(name: &str, memory: MachineMemory) -> String {
        let model = golden(name);
        let inspection = Inspection { model: &model, device: EngineDevice::Cpu, memory };
        inspect(inspection).unwrap().into_iter().map(|(_, lines)| to_text(&lines)).collect()
    }

    fn to_text(lines: &ReportLines) -> String {
        lines.iter().map(|(name, line)| format!("{name}: {line}\n")).collect()
    }

    fn inspect_error(model: &Path) -> String {
        let inspection = Inspection { model, device: EngineDevice::Auto, memory: MachineMemory::default() };
        inspect(inspection).unwrap_err().to_string()
    }

    fn copy_folder(from: &Path, to: &Path) {
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                std::fs::create_dir(&target).unwrap();
                copy_folder(&entry.path(), &target);
            } else {
                std::fs::copy(entry.path(), target).unwrap();
            }
        }
    }

    #[test]
    fn a_model_is_described_with_its_plan() {
        let text = text("bert", MachineMemory::default());
        for part in [
            "architecture: Bert: 2 layers, ",
            "48 dimensions",
            "tokens: at most 32 in a text",
            "weights: F32",
            "head: none: embeddings by ",
            "/v1/embeddings",
            "chosen: CPU: the CPU is configured",
            "driver: not looked for",
            "device: CPU, ",
            "batches: up to 16384 tokens",
            "√ fits",
            "was executed",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(self::text("bert-rerank", MachineMemory::default()).contains("head: 1 labels"));
    }

    #[test]
    fn memory_that_is_too_small_is_reported() {
        let usable = |bytes| MachineMemory { available: Some(bytes), ..MachineMemory::default() };
        assert!(text("bert", usable(1 << 10)).contains("‼ more than the 1.0 KiB that is available now"));
        assert!(text("bert", usable(64 << 30)).contains("√ fits"));
    }

    /// A start is refused by the same function.
    #[test]
    fn a_model_that_a_start_refuses_for_lack_of_memory_is_an_error_with_the_sum() {
        let model = golden("bert");
        let error = |memory| {
            let inspection = Inspection { model: &model, device: EngineDevice::Cpu, memory };
            inspect(inspection).unwrap_err().to_string()
        };
        let limited = error(MachineMemory { limit: Some(1 << 20), ..MachineMemory::default() });
        assert!(limited.contains("of packed weights") && limited.contains("the memory limit of 1 MiB"), "{limited}");
        let small = error(MachineMemory { total: Some(1 << 20), ..MachineMemory::default() });
        assert!(small.contains("the memory of this machine of 1 MiB"), "{small}");
    }

    #[test]
    fn the_plan_of_a_gpu_has_the_memory_of_the_device() {
        let served = ServedModel::new(Model::open(&golden("bert")).unwrap(), 0);
        let report = ExecutorReport {
            kernels: "CUDA, NVIDIA L4, compute capability 8.9, bfloat16".to_owned(),
            number_type: groupage_engine::NumberType::Bfloat16,
            batch_invariant: true,
            rejected: Vec::new(),
            threads: 1,
            tokens_max: 4096,
            weight_bytes: 1 << 20,
            scratch_bytes: 2 << 20,
            file_bytes: 3 << 20,
        };
        let gpu = gpu((8, 9));
        let plan = ModelPlan { served: &served, report: &report, gpu: Some(&gpu), sample_tokens: 8 };
        // The memory of the machine does not matter.
        let memory = MachineMemory { available: Some(1), ..MachineMemory::default() };
        let text = to_text(&plan_lines(&plan, memory));
        for part in [
            "device: CUDA, NVIDIA L4, compute capability 8.9, bfloat16\n",
            "batches: up to 4096 tokens",
            "memory: 1.0 MiB of weights and 2.0 MiB of working memory on the GPU, of 24.0 GiB",
            "√ reserved",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    /// The result depends on the machine, as that of a start: no kernel of a GPU supports the width of
    /// the tiny model.
    #[test]
    fn a_required_gpu_is_an_error_as_at_the_start() {
        let model = golden("bert");
        let inspection = Inspection { model: &model, device: EngineDevice::Cuda, memory: MachineMemory::default() };
        let error = inspect(inspection).unwrap_err().to_string();
        assert!(error.contains("no GPU can be used") || error.contains("the GPU is required"), "{error}");
    }

    #[test]
    fn an_error_names_the_file_and_the_field() {
        let folder = tempfile::tempdir().unwrap();
        let error = inspect_error(folder.path());
        assert!(error.contains("config.json"), "{error}");
        copy_folder(&golden("bert"), folder.path());
        let path = folder.path().join("config.json");
        let config = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3")).unwrap();
        let error = inspect_error(folder.path());
        assert!(error.contains("tensor `") && error.contains("no such tensor"), "{error}");
    }

    #[test]
    fn rejected_kernels_are_reported() {
        let features =
            CpuFeatures { supported: vec!["AVX-512", "portable"], chosen: "portable", rejected: vec!["AVX-512"] };
        let lines = engine_lines(&features);
        assert_eq!(lines[1].1, "portable (this CPU has: AVX-512, portable)");
        assert!(lines[2].1.contains("AVX-512"));
    }
}
