//! Injection settings of a pod: annotations take precedence over the policy, the policy over the
//! defaults of the installation.
//!
//! The annotations form an allowlist, each with a type. Image, security context and mounts are not
//! part of it: write access to pods must not include the choice of the code that runs beside the
//! model. If one value is invalid, the pod is not injected, because a partial application would be
//! a configuration that no user chose.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::access::at;
use super::status::InjectionStatus;
use super::{AnnotationError, InjectionContext, InjectionErrorCode, KeyLocation, NamedPolicy, policy, recipe, told};
use crate::api::v1alpha1::{CaptureMode, Mode, NativeSidecar, OpenEnum, PortRef};
use crate::config::quantity::{CPU, MEMORY};
use crate::config::{self, format_duration, parse_duration};

/// Prefix of Groupage's annotations.
const PREFIX: &str = "groupage.dev/";

/// Annotations that a user may set, besides `inject`.
const KEYS: [&str; 12] = [
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
];

/// Maximum number of ports that one pod may list, equal to the maximum that is captured.
const PORTS_MAX: usize = super::ports::CAPTURED_MAX;

/// Maximum length of an annotation key's name in the API server.
const KEY_BYTES_MAX: usize = 63;

/// Maximum number of characters of a value in a message.
const SHOWN_MAX: usize = 80;

/// Effective injection settings of one pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InjectionSettings {
    pub(super) capture: CaptureMode,
    /// Ports to capture. If empty, every declared TCP port and every port that a Service or pool
    /// leads to.
    pub(super) ports: Vec<PortRef>,
    pub(super) app_listen: Option<AppListen>,
    pub(super) recipe: RecipeChoice,
    /// `None` uses the default of the installation.
    pub(super) cpu_request: Option<String>,
    pub(super) memory_request: Option<String>,
    pub(super) memory_limit: Option<String>,
    pub(super) log_level: String,
    pub(super) native: NativeSidecar,
    /// `None` uses the pod's termination grace period less 5 s.
    pub(super) drain_timeout: Option<Duration>,
    /// `None` uses the mode of the policy, otherwise that of the installation.
    pub(super) mode: Option<Mode>,
    /// The policy of this pod.
    pub(super) policy: Option<NamedPolicy>,
}

/// The recipes that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RecipeChoice {
    /// Any matching recipe.
    #[default]
    Auto,
    /// No recipe.
    None,
    /// The recipe of this name.
    Named(&'static str),
}

/// An override that makes an application listen on loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AppListen {
    /// The container; `None` until it is selected.
    pub(super) container: Option<String>,
    /// The settings, at least one. A server with a listener for each protocol has a flag for each.
    pub(super) knobs: Vec<ListenOverride>,
}

/// A single setting of an `app-listen` override.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ListenOverride {
    /// An environment variable and its value.
    Env(String, String),
    /// An argument, such as `--host=127.0.0.1`, or a flag and its value as two words, for servers
    /// that do not accept `=`.
    Arg(Vec<String>),
}

/// A parser for the annotations of one pod that collects their problems.
struct AnnotationReader<'a> {
    annotations: &'a Value,
    problems: Vec<AnnotationError>,
}

// === impl InjectionSettings ===

impl InjectionSettings {
    /// Returns `true` if the sidecar is a native one.
    pub(super) fn is_native(&self, context: &InjectionContext) -> bool {
        match self.native {
            NativeSidecar::Always => true,
            NativeSidecar::Never => false,
            NativeSidecar::Auto => context.native,
        }
    }

