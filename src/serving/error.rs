//! Errors of calls, with the status codes of TEI.

use std::fmt;

use http::StatusCode;

/// Kind of an error. Status and `error_type` follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The body is not JSON.
    Malformed,
    /// A list of inputs, or an input, is empty.
    Empty,
    /// A field is missing, its value is not accepted, or an input has too many tokens.
    Invalid,
    /// The body, the number of inputs or the response exceeds a limit.
    TooLarge,
    /// The body has another media type than JSON.
    MediaType,
    /// There is no such path or model.
    NotFound,
    /// The path exists for another method.
    WrongMethod,
    /// The model cannot answer calls of this route.
    WrongModel,
    /// The result of the model cannot be used.
    Backend,
    /// Too many calls are in progress.
    Overloaded,
    /// The executor is not ready, or has failed.
    Unhealthy,
    /// A defect of the server.
    Internal,
}

/// An error with which a call is answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// Description for the caller: field, reason and remedy.
    pub message: String,
}

// === impl ErrorKind ===

impl ErrorKind {
    /// Returns the status.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Malformed | Self::Empty => StatusCode::BAD_REQUEST,
            Self::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::WrongModel | Self::Backend => StatusCode::FAILED_DEPENDENCY,
            Self::Overloaded => StatusCode::TOO_MANY_REQUESTS,
            Self::Unhealthy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the `error_type` of TEI.
    #[must_use]
    pub const fn tei_type(self) -> &'static str {
        match self {
            Self::Malformed | Self::Invalid | Self::TooLarge | Self::MediaType | Self::NotFound | Self::WrongMethod => {
                "Validation"
            }
            Self::Empty => "Empty",
            Self::WrongModel | Self::Backend | Self::Internal => "Backend",
            Self::Overloaded => "Overloaded",
            Self::Unhealthy => "Unhealthy",
        }
    }
}

// === impl CallError ===

impl CallError {
    /// Creates an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Creates the error of a response that cannot be written as JSON, which is a defect of the
    /// server.
    pub(crate) fn unwritable(error: &serde_json::Error) -> Self {
        Self::new(ErrorKind::Internal, error.to_string())
    }

    /// Creates the error of an input without a text or token ids, in the words of TEI. `place` is
    /// the field of the body, with the index of an element of a list, such as `inputs[1]`.
    pub(crate) fn empty_input(place: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Empty, format!("`{place}` cannot be empty"))
    }

    /// Creates the error of a pair of which both texts are empty.
    pub(crate) fn empty_pair(first: &str, second: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Empty, format!("`{first}` and `{second}` cannot both be empty"))
    }

    /// Creates the error of a field with a value that is not accepted.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }
}
