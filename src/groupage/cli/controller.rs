//! `groupage controller`: the controller process that an installation runs in a cluster.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Args as ClapArgs, ValueEnum, value_parser};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::EXIT_INTERNAL;
use crate::api::v1alpha1::Mode;
use crate::clock::Clock;
use crate::config::quantity::{CPU, MEMORY};
use crate::config::{self, ControllerPodInfo, MachineLimits};
use crate::controller::watch::WatchTiming;
use crate::controller::{
    ControllerConfig, LEASE, RunningController, SECRET, ServerCertificate, WEBHOOKS, prepared, start,
};
use crate::error::BoxError;
use crate::injector::{RedirectUse, SidecarDefaults};
use crate::telemetry::log::{self, LineFormat};

/// Maximum time to write the last log lines.
const LOG_FLUSH: Duration = Duration::from_millis(500);
/// Maximum time from SIGTERM to the end of the process. The default grace period of Kubernetes is
/// 30 s.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Default port of the control stream. Every replica serves it, since sidecars are redirected to
/// the leader by pod address.
const STREAM_PORT: u16 = 9444;
/// Image pull policies of Kubernetes.
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
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

/// Defaults of every sidecar; policies and annotations override them.
#[derive(Debug, Clone, ClapArgs)]
struct SidecarArgs {
    /// Image of the sidecars
    #[arg(long, value_name = "IMAGE", default_value_t = SidecarDefaults::default().image)]
    sidecar_image: String,
    /// Pull policy of the image
    #[arg(long, value_name = "POLICY", value_parser = PULL_POLICIES, default_value_t = SidecarDefaults::default().pull_policy)]
    sidecar_pull_policy: String,
    /// Secret to pull the image with; may be repeated
    #[arg(long, value_name = "NAME")]
    sidecar_pull_secret: Vec<String>,
    /// Mode of the sidecars: Batch, Observe or Passthrough
    #[arg(long, value_name = "MODE", value_parser = mode, default_value = "Batch")]
    sidecar_mode: Mode,
    /// Log level of the sidecars
    #[arg(long, value_name = "LEVEL", value_parser = log_level, default_value_t = SidecarDefaults::default().log_level)]
    sidecar_log_level: String,
    /// CPU request of the sidecars
    #[arg(long, value_name = "QUANTITY", value_parser = cpu, default_value_t = SidecarDefaults::default().cpu_request)]
    sidecar_cpu_request: String,
    /// Memory request of the sidecars
    #[arg(long, value_name = "QUANTITY", value_parser = memory, default_value_t = SidecarDefaults::default().memory_request)]
    sidecar_memory_request: String,
    /// Memory limit of the sidecars
    #[arg(long, value_name = "QUANTITY", value_parser = memory, default_value_t = SidecarDefaults::default().memory_limit)]
    sidecar_memory_limit: String,
    /// Use native sidecars: if every node supports them, always, or never
    #[arg(long, value_enum, ignore_case = true, default_value = "Auto")]
    sidecar_native: NativeSidecars,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum NativeSidecars {
    Auto,
    Always,
    Never,
}

/// Silences the per-request error log of the client library at the given level: an unreachable API
/// server is one log line of the controller (`watch::reach`). A filter that names targets is used
/// unchanged.
fn log_filter(level: &str) -> String {
    if level.contains('=') { level.to_owned() } else { format!("{level},kube_client::client=off") }
}

fn mode(text: &str) -> Result<Mode, String> {
    let known = [("Batch", Mode::Batch), ("Observe", Mode::Observe), ("Passthrough", Mode::Passthrough)];
    let found = known.into_iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
    found.map(|(_, mode)| mode).ok_or_else(|| "must be Batch, Observe or Passthrough".to_owned())
}

/// Validates a log level as the annotations do: a value with which a sidecar cannot start is
/// rejected here, not by the first pod that gets it.
fn log_level(text: &str) -> Result<String, String> {
    let allowed = "must be error, warn, info, debug, trace, off, or a filter as in RUST_LOG";
    config::is_log_level(text).then(|| text.to_owned()).ok_or_else(|| allowed.to_owned())
}

fn cpu(text: &str) -> Result<String, String> {
    CPU.holds(text).then(|| text.to_owned()).ok_or_else(|| format!("must be {}", CPU.allowed()))
}

fn memory(text: &str) -> Result<String, String> {
    MEMORY.holds(text).then(|| text.to_owned()).ok_or_else(|| format!("must be {}", MEMORY.allowed()))
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
        let name = match (&pod.name, self.single) {
            (Some(name), _) => name.clone(),
            (None, true) => "groupage-controller".to_owned(),
            (None, false) => {
                return Err(
                    "the pod's name is unknown: set GROUPAGE_POD_NAME, or give --single for one replica".to_owned()
                );
            }
        };
        let stream_address = match self.stream_address.as_deref() {
            None | Some("") => format!("https://{}.{namespace}.svc:{STREAM_PORT}", self.stream_service),
            Some("off") => String::new(),
            Some(address) if config::is_controller(address) => address.to_owned(),
            Some(address) => {
                return Err(format!(
                    "--stream-address {address:?} is not an address that a sidecar can connect to: expected https://HOST:PORT or off"
                ));
            }
        };
        let callers = self.webhook_client_ca.as_ref().map(|path| {
            let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
            if bytes.len() > CALLERS_BYTES_MAX {
                return Err(format!("{} is larger than 1 MiB", path.display()));
            }
            Ok(bytes)
        });
        let names = self.names(&namespace, &stream_address);
        Ok(ControllerConfig {
            name,
            stream: pod.ip.map(|ip| SocketAddr::new(ip, self.stream_listen.port()).to_string()),
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
            callers: callers.transpose()?,
            unless_disabled: self.inject_by_default,
            excluded: self.exclude_namespace.iter().cloned().collect(),
            redirect: self.redirect,
            native: match self.sidecar.sidecar_native {
                NativeSidecars::Auto => None,
                NativeSidecars::Always => Some(true),
                NativeSidecars::Never => Some(false),
            },
            sidecar: self.sidecar.defaults(),
            timing: WatchTiming::default(),
            streams: (!stream_address.is_empty()).then_some(self.stream_listen),
            tuner: self.tuner.tuner.then_some(self.tuner.tuner_interval),
            drain: DRAIN_TIMEOUT,
            stream_address,
            namespace,
        })
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

// === impl SidecarArgs ===

impl SidecarArgs {
    fn defaults(&self) -> SidecarDefaults {
        SidecarDefaults {
            image: self.sidecar_image.clone(),
            pull_policy: self.sidecar_pull_policy.clone(),
            pull_secrets: self.sidecar_pull_secret.clone(),
            cpu_request: self.sidecar_cpu_request.clone(),
            memory_request: self.sidecar_memory_request.clone(),
            memory_limit: self.sidecar_memory_limit.clone(),
            log_level: self.sidecar_log_level.clone(),
            mode: self.sidecar_mode,
        }
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
    let format = if MachineLimits::read().terminal { LineFormat::Pretty } else { LineFormat::Json };
    let (_, writer) = match log::init(format, &log_filter(&args.log_level)) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("× cannot start the log: {error}");
            return ExitCode::from(config::EXIT_CONFIG);
        }
    };
    let runtime = match super::runtime(args.threads.into()) {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("× cannot start the runtime: {error}");
            return ExitCode::from(EXIT_INTERNAL);
        }
    };
    let code = runtime.block_on(async {
        let (Ok(term), Ok(int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
            tracing::error!("cannot listen for signals");
            return EXIT_INTERNAL;
        };
        let running = match connect_and_start(args, config).await {
            Ok(running) => running,
            Err(error) => {
                tracing::error!(%error, "cannot start");
                return config::EXIT_CONFIG;
            }
        };
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            webhook = %running.webhook,
            metrics = %running.health,
            streams = running.streams.map(tracing::field::display),
            tuner = args.tuner.tuner,
            tuner_interval = ?args.tuner.tuner_interval,
            "the controller is running"
        );
        until_the_end(running, term, int).await
    });
    runtime.shutdown_background();
    writer.flush(LOG_FLUSH);
    ExitCode::from(code)
}

