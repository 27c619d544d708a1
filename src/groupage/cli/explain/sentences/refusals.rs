//! Sentences that explain why calls are not merged, if the cause is the server: batches that it
//! refused, responses that could not be split or counted, and a limit of one item per call.

use serde_json::{Value, json};

use crate::cli::explain::facts::{CallKind, CeilingSource, MergeSuspension, QuarantineFacts};

/// Returns a sentence that explains why the server's behaviour prevents merging, with its keyword
/// and its numbers; `None` if it does not. A suspension is reported first, because it ends all
/// merging.
pub(super) fn explain(kind: &CallKind) -> Option<(&'static str, (String, Value))> {
    if let Some(found) = &kind.suspended {
        return Some(("merge_refused", explain_suspension(found)));
    }
    if is_one_item(kind) {
        return Some(("one_item", explain_one_item(kind)));
    }
    kind.quarantined.then(|| ("quarantined", explain_quarantine(kind.quarantine.as_ref())))
}

/// Returns `true` if the server accepts one item per call although the policy allows more.
pub(super) fn is_one_item(kind: &CallKind) -> bool {
    kind.ceiling == Some(1) && kind.items_max != Some(1)
}

/// Describes the response of the server to batches as a clause. `answer`: kind of the response.
fn describe_response(answer: &str, status: Option<u64>) -> String {
    match answer {
        "mismatch" => "the server's answers to batches could not be split".to_owned(),
        "usage" => {
            "the server accepts batches, but counts only the first item in `usage`, as llama.cpp does".to_owned()
        }
        "silence" => "the server did not answer batches in time".to_owned(),
        "reset" => "the server closed the connection instead of answering batches".to_owned(),
        "out_of_memory" => "the server ran out of memory for batches".to_owned(),
        "overload" => "the server answered batches with 429 or 503".to_owned(),
        other => {
            let answer = status.map_or_else(|| format!("`{other}`"), |status| format!("status {status}"));
            format!("the server answered batches with {answer}")
        }
    }
}

/// Explains a suspension: the response of the server, the evidence, the next attempt and a remedy.
fn explain_suspension(found: &MergeSuspension) -> (String, Value) {
    let unbatched = if found.answered_unbatched { ", but the same calls succeeded when sent alone" } else { "" };
    let (evidence, remedy) = match found.answer.as_str() {
        "usage" => (
            ", so the usage of a call in a batch is unknown",
            "`protocol: LlamaCpp` or `mode: Passthrough` ends the attempts",
        ),
        "mismatch" => (unbatched, "check that the route's `protocol` is that of the server"),
        _ => (unbatched, "if the server accepts only one item per call, set `mode: Passthrough`"),
    };
    let text = format!(
        "merging is suspended: {}{evidence}. A batch of two is tried in {} s; {remedy}",
        describe_response(&found.answer, found.status),
        found.retest_us / 1_000_000
    );
    let numbers = json!({
        "status": found.status,
        "answer": found.answer,
        "answered_alone": found.answered_unbatched,
        "retest_in_us": found.retest_us,
    });
    (text, numbers)
}

/// Explains a limit of one item per call, with its source.
fn explain_one_item(kind: &CallKind) -> (String, Value) {
    let from = match kind.ceiling_from {
        Some(CeilingSource { published: true, .. }) => "as it reports".to_owned(),
        Some(CeilingSource { age_seconds, retest_seconds: Some(retest), .. }) => {
            format!("learned {age_seconds} s ago when it refused two; a batch of two is tried again in {retest} s")
        }
        _ => "as its refusals or an overload showed".to_owned(),
    };
    let text = format!("calls are not merged: the server accepts one item per call, {from}");
    (text, json!({"ceiling_items": 1}))
}

