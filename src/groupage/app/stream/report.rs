//! Reports of a running proxy to the controller: counts by route, and what its scheduler has
//! learned.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::compose::PortHandle;
use super::start_values::{CLASSES_MAX, NAME_BYTES_MAX, POINTS_MAX, to_learned_state};
use crate::batching::{
    BatchRefusal, BatcherReport, CeilingInForce, ClassDecisionStats, CostClassId, CostReport, CurvePoint, FlowMode,
    FlowReport, LimitSource, OpenReason, ScopeId, SizeMeasure,
};
use crate::control::histogram::Histogram;
use crate::control::route_counts::RouteCounts;
use crate::control::wire::{
    CapturedPort, ClassCostReport, InfeasibleSlo, LearnedReport, LimiterState, LimiterSummary, MergingSuspension,
    PredictedReport, RouteReport, StartValues, UpstreamReport,
};
use crate::protocol::decode_cost_class;
use crate::proxy::RoutingTable;
use crate::scheduler::{DecisionReport, LearnedState, ShadowReport};

/// Maximum number of routes of a report, without `other`. A controller ignores more.
const ROUTES_MAX: usize = 24;
const NANOS_PER_HOUR: u128 = 3_600_000_000_000;

/// A port with its server and the counts for its next report.
#[derive(Debug)]
pub(super) struct ReportedPort {
    handle: PortHandle,
    /// Counts of completed calls and executions.
    counts: Arc<RouteCounts>,
    /// Counts that the shadow predicts in mode `Observe`.
    predicted: Arc<RouteCounts>,
}

// === impl ReportedPort ===

impl ReportedPort {
    /// Attaches the counters to the port's metrics.
    pub(super) fn new(handle: PortHandle) -> Self {
        let counts = Arc::new(RouteCounts::default());
        handle.metrics.observe(counts.clone());
        let predicted = Arc::new(RouteCounts::default());
        handle.metrics.observe_predicted(predicted.clone());
        Self { handle, counts, predicted }
    }

    /// Returns the captured port, if the port captures one.
    pub(super) fn captured(&self) -> Option<CapturedPort> {
        let capture = self.handle.capture.as_ref()?;
        Some(CapturedPort { port: capture.port, name: capture.name.clone().unwrap_or_default() })
    }

    /// Returns the counts since the last report, with the current state.
    pub(super) async fn report(&self) -> UpstreamReport {
        let PortHandle { capture, proxy, scheduler, shadow, upstream, metrics } = &self.handle;
        let table = proxy.table();
        let learned = match (scheduler.report().await, scheduler.decision_report().await, scheduler.snapshot().await) {
            (Some(core), Some(decisions), Some(state)) => Some(learned_report(&core, &decisions, &state, &table)),
            _ => None,
        };
        let identity = upstream.identity().borrow().clone();
        let (queue_items, in_flight) = metrics.held_now();
        let predicted = match shadow.report().await {
            Some(report) if report.calls > 0 => Some(Box::new(predicted(&self.predicted.take(), &report))),
            _ => None,
        };
        UpstreamReport {
            port: capture.as_ref().map(|capture| capture.port).unwrap_or_default(),
            server: identity.server.unwrap_or_default(),
            model: identity.model.unwrap_or_default(),
            ready: upstream.is_ready(),
            queue_items,
            in_flight,
            isolation_executions: self.counts.take_isolation_executions(),
            shift_permille: proxy.shift_permille(),
            learned,
            routes: routes(self.counts.take(), &table),
            predicted,
        }
    }

    /// Seeds the scheduler with what other pods learned, if it has learned nothing itself.
    pub(super) async fn begin(&self, start: &StartValues) {
        self.handle.scheduler.seed(to_learned_state(start)).await;
    }
}

/// Returns the counts by route name, the busiest route first. Routes beyond the maximum, and
/// removed ones, are summed up as `other`.
fn routes(counts: BTreeMap<Option<ScopeId>, RouteReport>, table: &RoutingTable) -> Vec<RouteReport> {
    let mut named = Vec::new();
    let mut other = RouteReport { route: "other".to_owned(), ..RouteReport::default() };
    for (scope, mut counts) in counts {
        match table.settings.iter().find(|route| Some(route.scope) == scope) {
            Some(route) => {
                counts.route.clone_from(&route.name);
                counts.slo_us = route.slo.map(micros);
                named.push(counts);
            }
            None => other.merge(&counts),
        }
    }
    named.sort_by_key(|route| std::cmp::Reverse(route.calls.sum()));
    for route in named.drain(ROUTES_MAX.min(named.len())..) {
        other.merge(&route);
    }
    if other.calls.sum() + other.executions > 0 {
        named.push(other);
    }
    named
}

