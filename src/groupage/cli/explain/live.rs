//! Facts about a running proxy, read from `/api/scheduler` and `/api/stats` of its admin port. Each
//! captured port has facts of its own.

use serde_json::Value;

use super::facts::{
    BatchFailures, CallKind, CeilingSource, ConcurrencyFacts, KeyDifference, LabelCounts, MergeSuspension,
    OperatingPoint, Prediction, ProxyFacts, QuarantineFacts, RetryAfterPauses, SlotFacts,
};
use crate::cli::admin_client::get;

/// Reads the facts from the admin port at `address`, one entry for each captured port.
///
/// # Errors
/// The admin port cannot be read; the error is a message for the user.
pub(super) fn read_facts(address: &str) -> Result<Vec<ProxyFacts>, String> {
    let json = |path| {
        let body = get(address, path)?;
        serde_json::from_slice(&body).map_err(|error| format!("{address} answers {path} with invalid JSON: {error}"))
    };
    let (scheduler, stats): (Value, Value) = (json("/api/scheduler")?, json("/api/stats")?);
    Ok(facts_per_port(&format!("the proxy at {address}"), &scheduler, &stats))
}

/// Returns the facts of each captured port. Their description contains the name of the proxy.
pub(super) fn facts_per_port(whose: &str, scheduler: &Value, stats: &Value) -> Vec<ProxyFacts> {
    let Some(ports) = scheduler["ports"].as_array() else { return vec![facts(whose, scheduler, stats)] };
    let of = |port: &Value| {
        let (number, name) = (number(&port["port"]), text(&port["name"]));
        let name = if name.is_empty() { String::new() } else { format!(" ({name})") };
        let facts = facts(whose, port, stats);
        // Passed, failed and rejected calls are counted per process, not per port.
        ProxyFacts { description: format!("port {number}{name}, of {}", facts.description), ..facts }
    };
    ports.iter().map(of).collect()
}

fn facts(whose: &str, scheduler: &Value, stats: &Value) -> ProxyFacts {
    let uptime = stats["uptime_seconds"].as_f64().unwrap_or_default();
    let now = number(&scheduler["now_seconds"]);
    let calls = number(&stats["calls"]["seen"]);
    let rejected = label_counts(&scheduler["items_rejected"]);
    let refused = rejected.iter().fold(0_u64, |sum, (_, items)| sum.saturating_add(*items));
    let unserved: LabelCounts = rejected.into_iter().chain(label_counts(&scheduler["items_expired"])).collect();
    let adaptive = scheduler["policy"] == "Adaptive";
    ProxyFacts {
        description: format!("{whose}, up for {uptime:.0} s, {calls} calls"),
        calls,
        since_start: true,
        passed: label_counts(&stats["passed"]),
        unrecognised: label_counts(&stats["unrecognised"]),
        passing_routes: label_counts(&stats["passing_routes"]),
        unserved,
        items: number(&stats["items"]["accepted"]).saturating_add(refused),
        slots: Some(SlotFacts {
            learned: to_u32(&scheduler[if adaptive { "slots" } else { "slots_max" }]),
            max: to_u32(&scheduler["slots_max"]),
            fixed: !adaptive,
        }),
        predicted: predicted(&scheduler["predicted"]),
        crashed_seconds: scheduler["crash_guard"]["ends_in_seconds"].as_u64(),
        changed_seconds: scheduler["model_changes"]["last_at_seconds"].as_u64().map(|at| now.saturating_sub(at)),
        failures: stats["isolation"].is_object().then(|| BatchFailures {
            batches: number(&stats["batches"]["count"]),
            failed: number(&stats["batches"]["failed"]),
            mismatched: number(&stats["batches"]["mismatched"]),
            executions: number(&stats["isolation"]["executions"]),
            items: number(&stats["isolation"]["items"]),
        }),
        priorities: scheduler["priorities"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|class| (text(&class["class"]), label_counts(&class["calls"])))
            .collect(),
        kinds: scheduler["cost_classes"].as_array().into_iter().flatten().map(|class| kind(class, scheduler)).collect(),
    }
}

fn predicted(predicted: &Value) -> Option<Prediction> {
    let recent = &predicted["recent"];
    recent.is_object().then(|| Prediction {
        over_seconds: number(&recent["over_us"]) / 1_000_000,
        benefit: text(&predicted["benefit"]),
        side_by_side: number(&predicted["side_by_side"]),
        steady_load: predicted["steady_load"] == true,
        calls: number(&recent["calls"]),
        executions: number(&recent["upstream_calls"]),
        carried: number(&recent["carried"]["calls"]),
        items: number(&recent["carried"]["items"]),
        latency_us: number(&recent["mean_latency_us"]),
        passed_us: number(&recent["passed_mean_latency_us"]),
        unserved: number(&recent["unserved"]),
        measured_items: to_u32(&predicted["measured_items"]),
    })
}

