//! The treatment of inputs with more tokens than the model takes.

use tokenizers::utils::truncation::TruncationDirection;

/// Treatment of an input with more tokens than the model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// The input is refused.
    Refused,
    /// Tokens are removed at the side that the files of the tokenizer name (`truncation_side`), and
    /// at the end if they name none.
    ModelSide,
    /// Tokens are removed at the beginning.
    Left,
    /// Tokens are removed at the end.
    Right,
}

// === impl Truncation ===

impl Truncation {
    /// Returns the side at which tokens are removed, where `own` is that of the tokenizer; `None`
    /// if the input is refused.
    pub(super) fn direction(self, own: TruncationDirection) -> Option<TruncationDirection> {
        match self {
            Self::Refused => None,
            Self::ModelSide => Some(own),
            Self::Left => Some(TruncationDirection::Left),
            Self::Right => Some(TruncationDirection::Right),
        }
    }
}

impl From<bool> for Truncation {
    /// `true` truncates at the side of the model, and `false` refuses the input.
    fn from(truncates: bool) -> Self {
        if truncates { Self::ModelSide } else { Self::Refused }
    }
}
