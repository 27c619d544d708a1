//! Tests of valid files, invalid files, and the example for users.

use super::*;
use crate::simulator::curve::CostCurve;

const EXAMPLE: &str = include_str!("../../../../../examples/scenarios/shop.yaml");

#[test]
fn the_example_matches_its_comments() {
    let rows = parse(EXAMPLE).unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["shop at noon", "everything else"]);
    let [shop, rest] = rows.as_slice() else { panic!("two of them") };
    assert_eq!((shop.slo, shop.cap, shop.horizon), (Duration::from_millis(80), 32, Duration::from_secs(30)));
    assert_eq!(shop.workload.streams.len(), 2);
    assert!(shop.curve.is_none() && rest.curve.is_none());
    assert!(
        matches!(&rest.upstream, UpstreamKind::Server(server) if server.slots == 2 && server.ceilings.items_max == Some(24))
    );
    assert_eq!(rest.workload.streams.len(), 6, "each kind of arrivals is shown");
}

#[test]
fn a_plain_scenario_has_an_exact_curve() {
    let text = "scenarios:\n- name: x\n  upstream: {curve: 'affine:4ms+0.25ms'}\n  arrivals: [{poisson: 1000}]\n";
    let [row] = parse(text).unwrap().try_into().unwrap();
    let plain =
        Scenario::new("x", ArrivalProcess::Poisson { rate: 1000.0 }).with_curve(CostCurve::Affine { a: 4.0, b: 0.25 });
    assert_eq!(row, plain);
}

#[test]
fn an_error_contains_its_line_or_its_scenario() {
    let with = |more: &str| format!("scenarios:\n- name: x\n  upstream: {{curve: 'affine:4ms+0.25ms'}}\n{more}\n");
    for (text, expected) in [
        (with("  arrivals: [{poisson: 1000}]\n  sloo: 5ms"), "line 5"),
        (with("  arrivals: [{poisson: 1000}]\n  slo: 5 parsecs"), "line 5"),
        (with("  arrivals: [{poisson: 1000, clients: {count: 2, think: 1ms}}]"), "\"x\""),
        (with("  arrivals: []"), "\"x\""),
        (with("  arrivals: [{poisson: 1e9}]"), "\"x\""),
        (with("  arrivals: [{poisson: .nan}]"), "\"x\""),
        (with("  arrivals: [{poisson: 10, cancels: 300%}]"), "not a share"),
        (with("  seconds: 0\n  arrivals: [{poisson: 1}]"), "`seconds` is 0"),
        ("scenarios: []".to_owned(), "empty"),
        ("scenarios:\n- name: x\n  upstream: {curve: 'line'}\n  arrivals: []".to_owned(), "not a curve"),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(expected), "{text}\n{error}");
    }
}