/// Returns the outcome that batching would have had, summed up over all routes.
fn predicted(counts: &BTreeMap<Option<ScopeId>, RouteReport>, report: &ShadowReport) -> PredictedReport {
    let mut all = RouteReport::default();
    counts.values().for_each(|route| all.merge(route));
    // Omitted to keep the report small: `latency` contains these calls too.
    all.slo_latency = Histogram::default();
    PredictedReport { counts: all, measured_items: report.measured_items() }
}

/// Returns the learned weight limit of the class with the highest one. The tuner limits the weight
/// of all classes of a pod alike, and must not restrict a class to the limit of another. `None` if
/// a class was never refused for its weight.
fn weight_ceiling(core: &BatcherReport) -> Option<u64> {
    let learned = |found: &&CeilingInForce| {
        found.ceiling.bounded != SizeMeasure::Items && found.ceiling.source == LimitSource::Learned
    };
    let limit_of =
        |class| core.ceilings.iter().filter(learned).filter(|found| found.class == class).map(|f| f.ceiling.max).min();
    let limits: Option<Vec<u64>> = core.classes.iter().map(|(class, _)| limit_of(*class)).collect();
    limits?.into_iter().max()
}

fn learned_report(
    core: &BatcherReport,
    decisions: &DecisionReport,
    state: &LearnedState,
    table: &RoutingTable,
) -> LearnedReport {
    let route = |scope: ScopeId| {
        table.settings.iter().find(|route| route.scope == scope).map_or_else(String::new, |route| route.name.clone())
    };
    let least = |is_of: &dyn Fn(&CeilingInForce) -> bool| {
        core.ceilings.iter().filter(|found| is_of(found)).map(|found| found.ceiling.max).min()
    };
    let reports = core.classes.iter().filter_map(|class| class_report(core, decisions, state, class));
    let mut classes: Vec<ClassCostReport> = reports.collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.samples));
    classes.truncate(CLASSES_MAX);
    let infeasible = core.infeasible.iter().take(ROUTES_MAX).map(|found| InfeasibleSlo {
        route: route(found.scope),
        slo_us: found.slo_nanos / 1000,
        lone_us: found.lone_nanos / 1000,
    });
    LearnedReport {
        slots: core.slots,
        lead_us: core.lead_nanos / 1000,
        mean_us: core.mean_nanos / 1000,
        changes: decisions.core.changes,
        concurrency: concurrency(&core.flows, busiest_class(decisions)),
        weight_ceiling: weight_ceiling(core),
        items_ceiling: least(&|found| {
            found.ceiling.bounded == SizeMeasure::Items && found.ceiling.source != LimitSource::Policy
        }),
        classes,
        infeasible: infeasible.collect(),
    }
}

/// Returns what was learned about a cost class. `None` if its name is unknown or too long.
fn class_report(
    core: &BatcherReport,
    decisions: &DecisionReport,
    state: &LearnedState,
    (id, cost): &(CostClassId, CostReport),
) -> Option<ClassCostReport> {
    let name = name(*id, decisions).filter(|name| name.len() <= NAME_BYTES_MAX)?;
    let snapshot = state.classes.iter().find(|(known, _)| **known == *name).map(|(_, snapshot)| &snapshot.cost);
    let decided = decisions.core.classes.iter().find(|class| class.id == *id);
    let point = decided.and_then(|class| class.point);
    let flow = core.flows.iter().find(|(known, _)| known == id).map(|(_, flow)| flow);
    Some(ClassCostReport {
        class: name.escape_ascii().to_string(),
        calls: class_label(name),
        batch_us: cost.batch_nanos / 1000,
        item_ns: cost.item_nanos,
        samples: cost.samples.into(),
        error_permille: cost.error_permille,
        tail_permille: cost.tail_permille,
        weight_milli: snapshot.map(|snapshot| snapshot.weight_milli).unwrap_or_default(),
        lone_us: point.map(|point| point.lone_nanos / 1000).unwrap_or_default(),
        lone_late_us: point.map(|point| point.lone_late_nanos / 1000).unwrap_or_default(),
        points: thin_points(&cost.points),
        limiter: flow.and_then(limiter),
        suspended: decided.and_then(suspended),
    })
}

fn name(id: CostClassId, decisions: &DecisionReport) -> Option<&[u8]> {
    decisions.names.iter().find(|(known, _)| *known == id).map(|(_, name)| &**name)
}

/// Returns a readable name of a class's calls.
fn class_label(name: &[u8]) -> String {
    match decode_cost_class(name) {
        Some(found) if found.model.is_empty() => found.path,
        Some(found) => format!("{} of {}", found.path, found.model),
        None => String::new(),
    }
}

/// Returns the cost class with the most requests per hour. The counts of each class cover a period
/// of its own, so those of a rare class may be higher. Other classes are ignored, because one with
/// a few calls a day never has enough of them to be learned.
fn busiest_class(decisions: &DecisionReport) -> Option<CostClassId> {
    let rate = |tally: &crate::batching::ClassStats| {
        let recent = tally.batches.saturating_add(tally.unbatched).saturating_add(tally.passed);
        u128::from(recent) * NANOS_PER_HOUR / decisions.now.since(tally.since).as_nanos().max(1)
    };
    decisions.core.classes.iter().max_by_key(|class| rate(&class.tally)).map(|class| class.id)
}

