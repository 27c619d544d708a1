//! Sizes and times of a call, which its response reports in the headers of TEI.

use std::time::Duration;

use bytes::Bytes;
use groupage_batching::Tick;
use groupage_runtime::memory::BufferGuard;
use http::{HeaderMap, HeaderValue};

/// Sizes and times of a call that was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallMeasures {
    /// Code points of its texts.
    pub(super) characters: usize,
    /// Tokens of its sequences.
    pub(super) tokens: usize,
    /// Instant at which its preparation began.
    pub(super) received: Tick,
    /// Time of parsing and tokenising.
    pub(super) tokenization: Duration,
    /// Time from then to its execution.
    pub(super) queue: Duration,
    /// Time of the execution that it took part in.
    pub(super) inference: Duration,
}

#[derive(Debug)]
pub(super) struct CallResponse {
    pub(super) body: Bytes,
    /// `None` for a call that executes nothing.
    pub(super) measures: Option<CallMeasures>,
    /// The charge of the body, or of more; `None` for a view.
    pub(super) reserved: Option<BufferGuard>,
}

// === impl CallMeasures ===

impl CallMeasures {
    /// Adds the headers of TEI to those of a response that ends at `now`. Times are in whole
    /// milliseconds, rounded down as there. `device` is the value of `x-compute-type`.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap, now: Tick, device: Option<HeaderValue>) {
        let Self { characters, tokens, received, tokenization, queue, inference } = *self;
        let total = now.since(received);
        if let Some(device) = device {
            headers.insert("x-compute-type", device);
        }
        for (name, size) in [("x-compute-characters", characters), ("x-compute-tokens", tokens)] {
            headers.insert(name, HeaderValue::from(size));
        }
        for (name, time) in [
            ("x-compute-time", total),
            ("x-total-time", total),
            ("x-tokenization-time", tokenization),
            ("x-queue-time", queue),
            ("x-inference-time", inference),
        ] {
            headers.insert(name, HeaderValue::from(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
        }
    }
}

// === impl CallResponse ===

impl From<Bytes> for CallResponse {
    fn from(body: Bytes) -> Self {
        Self { body, measures: None, reserved: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_milliseconds() {
        let measures = CallMeasures {
            characters: 11,
            tokens: 4,
            received: Tick::from_millis(1000),
            tokenization: Duration::from_micros(1999),
            queue: Duration::from_millis(7),
            inference: Duration::from_micros(999),
        };
        let mut headers = HeaderMap::new();
        measures.add_headers(&mut headers, Tick::from_millis(1020), Some(HeaderValue::from_static("cpu")));
        let mut found: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        found.sort_unstable();
        assert_eq!(
            found,
            [
                ("x-compute-characters", "11"),
                ("x-compute-time", "20"),
                ("x-compute-tokens", "4"),
                ("x-compute-type", "cpu"),
                ("x-inference-time", "0"),
                ("x-queue-time", "7"),
                ("x-tokenization-time", "1"),
                ("x-total-time", "20"),
            ]
        );
    }
}
