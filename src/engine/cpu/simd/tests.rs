//! Every function of the instruction sets of this CPU, against functions of single numbers.

use super::*;

/// Results of every function by element.
struct AllFunctions<'a> {
    a: &'a [f32],
    b: &'a [f32],
}

/// The same functions of single numbers.
fn expected(a: f32, b: f32) -> [f32; 11] {
    let rounded = a.round_ties_even();
    let smaller = if a < b { 1.0 } else { 2.0 };
    let quotient = a / b.max(0.5);
    [a + b, a - b, a * b, quotient, a.max(b), a.min(b), a.mul_add(b, a), rounded, rounded.exp2(), a.abs(), smaller]
}

impl SimdOperation for AllFunctions<'_> {
    type Output = Vec<[f32; 11]>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let mut results = Vec::new();
        for (a, b) in self.a.chunks(S::LANES).zip(self.b.chunks(S::LANES)) {
            let (length, a, b) = (a.len(), simd.load(a), simd.load(b));
            let values = [
                simd.add(a, b),
                simd.sub(a, b),
                simd.mul(a, b),
                simd.div(a, simd.max(b, simd.splat(0.5))),
                simd.max(a, b),
                simd.min(a, b),
                simd.mul_add(a, b, a),
                simd.round(a),
                simd.exp2_integer(simd.round(a)),
                simd.abs(a),
                simd.select_less(a, b, simd.splat(1.0), simd.splat(2.0)),
            ];
            let stored = values.map(|value| {
                let mut stored = vec![0.0; length];
                simd.store(value, &mut stored);
                stored
            });
            results.extend((0..length).map(|at| stored.each_ref().map(|values| values[at])));
        }
        results
    }
}

#[test]
fn every_function_of_every_instruction_set_has_its_value() {
    let a: Vec<f32> = (0..37).map(|at| (at as f32 - 18.0) * 1.37).collect();
    let b: Vec<f32> = (0..37).map(|at| 9.0 - at as f32 * 0.71).collect();
    for set in InstructionSet::detect() {
        let results = set.run(AllFunctions { a: &a, b: &b });
        assert_eq!(results.len(), a.len());
        for ((a, b), values) in a.iter().zip(&b).zip(results) {
            for (function, (value, expected)) in values.into_iter().zip(expected(*a, *b)).enumerate() {
                let is_close = (value - expected).abs() <= 1e-6 * expected.abs().max(1.0);
                assert!(is_close, "{}: function {function} of {a}, {b}: {value}, {expected}", set.name());
            }
        }
    }
}

/// Sum and largest element of the first vector of a slice.
struct Reductions<'a>(&'a [f32]);

impl SimdOperation for Reductions<'_> {
    type Output = (f32, f32, usize);

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let vector = simd.load(self.0);
        (simd.sum(vector), simd.largest(vector), S::LANES)
    }
}

#[test]
fn reductions_have_all_elements_of_a_vector() {
    for set in InstructionSet::detect() {
        let (_, _, lanes) = set.run(Reductions(&[]));
        for large in 0..lanes {
            let values: Vec<f32> = (0..lanes).map(|at| if at == large { -1.0 } else { -2.0 - at as f32 }).collect();
            let expected = (values.iter().sum(), -1.0, lanes);
            assert_eq!(set.run(Reductions(&values)), expected, "{} {large}", set.name());
        }
    }
}

#[test]
fn extremes_forward_a_second_operand_that_is_nan() {
    struct Extremes;

    impl SimdOperation for Extremes {
        type Output = [f32; 4];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let (one, nan) = (simd.splat(1.0), simd.splat(f32::NAN));
            [simd.max(one, nan), simd.min(one, nan), simd.max(nan, one), simd.min(nan, one)]
                .map(|value| simd.to_array(value)[0])
        }
    }

    for set in InstructionSet::detect() {
        let [max, min, of_nan, and_min] = set.run(Extremes);
        assert!(max.is_nan() && min.is_nan(), "{}: {max} {min}", set.name());
        assert_eq!((of_nan, and_min), (1.0, 1.0), "{}", set.name());
    }
}
