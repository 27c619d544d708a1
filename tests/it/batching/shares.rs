//! Shares of priority classes and tenants at the level of the core: the order in which flows are
//! served while several have queued calls. A flow has the calls of one tenant in one priority
//! class.

mod fixed_time_server;

use std::time::Duration;

use groupage::batching::{
    Call, CallId, Deadline, DeadlineSource, Decision, KeyId, PriorityClass, PriorityId, TenantId, Tick,
};

use crate::sim::random::RandomSource;
use fixed_time_server::{DispatchedBatch, FixedTimeServer, HEAVY, class_with_weight, execution_time, limits};

const MS: Duration = Duration::from_millis(1);
const INTERACTIVE: PriorityId = PriorityId(0);
const BULK: PriorityId = PriorityId(1);

/// Returns a function that puts a call into a priority class.
fn of(priority: PriorityId) -> impl Fn(Call) -> Call {
    move |call| Call { priority, ..call }
}

/// Returns a function that selects the calls of a priority class.
fn is(priority: PriorityId) -> impl Fn(&Call) -> bool {
    move |call| call.priority == priority
}

/// A flow that always has queued calls.
#[derive(Debug, Clone, Copy)]
struct BackloggedFlow {
    id: (TenantId, PriorityId),
    tenant_weight: u32,
    /// Weight of the priority class.
    class_weight: u32,
    /// Inclusive range from which the key of each call is drawn.
    keys: (u64, u64),
    /// Maximum number of items of a call.
    items_max: u32,
}

// === impl BackloggedFlow ===

impl BackloggedFlow {
    /// Returns a random call of the flow.
    fn next(self, draw: &mut RandomSource, call: Call) -> Call {
        let key = KeyId(draw.between(self.keys.0, self.keys.1));
        let (tenant, priority) = self.id;
        let items = draw.count(1, self.items_max);
        Call { key, tenant, priority, tenant_weight: self.tenant_weight, items, ..call }
    }

    fn is(self, call: &Call) -> bool {
        (call.tenant, call.priority) == self.id
    }

    /// Returns the product of the weights, by which the shares are divided.
    fn weight(self) -> f64 {
        f64::from(self.class_weight * self.tenant_weight)
    }

    /// Returns the flow's part of the execution time of a batch in seconds, by its items.
    fn server_time(self, dispatched: &DispatchedBatch) -> f64 {
        let items = dispatched.items(|call| self.is(call));
        execution_time(dispatched.batch.items).as_secs_f64() * f64::from(items) / f64::from(dispatched.batch.items)
    }
}

/// Simulates one second of a seed: the server time of every flow, divided by its weight, stays
/// within one batch of that of any other flow.
fn check_shares(seed: u64) {
    let mut draw = RandomSource::new(seed);
    let cap = *draw.pick(&[1, 4, 16]);
    let classes: Vec<PriorityClass> = (0..3).map(|_| class_with_weight(draw.count(1, 8))).collect();
    let mut flows: Vec<BackloggedFlow> = Vec::new();
    for i in 0..draw.between(2, 5) {
        let priority = PriorityId(u8::try_from(draw.between(0, 2)).unwrap_or(0));
        let key = draw.between(0, 2);
        flows.push(BackloggedFlow {
            id: (TenantId(i), priority),
            tenant_weight: draw.count(1, 3),
            class_weight: classes[usize::from(priority.0)].weight,
            keys: (key, draw.between(key, 2)),
            items_max: *draw.pick(&[1, 1, 3]),
        });
    }
    let mut server = FixedTimeServer::warm(limits(cap, &classes), cap.max(3));
    // Server time of each flow, divided by its weight.
    let mut shares = vec![0.0_f64; flows.len()];
    let until = server.now.after(1000 * MS);
    while server.now < until {
        for flow in &flows {
            // More than one batch is queued for every key, so that a flow can use its turn.
            for key in flow.keys.0..=flow.keys.1 {
                let mine = |call: &Call| flow.is(call) && call.key == KeyId(key);
                let queued = server.queued.values().filter(|(call, _)| mine(call)).map(|(call, _)| call.items);
                let mut queued: u32 = queued.sum();
                while queued <= 2 * cap {
                    let call = flow.next(&mut draw, Call::new(CallId(0)));
                    queued += call.items;
                    server.offer(|given| Call { id: given.id, key: KeyId(key), ..call });
                }
            }
        }
        let dispatched = server.next();
        for (flow, share) in flows.iter().zip(&mut shares) {
            *share += flow.server_time(&dispatched) / flow.weight();
        }
        let batch = execution_time(cap.max(3)).as_secs_f64();
        for (one, a) in flows.iter().zip(&shares) {
            for (other, b) in flows.iter().zip(&shares) {
                // The difference is at most one batch each, plus a tolerance for learned costs,
                // which may be off by a few percent.
                let difference_max = 1.1 * batch * (1.0 / one.weight() + 1.0 / other.weight()) + 0.03 * a.max(*b);
                assert!(
                    (a - b).abs() <= difference_max,
                    "seed {seed}: {one:?} has {a:.4}, {other:?} {b:.4}; {difference_max:.4} apart at most"
                );
            }
        }
    }
}

