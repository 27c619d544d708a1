//! Inputs of an injection other than the pod: the namespace, the objects that refer to the pod's
//! ports, policies, and the defaults of the installation.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use strum::{EnumString, IntoStaticStr};

use crate::api::v1alpha1::{BatchPolicySpec, BatchProfileSpec, Mode};

/// Environment of a pod.
#[derive(Debug, Clone, Default)]
pub struct InjectionContext {
    /// The pod's namespace.
    pub namespace: Namespace,
    /// The owner of the pod, as far as it is known.
    pub workload: Workload,
    /// The namespace of Groupage itself, in which no pod is injected; empty if unknown.
    pub own_namespace: String,
    /// The policies of the namespace.
    pub policies: Arc<[NamedPolicy]>,
    /// The profiles of the namespace.
    pub profiles: Arc<[NamedProfile]>,
    /// Raw objects of the namespace, and cluster-wide policies, that may refer to the pod's ports:
    /// Services, `InferencePool`s, `NetworkPolicy`s and the other kinds of [`super::REFERRERS`].
    pub referrers: Arc<[Value]>,
    /// Defaults of the installation.
    pub sidecar: SidecarDefaults,
    /// The controller; `None` if the sidecar runs without one.
    pub controller: Option<ControllerEndpoint>,
    /// `true` if a pod without an injection key is injected: the chart's default in a cluster,
    /// always `true` for a file passed to `groupage inject`.
    pub inject_by_default: bool,
    /// Origin of the objects.
    pub view: ObjectSource,
    /// Use of capture mode `Redirect`.
    pub redirect: RedirectUse,
    /// `true` if every kubelet runs native sidecars and Services resolve their port names
    /// (Kubernetes 1.33).
    pub supports_native_sidecars: bool,
    /// Random token for the drain hook. `None` derives the token from the template, so that the
    /// same file yields the same output.
    pub token: Option<String>,
}

/// Origin of the referring objects, which determines whether all of them are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ObjectSource {
    /// A cluster: all objects are known.
    #[default]
    Cluster,
    /// Files: further objects may refer to the pod.
    Files,
}

/// Use of capture mode `Redirect` in an installation. The mode adds an init container with
/// `NET_ADMIN`, which Pod Security of the namespace may still forbid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(ascii_case_insensitive, parse_err_ty = String, parse_err_fn = unknown_redirect_use)]
pub enum RedirectUse {
    /// Requests for `Redirect` are refused.
    #[default]
    Never,
    /// For ports that no other mode captures, and on request by annotation.
    WhenNeeded,
    /// For every port in mode `Auto`.
    Always,
}

/// A namespace.
#[derive(Debug, Clone, Default)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations, which may enable a mesh and configure the mesh's ports.
    pub annotations: BTreeMap<String, String>,
}

/// The owner of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workload {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind, such as `Deployment`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// A `BatchPolicy` with its name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NamedPolicy {
    /// Its name.
    pub name: String,
    /// Creation time (RFC 3339, so that strings compare like times). If two policies match a pod,
    /// the older one applies.
    pub created: String,
    /// Its specification.
    pub spec: BatchPolicySpec,
}

/// A `BatchProfile` with its name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NamedProfile {
    /// Its name.
    pub name: String,
    /// Its specification.
    pub spec: BatchProfileSpec,
}

/// Defaults of the installation, which every policy and annotation overrides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarDefaults {
    /// Image of the sidecar.
    pub image: String,
    /// Image pull policy.
    pub pull_policy: String,
    /// Names of the image pull secrets.
    pub pull_secrets: Vec<String>,
    /// CPU request.
    pub cpu_request: String,
    /// Memory request.
    pub memory_request: String,
    /// Memory limit.
    pub memory_limit: String,
    /// Log level.
    pub log_level: String,
    /// Mode of a sidecar without a policy, or with a policy that sets no mode.
    pub mode: Mode,
}

/// Address and trust anchor of the controller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControllerEndpoint {
    /// Its address: `https://HOST:PORT`.
    pub address: String,
    /// CA certificates in PEM. If empty, the sidecar does not connect to the controller yet.
    pub ca: String,
}

// === impl RedirectUse ===

impl RedirectUse {
    /// Returns the value's name in the chart and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Returns the error for a name that is not one of a [`RedirectUse`].
fn unknown_redirect_use(_name: &str) -> String {
    "expected WhenNeeded, Never or Always".to_owned()
}

// === impl SidecarDefaults ===

impl Default for SidecarDefaults {
    fn default() -> Self {
        Self {
            image: concat!("groupage.dev/groupage:", env!("CARGO_PKG_VERSION")).to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
            pull_secrets: Vec::new(),
            // A static binary idles below 12 MiB; buffered bytes are at most a quarter of the
            // limit.
            cpu_request: "50m".to_owned(),
            memory_request: "48Mi".to_owned(),
            memory_limit: "128Mi".to_owned(),
            log_level: "info".to_owned(),
            mode: Mode::Batch,
        }
    }
}
