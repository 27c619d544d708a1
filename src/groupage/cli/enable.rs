//! `groupage enable` and `groupage disable`: set one annotation on a workload's pod template, and
//! verify its effect.
//!
//! They do what a user would do by hand: patch the template, wait for the rollout, and check that
//! calls reach the sidecar. They also print the change for manifests that are stored in git.

mod policy;
mod rollout_status;
mod services;
mod wait;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt::Debug;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde::Serialize;
use serde_json::{Value, json};

use self::policy::LatePolicy;
use self::rollout_status::CaptureReport;
use super::cluster::{self, ClusterClient, ClusterTarget, WorkloadName, describe_api_error};
use super::status::MODE;
use crate::config::parse_duration;
use crate::injector::{INJECT, merged_calls, name_ports, remedy};

/// Field manager of the fields that the command sets in the user's objects.
const FIELD_MANAGER: &str = "groupage-cli";
/// Interval between two checks of pods that do not run yet.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Initial mode of the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum EnableMode {
    Batch,
    Observe,
    Passthrough,
}

/// Arguments of `groupage enable`.
#[derive(Debug, ClapArgs)]
pub(super) struct EnableArgs {
    /// Workload, such as deploy/web
    #[arg(value_name = "KIND/NAME", value_parser = WorkloadName::parse)]
    workload: WorkloadName,
    #[command(flatten)]
    common: CommonArgs,
    /// Mode of the sidecars [default: the mode on the pod template, else that of its policy, else
    /// Batch]
    #[arg(long, value_enum, ignore_case = true)]
    mode: Option<EnableMode>,
    /// Latency objective; creates a policy with the workload's name
    #[arg(long, value_name = "DURATION")]
    slo_p99: Option<String>,
    /// Treatment of calls that can no longer meet the objective [default: Serve]
    #[arg(long, value_enum, ignore_case = true, requires = "slo_p99")]
    slo_late: Option<LatePolicy>,
    /// Make Services that bypass the sidecar by a port number refer to the port by name; a port
    /// without a name gets one first
    #[arg(long)]
    fix_services: bool,
}

/// Arguments of `groupage disable`.
#[derive(Debug, ClapArgs)]
pub(super) struct DisableArgs {
    /// Workload, such as deploy/web
    #[arg(value_name = "KIND/NAME", value_parser = WorkloadName::parse)]
    workload: WorkloadName,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, ClapArgs)]
struct CommonArgs {
    #[command(flatten)]
    target: ClusterTarget,
    /// Only print the change
    #[arg(long)]
    dry_run: bool,
    /// Wait up to this long for the pods
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    timeout: String,
}

/// A change of one workload.
struct WorkloadChange<'a> {
    workload: &'a WorkloadName,
    cluster: ClusterClient,
    api: Api<DynamicObject>,
    timeout: Duration,
    /// The timeout as the user wrote it.
    timeout_text: &'a str,
}

pub(super) fn enable(args: &EnableArgs) -> ExitCode {
    cluster::run_cluster_command(async {
        let mut annotations = json!({INJECT: "enabled"});
        if let Some(mode) = args.mode {
            annotations[MODE] = json!(format!("{mode:?}"));
        }
        let workload = &args.workload;
        let policy = args.slo_p99.as_ref().map(|slo| policy::build_policy(workload, slo, args.slo_late)).transpose()?;
        if args.common.dry_run {
            return print_dry_run(workload, &annotations, policy.as_ref());
        }
        let change = WorkloadChange::connect(workload, &args.common).await?;
        if let Some(policy) = &policy {
            policy::apply(&change.cluster, workload, policy).await?;
            println!("batchpolicy/{} applied", workload.name);
        }
        change.enable(&annotations, args.fix_services).await
    })
}

