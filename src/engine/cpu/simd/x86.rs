//! Vectors of AVX2 with FMA, and of AVX-512.

use std::arch::x86_64::{
    __m256, __m512, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm256_add_epi32, _mm256_add_ps,
    _mm256_and_ps, _mm256_blendv_ps, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtps_epi32, _mm256_div_ps,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_round_ps, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_sub_ps, _mm512_abs_ps, _mm512_add_epi32, _mm512_add_ps,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtps_epi32, _mm512_div_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_mask_blend_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_roundscale_ps, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};

use super::{Simd, SimdOperation};

/// Proof that the CPU has AVX2 and FMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cpu) struct Avx2(());

/// Proof that the CPU has AVX-512 F, with AVX2 and FMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cpu) struct Avx512(());

const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Implements the functions of [`Simd`] that are one instruction of the same name.
macro_rules! instructions {
    ($($name:ident($($argument:ident),*) = $instruction:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($argument: Self::Vector),*) -> Self::Vector {
            // SAFETY: the value `self` proves that the CPU has this instruction.
            unsafe { $instruction($($argument),*) }
        }
    )*};
}

// === impl Avx2 ===

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }

    #[inline]
    pub(super) fn run<O: SimdOperation>(self, operation: O) -> O::Output {
        #[target_feature(enable = "avx2,fma")]
        fn run<O: SimdOperation>(simd: Avx2, operation: O) -> O::Output {
            operation.run(simd)
        }
        // SAFETY: the value `self` proves that the CPU has these features.
        unsafe { run(self, operation) }
    }
}

impl Simd for Avx2 {
    type Vector = __m256;
    const LANES: usize = 8;
    /// 12 of 16 registers have sums.
    const TILE_ROWS: usize = 6;

    instructions! {
        add(a, b) = _mm256_add_ps;
        sub(a, b) = _mm256_sub_ps;
        mul(a, b) = _mm256_mul_ps;
        div(a, b) = _mm256_div_ps;
        max(a, b) = _mm256_max_ps;
        min(a, b) = _mm256_min_ps;
        mul_add(a, b, c) = _mm256_fmadd_ps;
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        // SAFETY: as above.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> Self::Vector {
        // SAFETY: the caller guarantees that the elements can be read. No alignment is needed.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_at(self, value: Self::Vector, to: *mut f32) {
        // SAFETY: the caller guarantees that the elements can be written. No alignment is needed.
        unsafe { _mm256_storeu_ps(to, value) }
    }

    #[inline(always)]
    fn round(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: the value `self` proves that the CPU has this instruction.
        unsafe { _mm256_round_ps::<ROUND>(a) }
    }

    #[inline(always)]
    fn exp2_integer(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: as in `round`.
        let biased = unsafe { _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127)) };
        // SAFETY: as in `round`.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased)) }
    }

    #[inline(always)]
    fn abs(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: as in `round`.
        unsafe { _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX))) }
    }

    #[inline(always)]
    fn select_less(self, a: Self::Vector, b: Self::Vector, then: Self::Vector, other: Self::Vector) -> Self::Vector {
        // SAFETY: as in `round`.
        unsafe { _mm256_blendv_ps(other, then, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }
}

// === impl Avx512 ===

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f") && Avx2::detect().is_some()).then_some(Self(()))
    }

    #[inline]
    pub(super) fn run<O: SimdOperation>(self, operation: O) -> O::Output {
        #[target_feature(enable = "avx512f,avx2,fma")]
        fn run<O: SimdOperation>(simd: Avx512, operation: O) -> O::Output {
            operation.run(simd)
        }
        // SAFETY: the value `self` proves that the CPU has these features.
        unsafe { run(self, operation) }
    }
}

impl Simd for Avx512 {
    type Vector = __m512;
    const LANES: usize = 16;
    /// 24 of 32 registers have sums.
    const TILE_ROWS: usize = 12;

    instructions! {
        add(a, b) = _mm512_add_ps;
        sub(a, b) = _mm512_sub_ps;
        mul(a, b) = _mm512_mul_ps;
        div(a, b) = _mm512_div_ps;
        max(a, b) = _mm512_max_ps;
        min(a, b) = _mm512_min_ps;
        mul_add(a, b, c) = _mm512_fmadd_ps;
        abs(a) = _mm512_abs_ps;
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> Self::Vector {
        // SAFETY: the caller guarantees that the elements can be read. No alignment is needed.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_at(self, value: Self::Vector, to: *mut f32) {
        // SAFETY: the caller guarantees that the elements can be written. No alignment is needed.
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    fn round(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: the value `self` proves that the CPU has this instruction.
        unsafe { _mm512_roundscale_ps::<ROUND>(a) }
    }

    #[inline(always)]
    fn exp2_integer(self, a: Self::Vector) -> Self::Vector {
        // SAFETY: as in `round`.
        let biased = unsafe { _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127)) };
        // SAFETY: as in `round`.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)) }
    }

    #[inline(always)]
    fn select_less(self, a: Self::Vector, b: Self::Vector, then: Self::Vector, other: Self::Vector) -> Self::Vector {
        // SAFETY: as in `round`.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), other, then) }
    }
}
