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
use crate::controller::matching::{PodSubject, choose};
use crate::controller::world::{self, ClusterState, ObjectKey};
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
    #[arg(short, long, value_enum, default_value = "table")]
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
    world: Option<ClusterState>,
    /// Current policies with their statuses; `None` if unreadable.
    policies: Option<Vec<Value>>,
    /// Objects that route calls around sidecars.
    ways: BypassObjects,
    /// Counters of each sidecar, by namespace and pod name.
    numbers: BTreeMap<(String, String), PodMetrics>,
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
        let (numbers, refused) =
            sidecar_metrics::read(&found.client, pods.iter().filter_map(metrics_port).collect()).await;
        known.numbers = numbers;
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
    let (key, pod) = world::from_pod(pod);
    let status: Value = serde_json::from_str(pod.annotations.get(STATUS)?).ok()?;
    Some((key.namespace, key.name, status["metrics"].as_u64().filter(|_| running)?))
}

// === impl ClusterSnapshot ===

impl ClusterSnapshot {
    /// Reads the cluster, and returns errors for what could not be read. Without the CRDs no
    /// policies exist, but pods may still have sidecars.
    async fn read(client: &Client, space: Option<&str>) -> (Self, Vec<String>) {
        let (ways, mut refused) = BypassObjects::read(client, space).await;
        let policies = cluster::groupage_resource("BatchPolicy", "batchpolicies");
        let policies = bypasses::list(client, space, &policies, |policy| policy).await;
        let sets = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "ReplicaSet"));
        let sets = bypasses::list(client, space, &sets, |set| world::from_owner(&set.metadata)).await;
        let policies = policies.map_err(|reason| refused.push(reason)).ok();
        let sets = sets.map_err(|reason| refused.push(reason)).ok();
        let world = policies.as_ref().zip(sets).map(|(policies, sets)| ClusterState {
            policies: table(policies.iter().map(world::from_policy)),
            replica_sets: table(sets.into_iter()),
            ..ClusterState::default()
        });
        let policies = policies.map(|policies| policies.iter().map(|policy| json!(policy)).collect());
        (Self { world, policies, ways, numbers: BTreeMap::new() }, refused)
    }

    /// Returns the policy that a pod follows, by the controller's rule.
    fn policy(&self, pod: &world::Pod, recorded: Option<String>) -> Option<String> {
        let Some(world) = &self.world else { return recorded };
        let namespace = pod.meta.key.namespace.as_str();
        let workload = world.workload(namespace, pod.owner.as_ref(), &pod.labels);
        let subject =
            PodSubject { namespace, labels: &pod.labels, annotations: &pod.annotations, workload: workload.as_ref() };
        choose(world, subject).policy().map(|policy| policy.meta.key.name.clone())
    }

    /// Returns a policy as an object; null if there is none of the name.
    fn policy_object(&self, namespace: &str, name: Option<&str>) -> &Value {
        let is_named = |policy: &&Value| {
            policy["metadata"]["namespace"] == namespace && name.is_some_and(|name| policy["metadata"]["name"] == name)
        };
        self.policies.iter().flatten().find(is_named).unwrap_or(&Value::Null)
    }

    /// Returns the mode of a pod's sidecar, which its annotation or its policy sets.
    fn mode(&self, pod: &world::Pod, policy: &Value) -> String {
        let written = pod.annotations.get(MODE).map(|written| written.trim());
        let own = MODES.into_iter().find(|mode| written.is_some_and(|written| written.eq_ignore_ascii_case(mode)));
        let mode = own.map(str::to_owned).or_else(|| text(policy, "/spec/mode"));
        // A policy that cannot be read may set any mode.
        mode.unwrap_or_else(|| if self.world.is_some() { "Batch" } else { "-" }.to_owned())
    }
}

fn text(value: &Value, path: &str) -> Option<String> {
    value.pointer(path).and_then(Value::as_str).map(str::to_owned)
}

