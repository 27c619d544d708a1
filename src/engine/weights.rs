//! Weights of a model, in files of the format safetensors.

mod encoder;
mod file;
mod names;
mod tensor;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use safetensors::tensor::Metadata;
use serde_json::Value;

pub(crate) use self::encoder::{EncoderTensors, HeadTensors, LayerTensors, LinearTensors, NormTensors};
use self::file::WeightFile;
pub(crate) use self::tensor::{WeightTensor, WeightType};
use crate::directory::{LFS_ADVICE, LFS_FOUND, LFS_POINTER, ModelDirectory};
use crate::error::LoadError;

/// Maximum size of the header of a file. A tensor takes about 150 bytes; the largest published
/// encoders have about a thousand.
const HEADER_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of files of a model. Files have several GB each, so this is far above any
/// encoder.
const SHARDS_MAX: usize = 256;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const PUBLISHED: &str = "use the weights that were published with `config.json`; download a damaged file again";

/// All tensors of a model.
#[derive(Debug)]
pub(crate) struct ModelWeights {
    tensors: HashMap<String, TensorEntry>,
    files: Vec<Arc<WeightFile>>,
    /// The file that errors name for an absent tensor.
    error_path: String,
}

#[derive(Debug)]
struct TensorEntry {
    file: Arc<WeightFile>,
    /// `Err` with the name of a type that is not supported.
    dtype: Result<WeightType, String>,
    shape: Vec<usize>,
    /// Positions in the file.
    bytes: Range<u64>,
}

// === impl ModelWeights ===

impl ModelWeights {
    /// Opens `model.safetensors`, or the files that `model.safetensors.index.json` lists.
    pub(crate) fn open(directory: &ModelDirectory) -> Result<Self, LoadError> {
        let single = directory.path(SINGLE);
        let error_path = single.display().to_string();
        let mut weights = Self { tensors: HashMap::new(), files: Vec::new(), error_path };
        if directory.has(SINGLE) {
            weights.add_file(&single)?;
            return Ok(weights);
        }
        let Some(index) = directory.json(INDEX)? else {
            let advice = "download the weights as safetensors; files of PyTorch (.bin) and ONNX are not read";
            return Err(weights.error("the file", "no such file", &format!("the weights, or {INDEX}"), advice));
        };
        index.file().clone_into(&mut weights.error_path);
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
        let file = Arc::new(WeightFile::open(path).map_err(|broken| error(broken.to_string()))?);
        if is_lfs_pointer(&file) {
            return Err(LoadError { advice: LFS_ADVICE, ..error(LFS_FOUND.to_owned()) });
        }
        let (data, metadata) = read_header(&file).map_err(error)?;
        for (tensor, info) in metadata.tensors() {
            let position = |offset: usize| data.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX));
            let (start, end) = info.data_offsets;
            let entry = TensorEntry {
                file: Arc::clone(&file),
                dtype: WeightType::from_dtype(info.dtype),
                shape: info.shape.clone(),
                bytes: position(start)..position(end),
            };
            let place = tensor_place(&tensor);
            if let Some(other) = self.tensors.insert(tensor, entry) {
                let found = format!("another one in {}", other.file.name());
                let expected = "one file for each tensor".to_owned();
                return Err(LoadError { place, expected, ..error(found) });
            }
        }
        self.files.push(file);
        Ok(())
    }

    /// Size of the files in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let bytes: u64 = self.files.iter().map(|file| file.bytes()).sum();
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Returns the first failure of a read, for an executor that has read all its weights.
    pub(crate) fn check_reads(&self) -> Result<(), LoadError> {
        let failed = self.files.iter().find_map(|file| file.failure().map(|reason| (file.name(), reason)));
        failed.map_or(Ok(()), |(name, reason)| {
            Err(LoadError {
                file: name.to_owned(),
                place: "the file".to_owned(),
                found: reason.to_owned(),
                expected: "the tensors that the header of the file lists".to_owned(),
                advice: "do not change files of a model that is in use: write another directory",
            })
        })
    }

    /// Types of the tensors in the order of their names, including those that are not supported.
    pub(crate) fn types(&self) -> BTreeSet<String> {
        let name = |tensor: &TensorEntry| match &tensor.dtype {
            Ok(dtype) => format!("{dtype:?}").to_uppercase(),
            Err(other) => other.clone(),
        };
        self.tensors.values().map(name).collect()
    }

    /// Returns `true` if all tensors that an executor can read have this type. Tensors of other
    /// types, such as integer tables, do not count.
    pub(crate) fn are_all(&self, dtype: WeightType) -> bool {
        let mut known = self.tensors.values().filter_map(|tensor| tensor.dtype.as_ref().ok()).peekable();
        known.peek().is_some() && known.all(|found| *found == dtype)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns a tensor, which must have the given shape.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> Result<WeightTensor, LoadError> {
        let Some(entry) = self.tensors.get(name) else { return Err(self.absence(name, shape)) };
        let (place, expected) = (tensor_place(name), expected_tensor(shape));
        let error = |found: &str| LoadError {
            file: entry.file.name().to_owned(),
            place: place.clone(),
            found: found.to_owned(),
            expected: expected.clone(),
            advice: PUBLISHED,
        };
        let dtype = entry.dtype.clone().map_err(|dtype| error(&format!("shape {:?} of {dtype}", entry.shape)))?;
        if entry.shape != shape {
            return Err(error(&format!("shape {:?} of {dtype:?}", entry.shape)));
        }
        WeightTensor::new(&entry.file, entry.bytes.clone(), dtype, shape)
            .ok_or_else(|| error("fewer bytes than the shape needs"))
    }

    /// Returns the error of a tensor that no file has.
    pub(crate) fn absence(&self, name: &str, shape: &[usize]) -> LoadError {
        self.error(&tensor_place(name), "no such tensor", &expected_tensor(shape), PUBLISHED)
    }

    fn error(&self, place: &str, found: &str, expected: &str, advice: &'static str) -> LoadError {
        LoadError {
            file: self.error_path.clone(),
            place: place.to_owned(),
            found: found.to_owned(),
            expected: expected.to_owned(),
            advice,
        }
    }
}

