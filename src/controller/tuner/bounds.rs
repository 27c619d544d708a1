//! Bounds within which the slow loop may move settings: the policy's `tuning`, never above its
//! `limits`.

use std::time::Duration;

use super::TunedSettings;
use crate::api::v1alpha1::{self as api, TuningGranularity, TuningMode};
use crate::config::{Limits, parse_share};

/// Default of `tuning.bounds.deadlineShift.max`, in thousandths of the SLO: the remaining time must
/// still hold one execution.
const SHIFT_PERMILLE_DEFAULT: u32 = 600;
/// Maximum deadline shift: the whole SLO.
const SHIFT_PERMILLE_MAX: u32 = 1000;

/// Bounds of tuning, derived from a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TuningBounds {
    /// Tuning mode.
    pub mode: TuningMode,
    /// Pooling of pods.
    pub granularity: TuningGranularity,
    /// Maximum 99th percentile of the latency, if it is the same for all routes. It is used for
    /// messages only: a sidecar decides by the SLO of a call's own route whether the call is late.
    pub slo: Option<Duration>,
    /// `true` if a route, a priority class or the policy as a whole has a latency SLO.
    pub promised: bool,
    /// Minimum and maximum of batches in flight: at least 1, never above `limits.slotsMax`. The
    /// maximum is `u32::MAX` if the policy sets none.
    pub slots: (u32, u32),
    /// `limits.slotsMax`, if set: the limit of a sidecar without settings.
    pub slots_own: Option<u32>,
    /// Minimum and maximum of a batch's weight; `None` unless the policy bounds it.
    pub weight: Option<(u64, u64)>,
    /// `limits.batchWeightMax`, if set.
    pub weight_limit: Option<u64>,
    /// Maximum deadline shift, in thousandths of the SLO.
    pub shift_permille_max: u32,
}

// === impl TuningBounds ===

impl TuningBounds {
    /// Derives the bounds of a policy. Enum values of a later version and shares that cannot be
    /// parsed count as the default. Bounds that cross, or lie above the limits, are clamped.
    #[must_use]
    pub fn new(tuning: Option<&api::TuningSpec>, (slo, promised): (Option<Duration>, bool), limits: &Limits) -> Self {
        let spec = tuning.and_then(|tuning| tuning.bounds.as_ref());
        let mode = tuning.and_then(|tuning| tuning.mode.as_ref()).and_then(api::OpenEnum::as_known);
        let granularity = tuning.and_then(|tuning| tuning.granularity.as_ref()).and_then(api::OpenEnum::as_known);
        let most = limits.slots_max.map_or(u32::MAX, |own| own.max(1));
        let slots = spec.and_then(|bounds| bounds.slots_max.as_ref());
        let small = |number: Option<u64>, otherwise| number.map_or(otherwise, |n| u32::try_from(n).unwrap_or(u32::MAX));
        let slots_most = small(slots.and_then(|slots| slots.max), most).clamp(1, most);
        let slots_least = small(slots.and_then(|slots| slots.min), 1).clamp(1, slots_most);
        let weight = spec.and_then(|bounds| bounds.batch_weight_max.as_ref());
        // A minimum weight alone bounds nothing. The sidecar applies the same rule.
        let weight = weight.and_then(|weight| Some((weight.min.unwrap_or(1), weight.max?))).map(|(least, most)| {
            let most = limits.batch_weight_max.map_or(most, |own| most.min(own)).max(1);
            (least.clamp(1, most), most)
        });
        let shift = spec.and_then(|bounds| bounds.deadline_shift.as_ref()).and_then(|shift| shift.max.as_ref());
        let shift = shift.and_then(|share| parse_share(&share.0)).map(|share| share.ppm() / 1000);
        Self {
            mode: mode.unwrap_or_default(),
            granularity: granularity.unwrap_or_default(),
            slo,
            promised,
            slots: (slots_least, slots_most),
            slots_own: limits.slots_max.map(|own| own.max(1)),
            weight,
            weight_limit: limits.batch_weight_max,
            shift_permille_max: shift.unwrap_or(SHIFT_PERMILLE_DEFAULT).min(SHIFT_PERMILLE_MAX),
        }
    }

    /// Returns the nearest settings within the bounds.
    #[must_use]
    pub fn clamp(&self, settings: TunedSettings) -> TunedSettings {
        let slots = |slots: u32| slots.clamp(self.slots.0, self.slots.1);
        let weight = |weight: u64| self.weight.map(|(least, most)| weight.clamp(least, most));
        TunedSettings {
            shift_permille: settings.shift_permille.min(self.shift_permille_max),
            // An absent setting means the limit itself, which may lie above the bounds. If the
            // policy sets no maximum, a setting that remains from before is removed.
            slots_max: if self.has_slots_max() {
                settings.slots_max.map_or_else(|| self.slots_setting(u32::MAX), |own| Some(slots(own)))
            } else {
                None
            },
            batch_weight_max: settings.batch_weight_max.map_or_else(|| self.weight_setting(u64::MAX), weight),
        }
    }

