//! The counters of a pod's sidecar since its start, read from its `/metrics` through the API
//! server. No port is forwarded; the permission to `get` `pods/proxy` suffices.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use http::Request;
use kube::Client;

use super::cluster::describe_api_error;
use crate::telemetry::names::Metric;

/// Timeout for one pod: a `NetworkPolicy` may drop packets of the API server.
const POD_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout for all pods. Those that were not read by then are left out.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of concurrent requests.
const CONCURRENCY_MAX: usize = 16;

/// Counters of a sidecar.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PodMetrics {
    /// Number of calls served.
    pub(super) calls: u64,
    /// Number of calls that were not merged.
    pub(super) passed: u64,
    /// Most frequent reason of these.
    pub(super) passed_reason: Option<String>,
    /// Median number of items in a batch.
    pub(super) batch_items: Option<u64>,
    /// 99th percentile of the call latency.
    pub(super) latency: Option<Duration>,
    /// Upstream calls saved by batching, in percent of the merged calls.
    pub(super) saved: Option<u64>,
}

/// Namespace and name of a pod, and the number of its metrics port.
pub(super) type MetricsPort = (String, String, u64);

/// Error of reading the counters of a pod.
enum PodError {
    /// The user lacks the permission, for this pod and for all others.
    Forbidden(String),
    Other(String),
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Reads the counters of pods, by namespace and name. Pods that cannot be read are left out; the
/// first error is returned for all of them.
pub(super) async fn read(
    client: &Client,
    pods: Vec<MetricsPort>,
) -> (BTreeMap<(String, String), PodMetrics>, Option<String>) {
    let requests = stream::iter(pods).map(|(space, pod, port)| async move {
        let path = format!("/api/v1/namespaces/{space}/pods/{pod}:{port}/proxy/metrics");
        let text = async {
            let request = Request::get(path).body(Vec::new()).map_err(|error| PodError::Other(error.to_string()))?;
            match tokio::time::timeout(POD_TIMEOUT, client.request_text(request)).await {
                Ok(Ok(text)) => Ok(text),
                Ok(Err(error @ kube::Error::Api(_))) if is_forbidden(&error) => {
                    Err(PodError::Forbidden(describe_api_error(&error)))
                }
                Ok(Err(error)) => Err(PodError::Other(describe_api_error(&error))),
                Err(_) => Err(PodError::Other(format!("no response from pod/{pod} within {POD_TIMEOUT:?}"))),
            }
        };
        (text.await, (space, pod))
    });
    let mut found = BTreeMap::new();
    let mut refused = None;
    let until = Box::pin(tokio::time::sleep(TOTAL_TIMEOUT));
    let mut answers = requests.buffer_unordered(CONCURRENCY_MAX).take_until(until);
    while let Some((text, key)) = answers.next().await {
        match text {
            Ok(text) => _ = found.insert(key, PodMetrics::of(&text)),
            Err(PodError::Forbidden(reason)) => return (found, Some(reason)),
            Err(PodError::Other(reason)) => refused = refused.or(Some(reason)),
        }
    }
    (found, refused)
}

// === impl PodMetrics ===

impl PodMetrics {
    /// Returns the number of calls that were merged, or could have been.
    pub(super) const fn merged(&self) -> u64 {
        self.calls.saturating_sub(self.passed)
    }

