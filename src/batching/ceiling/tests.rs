use super::*;

const TOOK: Duration = Duration::from_micros(500);
const SECOND: u64 = 1000;

fn at(millis: u64) -> Tick {
    Tick::from_millis(millis)
}

/// Returns the extent of `items` items that weigh `each`.
fn extent(items: u32, each: u64) -> BatchExtent {
    BatchExtent { items, sum: u64::from(items) * each, heaviest: each }
}

/// Sends batches to a server that accepts `truth` items until the ceiling is known. Returns the
/// number of refusals.
fn find(ceilings: &mut Ceilings, now: Tick, truth: u32) -> u32 {
    let mut refused = 0;
    for _ in 0..64 {
        let items = u32::try_from(ceilings.max(SizeMeasure::Items)).unwrap_or(64).min(64);
        if items > truth {
            ceilings.on_too_large(now, extent(items, 1), None, TOOK);
            refused += 1;
        } else {
            ceilings.on_success(now, extent(items, 1));
        }
    }
    refused
}

#[test]
fn a_ceiling_without_a_name_is_found_by_bisection() {
    for truth in 1..64 {
        let mut ceilings = Ceilings::default();
        ceilings.on_success(at(0), extent(1, 1));
        let refused = find(&mut ceilings, at(0), truth);
        assert_eq!(ceilings.max(SizeMeasure::Items), u64::from(truth));
        assert!(refused <= 7, "{refused} refusals for {truth}");
    }
}

#[test]
fn a_ceiling_below_an_earlier_success_is_found_again() {
    let mut ceilings = Ceilings::default();
    ceilings.on_success(at(0), extent(64, 1));
    find(&mut ceilings, at(1), 16);
    assert_eq!(ceilings.max(SizeMeasure::Items), 16);
}

#[test]
fn the_measure_that_exceeds_the_last_success_most_gets_the_ceiling() {
    let mut ceilings = Ceilings::default();
    ceilings.on_success(at(0), BatchExtent { items: 10, sum: 700, heaviest: 90 });
    ceilings.on_too_large(at(1), BatchExtent { items: 11, sum: 1100, heaviest: 200 }, None, TOOK);
    assert_eq!((ceilings.max(SizeMeasure::Items), ceilings.max(SizeMeasure::Weight)), (u64::MAX, 900));
    ceilings.on_too_large(at(2), BatchExtent { items: 20, sum: 800, heaviest: 90 }, None, TOOK);
    assert_eq!((ceilings.max(SizeMeasure::Items), ceilings.max(SizeMeasure::Weight)), (15, 900));
}

#[test]
fn a_refusal_of_more_items_at_an_accepted_weight_sets_a_ceiling_of_items() {
    let mut ceilings = Ceilings::default();
    ceilings.on_success(at(0), BatchExtent { items: 16, sum: 3000, heaviest: 900 });
    ceilings.on_too_large(at(1), BatchExtent { items: 17, sum: 1500, heaviest: 90 }, None, TOOK);
    assert_eq!((ceilings.max(SizeMeasure::Items), ceilings.max(SizeMeasure::Weight)), (16, u64::MAX));
}

#[test]
fn out_of_memory_halves_the_padded_weight_and_a_refused_retest_does_not_halve_again() {
    let mut ceilings = Ceilings::default();
    let heavy = BatchExtent { items: 10, sum: 1500, heaviest: 500 };
    ceilings.on_out_of_memory(at(0), heavy, SizeMeasure::PaddedWeight, TOOK);
    assert_eq!(ceilings.max(SizeMeasure::PaddedWeight), 2500);
    assert_eq!(ceilings.due_retest(at(599 * SECOND)), None);
    let (bounded, target, _) = ceilings.due_retest(at(600 * SECOND)).unwrap();
    assert_eq!((bounded, target), (SizeMeasure::PaddedWeight, 3750), "half the way to what failed");
    ceilings.begin_retest(bounded);
    ceilings.on_out_of_memory(at(601 * SECOND), BatchExtent { items: 7, sum: 900, heaviest: 500 }, bounded, TOOK);
    assert_eq!(ceilings.max(SizeMeasure::PaddedWeight), 2500);
    assert_eq!(ceilings.due_retest(at(1800 * SECOND)), None, "20 minutes until the next");
    assert!(ceilings.due_retest(at(1801 * SECOND)).is_some());
}

