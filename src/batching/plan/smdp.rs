//! Semi-Markov decision process (SMDP) of one load, solved by relative value iteration.
//!
//! State: items queued while a slot is free. Actions: wait for one arrival, or send some of the
//! items. Cost: items present × time. Schweitzer's data transformation ("Iterative solution of the
//! functional equations of undiscounted Markov renewal programming", 1971) makes steps of unequal
//! length comparable. The iteration converges to relative values of the states (Puterman, *Markov
//! Decision Processes*, 1994, chapters 8 and 11; Tijms, *A First Course in Stochastic Models*,
//! 2003, chapters 6 and 7).
//!
//! The source of the times and the use of the solution are in `plan`. Times are in milliseconds
//! here.

use super::super::math::{exp, round_to_u64, to_f64};
use super::{PlanDecision, to_u32};

/// Maximum number of sweeps.
const SWEEPS_MAX: u32 = 250;
/// Relative precision of the gain at which the iteration ends; for gains below one item it is
/// absolute.
const GAP: f64 = 5e-3;
/// Expected arrivals during an execution below which the distribution is summed exactly. Above, it
/// is approximated by three points.
const EXACT_BELOW: f64 = 4.0;
/// Number of probabilities kept, a multiple of [`LANES`]. With fewer than 4 arrivals expected,
/// 1e-11 is left beyond 24.
const ARRIVALS: usize = 28;
/// Number of partial sums. Their order is fixed, so the result is the same on every machine and a
/// compiler can still vectorise the loop.
const LANES: usize = 4;
/// Additional cost of a full queue, in items per item per millisecond: enough for the plan to avoid
/// it.
const FULL: f64 = 1e3;

/// The decision process of one load.
pub(super) struct LoadProcess<'a> {
    /// Items per millisecond.
    rate: f64,
    /// Length of a transformed step, in milliseconds.
    step: f64,
    /// Effects of sending 1, 2, … items.
    sends: Vec<SendAction>,
    /// Batch sizes to consider, ascending. The largest possible size is considered too.
    menu: &'a [usize],
}

/// Effect of sending a batch of one size.
struct SendAction {
    /// Mean number of items present during the execution that arrived since its start: half of all
    /// that arrive during it.
    cost: f64,
    /// Length of a transformed step, as a share of the execution.
    share: f64,
    arrivals: ArrivalDistribution,
}

enum ArrivalDistribution {
    /// Probabilities of 0, 1, 2… arrivals.
    Exact(Box<[f64; ARRIVALS]>),
    /// Numbers of arrivals that stand for few, medium and many, each as a whole number and a
    /// fraction.
    Three([(usize, f64); 3]),
}

/// Best action of one state.
struct BestAction {
    /// Change of the state's relative value in this sweep.
    value: f64,
    size: PlanDecision,
}

// === impl LoadProcess ===

impl<'a> LoadProcess<'a> {
    /// Creates the process for executions of `times[n - 1]` milliseconds, `rate` arrivals per
    /// millisecond, and these sizes.
    pub(super) fn new(times: &[f64], rate: f64, menu: &'a [usize]) -> Self {
        let step = (1.0 / rate).min(times[0]) * 0.99;
        let sends = times.iter().map(|time| SendAction::new(*time, rate, step)).collect();
        Self { rate, step, sends, menu }
    }

    /// Returns the best action for each queue length in `values`. The iteration starts from these
    /// values and leaves the new ones there.
    pub(super) fn solve(&self, values: &mut [f64]) -> Vec<PlanDecision> {
        let last = values.len() - 1;
        let mut sizes = vec![PlanDecision::Wait { otherwise: 0 }; values.len()];
        // The last value is repeated beyond the longest queue, so that no state needs a bounds
        // check.
        let mut padded = vec![0.0; values.len() + ARRIVALS];
        // The iteration has converged when a sweep changes all values by about the same amount,
        // which is the gain. Subtracting the value of the empty queue keeps the values bounded.
        for _ in 0..SWEEPS_MAX {
            padded[..=last].copy_from_slice(values);
            padded[last + 1..].fill(values[last]);
            let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
            for (queued, value) in values.iter_mut().enumerate() {
                let choice = self.choose(queued, last, &padded);
                least = least.min(choice.value);
                most = most.max(choice.value);
                *value += choice.value;
                sizes[queued] = choice.size;
            }
            let base = values[0];
            for value in &mut *values {
                *value -= base;
            }
            if most - least < GAP * f64::max(1.0, (least + most) / 2.0) {
                break;
            }
        }
        sizes
    }

