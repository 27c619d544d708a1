//! `groupage controller`: the controller process that an installation runs in a cluster.
//!
//! It converts its arguments to the configuration of the controller; `app::controller` runs it.

mod sidecar_args;

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Args as ClapArgs, ValueEnum, value_parser};

use self::sidecar_args::{SidecarArgs, log_level};
use crate::app::{ControllerProcess, EXIT_INTERNAL, ProcessError};
use crate::config::{self, ControllerPodInfo};
use crate::controller::watch::WatchTiming;
use crate::controller::{ControllerConfig, LEASE, SECRET, ServerCertificate, WEBHOOKS};
use crate::injector::RedirectUse;

/// Maximum time from SIGTERM to the end of the process. The default grace period of Kubernetes is
/// 30 s.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Default port of the control stream. Every replica serves it, since sidecars are redirected to
/// the leader by pod address.
const STREAM_PORT: u16 = 9444;
/// Maximum size of the client CA file of the webhook. Real ones have a few KiB.
const CALLERS_BYTES_MAX: usize = 1 << 20;

/// Settings of the controller. The Helm chart sets all of them.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct Args {
    /// Path of the kubeconfig file [default: as for kubectl; in a pod its service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the controller [default: `GROUPAGE_NAMESPACE`]
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Address of the webhook
    #[arg(long, value_name = "ADDR", default_value = "[::]:9443")]
    webhook_listen: SocketAddr,
    /// Address on which sidecars open their control streams
    #[arg(long, value_name = "ADDR", default_value_t = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), STREAM_PORT))]
    stream_listen: SocketAddr,
    /// Address of /metrics, /livez and /readyz
    #[arg(long, value_name = "ADDR", default_value = "[::]:8080")]
    metrics_listen: SocketAddr,
    /// Name of the webhook's Service
    #[arg(long, value_name = "NAME", default_value = "groupage-webhook")]
    webhook_service: String,
    /// Name of the control stream's Service
    #[arg(long, value_name = "NAME", default_value = "groupage-stream")]
    stream_service: String,
    /// URL at which sidecars reach the controller, or off [default:
    /// `https://STREAM-SERVICE.NAMESPACE.svc:9444`]
    #[arg(long, value_name = "URL")]
    stream_address: Option<String>,
    /// Source of the certificates of webhook and control stream
    #[arg(long, value_enum, ignore_case = true, default_value = "Self")]
    certificate: CertificateSource,
    /// Folder with tls.crt, tls.key and ca.crt, if the controller does not make its certificates
    /// itself
    #[arg(long, value_name = "DIR", default_value = "/tls")]
    certificate_folder: PathBuf,
    /// CA certificates (PEM) that must have signed the API server's client certificate for the
    /// webhook
    #[arg(long, value_name = "FILE")]
    webhook_client_ca: Option<PathBuf>,
    /// Run a single replica, without leader election
    #[arg(long)]
    single: bool,
    /// Inject the sidecar into pods for which neither the pod nor its namespace decides
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = false)]
    inject_by_default: bool,
    /// Namespace to leave alone, besides kube-system and the controller's own; may be repeated
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',')]
    exclude_namespace: Vec<String>,
    /// Add an init container with `NET_ADMIN` that redirects ports: for the ports that no other way
    /// captures, for none, or for all
    #[arg(long, value_name = "WhenNeeded|Never|Always", default_value = "WhenNeeded")]
    redirect: RedirectUse,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    tuner: TunerArgs,
    /// Log level, or a filter as in `RUST_LOG`
    #[arg(long, value_name = "LEVEL", value_parser = log_level, default_value = "info")]
    log_level: String,
    /// Number of worker threads
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u8).range(2..=64))]
    threads: u8,
}

