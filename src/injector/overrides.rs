//! What is asked of an injection: annotation over policy over the installation's values.
//!
//! The annotations are a list that is allowed, each with a type. Image, security context and mounts are not among them: whoever may write a pod must not
//! choose by it what runs beside the model (`reliability.md` T13). One value that cannot be read, and nothing is done: half of what was asked for is
//! something that nobody asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::access::at;
use super::status::Status;
use super::{Code, Context, Holder, NamedPolicy, Problem, policy, recipe, told};
use crate::api::v1alpha1::{Capture, Mode, NativeSidecar, Port, Word};
use crate::config::quantity::{CPU, MEMORY};
use crate::config::{self, format_duration, parse_duration};

/// The prefix of our annotations.
const PREFIX: &str = "groupage.dev/";

/// The annotations that a user may write, beside `inject`.
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

/// Ports that one pod may name, as many as are captured.
const PORTS_MAX: usize = super::ports::CAPTURED_MAX;

/// The longest name that the API server takes in a key of an annotation.
const KEY_BYTES_MAX: usize = 63;

/// Characters of a value that are shown.
const SHOWN_MAX: usize = 80;

/// What holds for one pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Overrides {
    pub(super) capture: Capture,
    /// Empty: every declared TCP port.
    pub(super) ports: Vec<Port>,
    pub(super) app_listen: Option<AppListen>,
    pub(super) recipe: RecipeChoice,
    /// `None`: nobody chose, and the installation's value holds.
    pub(super) cpu_request: Option<String>,
    pub(super) memory_request: Option<String>,
    pub(super) memory_limit: Option<String>,
    pub(super) log_level: String,
    pub(super) native: NativeSidecar,
    /// `None`: the pod's grace less 5 s.
    pub(super) drain_timeout: Option<Duration>,
    /// `None`: what the policy says, else the installation.
    pub(super) mode: Option<Mode>,
    /// The policy for this pod.
    pub(super) policy: Option<NamedPolicy>,
}

/// The recipes that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RecipeChoice {
    /// Any that fits.
    #[default]
    Auto,
    /// None.
    None,
    /// The one of this name.
    Named(&'static str),
}

/// How an application is told to listen on loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AppListen {
    /// The container; `None` until it is known which one is meant.
    pub(super) container: Option<String>,
    /// At least one; a server with a listener for each protocol has a flag for each.
    pub(super) knobs: Vec<Knob>,
}

/// What is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Knob {
    /// A variable of the environment.
    Env(String, String),
    /// An argument, such as `--host=127.0.0.1`, or a flag and its value, for servers that take no `=`.
    Arg(Vec<String>),
}

/// Reads the annotations of one pod and collects what is wrong with them.
struct Reader<'a> {
    annotations: &'a Value,
    problems: Vec<Problem>,
}

// === impl Overrides ===

impl Overrides {
    /// Whether the sidecar is a native one.
    pub(super) fn is_native(&self, context: &Context) -> bool {
        match self.native {
            NativeSidecar::Always => true,
            NativeSidecar::Never => false,
            NativeSidecar::Auto => context.native,
        }
    }

    /// Reads what holds for a pod, with what is worth a warning; `known` is told of an earlier pass.
    ///
    /// # Errors
    /// Every annotation that cannot be used.
    pub(super) fn read(
        pod: &Value,
        known: Option<&Status>,
        context: &Context,
    ) -> Result<(Self, Vec<String>), Vec<Problem>> {
        let mut reader = Reader { annotations: at(pod, &["metadata", "annotations"]), problems: Vec::new() };
        let mut warnings = reader.unknown();
        let named =
            reader.read("policy", "the name of a BatchPolicy", |text| (!text.is_empty()).then(|| text.to_owned()));
        let policy = policy::choose(pod, context, named.as_deref(), &mut warnings).cloned();
        let under = policy.as_ref().and_then(|policy| policy.spec.injection.clone()).unwrap_or_default();
        let mode = reader.read("mode", "Batch, Observe or Passthrough", word::<Mode>);
        let capture = reader.read("capture", "Auto, Named, Loopback or Redirect", word::<Capture>);
        let ports = reader.read("ports", "names and numbers of ports, separated by commas", ports);
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
        let ports = ports.unwrap_or_else(|| usable(under.ports));
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
        // The policy is for several workloads, so what does not fit this pod is no mistake; what this version cannot read leaves the default.
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
                    warnings.push(format!("appListen of policy {name} is not used: for this pod it takes {allowed}"));
                    None
                }
            }),
            (app_listen, _) => app_listen,
        };
        let recipe = recipe.unwrap_or_else(|| {
            let text = under.recipe.as_deref().unwrap_or("Auto");
            RecipeChoice::parse(text).unwrap_or_else(|| {
                warnings.push(format!(
                    "recipe {text} of the policy is not known, and Auto holds: {}",
                    RecipeChoice::allowed()
                ));
                RecipeChoice::Auto
            })
        });
        let overrides = Self {
            capture: capture.or_else(|| known_word(under.capture)).unwrap_or(Capture::Auto),
            ports,
            app_listen,
            recipe,
            cpu_request: cpu_request.or_else(|| known(under.cpu_request, |text| CPU.holds(text))),
            memory_request: memory_request.or_else(|| known(under.memory_request, |text| MEMORY.holds(text))),
            memory_limit: memory_limit.or_else(|| known(under.memory_limit, |text| MEMORY.holds(text))),
            log_level: log_level
                .or_else(|| known(under.log_level, config::is_log_level))
                .unwrap_or_else(|| context.sidecar.log_level.clone()),
            native: native.or_else(|| known_word(under.native_sidecar)).unwrap_or(NativeSidecar::Auto),
            drain_timeout: drain_timeout.or_else(|| drain(&under.drain_timeout?.0)),
            mode,
            policy,
        };
        Ok((overrides, warnings))
    }
}