    /// Returns the best action at a queue length, given the values of all of them. `last` is the
    /// longest queue.
    fn choose(&self, queued: usize, last: usize, padded: &[f64]) -> BestAction {
        let present = to_f64(u64::from(to_u32(queued)));
        let here = padded[queued];
        let full = if queued == last { FULL * self.rate } else { 0.0 };
        let wait = present + self.step * self.rate * (padded[queued + 1] - here) + full;
        let size_max = queued.min(self.sends.len());
        let mut best = (f64::INFINITY, 0);
        for size in self.menu.iter().copied().take_while(|size| *size < size_max).chain([size_max]) {
            let Some(send) = size.checked_sub(1).and_then(|index| self.sends.get(index)) else { continue };
            let value =
                present + send.cost + send.share * (send.expected_value_after(queued - size, last, padded) - here);
            if value < best.0 {
                best = (value, size);
            }
        }
        let size = to_u32(best.1);
        if best.0 < wait {
            BestAction { value: best.0, size: PlanDecision::Send(size) }
        } else {
            BestAction { value: wait, size: PlanDecision::Wait { otherwise: size } }
        }
    }
}

// === impl SendAction ===

impl SendAction {
    fn new(time: f64, rate: f64, step: f64) -> Self {
        let mean = rate * time;
        let arrivals = if mean < EXACT_BELOW { poisson_probabilities(mean) } else { gauss_hermite_points(mean) };
        Self { cost: mean / 2.0, share: step / time, arrivals }
    }

    /// Returns the expected value after an execution that leaves this many items in the queue.
    fn expected_value_after(&self, left: usize, last: usize, padded: &[f64]) -> f64 {
        match &self.arrivals {
            ArrivalDistribution::Exact(probabilities) => {
                let mut lanes = [0.0; LANES];
                let values = &padded[left..left + ARRIVALS];
                for (p, v) in probabilities.chunks_exact(LANES).zip(values.chunks_exact(LANES)) {
                    for (lane, (p, v)) in lanes.iter_mut().zip(p.iter().zip(v)) {
                        *lane += p * v;
                    }
                }
                (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
            }
            ArrivalDistribution::Three(points) => {
                let [few, middling, many] = points.map(|(whole, part)| {
                    let index = (left + whole).min(last);
                    padded[index] + part * (padded[index + 1] - padded[index])
                });
                (few + 4.0 * middling + many) / 6.0
            }
        }
    }
}

fn poisson_probabilities(mean: f64) -> ArrivalDistribution {
    let mut probabilities = Box::new([0.0; ARRIVALS]);
    let (mut probability, mut count) = (exp(-mean), 0.0);
    for slot in probabilities.iter_mut() {
        *slot = probability;
        count += 1.0;
        probability *= mean / count;
    }
    ArrivalDistribution::Exact(probabilities)
}

/// Approximates the distribution by Gauss–Hermite quadrature: the mean with weight 2/3, and √3
/// standard deviations to either side with weight 1/6 each.
fn gauss_hermite_points(mean: f64) -> ArrivalDistribution {
    let spread = (3.0 * mean).sqrt();
    ArrivalDistribution::Three([mean - spread, mean, mean + spread].map(split_fraction))
}

/// Splits a number into its whole part and its fraction.
fn split_fraction(x: f64) -> (usize, f64) {
    // Rounds down: `round_to_u64` rounds to the nearest number, and it is the only conversion from
    // a float here.
    let nearest = round_to_u64(x);
    let floor = if to_f64(nearest) > x { nearest - 1 } else { nearest };
    (usize::try_from(floor).unwrap_or(usize::MAX / 2), x - to_f64(floor))
}
