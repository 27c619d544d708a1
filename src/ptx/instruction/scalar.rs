//! Widths and types of values.

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

/// Format of 16-bit floating-point values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HalfFormat {
    F16,
    BF16,
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
