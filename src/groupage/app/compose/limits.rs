//! Converts the limits and the scheduling of a policy to the types of the core, and publishes the
//! limits as gauges.

use std::time::Duration;

use crate::api::v1alpha1 as api;
use crate::batching::{CallOrder, DispatchPolicy as CorePolicy, LateTreatment, Limits, PriorityClass, ScopeLimits};
use crate::config::{self, Policy, SettingSource};
use crate::scheduler;
use crate::telemetry::Metrics;

/// Converts the limits of a policy to the core's type. `scopes` has every route since the start of
/// the process.
pub(super) fn core_limits(policy: &Policy, scopes: &[ScopeLimits]) -> Limits {
    let config::SchedulingConfig { items, delay, slots, preset, policy: kind, .. } = policy.scheduling;
    let adaptive = kind == config::SchedulingPolicy::Adaptive;
    // Without a limit in the policy, the limit of the process applies, as for unbatched calls.
    let slots_max = policy.limits.slots_max.unwrap_or(scheduler::SLOTS_UNLIMITED);
    // Share of the SLO that a call may be held beside an idle upstream to obtain a larger batch.
    let hold_permille = match preset {
        api::Preset::Latency => 0,
        api::Preset::Balanced => 100,
        api::Preset::Throughput => 400,
    };
    Limits {
        policy: match kind {
            config::SchedulingPolicy::Adaptive => CorePolicy::Adaptive { hold_permille },
            config::SchedulingPolicy::WorkConserving => CorePolicy::WorkConserving,
            config::SchedulingPolicy::Window => CorePolicy::Window { items, delay },
            config::SchedulingPolicy::Static => CorePolicy::Static { items, delay },
        },
        order: match policy.scheduling.order {
            api::CallOrder::Deadline => CallOrder::Deadline,
            api::CallOrder::ShortFirst => CallOrder::ShortFirst,
        },
        length_buckets: policy.scheduling.length_buckets.clone(),
        slots: if adaptive { slots_max } else { slots.min(slots_max) },
        stand_aside_max: policy.limits.passthrough_calls_max.min(scheduler::COMPLETIONS_MAX / 2),
        queue_items_max: policy.limits.queue_items_max,
        queue_bytes_max: policy.limits.queue_bytes_max as u64,
        scopes: scopes.to_vec(),
        priorities: policy.priority.classes.iter().map(|class| to_core_class(class, policy.slo)).collect(),
        quarantine: policy.failure.quarantine,
        ordered: is_ordered(policy),
    }
}

/// Returns `true` if the policy orders calls by SLO, tenant or length.
fn is_ordered(policy: &Policy) -> bool {
    policy.tenant_header.is_some()
        || policy.slo.is_some()
        || policy.scheduling.order == api::CallOrder::ShortFirst
        || policy.routes.iter().any(|route| route.slo.is_some())
        || policy.priority.classes.iter().any(|class| class.slo.is_some())
}

/// Converts the limits of one route, its treatment of late calls, and its rule for merging to the
/// core's type.
pub(super) fn to_scope_limits(limits: &config::Limits, late: api::LateHandling, merge: api::MergeRule) -> ScopeLimits {
    ScopeLimits {
        batch_items_max: limits.batch_items_max,
        batch_weight_max: limits.batch_weight_max,
        batch_bytes_max: limits.batch_bytes_max as u64,
        queue_delay_max: limits.queue_delay_max,
        queue_items_max: limits.queue_items_max,
        queue_bytes_max: limits.queue_bytes_max as u64,
        slots_max: limits.slots_max.unwrap_or(u32::MAX),
        late: to_core_late(late),
        merges_always: merge == api::MergeRule::Always,
    }
}

/// Returns the maximum weight of a batch of any route; `None` without a limit. A tuned limit is none,
/// because it may rise.
pub(super) fn batch_weight_max(policy: &Policy) -> Option<u64> {
    let is_tuned = |own: &config::Setting| own.path == "limits.batchWeightMax" && own.source == SettingSource::Tuned;
    if policy.effective().iter().any(is_tuned) {
        return None;
    }
    let of_routes = policy.routes.iter().map(|route| policy.limits.overridden(&route.limits).batch_weight_max);
    of_routes.fold(policy.limits.batch_weight_max, |most, limit| most.zip(limit).map(|(most, limit)| most.max(limit)))
}

