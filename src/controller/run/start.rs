//! Wires the parts of `groupage controller` together.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::{ControllerConfig, ControllerHandles, RunningController, ServerCertificate};
use crate::apply::{WrittenStatuses, apply};
use crate::certs::{RotationSettings, ServingCertificate, rotate_certificates, watch_files};
use crate::clock::Clock;
use crate::desired::ReconcileResult;
use crate::error::BoxError;
use crate::events::{self, EventNotice};
use crate::health::{self, HealthServer};
use crate::injector::{ControllerEndpoint, InjectionContext};
use crate::lease::{self, Leadership};
use crate::observed::{EmptySource, ObservationSource};
use crate::reconcile::Reconciler;
use crate::sidecars::{SidecarController, SidecarsConfig};
use crate::telemetry::ControllerMetrics;
use crate::uninjected::{self, InjectionGaps};
use crate::watch::{SharedState, watch_all};
use crate::webhook;

/// A function that builds the injection context common to all pods.
type ContextBuilder = Arc<dyn Fn() -> InjectionContext + Send + Sync>;

/// The bound ports.
struct BoundPorts {
    webhook: TcpListener,
    health: TcpListener,
    streams: Option<TcpListener>,
}

/// Starts all parts.
///
/// # Errors
/// Returns an error if an address cannot be bound or the CA certificates of clients cannot be
/// parsed.
#[expect(clippy::needless_pass_by_value, reason = "the parts take over their settings")]
pub fn start(client: kube::Client, config: ControllerConfig, clock: Clock) -> Result<RunningController, BoxError> {
    let ports = bind_ports(&config)?;
    let streams = ports.streams.as_ref().map(TcpListener::local_addr).transpose()?;
    let (webhook, health) = (ports.webhook.local_addr()?, ports.health.local_addr()?);
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
    let parts =
        ControllerHandles { client, shared, leadership, served, rounds, notices, metrics, clock, stop: stopped };
    let source = start_sidecars(&mut tasks, ports.streams, &parts, &config)?;
    start_upkeep(&mut tasks, queue, &parts, &config);
    let base = context_builder(&config, &parts.served);
    start_rounds(&mut tasks, (source, tell_round), &base, &parts, &config);
    let ending = Arc::new(AtomicBool::new(false));
    tasks.spawn(health::serve(ports.health, build_probes(&parts, &ending), closed));
    let listening = webhook::serve(ports.webhook, tls, build_webhook(base, &parts, &config));
    let drain = config.drain;
    Ok(RunningController { webhook, health, streams, parts, listening, ending, stop, close, elector, tasks, drain })
}

fn bind_ports(config: &ControllerConfig) -> io::Result<BoundPorts> {
    let webhook = bind(config.webhook, "webhook")?;
    let health = bind(config.health, "health")?;
    let streams = config.streams.map(|address| bind(address, "stream")).transpose()?;
    Ok(BoundPorts { webhook, health, streams })
}

/// Serves the control streams if there is a port for them, and returns the source of reports.
fn start_sidecars(
    tasks: &mut JoinSet<()>,
    port: Option<TcpListener>,
    parts: &ControllerHandles,
    config: &ControllerConfig,
) -> Result<Arc<dyn ObservationSource>, BoxError> {
    let Some(port) = port else { return Ok(Arc::new(EmptySource)) };
    let sidecars = SidecarController::new(SidecarsConfig {
        shared: parts.shared.clone(),
        leadership: parts.leadership.clone(),
        served: parts.served.clone(),
        notices: parts.notices.clone(),
        metrics: parts.metrics.clone(),
        clock: parts.clock,
        mode: config.sidecar.mode,
        tuner: config.tuner,
    });
    tasks.spawn(sidecars.listen(port, parts.client.clone(), parts.stop.clone())?);
    Ok(sidecars)
}

/// Starts what runs beside the rounds: the certificates, the watches, and the publishing of Events.
fn start_upkeep(
    tasks: &mut JoinSet<()>,
    queue: mpsc::Receiver<EventNotice>,
    parts: &ControllerHandles,
    config: &ControllerConfig,
) {
    let ControllerHandles { client, shared, leadership, served, metrics, clock, stop, .. } = parts;
    tasks.spawn(certificates(client, config, leadership, served, stop.clone()));
    tasks.spawn(watch_all(client.clone(), shared.clone(), config.timing, metrics.clone(), stop.clone()));
    tasks.spawn(events::publish(client.clone(), config.name.clone(), queue, (*clock, metrics.clone()), stop.clone()));
}

/// Starts the rounds, and the parts that use their results: the writer, and the classification of
/// pods without a sidecar.
fn start_rounds(
    tasks: &mut JoinSet<()>,
    (source, tell_round): (Arc<dyn ObservationSource>, watch::Sender<Arc<ReconcileResult>>),
    base: &ContextBuilder,
    parts: &ControllerHandles,
    config: &ControllerConfig,
) {
    let ControllerHandles { client, shared, leadership, rounds, metrics, clock, stop, .. } = parts;
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
        clock: *clock,
        metrics: metrics.clone(),
        notices: parts.notices.clone(),
    };
    tasks.spawn(every.run(tell_round, stop.clone()));
    let known = (*clock, metrics.clone(), shared.reach().subscribe());
    tasks.spawn(apply(client.clone(), rounds.clone(), leadership.clone(), written, known, stop.clone()));
    let looking = (client.clone(), shared.clone(), leadership.clone());
    let installed = uninjected::InstallationValues {
        base: base.clone(),
        own_namespace: config.namespace.clone(),
        native: config.native,
    };
    tasks.spawn(uninjected::classify_uninjected(looking, looked, installed, *clock, rounds.clone(), stop.clone()));
}

fn build_probes(parts: &ControllerHandles, ending: &Arc<AtomicBool>) -> HealthServer {
    HealthServer {
        shared: parts.shared.clone(),
        served: parts.served.clone(),
        leadership: parts.leadership.clone(),
        metrics: parts.metrics.clone(),
        is_draining: ending.clone(),
    }
}

fn build_webhook(base: ContextBuilder, parts: &ControllerHandles, config: &ControllerConfig) -> webhook::WebhookConfig {
    webhook::WebhookConfig {
        shared: parts.shared.clone(),
        base,
        own_namespace: config.namespace.clone(),
        clock: parts.clock,
        metrics: parts.metrics.clone(),
        news: parts.notices.clone(),
        native: config.native,
    }
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
fn context_builder(config: &ControllerConfig, served: &ServingCertificate) -> ContextBuilder {
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
