//! One look at one group: what to move, if anything. Pure.
//!
//! ```text
//! late for 30 s ─▶ a step tighter ─▶ 20 s to settle ─▶ SLO met less often: back, and not again for 5 min, 10 min …
//!    deadline shift, then slots                    ├─▶ still late: another step; after four without effect all go back
//!                                                  └─▶ met: stay
//! time to spare for 1 min (calls are lost) or 5 min (none are) ─▶ a step looser ─▶ late again: back, and not again for 5 min, 10 min …
//! ```
//! So each reversal makes the next one of its kind rarer, and noise around the SLO moves nothing: between late and calm nothing is done.

use std::time::Duration;

use super::history::{Climb, Knob, Step, Way};
use super::window::{Run, Verdict, WINDOW_MAX};
use super::words::{millis, percent, share, shift};
use super::{Bounds, History, Mode, Observation, Proposal, Reason, Settings, Window, Word};
use crate::batching::Tick;

/// Late for this long before the first step: three looks.
const BREACH_FOR: Duration = Duration::from_secs(30);
/// Met for this long before steps count as right: chance makes three looks in a row good where the SLO is just missed, and not twelve.
const PROVEN_FOR: Duration = Duration::from_secs(120);
/// Time to spare for this long before a step back, where calls are lost for it...
const CALM_FOR: Duration = Duration::from_secs(60);
/// ...and where none are: an early deadline that costs nobody anything may stay for when the load is back.
const QUIET_FOR: Duration = Duration::from_secs(300);
/// Within this the sidecars have what they were told (kubernetes.md §4: pushed in less than a round trip; the issue allows 2 s).
const APPLY: Duration = Duration::from_secs(2);
/// A step is at most this part of what is there (`scheduling.md` §4: 25 %)...
const STEP_PERMILLE: u32 = 250;
/// ...or this part of the SLO, in thousandths, since a quarter of nothing is nothing. A step back is half of it: late answers hurt, early ones do not.
const SHIFT_STEP_PERMILLE: u32 = 50;
const SHIFT_BACK_PERMILLE: u32 = 25;
/// The part of the error that one step takes back, in tenths, where it aims, in thousandths of the SLO, and its least (`scheduling.md` §4, "Budget shift").
const GAIN_TENTHS: u128 = 4;
const TARGET_PERMILLE: u128 = 980;
const SHIFT_STEP_LEAST: u32 = 10;
/// Steps without effect after which they are taken back, and what counts as one: a smaller part of the answers is late, in thousandths of what was.
const FUTILE_STEPS: usize = 4;
const EFFECT_PERMILLE: u64 = 800;

/// Looks at what a group reported since the last look, and says what is to be in force until the next one.
///
/// `seen` is the group's reports put together. The same arguments give the same answer.
#[must_use]
pub fn propose(now: Tick, seen: &Observation, bounds: &Bounds, history: History) -> (Proposal, History) {
    let mut look = Look { now, seen, bounds, history };
    let (settings, reason) = look.decide();
    let settings = look.published(settings);
    let told = match bounds.mode {
        Mode::Auto => settings,
        // What was told before it was so is taken back.
        Mode::Recommend | Mode::Manual => Settings::default(),
    };
    (Proposal { settings, told, reason }, look.history)
}

struct Look<'a> {
    now: Tick,
    seen: &'a Observation,
    bounds: &'a Bounds,
    history: History,
}

// === impl Look ===

