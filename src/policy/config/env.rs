//! Settings from outside the file: flags, the environment, and the limits of the machine.
//!
//! This module and `controller` are the only readers of the environment. Flags are passed in by the
//! caller, as written, so that one rule validates a value wherever it comes from.

use std::fmt;
use std::io::IsTerminal;
use std::path::Path;

use serde::{Serialize, Serializer};

use crate::memory::ControlGroup;

/// Source of an effective value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingSource {
    /// Built-in default.
    Default,
    /// Configuration file, with the line.
    File(usize),
    /// Snapshot from the admission of the pod: `GROUPAGE_POLICY`.
    Snapshot,
    /// State folder, which contains the settings that were last in effect.
    LastGood,
    /// Decision of the process itself to pass calls through. The text is the reason.
    Passthrough(&'static str),
    /// Flag, such as `--listen`.
    Flag(&'static str),
    /// Environment variable.
    Env(&'static str),
    /// Limit of the machine that lowered the value of another source. The text names the limit.
    LoweredBy(&'static str),
    /// Tuner of the controller.
    Tuned,
    /// Controller.
    Controller,
}

/// A value with its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcedValue<T> {
    /// Value, as written.
    pub value: T,
    /// Source of the value.
    pub source: SettingSource,
}

/// Settings of flags and environment that override the file, each as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `proxy.listen`.
    pub listen: Option<SourcedValue<Vec<String>>>,
    /// `proxy.upstream`.
    pub upstream: Option<SourcedValue<String>>,
    /// Directory of the model that the process executes itself.
    pub engine: Option<SourcedValue<String>>,
    /// `engine.device`.
    pub engine_device: Option<SourcedValue<String>>,
    /// `proxy.admin.metrics`.
    pub metrics: Option<SourcedValue<String>>,
    /// `proxy.admin.local`.
    pub admin: Option<SourcedValue<String>>,
    /// `proxy.log.format`.
    pub log_format: Option<SourcedValue<String>>,
    /// `proxy.log.level`.
    pub log_level: Option<SourcedValue<String>>,
    /// `proxy.log.access`.
    pub log_access: Option<SourcedValue<String>>,
    /// `proxy.state`.
    pub state: Option<SourcedValue<String>>,
    /// Captured ports, each as `NAME:PORT@LISTEN`.
    pub capture: Option<SourcedValue<Vec<String>>>,
    /// Addresses of the pod, separated by commas.
    pub pod_ips: Option<SourcedValue<String>>,
    /// Termination grace period of the pod.
    pub grace: Option<SourcedValue<String>>,
}

/// Properties of the pod in which the process runs, as set by the injector.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PodInfo {
    /// Name of the pod.
    pub name: Option<String>,
    /// Namespace of the pod.
    pub namespace: Option<String>,
    /// UID, which distinguishes it from a later pod of the same name.
    pub uid: Option<String>,
    /// Node on which it runs.
    pub node: Option<String>,
    /// Settings from its admission: JSON, a `BatchPolicy` or its bare spec.
    pub policy: Option<String>,
    /// Token that authorizes a flush of the queue.
    pub drain_token: Option<String>,
}

/// Properties of the controller's own pod, as set by the installation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControllerPodInfo {
    /// Namespace of the pod, `GROUPAGE_NAMESPACE`.
    pub namespace: Option<String>,
    /// Name of the pod, `GROUPAGE_POD_NAME`.
    pub name: Option<String>,
    /// Address of the pod, `GROUPAGE_POD_IP`.
    pub ip: Option<std::net::IpAddr>,
}

/// Limits of the machine. Tests construct them directly.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineLimits {
    /// Memory limit of the control group, if it has one.
    pub memory_bytes_max: Option<u64>,
    /// Limit on open files.
    pub files_max: Option<u64>,
    /// `true` if logs are written to a terminal.
    pub terminal: bool,
}

// === impl SourcedValue ===

impl<T> SourcedValue<T> {
    /// Creates a value that comes from a flag.
    pub const fn flag(name: &'static str, value: T) -> Self {
        Self { value, source: SettingSource::Flag(name) }
    }
}

// === impl Overrides ===

