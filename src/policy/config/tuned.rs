//! Values set by the controller's tuner, applied over a policy within the policy's own bounds,
//! whatever the controller sends.
//!
//! The policy remains the limit: no tuned value exceeds its limits, and `tuning` defines which
//! values may be tuned at all. The search for a value is not part of this module.

use std::collections::BTreeMap;

use super::change::is_fixed;
use super::effective::Setting;
use super::env::SettingSource;
use super::policy::{LimitsOverride, Policy};
use super::units::{Share, parse_share};
use crate::api::v1alpha1::{BatchPolicySpec, OpenEnum, TuningBounds, TuningMode};

/// Maximum deadline shift in thousandths of the SLO if the policy sets none, the default of
/// `tuning.bounds.deadlineShift.max`. The rest of the SLO must still suffice for an execution.
const SHIFT_PERMILLE_MAX: u32 = 600;

/// Tuned values. An absent value is the policy's own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TunedValues {
    /// Minimum by which SLO deadlines are moved earlier, in thousandths of the SLO.
    pub shift_permille: u32,
    /// Maximum number of batches in flight.
    pub slots_max: Option<u32>,
    /// Maximum weight of a batch.
    pub batch_weight_max: Option<u64>,
    /// Weights of tenants, which replace those of the policy.
    pub tenant_weights: BTreeMap<String, u32>,
}

// === impl TunedValues ===

impl TunedValues {
    /// Restricts the values to what the policy allows: none unless the tuning mode is `Auto`, and
    /// within its bounds.
    #[must_use]
    pub fn clamped_to(self, spec: &BatchPolicySpec) -> Self {
        let tuning = spec.tuning.as_ref();
        let mode = tuning.and_then(|tuning| tuning.mode.as_ref()).map_or(Some(TuningMode::Auto), OpenEnum::as_known);
        if mode != Some(TuningMode::Auto) {
            return Self::default();
        }
        let none = TuningBounds::default();
        let bounds = tuning.and_then(|tuning| tuning.bounds.as_ref()).unwrap_or(&none);
        let shift = bounds.deadline_shift.as_ref().and_then(|shift| parse_share(&shift.max.as_ref()?.0));
        let slots = bounds.slots_max.clone().unwrap_or_default();
        // A weight is tuned only where the policy bounds it, because it has no default to start
        // from.
        let weight = bounds.batch_weight_max.as_ref().filter(|weight| weight.max.is_some());
        Self {
            shift_permille: self.shift_permille.min(shift.map_or(SHIFT_PERMILLE_MAX, |share| share.ppm() / 1000)),
            slots_max: self
                .slots_max
                .map(|tuned| u32::try_from(clamp(tuned.into(), slots.min, slots.max)).unwrap_or(u32::MAX)),
            batch_weight_max: weight
                .and_then(|bounds| self.batch_weight_max.map(|tuned| clamp(tuned, bounds.min, bounds.max))),
            tenant_weights: self.tenant_weights,
        }
    }
}

/// Clamps a number to its bounds. If they cross, the upper one applies.
fn clamp(number: u64, min: Option<u64>, max: Option<u64>) -> u64 {
    number.max(min.unwrap_or(1)).min(max.unwrap_or(u64::MAX)).max(1)
}

// === impl Policy ===

impl Policy {
    /// Applies tuned values, which never exceed a limit of the policy. Each is marked with the
    /// source `tuned`.
    #[must_use]
    pub fn with_tuned(mut self, tuned: &TunedValues) -> Self {
        if let Some(slots) = tuned.slots_max.filter(|slots| self.limits.slots_max.is_none_or(|own| *slots < own)) {
            self.limits.slots_max = Some(slots);
            self.set_tuned_limit("slotsMax", &slots.to_string(), |own| own.slots_max.is_none());
        }
        if let Some(weight) = tuned.batch_weight_max {
            if self.limits.batch_weight_max.is_none_or(|own| weight < own) {
                self.limits.batch_weight_max = Some(weight);
                self.set_tuned_limit("batchWeightMax", &weight.to_string(), |own| own.batch_weight_max.is_none());
            }
            let own = self.routes.iter_mut().filter_map(|route| route.limits.batch_weight_max.as_mut());
            own.for_each(|own| *own = weight.min(*own));
        }
        if tuned.shift_permille > 0 {
            self.shift_permille = tuned.shift_permille.min(1000);
            self.set_tuned_setting("tuned.deadlineShift", Share::from_ppm(self.shift_permille * 1000).to_string());
        }
        for (tenant, weight) in &tuned.tenant_weights {
            self.tenant_weights.insert(tenant.clone(), (*weight).max(1));
        }
        if !tuned.tenant_weights.is_empty() {
            let all: Vec<String> =
                self.tenant_weights.iter().map(|(name, weight)| format!("{name}: {weight}")).collect();
            self.set_tuned_setting("tenants.weights", format!("{{{}}}", all.join(", ")));
        }
        self
    }

