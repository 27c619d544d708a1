//! Parser of the annotations with which a user changes the settings of a pod.
//!
//! The annotations form an allowlist, each with a type. Image and security context are not part of
//! it: write access to pods must not include the choice of the code that runs beside the model. Nor
//! are mounts, except for that of a model: a volume of the pod itself, mounted read-only.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::access::at;
use super::app_listen::{APP_LISTEN, AppListen};
use super::message::{describe_value, quoting_hint};
use super::ports::CAPTURED_MAX;
use super::recipe::RecipeChoice;
use super::{AnnotationError, InjectionErrorCode, KeyLocation, engine, shape};
use crate::api::v1alpha1::{CaptureMode, EngineDevice, Mode, NativeSidecar, PortRef};
use crate::config::quantity::{CPU, MEMORY};
use crate::config::{self, parse_duration};

/// Prefix of Groupage's annotations.
const PREFIX: &str = "groupage.dev/";

/// Annotations that a user may set, besides `inject`.
const KEYS: [&str; 15] = [
    "capture",
    "ports",
    "app-listen",
    "recipe",
    "cpu-request",
    "memory-request",
    "memory-limit",
    "log-level",
    "policy",
    "mode",
    "drain-timeout",
    "native-sidecar",
    "engine",
    "engine-device",
    "engine-volume",
];

/// Maximum number of ports that one pod may list, equal to the maximum that is captured.
pub(super) const PORTS_MAX: usize = CAPTURED_MAX;

/// Maximum length of an annotation key's name in the API server.
const KEY_BYTES_MAX: usize = 63;

/// Values of a pod's annotations; each is `None` if the annotation is absent or invalid.
#[derive(Debug)]
pub(super) struct AnnotationValues {
    /// Name of the policy.
    pub(super) policy: Option<String>,
    pub(super) mode: Option<Mode>,
    pub(super) capture: Option<CaptureMode>,
    pub(super) ports: Option<Vec<PortRef>>,
    pub(super) app_listen: Option<AppListen>,
    pub(super) recipe: Option<RecipeChoice>,
    pub(super) cpu_request: Option<String>,
    pub(super) memory_request: Option<String>,
    pub(super) memory_limit: Option<String>,
    pub(super) log_level: Option<String>,
    pub(super) drain_timeout: Option<Duration>,
    pub(super) native: Option<NativeSidecar>,
    /// Directory of a model.
    pub(super) engine: Option<String>,
    pub(super) engine_device: Option<EngineDevice>,
    /// Name of a volume.
    pub(super) engine_volume: Option<String>,
}

/// A parser for the annotations of one pod that collects their problems.
pub(super) struct AnnotationReader<'a> {
    annotations: &'a Value,
    problems: Vec<AnnotationError>,
}

// === impl AnnotationReader ===

impl<'a> AnnotationReader<'a> {
    /// Creates a reader for the annotations of a pod.
    pub(super) fn new(pod: &'a Value) -> Self {
        Self { annotations: at(pod, &["metadata", "annotations"]), problems: Vec::new() }
    }

    /// Reads every annotation, and records the invalid ones.
    pub(super) fn values(&mut self) -> AnnotationValues {
        let name = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let cpu = |text: &str| CPU.contains(text).then(|| text.to_owned());
        let memory = |text: &str| MEMORY.contains(text).then(|| text.to_owned());
        let level = |text: &str| config::is_log_level(text).then(|| text.to_owned());
        let volume = |text: &str| shape::is_dns_label(text).then(|| text.to_owned());
        AnnotationValues {
            policy: self.read("policy", "the name of a BatchPolicy", name),
            mode: self.read("mode", "Batch, Observe or Passthrough", word::<Mode>),
            capture: self.read("capture", "Auto, Named, Loopback or Redirect", word::<CaptureMode>),
            ports: self.read("ports", "port names and numbers, separated by commas", ports),
            app_listen: self.read("app-listen", APP_LISTEN, AppListen::parse),
            recipe: self.read("recipe", &RecipeChoice::allowed(), RecipeChoice::parse),
            cpu_request: self.read("cpu-request", &CPU.allowed(), cpu),
            memory_request: self.read("memory-request", &MEMORY.allowed(), memory),
            memory_limit: self.read("memory-limit", &MEMORY.allowed(), memory),
            log_level: self.read("log-level", "a level such as info, or a log filter", level),
            drain_timeout: self.read("drain-timeout", "a duration such as 25s", drain),
            native: self.read("native-sidecar", "Auto, Always or Never", word::<NativeSidecar>),
            engine: self.read("engine", engine::MODEL_PATH, engine::parse_path),
            engine_device: self.read("engine-device", "Auto, Cpu or Cuda", word::<EngineDevice>),
            engine_volume: self.read("engine-volume", "the name of a volume of the pod", volume),
        }
    }

