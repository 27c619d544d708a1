use super::super::call::KeyId;
use super::super::limits::{DispatchPolicy, ScopeLimits};
use super::super::rng::SplitMix64;
use super::super::tick::nanos;
use super::*;

const US: u64 = 1000;

fn limits() -> Limits {
    let scope = ScopeLimits { batch_items_max: 64, ..ScopeLimits::default() };
    Limits {
        policy: DispatchPolicy::Adaptive { hold_permille: 0 },
        slots: 16,
        scopes: vec![scope],
        ..Limits::default()
    }
}

/// A server that runs as many calls side by side as it has `places`, each in turn. `takes` returns
/// the time of a call with this many items.
struct RealServer {
    places: Vec<u64>,
    takes: fn(u32) -> u64,
}

/// Result of forwarding calls to such a server: one call of `items` items every `every` nanoseconds
/// on average.
struct ForwardedRun {
    shadow: Shadow,
    would: Vec<ShadowOutcome>,
    calls: u64,
    predicted: u64,
    /// Sum of the times that the forwarded calls took.
    passed: u64,
}

fn forward_calls(
    real: RealServer,
    every: u64,
    calls: u64,
    items: fn(&mut SplitMix64) -> u32,
    seed: u64,
) -> ForwardedRun {
    pass_keys(real, every, calls, items, (1, limits()), seed)
}

