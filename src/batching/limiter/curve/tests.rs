use super::*;

/// Returns the curve of calls that arrive faster than they are answered. `latency` is called
/// with the number in flight at dispatch and with the mean number that the call saw.
fn growing(latency: impl Fn(f64, f64) -> f64) -> LoadCurve {
    let mut curve = LoadCurve::default();
    for sent in 1..=80_u32 {
        let after = 2 * sent;
        let mean = f64::from(sent + after) / 2.0;
        curve.observe((sent, mean), latency(f64::from(sent), mean));
    }
    curve
}

#[test]
fn a_server_that_slows_gently_has_no_knee_while_its_load_grows() {
    // Continuous batching: a step costs 0.9 + 0.1 for each call inside. A call that was sent
    // early is slowed by those that followed.
    assert!(growing(|_, in_flight| 0.9 + 0.1 * in_flight).knee(true).is_none());
}

#[test]
fn a_growing_queue_has_a_knee_near_the_number_of_workers() {
    let knee = growing(|sent, _| (sent / 4.0).max(1.0)).knee(true).expect("a queue behind four workers");
    assert!((3.0..=6.0).contains(&knee.at), "{}", knee.at);
}

#[test]
fn four_calls_that_are_sent_at_once_in_each_round_show_a_queue() {
    let mut curve = LoadCurve::default();
    for _ in 0..3 {
        (1..=4).for_each(|place| assert_eq!(curve.observe((place, 2.5), 20.0 * f64::from(place)), None));
    }
    let knee = curve.knee(false).expect("one call is computed at a time");
    assert!(knee.at < 1.5 && !knee.is_bound, "{knee:?}");
}

/// Returns the curve of bursts of 20 calls that are sent to an idle server at once. `latency` is
/// called with the place in the burst.
fn bursts(latency: impl Fn(f64) -> f64) -> LoadCurve {
    let mut curve = LoadCurve::default();
    for _ in 0..3 {
        for place in 1..=20_u32 {
            // The number in flight falls from 20 by one with each answer.
            let mean = 20.5 - f64::from(place) / 2.0;
            curve.observe((place, mean), latency(f64::from(place)));
        }
    }
    curve
}

#[test]
fn bursts_on_an_idle_server_that_are_answered_in_order_show_a_queue() {
    let knee = bursts(|place| 20.0 * place).knee(false).expect("one call is computed at a time");
    assert!(knee.at < 1.5 && !knee.is_bound, "{knee:?}");
    let knee = bursts(|place| 20.0 * (place / 4.0).ceil()).knee(true).expect("four at a time");
    assert!((3.0..=6.0).contains(&knee.at), "{}", knee.at);
}

#[test]
fn bursts_that_are_computed_together_have_no_knee() {
    assert!(bursts(|_| 20.0).knee(true).is_none());
    // The first calls of a burst are computed while their batch is small.
    assert!(bursts(|place| 20.0 + place / 4.0).knee(true).is_none());
}

#[test]
fn rounds_of_calls_that_are_computed_together_have_no_knee() {
    let mut curve = LoadCurve::default();
    for _ in 0..3 {
        (1..=4).for_each(|place| assert_eq!(curve.observe((place, 2.5), 20.0), None));
    }
    assert!(curve.knee(false).is_none());
}

#[test]
fn an_unusual_latency_unsettles_the_curve_until_a_server_change_is_detected() {
    let mut curve = LoadCurve::default();
    (0..8).for_each(|_| assert_eq!(curve.observe((48, 48.0), 20.0), None));
    assert!(!curve.is_unsettled());
    assert_eq!(curve.observe((48, 48.0), 2000.0), None);
    assert!(curve.is_unsettled());
    let changed = (0..3).filter(|_| curve.observe((48, 48.0), 2000.0) == Some(ServerChange::Slower)).count();
    assert_eq!((changed, curve.is_unsettled()), (1, false));
}
