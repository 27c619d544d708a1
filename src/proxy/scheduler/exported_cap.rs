//! Gauges of the smallest caps on the size of a batch that are learned or published.

use crate::batching::LimitSource;
use crate::telemetry::Metrics;

/// The value of a cap that its gauge currently exports.
#[derive(Debug, Default)]
pub(super) struct ExportedCap {
    value: Option<u64>,
    source: Option<LimitSource>,
    /// The smallest cap that the server published.
    published: Option<u64>,
}

// === impl ExportedCap ===

impl ExportedCap {
    /// Exports the current smallest cap in the series of its source, and marks the series of a
    /// previous source as ended. Without a cap, the series of learned caps is set to infinity.
    pub(super) fn export(&mut self, metrics: &Metrics, limit: &'static str, cap: Option<u64>) {
        let source = if cap.is_some() && cap == self.published { LimitSource::Published } else { LimitSource::Learned };
        if cap == self.value && source == self.source.unwrap_or(source) {
            return;
        }
        if let Some(previous) = self.source.filter(|previous| *previous != source) {
            metrics.set_port_limit(limit, previous.as_str(), f64::NAN);
        }
        let gauge = cap.map_or(f64::INFINITY, |cap| f64::from(u32::try_from(cap).unwrap_or(u32::MAX)));
        metrics.set_port_limit(limit, source.as_str(), gauge);
        (self.value, self.source) = (cap, Some(source));
    }

    pub(super) fn set_published_min(&mut self, max: u64) {
        self.published = Some(self.published.map_or(max, |before| before.min(max)));
    }

    pub(super) fn clear_published(&mut self) {
        self.published = None;
    }
}
