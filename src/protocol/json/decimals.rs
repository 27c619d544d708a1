//! Validation of lists of decimal numbers, 64 bytes at a time (SIMD).
//!
//! A response with embeddings has thousands of numbers. Reading them one after the other is bound
//! by latency: where a number begins depends on where the one before it ends. Here each byte of a
//! block is classified on its own, and the grammar is checked on bit masks, one bit a byte, as in
//! simdjson (Langdale and Lemire, 2019). A list that this check does not know, such as one with an
//! exponent, is left to the byte-wise reader.

use wide::u8x16;

/// Bytes in a block: one for each bit of a mask.
pub(super) const BLOCK_LEN: usize = 64;

/// Classes of the bytes of a block, as masks: bit `i` belongs to byte `i`.
#[derive(Debug, Default, Clone, Copy)]
struct ByteClasses {
    digits: u64,
    zeros: u64,
    points: u64,
    minuses: u64,
    commas: u64,
    spaces: u64,
}

/// State at the end of a block, as bits at position 0 of the next one.
#[derive(Debug, Clone, Copy)]
struct BlockCarry {
    after_digit: u64,
    after_minus: u64,
    after_point: u64,
    after_comma: u64,
    after_space: u64,
    /// The last byte is a zero at the beginning of a number.
    after_leading_zero: u64,
    /// The last byte belongs to the digits after a point.
    in_fraction: u64,
}

/// Returns the position after the last comma before which the list of numbers that starts at `start`
/// is valid, or `start` if there is none. The numbers have no exponents and at most one space after
/// each comma, and are less than `10^128`.
pub(super) fn skip_decimals(doc: &[u8], start: usize) -> usize {
    let mut carry = BlockCarry::at_list_start();
    let mut valid = start;
    for (index, block) in doc.get(start..).unwrap_or_default().as_chunks::<BLOCK_LEN>().0.iter().enumerate() {
        let classes = ByteClasses::of(block);
        let flaws = carry.check(classes);
        // Commas before the first flaw. The shift count of a block without flaws is its length.
        let before = 1_u64.checked_shl(flaws.trailing_zeros()).map_or(u64::MAX, |bit| bit - 1);
        let commas = classes.commas & before;
        if commas != 0 {
            valid = start + index * BLOCK_LEN + BLOCK_LEN - commas.leading_zeros() as usize;
        }
        if flaws != 0 {
            break;
        }
    }
    valid
}

// === impl ByteClasses ===

impl ByteClasses {
    fn of(block: &[u8; BLOCK_LEN]) -> Self {
        let mut classes = Self::default();
        for (index, lane) in block.as_chunks::<16>().0.iter().enumerate() {
            let lane = u8x16::new(*lane);
            let shift = 16 * index;
            let mask = |hits: u8x16| u64::from(hits.to_bitmask()) << shift;
            let equals = |byte: u8| mask(lane.simd_eq(u8x16::splat(byte)));
            let value = lane - u8x16::splat(b'0');
            classes.digits |= mask(value.simd_eq(value.min(u8x16::splat(9))));
            classes.zeros |= equals(b'0');
            classes.points |= equals(b'.');
            classes.minuses |= equals(b'-');
            classes.commas |= equals(b',');
            classes.spaces |= equals(b' ');
        }
        classes
    }
}

// === impl BlockCarry ===

impl BlockCarry {
    /// Returns the state before the first number of a list, which is that after a comma.
    const fn at_list_start() -> Self {
        Self {
            after_digit: 0,
            after_minus: 0,
            after_point: 0,
            after_comma: 1,
            after_space: 0,
            after_leading_zero: 0,
            in_fraction: 0,
        }
    }

