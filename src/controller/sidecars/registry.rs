//! Registry of sidecars: the last report of each, and the counts accumulated since they were last
//! taken. Pure data.
//!
//! An entry is kept while the stream is open, and after its end until its counts were taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::batching::Tick;
use crate::control::server::PodIdentity;
use crate::control::wire::{
    self, AppliedConfig, ClassCostReport, EXPERIMENT, Hello, LearnedReport, RouteReport, START, SidecarReport,
};
use crate::rollout::{ArmCounts, UnixSeconds};
use crate::tuner::{GroupReport, TunedSettings};

/// All sidecars, by UID of the pod.
#[derive(Debug, Default)]
pub(super) struct SidecarRegistry(BTreeMap<String, SidecarState>);

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SidecarState {
    /// Set while its stream is open.
    pub(super) is_connected: bool,
    /// Set if it supports experiment arms that expire.
    pub(super) supports_arms: bool,
    /// Set if it supports learned starting values.
    pub(super) takes_starts: bool,
    /// The configuration that it reports to be in force.
    pub(super) in_force: Option<AppliedConfig>,
    /// The hash of the configuration that it rejected, and the reason.
    pub(super) refused: Option<(String, String)>,
    /// The hash of the last configuration pushed to this stream, and the time of the push.
    pub(super) last_pushed: Option<(String, Tick)>,
    /// Counts since the last round.
    pub(super) fresh: CountWindow,
    /// Counts since the last run of the slow loop.
    pub(super) window: CountWindow,
    /// The latest 99th percentile of the latency of calls with an SLO.
    pub(super) slo_p99: Option<Duration>,
    /// Learned values, one entry per model server.
    pub(super) learned: Vec<LearnedReport>,
    /// Shift of its deadlines to an earlier time, in thousandths of the SLO.
    pub(super) shift_permille: u32,
    /// Predicted results of batching since the last round, and the largest number of items for
    /// which an execution time was measured.
    pub(super) predicted: Option<(RouteReport, u32)>,
}

/// Counts under one profile in one time span.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct CountWindow {
    /// The profile in force.
    pub(super) profile: Option<String>,
    /// Earliest time at which the profile is known to be in force.
    pub(super) since: UnixSeconds,
    /// Begin of the time span.
    pub(super) from: UnixSeconds,
    /// End of the time span.
    pub(super) to: UnixSeconds,
    /// Length of the time span by the sidecar's clock.
    pub(super) over: Duration,
    /// Sum over all routes.
    pub(super) counts: RouteReport,
}

// === impl SidecarRegistry ===

impl SidecarRegistry {
    /// Records that a stream was opened.
    pub(super) fn on_open(&mut self, pod: &PodIdentity, hello: &Hello) {
        let sidecar = self.0.entry(pod.uid.clone()).or_default();
        sidecar.is_connected = true;
        sidecar.supports_arms = hello.has_feature(EXPERIMENT);
        sidecar.takes_starts = hello.has_feature(START);
        sidecar.in_force.clone_from(&hello.config);
        sidecar.last_pushed = None;
        sidecar.refused = None;
    }

    /// Records a report received at wall-clock time `at`. Returns `true` if the configuration in
    /// force has changed.
    pub(super) fn on_report(&mut self, pod: &Arc<PodIdentity>, report: SidecarReport, at: UnixSeconds) -> bool {
        let Some(sidecar) = self.0.get_mut(&pod.uid) else { return false };
        let changed = report.config.is_some() && report.config != sidecar.in_force;
        sidecar.report(report, at);
        changed
    }

    /// Records that a sidecar rejected its configuration.
    pub(super) fn on_rejected(&mut self, pod: &PodIdentity, hash: &str, reason: &str) {
        if let Some(sidecar) = self.0.get_mut(&pod.uid) {
            sidecar.refused = Some((hash.to_owned(), reason.to_owned()));
        }
    }

    /// Records that a stream was closed.
    pub(super) fn on_close(&mut self, pod: &PodIdentity) {
        if let Some(sidecar) = self.0.get_mut(&pod.uid) {
            sidecar.is_connected = false;
            sidecar.last_pushed = None;
        }
    }

    pub(super) fn get(&self, uid: &str) -> Option<&SidecarState> {
        self.0.get(uid)
    }

    pub(super) fn get_mut(&mut self, uid: &str) -> Option<&mut SidecarState> {
        self.0.get_mut(uid)
    }

    /// Returns the sidecars with an open stream.
    pub(super) fn connected(&self) -> impl Iterator<Item = (&String, &SidecarState)> {
        self.0.iter().filter(|(_, sidecar)| sidecar.is_connected)
    }

    /// Removes sidecars without a stream. Must be called after all counts were taken.
    pub(super) fn remove_disconnected(&mut self) {
        self.0.retain(|_, sidecar| sidecar.is_connected);
    }
}

// === impl SidecarState ===

