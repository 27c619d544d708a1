//! A model that the process executes itself, in place of an upstream.

use serde_json::Value as Json;

use crate::api::v1alpha1::{EngineDevice, EngineSpec, MergeRule};
use crate::config::code::ConfigCode;
use crate::config::effective::{SettingSources, put};
use crate::config::engine::{EngineConfig, MemoryBudget, parse_engine_device};
use crate::config::env::{Overrides, SettingSource, SourcedValue};
use crate::config::finding::{ConfigErrors, Finding};
use crate::config::policy::Policy;
use crate::config::tree::Span;
use crate::config::units::{parse_share, parse_size};
use crate::config::values::{MissingDefault, ValueResult, require, word};
use crate::protocol::RouteProtocol;

/// Path of the number of slots.
const SLOTS_MAX: &str = "limits.slotsMax";
/// Paths of the model and of its device.
const MODEL: &str = "engine.model";
const DEVICE: &str = "engine.device";

/// Applies the flags of the engine, and the defaults that differ from those with an upstream: one
/// slot, because the engine executes one batch at a time. `captured` is `true` if ports of an
/// application are captured. Returns `true` if the process executes a model.
///
/// A process that captures ports was added to its pod before the policy had a model. It serves the
/// application until the pod is replaced, so the model of its policy is not used.
pub(super) fn apply_settings(
    json: &mut Json,
    sources: &mut SettingSources,
    overrides: &Overrides,
    captured: bool,
) -> Result<bool, ConfigErrors> {
    if let Some(SourcedValue { value, source }) = &overrides.engine {
        put(json, sources, MODEL, value.as_str(), source.clone());
    }
    if let Some(device) = &overrides.engine_device {
        put(json, sources, DEVICE, format!("{:?}", parse_device(device)?), device.source.clone());
    }
    if json["engine"]["model"].is_null() || (captured && overrides.engine.is_none()) {
        return Ok(false);
    }
    let source = sources.get(MODEL).cloned().unwrap_or(SettingSource::Default);
    let excluded = match (json["proxy"]["upstream"].is_null(), captured) {
        (false, _) => Some("`proxy.upstream` or `--upstream`"),
        (true, true) => Some("`--capture`"),
        (true, false) => None,
    };
    if let Some(excluded) = excluded {
        let message = format!("`{MODEL}` ({source}) and {excluded} exclude each other: the engine is the model server");
        let finding = Finding::new(ConfigCode::Excluded, "proxy.upstream", Span::default(), &message);
        return Err(ConfigErrors::for_overrides(vec![finding.help("leave one of them out")]));
    }
    if json["limits"]["slotsMax"].is_null() {
        put(json, sources, SLOTS_MAX, 1, source);
    }
    Ok(true)
}

/// Returns the settings of the model; `None` without one.
pub(super) fn resolve(spec: Option<&EngineSpec>) -> ValueResult<Option<EngineConfig>> {
    let Some((spec, model)) = spec.and_then(|spec| Some((spec, spec.model.as_ref()?))) else { return Ok(None) };
    let memory = |text: &str| {
        let bytes = || parse_size(text).map(MemoryBudget::Bytes);
        parse_share(text).map(MemoryBudget::FreeShare).or_else(bytes).ok_or(MissingDefault("engine.memory"))
    };
    Ok(Some(EngineConfig {
        model: model.into(),
        device: word(spec.device.as_ref(), DEVICE)?,
        memory: spec.memory.as_deref().map(memory).transpose()?,
        batch_invariant: require(spec.batch_invariant, "engine.batchInvariant")?,
        item_tokens_max: spec.item_tokens_max,
    }))
}

/// Puts the model in the place of the upstream.
///
/// Calls of routes without a protocol are those of TEI, which the engine serves. They are merged
/// without a measurement that merging pays: a batch never costs more than its calls one by one,
/// because it has no padding, and its results are the same.
pub(super) fn apply_to_routes(policy: &mut Policy) {
    for route in &mut policy.routes {
        if route.protocol == RouteProtocol::Auto {
            route.protocol = RouteProtocol::Tei;
        }
        if route.merge == MergeRule::Auto {
            route.merge = MergeRule::Always;
        }
    }
}

