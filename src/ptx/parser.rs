//! Parser of PTX, as NVRTC writes it (NVIDIA, "Parallel Thread Execution ISA", version 8.4).
//!
//! It accepts a subset and refuses the rest with the line: an ignored modifier would compute
//! something else than the GPU.

mod error;
mod statement;
mod scope;
mod operand;
mod mnemonic;
mod arithmetic;
mod transfer;
mod matrix;
mod instruction;
mod entry;

pub(crate) use entry::{Kernel, ParameterKind};
pub use error::ParseError;

use error::ParseResult;
use statement::{PtxStatement, StatementText};

/// A parsed module: the kernels of one PTX file.
#[derive(Debug, Clone)]
pub struct Module {
    kernels: Vec<Kernel>,
}

// === impl Module ===

impl Module {
    /// Parses a PTX file.
    ///
    /// # Errors
    ///
    /// A statement that is malformed or not supported, with its line.
    pub fn parse(ptx: &str) -> Result<Self, ParseError> {
        let statements = statement::split(ptx)?;
        let mut rest = statements.iter();
        let mut kernels = Vec::new();
        // Variables of the module; their sizes are in the scope of each kernel.
        let mut variables = Vec::new();
        while let Some(statement) = rest.next() {
            match &statement.text {
                StatementText::Header(header) => {
                    let body = take_body(&mut rest);
                    kernels.push(entry::parse(header, statement.line, &variables, &body)?);
                }
                StatementText::Plain(_) => variables.push(statement),
                StatementText::Open | StatementText::Close | StatementText::Label(_) => {
                    return Err(statement.error("a statement outside of a kernel"));
                }
            }
        }
        Ok(Self { kernels })
    }

    /// Returns the names of the kernels, in the order of the file.
    pub fn kernel_names(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(|kernel| kernel.name.as_str())
    }

    pub(crate) fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}

/// Takes the statements between the braces that follow a header.
fn take_body<'a, 'b: 'a>(rest: &mut impl Iterator<Item = &'a PtxStatement<'b>>) -> Vec<&'a PtxStatement<'b>> {
    let mut depth = 0_usize;
    let mut body = Vec::new();
    for statement in rest {
        match statement.text {
            StatementText::Open => depth += 1,
            StatementText::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            break;
        }
        body.push(statement);
    }
    // Without the brace that opens the body.
    body.split_off(1.min(body.len()))
}

#[cfg(test)]
mod tests;
