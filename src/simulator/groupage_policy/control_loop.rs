//! Slow control loops around the core, as a controller would run them: the deadline shift, and a
//! cap driven by the end-to-end p99, which serves as a counterexample.

use std::time::Duration;

use crate::batching::{Call, DeadlineShift, DeadlineSource, Tick};

use super::GroupagePolicy;

/// Interval between two changes of the cap.
const PERIOD: Duration = Duration::from_secs(1);
/// Constants of the cap loop: above `CAP_DOWN_ABOVE` of the SLO the cap is multiplied by `DOWN`,
/// and below `CAP_UP_BELOW` of the SLO it rises by one.
const CAP_DOWN_ABOVE: f64 = 0.98;
const CAP_UP_BELOW: f64 = 0.8;
const DOWN: f64 = 0.8;

/// A control loop.
#[derive(Debug)]
pub(super) enum ControlLoop {
    /// Moves the batch cap by the end-to-end p99. This is a counterexample and not recommended.
    Cap { most: u32, latencies: Vec<Duration>, next: Tick },
    /// Shifts deadlines. Clients observe a latency that is longer by `outside` than the one
    /// measured here.
    Shift { outside: Duration, shift: DeadlineShift },
}

// === impl GroupagePolicy ===

impl GroupagePolicy {
    /// Adds a controller that reduces the batch cap while the p99 is late.
    #[must_use]
    pub fn with_cap_by_p99(mut self) -> Self {
        let most = self.core.batcher.limits().scopes.iter().map(|scope| scope.batch_items_max).max().unwrap_or(1);
        self.control_loop = Some(ControlLoop::Cap { most, latencies: Vec::new(), next: Tick::default().after(PERIOD) });
        self
    }

    /// Adds a deadline shift, for clients that observe a latency longer by `outside` than the one
    /// measured here.
    #[must_use]
    pub fn with_deadline_shift(mut self, slo: Duration, outside: Duration) -> Self {
        self.control_loop = Some(ControlLoop::Shift { outside, shift: DeadlineShift::new(slo) });
        self
    }

    /// Returns the time by which deadlines are moved forward.
    #[must_use]
    pub fn deadline_shift(&self) -> Duration {
        match &self.control_loop {
            Some(ControlLoop::Shift { shift, .. }) => shift.shift(),
            _ => Duration::ZERO,
        }
    }

    /// Returns a call on arrival with the deadline that is offered to the core.
    pub(super) fn shift_deadline(&self, mut call: Call) -> Call {
        if let Some(ControlLoop::Shift { shift, .. }) = &self.control_loop
            && let Some(deadline) = call.deadline.as_mut().filter(|deadline| deadline.source == DeadlineSource::Slo)
        {
            deadline.at = deadline.at.before(shift.shift());
        }
        call
    }

    /// Feeds the latencies of answered calls to the control loop.
    pub(super) fn observe_latencies(&mut self, now: Tick, slo: Duration, answered: impl Iterator<Item = Duration>) {
        match &mut self.control_loop {
            None => {}
            Some(ControlLoop::Shift { outside, shift }) => {
                for latency in answered {
                    shift.observe(now, latency + *outside, None);
                }
            }
            Some(ControlLoop::Cap { most, latencies, next }) => {
                latencies.extend(answered);
                if now < *next {
                    return;
                }
                *next = now.after(PERIOD);
                latencies.sort_unstable();
                let Some(p99) = latencies.get(latencies.len() * 99 / 100).copied() else { return };
                latencies.clear();
                let mut limits = self.core.batcher.limits().clone();
                for scope in &mut limits.scopes {
                    let cap = scope.batch_items_max;
                    scope.batch_items_max = if p99 > slo.mul_f64(CAP_DOWN_ABOVE) {
                        crate::random::saturating_u32(f64::from(cap) * DOWN).max(1)
                    } else if p99 < slo.mul_f64(CAP_UP_BELOW) {
                        (cap + 1).min(*most)
                    } else {
                        cap
                    };
                }
                self.core.set_limits(limits);
            }
        }
    }
}
