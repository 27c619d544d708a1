use super::super::facts::{CeilingSource, KeyDifference, OperatingPoint, words};
use super::*;

fn point() -> OperatingPoint {
    OperatingPoint { best_items: 32, best_us: 12_000, double_us: 25_200, lone_us: 9000, lone_late_us: 11_000 }
}

fn kind() -> CallKind {
    CallKind {
        name: "/p".into(),
        batches: 100,
        calls: 100,
        items: 100,
        overlapping: Some(0),
        wait_us: 40,
        causes: words(&[("idle", 100)]),
        items_max: Some(64),
        rate_milli: Some(3000),
        point: Some(point()),
        keys: 1,
        ..CallKind::default()
    }
}

/// Explains a kind of calls on an upstream with one slot. No other kind has calls.
fn explain_kind(kind: CallKind) -> Vec<(&'static str, String)> {
    let slots = Some(SlotFacts { learned: 1, max: 16, fixed: false });
    let facts = ProxyFacts { calls: kind.calls, items: kind.items, slots, kinds: vec![kind], ..ProxyFacts::default() };
    explain(&facts).into_iter().map(|sentence| (sentence.what, sentence.text)).collect()
}

#[track_caller]
fn first(kind: CallKind) -> (&'static str, String) {
    explain_kind(kind).swap_remove(0)
}

#[test]
fn clients_that_send_batches_themselves_are_named_with_their_number() {
    let found = first(CallKind { items: 410, ..kind() });
    let expected = "batches hold 4.1 items on average because clients send 4.1 at a time, and seldom two calls at once";
    assert_eq!(found, ("clients", expected.to_owned()));
}

#[test]
fn batching_cannot_help_an_idle_server() {
    let (what, text) = first(kind());
    assert_eq!(what, "load");
    assert!(text.contains("3.0 items arrive per second and one takes 9 ms"), "{text}");
    assert!(text.contains("batching cannot help"), "{text}");
}

#[test]
fn free_slots_are_reported_as_a_reason_for_small_batches() {
    let slots = Some(SlotFacts { learned: 4, max: 16, fixed: false });
    let kinds = vec![CallKind { overlapping: Some(90), ..kind() }];
    let facts = ProxyFacts { calls: 100, items: 100, slots, kinds, ..ProxyFacts::default() };
    let text = &explain(&facts)[0].text;
    assert!(text.contains("runs 4 batches side by side, and a slot is nearly always free"), "{text}");
}

#[test]
fn under_load_the_batch_size_is_explained_by_arrivals_during_an_execution() {
    let found = explain_kind(CallKind { calls: 1170, items: 1170, wait_us: 6100, ..kind() });
    let arrivals =
        "batches hold 11.7 items on average: as many as arrive while the server is busy; a call waits 6.1 ms for it";
    let curve =
        "the server runs one batch at a time: it answers 32 items in 12 ms, one in 9 ms; 64 would take 2.1× as long";
    assert_eq!(found, [("arrivals", arrivals.to_owned()), ("curve", curve.to_owned())]);
}

