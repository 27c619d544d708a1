//! How long one execution takes, by name (`scheduling.md` §1, "Curves").
//!
//! Compute time only, in milliseconds: network, host work, noise and queueing belong to the upstream. Weights count in the two curves of sequence
//! models. `parse` reads one from a text. It leaves out how a curve is learned; what was learned elsewhere is [`Curve::Measured`].

mod parse;

/// A cost curve; `a` is what every execution costs, `b` what an item costs, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Curve {
    /// `a + b·n`.
    Affine {
        /// Of an execution.
        a: f64,
        /// Of an item.
        b: f64,
    },
    /// `a + b·n + c·n·max w`: dense padding, every item costs as much as the heaviest.
    Padded {
        /// Of an execution.
        a: f64,
        /// Of an item.
        b: f64,
        /// Of a unit of padded weight.
        c: f64,
    },
    /// `a + b·n + c·Σw`: packed kernels.
    Ragged {
        /// Of an execution.
        a: f64,
        /// Of an item.
        b: f64,
        /// Of a unit of weight.
        c: f64,
    },
    /// `a + b·(next power of two)`: compiled shapes.
    Pow2 {
        /// Of an execution.
        a: f64,
        /// Of an item of the shape.
        b: f64,
    },
    /// `a + b·width·⌈n / width⌉`: waves.
    Tile {
        /// Of an execution.
        a: f64,
        /// Of an item of a full wave.
        b: f64,
        /// Items in a wave.
        width: u32,
    },
    /// `a + b` for each item up to the knee, `a + beyond` for each past it. A *roofline* is nearly flat, then linear; one that *thrashes* costs
    /// more per item past the knee than a smaller batch would.
    Knee {
        /// Of an execution.
        a: f64,
        /// Of an item up to the knee.
        b: f64,
        /// Items up to which `b` holds.
        knee: u32,
        /// Of an item past the knee.
        beyond: f64,
    },
    /// By size, as it was measured: the first is what one item takes; past the last an item costs what it costs there on average.
    Measured {
        /// Milliseconds. Kept as long as the process, so that curves stay small and are copied freely: a command reads one profile.
        millis: &'static [f64],
    },
}

/// What an execution holds, as far as it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Items.
    pub items: u32,
    /// Weight in all.
    pub sum: u64,
    /// Weight of the heaviest item.
    pub max: u64,
}

// === impl Curve ===

impl Curve {
    /// The time of an execution, in milliseconds.
    #[must_use]
    pub fn millis(&self, load: Load) -> f64 {
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

    /// The time of an execution of this many items of weight 1, in milliseconds.
    #[must_use]
    pub fn millis_of(&self, items: u32) -> f64 {
        self.millis(Load::of(items))
    }

    /// The most items a second that batches of up to `cap` items can carry: the largest `n / t(n)`.
    #[must_use]
    pub fn rate_max(&self, cap: u32) -> f64 {
        (1..=cap.max(1)).map(|n| f64::from(n) / self.millis_of(n) * 1000.0).fold(0.0, f64::max)
    }
}

// === impl Load ===

impl Load {
    /// This many items of weight 1.
    #[must_use]
    pub fn of(items: u32) -> Self {
        Self { items, sum: u64::from(items), max: 1 }
    }

    /// Weight once every item is as heavy as the heaviest.
    #[must_use]
    pub fn padded(&self) -> u64 {
        u64::from(self.items).saturating_mul(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_curve_has_the_steps_of_its_name() {
        let at = |curve: Curve, items| curve.millis_of(items);
        let close = |x: f64, y: f64| assert!((x - y).abs() < 1e-9, "{x} is not {y}");
        close(at(Curve::Affine { a: 4.0, b: 0.25 }, 64), 20.0);
        let pow2 = Curve::Pow2 { a: 3.0, b: 0.4 };
        close(at(pow2, 1), 3.4);
        close(at(pow2, 17), 3.0 + 0.4 * 32.0);
        close(at(pow2, 32), 3.0 + 0.4 * 32.0);
        let tile = Curve::Tile { a: 2.0, b: 0.5, width: 8 };
        close(at(tile, 8), 6.0);
        close(at(tile, 9), 10.0);
        let thrash = Curve::Knee { a: 5.0, b: 0.02, knee: 16, beyond: 0.6 };
        close(at(thrash, 17), 5.0 + 0.32 + 0.6);
        let mixed = Load { items: 4, sum: 100, max: 60 };
        close(Curve::Padded { a: 4.0, b: 0.05, c: 0.002 }.millis(mixed), 4.0 + 0.2 + 0.48);
        close(Curve::Ragged { a: 4.0, b: 0.05, c: 0.002 }.millis(mixed), 4.0 + 0.2 + 0.2);
    }

    #[test]
    fn the_best_rate_lies_before_the_knee_where_it_thrashes() {
        let thrash = Curve::Knee { a: 5.0, b: 0.02, knee: 16, beyond: 0.6 };
        assert!((thrash.rate_max(64) - 16.0 / thrash.millis_of(16) * 1000.0).abs() < 1e-9);
    }
}
