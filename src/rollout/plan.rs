//! What is wanted: the policy's `rollout`, with every default.

use crate::api::v1alpha1 as api;
use crate::config::{parse_duration, parse_share};

/// Steps of a canary and arms of an experiment: as many as the schema takes.
const STEPS_MAX: usize = 32;
const ARMS_MAX: usize = 16;
/// `policy.yaml`: `rollout.canary.steps`.
const STEPS: [Canary; 2] = [Canary { percent: 10, hold: 300 }, Canary { percent: 50, hold: 300 }];
/// `policy.yaml`: `rollout.experiment`.
const PERIOD: u64 = 60;
const SAMPLES: u64 = 2000;
/// Shorter turns would be all washout.
const PERIOD_MIN: u64 = 20;
/// `policy.yaml`: `rollout.analysis`.
const P99_PERMILLE: u32 = 50;
const ERRORS_PPM: u32 = 5000;
const INTERVAL: u64 = 30;
/// Sidecars report every five seconds: looks between two reports would see nothing.
const INTERVAL_MIN: u64 = 5;
/// `policy.yaml`: `rollout.historyLimit`.
const HISTORY: usize = 10;

/// How a change is to reach the pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The profile that the policy wants.
    pub wanted: String,
    /// How.
    pub strategy: Strategy,
    /// What counts as worse.
    pub analysis: Analysis,
    /// What follows when it is worse.
    pub on_failure: OnFailure,
    /// Unused generated profiles that are kept.
    pub history_limit: usize,
    /// Another profile is to be in force, by hand.
    pub pin: Option<super::pin::Pin>,
}

/// How.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// All pods at once, without a comparison.
    Immediate,
    /// More and more of them. Never empty.
    Canary(Vec<Canary>),
    /// Arms side by side.
    Experiment(Experiment),
}

/// A step of a canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Canary {
    /// Share of the pods, 1 to 100.
    pub percent: u32,
    /// How long before the next, in seconds.
    pub hold: u64,
}

/// Arms side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Experiment {
    /// The first is the yardstick.
    pub arms: Vec<ArmPlan>,
    /// A pod serves all arms by turns.
    pub switchback: bool,
    /// The length of a turn, in seconds.
    pub period: u64,
    /// Calls of each arm before a verdict.
    pub samples_min: u64,
}

/// An arm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArmPlan {
    /// Its profile.
    pub profile: String,
    /// Its share beside the others'.
    pub weight: u32,
}

/// What counts as worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Analysis {
    /// The 99th percentile is higher by more than this, in thousandths of the yardstick's.
    pub p99_permille: u32,
    /// The share of calls that are not served is higher by more than this, in millionths of all calls.
    pub errors_ppm: u32,
    /// Between two looks, in seconds.
    pub interval: u64,
}

/// What follows when it is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// All pods go back.
    Rollback,
    /// All stays as it is until somebody decides.
    Pause,
}

// === impl Plan ===

impl Plan {
    /// What a policy says; words of a later version, and texts that cannot be read, count as the default.
    #[must_use]
    pub fn new(wanted: String, spec: Option<&api::RolloutSpec>, pin: Option<super::pin::Pin>) -> Self {
        let strategy = spec.and_then(|spec| spec.strategy.as_ref()).and_then(api::Word::known);
        let on_failure = spec.and_then(|spec| spec.on_failure.as_ref()).and_then(api::Word::known);
        let strategy = match strategy {
            None | Some(api::Strategy::Immediate) => Strategy::Immediate,
            Some(api::Strategy::Canary) => Strategy::Canary(steps(spec.and_then(|spec| spec.canary.as_ref()))),
            Some(api::Strategy::Experiment) => match experiment(spec.and_then(|spec| spec.experiment.as_ref())) {
                Some(experiment) => Strategy::Experiment(experiment),
                // Nothing to compare: the policy's own profile.
                None => Strategy::Immediate,
            },
        };
        Self {
            wanted,
            strategy,
            analysis: Analysis::new(spec.and_then(|spec| spec.analysis.as_ref())),
            on_failure: match on_failure {
                None | Some(api::OnFailure::Rollback) => OnFailure::Rollback,
                Some(api::OnFailure::Pause) => OnFailure::Pause,
            },
            history_limit: spec
                .and_then(|spec| spec.history_limit)
                .and_then(|limit| usize::try_from(limit).ok())
                .unwrap_or(HISTORY),
            pin,
        }
    }
}

// === impl Analysis ===

