//! Simulations of whole rollouts: pods apply the assigned profiles, which perform better or worse.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "microseconds that are drawn, positive and small"
)]

use super::*;
use crate::api::v1alpha1::BatchPolicyStatus;
use crate::rollout::pin::ManualRollback;
use crate::rollout::plan::{ArmPlan, CanaryStep, ExperimentPlan, RegressionThresholds};
use crate::rollout::status;
use groupage_simulator::random::RandomStream;

/// Interval between two evaluations, in seconds.
const LOOK: u64 = 10;

/// Simulated pods that apply a profile one evaluation after its assignment, and calls with the
/// latency and errors of that profile.
struct RolloutSimulation {
    now: UnixSeconds,
    state: RolloutState,
    plan: RolloutPlan,
    /// Each pod with its profile and the time of its last change.
    pods: Vec<(String, Option<String>, UnixSeconds)>,
    /// Performance of each profile: factor of the latency, and share of calls that are not served.
    ways: BTreeMap<String, (f64, f64)>,
    draw: RandomStream,
    calls: u64,
    /// Profile that receives no calls.
    shunned: Option<&'static str>,
    /// Replaces the controller after every evaluation.
    restarts: bool,
    events: Vec<&'static str>,
    verdicts: Vec<ProfileVerdict>,
    last: Option<RolloutDecision>,
}

fn plan(desired: &str, strategy: RolloutStrategy) -> RolloutPlan {
    RolloutPlan {
        desired: desired.to_owned(),
        strategy,
        analysis: RegressionThresholds::default(),
        on_failure: OnFailure::Rollback,
        history_limit: 10,
        pin: None,
    }
}

fn canary() -> RolloutStrategy {
    RolloutStrategy::Canary(vec![CanaryStep { percent: 10, hold: 300 }, CanaryStep { percent: 50, hold: 300 }])
}

fn experiment(switchback: bool) -> RolloutStrategy {
    let arm = |profile: &str| ArmPlan { profile: profile.to_owned(), weight: 1 };
    RolloutStrategy::Experiment(ExperimentPlan {
        arms: vec![arm("a"), arm("b")],
        switchback,
        period: 60,
        samples_min: 2000,
    })
}

impl RolloutSimulation {
    fn new(pods: usize, ways: &[(&str, f64, f64)]) -> Self {
        Self {
            now: UnixSeconds(1_795_000_000),
            state: RolloutState::default(),
            plan: plan("a", RolloutStrategy::Immediate),
            pods: (0..pods).map(|i| (format!("uid-{i}"), None, UnixSeconds(0))).collect(),
            ways: ways.iter().map(|(name, times, failing)| ((*name).to_owned(), (*times, *failing))).collect(),
            draw: RandomStream::new(5, 1),
            calls: 300,
            shunned: None,
            restarts: false,
            events: Vec::new(),
            verdicts: Vec::new(),
            last: None,
        }
    }

    /// Starts with profile `a` on all pods, then changes the policy to `desired`.
    fn wanting(mut self, desired: &str, strategy: RolloutStrategy) -> Self {
        self.look();
        self.look();
        self.plan = plan(desired, strategy);
        self
    }