#[test]
fn backlogged_flows_get_shares_within_one_batch() {
    for seed in 0..200 {
        check_shares(seed);
    }
}

#[test]
fn a_call_of_a_higher_class_joins_the_first_batch_and_the_rest_waits() {
    for urgent in [class_with_weight(8), PriorityClass { strict: true, ..class_with_weight(8) }] {
        let mut server = FixedTimeServer::warm(limits(4, &[class_with_weight(1), urgent]), 4);
        let blocker = server.offer(|call| call);
        assert_eq!(server.next().ids(), [blocker]);
        server.offer(|call| Call { items: 2, ..call });
        server.offer(|call| call);
        let high = server.offer(|call| Call { items: 2, ..of(PriorityId(1))(call) });
        let first = server.next();
        assert!(first.ids().contains(&high) && first.batch.items == 4, "{first:?}");
        assert_eq!(server.next().batch.items, 1, "the leftover");
    }
}

/// Keeps interactive and bulk calls queued and returns the items of both that were dispatched
/// within this time.
fn dispatched_items(classes: &[PriorityClass], keys: (u64, u64), time: Duration) -> (u32, u32) {
    let mut server = FixedTimeServer::warm(limits(16, classes), 16);
    let until = server.now.after(time);
    let mut items = (0, 0);
    while server.now < until {
        for (priority, key) in [(INTERACTIVE, keys.0), (BULK, keys.1)] {
            while server.queued.values().filter(|(call, _)| is(priority)(call)).count() < 64 {
                server.offer(|call| Call { key: KeyId(key), ..of(priority)(call) });
            }
        }
        let batch = server.next();
        items = (items.0 + batch.items(is(INTERACTIVE)), items.1 + batch.items(is(BULK)));
    }
    items
}

#[test]
fn under_continuous_interactive_load_bulk_gets_a_ninth() {
    for keys in [(0, 0), (0, 1)] {
        let (interactive, bulk) = dispatched_items(&[class_with_weight(8), class_with_weight(1)], keys, 4000 * MS);
        let expected = (interactive + bulk) / 9;
        assert!(
            bulk.abs_diff(expected) <= 16,
            "keys {keys:?}: bulk has {bulk} items beside {interactive}, expected {expected}"
        );
    }
}

#[test]
fn under_continuous_strict_load_bulk_is_served_after_its_aging_interval() {
    let strict = PriorityClass { strict: true, ..class_with_weight(8) };
    for keys in [(0, 0), (0, 1)] {
        let (_, early) = dispatched_items(&[strict, class_with_weight(1)], keys, 1900 * MS);
        let (interactive, bulk) = dispatched_items(&[strict, class_with_weight(1)], keys, 6000 * MS);
        assert_eq!(early, 0, "keys {keys:?}: strict goes first");
        // 64 calls are queued at once, and each of them waits 2 s.
        assert!((128..512).contains(&bulk), "keys {keys:?}: bulk has {bulk} items beside {interactive}");
    }
}

#[test]
fn a_filler_under_continuous_load_is_served_after_its_aging_intervals() {
    let filler = PriorityClass { filler: true, ..class_with_weight(1) };
    for keys in [(0, 0), (0, 1)] {
        let (_, early) = dispatched_items(&[class_with_weight(8), filler], keys, 1900 * MS);
        let (interactive, bulk) = dispatched_items(&[class_with_weight(8), filler], keys, 9000 * MS);
        assert_eq!(early, 0, "keys {keys:?}: there is never room");
        assert!((256..768).contains(&bulk), "keys {keys:?}: fillers have {bulk} items beside {interactive}");
    }
}

#[test]
fn fillers_alone_are_dispatched_like_other_calls() {
    let mut server = FixedTimeServer::warm(
        limits(16, &[class_with_weight(8), PriorityClass { filler: true, ..class_with_weight(1) }]),
        16,
    );
    for _ in 0..5 {
        server.offer(of(BULK));
    }
    assert_eq!(server.poll().map(|dispatched| dispatched.batch.items), Some(5));
}

