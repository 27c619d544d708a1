//! What an injection needs to know besides the pod: the namespace, the objects that name the pod's ports, policies, and the installation's own values.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::Value;

use crate::api::v1alpha1::{BatchPolicySpec, BatchProfileSpec, Mode};

/// What is known around a pod.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The pod's namespace.
    pub namespace: Namespace,
    /// What made the pod, as far as it is known.
    pub workload: Workload,
    /// The namespace that Groupage itself runs in, where nothing is injected; empty: not known.
    pub own_namespace: String,
    /// The policies of the namespace.
    pub policies: Arc<[NamedPolicy]>,
    /// The profiles of the namespace.
    pub profiles: Arc<[NamedProfile]>,
    /// Objects of the namespace, and policies of the whole cluster, that may name the pod's ports, as they are: Services, `InferencePool`s, `NetworkPolicy`s and others of [`super::REFERRERS`].
    pub referrers: Arc<[Value]>,
    /// The installation's values.
    pub sidecar: SidecarDefaults,
    /// Where the controller is; `None`: there is none.
    pub controller: Option<Controller>,
    /// Whether a pod that says nothing is injected: the chart's default in a cluster, always for a file that a user names.
    pub unless_disabled: bool,
    /// Where the objects were seen.
    pub view: View,
    /// The use of capture by `Redirect`.
    pub redirect: RedirectUse,
    /// Whether every kubelet runs native sidecars whose named ports reach Services (1.33).
    pub native: bool,
    /// A random token for the drain hook; `None`: one that follows from the template, so that the same file gives the same output.
    pub token: Option<String>,
}

/// Where objects were seen, and so whether all are known that lead to a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum View {
    /// In a cluster: all are known.
    #[default]
    Cluster,
    /// In files: others may lead to it too.
    Files,
}

/// The use that an installation makes of capture by `Redirect`, which adds an init container with
/// `NET_ADMIN`. Pod Security of the namespace may forbid it all the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RedirectUse {
    /// It is refused.
    #[default]
    Never,
    /// For ports that nothing else captures, and where an annotation names it.
    WhenNeeded,
    /// For every port whose capture is `Auto`.
    Always,
}

/// A namespace.
#[derive(Debug, Clone, Default)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations; a mesh may be asked for there, and told of ports.
    pub annotations: BTreeMap<String, String>,
}

/// What made a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workload {
    /// API group, empty for the core group.
    pub group: String,
    /// Such as `Deployment`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// A `BatchPolicy`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NamedPolicy {
    /// Its name.
    pub name: String,
    /// When it was made (RFC 3339, so that texts compare as times); the older of two for the same pod wins.
    pub created: String,
    /// What it says.
    pub spec: BatchPolicySpec,
}

/// A `BatchProfile`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NamedProfile {
    /// Its name.
    pub name: String,
    /// What it says.
    pub spec: BatchProfileSpec,
}

/// The values of the installation, under every policy and annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarDefaults {
    /// The image.
    pub image: String,
    /// When it is pulled.
    pub pull_policy: String,
    /// Secrets to pull it with.
    pub pull_secrets: Vec<String>,
    /// CPU request.
    pub cpu_request: String,
    /// Memory request.
    pub memory_request: String,
    /// Memory limit.
    pub memory_limit: String,
    /// Log level.
    pub log_level: String,
    /// What is done with calls where no policy says.
    pub mode: Mode,
}

/// Where the controller is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Controller {
    /// Its address: `https://HOST:PORT`.
    pub address: String,
    /// The certificates that it is known by, as PEM; empty: the sidecar learns nothing of it yet.
    pub ca: String,
}

// === impl RedirectUse ===

impl RedirectUse {
    /// The word for it, as the chart and the command line have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "Never",
            Self::WhenNeeded => "WhenNeeded",
            Self::Always => "Always",
        }
    }
}

impl FromStr for RedirectUse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::WhenNeeded, Self::Never, Self::Always];
        let found = known.into_iter().find(|each| each.as_str().eq_ignore_ascii_case(text));
        found.ok_or_else(|| "it may be WhenNeeded, Never or Always".to_owned())
    }
}

// === impl SidecarDefaults ===

impl Default for SidecarDefaults {
    fn default() -> Self {
        Self {
            image: concat!("groupage.dev/groupage:", env!("CARGO_PKG_VERSION")).to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
            pull_secrets: Vec::new(),
            // A static binary idles below 12 MiB; buffered bytes are at most a quarter of the limit.
            cpu_request: "50m".to_owned(),
            memory_request: "48Mi".to_owned(),
            memory_limit: "128Mi".to_owned(),
            log_level: "info".to_owned(),
            mode: Mode::Batch,
        }
    }
}
