//! Opt-in to injection. The first of these that is present decides: pod annotation, pod label,
//! namespace label, default of the installation.

use serde_json::Value;

use super::access::at;
use super::message::{describe_value, quoting_hint};
use super::{AnnotationError, INJECT, InjectionContext, InjectionErrorCode, KeyLocation, SkipReason, SkippedPod};

/// Returns `true` for a value that enables injection in an annotation or label of a pod.
pub(super) fn is_enabled_value(word: &str) -> bool {
    matches!(word.trim().to_ascii_lowercase().as_str(), "enabled" | "true")
}

/// Decides whether the pod is injected; if not, returns the reason.
///
/// # Errors
/// The deciding value neither enables nor disables injection. The lower levels are then not
/// consulted.
pub(super) fn decide(pod: &Value, context: &InjectionContext) -> Result<Option<SkippedPod>, AnnotationError> {
    let own = |holder, map| Some((holder, at(pod, &["metadata", map, INJECT]).clone()));
    let namespaces = context.namespace.labels.get(INJECT).map(|word| Value::from(word.as_str()));
    let sources = [
        own(KeyLocation::Annotation, "annotations"),
        own(KeyLocation::Label, "labels"),
        namespaces.map(|word| (KeyLocation::Namespace, word)),
    ];
    let Some((holder, value)) = sources.into_iter().flatten().find(|(_, value)| !value.is_null()) else {
        let nobody = || {
            SkipReason::NotEnabled
                .with_detail(format!("injection is not enabled: annotate the pod template with {INJECT}: enabled"))
        };
        return Ok((!context.inject_by_default).then(nobody));
    };
    let whose = match holder {
        KeyLocation::Annotation => "annotation",
        KeyLocation::Label => "label",
        KeyLocation::Namespace => "label of the namespace",
    };
    // The webhook's namespace selector matches label values exactly, so no other spelling is
    // accepted here.
    let exact = |word: &str| holder != KeyLocation::Namespace || matches!(word, "enabled" | "true");
    match value.as_str().map(|word| (word, word.trim().to_ascii_lowercase())) {
        Some((word, _)) if is_enabled_value(word) && exact(word) => Ok(None),
        Some((_, lower)) if matches!(lower.as_str(), "disabled" | "false") => {
            Ok(Some(SkipReason::Disabled.with_detail(format!("the {whose} {INJECT} is {value}"))))
        }
        _ => Err(AnnotationError {
            code: InjectionErrorCode::BadValue,
            key: INJECT.to_owned(),
            holder,
            message: format!(
                "the {whose} {INJECT} is {}; expected enabled or disabled (or true and false){}",
                describe_value(&value),
                quoting_hint(&value)
            ),
        }),
    }
}
