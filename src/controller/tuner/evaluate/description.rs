//! Texts of a decision: the measurement that led to it, and the change of the settings.

use std::time::Duration;

use super::super::format::{format_rounded, format_share, percent, shift};
use super::super::{SampleWindow, TunedSettings};
use super::Evaluation;

// === impl Evaluation ===

impl Evaluation<'_> {
    pub(super) fn describe_late(&self, window: &SampleWindow, duration: Duration) -> String {
        let over = format_rounded(duration);
        match (self.bounds.slo, window.p99()) {
            (Some(slo), Some(p99)) if p99 > slo => {
                format!("p99 {} over slo {} for {over}", format_rounded(p99), format_rounded(slo))
            }
            _ => format!("{} of the calls late for {over}", format_share(window.late, window.latency.count())),
        }
    }

    pub(super) fn describe_met(&self, window: &SampleWindow) -> String {
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

    pub(super) fn describe_change(&self, from: TunedSettings, to: TunedSettings) -> String {
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
