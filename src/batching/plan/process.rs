//! The decision process of one load, and its solution by relative value iteration.
//!
//! State: items queued while a slot is free. Actions: wait for one arrival, or send c of s. Cost: items present × time. Schweitzer's transformation makes
//! steps of unequal length comparable; the iteration then converges to values whose differences say what a state is worth.
//!
//! What it leaves out: everything about where the times come from and what is done with the answer. Milliseconds inside.

use super::super::math::{exp, float, whole};
use super::{Size, number};

/// Sweeps at most (`scheduling.md` §3).
const SWEEPS_MAX: u32 = 250;
/// Iteration ends once the gain is known this well, relative to itself and at least to one item.
const GAP: f64 = 5e-3;
/// Below this many arrivals expected during an execution their number is summed over exactly; above, three points of the distribution stand for it.
const EXACT_BELOW: f64 = 4.0;
/// Probabilities kept: past 24 arrivals, where fewer than 4 are expected, 1e-11 is left. In whole groups of [`LANES`].
const ARRIVALS: usize = 28;
/// Sums run side by side: a fixed order, so the same result everywhere, and one that a compiler can vectorise.
const LANES: usize = 4;
/// What a full queue costs beyond its length, in items per item a millisecond: enough to make the plan avoid it.
const FULL: f64 = 1e3;

/// One load's process.
pub(super) struct Process<'a> {
    /// Items a millisecond.
    rate: f64,
    /// Length of a transformed step.
    step: f64,
    sends: Vec<Send>,
    menu: &'a [usize],
}

/// What sending one size means.
struct Send {
    /// Items that come meanwhile wait half of it.
    cost: f64,
    /// Transformed steps per execution, inverted.
    share: f64,
    arrivals: Arrivals,
}

enum Arrivals {
    /// Probability of 0, 1, 2… arrivals.
    Exact(Box<[f64; ARRIVALS]>),
    /// Few, middling, many: whole items, and the part of the next one.
    Three([(usize, f64); 3]),
}

/// The choices of one state.
struct Choice {
    value: f64,
    size: Size,
}

// === impl Process ===

impl<'a> Process<'a> {
    /// For executions of `times[n - 1]` milliseconds, `rate` arrivals a millisecond, and these sizes.
    pub(super) fn new(times: &[f64], rate: f64, menu: &'a [usize]) -> Self {
        let step = (1.0 / rate).min(times[0]) * 0.99;
        let sends = times.iter().map(|time| Send::new(*time, rate, step)).collect();
        Self { rate, step, sends, menu }
    }

    /// The best size for each queue length that `values` has. It starts from these values and leaves the new ones there.
    pub(super) fn solve(&self, values: &mut [f64]) -> Vec<Size> {
        let last = values.len() - 1;
        let mut sizes = vec![Size::Wait { otherwise: 0 }; values.len()];
        // Past the longest queue the last value goes on, so no state needs a bounds check of its own.
        let mut padded = vec![0.0; values.len() + ARRIVALS];
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

    fn choose(&self, queued: usize, last: usize, padded: &[f64]) -> Choice {
        let present = float(u64::from(number(queued)));
        let here = padded[queued];
        let full = if queued == last { FULL * self.rate } else { 0.0 };
        let wait = present + self.step * self.rate * (padded[queued + 1] - here) + full;
        let top = queued.min(self.sends.len());
        let mut best = (f64::INFINITY, 0);
        for size in self.menu.iter().copied().take_while(|size| *size < top).chain([top]) {
            let Some(send) = size.checked_sub(1).and_then(|index| self.sends.get(index)) else { continue };
            let value = present + send.cost + send.share * (send.after(queued - size, last, padded) - here);
            if value < best.0 {
                best = (value, size);
            }
        }
        let size = number(best.1);
        if best.0 < wait {
            Choice { value: best.0, size: Size::Send(size) }
        } else {
            Choice { value: wait, size: Size::Wait { otherwise: size } }
        }
    }
}

// === impl Send ===

impl Send {
    fn new(time: f64, rate: f64, step: f64) -> Self {
        let mean = rate * time;
        let arrivals = if mean < EXACT_BELOW { exact(mean) } else { three(mean) };
        Self { cost: mean / 2.0, share: step / time, arrivals }
    }

    /// The value expected after an execution that leaves this many behind.
    fn after(&self, left: usize, last: usize, padded: &[f64]) -> f64 {
        match &self.arrivals {
            Arrivals::Exact(probabilities) => {
                let mut lanes = [0.0; LANES];
                let values = &padded[left..left + ARRIVALS];
                for (p, v) in probabilities.chunks_exact(LANES).zip(values.chunks_exact(LANES)) {
                    for (lane, (p, v)) in lanes.iter_mut().zip(p.iter().zip(v)) {
                        *lane += p * v;
                    }
                }
                (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
            }
            Arrivals::Three(points) => {
                let [few, middling, many] = points.map(|(whole, part)| {
                    let index = (left + whole).min(last);
                    padded[index] + part * (padded[index + 1] - padded[index])
                });
                (few + 4.0 * middling + many) / 6.0
            }
        }
    }
}

fn exact(mean: f64) -> Arrivals {
    let mut probabilities = Box::new([0.0; ARRIVALS]);
    let (mut probability, mut count) = (exp(-mean), 0.0);
    for slot in probabilities.iter_mut() {
        *slot = probability;
        count += 1.0;
        probability *= mean / count;
    }
    Arrivals::Exact(probabilities)
}

/// Gauss–Hermite: the mean with weight 2/3, and √3 standard deviations to either side with 1/6 each.
fn three(mean: f64) -> Arrivals {
    let spread = (3.0 * mean).sqrt();
    Arrivals::Three([mean - spread, mean, mean + spread].map(split))
}

fn split(x: f64) -> (usize, f64) {
    // Rounded to the nearest, one too many is taken back: `whole` is the only way from a float to a number here.
    let nearest = whole(x);
    let floor = if float(nearest) > x { nearest - 1 } else { nearest };
    (usize::try_from(floor).unwrap_or(usize::MAX / 2), x - float(floor))
}
