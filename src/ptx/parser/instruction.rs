//! A statement as an instruction: its guard, its name, and its group.

use std::collections::HashMap;

use super::ParseResult;
use super::mnemonic::Mnemonic;
use super::operand;
use super::scope::NameScope;
use super::{arithmetic, matrix, transfer};
use crate::instruction::{Instruction, InstructionGuard, Operation};

/// Indices of the instructions that labels name.
pub(super) type LabelIndices<'a> = HashMap<&'a str, usize>;

/// Parses an instruction.
pub(super) fn parse(scope: &NameScope, labels: &LabelIndices<'_>, text: &str, line: usize) -> ParseResult<Instruction> {
    let (guard, text) = match text.strip_prefix('@') {
        Some(rest) => {
            let (predicate, rest) = rest.split_once(char::is_whitespace).ok_or("a guard without an instruction")?;
            let negated = predicate.starts_with('!');
            let predicate = scope.register(predicate.trim_start_matches('!'))?;
            (Some(InstructionGuard { predicate, negated }), rest.trim_start())
        }
        None => (None, text),
    };
    let (name, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let operands = operand::split(operands);
    let mut mnemonic = Mnemonic::new(name);
    let operation = operation(scope, labels, &mut mnemonic, &operands)?;
    Ok(Instruction { guard, operation, line })
}

fn operation(
    scope: &NameScope,
    labels: &LabelIndices<'_>,
    mnemonic: &mut Mnemonic<'_>,
    operands: &[&str],
) -> ParseResult<Operation> {
    if let Some(operation) = control(scope, labels, mnemonic, operands)? {
        return Ok(operation);
    }
    for group in [arithmetic::parse, transfer::parse, matrix::parse] {
        if let Some(operation) = group(scope, mnemonic, operands)? {
            return Ok(operation);
        }
    }
    Err(format!("instruction {} is not supported", mnemonic.name))
}

/// Parses branches and barriers.
fn control(
    scope: &NameScope,
    labels: &LabelIndices<'_>,
    mnemonic: &mut Mnemonic<'_>,
    operands: &[&str],
) -> ParseResult<Option<Operation>> {
    let operation = match (mnemonic.name, operands) {
        ("bra", [label]) => {
            // A uniform branch is not taken by some lanes only, which nothing depends on here.
            mnemonic.take("uni");
            let target = labels.get(label).ok_or_else(|| format!("{label} is not a label of the kernel"))?;
            Operation::Branch { target: *target }
        }
        ("ret" | "exit", []) => Operation::Return,
        ("bar" | "barrier", ["0"]) => {
            mnemonic.require("sync")?;
            Operation::Barrier
        }
        ("bar", [members]) if mnemonic.take("warp") => {
            mnemonic.require("sync")?;
            Operation::WarpBarrier { members: operand::source(scope, members)? }
        }
        _ => return Ok(None),
    };
    mnemonic.finish()?;
    Ok(Some(operation))
}
