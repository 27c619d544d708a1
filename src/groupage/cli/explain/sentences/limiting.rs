//! Sentence about the factor that determines the size of the batches of one kind of calls.

use serde_json::{Value, json};

use super::BINDS;
use super::concurrency::SEVERAL;
use super::format::{format_factor, format_micros, format_percent};
use super::refusals::is_one_item;
use crate::cli::explain::facts::{CallKind, CeilingSource, OperatingPoint, SlotFacts, ratio};

/// Mean number of calls per batch below which calls are considered not to share batches.
const SHARED_MIN: f64 = 1.5;
/// One call at the server, in thousandths. From this mean on, an arriving call seldom finds the
/// server idle.
const ONE: u64 = 1000;
/// Mean number of items per call from which clients are considered to send batches of their own.
const CLIENT_BATCH: f64 = 1.5;

/// Returns the first factor that applies, with a sentence and its numbers; `None` if other
/// sentences name the factor. `apart`: calls of several merge keys are queued at the same time.
pub(super) fn find_factor(
    kind: &CallKind,
    slots: Option<SlotFacts>,
    apart: bool,
) -> Option<(&'static str, (String, Value))> {
    let mean = ratio(kind.items, kind.batches);
    let numbers = json!({
        "batches": kind.batches,
        "calls": kind.calls,
        "items": kind.items,
        "mean_items": mean,
        "wait_us": kind.wait_us,
    });
    if is_one_item(kind) {
        return None;
    }
    let is_rare = ratio(kind.calls, kind.batches) < SHARED_MIN;
    let (what, text) = match find_limit(kind, mean) {
        Some(found) => found,
        None if is_rare => find_rare_calls(kind, slots, apart, mean)?,
        None => ("arrivals", explain_arrivals(kind, mean)),
    };
    Some((what, (text, numbers)))
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

/// Returns the reason why calls are seldom queued together; `None` if another sentence names it.
/// The wait in the proxy shows nothing about the load of the server while calls are not held: it is
/// then zero in front of a saturated server too.
fn find_rare_calls(
    kind: &CallKind,
    slots: Option<SlotFacts>,
    apart: bool,
    mean: f64,
) -> Option<(&'static str, String)> {
    let is_open = kind.concurrency.as_ref().is_some_and(|flow| flow.limit.is_none());
    if apart || kind.suspended.is_some() || kind.quarantined || is_open && !is_seldom_busy(kind) {
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
    let lone = kind.point.map(|point| point.lone_us).or(kind.exec_us);
    // Calls that wait in the proxy find the server busy.
    if lone.is_some_and(|lone| kind.wait_us >= lone / 2) {
        return Some(("arrivals", explain_arrivals(kind, mean)));
    }
    Some(explain_load(kind, slots, lone))
}

/// Returns `true` if calls of an open limiter were measured to be alone at the server.
fn is_seldom_busy(kind: &CallKind) -> bool {
    let flow = kind.concurrency.as_ref();
    flow.is_some_and(|flow| !flow.learning && flow.in_flight <= 1 && (1..SEVERAL).contains(&flow.most_milli))
}

/// Returns the mean number of calls at the server by Little's law, in thousandths; `None` if the
/// source has no arrival rate.
fn calls_in_flight_milli(kind: &CallKind, lone_us: u64) -> Option<u64> {
    let milli = u128::from(kind.rate_milli?) * u128::from(lone_us) / 1_000_000;
    Some(u64::try_from(milli).unwrap_or(u64::MAX))
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
fn explain_load(kind: &CallKind, slots: Option<SlotFacts>, lone: Option<u64>) -> (&'static str, String) {
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
        let text = format!(
            "{summary}: the server runs {} batches side by side, and a slot is nearly always free when a call arrives",
            slots.learned
        );
        return ("load", text);
    }
    let in_flight = lone.and_then(|lone| calls_in_flight_milli(kind, lone));
    match (kind.rate_milli, lone, in_flight) {
        (Some(rate), Some(lone), Some(0..ONE)) => {
            let text = format!(
                "{summary}: the server is mostly idle when a call arrives ({:.1} items arrive per second and one takes {}), so batching cannot help at this load",
                ratio(rate, 1000),
                format_micros(lone)
            );
            ("load", text)
        }
        // Without the load of the server, only the queue of the proxy is known.
        _ => {
            let takes = lone.map_or_else(String::new, |lone| format!(" and takes {}", format_micros(lone)));
            let text = format!(
                "{summary}: hardly two are queued at the same time (a call waits {}{takes})",
                format_micros(kind.wait_us)
            );
            ("unqueued", text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{ConcurrencyFacts, MergeSuspension};
    use super::*;

    /// Returns calls that are sent alone without a wait, with this limiter.
    fn unqueued(rate_milli: Option<u64>, concurrency: Option<ConcurrencyFacts>) -> CallKind {
        let point = OperatingPoint { best_items: 1, lone_us: 20_000, ..OperatingPoint::default() };
        CallKind {
            batches: 100,
            calls: 100,
            items: 100,
            point: Some(point),
            rate_milli,
            concurrency,
            ..CallKind::default()
        }
    }

    fn open(most_milli: u64, in_flight: u32) -> Option<ConcurrencyFacts> {
        Some(ConcurrencyFacts { most_milli, in_flight, ..ConcurrencyFacts::default() })
    }

    fn factor(kind: &CallKind, apart: bool) -> Option<(&'static str, String)> {
        find_factor(kind, None, apart).map(|(what, (text, _))| (what, text))
    }

    #[test]
    fn a_server_is_called_idle_only_if_few_calls_are_in_flight() {
        let what = |rate, concurrency| factor(&unqueued(rate, concurrency), false).map(|(what, _)| what);
        assert_eq!(what(Some(3000), None), Some("load"));
        assert_eq!(what(Some(50_000), None), Some("unqueued"), "one call is at the server on average");
        assert_eq!(what(None, None), Some("unqueued"), "a log has no load");
        let limited = Some(ConcurrencyFacts { limit: Some(4), ..ConcurrencyFacts::default() });
        assert_eq!(what(Some(3000), limited), Some("load"));
        assert_eq!(what(Some(3000), open(1000, 1)), Some("load"), "a single caller");
        // Nothing is held, so the wait in the proxy is zero whatever the load.
        for busy in [open(48_000, 48), open(1000, 12), open(0, 0)] {
            assert_eq!(what(Some(3000), busy), None);
        }
    }

    #[test]
    fn calls_that_are_not_merged_for_another_reason_say_nothing_about_the_load() {
        let kind = unqueued(Some(3000), None);
        assert_eq!(factor(&kind, true), None);
        assert_eq!(factor(&CallKind { quarantined: true, ..kind.clone() }, false), None);
        assert_eq!(factor(&CallKind { ceiling: Some(1), ..kind.clone() }, false), None);
        let suspended = Some(MergeSuspension {
            answer: "status".to_owned(),
            status: Some(422),
            answered_unbatched: true,
            retest_us: 1,
        });
        assert_eq!(factor(&CallKind { suspended, ..kind }, false), None);
    }
}