impl Look<'_> {
    fn decide(&mut self) -> (Settings, Reason) {
        if self.bounds.mode == Mode::Manual {
            self.history = History::resume(Settings::default());
            return self.hold(Word::Manual, "tuning is manual".to_owned());
        }
        let within = self.bounds.within(self.history.settings);
        if within != self.history.settings {
            let text = format!("to the bounds of the policy: {}", self.change(self.history.settings, within));
            self.history = History::resume(self.history.settings);
            return self.set(within, Word::Bounded, text);
        }
        if self.seen.frozen {
            let settings = self.history.settings;
            self.history = History::resume(settings);
            return self.hold(Word::Frozen, "stays as it is: others are compared with it".to_owned());
        }
        if self.history.upstream.replace(self.seen.changes).is_some_and(|before| before != self.seen.changes) {
            self.history.forget(self.now);
            return self.hold(Word::Settling, "the model server is another one: waiting for what it does".to_owned());
        }
        if let Some(moved) = self.weight() {
            return moved;
        }
        if !self.bounds.promised {
            return self.hold(Word::NoSlo, "the policy promises no latency".to_owned());
        }
        if self.unsettled() {
            return self.hold(Word::Settling, "waiting for what the last step does".to_owned());
        }
        if self.seen.learning {
            // Late answers of meanwhile say nothing of what comes after.
            self.history.window = Window::default();
            let text = "the server's concurrency is still being learned: nothing moves meanwhile".to_owned();
            return self.hold(Word::Learning, text);
        }
        self.history.window.add(self.seen);
        if !self.history.window.is_enough() {
            return self.few();
        }
        let window = std::mem::take(&mut self.history.window);
        let verdict = window.verdict(self.bounds.slo);
        if let Some(step) = self.history.step.take()
            && self.bounds.mode == Mode::Auto
            && (window.is_worse_than(&step.before) || step.way == Way::Looser && verdict == Verdict::Late)
        {
            return self.roll_back(step, &window);
        }
        match verdict {
            Verdict::Late => self.late(&window),
            Verdict::Near => self.near(&window),
            Verdict::Calm => self.calm(&window),
        }
    }

    /// What is said to be right. Where nobody applies it, that is what was recommended last, until the SLO is met without.
    fn published(&self, decided: Settings) -> Settings {
        if self.bounds.mode != Mode::Recommend {
            return decided;
        }
        let goal = self.bounds.weight.map(|(least, most)| self.weight_goal(least, most));
        let batch_weight_max = goal.map_or(decided.batch_weight_max, |goal| self.bounds.weight_said(goal));
        Settings { batch_weight_max, ..self.history.recommended.unwrap_or(decided) }
    }

    /// A step was just taken: counts that began before it was in force are of before, and so are those of sidecars that have not got it.
    fn unsettled(&self) -> bool {
        let Some(changed) = self.history.changed else { return false };
        let began = self.now.before(self.seen.over);
        let told = self.bounds.mode == Mode::Auto;
        began < changed.after(APPLY) || told && self.seen.in_force.is_some_and(|own| own != self.history.settings)
    }

    fn few(&mut self) -> (Settings, Reason) {
        let (calls, needed) = self.history.window.needs();
        let over = self.history.window.over;
        if over >= WINDOW_MAX {
            self.history.window = Window::default();
        }
        let text = format!("too few samples: {calls} calls answered in {}, {needed} needed", millis(over));
        self.hold(Word::FewSamples, text)
    }

    fn late(&mut self, window: &Window) -> (Settings, Reason) {
        self.history.calm = Run::default();
        self.history.met = Duration::ZERO;
        self.history.late.join(window);
        let late = self.told_late(&self.history.late.window, self.history.late.long);
        if self.bounds.mode == Mode::Auto && self.history.climb.as_ref().is_some_and(|climb| climb.retreat) {
            return self.retreat();
        }
        if let (Some(slo), Some(lone)) = (self.bounds.slo, self.seen.lone_late)
            && lone > slo
        {
            let text = format!("no setting can meet slo {}: a call alone takes {}", millis(slo), millis(lone));
            return self.hold(Word::Infeasible, text);
        }
        let climbing = self.history.climb.is_some();
        if self.history.late.long < BREACH_FOR && !climbing {
            return self.hold(Word::Held, format!("{late}: not for long yet"));
        }
        if let Some(climb) = self.history.climb.as_mut().filter(|climb| climb.from.len() >= FUTILE_STEPS)
            && !fewer_late(window, &climb.before)
        {
            climb.retreat = true;
            return self.retreat();
        }
        self.tighten(&late)
    }

    /// A step towards the SLO: deadlines first, then slots.
    fn tighten(&mut self, late: &str) -> (Settings, Reason) {
        let settings = self.history.settings;
        if self.may(Knob::Shift, Way::Tighter) {
            // What the sidecar found itself holds already: less than that would change nothing.
            let base = settings.shift_permille.max(self.seen.shift_permille).min(self.bounds.shift_permille_max);
            let most = (base * STEP_PERMILLE / 1000).max(SHIFT_STEP_PERMILLE);
            let wanted = self.shift_error().unwrap_or(most / 2).clamp(SHIFT_STEP_LEAST, most);
            let next = (base + wanted).min(self.bounds.shift_permille_max);
            if next > settings.shift_permille && next > base {
                let to = Settings { shift_permille: next, ..settings };
                return self.step(Knob::Shift, Way::Tighter, to, Word::ShiftRaised, late);
            }
        }
        // A wall above what is in use binds nothing. Where the policy names none, the sidecar's own limiter is the only one.
        let in_use = self.bounds.slots_of(settings).min(self.seen.slots.max(1));
        if self.bounds.names_slots() && self.may(Knob::Slots, Way::Tighter) && in_use > self.bounds.slots.0 {
            let next = (in_use - (in_use * STEP_PERMILLE / 1000).max(1)).max(self.bounds.slots.0);
            let to = Settings { slots_max: self.bounds.slots_said(next), ..settings };
            return self.step(Knob::Slots, Way::Tighter, to, Word::SlotsLowered, late);
        }
        self.history.climb = None;
        self.hold(Word::Exhausted, format!("{late}: nothing within the bounds has helped, or is left to try"))
    }

    /// How far the p99 is beyond where it should be, as a step, in thousandths of the SLO.
    fn shift_error(&self) -> Option<u32> {
        let slo = self.bounds.slo.filter(|slo| !slo.is_zero())?.as_micros();
        let p99 = self.history.late.window.p99()?.as_micros();
        let beyond = (p99 * 1000 / slo).saturating_sub(TARGET_PERMILLE);
        Some(u32::try_from(beyond * GAIN_TENTHS / 10).unwrap_or(u32::MAX))
    }

    fn near(&mut self, window: &Window) -> (Settings, Reason) {
        self.reached(window);
        self.history.calm = Run::default();
        self.hold(Word::Held, self.told_met(window))
    }

    fn calm(&mut self, window: &Window) -> (Settings, Reason) {
        self.reached(window);
        self.history.calm.join(window);
        let settings = self.history.settings;
        let met = self.told_met(window);
        let slots = self.bounds.slots_of(settings);
        let lowered = slots < self.bounds.slots.1;
        if settings.shift_permille == 0 && !lowered {
            return self.hold(Word::Held, met);
        }
        let long = if self.history.calm.window.costs() { CALM_FOR } else { QUIET_FOR };
        if self.history.calm.long < long {
            return self.hold(Word::Held, met);
        }
        let spare = format!("{met} for {}", millis(self.history.calm.long));
        if lowered && self.may(Knob::Slots, Way::Looser) {
            let raised =
                slots.saturating_add((slots / 1000 * STEP_PERMILLE + slots % 1000 * STEP_PERMILLE / 1000).max(1));
            let next = raised.min(self.bounds.slots.1);
            let to = Settings { slots_max: self.bounds.slots_said(next), ..settings };
            return self.step(Knob::Slots, Way::Looser, to, Word::SlotsRaised, &spare);
        }
        if settings.shift_permille > 0 && self.may(Knob::Shift, Way::Looser) {
            let back = (settings.shift_permille * STEP_PERMILLE / 1000).max(SHIFT_BACK_PERMILLE);
            let to = Settings { shift_permille: settings.shift_permille.saturating_sub(back), ..settings };
            return self.step(Knob::Shift, Way::Looser, to, Word::ShiftLowered, &spare);
        }
        self.hold(Word::Held, format!("{met}; less was late again the last time"))
    }

    /// The SLO is met, and once it was for long enough, the steps that led here were right.
    fn reached(&mut self, window: &Window) {
        self.history.late = Run::default();
        self.history.recommended = None;
        self.history.met += window.over;
        if self.history.met < PROVEN_FOR {
            return;
        }
        if let Some(climb) = self.history.climb.take().filter(|climb| !climb.retreat) {
            self.history.unblock(climb.knob, Way::Tighter);
        }
    }

    fn step(&mut self, knob: Knob, way: Way, to: Settings, word: Word, why: &str) -> (Settings, Reason) {
        let from = self.history.settings;
        let text = format!("{why}: {}", self.change(from, to));
        if self.bounds.mode == Mode::Recommend {
            // Nobody applies it, so there is nothing to watch.
            self.history.recommended = Some(to);
            return (to, Reason { word, text: format!("{text} (recommended)") });
        }
        let late = way == Way::Tighter;
        let before = if late { &self.history.late } else { &self.history.calm }.window.clone();
        if late {
            let climb = self.history.climb.take().filter(|climb| climb.knob == knob);
            let mut climb =
                climb.unwrap_or_else(|| Climb { knob, from: Vec::new(), before: before.clone(), retreat: false });
            climb.from.push(from);
            self.history.climb = Some(climb);
        } else {
            // What is looser than the climb's end is no step of it: going back along it would be a leap.
            self.history.climb = None;
        }
        self.history.step = Some(Step { from, knob, way, before });
        self.set(to, word, text)
    }

    /// The last step made it worse.
    #[expect(clippy::needless_pass_by_value, reason = "it is over with it")]
    fn roll_back(&mut self, step: Step, window: &Window) -> (Settings, Reason) {
        let long = self.history.block(self.now, step.knob, step.way);
        let to = self.back(step.from);
        self.history.climb = None;
        let why = if step.way == Way::Looser {
            self.told_late(window, window.over)
        } else {
            let met = |window: &Window| share(window.good(), window.calls());
            format!("slo met for {} of the calls, {} before", met(window), met(&step.before))
        };
        let text = format!(
            "{why}: taken back, {}, not tried again for {}",
            self.change(self.history.settings, to),
            millis(long)
        );
        self.set(to, Word::RolledBack, text)
    }

    /// What was in force before, but for the cap on weight: that goes its own way, and a step is not taken back for it.
    const fn back(&self, to: Settings) -> Settings {
        Settings { batch_weight_max: self.history.settings.batch_weight_max, ..to }
    }

    /// Steps that made no difference go back one by one.
    fn retreat(&mut self) -> (Settings, Reason) {
        let Some(mut climb) = self.history.climb.take() else { return self.hold(Word::Held, String::new()) };
        let (knob, steps) = (climb.knob, climb.from.len());
        let Some(to) = climb.from.pop() else {
            return self.hold(Word::Exhausted, "nothing within the bounds has helped".to_owned());
        };
        let to = self.back(to);
        let long = if climb.from.is_empty() {
            Some(self.history.block(self.now, knob, Way::Tighter))
        } else {
            self.history.climb = Some(climb);
            None
        };
        let until = long.map_or(String::new(), |long| format!(", not tried again for {}", millis(long)));
        let change = self.change(self.history.settings, to);
        self.set(
            to,
            Word::NoEffect,
            format!("as many calls are late as before: step {steps} taken back, {change}{until}"),
        )
    }

    /// The cap on weight follows what sidecars learned from refusals and failures, never latency.
    fn weight(&mut self) -> Option<(Settings, Reason)> {
        let (least, most) = self.bounds.weight.filter(|_| self.bounds.mode == Mode::Auto)?;
        let settings = self.history.settings;
        let current = settings.batch_weight_max.unwrap_or(most);
        let goal = self.weight_goal(least, most);
        let step = part(current).max(1);
        let (next, word, why) = if goal < current {
            (current.saturating_sub(step).max(goal), Word::WeightLowered, "refused or failed above")
        } else {
            (current.saturating_add(step).min(goal), Word::WeightRaised, "no longer refused or failed up to")
        };
        if next == current || self.unsettled() {
            return None;
        }
        let to = Settings { batch_weight_max: self.bounds.weight_said(next), ..settings };
        let of = self.seen.weight_ceiling.unwrap_or(goal);
        let text = format!("{why} weight {of}: {}", self.change(settings, to));
        // It has nothing to do with what is late: the runs go on.
        (self.history.settings, self.history.changed) = (to, Some(self.now));
        Some((to, Reason { word, text }))
    }

    /// A step above what was refused: a sidecar that asks its server again, by batches that are larger by an eighth, must be able to.
    fn weight_goal(&self, least: u64, most: u64) -> u64 {
        let above = |ceiling: u64| ceiling.saturating_add(part(ceiling).max(1));
        self.seen.weight_ceiling.map_or(most, above).clamp(least, most)
    }

    fn may(&self, knob: Knob, way: Way) -> bool {
        self.history.blocked(self.now, knob, way).is_none()
    }

    fn set(&mut self, to: Settings, word: Word, text: String) -> (Settings, Reason) {
        self.history.set(self.now, to);
        (to, Reason { word, text })
    }

    fn hold(&self, word: Word, text: String) -> (Settings, Reason) {
        (self.history.settings, Reason { word, text })
    }

    fn told_late(&self, window: &Window, long: Duration) -> String {
        let over = millis(long);
        match (self.bounds.slo, window.p99()) {
            (Some(slo), Some(p99)) if p99 > slo => {
                format!("p99 {} over slo {} for {over}", millis(p99), millis(slo))
            }
            _ => format!("{} of the calls late for {over}", share(window.late, window.latency.count())),
        }
    }

    fn told_met(&self, window: &Window) -> String {
        let met = match (self.bounds.slo, window.p99()) {
            (Some(slo), Some(p99)) if p99 <= slo => format!("p99 {} within slo {}", millis(p99), millis(slo)),
            _ => format!("{} of the calls late", share(window.late, window.latency.count())),
        };
        if window.costs() {
            let lost = share(window.lost, window.calls());
            return format!("{met}, {lost} of the calls without an answer: the server is at its end");
        }
        met
    }

    fn change(&self, from: Settings, to: Settings) -> String {
        let mut told = Vec::new();
        if from.shift_permille != to.shift_permille {
            let show = |permille| shift(permille, self.bounds.slo);
            told.push(format!("deadline shift {} → {}", show(from.shift_permille), show(to.shift_permille)));
        }
        let slots = |settings: Settings| {
            settings.slots_max.or(self.bounds.slots_own).map_or_else(|| "none".to_owned(), |slots| slots.to_string())
        };
        if from.slots_max != to.slots_max {
            told.push(format!("slotsMax {} → {}", slots(from), slots(to)));
        }
        if from.batch_weight_max != to.batch_weight_max {
            let weight = |settings: Settings| {
                let own = settings.batch_weight_max.or(self.bounds.weight_own);
                own.map_or_else(|| "none".to_owned(), |weight| weight.to_string())
            };
            told.push(format!("batchWeightMax {} → {}", weight(from), weight(to)));
        }
        if told.is_empty() { format!("deadline shift stays {}", percent(to.shift_permille)) } else { told.join(", ") }
    }
}

/// The part of a weight that a step moves at most.
const fn part(weight: u64) -> u64 {
    let permille = STEP_PERMILLE as u64;
    weight / 1000 * permille + weight % 1000 * permille / 1000
}

/// Whether clearly fewer answers are late than before.
fn fewer_late(window: &Window, before: &Window) -> bool {
    let (now, then) = (window.latency.count().max(1), before.latency.count().max(1));
    u128::from(window.late) * u128::from(then) * 1000
        < u128::from(before.late) * u128::from(now) * u128::from(EFFECT_PERMILLE)
}
