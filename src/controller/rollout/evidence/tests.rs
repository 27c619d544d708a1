use super::*;
use groupage_simulator::random::RandomStream;

const ALPHA: f64 = 0.05;

/// Returns the share of runs in which the evidence exceeds 5 % at any evaluation. `share(draw,
/// look)` returns the true shares of bad calls of both arms. The calls of a cluster succeed or
/// fail together.
fn alarms(
    runs: u64,
    looks: usize,
    (calls, cluster): ((u64, u64), u64),
    known: Option<f64>,
    margin: f64,
    share: impl Fn(&mut RandomStream, usize) -> (f64, f64),
) -> f64 {
    let mut alarms = 0;
    for run in 0..runs {
        let mut draw = RandomStream::new(run, 7);
        let mut evidence = SequentialTest::default();
        for look in 0..looks {
            let (a, b) = share(&mut draw, look);
            let mut tally = |calls: u64, share: f64| {
                let bad = (0..calls / cluster).filter(|_| draw.bernoulli(share)).count() as u64 * cluster;
                BernoulliCounts { calls, bad }
            };
            let (a, b) = (tally(calls.0, a), tally(calls.1, b));
            evidence.add_counts(a, b, margin, known);
            if evidence.exceeds(ALPHA) {
                alarms += 1;
                break;
            }
        }
    }
    f64::from(u32::try_from(alarms).unwrap()) / runs as f64
}

#[test]
fn false_alarms_stay_below_alpha_under_repeated_evaluation() {
    let same = |share: f64| move |_: &mut RandomStream, _: usize| (share, share);
    for (calls, share) in [((300, 300), 0.01), ((900, 100), 0.01), ((300, 300), 0.2), ((50, 50), 0.001)] {
        let wrong = alarms(1000, 200, (calls, 1), Some(1.0), 0.0, same(share));
        assert!(wrong <= ALPHA, "{calls:?} {share}: {wrong}");
    }
}

#[test]
fn no_false_alarms_under_changing_load() {
    let moving = |draw: &mut RandomStream, look: usize| {
        let share = if look % 40 < 20 { 0.01 } else { 0.01 + 0.2 * draw.next_f64() };
        (share, share)
    };
    let wrong = alarms(1000, 200, ((450, 50), 1), Some(1.0), 0.0, moving);
    assert!(wrong <= ALPHA, "{wrong}");
}

#[test]
fn no_false_alarms_with_dependent_calls() {
    for (cluster, known) in [(8, Some(8.0)), (32, Some(32.0)), (8, None), (16, None)] {
        let wrong = alarms(500, 200, ((320, 320), cluster), known, 0.0, |_, _| (0.02, 0.02));
        assert!(wrong <= ALPHA, "{cluster} {known:?}: {wrong}");
    }
}

#[test]
fn no_false_alarms_at_the_margin() {
    let wrong = alarms(1000, 200, ((500, 500), 1), Some(1.0), 0.005, |_, _| (0.01, 0.015));
    assert!(wrong <= ALPHA, "{wrong}");
}

#[test]
fn a_difference_is_found_and_sooner_the_larger_it_is() {
    let found = |looks, share: f64| alarms(300, looks, ((300, 300), 1), Some(1.0), 0.0, move |_, _| (0.01, share));
    assert!(found(3, 0.4) > 0.99, "{}", found(3, 0.4));
    assert!(found(10, 0.05) > 0.95, "{}", found(10, 0.05));
    assert!(found(60, 0.025) > 0.9, "{}", found(60, 0.025));
}

#[test]
fn the_nearest_null_is_the_pooled_share_or_lies_on_the_margin() {
    let (a, b) = nearest_null((300.0, 0.01), (100.0, 0.05), 0.0);
    assert!((a - 0.02).abs() < 1e-9 && (b - 0.02).abs() < 1e-9, "{a} {b}");
    let (a, b) = nearest_null((300.0, 0.01), (100.0, 0.05), 0.01);
    assert!(a > 0.01 && b < 0.05 && (b - a - 0.01).abs() < 1e-12, "{a} {b}");
    // The gradient there shows that no other case without a difference is nearer.
    let divergence = |x: f64| 300.0 * kl(0.01, x) + 100.0 * kl(0.05, x + 0.01);
    assert!(divergence(a) <= divergence(a * 1.01) && divergence(a) <= divergence(a * 0.99));
}

fn kl(p: f64, q: f64) -> f64 {
    p * (p / q).ln() + (1.0 - p) * ((1.0 - p) / (1.0 - q)).ln()
}

#[test]
fn a_sequential_test_round_trips_and_invalid_text_starts_a_new_one() {
    let mut evidence = SequentialTest::default();
    for look in 1..20 {
        evidence.add_counts(
            BernoulliCounts { calls: 500, bad: 5 },
            BernoulliCounts { calls: 100 + look, bad: 4 },
            0.0,
            None,
        );
    }
    let read = SequentialTest::read(&evidence.write());
    for (read, own) in read.numbers().into_iter().zip(evidence.numbers()) {
        assert!((read - own).abs() <= 1e-5 * own.abs(), "{read} {own}");
    }
    for wrong in ["", "x", "1 2 3", "1 2 9 4 9 4 7 -8", "1 2 9 4 9 4 7 NaN", "1 1 1 9 4 2 1 1", "1.5 1 9 1 9 1 1 1"] {
        assert_eq!(SequentialTest::read(wrong), SequentialTest::default(), "{wrong}");
    }
    assert_eq!(read.looks, evidence.looks);
    assert!(evidence.write().len() < 120, "{}", evidence.write());
}
