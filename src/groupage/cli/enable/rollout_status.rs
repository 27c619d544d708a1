//! Result of a rollout: the pods that have a sidecar, and the routes by which calls bypass it.

use std::fmt::Write as _;

use kube::api::DynamicObject;
use serde_json::Value;

use crate::cli::bypasses::BypassObjects;
use crate::cli::cluster::{ClusterClient, WorkloadName};
use crate::cli::pod_problem::pod_problem;
use crate::cli::pods::list_live_pods;
use crate::cli::sidecar_metrics::{self, PodMetrics};
use crate::controller::cluster_state;
use crate::injector::{CONTAINER, STATUS, ServiceFix};

/// The pods of a workload after a rollout.
#[derive(Debug, Default)]
pub(super) struct CaptureReport {
    pods: Vec<PodStatus>,
    /// `true` if all objects that route traffic to the pods could be read.
    is_complete: bool,
}

/// A pod that has not ended and is not being deleted.
#[derive(Debug, Default)]
struct PodStatus {
    name: String,
    has_sidecar: bool,
    /// Routes by which calls bypass its sidecar.
    bypasses: Vec<String>,
    fixes: Vec<ServiceFix>,
    /// Record of its injection; empty without one.
    record: String,
    /// Reason that it does not run.
    problem: Option<String>,
    metrics: Option<PodMetrics>,
}

// === impl CaptureReport ===

impl CaptureReport {
    /// Reads the pods, the objects that route traffic to them, and the call counts of the sidecars.
    pub(super) async fn read(cluster: &ClusterClient, workload: &DynamicObject) -> Result<Self, String> {
        let pods = list_live_pods(cluster, workload).await?;
        let objects = BypassObjects::read(&cluster.client, Some(&cluster.namespace)).await.0;
        let ports = pods.iter().filter_map(|pod| {
            let (key, pod) = cluster_state::from_pod(pod);
            Some((key.namespace, key.name, metrics_port(pod.annotations.get(STATUS)?)?))
        });
        // Without the permission to read the metrics, only the call counts are missing.
        let (mut metrics, _) = sidecar_metrics::read(&cluster.client, ports.collect()).await;
        let pods = pods.iter().map(|object| {
            let (key, pod) = cluster_state::from_pod(object);
            PodStatus {
                has_sidecar: pod.annotations.contains_key(STATUS),
                record: pod.annotations.get(STATUS).cloned().unwrap_or_default(),
                bypasses: objects.bypasses_of(&pod),
                fixes: objects.fixes(&pod),
                problem: pod_problem(object),
                metrics: metrics.remove(&(key.namespace, key.name.clone())),
                name: key.name,
            }
        });
        Ok(Self { pods: pods.collect(), is_complete: objects.is_complete() })
    }

    /// Returns `true` if at least one pod has no sidecar.
    fn lacks_sidecar(&self) -> bool {
        self.pods.iter().any(|pod| !pod.has_sidecar)
    }

    /// Returns `true` if no pod has a sidecar.
    pub(super) fn has_no_sidecar(&self) -> bool {
        self.pods.iter().all(|pod| !pod.has_sidecar)
    }

    /// Returns `true` if calls bypass a sidecar.
    pub(super) fn bypasses_sidecar(&self) -> bool {
        self.pods.iter().any(|pod| !pod.bypasses.is_empty())
    }

    /// Returns the injection record of the first pod with a bypass; `None` if no pod has one.
    pub(super) fn bypassed_record(&self) -> Option<&str> {
        self.pods.iter().find(|pod| !pod.bypasses.is_empty()).map(|pod| pod.record.as_str())
    }

    /// Returns `true` if every pod runs with a sidecar, no bypass of it is known, and every object
    /// that could cause one was read.
    pub(super) fn is_captured(&self) -> bool {
        self.is_complete
            && !self.lacks_sidecar()
            && !self.bypasses_sidecar()
            && self.pods.iter().all(|pod| pod.problem.is_none())
    }

    /// Returns the Services that have to refer to a port by its name.
    ///
    /// # Errors
    /// Not all Services, network policies and `InferencePool`s can be read.
    pub(super) fn service_fixes(&self) -> Result<Vec<ServiceFix>, String> {
        if !self.is_complete {
            return Err("not all Services, network policies and InferencePools of the namespace can be read: request permission to list them".to_owned());
        }
        let mut fixes: Vec<ServiceFix> = self.pods.iter().flat_map(|pod| pod.fixes.clone()).collect();
        fixes.sort();
        fixes.dedup();
        Ok(fixes)
    }

    /// Formats the lines about the pods that `groupage enable` prints.
    pub(super) fn format_enabled(&self, workload: &WorkloadName, space: &str) -> String {
        let mut out = String::new();
        for pod in &self.pods {
            out.push_str(&pod.format_line(workload, space));
        }
        if self.pods.is_empty() {
            out.push_str(
                "‼ it has no pods, so bypasses of the sidecar cannot be checked: run the command again when it has pods\n",
            );
        } else if !self.is_complete {
            out.push_str(
                "× not all Services, network policies and InferencePools can be read, so it is unknown whether calls bypass the sidecar: request permission to list them\n",
            );
        }
        out
    }

