//! The debug header `x-groupage-debug: 1`: the response reports the handling of the call in
//! `Server-Timing`.
//!
//! ```text
//! server-timing: queue;dur=0.412, upstream;dur=12.300, groupage;desc="way=merged batch=5e0c71f3
//!   items=17 held=limit cause=idle mode=limited limit=4 predicted=11.900ms"
//! server-timing: queue;dur=0.021, upstream;dur=9.841, groupage;desc="way=forwarded batch=91b2d04a
//!   items=1 cause=idle mode=open why=learning reason=item_form"
//! ```
//! `way` is how the call was executed, `held` the reason for which it waited, and `mode` the state
//! of its concurrency limiter at dispatch. The header is addressed to this proxy and removed from
//! every request, also from one that passes through. A `Server-Timing` field of the upstream is
//! kept in front of it. A call without the header costs one lookup in its head.
//!
//! The other calls of the batch are not disclosed, except for the number of its items.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::batching::{BatchId, FlowMode, Tick};
use crate::protocol::headers::DEBUG;
use crate::scheduler::ExecutionDetails;

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Details of a call for the `Server-Timing` header.
#[derive(Debug, Default)]
pub(super) struct ServerTiming {
    pub(super) execution: ExecutionDetails,
    /// The reason for which the call was not merged, or the reason of its failure.
    pub(super) reason: Option<&'static str>,
    /// The call was forwarded unmodified as soon as its head was read.
    pub(super) forwarded: bool,
}

/// Removes the debug header from a request and returns `true` if it requests the details.
pub(super) fn take_debug_header(headers: &mut HeaderMap) -> bool {
    headers.remove(DEBUG).is_some_and(|value| value == "1")
}

// === impl ServerTiming ===

impl ServerTiming {
    /// Appends the header after any field of the upstream. `began` is the instant at which the
    /// call's head was read.
    pub(super) fn write(&self, began: Tick, now: Tick, headers: &mut HeaderMap) {
        // The text consists of the proxy's own ASCII words and numbers, so it is a valid value.
        if let Ok(value) = HeaderValue::from_str(&self.text(began, now)) {
            headers.append(SERVER_TIMING, value);
        }
    }

    /// Returns how the call was executed, or `None` if it was not sent.
    fn execution_kind(&self) -> Option<&'static str> {
        match self.execution.sent {
            Some(_) if self.execution.calls > 1 => Some("merged"),
            Some(_) => Some("forwarded"),
            None => self.forwarded.then_some("forwarded"),
        }
    }

    fn text(&self, began: Tick, now: Tick) -> String {
        let ExecutionDetails { batch, batch_items, cause, queue_delay, held, mode, predicted, sent, .. } =
            self.execution;
        let mut text = String::new();
        if batch.is_some() || !queue_delay.is_zero() {
            text = format!("queue;dur={}, ", millis(queue_delay));
        }
        if let Some(sent) = sent.or(self.forwarded.then_some(began)) {
            // Writing to a string cannot fail.
            write!(text, "upstream;dur={}, ", millis(now.since(sent))).ok();
        }
        let mut words: Vec<String> = self.execution_kind().map(|way| format!("way={way}")).into_iter().collect();
        if let Some(batch) = batch {
            words.push(format!("batch={:08x} items={batch_items}", batch_label(batch)));
        }
        words.extend(held.map(|held| format!("held={}", held.as_str())));
        words.extend(cause.map(|cause| format!("cause={}", cause.as_str())));
        words.extend(mode.map(|mode| match mode {
            FlowMode::Open(open_reason) => format!("mode=open why={}", open_reason.as_str()),
            FlowMode::Limited(limit) => format!("mode=limited limit={limit}"),
        }));
        words.extend(predicted.map(|predicted| format!("predicted={}ms", millis(predicted))));
        words.extend(self.reason.map(|reason| format!("reason={reason}")));
        write!(text, "groupage;desc=\"{}\"", words.join(" ")).ok();
        text
    }
}

