//! What a running proxy says of itself: the counts by route, and what its scheduler learned.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::compose::Reach;
use super::super::keep::unescape;
use crate::batching::{
    Base, Bounded, CeilingInForce, ClassSnapshot, ClassWhy, CostClassId, FlowMode, FlowReport, FlowSnapshot,
    LimitSource, OpenReason, Point, Report as Core, Sample, ScopeId, Snapshot, Suspension, UpstreamSnapshot, Weight,
};
use crate::control::sketch::Sketch;
use crate::control::tally::Tally;
use crate::control::wire::{
    CapturedPort, Concurrency, Curve, Infeasible, Learned, LearnedClass, Limiter, Predicted, RouteReport, Start,
    Suspended, UpstreamReport,
};
use crate::protocol::class_name;
use crate::proxy::Table;
use crate::scheduler::{Kept, Seen, Why};

/// Routes of a report, cost classes, and points of a curve: what a controller reads of them.
const ROUTES_MAX: usize = 24;
const CLASSES_MAX: usize = 16;
const POINTS_MAX: usize = 64;
/// The name of a class in a report.
const NAME_BYTES_MAX: usize = 256;
/// A curve that came from elsewhere believes so many samples of a size, as one that was kept (`batching::Snapshot`).
const SAMPLES: u32 = 3;

/// A port with its server, and what is counted for it.
#[derive(Debug)]
pub(super) struct Port {
    reach: Reach,
    tally: Arc<Tally>,
    predicted: Arc<Tally>,
}

// === impl Port ===

impl Port {
    /// Counts from now on.
    pub(super) fn new(reach: Reach) -> Self {
        let tally = Arc::new(Tally::default());
        reach.metrics.observe(tally.clone());
        let predicted = Arc::new(Tally::default());
        reach.metrics.observe_predicted(predicted.clone());
        Self { reach, tally, predicted }
    }

    /// The port that is captured, if one is.
    pub(super) fn captured(&self) -> Option<CapturedPort> {
        let capture = self.reach.capture.as_ref()?;
        Some(CapturedPort { port: capture.port, name: capture.name.clone().unwrap_or_default() })
    }

    /// What happened since this was asked last.
    pub(super) async fn report(&self) -> UpstreamReport {
        let Reach { capture, proxy, scheduler, onlooker, upstream, metrics } = &self.reach;
        let table = proxy.table();
        let learned = match (scheduler.report().await, scheduler.why().await, scheduler.keep().await) {
            (Some(core), Some(why), Some(kept)) => Some(learned(&core, &why, &kept, &table)),
            _ => None,
        };
        let identity = upstream.identity().borrow().clone();
        let (queue_items, in_flight) = metrics.held_now();
        let predicted = match onlooker.seen().await {
            Some(seen) if seen.calls > 0 => Some(Box::new(predicted(&self.predicted.take(), &seen))),
            _ => None,
        };
        UpstreamReport {
            port: capture.as_ref().map(|capture| capture.port).unwrap_or_default(),
            server: identity.server.unwrap_or_default(),
            model: identity.model.unwrap_or_default(),
            ready: upstream.is_ready(),
            queue_items,
            in_flight,
            isolation_executions: self.tally.take_isolated(),
            shift_permille: proxy.shift_permille(),
            learned,
            routes: routes(self.tally.take(), &table),
            predicted,
        }
    }

    /// Begins with what others learned, if nothing was learned here.
    pub(super) async fn begin(&self, start: &Start) {
        self.reach.scheduler.begin(kept(start)).await;
    }
}

