//! Arithmetic on f32.

use super::{map2, map3};
use crate::bits::{LaneValues, flush_subnormal, from_f32, round_to_float, to_f32};
use crate::instruction::{BinaryOperator, UnaryOperator};

/// Computes `approx` functions in f64 and rounds once, which is within the errors that PTX allows.
pub(super) fn unary(operator: UnaryOperator, flush: bool, source: &LaneValues) -> LaneValues {
    let double = |function: fn(f64) -> f64| move |x: f32| round_to_float(function(f64::from(x)));
    match operator {
        UnaryOperator::Negate => apply(flush, source, |x| -x),
        UnaryOperator::Absolute => apply(flush, source, f32::abs),
        UnaryOperator::Reciprocal => apply(flush, source, |x| 1.0 / x),
        UnaryOperator::SquareRoot => apply(flush, source, f32::sqrt),
        UnaryOperator::ReciprocalSquareRoot => apply(flush, source, double(|x| 1.0 / x.sqrt())),
        UnaryOperator::Exp2 => apply(flush, source, double(f64::exp2)),
        UnaryOperator::Log2 => apply(flush, source, double(f64::log2)),
        UnaryOperator::Tanh => apply(flush, source, double(f64::tanh)),
        UnaryOperator::Sine => apply(flush, source, double(f64::sin)),
        UnaryOperator::Cosine => apply(flush, source, double(f64::cos)),
        UnaryOperator::Move | UnaryOperator::Not => *source,
    }
}

fn apply(flush: bool, source: &LaneValues, function: impl Fn(f32) -> f32) -> LaneValues {
    source.map(|value| from_f32(flushed(flush, function(flushed(flush, to_f32(value))))))
}

fn flushed(flush: bool, value: f32) -> f32 {
    if flush { flush_subnormal(value) } else { value }
}

pub(super) fn binary(operator: BinaryOperator, flush: bool, a: &LaneValues, b: &LaneValues) -> LaneValues {
    let apply = |function: fn(f32, f32) -> f32| {
        map2(a, b, |a, b| {
            let (a, b) = (flushed(flush, to_f32(a)), flushed(flush, to_f32(b)));
            from_f32(flushed(flush, function(a, b)))
        })
    };
    match operator {
        BinaryOperator::Add => apply(|a, b| a + b),
        BinaryOperator::Subtract => apply(|a, b| a - b),
        BinaryOperator::Multiply => apply(|a, b| a * b),
        BinaryOperator::Divide => apply(|a, b| a / b),
        // As in PTX, the result is the other source where one is NaN.
        BinaryOperator::Minimum => apply(f32::min),
        BinaryOperator::Maximum => apply(f32::max),
        // The remaining operators exist for integers only.
        _ => *a,
    }
}

/// Multiplies and adds with one rounding.
pub(super) fn multiply_add(flush: bool, sources: &[LaneValues; 3]) -> LaneValues {
    map3(sources, |a, b, c| {
        let [a, b, c] = [a, b, c].map(|value| flushed(flush, to_f32(value)));
        from_f32(flushed(flush, a.mul_add(b, c)))
    })
}
