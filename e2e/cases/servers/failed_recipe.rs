//! A server that cannot run with the setting of its recipe: the failure is reported everywhere,
//! with its remedy.

use std::time::Duration;

use super::deployment::{DeployedServer, PodSecurity};
use super::{SERVICE, capture, table};
use crate::CaseResult;
use crate::cluster::retry_until;
use crate::installation::ensure_installed;
use crate::test_client::TestClient;
use crate::test_namespace::TestNamespace;

/// Timeout for the Event: ten times as long as it takes on two busy cores.
const EVENT_MAX: Duration = Duration::from_secs(30);
/// The remedy that every message contains.
const REMEDY: &str = "groupage.dev/recipe: None";

/// `enable` fails, and `status`, `check` and an Event report the same cause and remedy. Meanwhile
/// the old pod serves. With the remedy the port is captured in another way.
pub(super) async fn a_recipe_that_fails_is_reported_with_its_way_back(space: &TestNamespace) -> CaseResult {
    ensure_installed(space).await?;
    let deployed = DeployedServer::apply(space, &table::LOOPBACK_REJECTING, "server", PodSecurity::Plain).await?;
    space.deployment_ready("server").await?;
    let caller = TestClient::start(space).await?;
    caller.wait_until_reachable(SERVICE, table::LOOPBACK_REJECTING.ready).await?;
    let unbatched = caller.call_sequentially(SERVICE, &deployed.calls).await?;
    let enable = ["enable", "deploy/server", "--timeout", "40s", "--namespace", &space.name];
    let why =
        space.cluster.groupage(&enable, "").await.err().ok_or("a server that does not start is no error")?.to_string();
    retry_until("an Event on the Deployment", EVENT_MAX, async || {
        let events = space.kubectl(&["events", "--for=deployment/server"]).await?;
        if events.contains("RecipeFailed") && events.contains(REMEDY) { Ok(()) } else { Err(events.into()) }
    })
    .await?;
    let status = output_of(space, &["status", "--namespace", &space.name]).await;
    let check = output_of(space, &["check"]).await;
    for text in [why, status, check] {
        if !text.contains("set by recipe uvicorn") || !text.contains(REMEDY) {
            return Err(format!("no cause or no remedy in {text}").into());
        }
    }
    let meanwhile = caller.call_sequentially(SERVICE, &deployed.calls).await?;
    if unbatched.iter().zip(&meanwhile).any(|(unbatched, other)| unbatched.body != other.body) {
        return Err("the pod from before does not serve as before".into());
    }
    let patch = r#"{"spec":{"template":{"metadata":{"annotations":{"groupage.dev/recipe":"None"}}}}}"#;
    space.kubectl(&["patch", "deployment/server", "--type=merge", "--patch", patch]).await?;
    space.cluster.groupage(&["enable", "deploy/server", "--namespace", &space.name], "").await?;
    let pods = space.deployment_settled("server").await?;
    let (recipes, modes) = pods.first().and_then(capture).ok_or("not captured")?;
    if !recipes.is_empty() || modes != ["Redirect"] {
        return Err(format!("captured by {recipes:?}, {modes:?}").into());
    }
    Ok("reported by enable, status, check and an Event; without the recipe captured by a redirect".to_owned())
}

/// Returns the output of a command, or its error.
async fn output_of(space: &TestNamespace, args: &[&str]) -> String {
    space.cluster.groupage(args, "").await.unwrap_or_else(|fault| fault.to_string())
}
