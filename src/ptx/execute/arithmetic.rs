//! Integer and bitwise arithmetic. Operations on f32 are in [`float`].

use super::{bitfield, float, map2, map3};
use crate::bits::{LaneValues, low_word, sign_extend, truncate};
use crate::instruction::{BinaryOperator, BitWidth, ScalarType, TernaryOperator, UnaryOperator};

pub(super) fn unary(operator: UnaryOperator, scalar: ScalarType, flush: bool, source: &LaneValues) -> LaneValues {
    let width = scalar.width();
    match (operator, scalar) {
        // Predicates are stored as 0 and 1, so only the lowest bit is inverted.
        (UnaryOperator::Not, ScalarType::Predicate) => source.map(|value| value ^ 1),
        (UnaryOperator::Move, _) => source.map(|value| truncate(value, width)),
        (_, ScalarType::F32) => float::unary(operator, flush, source),
        (UnaryOperator::Not, _) => source.map(|value| truncate(!value, width)),
        (UnaryOperator::Negate, _) => source.map(|value| truncate(value.wrapping_neg(), width)),
        (UnaryOperator::Absolute, _) => source.map(|value| truncate(sign_extend(value, width).unsigned_abs(), width)),
        // The remaining operators exist for f32 only.
        _ => *source,
    }
}

pub(super) fn binary(
    operator: BinaryOperator,
    scalar: ScalarType,
    flush: bool,
    (a, b): (&LaneValues, &LaneValues),
) -> LaneValues {
    match scalar {
        ScalarType::F32 => float::binary(operator, flush, a, b),
        ScalarType::Signed(width) => map2(a, b, |a, b| {
            truncate_product(operator, signed(operator, sign_extend(a, width), sign_extend(b, width), width), width)
        }),
        _ => {
            let width = scalar.width();
            map2(a, b, |a, b| {
                truncate_product(operator, unsigned(operator, truncate(a, width), truncate(b, width), width), width)
            })
        }
    }
}

/// The result of `mul.wide` has twice the width of its type.
const fn truncate_product(operator: BinaryOperator, value: u64, width: BitWidth) -> u64 {
    if matches!(operator, BinaryOperator::MultiplyWide) {
        truncate(value, twice(width))
    } else {
        truncate(value, width)
    }
}

const fn twice(width: BitWidth) -> BitWidth {
    match width {
        BitWidth::Byte => BitWidth::Half,
        BitWidth::Half => BitWidth::Word,
        BitWidth::Word | BitWidth::Double => BitWidth::Double,
    }
}

/// Computes with zero-extended values. The result of a division by zero is unspecified in PTX; here
/// it has all bits set, as on NVIDIA's GPUs.
fn unsigned(operator: BinaryOperator, a: u64, b: u64, width: BitWidth) -> u64 {
    match operator {
        BinaryOperator::Add => a.wrapping_add(b),
        BinaryOperator::Subtract => a.wrapping_sub(b),
        BinaryOperator::Multiply | BinaryOperator::MultiplyWide => a.wrapping_mul(b),
        BinaryOperator::MultiplyHigh => upper_half(u128::from(a) * u128::from(b), width),
        BinaryOperator::Divide => a.checked_div(b).unwrap_or(u64::MAX),
        BinaryOperator::Remainder => a.checked_rem(b).unwrap_or(u64::MAX),
        BinaryOperator::Minimum => a.min(b),
        BinaryOperator::Maximum => a.max(b),
        BinaryOperator::And => a & b,
        BinaryOperator::Or => a | b,
        BinaryOperator::Xor => a ^ b,
        BinaryOperator::ShiftLeft => a.checked_shl(shift_distance(b)).unwrap_or(0),
        BinaryOperator::ShiftRight => a.checked_shr(shift_distance(b)).unwrap_or(0),
    }
}

/// Computes with sign-extended values.
fn signed(operator: BinaryOperator, a: i64, b: i64, width: BitWidth) -> u64 {
    match operator {
        BinaryOperator::MultiplyHigh => upper_half((i128::from(a) * i128::from(b)).cast_unsigned(), width),
        BinaryOperator::Divide => a.checked_div(b).map_or(u64::MAX, i64::cast_unsigned),
        BinaryOperator::Remainder => a.checked_rem(b).map_or(u64::MAX, i64::cast_unsigned),
        BinaryOperator::Minimum => a.min(b).cast_unsigned(),
        BinaryOperator::Maximum => a.max(b).cast_unsigned(),
        // A distance beyond the width leaves the sign.
        BinaryOperator::ShiftRight => (a >> shift_distance(b.cast_unsigned()).min(63)).cast_unsigned(),
        _ => unsigned(operator, a.cast_unsigned(), b.cast_unsigned(), width),
    }
}

/// Distances have 32 bits. Those beyond the width are not wrapped.
fn shift_distance(value: u64) -> u32 {
    low_word(value)
}

#[expect(clippy::cast_possible_truncation, reason = "the upper bits are dropped on purpose")]
const fn upper_half(product: u128, width: BitWidth) -> u64 {
    (product >> width.bits()) as u64
}

pub(super) fn ternary(
    operator: TernaryOperator,
    scalar: ScalarType,
    flush: bool,
    sources: &[LaneValues; 3],
) -> LaneValues {
    let width = scalar.width();
    match operator {
        TernaryOperator::MultiplyAdd if scalar == ScalarType::F32 => float::multiply_add(flush, sources),
        TernaryOperator::MultiplyAdd => map3(sources, |a, b, c| truncate(a.wrapping_mul(b).wrapping_add(c), width)),
        TernaryOperator::MultiplyAddWide => {
            let [a, b, c] = sources;
            let product = binary(BinaryOperator::MultiplyWide, scalar, false, (a, b));
            map2(&product, c, |product, c| truncate(product.wrapping_add(c), twice(width)))
        }
        TernaryOperator::ExtractBits => map3(sources, |a, b, c| bitfield::extract(scalar, a, b, c)),
        TernaryOperator::Logic(table) => map3(sources, |a, b, c| bitfield::logic(table, a, b, c)),
        TernaryOperator::PermuteBytes => map3(sources, bitfield::permute),
        TernaryOperator::FunnelShiftLeft => map3(sources, bitfield::funnel_left),
        TernaryOperator::FunnelShiftRight => map3(sources, bitfield::funnel_right),
    }
}
