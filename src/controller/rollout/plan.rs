//! Rollout plan: the policy's `rollout` with every default filled in.

use crate::api::v1alpha1 as api;
use crate::config::{parse_duration, parse_share};

/// Maximum number of canary steps and experiment arms, as in the schema.
const STEPS_MAX: usize = 32;
const ARMS_MAX: usize = 16;
/// Default of `rollout.canary.steps`.
const STEPS: [CanaryStep; 2] = [CanaryStep { percent: 10, hold: 300 }, CanaryStep { percent: 50, hold: 300 }];
/// Defaults of `rollout.experiment`: the switchback period in seconds and the calls of each arm.
const PERIOD: u64 = 60;
const SAMPLES: u64 = 2000;
/// Minimum switchback period in seconds. A shorter one would consist of washout only.
const PERIOD_MIN: u64 = 20;
/// Defaults of `rollout.analysis`.
const P99_PERMILLE: u32 = 50;
const ERRORS_PPM: u32 = 5000;
const INTERVAL: u64 = 30;
/// Minimum interval between two evaluations, in seconds: sidecars report every five seconds.
const INTERVAL_MIN: u64 = 5;

/// Plan of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutPlan {
    /// Profile that the policy specifies.
    pub desired: String,
    /// Strategy of the rollout.
    pub strategy: RolloutStrategy,
    /// Thresholds of a regression.
    pub analysis: RegressionThresholds,
    /// Action on a regression.
    pub on_failure: api::OnFailure,
    /// Manual rollback, if any.
    pub pin: Option<super::pin::ManualRollback>,
}

/// Strategy of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutStrategy {
    /// All pods at once, without a comparison.
    Immediate,
    /// A growing share of the pods. Never empty.
    Canary(Vec<CanaryStep>),
    /// Several arms side by side.
    Experiment(ExperimentPlan),
}

/// A step of a canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CanaryStep {
    /// Share of the pods in percent, 1 to 100.
    pub percent: u32,
    /// Minimum duration of the step, in seconds.
    pub hold: u64,
}

/// Design of an experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExperimentPlan {
    /// Arms; the first is the control arm.
    pub arms: Vec<ArmPlan>,
    /// `true` if every pod serves all arms in alternating periods.
    pub switchback: bool,
    /// Length of a switchback period, in seconds.
    pub period: u64,
    /// Minimum number of calls of each arm before a verdict.
    pub samples_min: u64,
}

/// An arm of an experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArmPlan {
    /// Name of its profile.
    pub profile: String,
    /// Weight of the arm, relative to the other arms.
    pub weight: u32,
}

/// Thresholds of a regression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegressionThresholds {
    /// Maximum increase of the 99th percentile, in thousandths of the control arm's.
    pub p99_permille: u32,
    /// Maximum increase of the share of calls that are not served, in millionths of all calls.
    pub errors_ppm: u32,
    /// Interval between two evaluations, in seconds.
    pub interval: u64,
}

// === impl RolloutPlan ===

impl RolloutPlan {
    /// Creates the plan of a policy. Enum values of a later version, and values that cannot be
    /// parsed, count as the default.
    #[must_use]
    pub fn new(desired: String, spec: Option<&api::RolloutSpec>, pin: Option<super::pin::ManualRollback>) -> Self {
        let strategy = spec.and_then(|spec| spec.strategy.as_ref()).and_then(api::OpenEnum::as_known);
        let on_failure = spec.and_then(|spec| spec.on_failure.as_ref()).and_then(api::OpenEnum::as_known);
        let strategy = match strategy {
            None | Some(api::RolloutStrategy::Immediate) => RolloutStrategy::Immediate,
            Some(api::RolloutStrategy::Canary) => {
                RolloutStrategy::Canary(steps(spec.and_then(|spec| spec.canary.as_ref())))
            }
            Some(api::RolloutStrategy::Experiment) => {
                match experiment(spec.and_then(|spec| spec.experiment.as_ref())) {
                    Some(experiment) => RolloutStrategy::Experiment(experiment),
                    // There is nothing to compare, so the policy's own profile is used.
                    None => RolloutStrategy::Immediate,
                }
            }
        };
        Self {
            desired,
            strategy,
            analysis: RegressionThresholds::new(spec.and_then(|spec| spec.analysis.as_ref())),
            on_failure: on_failure.unwrap_or_default(),
            pin,
        }
    }
}

// === impl RegressionThresholds ===

