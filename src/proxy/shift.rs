//! By how much SLOs count earlier, found from what callers of each saw here: the way of an answer from its batch to its caller's connection is not seen by
//! the core, and grows where the process is short of time.
//!
//! It keeps one [`DeadlineShift`] for each SLO. It leaves out what happens beyond this process, which nobody here can see.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::batching::{DeadlineShift, Tick};

/// SLOs that have a shift: more than a policy commonly names, and 8 KB each. Further ones are not shifted.
const SLOS_MAX: usize = 16;

/// The shifts, by SLO.
#[derive(Debug, Default)]
pub(super) struct Shifts(Mutex<BTreeMap<Duration, DeadlineShift>>);

// === impl Shifts ===

impl Shifts {
    /// By how much a deadline of this SLO comes earlier.
    pub(super) fn of(&self, slo: Duration) -> Duration {
        self.with(|shifts| shifts.get(&slo).map(DeadlineShift::shift).unwrap_or_default())
    }

    /// A call with this SLO was answered, `unseen` of it after its batch was. The largest shift, if it may have changed.
    pub(super) fn answered(&self, now: Tick, slo: Duration, latency: Duration, unseen: Duration) -> Option<Duration> {
        self.with(|shifts| {
            if !shifts.contains_key(&slo) && shifts.len() >= SLOS_MAX {
                return None;
            }
            let moved =
                shifts.entry(slo).or_insert_with(|| DeadlineShift::new(slo)).observe(now, latency, Some(unseen));
            if moved { shifts.values().map(DeadlineShift::shift).max() } else { None }
        })
    }

    /// Other SLOs are in force: those that stay keep what was found.
    pub(super) fn keep(&self, slos: &[Duration]) {
        self.with(|shifts| shifts.retain(|slo, _| slos.contains(slo)));
    }

    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<Duration, DeadlineShift>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slo_has_a_shift_of_its_own_and_keeps_it_while_it_is_in_force() {
        let (shifts, ms) = (Shifts::default(), Duration::from_millis);
        let mut largest = None;
        for at in 0..6000_u64 {
            let now = Tick::from_millis(at);
            largest = shifts.answered(now, ms(50), ms(60), ms(4)).or(largest);
            shifts.answered(now, ms(100), ms(60), ms(4));
        }
        let found = shifts.of(ms(50));
        assert!((3_900..=4_100).contains(&found.as_micros()), "{found:?}");
        assert_eq!((shifts.of(ms(100)), shifts.of(ms(7)), largest), (Duration::ZERO, Duration::ZERO, Some(found)));
        shifts.keep(&[ms(50)]);
        assert_eq!(shifts.of(ms(50)), found);
        shifts.keep(&[ms(100)]);
        assert_eq!(shifts.of(ms(50)), Duration::ZERO);
    }

    #[test]
    fn slos_beyond_the_bound_are_not_shifted() {
        let (shifts, ms) = (Shifts::default(), Duration::from_millis);
        for at in 0..3000_u64 {
            for slo in 10..30 {
                shifts.answered(Tick::from_millis(at), ms(slo), ms(60), ms(2));
            }
        }
        let shifted = (10..30).filter(|slo| !shifts.of(ms(*slo)).is_zero()).count();
        assert_eq!(shifted, SLOS_MAX);
    }
}
