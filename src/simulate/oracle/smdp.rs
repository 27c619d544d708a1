//! The least mean latency that any policy can reach which knows the curve, the rate and the queue length.
//!
//! One server, Poisson arrivals, fixed execution times, one size of item: choosing "send n" or "wait for the next arrival" at each queue length is a
//! semi-Markov decision process whose average cost is the number of items in the system; over the rate it is the mean latency (Little). The optimality
//! equation is solved by policy iteration: each policy is evaluated exactly by one banded elimination, so some ten rounds take the place of thousands
//! of sweeps of value iteration, and the answer is the same.
//!
//! It leaves out deadlines, noise, weights and several slots.

#[cfg(test)]
mod tests;

/// Queue lengths looked at first, in largest batches.
const LENGTH_FIRST: usize = 4;
/// Queue lengths looked at in the end: the tail beyond is lost, which matters from some 98 % load.
const LENGTH_LAST: usize = 64;
/// The queue is long enough once doubling it moves the mean by less than this share; the tail is geometric, so what is left is far less.
const LENGTH_CLOSE: f64 = 2e-4;
/// Policies tried; ten are usual.
const ROUNDS_MAX: usize = 200;
/// Actions by which the search for a queue length that is met often goes on after each change of policy.
const STEPS: usize = 64;
/// Numbers of arrivals less likely than this, compared with the likeliest, are left out.
const UNLIKELY: f64 = 1e-13;
/// An action must be better by this share of the value to replace the one in force, or rounding would go round in circles.
const BETTER: f64 = 1e-11;

/// The optimal policy and what it reaches.
#[derive(Debug, Clone)]
pub struct Smdp {
    /// How many to send at each queue length, 0 for "wait for the next arrival"; longer queues do as the last one.
    pub table: Vec<u32>,
    /// Mean latency of an item; infinite where the rate is at or above what the server can do.
    pub mean_ms: f64,
}

/// The optimum at this rate for a server that takes `times[n - 1]` ms for n items. The times must be above zero.
#[must_use]
pub fn smdp(rate_per_s: f64, times: &[f64]) -> Smdp {
    let rate = rate_per_s / 1000.0;
    let best = most_efficient(times);
    if times.is_empty() || rate >= pace(times, best) {
        return Smdp { table: thrifty(times.len(), best).into_iter().map(to_u32).collect(), mean_ms: f64::INFINITY };
    }
    let mut length = LENGTH_FIRST * times.len();
    let mut policy = thrifty(length, best);
    let mut mean_ms = f64::INFINITY;
    loop {
        let gain = Model::new(rate, times, length).optimise(&mut policy);
        let before = std::mem::replace(&mut mean_ms, gain / rate);
        if (mean_ms - before).abs() <= LENGTH_CLOSE * mean_ms || length >= LENGTH_LAST * times.len() {
            break;
        }
        length *= 2;
        policy.resize(length + 1, best);
    }
    // Near the end of the queue arrivals are lost, which is no reason to act differently in a real one.
    policy.truncate(length / 2 + 1);
    Smdp { table: policy.into_iter().map(to_u32).collect(), mean_ms }
}

/// What may happen during one batch: how many items arrive, and how likely that is.
struct Arrivals {
    from: usize,
    likely: Vec<f64>,
}

/// The process cut off at a queue length.
struct Model<'a> {
    rate: f64,
    times: &'a [f64],
    length: usize,
    /// By size − 1.
    arrivals: Vec<Arrivals>,
}

/// A square matrix whose cells lie near the diagonal.
struct Band {
    rows: usize,
    below: usize,
    width: usize,
    cells: Vec<f64>,
}

// === impl Arrivals ===

impl Arrivals {
    /// Poisson with this mean, from the likeliest number outwards, so that nothing underflows.
    fn new(mean: f64) -> Self {
        let mut up = vec![1.0];
        let mode = (0_usize..).take_while(|k| (*k as f64) < mean).last().unwrap_or(0);
        let mut likely = 1.0;
        for k in mode + 1.. {
            likely *= mean / k as f64;
            if likely < UNLIKELY {
                break;
            }
            up.push(likely);
        }
        let mut down = Vec::new();
        likely = 1.0;
        for k in (1..=mode).rev() {
            likely *= k as f64 / mean;
            if likely < UNLIKELY {
                break;
            }
            down.push(likely);
        }
        let from = mode - down.len();
        let mut all: Vec<f64> = down.into_iter().rev().chain(up).collect();
        let sum: f64 = all.iter().sum();
        for share in &mut all {
            *share /= sum;
        }
        Self { from, likely: all }
    }
}

// === impl Model ===

impl<'a> Model<'a> {
    fn new(rate: f64, times: &'a [f64], length: usize) -> Self {
        Self { rate, times, length, arrivals: times.iter().map(|time| Arrivals::new(rate * time)).collect() }
    }

