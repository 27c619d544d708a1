//! The ceiling on the tokens of an execution, by which a batch that is too large for the memory of
//! the device is divided into parts of whole sequences.
//!
//! The result of a sequence does not depend on its batch, so the division does not change it.

use std::ops::Range;

/// Maximum number of tokens of an execution, as learned from operations that had not enough memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenCeiling {
    tokens: usize,
    sequences: usize,
}

// === impl TokenCeiling ===

impl TokenCeiling {
    /// Creates the ceiling of a device with memory for these numbers of tokens and sequences.
    pub(crate) fn new(tokens: usize, sequences: usize) -> Self {
        Self { tokens, sequences }
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns `true` if a batch is executed whole.
    pub(crate) fn allows(&self, tokens: usize, sequences: usize) -> bool {
        sequences <= 1 || (tokens <= self.tokens && sequences <= self.sequences)
    }

    /// Divides sequences, in their order, into ranges. A range exceeds the ceiling only if it is a
    /// single sequence, which cannot be divided.
    pub(crate) fn divide(&self, lengths: &[usize], sequences: Range<usize>) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut tokens = 0;
        let all = lengths.iter().enumerate().take(sequences.end).skip(sequences.start);
        for (at, length) in all {
            match ranges.last_mut() {
                Some(last) if tokens + length <= self.tokens && last.len() < self.sequences => {
                    last.end = at + 1;
                    tokens += length;
                }
                _ => {
                    ranges.push(at..at + 1);
                    tokens = *length;
                }
            }
        }
        ranges
    }

    /// Lowers the ceiling to half of the tokens of an execution that had not enough memory. Returns
    /// `false` if it was a single sequence, so that nothing can be lowered.
    pub(crate) fn on_shortage(&mut self, tokens: usize, sequences: usize) -> bool {
        if sequences <= 1 {
            return false;
        }
        self.tokens = self.tokens.min(tokens / 2).max(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_divided_in_their_order() {
        let ceiling = TokenCeiling::new(10, 3);
        let lengths = [4, 4, 4, 11, 1, 1, 1, 1];
        assert_eq!(ceiling.divide(&lengths, 0..8), [0..2, 2..3, 3..4, 4..7, 7..8]);
        assert_eq!(ceiling.divide(&lengths, 1..3).first(), Some(&(1..3)));
        assert!(ceiling.divide(&lengths, 2..2).is_empty());
        for (range, is_whole) in [(0..2, true), (0..3, false), (3..4, true), (4..7, true), (4..8, false)] {
            let tokens = lengths[range.clone()].iter().sum();
            assert_eq!(ceiling.allows(tokens, range.len()), is_whole, "{range:?}");
            assert_eq!(ceiling.divide(&lengths, range).len() == 1, is_whole);
        }
    }

    #[test]
    fn a_shortage_halves_the_batch_and_is_remembered() {
        let mut ceiling = TokenCeiling::new(1000, 100);
        let lengths = [100; 8];
        assert!(ceiling.on_shortage(800, 8));
        assert_eq!(ceiling.divide(&lengths, 0..8), [0..4, 4..8]);
        assert!(ceiling.on_shortage(400, 4));
        assert_eq!(ceiling.divide(&lengths, 0..4), [0..2, 2..4]);
        assert!(!ceiling.on_shortage(100, 1), "a sequence is not divided");
        assert_eq!(ceiling.tokens(), 200);
        assert!(ceiling.on_shortage(3, 3));
        assert_eq!(ceiling.divide(&lengths, 0..2), [0..1, 1..2]);
    }
}
