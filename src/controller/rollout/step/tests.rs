//! Simulations of whole rollouts: pods apply the assigned profiles, which perform better or worse.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "microseconds that are drawn, positive and small"
)]

use super::RolloutPhase::{Paused, Progressing, Promoted, RolledBack};
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
        self.evaluate();
        self.evaluate();
        self.plan = plan(desired, strategy);
        self
    }

    fn evaluate(&mut self) {
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

    fn evaluate_times(&mut self, times: u64) {
        (0..times).for_each(|_| self.evaluate());
    }

    fn on(&self, profile: &str) -> usize {
        self.pods.iter().filter(|(_, own, _)| own.as_deref() == Some(profile)).count()
    }
}

#[test]
fn the_first_profile_is_in_force_at_once_and_a_plain_change_too() {
    let mut simulation = RolloutSimulation::new(4, &[]).wanting("b", RolloutStrategy::Immediate);
    assert_eq!((simulation.on("a"), simulation.state.phase), (4, Promoted));
    simulation.evaluate();
    assert_eq!(
        (simulation.on("b"), simulation.state.current.as_deref(), simulation.state.previous.as_deref()),
        (4, Some("b"), Some("a"))
    );
    assert_eq!(simulation.events, ["Promoted"]);
    simulation.evaluate_times(5);
    assert_eq!(simulation.events.len(), 1, "reported once");
}

#[test]
fn a_good_canary_is_promoted_step_by_step() {
    let mut simulation = RolloutSimulation::new(20, &[("a", 1.0, 0.002), ("b", 1.0, 0.002)]).wanting("b", canary());
    simulation.evaluate();
    let few = simulation.on("b");
    assert!((1..=5).contains(&few), "{few} of 20 at 10 %");
    assert_eq!(simulation.last.as_ref().unwrap().frozen.len(), 20 - few, "the control is not tuned");
    simulation.evaluate_times(30);
    assert_eq!(simulation.state.step, 1);
    let half = simulation.on("b");
    assert!((6..=14).contains(&half), "{half} of 20 at 50 %");
    simulation.evaluate_times(31);
    assert_eq!((simulation.state.phase, simulation.on("b")), (Promoted, 20));
    assert_eq!(simulation.events, ["RolloutStarted", "RolloutStep", "Promoted"]);
    assert_eq!((simulation.verdicts.len(), simulation.verdicts[0].outcome), (1, VerdictOutcome::Same));
    assert!(simulation.state.message.starts_with("b is in force: p99 "), "{}", simulation.state.message);
    assert!(simulation.last.unwrap().frozen.is_empty());
}

#[test]
fn a_bad_canary_is_rolled_back_automatically_and_not_retried() {
    let mut simulation = RolloutSimulation::new(20, &[("b", 2.0, 0.0)]).wanting("b", canary());
    simulation.evaluate_times(12);
    assert_eq!((simulation.state.phase, simulation.on("a")), (RolledBack, 20), "{:?}", simulation.state.message);
    assert!(simulation.state.reason.starts_with("Latency"), "{}", simulation.state.reason);
    assert_eq!(simulation.events, ["RolloutStarted", "RolledBack"]);
    assert_eq!((simulation.verdicts[0].profile.as_str(), simulation.verdicts[0].outcome), ("b", VerdictOutcome::Worse));
    simulation.evaluate_times(200);
    assert_eq!((simulation.on("a"), simulation.events.len()), (20, 2));
    simulation.plan.desired = "c".to_owned();
    simulation.evaluate();
    assert_eq!((simulation.state.phase, simulation.state.candidate.as_deref()), (Progressing, Some("c")));
}

#[test]
fn a_better_canary_is_promoted_although_every_round_is_evaluated() {
    let mut simulation = RolloutSimulation::new(20, &[("b", 0.5, 0.0)]).wanting("b", canary());
    simulation.plan.analysis.interval = LOOK;
    simulation.evaluate_times(70);
    assert_eq!((simulation.state.phase, simulation.on("b")), (Promoted, 20), "{}", simulation.state.message);
}

