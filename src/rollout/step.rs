//! One look at one policy's rollout: where each pod belongs now, and what to tell. Pure.
//!
//! ```text
//! wanted = current ──▶ nothing to do
//! wanted is new ─▶ Progressing: step 0 ─▶ held long enough, enough calls, nothing worse ─▶ step 1 … ─▶ Promoted
//!                       └─ worse ─▶ RolledBack (not tried again until the policy wants something else) or Paused
//! an experiment ─▶ Progressing ─▶ an arm is better: Promoted │ every arm is worse, or nothing can be told: the first arm stays
//! a pin (by hand) ─▶ RolledBack at once, until the policy wants something else or the pin is gone
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::assign::{arms, turn, washout};
use super::judge::{Beside, Comparison, Finding, LINE_CALLS, TURNS_LOOKS};
use super::plan::{ArmPlan, Canary, Experiment, OnFailure, Plan, Strategy};
use super::{Counts, Epoch};
use crate::tuner::{millis, share};

/// Calls of both arms in all, before a canary goes a step further: five beyond the 99th percentile are to be expected.
const CANARY_SAMPLES: u64 = 500;
/// And looks at both side by side; a hold that is shorter than that is no test.
const CANARY_LOOKS: u32 = 3;
/// An experiment ends without a winner when every arm has so many times the calls that a verdict needs, and was looked at so often.
const SAMPLES_TIMES_MAX: u64 = 20;
const LOOKS_MAX: u32 = 40;
/// What is seen this soon after a pod changed profiles is still of the one before: calls in flight, and a report that straddles the change.
const SETTLE: u64 = 5;

/// Where a rollout stands: all of it but sketches fits into a status.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    /// The profile in force, and the yardstick while another is tried.
    pub current: Option<String>,
    /// The profile that is being tried, or was and failed.
    pub candidate: Option<String>,
    /// What was in force before.
    pub previous: Option<String>,
    /// Where it stands.
    pub phase: Phase,
    /// The step of the canary, from 0.
    pub step: usize,
    /// When the step, or the phase, began.
    pub since: Epoch,
    /// When it was looked at last.
    pub looked: Epoch,
    /// Why, in one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// What is compared; the first is the yardstick.
    pub arms: Vec<ArmState>,
}

/// Where a rollout stands, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    /// The current profile is what is wanted.
    #[default]
    Promoted,
    /// Profiles are being compared.
    Progressing,
    /// It waits for somebody to decide.
    Paused,
    /// The current profile is in force instead of what is wanted.
    RolledBack,
}

/// What an arm did so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ArmState {
    /// Its profile.
    pub profile: String,
    /// Pods that are given to it.
    pub pods: u32,
    /// Calls that ended.
    pub samples: u64,
    /// Of these, not served.
    pub errors: u64,
    /// Beside the yardstick; of the yardstick itself nothing.
    pub comparison: Comparison,
    /// It was found worse and gets no pods.
    pub stopped: bool,
    /// All of it; not kept by a status.
    pub seen: Counts,
    /// Since the last look; not kept either.
    pub since_look: Counts,
}

/// A pod, and what it served.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSeen {
    /// Its UID.
    pub uid: String,
    /// The profile that its sidecar has in force, if it has said.
    pub profile: Option<String>,
    /// Since when.
    pub in_force_since: Epoch,
    /// The time that the counts cover.
    pub from: Epoch,
    /// Its end.
    pub to: Epoch,
    /// What it served then, counted since the last call of [`step`].
    pub counts: Counts,
}

/// What is to be now.
#[derive(Debug, Clone, PartialEq)]
pub struct Next {
    /// To keep.
    pub state: State,
    /// The profile of each pod, by UID.
    pub profiles: BTreeMap<String, String>,
    /// Pods whose settings must not be tuned: others are compared with them.
    pub frozen: BTreeSet<String>,
    /// To tell once.
    pub told: Vec<Told>,
    /// To keep with profiles.
    pub verdicts: Vec<VerdictTold>,
}

/// For an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Something went wrong.
    pub warning: bool,
    /// Why, in one word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// How a profile did.
#[derive(Debug, Clone, PartialEq)]
pub struct VerdictTold {
    /// Which.
    pub profile: String,
    /// Compared with this one.
    pub against: String,
    /// In one word.
    pub outcome: Outcome,
    /// Why, in one word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Its 99th percentile.
    pub p99: Option<Duration>,
    /// Calls, and those not served.
    pub calls: (u64, u64),
}

