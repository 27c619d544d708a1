//! `groupage enable` and `groupage disable`: one annotation on a workload's pod template, and what came of it.
//!
//! They do what a user would do by hand, wait until it has reached the pods, and say what to write down where the cluster is kept in git.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use futures_util::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::Selector;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::{Value, json};

use super::cluster::{self, Cluster, Target, WorkloadName, explain};
use crate::config::parse_duration;
use crate::injector::{CONTAINER, INJECT, STATUS};

/// Who we are to the API server, for fields of the user's objects that we set on his word.
const FIELD_MANAGER: &str = "groupage-cli";

/// What is done with calls at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Batch,
    Observe,
    Passthrough,
}

/// `groupage enable`.
#[derive(Debug, ClapArgs)]
pub(super) struct EnableArgs {
    /// The workload, such as deploy/web
    #[arg(value_name = "KIND/NAME", value_parser = WorkloadName::parse)]
    workload: WorkloadName,
    #[command(flatten)]
    common: Common,
    /// What is done with its calls [default: as its policy says, else Batch]
    #[arg(long, value_enum, ignore_case = true)]
    mode: Option<Mode>,
    /// The latency to promise: makes a policy of the workload's name
    #[arg(long, value_name = "DURATION")]
    slo_p99: Option<String>,
}

/// `groupage disable`.
#[derive(Debug, ClapArgs)]
pub(super) struct DisableArgs {
    /// The workload, such as deploy/web
    #[arg(value_name = "KIND/NAME", value_parser = WorkloadName::parse)]
    workload: WorkloadName,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, ClapArgs)]
struct Common {
    #[command(flatten)]
    target: Target,
    /// Only print what would be changed
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for the pods
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    timeout: String,
}

pub(super) fn enable(args: &EnableArgs) -> ExitCode {
    cluster::run(async {
        let mut annotations = json!({INJECT: "enabled"});
        if let Some(mode) = args.mode {
            annotations["groupage.dev/mode"] = json!(format!("{mode:?}"));
        }
        let policy = match &args.slo_p99 {
            Some(slo) => Some(policy(&args.workload, slo)?),
            None => None,
        };
        change(&args.workload, &args.common, annotations, policy, true).await
    })
}

pub(super) fn disable(args: &DisableArgs) -> ExitCode {
    cluster::run(async { change(&args.workload, &args.common, refusal(), None, false).await })
}

/// The template's no. Silence would be a yes where its label, its namespace or the installation asks for all, which cannot be seen from here for sure.
fn refusal() -> Value {
    json!({INJECT: "disabled", "groupage.dev/mode": null})
}

/// The smallest useful policy: for whom, and how fast.
fn policy(workload: &WorkloadName, slo: &str) -> Result<Value, String> {
    if parse_duration(slo).is_none_or(|time| time < Duration::from_millis(1)) {
        return Err(format!("--slo-p99 {slo:?} is no duration such as 150ms"));
    }
    Ok(json!({
        "apiVersion": crate::api::v1alpha1::API_VERSION,
        "kind": "BatchPolicy",
        "metadata": {"name": workload.name},
        "spec": {
            "targetRefs": [{"group": "apps", "kind": workload.kind, "name": workload.name}],
            "slo": {"latencyP99": slo},
        },
    }))
}