    /// Reads the settings of a pod and the resulting warnings. `known` is the status of an earlier
    /// pass.
    ///
    /// # Errors
    /// Returns every annotation that is invalid.
    pub(super) fn read(
        pod: &Value,
        known: Option<&InjectionStatus>,
        context: &InjectionContext,
    ) -> Result<(Self, Vec<String>), Vec<AnnotationError>> {
        let mut reader = AnnotationReader { annotations: at(pod, &["metadata", "annotations"]), problems: Vec::new() };
        let mut warnings = reader.unknown();
        let named =
            reader.read("policy", "the name of a BatchPolicy", |text| (!text.is_empty()).then(|| text.to_owned()));
        let policy = policy::choose(pod, context, named.as_deref(), &mut warnings).cloned();
        let under = policy.as_ref().and_then(|policy| policy.spec.injection.clone()).unwrap_or_default();
        let mode = reader.read("mode", "Batch, Observe or Passthrough", word::<Mode>);
        let capture = reader.read("capture", "Auto, Named, Loopback or Redirect", word::<CaptureMode>);
        let ports = reader.read("ports", "port names and numbers, separated by commas", ports);
        let app_listen = reader.read("app-listen", APP_LISTEN, AppListen::parse);
        let recipe = reader.read("recipe", &RecipeChoice::allowed(), RecipeChoice::parse);
        let cpu = |text: &str| CPU.holds(text).then(|| text.to_owned());
        let memory = |text: &str| MEMORY.holds(text).then(|| text.to_owned());
        let cpu_request = reader.read("cpu-request", &CPU.allowed(), cpu);
        let memory_request = reader.read("memory-request", &MEMORY.allowed(), memory);
        let memory_limit = reader.read("memory-limit", &MEMORY.allowed(), memory);
        let level = |text: &str| config::is_log_level(text).then(|| text.to_owned());
        let log_level = reader.read("log-level", "a level such as info, or a log filter", level);
        let drain_timeout = reader.read("drain-timeout", "a duration such as 25s", drain);
        let native = reader.read("native-sidecar", "Auto, Always or Never", word::<NativeSidecar>);
        let ports = ports.unwrap_or_else(|| valid_ports(under.ports));
        let whose = |knob: AppListen| knob.settled(pod, known, &context.referrers, &ports);
        let app_listen = app_listen.map(whose).and_then(|settled| match settled {
            Ok(knob) => Some(knob),
            Err(allowed) => {
                reader.refuse("app-listen", &allowed);
                None
            }
        });
        if !reader.problems.is_empty() {
            return Err(reader.problems);
        }
        let known = |text: Option<String>, good: fn(&str) -> bool| text.filter(|text| good(text));
        // A policy covers several workloads, so a value that does not fit this pod is no error. A
        // value that this version cannot parse leaves the default.
        let of_policy = || AppListen::of_policy(under.app_listen.as_deref()?);
        if let (Some(text), Some(NamedPolicy { name, .. })) = (&under.app_listen, policy.as_ref())
            && AppListen::parse(text).is_some()
            && AppListen::of_policy(text).is_none()
        {
            warnings.push(format!("appListen of policy {name} is not used: {POLICY_LISTENS}"));
        }
        let app_listen = match (app_listen, policy.as_ref()) {
            (None, Some(NamedPolicy { name, .. })) => of_policy().and_then(|knob| match whose(knob) {
                Ok(knob) => Some(knob),
                Err(allowed) => {
                    warnings.push(format!("appListen of policy {name} is not used: for this pod, expected {allowed}"));
                    None
                }
            }),
            (app_listen, _) => app_listen,
        };
        let recipe = recipe.unwrap_or_else(|| {
            let text = under.recipe.as_deref().unwrap_or("Auto");
            RecipeChoice::parse(text).unwrap_or_else(|| {
                warnings.push(format!(
                    "recipe {text} of the policy is unknown, and Auto applies: expected {}",
                    RecipeChoice::allowed()
                ));
                RecipeChoice::Auto
            })
        });
        let overrides = Self {
            capture: capture.or_else(|| supported_value(under.capture)).unwrap_or(CaptureMode::Auto),
            ports,
            app_listen,
            recipe,
            cpu_request: cpu_request.or_else(|| known(under.cpu_request, |text| CPU.holds(text))),
            memory_request: memory_request.or_else(|| known(under.memory_request, |text| MEMORY.holds(text))),
            memory_limit: memory_limit.or_else(|| known(under.memory_limit, |text| MEMORY.holds(text))),
            log_level: log_level
                .or_else(|| known(under.log_level, config::is_log_level))
                .unwrap_or_else(|| context.sidecar.log_level.clone()),
            native: native.or_else(|| supported_value(under.native_sidecar)).unwrap_or(NativeSidecar::Auto),
            drain_timeout: drain_timeout.or_else(|| drain(&under.drain_timeout?.0)),
            mode,
            policy,
        };
        Ok((overrides, warnings))
    }
}

