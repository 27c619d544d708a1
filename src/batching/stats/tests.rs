use super::*;

const CLASS: CostClassId = CostClassId(1);

fn batch(calls: usize, items: u32) -> DispatchEvent {
    DispatchEvent {
        now: Tick(0),
        class: CLASS,
        cause: DispatchCause::Idle,
        unbatched_reason: None,
        unbatched: false,
        calls,
        items,
        items_max: 64,
        concurrent: false,
        other_keys_waiting: false,
        waited: Duration::ZERO,
        slo: None,
    }
}

fn of(tallies: &DispatchStats) -> ClassStats {
    tallies.classes().find(|(id, _)| *id == CLASS).unwrap().1
}

#[test]
fn class_counts_decay_and_totals_do_not() {
    let mut tallies = DispatchStats::default();
    for at in 0..10_000 {
        tallies.on_dispatch(DispatchEvent { now: Tick::from_millis(at), ..batch(1, 1) });
    }
    for at in 10_000..14_000 {
        tallies.on_dispatch(DispatchEvent { now: Tick::from_millis(at), ..batch(8, 8) });
    }
    let tally = of(&tallies);
    let millis = 14_000 - tally.since.0 / 1_000_000;
    assert!(millis.abs_diff(tally.batches) <= 10, "a batch a millisecond: {tally:?}");
    assert!((RECENT..2 * RECENT).contains(&tally.batches), "{tally:?}");
    assert!(tally.items / tally.batches >= 7, "what was long ago has faded: {tally:?}");
    assert_eq!(tallies.totals().causes.iter().sum::<u64>(), 14_000);
}

#[test]
fn a_slow_class_covers_its_last_minutes() {
    let mut tallies = DispatchStats::default();
    // One batch per second: an hour of batches of one call, then three minutes of batches of
    // eight.
    for second in 0..3600 {
        tallies.on_dispatch(DispatchEvent { now: Tick::from_millis(1000 * second), ..batch(1, 1) });
    }
    for second in 3600..3780 {
        tallies.on_dispatch(DispatchEvent { now: Tick::from_millis(1000 * second), ..batch(8, 8) });
    }
    let tally = of(&tallies);
    assert!(tally.items / tally.batches >= 6, "{tally:?}");
    assert!((RECENT_MIN..=120).contains(&tally.batches), "{tally:?}");
}

#[test]
fn unmergeable_calls_do_not_count_as_batches() {
    let mut tallies = DispatchStats::default();
    tallies.on_dispatch(batch(4, 8));
    tallies.on_dispatch(DispatchEvent { unbatched: true, ..batch(1, 1) });
    tallies.on_dispatch(DispatchEvent { unbatched_reason: Some(UnbatchedReason::NoGain), ..batch(1, 1) });
    let tally = of(&tallies);
    assert_eq!((tally.batches, tally.calls, tally.items, tally.unbatched, tally.passed), (1, 4, 8, 1, 1));
}

#[test]
fn the_classes_counted_are_bounded() {
    let mut tallies = DispatchStats::default();
    for id in 0..1000 {
        tallies.on_rejection(CostClassId(id), RejectionReason::QueueFull, 2);
    }
    assert_eq!(tallies.classes().count(), CLASSES_MAX);
    assert_eq!(tallies.totals().rejected, [2000, 0, 0]);
}
