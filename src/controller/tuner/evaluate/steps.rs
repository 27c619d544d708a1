//! Steps of the settings: the next one towards the SLO, and the reversal of one after which the SLO
//! was met less often, or of a series that had no effect.

use super::super::format::{format_rounded, format_share};
use super::super::history::{Direction, ObservedStep, Parameter, StepSeries};
use super::super::{ReasonCode, SampleWindow, TunedSettings, TuningMode, TuningReason};
use super::{Evaluation, SHIFT_STEP_PERMILLE, STEP_PERMILLE};

/// Proportional control of the deadline shift: gain in tenths, target of the p99 in thousandths of
/// the SLO, and the minimum step in thousandths of the SLO.
const GAIN_TENTHS: u128 = 4;
const TARGET_PERMILLE: u128 = 980;
const SHIFT_STEP_MIN: u32 = 10;

// === impl Evaluation ===

impl Evaluation<'_> {
    /// Makes a step towards the SLO: the deadline shift first, then slots.
    pub(super) fn tighten(&mut self, trigger: &str) -> (TunedSettings, TuningReason) {
        let settings = self.history.settings;
        if self.is_permitted(Parameter::Shift, Direction::Tighter) {
            // The shift that the sidecar measured itself is in force already: a smaller one would
            // have no effect.
            let base = settings.shift_permille.max(self.report.shift_permille).min(self.bounds.shift_permille_max);
            let step_max = (base * STEP_PERMILLE / 1000).max(SHIFT_STEP_PERMILLE);
            let raise = self.shift_error().unwrap_or(step_max / 2).clamp(SHIFT_STEP_MIN, step_max);
            let next = (base + raise).min(self.bounds.shift_permille_max);
            if next > settings.shift_permille && next > base {
                let to = TunedSettings { shift_permille: next, ..settings };
                return self.apply_step(Parameter::Shift, Direction::Tighter, to, ReasonCode::ShiftRaised, trigger);
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
            return self.apply_step(Parameter::Slots, Direction::Tighter, to, ReasonCode::SlotsLowered, trigger);
        }
        self.history.series = None;
        self.hold(
            ReasonCode::Exhausted,
            format!("{trigger}: no remaining setting within the bounds reduced late calls"),
        )
    }

    /// Returns the step of the deadline shift that the distance of the p99 from its target
    /// requires, in thousandths of the SLO.
    fn shift_error(&self) -> Option<u32> {
        let slo = self.bounds.slo.filter(|slo| !slo.is_zero())?.as_micros();
        let p99 = self.history.late.window.p99()?.as_micros();
        let beyond = (p99 * 1000 / slo).saturating_sub(TARGET_PERMILLE);
        Some(u32::try_from(beyond * GAIN_TENTHS / 10).unwrap_or(u32::MAX))
    }

    /// Makes one step, which the next evaluations observe. `reason` is the measurement behind it.
    pub(super) fn apply_step(
        &mut self,
        parameter: Parameter,
        direction: Direction,
        to: TunedSettings,
        code: ReasonCode,
        reason: &str,
    ) -> (TunedSettings, TuningReason) {
        let from = self.history.settings;
        let text = format!("{reason}: {}", self.describe_change(from, to));
        if self.bounds.mode == TuningMode::Recommend {
            // The recommendation is not applied, so it has no effect to observe.
            self.history.recommended = Some(to);
            return (to, TuningReason { code, text: format!("{text} (recommended)") });
        }
        let tightens = direction == Direction::Tighter;
        let before = if tightens { &self.history.late } else { &self.history.calm }.window.clone();
        if tightens {
            let series = self.history.series.take().filter(|series| series.parameter == parameter);
            let mut series = series.unwrap_or_else(|| StepSeries {
                parameter,
                from: Vec::new(),
                before: before.clone(),
                is_reverting: false,
            });
            series.from.push(from);
            self.history.series = Some(series);
        } else {
            // A loosened setting is not one of the settings that the series went through, so
            // reverting the series step by step from there would begin with a jump.
            self.history.series = None;
        }
        self.history.step = Some(ObservedStep { from, parameter, direction, before });
        self.set(to, code, text)
    }

    /// Reverts the last step and blocks its direction.
    #[expect(clippy::needless_pass_by_value, reason = "the step is consumed")]
    pub(super) fn roll_back(&mut self, step: ObservedStep, window: &SampleWindow) -> (TunedSettings, TuningReason) {
        let duration = self.history.block(self.now, step.parameter, step.direction);
        let to = self.previous_settings(step.from);
        self.history.series = None;
        let reason = if step.direction == Direction::Looser {
            self.describe_late(window, window.over)
        } else {
            let met = |window: &SampleWindow| format_share(window.in_time(), window.calls());
            format!("SLO met for {} of the calls, {} before the step", met(window), met(&step.before))
        };
        let text = format!(
            "{reason}: step reverted, {}, not retried for {}",
            self.describe_change(self.history.settings, to),
            format_rounded(duration)
        );
        self.set(to, ReasonCode::RolledBack, text)
    }

    /// Returns previous settings, except for the cap on weight, which moves independently and is
    /// not reverted with a step.
    const fn previous_settings(&self, to: TunedSettings) -> TunedSettings {
        TunedSettings { batch_weight_max: self.history.settings.batch_weight_max, ..to }
    }

    /// Reverts the last of the steps that had no effect. Each evaluation reverts one more.
    pub(super) fn revert_series(&mut self) -> (TunedSettings, TuningReason) {
        let Some(mut series) = self.history.series.take() else { return self.hold(ReasonCode::Held, String::new()) };
        let (parameter, steps) = (series.parameter, series.from.len());
        let Some(to) = series.from.pop() else {
            return self.hold(ReasonCode::Exhausted, "no setting within the bounds reduced late calls".to_owned());
        };
        let to = self.previous_settings(to);
        let duration = if series.from.is_empty() {
            Some(self.history.block(self.now, parameter, Direction::Tighter))
        } else {
            self.history.series = Some(series);
            None
        };
        let until =
            duration.map_or(String::new(), |duration| format!(", not retried for {}", format_rounded(duration)));
        let change = self.describe_change(self.history.settings, to);
        self.set(
            to,
            ReasonCode::NoEffect,
            format!("the share of late calls did not drop: step {steps} reverted, {change}{until}"),
        )
    }
}
