//! Counters of stream events, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counted stream event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEvent {
    /// Streams that sent `Hello`.
    Opened,
    /// Connections closed on accept because a limit was reached, and failed accepts.
    Shed,
    /// TLS handshakes that failed or timed out.
    Handshake,
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

/// Counters of all stream events.
#[derive(Debug, Default)]
pub(super) struct StreamEventCounters([AtomicU64; StreamEvent::ALL.len()]);

// === impl StreamEvent ===

impl StreamEvent {
    /// All events, in the order of their counters.
    pub const ALL: [Self; 21] = [
        Self::Opened,
        Self::Shed,
        Self::Handshake,
        Self::NotAStream,
        Self::Invalid,
        Self::Forbidden,
        Self::Busy,
        Self::Unavailable,
        Self::Foreign,
        Self::Unannounced,
        Self::Malformed,
        Self::Truncated,
        Self::Flood,
        Self::Replaced,
        Self::Idle,
        Self::Slow,
        Self::Reports,
        Self::Events,
        Self::Repeated,
        Self::UnknownKinds,
        Self::UnknownFields,
    ];

    /// Returns the label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Shed => "shed",
            Self::Handshake => "handshake",
            Self::NotAStream => "not_a_stream",
            Self::Invalid => "invalid",
            Self::Forbidden => "forbidden",
            Self::Busy => "busy",
            Self::Unavailable => "unavailable",
            Self::Foreign => "foreign",
            Self::Unannounced => "unannounced",
            Self::Malformed => "malformed",
            Self::Truncated => "truncated",
            Self::Flood => "flood",
            Self::Replaced => "replaced",
            Self::Idle => "idle",
            Self::Slow => "slow",
            Self::Reports => "reports",
            Self::Events => "events",
            Self::Repeated => "repeated",
            Self::UnknownKinds => "unknown_kinds",
            Self::UnknownFields => "unknown_fields",
        }
    }
}

// === impl StreamEventCounters ===

impl StreamEventCounters {
    pub(super) fn one(&self, count: StreamEvent) {
        self.add(count, 1);
    }

    pub(super) fn add(&self, count: StreamEvent, more: u64) {
        self.0[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn get(&self, count: StreamEvent) -> u64 {
        self.0[count as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_has_its_own_place() {
        for (at, count) in StreamEvent::ALL.into_iter().enumerate() {
            assert_eq!(count as usize, at);
        }
    }
}
