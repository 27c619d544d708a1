//! The kernels that are part of the binary: their PTX, and the manifest that describes them.

use serde_json::Value;

use super::fault::{DeviceError, INVALID_VALUE};
use super::storage_format::StorageFormat;

/// Names of the kernels and their PTX.
macro_rules! kernels {
    ($($name:literal)*) => {
        [$(KernelSource {
            name: $name,
            bf16: include_str!(concat!("kernels/ptx/", $name, ".bf16.ptx")),
            f16: include_str!(concat!("kernels/ptx/", $name, ".f16.ptx")),
        }),*]
    };
}

static KERNELS: [KernelSource; 18] = kernels! {
    "embedding_layer_norm" "residual_layer_norm"
    "gemm_bias_64" "gemm_bias_residual_64" "gemm_bias_gelu_erf_64" "gemm_bias_gelu_tanh_64"
    "gemm_bias_128" "gemm_bias_residual_128" "gemm_bias_gelu_erf_128" "gemm_bias_gelu_tanh_128"
    "attention_32" "attention_64" "attention_128"
    "pool_mean" "pool_first" "pool_last"
    "head_dense_tanh" "head_logits"
};

/// What the build script of the kernels states about them.
const MANIFEST: &str = include_str!("kernels/ptx/manifest.json");

/// A kernel before it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelImage {
    /// Name of the kernel and of its entry point.
    pub name: &'static str,
    /// Format of the weights and activations.
    pub storage: StorageFormat,
    /// The PTX.
    pub ptx: &'static str,
    /// SHA-256 of the PTX in hexadecimal digits.
    pub sha256: String,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Types of the parameters.
    pub parameters: Vec<ParameterType>,
}

/// Type of a parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterType {
    /// A pointer to device memory.
    Pointer,
    /// A 32-bit integer.
    Integer,
    /// A 32-bit floating-point number.
    Float,
}

/// PTX of a kernel in each storage format.
struct KernelSource {
    name: &'static str,
    bf16: &'static str,
    f16: &'static str,
}

// === impl KernelImage ===

impl KernelImage {
    /// Returns all kernels in all formats.
    ///
    /// # Errors
    /// The manifest does not describe a kernel: the binary was built from an inconsistent tree.
    pub fn all() -> Result<Vec<Self>, DeviceError> {
        let in_format = |storage: StorageFormat| KERNELS.iter().map(move |source| Self::find(source.name, storage));
        StorageFormat::ALL.into_iter().flat_map(in_format).collect()
    }

    /// Returns a kernel by its name and its format.
    ///
    /// # Errors
    /// There is none of this name, or the manifest does not describe it.
    pub fn find(name: &str, storage: StorageFormat) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::new("the choice of a kernel", INVALID_VALUE, format!("no kernel {name}"));
        let source = KERNELS.iter().find(|source| source.name == name).ok_or_else(unknown)?;
        let manifest: Value = serde_json::from_str(MANIFEST).map_err(|_| unknown())?;
        let entries = manifest.get("kernels").and_then(Value::as_array).ok_or_else(unknown)?;
        let text = |entry: &Value, field: &str| entry.get(field).and_then(Value::as_str).map(str::to_owned);
        let is_this = |entry: &&Value| {
            text(entry, "name").as_deref() == Some(name) && text(entry, "storage").as_deref() == Some(storage.label())
        };
        let entry = entries.iter().find(is_this).ok_or_else(unknown)?;
        let number = |field: &str| entry.get(field).and_then(Value::as_u64).and_then(|value| u32::try_from(value).ok());
        let parameters = entry.get("parameters").and_then(Value::as_array).ok_or_else(unknown)?;
        let kind = |parameter: &Value| ParameterType::from_name(&text(parameter, "type")?);
        Ok(Self {
            name: source.name,
            storage,
            ptx: source.ptx(storage),
            sha256: text(entry, "sha256").ok_or_else(unknown)?,
            threads: number("threads").ok_or_else(unknown)?,
            shared_bytes: number("dynamic_shared_bytes").ok_or_else(unknown)?,
            parameters: parameters.iter().map(kind).collect::<Option<_>>().ok_or_else(unknown)?,
        })
    }
}

// === impl KernelSource ===

impl KernelSource {
    const fn ptx(&self, storage: StorageFormat) -> &'static str {
        match storage {
            StorageFormat::Bf16 => self.bf16,
            StorageFormat::F16 => self.f16,
        }
    }
}

// === impl ParameterType ===

impl ParameterType {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "pointer" => Self::Pointer,
            "u32" => Self::Integer,
            "f32" => Self::Float,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cuda::model_support::{DEPTH_STEP, HIDDEN_MAX};

    #[test]
    fn every_kernel_is_described_by_the_manifest() {
        let images = KernelImage::all().unwrap();
        assert_eq!(images.len(), 2 * 18);
        for image in &images {
            assert!(image.ptx.contains(&format!(".entry {}(", image.name)), "{}", image.name);
            assert_eq!((image.sha256.len(), image.threads % 32), (64, 0));
        }
        let hashes: BTreeSet<&str> = images.iter().map(|image| image.sha256.as_str()).collect();
        assert_eq!(hashes.len(), images.len(), "a compiled kernel is found by the hash of its PTX");
        for storage in StorageFormat::ALL {
            let label = storage.label();
            let listed = MANIFEST.matches(&format!("\"storage\": \"{label}\"")).count();
            assert_eq!(listed, KERNELS.len(), "a kernel of the manifest is not part of the binary");
            let product = KernelImage::find("gemm_bias_64", storage).unwrap();
            assert!(product.ptx.contains(&format!(".f32.{label}.{label}.f32")), "{label}");
            assert!(KernelImage::find("gemm", storage).is_err());
        }
    }

    /// The chosen models are within the limits of every kernel.
    #[test]
    fn the_limits_of_the_manifest_are_those_of_the_supported_models() {
        let manifest: Value = serde_json::from_str(MANIFEST).unwrap();
        for entry in manifest["kernels"].as_array().unwrap() {
            let (name, limits) = (&entry["name"], entry["limits"].as_object().unwrap());
            assert!(!limits.is_empty(), "{name} has no limits");
            for (parameter, limit) in limits {
                let step = limit["multiple_of"].as_u64().unwrap_or(1);
                let max = limit["max"].as_u64().unwrap_or(u64::MAX);
                assert_eq!(DEPTH_STEP as u64 % step, 0, "{name}: {parameter} is a multiple of {step}");
                assert!(max >= HIDDEN_MAX as u64, "{name}: {parameter} is at most {max}");
            }
        }
    }
}