    fn look(&mut self) {
        let from = self.now;
        self.now = UnixSeconds(self.now.0 + LOOK);
        let mut reports = Vec::new();
        for (uid, profile, since) in &self.pods {
            let mut counts = ArmCounts::default();
            let (times, failing) =
                profile.as_ref().and_then(|profile| self.ways.get(profile)).copied().unwrap_or((1.0, 0.0));
            let called = profile.is_some() && profile.as_deref() != self.shunned;
            for _ in 0..if called { self.calls } else { 0 } {
                if self.draw.bernoulli(failing) {
                    counts.errors += 1;
                } else {
                    counts.latency.add((60_000.0 * times * (0.35 * self.draw.normal()).exp()) as u64);
                }
            }
            counts.batches = counts.calls();
            reports.push(PodReport {
                uid: uid.clone(),
                profile: profile.clone(),
                in_force_since: *since,
                from,
                to: self.now,
                counts,
            });
        }
        let next = evaluate(std::mem::take(&mut self.state), &self.plan, &reports, self.now);
        for (uid, profile, since) in &mut self.pods {
            let to = next.profiles.get(uid).cloned();
            if *profile != to {
                (*profile, *since) = (to, self.now);
            }
        }
        self.state = next.state.clone();
        if self.restarts {
            let mut object = BatchPolicyStatus::default();
            status::write_state(&self.state, &self.plan, &mut object);
            let text = serde_json::to_string(&object).unwrap();
            self.state = status::state_from_status(&serde_json::from_str(&text).unwrap());
        }
        self.events.extend(next.events.iter().map(|event| event.reason));
        self.verdicts.extend(next.verdicts.iter().cloned());
        self.last = Some(next);
    }

    fn looks(&mut self, times: u64) {
        (0..times).for_each(|_| self.look());
    }

    fn on(&self, profile: &str) -> usize {
        self.pods.iter().filter(|(_, own, _)| own.as_deref() == Some(profile)).count()
    }
}

#[test]
fn the_first_profile_is_in_force_at_once_and_a_plain_change_too() {
    let mut world = RolloutSimulation::new(4, &[]).wanting("b", RolloutStrategy::Immediate);
    assert_eq!((world.on("a"), world.state.phase), (4, Phase::Promoted));
    world.look();
    assert_eq!(
        (world.on("b"), world.state.current.as_deref(), world.state.previous.as_deref()),
        (4, Some("b"), Some("a"))
    );
    assert_eq!(world.events, ["Promoted"]);
    world.looks(5);
    assert_eq!(world.events.len(), 1, "reported once");
}

#[test]
fn a_good_canary_is_promoted_step_by_step() {
    let mut world = RolloutSimulation::new(20, &[("a", 1.0, 0.002), ("b", 1.0, 0.002)]).wanting("b", canary());
    world.look();
    let few = world.on("b");
    assert!((1..=5).contains(&few), "{few} of 20 at 10 %");
    assert_eq!(world.last.as_ref().unwrap().frozen.len(), 20 - few, "the control is not tuned");
    world.looks(30);
    assert_eq!(world.state.step, 1);
    let half = world.on("b");
    assert!((6..=14).contains(&half), "{half} of 20 at 50 %");
    world.looks(31);
    assert_eq!((world.state.phase, world.on("b")), (Phase::Promoted, 20));
    assert_eq!(world.events, ["RolloutStarted", "RolloutStep", "Promoted"]);
    assert_eq!((world.verdicts.len(), world.verdicts[0].outcome), (1, ComparisonOutcome::NotWorse));
    assert!(world.state.message.starts_with("b is in force: p99 "), "{}", world.state.message);
    assert!(world.last.unwrap().frozen.is_empty());
}

#[test]
fn a_bad_canary_is_rolled_back_automatically_and_not_retried() {
    let mut world = RolloutSimulation::new(20, &[("b", 2.0, 0.0)]).wanting("b", canary());
    world.looks(12);
    assert_eq!((world.state.phase, world.on("a")), (Phase::RolledBack, 20), "{:?}", world.state.message);
    assert!(world.state.reason.starts_with("Latency"), "{}", world.state.reason);
    assert_eq!(world.events, ["RolloutStarted", "RolledBack"]);
    assert_eq!((world.verdicts[0].profile.as_str(), world.verdicts[0].outcome), ("b", ComparisonOutcome::Worse));
    world.looks(200);
    assert_eq!((world.on("a"), world.events.len()), (20, 2));
    world.plan.desired = "c".to_owned();
    world.look();
    assert_eq!((world.state.phase, world.state.candidate.as_deref()), (Phase::Progressing, Some("c")));
}

