use super::*;

const MS: u64 = 1_000_000;

/// Returns the times of batches of 1 to `sizes` items by a curve in microseconds.
fn times(sizes: u64, micros: impl Fn(u64) -> u64) -> Vec<u64> {
    (1..=sizes).map(|n| micros(n) * 1000).collect()
}

fn affine(sizes: u64) -> Vec<u64> {
    times(sizes, |n| 4000 + 250 * n)
}

fn pow2(sizes: u64) -> Vec<u64> {
    times(sizes, |n| 3000 + 400 * n.next_power_of_two())
}

fn thrash(sizes: u64) -> Vec<u64> {
    times(sizes, |n| 5000 + 20 * n + 600 * n.saturating_sub(16))
}

fn planned(times: Vec<u64>) -> Plan {
    solve(&PlanInput::new(times))
}

/// Returns a rate in items per second.
fn rate(items: u64) -> ArrivalRate {
    ArrivalRate(items * 1000)
}

#[test]
fn on_a_linear_curve_the_whole_queue_is_sent_at_once_at_low_load() {
    let plan = planned(affine(64));
    for queued in 1..=20 {
        assert_eq!(plan.at(rate(200), queued), PlanDecision::Send(queued), "{queued}");
    }
    assert_eq!((plan.largest_size(), plan.most_efficient_size()), (64, 64));
}

#[test]
fn on_a_linear_curve_at_most_six_queue_lengths_wait_at_high_load() {
    let plan = planned(affine(64));
    for queued in 8..=48 {
        assert_eq!(plan.at(rate(2500), queued), PlanDecision::Send(queued), "{queued}");
    }
    let waiting =
        |load| (1..=64).filter(|queued| matches!(plan.at(rate(load), *queued), PlanDecision::Wait { .. })).count();
    assert!(waiting(200) == 0 && waiting(600) <= 1 && waiting(2500) <= 6, "{} {}", waiting(600), waiting(2500));
}

#[test]
fn far_below_the_lowest_load_no_call_is_held() {
    let flat = planned(times(32, |_| 20_000));
    let (lowest, one) = (128, PlanDecision::Send(1));
    assert_eq!(flat.at(rate(lowest), 1), PlanDecision::Wait { otherwise: 1 }, "calls that arrive soon are free there");
    assert_eq!((flat.at(rate(lowest * 2 / 5), 1), flat.at(rate(5), 1), flat.at(rate(0), 1)), (one, one, one));
}

#[test]
fn a_long_queue_at_low_load_is_sent_in_two_batches() {
    let plan = planned(affine(64));
    assert_eq!(
        plan.at(rate(200), 63),
        PlanDecision::Send(32),
        "two of 12 ms after each other beat one of 20 ms for all"
    );
}

#[test]
fn powers_of_two_are_preferred_if_the_time_steps_at_powers_of_two() {
    let plan = planned(pow2(64));
    for queued in [9, 17, 18, 33, 34, 35] {
        let size = plan.at(rate(1600), queued);
        assert!(matches!(size, PlanDecision::Send(n) if n.is_power_of_two() && n <= queued), "{size:?} of {queued}");
    }
}

#[test]
fn the_plan_waits_just_below_a_power_of_two() {
    let plan = planned(pow2(64));
    let waits =
        (1..=64).filter(|queued| matches!(plan.at(rate(1600), *queued), PlanDecision::Wait { .. })).collect::<Vec<_>>();
    assert!(waits.iter().any(|queued| (queued + 1).is_power_of_two()), "{waits:?}");
    for queued in waits {
        let PlanDecision::Wait { otherwise } = plan.at(rate(1600), queued) else { continue };
        assert!((1..=queued).contains(&otherwise), "{otherwise} of {queued}");
    }
}

#[test]
fn a_batch_stops_at_the_knee() {
    let plan = planned(thrash(64));
    assert_eq!(plan.most_efficient_size(), 16);
    for queued in 16..=64 {
        let size = plan.at(rate(2300), queued);
        assert!(matches!(size, PlanDecision::Send(n) if (12..=18).contains(&n)), "{size:?} of {queued}");
    }
}