pub(super) fn disable(args: &DisableArgs) -> ExitCode {
    cluster::run_cluster_command(async {
        let annotations = disable_annotations();
        if args.common.dry_run {
            return print_dry_run(&args.workload, &annotations, None);
        }
        let change = WorkloadChange::connect(&args.workload, &args.common).await?;
        let patched = change.annotate(&annotations, false).await?;
        change.roll_out(&patched).await?;
        println!("{}", git_snippet(&args.workload, &annotations)?);
        let report = CaptureReport::read(&change.cluster, &patched).await?;
        print!("{}", report.format_disabled());
        Ok(if report.has_no_sidecar() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

/// Returns the annotations that disable injection. Removing the annotation would not suffice: a
/// label of the template, the namespace or the default of the installation may still enable it,
/// which cannot be determined from here for certain.
fn disable_annotations() -> Value {
    json!({INJECT: "disabled", MODE: null})
}

/// Prints the objects that would be changed.
fn print_dry_run(workload: &WorkloadName, annotations: &Value, policy: Option<&Value>) -> Result<ExitCode, String> {
    println!("# patch of {}:\n{}", workload.display_name(), super::yaml::write(&template(annotations))?);
    if let Some(policy) = policy {
        println!("---\n{}", super::yaml::write(policy)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn template(annotations: &Value) -> Value {
    json!({"spec": {"template": {"metadata": {"annotations": annotations}}}})
}

fn git_snippet(workload: &WorkloadName, annotations: &Value) -> Result<String, String> {
    let text = super::yaml::write(&json!({"metadata": {"annotations": annotations}}))?;
    Ok(format!("\nFor git, in the pod template of {}:\n{text}", workload.display_name()))
}

/// Returns a warning if an earlier command left a mode on the template in which no calls are
/// merged.
fn leftover_mode_warning(annotations: &Value, workload: &Value) -> Option<String> {
    let mode = workload["spec"]["template"]["metadata"]["annotations"][MODE].as_str()?;
    (annotations[MODE].is_null() && !mode.trim().eq_ignore_ascii_case("batch")).then(|| {
        format!("‼ {MODE}: {mode} stays on the template, so no calls are merged; merge them with --mode Batch")
    })
}

// === impl WorkloadChange ===

impl<'a> WorkloadChange<'a> {
    /// Connects, and checks that the workload exists before anything is written.
    async fn connect(workload: &'a WorkloadName, common: &'a CommonArgs) -> Result<Self, String> {
        let timeout = parse_duration(&common.timeout);
        let timeout = timeout.ok_or_else(|| format!("--timeout {:?} is not a duration", common.timeout))?;
        let cluster = common.target.connect().await?;
        let api = Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &workload.resource());
        let change = Self { workload, cluster, api, timeout, timeout_text: &common.timeout };
        change.api.get_metadata(&workload.name).await.map_err(|error| change.failed(&error))?;
        Ok(change)
    }

    async fn enable(&self, annotations: &Value, fix_services: bool) -> Result<ExitCode, String> {
        let patched = self.annotate(annotations, true).await?;
        self.roll_out(&patched).await?;
        println!("{}", git_snippet(self.workload, annotations)?);
        if let Some(line) = leftover_mode_warning(annotations, &patched.data) {
            println!("{line}");
        }
        let mut report = CaptureReport::read(&self.cluster, &patched).await?;
        if fix_services {
            report = self.fix(&patched, report).await?;
        }
        print!("{}", report.format_enabled(self.workload, &self.cluster.namespace));
        if report.is_captured()
            && let Some(template) = patched.data.pointer("/spec/template")
        {
            for line in merged_calls(template, |_| true) {
                println!("  {line}");
            }
        }
        if let Some(record) = report.bypassed_record() {
            let workload = Some((self.workload.kind, self.workload.name.as_str()));
            let remedy = remedy(record, &report.service_fixes()?, &self.cluster.namespace, workload);
            println!("× calls bypass the sidecar: {remedy}");
        }
        Ok(if report.is_captured() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Names the ports, waits for pods with these names, and only then changes the Services to
    /// refer to them.
    async fn fix(&self, workload: &DynamicObject, report: CaptureReport) -> Result<CaptureReport, String> {
        let (mut fixes, mut workload) = (report.service_fixes()?, workload.clone());
        if fixes.is_empty() {
            return Ok(report);
        }
        services::check_ownership(&self.cluster, &workload, &fixes).await?;
        if let Some(names) = name_ports(&workload.data, &fixes)? {
            workload = self.patch(&Patch::Json::<()>(names)).await?;
            let ports: BTreeSet<String> = fixes.iter().map(|fix| format!("{} {}", fix.number, fix.name)).collect();
            let ports = ports.into_iter().collect::<Vec<_>>().join(", ");
            println!("{} ports named (for git: {ports}); waiting for its pods", self.workload.display_name());
            self.roll_out(&workload).await?;
            // The port's name must belong to the sidecar before a Service refers to it.
            fixes = CaptureReport::read(&self.cluster, &workload).await?.service_fixes()?;
            if let Some(fix) = fixes.iter().find(|fix| fix.needs_name) {
                return Err(format!(
                    "port {} of container {} has a name now, but is not captured by it",
                    fix.number, fix.container
                ));
            }
        }
        services::check_port_names(&self.cluster, &fixes).await?;
        services::patch_services(&self.cluster, &fixes).await?;
        CaptureReport::read(&self.cluster, &workload).await
    }

    async fn annotate(&self, annotations: &Value, enabled: bool) -> Result<DynamicObject, String> {
        let patched = self.patch(&Patch::Merge(template(annotations))).await?;
        let what = if enabled { "annotated" } else { "annotated as disabled" };
        println!("{} {what}; waiting for its pods", self.workload.display_name());
        Ok(patched)
    }

    async fn patch<T: Serialize + Debug>(&self, patch: &Patch<T>) -> Result<DynamicObject, String> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        self.api.patch(&self.workload.name, &params, patch).await.map_err(|error| self.failed(&error))
    }

    /// Waits for the rollout. Meanwhile it prints each problem that keeps pods from running once.
    async fn roll_out(&self, workload: &DynamicObject) -> Result<(), String> {
        let space = self.cluster.namespace.as_str();
        let rolled = tokio::time::timeout(self.timeout, wait::wait_for_rollout(&self.api, self.workload, space));
        tokio::select! {
            rolled = rolled => rolled.unwrap_or_else(|_| Err(format!(
                "{0} has not rolled out after {1}; kubectl rollout status -n {space} {0}",
                self.workload.display_name(),
                self.timeout_text
            ))),
            never = self.print_troubles(workload) => match never {},
        }
    }

    async fn print_troubles(&self, workload: &DynamicObject) -> Infallible {
        let mut printed = BTreeSet::new();
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            // A failed read is repeated in the next round.
            for (pod, trouble) in rollout_status::failing_pods(&self.cluster, workload).await.unwrap_or_default() {
                if printed.insert(trouble.clone()) {
                    println!("‼ pod/{pod}: {trouble}");
                }
            }
        }
    }

    fn failed(&self, error: &kube::Error) -> String {
        format!("{}: {}", self.workload.display_name(), describe_api_error(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leftover_mode_that_merges_nothing_is_reported() {
        let workload = |mode| json!({"spec": {"template": {"metadata": {"annotations": {MODE: mode}}}}});
        let silent = json!({INJECT: "enabled"});
        let line = leftover_mode_warning(&silent, &workload("Observe")).unwrap();
        assert!(line.contains("Observe") && line.contains("--mode Batch"), "{line}");
        assert_eq!(leftover_mode_warning(&silent, &workload("batch")), None);
        assert_eq!(leftover_mode_warning(&silent, &json!({})), None);
        assert_eq!(leftover_mode_warning(&json!({MODE: "Observe"}), &workload("Observe")), None);
    }

    #[test]
    fn a_disabled_workload_gets_no_sidecar_despite_other_settings() {
        let mut template = json!({
            "metadata": {"labels": {INJECT: "enabled"}, "annotations": {INJECT: "enabled", "groupage.dev/mode": "Observe"}},
            "spec": {"containers": [{"name": "app", "image": "app", "ports": [{"containerPort": 8080, "name": "http"}]}]},
        });
        let mut context = crate::injector::InjectionContext {
            supports_native_sidecars: true,
            inject_by_default: true,
            ..Default::default()
        };
        context.namespace.labels.insert(INJECT.to_owned(), "enabled".to_owned());
        json_patch::merge(&mut template, &json!({"metadata": {"annotations": disable_annotations()}}));
        assert_eq!(template["metadata"]["annotations"], json!({INJECT: "disabled"}));
        assert!(crate::injector::inject(&template, &context).injected().is_none());
    }
}