/// The counts by the names of routes, the busiest first; those beyond the bound, and of routes that are gone, together.
fn routes(counts: BTreeMap<Option<ScopeId>, RouteReport>, table: &Table) -> Vec<RouteReport> {
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

/// What batching would have done, of all routes together.
fn predicted(counts: &BTreeMap<Option<ScopeId>, RouteReport>, seen: &Seen) -> Predicted {
    let mut all = RouteReport::default();
    counts.values().for_each(|route| all.merge(route));
    // The same calls are in `latency`.
    all.slo_latency = Sketch::default();
    Predicted { counts: all, measured_items: seen.measured_items() }
}

/// The weight above which no class of calls gets through: one that was never refused is not to be held to what another may weigh.
fn weight_ceiling(core: &Core) -> Option<u64> {
    let learned = |found: &&CeilingInForce| {
        found.ceiling.bounded != Bounded::Items && found.ceiling.source == LimitSource::Learned
    };
    let of =
        |class| core.ceilings.iter().filter(learned).filter(|found| found.class == class).map(|f| f.ceiling.max).min();
    let each: Option<Vec<u64>> = core.classes.iter().map(|(class, _)| of(*class)).collect();
    each?.into_iter().max()
}

fn learned(core: &Core, why: &Why, kept: &Kept, table: &Table) -> Learned {
    let route = |scope: ScopeId| {
        table.settings.iter().find(|route| route.scope == scope).map_or_else(String::new, |route| route.name.clone())
    };
    let least = |wanted: &dyn Fn(&CeilingInForce) -> bool| {
        core.ceilings.iter().filter(|found| wanted(found)).map(|found| found.ceiling.max).min()
    };
    let mut classes: Vec<LearnedClass> = core
        .classes
        .iter()
        .filter_map(|(id, cost)| {
            let name = name(*id, why).filter(|name| name.len() <= NAME_BYTES_MAX)?;
            let snapshot = kept.classes.iter().find(|(known, _)| **known == *name).map(|(_, snapshot)| &snapshot.cost);
            let decided = why.core.classes.iter().find(|class| class.id == *id);
            let point = decided.and_then(|class| class.point);
            let flow = core.flows.iter().find(|(known, _)| known == id).map(|(_, flow)| flow);
            Some(LearnedClass {
                class: name.escape_ascii().to_string(),
                calls: calls(name),
                batch_us: cost.batch_nanos / 1000,
                item_ns: cost.item_nanos,
                samples: cost.samples.into(),
                error_permille: cost.error_permille,
                tail_permille: cost.tail_permille,
                weight_milli: snapshot.map(|snapshot| snapshot.weight_milli).unwrap_or_default(),
                lone_us: point.map(|point| point.lone_nanos / 1000).unwrap_or_default(),
                lone_late_us: point.map(|point| point.lone_late_nanos / 1000).unwrap_or_default(),
                points: thinned(&cost.points),
                limiter: flow.and_then(limiter),
                suspended: decided.and_then(suspended),
            })
        })
        .collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.samples));
    classes.truncate(CLASSES_MAX);
    let infeasible = core.infeasible.iter().take(ROUTES_MAX).map(|found| Infeasible {
        route: route(found.scope),
        slo_us: found.slo_nanos / 1000,
        lone_us: found.lone_nanos / 1000,
    });
    Learned {
        slots: core.slots,
        lead_us: core.lead_nanos / 1000,
        mean_us: core.mean_nanos / 1000,
        changes: why.core.changes,
        concurrency: concurrency(&core.flows, busiest(why)),
        weight_ceiling: weight_ceiling(core),
        items_ceiling: least(&|found| {
            found.ceiling.bounded == Bounded::Items && found.ceiling.source != LimitSource::Policy
        }),
        classes,
        infeasible: infeasible.collect(),
    }
}

fn name(id: CostClassId, why: &Why) -> Option<&[u8]> {
    why.names.iter().find(|(known, _)| *known == id).map(|(_, name)| &**name)
}

/// The calls of a class, for people.
fn calls(name: &[u8]) -> String {
    match class_name(name) {
        Some(found) if found.model.is_empty() => found.path,
        Some(found) => format!("{} of {}", found.path, found.model),
        None => String::new(),
    }
}

/// The class that most calls were of lately: one with a few calls a day is never learned of, and
/// nothing waits for that.
fn busiest(why: &Why) -> Option<CostClassId> {
    let of_late =
        |tally: &crate::batching::Tally| tally.batches.saturating_add(tally.alone).saturating_add(tally.passed);
    why.core.classes.iter().max_by_key(|class| of_late(&class.tally)).map(|class| class.id)
}

/// Whether every class is forwarded, and whether the concurrency of the busiest is still being
/// learned.
fn concurrency(flows: &[(CostClassId, FlowReport)], busiest: Option<CostClassId>) -> Concurrency {
    let open = |(_, flow): &(CostClassId, FlowReport)| matches!(flow.mode, FlowMode::Open(_));
    let main = flows.iter().find(|(id, _)| Some(*id) == busiest).map(|(_, flow)| flow);
    Concurrency {
        open: flows.iter().all(open),
        learning: main.is_some_and(|flow| flow.learning),
        trying: main.is_some_and(|flow| flow.trying),
    }
}

/// What the limiter of a class concluded; nothing while it learns.
fn limiter(flow: &FlowReport) -> Option<Limiter> {
    if flow.learning {
        return None;
    }
    let (limit, open, item_permille) = match flow.mode {
        FlowMode::Limited(limit) => (limit, String::new(), None),
        FlowMode::Open(reason @ OpenReason::NoGain { permille }) => (0, reason.as_str().to_owned(), Some(permille)),
        FlowMode::Open(reason) => (0, reason.as_str().to_owned(), None),
    };
    Some(Limiter { limit, open, item_permille, base_us: flow.base_nanos / 1000 })
}

