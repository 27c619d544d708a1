//! Up to how many calls in flight none waits inside the server: the load curve of a cost class,
//! from calls that pass.
//!
//! Where no call ever has the server to itself, those at such loads show what a lone call takes.
//! The time between two answers shows it only where the server is known to run one call after the
//! other: a server that runs many at once answers as often.

use super::super::math::float;

/// Cells, one for each power of two of the number in flight: up to 8191, more than the calls that
/// are followed.
const CELLS: usize = 13;
/// Samples that the mean of a cell remembers.
const MEMORY: f64 = 30.0;
/// Samples of a cell that count.
const SAMPLES_MIN: f64 = 2.0;
/// What is left, on average, of the call in service when another one arrives beside it, as a part
/// of one.
const RESIDUAL: f64 = 0.5;
/// A knee below this is that of a server that runs one call after the other...
const SERIAL_MAX: f64 = 1.5;
/// ...where calls in flight slow each other down by this factor.
const SLOWED: f64 = 1.6;

/// How far the number in flight may be above its mean at a steady load.
const NOISE: f64 = 1.05;
/// The bound of light loads falls by this factor: what was taken for a light load was none.
const FALL: f64 = 0.5;

/// Mean latency over the number in flight.
#[derive(Debug, Clone, Default)]
pub(super) struct LightLoads {
    cells: [Cell; CELLS],
    /// The bound of light loads.
    bound: f64,
}

/// What a call shows by the load at which it was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LoadVerdict {
    /// Nothing waited inside the server: it took what a lone call takes.
    pub(super) light: bool,
    /// Calls that were taken for such before were none.
    pub(super) mistaken: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    beside: f64,
    latency: f64,
    samples: f64,
}

// === impl LightLoads ===

impl LightLoads {
    /// Takes the latency of a call that was sent with this many in flight, itself among them.
    pub(super) fn judge(&mut self, beside: u32, nanos: u64) -> LoadVerdict {
        self.observe(beside, float(nanos));
        let Some(most) = self.most() else { return LoadVerdict::default() };
        let mistaken = most < FALL * self.bound;
        self.bound = most;
        LoadVerdict { light: f64::from(beside) <= NOISE * most + RESIDUAL, mistaken }
    }

    fn observe(&mut self, beside: u32, latency: f64) {
        let index = usize::try_from(beside.max(1).ilog2()).unwrap_or(0).min(CELLS - 1);
        let cell = &mut self.cells[index];
        cell.samples = (cell.samples + 1.0).min(MEMORY);
        cell.latency += (latency - cell.latency) / cell.samples;
        cell.beside += (f64::from(beside.max(1)) - cell.beside) / cell.samples;
    }

    /// The calls in flight up to which none waits: the highest throughput times the latency at the
    /// lowest load.
    fn most(&self) -> Option<f64> {
        let first = self.cells().next()?;
        let rate = self.cells().map(Cell::throughput).fold(0.0, f64::max);
        Some((rate * first.latency).max(1.0))
    }

    /// Whether the server runs one call after the other.
    pub(super) fn is_serial(&self) -> bool {
        let (Some(first), Some(last), Some(most)) = (self.cells().next(), self.cells().last(), self.most()) else {
            return false;
        };
        most < SERIAL_MAX && last.latency > SLOWED * first.latency
    }

    fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(|cell| cell.samples >= SAMPLES_MIN)
    }
}

// === impl Cell ===

impl Cell {
    fn throughput(&self) -> f64 {
        let beside = if self.beside < SERIAL_MAX { self.beside } else { self.beside - RESIDUAL };
        beside / self.latency.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(points: &[(u32, f64)]) -> LightLoads {
        let mut loads = LightLoads::default();
        for (beside, latency) in points.iter().flat_map(|point| [point; 10]) {
            loads.observe(*beside, *latency);
        }
        loads
    }

    #[test]
    fn the_knee_of_the_curve_bounds_light_loads() {
        let serial = loads(&[(1, 5e6), (2, 8e6), (4, 18e6), (16, 78e6)]);
        assert!(serial.most().unwrap() < 1.1 && serial.is_serial(), "{:?}", serial.most());
        let wide = loads(&[(8, 200e6), (40, 200e6)]);
        assert!((38.0..=40.0).contains(&wide.most().unwrap()) && !wide.is_serial(), "{:?}", wide.most());
        let eight = loads(&[(1, 50e6), (4, 50e6), (8, 52e6), (32, 200e6)]);
        assert!((7.0..9.0).contains(&eight.most().unwrap()) && !eight.is_serial(), "{:?}", eight.most());
    }

    #[test]
    fn a_bound_that_falls_says_that_it_was_mistaken() {
        let mut loads = LightLoads::default();
        let steady: Vec<LoadVerdict> = (0..20).map(|_| loads.judge(48, 240_000_000)).collect();
        assert!(steady[1..].iter().all(|verdict| !verdict.mistaken), "{steady:?}");
        let idle: Vec<LoadVerdict> = (0..4).map(|_| loads.judge(1, 5_000_000)).collect();
        assert_eq!(idle.iter().filter(|verdict| verdict.mistaken).count(), 1, "{idle:?}");
        assert!(loads.judge(1, 5_000_000).light && !loads.judge(48, 240_000_000).light);
    }

    #[test]
    fn one_load_alone_does_not_make_a_server_serial() {
        let steady = loads(&[(48, 240e6)]);
        assert!(!steady.is_serial() && steady.most().unwrap() > 40.0);
        assert_eq!(LightLoads::default().most(), None);
    }
}
