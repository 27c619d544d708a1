//! The cap on the weight of a batch: it follows the ceilings that sidecars learned. Latency and the
//! steps of other settings do not move it.

use super::super::{ReasonCode, TunedSettings, TuningMode, TuningReason};
use super::{Evaluation, STEP_PERMILLE};

// === impl Evaluation ===

impl Evaluation<'_> {
    /// Moves the cap on weight towards the ceilings that sidecars learned from refusals and
    /// failures. Latency is not considered.
    pub(super) fn adjust_weight_cap(&mut self) -> Option<(TunedSettings, TuningReason)> {
        let (least, most) = self.bounds.weight.filter(|_| self.bounds.mode == TuningMode::Auto)?;
        let settings = self.history.settings;
        let current = settings.batch_weight_max.unwrap_or(most);
        let goal = self.weight_goal(least, most);
        let step = max_weight_step(current).max(1);
        let (next, code, reason) = if goal < current {
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
        Some((to, TuningReason { code, text }))
    }

    /// Returns a cap one step above the ceiling, since a sidecar probes its server with batches
    /// that are larger by an eighth.
    pub(super) fn weight_goal(&self, least: u64, most: u64) -> u64 {
        let above = |ceiling: u64| ceiling.saturating_add(max_weight_step(ceiling).max(1));
        self.report.weight_ceiling.map_or(most, above).clamp(least, most)
    }
}

const fn max_weight_step(weight: u64) -> u64 {
    let permille = STEP_PERMILLE as u64;
    weight / 1000 * permille + weight % 1000 * permille / 1000
}
