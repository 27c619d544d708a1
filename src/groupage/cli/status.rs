//! `groupage status`: lists every pod that has a sidecar, with its policy and its figures.
//!
//! Pods carry a record of their injection, and policies the controller's knowledge. Each sidecar's
//! own counters are read through the API server (`sidecar_metrics`), without a port-forward. Facts
//! that may have changed since the pod was created (its policy, and traffic that bypasses the
//! sidecar) are recomputed by the controller's rules from the current objects.

mod format;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Args as ClapArgs, ValueEnum};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use self::format::{format_problems, format_table};
use super::bypasses::{self, BypassObjects, table};
use super::cluster::{self, ClusterTarget, describe_api_error};
use super::pod_problem::pod_problem;
use super::sidecar_metrics::{self, MetricsPort, PodMetrics};
use crate::controller::cluster_state::{self, ClusterState, ObjectKey};
use crate::controller::matching::{PodSubject, choose};
use crate::injector::{INJECTED, STATUS};
use crate::tuner::format_rounded;

/// Annotation that sets the mode of a pod's sidecar and overrides its policy.
pub(super) const MODE: &str = "groupage.dev/mode";
/// Values of the annotation.
const MODES: [&str; 3] = ["Batch", "Observe", "Passthrough"];

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A table.
    Table,
    /// A table with more columns.
    Wide,
    /// JSON, for programs.
    Json,
    /// YAML, for programs.
    Yaml,
}

/// Arguments of `groupage status`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    target: ClusterTarget,
    /// Show the pods of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Output format
    #[arg(short, long, value_enum, ignore_case = true, default_value = "table")]
    output: Output,
}

/// Row of one pod.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct PodRow {
    namespace: String,
    pod: String,
    ready: bool,
    policy: Option<String>,
    profile: Option<String>,
    mode: String,
    batch: Option<u64>,
    latency_p99: Option<String>,
    slo: Option<String>,
    /// Treatment of calls that cannot meet the SLO: `Serve` or `Refuse`; absent without an SLO.
    slo_late: Option<String>,
    /// Message of the policy's condition `Merging`, if it is false.
    unmerged: Option<String>,
    saved: Option<String>,
    /// Batch, latency and savings are predictions for mode `Observe`. Otherwise they are the pod's
    /// own figures since the start of its sidecar.
    predicted: bool,
    /// Number of calls that were merged, or could have been; `None` if the sidecar cannot be read.
    merged: Option<u64>,
    /// Number of calls that were not merged.
    passed: Option<u64>,
    /// Most frequent reason of these, as in `groupage_calls_passed_total`.
    passed_why: Option<String>,
    /// Reason why the pod does not run.
    trouble: Option<String>,
    /// `None` if unknown.
    captured: Option<bool>,
    /// Paths by which calls bypass the sidecar.
    around: Vec<String>,
    /// Remedy for the bypass.
    remedy: Option<String>,
    tuning: Option<String>,
    version: Option<String>,
}

