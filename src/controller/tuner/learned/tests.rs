use super::*;

fn entry(profile: &str, node_class: &str, at: u64) -> LearnedProfile {
    LearnedProfile {
        profile: profile.to_owned(),
        node_class: node_class.to_owned(),
        slots: 2,
        curve: Some(LearnedCurve {
            class: "c".to_owned(),
            points: vec![(1, 4000), (8, 6000)],
            tail_permille: 1100,
            weight_milli: 1000,
        }),
        settings: TunedSettings { shift_permille: 80, ..TunedSettings::default() },
        batches: 1000,
        at,
        ..LearnedProfile::default()
    }
}

#[test]
fn a_new_pod_starts_with_the_values_learned_by_its_profile_and_node_class() {
    let learned = [entry("a", "l4", 1), entry("b", "l4", 2), entry("a", "h100", 3)];
    let same = initial_state(&learned, "a", "l4").unwrap();
    assert_eq!((same.settings.shift_permille, same.upstream.slots), (80, 2));
    let other = initial_state(&learned, "c", "l4").unwrap();
    assert_eq!(other.settings, TunedSettings::default());
    assert_eq!((initial_state(&learned, "a", "t4"), initial_state(&learned, "a", "")), (None, None));
}

#[test]
fn a_learned_limit_stays_during_a_trial_and_is_replaced_by_its_conclusion() {
    let limited = Some(LimiterConclusion { base_micros: 4000, no_gain_permille: None });
    let old = vec![LearnedProfile { limiter: limited, ..entry("a", "l4", 1) }];
    let trying = LearnedProfile { slots: 0, limiter: None, ..entry("a", "l4", 1) };
    assert_eq!(update_entries(&old, &[trying], &[], 9), None);
    let no_gain = Some(LimiterConclusion { base_micros: 4000, no_gain_permille: Some(970) });
    let open = LearnedProfile { slots: 0, limiter: no_gain, batches: 9, ..entry("a", "l4", 1) };
    let next = update_entries(&old, &[open], &[], 9).unwrap();
    assert_eq!((next[0].slots, next[0].limiter, next[0].at), (0, no_gain, 9));
    let begins = initial_state(&next, "a", "l4").unwrap();
    assert_eq!((begins.upstream.slots, begins.limiter), (0, no_gain));
}

#[test]
fn entries_are_bounded_and_those_in_use_stay() {
    let old: Vec<LearnedProfile> = (0..16).map(|i| entry(&format!("p{i}"), "l4", i)).collect();
    assert_eq!(update_entries(&old, &[entry("p3", "l4", 0)], &[], 100), None, "nothing moved");
    let next = update_entries(&old, &[entry("new", "l4", 0)], &["p0", "new"], 100).unwrap();
    let names: Vec<&str> = next.iter().map(|entry| entry.profile.as_str()).collect();
    assert_eq!((next.len(), names[0], names[1]), (16, "new", "p0"), "p0 is the oldest, and in use");
    assert!(!names.contains(&"p1"), "the oldest unused entry is removed");
}

#[test]
fn a_pod_with_few_samples_is_ignored_and_small_moves_are_not_written() {
    let old = vec![entry("a", "l4", 1)];
    assert_eq!(update_entries(&old, &[LearnedProfile { batches: 20, slots: 9, ..entry("a", "l4", 1) }], &[], 9), None);
    let mut near = entry("a", "l4", 1);
    near.curve.as_mut().unwrap().points[1].1 = 6300;
    assert_eq!(update_entries(&old, &[near.clone()], &[], 9), None);
    near.curve.as_mut().unwrap().points[1].1 = 7000;
    let next = update_entries(&old, &[near, LearnedProfile { batches: 500, slots: 7, ..entry("a", "l4", 1) }], &[], 9)
        .unwrap();
    assert_eq!(
        (next[0].slots, next[0].at, next[0].curve.as_ref().unwrap().points[1].1),
        (2, 9, 7000),
        "the pod with more observations counts"
    );
}

#[test]
fn a_curve_is_thinned_to_sizes_at_most_four_times_apart() {
    let mut curve = LearnedCurve { points: (1..=512).map(|n| (n, u64::from(n))).collect(), ..LearnedCurve::default() };
    curve.thin_points();
    let sizes: Vec<u32> = curve.points.iter().map(|point| point.0).collect();
    assert_eq!((sizes.len(), sizes[0], sizes[9]), (POINTS_MAX, 1, 512));
    assert!(sizes.windows(2).all(|pair| pair[1] <= 4 * pair[0]), "{sizes:?}");
}
