//! State learned by pods, kept as the initial state of new ones: by profile and node class, at most
//! sixteen entries in a policy's status.
//!
//! A new pod on a node class on which other pods have run starts with their slots, their cost curve
//! and the last settings of their slow loop, instead of measuring everything again. The core gives
//! this state little weight (`batching::Batcher::restore`), so the first batches correct a wrong
//! start.

use std::collections::BTreeMap;

use super::{TunedSettings, has_moved};
use crate::api::v1alpha1::LEARNED_MAX;
use crate::batching::UpstreamSnapshot;

/// Maximum number of points of a curve: the sizes from 1 to 512 double nine times. An entry,
/// including the name of its class, stays below 1 KiB.
pub const POINTS_MAX: usize = 10;
/// Maximum length of a class name in bytes. A class with a longer name is not kept, as in the
/// sidecar's own state file.
const NAME_MAX: usize = 256;
/// Minimum number of batches of a pod for its state to be passed on to new pods.
const BATCHES_MIN: u64 = 100;
/// Exploration rate of a new pod, in thousandths: it tries other numbers of slots as often as a pod
/// without any state, since its server may be another build.
const EXPLORE_PERMILLE: u32 = 500;

/// State learned by the pods of one profile on one node class.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LearnedProfile {
    /// Name of the profile.
    pub profile: String,
    /// Accelerator or instance type.
    pub node_class: String,
    /// Number of requests that the server executes concurrently, beyond which calls are held and
    /// merged. 0: calls are forwarded on arrival.
    pub slots: u32,
    /// Conclusion of the concurrency limiter; `None` while the pod is still learning it, in which
    /// case the entry keeps its previous conclusion.
    pub limiter: Option<LimiterConclusion>,
    /// Time by which the next batch may be dispatched before the previous one completes, in
    /// microseconds.
    pub lead_micros: u64,
    /// Moving average of execution times, in microseconds.
    pub mean_micros: u64,
    /// Cost curve of the cost class with most batches. A model server usually has one class that
    /// matters; the others are learned quickly.
    pub curve: Option<LearnedCurve>,
    /// Last settings of the slow loop.
    pub settings: TunedSettings,
    /// Number of batches that the state was learned from.
    pub batches: u64,
    /// Time of the last write, in seconds since the Unix epoch.
    pub at: u64,
}

/// Conclusion of a concurrency limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimiterConclusion {
    /// Latency of an unbatched call below the limit, in microseconds; 0 if unknown.
    pub base_micros: u64,
    /// Cost of an item in a batch, in thousandths of that of an unbatched call, if batching does
    /// not pay and calls are forwarded for that reason; `None` otherwise.
    pub no_gain_permille: Option<u64>,
}

/// Execution times of one cost class by batch size.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LearnedCurve {
    /// Name of the class, escaped by `u8::escape_ascii`.
    pub class: String,
    /// Pairs of items and microseconds, sorted by items.
    pub points: Vec<(u32, u64)>,
    /// 98th percentile of the ratio of actual to expected execution time, in thousandths.
    pub tail_permille: u64,
    /// Mean weight of an item, in thousandths.
    pub weight_milli: u64,
}

/// Initial state of a new pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialState {
    /// Settings to push to the sidecar.
    pub settings: TunedSettings,
    /// State of the server's slots.
    pub upstream: UpstreamSnapshot,
    /// Cost curve of the busiest class.
    pub curve: Option<LearnedCurve>,
    /// Initial conclusion of its concurrency limiter, if there is one.
    pub limiter: Option<LimiterConclusion>,
}

/// Returns the initial state of a new pod with this profile on this node class.
///
/// It is that of pods with the same profile, otherwise that of the newest entry on the same node
/// class, since a cost curve depends on the model and the machine and not on limits. On another or
/// an unknown node class there is none.
#[must_use]
pub fn initial_state(learned: &[LearnedProfile], profile: &str, node_class: &str) -> Option<InitialState> {
    if node_class.is_empty() {
        return None;
    }
    let of_class = || learned.iter().filter(|entry| entry.node_class == node_class);
    let same = of_class().find(|entry| entry.profile == profile);
    let entry = same.or_else(|| of_class().max_by_key(|entry| entry.at))?;
    Some(InitialState {
        // The settings depend on the limits of their profile too.
        settings: if same.is_some() { entry.settings } else { TunedSettings::default() },
        upstream: UpstreamSnapshot {
            slots: entry.slots,
            lead_nanos: entry.lead_micros.saturating_mul(1000),
            mean_nanos: entry.mean_micros.saturating_mul(1000),
            explore_permille: EXPLORE_PERMILLE,
        },
        curve: entry.curve.clone(),
        limiter: entry.limiter,
    })
}