fn kind(class: &Value, scheduler: &Value) -> CallKind {
    let recent = &class["recent"];
    let point = &class["operating_point"];
    let (path, model) = (text(&class["path"]), text(&class["model"]));
    CallKind {
        name: if model.is_empty() { path } else { format!("{path} ({model})") },
        over_seconds: recent["over_us"].as_u64().map(|over| over / 1_000_000),
        batches: number(&recent["batches"]),
        calls: number(&recent["calls"]),
        items: number(&recent["items"]),
        overlapping: recent["beside"].as_u64(),
        separated_batches: number(&recent["apart"]),
        passed: number(&recent["passed"]),
        wait_us: number(&recent["mean_wait_us"]),
        exec_us: None,
        causes: label_counts(&recent["causes"]),
        items_max: recent["items_max"].as_u64().map(|_| to_u32(&recent["items_max"])),
        ceiling: class["ceiling_items"].as_u64().map(|_| to_u32(&class["ceiling_items"])),
        ceiling_from: ceiling_from(&class["id"], scheduler),
        quarantined: class["quarantined"] == true,
        quarantine: quarantine(&class["quarantine"]),
        concurrency: concurrency(&class["id"], scheduler),
        suspended: suspended(&class["suspended"]),
        pauses: pauses(&class["id"], scheduler),
        slo_us: recent["slo_us"].as_u64(),
        rate_milli: recent["items_per_second_milli"].as_u64(),
        point: point.is_object().then(|| OperatingPoint {
            best_items: to_u32(&point["best_items"]),
            best_us: number(&point["best_us"]),
            double_us: number(&point["double_us"]),
            lone_us: number(&point["lone_us"]),
            lone_late_us: number(&point["lone_late_us"]),
        }),
        keys: number(&class["apart"]["keys"]),
        differs: class["apart"]["differs"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|part| KeyDifference {
                what: text(&part["what"]),
                name: text(&part["name"]),
                values: number(&part["values"]),
                keys_without: number(&part["keys_without"]),
            })
            .collect(),
    }
}

/// Returns the state of the concurrency limiter of a cost class.
fn concurrency(class: &Value, scheduler: &Value) -> Option<ConcurrencyFacts> {
    let flow = scheduler["concurrency"].as_array()?.iter().find(|flow| flow["class"] == *class)?;
    let most = flow["curve"].as_array().and_then(|curve| curve.last());
    let most = |key: &str| most.map_or(0, |point| number(&point[key]));
    Some(ConcurrencyFacts {
        limit: flow["limit"].as_u64().map(|_| to_u32(&flow["limit"])),
        reason: text(&flow["reason"]),
        learning: flow["learning"] == true,
        in_flight: to_u32(&flow["in_flight"]),
        knee_milli: number(&flow["knee_milli"]),
        most_milli: most("in_flight_milli"),
        most_us: most("us"),
        lone_us: number(&flow["lone_call_us"]),
        batch_items_milli: number(&flow["batch_items_milli"]),
        batch_us: number(&flow["batch_us"]),
        item_permille: flow["batch_item_permille"].as_u64(),
    })
}

/// Returns the source of the item limit of a cost class, unless it is the policy.
fn ceiling_from(class: &Value, scheduler: &Value) -> Option<CeilingSource> {
    let mut limits = scheduler["limits"].as_array()?.iter();
    let of = |limit: &&Value| limit["class"] == *class && limit["limit"] == "batch_items_max";
    let limit = limits.find(of).filter(|limit| limit["source"] != "policy")?;
    let now = number(&scheduler["now_seconds"]);
    Some(CeilingSource {
        published: limit["source"] == "published",
        age_seconds: now.saturating_sub(number(&limit["since_seconds"])),
        retest_seconds: limit["retest_seconds"].as_u64().map(|at| at.saturating_sub(now)),
    })
}

fn suspended(found: &Value) -> Option<MergeSuspension> {
    found.is_object().then(|| MergeSuspension {
        answer: found["answer"].as_str().unwrap_or_default().to_owned(),
        status: found["status"].as_u64(),
        answered_unbatched: found["answered_alone"] == true,
        retest_us: number(&found["retest_in_us"]),
    })
}

fn quarantine(found: &Value) -> Option<QuarantineFacts> {
    found.is_object().then(|| QuarantineFacts {
        answer: text(&found["answer"]),
        status: found["status"].as_u64(),
        ends_merging: found["ends_merging"] == true,
    })
}

