//! The drain state machine, pure: from serving to the end of the process, and back if only the
//! application was restarted.
//!
//! ```text
//!             hook of the application               own hook, SIGTERM
//! Serving ────────────────────────────▶ Flushing ────────────────────▶ Draining
//!    ▲                                     │
//!    └────── application returned ─────────┘
//! ```
//! Flushing and draining have the same effects: no call is held in a queue any longer; after
//! `delay` the process is not ready and clients are signalled to disconnect; and the drain is over
//! when no connection is left, or at `limit`. Only a flush can be cancelled.
//!
//! The hooks are the `preStop` hooks of the containers. If the pod terminates, those of the
//! application and of the sidecar run at the same moment. The application's hook alone means that
//! its container is being restarted: the process serves as before once the application has returned
//! or, if it was never seen to stop, some time after it must have stopped.

use std::time::Duration;

use crate::batching::Tick;

/// Time after the limit at which an application that was never seen to stop is assumed to continue.
/// The pod's termination grace period, which is 5 s longer than the limit, has elapsed by then,
/// plus 5 s of margin.
const RESTART_MARGIN: Duration = Duration::from_secs(10);
/// Interval between two probes of the application, once it may have stopped. A restart of a
/// container takes longer.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Durations of a drain.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrainTimes {
    /// Time until the process becomes unready and clients are signalled to disconnect.
    pub(super) delay: Duration,
    /// Time until the drain is over even if connections are left.
    pub(super) limit: Duration,
}

/// The drain state machine.
#[derive(Debug, Clone)]
pub(super) struct DrainState {
    times: DrainTimes,
    stage: DrainStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DrainStage {
    Serving,
    /// The application is about to be stopped.
    Flushing {
        since: Tick,
        /// [`DrainInputs::returns`] at the start of the flush. A higher number ends it.
        returns: u64,
        /// `true` once the drain was over at one instant, so that the hook was answered.
        over: bool,
    },
    /// The process is about to be stopped.
    Draining {
        /// Start of the drain, or of the flush before it.
        since: Tick,
    },
}

/// Inputs that are observed from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DrainInputs {
    /// Number of downstream connections.
    pub(super) open: usize,
    /// Number of times that the application accepted connections again after it had refused them.
    pub(super) returns: u64,
}

/// Outputs of the state machine at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DrainOutputs {
    /// No call is held in a queue any longer.
    pub(super) flushed: bool,
    /// The process is not ready, and clients are signalled to disconnect.
    pub(super) leaving: bool,
    /// `Some` if the drain is over and its hooks may be answered, with `true` if no connection is
    /// left, so that all calls were answered. `None` while it is not over.
    pub(super) over: Option<bool>,
    /// The application may have stopped: probe whether it accepts connections.
    pub(super) probe: bool,
    /// Name of the stage, for logs and the admin port.
    pub(super) stage: &'static str,
    /// Instant of the next change, if no event happens before.
    pub(super) until: Option<Tick>,
}

// === impl DrainState ===

impl DrainState {
    pub(super) const fn new(times: DrainTimes) -> Self {
        Self { times, stage: DrainStage::Serving }
    }

    /// Handles a flush: the application is about to be stopped. A repetition has no effect.
    pub(super) fn on_flush(&mut self, now: Tick, inputs: DrainInputs) {
        if self.stage == DrainStage::Serving {
            self.stage = DrainStage::Flushing { since: now, returns: inputs.returns, over: false };
        }
    }

    /// Handles a drain: the process is about to be stopped. Returns the instant from which its
    /// times count, which is that of the first flush or drain.
    pub(super) fn on_drain(&mut self, now: Tick) -> Tick {
        let since = match self.stage {
            DrainStage::Serving => now,
            DrainStage::Flushing { since, .. } | DrainStage::Draining { since } => since,
        };
        self.stage = DrainStage::Draining { since };
        since
    }

