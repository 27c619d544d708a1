//! Limits for calls that are not merged, under a policy that orders calls.

use super::*;

fn ordered(world: ServerModel, callers: usize, mergeable: bool) -> ClosedLoop {
    let mut callers = ClosedLoop::new(world, callers, mergeable);
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
    callers.world.workers = 64;
    callers.run(3000);
    assert!(callers.run(1000) >= 2200, "directly there are 2400");
    callers.world.workers = 4;
    callers.run(15_000);
    assert!(callers.run(1000) >= 190, "directly there are 200");
    // Slower and with more room at once.
    callers.world = ServerModel { workers: 64, lone: 400 * MS, ..SERIAL };
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
    assert!(callers.run(1000) >= 500, "one by one there are 50");
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
fn a_policy_that_no_longer_orders_calls_holds_none() {
    let mut callers = ordered(SERIAL, 48, false);
    callers.run(5000);
    callers.flow.set_ordered(Tick(callers.now), false);
    callers.run(1000);
    assert!(matches!(callers.flow.mode(), FlowMode::Open(_)) && callers.queue.is_empty());
}
