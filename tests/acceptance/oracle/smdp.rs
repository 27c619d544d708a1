//! The minimum mean latency of any policy that knows the curve, the rate and the queue length: the
//! solution of a semi-Markov decision process (SMDP).
//!
//! The model has one server, Poisson arrivals, fixed execution times and items of one size. At each
//! queue length the choice is to send n items or to wait for the next arrival. The average cost of
//! the process is the number of items in the system; divided by the rate it is the mean latency
//! (Little's law). The optimality equation is solved by policy iteration. Each policy is evaluated
//! exactly by one banded Gaussian elimination, so about ten rounds replace thousands of sweeps of
//! value iteration, with the same result.
//!
//! Left out: deadlines, noise, weights and several slots.

#[cfg(test)]
mod tests;

/// Initial truncation of the queue length, in maximum batch sizes.
const LENGTH_FIRST: usize = 4;
/// Maximum truncation of the queue length, in maximum batch sizes. The tail beyond it is lost,
/// which matters from about 98 % load on.
const LENGTH_LAST: usize = 64;
/// Relative change of the mean by a doubled truncation below which the truncation is accepted. The
/// tail is geometric, so the remaining error is far smaller.
const TRUNCATION_TOLERANCE: f64 = 2e-4;
/// Maximum number of policy iterations. About ten are usual.
const ROUNDS_MAX: usize = 200;
/// Number of actions by which the distribution of the queue length is advanced after each change of
/// policy, to find a length that is visited often.
const WARMUP_STEPS: usize = 64;
/// Probability, relative to the most likely number of arrivals, below which a number is left out.
const PROBABILITY_MIN: f64 = 1e-13;
/// Relative improvement required to replace the current action. Without it, rounding errors could
/// make the iteration cycle.
const IMPROVEMENT_MIN: f64 = 1e-11;

/// The optimal policy and its mean latency.
#[derive(Debug, Clone)]
pub(crate) struct SmdpSolution {
    /// Number of items to send at each queue length, where 0 waits for the next arrival. The last
    /// entry applies to longer queues.
    pub(crate) table: Vec<u32>,
    /// Mean latency of an item. Infinite if the rate reaches the capacity of the server.
    pub(crate) mean_ms: f64,
}

/// Computes the optimum at this rate for a server that takes `times[n - 1]` ms for n items. The
/// times must be positive.
pub(crate) fn solve_smdp(rate_per_s: f64, times: &[f64]) -> SmdpSolution {
    let rate = rate_per_s / 1000.0;
    let best = most_efficient(times);
    if times.is_empty() || rate >= throughput(times, best) {
        return SmdpSolution {
            table: greedy_policy(times.len(), best).into_iter().map(to_u32).collect(),
            mean_ms: f64::INFINITY,
        };
    }
    let mut length = LENGTH_FIRST * times.len();
    let mut policy = greedy_policy(length, best);
    let mut mean_ms = f64::INFINITY;
    loop {
        let gain = TruncatedProcess::new(rate, times, length).optimise(&mut policy);
        let before = std::mem::replace(&mut mean_ms, gain / rate);
        if (mean_ms - before).abs() <= TRUNCATION_TOLERANCE * mean_ms || length >= LENGTH_LAST * times.len() {
            break;
        }
        length *= 2;
        policy.resize(length + 1, best);
    }
    // Arrivals are lost near the truncation, which is no reason to act differently in a real queue.
    policy.truncate(length / 2 + 1);
    SmdpSolution { table: policy.into_iter().map(to_u32).collect(), mean_ms }
}

/// The distribution of the number of items that arrive during one batch.
struct ArrivalDistribution {
    /// The least number that has a probability.
    first: usize,
    /// Probabilities of `first` and the numbers that follow it.
    probabilities: Vec<f64>,
}

/// The process, truncated at a queue length.
struct TruncatedProcess<'a> {
    /// Items per millisecond.
    rate: f64,
    /// Milliseconds of a batch, by batch size − 1.
    times: &'a [f64],
    /// Maximum queue length. Items that arrive beyond it are lost.
    length: usize,
    /// Arrivals by batch size − 1.
    arrivals: Vec<ArrivalDistribution>,
}

/// A banded square matrix.
struct BandedMatrix {
    rows: usize,
    /// Number of diagonals below the main diagonal.
    below: usize,
    /// Number of all diagonals.
    width: usize,
    /// The cells of each row that are on a diagonal of the band, row by row.
    cells: Vec<f64>,
}

// === impl ArrivalDistribution ===

