//! Hints about input that has no effect: annotations and labels of Groupage in a wrong place, and
//! pods in places that are not searched.

use serde_json::Value;

use crate::injector::{COMPONENT, INJECT, INJECTED, TemplateLocation};

/// Prefix of every annotation and label of Groupage.
const PREFIX: &str = "groupage.dev/";

/// Returns one sentence for each annotation or label of Groupage that has no effect where it is
/// written.
pub(super) fn misplaced_keys(object: &Value, places: &[TemplateLocation]) -> Vec<String> {
    let mut found = Vec::new();
    let mut add_hints = |pointer: &str, read: &[&str], describe: &dyn Fn(&str) -> String| {
        let map = object.pointer(pointer).and_then(Value::as_object);
        let keys = map.into_iter().flatten().map(|(key, _)| key.as_str());
        for hint in keys.filter(|key| key.starts_with(PREFIX) && !read.contains(key)).map(describe) {
            // Two templates of one object produce the same sentence.
            if !found.contains(&hint) {
                found.push(hint);
            }
        }
    };
    if object.get("kind").and_then(Value::as_str) == Some("Namespace") {
        add_hints("/metadata/annotations", &[], &|key| {
            format!("annotation {key} has no effect on a Namespace: only its label {INJECT} is read")
        });
        add_hints("/metadata/labels", &[INJECT, COMPONENT], &|key| {
            format!("label {key} has no effect on a Namespace: set it as an annotation on the pod template")
        });
        return found;
    }
    for place in places {
        if !place.path.is_empty() {
            for (map, what) in [("annotations", "annotation"), ("labels", "label")] {
                add_hints(&format!("/metadata/{map}"), &[COMPONENT, INJECTED], &|key| {
                    format!("{what} {key} has no effect on the object: move it to the pod template")
                });
            }
        }
        let labels = format!("/{}", [&place.path[..], &["metadata", "labels"]].concat().join("/"));
        add_hints(&labels, &[INJECT, INJECTED, COMPONENT], &|key| {
            format!("label {key} has no effect: set it as an annotation on the pod template")
        });
    }
    found
}

/// Returns `true` if an object contains a pod at any depth. It is used for kinds with unknown pod
/// templates.
pub(super) fn has_pods(object: &Value) -> bool {
    let is_container = |container: &Value| container.get("name").is_some() && container.get("image").is_some();
    let here = object.pointer("/spec/containers").and_then(Value::as_array);
    here.is_some_and(|containers| containers.iter().any(is_container))
        || match object {
            Value::Object(map) => map.values().any(has_pods),
            Value::Array(items) => items.iter().any(has_pods),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::injector::template_locations;

    fn misplaced_keys_of(object: &Value) -> Vec<String> {
        misplaced_keys(object, &template_locations(object).unwrap())
    }

    #[test]
    fn annotations_and_labels_without_effect_are_found_everywhere() {
        let template =
            |labels: &Value| json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "m"}]}});
        let deployment = json!({
            "kind": "Deployment",
            "metadata": {"name": "m", "labels": {"groupage.dev/inject": "disabled", "app": "m"}, "annotations": {"groupage.dev/mode": "Observe"}},
            "spec": {"template": template(&json!({"groupage.dev/inject": "enabled", "groupage.dev/capture": "Redirect"}))},
        });
        let found = misplaced_keys_of(&deployment);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("annotation groupage.dev/mode has no effect on the object"), "{found:?}");
        assert!(found[1].starts_with("label groupage.dev/inject has no effect on the object"), "{found:?}");
        assert!(found[2].starts_with("label groupage.dev/capture has no effect"), "{found:?}");
        let namespace = json!({"kind": "Namespace", "metadata": {"labels": {"groupage.dev/inject": "enabled"}, "annotations": {"groupage.dev/inject": "disabled"}}});
        assert_eq!(misplaced_keys_of(&namespace).len(), 1);
        let pod = json!({"kind": "Pod", "metadata": {"annotations": {"groupage.dev/mode": "Batch"}}, "spec": {"containers": [{"name": "m"}]}});
        assert_eq!(misplaced_keys_of(&pod), [] as [&str; 0]);
    }

    #[test]
    fn pods_are_found_at_any_depth_and_schemas_are_not_taken_for_pods() {
        let containers = json!({"spec": {"containers": [{"name": "m", "image": "m"}]}});
        assert!(has_pods(&json!({"spec": {"groups": [{"template": containers}]}})));
        assert!(!has_pods(&json!({"properties": {"spec": {"properties": {"containers": {"type": "array"}}}}})));
    }
}