    /// Returns the annotation's value if it is present and valid.
    fn read<T>(&mut self, key: &str, allowed: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = self.annotations.get(format!("{PREFIX}{key}"))?;
        let read = value.as_str().and_then(|text| parse(text.trim()));
        if read.is_none() {
            self.record_invalid(key, allowed);
        }
        read
    }

    pub(super) fn record_invalid(&mut self, key: &str, allowed: &str) {
        let key = format!("{PREFIX}{key}");
        let value = self.annotations.get(&key).unwrap_or(&Value::Null);
        let message = format!("{key} is {}; expected {allowed}{}", describe_value(value), quoting_hint(value));
        self.problems.push(AnnotationError {
            code: InjectionErrorCode::BadValue,
            key,
            holder: KeyLocation::Annotation,
            message,
        });
    }

    /// Records unknown annotations with Groupage's prefix. `image` is ignored with a warning.
    pub(super) fn check_keys(&mut self) -> Vec<String> {
        let mut warnings = Vec::new();
        let keys = self.annotations.as_object().into_iter().flatten().map(|(key, _)| key);
        for key in keys.filter(|key| key.starts_with(PREFIX)) {
            let name = key.strip_prefix(PREFIX).unwrap_or(key);
            match name {
                "image" => warnings.push(format!("{key} is ignored: only the installation sets the image")),
                "inject" | "status" => {}
                _ if KEYS.contains(&name) => {}
                _ => {
                    let near = KEYS.iter().chain(&["inject"]).filter(|_| name.len() <= KEY_BYTES_MAX);
                    let near = near.map(|known| (strsim::osa_distance(known, name), known));
                    let near = near.filter(|(distance, _)| *distance <= 3).min().map(|(_, known)| known);
                    let meant = near.map_or_else(
                        || {
                            format!(
                                "known annotations are {PREFIX}inject, {}",
                                KEYS.map(|key| format!("{PREFIX}{key}")).join(", ")
                            )
                        },
                        |known| format!("did you mean {PREFIX}{known}?"),
                    );
                    let message = format!("unknown annotation {key}; {meant}");
                    let (code, holder) = (InjectionErrorCode::UnknownKey, KeyLocation::Annotation);
                    self.problems.push(AnnotationError { code, key: key.clone(), holder, message });
                }
            }
        }
        warnings
    }

    /// Finishes the reading.
    ///
    /// # Errors
    /// Returns the recorded problems, if there are any.
    pub(super) fn finish(self) -> Result<(), Vec<AnnotationError>> {
        if self.problems.is_empty() { Ok(()) } else { Err(self.problems) }
    }
}

/// Returns the settings of a running pod's annotations that a policy can also set: the mode and the
/// drain timeout.
pub(super) fn runtime_settings(annotations: &BTreeMap<String, String>) -> (Option<Mode>, Option<Duration>) {
    let setting = |key: &str| annotations.get(&format!("{PREFIX}{key}")).map(|text| text.trim());
    (setting("mode").and_then(word::<Mode>), setting("drain-timeout").and_then(drain))
}

/// Parses an enumeration value, ignoring case.
fn word<T: serde::de::DeserializeOwned + Copy>(text: &str) -> Option<T> {
    // Every enumeration is in CamelCase, so the value alone determines its canonical spelling.
    const WORDS: [&str; 11] =
        ["Batch", "Observe", "Passthrough", "Auto", "Named", "Loopback", "Redirect", "Always", "Never", "Cpu", "Cuda"];
    let known = WORDS.into_iter().find(|word| word.eq_ignore_ascii_case(text))?;
    serde_json::from_value(Value::from(known)).ok()
}

fn ports(text: &str) -> Option<Vec<PortRef>> {
    let ports: Option<Vec<PortRef>> = text.split(',').map(|part| port(part.trim())).collect();
    ports.filter(|ports| !ports.is_empty() && ports.len() <= PORTS_MAX)
}

/// Parses a port number, or a port name (`IANA_SVC_NAME`: at most 15 of `a-z0-9-`, with a letter).
fn port(text: &str) -> Option<PortRef> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().ok().filter(|number| *number > 0).map(PortRef::Number);
    }
    let fits = text.len() <= 15
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && text.bytes().any(|b| b.is_ascii_lowercase());
    fits.then(|| PortRef::Name(text.to_owned()))
}

/// Parses a drain timeout from 1 s to 1 h.
pub(super) fn drain(text: &str) -> Option<Duration> {
    parse_duration(text).filter(|time| (Duration::from_secs(1)..=Duration::from_secs(3600)).contains(time))
}
