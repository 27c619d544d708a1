//! Errors that the controller logs during a case without failing it.
//!
//! A rejected write, or an error from which the controller recovers, is a defect even if the
//! cluster reaches the expected state.

use std::time::Duration;

use serde_json::Value;

use super::cluster::Cluster;
use super::installation::{LABEL, NAMESPACE};

/// Cases that deliberately cause failures of the controller, its certificates or its API server.
pub(crate) const FAULT_CASES: [&str; 4] = [
    "faults.calls_are_served_while_the_control_plane_is_unreachable",
    "faults.control_streams_stay_while_the_api_server_is_away",
    "certificates.lost_and_expired_certificates_are_replaced",
    "webhook.pods_created_without_the_webhook_start_without_a_sidecar_and_are_reported",
];
/// Errors about a namespace that is being deleted, which are no defects.
const NAMESPACE_DELETION_ERRORS: [&str; 2] = ["because it is being terminated", "not found"];
/// Maximum number of lines to report.
const SHOWN_MAX: usize = 5;

/// Returns the errors that the controller logged in this period, unless the case causes errors
/// deliberately.
pub(crate) async fn errors(cluster: &Cluster, case: &str, over: Duration) -> Vec<String> {
    if FAULT_CASES.contains(&case) {
        return Vec::new();
    }
    let since = format!("--since={}s", over.as_secs() + 1);
    let args = ["logs", "--namespace", NAMESPACE, "--selector", LABEL, "--tail=-1", &since];
    // If the controller is not installed, or its pods are just being created, there is no log.
    let log = cluster.kubectl.run(&args).await.unwrap_or_default();
    let mut found: Vec<String> = log.lines().filter(|line| is_error(line)).map(str::to_owned).collect();
    found.truncate(SHOWN_MAX);
    found
}

fn is_error(line: &str) -> bool {
    let Ok(line) = serde_json::from_str::<Value>(line) else { return false };
    let refused = line["msg"].as_str().is_some_and(|text| text.starts_with("the API server rejected a write"));
    let ends =
        line["error"].as_str().is_some_and(|text| NAMESPACE_DELETION_ERRORS.iter().any(|ending| text.contains(ending)));
    (line["level"] == "ERROR" || refused) && !ends
}