#[test]
fn a_better_canary_is_promoted_although_every_round_is_evaluated() {
    let mut world = RolloutSimulation::new(20, &[("b", 0.5, 0.0)]).wanting("b", canary());
    world.plan.analysis.interval = LOOK;
    world.looks(70);
    assert_eq!((world.state.phase, world.on("b")), (Phase::Promoted, 20), "{}", world.state.message);
}

#[test]
fn a_slow_canary_with_few_calls_is_rolled_back() {
    let mut world = RolloutSimulation::new(20, &[("b", 10.0, 0.0)]).wanting("b", canary());
    world.calls = 1;
    world.looks(800);
    assert_eq!((world.state.phase, world.on("a")), (Phase::RolledBack, 20), "{}", world.state.message);
}

#[test]
fn without_calls_enough_to_compare_latencies_no_step_is_taken() {
    let mut world = RolloutSimulation::new(2, &[])
        .wanting("b", RolloutStrategy::Canary(vec![CanaryStep { percent: 50, hold: 300 }]));
    world.calls = 10;
    world.looks(90);
    assert_eq!(world.state.reason, "WaitingForLatency", "{}", world.state.message);
    assert!(world.state.message.contains("1000 are needed to compare latencies"), "{}", world.state.message);
    world.looks(60);
    assert_eq!(world.state.phase, Phase::Promoted, "{}", world.state.message);
}

#[test]
fn a_controller_with_a_clock_that_is_behind_continues_the_evaluation() {
    let mut world = RolloutSimulation::new(20, &[("b", 2.0, 0.0)]).wanting("b", canary());
    world.look();
    world.now = UnixSeconds(world.now.0 - 3600);
    world.pods.iter_mut().for_each(|(_, _, since)| *since = world.now);
    world.looks(14);
    assert_eq!(world.state.phase, Phase::RolledBack, "{}", world.state.message);
}

#[test]
fn errors_that_jump_end_a_canary_at_the_first_report() {
    let mut world = RolloutSimulation::new(20, &[("b", 1.0, 0.6)]).wanting("b", canary());
    world.looks(3);
    assert_eq!((world.state.phase, world.state.reason.as_str()), (Phase::RolledBack, "ErrorsJumped"));
    assert!(world.state.message.contains("b was rolled back, all pods get a: error rate 6"), "{}", world.state.message);
}

#[test]
fn a_paused_rollout_is_unchanged_until_its_plan_changes() {
    let mut world = RolloutSimulation::new(20, &[("b", 2.0, 0.0)]).wanting("b", canary());
    world.plan.on_failure = OnFailure::Pause;
    world.looks(12);
    let few = world.on("b");
    assert!((1..=5).contains(&few) && world.state.phase == Phase::Paused);
    world.looks(100);
    assert_eq!((world.on("b"), world.events.as_slice()), (few, &["RolloutStarted", "RolloutPaused"][..]));
    let mut back =
        RolloutSimulation { events: Vec::new(), draw: RandomStream::new(1, 1), ..RolloutSimulation::new(0, &[]) };
    (back.state, back.pods, back.now) = (world.state.clone(), world.pods.clone(), world.now);
    back.plan = RolloutPlan { on_failure: OnFailure::Rollback, ..world.plan.clone() };
    back.look();
    assert_eq!((back.state.phase, back.on("a")), (Phase::RolledBack, 20));
    world.plan.strategy = RolloutStrategy::Immediate;
    world.look();
    assert_eq!((world.state.phase, world.on("b")), (Phase::Promoted, 20));
}

#[test]
fn a_controller_restart_after_every_evaluation_does_not_change_the_result() {
    for (times, end) in [(1.0, Phase::Promoted), (2.0, Phase::RolledBack)] {
        let mut world = RolloutSimulation::new(20, &[("b", times, 0.002)]).wanting("b", canary());
        world.restarts = true;
        world.looks(70);
        assert_eq!(world.state.phase, end, "{}", world.state.message);
    }
}

