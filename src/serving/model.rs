//! The model that is served: what it can answer, and the encoding of inputs under the options of
//! calls.

use groupage_engine::{CpuOptions, HeadConfig, Model, OutputKind, TokenError};
use groupage_protocol::ModelKind;

use crate::error::{CallError, ErrorKind};
use crate::inputs::{EncodeOptions, TextInput};
use crate::prepared::InputSequence;
use crate::route::ModelRoute;

/// Maximum number of tokens of a batch, as of TEI. A model with longer sequences has batches of one
/// sequence.
const BATCH_TOKENS_MAX: usize = 16_384;
/// Number of cores up to which the executor uses all.
const SHARED_CORES_MAX: usize = 2;

/// A model with the limits under which it is served.
#[derive(Debug)]
pub struct ServedModel {
    model: Model,
    /// Seconds since 1970 at which the server started.
    pub(crate) created: u64,
}

// === impl ServedModel ===

impl ServedModel {
    /// Creates the model. `created` is the start of the server in seconds since 1970.
    #[must_use]
    pub fn new(model: Model, created: u64) -> Self {
        Self { model, created }
    }

    /// The model itself.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Name in responses.
    #[must_use]
    pub fn name(&self) -> &str {
        self.model.name()
    }

    /// Maximum number of tokens of a batch.
    #[must_use]
    pub fn batch_tokens_max(&self) -> usize {
        BATCH_TOKENS_MAX.max(self.model.tokens_max())
    }

    /// Returns the maximum numbers of tokens with which batches on the CPU are tried, the largest
    /// first. `weight_max` is the maximum weight of a batch, which is its number of tokens; `None` for
    /// no limit. Each number is half of the one before, down to one sequence.
    pub fn cpu_batch_sizes(&self, weight_max: Option<u64>) -> impl Iterator<Item = usize> {
        let least = self.model.tokens_max();
        let limit = weight_max.and_then(|weight| usize::try_from(weight).ok()).unwrap_or(usize::MAX);
        let most = self.batch_tokens_max().min(limit).max(least);
        std::iter::successors(Some(most), move |tokens| (*tokens > least).then(|| (tokens / 2).max(least)))
    }

    /// Returns the options of its executor on the CPU, for batches of at most `tokens_max` tokens: a
    /// thread for each core that this process may use, which includes the CPU quota of its control
    /// group. Of more than two cores, one is left to the threads that serve connections, parse and
    /// tokenise.
    #[must_use]
    pub fn cpu_options(&self, tokens_max: usize) -> CpuOptions {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if cores > SHARED_CORES_MAX { cores - 1 } else { cores };
        CpuOptions { threads: Some(threads), tokens_max }
    }

    /// Kind of the model, by its head.
    #[must_use]
    pub fn kind(&self) -> ModelKind {
        match self.model.head() {
            None => ModelKind::Embedding,
            Some(head) if is_reranker(head) => ModelKind::Reranker,
            Some(_) => ModelKind::Classifier,
        }
    }

    /// Route of `POST /`, as TEI selects it.
    #[must_use]
    pub fn root_route(&self) -> ModelRoute {
        match self.kind() {
            ModelKind::Embedding => ModelRoute::Embed,
            ModelKind::Reranker => ModelRoute::Rerank,
            ModelKind::Classifier => ModelRoute::Predict,
        }
    }

    /// Checks that the model embeds.
    pub(crate) fn require_embeddings(&self) -> Result<(), CallError> {
        match self.model.head() {
            None => Ok(()),
            Some(_) => Err(self.wrong_model("is not an embedding model: use /predict or /rerank")),
        }
    }

    /// Returns the classification head.
    pub(crate) fn require_head(&self) -> Result<&HeadConfig, CallError> {
        self.model.head().ok_or_else(|| self.wrong_model("is not a classification model: use /embed"))
    }

    /// Returns the head of a reranker, which has one label.
    pub(crate) fn require_reranker(&self) -> Result<&HeadConfig, CallError> {
        self.model
            .head()
            .filter(|head| is_reranker(head))
            .ok_or_else(|| self.wrong_model("is not a re-ranker model: serve a classification model with one label"))
    }

    fn wrong_model(&self, reason: &str) -> CallError {
        CallError::new(ErrorKind::WrongModel, format!("the model {} {reason}", self.name()))
    }

