//! One look at one policy's rollout: where each pod belongs now, and what to tell. Pure.
//!
//! ```text
//! wanted = current ──▶ nothing to do
//! wanted is new ─▶ Progressing: step 0 ─▶ held long enough, enough calls, nothing worse ─▶ step 1 … ─▶ Promoted
//!                       └─ worse ─▶ RolledBack (not tried again until the policy wants something else) or Paused
//! an experiment ─▶ Progressing ─▶ an arm is better: Promoted │ every arm is worse, or nothing can be told: the first arm stays
//! a pin (by hand) ─▶ RolledBack at once, until the policy wants something else or the pin is gone
//! ```

mod canary;
mod experiment;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::assign::{arms, turn, washout};
use super::judge::{Beside, Comparison, Finding};
use super::plan::{OnFailure, Plan, Strategy};
use super::{Counts, Epoch};
use crate::tuner::{millis, share};

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

    /// Whether a pod serves all arms by turns: it is asked for, or there are fewer pods than arms.
    fn turns(&self, weights: &[u32], asked: bool) -> bool {
        asked || self.pods.len() < weights.iter().filter(|weight| **weight > 0).count()
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
