//! Sizes of texts, from which numbers of tokens are estimated.

use std::ops::AddAssign;

use crate::json;

/// Size of one or more texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TextSize {
    /// Number of texts. Tokenizers add tokens to each, such as those at its beginning and end.
    pub(crate) texts: u64,
    /// Code points of Latin scripts.
    pub(crate) latin: u64,
    /// Code points of Chinese, Japanese and Korean.
    pub(crate) cjk: u64,
    /// Code points of all other scripts.
    pub(crate) other: u64,
    /// Tokens in a known number, as of token ids.
    pub(crate) tokens: u64,
}

/// The texts of a call: what its weight is computed from.
#[derive(Debug, Clone)]
pub(crate) struct CallText {
    /// Name under which the rates of its model are learned.
    pub(crate) model: Box<[u8]>,
    /// Size of all texts.
    pub(crate) sum: TextSize,
    /// Size of the heaviest item at default rates.
    pub(crate) heaviest: TextSize,
    /// Maximum number of tokens of the response, which the weight includes.
    pub(crate) output_max: u64,
    /// `true` if the server reads nothing else, such as images or tools, so that the number of
    /// tokens that it reports belongs to these texts.
    pub(crate) is_whole: bool,
}

// === impl TextSize ===

impl TextSize {
    /// Returns the size of a JSON string given without its quotes.
    pub(crate) fn of_string(raw: &[u8]) -> Self {
        let json::ScriptCounts { latin, cjk, other } = json::count_scripts(raw);
        Self { texts: 1, latin, cjk, other, tokens: 0 }
    }

    /// Returns the size of this many tokens.
    pub(crate) fn of_tokens(tokens: u64) -> Self {
        Self { tokens, ..Self::default() }
    }

    /// Returns the number of tokens at default rates: a token for four Latin code points, three for
    /// four of Chinese, Japanese and Korean, and one for two of any other script. These are the
    /// numbers of common English and multilingual tokenizers, rounded.
    pub(crate) fn default_tokens(&self) -> u64 {
        let quarters = [(self.latin, 1), (self.cjk, 3), (self.other, 2)]
            .into_iter()
            .fold(0_u64, |sum, (points, quarters)| sum.saturating_add(points.saturating_mul(quarters)));
        self.tokens.saturating_add(quarters.div_ceil(4))
    }
}

impl AddAssign for TextSize {
    fn add_assign(&mut self, other: Self) {
        self.texts = self.texts.saturating_add(other.texts);
        self.latin = self.latin.saturating_add(other.latin);
        self.cjk = self.cjk.saturating_add(other.cjk);
        self.other = self.other.saturating_add(other.other);
        self.tokens = self.tokens.saturating_add(other.tokens);
    }
}
