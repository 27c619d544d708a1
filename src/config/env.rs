//! What comes from outside the file: flags, the environment, and the limits of the machine.
//!
//! The only reader of the environment. Flags are given by the caller, texts as they were written, so that one rule judges a value wherever it stands.

use std::fmt;
use std::io::IsTerminal;
use std::path::Path;

use serde::{Serialize, Serializer};

use crate::memory::ControlGroup;

/// Where a value in effect comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Built in.
    Default,
    /// A line of the file.
    File(usize),
    /// What the pod was admitted with: `GROUPAGE_POLICY`.
    Snapshot,
    /// The settings that were in force last, from the folder for state.
    Kept,
    /// The process stepped aside by itself; the text says why.
    Guard(&'static str),
    /// A flag, such as `--listen`.
    Flag(&'static str),
    /// A variable of the environment.
    Env(&'static str),
    /// Another source said more than the machine has; the text says what bounds it.
    Lowered(&'static str),
    /// The controller's tuner.
    Tuned,
    /// The controller.
    Controller,
}

/// A value with its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given<T> {
    /// As written.
    pub value: T,
    /// By whom.
    pub source: Source,
}

/// What flags and environment say over the file, each as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `proxy.listen`.
    pub listen: Option<Given<Vec<String>>>,
    /// `proxy.upstream`.
    pub upstream: Option<Given<String>>,
    /// `proxy.admin.metrics`.
    pub metrics: Option<Given<String>>,
    /// `proxy.admin.local`.
    pub admin: Option<Given<String>>,
    /// `proxy.log.format`.
    pub log_format: Option<Given<String>>,
    /// `proxy.log.level`.
    pub log_level: Option<Given<String>>,
    /// `proxy.log.access`.
    pub log_access: Option<Given<String>>,
    /// `proxy.state`.
    pub state: Option<Given<String>>,
    /// Captured ports, each as `NAME:PORT@LISTEN`.
    pub capture: Option<Given<Vec<String>>>,
    /// The addresses of the pod, separated by commas.
    pub pod_ips: Option<Given<String>>,
    /// The time that the pod has to end.
    pub grace: Option<Given<String>>,
}

/// What the injector says of the pod that the process stands in.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
    /// What tells it from a later one of that name.
    pub uid: Option<String>,
    /// Where it runs.
    pub node: Option<String>,
    /// The settings that it was admitted with: JSON, a `BatchPolicy` or its bare spec.
    pub policy: Option<String>,
    /// Whoever knows it may have the queue flushed.
    pub drain_token: Option<String>,
}

/// What the installation says of the controller's own pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControllerPod {
    /// Its namespace, `GROUPAGE_NAMESPACE`.
    pub namespace: Option<String>,
    /// Its name, `GROUPAGE_POD_NAME`.
    pub name: Option<String>,
    /// Its address, `GROUPAGE_POD_IP`.
    pub ip: Option<std::net::IpAddr>,
}

/// What the machine allows; made by hand in tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// The memory limit of the control group, if it has one.
    pub memory_bytes_max: Option<u64>,
    /// The limit on open files.
    pub files_max: Option<u64>,
    /// Whether logs go to a terminal.
    pub terminal: bool,
}

// === impl Given ===

impl<T> Given<T> {
    /// From a flag.
    pub const fn flag(name: &'static str, value: T) -> Self {
        Self { value, source: Source::Flag(name) }
    }
}

// === impl Overrides ===

impl Overrides {
    /// What the environment says; an empty variable says nothing. `GROUPAGE_LISTEN` takes several addresses, separated by commas.
    #[must_use]
    pub fn from_environment() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// The same from any set of variables.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Self {
        let one = |name: &'static str| {
            get(name).filter(|value| !value.is_empty()).map(|value| Given { value, source: Source::Env(name) })
        };
        Self {
            listen: one("GROUPAGE_LISTEN").map(|given| Given {
                value: given.value.split(',').map(|address| address.trim().to_owned()).collect(),
                source: given.source,
            }),
            upstream: one("GROUPAGE_UPSTREAM"),
            metrics: one("GROUPAGE_METRICS"),
            admin: one("GROUPAGE_ADMIN"),
            log_format: one("GROUPAGE_LOG_FORMAT"),
            log_level: one("GROUPAGE_LOG_LEVEL").or_else(|| one("RUST_LOG")),
            log_access: one("GROUPAGE_LOG_ACCESS"),
            state: one("GROUPAGE_STATE"),
            // Only the injector captures ports, and it says so by a flag.
            capture: None,
            pod_ips: one("GROUPAGE_POD_IPS"),
            grace: one("GROUPAGE_GRACE"),
        }
    }

    /// These where they say something, else the others.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            upstream: self.upstream.or(other.upstream),
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

// === impl Pod ===

impl Pod {
    /// What the environment says.
    #[must_use]
    pub fn from_environment() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// The same from any set of variables; an empty one says nothing.
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

impl fmt::Debug for Pod {
    /// Without the token, and without a policy of some hundred lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pod")
            .field("name", &self.name)
            .field("namespace", &self.namespace)
            .field("uid", &self.uid)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

// === impl ControllerPod ===

impl ControllerPod {
    /// What the environment says; an empty variable says nothing.
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

// === impl Machine ===

impl Machine {
    /// Asks the system.
    #[must_use]
    pub fn read() -> Self {
        Self {
            memory_bytes_max: ControlGroup::find(Path::new("/")).map(|group| group.limit()),
            files_max: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
            terminal: std::io::stdout().is_terminal(),
        }
    }
}

// === impl Source ===

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(line) => write!(f, "file:{line}"),
            Self::Snapshot => f.write_str("snapshot"),
            Self::Kept => f.write_str("last good"),
            Self::Guard(why) => f.write_str(why),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Lowered(by) => write!(f, "lowered to {by}"),
            Self::Tuned => f.write_str("tuned"),
            Self::Controller => f.write_str("controller"),
        }
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_the_environment_and_an_empty_variable_says_nothing() {
        let env = Overrides::from_variables(|name| match name {
            "GROUPAGE_LISTEN" => Some(":1, :2".to_owned()),
            "RUST_LOG" => Some("debug".to_owned()),
            "GROUPAGE_UPSTREAM" => Some("http://env".to_owned()),
            "GROUPAGE_ADMIN" => Some(String::new()),
            _ => None,
        });
        let flags =
            Overrides { upstream: Some(Given::flag("--upstream", "http://flag".to_owned())), ..Overrides::default() };
        let both = flags.or(env);
        assert_eq!(both.upstream, Some(Given::flag("--upstream", "http://flag".to_owned())));
        assert_eq!(both.listen.map(|given| given.value), Some(vec![":1".to_owned(), ":2".to_owned()]));
        assert_eq!(both.log_level.map(|given| given.source.to_string()), Some("env RUST_LOG".to_owned()));
        assert_eq!(both.admin, None);
    }

    #[test]
    fn a_pod_is_known_from_its_environment_and_shows_no_secret() {
        let pod = Pod::from_variables(|name| match name {
            "GROUPAGE_POD_NAME" => Some("embedder-7".to_owned()),
            "GROUPAGE_DRAIN_TOKEN" => Some("s3cret".to_owned()),
            "GROUPAGE_POLICY" => Some(String::new()),
            _ => None,
        });
        assert_eq!((pod.name.as_deref(), pod.policy.as_deref()), (Some("embedder-7"), None));
        assert_eq!(pod.drain_token.as_deref(), Some("s3cret"));
        assert!(!format!("{pod:?}").contains("s3cret"));
    }
}