/// Returns independent calls at this mean rate per second until an instant. `of` completes each.
fn generate_arrivals(
    draw: &mut RandomSource,
    until: Tick,
    rate: u64,
    of: impl Fn(&mut RandomSource, Call) -> Call,
) -> Vec<(Tick, Call)> {
    let mut at = Tick::default();
    let mut all = Vec::new();
    while at < until {
        at = at.after(Duration::from_nanos(draw.between(0, 2_000_000_000 / rate)));
        all.push((at, of(draw, Call::new(CallId(0)))));
    }
    all
}

#[test]
fn fillers_never_enlarge_or_delay_a_batch() {
    let filler = PriorityClass { filler: true, aging_interval: Duration::from_secs(3600), ..class_with_weight(1) };
    let (mut joined, mut compared) = (0, 0);
    for seed in 0..8 {
        let mut draw = RandomSource::new(seed);
        let until = Tick::from_millis(3000);
        let (items, keys) = (*draw.pick(&[1, 5]), draw.between(0, 1));
        let some = |priority| {
            move |draw: &mut RandomSource, call: Call| {
                let (items, key) = (draw.count(1, items), KeyId(draw.between(0, keys)));
                Call { items, key, ..of(priority)(call) }
            }
        };
        let mut calls = generate_arrivals(&mut draw, until, 300, some(INTERACTIVE));
        calls.extend(generate_arrivals(&mut draw, until, 200, some(BULK)));
        calls.sort_by_key(|(at, _)| *at);
        let mut limits = limits(16, &[class_with_weight(8), filler]);
        // A filler that has waited beside a free slot for the longest hold counts as a plain call.
        // This limit is out of reach here.
        limits.scopes.iter_mut().for_each(|scope| scope.queue_delay_max = Duration::from_secs(3600));
        let mut server = FixedTimeServer::new(limits);
        let mut calls = calls.into_iter().peekable();
        while calls.peek().is_some() {
            // Every decision is compared with that of a twin core without fillers.
            let mut twin = server.core.clone();
            for id in server.queued.values().filter(|(call, _)| is(BULK)(call)).map(|(call, _)| call.id) {
                twin.cancel(server.now, id);
            }
            let alone = twin.counts().queue_calls == 0;
            let queued = server.queued.clone();
            let without = twin.poll(server.now);
            let dispatched = server.poll();
            match (&dispatched, without) {
                (Some(dispatched), Some(Decision::Dispatch(batch))) => {
                    let same_key = |call: &Call| call.key == batch.key && !is(BULK)(call);
                    let others_queued = queued.values().filter(|(call, _)| same_key(call)).map(|(call, _)| call.items);
                    let others_queued: u32 = others_queued.sum();
                    let others = dispatched.calls.iter().filter(|(call, _)| !is(BULK)(call)).map(|(call, _)| call.id);
                    let members = batch.members.iter().map(|member| member.id);
                    assert!(others.eq(members), "seed {seed}: {dispatched:?} instead of {batch:?}");
                    // Maximum size chosen without fillers: the twin's batch may be smaller, where
                    // its calls do not fill all of it.
                    let size = batch.items.max(others_queued.min(16));
                    assert!(dispatched.batch.items <= size, "seed {seed}: {dispatched:?} instead of {batch:?}");
                    joined += dispatched.items(is(BULK));
                    compared += 1;
                }
                (Some(dispatched), None) => assert!(alone, "seed {seed}: {dispatched:?} while others are held"),
                (dispatched, without) => assert!(dispatched.is_none() && without.is_none(), "seed {seed}: {without:?}"),
            }
            if dispatched.is_none() {
                let arrival = calls.peek().map_or(until, |(at, _)| *at);
                let before = server.now;
                if !server.step_until(arrival) {
                    server.now = before.max(arrival);
                    if let Some((_, call)) = calls.next() {
                        server.offer(|given| Call { id: given.id, ..call });
                    }
                }
            }
        }
    }
    assert!(compared > 1000, "only {compared} batches were compared, which {joined} fillers joined");
}

/// Returns the latencies of a tenant's calls, sorted.
fn latencies(all: &[DispatchedBatch], tenant: TenantId) -> Vec<Duration> {
    let mut out = Vec::new();
    for dispatched in all {
        let end = dispatched.sent.after(execution_time(dispatched.batch.items));
        out.extend(
            dispatched.calls.iter().filter(|(call, _)| call.tenant == tenant).map(|(_, arrived)| end.since(*arrived)),
        );
    }
    out.sort_unstable();
    out
}

