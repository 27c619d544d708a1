//! One evaluation of one group: which setting to move, if any. Pure.
//!
//! ```text
//! late for 30 s ─▶ one step tighter ─▶ 20 s to settle ─┬─▶ SLO met less often: revert, blocked for
//!    deadline shift first, then slots                  │     5 min, 10 min, …
//!                                                      ├─▶ still late: the next step; after four
//!                                                      │     without effect all are reverted
//!                                                      └─▶ met: keep
//! calm for 1 min (calls are lost) or 5 min (none are) ─▶ one step looser
//!    late again after it: revert, blocked for 5 min, 10 min, …
//! ```
//!
//! The block after a failed step doubles each time (exponential backoff), and nothing moves between
//! late and calm (hysteresis), so noise around the SLO does not make the settings oscillate.

mod description;
mod steps;
mod weight_cap;

use std::time::Duration;

use super::format::format_rounded;
use super::history::{Direction, Parameter};
use super::window::{SloVerdict, VerdictRun, WINDOW_MAX};
use super::{
    GroupReport, Proposal, ReasonCode, SampleWindow, TunedSettings, TuningBounds, TuningMode, TuningReason, TuningState,
};
use crate::batching::Tick;

/// The SLO must be missed for this long before the first step: three evaluations.
const BREACH_MIN: Duration = Duration::from_secs(30);
/// The SLO must be met for this long before the steps that led there count as right. Where the SLO
/// is just missed, chance makes three consecutive evaluations good, but not twelve.
const PROVEN_MIN: Duration = Duration::from_secs(120);
/// Time to spare is required for this long before a step back if calls are lost...
const CALM_MIN: Duration = Duration::from_secs(60);
/// ...and for this long if none are: an early deadline that costs no calls may stay in place for
/// the next load peak.
const CALM_MIN_IDLE: Duration = Duration::from_secs(300);
/// Time within which sidecars apply pushed settings. A push takes less than a round trip; this
/// leaves a margin.
const APPLY_MAX: Duration = Duration::from_secs(2);
/// Maximum step, as a part of the current value in thousandths...
const STEP_PERMILLE: u32 = 250;
/// ...or as a part of the SLO, in thousandths, since a quarter of a small shift is too little. A
/// step back is half of it: late answers are worse than early ones.
const SHIFT_STEP_PERMILLE: u32 = 50;
const SHIFT_BACK_PERMILLE: u32 = 25;
/// Number of steps without effect after which they are reverted. A step has an effect if the share
/// of late answers drops below this part of what it was, in thousandths.
const FUTILE_STEPS: usize = 4;
const EFFECT_PERMILLE: u64 = 800;

/// Evaluates the merged reports of a group and decides which settings are in force until the next
/// evaluation.
///
/// `report` is the report of the group as a whole. The function is deterministic.
#[must_use]
pub fn evaluate(
    now: Tick,
    report: &GroupReport,
    bounds: &TuningBounds,
    history: TuningState,
) -> (Proposal, TuningState) {
    let mut evaluation = Evaluation { now, report, bounds, history };
    let (settings, reason) = evaluation.decide();
    let settings = evaluation.published_settings(settings);
    let pushed = match bounds.mode {
        TuningMode::Auto => settings,
        // Settings that were pushed under another mode are withdrawn.
        TuningMode::Recommend | TuningMode::Manual => TunedSettings::default(),
    };
    (Proposal { settings, pushed, reason }, evaluation.history)
}

/// One evaluation: its inputs, and the state of the group, which it changes.
struct Evaluation<'a> {
    now: Tick,
    report: &'a GroupReport,
    bounds: &'a TuningBounds,
    history: TuningState,
}

// === impl Evaluation ===