/// A word that this version knows: a newer one in a policy leaves the default, an older controller must go on.
fn known_word<T>(word: Option<Word<T>>) -> Option<T> {
    match word? {
        Word::Known(word) => Some(word),
        Word::Other(_) => None,
    }
}

/// A word of an enumeration, in any case.
fn word<T: serde::de::DeserializeOwned + Copy>(text: &str) -> Option<T> {
    // Every enumeration of ours is CamelCase; which of them it is, in any case, the words themselves say.
    const WORDS: [&str; 9] =
        ["Batch", "Observe", "Passthrough", "Auto", "Named", "Loopback", "Redirect", "Always", "Never"];
    let known = WORDS.into_iter().find(|word| word.eq_ignore_ascii_case(text))?;
    serde_json::from_value(Value::from(known)).ok()
}

/// The ports of a policy that can be.
fn usable(ports: Option<Vec<Port>>) -> Vec<Port> {
    // Names have a letter in them, so what is a number is one, in quotes or not.
    let read = |port: Port| match &port {
        Port::Name(name) => name.parse().map_or(port, Port::Number),
        Port::Number(_) => port,
    };
    let ports = ports.into_iter().flatten().map(read).filter(|port| *port != Port::Number(0));
    ports.take(PORTS_MAX).collect()
}

fn ports(text: &str) -> Option<Vec<Port>> {
    let ports: Option<Vec<Port>> = text.split(',').map(|part| port(part.trim())).collect();
    ports.filter(|ports| !ports.is_empty() && ports.len() <= PORTS_MAX)
}

/// A port's number, or its name (`IANA_SVC_NAME`: at most 15 of `a-z0-9-`, with a letter).
fn port(text: &str) -> Option<Port> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().ok().filter(|number| *number > 0).map(Port::Number);
    }
    let fits = text.len() <= 15
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && text.bytes().any(|b| b.is_ascii_lowercase());
    fits.then(|| Port::Name(text.to_owned()))
}

/// A drain of up to an hour.
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

const POLICY_LISTENS: &str = "a policy sets a loopback address or a port, by a name that ends with HOST, BIND, LISTEN, ADDRESS or PORT; the annotation app-listen of the workload takes any";
const APP_LISTEN: &str =
    "env:NAME=VALUE or arg:ARGUMENT, several of them by comma, with CONTAINER/ before them where the pod has several";

impl AppListen {
    /// With the container that it is for.
    ///
    /// # Errors
    /// What it takes in this pod.
    fn settled(self, pod: &Value, known: Option<&Status>, objects: &[Value], ports: &[Port]) -> Result<Self, String> {
        let container = match &self.container {
            Some(wanted) if told::is_application(pod, wanted) => Some(wanted.clone()),
            Some(_) => return Err(format!("a container of the application: {}", told::applications(pod))),
            None => told::choose(pod, known, objects, &self, ports).map_err(|left| {
                format!("CONTAINER/ before it: of the containers {} each could be meant", told::shown(&left))
            })?,
        };
        Ok(Self { container, ..self })
    }

    /// That of a policy, which sets addresses and ports alone.
    fn of_policy(text: &str) -> Option<Self> {
        let knob = Self::parse(text)?;
        let (_, rest) = knob.container.as_ref().and_then(|_| text.split_once('/')).unwrap_or(("", text));
        config::knobs(rest).iter().all(|one| config::is_listen_knob(one)).then_some(knob)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (container, rest) = match text.split_once('/') {
            // A slash may stand in a value too; a container's name has no colon.
            Some((container, rest)) if !container.is_empty() && !container.contains(':') => {
                (Some(container.to_owned()), rest)
            }
            _ => (None, text),
        };
        // They are all for one container: one of another would be lost in the value before it.
        let another = |part: &str| {
            let (name, knob) = part.trim().split_once('/').unwrap_or_default();
            super::shape::is_label(name) && (knob.starts_with("env:") || knob.starts_with("arg:"))
        };
        if rest.split(',').any(another) {
            return None;
        }
        let knobs: Option<Vec<Knob>> = config::knobs(rest).iter().map(|one| Knob::parse(one)).collect();
        Some(Self { container, knobs: knobs? })
    }
}

