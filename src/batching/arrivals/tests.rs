use super::super::math::ln;
use super::super::rng::SplitMix64;
use super::*;

const MS: u64 = 1_000_000;
/// Mean execution time T in these tests.
const TIME: u64 = 5 * MS;

/// Returns the next gap of a Poisson process with this many items per second.
fn gap(draw: &mut SplitMix64, per_second: f64) -> u64 {
    round_to_u64(-ln(1.0 - draw.next_f64()) / per_second * 1e9)
}

/// 200 batches of 8 items in a closed loop; each client returns 0.1 to 0.3 ms after its answer.
fn closed_loop() -> (ArrivalEstimator, Tick) {
    closed_loop_of(0)
}

/// The same closed loop, with this many items reported as present in each cycle.
fn closed_loop_of(here: u64) -> (ArrivalEstimator, Tick) {
    let (mut arrivals, mut draw, mut now) = (ArrivalEstimator::default(), SplitMix64::new(3), Tick(0));
    for _ in 0..200 {
        arrivals.on_completion(now, 8, TIME);
        let mut back: Vec<u64> = (0..8).map(|_| 100_000 + draw.next_u64() % 200_000).collect();
        back.sort_unstable();
        for offset in back {
            arrivals.on_arrival(Tick(now.0 + offset), 1, false, TIME);
        }
        arrivals.record_present(here);
        now = Tick(now.0 + 300_000 + TIME);
    }
    arrivals.on_completion(now, 8, TIME);
    (arrivals, now)
}

/// A Poisson process of 1000 items per second for ten seconds. A batch of five is answered every
/// five milliseconds.
fn poisson() -> (ArrivalEstimator, Tick) {
    let (mut arrivals, mut draw) = (ArrivalEstimator::default(), SplitMix64::new(4));
    let mut next = gap(&mut draw, 1000.0);
    for batch in 1..2000u64 {
        while next < batch * TIME {
            arrivals.on_arrival(Tick(next), 1, false, TIME);
            next += gap(&mut draw, 1000.0);
        }
        arrivals.on_completion(Tick(batch * TIME), 5, TIME);
    }
    (arrivals, Tick(1999 * TIME))
}

#[test]
fn away_clients_are_counted_in_closed_loop() {
    let (mut arrivals, now) = closed_loop();
    assert_eq!(arrivals.absent_items(3, TIME), None, "the number of waiting clients is unknown");
    for turn in 0..10 * u64::from(PEAK_EVENTS) {
        arrivals.record_present(8);
        arrivals.on_completion(Tick(now.0 + turn * TIME), 8, TIME);
    }
    assert_eq!(arrivals.absent_items(3, TIME), None, "no client came back");
    let (mut arrivals, now) = closed_loop_of(8);
    assert_eq!(
        (arrivals.absent_items(3, TIME), arrivals.absent_items(8, TIME), arrivals.absent_items(9, TIME)),
        (Some(5), Some(0), Some(0))
    );
    // Half of the items return within 0.2 ms, and the others within the next 0.1 ms.
    let back = |from, to| arrivals.returns().return_probability(from, to);
    assert!((0.4..0.6).contains(&back(0, 200_000)), "{}", back(0, 200_000));
    assert!(back(200_000, 300_000) > 0.9 && back(0, 100_000) < 0.1);
    for (ended, known) in [(2, true), (6, false)] {
        let mut shed = arrivals.clone();
        shed.on_expiry(ended);
        (0..PEAK_EVENTS).for_each(|_| {
            shed.record_present(8);
            shed.on_completion(now, 8, TIME);
        });
        assert_eq!(shed.absent_items(3, TIME).is_some(), known, "as many as can be in time");
    }
    // With one client left, the others are missed for a while only.
    for turn in 0..10 * u64::from(PEAK_EVENTS) {
        let at = Tick(now.0 + turn * 6 * MS);
        arrivals.on_arrival(at, 1, false, TIME);
        arrivals.record_present(1);
        arrivals.on_completion(Tick(at.0 + TIME), 1, TIME);
    }
    assert!(arrivals.absent_items(1, TIME).is_none_or(|away| away == 0));
}

#[test]
fn poisson_arrivals_are_not_a_closed_loop() {
    for (rate, most) in [(100.0, 1), (300.0, 1), (1000.0, 1), (3000.0, 1), (80.0, 100), (1000.0, 10)] {
        let (mut arrivals, mut draw) = (ArrivalEstimator::default(), SplitMix64::new(4));
        let mut next = gap(&mut draw, rate);
        for batch in 1..4000u64 {
            let mut arrived = 0;
            while next < batch * TIME {
                let items = 1 + u32::try_from(draw.next_u64() % most).unwrap();
                arrivals.on_arrival(Tick(next), items, false, TIME);
                arrived += items;
                next += gap(&mut draw, rate);
            }
            arrivals.record_present(10);
            if arrived > 0 {
                arrivals.on_completion(Tick(batch * TIME), arrived, TIME);
            }
            assert_eq!(arrivals.absent_items(3, TIME), None, "{rate}/s of up to {most}, batch {batch}");
        }
    }
}