/// Like [`forward_calls`], with calls of this many merge keys in turn, within these limits.
fn pass_keys(
    mut real: RealServer,
    every: u64,
    calls: u64,
    items: fn(&mut SplitMix64) -> u32,
    (keys, limits): (u64, Limits),
    seed: u64,
) -> ForwardedRun {
    let mut draw = SplitMix64::new(seed);
    let mut shadow = Shadow::new(limits, seed);
    let mut would = Vec::new();
    let (mut at, mut ends, mut predicted, mut passed) = (0_u64, BTreeMap::new(), 0, 0);
    for id in 0..calls {
        // Not a Poisson process, but as uneven: gaps between zero and twice the mean.
        at += draw.next_u64() % (2 * every).max(1);
        while let Some(entry) = ends
            .first_entry()
            .filter(|entry: &std::collections::btree_map::OccupiedEntry<'_, (u64, u64), ()>| entry.key().0 <= at)
        {
            let ((end, id), ()) = entry.remove_entry();
            shadow.on_response(Tick(end), CallId(id), true);
        }
        let items = items(&mut draw);
        let place = real.places.iter_mut().min().unwrap();
        let end = at.max(*place) + (real.takes)(items);
        *place = end;
        passed += end - at;
        ends.insert((end, id), ());
        let weight = Weight { sum: items.into(), max: 1 };
        let call = Call { key: KeyId(1 + id % keys), items, weight, ..Call::new(CallId(id)) };
        predicted += u64::from(shadow.on_arrival(Tick(at), Tick(at), &call) != ShadowArrival::Unlearned);
        would.extend(shadow.take_outcomes());
    }
    shadow.advance(Tick(at + 60_000_000_000));
    would.extend(shadow.take_outcomes());
    ForwardedRun { shadow, would, calls, predicted, passed }
}

/// Returns the mean latency in nanoseconds, the mean items in a batch in thousandths, and the calls
/// answered.
fn summarize(run: &ForwardedRun) -> (u64, u64, u64) {
    let (mut latency, mut answered, mut sent, mut batches) = (0, 0, 0, 0);
    for would in &run.would {
        match would {
            ShadowOutcome::Dispatched { items, .. } => (sent, batches) = (sent + u64::from(*items), batches + 1),
            ShadowOutcome::End { end: ShadowEnd::Answered, latency: took, .. } => {
                latency += nanos(*took);
                answered += 1;
            }
            ShadowOutcome::End { .. } => {}
        }
    }
    (latency / answered, 1000 * sent / batches, answered)
}

/// Returns the least latency of the answered calls, in nanoseconds.
fn least_latency(run: &ForwardedRun) -> u64 {
    let answered = run.would.iter().filter_map(|would| match would {
        ShadowOutcome::End { end: ShadowEnd::Answered, latency, .. } => Some(nanos(*latency)),
        _ => None,
    });
    answered.min().unwrap()
}

/// Returns the median of nine predictions of the time of this many items, in nanoseconds.
fn median_prediction(shadow: &Shadow, items: u32) -> u64 {
    let mut server = shadow.server.clone();
    let mut predict = || server.predict_time(CostClassId(0), items, Weight { sum: items.into(), max: 1 });
    let mut times = [0; 9].map(|_| predict());
    times.sort_unstable();
    times[4]
}

fn call_of_key(id: u64) -> Call {
    Call { key: KeyId(1), ..Call::new(CallId(id)) }
}

/// Forwards this many calls, one every 100 ms, that are answered after `took` milliseconds.
fn forward_lone_calls(shadow: &mut Shadow, calls: u64, took: u64) {
    for id in 0..calls {
        let at = Tick::from_millis(100 * id);
        shadow.on_arrival(at, at, &call_of_key(id));
        shadow.on_response(at.after(Duration::from_millis(took)), CallId(id), true);
    }
}

#[test]
fn no_prediction_before_eight_lone_calls() {
    let mut shadow = Shadow::new(limits(), 1);
    for id in 0..7 {
        let at = Tick::from_millis(id * 100);
        assert_eq!(shadow.on_arrival(at, at, &Call::new(CallId(id))), ShadowArrival::Unlearned);
        shadow.on_response(Tick::from_millis(id * 100 + 5), CallId(id), true);
    }
    let at = Tick::from_millis(1000);
    assert_eq!(shadow.on_arrival(at, at, &Call::new(CallId(7))), ShadowArrival::Unlearned);
    assert!(shadow.take_outcomes().is_empty() && shadow.knowledge().classes.is_empty());
    shadow.on_response(Tick::from_millis(1005), CallId(7), true);
    let at = Tick::from_millis(2000);
    assert_eq!(shadow.on_arrival(at, at, &Call::new(CallId(8))), ShadowArrival::Simulated);
    shadow.advance(Tick::from_millis(3000));
    let outcomes = shadow.take_outcomes();
    let [ShadowOutcome::Dispatched { items: 1, .. }, ShadowOutcome::End { latency, end: ShadowEnd::Answered, .. }] =
        &outcomes[..]
    else {
        panic!("{outcomes:?}")
    };
    assert!(latency.as_millis().abs_diff(5) <= 1, "{latency:?}");
    let classes = vec![(CostClassId(0), 5_000_000, 1)];
    assert_eq!(shadow.knowledge(), ShadowKnowledge { side_by_side: 1, classes, steady_load: false });
}

#[test]
fn a_server_that_is_too_slow_for_single_calls_would_be_fed_in_batches() {
    // A serial server at 5 ms a call. 180 calls per second are nine tenths of its capacity.
    let real = RealServer { places: vec![0], takes: |_| 5000 * US };
    let run = forward_calls(real, 5_500 * US, 4000, |_| 1, 3);
    let (latency, items, answered) = summarize(&run);
    let passed = run.passed / run.calls;
    assert!(run.predicted > 3850 && answered == run.predicted, "{} {answered}", run.predicted);
    assert!(items > 1100 && latency < passed * 8 / 10, "{items} items, {latency} beside {passed}");
    assert_eq!(run.shadow.knowledge().side_by_side, 1);
}

#[test]
fn a_server_that_is_never_idle_is_learned_from_the_time_between_its_answers() {
    let real = RealServer { places: vec![0], takes: |_| 5000 * US };
    let run = forward_calls(real, 4_000 * US, 3000, |_| 1, 4);
    let known = run.shadow.knowledge();
    assert_eq!(known.side_by_side, 1);
    let (_, lone, _) = known.classes[0];
    assert!(lone.abs_diff(5000 * US) < 300 * US, "{lone}");
}

#[test]
fn batches_of_clients_show_the_cost_of_batches() {
    // 4 ms, and half a millisecond per item.
    let real = RealServer { places: vec![0], takes: |items| 4000 * US + 500 * US * u64::from(items) };
    let run = forward_calls(
        real,
        30_000 * US,
        2000,
        |draw| [1, 2, 4, 8, 16][usize::try_from(draw.next_u64() % 5).unwrap()],
        5,
    );
    let known = run.shadow.knowledge();
    assert_eq!(known.classes[0].2, 16);
    for (items, want) in [(1, 4500), (8, 8000), (16, 12_000), (32, 20_000)] {
        let time = median_prediction(&run.shadow, items);
        assert!(time.abs_diff(want * US) < want * US / 10, "{items} items: {} of {want}", time / US);
    }
}

#[test]
fn the_number_of_calls_that_run_side_by_side_is_measured() {
    // First rarely enough to find the server idle, then three at a time.
    let mut draw = SplitMix64::new(6);
    let mut shadow = Shadow::new(limits(), 6);
    forward_lone_calls(&mut shadow, 20, 6);
    let mut at = 10_000_000_000;
    for round in 0..100_u64 {
        for one in 0..3 {
            shadow.on_arrival(Tick(at), Tick(at), &call_of_key(1000 + 3 * round + one));
        }
        for one in 0..3 {
            let end = at + 6_000_000 + draw.next_u64() % 1000;
            shadow.on_response(Tick(end), CallId(1000 + 3 * round + one), true);
        }
        at += 7_000_000;
    }
    assert_eq!(shadow.knowledge().side_by_side, 3);
}

#[test]
fn the_predicted_time_follows_a_server_that_is_slower_under_load() {
    let mut shadow = Shadow::new(limits(), 7);
    forward_lone_calls(&mut shadow, 20, 5);
    // From here on the server is never idle, and twice as slow.
    let mut at = 2_000_000_000;
    shadow.on_arrival(Tick(at), Tick(at), &call_of_key(20));
    for id in 21..221 {
        shadow.on_arrival(Tick(at + 1), Tick(at + 1), &call_of_key(id));
        at += 10_000_000;
        shadow.on_response(Tick(at), CallId(id - 1), true);
    }
    let time = median_prediction(&shadow, 1);
    assert!(time.abs_diff(10_000 * US) < 1000 * US, "{time}");
    assert_eq!(shadow.knowledge().side_by_side, 1);
}

#[test]
fn the_same_calls_give_the_same_shadow_outcome() {
    let run = || forward_calls(RealServer { places: vec![0, 0], takes: |_| 5000 * US }, 2_600 * US, 1500, |_| 1, 8);
    let (one, other) = (run(), run());
    assert_eq!(one.would, other.would);
    assert_ne!(summarize(&one).2, 0);
}

#[test]
fn a_cancelled_call_leaves_the_shadow_too() {
    let mut shadow = Shadow::new(limits(), 9);
    forward_lone_calls(&mut shadow, 10, 6);
    shadow.advance(Tick::from_millis(5000));
    shadow.take_outcomes();
    let at = Tick::from_millis(6000);
    (10..14).for_each(|id| _ = shadow.on_arrival(at, at, &call_of_key(id)));
    (10..14).for_each(|id| shadow.on_disconnect(at, CallId(id)));
    let ends = |would: Vec<ShadowOutcome>| {
        would.into_iter().filter(|one| matches!(one, ShadowOutcome::End { .. })).collect::<Vec<_>>()
    };
    let outcomes = ends(shadow.take_outcomes());
    assert_eq!(outcomes.len(), 4, "{outcomes:?}");
    assert!(
        outcomes.iter().all(|one| matches!(one, ShadowOutcome::End { end: ShadowEnd::Cancelled, .. })),
        "{outcomes:?}"
    );
    shadow.advance(Tick::from_millis(9000));
    assert!(ends(shadow.take_outcomes()).is_empty() && shadow.calls.is_empty() && shadow.running.is_empty());
}

#[test]
fn the_state_of_a_shadow_is_bounded() {
    let mut shadow = Shadow::new(limits(), 10);
    for id in 0..30_000 {
        let at = Tick::from_millis(id);
        let class = CostClassId(u32::try_from(id % 500).unwrap());
        shadow.on_arrival(at, at, &Call { cost_class: class, ..Call::new(CallId(id)) });
        if id % 3 == 0 {
            shadow.on_response(at.after(Duration::from_micros(500)), CallId(id), true);
        }
        shadow.take_outcomes();
    }
    let (classes, passing) = shadow.server.sizes();
    assert!(classes <= 64 && passing <= 8192, "{classes} {passing}");
    assert!(shadow.calls.len() <= 2048 + 16 * 64, "{}", shadow.calls.len());
}

/// Batches the calls of [`forward_calls`] in a core before such a server. Returns the mean latency
/// in nanoseconds and the mean items in a batch in thousandths.
fn batched(real: RealServer, every: u64, calls: u64, items: fn(&mut SplitMix64) -> u32, seed: u64) -> (u64, u64) {
    batched_keys(real, every, calls, items, (1, limits()), seed)
}

fn batched_keys(
    mut real: RealServer,
    every: u64,
    calls: u64,
    items: fn(&mut SplitMix64) -> u32,
    (keys, limits): (u64, Limits),
    seed: u64,
) -> (u64, u64) {
    let mut draw = SplitMix64::new(seed);
    let mut core = Batcher::new(limits, seed);
    let (mut at, mut running, mut arrived_at) = (0_u64, BTreeMap::new(), BTreeMap::new());
    let (mut latency, mut sent, mut batches) = (0, 0_u64, 0);
    let mut arrivals = (0..calls).map(|id| {
        at += draw.next_u64() % (2 * every).max(1);
        (at, id, items(&mut draw))
    });
    let mut next = arrivals.next();
    let mut now = Tick(0);
    loop {
        while let Some(Decision::Dispatch(batch)) = core.poll(now) {
            let place = real.places.iter_mut().min().unwrap();
            *place = now.0.max(*place) + (real.takes)(batch.items);
            running.insert((Tick(*place), batch.id), (now, batch.members.clone()));
            (sent, batches) = (sent + u64::from(batch.items), batches + 1);
        }
        while let Some((class, input)) = core.take_due_plan_input() {
            core.set_plan(now, class, super::super::plan::solve(&input));
        }
        let end = running.first_key_value().map(|((at, _), _)| *at);
        let arrival = next.map(|(at, ..)| Tick(at));
        let Some(then) = [end, arrival, core.next_wakeup()].into_iter().flatten().min() else { break };
        now = now.max(then);
        if let Some(entry) = running.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, batch), (left, members)) = entry.remove_entry();
            for member in members {
                latency += nanos(now.since(arrived_at.remove(&member.id).unwrap()));
            }
            let took = now.since(left);
            let observed = Observation { duration: took, first_byte: Some(took), outcome: BatchOutcome::Ok };
            core.complete(now, batch, observed);
        }
        while let Some((at, id, items)) = next.filter(|(at, ..)| Tick(*at) <= now) {
            let weight = Weight { sum: items.into(), max: 1 };
            let call = Call { key: KeyId(1 + id % keys), items, weight, ..Call::new(CallId(id)) };
            arrived_at.insert(CallId(id), Tick(at));
            core.enqueue(now, call).unwrap();
            next = arrivals.next();
        }
    }
    (latency / calls, 1000 * sent / batches)
}

