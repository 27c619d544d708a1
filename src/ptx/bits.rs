//! Registers of a warp as arrays of bits, and conversions of single registers.
//!
//! A register has 64 bits in every lane. Narrower values are zero-extended, predicates are 0 or 1.

use crate::instruction::BitWidth;

/// Number of lanes of a warp.
pub(crate) const LANES: usize = 32;
/// Mask of all lanes of a warp.
pub(crate) const ALL_LANES: u32 = u32::MAX;

/// One register in all lanes of a warp.
pub(crate) type LaneValues = [u64; LANES];

/// Returns the lanes of a mask, in ascending order.
pub(crate) fn lanes_in(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

/// Returns the lower 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "the upper bits are dropped on purpose")]
pub(crate) const fn low_word(value: u64) -> u32 {
    value as u32
}

/// Returns the lower 16 bits.
#[expect(clippy::cast_possible_truncation, reason = "the upper bits are dropped on purpose")]
pub(crate) const fn low_half(value: u64) -> u16 {
    value as u16
}

/// Returns an offset or a length as an index. Values beyond the address space saturate, and then
/// fail the check of bounds.
pub(crate) fn to_index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Returns the f32 in the lower 32 bits.
pub(crate) const fn to_f32(value: u64) -> f32 {
    f32::from_bits(low_word(value))
}

/// Returns the register that holds an f32.
pub(crate) const fn from_f32(value: f32) -> u64 {
    value.to_bits() as u64
}

/// Rounds to f32, to nearest.
#[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
pub(crate) const fn round_to_float(value: f64) -> f32 {
    value as f32
}

/// Converts to an integer by truncation. Values beyond the range saturate, and NaN becomes zero, as
/// PTX defines for `cvt`.
#[expect(clippy::cast_possible_truncation, reason = "saturation is what `cvt` defines")]
pub(crate) const fn truncate_float(value: f64) -> i64 {
    value as i64
}

/// Drops the bits above a width.
pub(crate) const fn truncate(value: u64, width: BitWidth) -> u64 {
    value & width.mask()
}

/// Returns the signed integer in the lower bits.
pub(crate) const fn sign_extend(value: u64, width: BitWidth) -> i64 {
    let unused = 64 - width.bits();
    (value << unused).cast_signed() >> unused
}

/// Replaces subnormal values by a zero of the same sign, as the modifier `.ftz` does.
pub(crate) const fn flush_subnormal(value: f32) -> f32 {
    if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_values_are_extended_from_their_width() {
        assert_eq!(sign_extend(0xffff_ffff, BitWidth::Word), -1);
        assert_eq!(sign_extend(0x7fff_ffff, BitWidth::Word), i64::from(i32::MAX));
        assert_eq!(sign_extend(0x80, BitWidth::Byte), -128);
        assert_eq!(truncate(u64::MAX, BitWidth::Half), 0xffff);
        assert_eq!(truncate(u64::MAX, BitWidth::Double), u64::MAX);
    }

    #[test]
    fn lanes_of_a_mask_ascend() {
        assert_eq!(lanes_in(0x8000_0005).collect::<Vec<_>>(), [0, 2, 31]);
    }
}