/// Parses the device of a flag or a variable.
fn parse_device(device: &SourcedValue<String>) -> Result<EngineDevice, ConfigErrors> {
    parse_engine_device(&device.value).map_err(|help| {
        let message = format!("{}: {:?} is not a device", device.source, device.value);
        let finding = Finding::new(ConfigCode::BadValue, DEVICE, Span::default(), &message);
        ConfigErrors::for_overrides(vec![finding.help(help)])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MachineLimits, Origin, build, load};

    fn with_flag() -> Overrides {
        Overrides { engine: Some(SourcedValue::flag("--engine", "/models/m".to_owned())), ..Overrides::default() }
    }

    fn resolved(text: &str, overrides: &Overrides) -> Result<Policy, String> {
        build(Some(&load(text, "p").unwrap()), overrides, &MachineLimits::default())
            .map_err(|errors| errors.render(false))
    }

    fn shown(policy: &Policy, path: &str) -> (String, SettingSource) {
        let setting = policy.effective().iter().find(|setting| setting.path == path).unwrap();
        (setting.value.clone(), setting.source.clone())
    }

    #[test]
    fn the_engine_has_one_slot_unless_the_policy_sets_another_number() {
        let routes = "routes: [{path: /embed}, {path: /x, protocol: Generic, generic: {items: [/a], results: [/b]}}]";
        let policy = resolved(routes, &with_flag()).unwrap();
        assert_eq!(policy.engine, Some(EngineConfig::new("/models/m")));
        assert_eq!(policy.limits.slots_max, Some(1));
        assert_eq!(shown(&policy, SLOTS_MAX), ("1".to_owned(), SettingSource::Flag("--engine")));
        assert_eq!(shown(&policy, MODEL), ("/models/m".to_owned(), SettingSource::Flag("--engine")));
        let rules: Vec<_> = policy.routes.iter().map(|route| (route.protocol, route.merge)).collect();
        assert_eq!(rules, [(RouteProtocol::Tei, MergeRule::Always), (RouteProtocol::Generic, MergeRule::Always)]);
        let text = "limits: {slotsMax: 2}\nroutes: [{path: /embed, merge: Never}]";
        let policy = resolved(text, &with_flag()).unwrap();
        assert_eq!((policy.limits.slots_max, policy.routes[0].merge), (Some(2), MergeRule::Never));
    }

    #[test]
    fn the_policy_has_every_setting_of_the_engine_and_flags_override_it() {
        let text = "engine: {model: /m, device: Cpu, memory: 4Gi, batchInvariant: true, itemTokensMax: 64}";
        let policy = resolved(text, &Overrides::default()).unwrap();
        let expected = EngineConfig {
            device: EngineDevice::Cpu,
            memory: Some(MemoryBudget::Bytes(4 << 30)),
            batch_invariant: true,
            item_tokens_max: Some(64),
            ..EngineConfig::new("/m")
        };
        assert_eq!(policy.engine, Some(expected.clone()));
        assert_eq!(shown(&policy, SLOTS_MAX).1, SettingSource::File(1));
        let overridden = resolved(text, &with_flag()).unwrap().engine;
        assert_eq!(overridden, Some(EngineConfig { model: "/models/m".into(), ..expected }));
        let share = resolved("engine: {model: /m, memory: 50%}", &Overrides::default()).unwrap().engine.unwrap();
        assert_eq!(share.memory, Some(MemoryBudget::FreeShare(parse_share("50%").unwrap())));
        let none = resolved("engine: {device: Cpu}", &Overrides::default()).unwrap();
        assert_eq!((none.engine, none.limits.slots_max), (None, None), "no model is named");
    }

    #[test]
    fn a_sidecar_that_captures_ports_does_not_use_the_model_of_its_policy() {
        let captures = Overrides {
            capture: Some(SourcedValue::flag("--capture", vec!["http:8080@15080".to_owned()])),
            ..Overrides::default()
        };
        let started = resolved("{}", &captures).unwrap();
        let pushed = load("engine: {model: /m}", "p").unwrap().into_pod_settings(Origin::Controller);
        let pushed = build(Some(&pushed), &captures, &MachineLimits::default()).unwrap();
        assert_eq!((&pushed.engine, pushed.limits.slots_max), (&None, None));
        let (now, pending) = pushed.hot_reload_onto(&started);
        assert_eq!(pending.len(), 1, "{pending:?}");
        assert_eq!((pending[0].path.as_str(), pending[0].to.as_deref()), (MODEL, Some("/m")));
        assert_eq!(now.engine, None);
    }

    #[test]
    fn the_device_is_one_of_three_and_any_by_default() {
        let resolve = |device: &str| {
            let overrides = Overrides {
                engine_device: Some(SourcedValue::flag("--engine-device", device.to_owned())),
                ..with_flag()
            };
            resolved("{}", &overrides)
        };
        for (text, device) in [("auto", EngineDevice::Auto), ("Cpu", EngineDevice::Cpu), ("cuda", EngineDevice::Cuda)] {
            assert_eq!(resolve(text).unwrap().engine.unwrap().device, device);
        }
        let errors = resolve("tpu").unwrap_err();
        assert!(errors.contains("--engine-device") && errors.contains("choose Auto, Cpu or Cuda"), "{errors}");
    }

    #[test]
    fn an_engine_and_an_upstream_exclude_each_other() {
        let errors = resolved("proxy: {upstream: 'http://127.0.0.1:1'}", &with_flag()).unwrap_err();
        assert!(errors.contains("flag --engine") && errors.contains("`proxy.upstream`"), "{errors}");
        let both = "engine: {model: /m}\nproxy: {upstream: 'http://127.0.0.1:1'}";
        assert!(resolved(both, &Overrides::default()).unwrap_err().contains("file:1"));
    }
}
