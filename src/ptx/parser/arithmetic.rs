//! Arithmetic, bitwise, comparing and converting instructions.

use super::ParseResult;
use super::mnemonic::Mnemonic;
use super::operand;
use super::scope::NameScope;
use crate::instruction::{
    BinaryOperator, BitWidth, HalfFormat, Operand, Operation, OrderingSet, PredicateCombination, ScalarType,
    TernaryOperator, UnaryOperator,
};

/// Parses an instruction of this group; none if it is in another one.
pub(super) fn parse(
    scope: &NameScope,
    mnemonic: &mut Mnemonic<'_>,
    operands: &[&str],
) -> ParseResult<Option<Operation>> {
    if let Some(operator) = unary_operator(mnemonic.name) {
        return unary(scope, operator, mnemonic, operands).map(Some);
    }
    match mnemonic.name {
        "mul" | "mad" => product(scope, mnemonic, operands),
        "fma" => ternary(scope, TernaryOperator::MultiplyAdd, mnemonic, operands),
        "bfe" => ternary(scope, TernaryOperator::ExtractBits, mnemonic, operands),
        "prmt" => ternary(scope, TernaryOperator::PermuteBytes, mnemonic, operands),
        "shf" => funnel_shift(scope, mnemonic, operands),
        "lop3" => logic(scope, mnemonic, operands),
        "bfi" => insert_bits(scope, mnemonic, operands),
        "setp" => compare(scope, mnemonic, operands),
        "selp" => select(scope, mnemonic, operands),
        "cvt" => convert(scope, mnemonic, operands),
        name => match binary_operator(name) {
            Some(operator) => binary(scope, operator, mnemonic, operands),
            None => return Ok(None),
        },
    }
    .map(Some)
}

fn unary_operator(name: &str) -> Option<UnaryOperator> {
    Some(match name {
        "not" => UnaryOperator::Not,
        "neg" => UnaryOperator::Negate,
        "abs" => UnaryOperator::Absolute,
        "rcp" => UnaryOperator::Reciprocal,
        "sqrt" => UnaryOperator::SquareRoot,
        "rsqrt" => UnaryOperator::ReciprocalSquareRoot,
        "ex2" => UnaryOperator::Exp2,
        "lg2" => UnaryOperator::Log2,
        "tanh" => UnaryOperator::Tanh,
        "sin" => UnaryOperator::Sine,
        "cos" => UnaryOperator::Cosine,
        _ => return None,
    })
}

fn binary_operator(name: &str) -> Option<BinaryOperator> {
    Some(match name {
        "add" => BinaryOperator::Add,
        "sub" => BinaryOperator::Subtract,
        "div" => BinaryOperator::Divide,
        "rem" => BinaryOperator::Remainder,
        "min" => BinaryOperator::Minimum,
        "max" => BinaryOperator::Maximum,
        "and" => BinaryOperator::And,
        "or" => BinaryOperator::Or,
        "xor" => BinaryOperator::Xor,
        "shl" => BinaryOperator::ShiftLeft,
        "shr" => BinaryOperator::ShiftRight,
        _ => return None,
    })
}

/// Takes the type, and for f32 the modifiers of rounding. Returns the type and whether subnormal
/// values are flushed. Rounding to nearest is the only one that is supported.
fn take_arithmetic_type(mnemonic: &mut Mnemonic<'_>) -> ParseResult<(ScalarType, bool)> {
    let scalar = mnemonic.take_type()?;
    let flush = scalar == ScalarType::F32 && mnemonic.take("ftz");
    if scalar == ScalarType::F32 {
        mnemonic.take_one(&[("rn", ()), ("approx", ()), ("full", ())]);
    }
    match scalar {
        ScalarType::F16 | ScalarType::BF16 => Err(format!("{} on 16-bit floats is not supported", mnemonic.name)),
        _ => Ok((scalar, flush)),
    }
}

fn sources<const N: usize>(scope: &NameScope, operands: &[&str]) -> ParseResult<[Operand; N]> {
    let sources: Vec<Operand> =
        operands.iter().map(|text| operand::source(scope, text)).collect::<ParseResult<Vec<Operand>>>()?;
    sources.try_into().map_err(|found: Vec<Operand>| format!("{} sources, where {N} are expected", found.len()))
}

