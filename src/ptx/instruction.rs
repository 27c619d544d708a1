//! Typed instructions, as the parser builds them and the machine executes them.

use std::cmp::Ordering;

use crate::fault::MemorySpace;

/// Width of an integer or of a memory access of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BitWidth {
    Byte,
    Half,
    Word,
    Double,
}

/// Scalar type of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScalarType {
    Predicate,
    /// Untyped bits (`.b32`).
    Bits(BitWidth),
    Unsigned(BitWidth),
    Signed(BitWidth),
    F16,
    BF16,
    F32,
}

/// Index of a register in the register file of a warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Register(pub(crate) usize);

/// A register that the hardware sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpecialRegister {
    /// `%tid` in a dimension.
    Thread(usize),
    /// `%ntid`.
    Threads(usize),
    /// `%ctaid`.
    Block(usize),
    /// `%nctaid`.
    Blocks(usize),
    /// `%laneid`.
    Lane,
}

/// A source of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    Register(Register),
    /// An immediate, or the address of a variable.
    Immediate(u64),
    Special(SpecialRegister),
}

/// A memory operand: `[base + offset]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryOperand {
    pub(crate) base: Operand,
    pub(crate) offset: i64,
}

/// The predicate of an instruction: `@%p` or `@!%p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InstructionGuard {
    pub(crate) predicate: Register,
    pub(crate) negated: bool,
}

/// An operator with one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnaryOperator {
    Move,
    Not,
    Negate,
    Absolute,
    Reciprocal,
    SquareRoot,
    ReciprocalSquareRoot,
    Exp2,
    Log2,
    Tanh,
    Sine,
    Cosine,
}

/// An operator with two sources of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryOperator {
    Add,
    Subtract,
    Multiply,
    /// Upper half of the product.
    MultiplyHigh,
    /// The product, of twice the width.
    MultiplyWide,
    Divide,
    Remainder,
    Minimum,
    Maximum,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

/// An operator with three sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TernaryOperator {
    /// `a * b + c`: wrapping for integers, with one rounding for f32.
    MultiplyAdd,
    /// `a * b + c`, where the product and `c` have twice the width of the type.
    MultiplyAddWide,
    /// `c` bits of `a` from bit `b` on (`bfe`).
    ExtractBits,
    /// A function of three bits, by its truth table (`lop3`).
    Logic(u8),
    /// Bytes of `a` and `b`, selected by `c` (`prmt`).
    PermuteBytes,
    /// `a` and `b` as a pair of words, shifted by `c` (`shf.l.wrap`, `shf.r.wrap`).
    FunnelShiftLeft,
    FunnelShiftRight,
}

/// The orderings for which a comparison of `setp` holds, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrderingSet(u8);

/// Predicate that a comparison is combined with: `setp.lt.and.s32 p, a, b, q`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PredicateCombination {
    pub(crate) operator: BinaryOperator,
    pub(crate) predicate: Operand,
    pub(crate) negated: bool,
}

/// Source lane of a shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// Format of 16-bit floating-point values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HalfFormat {
    F16,
    BF16,
}

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
    Compare {
        comparison: OrderingSet,
        scalar: ScalarType,
        target: Register,
        sources: [Operand; 2],
        combination: Option<PredicateCombination>,
    },
    /// `sources[0]` where the predicate is true, else `sources[1]`.
    Select {
        target: Register,
        sources: [Operand; 2],
        predicate: Operand,
    },
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
    LoadParameter {
        target: Register,
        offset: usize,
        width: BitWidth,
    },
    Load {
        space: MemorySpace,
        scalar: ScalarType,
        targets: Vec<Register>,
        address: MemoryOperand,
    },
    Store {
        space: MemorySpace,
        width: BitWidth,
        sources: Vec<Operand>,
        address: MemoryOperand,
    },
    Branch {
        target: usize,
    },
    Return,
    /// `bar.sync 0`.
    Barrier,
    /// `bar.warp.sync`.
    WarpBarrier {
        members: Operand,
    },
    Shuffle {
        mode: ShuffleMode,
        target: Register,
        /// Receives whether the source lane is within the segment.
        valid: Option<Register>,
        source: Operand,
        lane: Operand,
        clamp: Operand,
        members: Operand,
    },
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
    /// `cp.async`: copies `length` bytes and writes zeros up to `size`.
    CopyAsync {
        target: MemoryOperand,
        source: MemoryOperand,
        size: usize,
        length: Option<Operand>,
    },
    CommitCopies,
    /// Waits until at most `pending` groups are incomplete.
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

// === impl BitWidth ===

impl BitWidth {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Half => 2,
            Self::Word => 4,
            Self::Double => 8,
        }
    }

    pub(crate) const fn bits(self) -> u32 {
        match self {
            Self::Byte => 8,
            Self::Half => 16,
            Self::Word => 32,
            Self::Double => 64,
        }
    }

    pub(crate) const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
}

// === impl ScalarType ===

impl ScalarType {
    /// Returns the width of the value. Predicates are stored as bytes.
    pub(crate) const fn width(self) -> BitWidth {
        match self {
            Self::Predicate => BitWidth::Byte,
            Self::Bits(width) | Self::Unsigned(width) | Self::Signed(width) => width,
            Self::F16 | Self::BF16 => BitWidth::Half,
            Self::F32 => BitWidth::Word,
        }
    }
}

// === impl OrderingSet ===

impl OrderingSet {
    pub(crate) const LESS: Self = Self(1);
    pub(crate) const EQUAL: Self = Self(2);
    pub(crate) const GREATER: Self = Self(4);
    /// One side is not a number.
    pub(crate) const UNORDERED: Self = Self(8);

    /// Returns the union with another set.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns `true` if the set has an ordering; none is unordered.
    pub(crate) const fn contains(self, ordering: Option<Ordering>) -> bool {
        let found = match ordering {
            Some(Ordering::Less) => Self::LESS,
            Some(Ordering::Equal) => Self::EQUAL,
            Some(Ordering::Greater) => Self::GREATER,
            None => Self::UNORDERED,
        };
        self.0 & found.0 != 0
    }
}
