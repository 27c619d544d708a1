//! Decisions of the scheduler and their reasons, merged into the JSON of `/api/scheduler`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::report::{micros, whole_micros};
use crate::batching::{
    ClassDecisionStats, ClassStats, DispatchCause, DispatchPolicy, ExpiryReason, HoldReason, OperatingPoint, PlanAge,
    QuarantineReport, RejectionReason, Suspension, Tick,
};
use crate::protocol::decode_cost_class;
use crate::proxy::PriorityClasses;
use crate::scheduler::{ClassDiversity, DecisionReport};

/// Adds the totals to the top level, and the other figures to each cost class.
pub(super) fn add_decisions(learned: &mut Value, decisions: &DecisionReport) {
    let Value::Object(all) = learned else { return };
    let totals = &decisions.core.totals;
    all.insert("now_seconds".into(), json!(seconds(decisions.now)));
    all.insert("slots_max".into(), json!(decisions.slots_max));
    all.insert("policy".into(), json!(policy(decisions.policy)));
    all.insert("dispatches".into(), count_by_label(DispatchCause::ALL.map(DispatchCause::as_str), totals.causes));
    all.insert("holds".into(), count_by_label(HoldReason::ALL.map(HoldReason::as_str), totals.holds));
    all.insert(
        "items_rejected".into(),
        count_by_label(RejectionReason::ALL.map(RejectionReason::as_str), totals.rejected),
    );
    all.insert("items_expired".into(), count_by_label(ExpiryReason::ALL.map(ExpiryReason::as_str), totals.expired));
    let changed = decisions.core.changed.map(seconds);
    all.insert("model_changes".into(), json!({"count": decisions.core.changes, "last_at_seconds": changed}));
    let Some(Value::Array(classes)) = all.get_mut("cost_classes") else { return };
    for of in &decisions.core.classes {
        let id = json!(of.id.0);
        let at = classes.iter().position(|class| class.get("id") == Some(&id)).unwrap_or_else(|| {
            classes.push(json!({"id": id}));
            classes.len() - 1
        });
        if let Some(Value::Object(class)) = classes.get_mut(at) {
            describe_class(class, of, decisions);
        }
    }
    // Classes restored from an earlier process have no decisions yet, but their names are known.
    for class in classes.iter_mut().filter_map(Value::as_object_mut) {
        add_class_name(class, "id", decisions);
    }
    if let Some(Value::Array(flows)) = all.get_mut("concurrency") {
        for flow in flows.iter_mut().filter_map(Value::as_object_mut) {
            add_class_name(flow, "class", decisions);
        }
    }
}

/// Adds path and model of the cost class that this key refers to by number.
fn add_class_name(class: &mut Map<String, Value>, key: &str, decisions: &DecisionReport) {
    let id = class.get(key).and_then(Value::as_u64);
    let bytes = decisions.names.iter().find(|(known, _)| id == Some(known.0.into())).map(|(_, bytes)| bytes);
    if let Some(name) = bytes.and_then(|bytes| decode_cost_class(bytes)) {
        class.insert("path".into(), json!(name.path));
        class.insert("model".into(), json!(name.model));
    }
}

/// Returns the outcome counts of each priority class. Empty if no header selects the class.
pub(super) fn priorities(priorities: &PriorityClasses) -> Value {
    let ended_calls = priorities.classes.iter().filter(|_| priorities.header.is_some());
    let ended = |class: &crate::proxy::PriorityClass| {
        let calls: BTreeMap<_, _> =
            class.ended.counts().into_iter().map(|(outcome, calls)| (outcome.as_str(), calls)).collect();
        json!({"class": class.name, "calls": calls})
    };
    ended_calls.map(ended).collect()
}

const fn policy(policy: DispatchPolicy) -> &'static str {
    match policy {
        DispatchPolicy::Adaptive { .. } => "Adaptive",
        DispatchPolicy::WorkConserving => "WorkConserving",
        DispatchPolicy::Window { .. } => "Window",
        DispatchPolicy::Static { .. } => "Static",
    }
}

