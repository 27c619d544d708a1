//! The order of calls that cannot be merged, in front of a saturated server.

use super::super::super::call::PriorityId;
use super::super::super::priority::PriorityClass;
use super::closed_loop::ClosedLoop;
use super::*;

/// Returns the number of calls answered within five seconds: those of one client of a tenant beside
/// 48 clients of another, each with a merge key of its own, and those of all.
fn answered(ordered: bool) -> (usize, usize) {
    let mut clients = ClosedLoop::without_clients(1, ordered);
    (1..=48).for_each(|key| clients.add(1, key, 1));
    clients.run(2000);
    clients.add(1, 0, 0);
    clients.run(2000);
    let mut light = 0;
    let all = clients.run_counting(5000, |key| {
        light += usize::from(key == KeyId(0));
        true
    });
    (light, all)
}

#[test]
fn a_tenant_has_its_share_of_a_saturated_server_although_no_calls_are_merged() {
    let (light, all) = answered(true);
    assert!(light >= 50 && all >= 240, "{light} of {all}");
    let (light, all) = answered(false);
    assert!(light <= 8 && all >= 240, "the server answers in the order of arrival: {light} of {all}");
}

#[test]
fn clients_of_as_many_tenants_wait_no_longer_than_in_the_queue_of_the_server() {
    for (workers, clients) in [(1, 8), (1, 32), (1, 48), (4, 48)] {
        let mut callers = ClosedLoop::without_clients(workers, true);
        (1..=clients).for_each(|key| callers.add(1, key, key));
        callers.run(20_000);
        let direct = u128::from(clients) * 20 / workers as u128;
        let longest = callers.longest.as_millis();
        assert!(longest * 10 <= direct * 12, "{longest} ms, directly {direct}, with {clients} clients");
    }
}

#[test]
fn calls_of_several_classes_are_ordered_although_the_policy_has_no_target() {
    let mut clients = ClosedLoop::without_clients(1, false);
    (1..=48).for_each(|key| clients.add(1, key, 0));
    clients.run(3000);
    assert_eq!(clients.batcher.queue.len(), 0, "nothing is held while all have one class");
    clients.priorities.insert(KeyId(99), PriorityId(1));
    clients.add(1, 99, 0);
    clients.run(3000);
    assert!(clients.batcher.queue.len() > 40);
}

#[test]
fn a_class_has_its_share_however_long_the_calls_of_another_have_waited() {
    let mut clients = ClosedLoop::without_clients(1, false);
    let heavy = PriorityClass { weight: 8, ..PriorityClass::PLAIN };
    clients.set_priorities(vec![PriorityClass::PLAIN, heavy]);
    // Calls of the light class wait for four seconds.
    (1..=200).for_each(|key| clients.add(1, key, 0));
    clients.priorities.insert(KeyId(999), PriorityId(1));
    clients.add(1, 999, 0);
    clients.run(20_000);
    let mut urgent = 0;
    let all = clients.run_counting(5000, |key| {
        urgent += usize::from(key == KeyId(999));
        true
    });
    assert!(urgent >= 60 && all >= 240, "{urgent} of {all}");
}

/// Runs for 20 s, and returns the numbers of answers to calls with keys below `first` and from it on.
fn count_answers(clients: &mut ClosedLoop, first: u64) -> (u32, u32) {
    let mut counts = (0, 0);
    clients.run_counting(20_000, |key| {
        let count = if key.0 < first { &mut counts.0 } else { &mut counts.1 };
        *count += 1;
        true
    });
    counts
}

#[test]
fn a_tenant_with_long_answers_is_charged_for_their_length() {
    let mut clients = ClosedLoop::without_clients(1, true);
    for key in 0..48 {
        clients.weights.insert(KeyId(key), if key < 24 { 100 } else { 900 });
        clients.add(1, key, u64::from(key >= 24));
    }
    clients.run(5000);
    let (short, long) = count_answers(&mut clients, 24);
    assert!(long > 0 && (7..=11).contains(&(short / long)), "{short} short calls, {long} of nine times their weight");
}

#[test]
fn a_class_has_its_share_if_its_calls_are_charged_by_length() {
    let mut clients = ClosedLoop::without_clients(1, false);
    let heavy = PriorityClass { weight: 8, ..PriorityClass::PLAIN };
    clients.set_priorities(vec![PriorityClass::PLAIN, heavy]);
    for key in 0..80 {
        clients.weights.insert(KeyId(key), 100);
        clients.priorities.insert(KeyId(key), PriorityId(u8::from(key >= 40)));
        clients.add(1, key, 0);
    }
    clients.run(10_000);
    let (light, urgent) = count_answers(&mut clients, 40);
    assert!(light > 0 && (6..=10).contains(&(urgent / light)), "{urgent} urgent calls, {light} others");
}

#[test]
fn tenants_share_by_weight_although_a_call_stalls() {
    for stalled in 8..20 {
        let limits = limits(|l| {
            l.policy = DispatchPolicy::Adaptive { hold_permille: 0 };
            l.scopes[0].batch_items_max = 1;
        });
        let mut batcher = serial(Batcher::new(limits, 0));
        let (mut now, mut order) = (0, Vec::new());
        for turn in 0..20 {
            // The time of a call is known after the first eight.
            if turn < 8 {
                batcher.enqueue(ms(now), call(turn + 101)).unwrap();
            }
            let batch = dispatched(&mut batcher, ms(now));
            if turn == 7 {
                (1..=9).for_each(|id| {
                    let call = Call { tenant: TenantId(1), tenant_weight: 3, ..call(id) };
                    batcher.enqueue(ms(now), call).unwrap();
                });
                (10..=12).for_each(|id| batcher.enqueue(ms(now), Call { tenant: TenantId(2), ..call(id) }).unwrap());
            }
            order.extend(ids(&batch));
            let took = if turn == stalled { 50 } else { 2 };
            now += took;
            batcher.complete(ms(now), batch.id, ok(Duration::from_millis(took)));
        }
        assert_eq!(order[8..], [1, 10, 2, 3, 11, 4, 5, 6, 12, 7, 8, 9], "stalled: {stalled}");
    }
}
