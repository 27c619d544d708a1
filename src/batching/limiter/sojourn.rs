//! Recent sojourn times of mergeable calls, here and upstream, with which a trial of another limit
//! is compared.

use std::collections::VecDeque;

use super::super::math::to_f64;
use super::super::tick::Tick;

/// Maximum number of executions kept.
const KEPT: usize = 1024;
/// Minimum share of the items sent at a steady number in flight, and the part of the highest number
/// from which it is steady: a closed loop, or a limit that binds. With fluctuating arrivals,
/// sojourn times compare loads instead of limits.
const STEADY_SHARE: f64 = 0.85;
const STEADY_PART: f64 = 0.8;

/// Executions that were answered since the last change of state.
#[derive(Debug, Clone, Default)]
pub(super) struct Sojourns {
    ring: VecDeque<Sojourn>,
}

/// An execution that was answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sojourn {
    /// Arrival of its first call.
    pub(super) arrived: Tick,
    /// Mean time of its calls from arrival to answer, in nanoseconds.
    pub(super) mean: f64,
    /// Items queued and in flight when it was answered, its own included.
    pub(super) items_present: u64,
    pub(super) items: u32,
    /// Executions in flight at its dispatch, itself included.
    pub(super) in_flight: u32,
}

/// Mean values with which a trial is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SojournBase {
    /// Mean sojourn time, in nanoseconds.
    pub(super) mean: f64,
    /// Mean number of items queued and in flight.
    pub(super) items_present: f64,
}

// === impl Sojourns ===

impl Sojourns {
    pub(super) fn clear(&mut self) {
        self.ring.clear();
    }

    pub(super) fn push(&mut self, sojourn: Sojourn) {
        if self.ring.len() >= KEPT {
            self.ring.pop_front();
        }
        self.ring.push_back(sojourn);
    }

    /// Returns the mean sojourn time of the last `need` items, if `span` items that arrived since
    /// `since` were answered and the number in flight was steady.
    pub(super) fn steady_mean(&self, since: Tick, span: u64, need: u64) -> Option<SojournBase> {
        let recent = || self.ring.iter().rev().take_while(|sojourn| sojourn.arrived >= since);
        let (mut items, mut sum, mut present, mut counted, mut top) = (0, 0.0, 0.0, 0, 0);
        let mut entries = 0;
        for sojourn in recent() {
            if items >= span {
                break;
            }
            items += u64::from(sojourn.items);
            top = top.max(sojourn.in_flight);
            entries += 1;
            if counted < need {
                counted += u64::from(sojourn.items);
                sum += sojourn.mean * f64::from(sojourn.items);
                present += to_f64(sojourn.items_present) * f64::from(sojourn.items);
            }
        }
        if items < span || counted == 0 {
            return None;
        }
        let high = |sojourn: &&Sojourn| f64::from(sojourn.in_flight) >= STEADY_PART * f64::from(top);
        let at_top: u64 = recent().take(entries).filter(high).map(|sojourn| u64::from(sojourn.items)).sum();
        (to_f64(at_top) >= STEADY_SHARE * to_f64(items))
            .then(|| SojournBase { mean: sum / to_f64(counted), items_present: present / to_f64(counted) })
    }
}