    /// Returns a mask of the bytes that do not continue the list, and moves on to the next block.
    /// Only the first flaw is meaningful.
    fn check(&mut self, classes: ByteClasses) -> u64 {
        let ByteClasses { digits, zeros, points, minuses, commas, spaces } = classes;
        let after_digit = self.follow(digits, |carry| &mut carry.after_digit);
        let after_minus = self.follow(minuses, |carry| &mut carry.after_minus);
        let after_point = self.follow(points, |carry| &mut carry.after_point);
        let after_comma = self.follow(commas, |carry| &mut carry.after_comma);
        let after_space = self.follow(spaces, |carry| &mut carry.after_space);
        let leading_zeros = zeros & (after_comma | after_space | after_minus);
        let after_leading_zero = self.follow(leading_zeros, |carry| &mut carry.after_leading_zero);
        // Adding a bit to a run of digits carries it to the first byte after the run.
        let (sums, is_open) = digits.overflowing_add(after_point | self.in_fraction);
        self.in_fraction = u64::from(is_open);
        let after_fraction = sums & !digits;
        // A run of digits over a whole block may be longer than any decimal number.
        let long = u64::from(digits == u64::MAX);
        long | !(digits | points | minuses | commas | spaces)
            | spaces & !after_comma
            | minuses & !(after_comma | after_space)
            | (commas | points) & !after_digit
            | digits & after_leading_zero
            | points & after_fraction
    }

    /// Returns the bytes after those of a class.
    fn follow(&mut self, class: u64, carry: impl FnOnce(&mut Self) -> &mut u64) -> u64 {
        let carried = std::mem::replace(carry(self), class >> (BLOCK_LEN - 1));
        class << 1 | carried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the part of `list` that is skipped.
    fn skipped(list: &str) -> &str {
        list.get(..skip_decimals(list.as_bytes(), 0)).unwrap()
    }

    #[test]
    fn a_list_is_skipped_up_to_its_last_comma_in_a_whole_block() {
        for number in ["-0.012345678901234567,0.5,17,-3,1234567890123456.75,0,-0,", "-0.5, ", "0, -7, 1.25, "] {
            // A block of digits only is not skipped.
            for pad in 0..BLOCK_LEN - 1 {
                let list = format!("{}1,{}", "2".repeat(pad), number.repeat(40));
                let whole = list.len() - list.len() % BLOCK_LEN;
                let last = list.get(..whole).unwrap().rfind(',').unwrap();
                assert_eq!(skip_decimals(list.as_bytes(), 0), last + 1, "{list}");
                assert_eq!(skip_decimals(format!("[{list}").as_bytes(), 1), last + 2, "{list}");
            }
        }
        assert_eq!(skipped("1,2,3"), "", "less than a block");
    }

    /// Flaws at every position of a block, after a comma and after a comma and a space.
    #[test]
    fn a_flaw_ends_the_list_at_the_comma_before_it_wherever_it_is() {
        let flaws = [
            "00", "01.5", "-01", "-00", "1.2.3", "1..2", ".5", "1.", "-", "--1", "1-", "1e5", "+1", "1 ", "  1", "- 1",
            " ", "", "a", "0.1.", "-.1", "1 2",
        ];
        let tail = ",0.25".repeat(40);
        for pad in 0..2 * BLOCK_LEN {
            // An item of each length puts the flaw at every position. Long items are not skipped.
            let head = format!("{},{}7,", "1".repeat(pad % BLOCK_LEN + 1), "7,".repeat(pad / BLOCK_LEN * 40));
            for (flaw, separator) in flaws.iter().flat_map(|flaw| [(flaw, ""), (flaw, " ")]) {
                let list = format!("{head}{separator}{flaw}{tail}");
                let part = skipped(&list);
                assert!(part.len() <= head.len(), "{flaw:?} after {head:?} and {separator:?}: {part}");
            }
            let list = format!("{head}{}{tail}", "9".repeat(2 * BLOCK_LEN));
            assert!(skipped(&list).len() <= head.len(), "a long run of digits");
        }
    }

    #[test]
    fn a_number_across_blocks_is_checked_as_a_whole() {
        let tail = "1,".repeat(BLOCK_LEN);
        // The digits after the point end near the beginning and near the end of the second block.
        for (digits, length) in (1..BLOCK_LEN - 1).flat_map(|digits| [(digits, 70), (digits, 126)]) {
            let number = format!("{}.{}", "1".repeat(digits), "5".repeat(length - digits - 1));
            assert!(skipped(&format!("{number},{tail}")).len() > length, "{number}");
            assert_eq!(skipped(&format!("{number}.5,{tail}")), "", "{number}.5");
        }
    }
}
