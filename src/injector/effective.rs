//! Effective injection settings of one pod: the result of its annotations, its policy and the
//! defaults of the installation, in this order of precedence (`overrides`). The later steps of the
//! injection read nothing else.

use std::time::Duration;

use super::app_listen::AppListen;
use super::engine::EngineSettings;
use super::recipe::RecipeChoice;
use super::{InjectionContext, NamedPolicy};
use crate::api::v1alpha1::{CaptureMode, Mode, NativeSidecar, PortRef};

/// Effective injection settings of one pod, as derived by `overrides::read`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InjectionSettings {
    pub(super) capture: CaptureMode,
    /// Ports to capture. If empty, these are every declared TCP port and every port that a Service
    /// or an `InferencePool` leads to.
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
    /// The model that the sidecar executes; `None` for a sidecar in front of a model server.
    pub(super) engine: Option<EngineSettings>,
    pub(super) policy: Option<NamedPolicy>,
}

// === impl InjectionSettings ===

impl InjectionSettings {
    /// Returns `true` if the sidecar is a native one.
    pub(super) fn is_native(&self, context: &InjectionContext) -> bool {
        match self.native {
            NativeSidecar::Always => true,
            NativeSidecar::Never => false,
            NativeSidecar::Auto => context.supports_native_sidecars,
        }
    }
}