/// Converts the treatment of late calls to the core's type.
pub(super) const fn to_core_late(late: api::LateHandling) -> LateTreatment {
    match late {
        api::LateHandling::Serve => LateTreatment::Serve,
        api::LateHandling::Refuse => LateTreatment::Refuse,
    }
}

/// Converts a priority class to the core's type.
fn to_core_class(class: &config::PriorityClass, slo: Option<Duration>) -> PriorityClass {
    let own = class.slo.or(slo).map(|slo| slo * PriorityClass::AGES_SLOS);
    PriorityClass {
        weight: class.weight,
        strict: class.strict,
        filler: class.filler,
        aging_interval: own.unwrap_or(PriorityClass::AGES_WITHOUT_SLO),
    }
}

/// Publishes the limits of a policy as gauges, and removes gauges of a previous source.
pub(super) fn publish_limits(metrics: &Metrics, before: Option<&Policy>, policy: &Policy) {
    let before = before.map(published_limits);
    for (index, (limit, source, value)) in published_limits(policy).into_iter().enumerate() {
        if let Some((_, old, _)) = before.as_ref().and_then(|before| before.get(index))
            && *old != source
        {
            metrics.clear_policy_limit(limit, old);
        }
        metrics.set_limit(limit, source, value);
    }
}

/// Returns the name, the source and the value of the limits that are published as gauges.
fn published_limits(policy: &Policy) -> [(&'static str, &'static str, f64); 7] {
    let source = |key: &str| match policy.effective().iter().find(|setting| setting.path == key) {
        Some(setting) if setting.source.to_string() == "default" => "default",
        _ => "policy",
    };
    let limits = &policy.limits;
    // Exact up to 2^32; no limit here is larger and odd.
    let real = |number: u64| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    [
        ("batch_items_max", source("limits.batchItemsMax"), f64::from(limits.batch_items_max)),
        ("queue_items_max", source("limits.queueItemsMax"), f64::from(limits.queue_items_max)),
        ("queue_delay_max_seconds", source("limits.queueDelayMax"), limits.queue_delay_max.as_secs_f64()),
        ("slots_max", source("limits.slotsMax"), limits.slots_max.map_or(f64::INFINITY, f64::from)),
        ("batch_weight_max", source("limits.batchWeightMax"), limits.batch_weight_max.map_or(f64::INFINITY, real)),
        ("batch_bytes_max", source("limits.batchBytesMax"), real(limits.batch_bytes_max as u64)),
        ("stand_aside_max", source("limits.standAsideMax"), f64::from(limits.passthrough_calls_max)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MachineLimits, Overrides, TunedValues};

    fn policy(text: &str) -> Policy {
        config::build(Some(&config::load(text, "p").unwrap()), &Overrides::default(), &MachineLimits::default())
            .unwrap()
    }

    #[test]
    fn the_weight_of_a_batch_is_at_most_that_of_any_route() {
        for (text, expected) in [
            ("{}", None),
            ("limits: {batchWeightMax: 500}", Some(500)),
            ("limits: {batchWeightMax: 500}\nroutes: [{path: /a, limits: {batchWeightMax: 900}}]", Some(900)),
            ("limits: {batchWeightMax: 500}\nroutes: [{path: /a, limits: {batchWeightMax: 9}}]", Some(500)),
            // Calls of other paths have no limit.
            ("routes: [{path: /a, limits: {batchWeightMax: 900}}]", None),
        ] {
            assert_eq!(batch_weight_max(&policy(text)), expected, "{text}");
        }
        let tuned = TunedValues { batch_weight_max: Some(100), ..TunedValues::default() };
        assert_eq!(batch_weight_max(&policy("limits: {batchWeightMax: 500}").with_tuned(&tuned)), None);
    }
}