#[test]
fn tiles_are_filled() {
    let plan = planned(times(64, |n| 2000 + 4000 * n.div_ceil(8)));
    assert_eq!(plan.most_efficient_size(), 64);
    let size = plan.at(rate(1300), 9);
    assert_eq!(size, PlanDecision::Send(8), "the ninth would cost as much as eight more");
}

#[test]
fn every_answer_is_within_the_queue_and_the_sizes() {
    let curves = [affine(128), pow2(128), thrash(128), vec![5 * MS], vec![0; 128], vec![u64::MAX / 2; 3], Vec::new()];
    for curve in curves {
        let plan = planned(curve);
        for load in [0, 1, 50, 1000, 100_000, u64::MAX / 1000] {
            for queued in [0, 1, 2, 63, 64, 129, 280, u32::MAX] {
                let (PlanDecision::Send(n) | PlanDecision::Wait { otherwise: n }) = plan.at(rate(load), queued);
                assert!(n >= 1 && n <= queued.max(1) && n <= plan.largest_size(), "{n} of {queued}");
            }
        }
    }
}

#[test]
fn decreasing_times_are_treated_as_constant() {
    let mut falling = affine(32);
    falling[31] = 1;
    assert!(planned(falling).most_efficient_size() == 32);
    assert_eq!(planned(vec![5 * MS, MS]), planned(vec![5 * MS, 5 * MS]));
}

#[test]
fn the_load_nearest_by_ratio_is_used() {
    let plan = planned(affine(64));
    let best = 3200.0;
    for (items, index) in [(1, 0), (400, 0), (410, 1), (2700, 5), (2800, 6), (100_000, 6)] {
        let row = plan.row(rate(items));
        assert_eq!(row, &plan.rows[index], "{items}");
    }
    assert_eq!(plan.rows[6].rate, ArrivalRate(round_to_u64(0.92 * best * 1000.0)));
}

#[test]
fn the_same_input_gives_the_same_plan() {
    let input = PlanInput::new(pow2(64));
    assert_eq!(solve(&input), solve(&input));
}

#[test]
fn starting_from_an_earlier_plan_leads_to_nearly_the_same_one() {
    let earlier = planned(pow2(48));
    let fresh = planned(pow2(64));
    let warm = solve(&PlanInput::new(pow2(64)).with_initial_values(&earlier));
    let (mut differ, mut all) = (0, 0);
    for load in [200, 800, 1600, 2000] {
        for queued in 1..=64 {
            all += 1;
            differ += i32::from(warm.at(rate(load), queued) != fresh.at(rate(load), queued));
        }
    }
    assert!(differ * 20 <= all, "{differ} of {all}");
}

#[test]
fn plans_come_after_twenty_batches_and_then_ever_more_rarely() {
    let mut due = PlanSchedule::new();
    let mut made = Vec::new();
    for batches in 0..20_000 {
        let times = vec![batches * MS + MS];
        if due.due(batches, &times) {
            made.push(batches);
        }
    }
    assert_eq!(made, [20, 50, 95, 162, 263, 414, 641, 981, 1491, 2256, 3404, 5126, 9126, 13_126, 17_126]);
}

#[test]
fn no_plan_is_made_while_no_time_has_moved_three_percent() {
    let mut due = PlanSchedule::new();
    assert!(due.due(20, &[1000, 2000]));
    assert!(due.is_check_due(50));
    assert!(!due.due(50, &[1000, 2059]));
    assert!(!due.is_check_due(51), "the next check is as far away as after a plan");
    assert!(due.due(95, &[1000, 2060]));
    assert!(due.due(200, &[1000, 2060, 3000]), "a larger size was seen");
}

#[test]
fn after_a_change_a_plan_comes_ten_batches_later_even_if_the_times_are_the_same() {
    let mut due = PlanSchedule::new();
    assert!(due.due(20, &[1000]));
    due.on_server_change(30);
    assert!(!due.due(39, &[1000]));
    assert!(due.due(40, &[1000]));
}
