use super::*;
use crate::control::wire::{OutcomeCounts, UpstreamReport};

fn pod() -> Arc<PodIdentity> {
    Arc::new(PodIdentity { uid: "u".into(), name: "n".into(), namespace: "a".into() })
}

fn report(profile: &str, served: u64) -> SidecarReport {
    let mut route = RouteReport {
        calls: OutcomeCounts { served, rejected: 1, ..OutcomeCounts::default() },
        ..RouteReport::default()
    };
    route.latency.record_n(900, served);
    route.slo_latency.record_n(900, served);
    SidecarReport {
        over_ms: 5000,
        config: Some(AppliedConfig { profile: profile.to_owned(), ..AppliedConfig::default() }),
        upstreams: vec![UpstreamReport { routes: vec![route.clone(), route], ..UpstreamReport::default() }],
        ..SidecarReport::default()
    }
}

#[test]
fn counts_are_summed_separately_for_each_consumer_until_taken() {
    let mut registry = SidecarRegistry::default();
    registry.on_open(&pod(), &Hello { config: report("p", 0).config, ..Hello::default() });
    // The first report fixes the time since which the profile is known to be in force.
    for at in [100, 105, 110] {
        registry.on_report(&pod(), report("p", 10), UnixSeconds(at));
    }
    let sidecar = registry.get_mut("u").unwrap();
    let fresh = sidecar.take_fresh();
    assert_eq!((fresh.since, fresh.from, fresh.to), (UnixSeconds(100), UnixSeconds(100), UnixSeconds(110)));
    assert_eq!((fresh.to_rollout_counts().calls(), fresh.to_rollout_counts().errors), (44, 4));
    assert_eq!(sidecar.take_fresh().to_rollout_counts().calls(), 0);
    let observation = sidecar.take_observation("u", "l4", false);
    assert_eq!(
        (observation.latency.count(), observation.over, observation.profile.as_str()),
        (40, Duration::from_secs(10), "p")
    );
}

#[test]
fn error_answers_of_the_server_count_as_errors() {
    let mut fresh = CountWindow::default();
    fresh.counts.calls = OutcomeCounts { served: 7, passed: 3, ..OutcomeCounts::default() };
    fresh.counts.server_errors = 4;
    fresh.counts.latency.record_n(900, 4);
    fresh.counts.passed_latency.record_n(900, 2);
    assert_eq!((fresh.to_rollout_counts().calls(), fresh.to_rollout_counts().errors), (10, 4));
}

#[test]
fn calls_that_pass_through_are_compared_like_others() {
    let mut registry = SidecarRegistry::default();
    registry.on_open(&pod(), &Hello { config: report("p", 0).config, ..Hello::default() });
    let mut passing = report("p", 10);
    for route in &mut passing.upstreams[0].routes {
        (route.executions, route.calls.passed) = (2, 30);
        route.passed_latency.record_n(5000, 30);
    }
    registry.on_report(&pod(), report("p", 0), UnixSeconds(100));
    registry.on_report(&pod(), passing, UnixSeconds(105));
    let counts = registry.get_mut("u").unwrap().take_fresh().to_rollout_counts();
    assert_eq!((counts.latency.count(), counts.errors, counts.batches), (2 * 40, 2, 2 * 32));
}

#[test]
fn a_report_that_spans_a_profile_change_is_not_counted() {
    let mut registry = SidecarRegistry::default();
    registry.on_open(&pod(), &Hello::default());
    for (at, profile) in [(100, "p"), (105, "p"), (110, "q"), (115, "q")] {
        registry.on_report(&pod(), report(profile, 10), UnixSeconds(at));
    }
    let fresh = registry.get_mut("u").unwrap().take_fresh();
    assert_eq!(
        (fresh.profile.as_deref(), fresh.since, fresh.to_rollout_counts().calls()),
        (Some("q"), UnixSeconds(110), 22)
    );
}

#[test]
fn a_disconnected_sidecar_is_removed_after_it_was_processed() {
    let mut registry = SidecarRegistry::default();
    registry.on_open(&pod(), &Hello::default());
    registry.on_close(&pod());
    assert!(registry.get("u").is_some() && registry.connected().next().is_none());
    registry.remove_disconnected();
    assert!(registry.get("u").is_none());
}