#[test]
fn a_slow_canary_with_few_calls_is_rolled_back() {
    let mut simulation = RolloutSimulation::new(20, &[("b", 10.0, 0.0)]).wanting("b", canary());
    simulation.calls = 1;
    simulation.evaluate_times(800);
    assert_eq!((simulation.state.phase, simulation.on("a")), (RolledBack, 20), "{}", simulation.state.message);
}

#[test]
fn without_calls_enough_to_compare_latencies_no_step_is_taken() {
    let mut simulation = RolloutSimulation::new(2, &[])
        .wanting("b", RolloutStrategy::Canary(vec![CanaryStep { percent: 50, hold: 300 }]));
    simulation.calls = 10;
    simulation.evaluate_times(90);
    assert_eq!(simulation.state.reason, "WaitingForLatency", "{}", simulation.state.message);
    assert!(simulation.state.message.contains("1000 are needed to compare latencies"), "{}", simulation.state.message);
    simulation.evaluate_times(60);
    assert_eq!(simulation.state.phase, Promoted, "{}", simulation.state.message);
}

#[test]
fn a_controller_with_a_clock_that_is_behind_continues_the_evaluation() {
    let mut simulation = RolloutSimulation::new(20, &[("b", 2.0, 0.0)]).wanting("b", canary());
    simulation.evaluate();
    simulation.now = UnixSeconds(simulation.now.0 - 3600);
    simulation.pods.iter_mut().for_each(|(_, _, since)| *since = simulation.now);
    simulation.evaluate_times(14);
    assert_eq!(simulation.state.phase, RolledBack, "{}", simulation.state.message);
}

#[test]
fn errors_that_jump_end_a_canary_at_the_first_report() {
    let mut simulation = RolloutSimulation::new(20, &[("b", 1.0, 0.6)]).wanting("b", canary());
    simulation.evaluate_times(3);
    assert_eq!((simulation.state.phase, simulation.state.reason.as_str()), (RolledBack, "ErrorsJumped"));
    assert!(
        simulation.state.message.contains("b was rolled back, all pods get a: error rate 6"),
        "{}",
        simulation.state.message
    );
}

#[test]
fn a_paused_rollout_is_unchanged_until_its_plan_changes() {
    let mut simulation = RolloutSimulation::new(20, &[("b", 2.0, 0.0)]).wanting("b", canary());
    simulation.plan.on_failure = OnFailure::Pause;
    simulation.evaluate_times(12);
    let few = simulation.on("b");
    assert!((1..=5).contains(&few) && simulation.state.phase == Paused);
    simulation.evaluate_times(100);
    assert_eq!((simulation.on("b"), simulation.events.as_slice()), (few, &["RolloutStarted", "RolloutPaused"][..]));
    let mut back =
        RolloutSimulation { events: Vec::new(), draw: RandomStream::new(1, 1), ..RolloutSimulation::new(0, &[]) };
    (back.state, back.pods, back.now) = (simulation.state.clone(), simulation.pods.clone(), simulation.now);
    back.plan = RolloutPlan { on_failure: OnFailure::Rollback, ..simulation.plan.clone() };
    back.evaluate();
    assert_eq!((back.state.phase, back.on("a")), (RolledBack, 20));
    simulation.plan.strategy = RolloutStrategy::Immediate;
    simulation.evaluate();
    assert_eq!((simulation.state.phase, simulation.on("b")), (Promoted, 20));
}

#[test]
fn a_controller_restart_after_every_evaluation_does_not_change_the_result() {
    for (times, end) in [(1.0, Promoted), (2.0, RolledBack)] {
        let mut simulation = RolloutSimulation::new(20, &[("b", times, 0.002)]).wanting("b", canary());
        simulation.restarts = true;
        simulation.evaluate_times(70);
        assert_eq!(simulation.state.phase, end, "{}", simulation.state.message);
    }
}

#[test]
fn a_canary_without_calls_waits_for_calls() {
    let mut simulation = RolloutSimulation::new(20, &[]).wanting("b", canary());
    simulation.calls = 0;
    simulation.evaluate_times(100);
    assert_eq!(
        (simulation.state.phase, simulation.state.step, simulation.state.reason.as_str()),
        (Progressing, 0, "WaitingForCalls")
    );
}

