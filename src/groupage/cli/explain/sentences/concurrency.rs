//! Sentence about the concurrency of the server: the reason for forwarding or merging calls of a
//! kind, from the measured load curve.

use serde_json::{Value, json};

use super::format::{describe_difference, format_factor, format_micros};
use crate::cli::explain::facts::{CallKind, ConcurrencyFacts};

/// Mean number of items in recent batches, in thousandths, below which calls are considered not
/// merged yet.
const MERGED_MIN: u64 = 1500;
/// Requests in flight, in thousandths, from which the load curve shows that the server runs several
/// at once.
pub(super) const SEVERAL: u64 = 1500;

/// Returns a sentence about the concurrency of the server, with its numbers; `None` before anything
/// was measured.
pub(super) fn explain(kind: &CallKind) -> Option<(String, Value)> {
    let flow = kind.concurrency.as_ref()?;
    let numbers = json!({
        "mode": if flow.limit.is_some() { "limited" } else { "open" },
        "limit": flow.limit,
        "reason": flow.reason,
        "knee_milli": flow.knee_milli,
        "at_once_milli": observed_parallelism_milli(flow),
        "lone_call_us": flow.lone_us,
        "batch_items_milli": flow.batch_items_milli,
        "batch_us": flow.batch_us,
    });
    let text = match flow.limit {
        Some(limit) => explain_merging(limit, flow),
        None if flow.reason == "nothing_to_merge" => explain_nothing_to_merge(kind),
        None => explain_forwarding(flow)?,
    };
    Some((text, numbers))
}

/// Explains why calls beyond a limit are held and merged.
fn explain_merging(limit: u32, flow: &ConcurrencyFacts) -> String {
    if flow.batch_items_milli < MERGED_MIN || flow.lone_us == 0 {
        let then = if flow.learning {
            "batch sizes are being tried"
        } else {
            "they leave in the order of their classes, deadlines and tenants, and few can share a batch"
        };
        return format!(
            "calls beyond {limit} at once are held, because more were measured to queue inside the server; {then}"
        );
    }
    // As many calls as the batches carry, with as many at once as the server runs: each of the
    // batch's items is one round of unbatched calls.
    let items = round_milli(flow.batch_items_milli);
    let separate_us = flow.batch_items_milli.saturating_mul(flow.lone_us) / 1000;
    let (batches, calls) = if limit > 1 {
        let calls = items.saturating_mul(limit.into());
        (
            format!("{limit} concurrent batches of {items} take"),
            format!("{calls} separate calls, {limit} at once, take"),
        )
    } else {
        (format!("one batch of {items} takes"), format!("{items} separate calls take"))
    };
    let (batch_time, separate_time) = (format_micros(flow.batch_us), format_micros(separate_us));
    if flow.batch_us < separate_us {
        format!(
            "merged because the server runs {limit} at once, and {batches} {batch_time}, while {calls} {separate_time}"
        )
    } else {
        format!(
            "calls beyond {limit} at once are held, because more were measured to queue inside the server; {batches} {batch_time}, and {calls} {separate_time}, so merging does not pay at present; it is being tested"
        )
    }
}

/// Explains that no calls could be merged, with the part in which their merge keys differ.
fn explain_nothing_to_merge(kind: &CallKind) -> String {
    let differs = kind.differs.first().filter(|_| kind.keys > 1).map(describe_difference);
    let differs = differs.map_or_else(String::new, |differs| format!(": {differs}"));
    format!("forwarded because no two calls that arrived could share a batch{differs}")
}

/// Explains why calls are forwarded at once.
fn explain_forwarding(flow: &ConcurrencyFacts) -> Option<String> {
    let text = match flow.reason.as_str() {
        "no_gain" => {
            let cost = flow.item_permille.map_or_else(String::new, |permille| {
                format!(" (an item in a batch costs {} as much as an unbatched call)", format_factor(permille, 1000))
            });
            format!("forwarded because batching was measured to have no benefit{cost}; tried again later")
        }
        "server_batches" => "forwarded because the server reports that it batches by itself".to_owned(),
        _ if flow.learning => {
            "forwarded: too few calls have been answered to measure how many the server runs at once".to_owned()
        }
        _ => {
            let at_once = observed_parallelism_milli(flow)?;
            // Within 10 %, all requests in flight ran at once, so the server may be able to run
            // more.
            let all = at_once.saturating_mul(10) >= flow.most_milli.saturating_mul(9);
            let number = if all {
                format!("at least {}", round_milli(flow.most_milli))
            } else {
                format!("about {}", round_milli(at_once))
            };
            format!(
                "forwarded because the server runs {number} at once (a call takes {} with {} in flight, {} alone)",
                format_micros(flow.most_us),
                round_milli(flow.most_milli),
                format_micros(flow.lone_us),
            )
        }
    };
    Some(text)
}

