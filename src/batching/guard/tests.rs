mod world;

use std::time::Duration;

use super::*;

const MEAN: Duration = Duration::from_millis(5);
const SLO: Duration = Duration::from_millis(50);

/// Plays epochs of a trial with what items see in each mode, jittered a little, until it ends; returns the epochs it took.
fn play(guard: &mut Guard, now: &mut Tick, batch_ms: u64, pass_ms: u64) -> usize {
    play_by(guard, now, |mode, _| if mode == Mode::Batch { batch_ms } else { pass_ms })
}

fn play_by(guard: &mut Guard, now: &mut Tick, ms: impl Fn(Mode, usize) -> u64) -> usize {
    guard.tick(*now, MEAN, None);
    assert!(guard.report().trying, "a trial was due");
    let mut epochs = 0;
    while guard.report().trying {
        let ms = ms(guard.mode(), epochs);
        let start = *now;
        for i in 0..100 {
            *now = start.after(Duration::from_millis(i));
            let sojourn = Duration::from_millis(ms) + Duration::from_micros(10 * ((epochs as u64 * 7 + i) % 13));
            guard.ended(now.after(sojourn), Ended { arrived: *now, items: 1, expired: false, slo: Some(SLO) });
        }
        *now = start.after(Duration::from_millis(100));
        guard.tick(*now, MEAN, None);
        epochs += 1;
    }
    epochs
}

/// One probe that says "it batches" or "it does not", once one is due.
fn probe(guard: &mut Guard, now: Tick, hit: bool) -> u64 {
    let chance = Chance { calls: 9, in_flight: 0, slots: 1, backlog: false };
    let before = guard.report().batches;
    while guard.probe_due(chance).is_none() {
        guard.batch_done();
        assert!(guard.report().batches < before + 10_000, "a probe comes");
    }
    let waited = guard.report().batches - before;
    guard.probe_sent(now, Alone { single: MEAN, half: MEAN });
    guard.probe_returned(Part::Single, now.after(MEAN));
    guard.probe_returned(Part::First, now.after(2 * MEAN));
    guard.probe_returned(Part::Second, now.after(if hit { 2 } else { 3 } * MEAN));
    waited
}

fn believes(guard: &mut Guard, now: Tick) {
    probe(guard, now, true);
    probe(guard, now, true);
}

fn passing() -> (Guard, Tick) {
    let (mut guard, mut now) = (Guard::new(512, false), Tick::from_millis(1));
    believes(&mut guard, now);
    play(&mut guard, &mut now, 14, 12);
    assert_eq!(guard.mode(), Mode::Pass);
    (guard, now)
}

#[test]
fn a_quicker_pass_wins_after_four_epochs_a_side() {
    let (mut guard, mut now) = (Guard::new(512, false), Tick::from_millis(1));
    believes(&mut guard, now);
    assert_eq!(play(&mut guard, &mut now, 14, 12), 8);
    assert_eq!(guard.mode(), Mode::Pass);
    let last = guard.report().last.expect("a trial ended");
    assert_eq!((last.before, last.verdict, last.epochs, last.at), (Mode::Batch, Mode::Pass, (4, 4), now));
    assert!(last.t_permille > 2_200);
    assert!(last.batch_mean > Duration::from_millis(14) && last.pass_mean < Duration::from_millis(13));
}

#[test]
fn a_pass_that_is_quicker_by_less_than_two_percent_does_not_win() {
    let (mut guard, mut now) = (Guard::new(512, false), Tick::from_millis(1));
    believes(&mut guard, now);
    assert_eq!(play(&mut guard, &mut now, 101, 100), 50, "all 25 epochs a side, for an SLO caps both");
    assert_eq!(guard.mode(), Mode::Batch);
}

#[test]
fn a_somewhat_slower_pass_ends_after_four_epochs_a_side() {
    let (mut guard, mut now) = (Guard::new(512, false), Tick::from_millis(1));
    believes(&mut guard, now);
    assert_eq!(play(&mut guard, &mut now, 12, 14), 8);
    assert_eq!(guard.mode(), Mode::Batch);
    assert!(guard.report().last.expect("ended").t_permille < -2_000);
}

#[test]
fn one_pause_of_the_machine_does_not_hide_what_is_quicker() {
    for paused in 0..8 {
        let (mut guard, mut now) = (Guard::new(512, false), Tick::from_millis(1));
        believes(&mut guard, now);
        let ms = |mode, epoch| match mode {
            _ if epoch == paused => 90,
            Mode::Batch => 14,
            Mode::Pass => 12,
        };
        // A fifth epoch of the side that paused: batching has its turn before.
        assert_eq!(play_by(&mut guard, &mut now, ms), 9 + paused % 2, "paused in epoch {paused}");
        assert_eq!(guard.mode(), Mode::Pass);
    }
}

#[test]
fn a_clearly_worse_pass_stops_after_its_second_epoch() {
    let (mut guard, mut now) = (Guard::new(512, false), Tick::from_millis(1));
    believes(&mut guard, now);
    assert_eq!(play(&mut guard, &mut now, 12, 40), 4);
    assert_eq!(guard.mode(), Mode::Batch);
}