#[test]
fn a_step_without_a_control_arm_lasts_only_for_its_hold() {
    let all = || RolloutStrategy::Canary(vec![CanaryStep { percent: 100, hold: 300 }]);
    let mut simulation = RolloutSimulation::new(4, &[]).wanting("b", all());
    simulation.evaluate_times(30);
    assert_eq!((simulation.state.phase, simulation.on("b")), (Progressing, 4), "{}", simulation.state.message);
    simulation.evaluate_times(2);
    assert_eq!((simulation.state.phase, simulation.state.current.as_deref()), (Promoted, Some("b")));
    assert_eq!(
        (simulation.verdicts.len(), simulation.verdicts[0].outcome),
        (1, VerdictOutcome::Undecided),
        "with nothing to compare"
    );
    let mut silent = RolloutSimulation::new(4, &[]).wanting("b", all());
    silent.calls = 0;
    silent.evaluate_times(32);
    assert_eq!(silent.state.phase, Promoted, "{}", silent.state.message);
}

#[test]
fn a_policy_that_takes_its_change_back_ends_the_canary() {
    let mut simulation = RolloutSimulation::new(20, &[]).wanting("b", canary());
    simulation.evaluate_times(5);
    simulation.plan.desired = "a".to_owned();
    simulation.evaluate();
    assert_eq!(
        (simulation.state.phase, simulation.on("a"), simulation.state.candidate.as_deref()),
        (Promoted, 20, None)
    );
    assert_eq!(simulation.events, ["RolloutStarted", "RolloutReverted"]);
}

#[test]
fn a_manual_rollback_applies_at_once_until_the_policy_requests_another_profile() {
    let mut simulation = RolloutSimulation::new(4, &[]).wanting("b", RolloutStrategy::Immediate);
    simulation.evaluate();
    simulation.plan.pin = Some(ManualRollback { to: "a".to_owned(), instead_of: "b".to_owned() });
    simulation.evaluate_times(3);
    assert_eq!((simulation.on("a"), simulation.state.reason.as_str()), (4, "ManualRollback"));
    assert_eq!(simulation.events, ["Promoted", "RolledBack"]);
    simulation.plan.desired = "c".to_owned();
    simulation.evaluate();
    assert_eq!((simulation.on("c"), simulation.state.phase), (4, Promoted));
    let mut pinned = RolloutSimulation::new(4, &[]).wanting("b", canary());
    pinned.plan.pin = Some(ManualRollback { to: "a".to_owned(), instead_of: "b".to_owned() });
    pinned.evaluate();
    assert_eq!(pinned.on("a"), 4);
    pinned.plan.pin = None;
    pinned.evaluate();
    assert_eq!(pinned.state.phase, Progressing, "the specified profile is tried like any change");
}

#[test]
fn one_pod_serves_both_arms_of_a_canary_by_turns() {
    let mut simulation = RolloutSimulation::new(1, &[("b", 2.0, 0.0)])
        .wanting("b", RolloutStrategy::Canary(vec![CanaryStep { percent: 50, hold: 600 }]));
    simulation.calls = 1000;
    simulation.evaluate_times(3);
    assert_eq!(simulation.last.as_ref().unwrap().frozen.len(), 1);
    simulation.evaluate_times(90);
    assert_eq!(simulation.state.phase, RolledBack, "{:?}", simulation.state);
    let mut simulation = RolloutSimulation::new(1, &[])
        .wanting("b", RolloutStrategy::Canary(vec![CanaryStep { percent: 50, hold: 600 }]));
    simulation.calls = 1000;
    simulation.evaluate_times(62);
    assert_eq!((simulation.state.phase, simulation.state.reason.as_str()), (Progressing, "WaitingForLooks"));
    simulation.evaluate_times(20);
    assert_eq!(simulation.state.phase, Promoted, "{}", simulation.state.message);
}