#[test]
fn the_rate_follows_a_steady_stream() {
    let mut arrivals = ArrivalEstimator::default();
    for i in 0..1000u64 {
        arrivals.on_arrival(Tick(i * MS), 2, false, TIME);
    }
    let rate = arrivals.rate(Tick(1000 * MS), TIME);
    assert!((1_900_000..2_100_000).contains(&rate.0), "2000 items a second: {rate:?}");
    assert_eq!(ArrivalRate(2_000_000).items_within(MS), 2000, "two items in a millisecond");
    assert_eq!(ArrivalRate(2_000_000).mean_interval(), 500_000);
    assert_eq!(ArrivalRate(2_000_000).per_slot(4), ArrivalRate(500_000));
}

#[test]
fn the_arrival_rate_decays_without_arrivals() {
    let mut arrivals = ArrivalEstimator::default();
    assert_eq!(arrivals.rate(Tick(MS), TIME), ArrivalRate(0));
    for i in 0..100u64 {
        arrivals.on_arrival(Tick(i * MS), 1, false, TIME);
    }
    let after = |ms: u64| arrivals.rate(Tick((99 + ms) * MS), TIME).0;
    assert!(after(40) < after(0) * 4 / 10, "one window later about a third is left: {} of {}", after(40), after(0));
    assert!(after(40) > after(0) * 3 / 10);
    assert_eq!(after(60_000), 0);
}

#[test]
fn longer_executions_lengthen_the_window_of_the_rate() {
    let mut arrivals = ArrivalEstimator::default();
    arrivals.on_arrival(Tick(0), 100, false, TIME);
    assert!(arrivals.rate(Tick(300 * MS), 50 * MS) > arrivals.rate(Tick(300 * MS), TIME));
}

#[test]
fn a_closed_loops_returns_are_expected_after_a_completion() {
    let (arrivals, now) = closed_loop();
    let returns = arrivals.returns();
    assert_eq!(returns.current_event(Tick(now.0 + 7)), Some((7, 8)));
    let all = returns.caused_arrivals(8, 0, 300_000);
    assert!((7000..=8000).contains(&all), "nearly all eight: {all}");
    let early = returns.caused_arrivals(8, 0, 100_000);
    assert!(early < 100, "no client is back sooner: {early}");
    let half = returns.caused_arrivals(8, 100_000, 200_000);
    assert!((3000..5000).contains(&half), "{half}");
    assert_eq!(returns.caused_arrivals(8, 500_000, 5 * MS), 0, "later, no client is left to come back");
    let doubled = returns.caused_arrivals(16, 0, 300_000);
    assert!(doubled.abs_diff(2 * all) <= 1, "twice as large a batch brings back twice as many");
}

#[test]
fn predicted_returns_of_poisson_arrivals_stay_near_their_rate() {
    let (arrivals, now) = poisson();
    let rate = arrivals.rate(now, TIME);
    for edge in EDGES.iter().skip(1).take_while(|edge| **edge <= TIME) {
        let caused = arrivals.returns().caused_arrivals(5, 0, *edge);
        assert!(caused < (2 * rate.items_within(*edge)).max(500), "a hold requires more than {caused} until {edge}");
    }
}

#[test]
fn expected_arrivals_follow_a_poisson_rate_and_end_with_the_returns_of_a_loop() {
    let (arrivals, now) = poisson();
    let found = arrivals.returns().expected_arrivals(arrivals.rate(now, TIME), 0, 5 * MS);
    let usual = arrivals.rate(now, TIME).items_within(5 * MS);
    assert!(found > usual * 7 / 10 && found < usual * 13 / 10, "{found} for {usual}");
    let (arrivals, now) = closed_loop();
    assert_eq!(arrivals.returns().expected_arrivals(arrivals.rate(now, TIME), 500_000, 5 * MS), 0);
}

#[test]
fn a_fan_out_is_announced_by_its_first_item() {
    let mut arrivals = ArrivalEstimator::default();
    for burst in 0..50u64 {
        let start = burst * 32 * MS;
        arrivals.on_arrival(Tick(start), 1, true, TIME);
        for i in 1..32u64 {
            arrivals.on_arrival(Tick(start + i * 19_000), 1, false, TIME);
        }
    }
    arrivals.on_arrival(Tick(50 * 32 * MS), 1, true, TIME);
    let promised = arrivals.fan_outs().caused_arrivals(1, 0, 800_000);
    assert!((27_000..=31_000).contains(&promised), "thirty-one more: {promised}");
    assert!(arrivals.fan_outs().caused_arrivals(1, 800_000, 5 * MS) < 500);
}

#[test]
fn lone_calls_predict_no_further_arrival() {
    let mut arrivals = ArrivalEstimator::default();
    for i in 0..50u64 {
        arrivals.on_arrival(Tick(i * 100 * MS), 1, true, TIME);
    }
    assert!(EDGES.iter().all(|edge| arrivals.fan_outs().caused_arrivals(1, 0, *edge) == 0));
}

#[test]
fn predicted_returns_decay_after_clients_disconnect() {
    let (mut arrivals, mut now) = closed_loop();
    for _ in 0..150 {
        now = Tick(now.0 + TIME);
        arrivals.on_completion(now, 8, TIME);
    }
    let left = arrivals.returns().caused_arrivals(8, 0, 300_000);
    assert!(left < 500, "the clients have disconnected: {left}");
}

#[test]
fn before_the_first_event_nothing_is_expected() {
    let arrivals = ArrivalEstimator::default();
    assert_eq!(arrivals.returns().current_event(Tick(5)), None);
    assert_eq!(arrivals.returns().caused_arrivals(8, 0, u64::MAX), 0);
    assert_eq!(arrivals.fan_outs().expected_arrivals(ArrivalRate(u64::MAX), 0, u64::MAX), 0);
}
