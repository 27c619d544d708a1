//! Real servers, each deployed as its own guide has it: a Deployment and a Service with a numeric
//! `targetPort`, a port without a name, and one annotation.
//!
//! The packages are those of `PyPI`, mounted from this machine. A run takes uvicorn and gunicorn as
//! a sample; all of them run with `--all`, since their environments are hundreds of MiB each.

mod claims;
mod deployed;
mod table;
mod unmoved;

use std::sync::atomic::{AtomicBool, Ordering};

use groupage::standin::remote::{Answer, Call};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use self::deployed::{Deployed, PodSecurity, Written};
use self::table::Server;
use super::manifests::{MERGES, MODEL};
use super::sidecar::same;
use super::{Case, Need};
use crate::caller::Caller;
use crate::installation::{has_sidecar, installed};
use crate::space::{Metrics, Space};
use crate::{Fault, Verdict};

/// A case about one server.
macro_rules! server {
    ($name:literal, $server:ident, $need:expr) => {
        Case::new(concat!("servers.one_annotation_captures_", $name), &[Need::Node, $need], |space| {
            Box::pin(one_annotation_captures(space, &table::$server, PodSecurity::Plain))
        })
    };
    (restricted, $name:literal, $server:ident, $need:expr) => {
        Case::new(concat!("servers.under_restricted_one_annotation_captures_", $name), &[Need::Node, $need], |space| {
            Box::pin(one_annotation_captures(space, &table::$server, PodSecurity::Restricted))
        })
    };
}

pub(super) const CASES: &[Case] = &[
    server!("uvicorn", UVICORN, Need::Python),
    server!("gunicorn", GUNICORN, Need::Python),
    server!("mlserver", MLSERVER, Need::Venv("mlserver")),
    server!("mlflow", MLFLOW, Need::Venv("mlflow")),
    server!("kserve", KSERVE, Need::Python),
    server!("bentoml", BENTOML, Need::Venv("bentoml")),
    server!("litellm", LITELLM, Need::Venv("litellm")),
    server!("litserve", LITSERVE, Need::Venv("litserve")),
    server!(restricted, "uvicorn", UVICORN, Need::Python),
    server!(restricted, "gunicorn", GUNICORN, Need::Python),
    server!(restricted, "mlserver", MLSERVER, Need::Venv("mlserver")),
    server!(restricted, "mlflow", MLFLOW, Need::Venv("mlflow")),
    server!(restricted, "kserve", KSERVE, Need::Python),
    server!(restricted, "bentoml", BENTOML, Need::Venv("bentoml")),
    server!(restricted, "litellm", LITELLM, Need::Venv("litellm")),
    Case::new("servers.a_recipe_that_fails_is_reported_with_its_way_back", &[Need::Node, Need::Python], |space| {
        Box::pin(unmoved::a_recipe_that_fails_is_reported_with_its_way_back(space))
    }),
    Case::new(
        "servers.under_restricted_litserve_is_reported_and_not_captured",
        &[Need::Node, Need::Venv("litserve")],
        |space| Box::pin(cannot_be_captured(space)),
    ),
];

/// The Service, as pods know it.
const SERVICE: &str = "server:80";
/// Rounds of calls until some share a batch: a server that answers faster than a busy machine can
/// call makes none of them wait.
const ROUNDS_MAX: usize = 20;
/// Connections at once while the pods are replaced.
const NEW_CONNECTIONS: usize = 4;

async fn one_annotation_captures(space: &Space, server: &Server, security: PodSecurity) -> Verdict {
    installed(space).await?;
    if security == PodSecurity::Restricted {
        space.restrict().await?;
    }
    space.apply(&format!("{MERGES}  routes: {}\n", server.routes)).await?;
    if server.has_upstream {
        space.apply(MODEL).await?;
        space.deployment_ready("model").await?;
    }
    let deployed = Deployed::apply(space, server, "server", security).await?;
    let pods = space.deployment_ready("server").await?;
    let before = Written::read(space, &pods).await?;
    let caller = Caller::start(space).await?;
    caller.reaches(SERVICE, server.ready).await?;
    let alone = caller.in_turn(SERVICE, &deployed.calls).await?;
    if let Some(other) = alone.iter().find(|answer| answer.status != 200) {
        return Err(format!("alone it answers {other:?}").into());
    }
    let load = Load { caller: &caller, service: SERVICE, calls: &deployed.calls, alone: &alone };
    enable(space, server).await?;
    caller.reaches(SERVICE, server.ready).await?;
    let batches = through_the_sidecar(space, server, &load).await?;
    let restarted = Box::pin(restart(space, &load)).await?;
    disable(space).await?;
    let pods = space.deployment_alone("server").await?;
    let after = Written::read(space, &pods).await?;
    if pods.iter().any(has_sidecar) || before != after {
        return Err(format!("before {before:?}\nafter {after:?}").into());
    }
    caller.reaches(SERVICE, server.ready).await?;
    load.at_once(&deployed.calls).await?;
    let by = server.recipe.unwrap_or("no recipe");
    Ok(format!("{} by {by}, {batches}; {restarted} calls while it restarts, none lost; taken out again", server.mode))
}

