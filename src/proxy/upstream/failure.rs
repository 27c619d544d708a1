//! Errors of sending a call upstream before a response head arrives.
//!
//! All clients return them: on an HTTP/1 connection (`http1`, `pinned`), on a shared connection
//! (`client`), and on the connections of one client (`concurrent`).

use super::permits::NoPermit;
use crate::error::{Failure, FailureKind};
use crate::tls::TlsFailure;

/// An error of sending a call upstream before a response head arrives.
#[derive(Debug)]
pub(super) enum SendError {
    /// No connection was established, and nothing was sent.
    Refused,
    /// TLS failed: nothing was sent, or the server did not process it.
    Tls,
    /// The server chose a different HTTP version than expected, and nothing was sent.
    NotHttp2,
    /// The connection broke. The call may have been executed.
    Broken,
    /// All connections are in use, and nothing was sent.
    ConnectionsFull,
    /// The request's body was evicted from the buffers before it was complete.
    Evicted,
}

// === impl SendError ===

impl SendError {
    /// Converts the error of a failed connect.
    pub(super) fn from_connect_error(error: &std::io::Error) -> Self {
        match error.get_ref() {
            Some(error) if error.is::<TlsFailure>() => Self::Tls,
            Some(error) if error.is::<NoPermit>() => Self::ConnectionsFull,
            _ => Self::Refused,
        }
    }

    pub(super) const fn kind(&self) -> FailureKind {
        match self {
            Self::Refused => FailureKind::UpstreamRefused,
            Self::Tls | Self::NotHttp2 => FailureKind::UpstreamTls,
            Self::Broken => FailureKind::UpstreamBroken,
            Self::ConnectionsFull => FailureKind::ConnectionsFull,
            Self::Evicted => FailureKind::BytesFull,
        }
    }

    pub(super) fn failure(self) -> Failure {
        self.kind().into()
    }
}
