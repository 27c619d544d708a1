//! Validates a `SidecarConfig` with the loader, rules and messages of a policy file.
//!
//! A controller may be newer than the sidecar, and its policy may contain keys that this version
//! does not know. Refusing the whole policy would leave the pod on older settings than the policy's
//! author sees, so unknown keys are left out and reported. Their meaning must not be guessed,
//! though: a route with an unknown key is not merged, since the key may restrict the calls that may
//! share a batch.

use serde_json::{Value, json};

use super::super::sources::SettingsSources;
use crate::config::{self, ConfigCode, ConfigErrors, LoadError, Origin, Policy, TunedValues};
use crate::control::wire::{ExperimentArm, SidecarConfig, TunedSettings};

/// Factor of [`LEFT_OUT_MAX`]: once as many keys as the product are removed, no further pass
/// removes keys. A few passes suffice, because a pass finds the unknown keys of all objects except
/// those below another unknown key, which are removed with it.
const ROUNDS_MAX: usize = 4;
/// Name of the settings in findings, in place of the path of a file.
const NAME: &str = "the controller's settings";

/// Settings that may be put in force.
#[derive(Debug)]
pub(super) struct ValidatedConfig {
    pub(super) policy: Policy,
    /// Keys that this version does not know.
    pub(super) left_out: Vec<String>,
    /// The tuner's settings, as far as the policy permits them.
    pub(super) settings: TunedSettings,
}

/// Builds the policy of a `SidecarConfig`. If there is an `arm`, its profile replaces the policy's
/// limits and scheduling.
pub(super) fn judge(
    config: &SidecarConfig,
    arm: Option<&ExperimentArm>,
    origin: Origin,
    sources: &SettingsSources,
) -> Result<ValidatedConfig, LoadError> {
    let mut spec = match &config.policy {
        Value::Null => json!({}),
        policy => policy.clone(),
    };
    if let Some(arm) = arm {
        // A profile replaces the policy's own limits and scheduling: what it omits has its default.
        for key in ["limits", "scheduling"] {
            spec[key] = arm.spec.get(key).cloned().unwrap_or_else(|| json!({}));
        }
    }
    // The controller has merged the profile into the rest. Its name is informational.
    if let Some(keys) = spec.as_object_mut() {
        keys.remove("profileRef");
    }
    let mut left_out = Vec::new();
    // Remove unknown keys until the rest is valid, or until no key can be removed.
    let loaded = loop {
        match config::load(&spec.to_string(), NAME) {
            Ok(loaded) => break loaded.into_pod_settings(origin),
            Err(errors) if left_out.len() < ROUNDS_MAX * LEFT_OUT_MAX => {
                let before = left_out.len();
                leave_out(&mut spec, &errors, &mut left_out);
                if left_out.len() == before {
                    return Err(errors.into());
                }
            }
            Err(errors) => return Err(errors.into()),
        }
    };
    let tuned = tuned(&config.settings).clamped_to(&loaded.spec);
    let policy = config::build(Some(&loaded), &sources.overrides, &sources.machine)?.with_tuned(&tuned);
    let settings = TunedSettings {
        shift_permille: tuned.shift_permille,
        slots_max: tuned.slots_max,
        batch_weight_max: tuned.batch_weight_max,
        tenant_weights: tuned.tenant_weights,
        start: None,
    };
    Ok(ValidatedConfig { policy, left_out, settings })
}

/// Maximum number of keys that are removed in one pass: the schema grows by a few keys a year.
const LEFT_OUT_MAX: usize = 64;

fn tuned(settings: &TunedSettings) -> TunedValues {
    TunedValues {
        shift_permille: settings.shift_permille,
        slots_max: settings.slots_max,
        batch_weight_max: settings.batch_weight_max,
        tenant_weights: settings.tenant_weights.clone(),
    }
}

/// Removes the keys that this version does not know, unless there are other errors.
fn leave_out(spec: &mut Value, errors: &ConfigErrors, left_out: &mut Vec<String>) {
    let is_unknown = |code: ConfigCode| matches!(code, ConfigCode::UnknownKey | ConfigCode::NotSupportedYet);
    if !errors.findings.iter().all(|finding| is_unknown(finding.code)) || errors.findings.len() > LEFT_OUT_MAX {
        return;
    }
    for finding in &errors.findings {
        let path = finding.path.as_str();
        if !remove(spec, path) {
            continue;
        }
        left_out.push(path.to_owned());
        // A route with an unknown key is not merged: see the module.
        let index = path.strip_prefix("routes[").and_then(|rest| rest.split_once(']')?.0.parse::<usize>().ok());
        if let Some(index) = index
            && let Some(route) = spec["routes"].get_mut(index)
            && route.is_object()
        {
            route["mode"] = json!("Passthrough");
        }
    }
}

