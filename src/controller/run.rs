//! Wires the parts of `groupage controller` together, and shuts them down.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::apply::{WrittenStatuses, apply};
use super::certs::{RotationSettings, ServingCertificate, rotate_certificates, watch_files};
use super::desired::ReconcileResult;
use super::events::{self, EventNotice};
use super::health::{self, HealthServer};
use super::lease::{self, Leadership};
use super::observed::{EmptySource, ObservationSource};
use super::reconcile::Reconciler;
use super::sidecars::{SidecarController, SidecarsConfig};
use super::uninjected::{self, InjectionGaps};
use super::watch::{self as start_following, SharedState, WatchTiming};
use super::webhook;
use crate::clock::Clock;
use crate::error::BoxError;
use crate::injector::{ControllerEndpoint, InjectionContext, RedirectUse, SidecarDefaults};
use crate::telemetry::ControllerMetrics;

/// Divisor of the drain time. One such part passes between losing readiness and closing the
/// webhook: until the endpoint is removed, the API server still sends reviews, which are answered.
const LINGER_DIVISOR: u32 = 3;

/// Configuration of a controller.
#[derive(Debug, Clone)]
pub struct ControllerConfig {
    /// Namespace of the controller.
    pub namespace: String,
    /// Unique name of this replica: the name of its pod.
    pub name: String,
    /// Address at which this replica serves streams, for sidecars that are redirected to the
    /// leader.
    pub replica_stream_address: Option<String>,
    /// Address of the controller for sidecars: `https://HOST:PORT`; empty if there is none.
    pub stream_address: String,
    /// Name of the Lease; `None` if there is a single replica, which always leads.
    pub lease: Option<String>,
    /// Listen address of the webhook.
    pub webhook: SocketAddr,
    /// Listen address of probes and scrapes.
    pub health: SocketAddr,
    /// Source of the certificates.
    pub certificate: ServerCertificate,
    /// DNS names of the certificate: those of the webhook's Service and of the stream's.
    pub names: Vec<String>,
    /// CA certificates in PEM that clients of the webhook are verified with; `None` disables client
    /// authentication.
    pub client_ca: Option<Vec<u8>>,
    /// Enables injection for pods that neither request nor reject it, in namespaces that do
    /// neither.
    pub unless_disabled: bool,
    /// Namespaces excluded from injection, besides `kube-system` and the controller's own.
    pub excluded: BTreeSet<String>,
    /// Permission of capture by `Redirect`.
    pub redirect: RedirectUse,
    /// Overrides the sidecar form; `None` selects the native form where the cluster supports it.
    pub native: Option<bool>,
    /// Defaults of every sidecar.
    pub sidecar: SidecarDefaults,
    /// Timeouts and intervals of the watches.
    pub timing: WatchTiming,
    /// Listen address of the control streams; `None` disables pushing and tuning.
    pub streams: Option<SocketAddr>,
    /// Interval of the slow loop; `None` disables tuning.
    pub tuner: Option<Duration>,
    /// Time allowed for shutdown.
    pub drain: Duration,
}

/// Source of the certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerCertificate {
    /// Issued by the controller, stored in this Secret, and published as CA bundle in this
    /// `MutatingWebhookConfiguration`.
    Own {
        /// Name of the Secret.
        secret: String,
        /// Name of the webhook configuration.
        webhooks: Option<String>,
    },
    /// Files issued elsewhere: `tls.crt`, `tls.key` and `ca.crt` in this directory.
    Files(PathBuf),
}

/// Handles shared by the parts.
#[derive(Clone)]
pub struct ControllerHandles {
    /// Client of the API server.
    pub client: kube::Client,
    /// The cluster state.
    pub shared: SharedState,
    /// The leadership state.
    pub leadership: Leadership,
    /// The certificates in use and the CA bundle.
    pub served: ServingCertificate,
    /// Result of every round: the policy of every pod, and the desired state.
    pub rounds: watch::Receiver<Arc<ReconcileResult>>,
    /// Queue of Events to publish.
    pub notices: mpsc::Sender<EventNotice>,
    /// Metrics registry.
    pub metrics: ControllerMetrics,
    /// The clock of the process.
    pub clock: Clock,
    /// Becomes `true` at shutdown.
    pub stop: watch::Receiver<bool>,
}

/// A running controller.
pub struct RunningController {
    /// Bound address of the webhook.
    pub webhook: SocketAddr,
    /// Bound address of the probes.
    pub health: SocketAddr,
    /// Bound address of the control streams.
    pub streams: Option<SocketAddr>,
    /// Handles shared by the parts.
    pub parts: ControllerHandles,
    listening: webhook::WebhookHandle,
    ending: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
    /// Closes the health port, after the webhook has been drained.
    close: watch::Sender<bool>,
    elector: Option<tokio::task::JoinHandle<()>>,
    tasks: JoinSet<()>,
    drain: Duration,
}

