//! Tokens of a text with their positions in it.

use tokenizers::Tokenizer;

use super::{TextTokenizer, TokenError};

/// A token of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenDetail {
    /// Id of the token.
    pub id: u32,
    /// The token as the vocabulary has it if it is special, otherwise the part of the text.
    pub text: String,
    /// `true` if the model added the token.
    pub is_special: bool,
    /// Start and end of the token in the text, in bytes of UTF-8; `None` for an added token.
    pub span: Option<(usize, usize)>,
}

// === impl TextTokenizer ===

impl TextTokenizer {
    /// Returns the number of bytes that token ids have in the vocabulary, each with a separator: about
    /// the size of the text that [`Self::decode`] returns, and rarely less.
    #[must_use]
    pub fn vocabulary_bytes(&self, ids: &[u32]) -> usize {
        ids.iter().map(|id| self.tokenizer.id_to_token(*id).map_or(0, |token| token.len()) + 1).sum()
    }
}

/// Returns the tokens of a text.
pub(super) fn list_tokens(
    tokenizer: &Tokenizer,
    text: &str,
    adds_special: bool,
) -> Result<Vec<TokenDetail>, TokenError> {
    let encoding = tokenizer.encode(text, adds_special).map_err(|error| TokenError::Tokenizer(error.to_string()))?;
    let mut details = Vec::with_capacity(encoding.len());
    let offsets = encoding.get_offsets().iter().zip(encoding.get_special_tokens_mask());
    for ((id, token), ((start, end), special)) in encoding.get_ids().iter().zip(encoding.get_tokens()).zip(offsets) {
        let is_special = *special == 1;
        let part = text.get(*start..*end).filter(|_| !is_special).unwrap_or(token);
        let span = (!is_special).then_some((*start, *end));
        details.push(TokenDetail { id: *id, text: part.to_owned(), is_special, span });
    }
    Ok(details)
}
