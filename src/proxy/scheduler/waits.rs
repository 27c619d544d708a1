//! Reasons for which calls waited before dispatch, for metrics and `Server-Timing`.
//!
//! The reasons are derived from the dispatch cause that the core reports and from the rounds of
//! decisions that a call spent in the queue; nothing is decided here.

use strum::VariantArray as _;

use crate::batching::{DispatchCause, Tick};
use crate::telemetry::Metrics;
use crate::telemetry::names::WaitReason;

/// A count of decision rounds. A round is the sequence of polls until the core returns no decision.
///
/// A call waits only if it is queued at the end of a round: the time of the round itself is that of
/// the scheduler task, which is no wait, however long the task takes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DecisionRounds {
    /// Number of rounds that have ended.
    ended: u64,
    /// Number of the last round that ended with executions in flight. Rounds are numbered from 1.
    last_busy: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct QueueArrival {
    pub(super) at: Tick,
    /// Number of rounds that had ended before.
    rounds: u64,
}

/// The reason for which the members of one batch waited.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitReasons {
    cause: DispatchCause,
    /// End of the last pause of their merge key.
    paused_until: Option<Tick>,
    rounds: DecisionRounds,
}

// === impl DecisionRounds ===

impl DecisionRounds {
    /// Counts a round. `is_busy` is `true` if executions are in flight at its end.
    pub(super) const fn on_end(&mut self, is_busy: bool) {
        self.ended += 1;
        if is_busy {
            self.last_busy = self.ended;
        }
    }

    /// Returns the arrival of a call that is queued in the current round.
    pub(super) const fn arrival(&self, at: Tick) -> QueueArrival {
        QueueArrival { at, rounds: self.ended }
    }
}

// === impl WaitReasons ===

impl WaitReasons {
    pub(super) const fn new(cause: DispatchCause, paused_until: Option<Tick>, rounds: DecisionRounds) -> Self {
        Self { cause, paused_until, rounds }
    }

    /// Returns the reason for which a call waited that is dispatched now. `None` if it was not
    /// queued at the end of any round.
    pub(super) fn reason(&self, arrival: QueueArrival) -> Option<WaitReason> {
        if arrival.rounds == self.rounds.ended {
            return None;
        }
        if self.paused_until.is_some_and(|until| arrival.at < until) {
            return Some(WaitReason::Pause);
        }
        // An execution was in flight while the call was queued.
        let was_busy = arrival.rounds < self.rounds.last_busy;
        Some(match self.cause {
            DispatchCause::Delay | DispatchCause::Deadline => WaitReason::Batching,
            // These causes never delay a call while a slot is free. Without an execution in flight
            // it waited for other calls until the batch was full or the hold was cancelled.
            DispatchCause::Full
            | DispatchCause::Weight
            | DispatchCause::Bytes
            | DispatchCause::Idle
            | DispatchCause::Lead
            | DispatchCause::Probe
            | DispatchCause::Drain => {
                if was_busy {
                    WaitReason::Limit
                } else {
                    WaitReason::Batching
                }
            }
        })
    }

    /// Counts the calls of a batch that is dispatched now.
    pub(super) fn count(&self, metrics: &Metrics, arrivals: impl Iterator<Item = QueueArrival>) {
        let mut held = [0_u64; WaitReason::VARIANTS.len()];
        for reason in arrivals.filter_map(|arrival| self.reason(arrival)) {
            held[reason as usize] += 1;
        }
        for &reason in WaitReason::VARIANTS {
            if held[reason as usize] > 0 {
                metrics.record_held_calls(reason, held[reason as usize]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(ends: &[bool]) -> DecisionRounds {
        let mut rounds = DecisionRounds::default();
        for &is_busy in ends {
            rounds.on_end(is_busy);
        }
        rounds
    }

    #[test]
    fn a_call_dispatched_in_its_first_round_has_no_reason() {
        let rounds = rounds(&[true, false]);
        // The scheduler task itself took long, as it does for the first call of a process.
        let arrival = rounds.arrival(Tick::from_millis(40));
        let paused_until = Some(Tick::from_millis(90));
        assert_eq!(WaitReasons::new(DispatchCause::Idle, None, rounds).reason(arrival), None);
        assert_eq!(WaitReasons::new(DispatchCause::Idle, paused_until, rounds).reason(arrival), None);
    }

    #[test]
    fn the_reason_follows_from_cause_pause_and_rounds() {
        let before = rounds(&[true]);
        let arrival = before.arrival(Tick::from_millis(40));
        let reason = |cause, pause, is_busy| {
            let mut rounds = before;
            rounds.on_end(is_busy);
            rounds.on_end(false);
            WaitReasons::new(cause, pause, rounds).reason(arrival)
        };
        assert_eq!(reason(DispatchCause::Idle, None, true), Some(WaitReason::Limit));
        assert_eq!(reason(DispatchCause::Full, None, true), Some(WaitReason::Limit));
        assert_eq!(reason(DispatchCause::Full, None, false), Some(WaitReason::Batching), "the server was idle");
        assert_eq!(reason(DispatchCause::Delay, None, true), Some(WaitReason::Batching));
        let pause = |millis| Some(Tick::from_millis(millis));
        assert_eq!(reason(DispatchCause::Idle, pause(90), true), Some(WaitReason::Pause));
        assert_eq!(reason(DispatchCause::Idle, pause(30), true), Some(WaitReason::Limit), "it was over");
    }

    #[test]
    fn calls_are_counted_by_reason() {
        let metrics = Metrics::new("local");
        let before = rounds(&[true]);
        let waited = [5, 8, 12].map(|millis| before.arrival(Tick::from_millis(millis)));
        let mut rounds = before;
        rounds.on_end(true);
        let waits = WaitReasons::new(DispatchCause::Idle, Some(Tick::from_millis(10)), rounds);
        let at_once = rounds.arrival(Tick::from_millis(20));
        waits.count(&metrics, waited.into_iter().chain([at_once]));
        let text = metrics.render();
        for line in ["{reason=\"pause\"} 2", "{reason=\"limit\"} 1", "{reason=\"batch\"} 0"] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
