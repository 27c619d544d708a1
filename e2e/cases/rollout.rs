//! Rolling restarts under load, with hand-written and with injected sidecars.

use groupage::testkit::Route;

use super::manifests::{ModelManifest, batched};
use super::{TestCase, case};
use crate::CaseResult;
use crate::installation::{ensure_installed, has_sidecar};
use crate::test_client::TestClient;
use crate::test_namespace::TestNamespace;

pub(super) const CASES: &[TestCase] = &[
    case!("rollout", a_rolling_restart_under_load_loses_no_call),
    case!("rollout", a_rolling_restart_of_injected_pods_loses_no_call),
];

/// Calls per second, far below the capacity of the models, so that no call is refused for lack of
/// capacity.
const RATE: f64 = 200.0;

/// Arguments of a model server with an unbounded queue: persistent connections may all lead to the
/// only pod that is already running.
const QUICK: &str = ", --base, 5ms";

/// An application with a preStop hook of its own, which the injector leaves unchanged. The endpoint
/// is removed first, and the model terminates some seconds later. The sidecar learns of the
/// termination through its own hook, which runs at once although the sidecar terminates last.
const LINGER: &str = "lifecycle: {preStop: {sleep: {seconds: 5}}}";

async fn a_rolling_restart_under_load_loses_no_call(space: &TestNamespace) -> CaseResult {
    space.apply(&batched(2, QUICK, "", LINGER)).await?;
    space.deployment_ready("model").await?;
    restarted_under_load(space).await
}

/// The injected configuration alone controls termination, since the application configures none.
async fn a_rolling_restart_of_injected_pods_loses_no_call(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(&ModelManifest { replicas: 2, args: QUICK, ..ModelManifest::default() }.yaml()).await?;
    if !space.deployment_ready("model").await?.iter().all(has_sidecar) {
        return Err("a pod requested a sidecar and has none".into());
    }
    restarted_under_load(space).await
}

async fn restarted_under_load(space: &TestNamespace) -> CaseResult {
    let caller = TestClient::start_for(space, "model:80").await?;
    let load = caller.start_load("model:80", Route::Predict, RATE).await?;
    let restarts = if space.is_full_length() { 20 } else { 3 };
    for _ in 0..restarts {
        space.kubectl(&["rollout", "restart", "deployment/model"]).await?;
        space.kubectl(&["rollout", "status", "deployment/model", "--timeout=120s"]).await?;
        space.deployment_ready("model").await?;
    }
    load.wait_until_served(100).await?;
    let report = load.stop().await?;
    let summary = format!(
        "{restarts} restarts, {} calls, {} refused, {} failed, {} wrong, p99 {:.1?}",
        report.offered, report.refused, report.failed, report.wrong, report.p99
    );
    if report.not_served() > 0 { Err(summary.into()) } else { Ok(summary) }
}
