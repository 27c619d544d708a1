//! Registers, and the other operands of instructions.

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
