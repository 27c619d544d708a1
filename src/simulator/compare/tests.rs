//! Tests of the table where its result is known.

use std::time::Duration;

use super::super::scenario;
use super::*;

const COMPARED: RunSettings = RunSettings { seeds: 1, compare: true, altered: false };

fn short(name: &str, seconds: u64) -> Scenario {
    scenario::find(name).unwrap().with_horizon(Duration::from_secs(seconds))
}

fn missed(row: &RowReport) -> Vec<String> {
    row.verdicts.iter().filter(|verdict| !verdict.is_met()).map(CriterionResult::to_string).collect()
}

#[test]
fn low_and_mid_meet_every_bar_from_a_cold_start() {
    for (name, seconds) in [("low", 12), ("mid", 12)] {
        let row = run_row(&short(name, seconds), COMPARED);
        assert!(row.verdicts.len() >= 3, "{name}: {} bars are few", row.verdicts.len());
        assert_eq!(missed(&row), [""; 0], "{name}");
    }
}

#[test]
fn equal_arguments_give_equal_rows() {
    let bursty = short("bursty MMPP", 1);
    assert_eq!(run_row(&bursty, COMPARED), run_row(&bursty, COMPARED));
}

#[test]
fn every_row_of_the_tables_has_bars_and_every_bar_a_row() {
    let named = |name: &str| scenario::all().iter().any(|row| row.name == name);
    assert!(criteria::rows().all(named));
    for row in scenario::base_rows(scenario::HORIZON) {
        assert!(criteria::rows().any(|name| name == row.name), "{}: it has no criterion", row.name);
    }
}

#[test]
fn missed_criterion_is_reported_with_its_values() {
    // Four times the rate of a row that is overloaded already: the absolute goodput is out of
    // reach, and only the criterion relative to the best window is met.
    let mut padded = short("padded over", 1);
    padded = padded.scale_rate(4.0);
    let row = run_row(&padded, COMPARED);
    let missed = missed(&row);
    assert_eq!(missed.len(), 1, "{missed:?}");
    assert!(missed[0].starts_with("row  MISSED goodput 0.") && missed[0].contains("at least 0.8800"), "{missed:?}");
}

#[test]
fn numbers_of_the_design_do_not_hold_for_an_altered_row() {
    let plain = run_row(&short("stalls 1%", 1), COMPARED);
    assert!(plain.verdicts.iter().any(|verdict| verdict.of == "reference"));
    let altered = run_row(&short("stalls 1%", 1), RunSettings { altered: true, ..COMPARED });
    assert!(altered.verdicts.iter().all(|verdict| verdict.bar == "seed"), "{:?}", altered.verdicts);
}

#[test]
fn a_verdict_is_met_at_its_limit_and_missed_beyond_it_or_without_a_number() {
    let verdict = |found, sense| CriterionResult {
        bar: "a",
        quantity: Metric::Goodput,
        found,
        sense,
        limit: 0.5,
        of: "a test".to_owned(),
    };
    assert!(verdict(0.5, Comparison::AtLeast).is_met() && !verdict(0.49, Comparison::AtLeast).is_met());
    assert!(verdict(0.5, Comparison::AtMost).is_met() && !verdict(0.51, Comparison::AtMost).is_met());
    assert!(!verdict(f64::NAN, Comparison::AtLeast).is_met() && !verdict(f64::INFINITY, Comparison::AtMost).is_met());
}

#[test]
fn the_clairvoyant_is_never_below_ours() {
    for name in ["overload 1.5x", "bursty MMPP", "on-off", "tight SLO"] {
        let bound = run_row(&short(name, 2), COMPARED).bound.unwrap();
        // Noise may help by chance: the bound is that of the mean curve.
        assert!(bound.ours <= bound.goodput + 0.01, "{name}: {bound:?}");
    }
}

#[test]
fn greedy_is_optimal_on_a_line_and_far_from_it_on_compiled_shapes() {
    let at = |name: &str| {
        let row = scenario::curve_loads().into_iter().find(|row| row.name == name).unwrap();
        optimality_gap(&row.with_horizon(Duration::from_secs(6)), 1).unwrap()
    };
    let line = at("affine 4+.25n 60%");
    assert!((line.greedy - 1.0).abs() < 0.03, "{line:?}");
    let shapes = at("pow2 3+.4n 60%");
    assert!(shapes.greedy > 1.3, "{shapes:?}");
}

#[test]
fn twice_the_rate_brings_twice_as_many() {
    let came = |row: &Scenario| run_row(row, RunSettings { compare: false, ..COMPARED }).entries[0].figures.came as f64;
    for name in ["mid", "ramp", "fan-out 32", "rate x10"] {
        let one = short(name, 10);
        let ratio = came(&one.clone().scale_rate(2.0)) / came(&one);
        assert!((1.7..2.3).contains(&ratio), "{name}: {ratio}");
    }
}
