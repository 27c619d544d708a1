//! A single call on an idle upstream: if arrivals are independent, it is never held.

use std::collections::BTreeMap;
use std::time::Duration;

use groupage::batching::{
    BatchId, BatchOutcome, Batcher, Call, CallId, Decision, DispatchPolicy, Limits, Observation, Tick, solve,
};

use super::simulation::exponential;
use crate::sim::random::RandomSource;

/// Number of calls that arrived alone, and of those dispatched in the poll that followed.
#[derive(Debug, Default, Clone, Copy)]
struct ImmediateDispatchCounts {
    arrived: u32,
    dispatched: u32,
}

/// Simulates independent calls to a server with this many slots, on which a batch takes `base` and
/// `each` for every item.
fn simulate_single_calls(
    seed: u64,
    slots: usize,
    (base, each): (Duration, Duration),
    gap: Duration,
) -> ImmediateDispatchCounts {
    let mut draw = RandomSource::new(seed);
    let limits = Limits { policy: DispatchPolicy::Adaptive { hold_permille: 0 }, slots: 16, ..Limits::default() };
    let mut core = Batcher::new(limits, seed);
    let mut ends: BTreeMap<(Tick, BatchId), Duration> = BTreeMap::new();
    let mut free = vec![Tick::default(); slots];
    let (mut lone, mut next, mut calls, mut wakeup) =
        (ImmediateDispatchCounts::default(), Tick::from_millis(1), 0, None::<Tick>);
    while calls < 1500 {
        let end = ends.first_key_value().map(|((at, _), _)| *at);
        let now = [Some(next), end, wakeup].into_iter().flatten().min().unwrap_or(next);
        let mut is_lone = false;
        if end == Some(now)
            && let Some(((_, batch), duration)) = ends.pop_first()
        {
            core.complete(now, batch, Observation { duration, first_byte: None, outcome: BatchOutcome::Ok });
        } else if next == now {
            let counts = core.counts();
            is_lone = counts.queue_calls == 0 && counts.in_flight == 0;
            core.enqueue(now, Call::new(CallId(calls))).expect("the queue is far from full");
            calls += 1;
            next = now.after(exponential(&mut draw, gap));
        }
        let mut sent = false;
        while let Some(decision) = core.poll(now) {
            let Decision::Dispatch(batch) = decision else { panic!("{decision:?} without a deadline") };
            let takes = (base + each * batch.items) / 1000 * draw.count(1000, 1080);
            let slot = free.iter_mut().min().expect("at least one slot");
            *slot = now.max(*slot).after(takes);
            ends.insert((*slot, batch.id), slot.since(now));
            sent = true;
        }
        if let Some((class, input)) = core.take_due_plan_input() {
            core.set_plan(now, class, solve(&input));
        }
        wakeup = core.next_wakeup();
        // Counts calls that arrived while nothing was queued or in flight. The first calls count
        // too, although nothing is held before the profiles have seen some events.
        if is_lone {
            lone.arrived += 1;
            lone.dispatched += u32::from(sent);
        }
    }
    lone
}

#[test]
fn a_lone_call_on_an_idle_upstream_leaves_at_once_under_random_arrivals() {
    let us = Duration::from_micros;
    let (mut all, mut worst) = (ImmediateDispatchCounts::default(), (1000, String::new()));
    for (base, each) in [(us(4000), us(250)), (us(2000), us(3000)), (us(20_000), us(10))] {
        for slots in [1, 3] {
            for load in [30, 100, 300, 900] {
                for seed in 0..4 {
                    let one = simulate_single_calls(seed, slots, (base, each), (base + each) * 100 / load);
                    all = ImmediateDispatchCounts {
                        arrived: all.arrived + one.arrived,
                        dispatched: all.dispatched + one.dispatched,
                    };
                    let permille = one.dispatched * 1000 / one.arrived.max(1);
                    if one.arrived >= 100 && permille < worst.0 {
                        worst = (
                            permille,
                            format!("{one:?} of seed {seed}, {slots} slots, {base:?} + {each:?} n, load {load} %"),
                        );
                    }
                }
            }
        }
    }
    assert!(u64::from(all.dispatched) * 100 >= u64::from(all.arrived) * 99, "{all:?}; worst {worst:?}");
    assert!(worst.0 >= 970, "{all:?}; worst {worst:?}");
}
