//! Real model servers, each deployed as described by its own documentation: a Deployment and a
//! Service with a numeric `targetPort`, a port without a name, and one annotation.
//!
//! The packages are those of `PyPI`, mounted from this machine. A default run takes uvicorn and
//! gunicorn as a sample. All of them run with `--all`, since their environments are hundreds of MiB
//! each.

mod claims;
mod deployment;
mod table;
mod failed_recipe;

use std::sync::atomic::{AtomicBool, Ordering};

use groupage::testkit::remote::{CallResponse, HttpCall};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use self::deployment::{DeployedServer, PodSecurity, WorkloadSnapshot};
use self::table::ServerSpec;
use super::manifests::{MERGING_POLICY, MODEL};
use super::sidecar::is_same_answer;
use super::{Requirement, TestCase};
use crate::installation::{ensure_installed, has_sidecar};
use crate::test_client::TestClient;
use crate::test_namespace::{MetricsSnapshot, TestNamespace};
use crate::{CaseResult, TestError};

/// Declares a case about one server.
macro_rules! server {
    ($name:literal, $server:ident, $($need:expr),+) => {
        TestCase::new(concat!("servers.one_annotation_captures_", $name), &[Requirement::Node, $($need),+], |space| {
            Box::pin(one_annotation_captures(space, &table::$server, PodSecurity::Plain))
        })
    };
    (restricted, $name:literal, $server:ident, $($need:expr),+) => {
        TestCase::new(
            concat!("servers.under_restricted_one_annotation_captures_", $name),
            &[Requirement::Node, $($need),+],
            |space| Box::pin(one_annotation_captures(space, &table::$server, PodSecurity::Restricted)),
        )
    };
}

pub(super) const CASES: &[TestCase] = &[
    server!("uvicorn", UVICORN, Requirement::Python),
    server!("gunicorn", GUNICORN, Requirement::Python, Requirement::FullLength),
    server!("mlserver", MLSERVER, Requirement::Venv("mlserver")),
    server!("mlflow", MLFLOW, Requirement::Venv("mlflow")),
    server!("kserve", KSERVE, Requirement::Python),
    server!("bentoml", BENTOML, Requirement::Venv("bentoml")),
    server!("litellm", LITELLM, Requirement::Venv("litellm")),
    server!("litserve", LITSERVE, Requirement::Venv("litserve")),
    server!(restricted, "uvicorn", UVICORN, Requirement::Python),
    server!(restricted, "gunicorn", GUNICORN, Requirement::Python, Requirement::FullLength),
    server!(restricted, "mlserver", MLSERVER, Requirement::Venv("mlserver")),
    server!(restricted, "mlflow", MLFLOW, Requirement::Venv("mlflow")),
    server!(restricted, "kserve", KSERVE, Requirement::Python, Requirement::FullLength),
    server!(restricted, "bentoml", BENTOML, Requirement::Venv("bentoml")),
    server!(restricted, "litellm", LITELLM, Requirement::Venv("litellm")),
    TestCase::new(
        "servers.a_recipe_that_fails_is_reported_with_its_way_back",
        &[Requirement::Node, Requirement::Python],
        |space| Box::pin(failed_recipe::a_recipe_that_fails_is_reported_with_its_way_back(space)),
    ),
    TestCase::new(
        "servers.under_restricted_litserve_is_reported_and_not_captured",
        &[Requirement::Node, Requirement::Venv("litserve")],
        |space| Box::pin(cannot_be_captured(space)),
    ),
];

/// Address of the Service, as resolved in pods.
const SERVICE: &str = "server:80";
/// Maximum number of rounds of calls until some share a batch. A server that answers faster than a
/// busy machine can send calls lets none of them wait.
const ROUNDS_MAX: usize = 20;
/// Number of concurrent connections while the pods are replaced.
const NEW_CONNECTIONS: usize = 4;