fn pod_row(object: &Pod, known: &ClusterSnapshot) -> PodRow {
    let (ObjectKey { namespace, name }, pod) = world::from_pod(object);
    let record = pod.annotations.get(STATUS).map(String::as_str).unwrap_or_default();
    let status: Value = serde_json::from_str(record).unwrap_or_default();
    let followed = known.policy(&pod, text(&status, "/policy"));
    let around = known.ways.around(&pod);
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
    let own = known.numbers.get(&(namespace.clone(), name.clone()));
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
        remedy: (!around.is_empty()).then(|| known.ways.remedy(&pod)),
        captured: if known.ways.is_complete() || !around.is_empty() { Some(around.is_empty()) } else { None },
        around,
        tuning: text(tuned, "/message").or_else(|| text(tuned, "/reason")),
        version: text(&status, "/version"),
        policy: followed,
        namespace,
        pod: name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::DynamicObject;

    fn pod(annotations: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "web-1", "namespace": "ml", "labels": {"app": "web"}, "annotations": annotations,
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d", "uid": "u", "controller": true}],
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap()
    }

    /// Returns the annotations of a pod that was created when neither policy nor Service existed.
    fn early() -> Value {
        let capture = json!([{"container": "c", "name": "http", "port": 8080, "mode": "Named", "listen": 15080}]);
        let status = json!({"version": "0.1.0", "form": "native", "metrics": 9190, "admin": 9191, "hash": "h", "capture": capture});
        json!({STATUS: status.to_string()})
    }

    fn known(policies: &[Value], services: &[Value]) -> ClusterSnapshot {
        let object = |value: &Value| serde_json::from_value::<DynamicObject>(value.clone()).unwrap();
        let set = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {
                "name": "web-5d", "namespace": "ml",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}],
            },
        });
        let world = ClusterState {
            policies: table(policies.iter().map(|policy| world::from_policy(&object(policy)))),
            replica_sets: table(std::iter::once(world::from_owner(&object(&set).metadata))),
            ..ClusterState::default()
        };
        let ways = BypassObjects::of("v1", "Service", services.iter().map(object).collect());
        let own = PodMetrics {
            calls: 100,
            passed: 8,
            passed_reason: Some("unrecognised".to_owned()),
            batch_items: Some(7),
            latency: Some(std::time::Duration::from_millis(88)),
            saved: Some(91),
        };
        let numbers = BTreeMap::from([(("ml".to_owned(), "web-1".to_owned()), own)]);
        ClusterSnapshot { world: Some(world), policies: Some(policies.to_vec()), ways, numbers }
    }

    fn policy(namespace: &str, spec: &Value, status: &Value) -> Value {
        json!({
            "apiVersion": "groupage.dev/v1alpha1", "kind": "BatchPolicy",
            "metadata": {"name": "web", "namespace": namespace}, "spec": spec, "status": status,
        })
    }

    #[test]
    fn a_row_contains_the_state_of_a_policy_that_was_created_later() {
        let targets = json!([{"group": "apps", "kind": "Deployment", "name": "web"}]);
        let spec = json!({"targetRefs": targets, "slo": {"latencyP99": "150ms"}});
        let status = json!({
            "summary": {"batchItems": {"p50": 11}, "latencyP99": "88ms", "saved": "91%"},
            "podTunings": [{"pod": "web-1", "message": "p99 212ms over slo 150ms"}],
        });
        let other = policy("other", &json!({"mode": "Observe"}), &json!({}));
        let known = known(&[other, policy("ml", &spec, &status)], &[]);
        let row = pod_row(&pod(&early()), &known);
        assert_eq!(
            (row.policy.as_deref(), row.mode.as_str(), row.batch),
            (Some("web"), "Batch", Some(7)),
            "its own numbers, not its policy's"
        );
        assert_eq!((row.merged, row.passed, row.passed_why.as_deref()), (Some(92), Some(8), Some("unrecognised")));
        assert!(row.ready && row.captured == Some(true) && !row.predicted);
        let text = format_table(&[row], true, false);
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains(" 88ms   150ms   91%") && text.contains("p99 212ms over slo 150ms"), "{text}");
    }

    #[test]
    fn a_late_setting_of_refuse_and_suspended_merging_are_shown() {
        let refused = json!([
            {"type": "SLOMet", "status": "False", "message": "late"},
            {"type": "Merging", "status": "False", "reason": "MergeRefused", "message": "the server refuses batches"},
        ]);
        let spec = json!({"slo": {"latencyP99": "150ms", "late": "Refuse"}});
        let row = pod_row(&pod(&early()), &known(&[policy("ml", &spec, &json!({"conditions": refused}))], &[]));
        assert_eq!(row.slo_late.as_deref(), Some("Refuse"));
        let text = format_table(&[row], true, false);
        assert!(text.contains(" 150ms (Refuse) ") && text.contains("the server refuses batches"), "{text}");
        let merging = json!([{"type": "Merging", "status": "True", "message": "merged"}]);
        let spec = json!({"slo": {"latencyP99": "150ms"}});
        let row = pod_row(&pod(&early()), &known(&[policy("ml", &spec, &json!({"conditions": merging}))], &[]));
        assert_eq!((row.slo_late.as_deref(), row.unmerged), (Some("Serve"), None));
    }

    #[test]
    fn the_mode_annotation_of_a_pod_takes_precedence_over_its_policy() {
        let known = known(&[policy("ml", &json!({"mode": "Passthrough"}), &json!({}))], &[]);
        assert_eq!(pod_row(&pod(&early()), &known).mode, "Passthrough");
        let mut own = early();
        own[MODE] = json!("observe");
        assert_eq!(pod_row(&pod(&own), &known).mode, "Observe");
    }

    #[test]
    fn predicted_values_are_marked_with_a_tilde() {
        let predicted = json!({"batchItems": {"p50": 11}, "latencyP99": "88ms", "saved": "91%"});
        let status = json!({"summary": {"latencyP99": "70ms"}, "predicted": predicted});
        let row = pod_row(&pod(&early()), &known(&[policy("ml", &json!({"mode": "Observe"}), &status)], &[]));
        let text = format_table(&[row], false, false);
        assert!(text.contains(" ~11 ") && text.contains(" ~88ms ") && text.contains(" ~91% "), "{text}");
        let row = pod_row(&pod(&early()), &known(&[policy("ml", &json!({"mode": "Batch"}), &status)], &[]));
        assert_eq!((row.predicted, row.latency_p99.as_deref()), (false, Some("88ms")), "an old prediction");
    }

    #[test]
    fn bypasses_are_those_of_the_current_services() {
        let service = |port: Value| {
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "ml"},
                "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": port}]},
            })
        };
        let row = pod_row(&pod(&early()), &known(&[], &[service(json!(8080))]));
        assert!(row.captured == Some(false) && row.around[0].starts_with("svc/web:80"), "{:?}", row.around);
        assert!(format_table(&[row], true, false).contains("svc/web:80"));
        assert_eq!(pod_row(&pod(&early()), &known(&[], &[service(json!("http"))])).captured, Some(true));
    }

    #[test]
    fn without_access_to_policies_a_row_shows_the_injection_record() {
        let mut record: Value = serde_json::from_str(early()[STATUS].as_str().unwrap()).unwrap();
        record["policy"] = json!("web");
        record["capture"][0]["bypass"] = json!(["hostPort 80 leads directly to the application"]);
        let row = pod_row(&pod(&json!({STATUS: record.to_string()})), &ClusterSnapshot::default());
        assert_eq!((row.policy.as_deref(), row.captured, row.mode.as_str()), (Some("web"), Some(false), "-"));
        let bare =
            Pod { metadata: kube::core::ObjectMeta { name: Some("a".into()), ..Default::default() }, ..Pod::default() };
        let row = pod_row(&bare, &ClusterSnapshot::default());
        assert_eq!(row, PodRow { pod: "a".to_owned(), mode: "-".to_owned(), ..PodRow::default() });
        let line = format_table(&[row], false, false).lines().nth(1).unwrap().to_owned();
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>(),
            ["a", "no", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"],
            "no guess"
        );
    }
}