#[test]
fn a_pass_that_became_clearly_worse_stops_as_quickly() {
    let (mut guard, mut now) = passing();
    guard.changed();
    assert_eq!(play(&mut guard, &mut now, 12, 40), 3, "it has its second epoch first");
    assert_eq!(guard.mode(), Mode::Batch);
}

#[test]
fn expired_items_are_charged_twice_the_slo() {
    let (mut guard, mut now) = (Guard::new(512, false), Tick::from_millis(1));
    believes(&mut guard, now);
    guard.tick(now, MEAN, None);
    while guard.report().trying {
        let passing = guard.mode() == Mode::Pass;
        now = now.after(Duration::from_millis(60));
        for _ in 0..9 {
            // Passing answers at once, and drops every third.
            let wait = if passing { 1 } else { 20 };
            let ended = Ended { arrived: now, items: 2, expired: passing, slo: Some(SLO) };
            guard.ended(now.after(Duration::from_millis(wait)), ended);
            for _ in 0..2 {
                guard.ended(now.after(Duration::from_millis(wait)), Ended { expired: false, ..ended });
            }
        }
        now = now.after(Duration::from_millis(40));
        guard.tick(now, MEAN, None);
    }
    assert_eq!(guard.mode(), Mode::Batch);
    let last = guard.report().last.expect("ended");
    assert!(last.pass_mean.abs_diff(Duration::from_micros(34_000)) < Duration::from_micros(1), "{last:?}");
}

#[test]
fn what_arrived_before_or_early_in_an_epoch_does_not_count() {
    let (mut guard, start) = (Guard::new(512, false), Tick::from_millis(1));
    believes(&mut guard, start);
    let mut now = start;
    guard.tick(now, MEAN, None);
    while guard.report().trying {
        for (at, ms) in [(0, 500), (29, 500), (31, if guard.mode() == Mode::Batch { 14 } else { 12 })] {
            let arrived = now.after(Duration::from_millis(at));
            guard.ended(
                arrived.after(Duration::from_millis(ms)),
                Ended { arrived, items: 5, expired: false, slo: None },
            );
        }
        now = now.after(Duration::from_millis(100));
        guard.tick(now, MEAN, None);
    }
    let last = guard.report().last.expect("ended");
    assert!(last.batch_mean.abs_diff(Duration::from_millis(14)) < Duration::from_micros(1), "{last:?}");
}

#[test]
fn a_trial_without_traffic_is_given_up() {
    let (mut guard, mut now) = (Guard::new(512, false), Tick::from_millis(1));
    believes(&mut guard, now);
    for _ in 0..=200 {
        guard.tick(now, MEAN, None);
        now = now.after(Duration::from_secs(1));
    }
    assert!(!guard.report().trying && guard.mode() == Mode::Batch);
}

#[test]
fn after_a_trial_that_kept_batching_four_thousand_batches_go_unprobed() {
    let (mut guard, mut now) = (Guard::new(512, false), Tick::from_millis(1));
    believes(&mut guard, now);
    play(&mut guard, &mut now, 12, 40);
    assert_eq!(probe(&mut guard, now, false), 4_000);
    assert_eq!(probe(&mut guard, now, false), 3_000, "that was the third: they are rare from now on");
}

#[test]
fn batching_is_tried_again_after_sixty_thousand_passed_calls() {
    let (mut guard, mut now) = passing();
    for _ in 0..59_999 {
        guard.call_passed(1);
    }
    guard.tick(now, MEAN, None);
    assert!(!guard.report().trying);
    guard.call_passed(1);
    play(&mut guard, &mut now, 14, 12);
    assert_eq!(guard.mode(), Mode::Pass, "it was still right");
    for _ in 0..60_000 {
        guard.call_passed(1);
    }
    play(&mut guard, &mut now, 12, 14);
    assert_eq!(guard.mode(), Mode::Batch, "it is not any more");
}

#[test]
fn a_change_is_looked_into_soon() {
    let (mut guard, mut now) = (Guard::new(512, false), Tick::from_millis(1));
    for _ in 0..3 {
        probe(&mut guard, now, false);
    }
    guard.changed();
    assert_eq!(probe(&mut guard, now, true), 40);
    assert_eq!(probe(&mut guard, now, true), 40);
    play(&mut guard, &mut now, 14, 12);
    guard.changed();
    play(&mut guard, &mut now, 12, 14);
    assert_eq!(guard.mode(), Mode::Batch);
}

#[test]
fn a_probe_that_lost_a_part_makes_no_trial() {
    let (mut guard, now) = (Guard::new(512, false), Tick::from_millis(1));
    probe(&mut guard, now, true);
    guard.probe_sent(now, Alone { single: MEAN, half: MEAN });
    for part in [Part::Single, Part::First] {
        guard.probe_returned(part, now.after(2 * MEAN));
    }
    guard.probe_lost();
    guard.probe_returned(Part::Second, now.after(2 * MEAN));
    guard.tick(now.after(3 * MEAN), MEAN, None);
    assert!(!guard.report().trying);
    probe(&mut guard, now, true);
    guard.tick(now, MEAN, None);
    assert!(guard.report().trying, "the next one that comes back whole counts");
}

