//! Selection of the pods shown in a policy's status, and of the changes that are worth a write.
//!
//! Every watcher of a policy receives its whole status, so the status holds at most a hundred pods
//! and is not written for noise. All other pods are reported by metrics and by the controller's own
//! API.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{ReasonCode, TunedSettings, has_moved};
use crate::api::v1alpha1::POD_TUNINGS_MAX;
use crate::batching::Tick;

/// Minimum interval between two writes of a status.
const WRITE_INTERVAL_MIN: Duration = Duration::from_secs(15);

/// Tuning of one pod, as shown in a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodTuning {
    /// Name of the pod; the key of the list.
    pub pod: String,
    /// Name of the profile in force.
    pub profile: String,
    /// Settings that were pushed to the pod.
    pub settings: TunedSettings,
    /// Number of batches that its server executes concurrently.
    pub slots: u32,
    /// The 99th percentile of its latency, if enough calls were answered.
    pub latency_p99: Option<Duration>,
    /// Verdict on the SLO; `None` while it is unknown.
    pub slo_met: Option<bool>,
    /// Category of the reason for these settings.
    pub code: ReasonCode,
    /// Reason in one sentence.
    pub reason: String,
}

/// Returns the list of pods to write, or `None` to leave the status as it is.
///
/// `listed` is the current list of the status and `written` the time of the last write. Pods that
/// miss their SLO come first, then pods with settings of their own. Among equal pods those already
/// shown come first, so that a list of many equal pods stays the same.
#[must_use]
pub fn select_pods(
    now: Tick,
    listed: &[PodTuning],
    written: Option<Tick>,
    candidates: &[PodTuning],
) -> Option<Vec<PodTuning>> {
    if written.is_some_and(|written| now.since(written) < WRITE_INTERVAL_MIN) {
        return None;
    }
    let known: BTreeMap<&str, &PodTuning> = listed.iter().map(|pod| (pod.pod.as_str(), pod)).collect();
    let mut order: Vec<&PodTuning> = candidates.iter().collect();
    order.sort_by_key(|pod| {
        let missed = pod.slo_met == Some(false);
        let tuned = pod.settings != TunedSettings::default();
        (!missed, !tuned, !known.contains_key(pod.pod.as_str()), pod.pod.as_str())
    });
    let mut taken = BTreeSet::new();
    let mut next: Vec<PodTuning> = Vec::new();
    for pod in order {
        if next.len() < POD_TUNINGS_MAX && taken.insert(pod.pod.as_str()) {
            next.push(pod.clone());
        }
    }
    next.sort_by(|one, other| one.pod.cmp(&other.pod));
    let same = next.len() == known.len()
        && next.iter().all(|pod| known.get(pod.pod.as_str()).is_some_and(|before| !pod.is_worth_writing(before)));
    (!same).then_some(next)
}

// === impl PodTuning ===

impl PodTuning {
    /// Returns `true` if the difference is worth a write: another category, or a number that moved
    /// by a tenth. A new sentence alone is not, since it contains numbers of its own.
    fn is_worth_writing(&self, other: &Self) -> bool {
        let micros = |time: Option<Duration>| time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let number = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => has_moved(other, one),
            (one, other) => one.is_some() != other.is_some(),
        };
        let small = |number: u32| Some(u64::from(number));
        self.profile != other.profile
            || self.slo_met != other.slo_met
            || self.code != other.code && !(is_quiet(self.code) && is_quiet(other.code))
            || number(small(self.settings.shift_permille), small(other.settings.shift_permille))
            || number(self.settings.slots_max.map(u64::from), other.settings.slots_max.map(u64::from))
            || number(self.settings.batch_weight_max, other.settings.batch_weight_max)
            || number(small(self.slots), small(other.slots))
            || number(micros(self.latency_p99), micros(other.latency_p99))
    }
}

/// Returns `true` for categories between which a healthy pod alternates, such as one with few calls
/// or one that tries another limit now and then.
const fn is_quiet(code: ReasonCode) -> bool {
    matches!(code, ReasonCode::Held | ReasonCode::FewSamples | ReasonCode::Learning)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(index: usize) -> PodTuning {
        PodTuning {
            pod: format!("embedder-{index:04}"),
            profile: "p".to_owned(),
            settings: TunedSettings::default(),
            slots: 2,
            latency_p99: Some(Duration::from_millis(100)),
            slo_met: Some(true),
            code: ReasonCode::Held,
            reason: String::new(),
        }
    }

    #[test]
    fn a_hundred_pods_are_listed_with_late_and_tuned_ones_first() {
        let mut pods: Vec<PodTuning> = (0..300).map(pod).collect();
        let first = select_pods(Tick::default(), &[], None, &pods).unwrap();
        assert_eq!(
            (first.len(), first[0].pod.as_str(), first[99].pod.as_str()),
            (100, "embedder-0000", "embedder-0099")
        );
        pods[250].slo_met = Some(false);
        pods[260].settings.slots_max = Some(3);
        let later = select_pods(Tick::from_millis(20_000), &first, Some(Tick::default()), &pods).unwrap();
        let fresh: Vec<&str> =
            later.iter().map(|pod| pod.pod.as_str()).filter(|name| !first.iter().any(|pod| pod.pod == *name)).collect();
        assert_eq!((later.len(), fresh), (100, vec!["embedder-0250", "embedder-0260"]));
        assert!(later.is_sorted_by(|one, next| one.pod < next.pod), "the list is keyed and in order");
    }

    #[test]
    fn the_list_is_written_for_a_change_of_a_tenth_every_fifteen_seconds_at_most() {
        let (listed, now) = (vec![pod(1)], Tick::from_millis(100_000));
        let with = |micros: u64| vec![PodTuning { latency_p99: Some(Duration::from_micros(micros)), ..pod(1) }];
        assert_eq!(select_pods(now, &listed, None, &with(109_000)), None);
        assert!(select_pods(now, &listed, None, &with(110_000)).is_some());
        assert_eq!(select_pods(now, &listed, Some(Tick::from_millis(85_001)), &with(500_000)), None, "too soon");
        assert!(select_pods(now, &listed, Some(Tick::from_millis(85_000)), &with(500_000)).is_some());
        let sentence = vec![PodTuning { reason: "p99 101ms within slo 150ms".to_owned(), ..pod(1) }];
        assert_eq!(select_pods(now, &listed, None, &sentence), None, "a new sentence alone is not written");
        assert!(select_pods(now, &listed, None, &[]).is_some(), "the pod is gone");
        let few = vec![PodTuning { code: ReasonCode::FewSamples, ..pod(1) }];
        assert_eq!(select_pods(now, &listed, None, &few), None, "neither is an equivalent word");
        let other_code = vec![PodTuning { code: ReasonCode::ShiftRaised, ..pod(1) }];
        assert!(select_pods(now, &listed, None, &other_code).is_some());
    }
}
