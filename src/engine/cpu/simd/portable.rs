//! Vectors of four elements in plain Rust, which compilers turn into SSE2 or NEON.

use super::Simd;

/// Instructions that every CPU has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cpu) struct Portable;

const LANES: usize = 4;

/// Adding and subtracting this number rounds f32 of small magnitude to integers, ties to even.
const ROUNDING: f32 = 12_582_912.0;

#[inline(always)]
fn map(a: [f32; LANES], function: impl Fn(f32) -> f32) -> [f32; LANES] {
    a.map(function)
}

#[inline(always)]
fn zip(
    [a0, a1, a2, a3]: [f32; LANES],
    [b0, b1, b2, b3]: [f32; LANES],
    function: impl Fn(f32, f32) -> f32,
) -> [f32; LANES] {
    [function(a0, b0), function(a1, b1), function(a2, b2), function(a3, b3)]
}

impl Simd for Portable {
    type Vector = [f32; LANES];
    const LANES: usize = LANES;
    const TILE_ROWS: usize = 6;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> Self::Vector {
        // SAFETY: the caller guarantees that the elements can be read; an array has the alignment
        // of its elements.
        unsafe { from.cast::<[f32; LANES]>().read() }
    }

    #[inline(always)]
    unsafe fn store_at(self, value: Self::Vector, to: *mut f32) {
        // SAFETY: as in `load_at`.
        unsafe { to.cast::<[f32; LANES]>().write(value) }
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    /// Rounds twice on x86-64 without FMA, where a single rounding would be a call of a library.
    #[inline(always)]
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            let ([a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3]) = (a, b, c);
            [a0.mul_add(b0, c0), a1.mul_add(b1, c1), a2.mul_add(b2, c2), a3.mul_add(b3, c3)]
        } else {
            self.add(self.mul(a, b), c)
        }
    }

    #[inline(always)]
    fn round(self, a: Self::Vector) -> Self::Vector {
        map(a, |a| (a + ROUNDING) - ROUNDING)
    }

    #[inline(always)]
    fn exp2_integer(self, a: Self::Vector) -> Self::Vector {
        // The sum has the integer in its lowest bits, from where it is moved to the exponent.
        map(a, |a| f32::from_bits((a + (ROUNDING + 127.0)).to_bits() << 23))
    }

    #[inline(always)]
    fn abs(self, a: Self::Vector) -> Self::Vector {
        map(a, f32::abs)
    }

    #[inline(always)]
    fn select_less(self, a: Self::Vector, b: Self::Vector, then: Self::Vector, other: Self::Vector) -> Self::Vector {
        let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a, b);
        let ([t0, t1, t2, t3], [o0, o1, o2, o3]) = (then, other);
        let select = |is_less: bool, then: f32, other: f32| if is_less { then } else { other };
        [select(a0 < b0, t0, o0), select(a1 < b1, t1, o1), select(a2 < b2, t2, o2), select(a3 < b3, t3, o3)]
    }
}
