//! Tests of curves, weights and tails.

use super::*;

/// Feeds random batches that take `millis` milliseconds, given their items and weights.
fn feed_weighted(bench: &mut CurveBench, batches: u32, millis: impl Fn(f64, Weight) -> f64) {
    for _ in 0..batches {
        let items = bench.random.pick(&MIXED);
        let weight = bench.random.weights(items);
        let nanos = round_to_u64(millis(f64::from(items), weight) * 1e6 * bench.random.noise(0.04));
        bench.cost.observe(CostSample { items, weight, nanos });
    }
}

fn padded(items: f64, weight: Weight) -> f64 {
    4.0 + 0.05 * items + 0.002 * items * to_f64(weight.max)
}

fn ragged(items: f64, weight: Weight) -> f64 {
    4.0 + 0.05 * items + 0.004 * to_f64(weight.sum)
}

/// Returns the mean error over new batches, each with its own weights.
fn error_by_weight(bench: &mut CurveBench, millis: impl Fn(f64, Weight) -> f64) -> f64 {
    let mut error = || {
        let items = bench.random.pick(&MIXED);
        let weight = bench.random.weights(items);
        (to_f64(bench.cost.predict_weighted(items, weight)) / (millis(f64::from(items), weight) * 1e6) - 1.0).abs()
    };
    let errors: Vec<f64> = (0..200).map(|_| error()).collect();
    mean(&errors)
}

#[test]
fn before_the_first_sample_a_batch_takes_a_millisecond() {
    let cost = CostModel::default();
    assert_eq!([cost.time(0), cost.time(1), cost.time(9999), cost.predict_weighted(7, same(7))], [1_000_000; 4]);
    assert_eq!((cost.samples(), cost.largest(), cost.sample_count(1)), (0, 0, 0));
}

#[test]
fn a_line_is_learned_within_three_percent_from_forty_noisy_samples() {
    for (a, b) in [(4.0, 0.25), (2.0, 3.0), (0.5, 0.01), (100.0, 1.0)] {
        let line = |items: u32| a + b * f64::from(items);
        for seed in 0..50 {
            let bench = CurveBench::learned(seed, 40, line);
            let error = bench.mean_error(1..=64, line);
            assert!(error < 0.03, "{a} + {b}n, seed {seed}: {error}");
        }
    }
}

#[test]
fn two_sizes_suffice_to_predict_a_third() {
    let mut bench = CurveBench::new(1);
    bench.feed(20, &[1, 8], affine);
    assert!(bench.worst([4, 16, 32], affine) < 0.2, "{:?}", bench.errors([4, 16, 32], affine));
}

#[test]
fn steps_tiles_and_knees_are_found() {
    let sizes: Vec<u32> = (1..=64).collect();
    for (name, curve) in [("pow2", pow2 as fn(u32) -> f64), ("tile", tile), ("thrash", thrash)] {
        for seed in 0..20 {
            let mut bench = CurveBench::new(seed);
            bench.feed(500, &sizes, curve);
            let (error, worst) = (bench.mean_error(1..=64, curve), bench.worst(1..=64, curve));
            assert!(bench.cost.report().shaped && error < 0.03 && worst < 0.2, "{name}, seed {seed}: {error} {worst}");
        }
    }
}

#[test]
fn noise_around_a_line_is_not_taken_for_a_shape() {
    let sizes: Vec<u32> = (1..=64).collect();
    let shaped = |seed: &u64| {
        let mut bench = CurveBench::new(*seed);
        bench.feed(400, &sizes, affine);
        bench.cost.report().shaped
    };
    assert_eq!((0..50).filter(shaped).count(), 0);
}

#[test]
fn a_rare_large_batch_is_not_forgotten_among_small_ones() {
    let mut bench = CurveBench::new(3);
    bench.feed(3, &[64], affine);
    bench.feed(2000, &[1, 2], affine);
    assert!(bench.worst([64], affine) < 0.1);
    assert_eq!(
        (bench.cost.largest(), bench.cost.sample_count(64), bench.cost.sample_count(1), bench.cost.sample_count(3)),
        (64, 3, 16, 0)
    );
}

#[test]
fn more_items_never_take_less() {
    for seed in 0..20 {
        let mut bench = CurveBench::new(seed);
        feed_weighted(&mut bench, 30 + 20 * u32::try_from(seed).unwrap(), padded);
        assert!((1..1500).all(|items| bench.cost.time(items) <= bench.cost.time(items + 1)), "seed {seed}");
    }
}

#[test]
fn large_sizes_share_one_bucket_and_follow_the_line() {
    let mut bench = CurveBench::new(4);
    bench.feed(200, &[1, 10, 100, 1000, 3000], affine);
    assert!(bench.worst([1, 100, 512, 1000, 2000, 3000], affine) < 0.06);
    assert_eq!((bench.cost.largest(), bench.cost.sample_count(3000)), (3000, 16), "one bucket for all of them");
}

