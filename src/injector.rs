//! Adds the sidecar to a pod, and takes it out again: pure functions on raw JSON.
//!
//! The webhook and `groupage inject` call the same [`inject`], so what a user sees offline is what the cluster does. A pod is never read into types and
//! written again: fields that this version does not know would be lost. It is changed in place, and the patch is the difference.
//!
//! The contract: what is injected is injected again to the same pod, and taken out it is the pod that it was. The first holds since injecting begins with
//! taking out, the second by a record of everything changed in the user's own containers, which travels in the annotation `groupage.dev/status`.
//!
//! What it leaves out: which objects of a cluster matter to a pod (the caller puts them into [`Context`]), YAML, and events.

mod access;
mod apply;
mod around;
mod capture;
mod code;
mod consent;
mod context;
mod converge;
mod dialled;
mod knob;
mod lost;
mod overrides;
mod policy;
mod ports;
mod recipe;
mod referrers;
mod refuse;
mod resources;
mod service_fix;
mod shape;
mod sidecar;
mod status;
mod tell;
mod template;
mod told;
mod undo;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use around::around;
pub use code::Code;
pub use context::{
    Context, Controller, NamedPolicy, NamedProfile, Namespace, RedirectUse, SidecarDefaults, View, Workload,
};
pub use policy::settings;
pub use recipe::merged_calls;
pub use referrers::KINDS as REFERRERS;
pub use refuse::Skip;
pub use service_fix::{ServiceFix, name_ports, remedy, service_fixes};
pub use template::{Place, places};

use self::overrides::Overrides;

/// The annotation and label that say whether a pod wants the sidecar.
pub const INJECT: &str = "groupage.dev/inject";
/// The annotation that says what was injected and how it is undone.
pub const STATUS: &str = "groupage.dev/status";
/// The label of every pod with a sidecar, cheap to watch by.
pub const INJECTED: &str = "groupage.dev/injected";
/// The label of our own pods, which are never injected.
pub const COMPONENT: &str = "groupage.dev/component";
/// The name of the sidecar's container.
pub const CONTAINER: &str = "groupage";
/// The name of the init container that redirects ports.
pub const REDIRECT: &str = "groupage-redirect";

/// What came of a pod.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It has the sidecar now.
    Injected(Box<Injected>),
    /// It is left as it was.
    Skipped(Skipped),
    /// What the user asks for cannot be read, so nothing of it is done.
    Refused(Vec<Problem>),
}

/// A pod with the sidecar.
#[derive(Debug, Clone, PartialEq)]
pub struct Injected {
    /// The pod, or the template.
    pub pod: Value,
    /// What was done.
    pub report: Report,
}

/// A pod without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Why.
    pub reason: Skip,
    /// For people: what exactly, and what to do.
    pub detail: String,
}

/// What was done to a pod, in sentences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// What was done.
    pub facts: Vec<String>,
    /// What the user should know: what bypasses the sidecar, what was replaced.
    pub warnings: Vec<String>,
    /// Whether every way to a captured port leads through the sidecar, as far as can be seen.
    pub captured: bool,
}

/// Something that the user wrote and that cannot be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its kind.
    pub code: Code,
    /// The annotation or label.
    pub key: String,
    /// Where it stands.
    pub holder: Holder,
    /// What is wrong, with what is allowed.
    pub message: String,
}

/// Where a key of ours stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Among the annotations of the pod.
    Annotation,
    /// Among its labels.
    Label,
    /// Among the labels of its namespace.
    Namespace,
}

/// A pod without the sidecar again.
#[derive(Debug, Clone, PartialEq)]
pub struct Uninjected {
    /// The pod.
    pub pod: Value,
    /// What could not be restored.
    pub warnings: Vec<String>,
}

/// Adds the sidecar to a pod or a pod template (an object with `metadata` and `spec`).
#[must_use]
pub fn inject(pod: &Value, context: &Context) -> Outcome {
    let before = undo::uninject(pod);
    let known = status::Status::of(pod);
    let original = before.as_ref().map_or(pod, |before| &before.pod);
    match consent::asked(original, context) {
        Ok(None) => {}
        Ok(Some(mut skipped)) => {
            if before.is_some() {
                skipped.detail.push_str("; it has the sidecar all the same, and groupage uninject takes it out");
            }
            return Outcome::Skipped(skipped);
        }
        Err(problem) => return Outcome::Refused(vec![problem]),
    }
    if let Some(skipped) = refuse::before(original, context) {
        return Outcome::Skipped(skipped);
    }
    let (overrides, mut warnings) = match Overrides::read(original, known.as_ref(), context) {
        Ok(read) => read,
        Err(problems) => return Outcome::Refused(problems),
    };
    // What could not be restored is not hidden by adding it again.
    warnings.extend(before.iter().flat_map(|before| before.warnings.clone()));
    match apply::apply(original, pod, known.as_ref(), context, &overrides) {
        Ok(mut injected) => {
            injected.report.warnings.splice(0..0, warnings);
            Outcome::Injected(Box::new(injected))
        }
        Err(skipped) => Outcome::Skipped(skipped),
    }
}

/// Takes the sidecar out of a pod or a pod template; `None` where there is none.
#[must_use]
pub fn uninject(pod: &Value) -> Option<Uninjected> {
    undo::uninject(pod)
}

/// The JSON Patch (RFC 6902) from one pod to the other.
#[must_use]
pub fn patch(from: &Value, to: &Value) -> json_patch::Patch {
    json_patch::diff(from, to)
}

// === impl Outcome ===

impl Outcome {
    /// The pod, where it was injected.
    #[must_use]
    pub fn injected(&self) -> Option<&Injected> {
        match self {
            Self::Injected(injected) => Some(injected),
            Self::Skipped(_) | Self::Refused(_) => None,
        }
    }
}