async fn one_annotation_captures(space: &TestNamespace, server: &ServerSpec, security: PodSecurity) -> CaseResult {
    ensure_installed(space).await?;
    if security == PodSecurity::Restricted {
        space.enforce_restricted().await?;
    }
    space.apply(&format!("{MERGING_POLICY}  routes: {}\n", server.routes)).await?;
    if server.has_upstream {
        space.apply(MODEL).await?;
        space.deployment_ready("model").await?;
    }
    let deployed = DeployedServer::apply(space, server, "server", security).await?;
    let pods = space.deployment_ready("server").await?;
    let before = WorkloadSnapshot::read(space, &pods).await?;
    let caller = TestClient::start(space).await?;
    caller.wait_until_reachable(SERVICE, server.ready).await?;
    let unbatched = caller.call_sequentially(SERVICE, &deployed.calls).await?;
    if let Some(other) = unbatched.iter().find(|answer| answer.status != 200) {
        return Err(format!("alone it answers {other:?}").into());
    }
    let load = ExpectedCalls { caller: &caller, service: SERVICE, calls: &deployed.calls, unbatched: &unbatched };
    enable(space, server).await?;
    caller.wait_until_reachable(SERVICE, server.ready).await?;
    let batches = through_the_sidecar(space, server, &load).await?;
    let restarted = Box::pin(restart(space, &load)).await?;
    disable(space).await?;
    let pods = space.deployment_settled("server").await?;
    let after = WorkloadSnapshot::read(space, &pods).await?;
    if pods.iter().any(has_sidecar) || before != after {
        return Err(format!("before {before:?}\nafter {after:?}").into());
    }
    caller.wait_until_reachable(SERVICE, server.ready).await?;
    load.at_once(&deployed.calls).await?;
    let by = server.recipe.unwrap_or("no recipe");
    Ok(format!("{} by {by}, {batches}; {restarted} calls while it restarts, none lost; taken out again", server.mode))
}

/// LitServe's address is only set in its script, and Pod Security excludes redirection: `enable`
/// fails with an error that names the command to use.
async fn cannot_be_captured(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    space.enforce_restricted().await?;
    let deployed = DeployedServer::apply(space, &table::LITSERVE, "server", PodSecurity::Restricted).await?;
    space.deployment_ready("server").await?;
    let enabled = space.cluster.groupage(&["enable", "deploy/server", "--namespace", &space.name], "").await;
    let why = enabled.err().ok_or("it ended well")?.to_string();
    if !why.contains("--fix-services") {
        return Err(why.into());
    }
    let fixed = ["enable", "deploy/server", "--fix-services", "--namespace", &space.name];
    space.cluster.groupage(&fixed, "").await?;
    let caller = TestClient::start(space).await?;
    caller.wait_until_reachable(SERVICE, table::LITSERVE.ready).await?;
    let answers = caller.call_concurrently(SERVICE, &deployed.calls).await?;
    if answers.iter().any(|answer| answer.status != 200) {
        return Err(format!("{answers:?}").into());
    }
    Ok(why.lines().last().unwrap_or_default().to_owned())
}

/// Runs `groupage enable`, and compares the capture of the port with the expected one.
async fn enable(space: &TestNamespace, server: &ServerSpec) -> Result<(), TestError> {
    let output = space.cluster.groupage(&["enable", "deploy/server", "--namespace", &space.name], "").await?;
    for pod in &space.deployment_settled("server").await? {
        let (recipes, modes) = capture(pod).ok_or_else(|| format!("a pod is not captured: {output}"))?;
        let wanted: Vec<_> = server.recipe.into_iter().collect();
        if recipes != wanted || modes.iter().any(|mode| mode != server.mode) {
            return Err(format!("captured by {recipes:?}, {modes:?}: {output}").into());
        }
    }
    Ok(())
}

/// Returns the recipes applied to a pod, and the capture mode of each of its ports.
fn capture(pod: &Pod) -> Option<(Vec<String>, Vec<String>)> {
    let status = pod.metadata.annotations.as_ref()?.get("groupage.dev/status")?;
    let status: Value = serde_json::from_str(status).ok()?;
    let texts = |list: Vec<&Value>| list.into_iter().filter_map(|text| Some(text.as_str()?.to_owned())).collect();
    let recipes = status["recipes"].as_array().into_iter().flatten().collect();
    Some((texts(recipes), texts(status["capture"].as_array()?.iter().map(|port| &port["mode"]).collect())))
}

