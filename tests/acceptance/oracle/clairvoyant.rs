//! The clairvoyant bound: the maximum number of items that one server can answer in time if every
//! arrival is known in advance.
//!
//! With one SLO for all items and a cost that depends only on the size of a batch, deadlines are in
//! order of arrival. Some optimal schedule therefore serves runs of consecutive items and gives up
//! the items between them. A dynamic program over the items considered and the number given up
//! holds the earliest instant at which the server is free again.
//!
//! The number of states stays small because most of them cannot matter: giving up one more item
//! never makes the server free later, and once it is free before the next arrival, giving up more
//! gains nothing. The remaining states of an item are about as many as the items that the server
//! serves within one SLO.
//!
//! Noise is left out: the bound applies to the mean curve.

/// Returns the share of these sorted arrivals, in ms, that a server which takes `times[n - 1]` ms
/// for n items can answer within `slo_ms`.
///
/// The times must not decrease with size. The caller subtracts the network time from the SLO.
pub(crate) fn clairvoyant(arrivals_ms: &[f64], slo_ms: f64, times: &[f64]) -> f64 {
    debug_assert!(arrivals_ms.is_sorted() && times.is_sorted(), "in order, and no larger batch is quicker");
    if arrivals_ms.is_empty() {
        return 1.0;
    }
    let given_up = fewest_given_up(arrivals_ms, slo_ms, times);
    1.0 - given_up as f64 / arrivals_ms.len() as f64
}

/// The states after some items: for each number of items given up, the earliest instant at which
/// the server is free.
#[derive(Debug, Clone, Default)]
struct ReachableStates {
    /// Number of items given up in the first entry of `free`.
    base: usize,
    free: Vec<f64>,
}

// === impl ReachableStates ===

impl ReachableStates {
    fn reset(&mut self, base: usize) {
        self.base = base;
        self.free.clear();
    }

    /// Returns `count` states from `base` on, and adds missing ones as unreachable (infinite).
    fn states_from(&mut self, base: usize, count: usize) -> &mut [f64] {
        let start = base - self.base;
        if self.free.len() < start + count {
            self.free.resize(start + count, f64::INFINITY);
        }
        &mut self.free[start..start + count]
    }

    /// Returns the minimum number of items given up.
    fn min_given_up(&self) -> usize {
        self.base + self.free.iter().take_while(|free| free.is_infinite()).count()
    }

    /// Returns the states that can matter for arrivals at `next` and later: all up to the first in
    /// which the server is free by then.
    fn relevant_states(&self, next: f64) -> (usize, &[f64]) {
        let fewest = self.min_given_up();
        let states = self.free.get(fewest - self.base..).unwrap_or_default();
        let count = states.iter().take_while(|free| **free > next).count() + 1;
        (fewest, states.get(..count).unwrap_or(states))
    }
}

fn fewest_given_up(arrivals: &[f64], slo: f64, times: &[f64]) -> usize {
    // A batch extends no further than its maximum size, so a ring of states for that number of
    // items is sufficient.
    let ahead = times.len() + 1;
    let mut ring = vec![ReachableStates::default(); ahead + 1];
    ring[0].states_from(0, 1)[0] = 0.0;
    for (i, arrived) in arrivals.iter().copied().enumerate() {
        let mut here = std::mem::take(&mut ring[i % (ahead + 1)]);
        // The item is given up: the server is free as early as before.
        let (fewest, states) = here.relevant_states(arrived);
        let given_up = ring[(i + 1) % (ahead + 1)].states_from(fewest + 1, states.len());
        given_up.iter_mut().zip(states).for_each(|(best, free)| *best = best.min(*free));
        let earliest = states.iter().copied().fold(f64::INFINITY, f64::min);
        let deadline = arrived + slo;
        // Or the item begins a batch: try all sizes that can be in time for it, which has the
        // earliest deadline.
        for (size, (time, latest)) in times.iter().zip(&arrivals[i..]).enumerate() {
            if earliest.max(*latest) + time > deadline {
                break;
            }
            let late = states.iter().take_while(|free| **free + time > deadline).count();
            let after = ring[(i + size + 1) % (ahead + 1)].states_from(fewest + late, states.len() - late);
            for (best, free) in after.iter_mut().zip(&states[late..]) {
                let done = free.max(*latest) + time;
                *best = if done <= deadline { best.min(done) } else { *best };
            }
        }
        // The minimum number given up never falls from one item to the next, so lower numbers are
        // not needed again.
        here.reset(fewest);
        ring[i % (ahead + 1)] = here;
    }
    ring[arrivals.len() % (ahead + 1)].min_given_up()
}

#[cfg(test)]
mod tests {
    use groupage_batching::rng::SplitMix64;

    use super::*;

    const CASES: u32 = 300;

    /// Returns the maximum number of items in time over all orders and all subsets, consecutive or
    /// not.
    fn exhaustive_search(left: u32, free: f64, arrivals: &[f64], slo: f64, times: &[f64]) -> u32 {
        let mut best = 0;
        for batch in 1..=left {
            let size = batch.count_ones();
            if batch & !left != 0 || size as usize > times.len() {
                continue;
            }
            let members = || (0..arrivals.len()).filter(|i| batch & (1 << i) != 0).map(|i| arrivals[i]);
            let done = members().fold(free, f64::max) + times[size as usize - 1];
            if members().all(|arrived| done <= arrived + slo) {
                best = best.max(size + exhaustive_search(left & !batch, done, arrivals, slo, times));
            }
        }
        best
    }

    #[test]
    fn bound_equals_exhaustive_search() {
        let mut draw = SplitMix64::new(3);
        let mut partial = 0;
        for _ in 0..CASES {
            let mut now = 0.0;
            let arrivals: Vec<f64> = (0..7)
                .map(|_| {
                    now += draw.next_f64() * 1.5;
                    now
                })
                .collect();
            let slo = 3.0 + 5.0 * draw.next_f64();
            let times = [2.0, 2.0 + draw.next_f64(), 4.0 + draw.next_f64()];
            let most = exhaustive_search(0b111_1111, 0.0, &arrivals, slo, &times);
            let found = clairvoyant(&arrivals, slo, &times) * 7.0;
            assert!(
                (found - f64::from(most)).abs() < 1e-9,
                "{found} found, {most} possible: {arrivals:?} {slo} {times:?}"
            );
            partial += u32::from(most < 7);
        }
        assert!(partial > CASES / 4, "only {partial} cases had to give anything up");
    }

    #[test]
    fn items_that_can_be_served_alone_in_time_are_never_given_up() {
        let times: Vec<f64> = (1..=64).map(|n| 4.0 + 0.25 * f64::from(n)).collect();
        let arrivals: Vec<f64> = (0..100).map(|i| f64::from(i) * 20.0).collect();
        assert!((clairvoyant(&arrivals, 5.0, &times) - 1.0).abs() < 1e-12);
        assert!(clairvoyant(&arrivals, 4.0, &times).abs() < 1e-12);
        assert!((clairvoyant(&[], 5.0, &times) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn at_one_and_a_half_times_the_capacity_about_two_thirds_are_on_time() {
        let times: Vec<f64> = (1..=64).map(|n| 4.0 + 0.25 * f64::from(n)).collect();
        let (mut draw, mut now) = (SplitMix64::new(5), 0.0);
        let mut arrivals = Vec::new();
        while now < 2000.0 {
            now += -draw.next_f64().max(1e-300).ln() / 4.8;
            arrivals.push(now);
        }
        let share = clairvoyant(&arrivals, 49.8, &times);
        assert!((0.66..0.69).contains(&share), "{share}");
    }
}
