//! The end of a session: why a stream ended or was not opened, and what applies to the next
//! connect.

use std::time::Duration;

use super::DisconnectReason;
use super::address::ControllerAddress;
use crate::batching::Tick;

/// The end of a stream, or the reason why it could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionEnd {
    pub(super) reason: DisconnectReason,
    pub(super) message: String,
    /// Address of the next connect, if the controller named one.
    pub(super) redirect_address: Option<ControllerAddress>,
    /// Minimum delay requested by the controller.
    pub(super) not_before: Duration,
    /// Time at which the stream was opened, if it was.
    pub(super) open: Option<Tick>,
}

// === impl SessionEnd ===

impl SessionEnd {
    pub(super) fn new(reason: DisconnectReason, message: &str) -> Self {
        Self { reason, message: message.to_owned(), redirect_address: None, not_before: Duration::ZERO, open: None }
    }
}
