//! The batching core driven by hand: a discrete-event loop in virtual time.
//!
//! The core decides and performs nothing. This loop supplies what it leaves out: the time, the
//! arrivals, and a server. Time jumps to the next event, which is an arrival, the end of an
//! execution, or the instant at which the core has something to do by itself. A real driver has
//! the same shape, with a timer in place of the jump and requests in place of [`RunningBatch`].
//!
//! ```sh
//! cargo run -p groupage-batching --example by_hand
//! ```

#![expect(clippy::print_stdout, reason = "the example prints its steps")]

use std::collections::VecDeque;
use std::time::Duration;

use groupage_batching::{
    Batch, BatchId, BatchOutcome, Batcher, Call, CallId, Deadline, DeadlineSource, Decision, DispatchPolicy, KeyId,
    Limits, Observation, Tick,
};

/// Seed of the random numbers. The same seed leads to the same decisions.
const SEED: u64 = 7;
/// Time of an execution, whatever its size.
const FIXED: Duration = Duration::from_millis(8);
/// Additional time of an execution per item.
const PER_ITEM: Duration = Duration::from_millis(1);

/// The arrival of a call of one item.
#[derive(Debug, Clone, Copy)]
struct CallArrival {
    id: u64,
    /// Milliseconds since the start.
    at: u64,
    /// Id of the merge key. A driver assigns equal ids only to keys with equal bytes.
    key: u64,
    /// Milliseconds from the arrival to the deadline.
    within: Option<u64>,
}

/// Arrivals in order.
const ARRIVALS: [CallArrival; 8] = [
    CallArrival { id: 1, at: 0, key: 1, within: None },
    CallArrival { id: 2, at: 1, key: 1, within: None },
    CallArrival { id: 3, at: 2, key: 2, within: None },
    // The third item of its key fills a batch.
    CallArrival { id: 4, at: 3, key: 1, within: None },
    CallArrival { id: 5, at: 4, key: 2, within: None },
    // Expires in the queue, because the slot is busy for longer than that.
    CallArrival { id: 6, at: 5, key: 2, within: Some(6) },
    CallArrival { id: 7, at: 12, key: 1, within: None },
    CallArrival { id: 8, at: 60, key: 3, within: None },
];

/// An execution on the simulated server.
#[derive(Debug)]
struct RunningBatch {
    batch: BatchId,
    started: Tick,
    ends: Tick,
}

fn main() {
    // A batch leaves at three items, or after its first call has waited 5 ms beside a free slot.
    let policy = DispatchPolicy::Window { items: 3, delay: Duration::from_millis(5) };
    let mut batcher = Batcher::new(Limits { policy, slots: 1, ..Limits::default() }, SEED);
    let mut arrivals = VecDeque::from(ARRIVALS);
    let mut running: Vec<RunningBatch> = Vec::new();
    while let Some(now) = next_event(&batcher, &arrivals, &running) {
        while let Some(arrival) = arrivals.front().copied().filter(|arrival| Tick::from_millis(arrival.at) <= now) {
            arrivals.pop_front();
            offer(&mut batcher, now, arrival);
        }
        while let Some(at) = running.iter().position(|execution| execution.ends <= now) {
            complete(&mut batcher, now, &running.swap_remove(at), BatchOutcome::Ok);
        }
        // One event may lead to several decisions.
        while let Some(decision) = batcher.poll(now) {
            act(&mut batcher, now, decision, &mut running);
        }
    }
}

/// Returns the instant of the next event, or `None` if no call is left.
fn next_event(batcher: &Batcher, arrivals: &VecDeque<CallArrival>, running: &[RunningBatch]) -> Option<Tick> {
    let arrival = arrivals.front().map(|arrival| Tick::from_millis(arrival.at));
    let end = running.iter().map(|execution| execution.ends).min();
    [arrival, end, batcher.next_wakeup()].into_iter().flatten().min()
}

/// Offers a call to the core, which queues or rejects it.
fn offer(batcher: &mut Batcher, now: Tick, arrival: CallArrival) {
    let CallArrival { id, key, within, .. } = arrival;
    let deadline =
        within.map(|millis| Deadline { at: now.after(Duration::from_millis(millis)), source: DeadlineSource::Caller });
    let call = Call { key: KeyId(key), deadline, ..Call::new(CallId(id)) };
    match batcher.enqueue(now, call) {
        Ok(()) => print_step(now, &format!("call {id} with key {key} is queued")),
        Err(rejection) => print_step(now, &format!("call {id} is rejected: {rejection:?}")),
    }
}

/// Carries out a decision of the core.
fn act(batcher: &mut Batcher, now: Tick, decision: Decision, running: &mut Vec<RunningBatch>) {
    match decision {
        Decision::Dispatch(batch) => running.push(dispatch(now, &batch)),
        Decision::Expire { id, reason } => print_step(now, &format!("call {} expires: {}", id.0, reason.as_str())),
        // Follows `Batcher::cancel` of all members, which this example does not call.
        Decision::Abort(id) => {
            if let Some(at) = running.iter().position(|execution| execution.batch == id) {
                complete(batcher, now, &running.swap_remove(at), BatchOutcome::Cancelled);
            }
        }
    }
}

/// Starts the execution of a batch.
fn dispatch(now: Tick, batch: &Batch) -> RunningBatch {
    let calls: Vec<u64> = batch.members.iter().map(|member| member.id.0).collect();
    let (id, key, cause) = (batch.id.0, batch.key.0, batch.cause.as_str());
    print_step(now, &format!("batch {id} of calls {calls:?} with key {key} is dispatched: {cause}"));
    RunningBatch { batch: batch.id, started: now, ends: now.after(FIXED + PER_ITEM * batch.items) }
}

/// Reports the end of an execution to the core, which frees its slot.
fn complete(batcher: &mut Batcher, now: Tick, execution: &RunningBatch, outcome: BatchOutcome) {
    let duration = now.since(execution.started);
    print_step(now, &format!("batch {} ends after {duration:?}: {outcome:?}", execution.batch.0));
    batcher.complete(now, execution.batch, Observation { duration, first_byte: None, outcome });
}

/// Prints a step with its time.
fn print_step(now: Tick, step: &str) {
    println!("{:>3} ms  {step}", now.since(Tick::default()).as_millis());
}
