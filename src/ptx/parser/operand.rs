//! Operands: registers, immediates, variables, addresses and vectors.

use super::ParseResult;
use super::scope::NameScope;
use crate::instruction::{MemoryOperand, Operand, Register, SpecialRegister};

/// Splits operands at commas that are not within braces or brackets.
pub(super) fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let separator = move |letter: char| {
        match letter {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    };
    text.split(separator).map(str::trim).filter(|operand| !operand.is_empty()).collect()
}

/// Parses a source operand.
pub(super) fn source(scope: &NameScope, text: &str) -> ParseResult<Operand> {
    if let Some(special) = special(text) {
        return Ok(Operand::Special(special));
    }
    if let Some(address) = scope.variable(text) {
        return Ok(Operand::Immediate(address));
    }
    if let Some(value) = immediate(text) {
        return Ok(Operand::Immediate(value));
    }
    scope.register(text).map(Operand::Register)
}

/// Parses `[register]`, `[register+4]`, `[variable+4]`.
pub(super) fn address(scope: &NameScope, text: &str) -> ParseResult<MemoryOperand> {
    let inner = brackets(text)?;
    let (base, offset) = match inner.split_once('+') {
        Some((base, offset)) => (base.trim(), offset.trim()),
        None => (inner, "0"),
    };
    let offset = offset.parse().map_err(|_| format!("{offset} is no offset"))?;
    Ok(MemoryOperand { base: source(scope, base)?, offset })
}

/// Returns the text within `[` and `]`.
pub(super) fn brackets(text: &str) -> ParseResult<&str> {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    inner.map(str::trim).ok_or_else(|| format!("{text} is no address"))
}

/// Parses `{a, b}` or a single operand.
pub(super) fn elements(text: &str) -> Vec<&str> {
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    inner.map_or_else(|| vec![text], |inner| inner.split(',').map(str::trim).collect())
}

/// Parses `{a, b}` as registers.
pub(super) fn registers(scope: &NameScope, text: &str) -> ParseResult<Vec<Register>> {
    elements(text).into_iter().map(|name| scope.register(name)).collect()
}

/// Parses `{a, b, …}` as this many registers.
pub(super) fn register_array<const N: usize>(scope: &NameScope, text: &str) -> ParseResult<[Register; N]> {
    registers(scope, text)?.try_into().map_err(|_| format!("{text} is not a vector of {N} registers"))
}

fn special(text: &str) -> Option<SpecialRegister> {
    if text == "%laneid" {
        return Some(SpecialRegister::Lane);
    }
    let (name, dimension) = text.split_once('.')?;
    let dimension = ["x", "y", "z"].iter().position(|known| *known == dimension)?;
    match name {
        "%tid" => Some(SpecialRegister::Thread(dimension)),
        "%ntid" => Some(SpecialRegister::Threads(dimension)),
        "%ctaid" => Some(SpecialRegister::Block(dimension)),
        "%nctaid" => Some(SpecialRegister::Blocks(dimension)),
        _ => None,
    }
}

/// Parses an integer, or the bits of an f32 (`0f3F800000`).
fn immediate(text: &str) -> Option<u64> {
    if let Some(bits) = text.strip_prefix("0f") {
        return u32::from_str_radix(bits, 16).ok().map(u64::from);
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits.trim_end_matches('U'), 16).ok();
    }
    text.parse::<i64>().map(i64::cast_unsigned).ok().or_else(|| text.parse().ok())
}