/// Prepares a client configuration for the controller: no built-in retries, since every part has
/// its own backoff, and timeouts for silent connections.
#[must_use]
pub fn prepare_client_config(mut config: kube::Config) -> kube::Config {
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(10));
    // Longer than the longest watch, which it would interrupt otherwise.
    config.read_timeout = Some(WatchTiming::default().watch + Duration::from_secs(30));
    config.reset_reader_on_write = true;
    config
}

/// Starts all parts.
///
/// # Errors
/// Returns an error if an address cannot be bound or the CA certificates of clients cannot be
/// parsed.
#[expect(clippy::needless_pass_by_value, reason = "the parts take over their settings")]
pub fn start(client: kube::Client, config: ControllerConfig, clock: Clock) -> Result<RunningController, BoxError> {
    let webhook = bind(config.webhook, "webhook")?;
    let health = bind(config.health, "health")?;
    let port = config.streams.map(|address| bind(address, "stream")).transpose()?;
    let streams = port.as_ref().map(TcpListener::local_addr).transpose()?;
    let addresses = (webhook.local_addr()?, health.local_addr()?);
    let metrics = ControllerMetrics::new();
    let shared = SharedState::new(clock);
    let served = ServingCertificate::none();
    let tls = served.server_config(config.client_ca.as_deref(), &["h2", "http/1.1"])?;
    let (stop, stopped) = watch::channel(false);
    let (close, closed) = watch::channel(false);
    let (notices, queue) = mpsc::channel(events::QUEUE_MAX);
    let (tell_round, rounds) = watch::channel(Arc::new(ReconcileResult::default()));
    let mut tasks = JoinSet::new();
    let (leadership, elector) = elect(&client, &config, clock, stopped.clone());
    let parts = ControllerHandles {
        client: client.clone(),
        shared: shared.clone(),
        leadership: leadership.clone(),
        served: served.clone(),
        rounds: rounds.clone(),
        notices: notices.clone(),
        metrics: metrics.clone(),
        clock,
        stop: stopped.clone(),
    };
    let source: Arc<dyn ObservationSource> = match port {
        None => Arc::new(EmptySource),
        Some(port) => {
            let sidecars = SidecarController::new(SidecarsConfig {
                shared: shared.clone(),
                leadership: leadership.clone(),
                served: served.clone(),
                notices: notices.clone(),
                metrics: metrics.clone(),
                clock,
                mode: config.sidecar.mode,
                tuner: config.tuner,
            });
            tasks.spawn(sidecars.listen(port, client.clone(), stopped.clone())?);
            sidecars
        }
    };
    tasks.spawn(certificates(&client, &config, &leadership, &served, stopped.clone()));
    tasks.spawn(start_following::watch_all(
        client.clone(),
        shared.clone(),
        config.timing,
        metrics.clone(),
        stopped.clone(),
    ));
    tasks.spawn(events::publish(client.clone(), config.name.clone(), queue, (clock, metrics.clone()), stopped.clone()));
    let (written, looked) = (WrittenStatuses::default(), InjectionGaps::default());
    let mut excluded = config.excluded.clone();
    excluded.insert(config.namespace.clone());
    let every = Reconciler {
        shared: shared.clone(),
        leadership: leadership.clone(),
        written: written.clone(),
        looked: looked.clone(),
        source,
        unless_disabled: config.unless_disabled,
        excluded,
        clock,
        metrics: metrics.clone(),
        notices: notices.clone(),
    };
    tasks.spawn(every.run(tell_round, stopped.clone()));
    let known = (clock, metrics.clone(), shared.reach().subscribe());
    tasks.spawn(apply(client.clone(), rounds.clone(), leadership.clone(), written, known, stopped.clone()));
    let base = context_builder(&config, &served);
    let looking = (client, shared.clone(), leadership.clone());
    let installed = uninjected::InstallationValues {
        base: base.clone(),
        own_namespace: config.namespace.clone(),
        native: config.native,
    };
    tasks.spawn(uninjected::classify_uninjected(looking, looked, installed, clock, rounds, stopped));
    let ending = Arc::new(AtomicBool::new(false));
    let probes = HealthServer {
        shared: shared.clone(),
        served,
        leadership,
        metrics: metrics.clone(),
        is_draining: ending.clone(),
    };
    tasks.spawn(health::serve(health, probes, closed));
    let webhook_config = webhook::WebhookConfig {
        shared,
        base,
        own_namespace: config.namespace.clone(),
        clock,
        metrics,
        news: notices,
        native: config.native,
    };
    let listening = webhook::serve(webhook, tls, webhook_config);
    let drain = config.drain;
    let (webhook, health) = addresses;
    Ok(RunningController { webhook, health, streams, parts, listening, ending, stop, close, elector, tasks, drain })
}

