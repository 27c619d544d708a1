//! Shifts of SLO deadlines to an earlier instant, learned from the latency that calls observe after
//! their batch has completed. The batching core cannot measure the path of a response from its
//! batch to the client's connection, which grows when the process lacks CPU time.
//!
//! There is one [`DeadlineShift`] per SLO. Latency outside this process is not included, because it
//! cannot be measured here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::batching::{DeadlineShift, Tick};

/// Maximum number of SLOs with a shift: more than a typical policy contains, at 8 KB each. Further
/// SLOs are not shifted.
const SLOS_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct DeadlineShifts(Mutex<BTreeMap<Duration, DeadlineShift>>);

// === impl DeadlineShifts ===

impl DeadlineShifts {
    /// Returns the amount by which a deadline of this SLO is moved earlier.
    pub(super) fn get(&self, slo: Duration) -> Duration {
        self.with(|shifts| shifts.get(&slo).map(DeadlineShift::shift).unwrap_or_default())
    }

    /// Records a response to a call with this SLO, which completed `unseen` after its batch.
    /// Returns the largest shift if it may have changed.
    pub(super) fn on_response(
        &self,
        now: Tick,
        slo: Duration,
        latency: Duration,
        unseen: Duration,
    ) -> Option<Duration> {
        self.with(|shifts| {
            // A call that began before the settings changed may have an SLO without an entry.
            let moved = shifts.get_mut(&slo)?.observe(now, latency, Some(unseen));
            moved.then(|| largest(shifts))
        })
    }

    /// Sets the SLOs in effect and returns the largest shift. An SLO that was in effect before
    /// keeps its learned shift.
    pub(super) fn set_slos(&self, slos: impl IntoIterator<Item = Duration>) -> Duration {
        self.with(|shifts| {
            let mut before = std::mem::take(shifts);
            let known = |slo: Duration| (slo, before.remove(&slo).unwrap_or_else(|| DeadlineShift::new(slo)));
            *shifts = slos.into_iter().collect::<BTreeSet<_>>().into_iter().take(SLOS_MAX).map(known).collect();
            largest(shifts)
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<Duration, DeadlineShift>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn largest(shifts: &BTreeMap<Duration, DeadlineShift>) -> Duration {
    shifts.values().map(DeadlineShift::shift).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slo_has_a_shift_of_its_own_and_keeps_it_while_it_is_in_force() {
        let (shifts, ms) = (DeadlineShifts::default(), Duration::from_millis);
        let mut largest = None;
        shifts.set_slos([ms(100), ms(50), ms(50)]);
        for at in 0..6000_u64 {
            let now = Tick::from_millis(at);
            largest = shifts.on_response(now, ms(50), ms(60), ms(4)).or(largest);
            shifts.on_response(now, ms(100), ms(60), ms(4));
        }
        let found = shifts.get(ms(50));
        assert!((3_900..=4_100).contains(&found.as_micros()), "{found:?}");
        assert_eq!((shifts.get(ms(100)), shifts.get(ms(7)), largest), (Duration::ZERO, Duration::ZERO, Some(found)));
        assert_eq!((shifts.set_slos([ms(50)]), shifts.get(ms(50))), (found, found));
        assert_eq!((shifts.set_slos([ms(100)]), shifts.get(ms(50))), (Duration::ZERO, Duration::ZERO));
        assert_eq!(shifts.on_response(Tick::from_millis(9000), ms(50), ms(60), ms(4)), None, "no longer in force");
    }

    #[test]
    fn slos_beyond_the_bound_are_not_shifted() {
        let (shifts, ms) = (DeadlineShifts::default(), Duration::from_millis);
        shifts.set_slos((10..30).map(ms));
        for at in 0..3000_u64 {
            for slo in 10..30 {
                shifts.on_response(Tick::from_millis(at), ms(slo), ms(60), ms(2));
            }
        }
        let shifted = (10..30).filter(|slo| !shifts.get(ms(*slo)).is_zero()).count();
        assert_eq!(shifted, SLOS_MAX);
    }
}
