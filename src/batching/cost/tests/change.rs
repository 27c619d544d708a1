//! Tests of stalls, new servers, drift, restarts and invalid values.

use super::*;

/// Returns the number of batches until the change was detected.
fn noticed(bench: &mut CurveBench, curve: impl Fn(u32) -> f64) -> Option<u32> {
    (1..=50).find(|_| bench.one(&MIXED, &curve))
}

#[test]
fn one_stall_does_not_change_the_cost_model() {
    let mut bench = CurveBench::learned(1, 100, affine);
    let before = bench.cost.snapshot();
    assert!(!bench.exactly(8, 10.0 * affine(8)));
    assert_eq!(bench.cost.snapshot(), before);
}

#[test]
fn stalls_now_and_then_change_little() {
    let mut bench = CurveBench::learned(2, 100, affine);
    for round in 0..400 {
        let (items, noise) = (bench.random.pick(&MIXED), bench.random.noise(0.04));
        let stall = if round % 10 == 0 { 10.0 } else { 1.0 };
        assert!(!bench.exactly(items, affine(items) * noise * stall), "round {round}");
    }
    assert!(bench.mean_error(1..=64, affine) < 0.03);
    assert!(bench.cost.tail_permille() < 1150, "{}", bench.cost.tail_permille());
}

#[test]
fn another_server_is_noticed_within_six_batches() {
    for seed in 0..50 {
        for (factor, bound) in [(3.0, 6), (1.0 / 3.0, 3)] {
            let mut bench = CurveBench::learned(seed, 100, affine);
            let after = noticed(&mut bench, |items| factor * affine(items));
            assert!(after.is_some_and(|batches| batches <= bound), "seed {seed}, × {factor}: {after:?}");
            assert_eq!(
                (bench.cost.samples(), bench.cost.report().points.len()),
                (1, 1),
                "all is forgotten but the one"
            );
            bench.feed(40, &MIXED, |items| factor * affine(items));
            let error = bench.mean_error(1..=64, |items| factor * affine(items));
            assert!(error < 0.04, "seed {seed}, × {factor}: {error}");
        }
    }
}

#[test]
fn a_curve_learned_during_a_cold_start_is_replaced_within_three_batches() {
    for seed in 0..20 {
        let mut bench = CurveBench::learned(seed, 6, |items| 25.0 * affine(items));
        assert_eq!(noticed(&mut bench, affine), Some(3), "seed {seed}");
    }
}

#[test]
fn sizes_past_a_knee_are_not_taken_for_a_server_change() {
    let knee = |items: u32| if items > 16 { 5.32 + 0.6 * f64::from(items - 16) } else { 5.0 + 0.02 * f64::from(items) };
    for seed in 0..20 {
        let mut bench = CurveBench::learned(seed, 0, knee);
        bench.feed(40, &[4, 8, 12, 16], knee);
        for items in [20, 24, 32, 40, 48, 56, 64] {
            assert!(!bench.exactly(items, knee(items)), "seed {seed}, {items}");
        }
        let error = bench.mean_error([4, 8, 12, 16], knee);
        assert!(error < 0.05, "seed {seed}: {error}");
    }
}

/// Returns the number of batches until a server that became `factor` times as slow is predicted
/// within 6 %: the median and the maximum over curves and seeds.
fn caught_up(factor: f64) -> (u32, u32) {
    let batches = |curve: fn(u32) -> f64, seed: u64| {
        let slower = |items: u32| factor * curve(items);
        let mut bench = CurveBench::learned(seed, 300, curve);
        let caught_up = |bench: &mut CurveBench| {
            bench.one(&MIXED, slower);
            bench.mean_error(MIXED, slower) < 0.06
        };
        (1..200).find(|_| caught_up(&mut bench)).expect("it learns at last")
    };
    let runs = [affine, pow2, tile].into_iter().flat_map(|curve| (0..21).map(move |seed| batches(curve, seed)));
    let mut runs: Vec<u32> = runs.collect();
    runs.sort_unstable();
    (runs[runs.len() / 2], runs[runs.len() - 1])
}

#[test]
fn a_fifth_slower_is_learned_in_about_seventeen_batches() {
    let (median, worst) = caught_up(1.2);
    assert!((12..=19).contains(&median) && worst <= 80, "{median} {worst}");
}

#[test]
fn half_as_slow_again_is_learned_in_about_five_batches() {
    for factor in [1.5, 0.65] {
        let (median, worst) = caught_up(factor);
        assert!(median <= 7 && worst <= 60, "× {factor}: {median} {worst}");
    }
}

#[test]
fn drift_keeps_shape_and_samples() {
    let mut bench = CurveBench::learned(4, 400, pow2);
    let samples = bench.cost.samples();
    for _ in 0..6 {
        assert!(!bench.one(&MIXED, |items| 1.5 * pow2(items)), "it is no other server");
    }
    assert!(bench.cost.samples() == samples + 6 && bench.cost.report().shaped);
    assert!(bench.cost.report().points.iter().all(|point| point.count <= 9), "what was known counts less");
}

#[test]
fn an_unchanged_server_is_never_judged_changed() {
    for seed in 0..5 {
        let mut bench = CurveBench::new(seed);
        for _ in 0..4000 {
            let (items, noise) = (bench.random.pick(&MIXED), bench.random.noise(0.15));
            assert!(!bench.exactly(items, affine(items) * noise), "seed {seed}");
        }
    }
}