async fn connect_and_start(args: &Args, config: ControllerConfig) -> Result<RunningController, BoxError> {
    let cluster = match &args.kubeconfig {
        Some(path) => {
            let file = kube::config::Kubeconfig::read_from(path)?;
            kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?
        }
        None => kube::Config::infer().await?,
    };
    let client = kube::Client::try_from(prepared(cluster))?;
    start(client, config, Clock::start())
}

async fn until_the_end(mut running: RunningController, mut term: Signal, mut int: Signal) -> u8 {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
        what = running.failed() => {
            tracing::error!(what, "ending");
            return EXIT_INTERNAL;
        }
    }
    tracing::info!("stopping: another replica may lead, and requests are still answered for a while");
    tokio::select! {
        () = running.end() => {}
        _ = term.recv() => tracing::warn!("second stop signal: exiting immediately"),
        _ = int.recv() => tracing::warn!("second stop signal: exiting immediately"),
    }
    0
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Args {
        Only::try_parse_from(["groupage"].iter().chain(words)).unwrap_or_else(|error| panic!("{error}")).args
    }

    fn pod() -> ControllerPodInfo {
        ControllerPodInfo { namespace: Some("gs".into()), name: Some("c-1".into()), ip: "fd00::1".parse().ok() }
    }

    #[test]
    fn what_the_manifests_say_is_understood() {
        let text = include_str!("../../../manifests/install.yaml");
        let found = crate::cli::yaml::documents(text).unwrap();
        let deployment = found.iter().find(|document| document.value["kind"] == "Deployment").unwrap();
        let words: Vec<String> =
            serde_json::from_value(deployment.value["spec"]["template"]["spec"]["containers"][0]["args"].clone())
                .unwrap();
        let (command, words) = words.split_first().unwrap();
        assert_eq!(command, "controller");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let config = args(&words).config(&pod()).unwrap();
        assert_eq!(
            config.certificate,
            ServerCertificate::Own { secret: SECRET.into(), webhooks: Some(WEBHOOKS.into()) }
        );
        assert_eq!(
            config.sidecar,
            SidecarDefaults { image: config.sidecar.image.clone(), ..SidecarDefaults::default() }
        );
        assert!(!config.unless_disabled && config.native.is_none());
        assert_eq!(config.redirect, RedirectUse::WhenNeeded);
    }

    #[test]
    fn names_and_addresses_follow_from_the_namespace() {
        let config = args(&[]).config(&pod()).unwrap();
        assert_eq!(config.stream_address, "https://groupage-stream.gs.svc:9444");
        assert_eq!(config.stream.as_deref(), Some("[fd00::1]:9444"));
        assert!(config.names.contains(&"groupage-webhook.gs.svc".to_owned()) && config.names.len() == 4);
        let own = args(&["--stream-address=https://batching.example:443"]).config(&pod()).unwrap();
        assert!(own.names.contains(&"batching.example".to_owned()));
        let literal = args(&["--stream-address=https://[fd00::1]:9444"]).config(&pod()).unwrap();
        assert!(literal.names.contains(&"fd00::1".to_owned()), "{:?}", literal.names);
        assert_eq!(args(&["--stream-address=off"]).config(&pod()).unwrap().stream_address, "");
        for wrong in ["nonsense here", "https://x:9444/path", "https://x:99999", "http://x"] {
            let refused = args(&[&format!("--stream-address={wrong}")]).config(&pod()).unwrap_err();
            assert!(refused.contains("expected https://HOST:PORT"), "{wrong}: {refused}");
        }
    }

    #[test]
    fn who_it_is_has_to_be_known_and_one_replica_needs_no_name() {
        let nobody = ControllerPodInfo::default();
        assert!(args(&[]).config(&nobody).unwrap_err().contains("GROUPAGE_NAMESPACE"));
        assert!(args(&["--namespace=x"]).config(&nobody).unwrap_err().contains("GROUPAGE_POD_NAME"));
        assert_eq!(args(&["--namespace=x", "--single"]).config(&nobody).unwrap().lease, None);
    }

    #[test]
    fn words_are_read_in_any_case_and_others_refused() {
        let config = args(&["--certificate=certmanager", "--sidecar-mode=observe", "--sidecar-native=NEVER"])
            .config(&pod())
            .unwrap();
        assert_eq!(config.certificate, ServerCertificate::Files("/tls".into()));
        assert_eq!((config.sidecar.mode, config.native), (Mode::Observe, Some(false)));
        for wrong in ["--sidecar-mode=Fast", "--tuner-interval=0s", "--inject-by-default=perhaps", "--certificate=none"]
        {
            assert!(Only::try_parse_from(["groupage", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_no_sidecar_could_start_with_keeps_the_controller_from_starting() {
        for wrong in [
            "--sidecar-log-level=inof",
            "--log-level=inof",
            "--sidecar-pull-policy=Sometimes",
            "--sidecar-cpu-request=0",
            "--sidecar-cpu-request=fast",
            "--sidecar-memory-request=1Mi",
            "--sidecar-memory-limit=128MB",
        ] {
            assert!(Only::try_parse_from(["groupage", wrong]).is_err(), "{wrong}");
        }
        let right = [
            "--sidecar-log-level=debug,hyper=warn",
            "--sidecar-cpu-request=1e-1",
            "--sidecar-memory-limit=1.34217728e+08",
        ];
        let _taken = args(&right);
    }

    /// Returns a check of a value against the pattern of the chart's schema at the value's path.
    fn patterns() -> impl Fn(&str, &str) -> bool {
        let schema: serde_json::Value =
            serde_json::from_str(include_str!("../../../charts/groupage/values.schema.json")).unwrap();
        move |path, value| {
            let at = path.split('.').fold(&schema, |at, key| &at["properties"][key]);
            let pattern = at["pattern"].as_str().unwrap_or_else(|| panic!("{path} has no pattern"));
            regex::Regex::new(pattern).unwrap().is_match(value)
        }
    }

    #[test]
    fn the_charts_schema_refuses_what_the_controller_does_and_takes_what_it_takes() {
        let takes = patterns();
        let check = |path: &str, flag: &str, right: &[&str], wrong: &[&str]| {
            for (values, expected) in [(right, true), (wrong, false)] {
                for value in values {
                    let parsed = Only::try_parse_from(["groupage", &format!("--{flag}={value}")]).is_ok();
                    assert_eq!((takes(path, value), parsed), (expected, expected), "{path}: {value}");
                }
            }
        };
        let levels = ["info", "DEBUG", "off", "3", "info,hyper=warn", "groupage_proxy=trace"];
        check("sidecar.logLevel", "sidecar-log-level", &levels, &["inof", "warning", ""]);
        check("controller.logLevel", "log-level", &levels, &["inof", "warning", ""]);
        check(
            "sidecar.cpuRequest",
            "sidecar-cpu-request",
            &["50m", "1", "0.5", ".5", "1e-1"],
            &["fast", "1 m", "1c", ""],
        );
        for (path, flag) in [("memoryRequest", "sidecar-memory-request"), ("memoryLimit", "sidecar-memory-limit")] {
            let right = ["128Mi", "1Gi", "0.5Gi", "134217728", "128M", "2e8"];
            check(&format!("sidecar.{path}"), flag, &right, &["128MB", "128mi", "Gi", "128 Mi", ""]);
        }
        let right = ["1s", "10s", "3600s", "1m", "60m", "1h", "999s", "1000s", "3599s"];
        check("tuner.interval", "tuner-interval", &right, &["500ms", "0s", "3601s", "61m", "2h", "ten", "0m", ""]);
    }
}
