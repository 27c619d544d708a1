//! Tokenizers of models: conversion of texts, and of pairs of texts, to sequences of token ids, and
//! of token ids to text.
//!
//! Special tokens are those that a model adds to the tokens of a text, such as `[CLS]` and `[SEP]`.
//! A segment type (`token_type_ids` of BERT) distinguishes the two texts of a pair.

mod token_positions;
mod file;
mod settings;
mod truncate_encoding;
mod truncation_policy;

use std::fmt;

use tokenizers::utils::truncation::TruncationDirection;
use tokenizers::{PostProcessor as _, Tokenizer};

use self::settings::TokenizerSettings;
pub use self::token_positions::TokenDetail;
pub use self::truncation_policy::Truncation;
use crate::config::{EncoderConfig, POSITIONS_MAX, PositionScheme};
use crate::directory::TOKENIZER_BYTES_MAX;
use crate::error::LoadError;
use crate::sentence::SentenceConfig;

const FILE: &str = "tokenizer.json";

/// Maximum size of a text in bytes: 64 for each token of the longest sequence that any model can
/// have, while a token of natural language has about 4. The time and memory of a tokenizer grow
/// with the whole text, even if most of its tokens are then left out.
const TEXT_BYTES_MAX: usize = 64 * POSITIONS_MAX;

/// Tokens of one input, ready for an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSequence {
    ids: Vec<u32>,
    /// Segment type of each token.
    type_ids: Vec<u32>,
    is_truncated: bool,
}

/// The tokenizer of a model, with the limits of its encoder. It may be shared between threads.
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    /// Side of truncation if a call selects none.
    direction: TruncationDirection,
    /// Number of tokens with an embedding.
    vocabulary: usize,
    /// Number of segment types with an embedding, at least 1.
    types: usize,
    /// Maximum number of tokens of a sequence, special tokens included.
    tokens_max: usize,
}

/// Error of an input that cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The input has more tokens than the model accepts.
    #[error(
        "the input has {tokens} tokens and the model accepts at most {tokens_max}: shorten it, or allow truncation"
    )]
    TooLong {
        /// Number of tokens, special tokens included.
        tokens: usize,
        /// Limit of the model.
        tokens_max: usize,
    },
    /// The input has no token.
    #[error("the input has no token: send a text or at least one token id")]
    Empty,
    /// A token id has no embedding.
    #[error(
        "token id {id} at position {position} is outside of the vocabulary of {vocabulary} tokens: send ids below that number"
    )]
    UnknownId {
        /// The token id.
        id: u32,
        /// Its index in the input.
        position: usize,
        /// Number of tokens with an embedding.
        vocabulary: usize,
    },
    /// The tokenizer cannot encode the input or decode the ids.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
}

// === impl TokenSequence ===

impl TokenSequence {
    /// Returns the token ids, special tokens included.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns the segment type of each token.
    #[must_use]
    pub fn type_ids(&self) -> &[u32] {
        &self.type_ids
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns `true` if there is no token. The encoders of this crate never return such a
    /// sequence.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns `true` if tokens of the input were left out.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }
}

// === impl TextTokenizer ===

impl TextTokenizer {
    /// Reads `tokenizer.json` and applies the settings of `tokenizer_config.json`. The truncation
    /// length and the padding in `tokenizer.json` are ignored: they often remain from the training
    /// of the model, and differ from the limits that it has in use.
    pub(crate) fn load(config: &EncoderConfig, sentence: &SentenceConfig) -> Result<Self, LoadError> {
        let directory = &sentence.encoder;
        let bytes = directory.read_required(FILE, TOKENIZER_BYTES_MAX)?;
        let error = |(found, place): (String, &str)| LoadError {
            file: directory.path(FILE).display().to_string(),
            place: place.to_owned(),
            found,
            expected: "a tokenizer in the format of Hugging Face".to_owned(),
            advice: "use the `tokenizer.json` of the model",
        };
        let file::TokenizerFile { mut tokenizer, direction } = file::parse(&bytes).map_err(error)?;
        let settings = TokenizerSettings::read(directory, config.architecture)?;
        let failed = |broken: tokenizers::Error| error((broken.to_string(), "field `normalizer`"));
        settings.apply(&mut tokenizer).map_err(failed)?;
        if sentence.lowercases {
            settings::add_lowercase(&mut tokenizer).map_err(failed)?;
        }
        file::check(&tokenizer).map_err(error)?;
        file::check_special_tokens(&tokenizer, &directory.path(FILE))?;
        // sentence-transformers prefers the length of its own configuration file to that of the
        // tokenizer. It fails for more tokens than the model has positions, so the length is
        // limited to them below.
        let length = sentence.length_max.or(settings.length).unwrap_or(usize::MAX);
        Ok(Self {
            tokenizer,
            direction: settings.direction.or(direction).unwrap_or(TruncationDirection::Right),
            vocabulary: config.vocabulary,
            types: match config.positions {
                PositionScheme::Absolute if settings.uses_types => config.types,
                // RoBERTa has a single segment type, and ModernBERT has no embedding of them.
                _ => 1,
            },
            tokens_max: length.min(config.positions_max),
        })
    }

