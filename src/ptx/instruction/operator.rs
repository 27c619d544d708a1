//! Operators of arithmetic, comparing and exchanging instructions.

use std::cmp::Ordering;

use super::Operand;

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
