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
mod tests;
