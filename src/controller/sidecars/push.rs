//! Builds the `SidecarConfig` of a sidecar from a policy, the profile of its pod and the tuned
//! settings. Pure.
//!
//! Many pods get the same configuration, so each frame is encoded once. The hash identifies the
//! configuration and is returned in reports.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::v1alpha1::{BatchPolicySpec, BatchProfileSpec, Mode};
use crate::cluster_state::ObjectMetadata;
use crate::control::server::EncodedPush;
use crate::control::wire::{
    AppliedConfig, EncodeError, ExperimentArm, LimiterState, PushedCurve, SidecarConfig, StartValues, TunedSettings,
};
use crate::injector;
use crate::tuner;

/// Lifetime of an experiment arm that is not renewed. A restarted controller is back long before.
const ARM_LIFETIME: Duration = Duration::from_secs(60);
/// Interval at which an arm is renewed; two messages may be lost.
pub(super) const ARM_RENEWAL_INTERVAL: Duration = Duration::from_secs(20);
/// Number of hexadecimal digits of a hash: 64 bits make collisions negligible.
const HASH_DIGITS: usize = 16;

/// The configuration of one sidecar.
#[derive(Debug, Clone)]
pub(super) struct PushedConfig {
    /// The hash that reports contain once it is in force.
    pub(super) hash: String,
    pub(super) push: EncodedPush,
    /// Set if it contains an arm that expires, so that it must be renewed.
    pub(super) needs_renewal: bool,
    /// The content, for variants with additional fields.
    config: SidecarConfig,
}

/// Builds the configurations of one policy's pods and caches equal ones.
pub(super) struct ConfigBuilder<'a> {
    meta: Option<&'a ObjectMetadata>,
    spec: &'a BatchPolicySpec,
    otherwise: Mode,
    known: HashMap<ConfigKey, Arc<PushedConfig>>,
}

/// The profile in force, and the profile of one pod if it differs.
#[derive(Debug, Clone, Copy)]
pub(super) struct AssignedProfiles<'a> {
    /// The profile in force, or the profile of a pod without support for arms.
    pub(super) base: (&'a str, &'a BatchProfileSpec),
    /// The profile under trial.
    pub(super) arm: Option<(&'a str, &'a BatchProfileSpec)>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ConfigKey {
    base: String,
    arm: Option<String>,
    settings: tuner::TunedSettings,
    annotations: BTreeMap<String, String>,
}

/// The annotations that override a policy.
const OVERRIDE_ANNOTATIONS: [&str; 2] = ["groupage.dev/mode", "groupage.dev/drain-timeout"];

// === impl ConfigBuilder ===

impl<'a> ConfigBuilder<'a> {
    /// Creates the builder of a policy; `meta` is absent for pods without one. `otherwise` is the
    /// mode that applies if none is specified.
    pub(super) fn new(meta: Option<&'a ObjectMetadata>, spec: &'a BatchPolicySpec, otherwise: Mode) -> Self {
        Self { meta, spec, otherwise, known: HashMap::new() }
    }

    /// Returns the configuration of a pod with these annotations.
    ///
    /// # Errors
    /// Returns an error if the configuration does not fit into a frame.
    pub(super) fn build(
        &mut self,
        annotations: &BTreeMap<String, String>,
        given: AssignedProfiles<'_>,
        settings: tuner::TunedSettings,
    ) -> Result<Arc<PushedConfig>, EncodeError> {
        let laid = |key: &&str| Some(((*key).to_owned(), annotations.get(*key)?.clone()));
        let key = ConfigKey {
            base: given.base.0.to_owned(),
            arm: given.arm.map(|(name, _)| name.to_owned()),
            settings,
            annotations: OVERRIDE_ANNOTATIONS.iter().filter_map(laid).collect(),
        };
        if let Some(pushed) = self.known.get(&key) {
            return Ok(pushed.clone());
        }
        let pushed = Arc::new(PushedConfig::new(self.config(&key.annotations, given, settings))?);
        self.known.insert(key, pushed.clone());
        Ok(pushed)
    }

    fn config(
        &self,
        annotations: &BTreeMap<String, String>,
        given: AssignedProfiles<'_>,
        settings: tuner::TunedSettings,
    ) -> SidecarConfig {
        let (base, profile) = given.base;
        let spec = BatchPolicySpec {
            limits: profile.limits.clone(),
            scheduling: profile.scheduling.clone(),
            ..self.spec.clone()
        };
        let experiment = given.arm.map(|(name, spec)| ExperimentArm {
            arm: name.to_owned(),
            profile: name.to_owned(),
            // Serializing plain strings and numbers does not fail.
            spec: serde_json::to_value(spec).unwrap_or_else(|_| json!({})),
            expires_after_ms: u64::try_from(ARM_LIFETIME.as_millis()).unwrap_or(u64::MAX),
        });
        SidecarConfig {
            source: self.meta.map(|meta| meta.uid.clone()).unwrap_or_default(),
            name: self.meta.map(|meta| meta.key.to_string()).unwrap_or_default(),
            generation: self.meta.and_then(|meta| u64::try_from(meta.generation).ok()).unwrap_or_default(),
            profile: base.to_owned(),
            policy: injector::runtime_config(spec, annotations, self.otherwise),
            settings: TunedSettings {
                shift_permille: settings.shift_permille,
                slots_max: settings.slots_max,
                batch_weight_max: settings.batch_weight_max,
                ..TunedSettings::default()
            },
            experiment,
            ..SidecarConfig::default()
        }
    }
}

