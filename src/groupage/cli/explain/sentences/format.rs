//! Formatting of labels and numbers for people.

use std::time::Duration;

use super::super::facts::{KeyDifference, ratio};

/// Formats microseconds, such as `0.85 ms`, `14.3 ms`, `120 ms` or `2.5 s`.
pub(super) fn format_micros(us: u64) -> String {
    let ms = ratio(us, 1000);
    match us {
        0..1000 => format!("{ms:.2} ms"),
        1000..100_000 => format!("{ms:.1} ms").replace(".0 ms", " ms"),
        100_000..1_000_000 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ratio(us, 1_000_000)),
    }
}

/// Formats a share, such as `37 %`. Below 1 % it has one decimal.
pub(super) fn format_percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 0.0 && percent < 0.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// Formats a quotient, such as `2.1×`.
pub(super) fn format_factor(one: u64, other: u64) -> String {
    format!("{:.1}×", ratio(one, other))
}

/// Formats a period, such as `40 s`, `5 min` or `3 h`.
pub(super) fn format_period(seconds: u64) -> String {
    let span = Duration::from_secs(seconds);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", span.as_secs() / 60),
        _ => format!("{} h", span.as_secs() / 3600),
    }
}

/// Returns the meaning of a reason label, with the remedy where one exists.
pub(super) fn describe_reason(word: &str) -> &'static str {
    match word {
        "not_recognised" => {
            "no adapter recognises method and path; `groupage explain` against the running proxy has the cause"
        }
        "open_inference" => {
            "KServe V2, and the first dimension of the tensors is not the batch (`max_batch_size: 0`), or the server publishes nothing about it; if it is the batch, add a route with `protocol: OpenInferenceV2`"
        }
        "streaming" => "they request a stream",
        "generation" => {
            "text generation or chat: sent one by one, in the order of classes and deadlines; completions are merged if the server is known not to batch text by itself, and on a route with `protocol: OpenAI`, `VLLM`, `SGLang` or `TGI`"
        }
        "encoding" => "not plain JSON in UTF-8, or compressed",
        "too_large" => "larger than `limits.itemBytesMax`",
        "client_batch_full" => "they already have as many items as a batch may have, `limits.batchItemsMax`",
        "ambiguous_json" => "a duplicate key or invalid JSON, sent by the clients",
        "header" => "a header that applies to one call only",
        "item_form" => "items of a form that cannot be merged",
        "quarantined" => "batches of their merge key were refused, or their answers could not be split",
        "verify_failed" => "a response to a batch of their merge key differed from the response to the call alone",
        "merge_refused" => {
            "batches were refused, or their answers could not be used; or the server accepts one item per call; or too many batches failed"
        }
        "policy_off" => "the policy sets `mode: Passthrough`",
        "merge_never" => "their route sets `merge: Never`",
        "policy_observe" => "the policy sets `mode: Observe`",
        "queue_full" => "more items than `limits.queueItemsMax` allows",
        "bytes_full" => "more bytes than the buffers can hold",
        "connections_full" => "more upstream connections than `proxy.process.connectionsMax` allows",
        "tenant_share" => "one caller used its full share of the queue while others were waiting",
        "late_predicted" => {
            "the answer would have come after the deadline: too much load for the SLO or the callers' own deadlines"
        }
        "deadline" => {
            "the deadline passed in the queue: too much load for the SLO, the callers' own deadlines or the route's timeout"
        }
        "draining" => "the process was draining",
        _ => "see the metrics page",
    }
}

/// Describes a part of the merge key that separates calls, with the number of its values.
pub(super) fn describe_difference(part: &KeyDifference) -> String {
    let what = match part.what.as_str() {
        "header" => format!("header `{}` differs", part.name),
        "field" => format!("field `{}` differs", part.name),
        "merge_on_header" => format!("header `{}` differs, which the policy's mergeOn names", part.name),
        "merge_on_field" => format!("field `{}` differs, which the policy's mergeOn names", part.name),
        "caller" => "the caller differs".to_owned(),
        "path" => "the path differs".to_owned(),
        "query" => "the query differs".to_owned(),
        "host" => "the Host header differs".to_owned(),
        "accept" => "the Accept header differs".to_owned(),
        "item_form" => "the form of the items differs".to_owned(),
        "items" => "the items differ, and their cost can only be attributed if all are equal".to_owned(),
        other => format!("{other} differs"),
    };
    format!("{what} ({} values)", part.values)
}

/// Returns the remedy for a part of the merge key that separates calls; empty if none exists.
pub(super) fn remedy_for(part: &KeyDifference) -> String {
    match part.what.as_str() {
        "header" => format!(": add `{}` to the route's mergeOver.headers if it does not change answers", part.name),
        "field" => format!(": add `{}` to the route's mergeOver.fields if it does not change answers", part.name),
        "merge_on_header" | "merge_on_field" => ": remove it from the policy if it need not be equal".to_owned(),
        "caller" => ": calls of different callers are never merged".to_owned(),
        _ => String::new(),
    }
}