#[test]
fn predictions_are_within_a_fifth_of_the_results_of_batching() {
    // 4 ms, and half a millisecond per item: some 200 calls per second one by one, many more in
    // batches.
    let takes = |items: u32| 4000 * US + 500 * US * u64::from(items);
    for (seed, every) in [(11, 12_000), (12, 8_000), (13, 6_500)] {
        let mix: fn(&mut SplitMix64) -> u32 = |draw| [1, 1, 2, 4][usize::try_from(draw.next_u64() % 4).unwrap()];
        let run = forward_calls(RealServer { places: vec![0], takes }, every * US, 6000, mix, seed);
        let (predicted, items, _) = summarize(&run);
        let (real, real_items) = batched(RealServer { places: vec![0], takes }, every * US, 6000, mix, seed);
        let off = |one: u64, other: u64| 1000 * one.abs_diff(other) / other;
        assert!(off(predicted, real) < 200, "every {every} us: {predicted} ns predicted, {real} ns in fact");
        assert!(
            off(items, real_items) < 150,
            "every {every} us: {items} items predicted, {real_items} in fact, by 1000"
        );
    }
}

/// Returns limits without a bound on slots.
fn open() -> Limits {
    Limits { slots: 1024, ..limits() }
}

#[test]
fn predictions_match_the_core_for_servers_of_each_kind() {
    struct Case {
        name: &'static str,
        places: usize,
        takes: fn(u32) -> u64,
        every: u64,
        items: fn(&mut SplitMix64) -> u32,
        keys: u64,
    }
    let one: fn(&mut SplitMix64) -> u32 = |_| 1;
    let mix: fn(&mut SplitMix64) -> u32 = |draw| [1, 1, 2, 4][usize::try_from(draw.next_u64() % 4).unwrap()];
    let cases = [
        // 48 calls in flight on average, each client with a key of its own.
        Case { name: "64 at once", places: 64, takes: |_| 200_000 * US, every: 4200 * US, items: one, keys: 48 },
        // A batch takes as long as its calls one by one.
        Case {
            name: "linear",
            places: 1,
            takes: |n| 5000 * US * u64::from(n),
            every: 13_000 * US,
            items: mix,
            keys: 1,
        },
        Case {
            name: "serial",
            places: 1,
            takes: |n| 4000 * US + 500 * US * u64::from(n),
            every: 6500 * US,
            items: mix,
            keys: 1,
        },
    ];
    for Case { name, places, takes, every, items, keys } in cases {
        let real = || RealServer { places: vec![0; places], takes };
        let run = pass_keys(real(), every, 6000, items, (keys, open()), 21);
        let (predicted, batch, answered) = summarize(&run);
        let (latency, real_batch) = batched_keys(real(), every, 6000, items, (keys, open()), 21);
        let off = |one: u64, other: u64| 1000 * one.abs_diff(other) / other;
        assert!(answered > 5500, "{name}: {answered} predicted");
        assert!(off(predicted, latency) < 200, "{name}: {predicted} ns predicted, {latency} ns in fact");
        assert!(off(batch, real_batch) < 150, "{name}: {batch} items predicted, {real_batch} in fact, by 1000");
        assert!(least_latency(&run) >= takes(1), "{name}: less than the fastest lone call");
    }
}

