//! Models and executors for the tests of this crate, and tests of the routes.

mod batches;
mod errors;
mod forwarded_calls;
mod memory;
mod options;
mod routes;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use groupage_engine::{
    ExecuteError, Executor, ExecutorReport, Model, NonFiniteOutput, NumberType, OutputKind, PackedBatch,
    SequenceOutput, SequenceResult,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Notify;

use crate::ServedModel;

/// Number of elements of a hidden state of the models.
pub(crate) const HIDDEN: usize = 48;

/// A tiny model of the tests of `groupage_engine` with sequences of up to 32 tokens. Its folder lives
/// as long as this.
pub(crate) struct TestModel {
    pub(crate) served: Arc<ServedModel>,
    _folder: TempDir,
}

/// An executor with results that are a function of the ids of a sequence alone: the first element of
/// an embedding is their sum. It records the number of sequences of each batch.
#[derive(Debug)]
pub(crate) struct FakeExecutor {
    report: ExecutorReport,
    pub(crate) batches: Arc<Mutex<Vec<usize>>>,
    gate: Option<Arc<ExecutionGate>>,
    panics_on: Option<u32>,
    overflows_on: Option<u32>,
}

/// Holds an executor inside of its first batch.
#[derive(Debug, Default)]
pub(crate) struct ExecutionGate {
    entered: Notify,
    is_open: Mutex<bool>,
    opened: Condvar,
}

// === impl TestModel ===

impl TestModel {
    pub(crate) fn embedding() -> Self {
        Self::copy("bert", &json!({}), Some(&json!({"prompts": {"query": "b c "}})))
    }

    pub(crate) fn reranker() -> Self {
        Self::copy("bert-rerank", &json!({}), None)
    }

    pub(crate) fn classifier() -> Self {
        Self::copy("distilbert-classify", &json!({"id2label": {"0": "joy", "1": "anger", "2": "calm"}}), None)
    }

    /// Copies a model into a folder named `tiny`, with some fields of `config.json` replaced, and with a
    /// file of sentence-transformers.
    fn copy(name: &str, fields: &Value, sentence: Option<&Value>) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/goldens").join(name);
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("tiny");
        copy_folder(&source, &folder);
        let mut config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        if let Some(sentence) = sentence {
            std::fs::write(folder.join("config_sentence_transformers.json"), sentence.to_string()).unwrap();
        }
        let model = Model::open(&folder).unwrap();
        Self { served: Arc::new(ServedModel::new(model, 1_700_000_000)), _folder: root }
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

// === impl FakeExecutor ===

impl FakeExecutor {
    pub(crate) fn new(tokens_max: usize) -> Self {
        let report = ExecutorReport {
            kernels: "fake".to_owned(),
            number_type: NumberType::Float32,
            batch_invariant: true,
            rejected: Vec::new(),
            threads: 1,
            tokens_max,
            weight_bytes: 1,
            scratch_bytes: 2,
            file_bytes: 3,
        };
        Self { report, batches: Arc::default(), gate: None, panics_on: None, overflows_on: None }
    }

    /// Returns the executor with a gate that is closed.
    pub(crate) fn gated(mut self) -> (Self, Arc<ExecutionGate>) {
        let gate = Arc::new(ExecutionGate::default());
        self.gate = Some(gate.clone());
        (self, gate)
    }

    /// Returns the executor, which states that its results depend on the batch.
    pub(crate) fn batch_dependent(mut self) -> Self {
        self.report.batch_invariant = false;
        self
    }

    /// Returns the executor, which states this type of numbers.
    pub(crate) fn with_number_type(mut self, number_type: NumberType) -> Self {
        self.report.number_type = number_type;
        self
    }

    /// Returns the executor, which panics when it executes a sequence with this token id.
    pub(crate) fn panicking_on(mut self, id: u32) -> Self {
        self.panics_on = Some(id);
        self
    }

    /// Returns the executor, which has no finite result for a sequence with this token id.
    pub(crate) fn overflowing_on(mut self, id: u32) -> Self {
        self.overflows_on = Some(id);
        self
    }
}

impl Executor for FakeExecutor {
    fn execute(&mut self, batch: &PackedBatch) -> Result<Vec<SequenceResult>, ExecuteError> {
        if let Some(gate) = self.gate.take() {
            gate.pass();
        }
        assert!(self.panics_on.is_none_or(|id| !batch.ids().contains(&id)), "the planned panic of a test");
        self.batches.lock().unwrap().push(batch.len());
        let output = |((start, length), kind): ((usize, usize), &OutputKind)| {
            let ids = &batch.ids()[start..start + length];
            let is_finite = self.overflows_on.is_none_or(|id| !ids.contains(&id));
            if is_finite { Ok(fake_output(ids, *kind)) } else { Err(NonFiniteOutput) }
        };
        Ok(batch.spans().zip(batch.kinds()).map(output).collect())
    }

    fn report(&self) -> &ExecutorReport {
        &self.report
    }
}

/// Returns the result of a sequence. Its logits are the second token and those after it.
fn fake_output(ids: &[u32], kind: OutputKind) -> SequenceOutput {
    let sum = ids.iter().sum::<u32>() as f32;
    match kind {
        OutputKind::Embedding => SequenceOutput::Embedding((0..HIDDEN).map(|at| sum / (1.0 + at as f32)).collect()),
        OutputKind::TokenStates => {
            let row = |id: &u32| {
                let first = (*id * 100) as f32;
                (0..HIDDEN).map(move |at| first + at as f32)
            };
            SequenceOutput::TokenStates { values: ids.iter().flat_map(row).collect(), hidden: HIDDEN }
        }
        OutputKind::Logits => SequenceOutput::Logits((0..3).map(|at| ids[1 + at.min(ids.len() - 2)] as f32).collect()),
    }
}

// === impl ExecutionGate ===

impl ExecutionGate {
    fn pass(&self) {
        self.entered.notify_one();
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
    }

    /// Waits until the executor is inside of its first batch.
    pub(crate) async fn wait_entered(&self) {
        self.entered.notified().await;
    }

    pub(crate) fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}