async fn change(
    workload: &WorkloadName,
    common: &Common,
    annotations: Value,
    policy: Option<Value>,
    wanted: bool,
) -> Result<ExitCode, String> {
    let timeout =
        parse_duration(&common.timeout).ok_or_else(|| format!("--timeout {:?} is no duration", common.timeout))?;
    let template = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
    if common.dry_run {
        println!("# patch of {}:\n{}", workload.shown(), super::yaml::write(&template)?);
        if let Some(policy) = &policy {
            println!("---\n{}", super::yaml::write(policy)?);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let cluster = common.target.connect().await?;
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &workload.resource());
    // Before anything is written.
    api.get_metadata(&workload.name).await.map_err(|error| format!("{}: {}", workload.shown(), explain(&error)))?;
    if let Some(policy) = &policy {
        let api: Api<DynamicObject> = Api::namespaced_with(
            cluster.client.clone(),
            &cluster.namespace,
            &cluster::ours("BatchPolicy", "batchpolicies"),
        );
        api.patch(&workload.name, &PatchParams::apply(FIELD_MANAGER), &Patch::Apply(policy)).await.map_err(
            |error| {
                format!(
                    "batchpolicy/{}: {}; are the CRDs installed? groupage install | kubectl apply -f -",
                    workload.name,
                    explain(&error)
                )
            },
        )?;
        println!("batchpolicy/{} applied", workload.name);
    }
    let patched = api
        .patch(
            &workload.name,
            &PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() },
            &Patch::Merge(&template),
        )
        .await
        .map_err(|error| format!("{}: {}", workload.shown(), explain(&error)))?;
    println!(
        "{} {}; waiting for its pods",
        workload.shown(),
        if wanted { "annotated" } else { "annotated as disabled" }
    );
    match tokio::time::timeout(timeout, rolled_out(&api, workload)).await {
        Ok(done) => done?,
        Err(_) => {
            return Err(format!(
                "{} has not rolled out after {}; kubectl rollout status {}",
                workload.shown(),
                common.timeout,
                workload.shown()
            ));
        }
    }
    let pods = pods(&cluster, &patched).await?;
    println!(
        "\nFor git, in the pod template of {}:\n{}",
        workload.shown(),
        super::yaml::write(&json!({"metadata": {"annotations": annotations}}))?
    );
    Ok(told(&pods, workload, wanted))
}

/// Waits until every pod is of the newest template and ready, as `kubectl rollout status` does.
async fn rolled_out(api: &Api<DynamicObject>, workload: &WorkloadName) -> Result<(), String> {
    let only = watcher::Config::default().fields(&format!("metadata.name={}", workload.name));
    let mut seen = std::pin::pin!(watcher(api.clone(), only).default_backoff().applied_objects());
    while let Some(object) =
        seen.try_next().await.map_err(|error| format!("cannot watch {}: {error}", workload.shown()))?
    {
        let object = json!(object);
        if is_rolled_out(workload.kind, &object) {
            return Ok(());
        }
        if let Some(why) = stuck(workload, &object) {
            return Err(format!("{} does not roll out: {why}", workload.shown()));
        }
    }
    Err(format!("the watch of {} ended", workload.shown()))
}

/// Why a rollout will not end however long one waits, and what to do.
fn stuck(workload: &WorkloadName, object: &Value) -> Option<String> {
    let number = |path: &str| object.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    if object["spec"]["paused"] == true {
        return Some(format!("it is paused; kubectl rollout resume {}", workload.shown()));
    }
    if object["spec"]["updateStrategy"]["type"] == "OnDelete" {
        return Some(
            "its updateStrategy is OnDelete: delete its pods, and those that come are as they shall be".to_owned(),
        );
    }
    let partition = number("/spec/updateStrategy/rollingUpdate/partition");
    if partition > 0 {
        return Some(format!("its updateStrategy leaves the pods below partition {partition} as they are"));
    }
    if number("/status/observedGeneration") < number("/metadata/generation") {
        return None;
    }
    let conditions = object["status"]["conditions"].as_array()?;
    let late = conditions.iter().find(|condition| condition["reason"] == "ProgressDeadlineExceeded")?;
    Some(format!("{}; kubectl get pods says why", late["message"].as_str().unwrap_or("it does not progress")))
}

