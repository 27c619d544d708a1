//! Location of pod templates in an object of any kind. Every field with the structure of a template
//! is one, so unknown kinds are injected too.

use serde_json::Value;

use super::access::{at, text};
use super::{INJECT, Workload, opt_in};

/// Location of a pod template in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateLocation {
    /// Path to the template; empty if the object is a pod.
    pub path: Vec<&'static str>,
    /// Group, kind and name of the object, for policies that target it.
    pub workload: Workload,
}

/// Kinds with controllers that reject or revert changes in the templates: suffix of the API group,
/// the kinds that run pods, and the reason.
const UNSUPPORTED_KINDS: [(&str, &[&str], &str); 2] = [
    (
        "knative.dev",
        &["Service", "Configuration", "Revision", "ContainerSource", "SinkBinding"],
        "Knative's queue-proxy connects to the application over loopback, and its webhooks reject hooks and init containers",
    ),
    (
        "serving.kserve.io",
        &["InferenceService", "ServingRuntime", "ClusterServingRuntime", "LLMInferenceService", "InferenceGraph"],
        "KServe creates the pods itself: annotate the InferenceService to add the sidecar to pods of RawDeployment",
    ),
];

/// Message for an `InferenceService` that already enables injection. KServe copies its annotations,
/// and those of its components, to the pods.
const ALREADY_ANNOTATED_MESSAGE: &str = "KServe creates the pods itself and copies its annotation to them: those of RawDeployment are injected when they are created";

/// Known paths of pod templates.
const PATHS: [&[&str]; 5] = [
    &["spec", "template"],
    &["spec", "jobTemplate", "spec", "template"],
    &["spec", "leaderWorkerTemplate", "leaderTemplate"],
    &["spec", "leaderWorkerTemplate", "workerTemplate"],
    &["template"],
];

/// Returns the locations of an object's pod templates.
///
/// # Errors
/// Returns the reason why an object with templates is left unchanged.
pub fn template_locations(object: &Value) -> Result<Vec<TemplateLocation>, &'static str> {
    let kind = text(object, &["kind"]).unwrap_or_default();
    let version = text(object, &["apiVersion"]).unwrap_or_default();
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let name = text(object, &["metadata", "name"]).or_else(|| text(object, &["metadata", "generateName"]));
    let workload =
        Workload { group: group.to_owned(), kind: kind.to_owned(), name: name.unwrap_or_default().to_owned() };
    let here = |path: &'static [&'static str]| TemplateLocation { path: path.to_vec(), workload: workload.clone() };
    // A `containers` field that is no list counts too, so that the error is reported.
    let has_pod = |value: &Value| !at(value, &["spec", "containers"]).is_null();
    let found: Vec<TemplateLocation> = if kind == "Pod" && group.is_empty() {
        vec![here(&[])]
    } else {
        PATHS.into_iter().filter(|path| has_pod(at(object, path))).map(here).collect()
    };
    let belongs = |suffix: &str| group == suffix || group.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.'));
    let left = UNSUPPORTED_KINDS.iter().find(|(suffix, ..)| belongs(suffix));
    match left {
        Some(_) if kind == "InferenceService" && is_annotated(object) => Err(ALREADY_ANNOTATED_MESSAGE),
        Some((_, kinds, reason)) if !found.is_empty() || kinds.contains(&kind) => Err(reason),
        Some(_) => Ok(Vec::new()),
        None => Ok(found),
    }
}

/// Returns `true` if an `InferenceService` or one of its components enables injection.
fn is_annotated(object: &Value) -> bool {
    let components =
        ["predictor", "transformer", "explainer"].map(|component| at(object, &["spec", component, "annotations"]));
    let maps = components.into_iter().chain([at(object, &["metadata", "annotations"])]);
    maps.filter_map(|annotations| text(annotations, &[INJECT])).any(opt_in::is_enabled_value)
}

// === impl TemplateLocation ===

impl TemplateLocation {
    /// Returns a name that distinguishes the template from others of the same object; empty if it
    /// is the only one.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self.path.as_slice() {
            [.., template @ ("leaderTemplate" | "workerTemplate")] => template,
            _ => "",
        }
    }

    /// Returns the template in an object.
    #[must_use]
    pub fn get<'a>(&self, object: &'a Value) -> &'a Value {
        at(object, &self.path)
    }

    /// Replaces the template in an object.
    pub fn set(&self, object: &mut Value, template: Value) {
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
    fn an_enabled_inference_service_gets_no_advice_to_enable_it() {
        let service = |annotations: Value, predictor: Value| {
            json!({
                "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
                "metadata": {"name": "m", "annotations": annotations},
                "spec": {"predictor": {"annotations": predictor, "model": {}}},
            })
        };
        let refusal = |object: &Value| template_locations(object).unwrap_err();
        assert!(refusal(&service(json!(null), json!(null))).contains("annotate the InferenceService"));
        assert!(
            refusal(&service(json!({"groupage.dev/inject": "disabled"}), json!({})))
                .contains("annotate the InferenceService")
        );
        assert_eq!(
            refusal(&service(json!({"groupage.dev/inject": "enabled"}), json!(null))),
            ALREADY_ANNOTATED_MESSAGE
        );
        assert_eq!(refusal(&service(json!({}), json!({"groupage.dev/inject": "True"}))), ALREADY_ANNOTATED_MESSAGE);
    }
}
