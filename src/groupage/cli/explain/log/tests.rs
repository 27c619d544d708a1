use super::*;

fn record(items: u32, batch_items: u32, key: &str) -> CallRecord {
    CallRecord {
        time_us: 1_000_000,
        route: "/p".into(),
        protocol: "generic".into(),
        key: key.into(),
        items,
        batch_items,
        queue_us: 2000,
        exec_us: 9000,
        cause: "idle".into(),
        outcome: "served".into(),
        status: 200,
        ..CallRecord::default()
    }
}

fn facts_of(records: &[CallRecord]) -> ProxyFacts {
    let lines: Vec<u8> =
        records.iter().flat_map(|record| [serde_json::to_vec(record).unwrap(), b"\n".to_vec()].concat()).collect();
    facts("log", &lines[..]).unwrap()
}

#[test]
fn a_sample_of_the_calls_gives_the_same_means_as_all_of_them() {
    let all: Vec<CallRecord> = (0..400).map(|_| record(2, 8, "a")).collect();
    let (whole, part) = (facts_of(&all), facts_of(&all[..40]));
    assert_eq!((whole.kinds[0].batches, whole.kinds[0].items), (100, 800));
    assert_eq!((part.kinds[0].batches, part.kinds[0].items), (10, 80));
}

#[test]
fn unbatched_passed_and_refused_calls_are_counted_by_reason() {
    let facts = facts_of(&[
        record(1, 1, "a"),
        CallRecord { reason: "item_form".into(), key: String::new(), ..record(1, 1, "") },
        CallRecord { reason: "no_gain".into(), ..record(1, 1, "a") },
        CallRecord {
            outcome: "passed".into(),
            protocol: "none".into(),
            reason: "not_recognised".into(),
            ..record(0, 0, "")
        },
        CallRecord { outcome: "rejected".into(), reason: "queue_full".into(), ..record(3, 0, "a") },
        CallRecord { outcome: "cancelled".into(), ..record(1, 0, "a") },
    ]);
    let reasons: Vec<_> = facts.passed.iter().map(|(reason, _)| reason.as_str()).collect();
    assert_eq!(reasons, ["item_form", "no_gain", "not_recognised"]);
    assert_eq!(facts.unserved, [("queue_full".to_owned(), 3)]);
    assert_eq!((facts.kinds.len(), facts.kinds[0].batches, facts.kinds[0].passed), (1, 1, 1));
    assert_eq!(facts.calls, 6);
}

#[test]
fn batches_during_which_another_key_waited_are_counted() {
    let facts = facts_of(&[record(1, 1, "a"), record(1, 1, "b"), record(1, 1, "a")]);
    assert_eq!((facts.kinds[0].keys, facts.kinds[0].separated_batches), (2, 2));
    let later = CallRecord { time_us: 9_000_000, ..record(1, 1, "b") };
    assert_eq!(facts_of(&[record(1, 1, "a"), later]).kinds[0].separated_batches, 0);
}

#[test]
fn the_header_that_keeps_calls_apart_is_named_where_several_processes_wrote() {
    let call = |process: &str, user: usize| {
        let part = |kind: &str, name: &str, value: usize| {
            (kind.to_owned(), name.to_owned(), format!("{:08x}", process.len() * 1000 + value))
        };
        CallRecord {
            process: process.to_owned(),
            parts: vec![part("path", "", 7), part("header", "x-user", user), part("news", "", user)],
            ..record(1, 1, &format!("{:08x}", process.len() * 1000 + user))
        }
    };
    let calls: Vec<CallRecord> = (0..17).flat_map(|user| [call("one", user), call("other", user)]).collect();
    let facts = facts_of(&calls);
    let differs = KeyDifference { what: "header".into(), name: "x-user".into(), values: 17, keys_without: 1 };
    assert_eq!((facts.kinds[0].keys, &facts.kinds[0].differs), (17, &vec![differs]));
    let same: Vec<CallRecord> = (0..17).flat_map(|_| [call("one", 1), call("other", 1)]).collect();
    let facts = facts_of(&same);
    assert_eq!(
        (facts.kinds[0].keys, facts.kinds[0].separated_batches),
        (1, 0),
        "two pods compute different digests for the same call"
    );
}

#[test]
fn extreme_values_of_a_log_are_bounded_and_summed_without_overflow() {
    let odd = |n: usize| CallRecord {
        queue_us: u64::MAX,
        exec_us: u64::MAX,
        time_us: u64::MAX,
        cause: format!("c{n}").repeat(1000),
        ..record(u32::MAX, u32::MAX, "a")
    };
    let refused = |n: usize| CallRecord { outcome: "rejected".into(), reason: format!("r{n}"), ..odd(n) };
    let facts = facts_of(&(0..2 * WORDS_MAX).flat_map(|n| [odd(n), refused(n)]).collect::<Vec<_>>());
    assert_eq!((facts.kinds[0].causes.len(), facts.unserved.len()), (WORDS_MAX, WORDS_MAX));
    assert!(facts.kinds[0].causes.iter().all(|(cause, _)| cause.len() <= WORD_BYTES_MAX));
    assert_eq!(facts.kinds[0].wait_us, u64::MAX / facts.kinds[0].calls);
}

#[test]
fn invalid_lines_are_counted_and_skipped() {
    let mut lines = serde_json::to_vec(&record(1, 1, "a")).unwrap();
    lines.extend_from_slice(b"\nnonsense\n\n{\"time_us\": 1}\n");
    let facts = facts("log", &lines[..]).unwrap();
    assert_eq!(facts.calls, 1);
    assert!(facts.description.contains("2 lines are not access log records"), "{}", facts.description);
}