#[test]
fn a_canary_without_calls_waits_for_calls() {
    let mut world = RolloutSimulation::new(20, &[]).wanting("b", canary());
    world.calls = 0;
    world.looks(100);
    assert_eq!(
        (world.state.phase, world.state.step, world.state.reason.as_str()),
        (Phase::Progressing, 0, "WaitingForCalls")
    );
}

#[test]
fn a_step_without_a_control_arm_lasts_only_for_its_hold() {
    let all = || RolloutStrategy::Canary(vec![CanaryStep { percent: 100, hold: 300 }]);
    let mut world = RolloutSimulation::new(4, &[]).wanting("b", all());
    world.looks(30);
    assert_eq!((world.state.phase, world.on("b")), (Phase::Progressing, 4), "{}", world.state.message);
    world.looks(2);
    assert_eq!((world.state.phase, world.state.current.as_deref()), (Phase::Promoted, Some("b")));
    assert_eq!(
        (world.verdicts.len(), world.verdicts[0].outcome),
        (1, ComparisonOutcome::Undecided),
        "with nothing to compare"
    );
    let mut silent = RolloutSimulation::new(4, &[]).wanting("b", all());
    silent.calls = 0;
    silent.looks(32);
    assert_eq!(silent.state.phase, Phase::Promoted, "{}", silent.state.message);
}

#[test]
fn a_policy_that_takes_its_change_back_ends_the_canary() {
    let mut world = RolloutSimulation::new(20, &[]).wanting("b", canary());
    world.looks(5);
    world.plan.desired = "a".to_owned();
    world.look();
    assert_eq!((world.state.phase, world.on("a"), world.state.candidate.as_deref()), (Phase::Promoted, 20, None));
    assert_eq!(world.events, ["RolloutStarted", "RolloutReverted"]);
}

#[test]
fn a_manual_rollback_applies_at_once_until_the_policy_requests_another_profile() {
    let mut world = RolloutSimulation::new(4, &[]).wanting("b", RolloutStrategy::Immediate);
    world.look();
    world.plan.pin = Some(ManualRollback { to: "a".to_owned(), instead_of: "b".to_owned() });
    world.looks(3);
    assert_eq!((world.on("a"), world.state.reason.as_str()), (4, "ManualRollback"));
    assert_eq!(world.events, ["Promoted", "RolledBack"]);
    world.plan.desired = "c".to_owned();
    world.look();
    assert_eq!((world.on("c"), world.state.phase), (4, Phase::Promoted));
    let mut pinned = RolloutSimulation::new(4, &[]).wanting("b", canary());
    pinned.plan.pin = Some(ManualRollback { to: "a".to_owned(), instead_of: "b".to_owned() });
    pinned.look();
    assert_eq!(pinned.on("a"), 4);
    pinned.plan.pin = None;
    pinned.look();
    assert_eq!(pinned.state.phase, Phase::Progressing, "the specified profile is tried like any change");
}

#[test]
fn one_pod_serves_both_arms_of_a_canary_by_turns() {
    let mut world = RolloutSimulation::new(1, &[("b", 2.0, 0.0)])
        .wanting("b", RolloutStrategy::Canary(vec![CanaryStep { percent: 50, hold: 600 }]));
    world.calls = 1000;
    world.looks(3);
    assert_eq!(world.last.as_ref().unwrap().frozen.len(), 1);
    world.looks(90);
    assert_eq!(world.state.phase, Phase::RolledBack, "{:?}", world.state);
    let mut world = RolloutSimulation::new(1, &[])
        .wanting("b", RolloutStrategy::Canary(vec![CanaryStep { percent: 50, hold: 600 }]));
    world.calls = 1000;
    world.looks(62);
    assert_eq!((world.state.phase, world.state.reason.as_str()), (Phase::Progressing, "WaitingForLooks"));
    world.looks(20);
    assert_eq!(world.state.phase, Phase::Promoted, "{}", world.state.message);
}