/// Whether nothing of a class is merged since its server takes no batch.
fn suspended(class: &ClassWhy) -> Option<Suspended> {
    let refused =
        |found: Suspension| Suspended { answer: found.refusal.as_str().to_owned(), status: found.refusal.status() };
    let one_item = || Suspended { answer: "one_item".to_owned(), status: None };
    class.suspension.map(refused).or_else(|| (class.ceiling == Some(1)).then(one_item))
}

/// Not all of very many sizes, but the smallest and the largest.
fn thinned(points: &[Point]) -> Vec<(u32, u64, u32)> {
    let step = points.len().div_ceil(POINTS_MAX - 1).max(1);
    let last = points.len().saturating_sub(1);
    let kept = points.iter().enumerate().filter(|(at, _)| at % step == 0 || *at == last);
    kept.map(|(_, point)| (point.items, point.nanos / 1000, point.count)).collect()
}

/// What others learned, as a core takes it up. What weights do is learned anew: means by size know nothing of them.
fn kept(start: &Start) -> Kept {
    let nanos = |micros: u64| micros.saturating_mul(1000);
    let upstream = UpstreamSnapshot {
        slots: start.slots,
        lead_nanos: nanos(start.lead_us),
        mean_nanos: nanos(start.mean_us),
        explore_permille: start.explore_permille.min(1000),
    };
    let named = |curve: &Curve| {
        let name = unescape(&curve.class).ok().filter(|name| name.len() <= NAME_BYTES_MAX)?;
        Some((name, snapshot(curve)))
    };
    let classes = start.curves.iter().take(CLASSES_MAX).filter_map(named);
    Kept { upstream, classes: classes.collect() }
}

fn snapshot(curve: &Curve) -> ClassSnapshot {
    let each = (curve.weight_milli / 1000).max(1);
    let points = || curve.points.iter().take(POINTS_MAX).filter(|(items, micros)| *items > 0 && *micros > 0);
    let sample = |&(items, micros): &(u32, u64)| Sample {
        items,
        weight: Weight { sum: each.saturating_mul(items.into()), max: each },
        nanos: micros.saturating_mul(1000),
    };
    let point = |&(items, micros): &(u32, u64)| Point { items, nanos: micros.saturating_mul(1000), count: SAMPLES };
    let cost = Snapshot {
        base: Base::SizeOnly,
        first_nanos: points().next().map(|(_, micros)| micros.saturating_mul(1000)).unwrap_or_default(),
        samples: points().map(sample).collect(),
        points: points().map(point).collect(),
        largest: points().map(|(items, _)| *items).max().unwrap_or_default(),
        tail_permille: curve.tail_permille,
        weight_milli: curve.weight_milli,
        ..Snapshot::default()
    };
    let flow = curve.limiter.as_ref().map(|limiter| FlowSnapshot {
        limit: limiter.limit,
        no_gain_permille: limiter.item_permille.unwrap_or_default(),
        base_nanos: limiter.base_us.saturating_mul(1000),
    });
    ClassSnapshot { cost, ceilings: Vec::new(), flow }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_sizes_some_are_told_with_the_smallest_and_the_largest() {
        let points =
            |count: u32| -> Vec<Point> { (1..=count).map(|items| Point { items, nanos: 5000, count: 1 }).collect() };
        for count in [1, 63, 64, 512, 1000] {
            let told = thinned(&points(count));
            assert!(told.len() <= POINTS_MAX, "{count}: {}", told.len());
            assert_eq!((told[0], told[told.len() - 1].0), ((1, 5, 1), count));
        }
        assert!(thinned(&[]).is_empty());
    }

    #[test]
    fn a_start_is_taken_up_as_a_core_would_have_kept_it() {
        let curve = Curve {
            class: "POST /a\\x00m".into(),
            points: vec![(1, 900), (0, 5), (8, 2000)],
            tail_permille: 1300,
            weight_milli: 2500,
            limiter: Some(Limiter { limit: 3, base_us: 850, ..Limiter::default() }),
        };
        let start = Start { slots: 3, lead_us: 20, mean_us: 2000, explore_permille: 9999, curves: vec![curve] };
        let kept = kept(&start);
        assert_eq!(
            (kept.upstream.slots, kept.upstream.mean_nanos, kept.upstream.explore_permille),
            (3, 2_000_000, 1000)
        );
        let (name, class) = &kept.classes[0];
        assert_eq!((&**name, class.cost.first_nanos, class.cost.largest), (&b"POST /a\0m"[..], 900_000, 8));
        assert_eq!(class.cost.samples[1], Sample { items: 8, weight: Weight { sum: 16, max: 2 }, nanos: 2_000_000 });
        assert_eq!(class.cost.points.len(), 2);
        let flow = FlowSnapshot { limit: 3, no_gain_permille: 0, base_nanos: 850_000 };
        assert_eq!(class.flow, Some(flow));
    }
}