#[test]
fn an_experiment_finds_the_better_arm_and_ends() {
    for (pods, switchback) in [(10, false), (2, true), (1, false)] {
        let mut simulation =
            RolloutSimulation::new(pods, &[("b", 0.6, 0.002), ("a", 1.0, 0.002)]).wanting("x", experiment(switchback));
        simulation.calls = 6000 / pods as u64;
        simulation.evaluate_times(400);
        assert_eq!(
            (simulation.state.phase, simulation.state.reason.as_str()),
            (Promoted, "ExperimentWon"),
            "{pods}: {:?}",
            simulation.state.message
        );
        assert_eq!((simulation.on("b"), simulation.state.current.as_deref()), (pods, Some("b")));
        assert_eq!(simulation.verdicts[0].outcome, VerdictOutcome::Better);
        assert_eq!(simulation.events, ["ExperimentStarted", "Promoted"]);
        simulation.evaluate_times(50);
        assert_eq!((simulation.on("b"), simulation.events.len()), (pods, 2), "it is over");
    }
}

#[test]
fn an_experiment_whose_other_arms_are_worse_or_alike_keeps_the_first() {
    let mut simulation = RolloutSimulation::new(10, &[("b", 2.0, 0.0)]).wanting("x", experiment(false));
    simulation.evaluate_times(40);
    assert_eq!(
        (simulation.state.reason.as_str(), simulation.on("a")),
        ("ExperimentKept", 10),
        "{}",
        simulation.state.message
    );
    assert_eq!(simulation.events, ["ExperimentStarted", "ArmStopped", "ExperimentEnded"]);
    let mut simulation = RolloutSimulation::new(10, &[]).wanting("x", experiment(false));
    simulation.evaluate_times(150);
    assert_eq!(
        (simulation.state.reason.as_str(), simulation.on("a")),
        ("Inconclusive", 10),
        "{}",
        simulation.state.message
    );
    assert_eq!(simulation.verdicts[0].outcome, VerdictOutcome::Undecided);
}

#[test]
fn the_message_of_an_experiment_contains_its_progress() {
    let mut simulation = RolloutSimulation::new(2, &[]).wanting("x", experiment(false));
    simulation.shunned = Some("b");
    let status = |simulation: &RolloutSimulation| (simulation.state.reason.clone(), simulation.state.message.clone());
    simulation.evaluate_times(5);
    assert_eq!(
        status(&simulation),
        ("WaitingForCalls".to_owned(), "b received 0 calls, 2000 are needed for a winner".to_owned())
    );
    simulation.evaluate_times(10);
    let (reason, message) = status(&simulation);
    assert_eq!(reason, "WaitingForCalls");
    assert!(message.starts_with("b received no calls and cannot be compared: "), "{message}");
    simulation.shunned = None;
    simulation.evaluate_times(10);
    let (reason, message) = status(&simulation);
    assert_eq!(reason, "Progressing");
    assert!(message.starts_with("compared with a: p99 ") && message.contains("; control: "), "{message}");
}

#[test]
fn a_better_arm_does_not_hide_a_worse_one() {
    let mut simulation = RolloutSimulation::new(12, &[("b", 0.5, 0.0), ("c", 1.5, 0.0)]);
    let arm = |profile: &str| ArmPlan { profile: profile.to_owned(), weight: 1 };
    let arms = vec![arm("a"), arm("b"), arm("c")];
    // No arm has enough calls to win.
    let strategy =
        RolloutStrategy::Experiment(ExperimentPlan { arms, switchback: false, period: 60, samples_min: 10_000_000 });
    simulation = simulation.wanting("x", strategy);
    simulation.evaluate_times(60);
    let stopped: Vec<bool> = simulation.state.arms.iter().map(|arm| arm.stopped).collect();
    assert_eq!((stopped, simulation.state.phase), (vec![false, false, true], Progressing));
}

#[test]
fn calls_before_a_pod_changed_its_profile_count_for_no_arm() {
    let mut simulation = RolloutSimulation::new(2, &[]).wanting("b", canary());
    simulation.evaluate();
    let samples =
        |simulation: &RolloutSimulation| simulation.state.arms.iter().map(|arm| arm.samples).collect::<Vec<_>>();
    assert_eq!(samples(&simulation), [0, 0], "what was served before the rollout began");
    simulation.evaluate();
    assert_eq!(samples(&simulation), [300, 0], "a report straddles the change");
    simulation.evaluate();
    assert_eq!(samples(&simulation), [600, 300]);
}