#[test]
fn an_experiment_finds_the_better_arm_and_ends() {
    for (pods, switchback) in [(10, false), (2, true), (1, false)] {
        let mut world =
            RolloutSimulation::new(pods, &[("b", 0.6, 0.002), ("a", 1.0, 0.002)]).wanting("x", experiment(switchback));
        world.calls = 6000 / pods as u64;
        world.looks(400);
        assert_eq!(
            (world.state.phase, world.state.reason.as_str()),
            (Phase::Promoted, "ExperimentWon"),
            "{pods}: {:?}",
            world.state.message
        );
        assert_eq!((world.on("b"), world.state.current.as_deref()), (pods, Some("b")));
        assert_eq!(world.verdicts[0].outcome, ComparisonOutcome::Better);
        assert_eq!(world.events, ["ExperimentStarted", "Promoted"]);
        world.looks(50);
        assert_eq!((world.on("b"), world.events.len()), (pods, 2), "it is over");
    }
}

#[test]
fn an_experiment_whose_other_arms_are_worse_or_alike_keeps_the_first() {
    let mut world = RolloutSimulation::new(10, &[("b", 2.0, 0.0)]).wanting("x", experiment(false));
    world.looks(40);
    assert_eq!((world.state.reason.as_str(), world.on("a")), ("ExperimentKept", 10), "{}", world.state.message);
    assert_eq!(world.events, ["ExperimentStarted", "ArmStopped", "ExperimentEnded"]);
    let mut world = RolloutSimulation::new(10, &[]).wanting("x", experiment(false));
    world.looks(150);
    assert_eq!((world.state.reason.as_str(), world.on("a")), ("Inconclusive", 10), "{}", world.state.message);
    assert_eq!(world.verdicts[0].outcome, ComparisonOutcome::Undecided);
}

#[test]
fn the_message_of_an_experiment_contains_its_progress() {
    let mut world = RolloutSimulation::new(2, &[]).wanting("x", experiment(false));
    world.shunned = Some("b");
    let status = |world: &RolloutSimulation| (world.state.reason.clone(), world.state.message.clone());
    world.looks(5);
    assert_eq!(
        status(&world),
        ("WaitingForCalls".to_owned(), "b received 0 calls, 2000 are needed for a winner".to_owned())
    );
    world.looks(10);
    let (reason, message) = status(&world);
    assert_eq!(reason, "WaitingForCalls");
    assert!(message.starts_with("b received no calls and cannot be compared: "), "{message}");
    world.shunned = None;
    world.looks(10);
    let (reason, message) = status(&world);
    assert_eq!(reason, "Progressing");
    assert!(message.starts_with("compared with a: p99 ") && message.contains("; control: "), "{message}");
}

#[test]
fn a_better_arm_does_not_hide_a_worse_one() {
    let mut world = RolloutSimulation::new(12, &[("b", 0.5, 0.0), ("c", 1.5, 0.0)]);
    let arm = |profile: &str| ArmPlan { profile: profile.to_owned(), weight: 1 };
    let arms = vec![arm("a"), arm("b"), arm("c")];
    // No arm has enough calls to win.
    let strategy =
        RolloutStrategy::Experiment(ExperimentPlan { arms, switchback: false, period: 60, samples_min: 10_000_000 });
    world = world.wanting("x", strategy);
    world.looks(60);
    let stopped: Vec<bool> = world.state.arms.iter().map(|arm| arm.stopped).collect();
    assert_eq!((stopped, world.state.phase), (vec![false, false, true], Phase::Progressing));
}

#[test]
fn calls_before_a_pod_changed_its_profile_count_for_no_arm() {
    let mut world = RolloutSimulation::new(2, &[]).wanting("b", canary());
    world.look();
    let samples = |world: &RolloutSimulation| world.state.arms.iter().map(|arm| arm.samples).collect::<Vec<_>>();
    assert_eq!(samples(&world), [0, 0], "what was served before the rollout began");
    world.look();
    assert_eq!(samples(&world), [300, 0], "a report straddles the change");
    world.look();
    assert_eq!(samples(&world), [600, 300]);
}
