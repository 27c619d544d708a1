//! Tests of the cost curve: learning from samples, and robustness against misleading ones.

use super::super::rng::SplitMix64;
use super::*;

mod change;
mod learning;

/// A realistic mix of sizes: many small batches, few large ones.
const MIXED: [u32; 16] = [1, 1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 48, 64];

/// The random numbers of a server.
struct ServerRandom(SplitMix64);

/// A cost curve and the random source of the server it learns from.
struct CurveBench {
    cost: CostModel,
    random: ServerRandom,
}

impl ServerRandom {
    const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.next_u64() % u64::try_from(end).unwrap()).unwrap()
    }

    /// Returns a value with mean 1 and this standard deviation, as the sum of twelve uniform ones.
    fn noise(&mut self, sigma: f64) -> f64 {
        1.0 + sigma * ((0..12).map(|_| self.0.next_f64()).sum::<f64>() - 6.0)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns the weight of items of 4 to 512, most of them light.
    fn weights(&mut self, items: u32) -> Weight {
        let (mut sum, mut max) = (0, 0);
        for _ in 0..items {
            let weight = 4 << self.below(8).min(self.below(8));
            (sum, max) = (sum + weight, weight.max(max));
        }
        Weight { sum, max }
    }
}

impl CurveBench {
    fn new(seed: u64) -> Self {
        Self { cost: CostModel::default(), random: ServerRandom::new(seed) }
    }

    /// Returns a curve after this many batches of mixed sizes that took `curve(n)` milliseconds.
    fn learned(seed: u64, batches: u32, curve: impl Fn(u32) -> f64) -> Self {
        let mut bench = Self::new(seed);
        bench.feed(batches, &MIXED, curve);
        bench
    }

    /// Feeds a batch of one of these sizes that took `curve(n)` milliseconds, with 4 % noise.
    /// Returns `true` if it was taken for a change.
    fn one(&mut self, sizes: &[u32], curve: impl Fn(u32) -> f64) -> bool {
        let items = self.random.pick(sizes);
        let millis = curve(items) * self.random.noise(0.04);
        self.exactly(items, millis)
    }

    fn exactly(&mut self, items: u32, millis: f64) -> bool {
        self.cost.observe(CostSample { items, weight: same(items), nanos: round_to_u64(millis * 1e6) })
    }

    fn feed(&mut self, batches: u32, sizes: &[u32], curve: impl Fn(u32) -> f64) {
        for _ in 0..batches {
            self.one(sizes, &curve);
        }
    }

    /// Returns the relative errors at these sizes.
    fn errors(&self, sizes: impl IntoIterator<Item = u32>, curve: impl Fn(u32) -> f64) -> Vec<f64> {
        sizes.into_iter().map(|items| (to_f64(self.cost.time(items)) / (curve(items) * 1e6) - 1.0).abs()).collect()
    }

    fn worst(&self, sizes: impl IntoIterator<Item = u32>, curve: impl Fn(u32) -> f64) -> f64 {
        self.errors(sizes, curve).into_iter().fold(0.0, f64::max)
    }

    fn mean_error(&self, sizes: impl IntoIterator<Item = u32>, curve: impl Fn(u32) -> f64) -> f64 {
        mean(&self.errors(sizes, curve))
    }
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / to_f64(u64::try_from(of.len()).unwrap())
}

/// Returns the weight of items that all weigh the same.
fn same(items: u32) -> Weight {
    Weight { sum: u64::from(items), max: 1 }
}

fn affine(items: u32) -> f64 {
    4.0 + 0.25 * f64::from(items)
}

fn pow2(items: u32) -> f64 {
    3.0 + 0.4 * f64::from(items.next_power_of_two())
}

fn tile(items: u32) -> f64 {
    2.0 + 4.0 * f64::from(items.div_ceil(8))
}

fn thrash(items: u32) -> f64 {
    5.0 + 0.02 * f64::from(items) + 0.6 * f64::from(items.saturating_sub(16))
}