    /// Parses the Prometheus text format, as far as this version writes it.
    fn of(text: &str) -> Self {
        let mut passed: BTreeMap<&str, u64> = BTreeMap::new();
        let (mut calls, mut saved) = (0.0, 0.0);
        let (mut batches, mut latencies) = (HistogramBuckets::default(), HistogramBuckets::default());
        for (name, labels, value) in text.lines().filter_map(sample) {
            let bucket = name.strip_suffix("_bucket");
            if name == Metric::Calls.name() {
                let served = label(labels, "outcome") == Some("served");
                calls += if served { value } else { 0.0 };
            } else if name == Metric::CallsPassed.name() {
                *passed.entry(label(labels, "reason").unwrap_or("?")).or_default() += whole(value);
            } else if name == Metric::UpstreamCallsSaved.name() {
                saved += value;
            } else if bucket == Some(Metric::BatchItems.name()) {
                batches.add(labels, value);
            } else if bucket == Some(Metric::CallDuration.name()) && label(labels, "outcome") != Some("passed") {
                latencies.add(labels, value);
            }
        }
        let most = passed.iter().max_by_key(|(_, count)| **count).filter(|(_, count)| **count > 0);
        let passed_reason = most.map(|(reason, _)| (*reason).to_owned());
        let (calls, passed) = (whole(calls), passed.values().sum());
        let numbers = Self { calls, passed, passed_reason, ..Self::default() };
        Self {
            batch_items: batches.quantile(0.5).map(whole),
            latency: latencies.quantile(0.99).map(Duration::from_secs_f64),
            saved: (numbers.merged() > 0).then(|| (whole(saved) * 100 / numbers.merged()).min(100)),
            ..numbers
        }
    }
}

/// Cumulative buckets of a histogram, summed up over all its series.
#[derive(Debug, Default)]
struct HistogramBuckets(Vec<(f64, f64)>);

// === impl HistogramBuckets ===

impl HistogramBuckets {
    fn add(&mut self, labels: &str, count: f64) {
        let Some(bound) = label(labels, "le").and_then(|bound| bound.parse::<f64>().ok()) else { return };
        match self.0.iter_mut().find(|(known, _)| known.total_cmp(&bound).is_eq()) {
            Some((_, sum)) => *sum += count,
            None => self.0.push((bound, count)),
        }
    }

    /// Returns a quantile, interpolated linearly within its bucket as in Prometheus'
    /// `histogram_quantile`.
    fn quantile(mut self, share: f64) -> Option<f64> {
        self.0.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let all = self.0.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
        let rank = share * all;
        let at = self.0.iter().position(|(_, count)| *count >= rank)?;
        let (bound, count) = *self.0.get(at)?;
        let (low, before) = at.checked_sub(1).and_then(|at| self.0.get(at).copied()).unwrap_or((0.0, 0.0));
        if bound.is_infinite() {
            return Some(low);
        }
        Some(low + (bound - low) * (rank - before) / (count - before).max(f64::MIN_POSITIVE))
    }
}

/// Splits a line into name, labels and value.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (series, value) = line.trim_end().rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    Some((name, labels, value.parse().ok()?))
}

/// Returns the value of a label. Label values of the proxy contain no quotes.
fn label<'a>(labels: &'a str, key: &str) -> Option<&'a str> {
    labels.trim_end_matches('}').split(',').find_map(|part| {
        let (name, value) = part.split_once('=')?;
        (name == key).then(|| value.trim_matches('"'))
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters are whole and not negative")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# TYPE groupage_calls_total counter
groupage_calls_total{policy="",protocol="v1",outcome="served"} 90
groupage_calls_total{policy="",protocol="",outcome="served"} 10
groupage_calls_total{policy="",protocol="v1",outcome="rejected"} 1000
groupage_calls_passed_total{reason="unrecognised"} 8
groupage_calls_passed_total{reason="too_large"} 2
groupage_batch_items_bucket{le="1"} 0
groupage_batch_items_bucket{le="8"} 10
groupage_batch_items_bucket{le="+Inf"} 10
groupage_upstream_calls_saved_total 79
groupage_call_duration_seconds_bucket{route="a",outcome="served",le="0.1"} 50
groupage_call_duration_seconds_bucket{route="a",outcome="served",le="+Inf"} 50
groupage_call_duration_seconds_bucket{route="b",outcome="served",le="0.1"} 49
groupage_call_duration_seconds_bucket{route="b",outcome="served",le="+Inf"} 50
"#;

    #[test]
    fn calls_reasons_and_quantiles_are_read_of_all_series_together() {
        let numbers = PodMetrics::of(TEXT);
        assert_eq!((numbers.calls, numbers.merged(), numbers.passed), (100, 90, 10));
        assert_eq!(numbers.passed_reason.as_deref(), Some("unrecognised"));
        assert_eq!(numbers.batch_items, Some(5));
        assert_eq!(numbers.latency, Some(Duration::from_millis(100)));
        assert_eq!(numbers.saved, Some(87));
    }

    #[test]
    fn a_sidecar_without_calls_has_no_quantiles() {
        let numbers =
            PodMetrics::of("\ngroupage_calls_total{outcome=\"served\"} 0\ngroupage_batch_items_bucket{le=\"1\"} 0\n");
        assert_eq!(numbers, PodMetrics::default());
    }
}
