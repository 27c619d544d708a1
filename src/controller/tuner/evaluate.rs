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

use std::time::Duration;

use super::format::{format_rounded, format_share, percent, shift};
use super::history::{Direction, ObservedStep, Parameter, StepSeries};
use super::window::{SloVerdict, VerdictRun, WINDOW_MAX};
use super::{
    GroupReport, Proposal, ReasonCode, SampleWindow, TunedSettings, TunerMode, TuningBounds, TuningReason, TuningState,
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
/// Proportional control of the deadline shift: gain in tenths, target of the p99 in thousandths of
/// the SLO, and the minimum step in thousandths of the SLO.
const GAIN_TENTHS: u128 = 4;
const TARGET_PERMILLE: u128 = 980;
const SHIFT_STEP_MIN: u32 = 10;
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
    let mut look = Evaluation { now, report, bounds, history };
    let (settings, reason) = look.decide();
    let settings = look.published_settings(settings);
    let pushed = match bounds.mode {
        TunerMode::Auto => settings,
        // Settings that were pushed under another mode are withdrawn.
        TunerMode::Recommend | TunerMode::Manual => TunedSettings::default(),
    };
    (Proposal { settings, pushed, reason }, look.history)
}

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
        if self.bounds.mode == TunerMode::Manual {
            self.history = TuningState::resume(TunedSettings::default());
            return Some(self.hold(ReasonCode::Manual, "tuning is manual".to_owned()));
        }
        let within = self.bounds.clamp(self.history.settings);
        if within != self.history.settings {
            let text =
                format!("moved into the bounds of the policy: {}", self.describe_change(self.history.settings, within));
            self.history = TuningState::resume(self.history.settings);
            return Some(self.set(within, ReasonCode::Bounded, text));
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
            // Late answers during learning predict nothing about the time after it.
            self.history.window = SampleWindow::default();
            let text = "the server's concurrency is still being learned: settings do not change until then".to_owned();
            return Some(self.hold(ReasonCode::Learning, text));
        }
        None
    }

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
            && self.bounds.mode == TunerMode::Auto
            && (window.is_worse_than(&step.before) || step.way == Direction::Looser && verdict == SloVerdict::Late)
        {
            return self.roll_back(step, &window);
        }
        match verdict {
            SloVerdict::Late => self.decide_late(&window),
            SloVerdict::Near => self.decide_near(&window),
            SloVerdict::Calm => self.decide_calm(&window),
        }
    }

    /// Returns the settings to publish. Under [`TunerMode::Recommend`], where they are not applied,
    /// these are the last recommended ones, until the SLO is met without them.
    fn published_settings(&self, decided: TunedSettings) -> TunedSettings {
        if self.bounds.mode != TunerMode::Recommend {
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
        let is_auto = self.bounds.mode == TunerMode::Auto;
        began < changed.after(APPLY_MAX)
            || is_auto && self.report.in_force.is_some_and(|own| own != self.history.settings)
    }

    fn decide_few_samples(&mut self) -> (TunedSettings, TuningReason) {
        let (calls, needed) = self.history.window.sample_progress();
        let over = self.history.window.over;
        if over >= WINDOW_MAX {
            self.history.window = SampleWindow::default();
        }
        let text = format!("too few samples: {calls} calls answered in {}, {needed} needed", format_rounded(over));
        self.hold(ReasonCode::FewSamples, text)
    }

    fn decide_late(&mut self, window: &SampleWindow) -> (TunedSettings, TuningReason) {
        self.history.calm = VerdictRun::default();
        self.history.met = Duration::ZERO;
        self.history.late.append(window);
        let late = self.describe_late(&self.history.late.window, self.history.late.long);
        if self.bounds.mode == TunerMode::Auto && self.history.climb.as_ref().is_some_and(|climb| climb.retreat) {
            return self.revert_series();
        }
        // A lone call that exceeds the SLO makes every setting futile.
        if let (Some(slo), Some(lone)) = (self.bounds.slo, self.report.lone_late)
            && lone > slo
        {
            let text =
                format!("no setting can meet slo {}: a call alone takes {}", format_rounded(slo), format_rounded(lone));
            return self.hold(ReasonCode::Infeasible, text);
        }
        let climbing = self.history.climb.is_some();
        // Once tightening has begun, each late window is followed by the next step without another
        // delay.
        if self.history.late.long < BREACH_MIN && !climbing {
            return self.hold(ReasonCode::Held, format!("{late}: too short for a step"));
        }
        if let Some(climb) = self.history.climb.as_mut().filter(|climb| climb.from.len() >= FUTILE_STEPS)
            && !has_fewer_late(window, &climb.before)
        {
            climb.retreat = true;
            return self.revert_series();
        }
        self.tighten(&late)
    }

    /// Makes a step towards the SLO: the deadline shift first, then slots.
    fn tighten(&mut self, late: &str) -> (TunedSettings, TuningReason) {
        let settings = self.history.settings;
        if self.is_permitted(Parameter::Shift, Direction::Tighter) {
            // The shift that the sidecar measured itself is in force already: a smaller one would
            // have no effect.
            let base = settings.shift_permille.max(self.report.shift_permille).min(self.bounds.shift_permille_max);
            let most = (base * STEP_PERMILLE / 1000).max(SHIFT_STEP_PERMILLE);
            let raise = self.shift_error().unwrap_or(most / 2).clamp(SHIFT_STEP_MIN, most);
            let next = (base + raise).min(self.bounds.shift_permille_max);
            if next > settings.shift_permille && next > base {
                let to = TunedSettings { shift_permille: next, ..settings };
                return self.apply_step(Parameter::Shift, Direction::Tighter, to, ReasonCode::ShiftRaised, late);
            }
        }
        // A limit above the number in use has no effect. If the policy sets none, the sidecar's own
        // limiter is the only limit.
        let in_use = self.bounds.effective_slots_max(settings).min(self.report.slots.max(1));
        if self.bounds.has_slots_max()
            && self.is_permitted(Parameter::Slots, Direction::Tighter)
            && in_use > self.bounds.slots.0
        {
            let next = (in_use - (in_use * STEP_PERMILLE / 1000).max(1)).max(self.bounds.slots.0);
            let to = TunedSettings { slots_max: self.bounds.slots_setting(next), ..settings };
            return self.apply_step(Parameter::Slots, Direction::Tighter, to, ReasonCode::SlotsLowered, late);
        }
        self.history.climb = None;
        self.hold(ReasonCode::Exhausted, format!("{late}: no setting within the bounds helped, or none is left to try"))
    }

    /// Returns the step of the deadline shift that the distance of the p99 from its target
    /// requires, in thousandths of the SLO.
    fn shift_error(&self) -> Option<u32> {
        let slo = self.bounds.slo.filter(|slo| !slo.is_zero())?.as_micros();
        let p99 = self.history.late.window.p99()?.as_micros();
        let beyond = (p99 * 1000 / slo).saturating_sub(TARGET_PERMILLE);
        Some(u32::try_from(beyond * GAIN_TENTHS / 10).unwrap_or(u32::MAX))
    }

    fn decide_near(&mut self, window: &SampleWindow) -> (TunedSettings, TuningReason) {
        self.on_slo_met(window);
        self.history.calm = VerdictRun::default();
        self.hold(ReasonCode::Held, self.describe_met(window))
    }

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
        let long = if self.history.calm.window.has_lost_calls() { CALM_MIN } else { CALM_MIN_IDLE };
        if self.history.calm.long < long {
            return self.hold(ReasonCode::Held, met);
        }
        let spare = format!("{met} for {}", format_rounded(self.history.calm.long));
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
        if let Some(climb) = self.history.climb.take().filter(|climb| !climb.retreat) {
            self.history.unblock(climb.parameter, Direction::Tighter);
        }
    }

    fn apply_step(
        &mut self,
        parameter: Parameter,
        way: Direction,
        to: TunedSettings,
        word: ReasonCode,
        reason: &str,
    ) -> (TunedSettings, TuningReason) {
        let from = self.history.settings;
        let text = format!("{reason}: {}", self.describe_change(from, to));
        if self.bounds.mode == TunerMode::Recommend {
            // The recommendation is not applied, so it has no effect to observe.
            self.history.recommended = Some(to);
            return (to, TuningReason { word, text: format!("{text} (recommended)") });
        }
        let late = way == Direction::Tighter;
        let before = if late { &self.history.late } else { &self.history.calm }.window.clone();
        if late {
            let climb = self.history.climb.take().filter(|climb| climb.parameter == parameter);
            let mut climb = climb.unwrap_or_else(|| StepSeries {
                parameter,
                from: Vec::new(),
                before: before.clone(),
                retreat: false,
            });
            climb.from.push(from);
            self.history.climb = Some(climb);
        } else {
            // A looser setting than the end of the climb is not one of its steps: reverting along
            // the climb from there would be a jump.
            self.history.climb = None;
        }
        self.history.step = Some(ObservedStep { from, parameter, way, before });
        self.set(to, word, text)
    }

    /// Reverts the last step and blocks its direction.
    #[expect(clippy::needless_pass_by_value, reason = "the step is consumed")]
    fn roll_back(&mut self, step: ObservedStep, window: &SampleWindow) -> (TunedSettings, TuningReason) {
        let long = self.history.block(self.now, step.parameter, step.way);
        let to = self.previous_settings(step.from);
        self.history.climb = None;
        let reason = if step.way == Direction::Looser {
            self.describe_late(window, window.over)
        } else {
            let met = |window: &SampleWindow| format_share(window.in_time(), window.calls());
            format!("slo met for {} of the calls, {} before", met(window), met(&step.before))
        };
        let text = format!(
            "{reason}: step reverted, {}, not retried for {}",
            self.describe_change(self.history.settings, to),
            format_rounded(long)
        );
        self.set(to, ReasonCode::RolledBack, text)
    }

    /// Returns previous settings, except for the cap on weight, which moves independently and is
    /// not reverted with a step.
    const fn previous_settings(&self, to: TunedSettings) -> TunedSettings {
        TunedSettings { batch_weight_max: self.history.settings.batch_weight_max, ..to }
    }

    /// Reverts the last of the steps that had no effect. Each evaluation reverts one more.
    fn revert_series(&mut self) -> (TunedSettings, TuningReason) {
        let Some(mut climb) = self.history.climb.take() else { return self.hold(ReasonCode::Held, String::new()) };
        let (parameter, steps) = (climb.parameter, climb.from.len());
        let Some(to) = climb.from.pop() else {
            return self.hold(ReasonCode::Exhausted, "no setting within the bounds helped".to_owned());
        };
        let to = self.previous_settings(to);
        let long = if climb.from.is_empty() {
            Some(self.history.block(self.now, parameter, Direction::Tighter))
        } else {
            self.history.climb = Some(climb);
            None
        };
        let until = long.map_or(String::new(), |long| format!(", not retried for {}", format_rounded(long)));
        let change = self.describe_change(self.history.settings, to);
        self.set(
            to,
            ReasonCode::NoEffect,
            format!("the share of late calls did not drop: step {steps} reverted, {change}{until}"),
        )
    }

    /// Moves the cap on weight towards the ceilings that sidecars learned from refusals and
    /// failures. Latency is not considered.
    fn adjust_weight_cap(&mut self) -> Option<(TunedSettings, TuningReason)> {
        let (least, most) = self.bounds.weight.filter(|_| self.bounds.mode == TunerMode::Auto)?;
        let settings = self.history.settings;
        let current = settings.batch_weight_max.unwrap_or(most);
        let goal = self.weight_goal(least, most);
        let step = max_weight_step(current).max(1);
        let (next, word, reason) = if goal < current {
            (current.saturating_sub(step).max(goal), ReasonCode::WeightLowered, "batches are refused or fail above")
        } else {
            (current.saturating_add(step).min(goal), ReasonCode::WeightRaised, "batches succeed again up to")
        };
        if next == current || self.is_settling() {
            return None;
        }
        let to = TunedSettings { batch_weight_max: self.bounds.weight_setting(next), ..settings };
        let of = self.report.weight_ceiling.unwrap_or(goal);
        let text = format!("{reason} weight {of}: {}", self.describe_change(settings, to));
        // The weight cap is independent of latency: runs of late and calm windows continue.
        (self.history.settings, self.history.changed) = (to, Some(self.now));
        Some((to, TuningReason { word, text }))
    }

    /// Returns a cap one step above the ceiling, since a sidecar probes its server with batches
    /// that are larger by an eighth.
    fn weight_goal(&self, least: u64, most: u64) -> u64 {
        let above = |ceiling: u64| ceiling.saturating_add(max_weight_step(ceiling).max(1));
        self.report.weight_ceiling.map_or(most, above).clamp(least, most)
    }

    fn is_permitted(&self, parameter: Parameter, way: Direction) -> bool {
        self.history.blocked_until(self.now, parameter, way).is_none()
    }

    fn set(&mut self, to: TunedSettings, word: ReasonCode, text: String) -> (TunedSettings, TuningReason) {
        self.history.set_settings(self.now, to);
        (to, TuningReason { word, text })
    }

    fn hold(&self, word: ReasonCode, text: String) -> (TunedSettings, TuningReason) {
        (self.history.settings, TuningReason { word, text })
    }

    fn describe_late(&self, window: &SampleWindow, long: Duration) -> String {
        let over = format_rounded(long);
        match (self.bounds.slo, window.p99()) {
            (Some(slo), Some(p99)) if p99 > slo => {
                format!("p99 {} over slo {} for {over}", format_rounded(p99), format_rounded(slo))
            }
            _ => format!("{} of the calls late for {over}", format_share(window.late, window.latency.count())),
        }
    }

    fn describe_met(&self, window: &SampleWindow) -> String {
        let met = match (self.bounds.slo, window.p99()) {
            (Some(slo), Some(p99)) if p99 <= slo => {
                format!("p99 {} within slo {}", format_rounded(p99), format_rounded(slo))
            }
            _ => format!("{} of the calls late", format_share(window.late, window.latency.count())),
        };
        if window.has_lost_calls() {
            let lost = format_share(window.lost, window.calls());
            return format!("{met}, {lost} of the calls unanswered: the server is overloaded");
        }
        met
    }

    fn describe_change(&self, from: TunedSettings, to: TunedSettings) -> String {
        let mut changes = Vec::new();
        if from.shift_permille != to.shift_permille {
            let show = |permille| shift(permille, self.bounds.slo);
            changes.push(format!("deadline shift {} → {}", show(from.shift_permille), show(to.shift_permille)));
        }
        let slots = |settings: TunedSettings| {
            settings.slots_max.or(self.bounds.slots_own).map_or_else(|| "none".to_owned(), |slots| slots.to_string())
        };
        if from.slots_max != to.slots_max {
            changes.push(format!("slotsMax {} → {}", slots(from), slots(to)));
        }
        if from.batch_weight_max != to.batch_weight_max {
            let weight = |settings: TunedSettings| {
                let own = settings.batch_weight_max.or(self.bounds.weight_limit);
                own.map_or_else(|| "none".to_owned(), |weight| weight.to_string())
            };
            changes.push(format!("batchWeightMax {} → {}", weight(from), weight(to)));
        }
        if changes.is_empty() {
            format!("deadline shift stays {}", percent(to.shift_permille))
        } else {
            changes.join(", ")
        }
    }
}

/// Returns the maximum change of a weight in one step.
const fn max_weight_step(weight: u64) -> u64 {
    let permille = STEP_PERMILLE as u64;
    weight / 1000 * permille + weight % 1000 * permille / 1000
}

/// Returns `true` if the share of late answers dropped below [`EFFECT_PERMILLE`] of what it was.
fn has_fewer_late(window: &SampleWindow, before: &SampleWindow) -> bool {
    let (now, then) = (window.latency.count().max(1), before.latency.count().max(1));
    u128::from(window.late) * u128::from(then) * 1000
        < u128::from(before.late) * u128::from(now) * u128::from(EFFECT_PERMILLE)
}
