//! Conversions between types.

use half::{bf16, f16};

use super::map2;
use crate::bits::{LaneValues, from_f32, low_half, sign_extend, to_f32, truncate, truncate_float};
use crate::instruction::{BitWidth, HalfFormat, ScalarType};

pub(super) fn convert(from: ScalarType, to: ScalarType, source: &LaneValues) -> LaneValues {
    match (from, to) {
        (ScalarType::F16 | ScalarType::BF16 | ScalarType::F32, _) => {
            source.map(|value| from_float(widen(from, value), to))
        }
        (ScalarType::Signed(width), _) => source.map(|value| from_integer(i128::from(sign_extend(value, width)), to)),
        _ => source.map(|value| from_integer(i128::from(truncate(value, from.width())), to)),
    }
}

/// Rounds two f32 to a pair of 16-bit values, to nearest with ties to even.
pub(super) fn pack(format: HalfFormat, high: &LaneValues, low: &LaneValues) -> LaneValues {
    let round = |value| narrow(format, to_f32(value));
    map2(high, low, |high, low| round(high) << 16 | round(low))
}

/// Returns the value of a 16-bit float.
pub(super) fn widen_half(format: HalfFormat, bits: u16) -> f32 {
    match format {
        HalfFormat::F16 => f16::from_bits(bits).to_f32(),
        HalfFormat::BF16 => bf16::from_bits(bits).to_f32(),
    }
}

fn narrow(format: HalfFormat, value: f32) -> u64 {
    u64::from(match format {
        HalfFormat::F16 => f16::from_f32(value).to_bits(),
        HalfFormat::BF16 => bf16::from_f32(value).to_bits(),
    })
}

fn widen(scalar: ScalarType, value: u64) -> f32 {
    match scalar {
        ScalarType::F16 => widen_half(HalfFormat::F16, low_half(value)),
        ScalarType::BF16 => widen_half(HalfFormat::BF16, low_half(value)),
        _ => to_f32(value),
    }
}

fn from_float(value: f32, to: ScalarType) -> u64 {
    match to {
        ScalarType::F32 => from_f32(value),
        ScalarType::F16 => narrow(HalfFormat::F16, value),
        ScalarType::BF16 => narrow(HalfFormat::BF16, value),
        ScalarType::Signed(width) => {
            let max = i64::MAX >> (64 - width.bits());
            truncate(truncate_float(f64::from(value)).clamp(-max - 1, max).cast_unsigned(), width)
        }
        _ => truncate(saturate(value, to.width()), to.width()),
    }
}

/// Converts to an unsigned integer by truncation. Values beyond the range saturate.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturation is what `cvt` defines")]
fn saturate(value: f32, width: BitWidth) -> u64 {
    (value as u64).min(width.mask())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the bits of a narrower integer are those of the wider one"
)]
fn from_integer(value: i128, to: ScalarType) -> u64 {
    match to {
        // The nearest f32; 16-bit floats are not converted from integers by the compiler.
        ScalarType::F32 | ScalarType::F16 | ScalarType::BF16 => from_float(value as f32, to),
        _ => truncate(value as u64, to.width()),
    }
}
