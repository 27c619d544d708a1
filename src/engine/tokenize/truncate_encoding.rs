//! Truncation of encodings before the special tokens of the model are added.
//!
//! The `tokenizers` crate keeps the pieces that its own truncation removes, and its post-processor
//! combines those of both texts of a pair with each other, which is quadratic work for two long
//! texts. Here, each text is cut alone, and the removed pieces are dropped before that step.

use tokenizers::Encoding;
use tokenizers::utils::truncation::TruncationDirection;

/// Cuts an encoding, or a pair of them, to `room` tokens in total. Of a pair, the longer text loses
/// tokens until both have the same length, then both do: the strategy `longest_first` of the
/// `transformers` library.
pub(super) fn truncate_longest_first(
    mut first: Encoding,
    mut second: Option<Encoding>,
    room: usize,
    direction: TruncationDirection,
) -> (Encoding, Option<Encoding>) {
    let lengths = split_room(first.len(), second.as_ref().map_or(0, Encoding::len), room);
    cut(&mut first, lengths.0, direction);
    if let Some(second) = &mut second {
        cut(second, lengths.1, direction);
    }
    (first, second)
}

/// Returns the numbers of tokens that are kept of the first and of the second text. If two long
/// texts share an odd number, the longer one keeps the extra token, and the second one if both are
/// equal, as in the `tokenizers` crate.
fn split_room(first: usize, second: usize, room: usize) -> (usize, usize) {
    if first + second <= room {
        return (first, second);
    }
    let half = room / 2;
    let (shorter, is_swapped) = if first > second { (second, true) } else { (first, false) };
    // The shorter text is kept whole if it fits into half of the room.
    let kept = if shorter <= half { (shorter, room - shorter) } else { (half, room - half) };
    if is_swapped { (kept.1, kept.0) } else { kept }
}

/// Cuts an encoding to at most `length` tokens.
fn cut(encoding: &mut Encoding, length: usize, direction: TruncationDirection) {
    if encoding.len() > length {
        encoding.truncate(length, 0, direction);
        // The removed pieces are not needed.
        drop(encoding.take_overflowing());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_text_loses_tokens_first() {
        assert_eq!(split_room(3, 4, 7), (3, 4));
        assert_eq!(split_room(3, 100, 10), (3, 7));
        assert_eq!(split_room(100, 3, 10), (7, 3));
        assert_eq!(split_room(100, 100, 11), (5, 6));
        assert_eq!(split_room(101, 100, 11), (6, 5));
        assert_eq!(split_room(9, 0, 4), (4, 0));
        assert_eq!(split_room(5, 5, 0), (0, 0));
    }

    /// Compares with `truncate_encodings` of the `tokenizers` crate for all small lengths.
    #[test]
    fn the_lengths_are_those_of_the_tokenizers_crate() {
        use tokenizers::utils::truncation::{TruncationParams, truncate_encodings};
        let encoding = |length: usize| {
            let tokens = (0..length).map(|at| tokenizers::Token::new(1, "x".to_owned(), (at, at + 1))).collect();
            Encoding::from_tokens(tokens, 0)
        };
        for (first, second, room) in (0..9).flat_map(|a| (0..9).flat_map(move |b| (1..12).map(move |r| (a, b, r)))) {
            let params = TruncationParams { max_length: room, ..TruncationParams::default() };
            let (a, b) = truncate_encodings(encoding(first), Some(encoding(second)), &params).unwrap();
            let expected = (a.len(), b.unwrap().len());
            assert_eq!(split_room(first, second, room), expected, "{first} and {second} in {room}");
        }
    }
}