impl ArrivalDistribution {
    /// Computes the Poisson distribution with this mean, from the mode outwards, so that nothing
    /// underflows.
    fn new(mean: f64) -> Self {
        // Probabilities relative to that of the mode, until they are normalized below.
        let mut up = vec![1.0];
        let mode = (0_usize..).take_while(|k| (*k as f64) < mean).last().unwrap_or(0);
        let mut relative = 1.0;
        for k in mode + 1.. {
            relative *= mean / k as f64;
            if relative < PROBABILITY_MIN {
                break;
            }
            up.push(relative);
        }
        let mut down = Vec::new();
        relative = 1.0;
        for k in (1..=mode).rev() {
            relative *= k as f64 / mean;
            if relative < PROBABILITY_MIN {
                break;
            }
            down.push(relative);
        }
        let first = mode - down.len();
        let mut probabilities: Vec<f64> = down.into_iter().rev().chain(up).collect();
        let sum: f64 = probabilities.iter().sum();
        for probability in &mut probabilities {
            *probability /= sum;
        }
        Self { first, probabilities }
    }
}

// === impl TruncatedProcess ===

impl<'a> TruncatedProcess<'a> {
    fn new(rate: f64, times: &'a [f64], length: usize) -> Self {
        Self { rate, times, length, arrivals: times.iter().map(|time| ArrivalDistribution::new(rate * time)).collect() }
    }

    /// Improves the policy until no action is better. Returns its cost per millisecond.
    fn optimise(&self, policy: &mut Vec<usize>) -> f64 {
        let mut gain = f64::INFINITY;
        // Distribution of the queue length, which starts empty.
        let mut distribution = vec![0.0; self.length + 1];
        distribution[0] = 1.0;
        for _ in 0..ROUNDS_MAX {
            for _ in 0..WARMUP_STEPS {
                distribution = self.step(policy, &distribution);
            }
            // The most visited queue length serves as the regeneration point of the evaluation.
            let home =
                distribution.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(queued, _)| queued);
            let Some((values, found)) = self.evaluate(policy, home) else { break };
            gain = found;
            let next = self.improve(policy, &values, gain);
            if next == *policy {
                break;
            }
            *policy = next;
        }
        gain
    }

    /// Returns the distribution of the queue length after one more action.
    fn step(&self, policy: &[usize], before: &[f64]) -> Vec<f64> {
        let mut after = vec![0.0; before.len()];
        for (queued, share) in before.iter().enumerate().filter(|(_, share)| **share > PROBABILITY_MIN) {
            self.for_each_outcome(queued, policy[queued], |next, chance| after[next] += share * chance);
        }
        after
    }

    /// Visits each queue length that an action leads to, with its probability. A size of 0 is the
    /// action to wait for the next arrival.
    fn for_each_outcome(&self, queued: usize, size: usize, mut visit: impl FnMut(usize, f64)) {
        let Some(arrivals) = size.checked_sub(1).and_then(|i| self.arrivals.get(i)) else {
            return visit((queued + 1).min(self.length), 1.0);
        };
        for (k, chance) in arrivals.probabilities.iter().enumerate() {
            visit((queued - size + arrivals.first + k).min(self.length), *chance);
        }
    }

    /// Returns the cost of one action, in items × milliseconds, and its duration in milliseconds.
    /// Items queued or in the batch count for the whole duration, and those that arrive during it
    /// for half of it.
    fn stage_cost(&self, queued: usize, size: usize) -> (f64, f64) {
        let queued = queued as f64;
        match size.checked_sub(1).and_then(|i| self.times.get(i)) {
            Some(time) => (queued * time + self.rate * time * time / 2.0, *time),
            None => (queued / self.rate, 1.0 / self.rate),
        }
    }

    /// Returns the value of each queue length relative to `home`, and the cost per millisecond, or
    /// `None` if the policy hardly ever returns to `home`.
    ///
    /// Cost and time until `home` are solved for separately; their ratio over a whole cycle is the
    /// gain.
    fn evaluate(&self, policy: &[usize], home: usize) -> Option<(Vec<f64>, f64)> {
        // One equation per queue length: its cost is that of its action, plus the expected cost of
        // the queue length that follows, up to the next visit of `home`.
        let mut band = BandedMatrix::new(self.length + 1, self.times.len(), self.growth_max());
        let (mut costs, mut times): (Vec<f64>, Vec<f64>) =
            policy.iter().enumerate().map(|(queued, size)| self.stage_cost(queued, *size)).unzip();
        let (mut cycle_cost, mut cycle_time) = (costs[home], times[home]);
        (costs[home], times[home]) = (0.0, 0.0);
        for (queued, size) in policy.iter().enumerate() {
            band.add(queued, queued, 1.0);
            if queued != home {
                self.for_each_outcome(queued, *size, |next, chance| {
                    if next != home {
                        band.add(queued, next, -chance);
                    }
                });
            }
        }
        band.solve(&mut costs, &mut times)?;
        self.for_each_outcome(home, policy[home], |next, chance| {
            cycle_cost += chance * costs[next];
            cycle_time += chance * times[next];
        });
        let gain = cycle_cost / cycle_time;
        Some((costs.iter().zip(&times).map(|(cost, time)| cost - gain * time).collect(), gain))
    }

    /// Returns the best action at each queue length, given the values of the following states.
    fn improve(&self, policy: &[usize], values: &[f64], gain: f64) -> Vec<usize> {
        let last = values.last().copied().unwrap_or(0.0);
        let mut padded = values.to_vec();
        padded.resize(values.len() + self.growth_max() + 1, last);
        let value_of = |queued: usize, size: usize| {
            let (cost, time) = self.stage_cost(queued, size);
            let after = match size.checked_sub(1).and_then(|i| self.arrivals.get(i)) {
                Some(arrivals) => dot(&arrivals.probabilities, &padded[queued - size + arrivals.first..]),
                None => padded[queued + 1],
            };
            cost - gain * time + after
        };
        let choose = |(queued, current): (usize, &usize)| {
            if queued == 0 {
                // The queue is empty.
                return 0;
            }
            let mut best = (value_of(queued, *current), *current);
            // At the truncation, waiting would lose items without any cost.
            for size in usize::from(queued == self.length)..=queued.min(self.times.len()) {
                let value = value_of(queued, size);
                if value < best.0 - IMPROVEMENT_MIN * best.0.abs().max(1.0) {
                    best = (value, size);
                }
            }
            best.1
        };
        policy.iter().enumerate().map(choose).collect()
    }

    /// Returns the maximum number of items that one action may add.
    fn growth_max(&self) -> usize {
        self.arrivals.iter().map(|arrivals| arrivals.first + arrivals.probabilities.len()).max().unwrap_or(0).max(1)
    }
}

