//! Reasons for which calls waited before dispatch, for metrics and `Server-Timing`.
//!
//! The reasons are derived from the dispatch cause that the core reports; nothing is decided here.

use std::time::Duration;

use strum::VariantArray as _;

use crate::batching::{DispatchCause, Tick};
use crate::telemetry::Metrics;
use crate::telemetry::names::HoldReason;

/// Minimum wait that counts as held. The scheduler task itself takes some tens of microseconds
/// under load.
const HELD_MIN: Duration = Duration::from_micros(100);

/// The reason for which the members of one batch waited.
#[derive(Debug, Clone, Copy)]
pub(super) struct HoldReasons {
    cause: DispatchCause,
    /// End of the last pause of their merge key.
    paused_until: Option<Tick>,
}

// === impl HoldReasons ===

impl HoldReasons {
    pub(super) const fn new(cause: DispatchCause, paused_until: Option<Tick>) -> Self {
        Self { cause, paused_until }
    }

    /// Returns the reason for which a call waited that arrived at `arrived` and is dispatched now.
    pub(super) fn reason(&self, now: Tick, arrived: Tick) -> Option<HoldReason> {
        if now.since(arrived) < HELD_MIN {
            return None;
        }
        if self.paused_until.is_some_and(|until| arrived < until) {
            return Some(HoldReason::Pause);
        }
        Some(match self.cause {
            DispatchCause::Delay | DispatchCause::Deadline => HoldReason::Batching,
            // The remaining causes never delay a call while a slot is free.
            DispatchCause::Full
            | DispatchCause::Weight
            | DispatchCause::Bytes
            | DispatchCause::Idle
            | DispatchCause::Lead
            | DispatchCause::Probe
            | DispatchCause::Drain => HoldReason::Limit,
        })
    }

    /// Counts the calls of a batch that is dispatched now.
    pub(super) fn count(&self, metrics: &Metrics, now: Tick, arrived: impl Iterator<Item = Tick>) {
        let mut held = [0_u64; HoldReason::VARIANTS.len()];
        for reason in arrived.filter_map(|arrived| self.reason(now, arrived)) {
            held[reason as usize] += 1;
        }
        for &reason in HoldReason::VARIANTS {
            if held[reason as usize] > 0 {
                metrics.record_held_calls(reason, held[reason as usize]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_follows_from_cause_pause_and_wait() {
        let (now, long) = (Tick::from_millis(100), Tick::from_millis(40));
        let just = Tick(now.0 - 50_000);
        let reason = |cause, pause, arrived| HoldReasons::new(cause, pause).reason(now, arrived);
        assert_eq!(reason(DispatchCause::Idle, None, just), None, "it was dispatched at once");
        assert_eq!(reason(DispatchCause::Idle, None, long), Some(HoldReason::Limit));
        assert_eq!(reason(DispatchCause::Delay, None, long), Some(HoldReason::Batching));
        assert_eq!(reason(DispatchCause::Idle, Some(Tick::from_millis(90)), long), Some(HoldReason::Pause));
        assert_eq!(
            reason(DispatchCause::Idle, Some(Tick::from_millis(30)), long),
            Some(HoldReason::Limit),
            "it was over"
        );
    }

    #[test]
    fn calls_are_counted_by_reason() {
        let metrics = Metrics::new("local");
        let holds = HoldReasons::new(DispatchCause::Idle, Some(Tick::from_millis(10)));
        holds.count(&metrics, Tick::from_millis(20), [5, 8, 12, 20].map(Tick::from_millis).into_iter());
        let text = metrics.render();
        for line in ["{reason=\"pause\"} 2", "{reason=\"limit\"} 1", "{reason=\"company\"} 0"] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
