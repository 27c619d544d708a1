//! The sources of a policy, merged in the order of their precedence. The source of every value is
//! recorded.

use serde_json::Value as Json;

use crate::config::capture::{self, Capture};
use crate::config::check::Validator;
use crate::config::defaults;
use crate::config::effective::{SettingSources, put};
use crate::config::env::{MachineLimits, Overrides, SettingSource, SourcedValue};
use crate::config::file::LoadedPolicy;
use crate::config::finding::{ConfigErrors, Finding};
use crate::config::schema;
use crate::config::tree::{Span, YamlNode, YamlValue};
use crate::config::units::{format_size, parse_size};
use crate::memory;

/// Starts from the defaults and merges the file over them.
pub(super) fn merge_file(loaded: Option<&LoadedPolicy>, machine: &MachineLimits) -> (Json, SettingSources) {
    let mut sources = SettingSources::new();
    let mut json = defaults::of(schema::SPEC);
    if machine.terminal {
        json["proxy"]["log"]["format"] = Json::from("Pretty");
    }
    if let Some(loaded) = loaded {
        defaults::merge(&mut json, &loaded.json);
        sources.extend(loaded.lines.iter().map(|(path, line)| (path.clone(), loaded.origin.source(*line))));
    }
    // Routes and classes are lists, so their defaults are filled in after the merge, element by
    // element.
    defaults::fill_routes(&mut json);
    defaults::fill_classes(&mut json);
    (json, sources)
}

/// Applies flags and environment, and returns the captured ports.
pub(super) fn apply_overrides_and_captures(
    json: &mut Json,
    sources: &mut SettingSources,
    overrides: &Overrides,
) -> Result<Vec<Capture>, ConfigErrors> {
    let mut findings = apply_overrides(json, sources, overrides);
    let captures = capture::parse_captures(overrides).unwrap_or_else(|wrong| {
        findings.extend(wrong);
        Vec::new()
    });
    if let Some(flag) = injection_flag(overrides) {
        findings.extend(capture::apply_pod_defaults(json, sources, overrides.grace.as_ref(), flag));
    }
    if findings.is_empty() { Ok(captures) } else { Err(ConfigErrors::for_overrides(findings)) }
}

/// Returns the flag by which the injector marks the process of a pod: it captures ports, or it
/// executes a model. The latter is also a flag of processes outside pods, in which the injector's
/// variable is not set.
fn injection_flag(overrides: &Overrides) -> Option<&'static str> {
    let executes_model = overrides.engine.is_some() && overrides.grace.is_some();
    overrides.capture.as_ref().map(|_| "--capture").or_else(|| executes_model.then_some("--engine"))
}

/// Applies flags and environment over the other sources. Each value is validated by the rule of its
/// key, and findings contain the name of the flag or variable.
fn apply_overrides(json: &mut Json, sources: &mut SettingSources, overrides: &Overrides) -> Vec<Finding> {
    let one = |given: &Option<SourcedValue<String>>| {
        given.as_ref().map(|given| (YamlNode::from_text(&given.value), given.source.clone()))
    };
    let listen = overrides.listen.as_ref().map(|given| {
        let items = given.value.iter().map(|address| YamlNode::from_text(address)).collect();
        (YamlNode { at: Span::default(), value: YamlValue::List(items) }, given.source.clone())
    });
    let all = [
        ("proxy.listen", listen),
        ("proxy.upstream", one(&overrides.upstream)),
        ("proxy.admin.metrics", one(&overrides.metrics)),
        ("proxy.admin.local", one(&overrides.admin)),
        ("proxy.log.format", one(&overrides.log_format)),
        ("proxy.log.level", one(&overrides.log_level)),
        ("proxy.log.access", one(&overrides.log_access)),
        ("proxy.state", one(&overrides.state)),
    ];
    let mut findings = Vec::new();
    for (path, given) in all {
        let (Some((node, source)), Some(key)) = (given, schema::find_key(path)) else { continue };
        let mut check = Validator::default();
        let name = match source {
            SettingSource::Flag(name) | SettingSource::Env(name) => name,
            SettingSource::Default
            | SettingSource::File(_)
            | SettingSource::Snapshot
            | SettingSource::LastGood
            | SettingSource::Passthrough(_)
            | SettingSource::LoweredBy(_)
            | SettingSource::Tuned
            | SettingSource::Controller => path,
        };
        match check.value(&key.value_type, &node, name) {
            Some(value) if check.findings.is_empty() => put(json, sources, path, value, source),
            _ => findings.append(&mut check.findings),
        }
    }
    findings
}

/// File descriptors reserved for purposes other than connections to clients and to the model
/// server: listeners, probes, the control stream, files.
const FILES_RESERVE: u64 = 128;

/// Lowers the number of connections to what the limit on open files allows, and buffers and
/// connections to what the memory limit allows, whatever their source is.
pub(super) fn apply_machine_limits(json: &mut Json, sources: &mut SettingSources, machine: &MachineLimits) {
    let mut lower = |name: &str, most: u64, by, is_size: bool| {
        let path = format!("proxy.process.{name}");
        let configured = match &json["proxy"]["process"][name] {
            Json::String(text) => parse_size(text),
            other => other.as_u64(),
        };
        if configured.is_some_and(|configured| configured > most) {
            let value = if is_size { Json::from(format_size(most)) } else { Json::from(most) };
            put(json, sources, &path, value, SettingSource::LoweredBy(by));
        }
        configured.map_or(most, |configured| configured.min(most))
    };
    if let Some(files) = machine.files_max {
        // A client connection may need an upstream connection. Batches and parallel HTTP/2 calls
        // have half as many upstream connections again: 2.5 descriptors per client connection.
        let most = ((files - FILES_RESERVE.min(files / 4)) * 2 / 5).max(1);
        lower("connectionsMax", most, "the limit on open files: (files − 128) × 2/5", false);
    }
    if let Some(limit) = machine.memory_bytes_max {
        let most = memory::buffered_bytes_within(limit);
        let bytes = lower("bufferedBytesMax", most, "25% of the memory limit", true);
        lower(
            "connectionsMax",
            memory::connections_within(limit, bytes),
            "the connections that fit into the memory limit",
            false,
        );
    }
}