#[test]
fn a_server_that_always_runs_many_at_once_is_not_taken_for_a_fast_serial_one() {
    // Never idle after the first calls: an answer every 4 ms, each after 200 ms.
    let run = pass_keys(
        RealServer { places: vec![0; 64], takes: |_| 200_000 * US },
        4200 * US,
        3000,
        |_| 1,
        (48, open()),
        22,
    );
    let known = run.shadow.knowledge();
    let (_, lone, _) = known.classes[0];
    assert!(lone.abs_diff(200_000 * US) < 10_000 * US, "{lone}");
    assert!(known.side_by_side >= 48, "{}", known.side_by_side);
}

/// Forwards calls of callers that each wait for their answer, then send the next call half a
/// millisecond later. `keys` are their merge keys in turn.
fn forward_closed_loop(mut real: RealServer, callers: u64, calls: u64, keys: u64) -> ForwardedRun {
    let mut shadow = Shadow::new(open(), 31);
    let (mut would, mut predicted, mut passed, mut sent) = (Vec::new(), 0, 0, 0);
    let mut arrivals: BTreeMap<(u64, u64), ()> = (0..callers).map(|caller| ((caller, caller), ())).collect();
    let mut answers: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    while sent < calls {
        let answer = answers.first_key_value().map(|((at, _), _)| *at);
        let arrival = arrivals.first_key_value().map(|((at, _), ())| *at);
        if answer.is_some_and(|answer| arrival.is_none_or(|arrival| answer <= arrival)) {
            let ((at, id), caller) = answers.pop_first().unwrap();
            shadow.on_response(Tick(at), CallId(id), true);
            arrivals.insert((at + 500 * US, caller), ());
            continue;
        }
        let ((at, caller), ()) = arrivals.pop_first().unwrap();
        let place = real.places.iter_mut().min().unwrap();
        *place = at.max(*place) + (real.takes)(1);
        passed += *place - at;
        answers.insert((*place, sent), caller);
        let call = Call { key: KeyId(1 + caller % keys), ..Call::new(CallId(sent)) };
        predicted += u64::from(shadow.on_arrival(Tick(at), Tick(at), &call) != ShadowArrival::Unlearned);
        while let Some((class, input)) = shadow.take_due_plan_input() {
            shadow.set_plan(class, super::super::plan::solve(&input));
        }
        would.extend(shadow.take_outcomes());
        sent += 1;
    }
    ForwardedRun { shadow, would, calls, predicted, passed }
}

