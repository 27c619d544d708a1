//! Sentences about failures: pauses that the server requested, failed batches, and the outcomes of
//! calls by priority class.

use serde_json::{Value, json};

use super::super::facts::{BatchFailures, CallKind, LabelCounts, ratio};
use super::format::{format_micros, format_percent, format_period};
use super::{NEWS_SECONDS, REASON_MIN};

/// Reports that the server requested pauses for calls of this kind.
pub(super) fn explain_pauses(kind: &CallKind) -> Option<(String, Value)> {
    let pauses = kind.pauses.filter(|pauses| pauses.now || pauses.ago_seconds <= NEWS_SECONDS)?;
    let when = if pauses.now {
        "paused now".to_owned()
    } else {
        format!("last paused {} ago", format_period(pauses.ago_seconds))
    };
    let text = format!(
        "{when}, {} in total: the server answered 429 or 503 with a `Retry-After` of {}, the callers received that answer, and no call of their merge key was sent for {}; lower `limits.slotsMax` if the server refuses concurrent calls, or add replicas",
        super::plural(pauses.count, "time", "times"),
        format_micros(pauses.requested_us),
        format_micros(pauses.held_us),
    );
    let numbers = json!({
        "now": pauses.now,
        "count": pauses.count,
        "seconds_ago": pauses.ago_seconds,
        "requested_us": pauses.requested_us,
        "held_us": pauses.held_us,
    });
    Some((text, numbers))
}

/// Reports failed batches and the treatment of their calls.
pub(super) fn explain_failures(failures: &BatchFailures) -> Option<(String, Value)> {
    let BatchFailures { batches, failed, mismatched, executions, items } = *failures;
    if mismatched == 0 && (failed == 0 || ratio(failed, batches) < REASON_MIN) {
        return None;
    }
    let mut text = format!(
        "{failed} of {} ({}) failed",
        super::plural(batches, "batch", "batches"),
        format_percent(ratio(failed, batches))
    );
    if mismatched > 0 {
        text.push_str(&format!(
            "; {} could not be split (`groupage explain GRP3304`)",
            super::plural(mismatched, "answer", "answers")
        ));
    }
    text.push_str(&if executions > 0 {
        format!(
            "; {} were retried alone or in smaller batches, with {} to the server",
            super::plural(items, "item", "items"),
            super::plural(executions, "more call", "more calls")
        )
    } else {
        "; nothing was retried".to_owned()
    });
    let numbers = json!({
        "batches": batches,
        "failed": failed,
        "mismatched": mismatched,
        "isolation_executions": executions,
        "items_isolated": items,
    });
    Some((text, numbers))
}

/// Reports the outcomes of calls by priority class, if several classes have calls.
pub(super) fn explain_priorities(classes: &[(String, LabelCounts)]) -> Option<(String, Value)> {
    let with_calls: Vec<_> = classes.iter().filter(|(_, calls)| !calls.is_empty()).collect();
    if with_calls.len() < 2 {
        return None;
    }
    let one = |(name, calls): &&(String, LabelCounts)| {
        let all = calls.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        let parts = [("served", "served"), ("expired", "ended early"), ("rejected", "refused"), ("failed", "failed")];
        let parts = parts.into_iter().filter_map(|(word, verb)| {
            let count = calls.iter().find(|(known, _)| known == word)?.1;
            Some(format!("{count} {verb} ({})", format_percent(ratio(count, all))))
        });
        let parts: Vec<_> = parts.collect();
        let parts = if parts.is_empty() { "all cancelled by their callers".to_owned() } else { parts.join(", ") };
        format!("`{name}` {parts}")
    };
    let text = format!("calls by priority class: {}", with_calls.iter().map(one).collect::<Vec<_>>().join("; "));
    let numbers: Vec<_> = with_calls
        .iter()
        .map(|(name, calls)| json!({"class": name, "calls": calls.iter().cloned().collect::<std::collections::BTreeMap<_, _>>()}))
        .collect();
    Some((text, json!({"classes": numbers})))
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{RetryAfterPauses, words};
    use super::*;

    #[test]
    fn a_recent_pause_is_reported_with_the_retry_after_of_the_server() {
        let pauses =
            RetryAfterPauses { count: 37, ago_seconds: 3, requested_us: 2_000_000, held_us: 100_000, now: false };
        let explain =
            |pauses| explain_pauses(&CallKind { pauses: Some(pauses), ..CallKind::default() }).map(|(text, _)| text);
        let text = explain(pauses).unwrap();
        assert!(text.starts_with("last paused 3 s ago, 37 times in total: the server answered 429 or 503"), "{text}");
        assert!(text.contains("`Retry-After` of 2.0 s") && text.contains("sent for 100 ms"), "{text}");
        assert!(
            explain(RetryAfterPauses { now: true, count: 1, ..pauses })
                .unwrap()
                .starts_with("paused now, 1 time in total")
        );
        assert_eq!(explain(RetryAfterPauses { ago_seconds: NEWS_SECONDS + 1, ..pauses }), None);
        assert_eq!(explain_pauses(&CallKind::default()), None);
    }

    #[test]
    fn failed_batches_are_reported_with_the_result_of_isolation() {
        let explain = |failures| explain_failures(&failures).map(|(text, _)| text);
        let some = BatchFailures { batches: 340, failed: 12, mismatched: 0, executions: 31, items: 24 };
        let expected = "12 of 340 batches (4 %) failed; 24 items were retried alone or in smaller batches, with 31 more calls to the server";
        assert_eq!(explain(some).unwrap(), expected);
        assert!(explain(BatchFailures { mismatched: 2, ..some }).unwrap().contains("2 answers could not be split"));
        let untried = BatchFailures { executions: 0, items: 0, ..some };
        assert!(explain(untried).unwrap().ends_with("nothing was retried"));
        assert_eq!(explain(BatchFailures { failed: 3, ..untried }), None, "too few to matter");
        assert_eq!(explain(BatchFailures::default()), None);
    }

    #[test]
    fn priority_classes_are_reported_if_there_are_several() {
        let classes = [
            ("interactive".to_owned(), words(&[("served", 900)])),
            ("bulk".to_owned(), words(&[("served", 60), ("expired", 30), ("rejected", 10)])),
            ("never".to_owned(), words(&[])),
        ];
        let (text, numbers) = explain_priorities(&classes).unwrap();
        let expected = "calls by priority class: `interactive` 900 served (100 %); `bulk` 60 served (60 %), 30 ended early (30 %), 10 refused (10 %)";
        assert_eq!(text, expected);
        assert_eq!(numbers["classes"][1]["calls"]["expired"], 30);
        assert_eq!(explain_priorities(&classes[..1]), None);
    }
}
