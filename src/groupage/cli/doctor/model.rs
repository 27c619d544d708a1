//! The report about a model: its files, and what the engine would do with it.

use std::path::Path;

use groupage_engine::{CpuExecutor, CpuFeatures, Executor as _, ExecutorReport, Model, OutputKind, PackedBatch};
use groupage_serving::{ModelRoute, ServedModel};

use super::{MachineMemory, ReportLines, format_bytes};
use crate::error::BoxError;

/// Text that the model executes to show that it works.
const SAMPLE: &str = "A man is eating food.";

/// Returns the lines about the engine of this build.
pub(super) fn engine_lines(features: &CpuFeatures) -> ReportLines {
    let CpuFeatures { supported, chosen, rejected } = features;
    let mut lines = vec![
        ("build", "has the engine, with an executor on the CPU in 32-bit floating point".to_owned()),
        ("kernels", format!("{chosen} (this CPU has: {})", supported.join(", "))),
    ];
    if !rejected.is_empty() {
        lines.push(("rejected", format!("{}: results differ from those of portable code", rejected.join(", "))));
    }
    lines
}

/// Loads a model as `groupage proxy --engine` does, executes one text, and reports both.
///
/// # Errors
/// The model cannot be loaded or executed. The error names the file and the field or tensor.
pub(super) fn inspect(path: &Path, memory: MachineMemory) -> Result<Vec<(&'static str, ReportLines)>, BoxError> {
    let served = ServedModel::new(Model::open(path)?, 0);
    let mut executor = CpuExecutor::new(served.model(), served.cpu_options())?;
    let tokens = execute_sample(served.model(), &mut executor)?;
    let model = model_lines(served.model());
    Ok(vec![("model", model), ("plan", plan_lines(&served, executor.report(), memory, tokens))])
}

/// Executes a text. Returns its number of tokens.
fn execute_sample(model: &Model, executor: &mut CpuExecutor) -> Result<usize, BoxError> {
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
        ("weights", format!("{}, executed in F32", types.join(", "))),
    ];
    match model.head() {
        Some(head) => lines.push(("head", format!("{} labels, {:?}", head.labels.len(), head.scores))),
        None => {
            let scaling = if model.normalizes() { "scaled to unit length" } else { "not scaled by the model" };
            lines.push(("head", format!("none: embeddings by {:?} pooling, {scaling}", model.pooling())));
        }
    }
    if !prompts.is_empty() {
        lines.push(("prompts", prompts.join(", ")));
    }
    lines
}

fn plan_lines(served: &ServedModel, report: &ExecutorReport, memory: MachineMemory, tokens: usize) -> ReportLines {
    let bytes = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
    let own = bytes(report.weight_bytes).saturating_add(bytes(report.scratch_bytes));
    let whole = own.saturating_add(bytes(report.mapped_bytes));
    let fits = match memory.usable() {
        Some(usable) if usable < own => {
            format!("× more than the {} that this process can use: raise its limit", format_bytes(usable))
        }
        Some(usable) if usable < whole => {
            format!("‼ embeddings are read from the disk where {} is not enough for all", format_bytes(usable))
        }
        _ => "√ fits".to_owned(),
    };
    vec![
        ("serve", routes(served).to_owned()),
        ("device", format!("{}, {} threads", report.kernels, report.threads)),
        ("batches", format!("up to {} tokens, packed without padding", report.tokens_max)),
        (
            "memory",
            format!(
                "{} of packed weights, {} of scratch, and up to {} of the page cache for the files",
                format_bytes(bytes(report.weight_bytes)),
                format_bytes(bytes(report.scratch_bytes)),
                format_bytes(bytes(report.mapped_bytes)),
            ),
        ),
        ("", fits),
        ("sample", format!("√ a text of {tokens} tokens was executed")),
    ]
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
    use super::*;

    fn golden(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine/tests/goldens").join(name)
    }

    fn text(name: &str, memory: MachineMemory) -> String {
        let sections = inspect(&golden(name), memory).unwrap();
        sections.into_iter().flat_map(|(_, lines)| lines).map(|(name, line)| format!("{name}: {line}\n")).collect()
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
            "device: CPU, ",
            "batches: up to 16384 tokens",
            "√ fits",
            "was executed",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(self::text("bert-rerank", MachineMemory::default()).contains("head: 1 labels, Sigmoid"));
    }

    #[test]
    fn memory_that_is_too_small_is_reported() {
        let usable = |bytes| MachineMemory { available: Some(bytes), ..MachineMemory::default() };
        assert!(text("bert", usable(1 << 10)).contains("× more than the 1.0 KiB that this process can use"));
        assert!(text("bert", usable(64 << 30)).contains("√ fits"));
    }

    #[test]
    fn an_error_names_the_file_and_the_field() {
        let folder = tempfile::tempdir().unwrap();
        let error = inspect(folder.path(), MachineMemory::default()).unwrap_err().to_string();
        assert!(error.contains("config.json"), "{error}");
        copy_folder(&golden("bert"), folder.path());
        let path = folder.path().join("config.json");
        let config = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3")).unwrap();
        let error = inspect(folder.path(), MachineMemory::default()).unwrap_err().to_string();
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
