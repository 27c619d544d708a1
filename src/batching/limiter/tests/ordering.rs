//! Limits for calls that are not merged, under a policy that orders calls.

use super::super::ordering::OrderingTest;
use super::*;

fn ordered(server: ServerModel, callers: usize, mergeable: bool) -> ClosedLoop {
    let mut callers = ClosedLoop::new(server, callers, mergeable);
    callers.flow.set_ordered(Tick(0), true);
    callers
}

fn limit_of(callers: &ClosedLoop) -> u32 {
    let FlowMode::Limited(limit) = callers.flow.mode() else { panic!("{:?}", callers.flow.mode()) };
    limit
}

#[test]
fn calls_to_a_saturated_server_queue_at_no_cost_in_throughput() {
    for (workers, clients, limits) in [(1, 8, 2..=3), (1, 48, 2..=3), (4, 48, 8..=11), (8, 200, 16..=20)] {
        let mut callers = ordered(ServerModel { workers, ..SERIAL }, clients, false);
        let direct = u64::from(workers) * 50;
        for second in 0..60 {
            let answered = callers.run(1000);
            assert!(answered * 100 >= direct * 96, "{answered} of {direct} in second {second}, {workers} workers");
        }
        let limit = limit_of(&callers);
        assert!(limits.contains(&limit), "{limit} for {workers} workers");
    }
}

#[test]
fn calls_to_a_server_with_room_are_not_held() {
    for clients in [8, 48] {
        let mut callers = ordered(ServerModel { workers: 64, ..SERIAL }, clients, false);
        callers.run(20_000);
        assert!(matches!(callers.flow.mode(), FlowMode::Open(_)) && callers.queue.is_empty());
    }
}

#[test]
fn a_limit_for_order_follows_the_server() {
    let mut callers = ordered(SERIAL, 48, false);
    callers.run(5000);
    assert!(limit_of(&callers) <= 3);
    callers.server.workers = 64;
    callers.run(3000);
    assert!(callers.run(1000) >= 2200, "directly there are 2400");
    callers.server.workers = 4;
    callers.run(15_000);
    assert!(callers.run(1000) >= 190, "directly there are 200");
    // Slower and with more room at once.
    callers.server = ServerModel { workers: 64, unbatched: 400 * MS, ..SERIAL };
    callers.run(10_000);
    assert!(callers.run(4000) >= 440, "directly there are 480");
}

#[test]
fn a_limit_that_is_too_low_is_given_up() {
    let mut callers = ordered(ServerModel { workers: 64, ..SERIAL }, 48, false);
    callers.run(1000);
    let knee = Knee { at: 3.0, base: 20e6, rate: 2.4e-6, is_bound: false };
    callers.flow.set_knee(Tick(callers.now), knee, 4.0);
    callers.flow.keep_for_order();
    callers.run(1000);
    assert!(matches!(callers.flow.mode(), FlowMode::Open(_)), "the rate fell");
    // The same without a rate from before: found by the next increase.
    callers.flow.set_knee(Tick(callers.now), Knee { rate: 1e-12, ..knee }, 4.0);
    callers.flow.keep_for_order();
    callers.run(13_000);
    assert!(callers.run(1000) >= 2200, "directly there are 2400");
}

#[test]
fn calls_are_merged_under_a_limit_for_order_as_soon_as_they_can_be() {
    let mut callers = ordered(SERIAL, 48, false);
    callers.run(5000);
    callers.mergeable = true;
    callers.run(5000);
    assert_eq!(limit_of(&callers), 1);
    assert!(callers.run(1000) >= 600, "with batches of 48 there are 716");
    callers.mergeable = false;
    callers.run(5000);
    assert!(limit_of(&callers) <= 3 && callers.run(4000) >= 190, "directly there are 200");
}

#[test]
fn calls_queue_where_a_batch_costs_as_much_as_its_calls() {
    let mut callers = ordered(ServerModel { per_item: 1.0, ..SERIAL }, 48, true);
    callers.run(20_000);
    assert!(limit_of(&callers) <= 3);
    assert!(callers.run(10_000) >= 475, "directly there are 500");
}

#[test]
fn calls_are_merged_again_once_the_server_is_slower() {
    let mut callers = ordered(ServerModel { per_item: 1.0, ..SERIAL }, 48, true);
    callers.run(60_000);
    callers.server = ServerModel { unbatched: 100 * MS, per_item: 0.05, ..SERIAL };
    callers.run(15_000);
    assert!(callers.run(2000) >= 150, "directly there are 20");
}

#[test]
fn a_policy_that_no_longer_orders_calls_holds_none() {
    let mut callers = ordered(SERIAL, 48, false);
    callers.run(5000);
    callers.flow.set_ordered(Tick(callers.now), false);
    callers.run(1000);
    assert!(matches!(callers.flow.mode(), FlowMode::Open(_)) && callers.queue.is_empty());
}

