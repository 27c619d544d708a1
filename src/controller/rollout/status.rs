//! Conversion of a rollout's state to and from `BatchPolicy.status`, from which another controller
//! continues.
//!
//! The status contains everything that decisions depend on. The arms' latency sketches are left
//! out, since they are used for messages only.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::UnixSeconds;
use super::comparison::Comparison;
use super::plan::{RolloutPlan, RolloutStrategy};
use super::step::{ArmState, ProfileVerdict, RolloutState};
use crate::api::v1alpha1::{self as api, RolloutPhase};
use crate::config::{Share, parse_share};
use crate::tuner::format_rounded;

/// Reads the state of a rollout from a status.
#[must_use]
pub fn state_from_status(status: &api::BatchPolicyStatus) -> RolloutState {
    let rollout = status.rollout.clone().unwrap_or_default();
    let since = rollout.since.as_ref().map(from_time).unwrap_or_default();
    RolloutState {
        current: status.current_profile.clone(),
        candidate: status.candidate_profile.clone(),
        previous: rollout.previous_profile,
        phase: rollout.phase.as_ref().and_then(api::OpenEnum::as_known).unwrap_or_default(),
        step: rollout.step.and_then(|step| usize::try_from(step).ok()).unwrap_or(0),
        since,
        looked: since,
        reason: rollout.reason.unwrap_or_default(),
        message: rollout.message.unwrap_or_default(),
        arms: rollout.arms.iter().map(arm_from_status).collect(),
    }
}

/// Writes the state of a rollout to a status, and leaves its other fields unchanged.
pub fn write_state(state: &RolloutState, plan: &RolloutPlan, status: &mut api::BatchPolicyStatus) {
    status.current_profile.clone_from(&state.current);
    status.candidate_profile.clone_from(&state.candidate);
    let canary = match (&plan.strategy, state.phase) {
        (RolloutStrategy::Canary(steps), RolloutPhase::Progressing | RolloutPhase::Paused) => steps.get(state.step),
        _ => None,
    };
    status.rollout = Some(api::RolloutStatus {
        phase: Some(api::OpenEnum::Known(state.phase)),
        step: canary.and_then(|_| u32::try_from(state.step).ok()),
        percent: canary.map(|step| step.percent),
        since: to_time(state.since),
        previous_profile: state.previous.clone(),
        reason: Some(state.reason.clone()).filter(|reason| !reason.is_empty()),
        message: Some(state.message.clone()).filter(|message| !message.is_empty()),
        arms: state.arms.iter().take(api::ARMS_MAX).map(arm_to_status).collect(),
    });
}

/// Converts a verdict to the form kept in a profile's status.
#[must_use]
pub fn verdict(verdict: &ProfileVerdict, now: UnixSeconds) -> api::ProfileVerdict {
    api::ProfileVerdict {
        outcome: Some(api::OpenEnum::Known(verdict.outcome)),
        against: Some(verdict.control_profile.clone()),
        latency_p99: verdict.p99.map(to_duration_text),
        error_rate: to_share_text(verdict.unserved_calls, verdict.calls),
        reason: Some(verdict.reason.clone()),
        message: Some(verdict.message.clone()),
        since: to_time(now),
    }
}

/// Converts an instant to a Kubernetes timestamp. Returns `None` if it is out of range.
#[must_use]
pub fn to_time(at: UnixSeconds) -> Option<Time> {
    Some(Time(Timestamp::from_second(i64::try_from(at.0).ok()?).ok()?))
}

/// Converts a Kubernetes timestamp to an instant. A timestamp before 1970 counts as 0.
#[must_use]
pub fn from_time(time: &Time) -> UnixSeconds {
    UnixSeconds(u64::try_from(time.0.as_second()).unwrap_or(0))
}

fn arm_from_status(status: &api::ArmStatus) -> ArmState {
    let rate = status.error_rate.as_ref().and_then(|rate| parse_share(&rate.0)).map_or(0, |share| share.ppm());
    let errors = u128::from(status.samples) * u128::from(rate) / 1_000_000;
    ArmState {
        profile: status.profile.clone(),
        pods: status.pods,
        samples: status.samples,
        errors: u64::try_from(errors).unwrap_or(u64::MAX),
        comparison: status.evidence.as_deref().map(Comparison::read).unwrap_or_default(),
        stopped: status.stopped.unwrap_or(false),
        ..ArmState::default()
    }
}

fn arm_to_status(arm: &ArmState) -> api::ArmStatus {
    let fresh = arm.comparison == Comparison::default();
    api::ArmStatus {
        profile: arm.profile.clone(),
        pods: arm.pods,
        samples: arm.samples,
        latency_p99: arm.counts.latency.quantile(990).map(|p99| to_duration_text(Duration::from_micros(p99))),
        error_rate: to_share_text(arm.errors, arm.samples),
        stopped: arm.stopped.then_some(true),
        evidence: (!fresh).then(|| arm.comparison.write()),
    }
}

/// Formats a measured duration for a status, with a precision of microseconds and at most three
/// digits where the schema permits.
#[must_use]
pub fn to_duration_text(time: Duration) -> api::DurationText {
    let rounded = format_rounded(time);
    // The durations of the schema have no decimals.
    let is_valid = time.as_millis() > 0 && !rounded.contains('.');
    api::DurationText(if is_valid { rounded } else { format!("{}us", time.as_micros()) })
}

/// Formats a part of a whole in percent, to four decimals. Returns `None` if the whole is 0.
#[must_use]
pub fn to_share_text(part: u64, whole: u64) -> Option<api::ShareText> {
    let ppm = (u128::from(part) * 1_000_000).checked_div(u128::from(whole))?.min(1_000_000);
    Some(api::ShareText(Share::from_ppm(u32::try_from(ppm).ok()?).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_shares_are_written_as_the_schema_requires() {
        let of = |micros| to_duration_text(Duration::from_micros(micros)).0;
        assert_eq!([of(250), of(14_400), of(1500), of(2_000_000)], ["250us", "14ms", "1500us", "2s"]);
        for text in [of(250), of(14_400), of(1500), of(2_000_000)] {
            assert!(crate::config::parse_duration(&text).is_some(), "{text}");
        }
        let text = |part, whole| to_share_text(part, whole).map(|share| share.0);
        assert_eq!(
            [text(1, 1000), text(1, 3), text(0, 5), text(1, 0)].map(Option::unwrap_or_default),
            ["0.1%", "33.3333%", "0%", ""]
        );
    }

    #[test]
    fn an_instant_round_trips_through_a_status_time() {
        assert_eq!(from_time(&to_time(UnixSeconds(1_795_000_000)).unwrap()), UnixSeconds(1_795_000_000));
        assert_eq!(to_time(UnixSeconds(u64::MAX)), None);
    }
}
