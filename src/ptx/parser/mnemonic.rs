//! The mnemonic of an instruction: its name and modifiers, as in `setp.lt.s32`.

use super::ParseResult;
use crate::instruction::{BitWidth, ScalarType};

/// An instruction name, split at its dots. Every modifier has to be taken by the parser of the
/// instruction; one that is left over is not supported.
#[derive(Debug)]
pub(super) struct Mnemonic<'a> {
    pub(super) name: &'a str,
    modifiers: Vec<&'a str>,
}

// === impl Mnemonic ===

impl<'a> Mnemonic<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut parts = text.split('.');
        let name = parts.next().unwrap_or_default();
        Self { name, modifiers: parts.collect() }
    }

    /// Takes a modifier. Returns `false` if the instruction does not have it.
    pub(super) fn take(&mut self, modifier: &str) -> bool {
        let at = self.modifiers.iter().position(|known| *known == modifier);
        at.map(|at| self.modifiers.remove(at)).is_some()
    }

    /// Takes a modifier that the instruction must have.
    pub(super) fn require(&mut self, modifier: &str) -> ParseResult<()> {
        if self.take(modifier) { Ok(()) } else { Err(format!("{} without .{modifier} is not supported", self.name)) }
    }

    /// Takes the first of several modifiers that the instruction has, and returns its value.
    pub(super) fn take_one<T: Copy>(&mut self, choices: &[(&str, T)]) -> Option<T> {
        choices.iter().find(|(modifier, _)| self.take(modifier)).map(|(_, value)| *value)
    }

    /// Takes the first of several modifiers, of which the instruction must have one, and returns
    /// its value.
    pub(super) fn require_one<T: Copy>(&mut self, choices: &[(&str, T)]) -> ParseResult<T> {
        let known: Vec<&str> = choices.iter().map(|(modifier, _)| *modifier).collect();
        let error = format!("{} needs one of .{}", self.name, known.join(" ."));
        self.take_one(choices).ok_or(error)
    }

    /// Takes the type, which is the last modifier.
    pub(super) fn take_type(&mut self) -> ParseResult<ScalarType> {
        scalar_type(self.modifiers.pop().ok_or_else(|| format!("{} has no type", self.name))?)
    }

    /// Checks that no modifier is left.
    pub(super) fn finish(&self) -> ParseResult<()> {
        match self.modifiers.first() {
            None => Ok(()),
            Some(modifier) => Err(format!("modifier .{modifier} of {} is not supported", self.name)),
        }
    }
}

/// Parses the name of a type, without the dot.
pub(super) fn scalar_type(name: &str) -> ParseResult<ScalarType> {
    Ok(match name {
        "pred" => ScalarType::Predicate,
        "b8" => ScalarType::Bits(BitWidth::Byte),
        "b16" => ScalarType::Bits(BitWidth::Half),
        "b32" => ScalarType::Bits(BitWidth::Word),
        "b64" => ScalarType::Bits(BitWidth::Double),
        "u8" => ScalarType::Unsigned(BitWidth::Byte),
        "u16" => ScalarType::Unsigned(BitWidth::Half),
        "u32" => ScalarType::Unsigned(BitWidth::Word),
        "u64" => ScalarType::Unsigned(BitWidth::Double),
        "s8" => ScalarType::Signed(BitWidth::Byte),
        "s16" => ScalarType::Signed(BitWidth::Half),
        "s32" => ScalarType::Signed(BitWidth::Word),
        "s64" => ScalarType::Signed(BitWidth::Double),
        "f16" => ScalarType::F16,
        "bf16" => ScalarType::BF16,
        "f32" => ScalarType::F32,
        _ => return Err(format!("type .{name} is not supported")),
    })
}
