//! Named cost curves: the time of one execution as a function of its items and weights.
//!
//! A curve covers compute time only, in milliseconds. Network, host work, noise and queueing belong
//! to the upstream. Weights count only in the two curves of sequence models. The module `parse`
//! parses a curve from text. How a curve is learned is left out; a curve measured elsewhere is
//! [`CostCurve::Measured`].

mod parse;

/// A cost curve. `a` is the fixed cost of an execution and `b` the cost of an item, in
/// milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CostCurve {
    /// `a + b·n`.
    Affine {
        /// Cost of an execution.
        a: f64,
        /// Cost of an item.
        b: f64,
    },
    /// `a + b·n + c·n·max w`: dense padding, where every item costs as much as the heaviest.
    Padded {
        /// Cost of an execution.
        a: f64,
        /// Cost of an item.
        b: f64,
        /// Cost of a unit of padded weight.
        c: f64,
    },
    /// `a + b·n + c·Σw`: packed kernels.
    Ragged {
        /// Cost of an execution.
        a: f64,
        /// Cost of an item.
        b: f64,
        /// Cost of a unit of weight.
        c: f64,
    },
    /// `a + b·(next power of two)`: compiled shapes.
    Pow2 {
        /// Cost of an execution.
        a: f64,
        /// Cost of an item of the shape.
        b: f64,
    },
    /// `a + b·width·⌈n / width⌉`: waves.
    Tile {
        /// Cost of an execution.
        a: f64,
        /// Cost of an item of a full wave.
        b: f64,
        /// Number of items in a wave.
        width: u32,
    },
    /// `a + b·min(n, knee) + beyond·max(n − knee, 0)`: the cost of an item changes at the knee. A
    /// *roofline* is nearly flat before the knee and linear after it. A curve that *thrashes* costs
    /// more per item beyond the knee than a smaller batch does.
    Knee {
        /// Cost of an execution.
        a: f64,
        /// Cost of an item up to the knee.
        b: f64,
        /// Number of items up to which `b` applies.
        knee: u32,
        /// Cost of an item beyond the knee.
        beyond: f64,
    },
    /// Measured times by number of items, starting with one item. Beyond the last entry, the
    /// average cost per item of that entry applies.
    Measured {
        /// Times in milliseconds. The slice lives as long as the process, so that curves stay small
        /// and `Copy`; a command reads only one profile.
        millis: &'static [f64],
    },
}

/// The properties of an execution that determine its cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchLoad {
    /// Number of items.
    pub items: u32,
    /// Sum of the weights.
    pub sum: u64,
    /// Weight of the heaviest item.
    pub max: u64,
}

// === impl CostCurve ===

impl CostCurve {
    /// Returns the time of an execution, in milliseconds.
    #[must_use]
    pub fn millis(&self, load: BatchLoad) -> f64 {
        let n = f64::from(load.items);
        match *self {
            Self::Affine { a, b } => a + b * n,
            Self::Padded { a, b, c } => a + b * n + c * n * load.max as f64,
            Self::Ragged { a, b, c } => a + b * n + c * load.sum as f64,
            Self::Pow2 { a, b } => a + b * f64::from(load.items.max(1).next_power_of_two()),
            Self::Tile { a, b, width } => a + b * f64::from(load.items.div_ceil(width.max(1)) * width.max(1)),
            Self::Measured { millis } => {
                let at = usize::try_from(load.items.max(1)).unwrap_or(usize::MAX);
                let last = millis.last().copied().unwrap_or(0.0);
                let more = n / f64::from(u32::try_from(millis.len().max(1)).unwrap_or(u32::MAX));
                millis.get(at - 1).copied().unwrap_or(last * more.max(1.0))
            }
            Self::Knee { a, b, knee, beyond } => {
                a + b * f64::from(load.items.min(knee)) + beyond * f64::from(load.items.saturating_sub(knee))
            }
        }
    }

    /// Returns the time of an execution with this number of items of weight 1, in milliseconds.
    #[must_use]
    pub fn millis_of(&self, items: u32) -> f64 {
        self.millis(BatchLoad::of_items(items))
    }

    /// Returns the maximum throughput of batches of up to `cap` items, in items per second: the
    /// largest `n / t(n)`.
    #[must_use]
    pub fn rate_max(&self, cap: u32) -> f64 {
        (1..=cap.max(1)).map(|n| f64::from(n) / self.millis_of(n) * 1000.0).fold(0.0, f64::max)
    }
}

// === impl BatchLoad ===

impl BatchLoad {
    /// Creates a load of this number of items of weight 1.
    #[must_use]
    pub fn of_items(items: u32) -> Self {
        Self { items, sum: u64::from(items), max: 1 }
    }

    /// Returns the padded weight: every item counts as much as the heaviest.
    #[must_use]
    pub fn padded_weight(&self) -> u64 {
        u64::from(self.items).saturating_mul(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_curve_has_the_steps_of_its_name() {
        let at = |curve: CostCurve, items| curve.millis_of(items);
        let close = |x: f64, y: f64| assert!((x - y).abs() < 1e-9, "{x} is not {y}");
        close(at(CostCurve::Affine { a: 4.0, b: 0.25 }, 64), 20.0);
        let pow2 = CostCurve::Pow2 { a: 3.0, b: 0.4 };
        close(at(pow2, 1), 3.4);
        close(at(pow2, 17), 3.0 + 0.4 * 32.0);
        close(at(pow2, 32), 3.0 + 0.4 * 32.0);
        let tile = CostCurve::Tile { a: 2.0, b: 0.5, width: 8 };
        close(at(tile, 8), 6.0);
        close(at(tile, 9), 10.0);
        let thrash = CostCurve::Knee { a: 5.0, b: 0.02, knee: 16, beyond: 0.6 };
        close(at(thrash, 17), 5.0 + 0.32 + 0.6);
        let mixed = BatchLoad { items: 4, sum: 100, max: 60 };
        close(CostCurve::Padded { a: 4.0, b: 0.05, c: 0.002 }.millis(mixed), 4.0 + 0.2 + 0.48);
        close(CostCurve::Ragged { a: 4.0, b: 0.05, c: 0.002 }.millis(mixed), 4.0 + 0.2 + 0.2);
    }

    #[test]
    fn the_maximum_rate_of_a_thrashing_server_is_at_its_knee() {
        let thrash = CostCurve::Knee { a: 5.0, b: 0.02, knee: 16, beyond: 0.6 };
        assert!((thrash.rate_max(64) - 16.0 / thrash.millis_of(16) * 1000.0).abs() < 1e-9);
    }
}