    /// Lowers the maximum number of tokens of a sequence.
    pub(crate) fn limit_tokens(&mut self, tokens_max: usize) {
        self.tokens_max = self.tokens_max.min(tokens_max);
    }

    /// Returns the maximum number of tokens of a sequence, special tokens included.
    #[must_use]
    pub fn tokens_max(&self) -> usize {
        self.tokens_max
    }

    /// Returns the number of tokens with an embedding.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Encodes a text, and adds the special tokens of the model.
    ///
    /// # Errors
    /// The text is too long and truncation is not allowed, or it cannot be encoded.
    pub fn encode_text(&self, text: &str, truncation: impl Into<Truncation>) -> Result<TokenSequence, TokenError> {
        self.encode(text, None, truncation.into())
    }

    /// Encodes a pair of texts, such as a query and a document, and adds the special tokens of the
    /// model. If the pair is too long, tokens of its longer text are left out first (the strategy
    /// `longest_first` of the `transformers` library).
    ///
    /// # Errors
    /// As [`Self::encode_text`].
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        truncation: impl Into<Truncation>,
    ) -> Result<TokenSequence, TokenError> {
        self.encode(first, Some(second), truncation.into())
    }

    /// Checks token ids that a caller sent in place of a text, and truncates them if necessary. No
    /// special tokens are added: the ids have to include those that the model requires.
    ///
    /// # Errors
    /// There is no id, an id is outside of the vocabulary, or there are too many ids and truncation
    /// is not allowed.
    pub fn encode_ids(&self, ids: &[u32], truncation: impl Into<Truncation>) -> Result<TokenSequence, TokenError> {
        let is_truncated = ids.len() > self.tokens_max;
        let kept: Vec<u32> = match truncation.into().direction(self.direction) {
            None if is_truncated => {
                return Err(TokenError::TooLong { tokens: ids.len(), tokens_max: self.tokens_max });
            }
            Some(TruncationDirection::Left) => {
                ids.iter().copied().skip(ids.len().saturating_sub(self.tokens_max)).collect()
            }
            None | Some(TruncationDirection::Right) => ids.iter().copied().take(self.tokens_max).collect(),
        };
        let type_ids = vec![0; kept.len()];
        self.checked(TokenSequence { ids: kept, type_ids, is_truncated })
    }

    /// Returns the text of token ids. `skips_special` leaves out the special tokens.
    ///
    /// # Errors
    /// The decoder of the tokenizer fails.
    pub fn decode(&self, ids: &[u32], skips_special: bool) -> Result<String, TokenError> {
        let decode = || self.tokenizer.decode(ids, skips_special);
        file::catch_panic(|| decode().map_err(|error| TokenError::Tokenizer(error.to_string())))
    }

