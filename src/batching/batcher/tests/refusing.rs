//! Tests of servers that refuse some or all batches, under load.

use super::closed_loop::ClosedLoop;
use super::*;
use crate::BatchRefusal;

/// Merge key of the clients that every test has.
const COMMON: KeyId = KeyId(0);
const REFUSED: BatchOutcome = BatchOutcome::Refused(BatchRefusal::Status(422));

#[test]
fn a_caller_with_odd_parameters_does_not_end_merging_for_the_others() {
    let mut clients = ClosedLoop::new(1, 10);
    clients.refusal = |key| (key != COMMON).then_some(REFUSED);
    clients.run(10_000);
    let common = |key| key == COMMON;
    let before = clients.run_counting(4000, common);
    assert!(before >= 4 * 150, "{before} answers, directly 200");
    (1..=3).for_each(|key| clients.add(2, key, 1));
    for _ in 0..60 {
        clients.run(1000);
        assert_eq!(clients.batcher.count_suspended_classes(), 0, "at {:?}", clients.now);
    }
    assert_eq!(clients.batcher.take_merging_changes(), []);
    assert!((1..=9).contains(&clients.refused), "{} batches were refused", clients.refused);
}

#[test]
fn a_server_that_begins_to_refuse_lists_is_no_longer_merged() {
    let mut clients = ClosedLoop::new(1, 10);
    clients.add(10, 1, 1);
    clients.run(10_000);
    clients.refusal = |_| Some(REFUSED);
    clients.run(1000);
    assert_eq!(clients.batcher.count_suspended_classes(), 1);
    clients.run(59_000);
    assert!((2..=8).contains(&clients.refused), "{} batches were refused", clients.refused);
}
