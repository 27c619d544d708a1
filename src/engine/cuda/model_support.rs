//! Selection of the kernels for a model, or the reason why the GPU cannot execute it.
//!
//! Kernels exist for the options of common encoders. A model with another one can be executed on
//! the CPU only.

use super::storage_format::StorageFormat;
use crate::activation::Activation;
use crate::config::{Architecture, HeadConfig, HeadPooling};
use crate::error::LoadError;
use crate::model::Model;
use crate::pooling::Pooling;

/// Maximum number of elements of a hidden state, which a warp keeps in its registers
/// (`layer_norm.cuh`).
pub(super) const HIDDEN_MAX: usize = 1024;
/// Hidden and inner states have a multiple of this number of elements (`gemm.cu`: depth of a tile).
pub(super) const DEPTH_STEP: usize = 32;

/// Storage format of a model, and names of the kernels that differ between models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelChoice {
    pub(crate) storage: StorageFormat,
    pub(crate) attention: &'static str,
    /// Products with the activation function, with tiles of 64 and of 128 rows and columns.
    pub(crate) activation: [&'static str; 2],
    pub(crate) pooling: &'static str,
}

// === impl KernelChoice ===

impl KernelChoice {
    /// Selects the kernels for a model.
    ///
    /// # Errors
    /// There is no kernel for an option of the model. The error names its field in the
    /// configuration.
    pub(crate) fn of_model(model: &Model) -> Result<Self, LoadError> {
        check_head(model)?;
        let config = model.config();
        let fields = FieldNames::of(config.architecture);
        let activation = match config.activation {
            Activation::Gelu => ["gemm_bias_gelu_erf_64", "gemm_bias_gelu_erf_128"],
            Activation::GeluTanh => ["gemm_bias_gelu_tanh_64", "gemm_bias_gelu_tanh_128"],
            other => {
                return Err(unsupported_option(model, fields.activation, format!("{other:?}"), "gelu or gelu_new"));
            }
        };
        if !config.hidden.is_multiple_of(DEPTH_STEP) || config.hidden > HIDDEN_MAX {
            let expected = format!("a multiple of {DEPTH_STEP} up to {HIDDEN_MAX}");
            return Err(unsupported_option(model, fields.hidden, config.hidden.to_string(), &expected));
        }
        if !config.intermediate.is_multiple_of(DEPTH_STEP) {
            let expected = format!("a multiple of {DEPTH_STEP}");
            return Err(unsupported_option(model, fields.intermediate, config.intermediate.to_string(), &expected));
        }
        let attention = match config.head_dim() {
            32 => "attention_32",
            64 => "attention_64",
            128 => "attention_128",
            width => {
                let found = format!("{} heads of {width} elements", config.heads);
                return Err(unsupported_option(model, fields.heads, found, "heads of 32, 64 or 128 elements"));
            }
        };
        Ok(Self { storage: StorageFormat::of_model(model), attention, activation, pooling: pooling_kernel(model)? })
    }
}

fn pooling_kernel(model: &Model) -> Result<&'static str, LoadError> {
    match model.pooling() {
        Pooling::Mean => Ok("pool_mean"),
        Pooling::First => Ok("pool_first"),
        Pooling::Last => Ok("pool_last"),
        Pooling::Max => {
            // The pooling is an option of sentence-transformers, which has a file of its own.
            let file = format!("{}/1_Pooling/config.json", model.name());
            Err(LoadError {
                file,
                ..unsupported_option(model, "pooling_mode", "max".to_owned(), "mean, cls or lasttoken")
            })
        }
    }
}

/// Checks the architecture and its classification head.
fn check_head(model: &Model) -> Result<(), LoadError> {
    let has_kernels = |head: &&HeadConfig| head.activation == Activation::Tanh && head.pooling == HeadPooling::First;
    if model.config().architecture == Architecture::ModernBert {
        let expected = "BERT, RoBERTa, XLM-RoBERTa or DistilBERT";
        return Err(unsupported_option(model, "architectures", "ModernBERT".to_owned(), expected));
    }
    match model.head().filter(|head| !has_kernels(head)) {
        Some(head) => {
            let found = format!("a head with {:?}", head.activation);
            Err(unsupported_option(
                model,
                "architectures",
                found,
                "an encoder, or a head with Tanh over the first token",
            ))
        }
        None => Ok(()),
    }
}

/// Creates the error of an option without a kernel. `field` is its name in `config.json`.
fn unsupported_option(model: &Model, field: &str, found: String, expected: &str) -> LoadError {
    LoadError {
        file: format!("{}/config.json", model.name()),
        place: format!("field `{field}`"),
        found,
        expected: expected.to_owned(),
        advice: "run this model on the CPU",
    }
}

/// Names of fields of `config.json`, which differ by architecture.
struct FieldNames {
    hidden: &'static str,
    intermediate: &'static str,
    heads: &'static str,
    activation: &'static str,
}

// === impl FieldNames ===

impl FieldNames {
    fn of(architecture: Architecture) -> Self {
        if architecture == Architecture::DistilBert {
            return Self { hidden: "dim", intermediate: "hidden_dim", heads: "n_heads", activation: "activation" };
        }
        Self {
            hidden: "hidden_size",
            intermediate: "intermediate_size",
            heads: "num_attention_heads",
            activation: "hidden_act",
        }
    }
}