    /// Returns every token of a text with its position in the text. The number of tokens is not
    /// limited. `adds_special` adds the special tokens of the model.
    ///
    /// # Errors
    /// The text has too many bytes, or the tokenizer fails.
    pub fn list_tokens(&self, text: &str, adds_special: bool) -> Result<Vec<TokenDetail>, TokenError> {
        check_size(text)?;
        file::catch_panic(|| token_positions::list_tokens(&self.tokenizer, text, adds_special))
    }

    fn encode(&self, first: &str, second: Option<&str>, truncation: Truncation) -> Result<TokenSequence, TokenError> {
        check_size(first)?;
        check_size(second.unwrap_or_default())?;
        let direction = truncation.direction(self.direction);
        file::catch_panic(|| self.encode_unchecked(first, second, direction))
    }

    /// Encodes a text or a pair after the check of its size. A panic of the `tokenizers` crate is
    /// not caught here.
    fn encode_unchecked(
        &self,
        first: &str,
        second: Option<&str>,
        direction: Option<TruncationDirection>,
    ) -> Result<TokenSequence, TokenError> {
        let failed = |error: tokenizers::Error| TokenError::Tokenizer(error.to_string());
        let encode = |text: &str| self.tokenizer.encode_fast(text, false).map_err(failed);
        let first = encode(first)?;
        let second = second.map(encode).transpose()?.map(|mut second| {
            // The post-processor `BertProcessing` keeps the segment types of its input, so those of
            // the second text are set here.
            second.set_type_ids(vec![1; second.len()]);
            second
        });
        let added = self.tokenizer.get_post_processor().map_or(0, |post| post.added_tokens(second.is_some()));
        let tokens = first.len() + second.as_ref().map_or(0, tokenizers::Encoding::len);
        let room = self.tokens_max.saturating_sub(added);
        let is_truncated = tokens > room;
        if is_truncated && direction.is_none() {
            return Err(TokenError::TooLong { tokens: tokens + added, tokens_max: self.tokens_max });
        }
        let direction = direction.unwrap_or(self.direction);
        let (first, second) = truncate_encoding::truncate_longest_first(first, second, room, direction);
        let encoding = self.tokenizer.post_process(first, second, true).map_err(failed)?;
        let (ids, type_ids) = (encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec());
        self.checked(TokenSequence { ids, type_ids, is_truncated })
    }

    /// Checks that the length is allowed and that every token has an embedding. A segment type
    /// without an embedding is replaced by the last one.
    fn checked(&self, mut sequence: TokenSequence) -> Result<TokenSequence, TokenError> {
        if sequence.ids.is_empty() {
            return Err(TokenError::Empty);
        }
        if sequence.ids.len() > self.tokens_max {
            return Err(TokenError::TooLong { tokens: sequence.ids.len(), tokens_max: self.tokens_max });
        }
        let has_embedding = |id: u32| usize::try_from(id).is_ok_and(|id| id < self.vocabulary);
        if let Some(position) = sequence.ids.iter().position(|id| !has_embedding(*id)) {
            let id = sequence.ids.get(position).copied().unwrap_or_default();
            return Err(TokenError::UnknownId { id, position, vocabulary: self.vocabulary });
        }
        let last = u32::try_from(self.types).unwrap_or(u32::MAX).saturating_sub(1);
        sequence.type_ids.iter_mut().for_each(|type_id| *type_id = (*type_id).min(last));
        Ok(sequence)
    }
}

impl fmt::Debug for TextTokenizer {
    /// Formats only the limits, because a vocabulary may have a hundred thousand entries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vocabulary, tokens_max, .. } = self;
        f.debug_struct("TextTokenizer")
            .field("vocabulary", vocabulary)
            .field("tokens_max", tokens_max)
            .finish_non_exhaustive()
    }
}

fn check_size(text: &str) -> Result<(), TokenError> {
    if text.len() <= TEXT_BYTES_MAX {
        return Ok(());
    }
    let bytes = text.len();
    Err(TokenError::Tokenizer(format!("the text has {bytes} bytes and may have at most {TEXT_BYTES_MAX}: shorten it")))
}