    /// Returns the settings to push to a pod that has not been evaluated yet, given settings
    /// learned from other pods.
    #[must_use]
    pub fn initial_settings(&self, settings: TunedSettings) -> TunedSettings {
        match self.mode {
            TuningMode::Auto => self.clamp(settings),
            TuningMode::Recommend | TuningMode::Manual => TunedSettings::default(),
        }
    }

    /// Returns `true` if the policy sets a maximum of batches in flight, as a limit or as a tuning
    /// bound.
    pub(super) const fn has_slots_max(&self) -> bool {
        self.slots.1 < u32::MAX
    }

    /// Clamps a number of batches in flight to the bounds and converts it to a setting; `None` if
    /// it equals the limit.
    pub(super) fn slots_setting(&self, slots: u32) -> Option<u32> {
        let slots = slots.clamp(self.slots.0, self.slots.1);
        (slots != self.slots_own.unwrap_or(u32::MAX)).then_some(slots)
    }

    /// Clamps a batch weight to the bounds and converts it to a setting; `None` if the policy does
    /// not bound it or if it equals the limit.
    pub(super) fn weight_setting(&self, weight: u64) -> Option<u64> {
        let (least, most) = self.weight?;
        let weight = weight.clamp(least, most);
        (Some(weight) != self.weight_limit).then_some(weight)
    }

    /// Returns the limit of batches in flight under these settings; the upper bound if there is
    /// none.
    pub(super) fn effective_slots_max(&self, settings: TunedSettings) -> u32 {
        settings.slots_max.or(self.slots_own).unwrap_or(u32::MAX).clamp(self.slots.0, self.slots.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, MachineLimits, Overrides};

    fn bounds(tuning: &str, limits: &str) -> TuningBounds {
        let text = format!("limits: {limits}");
        let policy =
            config::build(Some(&config::load(&text, "p").unwrap()), &Overrides::default(), &MachineLimits::default())
                .unwrap();
        let tuning: api::TuningSpec = serde_json::from_str(tuning).unwrap();
        TuningBounds::new(Some(&tuning), (Some(Duration::from_millis(150)), true), &policy.limits)
    }

    #[test]
    fn an_empty_policy_is_tuned_by_the_defaults_of_the_schema() {
        let found = bounds("{}", "{}");
        let expected = TuningBounds {
            mode: TuningMode::Auto,
            granularity: TuningGranularity::Pod,
            slo: Some(Duration::from_millis(150)),
            promised: true,
            slots: (1, u32::MAX),
            slots_own: None,
            weight: None,
            weight_limit: None,
            shift_permille_max: 600,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn bounds_never_lie_above_the_limits_and_never_cross() {
        let wide = r#"{"bounds": {"slotsMax": {"min": 9, "max": 99}, "batchWeightMax": {"min": 900, "max": 5000}}}"#;
        let found = bounds(wide, "{slotsMax: 4, batchWeightMax: 600}");
        assert_eq!((found.slots, found.weight), ((4, 4), Some((600, 600))));
        let found = bounds(r#"{"bounds": {"slotsMax": {"min": 0, "max": 0}, "batchWeightMax": {"min": 7}}}"#, "{}");
        assert_eq!((found.slots, found.weight), ((1, 1), None), "a least weight alone bounds nothing");
        let found = bounds(r#"{"bounds": {"batchWeightMax": {"min": 7}}}"#, "{batchWeightMax: 600}");
        assert_eq!(found.weight, None, "with a limit neither: a sidecar holds it to what the policy bounds");
    }

    #[test]
    fn a_bound_is_omitted_only_if_the_limit_implies_it() {
        let below = r#"{"bounds": {"slotsMax": {"max": 4}, "batchWeightMax": {"max": 2000}}}"#;
        let first = |limits| {
            let TunedSettings { slots_max, batch_weight_max, .. } =
                bounds(below, limits).clamp(TunedSettings::default());
            (slots_max, batch_weight_max)
        };
        assert_eq!(first("{}"), (Some(4), Some(2000)), "there are no limits");
        assert_eq!(first("{slotsMax: 4, batchWeightMax: 2000}"), (None, None));
        assert_eq!(first("{slotsMax: 2, batchWeightMax: 900}"), (None, None));
        assert_eq!(bounds("{}", "{}").clamp(TunedSettings::default()), TunedSettings::default());
        let walled = TunedSettings { slots_max: Some(3), ..TunedSettings::default() };
        assert_eq!(bounds("{}", "{}").clamp(walled), TunedSettings::default(), "the policy sets no limit");
        assert_eq!(bounds("{}", "{slotsMax: 8}").clamp(walled), walled);
    }

    #[test]
    fn unknown_words_and_shares_are_replaced_by_the_default() {
        let found =
            bounds(r#"{"mode": "Later", "granularity": "Zone", "bounds": {"deadlineShift": {"max": "x"}}}"#, "{}");
        assert_eq!(
            (found.mode, found.granularity, found.shift_permille_max),
            (TuningMode::Auto, TuningGranularity::Pod, 600)
        );
        let found = bounds(
            r#"{"mode": "Manual", "granularity": "Workload", "bounds": {"deadlineShift": {"max": "25%"}}}"#,
            "{}",
        );
        assert_eq!(
            (found.mode, found.granularity, found.shift_permille_max),
            (TuningMode::Manual, TuningGranularity::Workload, 250)
        );
    }
}
