//! One port with its own upstream, scheduler, routes and connections. A process has one port, or
//! one for each captured port of its pod.
//!
//! Ports share no batch and no slot, since each has a queue in front of its own server. They share
//! the bounds on buffered bytes and connections, the metrics registry, the access log and the
//! policy.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::super::state_dir::writer::StateWriter;
use super::super::state_dir::{LearnedFileOutcome, StateDir};
use super::limits::core_limits;
use super::model_server::{ModelServer, ServerTarget};
use super::resources::ProcessResources;
use super::route_table::build_port_table;
use super::scopes::ScopeRegistry;
use super::transport::{proxy_config, upstream_config};
use super::{decisions, report};
use crate::access_log::AccessLog;
use crate::batching::ScopeId;
use crate::config::{Capture, Policy};
use crate::error::BoxError;
use crate::proxy::{self, Connections, ListenerChannel, ListenerControl, ListenerHandle, Proxy, RoutingTable};
use crate::scheduler::{self, Scheduler, ShadowRecorder};
use crate::telemetry::Metrics;
use crate::upstream::Upstream;

/// A port with its bound sockets and its model server. It becomes a [`ReadyPort`] and then a
/// [`RunningPort`].
#[derive(Debug)]
pub(super) struct BoundPort {
    /// The captured port of the application, if this port captures one.
    pub(super) capture: Option<Capture>,
    pub(super) target: ServerTarget,
    pub(super) sockets: Vec<TcpListener>,
    pub(super) metrics: Arc<Metrics>,
    /// Folder for the learned state of this port's server.
    pub(super) folder: Option<StateDir>,
}

/// Inputs that all ports of a process have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct PortInputs<'a> {
    pub(super) policy: &'a Policy,
    pub(super) scopes: &'a ScopeRegistry,
    /// Scopes of the routes in the order of the policy, and that of the default route.
    pub(super) ids: &'a [ScopeId],
    pub(super) resources: &'a ProcessResources,
    pub(super) access_log: Option<&'a AccessLog>,
    pub(super) seed: u64,
}

/// A port with all of its components, which does not serve yet.
#[derive(Debug)]
pub(super) struct ReadyPort {
    pub(super) reach: PortHandle,
    pub(super) listen: Vec<SocketAddr>,
    scheduler: Scheduler,
    sockets: Vec<TcpListener>,
    listener: ListenerChannel,
    /// If learned state is kept: its folder, the outcome of reading it, and the notification of
    /// executions, each of which may change it.
    learned_file: Option<(StateDir, LearnedFileOutcome, Arc<Notify>)>,
}

/// A running port.
#[derive(Debug)]
pub(super) struct RunningPort {
    pub(super) reach: PortHandle,
    pub(super) scheduler: Scheduler,
    pub(super) listening: ListenerHandle,
    pub(super) keeper: Option<StateWriter>,
}

/// A handle to the components of a port.
#[derive(Debug, Clone)]
pub(in crate::app) struct PortHandle {
    pub(in crate::app) capture: Option<Capture>,
    pub(in crate::app) proxy: Arc<Proxy>,
    pub(in crate::app) scheduler: scheduler::SchedulerHandle,
    pub(in crate::app) shadow: ShadowRecorder,
    pub(in crate::app) upstream: ModelServer,
    pub(in crate::app) metrics: Arc<Metrics>,
}

// === impl BoundPort ===

impl BoundPort {
    /// Builds the port; it serves nothing yet. Must be called inside a tokio runtime.
    pub(super) fn build(self, inputs: PortInputs<'_>) -> Result<ReadyPort, BoxError> {
        let Self { capture, target, sockets, metrics, folder } = self;
        let PortInputs { policy, scopes, ids, resources, access_log, seed } = inputs;
        let ProcessResources { buffers, certs, .. } = resources;
        let clock = resources.clock;
        let listen = sockets.iter().map(TcpListener::local_addr).collect::<std::io::Result<Vec<_>>>()?;
        let upstream = build_server(policy, target, resources, &metrics)?;
        let (learned_state, found) = folder.as_ref().map(StateDir::learned).unwrap_or_default();
        let learned = folder.is_some().then(|| Arc::new(Notify::new()));
        let config = scheduler::SchedulerConfig {
            limits: core_limits(policy, scopes.limits()),
            seed,
            learned_state,
            learned: learned.clone(),
        };
        let shadow = ShadowRecorder::start(&config, clock, upstream.backend(), metrics.clone());
        let scheduler = Scheduler::start(config, clock, upstream.backend(), metrics.clone())?;
        let table = build_port_table(policy, ids, capture.as_ref(), None)?;
        let parts = proxy::ProxyComponents {
            clock,
            scheduler: scheduler.handle.clone(),
            shadow: shadow.clone(),
            backend: upstream.backend(),
            forward: upstream.forward(),
            buffers: buffers.clone(),
            metrics: metrics.clone(),
            access_log: access_log.cloned(),
            tokens: upstream.token_calibration(),
        };
        let proxy = Arc::new(Proxy::new(proxy_config(policy, certs), table, parts));
        let learned_file = folder.zip(learned).map(|(folder, learned)| (folder, found, learned));
        let reach = PortHandle { capture, proxy, scheduler: scheduler.handle.clone(), shadow, upstream, metrics };
        Ok(ReadyPort { reach, listen, scheduler, sockets, listener: ListenerChannel::default(), learned_file })
    }
}