    /// Formats the lines about the pods that `groupage disable` prints.
    pub(super) fn format_disabled(&self) -> String {
        let line = |pod: &PodStatus| {
            let name = &pod.name;
            if pod.has_sidecar {
                format!(
                    "× pod/{name} still has the sidecar: the pod template contains it (injected manually?); remove it with groupage uninject\n"
                )
            } else {
                format!("√ pod/{name} has no sidecar\n")
            }
        };
        if self.pods.is_empty() { "‼ it has no pods\n".to_owned() } else { self.pods.iter().map(line).collect() }
    }
}

// === impl PodStatus ===

impl PodStatus {
    fn format_line(&self, workload: &WorkloadName, space: &str) -> String {
        let name = &self.name;
        if !self.has_sidecar {
            return format!(
                "× pod/{name} has no container {CONTAINER}: {}; if it was created while the webhook was unavailable: kubectl rollout restart -n {space} {}\n",
                events_command(workload, space),
                workload.display_name()
            );
        }
        let calls = match &self.metrics {
            None => String::new(),
            Some(metrics) if metrics.calls == 0 => ", no calls yet".to_owned(),
            Some(metrics) => format!(", {} calls so far", metrics.calls),
        };
        let mark = if self.bypasses.is_empty() && self.problem.is_none() { '√' } else { '×' };
        let mut out = format!("{mark} pod/{name} has the sidecar{calls}\n");
        for line in self.problem.iter().chain(&self.bypasses) {
            // Writing to a String cannot fail.
            writeln!(out, "  × {line}").ok();
        }
        out
    }
}

/// Returns the metrics port from the value of the annotation `groupage.dev/status`.
fn metrics_port(status: &str) -> Option<u64> {
    serde_json::from_str::<Value>(status).ok()?["metrics"].as_u64()
}

/// Returns the pods of a workload that do not run, each with the reason.
///
/// # Errors
/// The API server cannot be reached or refuses the request.
pub(super) async fn failing_pods(
    cluster: &ClusterClient,
    workload: &DynamicObject,
) -> Result<Vec<(String, String)>, String> {
    let pods = list_live_pods(cluster, workload).await?;
    let found = pods.iter().filter_map(|pod| Some((pod.metadata.name.clone()?, pod_problem(pod)?)));
    Ok(found.collect())
}

/// Returns the command that shows why a pod has no sidecar: events about such a pod are recorded on
/// its workload.
fn events_command(workload: &WorkloadName, space: &str) -> String {
    let WorkloadName { kind, name } = workload;
    format!("kubectl get events -n {space} --field-selector involvedObject.kind={kind},involvedObject.name={name}")
}

#[cfg(test)]
mod tests {

    use super::*;

    fn workload() -> WorkloadName {
        WorkloadName::parse("deploy/web").unwrap()
    }

    fn report(change: impl FnOnce(&mut PodStatus)) -> CaptureReport {
        let mut pod = PodStatus { name: "web-1".to_owned(), has_sidecar: true, ..PodStatus::default() };
        change(&mut pod);
        CaptureReport { pods: vec![pod], is_complete: true }
    }

    #[test]
    fn a_capture_is_complete_only_without_bypasses_and_with_all_pods_running() {
        let text = |report: &CaptureReport| report.format_enabled(&workload(), "ml");
        let good = report(|pod| pod.metrics = Some(PodMetrics { calls: 7, ..PodMetrics::default() }));
        assert!(
            good.is_captured() && text(&good) == "√ pod/web-1 has the sidecar, 7 calls so far\n",
            "{}",
            text(&good)
        );
        let bypassed = report(|pod| pod.bypasses = vec!["svc/web:80 has the number".to_owned()]);
        assert!(!bypassed.is_captured() && bypassed.bypasses_sidecar(), "{bypassed:?}");
        assert!(text(&bypassed).contains("× pod/web-1 has the sidecar\n  × svc/web:80"), "{}", text(&bypassed));
        let broken = report(|pod| pod.problem = Some("container model: CrashLoopBackOff".to_owned()));
        assert!(!broken.is_captured() && text(&broken).contains("CrashLoopBackOff"), "{broken:?}");
        let unknown = CaptureReport { is_complete: false, ..good };
        assert!(!unknown.is_captured() && text(&unknown).contains("it is unknown"), "{}", text(&unknown));
        let missed = report(|pod| pod.has_sidecar = false);
        assert!(!missed.is_captured() && missed.lacks_sidecar() && missed.has_no_sidecar());
        assert!(text(&missed).contains("involvedObject.kind=Deployment,involvedObject.name=web"), "{}", text(&missed));
    }
}
