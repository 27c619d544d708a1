//! Tests that workloads have the configured rates and shares.

use super::*;

const HORIZON: Duration = Duration::from_secs(20);
const SLO: Duration = Duration::from_millis(50);

fn drawn(workload: &Workload) -> Vec<Arrival> {
    DrawnWorkload::new(workload, SLO, HORIZON, &mut RandomStream::new(5, 0)).open
}

fn close(what: &str, x: f64, y: f64, error: f64) {
    assert!((x / y - 1.0).abs() < error, "{what}: {x} is not {y}");
}

#[test]
fn every_arrival_process_has_its_rate_and_is_in_order() {
    let ms = Duration::from_millis;
    let cases = [
        (ArrivalProcess::Poisson { rate: 1000.0 }, 1000.0, 0.03),
        (ArrivalProcess::Mmpp { rates: [600.0, 4800.0], stays: [ms(400), ms(200)] }, 2000.0, 0.2),
        (ArrivalProcess::Mmpp { rates: [5000.0, 0.0], stays: [ms(100), ms(200)] }, 5000.0 / 3.0, 0.25),
        (ArrivalProcess::Ramp { low: 50.0, high: 3600.0, period: ms(8000) }, 1825.0, 0.12),
        (ArrivalProcess::Step { rate: 100.0, then: 1000.0, from: ms(10_000), until: None }, 550.0, 0.05),
        (ArrivalProcess::Fanout { rate: 1000.0, size: 32, spread: ms(1) }, 1000.0, 0.1),
    ];
    for (arrivals, rate, error) in cases {
        let name = format!("{arrivals:?}");
        let calls = drawn(&Workload::plain(arrivals));
        close(&name, calls.len() as f64 / HORIZON.as_secs_f64(), rate, error);
        assert!(calls.is_sorted_by_key(|arrival| arrival.at), "{name}");
    }
}

#[test]
fn a_step_multiplies_the_rate_from_its_instant_until_it_ends() {
    let ms = Duration::from_millis;
    let step = ArrivalProcess::Step { rate: 200.0, then: 2000.0, from: ms(5000), until: Some(ms(10_000)) };
    let calls = drawn(&Workload::plain(step));
    let rate = |from, to| {
        let within = Tick::from_millis(from)..Tick::from_millis(to);
        calls.iter().filter(|arrival| within.contains(&arrival.at)).count() as f64 / ((to - from) as f64 / 1e3)
    };
    close("before", rate(0, 5000), 200.0, 0.1);
    close("during", rate(5000, 10_000), 2000.0, 0.05);
    close("after", rate(10_000, 20_000), 200.0, 0.1);
}

#[test]
fn mixes_have_their_shares() {
    let mix = CallMix {
        items: ItemCount::UpTo { max: 100 },
        weights: WeightDistribution::TEXTS,
        keys: KeyDistribution::Hot { count: 8, share: 0.5 },
        tenants: KeyDistribution::Zipf { count: 64, exponent: 1.0 },
        deadline: DeadlineRule::Caller { min: Duration::from_millis(20), max: Duration::from_millis(500) },
        cancel_share: 0.03,
        class: 3,
        unmergeable: false,
    };
    let calls = drawn(&Workload::single_stream(ArrivalProcess::Poisson { rate: 2000.0 }, mix));
    let share = |of: &dyn Fn(&Arrival) -> bool| calls.iter().filter(|a| of(a)).count() as f64 / calls.len() as f64;
    close("hot key", share(&|a| a.call.key.0 == 0), 0.5, 0.05);
    close("cold key", share(&|a| a.call.key.0 == 7), 0.5 / 7.0, 0.1);
    close(
        "first tenant is twice the second",
        share(&|a| a.call.tenant.0 == 0) / share(&|a| a.call.tenant.0 == 1),
        2.0,
        0.1,
    );
    close("cancels", share(&|a| a.cancel_at.is_some()), 0.03, 0.15);
    close("calls of 1 to 9 items are half", share(&|a| a.call.items < 10), 0.5, 0.05);
    assert!(calls.iter().all(|a| (1..=100).contains(&a.call.items) && a.class == 3));
    assert!(calls.iter().any(|a| a.call.items == 100), "the largest occurs");
    let single: Vec<u64> = calls.iter().filter(|a| a.call.items == 1).map(|a| a.call.weight.max).collect();
    close("median weight", single.iter().filter(|w| **w <= 60).count() as f64 / single.len() as f64, 0.5, 0.05);
    let budget = |a: &Arrival| a.deadline().since(a.at);
    assert!(calls.iter().all(|a| (20..=500).contains(&u64::try_from(budget(a).as_millis()).unwrap())));
}
