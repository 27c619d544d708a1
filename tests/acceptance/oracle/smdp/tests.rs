use groupage_batching::rng::SplitMix64;

use super::*;

fn curve(cap: usize, time: impl Fn(f64) -> f64) -> Vec<f64> {
    (1..=cap).map(|n| time(n as f64)).collect()
}

/// Returns an exponential number with mean 1. It is finite, because no uniform number is 0.
fn exponential(draw: &mut SplitMix64) -> f64 {
    -(((draw.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64).ln()
}

/// Simulates a table over this number of arrivals and returns the mean latency.
fn simulate(table: &[u32], rate_per_s: f64, times: &[f64], arrivals: usize) -> f64 {
    let mut draw = SplitMix64::new(7);
    let mut next = 0.0;
    let mut arrived = std::collections::VecDeque::new();
    let (mut now, mut sum, mut served) = (0.0_f64, 0.0, 0);
    while served < arrivals {
        while next <= now {
            arrived.push_back(next);
            next += exponential(&mut draw) * 1000.0 / rate_per_s;
        }
        let size = table[arrived.len().min(table.len() - 1)] as usize;
        now = if size == 0 { next } else { now + times[size - 1] };
        for at in arrived.drain(..size) {
            sum += now - at;
            served += 1;
        }
    }
    sum / served as f64
}

fn assert_mean_is_reached(rate: f64, times: &[f64], tolerance: f64) {
    let best = solve_smdp(rate, times);
    let seen = simulate(&best.table, rate, times, 3_000_000);
    assert!((seen / best.mean_ms - 1.0).abs() < tolerance, "{seen} seen, {} promised at {rate}/s", best.mean_ms);
}

#[test]
fn on_a_linear_curve_the_computed_mean_is_reached() {
    let times = curve(64, |n| 4.0 + 0.25 * n);
    assert_mean_is_reached(1000.0, &times, 0.002);
    assert_mean_is_reached(2500.0, &times, 0.004);
}

#[test]
fn on_steps_and_past_a_knee_the_computed_mean_is_reached() {
    assert_mean_is_reached(1600.0, &curve(64, |n| 3.0 + 0.4 * 2_f64.powf(n.log2().ceil())), 0.004);
    assert_mean_is_reached(2300.0, &curve(64, |n| 5.0 + 0.02 * n.min(16.0) + 0.6 * (n - 16.0).max(0.0)), 0.004);
}

#[test]
fn in_waves_that_rarely_empty_the_queue_the_computed_mean_is_reached() {
    let waves = curve(64, |n| 2.0 + 6.4 * (n / 32.0).ceil());
    assert_mean_is_reached(0.9 * 64_000.0 / 14.8, &waves, 0.004);
}

#[test]
fn near_saturation_the_computed_mean_is_reached() {
    assert_mean_is_reached(0.9 * 32_000.0 / 98.0, &curve(32, |n| 2.0 + 3.0 * n), 0.02);
}

#[test]
fn a_batch_limit_of_one_gives_the_mean_of_an_m_d_1_queue() {
    // M/D/1: t + load * t / (2 * (1 - load)).
    for load in [0.1, 0.5, 0.9] {
        let known = 5.0 + load * 5.0 / (2.0 * (1.0 - load));
        let found = solve_smdp(load * 200.0, &[5.0]).mean_ms;
        assert!((found / known - 1.0).abs() < 1e-3, "{found} found, {known} known at load {load}");
    }
}

#[test]
fn fixed_rules_are_no_better_than_the_solution() {
    let times = curve(32, |n| 2.0 + 4.0 * (n / 8.0).ceil());
    let rate = 1300.0;
    let best = solve_smdp(rate, &times).mean_ms;
    let greedy: Vec<u32> = (0..=32).collect();
    let eights: Vec<u32> = (0..=64).map(|n| if n < 8 { n } else { n / 8 * 8 }).map(|n: u32| n.min(32)).collect();
    for table in [greedy, eights] {
        assert!(simulate(&table, rate, &times, 500_000) > 0.998 * best);
    }
}

#[test]
fn a_rate_above_the_capacity_has_an_infinite_mean() {
    assert!(solve_smdp(3300.0, &curve(64, |n| 4.0 + 0.25 * n)).mean_ms.is_infinite());
    assert!(solve_smdp(1.0, &[]).mean_ms.is_infinite());
}

/// Computes the mean by relative value iteration over the process in discrete time (Schweitzer's
/// data transformation), the textbook method: slow, but with a known bound on its error.
fn by_value_iteration(rate: f64, times: &[f64], length: usize) -> f64 {
    let step = 0.99 * times.iter().copied().fold(1.0 / rate, f64::min);
    let chances: Vec<Vec<f64>> = times
        .iter()
        .map(|time| {
            let mean = rate * time;
            let mut chance = (-mean).exp();
            (0..=length)
                .map(|k| {
                    let this = chance;
                    chance *= mean / (k + 1) as f64;
                    this
                })
                .collect()
        })
        .collect();
    let mut values = vec![0.0; length + 1];
    loop {
        let after: Vec<f64> = (0..=length)
            .map(|queued| {
                let wait = queued as f64 + step * rate * (values[(queued + 1).min(length)] - values[queued]);
                let mut best = if queued == length { f64::INFINITY } else { wait };
                for size in 1..=queued.min(times.len()) {
                    let time = times[size - 1];
                    let next: f64 = chances[size - 1]
                        .iter()
                        .enumerate()
                        .map(|(k, chance)| chance * values[(queued - size + k).min(length)])
                        .sum();
                    let cost = queued as f64 + rate * time / 2.0;
                    best = best.min(cost + step / time * (next - values[queued]));
                }
                best + values[queued]
            })
            .collect();
        let moved = || after.iter().zip(&values).map(|(new, old)| new - old);
        let (least, most) = (moved().fold(f64::INFINITY, f64::min), moved().fold(0.0, f64::max));
        values = after.iter().map(|value| value - after[0]).collect();
        if most - least < 1e-7 * most {
            return most / rate;
        }
    }
}

#[test]
fn value_iteration_gives_the_same_mean() {
    for (rate, times) in [
        (900.0, curve(8, |n| 3.0 + 0.4 * 2_f64.powf(n.log2().ceil()))),
        (700.0, curve(8, |n| 2.0 + 4.0 * (n / 4.0).ceil())),
        (300.0, curve(8, |n| 1.0 + 2.0 * n)),
        (30.0, curve(8, |n| 5.0 + 0.1 * n)),
    ] {
        let (found, known) = (solve_smdp(rate, &times).mean_ms, by_value_iteration(rate / 1000.0, &times, 80));
        assert!((found / known - 1.0).abs() < 1e-4, "{found} found, {known} known at {rate}/s");
    }
}