#[test]
fn a_binding_limit_is_reported_with_its_source() {
    let full = CallKind { items: 1600, calls: 1600, causes: words(&[("full", 80), ("idle", 20)]), ..kind() };
    let (what, text) = first(CallKind { ceiling: Some(16), ..full.clone() });
    assert_eq!(what, "limit_items");
    assert!(text.starts_with("80 % of the batches reach 16 items: the server accepts no more"), "{text}");
    let ceiling_from = Some(CeilingSource { published: false, age_seconds: 34, retest_seconds: Some(12) });
    let (_, text) = first(CallKind { ceiling: Some(16), ceiling_from, ..full.clone() });
    let expected = "the server accepts no more, learned 34 s ago when it refused more; a larger batch is tried again in 12 s, if no deadline is at risk";
    assert!(text.ends_with(expected), "{text}");
    let cheap = OperatingPoint { best_items: 64, best_us: 20_000, double_us: 28_000, ..point() };
    let (_, text) = first(CallKind { ceiling: None, point: Some(cheap), ..full });
    let expected = "reach the policy's `limits.batchItemsMax`, 64 items; twice as many would take 1.4× as long, so raising the limit may help";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn weight_bytes_and_deadlines_are_reported_as_binding() {
    for (cause, word) in [("weight", "batchWeightMax"), ("bytes", "batchBytesMax"), ("deadline", "to meet a deadline")]
    {
        let (_, text) = first(CallKind { causes: words(&[(cause, 40), ("idle", 60)]), ..kind() });
        assert!(text.starts_with("40 % of the batches") && text.contains(word), "{text}");
    }
}

#[test]
fn the_header_that_separates_calls_is_named_with_advice() {
    let user = KeyDifference { what: "header".into(), name: "x-user".into(), values: 17, keys_without: 1 };
    let found = explain_kind(CallKind { keys: 17, separated_batches: 45, differs: vec![user.clone()], ..kind() });
    let expected = "batches hold 1.0 items on average, and calls of 17 merge keys are queued at the same time (during 45 % of \
        the batches): header `x-user` differs (17 values): add `x-user` to the route's mergeOver.headers if it does not change answers";
    assert_eq!(found[0], ("kept_apart", expected.to_owned()));
    // Two parts differ independently: the one that joins the most keys when removed comes first.
    let field = KeyDifference { what: "field".into(), name: "/seed".into(), values: 3, keys_without: 17 };
    let both = vec![KeyDifference { keys_without: 3, ..user }, field];
    let (_, text) = explain_kind(CallKind { keys: 51, separated_batches: 45, differs: both, ..kind() }).swap_remove(0);
    assert!(
        text.contains("`x-user` differs (17 values), and field `/seed` differs (3 values): add `x-user`"),
        "{text}"
    );
}

#[test]
fn a_busy_server_is_not_called_idle_and_the_binding_cause_comes_first() {
    let user = KeyDifference { what: "header".into(), name: "x-user".into(), values: 8, keys_without: 1 };
    let busy = CallKind { wait_us: 76_200, keys: 8, separated_batches: 100, differs: vec![user], ..kind() };
    let found = explain_kind(busy.clone());
    assert_eq!((found[0].0, found[1].0), ("kept_apart", "curve"));
    let (what, text) = first(CallKind { separated_batches: 0, ..busy });
    assert!(what == "arrivals" && text.contains("a call waits 76.2 ms"), "{text}");
    let full = CallKind { keys: 2, separated_batches: 100, causes: words(&[("full", 90)]), ..kind() };
    assert_eq!(first(full).0, "limit_items");
}

#[test]
fn different_callers_get_no_advice_to_merge_and_rarely_queued_keys_no_sentence() {
    let caller = KeyDifference { what: "caller".into(), name: String::new(), values: 9, keys_without: 1 };
    let apart = CallKind { keys: 9, separated_batches: 30, differs: vec![caller], ..kind() };
    let (_, text) = first(apart.clone());
    assert!(text.ends_with("the caller differs (9 values): calls of different callers are never merged"), "{text}");
    let found = explain_kind(CallKind { separated_batches: 3, ..apart });
    assert!(found.iter().all(|(what, _)| *what != "kept_apart"), "{found:?}");
}

#[test]
fn a_log_with_digests_only_refers_to_the_running_proxy() {
    let (_, text) = explain_kind(CallKind { keys: 2, separated_batches: 50, point: None, ..kind() }).swap_remove(0);
    assert!(text.contains("`groupage explain` against the running proxy"), "{text}");
}

#[test]
fn an_slo_below_a_lone_call_is_infeasible() {
    let lone = OperatingPoint { lone_us: 18_000, lone_late_us: 20_000, ..point() };
    let (what, text) = first(CallKind { slo_us: Some(15_000), point: Some(lone), ..kind() });
    assert_eq!(what, "slo_infeasible");
    let expected =
        "SLO 15 ms is below the latency of an unbatched call, 20 ms (98th percentile): infeasible, served best effort";
    assert_eq!(text, expected);
}

#[test]
fn crashes_are_reported_before_the_first_call() {
    let facts = ProxyFacts { crashed_seconds: Some(540), ..ProxyFacts::default() };
    let found = explain(&facts);
    assert_eq!((found[0].what, found[1].what), ("crash_guard", "no_calls"));
    let expected = "all calls pass through for 9 min more, because the process crashed 3 times in 60 s: see the log of the previous process for the cause";
    assert_eq!(found[0].text, expected);
}

#[test]
fn reasons_for_not_merging_come_with_shares_the_largest_first() {
    let passed = words(&[("streaming", 80), ("not_recognised", 300), ("header", 1)]);
    let facts = ProxyFacts { calls: 1000, passed, ..ProxyFacts::default() };
    let text = &explain(&facts)[0].text;
    assert!(text.starts_with("38 % of 1000 calls could not be merged: 30 % `not_recognised` ("), "{text}");
    assert!(text.contains("8 % `streaming` (they request a stream)") && !text.contains("`header`"), "{text}");
}

#[test]
fn refusals_are_reported_from_one_percent_on() {
    let facts =
        ProxyFacts { calls: 1000, items: 1000, unserved: words(&[("queue_full", 40)]), ..ProxyFacts::default() };
    assert!(explain(&facts)[0].text.starts_with("4 % of the items were refused or ended early: 40 `queue_full`"));
    assert!(explain(&ProxyFacts { unserved: words(&[("queue_full", 4)]), ..facts }).is_empty());
}

#[test]
fn too_few_batches_are_reported_as_such() {
    assert_eq!(explain(&ProxyFacts::default())[0].what, "no_calls");
    assert_eq!(
        explain_kind(CallKind { batches: 2, calls: 2, ..kind() }),
        [("too_few", "only 2 batches so far: too few to tell what limits batching".to_owned())]
    );
}

#[test]
fn a_kind_of_calls_gets_three_sentences_at_most() {
    let user = KeyDifference { what: "header".into(), name: "x-user".into(), values: 17, keys_without: 1 };
    let all =
        CallKind { quarantined: true, slo_us: Some(1), keys: 17, separated_batches: 90, differs: vec![user], ..kind() };
    assert_eq!(explain_kind(all).len(), 3);
}

#[test]
fn times_and_percentages_are_formatted_with_units() {
    for (us, text) in [
        (40, "0.04 ms"),
        (850, "0.85 ms"),
        (9000, "9 ms"),
        (14_300, "14.3 ms"),
        (120_400, "120 ms"),
        (2_500_000, "2.5 s"),
    ] {
        assert_eq!(format_micros(us), text);
    }
    assert_eq!(
        (format_percent(0.005), format_percent(0.374), format_period(90), format_period(300)),
        ("0.5 %".into(), "37 %".into(), "90 s".into(), "5 min".into())
    );
}