    /// Returns the outputs at an instant. A flush ends here by itself: once the application has
    /// returned, or some time after the limit if it was never seen to stop.
    pub(super) fn poll(&mut self, now: Tick, inputs: DrainInputs) -> DrainOutputs {
        let DrainTimes { delay, limit } = self.times;
        if let DrainStage::Flushing { since, returns, .. } = self.stage
            && (inputs.returns > returns || now >= since.after(limit + RESTART_MARGIN))
        {
            self.stage = DrainStage::Serving;
        }
        let (since, stage) = match self.stage {
            DrainStage::Serving => {
                return DrainOutputs {
                    flushed: false,
                    leaving: false,
                    over: Some(true),
                    probe: false,
                    stage: "serving",
                    until: None,
                };
            }
            DrainStage::Flushing { since, .. } => (since, "flushing"),
            DrainStage::Draining { since } => (since, "draining"),
        };
        let leaving = now >= since.after(delay);
        let is_late = now >= since.after(limit);
        let over = if leaving && inputs.open == 0 { Some(true) } else { is_late.then_some(false) };
        let mut probe = false;
        if let DrainStage::Flushing { over: was_over, .. } = &mut self.stage {
            // Once its hook was answered, the application may stop, even if clients connect again.
            *was_over |= over.is_some();
            probe = *was_over;
        }
        // While flushing, the application is probed, because its restart is seen only as a refused
        // connection and a later accepted one.
        let times = [
            (!leaving).then(|| since.after(delay)),
            (!is_late).then(|| since.after(limit)),
            probe.then(|| now.after(PROBE_INTERVAL).min(since.after(limit + RESTART_MARGIN))),
        ];
        DrainOutputs { flushed: true, leaving, over, probe, stage, until: times.into_iter().flatten().min() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMES: DrainTimes = DrainTimes { delay: Duration::from_secs(5), limit: Duration::from_secs(25) };

    fn at(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1000)
    }

    const fn inputs(open: usize, returns: u64) -> DrainInputs {
        DrainInputs { open, returns }
    }

    #[test]
    fn a_terminating_pod_stays_ready_for_the_delay_and_ends_without_clients() {
        let mut drain = DrainState::new(TIMES);
        assert_eq!(drain.poll(at(0), inputs(3, 0)).over, Some(true), "no hook is pending");
        drain.on_flush(at(10), inputs(3, 0));
        let outputs = drain.poll(at(10), inputs(3, 0));
        assert_eq!((outputs.flushed, outputs.leaving, outputs.over, outputs.until), (true, false, None, Some(at(15))));
        assert_eq!(drain.poll(at(14), inputs(0, 0)).over, None, "clients that were not notified yet still connect");
        assert_eq!(drain.on_drain(at(12)), at(10), "the delay counts from the first request");
        let outputs = drain.poll(at(15), inputs(3, 0));
        assert_eq!((outputs.leaving, outputs.over, outputs.probe, outputs.until), (true, None, false, Some(at(35))));
        assert_eq!(drain.poll(at(16), inputs(0, 0)).over, Some(true));
        let at_limit = drain.poll(at(35), inputs(3, 0));
        assert_eq!((at_limit.over, at_limit.until), (Some(false), None));
        // This was no restart, so that nothing cancels the drain.
        assert!(drain.poll(at(100), inputs(0, 7)).flushed);
    }

    #[test]
    fn a_flush_ends_when_the_application_returns() {
        let mut drain = DrainState::new(TIMES);
        drain.on_flush(at(0), inputs(1, 4));
        drain.on_flush(at(3), inputs(1, 4));
        assert!(!drain.poll(at(4), inputs(1, 4)).probe);
        let over = drain.poll(at(6), inputs(0, 4));
        assert_eq!((over.over, over.probe, over.until), (Some(true), true, Some(at(6).after(PROBE_INTERVAL))));
        // A client that connects now does not revoke the answer to the hook.
        assert!(drain.poll(at(7), inputs(1, 4)).probe);
        let back = drain.poll(at(20), inputs(0, 5));
        assert_eq!((back.flushed, back.leaving, back.stage), (false, false, "serving"));
        drain.on_flush(at(40), inputs(0, 5));
        assert!(!drain.poll(at(40), inputs(0, 5)).leaving, "the next drain has its own delay");
    }

    #[test]
    fn a_flush_without_a_restart_ends_after_the_grace_period() {
        let mut drain = DrainState::new(TIMES);
        drain.on_flush(at(0), inputs(0, 0));
        let outputs = drain.poll(at(34), inputs(0, 0));
        assert_eq!((outputs.flushed, outputs.until), (true, Some(at(34).after(PROBE_INTERVAL))));
        assert!(!drain.poll(at(35), inputs(0, 0)).flushed);
    }

    #[derive(Debug, Clone, Copy)]
    enum Event {
        Flush,
        Drain,
        Return,
        Open(usize),
        Wait(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Flush),
            Just(Event::Drain),
            Just(Event::Return),
            (0..3_usize).prop_map(Event::Open),
            (0..20_000_u64).prop_map(Event::Wait),
        ]
    }

    proptest! {
        #[test]
        fn a_drain_is_permanent_and_neither_leaves_nor_ends_early(events in prop::collection::vec(event(), 0..40)) {
            let mut drain = DrainState::new(TIMES);
            let (mut now, mut here) = (Tick(0), inputs(0, 0));
            let (mut flushed_since, mut drained): (Option<Tick>, bool) = (None, false);
            for event in events {
                match event {
                    Event::Flush => drain.on_flush(now, here),
                    Event::Drain => { drain.on_drain(now); drained = true; }
                    Event::Return => here.returns += 1,
                    Event::Open(open) => here.open = open,
                    Event::Wait(ms) => now = now.after(Duration::from_millis(ms)),
                }
                let found = drain.poll(now, here);
                prop_assert!(!drained || found.flushed);
                if !found.flushed {
                    flushed_since = None;
                    continue;
                }
                let since = *flushed_since.get_or_insert(now);
                prop_assert!(!found.leaving || now.since(since) >= TIMES.delay || drained);
                prop_assert!(found.over != Some(true) || found.leaving && here.open == 0);
                prop_assert!(found.until.is_none_or(|until| until > now));
                prop_assert!(!found.probe || !drained);
            }
        }
    }
}
