use super::super::call::{KeyId, TenantId};
use super::super::ceiling::BatchExtent;
use super::*;

const ID: CostClassId = CostClassId(3);

/// Records the end of a batch, or of an unbatched call if it has no key.
fn observe_keyed(classes: &mut ClassTable, at: u64, items: u32, key: Option<KeyId>, outcome: BatchOutcome) {
    let observed = Observation { duration: Duration::from_millis(5), first_byte: None, outcome };
    let extent = BatchExtent { items, sum: u64::from(items), heaviest: 1 };
    let shared = key.is_some() && items > 1;
    let size = ClassSample { extent, shared, full: true, memory: SizeMeasure::PaddedWeight, retest: None };
    let ended = EndedBatch { batch: BatchId(at), key, tenant: TenantId(0), shared, replayable: true };
    classes.observe(Tick::from_millis(at), ID, &Limits::default(), (ended, &size), &observed);
}

fn observe(classes: &mut ClassTable, at: u64, items: u32, outcome: BatchOutcome) {
    observe_keyed(classes, at, items, Some(KeyId(1)), outcome);
}

#[test]
fn a_named_limit_is_remembered_and_never_raised_by_a_larger_one() {
    let mut classes = ClassTable::default();
    observe(&mut classes, 0, 64, BatchOutcome::TooLarge { limit: Some(16) });
    observe(&mut classes, 1, 64, BatchOutcome::TooLarge { limit: Some(32) });
    assert_eq!(classes.get(ID).unwrap().ceiling(), 16);
}

#[test]
fn unnamed_limit_is_bisected() {
    let mut classes = ClassTable::default();
    observe(&mut classes, 0, 16, BatchOutcome::Ok);
    observe(&mut classes, 1, 64, BatchOutcome::TooLarge { limit: None });
    assert_eq!(classes.get(ID).unwrap().ceiling(), 40);
}

#[test]
fn unbatched_refusal_counts_only_with_named_limit() {
    let mut classes = ClassTable::default();
    for (outcome, ceiling) in [
        (BatchOutcome::TooLarge { limit: None }, u32::MAX),
        (BatchOutcome::OutOfMemory, u32::MAX),
        (BatchOutcome::TooLarge { limit: Some(16) }, 16),
    ] {
        observe_keyed(&mut classes, 0, 64, None, outcome);
        assert_eq!(classes.get(ID).unwrap().ceiling(), ceiling, "{outcome:?}");
    }
}

#[test]
fn an_overload_halves_the_size_and_eight_full_good_batches_raise_it_by_one() {
    let mut classes = ClassTable::default();
    observe(&mut classes, 0, 64, BatchOutcome::Overloaded { retry_after: None });
    assert_eq!(classes.get(ID).unwrap().ceiling(), 32);
    for at in 1..=8 {
        observe(&mut classes, at, 32, BatchOutcome::Ok);
    }
    assert_eq!(classes.get(ID).unwrap().ceiling(), 33);
}

#[test]
fn the_classes_remembered_are_bounded() {
    let mut classes = ClassTable::default();
    for i in 0..2_000_u32 {
        classes.publish(Tick::from_millis(u64::from(i)), CostClassId(i), 4);
    }
    assert_eq!(classes.map.len(), CLASSES_MAX);
    assert!(classes.get(CostClassId(1_999)).is_some());
}