/// Splits the target from the sources.
fn split_target<'a, 'b>(operands: &'a [&'b str]) -> ParseResult<(&'b str, &'a [&'b str])> {
    operands.split_first().map(|(target, sources)| (*target, sources)).ok_or_else(|| "no operands".to_owned())
}

fn unary(
    scope: &NameScope,
    operator: UnaryOperator,
    mnemonic: &mut Mnemonic<'_>,
    operands: &[&str],
) -> ParseResult<Operation> {
    let (scalar, flush) = take_arithmetic_type(mnemonic)?;
    mnemonic.finish()?;
    let (target, rest) = split_target(operands)?;
    let [source] = sources(scope, rest)?;
    Ok(Operation::Unary { operator, scalar, flush, target: scope.register(target)?, source })
}

fn binary(
    scope: &NameScope,
    operator: BinaryOperator,
    mnemonic: &mut Mnemonic<'_>,
    operands: &[&str],
) -> ParseResult<Operation> {
    let (scalar, flush) = take_arithmetic_type(mnemonic)?;
    mnemonic.finish()?;
    let (target, rest) = split_target(operands)?;
    let sources = sources(scope, rest)?;
    Ok(Operation::Binary { operator, scalar, flush, target: scope.register(target)?, sources })
}

fn ternary(
    scope: &NameScope,
    operator: TernaryOperator,
    mnemonic: &mut Mnemonic<'_>,
    operands: &[&str],
) -> ParseResult<Operation> {
    let (scalar, flush) = take_arithmetic_type(mnemonic)?;
    mnemonic.finish()?;
    let (target, rest) = split_target(operands)?;
    let sources = sources(scope, rest)?;
    Ok(Operation::Ternary { operator, scalar, flush, target: scope.register(target)?, sources })
}

/// `mul` and `mad`: of integers with `.lo`, `.hi` or `.wide`, of f32 without.
fn product(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    let part = mnemonic.take_one(&[("lo", "lo"), ("hi", "hi"), ("wide", "wide")]);
    match (mnemonic.name, part) {
        ("mul", None | Some("lo")) => binary(scope, BinaryOperator::Multiply, mnemonic, operands),
        ("mul", Some("hi")) => binary(scope, BinaryOperator::MultiplyHigh, mnemonic, operands),
        ("mul", _) => binary(scope, BinaryOperator::MultiplyWide, mnemonic, operands),
        (_, Some("lo")) => ternary(scope, TernaryOperator::MultiplyAdd, mnemonic, operands),
        (_, Some("wide")) => ternary(scope, TernaryOperator::MultiplyAddWide, mnemonic, operands),
        _ => Err("mad is supported with .lo and .wide".to_owned()),
    }
}

fn funnel_shift(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    mnemonic.require("wrap")?;
    let directions = [("l", TernaryOperator::FunnelShiftLeft), ("r", TernaryOperator::FunnelShiftRight)];
    let operator = mnemonic.require_one(&directions)?;
    ternary(scope, operator, mnemonic, operands)
}

/// `lop3.b32 d, a, b, c, table`.
fn logic(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    let (table, operands) = operands.split_last().ok_or("no operands")?;
    let table = match operand::source(scope, table)? {
        Operand::Immediate(table) => u8::try_from(table).map_err(|_| "a truth table of more than 8 bits")?,
        _ => return Err("the truth table is an immediate".to_owned()),
    };
    ternary(scope, TernaryOperator::Logic(table), mnemonic, operands)
}

fn insert_bits(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    if mnemonic.take_type()? != ScalarType::Bits(BitWidth::Word) {
        return Err("bfi is supported for .b32".to_owned());
    }
    mnemonic.finish()?;
    let (target, rest) = split_target(operands)?;
    let [source, base, position, length] = sources(scope, rest)?;
    Ok(Operation::InsertBits { target: scope.register(target)?, source, base, position, length })
}

/// `setp.lt.s32 p, a, b` and `setp.lt.and.s32 p, a, b, q`.
fn compare(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    let scalar = mnemonic.take_type()?;
    let comparison = mnemonic.require_one(&comparisons())?;
    let operators = [("and", BinaryOperator::And), ("or", BinaryOperator::Or), ("xor", BinaryOperator::Xor)];
    let operator = mnemonic.take_one(&operators);
    mnemonic.finish()?;
    let (target, rest) = split_target(operands)?;
    let (combination, rest) = match (operator, rest) {
        (None, rest) => (None, rest),
        (Some(operator), [rest @ .., predicate]) => {
            let negated = predicate.starts_with('!');
            let predicate = operand::source(scope, predicate.trim_start_matches('!'))?;
            (Some(PredicateCombination { operator, predicate, negated }), rest)
        }
        (Some(_), []) => return Err("no predicate to combine with".to_owned()),
    };
    let sources = sources(scope, rest)?;
    Ok(Operation::Compare { comparison, scalar, target: scope.register(target)?, sources, combination })
}

/// The comparisons by name. `lo`, `ls`, `hi` and `hs` are those of unsigned types, which the type
/// states too; a `u` at the end includes unordered operands.
const fn comparisons() -> [(&'static str, OrderingSet); 18] {
    const LESS: OrderingSet = OrderingSet::LESS;
    const EQUAL: OrderingSet = OrderingSet::EQUAL;
    const GREATER: OrderingSet = OrderingSet::GREATER;
    const UNORDERED: OrderingSet = OrderingSet::UNORDERED;
    [
        ("eq", EQUAL),
        ("ne", LESS.or(GREATER)),
        ("lt", LESS),
        ("le", LESS.or(EQUAL)),
        ("gt", GREATER),
        ("ge", GREATER.or(EQUAL)),
        ("lo", LESS),
        ("ls", LESS.or(EQUAL)),
        ("hi", GREATER),
        ("hs", GREATER.or(EQUAL)),
        ("equ", EQUAL.or(UNORDERED)),
        ("neu", LESS.or(GREATER).or(UNORDERED)),
        ("ltu", LESS.or(UNORDERED)),
        ("leu", LESS.or(EQUAL).or(UNORDERED)),
        ("gtu", GREATER.or(UNORDERED)),
        ("geu", GREATER.or(EQUAL).or(UNORDERED)),
        ("num", LESS.or(EQUAL).or(GREATER)),
        ("nan", UNORDERED),
    ]
}

fn select(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    let width = mnemonic.take_type()?.width();
    mnemonic.finish()?;
    let (target, rest) = split_target(operands)?;
    let [first, second, predicate] = sources(scope, rest)?;
    Ok(Operation::Select { width, target: scope.register(target)?, sources: [first, second], predicate })
}

/// `cvt.to.from`, and `cvt.rn.bf16x2.f32`, which rounds two values.
fn convert(scope: &NameScope, mnemonic: &mut Mnemonic<'_>, operands: &[&str]) -> ParseResult<Operation> {
    let from = mnemonic.take_type()?;
    let (target, rest) = split_target(operands)?;
    let target = scope.register(target)?;
    if let Some(format) = mnemonic.take_one(&[("bf16x2", HalfFormat::BF16), ("f16x2", HalfFormat::F16)]) {
        mnemonic.require("rn")?;
        mnemonic.finish()?;
        let [high, low] = sources(scope, rest)?;
        return Ok(Operation::PackFloats { format, target, high, low });
    }
    let to = mnemonic.take_type()?;
    let is_float = |scalar| matches!(scalar, ScalarType::F16 | ScalarType::BF16 | ScalarType::F32);
    if is_float(to) && from != ScalarType::F16 && from != ScalarType::BF16 {
        mnemonic.require("rn")?;
    } else if is_float(from) && !is_float(to) {
        // Integers are rounded towards zero, as a cast in C.
        mnemonic.require("rzi")?;
    }
    mnemonic.finish()?;
    let [source] = sources(scope, rest)?;
    Ok(Operation::Convert { from, to, target, source })
}