/// Sends all calls concurrently and verifies the sidecars' counters: calls are batched if there is
/// an adapter, and passed through otherwise.
async fn through_the_sidecar(space: &TestNamespace, server: &ServerSpec, load: &ExpectedCalls<'_>) -> CaseResult {
    let pods = space.deployment_ready("server").await?;
    let (outcome, protocol) = server.adapter.map_or(("passed", "none"), |adapter| ("served", adapter));
    let labels = [format!("outcome=\"{outcome}\""), format!("protocol=\"{protocol}\"")];
    let counted =
        |metrics: &MetricsSnapshot| metrics.sum("groupage_calls_total", &labels.each_ref().map(String::as_str));
    let before = counted(&space.merged_metrics(&pods).await?);
    let mut calls = 0;
    for _ in 0..ROUNDS_MAX {
        calls += load.at_once(load.calls).await?;
        let metrics = space.merged_metrics(&pods).await?;
        let more = counted(&metrics) - before;
        let counts =
            format!("{more} {outcome} ({protocol}) after {calls} calls, mean batch {:.1}", metrics.batch_mean());
        // A probe may be passed through in this period too, so the counter may exceed the number of
        // calls.
        #[expect(clippy::cast_precision_loss, reason = "some hundreds of calls")]
        if more < calls as f64 {
            return Err(counts.into());
        }
        if server.adapter.is_none() || metrics.shared_batches() >= 1.0 {
            return Ok(counts);
        }
    }
    Err(format!("no batch is shared by {calls} calls, {} at once", load.calls.len()).into())
}

/// Replaces the pods under load. Returns the number of calls.
async fn restart(space: &TestNamespace, load: &ExpectedCalls<'_>) -> Result<usize, TestError> {
    let over = AtomicBool::new(false);
    let restart = async {
        space.kubectl(&["rollout", "restart", "deployment/server"]).await?;
        space.kubectl(&["rollout", "status", "deployment/server", "--timeout=120s"]).await?;
        // Pods of the earlier template serve until they terminate.
        space.deployment_settled("server").await?;
        over.store(true, Ordering::Relaxed);
        Ok(())
    };
    let (new, kept, ()) = tokio::try_join!(load.until(&over, Some(NEW_CONNECTIONS)), load.until(&over, None), restart)?;
    Ok(new + kept)
}

async fn disable(space: &TestNamespace) -> Result<(), TestError> {
    let output = space.cluster.groupage(&["disable", "deploy/server", "--namespace", &space.name], "").await?;
    if output.contains("has no sidecar") { Ok(()) } else { Err(output.into()) }
}

/// Deploys the FastAPI application as described by its documentation: uvicorn, a port without a
/// name, and a Service with its number.
pub(super) async fn fastapi(space: &TestNamespace, name: &str) -> Result<DeployedServer, TestError> {
    DeployedServer::apply(space, &table::UVICORN, name, PodSecurity::Plain).await
}

/// Calls with known answers.
pub(super) struct ExpectedCalls<'a> {
    pub(super) caller: &'a TestClient,
    /// Address of the Service, as resolved in pods.
    pub(super) service: &'a str,
    pub(super) calls: &'a [HttpCall],
    /// Answer to each call when it is sent alone.
    pub(super) unbatched: &'a [CallResponse],
}

// === impl ExpectedCalls ===

impl ExpectedCalls<'_> {
    /// Sends the calls concurrently, each on a connection of its own, and compares the answers.
    async fn at_once(&self, calls: &[HttpCall]) -> Result<usize, TestError> {
        self.compare(&self.caller.call_concurrently(self.service, calls).await?)
    }

    /// Sends calls repeatedly until `over` is set: `new` calls at once, each on a new connection,
    /// or each round on one persistent connection.
    pub(super) async fn until(&self, over: &AtomicBool, new: Option<usize>) -> Result<usize, TestError> {
        let mut count = 0;
        while !over.load(Ordering::Relaxed) {
            count += match new {
                Some(number) => self.at_once(&self.calls[..number]).await?,
                None => self.compare(&self.caller.call_sequentially(self.service, self.calls).await?)?,
            };
        }
        Ok(count)
    }

    fn compare(&self, answers: &[CallResponse]) -> Result<usize, TestError> {
        match self.unbatched.iter().zip(answers).find(|(unbatched, answer)| !is_same_answer(unbatched, answer)) {
            Some((unbatched, other)) => Err(format!("unbatched {unbatched:?}, through the Service {other:?}").into()),
            None => Ok(answers.len()),
        }
    }
}
