//! Tests of servers that refuse some or all batches, under load.

use super::closed_loop::ClosedLoop;
use super::*;
use crate::{BatchRefusal, FlowMode};

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

#[test]
fn a_limiter_is_open_while_the_ceiling_is_one_item() {
    let unnamed: fn(KeyId) -> _ = |_| Some(BatchOutcome::Refused(BatchRefusal::TooLarge(413)));
    for refusal in [unnamed, |_| Some(BatchOutcome::TooLarge { limit: Some(1) })] {
        let mut clients = ClosedLoop::new(1, 8);
        clients.refusal = refusal;
        clients.run(2000);
        assert_eq!(clients.batcher.ceiling(CostClassId(0)), Some(1));
        let mut open = 0;
        for _ in 0..60 {
            let answered = clients.run(1000);
            assert!(answered >= 45, "{answered} answers at {:?}, directly 50", clients.now);
            open += u32::from(matches!(clients.batcher.flow_mode(CostClassId(0)), Some(FlowMode::Open(_))));
        }
        assert!(open >= 57, "in {open} of 60 seconds");
        assert!((1..=6).contains(&clients.refused), "{} batches were refused", clients.refused);
        clients.refusal = |_| None;
        // The retest of a limit that the server named comes last, after 10 minutes.
        clients.run(700_000);
        let answered = clients.run(4000);
        assert!(answered >= 4 * 100, "{answered} answers once lists are accepted, directly 200");
    }
}