#[test]
fn a_tenant_that_floods_a_hundred_to_one_does_not_slow_another() {
    let (flood, light) = (TenantId(0), TenantId(1));
    for keys in [(0, 0), (0, 1)] {
        let mut draw = RandomSource::new(3);
        let until = Tick::from_millis(4000);
        // The server takes 2000 items per second in batches of 16; 5000 arrive.
        let mut calls =
            generate_arrivals(&mut draw, until, 5000, |_, call| Call { tenant: flood, key: KeyId(keys.0), ..call });
        calls.extend(generate_arrivals(&mut draw, until, 50, |_, call| Call {
            tenant: light,
            key: KeyId(keys.1),
            ..call
        }));
        calls.sort_by_key(|(at, _)| *at);
        let mut server = FixedTimeServer::new(limits(16, &[PriorityClass::PLAIN]));
        let all = server.run(until, calls.into());
        let light = latencies(&all, light);
        // The batch in flight, its own batch, and one more if the keys take turns.
        let p99 = light[light.len() * 99 / 100];
        assert!(light.len() > 150 && p99 <= 3 * execution_time(16), "keys {keys:?}: p99 {p99:?} of {}", light.len());
        let served: u32 = all.iter().map(|dispatched| dispatched.batch.items).sum();
        assert!(served >= if keys.0 == keys.1 { 7500 } else { 6500 }, "keys {keys:?}: {served} items");
    }
}

#[test]
fn a_tenant_alone_gets_the_whole_server_and_no_debt() {
    let mut server = FixedTimeServer::warm(limits(16, &[PriorityClass::PLAIN]), 16);
    let tenant = |tenant| move |call| Call { tenant: TenantId(tenant), key: KeyId(tenant), ..call };
    for _ in 0..160 {
        server.offer(tenant(1));
    }
    let began = server.now;
    server.run_until_empty();
    assert!(
        server.now.since(began) <= 11 * execution_time(16),
        "the whole server, but for a batch of another size now and then"
    );
    let mut mine = 0;
    for _ in 0..20 {
        for id in [1, 2] {
            while server.queued.values().filter(|(call, _)| call.tenant == TenantId(id)).count() < 32 {
                server.offer(tenant(id));
            }
        }
        mine += server.next().items(|call| call.tenant == TenantId(1));
    }
    assert!((144..=176).contains(&mine), "half of 320, and not less for what it had before: {mine}");
}

#[test]
fn a_queue_with_an_urgent_call_is_served_before_its_turn() {
    for (spare, is_first) in [(11, true), (200, false)] {
        let mut server = FixedTimeServer::warm(limits(16, &[PriorityClass::PLAIN]), 16);
        let of = |tenant, millis: u32, now: Tick| {
            let deadline = Some(Deadline { at: now.after(millis * MS), source: DeadlineSource::Slo });
            move |call| Call { tenant: TenantId(tenant), key: KeyId(tenant), deadline, ..call }
        };
        // Tenant 1 is served while tenant 2 waits, so the next turn is that of tenant 2.
        for _ in 0..16 {
            server.offer(of(1, 500, server.now));
        }
        for _ in 0..16 {
            server.offer(of(2, 1000, server.now));
        }
        assert_eq!(server.next().items(|call| call.tenant == TenantId(1)), 16);
        server.step();
        let urgent = server.offer(of(1, spare, server.now));
        assert_eq!(server.next().ids().contains(&urgent), is_first, "{spare} ms to spare");
    }
}

#[test]
fn calls_of_two_classes_are_grouped_by_weight_and_shares_hold() {
    let classes = [class_with_weight(4), class_with_weight(1)];
    let mut server = FixedTimeServer::padded(limits(8, &classes));
    let mut draw = RandomSource::new(11);
    let (mut pure, mut batches, mut interactive, mut all) = (0, 0, 0, 0);
    while batches < 200 {
        for class in [INTERACTIVE, BULK] {
            while server.queued.values().filter(|(call, _)| call.priority == class).count() < 40 {
                let weight = if draw.between(0, 1) == 0 { HEAVY } else { 1 };
                server.offer_weighing(weight, of(class));
            }
        }
        let dispatched = server.next();
        let heavy = dispatched.items(|call| call.weight.max == HEAVY);
        batches += 1;
        pure += u32::from(heavy == 0 || heavy == dispatched.batch.items);
        interactive += dispatched
            .calls
            .iter()
            .filter(|(call, _)| is(INTERACTIVE)(call))
            .map(|(call, _)| call.weight.sum)
            .sum::<u64>();
        all += dispatched.calls.iter().map(|(call, _)| call.weight.sum).sum::<u64>();
    }
    assert!(pure >= 180, "{pure} of {batches} batches hold calls of one weight");
    assert!((68..=92).contains(&(interactive * 100 / all)), "4 parts of 5 of the work: {interactive} of {all}");
}
