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
    /// Whether the model added the token.
    pub is_special: bool,
    /// Start and end of the token in the text; `None` for an added token.
    pub span: Option<(usize, usize)>,
}

/// Unit of the positions of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetUnit {
    /// Bytes of UTF-8.
    Bytes,
    /// Code points of Unicode.
    Chars,
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
    unit: OffsetUnit,
) -> Result<Vec<TokenDetail>, TokenError> {
    let encoding = tokenizer.encode(text, adds_special).map_err(|error| TokenError::Tokenizer(error.to_string()))?;
    let mut counter = CharCounter { text, bytes: 0, chars: 0 };
    let mut details = Vec::with_capacity(encoding.len());
    let offsets = encoding.get_offsets().iter().zip(encoding.get_special_tokens_mask());
    for ((id, token), ((start, end), special)) in encoding.get_ids().iter().zip(encoding.get_tokens()).zip(offsets) {
        let is_special = *special == 1;
        let span = match unit {
            OffsetUnit::Bytes => (*start, *end),
            OffsetUnit::Chars => (counter.count_to(*start), counter.count_to(*end)),
        };
        let part = text.get(*start..*end).filter(|_| !is_special).unwrap_or(token);
        let span = (!is_special).then_some(span);
        details.push(TokenDetail { id: *id, text: part.to_owned(), is_special, span });
    }
    Ok(details)
}

/// Counts the code points before byte offsets. Offsets that mostly grow need one pass over the
/// text.
struct CharCounter<'a> {
    text: &'a str,
    bytes: usize,
    chars: usize,
}

// === impl CharCounter ===

impl CharCounter<'_> {
    fn count_to(&mut self, offset: usize) -> usize {
        let is_start = |byte: &&u8| **byte & 0xc0 != 0x80;
        let count = |from: usize, to: usize| {
            self.text.as_bytes().get(from..to).map_or(0, |part| part.iter().filter(is_start).count())
        };
        if offset >= self.bytes {
            self.chars += count(self.bytes, offset);
        } else {
            self.chars -= count(offset, self.bytes);
        }
        self.bytes = offset;
        self.chars
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_points_are_counted_in_both_directions() {
        let text = "aé日𝄞b";
        let mut counter = CharCounter { text, bytes: 0, chars: 0 };
        for (offset, chars) in [(0, 0), (3, 2), (10, 4), (6, 3), (1, 1), (11, 5), (0, 0)] {
            assert_eq!(counter.count_to(offset), chars, "{offset}");
        }
    }
}