fn is_rolled_out(kind: &str, object: &Value) -> bool {
    let number = |path: &str| object.pointer(path).and_then(Value::as_u64);
    if number("/status/observedGeneration").unwrap_or(0) < number("/metadata/generation").unwrap_or(0) {
        return false;
    }
    let (wanted, updated, ready, all) = match kind {
        "DaemonSet" => (
            number("/status/desiredNumberScheduled").unwrap_or(0),
            number("/status/updatedNumberScheduled"),
            number("/status/numberAvailable"),
            None,
        ),
        _ => (
            number("/spec/replicas").unwrap_or(1),
            number("/status/updatedReplicas"),
            number("/status/availableReplicas"),
            number("/status/replicas"),
        ),
    };
    updated.unwrap_or(0) >= wanted && ready.unwrap_or(0) >= wanted && all.is_none_or(|all| all <= wanted)
}

/// The pods of a workload that have not ended and are not on their way out.
async fn pods(cluster: &Cluster, workload: &DynamicObject) -> Result<Vec<Pod>, String> {
    let selector = workload.data.pointer("/spec/selector").cloned().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let found = api.list(&ListParams::default().labels(&labels(&selector)?)).await.map_err(|error| explain(&error))?;
    Ok(found.items.into_iter().filter(lives).collect())
}

/// A label selector as the API takes it in a query.
fn labels(selector: &Value) -> Result<String, String> {
    let selector: LabelSelector =
        serde_json::from_value(selector.clone()).map_err(|error| format!("its selector cannot be read: {error}"))?;
    let selector: Selector = selector.try_into().map_err(|error| format!("its selector cannot be read: {error}"))?;
    Ok(selector.to_string())
}