/// How a profile did, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Better than the yardstick.
    Better,
    /// Not worse.
    Same,
    /// Worse.
    Worse,
    /// It cannot be told.
    Undecided,
}

/// Looks at a rollout and says what is to be now. The same arguments give the same answer; a controller that takes over carries on from the state of a status.
#[must_use]
pub fn step(state: State, plan: &Plan, pods: &[PodSeen], now: Epoch) -> Next {
    // Another controller wrote them, and its clock may be ahead: nothing would be counted or looked at until this one has caught up.
    let state = State { since: state.since.min(now), looked: state.looked.min(now), ..state };
    let mut rollout = Rollout { state, plan, pods, now, told: Vec::new(), verdicts: Vec::new() };
    let places = rollout.go();
    let Rollout { state, told, verdicts, .. } = rollout;
    let mut next = Next { profiles: BTreeMap::new(), frozen: BTreeSet::new(), told, verdicts, state };
    for (pod, place) in pods.iter().zip(places) {
        next.profiles.insert(pod.uid.clone(), place.profile);
        if place.frozen {
            next.frozen.insert(pod.uid.clone());
        }
    }
    next
}

struct Rollout<'a> {
    state: State,
    plan: &'a Plan,
    pods: &'a [PodSeen],
    now: Epoch,
    told: Vec<Told>,
    verdicts: Vec<VerdictTold>,
}

/// Where a pod belongs.
struct Place {
    profile: String,
    frozen: bool,
}

/// Reasons with which an experiment ends: with the same arms it is over.
const WON: &str = "ExperimentWon";
const KEPT: &str = "ExperimentKept";
const INCONCLUSIVE: &str = "Inconclusive";

// === impl Rollout ===

