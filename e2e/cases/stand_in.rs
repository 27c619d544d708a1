//! The simulated model server under the restrictions of a user's model server: an unprivileged user
//! and a read-only root file system.

use groupage::testkit::remote::HttpCall;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::manifests::MODEL;
use super::{TestCase, case};
use crate::CaseResult;
use crate::test_client::{TestClient, model_stats};
use crate::test_namespace::TestNamespace;

pub(super) const CASES: &[TestCase] =
    &[case!("stand_in", the_stand_in_serves_as_an_unprivileged_user_with_a_read_only_root)];

async fn the_stand_in_serves_as_an_unprivileged_user_with_a_read_only_root(space: &TestNamespace) -> CaseResult {
    space.enforce_restricted().await?;
    space.apply(MODEL).await?;
    let pods = space.deployment_ready("model").await?;
    let pod = pods.first().ok_or("no pod")?;
    let caller = TestClient::start_for(space, "model:80").await?;
    let predict =
        caller.call("model:80", HttpCall::post("/v1/models/m:predict", r#"{"instances":[[1,2],[3,4]]}"#)).await?;
    let embed = caller.call("model:80", HttpCall::post("/v1/embeddings", r#"{"model":"m","input":["a","b"]}"#)).await?;
    if predict.status != 200 || embed.status != 200 {
        return Err(format!("{predict:?} {embed:?}").into());
    }
    let stats = model_stats(space, &pod.name_any()).await?;
    if (stats.calls, stats.items) != (2, 4) {
        return Err(format!("two calls with two items each, and the model reports {stats:?}").into());
    }
    let user = user(space, pod)?;
    Ok(format!("{user}{} calls, {} items", stats.calls, stats.items))
}

/// Verifies the user, capabilities and seccomp mode of the process, if it runs on the local node.
fn user(space: &TestNamespace, pod: &Pod) -> CaseResult {
    let Some(node) = &space.cluster.node else { return Ok(String::new()) };
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid(pod, "model")?))?;
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
    // The group is root's: the kubelet applies the user of an image, but not its group.
    let (uid, capabilities, seccomp) = (field("Uid:"), field("CapEff:"), field("Seccomp:"));
    let nobody = "65532\t65532\t65532\t65532";
    if uid != nobody || !capabilities.trim_start_matches('0').is_empty() || seccomp != "2" {
        return Err(format!("user {uid}, capabilities {capabilities}, seccomp {seccomp}").into());
    }
    Ok("user 65532, no capability, seccomp on, ".to_owned())
}
