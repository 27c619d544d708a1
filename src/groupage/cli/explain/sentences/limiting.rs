//! Sentence about the factor that determines the size of the batches of one kind of calls.

use serde_json::{Value, json};

use super::BINDS;
use super::format::{format_factor, format_micros, format_percent};
use crate::cli::explain::facts::{CallKind, CeilingSource, OperatingPoint, SlotFacts, ratio};

/// Mean number of calls per batch below which calls are considered not to share batches.
const SHARED_MIN: f64 = 1.5;
/// Mean number of items per call from which clients are considered to send batches of their own.
const CLIENT_BATCH: f64 = 1.5;

/// Returns the first factor that applies, with a sentence and its numbers.
pub(super) fn find_factor(kind: &CallKind, slots: Option<SlotFacts>) -> (&'static str, (String, Value)) {
    let mean = ratio(kind.items, kind.batches);
    let numbers = json!({
        "batches": kind.batches,
        "calls": kind.calls,
        "items": kind.items,
        "mean_items": mean,
        "wait_us": kind.wait_us,
    });
    let (what, text) = find_limit(kind, mean)
        .or_else(|| find_rare_calls(kind, slots, mean))
        .unwrap_or_else(|| ("arrivals", explain_arrivals(kind, mean)));
    (what, (text, numbers))
}

/// Returns the limit or the deadline that closes batches.
fn find_limit(kind: &CallKind, mean: f64) -> Option<(&'static str, String)> {
    let share = |cause| kind.share(cause);
    // A limit that closes batches comes first: items, then weight and bytes.
    if share("full") >= BINDS {
        return Some(("limit_items", explain_item_limit(kind)));
    }
    for (cause, limit) in [("weight", "limits.batchWeightMax"), ("bytes", "limits.batchBytesMax")] {
        if share(cause) >= BINDS {
            let text = format!(
                "{} of the batches reach `{limit}`, at {mean:.1} items on average",
                format_percent(share(cause))
            );
            return Some(("limit_weight", text));
        }
    }
    // A deadline closes batches before they reach the best size.
    (share("deadline") >= BINDS).then(|| {
        let text = format!(
            "{} of the batches were sent below the best size to meet a deadline; batches hold {mean:.1} items on average",
            format_percent(share("deadline"))
        );
        ("deadlines", text)
    })
}

/// Returns the reason why calls are seldom queued together, if they are not.
fn find_rare_calls(kind: &CallKind, slots: Option<SlotFacts>, mean: f64) -> Option<(&'static str, String)> {
    if ratio(kind.calls, kind.batches) >= SHARED_MIN {
        return None;
    }
    // Clients that send batches of their own seldom have two calls queued at once.
    let per_call = ratio(kind.items, kind.calls);
    if per_call >= CLIENT_BATCH {
        let text = format!(
            "batches hold {mean:.1} items on average because clients send {per_call:.1} at a time, and seldom two calls at once"
        );
        return Some(("clients", text));
    }
    // Calls that hardly wait find a free slot on arrival: the load is too low to form batches.
    let lone = kind.point.map(|point| point.lone_us).or(kind.exec_us);
    lone.is_none_or(|lone| kind.wait_us < lone / 2).then(|| ("load", explain_load(kind, slots, lone)))
}

/// Explains a batch size that is the number of items that arrive while calls are held.
fn explain_arrivals(kind: &CallKind, mean: f64) -> String {
    let per_call = ratio(kind.items, kind.calls);
    let by = if per_call >= CLIENT_BATCH {
        format!(", from clients that send {per_call:.1} at a time")
    } else {
        String::new()
    };
    if kind.share("delay") >= BINDS {
        format!(
            "batches hold {mean:.1} items on average{by}: as many as arrive while calls are held, {} per call",
            format_micros(kind.wait_us)
        )
    } else {
        format!(
            "batches hold {mean:.1} items on average{by}: as many as arrive while the server is busy; a call waits {} for it",
            format_micros(kind.wait_us)
        )
    }
}

fn explain_item_limit(kind: &CallKind) -> String {
    let share = format_percent(kind.share("full"));
    match (kind.ceiling, kind.items_max) {
        (Some(ceiling), max) if max.is_none_or(|max| ceiling < max) => {
            let from = match kind.ceiling_from {
                Some(CeilingSource { published: true, .. }) => "as it reports".to_owned(),
                Some(CeilingSource { age_seconds, retest_seconds, .. }) => {
                    let again = retest_seconds.map(|seconds| {
                        format!("; a larger batch is tried again in {seconds} s, if no deadline is at risk")
                    });
                    format!("learned {age_seconds} s ago when it refused more{}", again.unwrap_or_default())
                }
                None => "as reported by it or learned from its refusals".to_owned(),
            };
            format!("{share} of the batches reach {ceiling} items: the server accepts no more, {from}")
        }
        (_, Some(max)) => {
            let more = kind.point.filter(|point| point.best_items >= max && is_doubling_cheap(*point)).map(|point| {
                format!(
                    "; twice as many would take {} as long, so raising the limit may help",
                    format_factor(point.double_us, point.best_us)
                )
            });
            format!(
                "{share} of the batches reach the policy's `limits.batchItemsMax`, {max} items{}",
                more.unwrap_or_default()
            )
        }
        _ => {
            format!("{share} of the batches have the maximum size: {:.1} items", ratio(kind.items, kind.batches))
        }
    }
}

/// Returns `true` if twice as many items take well below twice the time.
fn is_doubling_cheap(point: OperatingPoint) -> bool {
    ratio(point.double_us, point.best_us) < 1.8
}

/// Explains why calls were forwarded alone although they could have shared a batch.
fn explain_load(kind: &CallKind, slots: Option<SlotFacts>, lone: Option<u64>) -> String {
    let sharing = ratio(kind.calls, kind.batches);
    let summary = if sharing < 1.05 {
        "nearly all calls are sent alone".to_owned()
    } else {
        format!("{sharing:.1} calls share a batch on average")
    };
    let beside = kind.overlapping.map_or(0.0, |beside| ratio(beside, kind.batches));
    if beside >= 0.5
        && let Some(slots) = slots.filter(|slots| slots.learned > 1)
    {
        return format!(
            "{summary}: the server runs {} batches side by side, and a slot is nearly always free when a call arrives",
            slots.learned
        );
    }
    let because = match (kind.rate_milli, lone) {
        (Some(rate), Some(lone)) => {
            format!("{:.1} items arrive per second and one takes {}", ratio(rate, 1000), format_micros(lone))
        }
        (None, Some(lone)) => format!("a call waits {} and takes {}", format_micros(kind.wait_us), format_micros(lone)),
        _ => format!("a call waits {}", format_micros(kind.wait_us)),
    };
    format!(
        "{summary}: the server is mostly idle when a call arrives ({because}), so batching cannot help at this load"
    )
}