#[test]
fn a_restored_cost_model_predicts_like_the_original() {
    for (name, curve) in [("affine", affine as fn(u32) -> f64), ("pow2", pow2), ("tile", tile)] {
        let bench = CurveBench::learned(5, 400, curve);
        let snapshot = bench.cost.snapshot();
        let restored = CostModel::restore(&snapshot);
        assert_eq!(restored.snapshot(), snapshot, "{name}");
        assert!((8..=3 * 96).contains(&restored.samples()) && restored.sample_count(8) == 3);
        assert_eq!(restored.largest(), 64);
        for items in MIXED {
            let (old, new) = (to_f64(bench.cost.time(items)), to_f64(restored.time(items)));
            assert!((new / old - 1.0).abs() < 0.06, "{name}, {items} items: {old} {new}");
        }
    }
}

#[test]
fn weights_survive_a_restart() {
    let mut bench = CurveBench::new(6);
    for _ in 0..300 {
        let items = bench.random.pick(&MIXED);
        let weight = bench.random.weights(items);
        let nanos = 4_000_000 + 2000 * u64::from(items) * weight.max;
        bench.cost.observe(CostSample { items, weight, nanos });
    }
    let restored = CostModel::restore(&bench.cost.snapshot());
    assert_eq!((restored.base_kind(), restored.weights_matter()), (CostMeasure::Padded, true));
    let (old, new) = (bench.cost.time(16), restored.time(16));
    assert!(old.abs_diff(new) < old / 50, "{old} {new}");
}

#[test]
fn a_wrong_snapshot_is_corrected_by_the_first_batches() {
    for factor in [3.0, 1.0 / 3.0] {
        let mut bench = CurveBench::learned(7, 400, affine);
        bench.cost = CostModel::restore(&bench.cost.snapshot());
        let after = noticed(&mut bench, |items| factor * affine(items));
        assert!(after.is_some_and(|batches| batches <= 6), "× {factor}: {after:?}");
    }
}

#[test]
fn an_empty_or_broken_snapshot_restores_a_sound_model() {
    assert_eq!(CostModel::restore(&CostSnapshot::default()).samples(), 0);
    assert_eq!(CostModel::restore(&CostModel::default().snapshot()).time(1), 1_000_000);
    let sample = |items, nanos| CostSample { items, nanos, weight: Weight { sum: 3, max: u64::MAX } };
    let point = |items, nanos| CurvePoint { items, nanos, count: u32::MAX };
    let mut cost = CostModel::restore(&CostSnapshot {
        base: CostMeasure::Ragged,
        first_nanos: u64::MAX,
        samples: (0..5000).map(|items| sample(items, u64::from(items % 3) * (u64::MAX / 2))).collect(),
        points: vec![point(9, 0), point(0, u64::MAX), point(9, 5), point(u32::MAX, 1)],
        largest: u32::MAX,
        tail_permille: 0,
        noise_ppm: u64::MAX,
        weights_matter: true,
        weight_milli: u64::MAX,
        heaviest_milli: vec![0, u64::MAX, 1],
        padding_permille: u64::MAX,
    });
    assert!(cost.samples() <= 768 && cost.sample_count(9) <= 3);
    sound(&cost, 1);
    cost.observe(sample(1, 1));
    sound(&cost, 1);
}

/// Asserts that the predictions are bounded, ordered and numbers (NaN would become zero), whatever
/// was learned.
fn sound(cost: &CostModel, items: u32) {
    let times: Vec<u64> = [1, 2, 17, 511, 512, 513, u32::MAX].map(|items| cost.time(items)).to_vec();
    assert!(times.is_sorted() && times[0] >= 1000, "{times:?}");
    assert!(cost.predict_weighted(items, Weight { sum: u64::MAX, max: u64::MAX }) >= 1000);
    assert!(cost.predict_weighted(items, Weight::default()) >= 1000);
    assert!((1020..=1600).contains(&cost.tail_permille()));
    assert!(cost.report().error_permille <= 1000 && cost.report().points.len() <= 512);
}

#[test]
fn invalid_values_keep_curve_sound() {
    let numbers = [0, 1, 2, 1000, 1_000_000, 1_000_000_000, u64::MAX / 2, u64::MAX];
    for seed in 0..20 {
        let mut random = ServerRandom::new(seed);
        let mut cost = CostModel::default();
        for _ in 0..600 {
            let items = random.pick(&[0, 1, 2, 3, 100, 512, 513, 5000, u32::MAX]);
            let weight = Weight { sum: random.pick(&numbers), max: random.pick(&numbers) };
            cost.observe(CostSample { items, weight, nanos: random.pick(&numbers) });
            sound(&cost, items);
        }
        sound(&CostModel::restore(&cost.snapshot()), 1);
    }
}

#[test]
fn one_repeated_size_suffices_and_extrapolates_soundly() {
    let mut bench = CurveBench::new(8);
    bench.feed(500, &[8], affine);
    assert!(bench.worst([8], affine) < 0.03);
    sound(&bench.cost, 8);
    assert!(bench.cost.time(1) <= bench.cost.time(8) && bench.cost.time(64) <= 9 * bench.cost.time(8));
}

#[test]
fn the_same_samples_give_the_same_curve_to_the_bit() {
    let [one, other] = [0, 1].map(|_| format!("{:?}", CurveBench::learned(9, 300, tile).cost));
    assert!(one == other);
}