#[test]
fn callers_that_are_never_idle_are_predicted_to_share_batches() {
    for (places, callers) in [(1, 16), (4, 24)] {
        let real = RealServer { places: vec![0; places], takes: |_| 20_000 * US };
        let run = forward_closed_loop(real, callers, 1200, 1);
        let (latency, items, answered) = summarize(&run);
        assert!(run.predicted > 1000, "{places}: {} predicted", run.predicted);
        assert!(latency < run.passed / run.calls * 8 / 10, "{places}: {latency} beside {}", run.passed / run.calls);
        assert!(items > 2000 && answered > run.predicted, "{places}: {items} items, {answered} answered");
        assert!(least_latency(&run) >= 20_000 * US, "{places}: less than the fastest lone call");
        assert!(!run.shadow.knowledge().steady_load);
    }
}

#[test]
fn callers_with_keys_of_their_own_are_predicted_to_wait_as_they_do() {
    let real = RealServer { places: vec![0], takes: |_| 20_000 * US };
    let run = forward_closed_loop(real, 16, 1200, 16);
    let (latency, items, _) = summarize(&run);
    let passed = run.passed / run.calls;
    assert!(items < 1050 && latency > passed * 8 / 10, "{items} items, {latency} beside {passed}");
    assert!(least_latency(&run) >= 20_000 * US);
}

