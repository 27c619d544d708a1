//! Elementary functions on vectors.

use crate::cpu::simd::Simd;

/// Exponents are clamped to this range, in which the result is a normal number.
const EXP_MIN: f32 = -87.336_54;
const EXP_MAX: f32 = 88.02;
/// ln 2 in two parts, of which the first has few bits, so that its product with an integer is exact
/// (Cody and Waite, *Software Manual for the Elementary Functions*, 1980).
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Evaluates a polynomial by Horner's scheme. `first` is the coefficient of the highest power.
///
/// Loops here and in the kernels are written out: the closure of an adapter such as `fold` may be
/// compiled on its own, without the instructions of the kernel, where each of them is a call.
#[inline(always)]
fn horner<S: Simd>(simd: S, first: f32, rest: &[f32], x: S::Vector) -> S::Vector {
    horner_from(simd, simd.splat(first), rest, x)
}

/// Continues Horner's scheme from a sum.
#[inline(always)]
fn horner_from<S: Simd>(simd: S, mut sum: S::Vector, rest: &[f32], x: S::Vector) -> S::Vector {
    for coefficient in rest {
        sum = simd.mul_add(sum, x, simd.splat(*coefficient));
    }
    sum
}

/// The exponential function, by the polynomial of `expf` in the Cephes library (Moshier).
#[inline(always)]
pub(super) fn exp<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    // The argument comes second: a number that is none passes through, so that damaged weights are
    // visible in the result.
    let x = simd.min(simd.splat(EXP_MAX), simd.max(simd.splat(EXP_MIN), x));
    let power = simd.round(simd.mul(x, simd.splat(std::f32::consts::LOG2_E)));
    let rest = simd.mul_add(power, simd.splat(-LN_2_HIGH), x);
    let rest = simd.mul_add(power, simd.splat(-LN_2_LOW), rest);
    let sum = horner(simd, 1.987_569_1e-4, &[1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5], rest);
    let value = simd.mul_add(simd.mul(rest, rest), sum, simd.add(rest, simd.splat(1.0)));
    simd.mul(value, simd.exp2_integer(power))
}

/// The logistic function, `1 / (1 + exp(-x))`.
#[inline(always)]
pub(super) fn sigmoid<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    let one = simd.splat(1.0);
    simd.div(one, simd.add(one, exp(simd, simd.sub(simd.splat(0.0), x))))
}

/// The hyperbolic tangent, `2 · sigmoid(2x) - 1`. Its absolute error is that of f32 near 1.
#[inline(always)]
pub(super) fn tanh<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    let double = simd.add(x, x);
    simd.mul_add(sigmoid(simd, double), simd.splat(2.0), simd.splat(-1.0))
}

/// The error function, by the two minimax polynomials of N. Juffa (2018, with an error below 1 ulp),
/// which onnxruntime and `Eigen` also use: a polynomial in `x²` near zero, and `1 - exp(p(|x|))`
/// elsewhere.
#[inline(always)]
pub(super) fn erf<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    /// Limit of the polynomial near zero.
    const NEAR: f32 = 0.927_734_4;
    let magnitude = simd.abs(x);
    let square = simd.mul(x, x);
    let near = horner(
        simd,
        -5.967_617e-4,
        &[4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1],
        square,
    );
    let near = simd.mul_add(near, x, x);
    let high = horner(simd, -1.728_534_7e-5, &[3.831_971_3e-4], magnitude);
    let low = horner(simd, -3.883_964_4e-3, &[2.425_462_2e-2], magnitude);
    let far = simd.mul_add(high, square, low);
    let far = horner_from(simd, far, &[-1.067_778_8e-1, -6.348_467e-1, -1.287_175_1e-1], magnitude);
    let zero = simd.splat(0.0);
    let exponent = simd.mul_add(far, magnitude, simd.sub(zero, magnitude));
    let far = simd.sub(simd.splat(1.0), exp(simd, exponent));
    let far = simd.select_less(x, zero, simd.sub(zero, far), far);
    simd.select_less(magnitude, simd.splat(NEAR), near, far)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::{InstructionSet, SimdOperation};

    struct Functions<'a>(&'a [f32]);

    impl SimdOperation for Functions<'_> {
        type Output = Vec<[f32; 4]>;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let first = |value: S::Vector| simd.to_array(value)[0];
            let all = |x: &f32| {
                let x = simd.splat(*x);
                [first(exp(simd, x)), first(erf(simd, x)), first(tanh(simd, x)), first(sigmoid(simd, x))]
            };
            self.0.iter().map(all).collect()
        }
    }

    /// The error function by its Maclaurin series in f64, which converges for all arguments here.
    fn erf_series(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..400 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn functions_agree_with_those_of_f64() {
        let inputs: Vec<f32> = (-2000..=2000).map(|at| at as f32 * 0.002).collect();
        for set in InstructionSet::detect() {
            for (x, [exp, erf, tanh, sigmoid]) in inputs.iter().zip(set.run(Functions(&inputs))) {
                let wide = f64::from(*x);
                let expected = [wide.exp(), erf_series(wide), wide.tanh(), 1.0 / (1.0 + (-wide).exp())];
                let errors = [exp, erf, tanh, sigmoid].map(f64::from);
                for (function, (value, expected)) in errors.iter().zip(expected).enumerate() {
                    let error = (value - expected).abs() / expected.abs().max(1.0);
                    assert!(error < 2.5e-7, "{}: function {function} of {x}: {value}, {expected}", set.name());
                }
                let relative = (errors[0] - expected[0]).abs() / expected[0];
                assert!(relative < 2.5e-7, "{}: exp({x}): {relative}", set.name());
            }
        }
    }

    #[test]
    fn functions_of_large_numbers_are_finite() {
        for set in InstructionSet::detect() {
            let results = set.run(Functions(&[-1e30, -100.0, 100.0, 1e30]));
            assert!(results.iter().flatten().all(|value| value.is_finite()), "{}: {results:?}", set.name());
            assert_eq!((results[0][1], results[3][1]), (-1.0, 1.0));
            assert!(results[0][0] < 1e-37);
        }
    }

    #[test]
    fn functions_of_nan_are_nan() {
        for set in InstructionSet::detect() {
            let results = set.run(Functions(&[f32::NAN]));
            assert!(results.iter().flatten().all(|value| value.is_nan()), "{}: {results:?}", set.name());
        }
    }
}