/// Returns a label that the members of a batch share. It is a hash with a key drawn per process and
/// not a counter, because the growth of a counter would disclose the call rate of other clients.
fn batch_label(batch: BatchId) -> u32 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let [.., a, b, c, d] = KEYS.hash_one(batch.0).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// Formats a duration in milliseconds with three decimal places.
fn millis(duration: Duration) -> String {
    format!("{}.{:03}", duration.as_millis(), duration.subsec_micros() % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batching::{DispatchCause, OpenReason};
    use crate::telemetry::names::WaitReason;

    const BEGAN: Tick = Tick::from_millis(10);
    const NOW: Tick = Tick::from_millis(30);

    fn execution() -> ExecutionDetails {
        ExecutionDetails {
            batch: Some(BatchId(123)),
            batch_items: 17,
            calls: 12,
            is_divided: false,
            held: Some(WaitReason::Limit),
            mode: Some(FlowMode::Limited(4)),
            cause: Some(DispatchCause::Idle),
            queue_delay: Duration::from_micros(5412),
            unbatched_reason: None,
            own_connection: false,
            predicted: Some(Duration::from_micros(11_900)),
            sent: Some(Tick::from_millis(18)),
            answered: None,
        }
    }

    #[test]
    fn server_timing_of_a_batch_member() {
        let timing = ServerTiming { execution: execution(), ..ServerTiming::default() };
        let label = format!("{:08x}", batch_label(BatchId(123)));
        assert_ne!(batch_label(BatchId(124)), batch_label(BatchId(123)).wrapping_add(1), "it is not a counter");
        let expected = format!(
            "queue;dur=5.412, upstream;dur=12.000, groupage;desc=\"way=merged batch={label} items=17 held=limit \
             cause=idle mode=limited limit=4 predicted=11.900ms\""
        );
        assert_eq!(timing.text(BEGAN, NOW), expected);
        let mode = Some(FlowMode::Open(OpenReason::Learning));
        let execution = ExecutionDetails { predicted: None, calls: 1, held: None, mode, ..execution() };
        let timing = ServerTiming { execution, reason: Some("item_form"), forwarded: false };
        let expected =
            format!("desc=\"way=forwarded batch={label} items=17 cause=idle mode=open why=learning reason=item_form\"");
        assert!(timing.text(BEGAN, NOW).ends_with(&expected), "{}", timing.text(BEGAN, NOW));
    }

    #[test]
    fn server_timing_without_execution_names_the_reason() {
        let timing = ServerTiming { reason: Some("not_recognised"), forwarded: true, ..ServerTiming::default() };
        assert_eq!(
            timing.text(BEGAN, NOW),
            "upstream;dur=20.000, groupage;desc=\"way=forwarded reason=not_recognised\""
        );
        let execution = ExecutionDetails { queue_delay: Duration::from_millis(7), ..ExecutionDetails::default() };
        let timing = ServerTiming { execution, reason: Some("deadline"), forwarded: false };
        assert_eq!(timing.text(BEGAN, NOW), "queue;dur=7.000, groupage;desc=\"reason=deadline\"");
        let timing = ServerTiming { reason: Some("queue_full"), ..ServerTiming::default() };
        assert_eq!(timing.text(BEGAN, NOW), "groupage;desc=\"reason=queue_full\"");
    }

    #[test]
    fn the_debug_header_is_removed_and_the_upstream_server_timing_is_kept() {
        let mut headers = HeaderMap::new();
        assert!(!take_debug_header(&mut headers));
        headers.append(DEBUG, HeaderValue::from_static("1"));
        assert!(take_debug_header(&mut headers) && headers.is_empty());
        headers.append(DEBUG, HeaderValue::from_static("0"));
        assert!(!take_debug_header(&mut headers) && headers.is_empty());
        headers.append(SERVER_TIMING, HeaderValue::from_static("model;dur=3"));
        ServerTiming::default().write(BEGAN, NOW, &mut headers);
        assert_eq!(headers.get_all(SERVER_TIMING).iter().count(), 2);
        assert_eq!(headers.get(SERVER_TIMING).unwrap(), "model;dur=3");
    }
}
