//! Tests of the table where its result is known: runs are reproducible, recorded seeds pass, and the
//! small table meets its criteria.
//!
//! Left out: the invariants of the core under small limits (`tests/it/sim`), and the whole table
//! (`just sim-table`).

use std::time::Duration;

use groupage_batching::Tick;
use groupage_simulator::groupage_policy::GroupagePolicy;
use groupage_simulator::metrics::CallFilter;
use groupage_simulator::run;
use groupage_simulator::scenario::{self, Scenario};

use crate::criteria::{self, Comparison, CriterionResult, Metric};
use crate::determinism::first_difference;
use crate::optimality_gap::optimality_gap;
use crate::row::{RowReport, run_row};
use crate::table::{Job, JobResult};

/// Duration of a shortened scenario: long enough for the core to learn everything that it learns,
/// short enough for every build.
const SHORT: Duration = Duration::from_secs(2);

fn short(name: &str, seconds: u64) -> Scenario {
    scenario::find(name).unwrap().with_horizon(Duration::from_secs(seconds))
}

fn missed(row: &RowReport) -> Vec<String> {
    row.verdicts.iter().filter(|verdict| !verdict.is_met()).map(CriterionResult::to_string).collect()
}

#[test]
fn low_and_mid_meet_every_criterion_from_a_cold_start() {
    for (name, seconds) in [("low", 12), ("mid", 12)] {
        let row = run_row(&short(name, seconds), 1);
        assert!(row.verdicts.len() >= 3, "{name}: {} criteria are few", row.verdicts.len());
        assert_eq!(missed(&row), [""; 0], "{name}");
    }
}

#[test]
fn every_row_of_the_tables_has_criteria_and_every_criterion_a_row() {
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
    let row = run_row(&padded, 1);
    let missed = missed(&row);
    assert_eq!(missed.len(), 1, "{missed:?}");
    assert!(missed[0].starts_with("row  MISSED goodput 0.") && missed[0].contains("at least 0.8800"), "{missed:?}");
}

#[test]
fn a_verdict_is_met_at_its_limit_and_missed_beyond_it_or_without_a_number() {
    let verdict = |found, sense| CriterionResult {
        criterion: "a",
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
fn the_clairvoyant_bound_is_never_below_our_goodput() {
    for name in ["overload 1.5x", "bursty MMPP", "on-off", "tight SLO"] {
        let bound = run_row(&short(name, 2), 1).bound.unwrap();
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
fn every_scenario_is_deterministic_and_replayable() {
    for row in scenario::all() {
        let row = row.with_horizon(SHORT);
        assert_eq!(first_difference(&row, 7), None, "{}", row.name);
    }
}

#[test]
fn recorded_scenario_seeds_are_deterministic() {
    for line in include_str!("../data/row_seeds").lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (seed, name) = line.split_once(' ').unwrap();
        let row = scenario::find(name.trim()).unwrap_or_else(|| panic!("no row is called {name:?}"));
        let row = row.with_horizon(Duration::from_secs(6));
        assert_eq!(first_difference(&row, seed.parse().unwrap()), None, "{line}");
    }
}

#[test]
fn recorded_row_seeds_drain_their_backlog() {
    // The seed list records findings. This test checks for one of them: a queue that never drains
    // although the upstream can serve it.
    for line in include_str!("../data/row_seeds").lines().filter(|line| line.contains("never drains")) {
        let (seed, name) = line.split('#').next().unwrap().trim().split_once(' ').unwrap();
        let seed: u64 = seed.parse().unwrap();
        let row = scenario::find(name.trim()).unwrap().with_horizon(Duration::from_secs(10));
        let mut ours = GroupagePolicy::for_scenario(&row, seed);
        // The backlog of the first seconds, while the cost of each size is unknown, has drained by
        // then.
        let settled = CallFilter { from: Tick::from_millis(5000), ..CallFilter::default() };
        let mean = run(&row, &mut ours, seed).summary_of(&settled).mean_ms;
        assert!(mean < 100.0, "{line}: {mean} ms");
    }
}

#[test]
fn every_criterion_of_the_small_table_is_met() {
    let results: Vec<JobResult> = Job::small().iter().filter_map(|job| job.run(1)).collect();
    let missed: Vec<String> = results
        .iter()
        .flat_map(|result| result.verdicts().iter().map(|verdict| (result.name(), verdict)))
        .filter(|(_, verdict)| !verdict.is_met())
        .map(|(name, verdict)| format!("{name}: {verdict}"))
        .collect();
    assert_eq!(missed, [""; 0]);
}

#[test]
fn alternating_cohorts_merge_under_a_tight_slo() {
    // 32 closed-loop clients that call again at once. A batch of all takes 12 ms, two halves in
    // turns take 16 ms.
    for slo in [14, 16, 18] {
        let mut row = scenario::find("closed 32").unwrap().with_horizon(Duration::from_secs(6));
        row.slo = Duration::from_millis(slo);
        let mut ours = GroupagePolicy::for_scenario(&row, 1);
        let goodput = run(&row, &mut ours, 1).summary().goodput;
        assert!(goodput > 0.93, "{goodput} in time at an SLO of {slo} ms");
    }
}
