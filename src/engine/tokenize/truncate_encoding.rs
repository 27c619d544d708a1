//! Truncation of encodings before the model's own tokens are added.
//!
//! The truncation of the `tokenizers` crate keeps what it leaves out, and combines the left-out
//! pieces of both parts of a pair with each other: quadratic work for two long texts. Here, they
//! are dropped before.

use tokenizers::Encoding;
use tokenizers::utils::truncation::TruncationDirection;

/// Cuts an encoding, or a pair of them, to `room` tokens in total. Of a pair, tokens of the longer
/// part are left out until both have the same length, then of both: the strategy `longest_first` of
/// the `transformers` library.
pub(super) fn longest_first(
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

/// Returns how many tokens of each part are kept. Of an odd number for two long parts, the second
/// one gets the extra token if it is the longer one or both are equal, as in the `tokenizers` crate.
fn split_room(first: usize, second: usize, room: usize) -> (usize, usize) {
    if first + second <= room {
        return (first, second);
    }
    let half = room / 2;
    let (shorter, is_swapped) = if first > second { (second, true) } else { (first, false) };
    // The shorter part is kept whole if it fits into half of the room.
    let kept = if shorter <= half { (shorter, room - shorter) } else { (half, room - half) };
    if is_swapped { (kept.1, kept.0) } else { kept }
}

fn cut(encoding: &mut Encoding, length: usize, direction: TruncationDirection) {
    if encoding.len() > length {
        encoding.truncate(length, 0, direction);
        // The pieces that were left out are not needed.
        drop(encoding.take_overflowing());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_the_longer_part_are_left_out_first() {
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