impl Analysis {
    fn new(spec: Option<&api::Analysis>) -> Self {
        let share = |text: Option<&api::ShareText>| text.and_then(|text| parse_share(&text.0)).map(|share| share.ppm());
        Self {
            p99_permille: share(spec.and_then(|spec| spec.latency_p99_regression.as_ref()))
                .map_or(P99_PERMILLE, |ppm| ppm / 1000),
            errors_ppm: share(spec.and_then(|spec| spec.error_rate_regression.as_ref())).unwrap_or(ERRORS_PPM),
            interval: seconds(spec.and_then(|spec| spec.interval.as_ref())).unwrap_or(INTERVAL).max(INTERVAL_MIN),
        }
    }
}

impl Default for Analysis {
    fn default() -> Self {
        Self::new(None)
    }
}

/// In order of their shares: a canary only grows.
fn steps(spec: Option<&api::Canary>) -> Vec<Canary> {
    let written = spec.and_then(|canary| canary.steps.as_deref()).unwrap_or_default();
    let mut steps: Vec<Canary> = written
        .iter()
        .take(STEPS_MAX)
        .filter_map(|step| {
            Some(Canary {
                percent: step.percent?.clamp(1, 100),
                hold: seconds(step.hold.as_ref()).unwrap_or(STEPS[0].hold),
            })
        })
        .collect();
    steps.sort_by_key(|step| step.percent);
    if steps.is_empty() { STEPS.to_vec() } else { steps }
}

fn experiment(spec: Option<&api::Experiment>) -> Option<Experiment> {
    let spec = spec?;
    let mut arms: Vec<ArmPlan> = Vec::new();
    for arm in spec.arms.iter().flatten().take(ARMS_MAX) {
        let Some(profile) = arm.profile_ref.as_ref().and_then(|profile| profile.name.clone()) else { continue };
        if arms.iter().all(|known| known.profile != profile) {
            arms.push(ArmPlan { profile, weight: arm.weight.unwrap_or(1) });
        }
    }
    (arms.iter().filter(|arm| arm.weight > 0).count() >= 2).then(|| Experiment {
        arms,
        switchback: spec.assignment.as_ref().and_then(api::Word::known) == Some(api::Assignment::Switchback),
        period: seconds(spec.period.as_ref()).unwrap_or(PERIOD).max(PERIOD_MIN),
        samples_min: spec.min_samples.map_or(SAMPLES, u64::from),
    })
}

fn seconds(text: Option<&api::DurationText>) -> Option<u64> {
    text.and_then(|text| parse_duration(&text.0)).map(|time| time.as_secs())
}

// === impl Canary ===

impl Canary {
    /// The period of turns where a canary has a single pod: the experiment's default.
    pub(super) const PERIOD: u64 = PERIOD;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(spec: &str) -> Plan {
        let spec: api::RolloutSpec = serde_json::from_str(spec).unwrap();
        Plan::new("p".to_owned(), Some(&spec), None)
    }

    #[test]
    fn a_policy_that_says_nothing_has_the_defaults_of_the_schema() {
        let found = plan(r#"{"strategy": "Canary"}"#);
        assert_eq!(found.strategy, Strategy::Canary(STEPS.to_vec()));
        assert_eq!(found.analysis, Analysis { p99_permille: 50, errors_ppm: 5000, interval: 30 });
        assert_eq!((found.on_failure, found.history_limit), (OnFailure::Rollback, 10));
        assert_eq!(Plan::new("p".to_owned(), None, None).strategy, Strategy::Immediate);
    }

    #[test]
    fn steps_are_taken_in_order_and_an_experiment_needs_two_arms() {
        let found =
            plan(r#"{"strategy": "Canary", "canary": {"steps": [{"percent": 50, "hold": "1m"}, {"percent": 5}]}}"#);
        let wanted = vec![Canary { percent: 5, hold: 300 }, Canary { percent: 50, hold: 60 }];
        assert_eq!(found.strategy, Strategy::Canary(wanted));
        let one = r#"{"strategy": "Experiment", "experiment": {"arms": [{"profileRef": {"name": "a"}}, {"profileRef": {"name": "a"}}]}}"#;
        assert_eq!(plan(one).strategy, Strategy::Immediate);
        assert_eq!(plan(r#"{"analysis": {"interval": "500ms"}}"#).analysis.interval, 5);
        let two = r#"{"strategy": "Experiment", "experiment": {"arms": [{"profileRef": {"name": "a"}}, {"profileRef": {"name": "b"}, "weight": 3}], "assignment": "Switchback", "period": "1s"}}"#;
        let Strategy::Experiment(experiment) = plan(two).strategy else { panic!("two arms") };
        assert_eq!((experiment.switchback, experiment.period, experiment.samples_min), (true, 20, 2000));
        assert_eq!(experiment.arms.iter().map(|arm| arm.weight).collect::<Vec<_>>(), [1, 3]);
    }
}