/// Current state of the cluster.
#[derive(Debug, Default)]
struct ClusterSnapshot {
    /// Objects that decide which policy a pod follows. `None` if some could not be read; the record
    /// of the injection then applies.
    cluster: Option<ClusterState>,
    /// Current policies with their statuses; `None` if unreadable.
    policies: Option<Vec<Value>>,
    /// Objects that route calls around sidecars.
    bypass_objects: BypassObjects,
    /// Counters of each sidecar, by namespace and pod name.
    metrics: BTreeMap<(String, String), PodMetrics>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    cluster::run_cluster_command(async {
        let found = args.target.connect().await?;
        let space = (!args.all_namespaces).then_some(found.namespace.as_str());
        let pods: Api<Pod> = match space {
            Some(space) => Api::namespaced(found.client.clone(), space),
            None => Api::all(found.client.clone()),
        };
        let injected = ListParams::default().labels(&format!("{INJECTED}=true"));
        let pods =
            bypasses::list_pages(&pods, &injected, |pod| pod).await.map_err(|error| describe_api_error(&error))?;
        let (mut known, refused) = ClusterSnapshot::read(&found.client, space).await;
        for reason in refused {
            eprintln!("‼ cannot read {reason}; showing what was recorded at injection instead");
        }
        let (metrics, refused) =
            sidecar_metrics::read(&found.client, pods.iter().filter_map(metrics_port).collect()).await;
        known.metrics = metrics;
        if let Some(reason) = refused {
            eprintln!("‼ not every sidecar's own metrics can be read: {reason}");
        }
        let rows: Vec<PodRow> = pods.iter().map(|pod| pod_row(pod, &known)).collect();
        match args.output {
            Output::Json => println!("{:#}", json!(rows)),
            Output::Yaml => print!("{}", super::yaml::write(&json!(rows))?),
            Output::Table | Output::Wide if rows.is_empty() => {
                println!("no pods with a sidecar found; add it with groupage enable deploy/NAME");
            }
            Output::Table | Output::Wide => {
                print!("{}", format_table(&rows, args.output == Output::Wide, args.all_namespaces));
            }
        }
        if matches!(args.output, Output::Table | Output::Wide) {
            print!("{}", format_problems(&rows));
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns the metrics port of a running pod.
fn metrics_port(pod: &Pod) -> Option<MetricsPort> {
    let running = pod.status.as_ref()?.phase.as_deref() == Some("Running");
    let (key, pod) = cluster_state::from_pod(pod);
    let status: Value = serde_json::from_str(pod.annotations.get(STATUS)?).ok()?;
    Some((key.namespace, key.name, status["metrics"].as_u64().filter(|_| running)?))
}

// === impl ClusterSnapshot ===

impl ClusterSnapshot {
    /// Reads the cluster, and returns errors for what could not be read. Without the CRDs no
    /// policies exist, but pods may still have sidecars.
    async fn read(client: &Client, space: Option<&str>) -> (Self, Vec<String>) {
        let (bypass_objects, mut refused) = BypassObjects::read(client, space).await;
        let policies = cluster::groupage_resource("BatchPolicy", "batchpolicies");
        let policies = bypasses::list(client, space, &policies, |policy| policy).await;
        let sets = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "ReplicaSet"));
        let sets = bypasses::list(client, space, &sets, |set| cluster_state::from_owner(&set.metadata)).await;
        let policies = policies.map_err(|reason| refused.push(reason)).ok();
        let sets = sets.map_err(|reason| refused.push(reason)).ok();
        let cluster = policies.as_ref().zip(sets).map(|(policies, sets)| ClusterState {
            policies: table(policies.iter().map(cluster_state::from_policy)),
            replica_sets: table(sets.into_iter()),
            ..ClusterState::default()
        });
        let policies = policies.map(|policies| policies.iter().map(|policy| json!(policy)).collect());
        (Self { cluster, policies, bypass_objects, metrics: BTreeMap::new() }, refused)
    }

    /// Returns the policy that a pod follows, by the controller's rule.
    fn policy(&self, pod: &cluster_state::Pod, recorded: Option<String>) -> Option<String> {
        let Some(cluster) = &self.cluster else { return recorded };
        let namespace = pod.meta.key.namespace.as_str();
        let workload = cluster.workload(namespace, pod.owner.as_ref(), &pod.labels);
        let subject =
            PodSubject { namespace, labels: &pod.labels, annotations: &pod.annotations, workload: workload.as_ref() };
        choose(cluster, subject).policy().map(|policy| policy.meta.key.name.clone())
    }

    /// Returns a policy as an object; null if there is none of the name.
    fn policy_object(&self, namespace: &str, name: Option<&str>) -> &Value {
        let is_named = |policy: &&Value| {
            policy["metadata"]["namespace"] == namespace && name.is_some_and(|name| policy["metadata"]["name"] == name)
        };
        self.policies.iter().flatten().find(is_named).unwrap_or(&Value::Null)
    }

    /// Returns the mode of a pod's sidecar, which its annotation or its policy sets.
    fn mode(&self, pod: &cluster_state::Pod, policy: &Value) -> String {
        let written = pod.annotations.get(MODE).map(|written| written.trim());
        let own = MODES.into_iter().find(|mode| written.is_some_and(|written| written.eq_ignore_ascii_case(mode)));
        let mode = own.map(str::to_owned).or_else(|| text(policy, "/spec/mode"));
        // A policy that cannot be read may set any mode.
        mode.unwrap_or_else(|| if self.cluster.is_some() { "Batch" } else { "-" }.to_owned())
    }
}

fn text(value: &Value, path: &str) -> Option<String> {
    value.pointer(path).and_then(Value::as_str).map(str::to_owned)
}

fn pod_row(object: &Pod, known: &ClusterSnapshot) -> PodRow {
    let (ObjectKey { namespace, name }, pod) = cluster_state::from_pod(object);
    let record = pod.annotations.get(STATUS).map(String::as_str).unwrap_or_default();
    let status: Value = serde_json::from_str(record).unwrap_or_default();
    let followed = known.policy(&pod, text(&status, "/policy"));
    let around = known.bypass_objects.bypasses_of(&pod);
    let policy = known.policy_object(&namespace, followed.as_deref());
    let tunings = policy["status"]["podTunings"].as_array().map_or(&[][..], Vec::as_slice);
    let tuned = tunings.iter().find(|tuned| tuned["pod"] == name.as_str()).unwrap_or(&Value::Null);
    let mode = known.mode(&pod, policy);
    let slo = text(policy, "/spec/slo/latencyP99");
    let late = slo.as_ref().map(|_| text(policy, "/spec/slo/late").unwrap_or_else(|| "Serve".to_owned()));
    let conditions = policy["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let unmerged = conditions.iter().find(|one| one["type"] == "Merging" && one["status"] == "False");
    // In mode `Observe` calls are not merged, so the predictions are the only figures.
    let predicted = mode == "Observe" && policy["status"]["predicted"].is_object();
    // Without the permission to read the pods' own counters, the figures of all pods of the policy
    // together are shown.
    let summary = &policy["status"][if predicted { "predicted" } else { "summary" }];
    let own = known.metrics.get(&(namespace.clone(), name.clone()));
    let own_or = |own: Option<String>, all: Option<String>| if predicted { all } else { own.or(all) };
    let all_items = summary.pointer("/batchItems/p50").and_then(Value::as_u64);
    PodRow {
        ready: pod.ready,
        profile: text(tuned, "/profile").or_else(|| text(&status, "/profile")),
        mode,
        batch: if predicted { all_items } else { own.map_or(all_items, |own| own.batch_items) },
        latency_p99: own_or(own.and_then(|own| own.latency).map(format_rounded), text(summary, "/latencyP99")),
        slo,
        slo_late: late,
        unmerged: unmerged.and_then(|one| one["message"].as_str()).map(str::to_owned),
        saved: own_or(own.and_then(|own| own.saved).map(|saved| format!("{saved}%")), text(summary, "/saved")),
        predicted,
        merged: own.map(PodMetrics::merged),
        passed: own.map(|own| own.passed),
        passed_why: own.and_then(|own| own.passed_reason.clone()),
        trouble: pod_problem(object),
        remedy: (!around.is_empty()).then(|| known.bypass_objects.remedy(&pod)),
        captured: if known.bypass_objects.is_complete() || !around.is_empty() { Some(around.is_empty()) } else { None },
        around,
        tuning: text(tuned, "/message").or_else(|| text(tuned, "/reason")),
        version: text(&status, "/version"),
        policy: followed,
        namespace,
        pod: name,
    }
}

#[cfg(test)]
mod tests;