// === impl Knob ===

impl Knob {
    fn parse(text: &str) -> Option<Self> {
        if let Some(argument) = text.strip_prefix("arg:") {
            // Two flags in one argument are an argument that no server knows.
            let fits = !argument.is_empty() && !argument.contains(" --");
            return fits.then(|| Self::Arg(words(argument)));
        }
        let (name, value) = text.strip_prefix("env:")?.split_once('=')?;
        // As the API server takes names of variables.
        let named = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic());
        named.then(|| Self::Env(name.to_owned(), value.to_owned()))
    }
}

/// One argument, but for a flag and its value with a space between.
fn words(argument: &str) -> Vec<String> {
    match argument.split_once(' ') {
        Some((flag, value)) if flag.starts_with('-') && !flag.contains('=') && !value.trim().contains(' ') => {
            vec![flag.to_owned(), value.trim().to_owned()]
        }
        _ => vec![argument.to_owned()],
    }
}

// === impl Reader ===

impl Reader<'_> {
    /// The annotation's value, if it is there and can be read.
    fn read<T>(&mut self, key: &str, allowed: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = self.annotations.get(format!("{PREFIX}{key}"))?;
        let read = value.as_str().and_then(|text| parse(text.trim()));
        if read.is_none() {
            self.refuse(key, allowed);
        }
        read
    }

    /// Writes down that a value cannot be used.
    fn refuse(&mut self, key: &str, allowed: &str) {
        let key = format!("{PREFIX}{key}");
        let value = self.annotations.get(&key).unwrap_or(&Value::Null);
        let message = format!("{key} is {}; it takes {allowed}{}", shown(value), unquoted(value));
        self.problems.push(Problem { code: Code::BadValue, key, holder: Holder::Annotation, message });
    }

    /// Finds annotations of our prefix that there are not; `image` alone is ignored, with a warning.
    fn unknown(&mut self) -> Vec<String> {
        let mut warnings = Vec::new();
        let keys = self.annotations.as_object().into_iter().flatten().map(|(key, _)| key);
        for key in keys.filter(|key| key.starts_with(PREFIX)) {
            let name = key.strip_prefix(PREFIX).unwrap_or(key);
            match name {
                "image" => warnings.push(format!("{key} is ignored: the image comes from the installation alone")),
                "inject" | "status" => {}
                _ if KEYS.contains(&name) => {}
                _ => {
                    let near = KEYS.iter().chain(&["inject"]).filter(|_| name.len() <= KEY_BYTES_MAX);
                    let near = near.map(|known| (strsim::osa_distance(known, name), known));
                    let near = near.filter(|(distance, _)| *distance <= 3).min().map(|(_, known)| known);
                    let meant = near.map_or_else(
                        || format!("there are {PREFIX}inject, {}", KEYS.map(|key| format!("{PREFIX}{key}")).join(", ")),
                        |known| format!("{PREFIX}{known} was probably meant"),
                    );
                    let message = format!("there is no annotation {key}; {meant}");
                    let (code, holder) = (Code::UnknownKey, Holder::Annotation);
                    self.problems.push(Problem { code, key: key.clone(), holder, message });
                }
            }
        }
        warnings
    }
}

/// A value as it is said again, cut where it is long.
pub(super) fn shown(value: &Value) -> String {
    let whole = value.to_string();
    let mut cut: String = whole.chars().take(SHOWN_MAX).collect();
    if cut.len() < whole.len() {
        cut.push('…');
    }
    cut
}

/// What is said more of a value that YAML reads as no text: the API server would refuse it.
pub(super) fn unquoted(value: &Value) -> &'static str {
    if value.is_string() { "" } else { ". Annotations and labels are texts: write it in quotes" }
}

/// What the annotations of a running pod say that a policy says too: the mode, and how long it drains.
pub(super) fn running(annotations: &BTreeMap<String, String>) -> (Option<Mode>, Option<Duration>) {
    let said = |key: &str| annotations.get(&format!("{PREFIX}{key}")).map(|text| text.trim());
    (said("mode").and_then(word::<Mode>), said("drain-timeout").and_then(drain))
}

/// A duration as the policy writes it.
pub(super) fn written(time: Duration) -> String {
    format_duration(time)
}
