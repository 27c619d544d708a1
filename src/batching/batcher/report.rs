//! Reports and snapshots of the learned state. Their text and format are left to the caller.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::adaptive::AdaptiveReport;
use super::super::call::{Call, CostClassId, DeadlineSource, KeyId, ScopeId};
use super::super::ceiling::{CeilingReport, CeilingSnapshot, LimitSource, SizeMeasure};
use super::super::class::ClassState;
use super::super::cost::{CostReport, CostSnapshot};
use super::super::limiter::{FlowMode, FlowReport, FlowSnapshot};
use super::super::limits::DispatchPolicy;
use super::super::slots::UpstreamSnapshot;
use super::super::tick::{Tick, nanos};
use super::Batcher;
use super::pause::PauseStats;

/// Maximum number of pairs of cost class and route with a recorded SLO, equal to the number of cost
/// curves.
const SLOS_MAX: usize = 64;

/// Learned state of an upstream, for status reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatcherReport {
    /// Number of batches that the upstream runs side by side.
    pub slots: u32,
    /// The lead: nanoseconds by which the next batch may leave before another one returns.
    pub lead_nanos: u64,
    /// Running mean of the execution times, in nanoseconds.
    pub mean_nanos: u64,
    /// State of the concurrency limiters: the requests that may be in flight, and why calls are
    /// held or forwarded.
    pub flows: Vec<(CostClassId, FlowReport)>,
    /// Cost curves by class.
    pub classes: Vec<(CostClassId, CostReport)>,
    /// Limits on batches by cost class and route, each the smallest of policy, published and
    /// learned.
    pub ceilings: Vec<CeilingInForce>,
    /// Cost classes with a merge key that the upstream paused, and the end of the pause.
    pub paused: Vec<(CostClassId, Tick)>,
    /// Pause counts by cost class.
    pub pauses: Vec<PauseStats>,
    /// SLOs that no execution can meet. Their calls are served nevertheless.
    pub infeasible: Vec<InfeasibleSlo>,
    /// Total execution time of batches that were sent in another size than the best known one, to
    /// learn, in nanoseconds.
    pub exploration_nanos: u64,
}

/// A limit on the batches of a cost class on a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CeilingInForce {
    /// The cost class.
    pub class: CostClassId,
    /// The route.
    pub scope: ScopeId,
    /// The smallest limit in force.
    pub ceiling: CeilingReport,
}

/// An SLO that is shorter than the time of a call that has the server for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfeasibleSlo {
    /// The cost class.
    pub class: CostClassId,
    /// The route.
    pub scope: ScopeId,
    /// The SLO, in nanoseconds.
    pub slo_nanos: u64,
    /// 98th percentile of the time of a lone call, in nanoseconds.
    pub lone_nanos: u64,
}

/// Learned state of a cost class that is kept across restarts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassSnapshot {
    /// The cost curve.
    pub cost: CostSnapshot,
    /// The learned ceilings. Published ones are fetched again.
    pub ceilings: Vec<CeilingSnapshot>,
    /// The concurrency limiter; `None` if the snapshot has none.
    pub flow: Option<FlowSnapshot>,
}

/// SLOs of recent calls, and the instant since which the limits are in force.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestedSlos {
    pub(super) limits_since: Tick,
    /// SLO of the last call, if it had one.
    slos: BTreeMap<(CostClassId, ScopeId), Option<Duration>>,
}

// === impl RequestedSlos ===

impl RequestedSlos {
    pub(super) fn on_arrival(&mut self, now: Tick, call: &Call) {
        let slo = call.deadline.filter(|deadline| deadline.source == DeadlineSource::Slo);
        let slo = slo.map(|deadline| call.slo.unwrap_or_else(|| deadline.at.since(now)));
        let key = (call.cost_class, call.scope);
        if !self.slos.contains_key(&key) && self.slos.len() >= SLOS_MAX {
            self.slos.pop_first();
        }
        self.slos.insert(key, slo);
    }
}

// === impl Batcher ===

impl Batcher {
    /// Returns the learned state that can be kept across a restart.
    #[must_use]
    pub fn snapshot(&self) -> Vec<(CostClassId, ClassSnapshot)> {
        let with_ceilings = |(class, cost, flow)| {
            (class, ClassSnapshot { cost, ceilings: self.classes.snapshot(class), flow: Some(flow) })
        };
        self.adaptive.snapshot().into_iter().map(with_ceilings).collect()
    }

