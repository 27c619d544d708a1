//! Properties of a metric that decide its registration: type, buckets, labels, help text.

/// Type of a metric, with the buckets of histograms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A monotonic counter.
    Counter,
    /// A gauge.
    Gauge,
    /// A histogram of durations in seconds.
    Seconds,
    /// A histogram of call durations in seconds, up to the response time of a language model.
    CallSeconds,
    /// A histogram of integers, with powers of two as buckets.
    Sizes,
    /// A histogram of ratios between 0 and 1.
    Ratio,
}

/// One row of a table of metrics.
#[derive(Debug, Clone, Copy)]
pub(super) struct MetricRow {
    pub(super) name: &'static str,
    pub(super) kind: MetricKind,
    /// Label names, comma-separated.
    pub(super) labels: &'static str,
    pub(super) help: &'static str,
    /// `true` if most processes do not use the feature of the metric, and do not expose it.
    pub(super) is_optional: bool,
}

// === impl MetricKind ===

impl MetricKind {
    /// Returns the upper bounds of a histogram's buckets, empty for counters and gauges. There are
    /// few, because every bucket is a series.
    #[must_use]
    pub const fn buckets(self) -> &'static [f64] {
        match self {
            Self::Counter | Self::Gauge => &[],
            Self::Seconds => &[0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0],
            Self::CallSeconds => {
                &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
            }
            Self::Sizes => &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0],
            Self::Ratio => &[0.1, 0.25, 0.5, 0.75, 0.9, 1.0],
        }
    }

    /// Returns the type in the exposition's `TYPE` line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Seconds | Self::CallSeconds | Self::Sizes | Self::Ratio => "histogram",
        }
    }
}
