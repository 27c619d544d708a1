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
use crate::observed_state::{EmptySource, ObservationSource};
use crate::reconcile::Reconciler;
use crate::sidecars::{SidecarController, SidecarsConfig};
use crate::telemetry::ControllerMetrics;
use crate::uninjected::{self, InjectionGaps};
use crate::watch::{SharedState, watch_all};
use crate::webhook;

/// A function that builds the injection context common to all pods.
type ContextBuilder = Arc<dyn Fn() -> InjectionContext + Send + Sync>;

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
    let certificate = ServingCertificate::none();
    let tls = certificate.server_config(config.client_ca.as_deref(), &["h2", "http/1.1"])?;
    let (stop, stop_signal) = watch::channel(false);
    let (close_health, close_signal) = watch::channel(false);
    let (notices, notice_queue) = mpsc::channel(events::QUEUE_MAX);
    let (round_sender, rounds) = watch::channel(Arc::new(ReconcileResult::default()));
    let mut tasks = JoinSet::new();
    let (leadership, elector) = start_elector(&client, &config, clock, stop_signal.clone());
    let handles = ControllerHandles {
        client,
        shared,
        leadership,
        certificate,
        rounds,
        notices,
        metrics,
        clock,
        stop: stop_signal,
    };
    let source = start_sidecars(&mut tasks, ports.streams, &handles, &config)?;
    start_background_tasks(&mut tasks, notice_queue, &handles, &config);
    let build_context = context_builder(&config, &handles.certificate);
    start_reconciler(&mut tasks, (source, round_sender), &build_context, &handles, &config);
    let is_draining = Arc::new(AtomicBool::new(false));
    tasks.spawn(health::serve(ports.health, build_health_server(&handles, &is_draining), close_signal));
    let webhook_handle = webhook::serve(ports.webhook, tls, webhook_config(build_context, &handles, &config));
    let drain = config.drain;
    Ok(RunningController {
        webhook,
        health,
        streams,
        handles,
        webhook_handle,
        is_draining,
        stop,
        close_health,
        elector,
        tasks,
        drain,
    })
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
    handles: &ControllerHandles,
    config: &ControllerConfig,
) -> Result<Arc<dyn ObservationSource>, BoxError> {
    let Some(port) = port else { return Ok(Arc::new(EmptySource)) };
    let sidecars = SidecarController::new(SidecarsConfig {
        shared: handles.shared.clone(),
        leadership: handles.leadership.clone(),
        certificate: handles.certificate.clone(),
        notices: handles.notices.clone(),
        metrics: handles.metrics.clone(),
        clock: handles.clock,
        mode: config.sidecar.mode,
        tuner: config.tuner,
    });
    tasks.spawn(sidecars.listen(port, handles.client.clone(), handles.stop.clone())?);
    Ok(sidecars)
}

/// Starts the tasks beside the rounds: the maintenance of the certificates, the watches, and the
/// publishing of Events.
fn start_background_tasks(
    tasks: &mut JoinSet<()>,
    notice_queue: mpsc::Receiver<EventNotice>,
    handles: &ControllerHandles,
    config: &ControllerConfig,
) {
    let ControllerHandles { client, shared, leadership, certificate, metrics, clock, stop, .. } = handles;
    tasks.spawn(maintain_certificate(client, config, leadership, certificate, stop.clone()));
    tasks.spawn(watch_all(client.clone(), shared.clone(), config.timing, metrics.clone(), stop.clone()));
    tasks.spawn(events::publish(
        client.clone(),
        config.name.clone(),
        notice_queue,
        (*clock, metrics.clone()),
        stop.clone(),
    ));
}

