//! End-to-end latency of calls, by route and outcome, the calls that a route passes through, and
//! the tokens of those that generate text.
//!
//! A histogram is registered with its first sample, since every bucket is a series and most routes
//! have only two of the six outcomes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::Histogram;
use strum::VariantArray as _;

use super::names::{Metric, Outcome};
use super::registry::{Metrics, MetricsShared};

/// The latency histograms of one route, and the number of calls that it passes through.
#[derive(Clone)]
pub struct RouteDurations(Arc<RouteHistograms>);

struct RouteHistograms {
    shared: Arc<MetricsShared>,
    route: String,
    by_outcome: [OnceLock<Histogram>; Outcome::VARIANTS.len()],
    passed_through: Arc<AtomicU64>,
    first_token: OnceLock<Histogram>,
    output_token_time: OnceLock<Histogram>,
}

// === impl Metrics ===

impl Metrics {
    /// Returns the latency histograms of a route, named as in the policy, or after the adapter if
    /// no route is configured.
    #[must_use]
    pub fn route_durations(&self, route: &str) -> RouteDurations {
        let route = self.shared.routes.take(route);
        RouteDurations(Arc::new(RouteHistograms {
            shared: self.shared.clone(),
            passed_through: self.shared.passing_routes.get_or_insert(route.clone()),
            route,
            by_outcome: [const { OnceLock::new() }; Outcome::VARIANTS.len()],
            first_token: OnceLock::new(),
            output_token_time: OnceLock::new(),
        }))
    }
}

// === impl RouteDurations ===

impl RouteDurations {
    /// Records a completed call.
    pub fn record(&self, outcome: Outcome, latency: Duration) {
        let RouteHistograms { shared, route, by_outcome, .. } = &*self.0;
        let histogram = by_outcome[outcome as usize].get_or_init(|| {
            shared.recorder.histogram(Metric::CallDuration, &[route.clone().into(), outcome.as_str().into()])
        });
        histogram.record(latency.as_secs_f64());
        shared.record_samples(1);
    }

    /// Records the time to the first part of a streamed text.
    pub fn record_first_token(&self, time: Duration) {
        let RouteHistograms { shared, route, first_token, .. } = &*self.0;
        let histogram =
            first_token.get_or_init(|| shared.recorder.histogram(Metric::FirstToken, &[route.clone().into()]));
        histogram.record(time.as_secs_f64());
        shared.record_samples(1);
    }

    /// Records the mean time between two tokens of a stream.
    pub fn record_output_token_time(&self, time: Duration) {
        let RouteHistograms { shared, route, output_token_time, .. } = &*self.0;
        let histogram = output_token_time
            .get_or_init(|| shared.recorder.histogram(Metric::OutputTokenTime, &[route.clone().into()]));
        histogram.record(time.as_secs_f64());
        shared.record_samples(1);
    }

    /// Records the tokens of a call in one direction, `input` or `output`. `source` is `usage` if
    /// the response reports them, and `events` if its events were counted.
    pub fn record_tokens(&self, direction: &'static str, source: &'static str, tokens: u64) {
        let RouteHistograms { shared, route, .. } = &*self.0;
        let labels = [route.clone().into(), direction.into(), source.into()];
        shared.recorder.counter(Metric::Tokens, &labels).increment(tokens);
    }

    /// Records a call that the route passes through because its protocol has no adapter.
    pub fn on_passthrough(&self) {
        self.0.passed_through.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for RouteDurations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RouteDurations").field(&self.0.route).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_shown_by_route_and_outcome_and_only_where_there_is_some() {
        let metrics = Metrics::new("local");
        let (one, other) = (metrics.route_durations("/v1/embeddings"), metrics.route_durations("none"));
        one.record(Outcome::Served, Duration::from_millis(30));
        one.record(Outcome::Served, Duration::from_secs(33));
        other.record(Outcome::Passed, Duration::from_micros(300));
        let text = metrics.render();
        let name = Metric::CallDuration.name();
        for line in [
            "_count{route=\"/v1/embeddings\",outcome=\"served\"} 2",
            "_bucket{route=\"/v1/embeddings\",outcome=\"served\",le=\"0.05\"} 1",
            "_bucket{route=\"/v1/embeddings\",outcome=\"served\",le=\"60\"} 2",
            "_count{route=\"none\",outcome=\"passed\"} 1",
        ] {
            assert!(text.contains(&format!("{name}{line}")), "{line}: {text}");
        }
        assert!(!text.contains(&format!("{name}_count{{route=\"none\",outcome=\"served\"")), "{text}");
    }

    #[test]
    fn tokens_and_their_times_are_shown_by_route() {
        let metrics = Metrics::new("local");
        let route = metrics.route_durations("/v1/chat/completions");
        route.record_first_token(Duration::from_millis(30));
        route.record_output_token_time(Duration::from_millis(20));
        route.record_tokens("output", "usage", 7);
        route.record_tokens("output", "usage", 5);
        let text = metrics.render();
        for line in [
            "groupage_time_to_first_token_seconds_count{route=\"/v1/chat/completions\"} 1",
            "groupage_time_per_output_token_seconds_bucket{route=\"/v1/chat/completions\",le=\"0.025\"} 1",
            "groupage_tokens_total{route=\"/v1/chat/completions\",direction=\"output\",source=\"usage\"} 12",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn calls_that_a_route_passes_through_are_counted_across_reloads() {
        let metrics = Metrics::new("local");
        metrics.route_durations("/predict").on_passthrough();
        metrics.route_durations("/predict").on_passthrough();
        metrics.route_durations("/v1/embeddings").record(Outcome::Served, Duration::from_millis(1));
        assert_eq!(metrics.passing_route_counts(), [("/predict".to_owned(), 2), ("/v1/embeddings".to_owned(), 0)]);
    }
}
