//! Fuzz target for admission reviews of pods.

use std::sync::OnceLock;

use groupage::controller::cluster_state::ClusterState;
use groupage::controller::webhook::{ReviewContext, answer, decode, explain_gap};
use groupage::injector::InjectionContext;
use serde_json::Value;

/// Decodes arbitrary bytes as an admission review. A valid one is answered: the pod is allowed, the
/// UID is returned, and warnings have at most 120 characters. A dry run has no side effect.
pub fn admission_review(data: &[u8]) {
    static KNOWN: OnceLock<(ClusterState, InjectionContext)> = OnceLock::new();
    let Ok(question) = decode(data) else { return };
    let (cluster, base) = KNOWN
        .get_or_init(|| (ClusterState { is_synced: true, ..ClusterState::default() }, InjectionContext::default()));
    let known = ReviewContext { cluster, base, own_namespace: "groupage-system", token: "token", native: None };
    let answered = answer(&question, known).expect("a valid review can be answered");
    let review: Value = serde_json::from_slice(&answered.body).expect("the answer is JSON");
    let response = &review["response"];
    assert_eq!(response["uid"].as_str(), Some(question.uid.as_str()));
    assert_eq!(response["allowed"], Value::Bool(true), "a request was not allowed");
    for warning in response["warnings"].as_array().into_iter().flatten() {
        let warning = warning.as_str().expect("a warning is a string");
        assert!(warning.chars().count() <= 120 && !warning.chars().any(char::is_control), "{warning:?}");
    }
    assert!(!question.dry_run || answered.event.is_none(), "a dry run has a side effect");
    assert!(
        question.makes_pod || explain_gap(&question, known).is_none(),
        "an object that creates no pod would be injected"
    );
}