/// One that was evicted, or has done its work, is listed for long, and is as it was when it was made.
fn lives(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// Says what the pods have now; success where it is what was wanted.
fn told(pods: &[Pod], workload: &WorkloadName, wanted: bool) -> ExitCode {
    let mut other = 0;
    for pod in pods {
        let name = pod.metadata.name.as_deref().unwrap_or("?");
        let status = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(STATUS));
        match (status, wanted) {
            (Some(status), true) => {
                println!("√ pod/{name} has the sidecar");
                for line in bypasses(status) {
                    println!("  ‼ {line}");
                }
            }
            (None, false) => println!("√ pod/{name} has no sidecar"),
            (Some(_), false) => {
                other += 1;
                println!(
                    "× pod/{name} still has the sidecar: its template holds it (was it injected by hand?); groupage uninject takes it out"
                );
            }
            (None, true) => {
                other += 1;
                println!("× pod/{name} has no container {CONTAINER}: {}; groupage check", events(workload));
            }
        }
    }
    if pods.is_empty() {
        println!("‼ it has no pods");
    }
    if other == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How to ask why: what is said of a pod that got no sidecar is said of what made it.
fn events(workload: &WorkloadName) -> String {
    let WorkloadName { kind, name } = workload;
    format!("kubectl get events --field-selector involvedObject.kind={kind},involvedObject.name={name}")
}

/// What goes around a pod's sidecar, from the record of its injection.
fn bypasses(status: &str) -> Vec<String> {
    let status: Value = serde_json::from_str(status).unwrap_or_default();
    let ports = status["capture"].as_array().cloned().unwrap_or_default();
    let lines = ports.iter().flat_map(|port| port["bypass"].as_array().cloned().unwrap_or_default());
    lines.filter_map(|line| line.as_str().map(|line| format!("{line} and goes around the sidecar"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_is_over_when_only_new_pods_are_left_and_they_are_ready() {
        let deployment = |generation: u64, updated: u64, available: u64, all: u64| {
            json!({
                "metadata": {"generation": 2}, "spec": {"replicas": 2},
                "status": {"observedGeneration": generation, "updatedReplicas": updated, "availableReplicas": available, "replicas": all},
            })
        };
        assert!(is_rolled_out("Deployment", &deployment(2, 2, 2, 2)));
        for not_yet in [deployment(1, 2, 2, 2), deployment(2, 1, 2, 3), deployment(2, 2, 1, 2), deployment(2, 2, 2, 3)]
        {
            assert!(!is_rolled_out("Deployment", &not_yet), "{not_yet}");
        }
        let set = json!({
            "metadata": {"generation": 1},
            "status": {"observedGeneration": 1, "desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "numberAvailable": 3},
        });
        assert!(is_rolled_out("DaemonSet", &set));
    }

    #[test]
    fn a_rollout_that_cannot_end_is_not_waited_for() {
        let why = |object: Value| stuck(&WorkloadName::parse("deploy/web").unwrap(), &object).unwrap_or_default();
        assert!(why(json!({"spec": {"paused": true}})).contains("kubectl rollout resume"));
        assert!(why(json!({"spec": {"updateStrategy": {"type": "OnDelete"}}})).contains("delete its pods"));
        assert!(why(json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 2}}}})).contains("partition 2"));
        let late = |observed: u64| {
            json!({"metadata": {"generation": 2}, "status": {"observedGeneration": observed,
            "conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "timed out"}]}})
        };
        assert!(why(late(2)).starts_with("timed out"));
        assert_eq!(why(late(1)), "", "that was the rollout before");
    }

    #[test]
    fn pods_that_have_ended_are_not_judged_and_any_selector_is_kept() {
        let pod = |phase: &str| serde_json::from_value::<Pod>(json!({"status": {"phase": phase}})).unwrap();
        let alive = ["Running", "Pending", "Failed", "Succeeded"].map(|phase| lives(&pod(phase)));
        assert_eq!(alive, [true, true, false, false]);
        let selector = json!({"matchLabels": {"app": "x"},
            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["gpu", "cpu"]}, {"key": "old", "operator": "DoesNotExist"}]});
        let written = labels(&selector).unwrap();
        for part in ["app=x", "tier in (", "!old"] {
            assert!(written.contains(part), "{written}");
        }
    }

    #[test]
    fn a_policy_says_for_whom_and_how_fast_and_nothing_else() {
        let workload = WorkloadName::parse("deploy/web").unwrap();
        let made = policy(&workload, "150ms").unwrap();
        let spec: crate::api::v1alpha1::BatchPolicySpec = serde_json::from_value(made["spec"].clone()).unwrap();
        assert_eq!(spec.slo.unwrap().latency_p99.unwrap().0, "150ms");
        assert!(policy(&workload, "fast").is_err());
    }

    #[test]
    fn a_disabled_workload_gets_no_sidecar_whoever_else_asks() {
        let mut template = json!({
            "metadata": {"labels": {INJECT: "enabled"}, "annotations": {INJECT: "enabled", "groupage.dev/mode": "Observe"}},
            "spec": {"containers": [{"name": "app", "image": "app", "ports": [{"containerPort": 8080, "name": "http"}]}]},
        });
        let mut context = crate::injector::Context { native: true, unless_disabled: true, ..Default::default() };
        context.namespace.labels.insert(INJECT.to_owned(), "enabled".to_owned());
        json_patch::merge(&mut template, &json!({"metadata": {"annotations": refusal()}}));
        assert_eq!(template["metadata"]["annotations"], json!({INJECT: "disabled"}));
        assert!(crate::injector::inject(&template, &context).injected().is_none());
    }

    #[test]
    fn who_has_no_sidecar_is_led_to_the_events_of_its_workload() {
        let workload = WorkloadName::parse("deploy/web").unwrap();
        assert!(events(&workload).ends_with("involvedObject.kind=Deployment,involvedObject.name=web"));
    }

    #[test]
    fn what_goes_around_a_sidecar_is_told() {
        let status =
            r#"{"capture":[{"port":8080,"bypass":["svc/web:80 has the number 8080 as targetPort"]},{"port":1}]}"#;
        assert_eq!(bypasses(status), ["svc/web:80 has the number 8080 as targetPort and goes around the sidecar"]);
        assert_eq!(bypasses("no json"), [] as [String; 0]);
    }
}
