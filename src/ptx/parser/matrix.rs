//! Instructions of the tensor cores.

use super::ParseResult;
use super::mnemonic::Mnemonic;
use super::operand;
use super::scope::NameScope;
use crate::instruction::{HalfFormat, Operation};

/// Parses an instruction of this group; none if it is in another one.
pub(super) fn parse(
    scope: &NameScope,
    mnemonic: &mut Mnemonic<'_>,
    operands: &[&str],
) -> ParseResult<Option<Operation>> {
    match mnemonic.name {
        "mma" => multiply(scope, mnemonic, operands),
        "ldmatrix" => load(scope, mnemonic, operands),
        _ => return Ok(None),
    }
    .map(Some)
}

/// `mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`, and the same with f16.
fn multiply(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    for modifier in ["sync", "aligned", "m16n8k16", "row", "col", "f32", "f32"] {
        mnemonic.require(modifier)?;
    }
    let format = mnemonic.require_one(&[("bf16", HalfFormat::BF16), ("f16", HalfFormat::F16)])?;
    // Both operands have the same format.
    mnemonic.require(if format == HalfFormat::BF16 { "bf16" } else { "f16" })?;
    mnemonic.finish()?;
    let [d, a, b, c] = operands else { return Err("mma has four operands".to_owned()) };
    Ok(Operation::MultiplyMatrices {
        format,
        d: operand::register_array(scope, d)?,
        a: operand::register_array(scope, a)?,
        b: operand::register_array(scope, b)?,
        c: operand::register_array(scope, c)?,
    })
}

fn load(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    for modifier in ["sync", "aligned", "m8n8", "shared", "b16"] {
        mnemonic.require(modifier)?;
    }
    let count = mnemonic.require_one(&[("x1", 1), ("x2", 2), ("x4", 4)])?;
    let transposed = mnemonic.take("trans");
    mnemonic.finish()?;
    let [targets, address] = operands else { return Err("ldmatrix has a target and an address".to_owned()) };
    let targets = operand::registers(scope, targets)?;
    if targets.len() != count {
        return Err(format!("{} targets, where {count} are expected", targets.len()));
    }
    Ok(Operation::LoadMatrices { transposed, targets, address: operand::address(scope, address)? })
}