/// Explains merge keys in quarantine. A proxy of an earlier version does not report the cause.
fn explain_quarantine(found: Option<&QuarantineFacts>) -> (String, Value) {
    let Some(found) = found else {
        let text = "some calls are not merged for now: the server refused their batches, or answered one with a wrong \
                    count, index or shape";
        return (text.to_owned(), json!({}));
    };
    let (calls, others) = if found.ends_merging {
        ("calls are", "")
    } else {
        ("calls of some merge keys are", "; those of other keys are merged")
    };
    let cause = match found.answer.as_str() {
        "mismatch" => {
            "an answer of the server to their batch had a wrong count, index or shape (`groupage explain GRP3304`)"
                .to_owned()
        }
        "different" => "a response to a batch differed from the response to the same call alone (`verify`): see \
             `groupage_verify_total` and the WARN line"
            .to_owned(),
        answer => {
            format!("{}, but the same calls succeeded when sent alone", describe_response(answer, found.status))
        }
    };
    let numbers = json!({"answer": found.answer, "status": found.status, "ends_merging": found.ends_merging});
    (format!("{calls} not merged for now: {cause}{others}"), numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspended(answer: &str, status: Option<u64>) -> String {
        suspended_by(answer, status, true)
    }

    fn suspended_by(answer: &str, status: Option<u64>, answered_unbatched: bool) -> String {
        let answer = answer.to_owned();
        let suspended = Some(MergeSuspension { answer, status, answered_unbatched, retest_us: 30_000_000 });
        let (what, (text, _)) = explain(&CallKind { suspended, ..CallKind::default() }).unwrap();
        assert_eq!(what, "merge_refused");
        text
    }

    fn quarantined(answer: &str, status: Option<u64>, ends_merging: bool) -> String {
        let quarantine = Some(QuarantineFacts { answer: answer.to_owned(), status, ends_merging });
        explain(&CallKind { quarantined: true, quarantine, ..CallKind::default() }).unwrap().1.0
    }

    #[test]
    fn a_suspension_names_what_the_server_did_with_batches() {
        let expected = "merging is suspended: the server answered batches with status 422, but the same calls succeeded when sent alone. \
                        A batch of two is tried in 30 s; if the server accepts only one item per call, set `mode: Passthrough`";
        assert_eq!(suspended("status", Some(422)), expected);
        let unretried = suspended_by("status", Some(422), false);
        assert_eq!(unretried, expected.replace(", but the same calls succeeded when sent alone", ""));
        let usage = suspended("usage", None);
        assert!(usage.contains("accepts batches, but counts only the first item in `usage`"), "{usage}");
        assert!(!usage.contains("one item per call") && usage.contains("LlamaCpp"), "{usage}");
        assert!(suspended("mismatch", None).contains("could not be split"));
        assert!(suspended("silence", None).contains("did not answer batches in time"));
        assert!(suspended("new_word", None).contains("answered batches with `new_word`"));
    }

    #[test]
    fn a_quarantine_after_a_refusal_differs_from_one_after_a_mismatch() {
        let expected = "calls of some merge keys are not merged for now: the server answered batches with status 422, but the same calls \
                        succeeded when sent alone; those of other keys are merged";
        assert_eq!(quarantined("status", Some(422), false), expected);
        let expected = "calls are not merged for now: an answer of the server to their batch had a wrong count, index or shape (`groupage explain GRP3304`)";
        assert_eq!(quarantined("mismatch", None, true), expected);
        let (_, (unknown, _)) = explain(&CallKind { quarantined: true, ..CallKind::default() }).unwrap();
        assert!(unknown.contains("refused their batches, or answered one with a wrong count"), "{unknown}");
    }

    #[test]
    fn a_limit_of_one_item_is_reported_with_its_source() {
        let source = |published, retest_seconds| CallKind {
            ceiling: Some(1),
            ceiling_from: Some(CeilingSource { published, age_seconds: 5, retest_seconds }),
            ..CallKind::default()
        };
        let text = |kind: &CallKind| explain(kind).unwrap().1.0;
        let expected = "calls are not merged: the server accepts one item per call, learned 5 s ago when it refused two; a batch of two is tried again in 25 s";
        assert_eq!(text(&source(false, Some(25))), expected);
        assert!(text(&source(true, None)).ends_with("one item per call, as it reports"));
        assert!(text(&source(false, None)).ends_with("as its refusals or an overload showed"));
        assert_eq!(explain(&CallKind { items_max: Some(1), ..source(false, None) }), None, "the policy allows no more");
        assert_eq!(explain(&CallKind::default()), None);
    }
}