impl Overrides {
    /// Reads the environment. An empty variable counts as absent. `GROUPAGE_LISTEN` contains
    /// several addresses, separated by commas.
    #[must_use]
    pub fn from_environment() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Reads any set of variables.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Self {
        let one = |name: &'static str| {
            get(name)
                .filter(|value| !value.is_empty())
                .map(|value| SourcedValue { value, source: SettingSource::Env(name) })
        };
        Self {
            listen: one("GROUPAGE_LISTEN").map(|given| SourcedValue {
                value: given.value.split(',').map(|address| address.trim().to_owned()).collect(),
                source: given.source,
            }),
            upstream: one("GROUPAGE_UPSTREAM"),
            // A process executes a model only where its command line requests it.
            engine: None,
            engine_device: None,
            metrics: one("GROUPAGE_METRICS"),
            admin: one("GROUPAGE_ADMIN"),
            log_format: one("GROUPAGE_LOG_FORMAT"),
            log_level: one("GROUPAGE_LOG_LEVEL").or_else(|| one("RUST_LOG")),
            log_access: one("GROUPAGE_LOG_ACCESS"),
            state: one("GROUPAGE_STATE"),
            // Only the injector captures ports, and it does so with a flag.
            capture: None,
            pod_ips: one("GROUPAGE_POD_IPS"),
            grace: one("GROUPAGE_GRACE"),
        }
    }

    /// Returns these overrides, with those of `other` where a value is absent.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            upstream: self.upstream.or(other.upstream),
            engine: self.engine.or(other.engine),
            engine_device: self.engine_device.or(other.engine_device),
            metrics: self.metrics.or(other.metrics),
            admin: self.admin.or(other.admin),
            log_format: self.log_format.or(other.log_format),
            log_level: self.log_level.or(other.log_level),
            log_access: self.log_access.or(other.log_access),
            state: self.state.or(other.state),
            capture: self.capture.or(other.capture),
            pod_ips: self.pod_ips.or(other.pod_ips),
            grace: self.grace.or(other.grace),
        }
    }
}

// === impl PodInfo ===

impl PodInfo {
    /// Returns `true` if this process runs in a pod: the kubelet sets the address of the API server in
    /// every container, also if the pod disables service links.
    #[must_use]
    pub fn is_in_pod() -> bool {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        std::env::var("KUBERNETES_SERVICE_HOST").is_ok_and(|host| !host.is_empty())
    }

    /// Reads the environment.
    #[must_use]
    pub fn from_environment() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Reads any set of variables. An empty variable counts as absent.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Self {
        let one = |name| get(name).filter(|value| !value.is_empty());
        Self {
            name: one("GROUPAGE_POD_NAME"),
            namespace: one("GROUPAGE_POD_NAMESPACE"),
            uid: one("GROUPAGE_POD_UID"),
            node: one("GROUPAGE_NODE_NAME"),
            policy: one("GROUPAGE_POLICY"),
            drain_token: one("GROUPAGE_DRAIN_TOKEN"),
        }
    }
}

impl fmt::Debug for PodInfo {
    /// Omits the token, and the policy, which has about a hundred lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodInfo")
            .field("name", &self.name)
            .field("namespace", &self.namespace)
            .field("uid", &self.uid)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

// === impl ControllerPodInfo ===

impl ControllerPodInfo {
    /// Reads the environment. An empty variable counts as absent.
    #[must_use]
    pub fn from_environment() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        let one = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            namespace: one("GROUPAGE_NAMESPACE"),
            name: one("GROUPAGE_POD_NAME"),
            ip: one("GROUPAGE_POD_IP").and_then(|ip| ip.parse().ok()),
        }
    }
}

// === impl MachineLimits ===

impl MachineLimits {
    /// Reads the limits from the operating system.
    #[must_use]
    pub fn read() -> Self {
        Self {
            memory_bytes_max: ControlGroup::find(Path::new("/")).map(|group| group.limit()),
            files_max: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
            terminal: std::io::stdout().is_terminal(),
        }
    }
}

// === impl SettingSource ===

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(line) => write!(f, "file:{line}"),
            Self::Snapshot => f.write_str("snapshot"),
            Self::LastGood => f.write_str("last good"),
            Self::Passthrough(reason) => f.write_str(reason),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Env(name) => write!(f, "env {name}"),
            Self::LoweredBy(by) => write!(f, "lowered to {by}"),
            Self::Tuned => f.write_str("tuned"),
            Self::Controller => f.write_str("controller"),
        }
    }
}

impl Serialize for SettingSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