// === impl BandedMatrix ===

impl BandedMatrix {
    fn new(rows: usize, below: usize, above: usize) -> Self {
        let width = below + above + 1;
        Self { rows, below, width, cells: vec![0.0; rows * width] }
    }

    /// Adds to a cell of the band.
    fn add(&mut self, row: usize, column: usize, value: f64) {
        self.cells[row * self.width + column + self.below - row] += value;
    }

    /// Solves the system for two right-hand sides, in place, by elimination. Returns `None` if it
    /// is nearly singular. No pivoting is needed: the rows are probabilities of not reaching
    /// `home`, so the diagonal dominates.
    fn solve(&mut self, first: &mut [f64], second: &mut [f64]) -> Option<()> {
        let (below, above) = (self.below, self.width - self.below - 1);
        // Forward elimination.
        for k in 0..self.rows {
            let (head, tail) = self.cells.split_at_mut((k + 1) * self.width);
            let pivot_row = &head[k * self.width + below..];
            let pivot = pivot_row[0];
            if pivot.is_nan() || pivot < 1e-14 {
                return None;
            }
            for i in k + 1..self.rows.min(k + below + 1) {
                let start = (i - k - 1) * self.width + below - (i - k);
                let row = &mut tail[start..=start + above];
                let factor = row[0] / pivot;
                if row[0].abs() > 0.0 {
                    row.iter_mut().zip(pivot_row).for_each(|(cell, over)| *cell -= factor * over);
                    first[i] -= factor * first[k];
                    second[i] -= factor * second[k];
                }
            }
        }
        // Back substitution.
        for k in (0..self.rows).rev() {
            let row = &self.cells[k * self.width + below..(k + 1) * self.width];
            let until = self.rows.min(k + above + 1);
            first[k] = (first[k] - dot(&row[1..], &first[k + 1..until])) / row[0];
            second[k] = (second[k] - dot(&row[1..], &second[k + 1..until])) / row[0];
        }
        Some(())
    }
}

/// Computes the dot product over the shorter length. Four independent sums avoid waiting for each
/// addition.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let length = a.len().min(b.len());
    let (a, b) = (a[..length].chunks_exact(4), b[..length].chunks_exact(4));
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(x, y)| x * y).sum();
    let mut sums = [0.0; 4];
    for (a, b) in a.zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (x, y))| *sum += x * y);
    }
    sums.iter().sum::<f64>() + rest
}

/// Returns the batch size with the most items per millisecond.
fn most_efficient(times: &[f64]) -> usize {
    (1..=times.len()).max_by(|a, b| throughput(times, *a).total_cmp(&throughput(times, *b))).unwrap_or(0)
}

/// Returns the items per millisecond at a batch size.
fn throughput(times: &[f64], size: usize) -> f64 {
    size.checked_sub(1).and_then(|i| times.get(i)).map_or(0.0, |time| size as f64 / time)
}

/// Returns the policy that sends everything queued, up to the most efficient size. It is stable
/// below saturation, so it can be evaluated.
fn greedy_policy(length: usize, best: usize) -> Vec<usize> {
    (0..=length).map(|queued| queued.min(best)).collect()
}

fn to_u32(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