#[test]
fn a_server_known_to_batch_starts_in_pass_and_is_not_asked() {
    let (mut guard, mut now) = (Guard::new(512, true), Tick::from_millis(1));
    for _ in 0..200_000 {
        guard.call_passed(1);
    }
    guard.changed();
    guard.tick(now, MEAN, None);
    assert!(guard.mode() == Mode::Pass && !guard.report().trying);
    assert_eq!(guard.probe_due(Chance { calls: 9, in_flight: 0, slots: 1, backlog: false }), None);
    guard.set_known_batching(false);
    play(&mut guard, &mut now, 12, 14);
    assert_eq!(guard.mode(), Mode::Batch, "told to look, it looks");
    guard.set_known_batching(true);
    assert_eq!(guard.mode(), Mode::Pass);
}

#[test]
fn an_overload_cuts_what_may_be_in_flight_and_it_grows_again_slowly() {
    let mut guard = Guard::new(100, true);
    assert_eq!(guard.pass_max(), 100);
    let ms = Tick::from_millis;
    guard.overloaded(ms(10), ms(5), 99);
    assert_eq!(guard.pass_max(), 70);
    guard.overloaded(ms(11), ms(9), 98);
    assert_eq!(guard.pass_max(), 70, "it was out with the first one, which told it already");
    guard.overloaded(ms(20), ms(10), 120);
    assert_eq!(guard.pass_max(), 70, "an overload never raises it");
    guard.overloaded(ms(30), ms(25), 2);
    assert_eq!(guard.pass_max(), 4);
    for _ in 0..1_000 {
        guard.call_passed(3);
    }
    assert_eq!(guard.pass_max(), 4, "calls that left room say nothing about the limit");
    for _ in 0..31 {
        guard.call_passed(4);
    }
    assert_eq!(guard.pass_max(), 4);
    guard.call_passed(4);
    assert_eq!(guard.pass_max(), 5);
    for _ in 0..100_000 {
        guard.call_passed(100);
    }
    assert_eq!(guard.pass_max(), 100, "and stops at the wall");
}

#[test]
fn passing_begins_with_as_many_calls_as_a_batch_and_doubles_with_each_round() {
    let (mut guard, mut now) = (Guard::new(512, false), Tick::from_millis(1));
    assert_eq!(guard.pass_max(), 512);
    believes(&mut guard, now);
    guard.tick(now, MEAN, None);
    guard.batch_left(16);
    while guard.mode() == Mode::Batch {
        now = now.after(MEAN);
        guard.tick(now, MEAN, None);
    }
    let mut rounds = 0;
    while guard.pass_max() < 512 {
        let open = guard.pass_max();
        (0..open).for_each(|_| guard.pass_ended());
        rounds += 1;
        assert_eq!(guard.pass_max(), (2 * open).min(512));
    }
    assert_eq!(rounds, 5, "16, 32, ... 512");
}

#[test]
fn what_one_arm_left_queued_is_not_charged_to_the_other() {
    let (mut guard, start) = (Guard::new(512, false), Tick::from_millis(0));
    believes(&mut guard, start);
    guard.tick(start, MEAN, None);
    let ms = |at: u64| start.after(Duration::from_millis(at));
    let ended = |arrived, sojourn| {
        (ms(arrived + sojourn), Ended { arrived: ms(arrived), items: 10, expired: false, slo: None })
    };
    // Seven epochs of ten ms an item in either arm; where passing begins there is a queue for 60 ms, and whoever comes then waits 80 ms.
    let mut at = 0;
    while guard.report().trying {
        let passing = guard.mode() == Mode::Pass;
        let queued = if passing { 60 } else { 0 };
        for offset in (0..200).step_by(5) {
            let (now, ended) = ended(at + offset, if offset < queued { 80 } else { 10 });
            guard.ended(now, ended);
            let oldest = if offset < queued { at.saturating_sub(1) } else { at + offset };
            guard.tick(ms(at + offset), MEAN, Some(ms(oldest)));
            if (guard.mode() == Mode::Pass) != passing || !guard.report().trying {
                at += offset;
                break;
            }
        }
        assert!(at < 100_000);
    }
    let report = guard.report().last.unwrap();
    assert_eq!((report.batch_mean, report.pass_mean), (Duration::from_millis(10), Duration::from_millis(10)));
}

#[test]
fn a_new_wall_is_kept_at_once() {
    let mut guard = Guard::new(100, true);
    guard.set_stand_aside_max(300);
    assert_eq!(guard.pass_max(), 300);
    guard.overloaded(Tick::from_millis(2), Tick::from_millis(1), 9);
    guard.set_stand_aside_max(500);
    assert_eq!(guard.pass_max(), 7, "what was learned stays");
    guard.set_stand_aside_max(2);
    assert_eq!(guard.pass_max(), 2);
}
