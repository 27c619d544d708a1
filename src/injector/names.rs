//! Names and paths in a pod that an injection writes or changes.
//!
//! The removal of the sidecar and later passes recognize the changes of an earlier injection by
//! them.

/// Annotation with the default container of `kubectl logs` and `exec`.
pub(super) const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Fields of a container with handlers that may connect to its own ports.
pub(super) const HANDLERS: [&str; 5] =
    ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle/postStart", "lifecycle/preStop"];
pub(super) const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
/// Path prefix of the sidecar's drain endpoint, which the kubelet calls; the token follows.
pub(super) const DRAIN_PATH: &str = "/drain/";
/// Environment variable with the token that authenticates the drain hook.
pub(super) const DRAIN_TOKEN: &str = "GROUPAGE_DRAIN_TOKEN";
/// Path prefix of the sidecar's connect endpoint, which reports whether an application port accepts
/// connections; the port number follows.
pub(super) const CONNECT_PATH: &str = "/connect/";

/// Volume with the service account token for the controller.
pub(super) const TOKEN_VOLUME: &str = "groupage-token";
/// Volume with the last valid configuration.
pub(super) const STATE_VOLUME: &str = "groupage-state";

/// Prefix of the names that the application's ports get if their names were moved.
pub(super) const RENAMED_PREFIX: &str = "gpg-";

/// Maps and lists of a pod that an injection creates if they are absent.
pub(super) const CREATED_PATHS: [&str; 9] = [
    "metadata",
    "metadata/labels",
    "metadata/annotations",
    "spec/initContainers",
    "spec/volumes",
    "spec/imagePullSecrets",
    "spec/securityContext",
    "spec/securityContext/sysctls",
    "spec/resources/requests",
];
/// Maps and lists of an application container that an injection creates if they are absent.
pub(super) const MADE_IN_CONTAINERS: [&str; 3] = ["env", "args", "lifecycle"];

/// Returns `true` if the name has the form of a name that an injection assigns. The original name
/// is then unknown.
pub(super) fn is_assigned_name(name: &str) -> bool {
    name.strip_prefix(RENAMED_PREFIX).is_some_and(|rest| {
        rest.starts_with(|first: char| first.is_ascii_digit()) && rest.bytes().all(|b| b.is_ascii_digit() || b == b'-')
    })
}