/// Returns the pauses of a cost class.
fn pauses(class: &Value, scheduler: &Value) -> Option<RetryAfterPauses> {
    let of = |list: &str| scheduler[list].as_array().into_iter().flatten().find(|one| one["class"] == *class);
    let pauses = of("pauses")?;
    Some(RetryAfterPauses {
        count: number(&pauses["count"]),
        ago_seconds: number(&scheduler["now_seconds"]).saturating_sub(number(&pauses["last_at_seconds"])),
        requested_us: number(&pauses["requested_us"]),
        held_us: number(&pauses["held_us"]),
        now: of("paused").is_some(),
    })
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn to_u32(value: &Value) -> u32 {
    u32::try_from(number(value)).unwrap_or(u32::MAX)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the counts that are not zero.
fn label_counts(value: &Value) -> LabelCounts {
    let counts = value.as_object().into_iter().flatten();
    counts.map(|(word, count)| (word.clone(), number(count))).filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let most = json!({"a": u64::MAX, "b": u64::MAX});
        let scheduler =
            json!({"items_rejected": most, "items_expired": most, "cost_classes": [{"recent": {"calls": 1}}]});
        let facts = facts("a", &scheduler, &json!({"passed": most, "calls": {"seen": u64::MAX}}));
        assert_eq!(facts.items, u64::MAX);
        assert!(!crate::cli::explain::sentences::explain(&facts).is_empty());
    }

    #[test]
    fn each_of_several_ports_has_its_own_facts() {
        let port =
            |number: u64| json!({"port": number, "name": null, "cost_classes": [{"path": format!("/{number}")}]});
        let facts = facts_per_port("a", &json!({"ports": [port(80), port(81)]}), &json!({}));
        assert_eq!(facts.len(), 2);
        assert!(facts[1].description.starts_with("port 81, of a"), "{}", facts[1].description);
        assert_eq!(facts[1].kinds[0].name, "/81");
        assert_eq!(facts_per_port("a", &json!({}), &json!({})).len(), 1);
    }

    #[test]
    fn pauses_failures_and_classes_are_read() {
        let scheduler = json!({
            "now_seconds": 10,
            "cost_classes": [{"id": 3, "path": "/p"}, {"id": 4, "path": "/q"}],
            "paused": [{"class": 3, "until_seconds": 10}],
            "pauses": [{"class": 3, "count": 2, "last_at_seconds": 9, "requested_us": 7_000_000, "held_us": 100_000}],
            "priorities": [{"class": "bulk", "calls": {"served": 2, "expired": 0}}],
        });
        let stats = json!({
            "batches": {"count": 9, "failed": 2, "mismatched": 1},
            "isolation": {"executions": 4, "items": 3},
        });
        let facts = facts("a", &scheduler, &stats);
        let pauses =
            RetryAfterPauses { count: 2, ago_seconds: 1, requested_us: 7_000_000, held_us: 100_000, now: true };
        assert_eq!((facts.kinds[0].pauses, facts.kinds[1].pauses), (Some(pauses), None));
        let failures = BatchFailures { batches: 9, failed: 2, mismatched: 1, executions: 4, items: 3 };
        assert_eq!(facts.failures, Some(failures));
        assert!(facts.since_start);
        assert_eq!(facts.priorities, [("bulk".to_owned(), vec![("served".to_owned(), 2)])]);
    }

    #[test]
    fn causes_of_unmerged_calls_are_read() {
        let quarantine = json!({"answer": "status", "status": 422, "ends_merging": true});
        let scheduler = json!({
            "cost_classes": [{"id": 3, "quarantined": true, "quarantine": quarantine}],
            "concurrency": [{"class": 3, "in_flight": 7}],
        });
        let stats = json!({"unrecognised": {"method": 2, "route": 1, "no_adapter": 0}, "passing_routes": {"/p": 1}});
        let facts = facts("a", &scheduler, &stats);
        let expected = QuarantineFacts { answer: "status".into(), status: Some(422), ends_merging: true };
        assert_eq!(facts.kinds[0].quarantine, Some(expected));
        assert_eq!(facts.kinds[0].concurrency.as_ref().unwrap().in_flight, 7);
        assert_eq!(facts.unrecognised, [("method".to_owned(), 2), ("route".to_owned(), 1)]);
        assert_eq!(facts.passing_routes, [("/p".to_owned(), 1)]);
    }

    #[test]
    fn missing_fields_of_another_version_are_tolerated() {
        let facts = facts("a", &json!({"cost_classes": [{"path": "/p"}]}), &json!({"calls": 7}));
        assert_eq!(facts.kinds.len(), 1);
        assert_eq!(facts.kinds[0].name, "/p");
        assert_eq!(facts.kinds[0].point, None);
        assert!(facts.kinds.iter().all(|kind| kind.concurrency.is_none()));
    }
}