/// LitServe's address is in its script alone, and nothing may be redirected: `enable` ends with an
/// error that names the command which helps.
async fn cannot_be_captured(space: &Space) -> Verdict {
    installed(space).await?;
    space.restrict().await?;
    let deployed = Deployed::apply(space, &table::LITSERVE, "server", PodSecurity::Restricted).await?;
    space.deployment_ready("server").await?;
    let enabled = space.cluster.groupage(&["enable", "deploy/server", "--namespace", &space.name], "").await;
    let why = enabled.err().ok_or("it ended well")?.to_string();
    if !why.contains("--fix-services") {
        return Err(why.into());
    }
    let fixed = ["enable", "deploy/server", "--fix-services", "--namespace", &space.name];
    space.cluster.groupage(&fixed, "").await?;
    let caller = Caller::start(space).await?;
    caller.reaches(SERVICE, table::LITSERVE.ready).await?;
    let answers = caller.at_once(SERVICE, &deployed.calls).await?;
    if answers.iter().any(|answer| answer.status != 200) {
        return Err(format!("{answers:?}").into());
    }
    Ok(why.lines().last().unwrap_or_default().to_owned())
}

/// Runs `groupage enable`, and compares how the port is captured.
async fn enable(space: &Space, server: &Server) -> Result<(), Fault> {
    let said = space.cluster.groupage(&["enable", "deploy/server", "--namespace", &space.name], "").await?;
    for pod in &space.deployment_alone("server").await? {
        let (recipes, modes) = capture(pod).ok_or_else(|| format!("a pod is not captured: {said}"))?;
        let wanted: Vec<_> = server.recipe.into_iter().collect();
        if recipes != wanted || modes.iter().any(|mode| mode != server.mode) {
            return Err(format!("captured by {recipes:?}, {modes:?}: {said}").into());
        }
    }
    Ok(())
}

/// The recipes that were used on a pod, and the mode of each of its ports.
fn capture(pod: &Pod) -> Option<(Vec<String>, Vec<String>)> {
    let status = pod.metadata.annotations.as_ref()?.get("groupage.dev/status")?;
    let status: Value = serde_json::from_str(status).ok()?;
    let texts = |list: Vec<&Value>| list.into_iter().filter_map(|text| Some(text.as_str()?.to_owned())).collect();
    let recipes = status["recipes"].as_array().into_iter().flatten().collect();
    Some((texts(recipes), texts(status["capture"].as_array()?.iter().map(|port| &port["mode"]).collect())))
}

/// Makes all calls at once, and looks for them in what the sidecars count: in batches where there
/// is an adapter, else as passed on.
async fn through_the_sidecar(space: &Space, server: &Server, load: &Load<'_>) -> Verdict {
    let pods = space.deployment_ready("server").await?;
    let (outcome, protocol) = server.adapter.map_or(("passed", "none"), |adapter| ("served", adapter));
    let labels = [format!("outcome=\"{outcome}\""), format!("protocol=\"{protocol}\"")];
    let counted = |metrics: &Metrics| metrics.sum("groupage_calls_total", &labels.each_ref().map(String::as_str));
    let before = counted(&space.metrics_of(&pods).await?);
    let mut calls = 0;
    for _ in 0..ROUNDS_MAX {
        calls += load.at_once(load.calls).await?;
        let metrics = space.metrics_of(&pods).await?;
        let more = counted(&metrics) - before;
        let counts =
            format!("{more} {outcome} ({protocol}) after {calls} calls, mean batch {:.1}", metrics.batch_mean());
        // A probe may be passed on in this time too.
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

/// Replaces the pods while calls go on, and returns the number of calls.
async fn restart(space: &Space, load: &Load<'_>) -> Result<usize, Fault> {
    let over = AtomicBool::new(false);
    let restart = async {
        space.kubectl(&["rollout", "restart", "deployment/server"]).await?;
        space.kubectl(&["rollout", "status", "deployment/server", "--timeout=120s"]).await?;
        // Pods of the earlier template serve until their end.
        space.deployment_alone("server").await?;
        over.store(true, Ordering::Relaxed);
        Ok(())
    };
    let (new, kept, ()) = tokio::try_join!(load.until(&over, true), load.until(&over, false), restart)?;
    Ok(new + kept)
}

async fn disable(space: &Space) -> Result<(), Fault> {
    let said = space.cluster.groupage(&["disable", "deploy/server", "--namespace", &space.name], "").await?;
    if said.contains("has no sidecar") { Ok(()) } else { Err(said.into()) }
}

/// Applies the FastAPI application as its guide has it: uvicorn, a port without a name, and a
/// Service with its number.
pub(super) async fn fastapi(space: &Space, name: &str) -> Result<Deployed, Fault> {
    Deployed::apply(space, &table::UVICORN, name, PodSecurity::Plain).await
}

/// Calls whose answers are known.
pub(super) struct Load<'a> {
    pub(super) caller: &'a Caller,
    /// The Service, as pods know it.
    pub(super) service: &'a str,
    pub(super) calls: &'a [Call],
    /// What each is answered alone.
    pub(super) alone: &'a [Answer],
}

// === impl Load ===

impl Load<'_> {
    /// Makes calls at once, each on a connection of its own, and compares the answers.
    async fn at_once(&self, calls: &[Call]) -> Result<usize, Fault> {
        self.compare(&self.caller.at_once(self.service, calls).await?)
    }

    /// Calls again and again: on new connections, or each time on one that is kept for all calls.
    pub(super) async fn until(&self, over: &AtomicBool, new: bool) -> Result<usize, Fault> {
        let mut count = 0;
        while !over.load(Ordering::Relaxed) {
            count += if new {
                self.at_once(&self.calls[..NEW_CONNECTIONS]).await?
            } else {
                self.compare(&self.caller.in_turn(self.service, self.calls).await?)?
            };
        }
        Ok(count)
    }

    fn compare(&self, answers: &[Answer]) -> Result<usize, Fault> {
        match self.alone.iter().zip(answers).find(|(alone, answer)| !same(alone, answer)) {
            Some((alone, other)) => Err(format!("alone {alone:?}, through the Service {other:?}").into()),
            None => Ok(answers.len()),
        }
    }
}