/// Runs clients whose answers stream for three seconds after a first byte that calls queue for, and
/// returns the number of answers in the last half of 40 seconds.
fn streamed(ordered: bool) -> usize {
    let mut flow = ConcurrencyLimiter::new();
    flow.set_ordered(Tick(0), ordered);
    let (mut idle, mut free, mut answered) = (0, 0, 0);
    let mut flights: Vec<(u64, u64, super::super::InFlightExecution, u64)> = Vec::new();
    for now in (0..40_000).map(|ms| ms * MS) {
        idle += usize::from(now % (5 * MS) == 0 && now < 48 * 5 * MS);
        while let Some(at) = flights.iter().position(|(_, end, ..)| *end <= now) {
            let (first, _, mark, sent) = flights.swap_remove(at);
            let first_byte = Some((first - sent) as f64);
            let done = ExecutionEnd::new(true, 1, Tick(sent), Tick(sent), idle as u64, 64);
            flow.on_completion(Tick(now), &mark, ExecutionEnd { first_byte, ..done });
            idle += 1;
            answered += usize::from(now > 20_000 * MS);
        }
        while idle > 0 {
            let queued = idle as u64;
            let request =
                PermitRequest { now: Tick(now), unmergeable: true, arrived: Tick(now), has_second: false, queued };
            let permit = flow.permit(&request);
            if matches!(permit, Permit::Full | Permit::Hold(_)) {
                break;
            }
            idle -= 1;
            let start =
                ExecutionStart { items: 1, calls: 1, unmergeable: true, permit, queued: idle as u64, expected: 0 };
            free = now.max(free) + 20 * MS;
            flights.push((free, free + 3000 * MS, flow.on_dispatch(Tick(now), &start), now));
        }
    }
    answered
}

#[test]
fn streams_are_not_held_by_their_first_bytes() {
    let (ordered, direct) = (streamed(true), streamed(false));
    assert!(ordered * 100 >= direct * 97 && direct > 200, "{ordered} of {direct}");
}

#[test]
fn a_server_that_has_become_slower_keeps_its_order() {
    let mut callers = ordered(SERIAL, 48, false);
    callers.run(5000);
    callers.server.unbatched = 50 * MS;
    for second in 0..30 {
        let answered = callers.run(1000);
        assert!(answered >= 18, "{answered} of 20 in second {second}");
    }
    assert!(limit_of(&callers) <= 5);
}

#[test]
fn a_limit_for_merging_that_is_kept_for_order_does_not_hide_room() {
    let mut callers = ordered(SERIAL, 48, true);
    callers.run(5000);
    callers.mergeable = false;
    callers.run(3000);
    callers.server.workers = 8;
    callers.run(3000);
    assert!(callers.run(1000) >= 370, "directly there are 400");
}

#[test]
fn a_server_that_refuses_batches_keeps_its_order() {
    let mut callers = ordered(SERIAL, 48, true);
    callers.run(5000);
    callers.flow.open_for_refused_batches(Tick(callers.now));
    callers.mergeable = false;
    for _ in 0..300 {
        callers.run(10);
        callers.flow.open_for_refused_batches(Tick(callers.now));
    }
    assert!(limit_of(&callers) <= 3);
}

#[test]
fn a_limit_for_order_that_is_too_high_is_lowered_to_the_knee_of_the_curve() {
    let mut callers = ordered(SERIAL, 48, false);
    callers.run(5000);
    callers.flow.set_limit(18.0);
    callers.flow.ordering = Some(OrderingTest::default());
    let answered = callers.run(20_000);
    assert!(limit_of(&callers) <= 6 && answered >= 970, "{:?}, {answered} of 1000", callers.flow.mode());
}

#[test]
fn no_limit_orders_calls_for_ten_times_as_long_as_a_stream_lasted() {
    let mut callers = ordered(SERIAL, 48, false);
    callers.run(5000);
    assert!(limit_of(&callers) <= 3);
    let now = callers.now;
    callers.flow.observe_stream(Tick(now), Tick(now - 40 * MS), 20e6);
    callers.run(1000);
    assert!(limit_of(&callers) <= 3, "one answer was written slowly");
    let now = callers.now;
    callers.flow.observe_stream(Tick(now), Tick(now - 3000 * MS), 20e6);
    callers.run(59_000);
    assert!(callers.queue.is_empty(), "a minute at least");
    let now = callers.now;
    callers.flow.observe_stream(Tick(now), Tick(now.saturating_sub(60_000 * MS)), 20e6);
    callers.run(300_000);
    assert!(callers.queue.is_empty());
}
