//! SIMD vectors behind one trait, and the choice of an instruction set at run time.
//!
//! Kernels are written once, as a [`SimdOperation`] over any [`Simd`]. [`InstructionSet::run`]
//! compiles them for every instruction set: generic code that is inlined into a function with
//! `#[target_feature]` uses the instructions of that function. The `pulp` crate works in this way.
//!
//! A value of a type that implements [`Simd`] proves that the CPU has its instructions, so that all
//! functions on vectors and slices are safe. Only the tiles of the matrix multiplication use
//! pointers.

#![expect(unsafe_code, reason = "loads and stores by pointers, of slices whose length is checked")]

mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "instructions of one set have one condition")]
mod x86;

pub(super) use self::portable::Portable;
#[cfg(target_arch = "x86_64")]
use self::x86::{Avx2, Avx512};

/// Maximum number of elements of a vector.
pub(super) const LANES_MAX: usize = 16;

/// Vectors of f32 of one instruction set.
pub(super) trait Simd: Copy {
    /// A vector.
    type Vector: Copy;
    /// Number of elements of a vector.
    const LANES: usize;
    /// Number of rows of a tile of the matrix multiplication: as many as leave registers for two
    /// vectors of weights and one input, with two vectors of sums a row.
    const TILE_ROWS: usize;

    fn splat(self, value: f32) -> Self::Vector;
    /// # Safety
    /// `from` is valid for reads of [`Self::LANES`] elements.
    unsafe fn load_at(self, from: *const f32) -> Self::Vector;
    /// # Safety
    /// `to` is valid for writes of [`Self::LANES`] elements.
    unsafe fn store_at(self, value: Self::Vector, to: *mut f32);
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns the larger elements. Where one of both is not a number, returns that of `b`, as the
    /// instruction of x86 does.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns the smaller elements. Where one of both is not a number, returns that of `b`.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns `a · b + c`, rounded once where the instruction set can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Rounds to the nearest integer, ties to even.
    fn round(self, a: Self::Vector) -> Self::Vector;
    /// Returns 2 to the power of integers from -126 to 127.
    fn exp2_integer(self, a: Self::Vector) -> Self::Vector;
    fn abs(self, a: Self::Vector) -> Self::Vector;
    /// Returns `then` where `a < b`, otherwise `other`.
    fn select_less(self, a: Self::Vector, b: Self::Vector, then: Self::Vector, other: Self::Vector) -> Self::Vector;

    /// Loads the first elements of a slice, and zeros if it is shorter than a vector.
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::Vector {
        const { assert!(Self::LANES <= LANES_MAX, "a vector is longer than the array") };
        if from.len() >= Self::LANES {
            // SAFETY: the slice has enough elements.
            return unsafe { self.load_at(from.as_ptr()) };
        }
        let mut padded = [0.0; LANES_MAX];
        padded.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        // SAFETY: the array has as many elements as the longest vector.
        unsafe { self.load_at(padded.as_ptr()) }
    }

    /// Stores the first elements of a vector into a slice of at most as many.
    #[inline(always)]
    fn store(self, value: Self::Vector, to: &mut [f32]) {
        if to.len() >= Self::LANES {
            // SAFETY: the slice has enough elements.
            unsafe { self.store_at(value, to.as_mut_ptr()) };
            return;
        }
        to.iter_mut().zip(self.to_array(value)).for_each(|(to, from)| *to = from);
    }

    #[inline(always)]
    fn to_array(self, value: Self::Vector) -> [f32; LANES_MAX] {
        const { assert!(Self::LANES <= LANES_MAX, "a vector is longer than the array") };
        let mut array = [0.0; LANES_MAX];
        // SAFETY: the array has as many elements as the longest vector.
        unsafe { self.store_at(value, array.as_mut_ptr()) };
        array
    }

    /// Adds the elements of a vector in their order.
    #[inline(always)]
    fn sum(self, value: Self::Vector) -> f32 {
        self.to_array(value).iter().take(Self::LANES).sum()
    }

    /// Returns the largest element of a vector.
    #[inline(always)]
    fn largest(self, value: Self::Vector) -> f32 {
        self.to_array(value).iter().take(Self::LANES).copied().fold(f32::NEG_INFINITY, f32::max)
    }
}

/// A kernel for any instruction set.
pub(super) trait SimdOperation {
    /// Result of the kernel.
    type Output;

    /// Runs the kernel. Implementations are `#[inline(always)]`, so that they are compiled with the
    /// instructions of `S`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// An instruction set that this CPU has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InstructionSet {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

// === impl InstructionSet ===

impl InstructionSet {
    /// Returns the instruction sets of this CPU, the fastest first. The last one is portable.
    pub(super) fn detect() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            sets.extend(Avx512::detect().map(Self::Avx512));
            sets.extend(Avx2::detect().map(Self::Avx2));
        }
        sets.push(Self::Portable);
        sets
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "AVX2 and FMA",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "AVX-512",
        }
    }

    /// Runs a kernel with these instructions.
    #[inline]
    pub(super) fn run<O: SimdOperation>(self, operation: O) -> O::Output {
        match self {
            Self::Portable => operation.run(Portable),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => simd.run(operation),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => simd.run(operation),
        }
    }

    /// Number of columns of a panel of packed weights: two vectors.
    pub(super) fn panel_columns(self) -> usize {
        2 * self.run(VectorShape).0
    }

    /// Number of rows of a tile of the matrix multiplication.
    pub(super) fn tile_rows(self) -> usize {
        self.run(VectorShape).1
    }
}

/// Returns the number of elements of a vector, and of rows of a tile.
struct VectorShape;

// === impl VectorShape ===

impl SimdOperation for VectorShape {
    type Output = (usize, usize);

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> (usize, usize) {
        (S::LANES, S::TILE_ROWS)
    }
}
