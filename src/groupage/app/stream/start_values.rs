//! The start values that the controller pushes: what other pods learned, converted to the state
//! from which a scheduler begins.

use super::super::state_dir::unescape;
use crate::batching::{
    ClassSnapshot, CostMeasure, CostSample, CostSnapshot, CurvePoint, FlowSnapshot, UpstreamSnapshot, Weight,
};
use crate::control::wire::{PushedCurve, StartValues};
use crate::scheduler::LearnedState;

/// Maximum number of cost classes, of points of a curve, and of bytes of a class's name. They are
/// also those of a report.
pub(super) const CLASSES_MAX: usize = 16;
pub(super) const POINTS_MAX: usize = 64;
pub(super) const NAME_BYTES_MAX: usize = 256;
/// Weight, in samples, of each batch size of a curve from another pod; the same as that of a
/// restored curve (`batching::CostSnapshot`).
const SAMPLES: u32 = 3;

/// Converts what other pods learned to the core's type. The effect of weights is learned anew,
/// since means by batch size do not contain it.
pub(super) fn to_learned_state(start: &StartValues) -> LearnedState {
    let nanos = |micros: u64| micros.saturating_mul(1000);
    let upstream = UpstreamSnapshot {
        slots: start.slots,
        lead_nanos: nanos(start.lead_us),
        mean_nanos: nanos(start.mean_us),
        explore_permille: start.explore_permille.min(1000),
    };
    let named = |curve: &PushedCurve| {
        let name = unescape(&curve.class).ok().filter(|name| name.len() <= NAME_BYTES_MAX)?;
        Some((name, snapshot(curve)))
    };
    let classes = start.curves.iter().take(CLASSES_MAX).filter_map(named);
    LearnedState { upstream, classes: classes.collect() }
}

fn snapshot(curve: &PushedCurve) -> ClassSnapshot {
    let each = (curve.weight_milli / 1000).max(1);
    let points = || curve.points.iter().take(POINTS_MAX).filter(|(items, micros)| *items > 0 && *micros > 0);
    let sample = |&(items, micros): &(u32, u64)| CostSample {
        items,
        weight: Weight { sum: each.saturating_mul(items.into()), max: each },
        nanos: micros.saturating_mul(1000),
    };
    let point =
        |&(items, micros): &(u32, u64)| CurvePoint { items, nanos: micros.saturating_mul(1000), count: SAMPLES };
    let cost = CostSnapshot {
        base: CostMeasure::SizeOnly,
        first_nanos: points().next().map(|(_, micros)| micros.saturating_mul(1000)).unwrap_or_default(),
        samples: points().map(sample).collect(),
        points: points().map(point).collect(),
        largest: points().map(|(items, _)| *items).max().unwrap_or_default(),
        tail_permille: curve.tail_permille,
        weight_milli: curve.weight_milli,
        ..CostSnapshot::default()
    };
    let flow = curve.limiter.as_ref().map(|limiter| FlowSnapshot {
        limit: limiter.limit,
        no_gain_permille: limiter.item_permille.unwrap_or_default(),
        base_nanos: limiter.base_us.saturating_mul(1000),
    });
    ClassSnapshot { cost, ceilings: Vec::new(), flow }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire::LimiterState;

    #[test]
    fn pushed_start_values_become_the_learned_state_of_a_core() {
        let curve = PushedCurve {
            class: "POST /a\\x00m".into(),
            points: vec![(1, 900), (0, 5), (8, 2000)],
            tail_permille: 1300,
            weight_milli: 2500,
            limiter: Some(LimiterState { limit: 3, base_us: 850, ..LimiterState::default() }),
        };
        let start = StartValues { slots: 3, lead_us: 20, mean_us: 2000, explore_permille: 9999, curves: vec![curve] };
        let state = to_learned_state(&start);
        assert_eq!(
            (state.upstream.slots, state.upstream.mean_nanos, state.upstream.explore_permille),
            (3, 2_000_000, 1000)
        );
        let (name, class) = &state.classes[0];
        assert_eq!((&**name, class.cost.first_nanos, class.cost.largest), (&b"POST /a\0m"[..], 900_000, 8));
        assert_eq!(
            class.cost.samples[1],
            CostSample { items: 8, weight: Weight { sum: 16, max: 2 }, nanos: 2_000_000 }
        );
        assert_eq!(class.cost.points.len(), 2);
        let flow = FlowSnapshot { limit: 3, no_gain_permille: 0, base_nanos: 850_000 };
        assert_eq!(class.flow, Some(flow));
    }

    #[test]
    fn a_core_takes_up_a_curve_that_was_handed_on() {
        use crate::batching::{Batcher, CostClassId, Limits, Tick};
        let points = vec![(1, 4000), (8, 6000)];
        let curve = PushedCurve { points, tail_permille: 1100, weight_milli: 1000, ..PushedCurve::default() };
        let mut batcher = Batcher::new(Limits::default(), 1);
        batcher.restore(Tick::default(), CostClassId(3), &snapshot(&curve));
        let report = batcher.report().classes.remove(0).1;
        let points: Vec<_> = report.points.iter().map(|point| (point.items, point.nanos)).collect();
        assert_eq!(points, [(1, 4_000_000), (8, 6_000_000)]);
        assert!((3_000_000..4_500_000).contains(&report.batch_nanos), "{report:?}");
    }
}
