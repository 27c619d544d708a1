//! An encoder model, opened from its directory.

use std::collections::BTreeSet;
use std::path::Path;

use crate::config::{EncoderConfig, HeadConfig};
use crate::directory::ModelDirectory;
use crate::error::LoadError;
use crate::pooling::Pooling;
use crate::sentence::{Prompts, SentenceConfig};
use crate::tokenize::TextTokenizer;
use crate::weights::{EncoderTensors, ModelWeights};

/// An encoder: its shape, its tokenizer and its weights in open files. An executor such as
/// [`crate::CpuExecutor`] is created from it.
#[derive(Debug)]
pub struct Model {
    name: String,
    config: EncoderConfig,
    pooling: Pooling,
    normalizes: bool,
    prompts: Prompts,
    tokenizer: TextTokenizer,
    weights: ModelWeights,
    lacks_head: bool,
}

// === impl Model ===

impl Model {
    /// Opens a directory in the format of Hugging Face: `config.json`, `tokenizer.json`, weights as
    /// safetensors in one file or several with an index, and the files of sentence-transformers if
    /// it has them. Weights are read when an executor is created, and embeddings on demand.
    ///
    /// The `config.json` of an encoder for embeddings may name the architecture from which it was
    /// trained, with a classification head. If a file configures the pooling of embeddings, such a
    /// head is not used if its weights are absent ([`Self::lacks_head`]).
    ///
    /// To update a model, write another directory, or rename files into place. A file that is
    /// changed while the model is in use gives wrong results, and one that is truncated gives
    /// errors.
    ///
    /// # Errors
    /// A file is missing, damaged or larger than its bound, or has an architecture, an option or a
    /// shape that is not supported. The error names the file and the field or tensor.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let root = ModelDirectory::open(path)?;
        let sentence = SentenceConfig::parse(&root)?;
        let file = sentence.encoder.json_required("config.json")?;
        let mut config = EncoderConfig::parse(&file)?;
        let tokenizer = TextTokenizer::load(&config, &sentence)?;
        let weights = ModelWeights::open(&sentence.encoder)?;
        let lacks_head = remove_absent_head(&mut config, &weights, sentence.has_pooling)?;
        let SentenceConfig { pooling, unpooled, normalizes, prompts, .. } = sentence;
        if let Some(error) = unpooled.filter(|_| config.head.is_none()) {
            return Err(error);
        }
        Ok(Self { name: root.name(), config, pooling, normalizes, prompts, tokenizer, weights, lacks_head })
    }

    /// Checks that the files have every tensor of the encoder and of its head, with the type and the
    /// shape that an executor needs. Of the weights, only biases and normalisations are read.
    ///
    /// # Errors
    /// A tensor is missing, or has another shape or type. The error names the file and the tensor.
    pub fn check_tensors(&self) -> Result<(), LoadError> {
        EncoderTensors::new(&self.weights, &self.config).check()?;
        self.weights.check_reads()
    }

    /// Lowers the maximum number of tokens of a sequence. A maximum above that of the model has no
    /// effect.
    #[must_use]
    pub fn with_tokens_max(mut self, tokens_max: usize) -> Self {
        self.tokenizer.limit_tokens(tokens_max);
        self
    }

    /// Name of the directory, or the id of a model in the cache of Hugging Face.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Shape of the encoder.
    #[must_use]
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Classification head; `None` for a model that only embeds, or whose files lack its weights.
    #[must_use]
    pub fn head(&self) -> Option<&HeadConfig> {
        self.config.head.as_ref()
    }

    /// Whether `config.json` names a classification head that is not used, because its weights are
    /// absent.
    #[must_use]
    pub fn lacks_head(&self) -> bool {
        self.lacks_head
    }

    /// Pooling of embeddings.
    #[must_use]
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Returns `true` if embeddings are scaled to unit length by default.
    #[must_use]
    pub fn normalizes(&self) -> bool {
        self.normalizes
    }

    /// Prompts by name.
    #[must_use]
    pub fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// Tokenizer of the model.
    #[must_use]
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// Maximum number of tokens of a sequence.
    #[must_use]
    pub fn tokens_max(&self) -> usize {
        self.tokenizer.tokens_max()
    }

    /// Types of the numbers in the files of weights, such as `F32`. They include those of integer
    /// tables, which no executor reads.
    #[must_use]
    pub fn weight_types(&self) -> BTreeSet<String> {
        self.weights.types()
    }

    pub(crate) fn weights(&self) -> &ModelWeights {
        &self.weights
    }
}

/// Removes the head of a model whose files lack its weights. `has_pooling` is `true` for a model for
/// embeddings. Returns `true` if there was such a head.
///
/// # Errors
/// The weights are absent from a model that only classifies. The error names the tensor.
fn remove_absent_head(
    config: &mut EncoderConfig,
    weights: &ModelWeights,
    has_pooling: bool,
) -> Result<bool, LoadError> {
    let name = config.architecture.classifier_tensor();
    let Some(head) = config.head.as_ref().filter(|_| !weights.has(name)) else { return Ok(false) };
    if !has_pooling {
        return Err(weights.absence(name, &[head.labels.len(), config.hidden]));
    }
    config.head = None;
    Ok(true)
}
