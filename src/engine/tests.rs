//! Tests of whole models, against values of other implementations.

mod cuda;
mod damaged;
mod golden;
mod hostile;
mod invariance;
mod minilm;
mod tokenizers;

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{CpuExecutor, CpuOptions, Executor, Model, OutputKind, PackedBatch, SequenceOutput, TokenSequence};

/// Tokens of a batch in tests.
const TOKENS_MAX: usize = 2048;

/// Names of the models with random weights.
const MODELS: [&str; 9] = [
    "bert",
    "bert-rerank",
    "roberta",
    "roberta-classify",
    "xlm-roberta",
    "xlm-roberta-rerank",
    "distilbert-classify",
    "modernbert",
    "modernbert-classify",
];

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

/// Returns a copy of a model.
fn copy_of(name: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&goldens().join(name), copy.path());
    copy
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn read_json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn numbers(value: &serde_json::Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn executor(model: &Model, threads: usize) -> CpuExecutor {
    CpuExecutor::new(model, CpuOptions { threads: Some(threads), tokens_max: TOKENS_MAX }).unwrap()
}

/// Executes sequences as one batch.
fn execute(executor: &mut impl Executor, sequences: &[TokenSequence], kind: OutputKind) -> Vec<Vec<f32>> {
    let mut batch = PackedBatch::new(TOKENS_MAX);
    for sequence in sequences {
        batch.push(sequence, kind).unwrap();
    }
    let values = |output| match output {
        SequenceOutput::Embedding(values)
        | SequenceOutput::Logits(values)
        | SequenceOutput::TokenStates { values, .. } => values,
    };
    executor.execute(&batch).unwrap().into_iter().map(|result| values(result.unwrap())).collect()
}

/// Checks that a batch with results of different kinds, in turn, has those of its sequences alone.
fn check_mixed_kinds(executor: &mut impl Executor, all: &[TokenSequence], kinds: [OutputKind; 3]) {
    let mut batch = PackedBatch::new(TOKENS_MAX);
    for (sequence, kind) in all.iter().zip(kinds.into_iter().cycle()) {
        batch.push(sequence, kind).unwrap();
    }
    let results = executor.execute(&batch).unwrap();
    assert_eq!(results.len(), all.len());
    for ((result, sequence), kind) in results.into_iter().zip(all).zip(kinds.into_iter().cycle()) {
        let single = execute(executor, std::slice::from_ref(sequence), kind).swap_remove(0);
        let together = match (result.unwrap(), kind) {
            (SequenceOutput::Logits(values), OutputKind::Logits)
            | (SequenceOutput::Embedding(values), OutputKind::Embedding)
            | (SequenceOutput::TokenStates { values, .. }, OutputKind::TokenStates) => values,
            other => panic!("{other:?}"),
        };
        assert_eq!(together, single);
    }
    batch.clear();
    assert_eq!(executor.execute(&batch).unwrap(), []);
}

/// Largest difference of two vectors by element.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
