//! Models with random weights in the shapes that the kernels support. They have the files and the
//! names of a golden model, but no rows of 48 elements, which no kernel supports.

use std::collections::BTreeMap;
use std::path::Path;

use groupage_batching::rng::SplitMix64;
use half::f16;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use tempfile::TempDir;

use crate::Model;
use crate::tests::goldens;

/// Sizes of the golden models, in the order of [`TinyShape`], and the maximum length of sequences.
const GOLDEN_SIZES: [usize; 3] = [48, 72, 40];
/// Maximum number of tokens of a sequence: several tiles of the attention.
pub(super) const TOKENS_MAX: usize = 130;
const POSITIONS: usize = 140;

/// Shape of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct TinyShape {
    /// The golden model that is copied.
    pub(super) golden: &'static str,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) intermediate: usize,
}

/// A model, and its directory.
#[derive(Debug)]
pub(super) struct TinyModel {
    pub(super) folder: TempDir,
}

// === impl TinyModel ===

impl TinyModel {
    /// Writes the directory of a model.
    pub(super) fn new(shape: TinyShape) -> Self {
        let folder = TempDir::new().unwrap();
        let from = goldens().join(shape.golden);
        let copy = |name: &str, edits: &[(String, String)]| {
            let mut text = std::fs::read_to_string(from.join(name)).unwrap();
            for (old, new) in edits {
                assert!(text.contains(old.as_str()), "{name} has no {old}");
                text = text.replace(old, new);
            }
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        for name in ["tokenizer.json", "modules.json", "1_Pooling/config.json"] {
            copy(name, &[]);
        }
        let length = |tokens: usize| format!("\"max_seq_length\": {tokens}");
        copy("sentence_bert_config.json", &[(length(32), length(TOKENS_MAX))]);
        let distil = shape.golden.starts_with("distilbert");
        let fields = if distil {
            ["dim", "hidden_dim", "n_heads"]
        } else {
            ["hidden_size", "intermediate_size", "num_attention_heads"]
        };
        let [hidden, intermediate, heads] = fields;
        let edit =
            |field: &str, old: usize, new: usize| (format!("\"{field}\": {old},"), format!("\"{field}\": {new},"));
        copy(
            "config.json",
            &[
                edit(hidden, 48, shape.hidden),
                edit(intermediate, 72, shape.intermediate),
                edit(heads, 3, shape.heads),
                edit("max_position_embeddings", 40, POSITIONS),
            ],
        );
        write_weights(&from, folder.path(), shape, |_| None);
        Self { folder }
    }

    pub(super) fn open(&self) -> Model {
        Model::open(self.folder.path()).unwrap()
    }

    /// Replaces a text in a file.
    pub(super) fn edit(self, name: &str, old: &str, new: &str) -> Self {
        let path = self.folder.path().join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(old), "{name} has no {old}");
        std::fs::write(path, text.replace(old, new)).unwrap();
        self
    }

    /// Writes the weights again, with the first element of each of these tensors set to a value.
    pub(super) fn set_first(self, shape: TinyShape, values: &[(&str, f32)]) -> Self {
        let value = |name: &str| values.iter().find(|(tensor, _)| *tensor == name).map(|(_, value)| *value);
        write_weights(&goldens().join(shape.golden), self.folder.path(), shape, value);
        self
    }

    /// Stores the tensors that are chosen by their names in F16, beside a table of integers, which
    /// older files have.
    pub(super) fn store_half(self, is_half: impl Fn(&str) -> bool) -> Self {
        let path = self.folder.path().join("model.safetensors");
        let file = std::fs::read(&path).unwrap();
        let to_half = |bytes: &[u8; 4]| f16::from_f32(f32::from_le_bytes(*bytes)).to_le_bytes();
        let mut tensors = vec![("embeddings.position_ids".to_owned(), Dtype::I64, vec![1, 2], vec![0; 16])];
        for (name, tensor) in SafeTensors::deserialize(&file).unwrap().iter() {
            let (dtype, bytes) = if is_half(name) {
                (Dtype::F16, tensor.data().as_chunks::<4>().0.iter().flat_map(to_half).collect())
            } else {
                (tensor.dtype(), tensor.data().to_vec())
            };
            tensors.push((name.to_owned(), dtype, tensor.shape().to_vec(), bytes));
        }
        let views = tensors
            .iter()
            .map(|(name, dtype, sizes, bytes)| (name.as_str(), TensorView::new(*dtype, sizes.clone(), bytes).unwrap()));
        std::fs::write(path, serialize(views, None).unwrap()).unwrap();
        self
    }
}

/// Writes a tensor for each one of the golden model, with random values; the first one is that of
/// `fixed`, if it has one for the tensor.
fn write_weights(from: &Path, to: &Path, shape: TinyShape, fixed: impl Fn(&str) -> Option<f32>) {
    let resized = |size: &usize| match GOLDEN_SIZES.iter().position(|golden| golden == size) {
        Some(0) => shape.hidden,
        Some(1) => shape.intermediate,
        Some(_) => POSITIONS,
        None => *size,
    };
    let mut rng = SplitMix64::new(7);
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    let mut files: Vec<_> = std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "safetensors")) {
        let bytes = std::fs::read(file).unwrap();
        let tensors_of_file = SafeTensors::deserialize(&bytes).unwrap();
        // Their order differs from process to process.
        let ordered: BTreeMap<_, _> = tensors_of_file.iter().collect();
        for (name, tensor) in ordered {
            if tensor.dtype() == Dtype::I64 {
                continue;
            }
            let sizes: Vec<usize> = tensor.shape().iter().map(resized).collect();
            let count = sizes.iter().product();
            let values = random_values(name, *sizes.last().unwrap(), count, &mut rng);
            let values =
                values.into_iter().enumerate().map(|(at, value)| fixed(name).filter(|_| at == 0).unwrap_or(value));
            tensors.push((name.to_owned(), sizes, values.flat_map(f32::to_le_bytes).collect()));
        }
    }
    let views = tensors
        .iter()
        .map(|(name, sizes, bytes)| (name.as_str(), TensorView::new(Dtype::F32, sizes.clone(), bytes).unwrap()));
    std::fs::write(to.join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
}

/// Uniform values: factors of normalisations around one, small biases, embeddings within one, and
/// matrices that keep the variance of their inputs.
fn random_values(name: &str, columns: usize, count: usize, rng: &mut SplitMix64) -> Vec<f32> {
    let is_norm = name.to_lowercase().contains("norm");
    let (center, scale) = match name.rsplit('.').next() {
        Some("bias") => (0.0, 0.1),
        _ if is_norm => (1.0, 0.2),
        _ if name.contains("embeddings") => (0.0, 1.0),
        _ => (0.0, (3.0 / f64::from(u32::try_from(columns).unwrap())).sqrt()),
    };
    #[expect(clippy::cast_possible_truncation, reason = "the values are small, and rounding them is no harm")]
    let value = |unit: f64| (center + scale * (2.0 * unit - 1.0)) as f32;
    (0..count).map(|_| value(rng.next_f64())).collect()
}
