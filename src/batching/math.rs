//! Natural logarithm, exponential function and conversions to integers with bit-identical results
//! on every machine.
//!
//! The standard library's `ln` and `exp` come from the platform and differ between platforms and
//! versions; a decision that depends on one would not be reproducible. These functions use only bit
//! patterns and + − × ÷, which IEEE 754 specifies exactly. The relative error is below 1e-13.
//!
//! Left out: signed zero, the sign of NaN, and speed beyond a few nanoseconds.

/// ln 2 in two parts. The first has 33 bits, so its product with an exponent is exact.
const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// 1.5 × 2^52. Added to a small number, it leaves the nearest integer in the lowest bits.
const ROUND: f64 = 6_755_399_441_055_744.0;
const MANTISSA_BITS: u32 = 52;
const EXPONENT_BIAS: i32 = 1023;
/// Above this value `exp` is infinite, below its negative it is zero. Subnormal results are of no
/// use here.
const EXP_MAX: f64 = 708.0;

/// Returns the natural logarithm of `x`, or −∞ for zero and negative numbers.
pub(super) fn ln(x: f64) -> f64 {
    if x.is_nan() || x == f64::INFINITY {
        return x;
    }
    if x <= 0.0 {
        return f64::NEG_INFINITY;
    }
    // A subnormal has no implicit leading one, so it is scaled to a normal number first.
    let (x, shifted) = if x < f64::MIN_POSITIVE { (x * 18_014_398_509_481_984.0, 54) } else { (x, 0) };
    let mut exponent = low_i32(x.to_bits() >> MANTISSA_BITS) - EXPONENT_BIAS - shifted;
    let mut mantissa = f64::from_bits((x.to_bits() & ((1 << MANTISSA_BITS) - 1)) | power_bits(0));
    // From [1, 2) to [√½, √2): near x = 1 the exponent is then 0 and nothing cancels.
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2·artanh((m − 1)/(m + 1)); the square is below 0.0295, so eleven terms are enough.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut series = 0.0;
    for odd in [21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        series = series * square + 1.0 / odd;
    }
    let exponent = f64::from(exponent);
    exponent * LN2_HIGH + (2.0 * s * series + exponent * LN2_LOW)
}

/// Returns e to the power of `x`: 0 below −708, ∞ above 708.
pub(super) fn exp(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x > EXP_MAX {
        return f64::INFINITY;
    }
    if x < -EXP_MAX {
        return 0.0;
    }
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let power = low_i32(shifted.to_bits());
    let whole = shifted - ROUND;
    // |rest| ≤ ln 2 / 2: the term after the fourteenth is below 1e-17.
    let rest = (x - whole * LN2_HIGH) - whole * LN2_LOW;
    let mut series = 1.0;
    for term in [14.0, 13.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0] {
        series = series * rest / term + 1.0;
    }
    series * f64::from_bits(power_bits(power))
}

/// Returns the nearest integer: 0 for negative numbers and NaN, `u64::MAX` for numbers out of
/// range.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, as intended")]
pub fn round_to_u64(x: f64) -> u64 {
    (x + 0.5) as u64
}

/// Converts to a float, rounded to the nearest one past 2^53.
pub fn to_f64(x: u64) -> f64 {
    x as f64
}

/// Returns the bits of 2 to the power of `exponent`, for −1022 to 1023.
fn power_bits(exponent: i32) -> u64 {
    u64::from((exponent + EXPONENT_BIAS).unsigned_abs()) << MANTISSA_BITS
}

/// Returns the lowest 32 bits as a signed integer.
fn low_i32(bits: u64) -> i32 {
    let [a, b, c, d, ..] = bits.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relative(found: f64, expected: f64) -> f64 {
        if expected.abs() < 1e-300 { found.abs() } else { ((found - expected) / expected).abs() }
    }

    #[test]
    fn the_logarithm_is_right_to_twelve_digits() {
        for i in 1..200_000u32 {
            let x = f64::from(i) * 1e-4;
            assert!(relative(ln(x), x.ln()) < 1e-12, "{x}: {} {}", ln(x), x.ln());
        }
        for e in -300..300 {
            let x = 1.234 * 10f64.powi(e);
            assert!(relative(ln(x), x.ln()) < 1e-12, "{x}");
        }
        assert!(relative(ln(5e-324), 5e-324f64.ln()) < 1e-12, "the smallest subnormal");
        assert!(relative(ln(1.0 + 1e-9), 1e-9f64.ln_1p()) < 1e-6, "near one nothing cancels beyond the input itself");
    }

    #[test]
    fn the_exponential_is_right_to_twelve_digits() {
        for i in -70_000..70_000i32 {
            let x = f64::from(i) * 0.01;
            assert!(relative(exp(x), x.exp()) < 1e-12, "{x}: {} {}", exp(x), x.exp());
        }
        assert_eq!(exp(0.0).to_bits(), 1f64.to_bits());
    }

    #[test]
    fn ln_inverts_exp() {
        for i in -1000..1000i32 {
            let x = f64::from(i) * 0.07 + 0.003;
            assert!(relative(ln(exp(x)), x) < 1e-11, "{x}");
        }
    }

    #[test]
    fn special_values_are_handled() {
        assert!([ln(0.0), ln(-1.0)].iter().all(|x| x.is_infinite() && *x < 0.0));
        assert!(ln(f64::INFINITY).is_infinite() && ln(f64::INFINITY) > 0.0);
        assert_eq!(exp(f64::NEG_INFINITY).to_bits(), 0);
        assert!(exp(1e9).is_infinite());
        assert!(ln(f64::NAN).is_nan() && exp(f64::NAN).is_nan());
    }

    #[test]
    fn a_whole_number_saturates() {
        assert_eq!([round_to_u64(-3.0), round_to_u64(f64::NAN), round_to_u64(0.49), round_to_u64(1.5)], [0, 0, 0, 2]);
        assert_eq!([round_to_u64(f64::INFINITY), round_to_u64(1e30)], [u64::MAX, u64::MAX]);
    }
}
