//! The composition root: builds a running proxy from a policy. Used by `groupage proxy`, `groupage
//! demo`, the tests and the benchmarks.
//!
//! ```text
//! start     bind_ports ─▶ record_start ─▶ assemble
//! assemble  build_ports ─▶ SettingsHandle, DrainHandle ─▶ admin ports, background tasks ─▶ serve
//! ```
//!
//! `limits`, `routes`, `route_table` and `transport` convert a policy to the types of the
//! components that it configures.

mod admin_api;
mod bind;
mod certs;
mod reconfigure;
mod drain;
mod drain_state;
mod engine;
#[cfg(feature = "engine")]
mod engine_plan;
#[cfg(feature = "engine")]
mod executor_choice;
mod limits;
mod model_memory;
mod model_server;
mod port;
mod report;
mod resources;
mod route_table;
mod routes;
mod running;
mod scopes;
mod settings_state;
mod tokenizer;
mod transport;
mod decisions;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use self::admin_api::AdminParts;
use self::bind::bind_ports;
use self::drain::{DrainHandle, DrainedParts};
use self::drain_state::DrainTimes;
#[cfg(feature = "engine")]
pub(crate) use self::engine_plan::{EnginePlan, plan_engine};
#[cfg(feature = "engine")]
pub(crate) use self::executor_choice::ExecutorChoice;
use self::limits::{batch_weight_max, publish_limits};
pub(super) use self::model_server::ModelServer;
pub(super) use self::port::PortHandle;
use self::port::{BoundPort, PortInputs, ReadyPort};
pub use self::reconfigure::SettingsHandle;
use self::reconfigure::{CRASH_GUARD_SOURCE, ControlledParts};
use self::resources::ProcessResources;
pub(crate) use self::route_table::build_route_table;
pub use self::running::RunningApp;
use self::scopes::ScopeRegistry;
pub use self::settings_state::{AppliedSettings, SettingsRefusal};
pub(crate) use self::transport::build_upstream;
use super::state_dir::StateDir;
use super::state_dir::crash_guard::StartRecord;
use crate::access_log::AccessLog;
use crate::admin::{self, AdminAddresses, AdminServer};
use crate::clock::Clock;
use crate::config::Policy;
use crate::error::BoxError;
use crate::telemetry::LossyWriter;
use crate::telemetry::log::LevelHandle;

/// Name of the folder of compiled kernels.
const KERNEL_FOLDER: &str = "kernels";

/// Inputs of [`start`].
#[derive(Debug)]
pub struct AppOptions {
    /// The effective policy, which names an upstream.
    pub policy: Policy,
    /// Handle to change the log level at run time.
    pub level: LevelHandle,
    /// Seed of the random `Retry-After` values.
    pub seed: u64,
    /// Token that the application's `preStop` hook must present to flush the queue. Without one, no
    /// flush is possible.
    pub drain_token: Option<String>,
}

/// Ports that do not serve yet, with the resources that they share.
struct BuiltPorts {
    resources: ProcessResources,
    scopes: ScopeRegistry,
    access_log: Option<AccessLog>,
    ready: Vec<ReadyPort>,
}

// === impl AppOptions ===

impl AppOptions {
    /// Returns the folder for compiled kernels, in the state folder. An injected sidecar, which is
    /// recognised by its token, has none: kernels exceed the size limit of its state volume, and
    /// the kubelet would evict the pod.
    fn kernel_folder(&self) -> Option<PathBuf> {
        let state = self.policy.proxy.state.as_ref().filter(|_| self.drain_token.is_none())?;
        Some(state.join(KERNEL_FOLDER))
    }
}

/// Starts a proxy. Must be called inside a tokio runtime.
///
/// # Errors
/// If no upstream is named, certificates are unusable, a port cannot be bound, or the system
/// provides no thread or timer.
pub fn start(options: AppOptions) -> Result<RunningApp, BoxError> {
    let (bound, folder) = bind_ports(&options.policy, options.kernel_folder().as_deref())?;
    let start_record = folder.as_ref().map(StateDir::record_start).unwrap_or_default();
    // A process that fails to start has not crashed: remove its run record.
    assemble(options, bound, folder.clone(), &start_record).inspect_err(|_| {
        if let Some(folder) = folder {
            folder.record_end();
        }
    })
}

