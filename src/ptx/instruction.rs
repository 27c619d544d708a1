//! Typed instructions, as the parser builds them and the machine executes them.

/// Width of an integer or of a memory access of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
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
    Bits(Width),
    Unsigned(Width),
    Signed(Width),
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
pub(crate) struct Address {
    pub(crate) base: Operand,
    pub(crate) offset: i64,
}

/// The predicate of an instruction: `@%p` or `@!%p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) predicate: Register,
    pub(crate) negated: bool,
}

/// State space of a load or store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Local,
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

/// A comparison of `setp`. Of the unordered ones, NaN makes the result true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) less: bool,
    pub(crate) equal: bool,
    pub(crate) greater: bool,
    pub(crate) unordered: bool,
}

/// Predicate that a comparison is combined with: `setp.lt.and.s32 p, a, b, q`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Combination {
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
        comparison: Comparison,
        scalar: ScalarType,
        target: Register,
        sources: [Operand; 2],
        combination: Option<Combination>,
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
        part: Width,
        target: Register,
        low: Operand,
        high: Operand,
    },
    /// `mov.b32 {low, high}, s`.
    Split {
        part: Width,
        low: Register,
        high: Register,
        source: Operand,
    },
    LoadParameter {
        target: Register,
        offset: usize,
        width: Width,
    },
    Load {
        space: Space,
        scalar: ScalarType,
        targets: Vec<Register>,
        address: Address,
    },
    Store {
        space: Space,
        width: Width,
        sources: Vec<Operand>,
        address: Address,
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
        address: Address,
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
        target: Address,
        source: Address,
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
    pub(crate) guard: Option<Guard>,
    pub(crate) operation: Operation,
    /// Line of the PTX, from 1.
    pub(crate) line: usize,
}

// === impl Width ===

impl Width {
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
    pub(crate) const fn width(self) -> Width {
        match self {
            Self::Predicate => Width::Byte,
            Self::Bits(width) | Self::Unsigned(width) | Self::Signed(width) => width,
            Self::F16 | Self::BF16 => Width::Half,
            Self::F32 => Width::Word,
        }
    }
}
