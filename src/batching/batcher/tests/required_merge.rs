//! Routes with `merge: Always`: calls are merged without evidence, and held for a bounded
//! time only.

use super::*;
use crate::{BatchRefusal, UnbatchedReason};

fn batcher(merges_always: bool) -> Batcher {
    let mut limits = limits(|l| l.policy = DispatchPolicy::Adaptive { hold_permille: 0 });
    limits.slots = 64;
    limits.scopes[0].merges_always = merges_always;
    Batcher::new(limits, 0)
}

fn all(batcher: &mut Batcher, now: u64) -> Vec<Batch> {
    std::iter::from_fn(|| match batcher.poll(ms(now)) {
        Some(Decision::Dispatch(batch)) => Some(batch),
        other => {
            assert_eq!(other, None);
            None
        }
    })
    .collect()
}

#[test]
fn calls_wait_for_one_in_flight_and_leave_together() {
    let mut always = batcher(true);
    enqueue_calls(&mut always, ms(0), [1]);
    let first = dispatched(&mut always, ms(0));
    enqueue_calls(&mut always, ms(1), [2, 3, 4]);
    assert_eq!(always.poll(ms(1)), None);
    always.complete(ms(10), first.id, ok(10 * MS));
    assert_eq!(ids(&dispatched(&mut always, ms(10))), [2, 3, 4]);
    // Without the rule, nothing is known and each call is forwarded.
    let mut auto = batcher(false);
    enqueue_calls(&mut auto, ms(0), [1, 2, 3]);
    assert!(all(&mut auto, 0).iter().all(|batch| batch.members.len() == 1));
}

#[test]
fn a_call_is_held_for_as_long_as_the_route_allows() {
    let mut always = batcher(true);
    enqueue_calls(&mut always, ms(0), [1]);
    dispatched(&mut always, ms(0));
    enqueue_calls(&mut always, ms(1), [2, 3]);
    assert_eq!(always.poll(ms(1)), None);
    assert_eq!(always.next_wakeup(), Some(ms(21)), "queueDelayMax is 20 ms");
    let batch = dispatched(&mut always, ms(21));
    assert_eq!((ids(&batch), batch.cause), (vec![2, 3], DispatchCause::Delay));
    // A call with a deadline is held for half of its time.
    let deadline = Some(Deadline { at: ms(32), source: DeadlineSource::Caller });
    always.enqueue(ms(22), Call { deadline, ..call(4) }).unwrap();
    assert_eq!(always.poll(ms(22)), None);
    assert_eq!(always.next_wakeup(), Some(ms(27)));
}

#[test]
fn a_full_batch_is_not_held() {
    let mut always = batcher(true);
    enqueue_calls(&mut always, ms(0), [1]);
    dispatched(&mut always, ms(0));
    let cap = u64::from(ScopeLimits::default().batch_items_max);
    enqueue_calls(&mut always, ms(1), 2..2 + cap);
    assert_eq!(all(&mut always, 1).iter().map(|batch| batch.members.len() as u64).sum::<u64>(), cap);
}

#[test]
fn a_server_that_batches_by_itself_is_no_reason() {
    let mut always = batcher(true);
    always.set_known_batching(true);
    enqueue_calls(&mut always, ms(0), [1, 2, 3]);
    let sizes: Vec<usize> = all(&mut always, 0).iter().map(|batch| batch.members.len()).collect();
    assert_eq!(sizes, [3]);
}

#[test]
fn refused_batches_end_merging_all_the_same() {
    let mut always = batcher(true);
    let mut now = 0;
    for round in 0..2 {
        enqueue_calls(&mut always, ms(now), [10 * round, 10 * round + 1]);
        let batch = dispatched(&mut always, ms(now));
        assert_eq!(batch.members.len(), 2, "round {round}");
        now += 10;
        let outcome = BatchOutcome::Refused(BatchRefusal::Status(400));
        always.complete(ms(now), batch.id, Observation { outcome, ..ok(10 * MS) });
    }
    enqueue_calls(&mut always, ms(now), [100, 101]);
    let unbatched = all(&mut always, now);
    assert_eq!(unbatched.len(), 2);
    assert!(unbatched.iter().all(|batch| batch.unbatched_reason == Some(UnbatchedReason::Refused)), "{unbatched:?}");
}
