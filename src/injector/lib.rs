//! Sidecar injection: adds the sidecar to a pod and removes it again, as pure functions on raw
//! JSON.
//!
//! The webhook and `groupage inject` call the same [`inject`], so the offline result is the result
//! in the cluster. A pod is never deserialized into types and serialized again, which would drop
//! fields unknown to this version. It is edited in place, and the patch is the difference.
//!
//! Two properties hold. Injection is idempotent: injecting an injected pod returns the same pod,
//! because injection starts with [`uninject`]. Injection is reversible: every change in the user's
//! own containers is recorded in the annotation `groupage.dev/status`, and [`uninject`] reverts it.
//!
//! This package excludes the selection of the cluster objects that matter to a pod (the caller puts
//! them into [`InjectionContext`]), YAML, and events.

use groupage_policy::api;
use groupage_policy::config;

mod access;
mod allocator;
mod annotation;
mod app_listen;
mod apply;
mod bypass;
mod candidates;
mod capture;
mod code;
mod opt_in;
mod context;
mod converge;
mod probe_ports;
mod effective;
mod engine;
mod argument_edit;
mod recovery;
mod message;
mod names;
mod overrides;
mod planned;
mod policy;
mod ports;
mod recipe;
mod referrers;
mod skip_checks;
mod resources;
mod service_fix;
mod shape;
mod sidecar;
mod skip;
mod status;
mod report;
mod template;
mod listen_target;
mod undo;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use bypass::current_bypasses;
pub use code::InjectionErrorCode;
pub use context::{
    ControllerEndpoint, InjectionContext, NamedPolicy, NamedProfile, Namespace, ObjectSource, RedirectUse,
    SidecarDefaults, Workload,
};
pub use engine::outdated_engine_settings;
pub use json_patch::diff as patch;
pub use policy::runtime_config;
pub use recipe::merged_calls;
pub use referrers::KINDS as REFERRERS;
pub use service_fix::{ServiceFix, name_ports, remedy, service_fixes};
pub use skip::SkipReason;
pub use template::{TemplateLocation, template_locations};
pub use undo::uninject;

/// Annotation and label that enable or disable injection of a pod.
pub const INJECT: &str = "groupage.dev/inject";
/// Annotation with the injection status and the undo record.
pub const STATUS: &str = "groupage.dev/status";
/// Label of every pod with a sidecar; a watch can select by it cheaply.
pub const INJECTED: &str = "groupage.dev/injected";
/// Label of the pods of Groupage itself, which are never injected.
pub const COMPONENT: &str = "groupage.dev/component";
/// Name of the sidecar container.
pub const CONTAINER: &str = "groupage";
/// Name of the init container that redirects ports.
pub const REDIRECT: &str = "groupage-redirect";

/// Result of an injection.
#[derive(Debug, Clone, PartialEq)]
pub enum InjectionOutcome {
    /// The sidecar was added.
    Injected(Box<InjectedPod>),
    /// The pod was left unchanged.
    Skipped(SkippedPod),
    /// At least one annotation or label is invalid, so the pod was left unchanged.
    Refused(Vec<AnnotationError>),
}

/// A pod with the sidecar.
#[derive(Debug, Clone, PartialEq)]
pub struct InjectedPod {
    /// The pod or pod template.
    pub pod: Value,
    /// Description of the changes.
    pub report: InjectionReport,
}

/// A pod that was left without a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedPod {
    /// Reason for the skip.
    pub reason: SkipReason,
    /// Human-readable details and the remedy.
    pub detail: String,
}

/// Human-readable description of an injection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InjectionReport {
    /// Changes that were made.
    pub facts: Vec<String>,
    /// Warnings: traffic that bypasses the sidecar, values that were replaced.
    pub warnings: Vec<String>,
    /// `true` if no known path to a captured port bypasses the sidecar.
    pub captured: bool,
}

/// An invalid annotation or label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotationError {
    /// Kind of the problem.
    pub code: InjectionErrorCode,
    /// The annotation or label.
    pub key: String,
    /// Location of the key.
    pub holder: KeyLocation,
    /// Description of the error and of the allowed values.
    pub message: String,
}

/// Location of an injection key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyLocation {
    /// An annotation of the pod.
    Annotation,
    /// A label of the pod.
    Label,
    /// A label of the namespace.
    Namespace,
}

/// A pod from which the sidecar was removed.
#[derive(Debug, Clone, PartialEq)]
pub struct RestoredPod {
    /// The pod.
    pub pod: Value,
    /// Changes that could not be reverted.
    pub warnings: Vec<String>,
}

/// Adds the sidecar to a pod or a pod template (an object with `metadata` and `spec`).
#[must_use]
pub fn inject(pod: &Value, context: &InjectionContext) -> InjectionOutcome {
    let before = uninject(pod);
    let known = status::InjectionStatus::from_pod(pod);
    let original = before.as_ref().map_or(pod, |before| &before.pod);
    match opt_in::decide(original, context) {
        Ok(None) => {}
        Ok(Some(mut skipped)) => {
            if before.is_some() {
                skipped.detail.push_str("; it still has the sidecar: remove it with groupage uninject");
            }
            return InjectionOutcome::Skipped(skipped);
        }
        Err(problem) => return InjectionOutcome::Refused(vec![problem]),
    }
    if let Some(skipped) = skip_checks::before(original, context) {
        return InjectionOutcome::Skipped(skipped);
    }
    let (overrides, mut warnings) = match overrides::read(original, known.as_ref(), context) {
        Ok(read) => read,
        Err(problems) => return InjectionOutcome::Refused(problems),
    };
    // A failure to restore is still reported when the sidecar is added again.
    warnings.extend(before.iter().flat_map(|before| before.warnings.clone()));
    match apply::apply(original, pod, known.as_ref(), context, &overrides) {
        Ok(mut injected) => {
            injected.report.warnings.splice(0..0, warnings);
            InjectionOutcome::Injected(Box::new(injected))
        }
        Err(skipped) => InjectionOutcome::Skipped(skipped),
    }
}

// === impl InjectionOutcome ===

impl InjectionOutcome {
    /// Returns the injected pod, or `None` if it was skipped or refused.
    #[must_use]
    pub fn injected(&self) -> Option<&InjectedPod> {
        match self {
            Self::Injected(injected) => Some(injected),
            Self::Skipped(_) | Self::Refused(_) => None,
        }
    }
}
