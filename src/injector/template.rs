//! Where the pod template stands in an object, whatever its kind: a field of the right shape is one, so kinds that nobody has heard of are injected too.

use serde_json::Value;

use super::Workload;
use super::access::{at, text};

/// A pod template in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The keys that lead to it; none: the object is a pod.
    pub path: Vec<&'static str>,
    /// What the object is, for policies that name it.
    pub workload: Workload,
}

/// Kinds whose own controllers refuse or undo what is done to their templates: API groups, by suffix; which of their kinds run pods; and why.
const LEFT_ALONE: [(&str, &[&str], &str); 2] = [
    (
        "knative.dev",
        &["Service", "Configuration", "Revision", "ContainerSource", "SinkBinding"],
        "Knative's queue-proxy reaches the application over loopback, and its webhooks refuse hooks and init containers",
    ),
    (
        "serving.kserve.io",
        &["InferenceService", "ServingRuntime", "ClusterServingRuntime", "LLMInferenceService", "InferenceGraph"],
        "KServe makes the pods itself: annotate the InferenceService, and the pods of RawDeployment are injected",
    ),
];

/// The ways to a template that there are.
const PATHS: [&[&str]; 5] = [
    &["spec", "template"],
    &["spec", "jobTemplate", "spec", "template"],
    &["spec", "leaderWorkerTemplate", "leaderTemplate"],
    &["spec", "leaderWorkerTemplate", "workerTemplate"],
    &["template"],
];

/// The pod templates of an object.
///
/// # Errors
/// Why an object that has some is left alone.
pub fn places(object: &Value) -> Result<Vec<Place>, &'static str> {
    let kind = text(object, &["kind"]).unwrap_or_default();
    let version = text(object, &["apiVersion"]).unwrap_or_default();
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let name = text(object, &["metadata", "name"]).or_else(|| text(object, &["metadata", "generateName"]));
    let workload =
        Workload { group: group.to_owned(), kind: kind.to_owned(), name: name.unwrap_or_default().to_owned() };
    let here = |path: &'static [&'static str]| Place { path: path.to_vec(), workload: workload.clone() };
    // Also a list that is none, of which there is something to say.
    let has_pod = |value: &Value| !at(value, &["spec", "containers"]).is_null();
    let found: Vec<Place> = if kind == "Pod" && group.is_empty() {
        vec![here(&[])]
    } else {
        PATHS.into_iter().filter(|path| has_pod(at(object, path))).map(here).collect()
    };
    let belongs = |suffix: &str| group == suffix || group.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.'));
    let left = LEFT_ALONE.iter().find(|(suffix, ..)| belongs(suffix));
    match left {
        Some((_, kinds, why)) if !found.is_empty() || kinds.contains(&kind) => Err(why),
        Some(_) => Ok(Vec::new()),
        None => Ok(found),
    }
}

// === impl Place ===

impl Place {
    /// What tells it from other templates of the same object; empty where there is one.
    #[must_use]
    pub fn shown(&self) -> &'static str {
        match self.path.as_slice() {
            [.., template @ ("leaderTemplate" | "workerTemplate")] => template,
            _ => "",
        }
    }

    /// The template.
    #[must_use]
    pub fn of<'a>(&self, object: &'a Value) -> &'a Value {
        at(object, &self.path)
    }

    /// Puts a template in its place.
    pub fn put(&self, object: &mut Value, template: Value) {
        if let Some(there) = super::access::at_mut(object, &self.path) {
            *there = template;
        }
    }
}