    /// Restores the learned state of a cost class. It gets so little weight that a wrong one is
    /// soon corrected.
    pub fn restore(&mut self, now: Tick, class: CostClassId, snapshot: &ClassSnapshot) {
        let now = self.advance(now);
        self.adaptive.restore(now, class, &snapshot.cost, snapshot.flow);
        if !snapshot.ceilings.is_empty() {
            self.classes.restore(now, class, &snapshot.ceilings);
        }
    }

    /// Returns the learned state of the upstream's slots, for persistence across restarts.
    #[must_use]
    pub fn upstream_snapshot(&self) -> UpstreamSnapshot {
        self.adaptive.upstream_snapshot()
    }

    /// Restores the learned state of the upstream's slots. A slot that no longer exists is detected
    /// like any slot that vanishes.
    pub fn restore_upstream(&mut self, now: Tick, snapshot: UpstreamSnapshot) {
        let now = self.advance(now);
        self.adaptive.restore_upstream(snapshot);
        self.free.set_free(now, self.has_free_slot());
    }

    /// Returns the learned state, for status reports.
    #[must_use]
    pub fn report(&self) -> BatcherReport {
        let AdaptiveReport { slots, lead_nanos, mean_nanos, flows, classes, exploration_nanos } =
            self.adaptive.report();
        BatcherReport {
            slots,
            lead_nanos,
            mean_nanos,
            // Other policies follow their settings: their limiters learn nothing and hold nothing.
            flows: if self.is_adaptive() { flows } else { Vec::new() },
            classes,
            ceilings: self.ceilings(),
            paused: self.paused.all(self.now).map(|(_, class, until)| (class, until)).collect(),
            pauses: self.paused.classes().collect(),
            infeasible: self.infeasible().collect(),
            exploration_nanos,
        }
    }

    pub(super) const fn is_adaptive(&self) -> bool {
        matches!(self.limits.policy, DispatchPolicy::Adaptive { .. })
    }

    /// Returns the end of the last pause of a merge key, past or not; `None` if it is not
    /// remembered.
    #[must_use]
    pub fn pause_end(&self, key: KeyId) -> Option<Tick> {
        self.paused.end(key)
    }

    /// Returns the mode of the concurrency limiter of a cost class; `None` under a policy that has
    /// none.
    #[must_use]
    pub fn flow_mode(&self, class: CostClassId) -> Option<FlowMode> {
        self.is_adaptive().then(|| self.adaptive.flow_mode(class)).flatten()
    }

    fn infeasible(&self) -> impl Iterator<Item = InfeasibleSlo> {
        self.requested_slos.slos.iter().filter_map(|(&(class, scope), slo)| {
            let (slo, lone) = ((*slo)?, self.adaptive.lone(class)?);
            (slo < lone).then(|| InfeasibleSlo { class, scope, slo_nanos: nanos(slo), lone_nanos: nanos(lone) })
        })
    }

    fn ceilings(&self) -> Vec<CeilingInForce> {
        let mut all = Vec::new();
        for &(class, scope) in self.requested_slos.slos.keys() {
            let limits = self.limits.scope(scope);
            let policy = |bounded, max| CeilingReport {
                bounded,
                max,
                source: LimitSource::Policy,
                since: self.requested_slos.limits_since,
                retest: None,
            };
            let weighed = if self.is_padded(class) { SizeMeasure::PaddedWeight } else { SizeMeasure::Weight };
            let mut known = vec![policy(SizeMeasure::Items, u64::from(limits.batch_items_max))];
            known.extend(limits.batch_weight_max.map(|max| policy(weighed, max)));
            known.extend(self.classes.get(class).map(ClassState::ceilings).unwrap_or_default());
            for bounded in SizeMeasure::ALL {
                let least = known.iter().filter(|ceiling| ceiling.bounded == bounded).min_by_key(|ceiling| ceiling.max);
                all.extend(least.map(|ceiling| CeilingInForce { class, scope, ceiling: *ceiling }));
            }
        }
        all
    }
}
