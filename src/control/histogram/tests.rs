use proptest::prelude::*;

use super::*;

fn of(values: &[u64]) -> Histogram {
    let mut sketch = Histogram::default();
    values.iter().for_each(|value| sketch.add(*value));
    sketch
}

#[test]
fn every_bucket_begins_where_the_one_before_ends() {
    let mut next = 0;
    for index in 0..Histogram::BUCKETS {
        let (from, width) = bucket_range(index);
        assert_eq!((from, bucket_of(from), bucket_of(from + width - 1)), (next, index, index));
        next = from + width;
    }
    assert_eq!((next, Histogram::BUCKETS), (VALUE_MAX + 1, 528));
    assert_eq!(bucket_of(u64::MAX), Histogram::BUCKETS - 1);
}

#[test]
fn small_values_are_exact_and_an_empty_sketch_has_no_quantile() {
    let sketch = of(&(1..=20).collect::<Vec<_>>());
    assert_eq!([0, 50, 500, 950, 1000].map(|permille| sketch.quantile(permille)), [1, 1, 10, 19, 20].map(Some));
    assert_eq!((sketch.count(), sketch.sum(), sketch.mean(), sketch.count_above(15)), (20, 210, Some(10), 5));
    let empty = Histogram::default();
    assert_eq!((empty.quantile(990), empty.mean(), empty.count_above(0), empty.is_empty()), (None, None, 0, true));
}

#[test]
fn a_histogram_round_trips_and_invalid_text_is_rejected() {
    let sketch = of(&[3, 3, 40, 150_000]);
    let text = serde_json::to_string(&sketch).unwrap();
    assert_eq!(text, r#"{"counts":[[3,2],[36,1],[226,1]],"sum":150046}"#);
    assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), sketch);
    assert_eq!(serde_json::from_str::<Histogram>(r#"{"new": 1}"#).unwrap(), Histogram::default());
    for wrong in [
        r#"{"counts":[[528,1]]}"#,
        r#"{"counts":[[3,1],[3,1]]}"#,
        r#"{"counts":[[4,1],[3,1]]}"#,
        r#"{"counts":[[4,0]]}"#,
        r#"{"counts":[[70000,1]]}"#,
        r#"{"counts":[[1,-1]]}"#,
    ] {
        assert!(serde_json::from_str::<Histogram>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn counts_from_outside_saturate() {
    let huge: Histogram =
        serde_json::from_str(&format!(r#"{{"counts":[[1,{0}],[5,{0}]],"sum":{0}}}"#, u64::MAX)).unwrap();
    let mut twice = huge.clone();
    twice.merge(&huge);
    assert_eq!((twice.count(), twice.sum(), twice.quantile(990)), (u64::MAX, u64::MAX, Some(1)));
}

proptest! {
    #[test]
    fn a_quantile_is_within_a_thirtysecond_of_the_true_one(
        mut values in prop::collection::vec(0..2_000_000_u64, 1..300), permille in 1..=1000_u32,
    ) {
        let found = of(&values).quantile(permille).unwrap();
        values.sort_unstable();
        let rank = (values.len() * usize::try_from(permille).unwrap()).div_ceil(1000);
        let (from, width) = bucket_range(bucket_of(values[rank - 1]));
        prop_assert!((from..from + width).contains(&found), "{found} is not in {from}+{width}");
        prop_assert!(width == 1 || width * 16 <= from);
    }

    #[test]
    fn two_sketches_add_up_to_the_sketch_of_both(
        one in prop::collection::vec(0..u64::MAX / 1000, 0..50), two in prop::collection::vec(0..100_u64, 0..50),
    ) {
        let (mut ahead, mut back) = (of(&one), of(&two));
        ahead.merge(&of(&two));
        back.merge(&of(&one));
        let both: Vec<u64> = one.iter().chain(&two).copied().collect();
        prop_assert_eq!(&ahead, &of(&both));
        prop_assert_eq!(ahead, back);
    }

    #[test]
    fn the_count_above_the_median_is_exact_within_one_bucket(values in prop::collection::vec(0..1_000_000_u64, 1..200)) {
        let sketch = of(&values);
        let median = sketch.quantile(500).unwrap();
        let true_above = values.iter().filter(|value| **value > median).count() as u64;
        let in_bucket = values.iter().filter(|value| bucket_of(**value) == bucket_of(median)).count() as u64;
        prop_assert!(sketch.count_above(median).abs_diff(true_above) <= in_bucket);
    }
}
