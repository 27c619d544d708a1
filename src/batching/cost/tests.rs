//! Tests of the cost curve: learning from samples, and robustness against misleading ones.

use super::super::math::float;
use super::*;

mod change;
mod learning;

/// A realistic mix of sizes: many small batches, few large ones.
const MIXED: [u32; 16] = [1, 1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 48, 64];

/// `SplitMix64` generator.
struct Random(u64);

/// A cost curve and the random source of the server it learns from.
struct CurveBench {
    cost: CostModel,
    random: Random,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }

    fn uniform(&mut self) -> f64 {
        float(self.next() >> 11) / float(1 << 53)
    }

    /// Returns a value with mean 1 and this standard deviation, as the sum of twelve uniform ones.
    fn noise(&mut self, sigma: f64) -> f64 {
        1.0 + sigma * ((0..12).map(|_| self.uniform()).sum::<f64>() - 6.0)
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
        Self { cost: CostModel::default(), random: Random(seed) }
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
        self.cost.observe(CostSample { items, weight: same(items), nanos: whole(millis * 1e6) })
    }

    fn feed(&mut self, batches: u32, sizes: &[u32], curve: impl Fn(u32) -> f64) {
        for _ in 0..batches {
            self.one(sizes, &curve);
        }
    }

    /// Returns the relative errors at these sizes.
    fn errors(&self, sizes: impl IntoIterator<Item = u32>, curve: impl Fn(u32) -> f64) -> Vec<f64> {
        sizes.into_iter().map(|items| (float(self.cost.time(items)) / (curve(items) * 1e6) - 1.0).abs()).collect()
    }

    fn worst(&self, sizes: impl IntoIterator<Item = u32>, curve: impl Fn(u32) -> f64) -> f64 {
        self.errors(sizes, curve).into_iter().fold(0.0, f64::max)
    }

    fn mean_error(&self, sizes: impl IntoIterator<Item = u32>, curve: impl Fn(u32) -> f64) -> f64 {
        mean(&self.errors(sizes, curve))
    }
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / float(u64::try_from(of.len()).unwrap())
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