impl RegressionThresholds {
    fn new(spec: Option<&api::AnalysisSpec>) -> Self {
        let share = |text: Option<&api::ShareText>| text.and_then(|text| parse_share(&text.0)).map(|share| share.ppm());
        Self {
            p99_permille: share(spec.and_then(|spec| spec.latency_p99_regression.as_ref()))
                .map_or(P99_PERMILLE, |ppm| ppm / 1000),
            errors_ppm: share(spec.and_then(|spec| spec.error_rate_regression.as_ref())).unwrap_or(ERRORS_PPM),
            interval: seconds(spec.and_then(|spec| spec.interval.as_ref())).unwrap_or(INTERVAL).max(INTERVAL_MIN),
        }
    }
}

impl Default for RegressionThresholds {
    fn default() -> Self {
        Self::new(None)
    }
}

/// Returns the steps sorted by their shares, since a canary only grows.
fn steps(spec: Option<&api::CanarySpec>) -> Vec<CanaryStep> {
    let written = spec.and_then(|canary| canary.steps.as_deref()).unwrap_or_default();
    let mut steps: Vec<CanaryStep> = written
        .iter()
        .take(STEPS_MAX)
        .filter_map(|step| {
            Some(CanaryStep {
                percent: step.percent?.clamp(1, 100),
                hold: seconds(step.hold.as_ref()).unwrap_or(STEPS[0].hold),
            })
        })
        .collect();
    steps.sort_by_key(|step| step.percent);
    if steps.is_empty() { STEPS.to_vec() } else { steps }
}

fn experiment(spec: Option<&api::ExperimentSpec>) -> Option<ExperimentPlan> {
    let spec = spec?;
    let mut arms: Vec<ArmPlan> = Vec::new();
    for arm in spec.arms.iter().flatten().take(ARMS_MAX) {
        let Some(profile) = arm.profile_ref.as_ref().and_then(|profile| profile.name.clone()) else { continue };
        if arms.iter().all(|known| known.profile != profile) {
            arms.push(ArmPlan { profile, weight: arm.weight.unwrap_or(1) });
        }
    }
    (arms.iter().filter(|arm| arm.weight > 0).count() >= 2).then(|| ExperimentPlan {
        arms,
        switchback: spec.assignment.as_ref().and_then(api::OpenEnum::as_known) == Some(api::ArmAssignment::Switchback),
        period: seconds(spec.period.as_ref()).unwrap_or(PERIOD).max(PERIOD_MIN),
        samples_min: spec.min_samples.map_or(SAMPLES, u64::from),
    })
}

fn seconds(text: Option<&api::DurationText>) -> Option<u64> {
    text.and_then(|text| parse_duration(&text.0)).map(|time| time.as_secs())
}

// === impl CanaryStep ===

impl CanaryStep {
    /// Switchback period of a canary with a single pod: the default of an experiment.
    pub(super) const PERIOD: u64 = PERIOD;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(spec: &str) -> RolloutPlan {
        let spec: api::RolloutSpec = serde_json::from_str(spec).unwrap();
        RolloutPlan::new("p".to_owned(), Some(&spec), None)
    }

    #[test]
    fn an_empty_policy_has_the_defaults_of_the_schema() {
        let found = plan(r#"{"strategy": "Canary"}"#);
        assert_eq!(found.strategy, RolloutStrategy::Canary(STEPS.to_vec()));
        assert_eq!(found.analysis, RegressionThresholds { p99_permille: 50, errors_ppm: 5000, interval: 30 });
        assert_eq!(found.on_failure, api::OnFailure::Rollback);
        assert_eq!(RolloutPlan::new("p".to_owned(), None, None).strategy, RolloutStrategy::Immediate);
    }

    #[test]
    fn steps_are_taken_in_order_and_an_experiment_needs_two_arms() {
        let found =
            plan(r#"{"strategy": "Canary", "canary": {"steps": [{"percent": 50, "hold": "1m"}, {"percent": 5}]}}"#);
        let expected = vec![CanaryStep { percent: 5, hold: 300 }, CanaryStep { percent: 50, hold: 60 }];
        assert_eq!(found.strategy, RolloutStrategy::Canary(expected));
        let one = r#"{"strategy": "Experiment", "experiment": {"arms": [{"profileRef": {"name": "a"}}, {"profileRef": {"name": "a"}}]}}"#;
        assert_eq!(plan(one).strategy, RolloutStrategy::Immediate);
        assert_eq!(plan(r#"{"analysis": {"interval": "500ms"}}"#).analysis.interval, 5);
        let two = r#"{"strategy": "Experiment", "experiment": {"arms": [{"profileRef": {"name": "a"}}, {"profileRef": {"name": "b"}, "weight": 3}], "assignment": "Switchback", "period": "1s"}}"#;
        let RolloutStrategy::Experiment(experiment) = plan(two).strategy else { panic!("two arms") };
        assert_eq!((experiment.switchback, experiment.period, experiment.samples_min), (true, 20, 2000));
        assert_eq!(experiment.arms.iter().map(|arm| arm.weight).collect::<Vec<_>>(), [1, 3]);
    }
}
