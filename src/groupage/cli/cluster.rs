//! Shared by the commands that use a cluster: the connection, workload names and error messages of
//! the API server.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};

use crate::app::EXIT_INTERNAL;

/// Selects a cluster and a namespace.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct ClusterTarget {
    /// Path of the kubeconfig file [default: as for kubectl]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Namespace [default: the context's]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// Name of a workload in the notation of kubectl, such as `deploy/web`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkloadName {
    /// Kind in the API's spelling, such as `Deployment`.
    pub(super) kind: &'static str,
    pub(super) name: String,
}

/// A client of a cluster, with the selected namespace.
pub(super) struct ClusterClient {
    pub(super) client: Client,
    pub(super) namespace: String,
}

// === impl ClusterTarget ===

impl ClusterTarget {
    /// Creates a client from the kubeconfig. No request is sent yet.
    pub(super) async fn connect(&self) -> Result<ClusterClient, String> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| format!("{}: {error}", path.display()))?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(|error| error.to_string())
            }
            None if self.context.is_some() => {
                Config::from_kubeconfig(&options).await.map_err(|error| error.to_string())
            }
            None => Config::infer().await.map_err(|error| error.to_string()),
        };
        let config = config.map_err(|error| format!("no usable cluster configuration: {error}"))?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| format!("no usable cluster configuration: {error}"))?;
        Ok(ClusterClient { client, namespace })
    }
}

// === impl WorkloadName ===

impl WorkloadName {
    /// Parses `KIND/NAME`.
    ///
    /// # Errors
    /// If the text has another form, or the kind is not supported. The message describes the form.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').ok_or("expected KIND/NAME, such as deploy/web")?;
        let kind = match kind.to_ascii_lowercase().trim_end_matches(".apps") {
            "deploy" | "deployment" | "deployments" => "Deployment",
            "sts" | "statefulset" | "statefulsets" => "StatefulSet",
            "ds" | "daemonset" | "daemonsets" => "DaemonSet",
            other => {
                return Err(format!(
                    "kind {other} is not supported: use deploy, sts or ds; for others annotate the pod template, or use groupage inject"
                ));
            }
        };
        if name.is_empty() || name.contains('/') {
            return Err("expected KIND/NAME, such as deploy/web".to_owned());
        }
        Ok(Self { kind, name: name.to_owned() })
    }

    /// Returns the API resource of the workload's kind.
    pub(super) fn resource(&self) -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", self.kind))
    }

    /// Returns the name for messages, such as `deployment/web`.
    pub(super) fn display_name(&self) -> String {
        format!("{}/{}", self.kind.to_ascii_lowercase(), self.name)
    }
}

/// Returns the API resource of one of Groupage's own kinds.
pub(super) fn groupage_resource(kind: &str, plural: &str) -> ApiResource {
    let gvk = GroupVersionKind::gvk(crate::api::GROUP, "v1alpha1", kind);
    ApiResource::from_gvk_with_plural(&gvk, plural)
}

/// Describes an error of the API server for the user.
pub(super) fn describe_api_error(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            format!("not allowed: {}; request a role that permits it", status.message)
        }
        kube::Error::Api(status) => status.message.clone(),
        other => format!("the request to the API server failed: {other}"),
    }
}

/// Runs the future of a cluster command on a single-threaded runtime and prints its error, if any.
pub(super) fn run_cluster_command(work: impl Future<Output = Result<ExitCode, String>>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("× cannot start the runtime: {error}");
            return ExitCode::from(EXIT_INTERNAL);
        }
    };
    match runtime.block_on(work) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("× {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_named_as_for_kubectl() {
        let read = |text: &str| WorkloadName::parse(text).map(|found| found.display_name());
        assert_eq!(read("deploy/web"), Ok("deployment/web".to_owned()));
        assert_eq!(read("StatefulSet/db"), Ok("statefulset/db".to_owned()));
        assert_eq!(read("deployments.apps/web"), Ok("deployment/web".to_owned()));
        for text in ["web", "pod/x", "deploy/", "deploy/a/b"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
