//! Where the pod template stands in an object, whatever its kind: a field of the right shape is one, so kinds that nobody has heard of are injected too.

use serde_json::Value;

use super::access::{at, text};
use super::{INJECT, Workload, consent};

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

/// What is said of an `InferenceService` that asks for the sidecar already: KServe gives its annotations, and those of its components, to the pods.
const ANNOTATED: &str = "KServe makes the pods itself and gives them its annotation: those of RawDeployment are injected when they are made";

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
        Some(_) if kind == "InferenceService" && is_annotated(object) => Err(ANNOTATED),
        Some((_, kinds, why)) if !found.is_empty() || kinds.contains(&kind) => Err(why),
        Some(_) => Ok(Vec::new()),
        None => Ok(found),
    }
}

/// Whether an `InferenceService` or a component of it asks for the sidecar.
fn is_annotated(object: &Value) -> bool {
    let components =
        ["predictor", "transformer", "explainer"].map(|component| at(object, &["spec", component, "annotations"]));
    let said = components.into_iter().chain([at(object, &["metadata", "annotations"])]);
    said.filter_map(|annotations| text(annotations, &[INJECT])).any(consent::is_yes)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_inference_service_that_asks_already_is_not_told_to_ask() {
        let service = |annotations: Value, predictor: Value| {
            json!({
                "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
                "metadata": {"name": "m", "annotations": annotations},
                "spec": {"predictor": {"annotations": predictor, "model": {}}},
            })
        };
        let said = |object: &Value| places(object).unwrap_err();
        assert!(said(&service(json!(null), json!(null))).contains("annotate the InferenceService"));
        assert!(
            said(&service(json!({"groupage.dev/inject": "disabled"}), json!({})))
                .contains("annotate the InferenceService")
        );
        assert_eq!(said(&service(json!({"groupage.dev/inject": "enabled"}), json!(null))), ANNOTATED);
        assert_eq!(said(&service(json!({}), json!({"groupage.dev/inject": "True"}))), ANNOTATED);
    }
}
