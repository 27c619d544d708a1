//! A model that the process executes itself, in place of an upstream.

use serde_json::Value as Json;

use super::sources::{SettingSources, put};
use crate::api::v1alpha1::{EngineDevice, MergeRule};
use crate::config::code::ConfigCode;
use crate::config::engine::EngineConfig;
use crate::config::env::Sourced;
use crate::config::finding::{ConfigErrors, Finding};
use crate::config::policy::Policy;
use crate::config::tree::Span;
use crate::protocol::RouteProtocol;

/// Path of the number of slots.
const SLOTS_MAX: &str = "limits.slotsMax";

/// Sets the defaults that differ from those with an upstream: one slot, because the engine executes
/// one batch at a time.
pub(super) fn apply_defaults(json: &mut Json, sources: &mut SettingSources, engine: &Sourced<String>) {
    if json["limits"]["slotsMax"].is_null() {
        put(json, SLOTS_MAX, Json::from(1));
        sources.insert(SLOTS_MAX.to_owned(), engine.source.clone());
    }
}

/// Puts the model in the place of the upstream.
///
/// Calls of routes without a protocol are those of TEI, which the engine serves. They are merged
/// without a measurement that merging pays: a batch never costs more than its calls one by one,
/// because it has no padding, and its results are the same.
pub(super) fn apply_engine(
    policy: &mut Policy,
    engine: &Sourced<String>,
    device: Option<&Sourced<String>>,
) -> Result<(), ConfigErrors> {
    let excluded = if policy.proxy.upstream.is_some() {
        Some("`proxy.upstream` or `--upstream`")
    } else if policy.proxy.captures.is_empty() {
        None
    } else {
        Some("`--capture`")
    };
    if let Some(excluded) = excluded {
        let message = format!("{} and {excluded} exclude each other: the engine is the model server", engine.source);
        let finding = Finding::new(ConfigCode::Excluded, "proxy.upstream", Span::default(), &message);
        return Err(ConfigErrors::for_overrides(vec![finding.help("leave one of them out")]));
    }
    let device = device.map_or(Ok(EngineDevice::Auto), parse_device)?;
    policy.engine = Some(EngineConfig { device, ..EngineConfig::new(&engine.value) });
    for route in &mut policy.routes {
        if route.protocol == RouteProtocol::Auto {
            route.protocol = RouteProtocol::Tei;
        }
        if route.merge == MergeRule::Auto {
            route.merge = MergeRule::Always;
        }
    }
    Ok(())
}

/// Parses the name of a device.
fn parse_device(device: &Sourced<String>) -> Result<EngineDevice, ConfigErrors> {
    [EngineDevice::Auto, EngineDevice::Cpu, EngineDevice::Cuda]
        .into_iter()
        .find(|known| format!("{known:?}").eq_ignore_ascii_case(&device.value))
        .ok_or_else(|| {
            let message = format!("{}: {:?} is not a device", device.source, device.value);
            let finding = Finding::new(ConfigCode::BadValue, "engine.device", Span::default(), &message);
            ConfigErrors::for_overrides(vec![finding.help("choose Auto, Cpu or Cuda")])
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MachineLimits, Overrides, SettingSource, build, load};

    fn with_engine(text: &str) -> Result<Policy, String> {
        let overrides =
            Overrides { engine: Some(Sourced::flag("--engine", "/models/m".to_owned())), ..Overrides::default() };
        build(Some(&load(text, "p").unwrap()), &overrides, &MachineLimits::default())
            .map_err(|errors| errors.render(false))
    }

    #[test]
    fn the_engine_has_one_slot_unless_the_policy_sets_another_number() {
        let policy = with_engine(
            "routes: [{path: /embed}, {path: /x, protocol: Generic, generic: {items: [/a], results: [/b]}}]",
        )
        .unwrap();
        assert_eq!(policy.engine, Some(EngineConfig::new("/models/m")));
        assert_eq!(policy.limits.slots_max, Some(1));
        let slots = policy.effective().iter().find(|setting| setting.path == SLOTS_MAX).unwrap();
        assert_eq!((slots.value.as_str(), &slots.source), ("1", &SettingSource::Flag("--engine")));
        let rules: Vec<_> = policy.routes.iter().map(|route| (route.protocol, route.merge)).collect();
        assert_eq!(rules, [(RouteProtocol::Tei, MergeRule::Always), (RouteProtocol::Generic, MergeRule::Always)]);
        let policy = with_engine("limits: {slotsMax: 2}\nroutes: [{path: /embed, merge: Never}]").unwrap();
        assert_eq!((policy.limits.slots_max, policy.routes[0].merge), (Some(2), MergeRule::Never));
    }

    #[test]
    fn the_device_is_one_of_three_and_any_by_default() {
        let resolve = |device: &str| {
            let overrides = Overrides {
                engine: Some(Sourced::flag("--engine", "/m".to_owned())),
                engine_device: Some(Sourced::flag("--engine-device", device.to_owned())),
                ..Overrides::default()
            };
            build(None, &overrides, &MachineLimits::default()).map_err(|errors| errors.render(false))
        };
        for (text, device) in [("auto", EngineDevice::Auto), ("Cpu", EngineDevice::Cpu), ("cuda", EngineDevice::Cuda)] {
            assert_eq!(resolve(text).unwrap().engine.unwrap().device, device);
        }
        let errors = resolve("tpu").unwrap_err();
        assert!(errors.contains("--engine-device") && errors.contains("choose Auto, Cpu or Cuda"), "{errors}");
    }

    #[test]
    fn an_engine_and_an_upstream_exclude_each_other() {
        let errors = with_engine("proxy: {upstream: 'http://127.0.0.1:1'}").unwrap_err();
        assert!(errors.contains("flag --engine and `proxy.upstream`"), "{errors}");
    }
}
