//! Reasons for leaving a pod without a sidecar.

use strum::{IntoStaticStr, VariantArray};

use super::SkippedPod;

/// Reason for a skip; its name is used in events and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
pub enum SkipReason {
    /// The pod or its namespace disables injection.
    Disabled,
    /// Neither the pod, its namespace nor the default enables injection.
    NotEnabled,
    /// The pod belongs to `kube-system` or to Groupage itself.
    Excluded,
    /// The pod uses the host network, so the sidecar's ports would be ports of the node.
    HostNetwork,
    /// A static pod of the kubelet, or its mirror pod.
    StaticPod,
    /// The pod runs on Windows.
    Windows,
    /// Knative's own proxy reaches the application over loopback.
    Knative,
    /// A container or volume of the user has a name that the sidecar needs.
    NameTaken,
    /// The API server would reject the pod.
    Malformed,
    /// The pod exceeds a limit of the injector or of the API server.
    TooLarge,
    /// The pod has no port to capture.
    NoTcpPort,
    /// The pod declares only ports that are not TCP.
    UdpOnly,
    /// A plain container would keep the pod of a Job from completing.
    JobNeedsNativeSidecar,
    /// `Redirect` is requested, but Pod Security or the installation forbids it.
    RedirectForbidden,
    /// `Redirect` is requested in a pod of a mesh that redirects too.
    RedirectMeshed,
    /// The pod-level `resources` leave no room for the sidecar.
    NoRoom,
    /// No volume of the pod has the model that the sidecar is to execute.
    NoModelVolume,
    /// A container declares the port on which the sidecar is to serve its model.
    EnginePortTaken,
}

// === impl SkipReason ===

impl SkipReason {
    /// Returns a description for the reference documentation.
    #[must_use]
    pub const fn means(self) -> &'static str {
        match self {
            Self::Disabled => "the pod or its namespace has the value `disabled`",
            Self::NotEnabled => "neither the pod nor its namespace has the value `enabled`",
            Self::Excluded => {
                "pods of `kube-system`, of the namespace of Groupage and of Groupage itself are never injected"
            }
            Self::HostNetwork => "`hostNetwork: true`: the sidecar's ports would be ports of the node",
            Self::StaticPod => "the kubelet runs it from a file and accepts no changes",
            Self::Windows => "the sidecar runs only on Linux",
            Self::Knative => {
                "Knative's queue-proxy connects to the application over loopback, where no sidecar can intercept calls"
            }
            Self::NameTaken => "it has a container or volume with a name that the sidecar needs",
            Self::Malformed => "the API server would reject it",
            Self::TooLarge => "more containers, ports or bytes of annotations than allowed",
            Self::NoTcpPort => "its containers declare no port and no Service targets one by number",
            Self::UdpOnly => "its containers declare ports, but none is TCP",
            Self::JobNeedsNativeSidecar => "a plain container would keep a Job's pod from completing",
            Self::RedirectForbidden => "`Redirect` is requested, but the installation or Pod Security forbids it",
            Self::RedirectMeshed => "`Redirect` is requested, but a mesh already redirects",
            Self::NoRoom => "the pod's own `resources` leave no room for the sidecar",
            Self::NoModelVolume => "the sidecar is to execute a model, and no volume of the pod has its directory",
            Self::EnginePortTaken => "the sidecar is to execute a model, and a container uses the port for it",
        }
    }

    /// Returns the name used in events and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns `true` if injection was requested and could not be done, which is worth an event.
    /// The other reasons match the user's configuration.
    #[must_use]
    pub const fn is_unexpected(self) -> bool {
        !matches!(self, Self::Disabled | Self::NotEnabled | Self::Excluded)
    }

    pub(super) fn with_detail(self, detail: impl Into<String>) -> SkippedPod {
        SkippedPod { reason: self, detail: detail.into() }
    }
}