#[test]
fn a_successful_retest_raises_the_ceiling_and_a_failed_one_doubles_the_interval() {
    let mut ceilings = Ceilings::default();
    ceilings.on_success(at(0), extent(16, 1));
    ceilings.on_too_large(at(0), extent(17, 1), None, TOOK);
    let (mut now, mut waits) = (0, Vec::new());
    for _ in 0..20 {
        let due = (now..).step_by(500).find(|millis| ceilings.due_retest(at(*millis)).is_some()).unwrap();
        waits.push((due - now) / SECOND);
        ceilings.begin_retest(SizeMeasure::Items);
        assert_eq!(ceilings.due_retest(at(due)), None, "one at a time");
        ceilings.on_too_large(at(due), extent(17, 1), Some(SizeMeasure::Items), TOOK);
        now = due;
    }
    assert_eq!(waits[..5], [1, 2, 4, 8, 16]);
    assert_eq!(waits[19], 86_400);
    ceilings.begin_retest(SizeMeasure::Items);
    ceilings.on_success(at(now), extent(17, 1));
    assert_eq!(ceilings.max(SizeMeasure::Items), u64::MAX);
}

#[test]
fn a_ceiling_is_retested_at_once_after_a_change_of_the_server() {
    let mut ceilings = Ceilings::default();
    ceilings.on_named_limit(at(0), 16, TOOK);
    assert_eq!(ceilings.due_retest(at(10 * SECOND)), None);
    ceilings.on_server_change(at(10 * SECOND));
    assert_eq!(ceilings.due_retest(at(10 * SECOND)), Some((SizeMeasure::Items, 17, TOOK)));
}

#[test]
fn published_ceilings_are_never_retested_and_the_smallest_applies() {
    let mut ceilings = Ceilings::default();
    ceilings.set_published(at(0), SizeMeasure::Items, 16);
    ceilings.set_published(at(0), SizeMeasure::Items, 32);
    assert_eq!((ceilings.max(SizeMeasure::Items), ceilings.due_retest(at(u64::MAX / 1_000_000))), (16, None));
    ceilings.on_named_limit(at(0), 20, TOOK);
    assert_eq!((ceilings.max(SizeMeasure::Items), ceilings.due_retest(at(u64::MAX / 1_000_000))), (16, None));
    let reported: Vec<_> = ceilings.report().map(|ceiling| (ceiling.max, ceiling.source, ceiling.retest)).collect();
    assert_eq!(reported, [(16, LimitSource::Published, None)]);
}

#[test]
fn a_published_weight_applies_to_the_current_cost_measure() {
    let mut ceilings = Ceilings::default();
    ceilings.set_published_weight(at(0), SizeMeasure::Weight, 4096);
    ceilings.set_published_weight(at(1), SizeMeasure::PaddedWeight, 8192);
    assert_eq!((ceilings.max(SizeMeasure::Weight), ceilings.max(SizeMeasure::PaddedWeight)), (u64::MAX, 4096));
    ceilings.set_published_weight(at(2), SizeMeasure::Weight, 8192);
    assert_eq!((ceilings.max(SizeMeasure::Weight), ceilings.max(SizeMeasure::PaddedWeight)), (4096, u64::MAX));
}

#[test]
fn a_batch_in_flight_when_a_ceiling_was_found_moves_it_no_further() {
    let mut ceilings = Ceilings::default();
    ceilings.on_success(at(0), extent(8, 1));
    for _ in 0..4 {
        ceilings.on_too_large(at(1), extent(64, 1), None, TOOK);
    }
    assert_eq!(ceilings.max(SizeMeasure::Items), 36);
}

#[test]
fn restored_ceilings_apply_and_are_retested() {
    let mut ceilings = Ceilings::default();
    ceilings.on_success(at(0), extent(16, 3));
    ceilings.on_too_large(at(0), extent(17, 3), None, TOOK);
    ceilings.on_out_of_memory(at(0), extent(100, 9), SizeMeasure::PaddedWeight, TOOK);
    let mut other = Ceilings::default();
    ceilings.snapshot().for_each(|snapshot| other.restore(at(5), &snapshot));
    for bounded in SizeMeasure::ALL {
        assert_eq!(other.max(bounded), ceilings.max(bounded));
    }
    assert!(other.snapshot().eq(ceilings.snapshot()));
    assert!(other.due_retest(at(5 + SECOND)).is_some());
}
