//! Registration of series in a registry of their own. Everything that is recorded goes through a
//! handle from here, whose name, labels and help text are in a row of [`super::names`].

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::kind::{MetricKind, MetricRow};

/// Metadata of every series.
static METADATA: Metadata<'static> = Metadata::new("groupage", Level::INFO, None);

/// A recorder with a registry of its own, which renders it too.
pub(super) struct MetricRecorder {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

/// Registers the series that a process has from its start.
pub(super) struct SeriesRegistrar<'a> {
    recorder: &'a PrometheusRecorder,
    /// Value of the label `port` of gauges, if they have it.
    port: Option<&'a str>,
}

/// A handle that records into one series.
pub(super) trait SeriesHandle: Sized {
    /// `true` if the values of several ports cannot be added up, so that each port has a series.
    const IS_PER_PORT: bool;

    /// Registers a series, or returns the handle of the one that is registered.
    fn register(recorder: &PrometheusRecorder, key: &Key) -> Self;
}

// === impl MetricRecorder ===

impl MetricRecorder {
    /// Creates a recorder that knows the buckets and the help texts of all metrics.
    pub(super) fn new(metrics: impl IntoIterator<Item = impl Into<MetricRow>>) -> Self {
        let rows: Vec<MetricRow> = metrics.into_iter().map(Into::into).collect();
        let mut builder = PrometheusBuilder::new();
        for row in &rows {
            let buckets = row.kind.buckets();
            if !buckets.is_empty() {
                builder = builder
                    .set_buckets_for_metric(Matcher::Full(row.name.into()), buckets)
                    .expect("the buckets are constants and none is empty");
            }
        }
        let recorder = builder.build_recorder();
        rows.iter().for_each(|row| describe(&recorder, row));
        Self { handle: recorder.handle(), recorder }
    }

    /// Returns the registrar of series. If there is a port, gauges have the label `port`.
    pub(super) const fn registrar<'a>(&'a self, port: Option<&'a str>) -> SeriesRegistrar<'a> {
        SeriesRegistrar { recorder: &self.recorder, port }
    }

    /// Returns a counter, which is registered at its first use. `values` are those of the metric's
    /// labels, in their order.
    pub(super) fn counter(&self, metric: impl Into<MetricRow>, values: &[SharedString]) -> Counter {
        self.handle_of(metric.into(), values, None)
    }

    /// Returns a gauge, which is registered at its first use. `values` are those of the metric's
    /// labels, in their order.
    pub(super) fn gauge(&self, metric: impl Into<MetricRow>, values: &[SharedString]) -> Gauge {
        self.handle_of(metric.into(), values, None)
    }

    /// Returns a gauge with the label `port`, if there is a port.
    pub(super) fn port_gauge(
        &self,
        metric: impl Into<MetricRow>,
        values: &[SharedString],
        port: Option<&str>,
    ) -> Gauge {
        self.handle_of(metric.into(), values, port)
    }

    /// Returns a histogram, which is registered at its first use. `values` are those of the
    /// metric's labels, in their order.
    pub(super) fn histogram(&self, metric: impl Into<MetricRow>, values: &[SharedString]) -> Histogram {
        self.handle_of(metric.into(), values, None)
    }

    /// Renders all metrics in the Prometheus text format.
    pub(super) fn render(&self) -> String {
        self.handle.run_upkeep();
        self.handle.render()
    }

    /// Moves recorded histogram samples to their buckets, and releases their memory.
    pub(super) fn run_upkeep(&self) {
        self.handle.run_upkeep();
    }

    fn handle_of<H: SeriesHandle>(&self, row: MetricRow, values: &[SharedString], port: Option<&str>) -> H {
        let names = row.labels.split_terminator(", ");
        debug_assert_eq!(names.clone().count(), values.len(), "labels of {}", row.name);
        let labels = names.zip(values).map(|(name, value)| Label::new(name, value.clone()));
        self.registrar(port).register(row.name, labels)
    }
}

// === impl SeriesRegistrar ===

impl SeriesRegistrar<'_> {
    /// Registers the series of a metric without labels.
    pub(super) fn series<H: SeriesHandle>(&self, name: &'static str) -> H {
        self.register(name, [])
    }

    /// Registers a series for each value of the only label of a metric.
    pub(super) fn series_of<H: SeriesHandle>(
        &self,
        name: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = &'static str>,
    ) -> Vec<H> {
        let of = |value| self.register(name, [Label::from_static_parts(label, value)]);
        values.into_iter().map(of).collect()
    }

    fn register<H: SeriesHandle>(&self, name: &'static str, labels: impl IntoIterator<Item = Label>) -> H {
        let port = self.port.filter(|_| H::IS_PER_PORT).map(|port| Label::new("port", port.to_owned()));
        let labels: Vec<Label> = labels.into_iter().chain(port).collect();
        H::register(self.recorder, &Key::from_parts(name, labels))
    }
}

// === impl SeriesHandle ===

impl SeriesHandle for Counter {
    const IS_PER_PORT: bool = false;

    fn register(recorder: &PrometheusRecorder, key: &Key) -> Self {
        recorder.register_counter(key, &METADATA)
    }
}

impl SeriesHandle for Gauge {
    const IS_PER_PORT: bool = true;

    fn register(recorder: &PrometheusRecorder, key: &Key) -> Self {
        recorder.register_gauge(key, &METADATA)
    }
}

impl SeriesHandle for Histogram {
    const IS_PER_PORT: bool = false;

    fn register(recorder: &PrometheusRecorder, key: &Key) -> Self {
        recorder.register_histogram(key, &METADATA)
    }
}

/// Describes a metric by its kind and its help text.
fn describe(recorder: &PrometheusRecorder, row: &MetricRow) {
    let (name, help): (KeyName, SharedString) = (row.name.into(), row.help.into());
    match row.kind {
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
