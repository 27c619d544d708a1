//! Typed instructions of the supported subset of PTX. The parser builds them, and `grid` and
//! `execute` execute them.
//!
//! The comment of a variant has the name of its PTX instruction, where it differs much.

mod scalar;
mod operand;
mod operator;
mod source_registers;

pub(crate) use operand::{InstructionGuard, MemoryOperand, Operand, Register, SpecialRegister};
pub(crate) use operator::{
    BinaryOperator, OrderingSet, PredicateCombination, ShuffleMode, TernaryOperator, UnaryOperator,
};
pub(crate) use scalar::{BitWidth, HalfFormat, ScalarType};

use crate::fault::MemorySpace;

/// The effect of an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operation {
    Unary {
        operator: UnaryOperator,
        scalar: ScalarType,
        /// Subnormal inputs and results are zero (`.ftz`).
        flush: bool,
        target: Register,
        source: Operand,
    },
    Binary {
        operator: BinaryOperator,
        scalar: ScalarType,
        flush: bool,
        target: Register,
        sources: [Operand; 2],
    },
    Ternary {
        operator: TernaryOperator,
        scalar: ScalarType,
        flush: bool,
        target: Register,
        sources: [Operand; 3],
    },
    /// Inserts `length` bits of `source` into `base` (`bfi.b32`).
    InsertBits {
        target: Register,
        source: Operand,
        base: Operand,
        position: Operand,
        length: Operand,
    },
    /// `setp`: sets a predicate to the result of a comparison, combined with another predicate if
    /// `combination` is given.
    Compare {
        comparison: OrderingSet,
        scalar: ScalarType,
        target: Register,
        sources: [Operand; 2],
        combination: Option<PredicateCombination>,
    },
    /// `selp`: `sources[0]` where the predicate is true, else `sources[1]`.
    Select {
        width: BitWidth,
        target: Register,
        sources: [Operand; 2],
        predicate: Operand,
    },
    /// `cvt`.
    Convert {
        from: ScalarType,
        to: ScalarType,
        target: Register,
        source: Operand,
    },
    /// Rounds two f32 to 16 bits (`cvt.rn.bf16x2.f32`).
    PackFloats {
        format: HalfFormat,
        target: Register,
        high: Operand,
        low: Operand,
    },
    /// `mov.b32 d, {low, high}`: joins two values of `part` bits.
    Join {
        part: BitWidth,
        target: Register,
        low: Operand,
        high: Operand,
    },
    /// `mov.b32 {low, high}, s`.
    Split {
        part: BitWidth,
        low: Register,
        high: Register,
        source: Operand,
    },
    /// `ld.param`: loads an argument of the kernel.
    LoadParameter {
        target: Register,
        /// Position in the arguments of the launch.
        offset: usize,
        width: BitWidth,
    },
    Load {
        space: MemorySpace,
        scalar: ScalarType,
        /// The location must not be written in the same launch (`.nc`).
        is_constant: bool,
        targets: Vec<Register>,
        address: MemoryOperand,
    },
    Store {
        space: MemorySpace,
        width: BitWidth,
        sources: Vec<Operand>,
        address: MemoryOperand,
    },
    /// `bra`.
    Branch {
        /// Index of the next instruction.
        target: usize,
    },
    /// `ret`.
    Return,
    /// `bar.sync 0`.
    Barrier,
    /// `bar.warp.sync`.
    WarpBarrier {
        /// Mask of the lanes that have to execute it.
        members: Operand,
    },
    /// `shfl.sync`: reads `source` of another lane of the warp.
    Shuffle {
        mode: ShuffleMode,
        target: Register,
        /// Receives whether the source lane is within the segment.
        valid: Option<Register>,
        source: Operand,
        /// Lane, distance or mask, from which `mode` computes the source lane.
        lane: Operand,
        /// Bounds of the segments of the warp within which lanes exchange values.
        clamp: Operand,
        /// Mask of the lanes that have to execute it.
        members: Operand,
    },
    /// `ldmatrix`: loads one matrix of 8 by 8 16-bit elements from shared memory into each target.
    LoadMatrices {
        transposed: bool,
        targets: Vec<Register>,
        address: MemoryOperand,
    },
    /// `mma.sync.m16n8k16`: `d = a * b + c` in f32.
    MultiplyMatrices {
        format: HalfFormat,
        d: [Register; 4],
        a: [Register; 4],
        b: [Register; 2],
        c: [Register; 4],
    },
    /// `cp.async`: copies `length` bytes from global to shared memory, and writes zeros up to
    /// `size`.
    CopyAsync {
        target: MemoryOperand,
        source: MemoryOperand,
        /// Bytes that are written.
        size: usize,
        /// Bytes that are read; all of `size` if absent.
        length: Option<Operand>,
    },
    /// `cp.async.commit_group`: the copies that the lane began since the last one form a group.
    CommitCopies,
    /// `cp.async.wait_group`: waits until at most `pending` groups of the lane are incomplete.
    WaitCopies {
        pending: usize,
    },
}

/// An instruction of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) guard: Option<InstructionGuard>,
    pub(crate) operation: Operation,
    /// Line of the PTX, from 1.
    pub(crate) line: usize,
}