fn describe_class(class: &mut Map<String, Value>, of: &ClassDecisionStats, decisions: &DecisionReport) {
    class.insert("recent".into(), recent(&of.tally, decisions.now));
    class.insert("operating_point".into(), of.point.as_ref().map_or(Value::Null, |at| point(at, &of.tally)));
    class.insert("plan".into(), of.plan.as_ref().map_or(Value::Null, |age| plan(age, decisions.now)));
    class.insert("ceiling_items".into(), json!(of.ceiling));
    class.insert("quarantined".into(), json!(of.quarantined));
    class.insert("quarantine".into(), of.quarantine.map_or(Value::Null, quarantine));
    class.insert("suspended".into(), of.suspension.map_or(Value::Null, |found| suspended(found, decisions.now)));
    let diversity = decisions.key_diversity.iter().find(|diversity| diversity.class == of.id);
    class.insert("apart".into(), diversity.map_or(Value::Null, key_diversity_json));
}

/// Returns a suspension of merging: its age, the time until the next trial, the server's response
/// to the last batch, and whether the calls of that batch were answered when sent alone.
fn suspended(found: Suspension, now: Tick) -> Value {
    json!({
        "for_us": whole_micros(now.since(found.since)),
        "retest_in_us": whole_micros(found.retest.since(now)),
        "answer": found.refusal.as_str(),
        "status": found.refusal.status(),
        "answered_alone": found.answered_unbatched,
    })
}

/// Returns the quarantine of merge keys: the server's response to the last batch of such a key.
fn quarantine(found: QuarantineReport) -> Value {
    json!({
        "answer": found.refusal.as_str(),
        "status": found.refusal.status(),
        "ends_merging": found.ends_merging,
    })
}

fn recent(tally: &ClassStats, now: Tick) -> Value {
    let micros_over = (now.since(tally.since).as_micros()).max(1);
    let rate = u128::from(tally.items) * 1_000_000_000 / micros_over;
    json!({
        "over_us": u64::try_from(micros_over).unwrap_or(u64::MAX),
        "items_per_second_milli": u64::try_from(rate).unwrap_or(u64::MAX),
        "batches": tally.batches,
        "calls": tally.calls,
        "items": tally.items,
        "shared": tally.shared,
        "beside": tally.concurrent,
        "apart": tally.other_keys_waiting,
        "mean_wait_us": micros(tally.waited_nanos.checked_div(tally.calls).unwrap_or(0)),
        "causes": count_by_label(DispatchCause::ALL.map(DispatchCause::as_str), tally.causes),
        "alone": tally.unbatched,
        "passed": tally.passed,
        "items_rejected": tally.rejected,
        "items_expired": count_by_label(ExpiryReason::ALL.map(ExpiryReason::as_str), tally.expired),
        "items_max": tally.items_max,
        "slo_us": tally.slo.map(whole_micros),
    })
}

fn point(at: &OperatingPoint, tally: &ClassStats) -> Value {
    json!({
        "last_items": tally.last_items,
        "last_us": micros(at.last_nanos),
        "best_items": at.best_items,
        "best_us": micros(at.best_nanos),
        "double_us": micros(at.double_nanos),
        "lone_us": micros(at.lone_nanos),
        "lone_late_us": micros(at.lone_late_nanos),
        "worked_items": at.largest_answered,
        "items_per_second_milli": at.rate_milli,
    })
}

fn plan(age: &PlanAge, now: Tick) -> Value {
    json!({
        "age_seconds": now.since(age.made).as_secs(),
        "age_batches": age.batches,
        "items_max": age.items_max,
    })
}

fn key_diversity_json(diversity: &ClassDiversity) -> Value {
    let differs: Vec<Value> = diversity
        .differs
        .iter()
        .map(|part| {
            json!({
                "what": part.kind.as_str(),
                "name": part.name,
                "values": part.values,
                "keys_without": part.keys_without,
            })
        })
        .collect();
    json!({"keys": diversity.keys, "differs": differs})
}

fn count_by_label<const N: usize>(words: [&'static str; N], counts: [u64; N]) -> Value {
    json!(words.into_iter().zip(counts).collect::<BTreeMap<_, _>>())
}

fn seconds(at: Tick) -> u64 {
    Duration::from_nanos(at.0).as_secs()
}
