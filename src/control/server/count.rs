//! What the server counts: one number for each thing that can happen to a stream, for whoever shows metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// A thing that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Streams that said `Hello`.
    Opened,
    /// Connections above the bound.
    Shed,
    /// Handshakes that failed or took too long.
    Handshake,
    /// Requests that are no stream.
    NotAStream,
    /// Tokens that are none.
    Invalid,
    /// Tokens of pods that may not.
    Forbidden,
    /// Tokens that had to wait for their review.
    Busy,
    /// Tokens that could not be reviewed.
    Unavailable,
    /// Streams that claimed to be another pod than their token's.
    Foreign,
    /// Streams whose first message was not `Hello`, or that said it twice.
    Unannounced,
    /// Frames that were no messages, or no frames.
    Malformed,
    /// Streams that ended within a frame.
    Truncated,
    /// Streams above their frames or bytes a second.
    Flood,
    /// Streams that another one of the same pod replaced.
    Replaced,
    /// Streams that said nothing for too long.
    Idle,
    /// Streams that read nothing for too long.
    Slow,
    /// Reports taken.
    Reports,
    /// Events taken.
    Events,
    /// Reports and events that had come before.
    Repeated,
    /// Messages of a kind that is not known.
    UnknownKinds,
    /// Fields that are not known.
    UnknownFields,
}

/// How often each happened.
#[derive(Debug, Default)]
pub(super) struct Counts([AtomicU64; Count::ALL.len()]);

// === impl Count ===

impl Count {
    /// Every thing.
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

    /// As a label.
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

// === impl Counts ===

impl Counts {
    pub(super) fn one(&self, count: Count) {
        self.add(count, 1);
    }

    pub(super) fn add(&self, count: Count, more: u64) {
        self.0[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn get(&self, count: Count) -> u64 {
        self.0[count as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_has_its_own_place() {
        for (at, count) in Count::ALL.into_iter().enumerate() {
            assert_eq!(count as usize, at);
        }
    }
}