/// Settings of the tuner, the slow control loop over all sidecars.
#[derive(Debug, Clone, Copy, ClapArgs)]
struct TunerArgs {
    /// Tune the settings of sidecars
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    tuner: bool,
    /// Interval between two rounds of the tuner
    #[arg(long, value_name = "DURATION", value_parser = interval, default_value = "10s")]
    tuner_interval: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum CertificateSource {
    /// The controller issues and rotates them.
    #[value(name = "Self")]
    Own,
    /// cert-manager issues them.
    CertManager,
    /// You provide them in a Secret.
    Secret,
}

fn interval(text: &str) -> Result<Duration, String> {
    let range = Duration::from_secs(1)..=Duration::from_secs(3600);
    let parsed = config::parse_duration(text).filter(|time| range.contains(time));
    parsed.ok_or_else(|| "must be from 1s to 1h".to_owned())
}

// === impl Args ===

impl Args {
    fn config(&self, pod: &ControllerPodInfo) -> Result<ControllerConfig, String> {
        let namespace = self.namespace.clone().or_else(|| pod.namespace.clone());
        let namespace = namespace.ok_or("the namespace is unknown: set GROUPAGE_NAMESPACE, or give --namespace")?;
        let name = self.replica_name(pod)?;
        let stream_address = self.stream_url(&namespace)?;
        let callers = self.read_client_ca()?;
        let names = self.names(&namespace, &stream_address);
        Ok(ControllerConfig {
            name,
            replica_stream_address: pod.ip.map(|ip| SocketAddr::new(ip, self.stream_listen.port()).to_string()),
            lease: (!self.single).then(|| LEASE.to_owned()),
            webhook: self.webhook_listen,
            health: self.metrics_listen,
            certificate: match self.certificate {
                CertificateSource::Own => {
                    ServerCertificate::Own { secret: SECRET.to_owned(), webhooks: Some(WEBHOOKS.to_owned()) }
                }
                CertificateSource::CertManager | CertificateSource::Secret => {
                    ServerCertificate::Files(self.certificate_folder.clone())
                }
            },
            names,
            client_ca: callers,
            inject_by_default: self.inject_by_default,
            excluded: self.exclude_namespace.iter().cloned().collect(),
            redirect: self.redirect,
            native: self.sidecar.native(),
            sidecar: self.sidecar.defaults(),
            timing: WatchTiming::default(),
            streams: (!stream_address.is_empty()).then_some(self.stream_listen),
            tuner: self.tuner.tuner.then_some(self.tuner.tuner_interval),
            drain: DRAIN_TIMEOUT,
            stream_address,
            namespace,
        })
    }

    /// Returns the unique name of this replica.
    fn replica_name(&self, pod: &ControllerPodInfo) -> Result<String, String> {
        match (&pod.name, self.single) {
            (Some(name), _) => Ok(name.clone()),
            (None, true) => Ok("groupage-controller".to_owned()),
            (None, false) => {
                Err("the pod's name is unknown: set GROUPAGE_POD_NAME, or give --single for one replica".to_owned())
            }
        }
    }

    /// Returns the URL at which sidecars reach the controller; empty if there is none.
    fn stream_url(&self, namespace: &str) -> Result<String, String> {
        match self.stream_address.as_deref() {
            None | Some("") => Ok(format!("https://{}.{namespace}.svc:{STREAM_PORT}", self.stream_service)),
            Some("off") => Ok(String::new()),
            Some(address) if config::is_controller_address(address) => Ok(address.to_owned()),
            Some(address) => Err(format!(
                "--stream-address {address:?} is not an address that a sidecar can connect to: expected https://HOST:PORT or off"
            )),
        }
    }

    /// Reads the CA certificates of the webhook's clients, if they are configured.
    fn read_client_ca(&self) -> Result<Option<Vec<u8>>, String> {
        let Some(path) = &self.webhook_client_ca else { return Ok(None) };
        let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        if bytes.len() > CALLERS_BYTES_MAX {
            return Err(format!("{} is larger than 1 MiB", path.display()));
        }
        Ok(Some(bytes))
    }

    /// Returns the DNS names that the API server and the sidecars connect to, for the certificates.
    fn names(&self, namespace: &str, stream_address: &str) -> Vec<String> {
        let mut names = Vec::new();
        for service in [&self.webhook_service, &self.stream_service] {
            names.push(format!("{service}.{namespace}.svc"));
            names.push(format!("{service}.{namespace}.svc.cluster.local"));
        }
        // An IPv6 address has brackets in a URL, and none in a certificate.
        let bare = |host: &str| host.trim_matches(['[', ']']).to_owned();
        let host = stream_address.parse::<http::Uri>().ok().and_then(|uri| uri.host().map(bare));
        names.extend(host.filter(|host| !names.contains(host)));
        names
    }
}

pub(super) fn run(args: &Args) -> ExitCode {
    let config = match args.config(&ControllerPodInfo::from_environment()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("× {error}");
            return ExitCode::from(config::EXIT_CONFIG);
        }
    };
    let process = ControllerProcess {
        config,
        kubeconfig: args.kubeconfig.clone(),
        log_level: args.log_level.clone(),
        tuner_interval: args.tuner.tuner_interval,
    };
    match process.run(args.threads.into()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("× {error}");
            ExitCode::from(match error {
                ProcessError::Log(_) => config::EXIT_CONFIG,
                ProcessError::Runtime(_) => EXIT_INTERNAL,
            })
        }
    }
}

#[cfg(test)]
mod tests;