#[test]
fn a_load_that_never_varied_is_reported_where_it_shows_no_time_of_a_lone_call() {
    // The very first call is answered from a cache, and 15 others wait for each other.
    let mut shadow = Shadow::new(open(), 33);
    for id in 0..16 {
        shadow.on_arrival(Tick(id), Tick(id), &Call::new(CallId(id)));
    }
    let mut at = 0;
    for id in 0..300 {
        at += if id == 0 { 1000 * US } else { 20_000 * US };
        shadow.on_response(Tick(at), CallId(id), true);
        assert_eq!(shadow.on_arrival(Tick(at), Tick(at), &Call::new(CallId(id + 16))), ShadowArrival::Unlearned);
    }
    assert!(shadow.knowledge().steady_load && shadow.knowledge().classes.is_empty());
}

#[test]
fn a_closed_loop_before_a_server_that_stops_answering_ends_in_the_simulation() {
    let real = RealServer { places: vec![0], takes: |_| 20_000 * US };
    let mut run = forward_closed_loop(real, 16, 600, 1);
    run.shadow.advance(Tick(3_600_000_000_000));
    let ended = run.shadow.take_outcomes().len();
    assert!(ended < 3 * usize::try_from(FOLLOW_UPS_MAX).unwrap(), "{ended}");
}