fn bind(address: SocketAddr, what: &str) -> io::Result<TcpListener> {
    let bound = crate::socket::bind(address).and_then(TcpListener::from_std);
    bound.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on the {what} address {address}: {error}"))
    })
}

fn elect(
    client: &kube::Client,
    config: &ControllerConfig,
    clock: Clock,
    stop: watch::Receiver<bool>,
) -> (Leadership, Option<tokio::task::JoinHandle<()>>) {
    let Some(name) = &config.lease else { return (Leadership::always(clock), None) };
    let settings = lease::ElectionSettings {
        namespace: config.namespace.clone(),
        name: name.clone(),
        me: config.name.clone(),
        address: config.replica_stream_address.clone(),
    };
    let (leadership, work) = lease::elect(client.clone(), settings, clock, stop);
    (leadership, Some(tokio::spawn(work)))
}

fn certificates(
    client: &kube::Client,
    config: &ControllerConfig,
    leadership: &Leadership,
    served: &ServingCertificate,
    stop: watch::Receiver<bool>,
) -> impl Future<Output = ()> + Send + use<> {
    let (client, leadership, served) = (client.clone(), leadership.clone(), served.clone());
    let (namespace, names, certificate) = (config.namespace.clone(), config.names.clone(), config.certificate.clone());
    async move {
        match certificate {
            ServerCertificate::Own { secret, webhooks } => {
                let settings = RotationSettings { namespace, secret, names, webhooks };
                rotate_certificates(client, settings, leadership, served, stop).await;
            }
            ServerCertificate::Files(folder) => watch_files(folder, served, stop).await,
        }
    }
}

/// Returns a function that builds the injection context common to all pods, with the current CA
/// bundle.
fn context_builder(
    config: &ControllerConfig,
    served: &ServingCertificate,
) -> Arc<dyn Fn() -> InjectionContext + Send + Sync> {
    let (sidecar, address) = (config.sidecar.clone(), config.stream_address.clone());
    let (unless_disabled, redirect) = (config.unless_disabled, config.redirect);
    let presented = served.subscribe();
    Arc::new(move || {
        let ca = presented.borrow().as_ref().map(|presented| presented.bundle.clone()).unwrap_or_default();
        let controller = (!address.is_empty()).then(|| ControllerEndpoint { address: address.clone(), ca });
        InjectionContext {
            sidecar: sidecar.clone(),
            controller,
            inject_by_default: unless_disabled,
            redirect,
            ..InjectionContext::default()
        }
    })
}

// === impl ControllerHandles ===

impl fmt::Debug for ControllerHandles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("shared", &self.shared)
            .field("leadership", &self.leadership)
            .finish_non_exhaustive()
    }
}

// === impl RunningController ===

impl RunningController {
    /// Resolves if a part ends by itself, which is a defect: the process cannot work without it.
    pub async fn wait_for_failure(&mut self) -> String {
        let Self { elector, tasks, .. } = self;
        let elected = async {
            match elector {
                Some(elector) => elector.await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            ended = tasks.join_next() => ended.unwrap_or(Ok(())),
            ended = elected => ended,
        };
        match ended {
            Err(error) if error.is_panic() => format!("a task of the controller panicked: {error}"),
            _ => "a task of the controller ended unexpectedly".to_owned(),
        }
    }

    /// Shuts down in order: fails readiness and gives up leadership, answers reviews for a while
    /// longer, drains the webhook, and stops the remaining parts.
    pub async fn shut_down(self) {
        let Self { listening, ending, stop, close, elector, mut tasks, drain, .. } = self;
        ending.store(true, Ordering::Relaxed);
        // An error means that all receivers are dropped, which is ignored.
        stop.send(true).ok();
        let linger = drain / LINGER_DIVISOR;
        if let Some(elector) = elector {
            // The elector releases the lease, so another replica can lead at once. A panic was
            // reported by `wait_for_failure` already.
            tokio::time::timeout(linger, elector).await.ok();
        }
        // The API server may not have observed yet that this replica is no endpoint any more.
        tokio::time::sleep(linger).await;
        listening.drain(linger).await;
        close.send(true).ok();
        let all = async { while tasks.join_next().await.is_some() {} };
        // The remaining tasks are aborted when the set is dropped.
        tokio::time::timeout(linger / LINGER_DIVISOR, all).await.ok();
    }
}

impl fmt::Debug for RunningController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("webhook", &self.webhook).field("health", &self.health).finish_non_exhaustive()
    }
}
