//! Errors of the parser.

/// A statement that cannot be parsed, or is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("PTX line {line}: {reason}: `{text}`")]
pub struct ParseError {
    /// Line of the statement, from 1.
    pub line: usize,
    /// The statement.
    pub text: String,
    /// The error.
    pub reason: String,
}

/// A result before the statement is known: the error is a reason.
pub(super) type ParseResult<T> = Result<T, String>;
