//! Maximum number of calls in flight at which none waits inside the server, from the load curve of
//! a cost class.
//!
//! If no call ever has the server to itself, the calls at such light loads show the time of a lone
//! call. The time between two answers shows it only if the server is known to run one call after
//! the other: a server that runs many at once answers as often.

use super::super::math::to_f64;

/// Number of cells, one for each power of two of the number in flight: up to 8191.
const CELLS: usize = 13;
/// Maximum number of samples in the running mean of a cell.
const MEMORY: f64 = 30.0;
/// Minimum number of samples for a cell to count.
const SAMPLES_MIN: f64 = 2.0;
/// Maximum ratio of the latency beside other calls to that of as many lone calls in turn at which a
/// single lone call counts. No server is slower than one call after the other, apart from noise, so
/// the lone call was an exception, such as one that was answered from a cache.
const IN_TURN_MAX: f64 = 1.5;
/// Mean fraction of the call in service that is left when another one arrives beside it.
const RESIDUAL: f64 = 0.5;
/// Maximum knee of a server that runs one call after the other.
const SERIAL_MAX: f64 = 1.5;
/// Minimum factor by which calls in flight slow each other down on such a server.
const SLOWED: f64 = 1.6;

/// Ratio by which the number in flight may exceed its mean at a steady load.
const NOISE: f64 = 1.05;
/// Ratio of a new to the old bound of light loads below which the old one was wrong: calls at that
/// load had waited.
const FALL: f64 = 0.5;

/// Load curve: mean latency by the number in flight.
#[derive(Debug, Clone, Default)]
pub(super) struct LightLoadBound {
    cells: [LightCell; CELLS],
    /// Maximum number in flight at a light load.
    bound: f64,
}

/// Classification of a call by the load at its dispatch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LoadVerdict {
    /// `true` if nothing waited inside the server, so that the call took as long as a lone one.
    pub(super) light: bool,
    /// `true` if earlier calls were classified as light by mistake.
    pub(super) mistaken: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct LightCell {
    beside: f64,
    latency: f64,
    samples: f64,
}

// === impl LightLoadBound ===

impl LightLoadBound {
    /// Records and classifies a call that was sent with `beside` calls in flight, itself included.
    pub(super) fn classify(&mut self, beside: u32, nanos: u64) -> LoadVerdict {
        self.observe(beside, to_f64(nanos));
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

    /// Returns the number of calls in flight up to which none waits: by Little's law, the highest
    /// throughput times the latency at the lowest load.
    fn most(&self) -> Option<f64> {
        let first = self.cells().next()?;
        let rate = self.cells().map(LightCell::throughput).fold(0.0, f64::max);
        Some((rate * first.latency).max(1.0))
    }

    /// Returns `true` if the server runs one call after the other.
    pub(super) fn is_serial(&self) -> bool {
        let (Some(first), Some(last), Some(most)) = (self.cells().next(), self.cells().last(), self.most()) else {
            return false;
        };
        most < SERIAL_MAX && last.latency > SLOWED * first.latency
    }

    /// Returns `true` if calls were sent when nothing was in flight, and count.
    pub(super) fn has_lone_call(&self) -> bool {
        self.cells().next().is_some_and(|first| first.beside < SERIAL_MAX)
    }

    /// Returns the cells that count. Callers that are never idle send a single call when nothing is
    /// in flight, the very first one. It counts too if the others agree with it.
    fn cells(&self) -> impl Iterator<Item = &LightCell> {
        let counts = |cell: &&LightCell| cell.samples >= SAMPLES_MIN;
        let [lone, rest @ ..] = &self.cells;
        let next = rest.iter().find(counts);
        let agrees = |next: &LightCell| next.latency <= IN_TURN_MAX * next.beside * lone.latency;
        let is_first = counts(&lone) || lone.samples > 0.0 && next.is_some_and(agrees);
        is_first.then_some(lone).into_iter().chain(rest.iter().filter(counts))
    }
}

// === impl LightCell ===

impl LightCell {
    fn throughput(&self) -> f64 {
        let beside = if self.beside < SERIAL_MAX { self.beside } else { self.beside - RESIDUAL };
        beside / self.latency.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(points: &[(u32, f64)]) -> LightLoadBound {
        let mut loads = LightLoadBound::default();
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
    fn a_falling_bound_is_reported_as_mistaken_once() {
        let mut loads = LightLoadBound::default();
        let steady: Vec<LoadVerdict> = (0..20).map(|_| loads.classify(48, 240_000_000)).collect();
        assert!(steady[1..].iter().all(|verdict| !verdict.mistaken), "{steady:?}");
        let idle: Vec<LoadVerdict> = (0..4).map(|_| loads.classify(1, 5_000_000)).collect();
        assert_eq!(idle.iter().filter(|verdict| verdict.mistaken).count(), 1, "{idle:?}");
        assert!(loads.classify(1, 5_000_000).light && !loads.classify(48, 240_000_000).light);
    }

    #[test]
    fn a_single_lone_call_counts_if_the_other_loads_agree_with_it() {
        let mut steady = loads(&[(2, 50e6), (5, 100e6), (16, 320e6)]);
        assert!(!steady.is_serial() && !steady.has_lone_call());
        steady.observe(1, 20e6);
        assert!(steady.is_serial() && steady.has_lone_call() && steady.most().unwrap() < 1.1);
        let mut wide = loads(&[(2, 200e6), (16, 200e6), (48, 200e6)]);
        wide.observe(1, 1e6);
        assert!(!wide.is_serial() && !wide.has_lone_call(), "answered from a cache");
    }

    #[test]
    fn one_load_alone_does_not_make_a_server_serial() {
        let steady = loads(&[(48, 240e6)]);
        assert!(!steady.is_serial() && steady.most().unwrap() > 40.0);
        assert_eq!(LightLoadBound::default().most(), None);
    }
}