    /// Records the setting of a tuned limit: that of the policy, and those listed for routes that
    /// inherit it.
    fn set_tuned_limit(&mut self, name: &str, value: &str, inherits: impl Fn(&LimitsOverride) -> bool) {
        self.set_tuned_setting(&format!("limits.{name}"), value.to_owned());
        let routes = self.routes.iter().enumerate().filter(|(_, route)| inherits(&route.limits));
        let inherited: Vec<String> = routes.map(|(index, _)| format!("routes[{index}].limits.{name}")).collect();
        for setting in self.settings.iter_mut().filter(|setting| inherited.contains(&setting.path)) {
            value.clone_into(&mut setting.value);
            setting.source = SettingSource::Tuned;
        }
    }

    /// Records the setting of a tuned value, in its place or before the settings that are fixed at
    /// startup.
    fn set_tuned_setting(&mut self, path: &str, value: String) {
        let setting = Setting { path: path.to_owned(), value, source: SettingSource::Tuned };
        match self.settings.iter_mut().find(|known| known.path == path) {
            Some(known) => *known = setting,
            None => {
                let fixed = self.settings.iter().position(is_fixed);
                self.settings.insert(fixed.unwrap_or(self.settings.len()), setting);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::load;
    use super::*;
    use crate::config::tests::{built, setting};

    fn spec(text: &str) -> BatchPolicySpec {
        load(text, "p").unwrap().spec
    }

    fn tuned() -> TunedValues {
        TunedValues {
            shift_permille: 700,
            slots_max: Some(6),
            batch_weight_max: Some(900),
            tenant_weights: [("a".to_owned(), 0)].into(),
        }
    }

    #[test]
    fn tuned_values_are_clamped_to_the_bounds_of_the_policy() {
        let within = |text: &str| {
            let TunedValues { shift_permille, slots_max, batch_weight_max, .. } = tuned().clamped_to(&spec(text));
            (shift_permille, slots_max, batch_weight_max)
        };
        assert_eq!(within("{}"), (600, Some(6), None), "a weight that the policy does not bound is not tuned");
        let text = "tuning: {bounds: {slotsMax: {min: 1, max: 4}, batchWeightMax: {min: 1000, max: 2000}, deadlineShift: {max: 25%}}}";
        assert_eq!(within(text), (250, Some(4), Some(1000)));
        assert_eq!(within("tuning: {bounds: {slotsMax: {min: 8, max: 9}}}"), (600, Some(8), None));
        for mode in ["Recommend", "Manual"] {
            assert_eq!(tuned().clamped_to(&spec(&format!("tuning: {{mode: {mode}}}"))), TunedValues::default());
        }
    }

    #[test]
    fn a_tuned_limit_is_only_ever_lowered_and_has_the_source_tuned() {
        let text = "limits: {slotsMax: 8, batchWeightMax: 500}\nroutes: [{path: /a, limits: {batchWeightMax: 2000}}, {path: /b}]";
        let now = built(text).with_tuned(&tuned());
        assert_eq!((now.limits.slots_max, now.limits.batch_weight_max, now.shift_permille), (Some(6), Some(500), 700));
        assert_eq!([0, 1].map(|route| now.routes[route].limits.batch_weight_max), [Some(900), None]);
        assert_eq!(now.tenant_weights.get("a"), Some(&1));
        assert_eq!(setting(&now, "limits.slotsMax"), ("6", "tuned".to_owned()));
        assert_eq!(setting(&now, "routes[0].limits.slotsMax"), ("6", "tuned".to_owned()), "inherited");
        assert_eq!(setting(&now, "tuned.deadlineShift"), ("70%", "tuned".to_owned()));
        assert_eq!(setting(&now, "limits.batchWeightMax").1, "file:1");
        let more = built("limits: {slotsMax: 2}").with_tuned(&tuned());
        assert_eq!((more.limits.slots_max, more.limits.batch_weight_max), (Some(2), Some(900)));
    }

    #[test]
    fn tuned_values_are_reported_as_changes() {
        let before = built("limits: {slotsMax: 8}");
        let after = before.clone().with_tuned(&tuned());
        let (now, pending) = after.hot_reload_onto(&before);
        assert_eq!((now.shift_permille, pending.len()), (700, 0));
        let changes = now.changes(&before);
        let paths: Vec<_> = changes.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(paths, ["limits.batchWeightMax", "limits.slotsMax", "tenants.weights", "tuned.deadlineShift"]);
        assert_eq!(built("{}").with_tuned(&TunedValues::default()), built("{}"));
    }
}