    pub(crate) fn check_dimensions(&self, dimensions: Option<usize>) -> Result<(), CallError> {
        let hidden = self.model.config().hidden;
        match dimensions {
            Some(dimensions) if !(1..=hidden).contains(&dimensions) => {
                Err(CallError::invalid(format!("`dimensions` is {dimensions}: choose 1 to {hidden}")))
            }
            _ => Ok(()),
        }
    }

    /// Encodes an input with its prompt. The caller has refused an empty one, which a prompt would
    /// make another text.
    pub(crate) fn encode(
        &self,
        input: &TextInput,
        options: &EncodeOptions,
        kind: OutputKind,
    ) -> Result<InputSequence, CallError> {
        let truncation = options.truncation();
        let tokenizer = self.model.tokenizer();
        let (tokens, characters) = match input {
            TextInput::Text(text) => {
                let tokens = tokenizer.encode_text(&self.with_prompt(text, options)?, truncation);
                (tokens, text.chars().count())
            }
            TextInput::Ids(_) if options.prompt_name.is_some() => {
                return Err(CallError::invalid("`prompt_name` applies to texts: send a text, or leave it out"));
            }
            TextInput::Ids(_) if self.model.prompts().get(None).is_some_and(|prompt| !prompt.is_empty()) => {
                // Without the prompt, the vector would be another one than that of the same text.
                let name = self.model.prompts().default.as_deref().unwrap_or_default();
                let message =
                    format!("the model puts its prompt {name:?} in front of texts, not of token ids: send a text");
                return Err(CallError::invalid(message));
            }
            TextInput::Ids(ids) => (tokenizer.encode_ids(ids, truncation), ids.len()),
        };
        let tokens = tokens.map_err(|error| token_error(&error))?;
        Ok(InputSequence { tokens, characters, kind })
    }

    /// Encodes a pair of texts, of which one may be empty, as in TEI. The caller has refused a pair of
    /// two empty texts.
    pub(crate) fn encode_pair(
        &self,
        (first, second): (&str, &str),
        options: &EncodeOptions,
    ) -> Result<InputSequence, CallError> {
        let tokens = self.model.tokenizer().encode_pair(first, second, options.truncation());
        let tokens = tokens.map_err(|error| token_error(&error))?;
        let characters = first.chars().count() + second.chars().count();
        Ok(InputSequence { tokens, characters, kind: OutputKind::Logits })
    }

    /// Puts the named prompt, or the default one of the model, in front of a text.
    pub(crate) fn with_prompt(&self, text: &str, options: &EncodeOptions) -> Result<String, CallError> {
        let name = options.prompt_name.as_deref();
        let prompt = self.model.prompts().get(name).ok_or_else(|| {
            let known: Vec<&str> = self.model.prompts().by_name.keys().map(String::as_str).collect();
            CallError::invalid(format!(
                "`prompt_name` {:?} is not a prompt of the model, which has {known:?}",
                name.unwrap_or_default()
            ))
        })?;
        Ok(format!("{prompt}{text}"))
    }
}

/// Returns `true` for the head of a cross-encoder, which has one label.
fn is_reranker(head: &HeadConfig) -> bool {
    head.labels.len() == 1
}

/// Converts the error of an input.
pub(crate) fn token_error(error: &TokenError) -> CallError {
    let kind = match error {
        TokenError::Empty => ErrorKind::Empty,
        TokenError::TooLong { .. } | TokenError::UnknownId { .. } | TokenError::Tokenizer(_) => ErrorKind::Invalid,
    };
    CallError::new(kind, error.to_string())
}

#[cfg(test)]
mod tests {
    use crate::tests::TestModel;

    #[test]
    fn batches_on_the_cpu_are_halved_down_to_one_sequence() {
        let model = TestModel::embedding();
        let sizes = |weight_max| model.served.cpu_batch_sizes(weight_max).collect::<Vec<_>>();
        assert_eq!(sizes(None), [16_384, 8192, 4096, 2048, 1024, 512, 256, 128, 64, 32]);
        assert_eq!(sizes(Some(100)), [100, 50, 32]);
        assert_eq!(sizes(Some(1)), [32], "a sequence is executed whatever the limit");
        assert_eq!(sizes(Some(u64::MAX))[0], 16_384);
    }
}