    /// Improves the policy until no action is better, and says what it costs per millisecond.
    fn optimise(&self, policy: &mut Vec<usize>) -> f64 {
        let mut gain = f64::INFINITY;
        let mut often = vec![0.0; self.length + 1];
        often[0] = 1.0;
        for _ in 0..ROUNDS_MAX {
            for _ in 0..STEPS {
                often = self.step(policy, &often);
            }
            let home = often.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(queued, _)| queued);
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

    /// How often each queue length is met one action later.
    fn step(&self, policy: &[usize], often: &[f64]) -> Vec<f64> {
        let mut after = vec![0.0; often.len()];
        for (queued, share) in often.iter().enumerate().filter(|(_, share)| **share > UNLIKELY) {
            self.outcomes(queued, policy[queued], |next, chance| after[next] += share * chance);
        }
        after
    }

    /// Where an action leads, and how likely.
    fn outcomes(&self, queued: usize, size: usize, mut tell: impl FnMut(usize, f64)) {
        let Some(arrivals) = size.checked_sub(1).and_then(|i| self.arrivals.get(i)) else {
            return tell((queued + 1).min(self.length), 1.0);
        };
        for (k, chance) in arrivals.likely.iter().enumerate() {
            tell((queued - size + arrivals.from + k).min(self.length), *chance);
        }
    }

    /// Cost and time of one action: all items queued or in the batch count while it lasts, and half of the time those that arrive.
    fn stage(&self, queued: usize, size: usize) -> (f64, f64) {
        let queued = queued as f64;
        match size.checked_sub(1).and_then(|i| self.times.get(i)) {
            Some(time) => (queued * time + self.rate * time * time / 2.0, *time),
            None => (queued / self.rate, 1.0 / self.rate),
        }
    }

    /// The value of each queue length compared with `home`, and the cost per millisecond; `None` if the policy hardly ever comes home.
    ///
    /// Cost and time until home are solved for apart; their ratio over a whole cycle is the gain.
    fn evaluate(&self, policy: &[usize], home: usize) -> Option<(Vec<f64>, f64)> {
        let mut band = Band::new(self.length + 1, self.times.len(), self.reach());
        let (mut costs, mut times): (Vec<f64>, Vec<f64>) =
            policy.iter().enumerate().map(|(queued, size)| self.stage(queued, *size)).unzip();
        let (mut cycle_cost, mut cycle_time) = (costs[home], times[home]);
        (costs[home], times[home]) = (0.0, 0.0);
        for (queued, size) in policy.iter().enumerate() {
            band.add(queued, queued, 1.0);
            if queued != home {
                self.outcomes(queued, *size, |next, chance| {
                    if next != home {
                        band.add(queued, next, -chance);
                    }
                });
            }
        }
        band.solve(&mut costs, &mut times)?;
        self.outcomes(home, policy[home], |next, chance| {
            cycle_cost += chance * costs[next];
            cycle_time += chance * times[next];
        });
        let gain = cycle_cost / cycle_time;
        Some((costs.iter().zip(&times).map(|(cost, time)| cost - gain * time).collect(), gain))
    }

    /// The best action at each queue length, given the values of what follows.
    fn improve(&self, policy: &[usize], values: &[f64], gain: f64) -> Vec<usize> {
        let last = values.last().copied().unwrap_or(0.0);
        let mut padded = values.to_vec();
        padded.resize(values.len() + self.reach() + 1, last);
        let worth = |queued: usize, size: usize| {
            let (cost, time) = self.stage(queued, size);
            let after = match size.checked_sub(1).and_then(|i| self.arrivals.get(i)) {
                Some(arrivals) => dot(&arrivals.likely, &padded[queued - size + arrivals.from..]),
                None => padded[queued + 1],
            };
            cost - gain * time + after
        };
        let choose = |(queued, current): (usize, &usize)| {
            if queued == 0 {
                return 0; // nothing to send
            }
            let mut best = (worth(queued, *current), *current);
            // At the end of the queue waiting would lose items for nothing.
            for size in usize::from(queued == self.length)..=queued.min(self.times.len()) {
                let value = worth(queued, size);
                if value < best.0 - BETTER * best.0.abs().max(1.0) {
                    best = (value, size);
                }
            }
            best.1
        };
        policy.iter().enumerate().map(choose).collect()
    }

    /// Most items that one action may add.
    fn reach(&self) -> usize {
        self.arrivals.iter().map(|arrivals| arrivals.from + arrivals.likely.len()).max().unwrap_or(0).max(1)
    }
}

// === impl Band ===

impl Band {
    fn new(rows: usize, below: usize, above: usize) -> Self {
        let width = below + above + 1;
        Self { rows, below, width, cells: vec![0.0; rows * width] }
    }

    fn add(&mut self, row: usize, column: usize, value: f64) {
        self.cells[row * self.width + column + self.below - row] += value;
    }

    /// Elimination for two right sides. No pivoting: rows are chances of staying away from home, so the diagonal dominates.
    fn solve(&mut self, first: &mut [f64], second: &mut [f64]) -> Option<()> {
        let (below, above) = (self.below, self.width - self.below - 1);
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
        for k in (0..self.rows).rev() {
            let row = &self.cells[k * self.width + below..(k + 1) * self.width];
            let until = self.rows.min(k + above + 1);
            first[k] = (first[k] - dot(&row[1..], &first[k + 1..until])) / row[0];
            second[k] = (second[k] - dot(&row[1..], &second[k + 1..until])) / row[0];
        }
        Some(())
    }
}

/// Four sums side by side, so that it need not wait for each addition. The longer side's rest does not count.
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

/// The size that serves most items per millisecond.
fn most_efficient(times: &[f64]) -> usize {
    (1..=times.len()).max_by(|a, b| pace(times, *a).total_cmp(&pace(times, *b))).unwrap_or(0)
}

fn pace(times: &[f64], size: usize) -> f64 {
    size.checked_sub(1).and_then(|i| times.get(i)).map_or(0.0, |time| size as f64 / time)
}

/// All that is queued, but never more than the most efficient size: stable below saturation, so it can be evaluated.
fn thrifty(length: usize, best: usize) -> Vec<usize> {
    (0..=length).map(|queued| queued.min(best)).collect()
}

fn to_u32(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