/// Assembles the proxy from its bound ports, and serves.
fn assemble(
    options: AppOptions,
    bound: Vec<BoundPort>,
    folder: Option<StateDir>,
    start_record: &StartRecord,
) -> Result<RunningApp, BoxError> {
    let AppOptions { policy: requested, level, seed, drain_token } = options;
    let clock = Clock::start();
    // After repeated crashes, all calls pass through for a while. The requested policy is kept, and
    // is put in force afterwards.
    let passthrough_until = start_record.aside.map(|left| clock.now().after(left));
    let policy = if passthrough_until.is_some() {
        requested.clone().into_passthrough(CRASH_GUARD_SOURCE)
    } else {
        requested.clone()
    };
    let targets: Vec<String> = bound.iter().map(|port| port.target.to_string()).collect();
    let BuiltPorts { resources, scopes, access_log, ready } = build_ports(&policy, bound, clock, seed)?;
    let metrics = resources.metrics.clone();
    let listen: Vec<SocketAddr> = ready.iter().flat_map(|port| port.listen.iter().copied()).collect();
    let handles: Vec<PortHandle> = ready.iter().map(|port| port.reach.clone()).collect();
    let drain = policy.proxy.drain.clone();
    let admin_ports = AdminAddresses { metrics: policy.proxy.metrics, local: policy.proxy.admin };
    let controlled = ControlledParts { ports: handles.clone(), metrics: metrics.clone(), clock };
    let control = SettingsHandle::new(controlled, policy, scopes, passthrough_until.map(|until| (until, requested)));
    let drainer = start_drainer(DrainTimes { delay: drain.delay, limit: drain.limit }, &ready, &resources);
    let parts = AdminParts { resources: &resources, ports: handles, control: &control, drainer: &drainer };
    let admin = admin::start(admin_ports, parts.build(level, drain_token))?;
    resources.watch(&admin);
    log_listening(&listen, &admin.bound, &targets);
    start_record.log();
    spawn_resume(&admin, &control, start_record.aside);
    let serve = |port: ReadyPort| port.serve(&resources.connections);
    let ports = ready.into_iter().map(serve).collect::<io::Result<Vec<_>>>()?;
    Ok(RunningApp {
        listen,
        admin: admin.bound,
        metrics,
        ports,
        clock,
        drainer,
        access_log,
        drain,
        control,
        folder,
        admin_thread: admin,
    })
}

/// Builds the ports with their schedulers and upstreams; they serve nothing yet.
fn build_ports(policy: &Policy, bound: Vec<BoundPort>, clock: Clock, seed: u64) -> Result<BuiltPorts, BoxError> {
    let metrics = bound.first().map(|port| port.metrics.clone()).ok_or("no port is configured")?;
    let weight_max = batch_weight_max(policy);
    let model = bound.iter().find_map(|port| port.target.host_demand(weight_max)).unwrap_or_default();
    let resources = ProcessResources::load(policy, &model, clock, metrics)?;
    let mut scopes = ScopeRegistry::default();
    let ids = scopes.register(policy)?;
    publish_limits(&resources.metrics, None, policy);
    let access_log = open_access_log(policy)?;
    let inputs =
        PortInputs { policy, scopes: &scopes, ids: &ids, resources: &resources, access_log: access_log.as_ref(), seed };
    let ready = bound.into_iter().map(|port| port.build(inputs)).collect::<Result<Vec<_>, _>>()?;
    Ok(BuiltPorts { resources, scopes, access_log, ready })
}

/// Starts the task that drains the ports.
fn start_drainer(times: DrainTimes, ports: &[ReadyPort], resources: &ProcessResources) -> DrainHandle {
    let parts = DrainedParts {
        clock: resources.clock,
        ports: ports.iter().map(|port| (port.reach.clone(), port.listener_control())).collect(),
        connections: resources.connections.clone(),
        metrics: resources.metrics.clone(),
    };
    DrainHandle::start(times, parts)
}

/// If the process starts in pass-through mode after crashes, spawns a task that ends this mode.
fn spawn_resume(admin: &AdminServer, control: &SettingsHandle, aside: Option<Duration>) {
    let Some(left) = aside else { return };
    let control = control.clone();
    admin.spawn(async move {
        tokio::time::sleep(left).await;
        control.resume().await;
    });
}

/// Logs the bound addresses, by which the number of a port that was configured as 0 is found. It is
/// the first line of the log, unless a model is loaded.
fn log_listening(listen: &[SocketAddr], admin: &AdminAddresses, upstreams: &[String]) {
    let listen: Vec<String> = listen.iter().map(ToString::to_string).collect();
    let or_off = |address: Option<SocketAddr>| address.map_or("off".to_owned(), |address| address.to_string());
    tracing::info!(
        ?listen,
        metrics = or_off(admin.metrics),
        admin = or_off(admin.local),
        upstream = upstreams.join(", "),
        version = env!("CARGO_PKG_VERSION"),
        "listening"
    );
}

/// Opens the access log, unless its share is 0.
fn open_access_log(policy: &Policy) -> io::Result<Option<AccessLog>> {
    let share = policy.proxy.log.access.ppm();
    if share == 0 {
        return Ok(None);
    }
    Ok(Some(AccessLog::new(LossyWriter::start("access-log", io::stdout())?, share)))
}