/// Returns `true` for a pointer of Git LFS. Its text, read as the length of a header, would be too
/// large, which looks like a damaged file.
fn is_lfs_pointer(file: &WeightFile) -> bool {
    let mut start = [0; LFS_POINTER.len()];
    file.bytes() >= start.len() as u64 && file.read(0, &mut start).is_ok() && start == *LFS_POINTER
}

/// Reads the header of a file: its length in eight bytes, then JSON, where `data_offsets` are
/// relative to its end. Returns the position of this end. An error is what was found.
fn read_header(file: &WeightFile) -> Result<(u64, Metadata), String> {
    let mut length = [0; 8];
    file.read(0, &mut length).map_err(|error| error.to_string())?;
    let length = u64::from_le_bytes(length);
    let Some(size) = usize::try_from(length).ok().filter(|_| length <= HEADER_BYTES_MAX) else {
        return Err(format!("a header of more than {HEADER_BYTES_MAX} bytes"));
    };
    let data = length.saturating_add(8);
    if data > file.bytes() {
        return Err("a header that is longer than the file".to_owned());
    }
    let mut header = vec![0; size];
    file.read(8, &mut header).map_err(|error| error.to_string())?;
    // Its offsets are checked against the shapes, and begin at zero without gaps.
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| error.to_string())?;
    let end = metadata.tensors().values().map(|info| info.data_offsets.1).max().unwrap_or_default();
    if u64::try_from(end).ok().and_then(|end| data.checked_add(end)) != Some(file.bytes()) {
        return Err(format!("{} bytes, of {data} and {end} that its header states", file.bytes()));
    }
    Ok((data, metadata))
}

/// Returns the place of a tensor, for errors.
fn tensor_place(name: &str) -> String {
    format!("tensor `{name}`")
}

/// Returns the description of a tensor of a shape, for errors.
fn expected_tensor(shape: &[usize]) -> String {
    format!("shape {shape:?} of F32, F16 or BF16")
}