/// Returns whether calls of all classes are forwarded at once, and whether the concurrency of the
/// busiest class is still being learned.
fn concurrency(flows: &[(CostClassId, FlowReport)], busiest: Option<CostClassId>) -> LimiterSummary {
    let open = |(_, flow): &(CostClassId, FlowReport)| matches!(flow.mode, FlowMode::Open(_));
    let main = flows.iter().find(|(id, _)| Some(*id) == busiest).map(|(_, flow)| flow);
    LimiterSummary {
        open: flows.iter().all(open),
        learning: main.is_some_and(|flow| flow.learning),
        trying: main.is_some_and(|flow| flow.trying),
    }
}

/// Returns the limiter's conclusion for a class, or `None` while it learns. A limit of 0 means that
/// calls are forwarded at once.
fn limiter(flow: &FlowReport) -> Option<LimiterState> {
    if flow.learning {
        return None;
    }
    let (limit, open, item_permille) = match flow.mode {
        FlowMode::Limited(limit) => (limit, String::new(), None),
        FlowMode::Open(reason @ OpenReason::NoGain { permille }) => (0, reason.as_str().to_owned(), Some(permille)),
        FlowMode::Open(reason) => (0, reason.as_str().to_owned(), None),
    };
    Some(LimiterState { limit, open, item_permille, base_us: flow.base_nanos / 1000 })
}

/// Returns the reason why no calls of a class are merged, if its server is the cause: the refusal
/// that led to the suspension, a ceiling of one item, or a quarantine of all merge keys in use.
fn suspended(class: &ClassDecisionStats) -> Option<MergingSuspension> {
    let refused =
        |refusal: BatchRefusal| MergingSuspension { answer: refusal.as_str().to_owned(), status: refusal.status() };
    let one_item = || MergingSuspension { answer: "one_item".to_owned(), status: None };
    let quarantine = class.quarantine.filter(|quarantine| quarantine.ends_merging);
    class
        .suspension
        .map(|suspension| refused(suspension.refusal))
        .or_else(|| (class.ceiling == Some(1)).then(one_item))
        .or_else(|| quarantine.map(|quarantine| refused(quarantine.refusal)))
}

/// Thins out the points of a curve to the maximum, as triples of items, microseconds and samples.
/// The smallest and the largest size always remain.
fn thin_points(points: &[CurvePoint]) -> Vec<(u32, u64, u32)> {
    let step = points.len().div_ceil(POINTS_MAX - 1).max(1);
    let last = points.len().saturating_sub(1);
    let retained = points.iter().enumerate().filter(|(at, _)| at % step == 0 || *at == last);
    retained.map(|(_, point)| (point.items, point.nanos / 1000, point.count)).collect()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batching::{ClassStats, QuarantineReport, Suspension, Tick};

    #[test]
    fn a_class_is_reported_as_suspended_for_each_way_in_which_the_server_ends_merging() {
        let none = ClassDecisionStats {
            id: CostClassId(1),
            tally: ClassStats::default(),
            point: None,
            plan: None,
            ceiling: None,
            quarantined: false,
            quarantine: None,
            suspension: None,
        };
        let word = |class: &ClassDecisionStats| suspended(class).map(|found| (found.answer, found.status));
        assert_eq!(word(&none), None);
        assert_eq!(word(&ClassDecisionStats { ceiling: Some(1), ..none }), Some(("one_item".to_owned(), None)));
        let quarantine = |ends_merging| {
            let refusal = BatchRefusal::Status(422);
            ClassDecisionStats { quarantine: Some(QuarantineReport { refusal, ends_merging }), ..none }
        };
        assert_eq!(word(&quarantine(true)), Some(("status".to_owned(), Some(422))));
        assert_eq!(word(&quarantine(false)), None, "other keys are merged");
        let (since, retest) = (Tick::default(), Tick::default());
        let suspension = Some(Suspension { since, retest, refusal: BatchRefusal::Usage, answered_unbatched: true });
        assert_eq!(word(&ClassDecisionStats { suspension, ..none }), Some(("usage".to_owned(), None)));
    }

    #[test]
    fn many_sizes_are_thinned_and_keep_the_smallest_and_the_largest() {
        let points = |count: u32| -> Vec<CurvePoint> {
            (1..=count).map(|items| CurvePoint { items, nanos: 5000, count: 1 }).collect()
        };
        for count in [1, 63, 64, 512, 1000] {
            let thinned = thin_points(&points(count));
            assert!(thinned.len() <= POINTS_MAX, "{count}: {}", thinned.len());
            assert_eq!((thinned[0], thinned[thinned.len() - 1].0), ((1, 5, 1), count));
        }
        assert!(thin_points(&[]).is_empty());
    }
}
