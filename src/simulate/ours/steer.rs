//! Slow loops around the core, as a controller would run them: one that the design asks for, and one that it warns of (`scheduling.md` §5.5).

use std::time::Duration;

use crate::batching::{Call, DeadlineShift, DeadlineSource, Tick};

use super::Ours;

/// How often the cap moves.
const PERIOD: Duration = Duration::from_secs(1);
/// Above this part of the SLO the cap falls to this part of itself; below that part it rises by one (`sim/run_extra.py`).
const LATE: f64 = 0.98;
const EARLY: f64 = 0.8;
const DOWN: f64 = 0.8;

/// What steers.
#[derive(Debug)]
pub(super) enum Steering {
    /// The batch cap, by the end-to-end p99: what nobody should do.
    Cap { most: u32, latencies: Vec<Duration>, next: Tick },
    /// Deadlines, by latency that is this much longer for callers than it is seen here.
    Shift { outside: Duration, shift: DeadlineShift },
}

// === impl Ours ===

impl Ours {
    /// The same under a controller that cuts the batch cap while the p99 is late.
    #[must_use]
    pub fn with_cap_by_p99(mut self) -> Self {
        let most = self.core.batcher.limits().scopes.iter().map(|scope| scope.batch_items_max).max().unwrap_or(1);
        self.steering = Some(Steering::Cap { most, latencies: Vec::new(), next: Tick::default().after(PERIOD) });
        self
    }

    /// The same where callers wait this much longer than is seen here, with deadlines shifted for it.
    #[must_use]
    pub fn with_deadline_shift(mut self, slo: Duration, outside: Duration) -> Self {
        self.steering = Some(Steering::Shift { outside, shift: DeadlineShift::new(slo) });
        self
    }

    /// How much earlier deadlines count by now.
    #[must_use]
    pub fn deadline_shift(&self) -> Duration {
        match &self.steering {
            Some(Steering::Shift { shift, .. }) => shift.shift(),
            _ => Duration::ZERO,
        }
    }

    /// A call comes: its deadline as the core is told it.
    pub(super) fn steered(&self, mut call: Call) -> Call {
        if let Some(Steering::Shift { shift, .. }) = &self.steering
            && let Some(deadline) = call.deadline.as_mut().filter(|deadline| deadline.source == DeadlineSource::Slo)
        {
            deadline.at = deadline.at.before(shift.shift());
        }
        call
    }

    /// These calls were answered after so long.
    pub(super) fn steer(&mut self, now: Tick, slo: Duration, answered: impl Iterator<Item = Duration>) {
        match &mut self.steering {
            None => {}
            Some(Steering::Shift { outside, shift }) => {
                for latency in answered {
                    shift.observe(now, latency + *outside, None);
                }
            }
            Some(Steering::Cap { most, latencies, next }) => {
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
                    scope.batch_items_max = if p99 > slo.mul_f64(LATE) {
                        crate::simulate::draw::whole(f64::from(cap) * DOWN).max(1)
                    } else if p99 < slo.mul_f64(EARLY) {
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
