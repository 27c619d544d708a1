//! Straight line of latency over the number of requests in flight.

/// Minimum relative variance of the loads through which a line is laid: below it, the slope is
/// noise.
const SPREAD_MIN: f64 = 0.01;
/// Part of the latency of the least loaded calls from which a line through loaded ones holds for
/// them: a queue has a knee between them, and noise is below a tenth.
const LINE_HOLDS: f64 = 0.9;

/// Latency by the number in flight, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LoadLine {
    /// Latency at zero requests.
    pub(super) intercept: f64,
    slope: f64,
}

// === impl LoadLine ===

impl LoadLine {
    /// Fits the weighted least-squares line to points of load, latency and weight; `None` if the
    /// loads are nearly the same.
    pub(super) fn fit(points: impl Iterator<Item = (f64, f64, f64)>) -> Option<Self> {
        let (mut sum, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (load, latency, weight) in points {
            sum += weight;
            x += weight * load;
            y += weight * latency;
            xx += weight * load * load;
            xy += weight * load * latency;
        }
        let spread = sum * xx - x * x;
        let slope = (sum * xy - x * y) / spread;
        (spread > SPREAD_MIN * x * x).then(|| Self { intercept: (y - slope * x) / sum, slope })
    }

    /// Returns the latency of a call that has the server for itself, if the line holds for the least
    /// loaded calls too, which had this load and latency. While the load grows from the start, even
    /// these are slowed by later ones.
    pub(super) fn unloaded_latency(self, load: f64, latency: f64) -> Option<f64> {
        let at = |load: f64| self.intercept + self.slope * load;
        (at(load) >= LINE_HOLDS * latency).then(|| at(1.0))
    }
}
