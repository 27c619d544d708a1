//! A kernel: its parameters, its names and its instructions.

use super::instruction::{self, LabelIndices};
use super::scope::NameScope;
use super::statement::{PtxStatement, StatementText};
use super::{ParseError, ParseResult, mnemonic};
use crate::bits::to_index;
use crate::instruction::{BitWidth, Instruction, ScalarType};

/// A kernel that can be launched.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) parameters: Vec<KernelParameter>,
    /// Threads of a block that the kernel is compiled for (`.maxntid`).
    pub(crate) threads_max: Option<u32>,
    pub(crate) instructions: Vec<Instruction>,
    /// Names of the registers, for errors.
    pub(crate) register_names: Vec<String>,
    /// Static shared memory, which the dynamic one follows.
    pub(crate) shared_bytes: usize,
    /// Local memory of a thread.
    pub(crate) local_bytes: usize,
}

/// Type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParameterKind {
    /// 64 bits: a pointer.
    Pointer,
    /// 32 bits.
    Integer,
    Float,
}

/// A parameter and its place in the parameter memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelParameter {
    pub(crate) kind: ParameterKind,
    pub(crate) offset: usize,
}

// === impl ParameterKind ===

impl ParameterKind {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Pointer => 8,
            Self::Integer | Self::Float => 4,
        }
    }
}

/// Parses a kernel from its header and the statements of its body. `variables` are those of the
/// module.
pub(super) fn parse(
    header: &str,
    line: usize,
    variables: &[&PtxStatement<'_>],
    body: &[&PtxStatement<'_>],
) -> Result<Kernel, ParseError> {
    let mut scope = NameScope::default();
    for variable in variables {
        let StatementText::Plain(text) = variable.text else { continue };
        let text = text.strip_prefix(".extern ").unwrap_or(text);
        declare(&mut scope, text).map_err(|reason| variable.error(reason))?;
    }
    let at_header = |reason| ParseError { line, text: header.to_owned(), reason };
    let (name, parameters, threads_max) = parse_header(&mut scope, header).map_err(at_header)?;
    let instructions = parse_body(&mut scope, body)?;
    Ok(Kernel {
        name,
        parameters,
        threads_max,
        instructions,
        shared_bytes: to_index(scope.shared_bytes()),
        local_bytes: to_index(scope.local_bytes()),
        register_names: scope.into_register_names(),
    })
}

/// Parses `.visible .entry name(.param .u64 a, …) .maxntid 128, 1, 1`.
fn parse_header(scope: &mut NameScope, header: &str) -> ParseResult<(String, Vec<KernelParameter>, Option<u32>)> {
    let (before, rest) = header.split_once('(').ok_or("a kernel without parameters")?;
    let (list, directives) = rest.split_once(')').ok_or("a list of parameters without an end")?;
    let name = before.split_whitespace().last().unwrap_or_default().to_owned();
    let mut parameters = Vec::new();
    let mut end = 0_usize;
    for text in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [".param", kind, name] = words.as_slice() else {
            return Err(format!("parameter `{text}` is not supported"));
        };
        let kind = match mnemonic::scalar_type(kind.trim_start_matches('.'))? {
            ScalarType::F32 => ParameterKind::Float,
            scalar if scalar.width() == BitWidth::Double => ParameterKind::Pointer,
            scalar if scalar.width() == BitWidth::Word => ParameterKind::Integer,
            _ => return Err(format!("parameter `{text}` is not supported")),
        };
        let offset = end.next_multiple_of(kind.bytes());
        scope.declare_parameter(name, offset);
        parameters.push(KernelParameter { kind, offset });
        end = offset + kind.bytes();
    }
    let threads = directives.split_once(".maxntid").and_then(|(_, rest)| rest.split(',').next());
    let threads_max = threads.map(|text| text.trim().parse().map_err(|_| ".maxntid without a number")).transpose()?;
    Ok((name, parameters, threads_max))
}

/// Parses the instructions, after the labels, which may be behind the branches to them.
fn parse_body(scope: &mut NameScope, body: &[&PtxStatement<'_>]) -> Result<Vec<Instruction>, ParseError> {
    let mut labels = LabelIndices::new();
    let mut count = 0;
    for statement in body {
        match statement.text {
            StatementText::Label(label) => drop(labels.insert(label, count)),
            StatementText::Plain(text) if !text.starts_with('.') => count += 1,
            _ => {}
        }
    }
    let mut instructions = Vec::with_capacity(count);
    scope.open();
    for statement in body {
        match statement.text {
            StatementText::Open => scope.open(),
            StatementText::Close => scope.close(),
            StatementText::Plain(text) if text.starts_with('.') => {
                declare(scope, text).map_err(|reason| statement.error(reason))?;
            }
            StatementText::Plain(text) => {
                let instruction = instruction::parse(scope, &labels, text, statement.line);
                instructions.push(instruction.map_err(|reason| statement.error(reason))?);
            }
            StatementText::Label(_) | StatementText::Header(_) => {}
        }
    }
    scope.close();
    Ok(instructions)
}

/// Parses a directive: registers, or variables in shared or local memory.
fn declare(scope: &mut NameScope, text: &str) -> ParseResult<()> {
    let (directive, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    match directive {
        ".reg" => {
            let (_, names) = rest.split_once(char::is_whitespace).ok_or("registers without names")?;
            scope.declare_registers(names)
        }
        ".shared" | ".local" => scope.declare_variable(directive, rest),
        // Loop unrolling and the like, which concern the compiler of the driver.
        ".pragma" => Ok(()),
        _ => Err(format!("directive {directive} is not supported")),
    }
}