/// Returns the number of requests that the server was observed to run at once, in thousandths, by
/// Little's law: throughput at the highest load times the latency of an unbatched call.
fn observed_parallelism_milli(flow: &ConcurrencyFacts) -> Option<u64> {
    let most = flow.most_milli;
    let worked = u128::from(most) * u128::from(flow.lone_us) / u128::from(flow.most_us.max(1));
    let worked = u64::try_from(worked).unwrap_or(u64::MAX).max(flow.knee_milli).min(most);
    (most >= SEVERAL && worked >= 1000).then_some(worked)
}

const fn round_milli(milli: u64) -> u64 {
    (milli + 500) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence_of(concurrency: ConcurrencyFacts) -> Option<String> {
        explain(&CallKind { concurrency: Some(concurrency), ..CallKind::default() }).map(|(text, _)| text)
    }

    fn open(most: u64, most_us: u64) -> ConcurrencyFacts {
        ConcurrencyFacts {
            reason: "learning".to_owned(),
            most_milli: 1000 * most,
            most_us,
            lone_us: 200_000,
            ..ConcurrencyFacts::default()
        }
    }

    #[test]
    fn the_sentence_about_forwarded_calls_names_the_concurrency_of_the_server() {
        let expected = "forwarded because the server runs at least 48 at once (a call takes 200 ms with 48 in flight, 200 ms alone)";
        assert_eq!(sentence_of(open(48, 200_000)).unwrap(), expected);
        assert!(sentence_of(open(48, 210_000)).unwrap().contains("at least 48 at once"), "that is noise");
        let queued = sentence_of(open(48, 1_200_000)).unwrap();
        assert!(
            queued.starts_with("forwarded because the server runs about 8 at once (a call takes 1.2 s"),
            "{queued}"
        );
        assert_eq!(sentence_of(open(1, 200_000)), None, "one call at a time shows nothing");
        let learning = sentence_of(ConcurrencyFacts { learning: true, ..open(48, 200_000) }).unwrap();
        assert!(learning.starts_with("forwarded: too few calls"), "{learning}");
        let no_gain = ConcurrencyFacts { reason: "no_gain".to_owned(), item_permille: Some(1010), ..open(2, 1) };
        let expected = "forwarded because batching was measured to have no benefit (an item in a batch costs 1.0× as much as an unbatched call); tried again later";
        assert_eq!(sentence_of(no_gain).unwrap(), expected);
    }

    #[test]
    fn the_sentence_about_merged_calls_compares_a_batch_with_separate_calls() {
        let limited = |limit| ConcurrencyFacts {
            limit: Some(limit),
            lone_us: 10_000,
            batch_items_milli: 16_000,
            batch_us: 25_000,
            ..ConcurrencyFacts::default()
        };
        let expected = "merged because the server runs 1 at once, and one batch of 16 takes 25 ms, while 16 separate calls take 160 ms";
        assert_eq!(sentence_of(limited(1)).unwrap(), expected);
        let expected = "merged because the server runs 4 at once, and 4 concurrent batches of 16 take 25 ms, while 64 separate calls, 4 at once, take 160 ms";
        assert_eq!(sentence_of(limited(4)).unwrap(), expected);
        // Fewer items in a batch than calls at once.
        let small = ConcurrencyFacts { lone_us: 20_000, batch_items_milli: 2140, batch_us: 21_100, ..limited(4) };
        let expected = "4 concurrent batches of 2 take 21.1 ms, while 8 separate calls, 4 at once, take 42.8 ms";
        assert!(sentence_of(small.clone()).unwrap().ends_with(expected));
        let slow = sentence_of(ConcurrencyFacts { batch_us: 50_000, ..small }).unwrap();
        assert!(!slow.contains("merged because") && slow.contains("merging does not pay at present"), "{slow}");
        let growing = sentence_of(ConcurrencyFacts { batch_items_milli: 1000, ..limited(2) }).unwrap();
        assert!(growing.starts_with("calls beyond 2 at once are held"), "{growing}");
    }
    #[test]
    fn calls_that_cannot_be_merged_are_reported_with_the_part_that_differs() {
        use crate::cli::explain::facts::KeyDifference;

        let nothing = ConcurrencyFacts { reason: "nothing_to_merge".to_owned(), ..open(12, 240_000) };
        let expected = "forwarded because no two calls that arrived could share a batch";
        assert_eq!(sentence_of(nothing.clone()).unwrap(), expected);
        let caller = KeyDifference { what: "caller".into(), name: String::new(), values: 12, keys_without: 1 };
        let kind = CallKind { concurrency: Some(nothing), keys: 12, differs: vec![caller], ..CallKind::default() };
        assert_eq!(explain(&kind).unwrap().0, format!("{expected}: the caller differs (12 values)"));
    }
}
