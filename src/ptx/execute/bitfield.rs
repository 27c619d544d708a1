//! Operations on fields of 32-bit values: `bfe`, `bfi`, `lop3`, `prmt` and `shf`.

use crate::bits::{LaneValues, low_word, sign_extend, truncate};
use crate::instruction::{BitWidth, ScalarType};

/// Positions and lengths are bytes.
const BYTE: u64 = 0xff;

/// Extracts `length` bits from `position` on. Signed fields are extended from their highest bit;
/// bits beyond the value are copies of its sign.
pub(super) fn extract(scalar: ScalarType, value: u64, position: u64, length: u64) -> u64 {
    let width = scalar.width();
    let (position, length) = (low_word(position & BYTE), low_word(length & BYTE).min(width.bits()));
    if length == 0 {
        return 0;
    }
    let extended = match scalar {
        ScalarType::Signed(_) => i128::from(sign_extend(value, width)),
        _ => i128::from(truncate(value, width)),
    };
    let field = (extended >> position.min(127)) << (128 - length);
    let field = match scalar {
        ScalarType::Signed(_) => field >> (128 - length),
        _ => (field.cast_unsigned() >> (128 - length)).cast_signed(),
    };
    truncate(lower_half(field), width)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the bits are wanted")]
const fn lower_half(value: i128) -> u64 {
    value as u64
}

/// Inserts the lower `length` bits of the first value into the second one at `position`.
pub(super) fn insert([source, base, position, length]: &[LaneValues; 4]) -> LaneValues {
    std::array::from_fn(|lane| {
        let of = |lanes: &LaneValues| lanes.get(lane).copied().unwrap_or(0);
        let (position, length) = (low_word(of(position) & BYTE), low_word(of(length) & BYTE).min(32));
        let field = ((1_u64 << length) - 1).checked_shl(position).unwrap_or(0);
        let inserted = of(source).checked_shl(position).unwrap_or(0);
        truncate(of(base) & !field | inserted & field, BitWidth::Word)
    })
}

/// Looks each bit up in a truth table, indexed by the bits of `a`, `b` and `c`.
pub(super) fn logic(table: u8, a: u64, b: u64, c: u64) -> u64 {
    let term = |index: u8| {
        let pick = |value: u64, bit: u8| if index & bit == 0 { !value } else { value };
        if table >> index & 1 == 1 { pick(a, 4) & pick(b, 2) & pick(c, 1) } else { 0 }
    };
    truncate((0..8).map(term).fold(0, |bits, term| bits | term), BitWidth::Word)
}

/// Selects four bytes of `b:a` by the nibbles of `selectors`. The highest bit of a nibble
/// replicates the sign of the byte.
pub(super) fn permute(a: u64, b: u64, selectors: u64) -> u64 {
    let bytes = truncate(a, BitWidth::Word) | truncate(b, BitWidth::Word) << 32;
    (0..4).fold(0, |result, at| {
        let selector = selectors >> (4 * at);
        let byte = bytes >> (8 * (selector & 7)) & BYTE;
        let byte = if selector & 8 == 0 { byte } else { (byte >> 7) * BYTE };
        result | byte << (8 * at)
    })
}

/// Upper word of `b:a`, shifted left by `distance` modulo 32.
pub(super) fn funnel_left(a: u64, b: u64, distance: u64) -> u64 {
    let pair = truncate(a, BitWidth::Word) | truncate(b, BitWidth::Word) << 32;
    pair << (distance & 31) >> 32
}

/// Lower word of `b:a`, shifted right by `distance` modulo 32.
pub(super) fn funnel_right(a: u64, b: u64, distance: u64) -> u64 {
    let pair = truncate(a, BitWidth::Word) | truncate(b, BitWidth::Word) << 32;
    truncate(pair >> (distance & 31), BitWidth::Word)
}
