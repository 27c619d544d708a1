//! Weights of a model, in memory-mapped files of the format safetensors.

mod encoder;
mod map;
mod names;
mod tensor;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use safetensors::SafeTensors;
use serde_json::Value;

pub(crate) use self::encoder::{EncoderTensors, HeadTensors, LayerTensors, LinearTensors, NormTensors};
use self::map::FileMap;
pub(crate) use self::tensor::{WeightTensor, WeightType};
use crate::directory::ModelDirectory;
use crate::error::LoadError;

/// Maximum size of the header of a file. A tensor takes about 150 bytes; the largest published
/// encoders have about a thousand.
const HEADER_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of files of a model. Files have several GB each, so this is far above any encoder.
const SHARDS_MAX: usize = 256;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const PUBLISHED: &str = "use the weights that were published with `config.json`; download a damaged file again";

/// All tensors of a model.
#[derive(Debug)]
pub(crate) struct ModelWeights {
    tensors: HashMap<String, TensorEntry>,
    /// The file that messages name where no tensor is.
    main: String,
    bytes: usize,
}

#[derive(Debug)]
struct TensorEntry {
    file: Arc<FileMap>,
    kind: Result<WeightType, String>,
    shape: Vec<usize>,
    start: usize,
    end: usize,
}

// === impl ModelWeights ===

impl ModelWeights {
    /// Maps `model.safetensors`, or the files that `model.safetensors.index.json` lists.
    pub(crate) fn open(directory: &ModelDirectory) -> Result<Self, LoadError> {
        let main = directory.path(SINGLE);
        let mut weights = Self { tensors: HashMap::new(), main: main.display().to_string(), bytes: 0 };
        if directory.has(SINGLE) {
            weights.add_file(&main)?;
            return Ok(weights);
        }
        let Some(index) = directory.json(INDEX)? else {
            let advice = "download the weights as safetensors; files of PyTorch (.bin) are not read";
            return Err(weights.error("the file", "no such file", &format!("the weights, or {INDEX}"), advice));
        };
        index.file().clone_into(&mut weights.main);
        let files = index.get("weight_map").and_then(Value::as_object).map(|map| map.values());
        let mut names: Vec<&str> = files.into_iter().flatten().filter_map(Value::as_str).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() || names.len() > SHARDS_MAX {
            let expected = format!("the names of 1 to {SHARDS_MAX} files, by tensor");
            return Err(index.error("weight_map", &expected, PUBLISHED));
        }
        for name in names {
            if name.contains(['/', '\\', '\0']) || !name.ends_with(".safetensors") {
                let found = format!("{name:?}");
                return Err(weights.error("field `weight_map`", &found, "names of files `*.safetensors`", PUBLISHED));
            }
            weights.add_file(&directory.path(name))?;
        }
        Ok(weights)
    }

    fn add_file(&mut self, path: &Path) -> Result<(), LoadError> {
        let name = path.display().to_string();
        let error = |found: String| LoadError {
            file: name.clone(),
            place: "the file".to_owned(),
            found,
            expected: "weights in the format safetensors".to_owned(),
            advice: PUBLISHED,
        };
        let file = Arc::new(FileMap::open(path).map_err(|broken| error(broken.to_string()))?);
        let bytes = file.bytes();
        let header = bytes.first_chunk::<8>().map(|length| u64::from_le_bytes(*length));
        if header.is_none_or(|length| length > HEADER_BYTES_MAX) {
            return Err(error(format!("a header of more than {HEADER_BYTES_MAX} bytes, or none")));
        }
        let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(|broken| error(broken.to_string()))?;
        // `data_offsets` are relative to the end of the header.
        let data = header.saturating_add(8);
        for (tensor, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let entry = TensorEntry {
                file: Arc::clone(&file),
                kind: WeightType::from_dtype(info.dtype),
                shape: info.shape.clone(),
                start: data.saturating_add(start),
                end: data.saturating_add(end),
            };
            self.tensors.insert(tensor, entry);
        }
        self.bytes = self.bytes.saturating_add(bytes.len());
        Ok(())
    }

    /// Size of the mapped files in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns a tensor, whose shape must be the given one.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> Result<WeightTensor, LoadError> {
        let place = format!("tensor `{name}`");
        let expected = format!("shape {shape:?} of F32, F16 or BF16");
        let Some(entry) = self.tensors.get(name) else {
            return Err(self.error(&place, "no such tensor", &expected, PUBLISHED));
        };
        let error = |found: &str| LoadError {
            file: entry.file.name().to_owned(),
            place: place.clone(),
            found: found.to_owned(),
            expected: expected.clone(),
            advice: PUBLISHED,
        };
        let kind = entry.kind.clone().map_err(|kind| error(&format!("shape {:?} of {kind}", entry.shape)))?;
        if entry.shape != shape {
            return Err(error(&format!("shape {:?} of {kind:?}", entry.shape)));
        }
        WeightTensor::new(&entry.file, entry.start..entry.end, kind, shape)
            .ok_or_else(|| error("fewer bytes than the shape needs"))
    }

    fn error(&self, place: &str, found: &str, expected: &str, advice: &'static str) -> LoadError {
        LoadError {
            file: self.main.clone(),
            place: place.to_owned(),
            found: found.to_owned(),
            expected: expected.to_owned(),
            advice,
        }
    }
}