impl SidecarState {
    fn report(&mut self, report: SidecarReport, at: UnixSeconds) {
        let SidecarReport { over_ms, config, upstreams, .. } = report;
        if config.is_some() {
            self.in_force = config;
        }
        let profile = self.in_force.as_ref().map(|now| now.profile.clone()).filter(|profile| !profile.is_empty());
        let over = Duration::from_millis(over_ms);
        let mut counts = RouteReport::default();
        self.learned.clear();
        self.shift_permille = 0;
        for upstream in upstreams {
            upstream.routes.iter().for_each(|route| counts.merge(route));
            self.learned.extend(upstream.learned);
            if let Some(predicted) = upstream.predicted {
                let (all, items) = self.predicted.get_or_insert_default();
                all.merge(&predicted.counts);
                *items = predicted.measured_items.max(*items);
            }
            self.shift_permille = self.shift_permille.max(upstream.shift_permille);
        }
        let window = &mut self.fresh;
        if window.profile != profile {
            // The profile changed within the interval of this report, so its counts belong to
            // neither profile.
            *window = CountWindow { profile, since: at, from: at, to: at, ..CountWindow::default() };
            return;
        }
        if window.over.is_zero() {
            window.from = UnixSeconds(at.0.saturating_sub(over.as_secs()));
        }
        window.to = at;
        window.over += over;
        window.counts.merge(&counts);
    }

    /// Takes the counts since the last round, and adds them to the window of the slow loop.
    pub(super) fn take_fresh(&mut self) -> CountWindow {
        let fresh = self.fresh.take();
        if self.window.profile == fresh.profile {
            self.window.over += fresh.over;
            self.window.counts.merge(&fresh.counts);
        } else {
            self.window = fresh.clone();
        }
        let p99 = fresh.counts.slo_latency.quantile(990).map(Duration::from_micros);
        self.slo_p99 = p99.or(self.slo_p99);
        fresh
    }

    /// Returns `true` if the sidecar follows its configuration: one is in force, and the last one
    /// pushed was not rejected.
    pub(super) fn is_following(&self) -> bool {
        let given = self.last_pushed.as_ref().map(|(hash, _)| hash);
        self.in_force.is_some() && self.refused.as_ref().is_none_or(|(hash, _)| Some(hash) != given)
    }

    /// Takes the input of the slow loop since its last run. `node_class` is the machine type.
    /// `frozen` marks a pod that is not tuned, since it serves as the baseline of a comparison.
    pub(super) fn take_observation(&mut self, uid: &str, node_class: &str, frozen: bool) -> GroupReport {
        let CountWindow { profile, over, counts, .. } = self.window.take();
        let classes = || self.learned.iter().flat_map(|learned| learned.classes.first());
        GroupReport {
            pod: uid.to_owned(),
            node_class: node_class.to_owned(),
            profile: profile.unwrap_or_default(),
            frozen,
            over,
            latency: counts.slo_latency,
            late: counts.late,
            lost: counts.lost,
            in_force: self.in_force.as_ref().map(|now| from_wire(&now.settings)),
            shift_permille: self.shift_permille,
            slots: self.learned.iter().map(|learned| learned.slots).max().unwrap_or(0),
            lone_late: classes()
                .map(|class| class.lone_late_us)
                .filter(|micros| *micros > 0)
                .max()
                .map(Duration::from_micros),
            weight_ceiling: self.learned.iter().filter_map(|learned| learned.weight_ceiling).min(),
            changes: self.learned.iter().map(|learned| learned.changes).fold(0, u64::saturating_add),
            learning: self.learned.iter().any(|learned| learned.concurrency.learning || learned.concurrency.trying),
        }
    }

    /// Returns the learned values of the best-known model server, with the cost class that has most
    /// batches there.
    pub(super) fn best_learned(&self) -> Option<(&LearnedReport, &ClassCostReport)> {
        let all = self.learned.iter().filter_map(|learned| Some((learned, learned.classes.first()?)));
        all.max_by_key(|(_, class)| class.samples)
    }
}

// === impl CountWindow ===

impl CountWindow {
    /// Takes the counts, and starts a new time span under the same profile.
    fn take(&mut self) -> Self {
        let next =
            Self { profile: self.profile.clone(), since: self.since, from: self.to, to: self.to, ..Self::default() };
        std::mem::replace(self, next)
    }

    /// Returns the counts that a rollout compares. Calls that pass through are included, each as a
    /// batch of its own, as in the summary of a status: a policy without any batching has a latency
    /// too, and without these calls only failures would be counted.
    pub(super) fn to_rollout_counts(&self) -> ArmCounts {
        let RouteReport { calls, server_errors, .. } = &self.counts;
        let mut latency = self.counts.latency.clone();
        latency.merge(&self.counts.passed_latency);
        ArmCounts {
            latency,
            errors: [calls.rejected, calls.expired, calls.failed, *server_errors]
                .into_iter()
                .fold(0, u64::saturating_add),
            batches: self.counts.executions.saturating_add(self.counts.passed_latency.count()),
        }
    }
}

/// Converts the wire settings to those of the tuner.
pub(super) fn from_wire(settings: &wire::TunedSettings) -> TunedSettings {
    TunedSettings {
        shift_permille: settings.shift_permille,
        slots_max: settings.slots_max,
        batch_weight_max: settings.batch_weight_max,
    }
}

#[cfg(test)]
mod tests;