/// Returns a value that this version supports. A newer one in a policy leaves the default, so that
/// an older controller keeps working.
fn supported_value<T>(word: Option<OpenEnum<T>>) -> Option<T> {
    match word? {
        OpenEnum::Known(word) => Some(word),
        OpenEnum::Other(_) => None,
    }
}

/// Parses an enumeration value, ignoring case.
fn word<T: serde::de::DeserializeOwned + Copy>(text: &str) -> Option<T> {
    // Every enumeration is in CamelCase, so the value alone determines its canonical spelling.
    const WORDS: [&str; 9] =
        ["Batch", "Observe", "Passthrough", "Auto", "Named", "Loopback", "Redirect", "Always", "Never"];
    let known = WORDS.into_iter().find(|word| word.eq_ignore_ascii_case(text))?;
    serde_json::from_value(Value::from(known)).ok()
}

/// Returns the valid ports of a policy.
fn valid_ports(ports: Option<Vec<PortRef>>) -> Vec<PortRef> {
    // A port name contains a letter, so a string of digits is a number.
    let read = |port: PortRef| match &port {
        PortRef::Name(name) => name.parse().map_or(port, PortRef::Number),
        PortRef::Number(_) => port,
    };
    let ports = ports.into_iter().flatten().map(read).filter(|port| *port != PortRef::Number(0));
    ports.take(PORTS_MAX).collect()
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
fn drain(text: &str) -> Option<Duration> {
    parse_duration(text).filter(|time| (Duration::from_secs(1)..=Duration::from_secs(3600)).contains(time))
}

// === impl RecipeChoice ===

impl RecipeChoice {
    fn parse(text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("Auto") {
            return Some(Self::Auto);
        }
        if text.eq_ignore_ascii_case("None") {
            return Some(Self::None);
        }
        recipe::names().find(|name| name.eq_ignore_ascii_case(text)).map(Self::Named)
    }

    fn allowed() -> String {
        format!("Auto, None or one of {}", recipe::names().collect::<Vec<_>>().join(", "))
    }
}

// === impl AppListen ===

const POLICY_LISTENS: &str = "a policy can set only a loopback address or a port, by a name that ends with HOST, HOSTNAME, IP, BIND, LISTEN, ADDR, ADDRESS or PORT; the annotation app-listen of the workload can set any";
const APP_LISTEN: &str = "env:NAME=VALUE or arg:ARGUMENT, several separated by commas, with CONTAINER/ in front if the pod has several containers";

impl AppListen {
    /// Selects the container that the override applies to.
    ///
    /// # Errors
    /// Returns a description of the values that are valid in this pod.
    fn settled(
        self,
        pod: &Value,
        known: Option<&InjectionStatus>,
        objects: &[Value],
        ports: &[PortRef],
    ) -> Result<Self, String> {
        let container = match &self.container {
            Some(wanted) if told::is_application(pod, wanted) => Some(wanted.clone()),
            Some(_) => return Err(format!("a container of the application: {}", told::applications(pod))),
            None => told::choose(pod, known, objects, &self, ports).map_err(|left| {
                format!("CONTAINER/ in front: it could apply to each of the containers {}", told::shown(&left))
            })?,
        };
        Ok(Self { container, ..self })
    }

    /// Parses the override of a policy, which may set addresses and ports only.
    fn of_policy(text: &str) -> Option<Self> {
        let knob = Self::parse(text)?;
        let (_, rest) = knob.container.as_ref().and_then(|_| text.split_once('/')).unwrap_or(("", text));
        config::knobs(rest).iter().all(|one| config::is_listen_knob(one)).then_some(knob)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (container, rest) = match text.split_once('/') {
            // A value may contain a slash too; a container name contains no colon.
            Some((container, rest)) if !container.is_empty() && !container.contains(':') => {
                (Some(container.to_owned()), rest)
            }
            _ => (None, text),
        };
        // All settings apply to one container. A container name in a later part would otherwise
        // become part of the preceding value.
        let another = |part: &str| {
            let (name, knob) = part.trim().split_once('/').unwrap_or_default();
            super::shape::is_dns_label(name) && (knob.starts_with("env:") || knob.starts_with("arg:"))
        };
        if rest.split(',').any(another) {
            return None;
        }
        let knobs: Option<Vec<ListenOverride>> =
            config::knobs(rest).iter().map(|one| ListenOverride::parse(one)).collect();
        Some(Self { container, knobs: knobs? })
    }
}

// === impl ListenOverride ===

impl ListenOverride {
    fn parse(text: &str) -> Option<Self> {
        if let Some(argument) = text.strip_prefix("arg:") {
            // No server accepts two flags in one argument.
            let fits = !argument.is_empty() && !argument.contains(" --");
            return fits.then(|| Self::Arg(split_argument(argument)));
        }
        let (name, value) = text.strip_prefix("env:")?.split_once('=')?;
        // The API server's rule for names of variables.
        let named = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic());
        named.then(|| Self::Env(name.to_owned(), value.to_owned()))
    }
}

