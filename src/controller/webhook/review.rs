//! Decoding of an `AdmissionReview` with limits, and encoding of its response.

use std::collections::BTreeMap;

use kube::core::admission::AdmissionResponse;
use kube::core::response::Status;
use serde::Deserialize;
use serde_json::Value;

use crate::error::BoxError;

/// The only supported version.
const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// Maximum length of a UID, which is returned unchanged. Usual UIDs have 36 characters.
const UID_BYTES_MAX: usize = 256;
/// Maximum length of a warning. Kubernetes recommends 120 characters; longer warnings may be
/// truncated ("Dynamic Admission Control", section "Response").
const WARNING_CHARS_MAX: usize = 120;
/// Maximum number of warnings that a sentence is split into; the rest is omitted.
const PIECES_MAX: usize = 3;
/// Maximum size of all warnings. The API server passes on 4096 bytes from all webhooks together;
/// half of them are used here.
const WARNINGS_BYTES_MAX: usize = 2048;

/// A decoded review.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionRequest {
    /// UID of the review, to be returned.
    pub uid: String,
    /// `true` if a pod is being created.
    pub makes_pod: bool,
    /// Namespace of the object.
    pub namespace: String,
    /// The pod as received.
    pub pod: Value,
    /// `true` if the review must have no side effects.
    pub dry_run: bool,
}

/// The reason for which a review cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The body is not JSON, nests deeper than 128 levels, or is not a review.
    #[error("not a valid AdmissionReview: {0}")]
    NoReview(String),
    /// The review has another version or kind.
    #[error("expected an {KIND} of {API_VERSION}, got {0:.80}")]
    OtherVersion(String),
    /// The UID is missing or too long.
    #[error("request.uid is missing or too long")]
    NoUid,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireReview {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: WireRequest,
}

/// The fields of a request that are used. `userInfo` is not.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireRequest {
    uid: String,
    #[serde(default)]
    resource: WireResource,
    #[serde(default)]
    sub_resource: Option<String>,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    dry_run: Option<bool>,
}

#[derive(Deserialize, Default)]
struct WireResource {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resource: String,
}

/// Decodes a review.
///
/// # Errors
/// Returns an error if it is not a valid review. The pod only needs to be JSON.
pub fn decode(bytes: &[u8]) -> Result<AdmissionRequest, ReviewError> {
    let review: WireReview = serde_json::from_slice(bytes).map_err(|error| ReviewError::NoReview(error.to_string()))?;
    if (review.api_version.as_str(), review.kind.as_str()) != (API_VERSION, KIND) {
        return Err(ReviewError::OtherVersion(format!("{} {}", review.api_version, review.kind)));
    }
    let request = review.request;
    if request.uid.is_empty() || request.uid.len() > UID_BYTES_MAX {
        return Err(ReviewError::NoUid);
    }
    let pods = request.resource.group.is_empty() && request.resource.resource == "pods";
    let whole = request.sub_resource.is_none_or(|part| part.is_empty());
    Ok(AdmissionRequest {
        uid: request.uid,
        makes_pod: pods && whole && request.operation == "CREATE" && request.object.is_object(),
        namespace: request.namespace.unwrap_or_default(),
        pod: request.object,
        dry_run: request.dry_run.unwrap_or(false),
    })
}

/// Encodes the response: the pod is allowed, unchanged or with a patch.
///
/// # Errors
/// Returns an error if the patch cannot be encoded, which is a defect.
pub(super) fn encode(
    uid: &str,
    patch: Option<json_patch::Patch>,
    warnings: &[String],
    audit: BTreeMap<&'static str, String>,
) -> Result<Vec<u8>, BoxError> {
    // `AdmissionResponse` has no constructor without a typed request, which would lose unknown
    // fields.
    let mut response = AdmissionResponse::invalid("");
    response.allowed = true;
    response.result = Status::success();
    uid.clone_into(&mut response.uid);
    response.audit_annotations = audit.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let warnings = to_warnings(warnings);
    response.warnings = (!warnings.is_empty()).then_some(warnings);
    if let Some(patch) = patch {
        response = response.with_patch(patch)?;
    }
    Ok(serde_json::to_vec(&response.into_review())?)
}