impl Evaluation<'_> {
    fn decide(&mut self) -> (TunedSettings, TuningReason) {
        // The checks are ordered: first those that forbid any move, then the weight cap, which does
        // not depend on latency, then the comparison with the SLO.
        if let Some(held) = self.check_permission() {
            return held;
        }
        if let Some(moved) = self.adjust_weight_cap() {
            return moved;
        }
        if let Some(held) = self.check_measurability() {
            return held;
        }
        self.compare_with_slo()
    }

    /// Returns a decision if the policy, a rollout or a replaced server forbids any other move.
    fn check_permission(&mut self) -> Option<(TunedSettings, TuningReason)> {
        if self.bounds.mode == TuningMode::Manual {
            self.history = TuningState::resume(TunedSettings::default());
            return Some(self.hold(ReasonCode::Manual, "tuning is manual".to_owned()));
        }
        let clamped = self.bounds.clamp(self.history.settings);
        if clamped != self.history.settings {
            let text = format!(
                "moved into the bounds of the policy: {}",
                self.describe_change(self.history.settings, clamped)
            );
            self.history = TuningState::resume(self.history.settings);
            return Some(self.set(clamped, ReasonCode::Bounded, text));
        }
        if self.report.frozen {
            let settings = self.history.settings;
            self.history = TuningState::resume(settings);
            let text = "unchanged while a rollout compares other pods with this one".to_owned();
            return Some(self.hold(ReasonCode::Frozen, text));
        }
        if self.history.upstream.replace(self.report.changes).is_some_and(|before| before != self.report.changes) {
            self.history.reset(self.now);
            let text = "the model server was replaced: waiting for new measurements".to_owned();
            return Some(self.hold(ReasonCode::Settling, text));
        }
        None
    }

    /// Returns a decision if the measurements cannot be compared with an SLO.
    fn check_measurability(&mut self) -> Option<(TunedSettings, TuningReason)> {
        if !self.bounds.promised {
            return Some(self.hold(ReasonCode::NoSlo, "the policy has no latency SLO".to_owned()));
        }
        if self.is_settling() {
            return Some(self.hold(ReasonCode::Settling, "waiting for the effect of the last step".to_owned()));
        }
        if self.report.learning {
            // Late answers while the limit is being learned predict nothing about the time after.
            self.history.window = SampleWindow::default();
            let text = "the server's concurrency is still being learned: settings do not change until then".to_owned();
            return Some(self.hold(ReasonCode::Learning, text));
        }
        None
    }

    /// Decides by the share of late answers in a full window.
    fn compare_with_slo(&mut self) -> (TunedSettings, TuningReason) {
        // A verdict needs a full window; until then reports accumulate.
        self.history.window.add(self.report);
        if !self.history.window.is_enough() {
            return self.decide_few_samples();
        }
        let window = std::mem::take(&mut self.history.window);
        let verdict = window.verdict(self.bounds.slo);
        // The last step is judged first. A tightening step fails if the SLO is met less often after
        // it, a loosening step also if answers are late again.
        if let Some(step) = self.history.step.take()
            && self.bounds.mode == TuningMode::Auto
            && (window.is_worse_than(&step.before)
                || step.direction == Direction::Looser && verdict == SloVerdict::Late)
        {
            return self.roll_back(step, &window);
        }
        match verdict {
            SloVerdict::Late => self.decide_late(&window),
            SloVerdict::Near => self.decide_near(&window),
            SloVerdict::Calm => self.decide_calm(&window),
        }
    }

    /// Returns the settings to publish. Under [`TuningMode::Recommend`], where they are not
    /// applied, these are the last recommended ones, until the SLO is met without them.
    fn published_settings(&self, decided: TunedSettings) -> TunedSettings {
        if self.bounds.mode != TuningMode::Recommend {
            return decided;
        }
        let goal = self.bounds.weight.map(|(least, most)| self.weight_goal(least, most));
        let batch_weight_max = goal.map_or(decided.batch_weight_max, |goal| self.bounds.weight_setting(goal));
        TunedSettings { batch_weight_max, ..self.history.recommended.unwrap_or(decided) }
    }

    /// Returns `true` if a step was just made: the counts include time before it was in force, or a
    /// sidecar has not applied it yet.
    fn is_settling(&self) -> bool {
        let Some(changed) = self.history.changed else { return false };
        let began = self.now.before(self.report.over);
        let is_auto = self.bounds.mode == TuningMode::Auto;
        began < changed.after(APPLY_MAX)
            || is_auto && self.report.in_force.is_some_and(|own| own != self.history.settings)
    }

    /// Keeps the settings, and discards the window if it has become too old.
    fn decide_few_samples(&mut self) -> (TunedSettings, TuningReason) {
        let (calls, needed) = self.history.window.sample_progress();
        let over = self.history.window.over;
        if over >= WINDOW_MAX {
            self.history.window = SampleWindow::default();
        }
        let text = format!("too few samples: {calls} calls answered in {}, {needed} needed", format_rounded(over));
        self.hold(ReasonCode::FewSamples, text)
    }

    /// Decides after a window in which the SLO was missed.
    fn decide_late(&mut self, window: &SampleWindow) -> (TunedSettings, TuningReason) {
        self.history.calm = VerdictRun::default();
        self.history.met = Duration::ZERO;
        self.history.late.append(window);
        let late = self.describe_late(&self.history.late.window, self.history.late.duration);
        if self.bounds.mode == TuningMode::Auto
            && self.history.series.as_ref().is_some_and(|series| series.is_reverting)
        {
            return self.revert_series();
        }
        // If a call exceeds the SLO with nothing else in flight, every setting is futile.
        if let (Some(slo), Some(lone)) = (self.bounds.slo, self.report.lone_late)
            && lone > slo
        {
            let text =
                format!("no setting can meet slo {}: a call alone takes {}", format_rounded(slo), format_rounded(lone));
            return self.hold(ReasonCode::Infeasible, text);
        }
        let is_tightening = self.history.series.is_some();
        // Once tightening has begun, each late window is followed by the next step without another
        // delay.
        if self.history.late.duration < BREACH_MIN && !is_tightening {
            return self.hold(ReasonCode::Held, format!("{late}: too short for a step"));
        }
        if let Some(series) = self.history.series.as_mut().filter(|series| series.from.len() >= FUTILE_STEPS)
            && !has_fewer_late(window, &series.before)
        {
            series.is_reverting = true;
            return self.revert_series();
        }
        self.tighten(&late)
    }

    /// Decides after a window in which the SLO was met without time to spare: nothing moves.
    fn decide_near(&mut self, window: &SampleWindow) -> (TunedSettings, TuningReason) {
        self.on_slo_met(window);
        self.history.calm = VerdictRun::default();
        self.hold(ReasonCode::Held, self.describe_met(window))
    }

    /// Decides after a window in which the SLO was met with time to spare.
    fn decide_calm(&mut self, window: &SampleWindow) -> (TunedSettings, TuningReason) {
        self.on_slo_met(window);
        self.history.calm.append(window);
        let settings = self.history.settings;
        let met = self.describe_met(window);
        let slots = self.bounds.effective_slots_max(settings);
        let lowered = slots < self.bounds.slots.1;
        // Nothing was tightened, so there is nothing to loosen.
        if settings.shift_permille == 0 && !lowered {
            return self.hold(ReasonCode::Held, met);
        }
        let duration = if self.history.calm.window.has_lost_calls() { CALM_MIN } else { CALM_MIN_IDLE };
        if self.history.calm.duration < duration {
            return self.hold(ReasonCode::Held, met);
        }
        let spare = format!("{met} for {}", format_rounded(self.history.calm.duration));
        // Slots are loosened before the deadline shift.
        if lowered && self.is_permitted(Parameter::Slots, Direction::Looser) {
            let raised =
                slots.saturating_add((slots / 1000 * STEP_PERMILLE + slots % 1000 * STEP_PERMILLE / 1000).max(1));
            let next = raised.min(self.bounds.slots.1);
            let to = TunedSettings { slots_max: self.bounds.slots_setting(next), ..settings };
            return self.apply_step(Parameter::Slots, Direction::Looser, to, ReasonCode::SlotsRaised, &spare);
        }
        if settings.shift_permille > 0 && self.is_permitted(Parameter::Shift, Direction::Looser) {
            let back = (settings.shift_permille * STEP_PERMILLE / 1000).max(SHIFT_BACK_PERMILLE);
            let to = TunedSettings { shift_permille: settings.shift_permille.saturating_sub(back), ..settings };
            return self.apply_step(Parameter::Shift, Direction::Looser, to, ReasonCode::ShiftLowered, &spare);
        }
        self.hold(ReasonCode::Held, format!("{met}; a looser setting made calls late the last time"))
    }

    /// Records that the SLO is met. Once it was met for [`PROVEN_MIN`], the steps that led there
    /// are no longer reverted, and their direction is unblocked.
    fn on_slo_met(&mut self, window: &SampleWindow) {
        self.history.late = VerdictRun::default();
        self.history.recommended = None;
        self.history.met += window.over;
        if self.history.met < PROVEN_MIN {
            return;
        }
        if let Some(series) = self.history.series.take().filter(|series| !series.is_reverting) {
            self.history.unblock(series.parameter, Direction::Tighter);
        }
    }

    fn is_permitted(&self, parameter: Parameter, direction: Direction) -> bool {
        self.history.blocked_until(self.now, parameter, direction).is_none()
    }

    fn set(&mut self, to: TunedSettings, code: ReasonCode, text: String) -> (TunedSettings, TuningReason) {
        self.history.set_settings(self.now, to);
        (to, TuningReason { code, text })
    }

    fn hold(&self, code: ReasonCode, text: String) -> (TunedSettings, TuningReason) {
        (self.history.settings, TuningReason { code, text })
    }
}

/// Returns `true` if the share of late answers dropped below [`EFFECT_PERMILLE`] of what it was.
fn has_fewer_late(window: &SampleWindow, before: &SampleWindow) -> bool {
    let (now, then) = (window.latency.count().max(1), before.latency.count().max(1));
    u128::from(window.late) * u128::from(then) * 1000
        < u128::from(before.late) * u128::from(now) * u128::from(EFFECT_PERMILLE)
}