/// Removes the key at a path such as `routes[0].limits.x`. Returns `false` for a list element,
/// which cannot be left out, because the indices of its successors would change; and for a key that
/// contains a dot or a bracket, which is not found again, so that its settings are refused.
fn remove(spec: &mut Value, path: &str) -> bool {
    let path = format!(".{path}");
    let Some((parents, key)) = path.rsplit_once('.').filter(|(_, key)| !key.contains('[')) else { return false };
    let pointer = parents.replace(['.', '['], "/").replace(']', "");
    spec.pointer_mut(&pointer).and_then(Value::as_object_mut).is_some_and(|keys| keys.remove(key).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Mode;

    fn judge_pushed(config: &SidecarConfig, arm: Option<&ExperimentArm>) -> Result<ValidatedConfig, LoadError> {
        judge(config, arm, Origin::Controller, &SettingsSources::default())
    }

    fn of(policy: Value) -> Result<ValidatedConfig, LoadError> {
        judge_pushed(&SidecarConfig { policy, ..SidecarConfig::default() }, None)
    }

    #[test]
    fn a_pushed_config_is_validated_like_a_file() {
        let judged = of(json!({"limits": {"batchItemsMax": 7}, "profileRef": {"name": "p"}, "selector": {"matchLabels": {"a": "b"}}})).unwrap();
        assert_eq!((judged.policy.limits.batch_items_max, judged.left_out.len()), (7, 0));
        assert_eq!(of(Value::Null).unwrap().policy.limits.batch_items_max, 128);
        for wrong in [
            json!({"limits": {"batchItemsMax": 0}}),
            json!([1]),
            json!("x"),
            json!({"limits": {"batchItemsMax": "7"}, "new": 1}),
        ] {
            assert!(of(wrong).is_err());
        }
    }

    #[test]
    fn unknown_keys_of_a_newer_controller_are_left_out_and_reported() {
        let judged = of(json!({"limits": {"batchItemsMax": 7, "batchJoulesMax": 3}, "weather": {"rain": [1]}, "priority": {"classes": [{"name": "a", "colour": "red"}]}})).unwrap();
        assert_eq!(judged.policy.limits.batch_items_max, 7);
        let mut left_out = judged.left_out;
        left_out.sort();
        assert_eq!(left_out, ["limits.batchJoulesMax", "priority.classes[0].colour", "weather"]);
    }

    #[test]
    fn a_route_with_an_unknown_key_is_not_merged() {
        let routes = json!([{"path": "/a", "mergeOn": {"cookies": ["tenant"]}}, {"path": "/b"}, {"path": "/c", "weather": "rain"}]);
        let judged = of(json!({ "routes": routes })).unwrap();
        let modes: Vec<Mode> = judged.policy.routes.iter().map(|route| route.mode).collect();
        assert_eq!(modes, [Mode::Passthrough, Mode::Batch, Mode::Passthrough]);
        assert_eq!(judged.left_out, ["routes[0].mergeOn.cookies", "routes[2].weather"]);
    }

    #[test]
    fn an_unknown_value_is_refused_although_unknown_keys_are_not() {
        assert_eq!(of(json!({"mode": "Observe"})).unwrap().policy.mode, Mode::Observe);
        assert!(of(json!({"mode": "Dream"})).is_err());
    }

    #[test]
    fn keys_that_cannot_be_found_again_are_refused() {
        assert!(of(json!({"a.b": 1})).is_err());
        assert!(of(json!({"a[0]": 1})).is_err());
        assert!(of(json!({"a[": 1})).is_err());
    }

    #[test]
    fn an_experiment_arm_replaces_limits_and_scheduling() {
        let policy = json!({"limits": {"batchItemsMax": 7, "slotsMax": 3}, "scheduling": {"policy": "WorkConserving"}});
        let arm = ExperimentArm { spec: json!({"limits": {"batchItemsMax": 9}}), ..ExperimentArm::default() };
        let config = SidecarConfig { policy, ..SidecarConfig::default() };
        let on = judge_pushed(&config, Some(&arm)).unwrap().policy;
        assert_eq!((on.limits.batch_items_max, on.limits.slots_max), (9, None));
        assert_eq!(on.scheduling.policy, config::SchedulingPolicy::Adaptive);
        assert_eq!(judge_pushed(&config, None).unwrap().policy.limits.slots_max, Some(3));
    }

    #[test]
    fn tuned_settings_are_clamped_to_the_bounds_of_the_policy() {
        let settings = TunedSettings {
            slots_max: Some(9),
            shift_permille: 900,
            start: Some(Default::default()),
            ..TunedSettings::default()
        };
        let policy = json!({"tuning": {"bounds": {"slotsMax": {"max": 2}, "deadlineShift": {"max": "30%"}}}});
        let judged = judge_pushed(&SidecarConfig { policy, settings, ..SidecarConfig::default() }, None).unwrap();
        assert_eq!((judged.policy.limits.slots_max, judged.policy.shift_permille), (Some(2), 300));
        let expected = TunedSettings { slots_max: Some(2), shift_permille: 300, ..TunedSettings::default() };
        assert_eq!(judged.settings, expected);
    }
}
