//! Tests of merging that is deferred until the limits of the server are known.

use super::*;

fn deferred(policy: DispatchPolicy, slots: u32) -> Batcher {
    let mut batcher = Batcher::new(limits(|l| (l.policy, l.slots) = (policy, slots)), 0);
    batcher.defer_merging(ms(0), CostClassId(0));
    batcher
}

#[test]
fn calls_of_a_deferred_class_leave_one_by_one() {
    let mut batcher = deferred(DispatchPolicy::WorkConserving, 1);
    enqueue_calls(&mut batcher, ms(0), 1..4);
    for id in 1..3 {
        let batch = dispatched(&mut batcher, ms(id));
        assert_eq!((ids(&batch), batch.unbatched_reason), (vec![id], None));
        batcher.complete(ms(id), batch.id, ok(MS));
    }
    let other = Call { cost_class: CostClassId(1), ..on_key(10, 2) };
    let others = [other.clone(), Call { id: CallId(11), ..other }];
    let last = dispatched(&mut batcher, ms(3));
    for call in others {
        batcher.enqueue(ms(3), call).unwrap();
    }
    batcher.complete(ms(4), last.id, ok(MS));
    assert_eq!(ids(&dispatched(&mut batcher, ms(4))), [10, 11], "another class is merged");
}

#[test]
fn a_window_continues_while_merging_is_deferred_and_merges_if_the_deferral_ends_within_it() {
    for ends in [false, true] {
        let mut batcher = deferred(window(64, 20), 1);
        enqueue_calls(&mut batcher, ms(0), 1..4);
        assert_eq!((batcher.poll(ms(10)), batcher.next_wakeup()), (None, Some(ms(20))));
        if ends {
            batcher.end_deferral(CostClassId(1));
            assert_eq!(batcher.poll(ms(10)), None, "the deferral of another class ended");
            batcher.end_deferral(CostClassId(0));
            batcher.set_published_items_max(ms(11), CostClassId(0), 2);
        }
        let expected: &[u64] = if ends { &[1, 2] } else { &[1] };
        let at = if ends { ms(11) } else { ms(20) };
        assert_eq!(ids(&dispatched(&mut batcher, at)), expected, "the published limit applies to the first batch");
    }
}

#[test]
fn the_adaptive_policy_forwards_calls_of_a_deferred_class_at_once() {
    let mut batcher = deferred(DispatchPolicy::Adaptive { hold_permille: 0 }, 64);
    for id in 1..9 {
        batcher.enqueue(ms(0), call(id)).unwrap();
        assert_eq!(ids(&dispatched(&mut batcher, ms(0))), [id]);
    }
}
