use super::*;
use groupage_simulator::random::RandomStream;

const SIDE: ComparisonDesign = ComparisonDesign { candidates: 1, turns: false };

/// Draws calls with log-normal latency around 60 ms, scaled by a factor; a share of them fails.
/// Calls of a batch share latency and outcome.
fn counts(
    draw: &mut RandomStream,
    calls: u64,
    (times, failing): (f64, f64),
    (cluster, shock): (u64, f64),
) -> ArmCounts {
    let mut counts = ArmCounts { batches: calls / cluster, ..ArmCounts::default() };
    for _ in 0..calls / cluster {
        let micros = 60_000.0 * (0.35 * draw.normal()).exp() * times * shock;
        let fails = draw.bernoulli(failing);
        if fails {
            counts.errors += cluster;
        } else {
            counts.latency.record_n(micros as u64, cluster);
        }
    }
    counts
}

/// Returns the first evaluation of a run with a finding, and the finding.
fn first(
    seed: u64,
    looks: usize,
    sizes: (u64, u64),
    cluster: u64,
    candidate: (f64, f64),
) -> Option<(usize, ComparisonResult)> {
    let mut draw = RandomStream::new(seed, 3);
    let mut comparison = Comparison::default();
    (1..=looks).find_map(|look| {
        // The load affects both arms.
        let shock = 1.0 + 0.5 * draw.next_f64();
        let control = counts(&mut draw, sizes.0, (1.0, 0.002), (cluster, shock));
        let candidate = counts(&mut draw, sizes.1, candidate, (cluster, shock));
        match comparison.evaluate(&control, &candidate, &RegressionThresholds::default(), SIDE) {
            ComparisonResult::Nothing => None,
            found => Some((look, found)),
        }
    })
}

#[test]
fn without_a_difference_at_most_one_rollout_in_twenty_is_stopped() {
    // Ten minutes of a canary at 10 %, one hour of an experiment, and calls in batches.
    for (looks, sizes, cluster) in [(20, (2700, 300), 1), (120, (600, 600), 1), (60, (1600, 320), 16)] {
        let runs = 300;
        let stopped = (0..runs)
            .filter(|seed| {
                matches!(first(*seed, looks, sizes, cluster, (1.0, 0.002)), Some((_, ComparisonResult::Worse { .. })))
            })
            .count();
        assert!(stopped * 20 <= 300, "{stopped} of {runs} with {sizes:?}, {cluster} to a batch");
    }
}

#[test]
fn a_latency_threshold_is_found_with_few_calls_and_follows_the_control_arm() {
    let mut draw = RandomStream::new(7, 3);
    let mut comparison = Comparison::default();
    let mut drawn = Vec::new();
    for _ in 0..60 {
        let control = counts(&mut draw, 40, (1.0, 0.0), (1, 1.0));
        comparison.evaluate(
            &control,
            &counts(&mut draw, 10, (1.0, 0.0), (1, 1.0)),
            &RegressionThresholds::default(),
            SIDE,
        );
        drawn.push(comparison.threshold.p99().is_some());
    }
    assert!(drawn.iter().skip(25).all(|drawn| *drawn), "{drawn:?}");
    assert!(comparison.latency_looks() >= 30, "{}", comparison.latency_looks());
    // The threshold follows the control arm, which is three times as slow from here on.
    let before = comparison.threshold.p99().unwrap();
    for _ in 0..60 {
        let control = counts(&mut draw, 40, (3.0, 0.0), (1, 1.0));
        comparison.evaluate(&control, &ArmCounts::default(), &RegressionThresholds::default(), SIDE);
    }
    assert!(comparison.threshold.p99().unwrap() > 2 * before);
}

#[test]
fn equal_arms_are_rarely_judged_better() {
    let better = (0..300)
        .filter(|seed| {
            matches!(first(*seed, 60, (600, 600), 1, (1.0, 0.002)), Some((_, ComparisonResult::Better { .. })))
        })
        .count();
    assert!(better * 20 <= 300, "{better} of 300");
}

#[test]
fn a_doubled_latency_is_found_within_16_evaluations() {
    for (sizes, cluster, most) in [((2700, 300), 1, 5), ((600, 600), 1, 5), ((1600, 320), 16, 16)] {
        for seed in 0..100 {
            let (look, found) = first(seed, 40, sizes, cluster, (2.0, 0.002)).expect("it is found");
            let ComparisonResult::Worse { word, detail } = found else { panic!("{found:?}") };
            assert!(matches!(word, Regression::LatencyP99 | Regression::LatencyJumped), "{word:?}");
            // A threshold takes a thousand calls of the control arm, which are one or two
            // evaluations. In batches of 16 the verdict takes up to 320 batches of the
            // candidate.
            assert!(look <= most, "seed {seed}, {sizes:?}: after {look} looks: {detail}");
        }
    }
}

#[test]
fn few_more_errors_are_found_within_sixty_evaluations_and_many_at_the_first() {
    let found = |failing| {
        (0..50)
            .map(|seed| match first(seed, 200, (600, 600), 1, (1.0, failing)) {
                Some((look, ComparisonResult::Worse { word, .. })) => (look, word),
                other => panic!("{failing}: {other:?}"),
            })
            .collect::<Vec<_>>()
    };
    assert!(found(0.5).iter().all(|found| *found == (1, Regression::ErrorsJumped)), "{:?}", found(0.5));
    let few = found(0.03);
    assert!(few.iter().all(|(look, word)| *look <= 60 && *word == Regression::ErrorRate), "{few:?}");
}

#[test]
fn a_halved_latency_is_judged_better() {
    for seed in 0..50 {
        let found = first(seed, 60, (600, 600), 1, (0.5, 0.002));
        assert!(matches!(found, Some((_, ComparisonResult::Better { .. }))), "seed {seed}: {found:?}");
    }
}

#[test]
fn a_comparison_round_trips_and_invalid_text_starts_a_new_one() {
    let mut draw = RandomStream::new(1, 3);
    let mut comparison = Comparison::default();
    for _ in 0..10 {
        let (a, b) = (counts(&mut draw, 600, (1.0, 0.002), (1, 1.0)), counts(&mut draw, 600, (1.1, 0.002), (1, 1.0)));
        comparison.evaluate(&a, &b, &RegressionThresholds::default(), SIDE);
    }
    let text = comparison.write();
    assert!(text.len() < 400, "{text}");
    assert_eq!(Comparison::read(&text).write(), text);
    assert_eq!(Comparison::read("nonsense"), Comparison::default());
}

#[test]
fn sentences_contain_the_observed_counts() {
    let (control, candidate) = (
        ArmCounts {
            errors: 1,
            latency: {
                let mut s = Histogram::default();
                s.record_n(60_000, 999);
                s
            },
            batches: 0,
        },
        ArmCounts {
            errors: 40,
            latency: {
                let mut s = Histogram::default();
                s.record_n(60_000, 60);
                s
            },
            batches: 0,
        },
    );
    let found = Comparison::default().evaluate(&control, &candidate, &RegressionThresholds::default(), SIDE);
    let detail = "error rate 40.0%, control 0.1%".to_owned();
    assert_eq!(found, ComparisonResult::Worse { word: Regression::ErrorsJumped, detail });
}