/// Converts sentences to warnings that pass the API server uncut: without control characters, split
/// at words, and within this webhook's part of the total size.
#[must_use]
pub fn to_warnings(sentences: &[String]) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    let mut left = WARNINGS_BYTES_MAX;
    for (at, sentence) in sentences.iter().enumerate() {
        for piece in split_sentence(sentence) {
            if piece.len() > left {
                let more =
                    format!("groupage: {} more warnings are in the pod's annotation and events", sentences.len() - at);
                // Space for this line is reserved below.
                warnings.push(more);
                return warnings;
            }
            left -= piece.len();
            warnings.push(piece);
        }
        if at == 0 {
            left = left.saturating_sub(WARNING_CHARS_MAX);
        }
    }
    warnings
}

/// Splits a sentence into pieces of at most [`WARNING_CHARS_MAX`] characters. Each piece but the
/// first starts with dots.
fn split_sentence(sentence: &str) -> Vec<String> {
    let clean: String = sentence.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let mut pieces = vec!["groupage:".to_owned()];
    for word in clean.split_whitespace() {
        let last = pieces.last_mut().expect("the list is never empty");
        if last.chars().count() + 1 + word.chars().count() <= WARNING_CHARS_MAX {
            last.push(' ');
            last.push_str(word);
        } else {
            // A word longer than a piece is truncated.
            let room = WARNING_CHARS_MAX - 4;
            pieces.push(format!("... {}", word.chars().take(room).collect::<String>()));
        }
    }
    if pieces.len() > PIECES_MAX {
        pieces.truncate(PIECES_MAX);
        let last = pieces.last_mut().expect("the list is never empty");
        let prefix: String = last.chars().take(WARNING_CHARS_MAX - 4).collect();
        *last = format!("{prefix} ...");
    }
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "callers build the value in place")]
    fn question(request: Value) -> Result<AdmissionRequest, ReviewError> {
        decode(json!({"apiVersion": API_VERSION, "kind": KIND, "request": request}).to_string().as_bytes())
    }

    #[test]
    fn a_created_pod_keeps_its_unknown_fields() {
        let pod = json!({"metadata": {"name": "p", "later": [1]}, "spec": {"newer": {"deep": 0.1}}, "another": null});
        let request = json!({
            "uid": "u", "resource": {"group": "", "version": "v1", "resource": "pods"}, "operation": "CREATE", "namespace": "n",
            "object": pod, "dryRun": true, "userInfo": {"username": "x"}, "unheardOf": 1,
        });
        let question = question(request).unwrap();
        assert_eq!(
            question,
            AdmissionRequest { uid: "u".into(), makes_pod: true, namespace: "n".into(), pod, dry_run: true }
        );
    }

    #[test]
    fn only_the_creation_of_a_pod_is_recognised_as_such() {
        let base = json!({"uid": "u", "resource": {"group": "", "version": "v1", "resource": "pods"}, "operation": "CREATE", "object": {}});
        assert!(question(base.clone()).unwrap().makes_pod);
        for (key, value) in [
            ("operation", json!("UPDATE")),
            ("subResource", json!("status")),
            ("resource", json!({"group": "apps", "resource": "pods"})),
            ("resource", json!({"group": "", "resource": "services"})),
            ("object", json!(null)),
            ("object", json!([1])),
        ] {
            let mut request = base.clone();
            request[key] = value;
            assert!(!question(request).unwrap().makes_pod, "{key}");
        }
    }

    #[test]
    fn an_invalid_review_is_refused_with_a_reason() {
        assert!(matches!(decode(b""), Err(ReviewError::NoReview(_))));
        assert!(matches!(decode(b"{}"), Err(ReviewError::NoReview(_))));
        assert!(matches!(question(json!({"uid": ""})), Err(ReviewError::NoUid)));
        assert!(matches!(question(json!({"uid": "u".repeat(300)})), Err(ReviewError::NoUid)));
        let old = json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": KIND, "request": {"uid": "u"}});
        assert!(matches!(decode(old.to_string().as_bytes()), Err(ReviewError::OtherVersion(_))));
        let deep = format!(
            "{{\"apiVersion\":\"{API_VERSION}\",\"kind\":\"{KIND}\",\"request\":{{\"uid\":\"u\",\"object\":{}{}}}}}",
            "[".repeat(200),
            "]".repeat(200)
        );
        assert!(matches!(decode(deep.as_bytes()), Err(ReviewError::NoReview(_))), "nesting has a bound");
    }

    #[test]
    fn an_answer_contains_the_uid_and_allows_the_pod() {
        let patch: json_patch::Patch =
            serde_json::from_value(json!([{"op": "add", "path": "/a", "value": 1}])).unwrap();
        let bytes =
            encode("u", Some(patch), &["mind this".to_owned()], [("outcome", "injected".to_owned())].into()).unwrap();
        let review: Value = serde_json::from_slice(&bytes).unwrap();
        let response = &review["response"];
        assert_eq!((&review["apiVersion"], &review["kind"]), (&json!(API_VERSION), &json!(KIND)));
        assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(true)));
        assert_eq!(response["patchType"], "JSONPatch");
        assert_eq!(response["warnings"], json!(["groupage: mind this"]));
        assert_eq!(response["auditAnnotations"], json!({"outcome": "injected"}));
        let patch: Vec<u8> = serde_json::from_value(response["patch"].clone()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&patch).unwrap()[0]["op"], "add");
    }

    #[test]
    fn a_long_warning_is_split_at_words_and_a_longer_one_is_truncated() {
        let sentence = "word ".repeat(40);
        let pieces = to_warnings(std::slice::from_ref(&sentence));
        assert_eq!(pieces.len(), 2);
        let words = pieces.iter().flat_map(|piece| piece.split(' ')).filter(|word| *word == "word").count();
        assert_eq!(words, 40);
        assert!(to_warnings(&[sentence.repeat(9)]).last().unwrap().ends_with(" ..."));
    }

    /// Returns a review of a pod that is created.
    fn review_text(uid: &str, namespace: &str, dry_run: bool) -> String {
        let request = json!({
            "uid": uid, "resource": {"group": "", "version": "v1", "resource": "pods"}, "operation": "CREATE",
            "namespace": namespace, "object": {"metadata": {"name": "p"}}, "dryRun": dry_run,
        });
        json!({"apiVersion": API_VERSION, "kind": KIND, "request": request}).to_string()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn warnings_of_any_text_fit_the_limits(sentences in prop::collection::vec("\\PC{0,400}|[a-z\\n\\r\\t]{0,400}", 0..60)) {
            let warnings = to_warnings(&sentences);
            prop_assert!(warnings.iter().all(|warning| warning.chars().count() <= WARNING_CHARS_MAX), "{warnings:?}");
            prop_assert!(warnings.iter().all(|warning| !warning.chars().any(char::is_control)));
            prop_assert!(warnings.iter().map(String::len).sum::<usize>() <= WARNINGS_BYTES_MAX + WARNING_CHARS_MAX);
            prop_assert_eq!(warnings.is_empty(), sentences.is_empty());
        }

        #[test]
        fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode(&bytes).is_err(), "two hundred bytes at random are no review");
        }

        #[test]
        fn a_review_with_up_to_two_changed_bytes_is_refused_or_decoded_like_its_json(
            uid in "[a-z0-9-]{1,40}",
            namespace in "[a-z]{1,8}",
            dry_run in any::<bool>(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut bytes = review_text(&uid, &namespace, dry_run).into_bytes();
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            let decoded = decode(&bytes);
            if changes.is_empty() {
                let pod = json!({"metadata": {"name": "p"}});
                let expected = AdmissionRequest { uid, makes_pod: true, namespace, pod, dry_run };
                prop_assert_eq!(decoded.as_ref().ok(), Some(&expected));
            }
            // A field that is not used may have invalid UTF-8, which no JSON has.
            if let (Ok(decoded), Ok(json)) = (decoded, serde_json::from_slice::<Value>(&bytes)) {
                let request = &json["request"];
                prop_assert!(json["apiVersion"] == API_VERSION && json["kind"] == KIND, "{json}");
                prop_assert_eq!(request["uid"].as_str(), Some(decoded.uid.as_str()));
                prop_assert_eq!(request["namespace"].as_str().unwrap_or_default(), decoded.namespace.as_str());
                prop_assert_eq!(request["dryRun"].as_bool().unwrap_or_default(), decoded.dry_run);
                prop_assert!(!decoded.makes_pod || request["operation"] == "CREATE" && decoded.pod.is_object(), "{json}");
                prop_assert_eq!(&request["object"], &decoded.pod);
            }
        }
    }
}