/// Splits a flag and its value at the space between them; any other text is one argument.
fn split_argument(argument: &str) -> Vec<String> {
    match argument.split_once(' ') {
        Some((flag, value)) if flag.starts_with('-') && !flag.contains('=') && !value.trim().contains(' ') => {
            vec![flag.to_owned(), value.trim().to_owned()]
        }
        _ => vec![argument.to_owned()],
    }
}

// === impl AnnotationReader ===

impl AnnotationReader<'_> {
    /// Returns the annotation's value if it is present and valid.
    fn read<T>(&mut self, key: &str, allowed: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = self.annotations.get(format!("{PREFIX}{key}"))?;
        let read = value.as_str().and_then(|text| parse(text.trim()));
        if read.is_none() {
            self.refuse(key, allowed);
        }
        read
    }

    /// Records an invalid value.
    fn refuse(&mut self, key: &str, allowed: &str) {
        let key = format!("{PREFIX}{key}");
        let value = self.annotations.get(&key).unwrap_or(&Value::Null);
        let message = format!("{key} is {}; expected {allowed}{}", shown(value), unquoted(value));
        self.problems.push(AnnotationError {
            code: InjectionErrorCode::BadValue,
            key,
            holder: KeyLocation::Annotation,
            message,
        });
    }

    /// Records unknown annotations with Groupage's prefix. `image` is ignored with a warning.
    fn unknown(&mut self) -> Vec<String> {
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
}

/// Formats a value for a message, truncated if it is long.
pub(super) fn shown(value: &Value) -> String {
    let whole = value.to_string();
    let mut cut: String = whole.chars().take(SHOWN_MAX).collect();
    if cut.len() < whole.len() {
        cut.push('…');
    }
    cut
}

/// Returns a hint for a value that YAML does not parse as a string, which the API server would
/// reject.
pub(super) fn unquoted(value: &Value) -> &'static str {
    if value.is_string() { "" } else { "; annotation and label values are strings: put it in quotes" }
}

/// Returns the settings of a running pod's annotations that a policy can also set: the mode and the
/// drain timeout.
pub(super) fn running(annotations: &BTreeMap<String, String>) -> (Option<Mode>, Option<Duration>) {
    let said = |key: &str| annotations.get(&format!("{PREFIX}{key}")).map(|text| text.trim());
    (said("mode").and_then(word::<Mode>), said("drain-timeout").and_then(drain))
}

/// Formats a duration in the syntax of a policy.
pub(super) fn written(time: Duration) -> String {
    format_duration(time)
}