#[test]
fn a_server_that_pads_is_recognised() {
    for seed in 0..20 {
        let mut bench = CurveBench::new(seed);
        feed_weighted(&mut bench, 300, padded);
        assert_eq!((bench.cost.base_kind(), bench.cost.weights_matter()), (CostMeasure::Padded, true), "seed {seed}");
        assert!(error_by_weight(&mut bench, padded) < 0.03, "seed {seed}");
        let report = bench.cost.report();
        assert!((1800..2200).contains(&report.weight_picos.div_euclid(1000)), "2 µs a token: {report:?}");
    }
}

#[test]
fn a_server_that_packs_is_recognised() {
    for seed in 0..20 {
        let mut bench = CurveBench::new(seed);
        feed_weighted(&mut bench, 300, ragged);
        assert_eq!((bench.cost.base_kind(), bench.cost.weights_matter()), (CostMeasure::Ragged, true), "seed {seed}");
        assert!(error_by_weight(&mut bench, ragged) < 0.03, "seed {seed}");
    }
}

#[test]
fn the_unit_of_weights_does_not_matter() {
    let bench = |unit: u64| {
        let mut bench = CurveBench::new(5);
        for _ in 0..200 {
            let items = bench.random.pick(&MIXED);
            let Weight { sum, max } = bench.random.weights(items);
            let nanos = round_to_u64(padded(f64::from(items), Weight { sum, max }) * 1e6);
            bench.cost.observe(CostSample { items, weight: Weight { sum: sum * unit, max: max * unit }, nanos });
        }
        bench.cost
    };
    let (tokens, bytes) = (bench(1), bench(1 << 20));
    assert_eq!(tokens.base_kind(), bytes.base_kind());
    for items in [1, 7, 64] {
        assert!(tokens.time(items).abs_diff(bytes.time(items)) <= 10, "{items}");
    }
}

#[test]
fn equal_weights_and_weights_that_cost_nothing_do_not_matter() {
    for seed in 0..20 {
        let bench = CurveBench::learned(seed, 300, affine);
        assert!(!bench.cost.weights_matter(), "equal, seed {seed}");
        let mut bench = CurveBench::new(seed);
        feed_weighted(&mut bench, 300, |items, _| 4.0 + 0.25 * items);
        assert!(!bench.cost.weights_matter(), "free, seed {seed}");
        assert!(bench.mean_error(1..=64, affine) < 0.03, "free, seed {seed}");
    }
}

#[test]
fn one_heavy_item_raises_predicted_times_by_less_than_half() {
    let mut bench = CurveBench::new(6);
    feed_weighted(&mut bench, 300, padded);
    let before = bench.cost.time(16);
    let weight = Weight { sum: 1_000_000, max: 1_000_000 };
    bench.cost.observe(CostSample { items: 1, weight, nanos: round_to_u64(padded(1.0, weight) * 1e6) });
    assert!(bench.cost.time(16) < before * 3 / 2, "{before} {}", bench.cost.time(16));
}

#[test]
fn the_tail_ratio_follows_the_noise_within_its_bounds() {
    let q = |sigma: f64| {
        let mut bench = CurveBench::new(7);
        for _ in 0..400 {
            let (items, noise) = (bench.random.pick(&MIXED), bench.random.noise(sigma));
            bench.exactly(items, affine(items) * noise);
        }
        bench.cost.tail_permille()
    };
    assert_eq!(CostModel::default().tail_permille(), 1250);
    assert_eq!(q(0.0), 1020);
    assert!((1050..1130).contains(&q(0.04)), "{}", q(0.04));
    assert!((1250..=1600).contains(&q(0.2)), "{}", q(0.2));
    assert_eq!(q(0.45), 1600);
}

#[test]
fn the_tail_time_is_the_time_times_the_tail_ratio() {
    let cost = CostModel::default();
    assert_eq!([cost.tail_time(0), cost.tail_time(1000), cost.tail_time(u64::MAX)], [0, 1250, u64::MAX]);
}

#[test]
fn one_to_four_percent_of_batches_exceed_the_predicted_tail_time() {
    let mut bench = CurveBench::learned(8, 400, affine);
    let (mut late, batches) = (0, 5000);
    for _ in 0..batches {
        let items = bench.random.pick(&MIXED);
        let nanos = round_to_u64(affine(items) * 1e6 * bench.random.noise(0.04));
        late += u32::from(nanos > bench.cost.tail_time(bench.cost.time(items)));
        bench.cost.observe(CostSample { items, weight: same(items), nanos });
    }
    assert!((batches / 100..batches / 25).contains(&late), "{late} of {batches}");
}
