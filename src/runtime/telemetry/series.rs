//! Registration of series: metadata, keys, help texts, and the conversion to the type of gauges.

use metrics::{Key, KeyName, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::names::{Metric, MetricKind};

/// Metadata of every series.
pub(super) static METADATA: Metadata<'static> = Metadata::new("groupage", Level::INFO, None);

/// Returns the key of a series.
pub(super) fn key(metric: Metric, labels: Vec<Label>) -> Key {
    Key::from_parts(metric.name(), labels)
}

/// Describes a metric by its kind and its help text.
pub(super) fn describe(recorder: &PrometheusRecorder, name: &'static str, kind: MetricKind, help: &'static str) {
    let (name, help): (KeyName, _) = (name.into(), help.into());
    match kind {
        MetricKind::Counter => recorder.describe_counter(name, None, help),
        MetricKind::Gauge => recorder.describe_gauge(name, None, help),
        MetricKind::Seconds | MetricKind::CallSeconds => recorder.describe_histogram(name, Some(Unit::Seconds), help),
        MetricKind::Sizes | MetricKind::Ratio => recorder.describe_histogram(name, None, help),
    }
}

/// Converts to the type of gauges. Counts stay below 2^53 and are represented exactly.
#[expect(clippy::cast_precision_loss, reason = "what we count stays below 2^53")]
pub(super) fn to_f64(value: u64) -> f64 {
    value as f64
}
