//! The error of a model directory that cannot be used.

/// Error of a model directory: the file, the field or tensor in it, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {place}: found {found}, expected {expected}: {advice}")]
pub struct LoadError {
    /// Path of the file.
    pub file: String,
    /// Field, tensor or part of the file.
    pub place: String,
    /// The value that was found.
    pub found: String,
    /// Values that can be used.
    pub expected: String,
    /// The remedy.
    pub advice: &'static str,
}