/// Starts the reconcile loop, and the tasks that use its results: the writer, and the
/// classification of pods without a sidecar.
fn start_reconciler(
    tasks: &mut JoinSet<()>,
    (source, round_sender): (Arc<dyn ObservationSource>, watch::Sender<Arc<ReconcileResult>>),
    build_context: &ContextBuilder,
    handles: &ControllerHandles,
    config: &ControllerConfig,
) {
    let ControllerHandles { client, shared, leadership, rounds, metrics, clock, stop, .. } = handles;
    let (written, gaps) = (WrittenStatuses::default(), InjectionGaps::default());
    let mut excluded = config.excluded.clone();
    excluded.insert(config.namespace.clone());
    let reconciler = Reconciler {
        shared: shared.clone(),
        leadership: leadership.clone(),
        written: written.clone(),
        gaps: gaps.clone(),
        source,
        inject_by_default: config.inject_by_default,
        excluded,
        clock: *clock,
        metrics: metrics.clone(),
        notices: handles.notices.clone(),
    };
    tasks.spawn(reconciler.run(round_sender, stop.clone()));
    let reach = shared.reach().subscribe();
    tasks.spawn(apply(
        client.clone(),
        rounds.clone(),
        leadership.clone(),
        written,
        (*clock, metrics.clone(), reach),
        stop.clone(),
    ));
    let cluster = (client.clone(), shared.clone(), leadership.clone());
    let installation = uninjected::InstallationValues {
        build_context: build_context.clone(),
        own_namespace: config.namespace.clone(),
        native: config.native,
    };
    tasks.spawn(uninjected::classify_uninjected(cluster, gaps, installation, *clock, rounds.clone(), stop.clone()));
}

fn build_health_server(handles: &ControllerHandles, is_draining: &Arc<AtomicBool>) -> HealthServer {
    HealthServer {
        shared: handles.shared.clone(),
        certificate: handles.certificate.clone(),
        leadership: handles.leadership.clone(),
        metrics: handles.metrics.clone(),
        is_draining: is_draining.clone(),
    }
}

fn webhook_config(
    build_context: ContextBuilder,
    handles: &ControllerHandles,
    config: &ControllerConfig,
) -> webhook::WebhookConfig {
    webhook::WebhookConfig {
        shared: handles.shared.clone(),
        build_context,
        own_namespace: config.namespace.clone(),
        clock: handles.clock,
        metrics: handles.metrics.clone(),
        notices: handles.notices.clone(),
        native: config.native,
    }
}

fn bind(address: SocketAddr, port: &str) -> io::Result<TcpListener> {
    let bound = crate::socket::bind(address).and_then(TcpListener::from_std);
    bound.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on the {port} address {address}: {error}"))
    })
}

fn start_elector(
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
    let (leadership, elector) = lease::elect(client.clone(), settings, clock, stop);
    (leadership, Some(tokio::spawn(elector)))
}

/// Returns the task that rotates or reloads the certificate, until shutdown is signalled.
fn maintain_certificate(
    client: &kube::Client,
    config: &ControllerConfig,
    leadership: &Leadership,
    certificate: &ServingCertificate,
    stop: watch::Receiver<bool>,
) -> impl Future<Output = ()> + Send + use<> {
    let (client, leadership, certificate) = (client.clone(), leadership.clone(), certificate.clone());
    let (namespace, names, source) = (config.namespace.clone(), config.names.clone(), config.certificate.clone());
    async move {
        match source {
            ServerCertificate::Own { secret, webhooks } => {
                let settings = RotationSettings { namespace, secret, names, webhooks };
                rotate_certificates(client, settings, leadership, certificate, stop).await;
            }
            ServerCertificate::Files(folder) => watch_files(folder, certificate, stop).await,
        }
    }
}

/// Returns a function that builds the injection context common to all pods, with the current CA
/// bundle.
fn context_builder(config: &ControllerConfig, certificate: &ServingCertificate) -> ContextBuilder {
    let (sidecar, address) = (config.sidecar.clone(), config.stream_address.clone());
    let (inject_by_default, redirect) = (config.inject_by_default, config.redirect);
    let certificate_info = certificate.subscribe();
    Arc::new(move || {
        let ca = certificate_info.borrow().as_ref().map(|info| info.bundle.clone()).unwrap_or_default();
        let controller = (!address.is_empty()).then(|| ControllerEndpoint { address: address.clone(), ca });
        InjectionContext {
            sidecar: sidecar.clone(),
            controller,
            inject_by_default,
            redirect,
            ..InjectionContext::default()
        }
    })
}
