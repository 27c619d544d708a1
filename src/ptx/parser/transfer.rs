//! Instructions that move data: registers, memory, asynchronous copies and shuffles.

use super::ParseResult;
use super::mnemonic::Mnemonic;
use super::operand;
use super::scope::NameScope;
use crate::fault::MemorySpace;
use crate::instruction::{BitWidth, Operation, ScalarType, ShuffleMode, UnaryOperator};

const SPACES: [(&str, MemorySpace); 3] =
    [("global", MemorySpace::Global), ("shared", MemorySpace::Shared), ("local", MemorySpace::Local)];

/// Parses an instruction of this group; none if it is in another one.
pub(super) fn parse(
    scope: &NameScope,
    mnemonic: &mut Mnemonic<'_>,
    operands: &[&str],
) -> ParseResult<Option<Operation>> {
    match mnemonic.name {
        "mov" => mov(scope, mnemonic, operands),
        "cvta" => convert_address(scope, mnemonic, operands),
        "ld" => load(scope, mnemonic, operands),
        "st" => store(scope, mnemonic, operands),
        "shfl" => shuffle(scope, mnemonic, operands),
        "cp" => copy(scope, mnemonic, operands),
        _ => return Ok(None),
    }
    .map(Some)
}

/// `mov`, with a vector on one side to join or split a register.
fn mov(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    let scalar = mnemonic.take_type()?;
    mnemonic.finish()?;
    let [target, source] = operands else { return Err("mov has a target and a source".to_owned()) };
    let part = match scalar.width() {
        BitWidth::Double => BitWidth::Word,
        BitWidth::Word => BitWidth::Half,
        BitWidth::Half | BitWidth::Byte => BitWidth::Byte,
    };
    if target.starts_with('{') {
        let [low, high] = operand::register_array(scope, target)?;
        return Ok(Operation::Split { part, low, high, source: operand::source(scope, source)? });
    }
    let target = scope.register(target)?;
    match operand::elements(source).as_slice() {
        [low, high] => {
            let (low, high) = (operand::source(scope, low)?, operand::source(scope, high)?);
            Ok(Operation::Join { part, target, low, high })
        }
        [single] => {
            let source = operand::source(scope, single)?;
            Ok(Operation::Unary { operator: UnaryOperator::Move, scalar, flush: false, target, source })
        }
        _ => Err("vectors of two elements are supported".to_owned()),
    }
}

/// Addresses of all spaces are the same in generic form, so conversions copy them.
fn convert_address(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    let scalar = mnemonic.take_type()?;
    mnemonic.take("to");
    mnemonic.require_one(&SPACES)?;
    mnemonic.finish()?;
    let [target, source] = operands else { return Err("cvta has a target and a source".to_owned()) };
    let (target, source) = (scope.register(target)?, operand::source(scope, source)?);
    Ok(Operation::Unary { operator: UnaryOperator::Move, scalar, flush: false, target, source })
}

/// Takes `.v2` or `.v4` and checks the number of elements.
fn take_vector(mnemonic: &mut Mnemonic<'_>, elements: usize) -> ParseResult<()> {
    let expected = mnemonic.take_one(&[("v2", 2), ("v4", 4)]).unwrap_or(1);
    if elements == expected { Ok(()) } else { Err(format!("{elements} elements, where {expected} are expected")) }
}

fn load(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    let scalar = mnemonic.take_type()?;
    let [targets, source] = operands else { return Err("ld has a target and an address".to_owned()) };
    let targets = operand::registers(scope, targets)?;
    if mnemonic.take("param") {
        mnemonic.finish()?;
        let [target] = targets.as_slice() else { return Err("a parameter is one value".to_owned()) };
        let offset = scope.parameter(operand::brackets(source)?)?;
        return Ok(Operation::LoadParameter { target: *target, offset, width: scalar.width() });
    }
    let space = mnemonic.require_one(&SPACES)?;
    let is_constant = space == MemorySpace::Global && mnemonic.take("nc");
    take_vector(mnemonic, targets.len())?;
    mnemonic.finish()?;
    Ok(Operation::Load { space, scalar, is_constant, targets, address: operand::address(scope, source)? })
}

fn store(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    let width = mnemonic.take_type()?.width();
    let [target, sources] = operands else { return Err("st has an address and a source".to_owned()) };
    let sources: Vec<_> = operand::elements(sources)
        .into_iter()
        .map(|text| operand::source(scope, text))
        .collect::<ParseResult<Vec<_>>>()?;
    let space = mnemonic.require_one(&SPACES)?;
    take_vector(mnemonic, sources.len())?;
    mnemonic.finish()?;
    Ok(Operation::Store { space, width, sources, address: operand::address(scope, target)? })
}

/// `shfl.sync.bfly.b32 d|p, a, b, c, members`.
fn shuffle(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    if mnemonic.take_type()? != ScalarType::Bits(BitWidth::Word) {
        return Err("shfl is supported for .b32".to_owned());
    }
    mnemonic.require("sync")?;
    let modes = [
        ("up", ShuffleMode::Up),
        ("down", ShuffleMode::Down),
        ("bfly", ShuffleMode::Butterfly),
        ("idx", ShuffleMode::Index),
    ];
    let mode = mnemonic.require_one(&modes)?;
    mnemonic.finish()?;
    let [target, source, lane, clamp, members] = operands else { return Err("shfl.sync has five operands".to_owned()) };
    let (target, valid) = match target.split_once('|') {
        Some((target, valid)) => (target, Some(scope.register(valid)?)),
        None => (*target, None),
    };
    Ok(Operation::Shuffle {
        mode,
        target: scope.register(target)?,
        valid,
        source: operand::source(scope, source)?,
        lane: operand::source(scope, lane)?,
        clamp: operand::source(scope, clamp)?,
        members: operand::source(scope, members)?,
    })
}

/// `cp.async`, `cp.async.commit_group`, `cp.async.wait_group n`.
fn copy(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    mnemonic.require("async")?;
    if mnemonic.take("commit_group") {
        mnemonic.finish()?;
        return Ok(Operation::CommitCopies);
    }
    if mnemonic.take("wait_group") {
        mnemonic.finish()?;
        let [pending] = operands else { return Err("wait_group has one operand".to_owned()) };
        let pending = pending.parse().map_err(|_| "the number of groups is an immediate")?;
        return Ok(Operation::WaitCopies { pending });
    }
    // The cache operators differ in the caches, and in the sizes that they allow.
    let sizes: &[usize] = mnemonic.require_one(&[("cg", &[16][..]), ("ca", &[4, 8, 16])])?;
    mnemonic.require("shared")?;
    mnemonic.require("global")?;
    mnemonic.finish()?;
    let (target, source, size, length) = match operands {
        [target, source, size] => (target, source, size, None),
        [target, source, size, length] => (target, source, size, Some(operand::source(scope, length)?)),
        _ => return Err("cp.async has three or four operands".to_owned()),
    };
    let size = size.parse().ok().filter(|size| sizes.contains(size));
    Ok(Operation::CopyAsync {
        target: operand::address(scope, target)?,
        source: operand::address(scope, source)?,
        size: size.ok_or_else(|| format!("a copy has {sizes:?} bytes"))?,
        length,
    })
}
