//! `groupage enable` and `groupage disable`: one annotation on a workload's pod template, and what came of it.
//!
//! They do what a user would do by hand, wait until it has reached the pods, and say what to write down where the cluster is kept in git.

mod wait;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::Selector;
use serde_json::{Value, json};

use super::cluster::{self, Cluster, Target, WorkloadName, explain};
use super::ways::Ways;
use crate::config::parse_duration;
use crate::controller::world;
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

/// What becomes of a call that cannot be in time any more: `slo.late`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Late {
    /// Served behind those that can
    Serve,
    /// Ended in the queue with 503 or 504
    Refuse,
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
    /// What becomes of calls that cannot be in time any more [default: Serve]
    #[arg(long, value_enum, ignore_case = true, requires = "slo_p99")]
    slo_late: Option<Late>,
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
            Some(slo) => Some(policy(&args.workload, slo, args.slo_late)?),
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
fn policy(workload: &WorkloadName, slo: &str, late: Option<Late>) -> Result<Value, String> {
    if parse_duration(slo).is_none_or(|time| time < Duration::from_millis(1)) {
        return Err(format!("--slo-p99 {slo:?} is no duration such as 150ms"));
    }
    let mut promise = json!({"latencyP99": slo});
    if let Some(late) = late {
        promise["late"] = json!(format!("{late:?}"));
    }
    Ok(json!({
        "apiVersion": crate::api::v1alpha1::API_VERSION,
        "kind": "BatchPolicy",
        "metadata": {"name": workload.name},
        "spec": {
            "targetRefs": [{"group": "apps", "kind": workload.kind, "name": workload.name}],
            "slo": promise,
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
        apply(&cluster, workload, policy).await?;
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
    let space = cluster.namespace.as_str();
    match tokio::time::timeout(timeout, wait::rolled_out(&api, workload, space)).await {
        Ok(done) => done?,
        Err(_) => {
            return Err(format!(
                "{0} has not rolled out after {1}; kubectl rollout status -n {space} {0}",
                workload.shown(),
                common.timeout
            ));
        }
    }
    let pods = pods(&cluster, &patched).await?;
    println!(
        "\nFor git, in the pod template of {}:\n{}",
        workload.shown(),
        super::yaml::write(&json!({"metadata": {"annotations": annotations}}))?
    );
    let ways = Ways::read(&cluster.client, Some(&cluster.namespace)).await.0;
    Ok(told(&pods, &ways, workload, &cluster.namespace, wanted))
}

/// Writes the policy, unless one of its name is for something else.
async fn apply(cluster: &Cluster, workload: &WorkloadName, policy: &Value) -> Result<(), String> {
    let api: Api<DynamicObject> = Api::namespaced_with(
        cluster.client.clone(),
        &cluster.namespace,
        &cluster::ours("BatchPolicy", "batchpolicies"),
    );
    let name = &workload.name;
    let failed = |error: &kube::Error| {
        // A kind that is not there, and not an object.
        let hint = match error {
            kube::Error::Api(status) if status.code == 404 => {
                "; are the CRDs installed? groupage install | kubectl apply --server-side -f -"
            }
            _ => "",
        };
        format!("batchpolicy/{name}: {}{hint}", explain(error))
    };
    let there = api.get_opt(name).await.map_err(|error| failed(&error))?;
    if let Some(targets) = there.and_then(|there| elsewhere(&there.data, workload)) {
        let (space, shown) = (&cluster.namespace, workload.shown());
        let hint = if targets.split(", ").any(|target| target == shown) {
            "set its slo.latencyP99, or leave --slo-p99 out".to_owned()
        } else {
            "write one of another name, groupage enable --dry-run prints it".to_owned()
        };
        return Err(format!("batchpolicy/{name} in {space} is for {targets}, not for {shown} alone: {hint}"));
    }
    let applied = api.patch(name, &PatchParams::apply(FIELD_MANAGER), &Patch::Apply(policy)).await;
    applied.map(drop).map_err(|error| failed(&error))
}

/// Whom a policy is for, where that is not this workload alone.
fn elsewhere(policy: &Value, workload: &WorkloadName) -> Option<String> {
    let targets = policy["spec"]["targetRefs"].as_array().map_or(&[][..], Vec::as_slice);
    if let [one] = targets
        && one["kind"] == workload.kind
        && one["name"] == workload.name.as_str()
    {
        return None;
    }
    let told = |target: &Value| {
        let word = |key: &str| target[key].as_str().unwrap_or("*").to_owned();
        format!("{}/{}", word("kind").to_ascii_lowercase(), word("name"))
    };
    let named = targets.iter().map(told).collect::<Vec<_>>().join(", ");
    Some(if named.is_empty() { "pods of any workload".to_owned() } else { named })
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
fn told(pods: &[Pod], ways: &Ways, workload: &WorkloadName, space: &str, wanted: bool) -> ExitCode {
    let mut other = 0;
    for pod in pods {
        let name = pod.metadata.name.as_deref().unwrap_or("?");
        let status = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(STATUS));
        match (status, wanted) {
            (Some(_), true) => {
                println!("√ pod/{name} has the sidecar");
                for line in ways.around(&world::from_pod(pod).1) {
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
                println!("× pod/{name} has no container {CONTAINER}: {}; groupage check", events(workload, space));
            }
        }
    }
    if pods.is_empty() {
        println!("‼ it has no pods");
    }
    if other == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How to ask why: what is said of a pod that got no sidecar is said of what made it.
fn events(workload: &WorkloadName, space: &str) -> String {
    let WorkloadName { kind, name } = workload;
    format!("kubectl get events -n {space} --field-selector involvedObject.kind={kind},involvedObject.name={name}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let made = policy(&workload, "150ms", None).unwrap();
        let spec: crate::api::v1alpha1::BatchPolicySpec = serde_json::from_value(made["spec"].clone()).unwrap();
        let slo = spec.slo.unwrap();
        assert_eq!((slo.latency_p99.unwrap().0.as_str(), slo.late), ("150ms", None));
        let refusing = policy(&workload, "150ms", Some(Late::Refuse)).unwrap();
        assert_eq!(refusing["spec"]["slo"], json!({"latencyP99": "150ms", "late": "Refuse"}));
        assert!(policy(&workload, "fast", None).is_err());
    }

    #[test]
    fn a_policy_that_is_for_something_else_is_not_taken_over() {
        let workload = WorkloadName::parse("sts/web").unwrap();
        let target = |kind: &str, name: &str| json!({"group": "apps", "kind": kind, "name": name});
        let of = |targets: &[Value]| elsewhere(&json!({"spec": {"targetRefs": targets}}), &workload);
        assert_eq!(of(&[target("StatefulSet", "web")]), None);
        assert_eq!(of(&[target("Deployment", "web")]).as_deref(), Some("deployment/web"));
        let both = of(&[target("StatefulSet", "web"), target("StatefulSet", "other")]);
        assert_eq!(both.as_deref(), Some("statefulset/web, statefulset/other"));
        assert_eq!(of(&[]).as_deref(), Some("pods of any workload"), "by label, or all of the namespace");
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
        assert!(events(&workload, "ml").ends_with("involvedObject.kind=Deployment,involvedObject.name=web"));
    }
}