// === impl PushedConfig ===

impl PushedConfig {
    fn new(mut config: SidecarConfig) -> Result<Self, EncodeError> {
        let json = serde_json::to_value(&config).map_or_else(|_| Value::Null.to_string(), |value| value.to_string());
        config.hash = blake3::hash(json.as_bytes()).to_hex().chars().take(HASH_DIGITS).collect();
        let push = EncodedPush::config(config.clone())?;
        Ok(Self { hash: config.hash.clone(), push, needs_renewal: config.experiment.is_some(), config })
    }

    #[cfg(test)]
    pub(super) const fn config(&self) -> &SidecarConfig {
        &self.config
    }

    /// Returns `true` if this configuration is in force. Tuned settings are ignored: they change
    /// every few seconds, and no status waits for them.
    pub(super) fn is_in_force(&self, now: &AppliedConfig) -> bool {
        let SidecarConfig { source, generation, profile, experiment, .. } = &self.config;
        let profile = experiment.as_ref().map_or(profile, |arm| &arm.profile);
        (source, *generation, profile) == (&now.source, now.generation, &now.profile)
    }

    /// Returns the frame for a starting sidecar, with learned starting values; without them if they
    /// do not fit.
    pub(super) fn with_start(&self, start: &tuner::learned::InitialState) -> EncodedPush {
        let curve = |curve: &tuner::learned::LearnedCurve| PushedCurve {
            class: curve.class.clone(),
            points: curve.points.clone(),
            tail_permille: curve.tail_permille,
            weight_milli: curve.weight_milli,
            limiter: start.limiter.map(|limiter| LimiterState {
                limit: start.upstream.slots,
                open: limiter.no_gain_permille.map(|_| "no_gain".to_owned()).unwrap_or_default(),
                item_permille: limiter.no_gain_permille,
                base_us: limiter.base_micros,
            }),
        };
        let mut config = self.config.clone();
        config.settings.start = Some(StartValues {
            slots: start.upstream.slots,
            lead_us: start.upstream.lead_nanos / 1000,
            mean_us: start.upstream.mean_nanos / 1000,
            explore_permille: start.upstream.explore_permille,
            curves: start.curve.iter().map(curve).collect(),
        });
        EncodedPush::config(config).unwrap_or_else(|_| self.push.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_state::fixtures::meta;

    fn profile(text: &str) -> BatchProfileSpec {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_profile_replaces_the_limits_of_the_policy_and_annotations_override_both() {
        let meta = ObjectMetadata { generation: 7, ..meta("a", "emb") };
        let spec: BatchPolicySpec = serde_json::from_str(
            r#"{"limits": {"slotsMax": 4}, "mode": "Batch", "selector": {"matchLabels": {"a": "b"}}, "tuning": {"mode": "Auto"}}"#,
        )
        .unwrap();
        let (old, new) = (profile(r#"{"limits": {"slotsMax": 2}}"#), profile(r#"{"limits": {"slotsMax": 9}}"#));
        let mut builder = ConfigBuilder::new(Some(&meta), &spec, Mode::Batch);
        let none = BTreeMap::new();
        let base = AssignedProfiles { base: ("old", &old), arm: None };
        let pushed = builder.build(&none, base, tuner::TunedSettings::default()).unwrap();
        let config = &pushed.config;
        assert_eq!((config.source.as_str(), config.generation, config.profile.as_str()), ("uid-emb", 7, "old"));
        assert_eq!(config.policy, json!({"limits": {"slotsMax": 2}, "mode": "Batch", "tuning": {"mode": "Auto"}}));
        assert!(!pushed.needs_renewal && pushed.hash.len() == 16);
        let arm = AssignedProfiles { arm: Some(("new", &new)), ..base };
        let tried = builder.build(&none, arm, tuner::TunedSettings::default()).unwrap();
        assert_eq!(tried.config.experiment.as_ref().unwrap().spec, json!({"limits": {"slotsMax": 9}}));
        assert!(tried.needs_renewal && tried.hash != pushed.hash);
        let off = BTreeMap::from([("groupage.dev/mode".to_owned(), "passthrough".to_owned())]);
        let over = builder.build(&off, base, tuner::TunedSettings::default()).unwrap();
        assert_eq!(over.config.policy["mode"], "Passthrough");
        assert_eq!(
            builder.build(&none, base, tuner::TunedSettings::default()).unwrap().hash,
            pushed.hash,
            "it is the same"
        );
        let now = AppliedConfig {
            source: "uid-emb".into(),
            generation: 7,
            profile: "new".into(),
            ..AppliedConfig::default()
        };
        assert!(tried.is_in_force(&now) && !pushed.is_in_force(&now));
    }
}
