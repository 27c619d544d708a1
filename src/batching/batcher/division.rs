//! Division of a call that is larger than the server accepts, or than the policy allows, into parts
//! that are queued like calls of their own. The items themselves are divided outside the core.
//!
//! A call is divided only where the limit is certain, because a server that accepts it whole
//! answers it sooner: the server published the limit, named it in a refusal or ran out of memory,
//! or the policy states it. A default of the policy states nothing.

use super::super::call::Call;
use super::super::ceiling::{BatchExtent, SizeMeasure};
use super::Batcher;

/// Sizes above which the policy divides a call; `None` where it states none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DivisionLimits {
    /// Maximum number of items.
    pub items: Option<u32>,
    /// Maximum weight.
    pub weight: Option<u64>,
    /// Maximum number of bytes.
    pub bytes: Option<u64>,
}

/// Maximum size of each part of a divided call. A single item may exceed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartLimits {
    /// Maximum number of items.
    pub items: u32,
    /// Maximum total weight.
    pub weight: u64,
    /// Maximum number of items × the weight of the heaviest one.
    pub padded_weight: u64,
    /// Maximum number of bytes.
    pub bytes: u64,
    /// Maximum number of parts that are queued or in flight together: those that fit into half of
    /// the queue, the share of a single tenant, by items and bytes.
    pub concurrent: u32,
}

// === impl Batcher ===

impl Batcher {
    /// Returns the limits of the parts of a call that has to be divided; `None` if it stays whole.
    #[must_use]
    pub fn part_limits(&self, call: &Call, policy: &DivisionLimits) -> Option<PartLimits> {
        let extent = BatchExtent { items: call.items, sum: call.weight.sum, heaviest: call.weight.max };
        let class = self.classes.get(call.cost_class);
        let scope = self.limits.scope(call.scope);
        let is_padded = self.is_padded(call.cost_class);
        let measure = if is_padded { SizeMeasure::PaddedWeight } else { SizeMeasure::Weight };
        let exceeds_policy = policy.items.is_some_and(|max| call.items > max)
            || policy.weight.is_some_and(|max| extent.in_measure(measure) > max)
            || policy.bytes.is_some_and(|max| call.bytes > max);
        if call.items < 2 || !(exceeds_policy || class.is_some_and(|class| class.refuses(extent))) {
            return None;
        }
        let known = |bounded| class.map_or(u64::MAX, |class| class.max(bounded));
        let weight_max = scope.batch_weight_max.unwrap_or(u64::MAX);
        let (sum_max, padded_max) = if is_padded { (u64::MAX, weight_max) } else { (weight_max, u64::MAX) };
        let items = u32::try_from(known(SizeMeasure::Items)).unwrap_or(u32::MAX).min(scope.batch_items_max).max(1);
        let queue = self.limits.queue_items_max.min(scope.queue_items_max);
        let queue_bytes = self.limits.queue_bytes_max.min(scope.queue_bytes_max);
        let part_bytes = scope.batch_bytes_max.min(call.bytes).max(1);
        let by_bytes = u32::try_from(queue_bytes / 2 / part_bytes).unwrap_or(u32::MAX);
        Some(PartLimits {
            items,
            weight: known(SizeMeasure::Weight).min(sum_max),
            padded_weight: known(SizeMeasure::PaddedWeight).min(padded_max),
            bytes: scope.batch_bytes_max,
            concurrent: (queue / 2 / items).min(by_bytes).max(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::batch::{BatchOutcome, Decision, Observation};
    use super::super::super::call::{CallId, Weight};
    use super::super::super::limits::{Limits, ScopeLimits};
    use super::super::super::tick::Tick;
    use super::*;

    fn core(batch_items_max: u32) -> Batcher {
        let scopes = vec![ScopeLimits { batch_items_max, ..ScopeLimits::default() }];
        Batcher::new(Limits { scopes, ..Limits::default() }, 1)
    }

    fn call(items: u32) -> Call {
        Call { items, weight: Weight { sum: u64::from(items), max: 1 }, ..Call::new(CallId(1)) }
    }

    fn items_of_parts(core: &Batcher, items: u32, policy: DivisionLimits) -> Option<u32> {
        core.part_limits(&call(items), &policy).map(|limits| limits.items)
    }

    fn complete_next(core: &mut Batcher, outcome: BatchOutcome) {
        let Some(Decision::Dispatch(batch)) = core.poll(Tick(0)) else { panic!("the slot is free") };
        let duration = Duration::from_millis(1);
        core.complete(Tick(0), batch.id, Observation { duration, first_byte: None, outcome });
    }

    const SILENT: DivisionLimits = DivisionLimits { items: None, weight: None, bytes: None };

    #[test]
    fn a_default_of_the_policy_divides_no_call() {
        assert_eq!(items_of_parts(&core(128), 129, SILENT), None);
        let stated = DivisionLimits { items: Some(128), ..SILENT };
        assert_eq!(items_of_parts(&core(128), 129, stated), Some(128));
        assert_eq!(items_of_parts(&core(128), 128, stated), None);
    }

    #[test]
    fn stated_weights_and_bytes_divide_a_call_of_several_items() {
        let core = core(128);
        let stated = DivisionLimits { weight: Some(9), ..SILENT };
        assert_eq!(items_of_parts(&core, 10, stated), Some(128));
        assert_eq!(items_of_parts(&core, 9, stated), None);
        let stated = DivisionLimits { bytes: Some(100), ..SILENT };
        let large = |items| Call { bytes: 101, ..call(items) };
        assert!(core.part_limits(&large(2), &stated).is_some());
        assert_eq!(core.part_limits(&large(1), &stated), None, "one item cannot be divided");
    }

    #[test]
    fn a_published_maximum_divides_larger_calls() {
        let mut core = core(128);
        core.set_published_items_max(Tick(0), call(1).cost_class, 32);
        assert_eq!(items_of_parts(&core, 33, SILENT), Some(32));
        assert_eq!(items_of_parts(&core, 32, SILENT), None);
        core.set_published_weight_max(Tick(0), call(1).cost_class, 8);
        assert_eq!(items_of_parts(&core, 32, SILENT), None, "a server divides by its published weight itself");
    }

    #[test]
    fn sizes_between_the_largest_success_and_the_smallest_refusal_are_not_divided() {
        let mut core = core(128);
        for (items, outcome) in [(4, BatchOutcome::Ok), (20, BatchOutcome::TooLarge { limit: Some(10) })] {
            core.enqueue(Tick(0), Call { id: CallId(u64::from(items)), ..call(items) }).unwrap();
            complete_next(&mut core, outcome);
        }
        assert_eq!(items_of_parts(&core, 11, SILENT), Some(10), "the server named the limit");
        assert_eq!(items_of_parts(&core, 10, SILENT), None);
        assert_eq!(core.part_limits(&call(11), &SILENT).unwrap().concurrent, 102, "half of the queue of 2048 items");
    }

    #[test]
    fn a_refusal_that_names_no_limit_divides_no_call() {
        let mut core = core(128);
        [1, 2].into_iter().for_each(|id| core.enqueue(Tick(0), Call { id: CallId(id), ..call(20) }).unwrap());
        complete_next(&mut core, BatchOutcome::TooLarge { limit: None });
        assert!(!core.report().ceilings.is_empty(), "batches are smaller from now on");
        assert_eq!(items_of_parts(&core, 50, SILENT), None);
    }
}