impl Rollout<'_> {
    fn go(&mut self) -> Vec<Place> {
        let wanted = self.plan.wanted.clone();
        if let Some(pin) = self.plan.pin.as_ref().filter(|pin| pin.holds(&wanted)) {
            return self.pinned(&pin.to.clone());
        }
        if let Strategy::Experiment(experiment) = &self.plan.strategy {
            return self.experiment(experiment);
        }
        let Some(current) = self.state.current.clone() else {
            self.end(wanted.clone(), Phase::Promoted, "FirstProfile", format!("{wanted} is the first profile"), false);
            return self.all(&wanted);
        };
        if wanted == current {
            if self.state.phase != Phase::Promoted {
                let message = format!("the policy wants {current} again");
                self.end(current.clone(), Phase::Promoted, "Reverted", message, false);
            }
            return self.all(&current);
        }
        let same = self.state.candidate.as_deref() == Some(wanted.as_str());
        let steps = match &self.plan.strategy {
            Strategy::Canary(steps) => steps,
            Strategy::Immediate | Strategy::Experiment(_) => {
                // Also where it was taken back before: without a comparison is what the policy asks for.
                self.promote(&wanted, "Immediate", format!("{wanted} is in force, without a comparison"));
                return self.all(&wanted);
            }
        };
        match self.state.phase {
            Phase::RolledBack if same => return self.all(&current),
            Phase::Paused if same && self.plan.on_failure == OnFailure::Pause => {}
            Phase::Paused if same => {
                let why = self.state.message.clone();
                self.roll_back(&why, "PolicyChanged");
                return self.all(&current);
            }
            Phase::Progressing if same => {}
            _ => self.begin(&current, &wanted, steps),
        }
        self.canary(&current, &wanted, steps)
    }

    /// Another profile is in force by hand.
    fn pinned(&mut self, to: &str) -> Vec<Place> {
        let pinned = self.state.phase == Phase::RolledBack
            && self.state.current.as_deref() == Some(to)
            && self.state.reason == "ManualRollback";
        if !pinned {
            let message = format!("{to} is in force instead of {}, by hand", self.plan.wanted);
            self.end(to.to_owned(), Phase::RolledBack, "ManualRollback", message, true);
            // What is wanted again after it is tried like any change.
            self.state.candidate = None;
        }
        self.all(to)
    }

    fn begin(&mut self, current: &str, wanted: &str, steps: &[Canary]) {
        let percent = steps.first().map_or(100, |step| step.percent);
        let message = format!("{percent}% of the pods get {wanted}, the others keep {current}");
        self.state = State {
            current: Some(current.to_owned()),
            candidate: Some(wanted.to_owned()),
            previous: self.state.previous.take(),
            phase: Phase::Progressing,
            step: 0,
            since: self.now,
            looked: self.now,
            reason: "Started".to_owned(),
            message: message.clone(),
            arms: [current, wanted].map(ArmState::of).into(),
        };
        self.tell(false, "RolloutStarted", message);
    }

    fn canary(&mut self, current: &str, wanted: &str, steps: &[Canary]) -> Vec<Place> {
        let turns = self.turns(&self.weights(steps), false);
        self.count(turns.then_some(Canary::PERIOD));
        if self.state.phase == Phase::Progressing {
            if let Some((_, Finding::Worse { word, why })) = self.look(turns).into_iter().next() {
                return self.failed(current, word.as_str(), &why, steps);
            }
            if let Some(told) = self.forward(wanted, steps, turns) {
                return told;
            }
        }
        self.places(&self.weights(steps), Canary::PERIOD, false)
    }

    /// The shares of the arms at this step.
    fn weights(&self, steps: &[Canary]) -> Vec<u32> {
        let at = self.state.step.min(steps.len().saturating_sub(1));
        let percent = steps.get(at).map_or(100, |step| step.percent);
        vec![100 - percent, percent]
    }

    /// A step further, if this one has been held and enough was seen.
    fn forward(&mut self, wanted: &str, steps: &[Canary], turns: bool) -> Option<Vec<Place>> {
        let hold = steps.get(self.state.step).map_or(0, |step| step.hold);
        if self.now.since(self.state.since) < hold {
            return None;
        }
        // A step that leaves nobody to compare with would wait for ever: it is its hold and no more.
        let alone = self.weights(steps).first() == Some(&0);
        if !alone && self.waits(turns) {
            return None;
        }
        self.state.step += 1;
        self.state.since = self.now;
        let Some(next) = steps.get(self.state.step).filter(|_| self.state.step < steps.len()) else {
            let summary = self.compared();
            let arm = self.state.arms.get(1).cloned().unwrap_or_default();
            if arm.comparison.looks() > 0 {
                self.verdict(&arm, Outcome::Same, "Promoted", format!("no worse: {summary}"));
            } else {
                self.verdict(&arm, Outcome::Undecided, "Promoted", format!("compared with nothing: {summary}"));
            }
            self.promote(wanted, "Promoted", format!("{wanted} is in force: {summary}"));
            return Some(self.all(wanted));
        };
        "Progressing".clone_into(&mut self.state.reason);
        self.state.message = format!("{}% of the pods get {wanted}: {}", next.percent, self.compared());
        let message = self.state.message.clone();
        self.tell(false, "RolloutStep", message);
        None
    }

    /// Whether too little was seen of both arms for a step further, and says so.
    fn waits(&mut self, turns: bool) -> bool {
        let fewest = self.state.arms.iter().map(|arm| arm.samples).min().unwrap_or(0);
        if fewest < CANARY_SAMPLES {
            "WaitingForCalls".clone_into(&mut self.state.reason);
            self.state.message =
                format!("{fewest} calls in the smaller arm, {CANARY_SAMPLES} are needed before the next step");
            return true;
        }
        let looks = self.state.arms.get(1).map_or(0, |arm| arm.comparison.looks());
        let needed = if turns { TURNS_LOOKS } else { CANARY_LOOKS };
        if looks < needed {
            "WaitingForLooks".clone_into(&mut self.state.reason);
            self.state.message = format!("compared {looks} times, {needed} are needed before the next step");
            return true;
        }
        let looks = self.state.arms.get(1).map_or(0, |arm| arm.comparison.latency_looks());
        if looks < CANARY_LOOKS {
            "WaitingForLatency".clone_into(&mut self.state.reason);
            let control = self.state.arms.first().map_or(0, |arm| arm.samples);
            self.state.message = if control < LINE_CALLS {
                format!("{control} calls of the yardstick, {LINE_CALLS} are needed to compare latencies")
            } else {
                format!("latencies compared {looks} times, {CANARY_LOOKS} are needed before the next step")
            };
            return true;
        }
        false
    }

    fn failed(&mut self, current: &str, word: &'static str, why: &str, steps: &[Canary]) -> Vec<Place> {
        let arm = self.state.arms.get(1).cloned().unwrap_or_default();
        self.verdict(&arm, Outcome::Worse, word, why.to_owned());
        match self.plan.on_failure {
            OnFailure::Rollback => {
                self.roll_back(why, word);
                self.all(current)
            }
            OnFailure::Pause => {
                self.pause(why, word);
                self.places(&self.weights(steps), Canary::PERIOD, false)
            }
        }
    }

    fn pause(&mut self, why: &str, word: &'static str) {
        self.state.phase = Phase::Paused;
        self.state.since = self.now;
        word.clone_into(&mut self.state.reason);
        self.state.message = format!("{why}: paused, all stays as it is");
        let message = self.state.message.clone();
        self.tell(true, "RolloutPaused", message);
    }

    fn roll_back(&mut self, why: &str, word: &str) {
        let candidate = self.state.candidate.clone().unwrap_or_default();
        let current = self.state.current.clone().unwrap_or_default();
        self.state.phase = Phase::RolledBack;
        self.state.since = self.now;
        word.clone_into(&mut self.state.reason);
        self.state.message = format!("{candidate} is taken back, all pods get {current}: {why}");
        let message = self.state.message.clone();
        self.tell(true, "RolledBack", message);
    }

    fn promote(&mut self, to: &str, reason: &'static str, message: String) {
        self.tell(false, "Promoted", message.clone());
        self.end(to.to_owned(), Phase::Promoted, reason, message, false);
    }

    /// Nothing is compared any more, and this is in force.
    fn end(&mut self, current: String, phase: Phase, reason: &'static str, message: String, warning: bool) {
        let before = self.state.current.take().filter(|before| *before != current);
        if phase == Phase::RolledBack || reason == "Reverted" {
            self.tell(warning, if warning { "RolledBack" } else { "RolloutReverted" }, message.clone());
        }
        self.state = State {
            previous: before.or_else(|| self.state.previous.take()),
            current: Some(current),
            candidate: None,
            phase,
            step: 0,
            since: self.now,
            looked: self.now,
            reason: reason.to_owned(),
            message,
            arms: std::mem::take(&mut self.state.arms),
        };
    }

    fn experiment(&mut self, experiment: &Experiment) -> Vec<Place> {
        let same = self.state.arms.iter().map(|arm| &arm.profile).eq(experiment.arms.iter().map(|arm| &arm.profile));
        let over = [WON, KEPT, INCONCLUSIVE].contains(&self.state.reason.as_str());
        let control = experiment.arms.first().map(|arm| arm.profile.clone()).unwrap_or_default();
        match self.state.phase {
            Phase::Promoted | Phase::RolledBack if same && over => {
                let current = self.state.current.clone().unwrap_or(control);
                return self.all(&current);
            }
            Phase::Progressing | Phase::Paused if same && self.state.candidate.is_none() => {}
            _ => self.begin_experiment(experiment, &control),
        }
        let turns = self.turns(&self.live(experiment), experiment.switchback);
        self.count(turns.then_some(experiment.period));
        if self.state.phase == Phase::Paused && self.plan.on_failure == OnFailure::Rollback {
            self.state.phase = Phase::Progressing;
        }
        if self.state.phase == Phase::Progressing {
            for (at, finding) in self.look(turns) {
                // One that is worse may have it paused: then nobody wins.
                if self.state.phase != Phase::Progressing {
                    break;
                }
                if let Some(winner) = self.found(at, finding, experiment) {
                    return self.all(&winner);
                }
            }
            if let Some(kept) = self.decided(experiment, &control) {
                return self.all(&kept);
            }
        }
        self.places(&self.live(experiment), experiment.period, experiment.switchback)
    }

    /// The weights of the arms that are not stopped.
    fn live(&self, experiment: &Experiment) -> Vec<u32> {
        let weight = |(arm, plan): (&ArmState, &ArmPlan)| if arm.stopped { 0 } else { plan.weight };
        self.state.arms.iter().zip(&experiment.arms).map(weight).collect()
    }

    /// Whether a pod serves all arms by turns: it is asked for, or there are fewer pods than arms.
    fn turns(&self, weights: &[u32], asked: bool) -> bool {
        asked || self.pods.len() < weights.iter().filter(|weight| **weight > 0).count()
    }

    fn begin_experiment(&mut self, experiment: &Experiment, control: &str) {
        let before = self.state.current.take().filter(|before| before != control);
        let others: Vec<&str> = experiment.arms.iter().skip(1).map(|arm| arm.profile.as_str()).collect();
        let message = format!("{} compared with {control}", others.join(", "));
        self.state = State {
            current: Some(control.to_owned()),
            candidate: None,
            previous: before.or_else(|| self.state.previous.take()),
            phase: Phase::Progressing,
            step: 0,
            since: self.now,
            looked: self.now,
            reason: "Started".to_owned(),
            message: message.clone(),
            arms: experiment.arms.iter().map(|arm| ArmState::of(&arm.profile)).collect(),
        };
        self.tell(false, "ExperimentStarted", message);
    }

    /// What follows from a finding about an arm: the profile that has won, if it has.
    fn found(&mut self, at: usize, finding: Finding, experiment: &Experiment) -> Option<String> {
        let arm = self.state.arms.get(at)?.clone();
        match finding {
            Finding::Nothing => None,
            Finding::Worse { word, why } => {
                self.verdict(&arm, Outcome::Worse, word.as_str(), why.clone());
                if self.plan.on_failure == OnFailure::Pause {
                    self.pause(&format!("{}: {why}", arm.profile), word.as_str());
                    return None;
                }
                if let Some(arm) = self.state.arms.get_mut(at) {
                    arm.stopped = true;
                }
                self.tell(true, "ArmStopped", format!("{} gets no more pods: {why}", arm.profile));
                None
            }
            Finding::Better { why } => {
                let control = self.state.arms.first()?;
                if arm.samples.min(control.samples) < experiment.samples_min {
                    return None;
                }
                self.verdict(&arm, Outcome::Better, WON, why.clone());
                let message = format!("{0} has won: {why}; set profileRef to {0} to keep it", arm.profile);
                self.promote(&arm.profile, WON, message);
                Some(arm.profile)
            }
        }
    }

    /// Whether the experiment is over without a winner: the profile that stays.
    fn decided(&mut self, experiment: &Experiment, control: &str) -> Option<String> {
        let most = experiment.samples_min.saturating_mul(SAMPLES_TIMES_MAX);
        let live: Vec<ArmState> = self.state.arms.iter().skip(1).filter(|arm| !arm.stopped).cloned().collect();
        let enough = self.state.arms.iter().filter(|arm| !arm.stopped).all(|arm| arm.samples >= most)
            && live.iter().all(|arm| arm.comparison.looks() >= LOOKS_MAX);
        let (reason, message) = if live.is_empty() {
            (KEPT, format!("{control} stays: every other arm was worse"))
        } else if enough && self.state.phase == Phase::Progressing {
            (INCONCLUSIVE, format!("{control} stays: after {most} calls each no arm differs by more than can be told"))
        } else {
            return None;
        };
        for arm in &live {
            self.verdict(arm, Outcome::Undecided, INCONCLUSIVE, self.compared());
        }
        self.tell(false, "ExperimentEnded", message.clone());
        self.end(control.to_owned(), Phase::Promoted, reason, message, false);
        Some(control.to_owned())
    }

    /// Adds what the pods served to their arms, where it is clear whose it was; `turns` is the length of a turn where they take turns.
    fn count(&mut self, turns: Option<u64>) {
        let settle = turns.map_or(SETTLE, washout);
        for pod in self.pods {
            let clear = pod.from >= Epoch(pod.in_force_since.0.saturating_add(settle)) && pod.from >= self.state.since;
            let of = |arm: &&mut ArmState| pod.profile.as_deref() == Some(arm.profile.as_str());
            if let Some(arm) = self.state.arms.iter_mut().find(of).filter(|_| clear) {
                arm.samples = arm.samples.saturating_add(pod.counts.calls());
                arm.errors = arm.errors.saturating_add(pod.counts.errors);
                arm.seen.add(&pod.counts);
                arm.since_look.add(&pod.counts);
            }
        }
    }

    /// What is found about arms that are not stopped, first those that are worse. Between two looks only a jump is found. By turns a look waits until every
    /// arm had one.
    fn look(&mut self, turns: bool) -> Vec<(usize, Finding)> {
        let all = || self.state.arms.iter().filter(|arm| !arm.stopped).all(|arm| arm.since_look.calls() > 0);
        let due = self.now.since(self.state.looked) >= self.plan.analysis.interval && (!turns || all());
        let mut found = Vec::new();
        let Some((control, others)) = self.state.arms.split_first_mut() else { return found };
        let beside = Beside { candidates: others.len(), turns };
        for (at, arm) in others.iter_mut().enumerate().filter(|(_, arm)| !arm.stopped) {
            let finding = if due {
                arm.comparison.look(&control.since_look, &arm.since_look, &self.plan.analysis, beside)
            } else {
                arm.comparison.alarm(&control.since_look, &arm.since_look)
            };
            if finding != Finding::Nothing {
                found.push((at + 1, finding));
            }
        }
        if due {
            self.state.looked = self.now;
            self.state.arms.iter_mut().for_each(|arm| arm.since_look = Counts::default());
        }
        found.sort_by_key(|(_, finding)| !matches!(finding, Finding::Worse { .. }));
        found
    }

    /// Where every pod belongs while arms are compared.
    fn places(&mut self, weights: &[u32], period: u64, switchback: bool) -> Vec<Place> {
        let names: Vec<String> = self.state.arms.iter().map(|arm| arm.profile.clone()).collect();
        let weighted: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(weights.iter().copied()).collect();
        // What is compared names the comparison: with other arms pods are mixed anew.
        let salt = names.join(" ");
        let uids: Vec<&str> = self.pods.iter().map(|pod| pod.uid.as_str()).collect();
        let turns = self.turns(weights, switchback);
        let given = if turns {
            // From the beginning of the rollout, so that a step does not begin every pod's turn anew.
            let clock = (Epoch(0), self.now);
            uids.iter().map(|uid| turn(uid, &salt, &weighted, clock, period).arm).collect()
        } else {
            arms(&uids, &salt, &weighted)
        };
        for (at, arm) in self.state.arms.iter_mut().enumerate() {
            arm.pods = u32::try_from(given.iter().filter(|own| **own == at).count()).unwrap_or(u32::MAX);
        }
        let place = |arm: &usize| Place {
            profile: names.get(*arm).cloned().unwrap_or_default(),
            // By turns every pod is somebody's yardstick.
            frozen: *arm == 0 || turns,
        };
        given.iter().map(place).collect()
    }

    fn all(&mut self, profile: &str) -> Vec<Place> {
        let pods = u32::try_from(self.pods.len()).unwrap_or(u32::MAX);
        self.state.arms.iter_mut().for_each(|arm| arm.pods = if arm.profile == profile { pods } else { 0 });
        self.pods.iter().map(|_| Place { profile: profile.to_owned(), frozen: false }).collect()
    }

    /// What both arms did, in a sentence.
    fn compared(&self) -> String {
        let told = |arm: &ArmState| {
            let p99 = arm
                .seen
                .latency
                .quantile(990)
                .map_or_else(|| "no p99 yet".to_owned(), |p99| format!("p99 {}", millis(Duration::from_micros(p99))));
            format!("{p99} and {} not served in {} calls", share(arm.errors, arm.samples), arm.samples)
        };
        match self.state.arms.as_slice() {
            [control, candidate] => format!("{}, {} beside it", told(candidate), told(control)),
            arms => arms.iter().map(|arm| format!("{}: {}", arm.profile, told(arm))).collect::<Vec<_>>().join("; "),
        }
    }

    fn verdict(&mut self, arm: &ArmState, outcome: Outcome, reason: &str, message: String) {
        let against = self.state.arms.first().map(|control| control.profile.clone()).unwrap_or_default();
        self.verdicts.push(VerdictTold {
            profile: arm.profile.clone(),
            against,
            outcome,
            reason: reason.to_owned(),
            message,
            p99: arm.seen.latency.quantile(990).map(Duration::from_micros),
            calls: (arm.samples, arm.errors),
        });
    }

    fn tell(&mut self, warning: bool, reason: &'static str, message: String) {
        self.told.push(Told { warning, reason, message });
    }
}

// === impl ArmState ===

impl ArmState {
    fn of(profile: impl Into<String>) -> Self {
        Self { profile: profile.into(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