/// Returns the entries updated by the reports of these pods, or `None` if no change is worth a
/// write.
///
/// Among pods with the same profile and node class, the one with most batches counts. If there are
/// too many entries, the oldest are removed first, but those of profiles in `keep`, which are in
/// force or being tried, after all others.
#[must_use]
pub fn update_entries(
    entries: &[LearnedProfile],
    pods: &[LearnedProfile],
    keep: &[&str],
    now: u64,
) -> Option<Vec<LearnedProfile>> {
    let mut best: BTreeMap<(&str, &str), &LearnedProfile> = BTreeMap::new();
    // Calls that are forwarded concurrently add few batches to the curve. The limiter concludes
    // from separate measurements that batching does not pay.
    let concluded = |pod: &LearnedProfile| pod.limiter.is_some_and(|limiter| limiter.no_gain_permille.is_some());
    let is_usable = |pod: &LearnedProfile| pod.batches >= BATCHES_MIN || concluded(pod);
    for pod in pods.iter().filter(|pod| is_usable(pod) && !pod.node_class.is_empty()) {
        let entry = best.entry((&pod.profile, &pod.node_class)).or_insert(pod);
        if pod.batches > entry.batches {
            *entry = pod;
        }
    }
    let mut next: Vec<LearnedProfile> = entries.to_vec();
    let mut changed = false;
    for ((profile, node_class), pod) in best {
        let at = next.iter().position(|entry| entry.profile == profile && entry.node_class == node_class);
        let fresh = LearnedProfile { at: now, ..pod.clone().truncate_to_bounds() };
        let before = at.and_then(|at| next.get(at));
        let fresh = before.map_or(fresh.clone(), |before| fresh.keep_conclusion(before));
        match at.and_then(|at| next.get_mut(at)) {
            Some(entry) if !entry.is_worth_writing(&fresh) => {}
            Some(entry) => {
                *entry = fresh;
                changed = true;
            }
            None => {
                next.push(fresh);
                changed = true;
            }
        }
    }
    next.sort_by_key(|entry| (!keep.contains(&entry.profile.as_str()), std::cmp::Reverse(entry.at)));
    if next.len() > LEARNED_MAX {
        next.truncate(LEARNED_MAX);
        changed = next != entries;
    }
    changed.then_some(next)
}

// === impl LearnedProfile ===

impl LearnedProfile {
    /// Returns the entry within the bounds of a status: without a curve of a class with a long
    /// name, and with at most [`POINTS_MAX`] points.
    #[must_use]
    pub fn truncate_to_bounds(mut self) -> Self {
        self.curve = self.curve.filter(|curve| curve.class.len() <= NAME_MAX && !curve.points.is_empty());
        if let Some(curve) = &mut self.curve {
            curve.thin_points();
        }
        self
    }

    /// Keeps the slots and the conclusion of the previous entry while the limiter of the pod has no
    /// conclusion, since it may be testing another limit.
    fn keep_conclusion(self, before: &Self) -> Self {
        if self.limiter.is_some() {
            return self;
        }
        Self { slots: before.slots, limiter: before.limiter, ..self }
    }

    /// Returns `true` if `other`, a newer entry, differs enough to replace this one in the status.
    fn is_worth_writing(&self, other: &Self) -> bool {
        let same_limiter = match (self.limiter, other.limiter) {
            (Some(own), Some(other)) => {
                own.no_gain_permille.is_some() == other.no_gain_permille.is_some()
                    && !has_moved(own.base_micros, other.base_micros)
                    && !has_moved(own.no_gain_permille.unwrap_or(0), other.no_gain_permille.unwrap_or(0))
            }
            (own, other) => own.is_none() && other.is_none(),
        };
        let same_curve = match (&self.curve, &other.curve) {
            (Some(own), Some(other)) => {
                let pairs = || own.points.iter().zip(&other.points);
                own.class == other.class
                    && own.points.len() == other.points.len()
                    && pairs().all(|(own, other)| own.0 == other.0 && !has_moved(own.1, other.1))
            }
            (own, other) => own.is_none() && other.is_none(),
        };
        let same_slots = !has_moved(self.slots.into(), other.slots.into());
        !same_curve || !same_limiter || !same_slots || self.settings != other.settings
    }
}

// === impl LearnedCurve ===

impl LearnedCurve {
    /// Reduces the curve to [`POINTS_MAX`] points: both ends, and between them sizes at similar
    /// ratios.
    fn thin_points(&mut self) {
        self.points.sort_unstable();
        self.points.dedup_by_key(|point| point.0);
        while self.points.len() > POINTS_MAX {
            // The point between the neighbours with the smallest ratio of sizes carries the least
            // information.
            let least = (1..self.points.len() - 1).min_by_key(|at| {
                let (before, after) = (self.points[at - 1].0.max(1), self.points[at + 1].0);
                u64::from(after) * 1000 / u64::from(before)
            });
            let Some(least) = least else { return };
            self.points.remove(least);
        }
    }
}

#[cfg(test)]
mod tests;
