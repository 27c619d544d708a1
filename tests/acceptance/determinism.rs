//! Determinism: runs each seed twice, and replays the recorded events on a fresh core.

use groupage_simulator::groupage_policy::GroupagePolicy;
use groupage_simulator::run;
use groupage_simulator::scenario::Scenario;

use crate::criteria::{Comparison, CriterionResult, Metric};

/// Counts the seeds that give equal calls, events and decisions in two runs, and equal decisions
/// when the events are replayed.
pub(super) fn check_determinism(scenario: &Scenario, seeds: u64) -> CriterionResult {
    let equal = (0..seeds).filter(|seed| first_difference(scenario, *seed).is_none()).count();
    let of = "run twice, then replayed from its events".to_owned();
    let (found, limit) = (equal as f64, seeds as f64);
    CriterionResult { criterion: "seed", quantity: Metric::Seeds, found, sense: Comparison::AtLeast, limit, of }
}

/// Describes the first difference between two runs of a seed, or between a run and the replay of
/// its events. Returns `None` if all are equal.
pub(crate) fn first_difference(scenario: &Scenario, seed: u64) -> Option<String> {
    let (mut first, mut second) = (
        GroupagePolicy::for_scenario(scenario, seed).with_log(),
        GroupagePolicy::for_scenario(scenario, seed).with_log(),
    );
    let (one, other) = (run(scenario, &mut first, seed), run(scenario, &mut second, seed));
    if one != other {
        return Some("two runs end calls differently".to_owned());
    }
    if first.log() != second.log() {
        return Some("two runs decide differently".to_owned());
    }
    let fresh = GroupagePolicy::for_scenario(scenario, seed);
    let replayed = first.log()?.replay(fresh.batcher().clone());
    replayed.err().map(|other| format!("event {} has another effect when replayed: {:?}", other.0, other.1))
}