// === impl ReadyPort ===

impl ReadyPort {
    /// Returns the handle that starts and ends the drain of its connections.
    pub(super) fn listener_control(&self) -> ListenerControl {
        self.listener.control()
    }

    /// Starts serving the port.
    pub(super) fn serve(self, connections: &Arc<Connections>) -> std::io::Result<RunningPort> {
        let Self { reach, scheduler, sockets, listener, learned_file, .. } = self;
        let keeper = learned_file.map(|(folder, found, learned)| {
            StateWriter::start(folder, found, learned, scheduler.handle.clone(), reach.upstream.identity())
        });
        let sockets =
            sockets.into_iter().map(tokio::net::TcpListener::from_std).collect::<std::io::Result<Vec<_>>>()?;
        let listening = proxy::serve(&reach.proxy, sockets, listener, connections);
        reach.upstream.watch();
        Ok(RunningPort { reach, scheduler, listening, keeper })
    }
}

// === impl PortHandle ===

impl PortHandle {
    /// Builds the port's route table from a policy.
    pub(super) fn table(&self, policy: &Policy, ids: &[ScopeId]) -> Result<RoutingTable, String> {
        build_port_table(policy, ids, self.capture.as_ref(), Some(&self.proxy.table()))
    }

    /// Returns the state that its scheduler has learned, and its recent decisions, as JSON. Returns
    /// `None` if the scheduler does not answer.
    pub(super) async fn learned(&self) -> Option<Value> {
        let mut learned = report::scheduler_json(&self.scheduler.report().await?);
        decisions::add_decisions(&mut learned, &self.scheduler.decision_report().await?);
        if let Some(report) =
            self.shadow.report().await.filter(|report| report.calls > 0 || !report.left_out.is_empty())
        {
            learned["predicted"] = report::predicted(&report);
        }
        learned["priorities"] = decisions::priorities(&self.proxy.table().priorities);
        if let Some(engine) = self.upstream.engine_report() {
            learned["engine"] = engine;
        }
        if let Some(capture) = &self.capture {
            learned["port"] = json!(capture.port);
            learned["name"] = json!(capture.name);
        }
        Some(learned)
    }
}

/// Builds the adapter for an upstream, or starts the engine.
fn build_server(
    policy: &Policy,
    target: ServerTarget,
    resources: &ProcessResources,
    metrics: &Arc<Metrics>,
) -> Result<ModelServer, BoxError> {
    let ProcessResources { clock, buffers, certs, upstream_permits, .. } = resources;
    match target {
        ServerTarget::Upstream(target) => {
            let bounds = (buffers.clone(), upstream_permits.clone());
            let config = upstream_config(policy, target, certs);
            Ok(ModelServer::Upstream(Upstream::new(config, *clock, bounds, metrics.clone())))
        }
        #[cfg(feature = "engine")]
        ServerTarget::Engine(model) => {
            let parts = groupage_serving::EngineParts {
                clock: *clock,
                buffers: buffers.clone(),
                metrics: metrics.clone(),
                body_idle_timeout: policy.proxy.client.body_idle_timeout,
                replay_ppm: policy.failure.replay_budget.ppm(),
                device: model.choice.note(),
            };
            let (cpu_tokens_max, cpu_refusal) = (resources.cpu_tokens_max, resources.cpu_refusal.clone());
            let executor = groupage_serving::ExecutorSettings { cpu_tokens_max, cpu_refusal, ..model.choice.settings };
            Ok(ModelServer::Engine(groupage_serving::EngineServer::start(model.served, executor, parts)?))
        }
        #[cfg(not(feature = "engine"))]
        ServerTarget::Engine(model) => match model.0 {},
    }
}

/// Returns `true` if the servers behind the ports are ready: all servers of the ports that routes
/// in force name, or, if no route names a port, at least one server.
///
/// Readiness of all ports cannot be required, since a pod may declare ports on which nothing ever
/// listens.
pub(super) fn is_ready(policy: &Policy, ports: &[PortHandle]) -> bool {
    let named = |port: &&PortHandle| {
        let captured = port.capture.as_ref();
        policy.routes.iter().any(|route| captured.is_some_and(|capture| capture.is_selected_by(&route.ports)))
    };
    let mut required = ports.iter().filter(named).peekable();
    if required.peek().is_some() {
        return required.all(|port| port.upstream.is_ready());
    }
    ports.iter().any(|port| port.upstream.is_ready())
}
