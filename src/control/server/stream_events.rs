//! Counters of stream events, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use strum::{IntoStaticStr, VariantArray};

/// A counted stream event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum StreamEvent {
    /// Streams that sent `Hello`.
    Opened,
    /// Connections closed on accept because a limit was reached, and failed accepts.
    Shed,
    /// TLS handshakes that failed or timed out.
    #[strum(serialize = "handshake")]
    HandshakeFailed,
    /// Requests with another path or method than those of a stream.
    NotAStream,
    /// Invalid tokens.
    Invalid,
    /// Tokens of pods that are not allowed to open a stream.
    Forbidden,
    /// Tokens rejected by the rate limit on reviews.
    Busy,
    /// Tokens that could not be reviewed.
    Unavailable,
    /// Streams with a `Hello` that named another pod than that of the token.
    Foreign,
    /// Streams that did not begin with `Hello`, or sent it twice.
    Unannounced,
    /// Invalid frames and invalid messages.
    Malformed,
    /// Streams that ended within a frame.
    Truncated,
    /// Streams that exceeded their limit of frames or bytes per second.
    Flood,
    /// Streams that were replaced by another one of the same pod.
    Replaced,
    /// Streams that sent nothing, or no `Hello`, within their timeout.
    Idle,
    /// Streams that did not read within their timeout.
    Slow,
    /// Reports accepted.
    Reports,
    /// Events accepted.
    Events,
    /// Duplicate reports and events.
    Repeated,
    /// Messages of an unknown kind.
    UnknownKinds,
    /// Unknown fields.
    UnknownFields,
}

/// Counters of all stream events, in the order of the variants.
#[derive(Debug, Default)]
pub(super) struct StreamEventCounters([AtomicU64; StreamEvent::VARIANTS.len()]);

// === impl StreamEvent ===

impl StreamEvent {
    /// Returns the label value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl StreamEventCounters ===

impl StreamEventCounters {
    pub(super) fn increment(&self, count: StreamEvent) {
        self.add(count, 1);
    }

    pub(super) fn add(&self, count: StreamEvent, more: u64) {
        self.0[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn get(&self, count: StreamEvent) -> u64 {
        self.0[count as usize].load(Ordering::Relaxed)
    }
}
