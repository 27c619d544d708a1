//! The composition root: builds a running proxy from a policy. Used by `proxy`, `demo`, the tests
//! and the benchmarks.

mod certs;
mod control;
mod drain;
mod drain_state;
mod port;
mod report;
mod routes;
mod scopes;
mod decisions;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::json;

use self::certs::TlsCertificates;
pub use self::control::{AppliedSettings, SettingsHandle, SettingsRefusal};
use self::control::{CRASH_GUARD_SOURCE, CrashPassthrough};
use self::drain::DrainHandle;
use self::drain_state::DrainTimes;
pub(super) use self::port::PortHandle;
use self::port::{BoundPort, ReadyPort, RunningPort, SharedParts as Shared};
use self::scopes::ScopeRegistry;
use super::state_dir::StateDir;
use super::state_dir::crash_guard::StartRecord;
use crate::access_log::AccessLog;
use crate::admin::{self, AdminAddresses, AdminServer};
use crate::api::v1alpha1 as api;
use crate::batching::{DispatchPolicy as CorePolicy, LateTreatment, Limits, PriorityClass, ScopeId, ScopeLimits};
use crate::clock::Clock;
use crate::config::{self, Capture, Policy, ProcessLimits};
use crate::error::BoxError;
use crate::memory::{BufferBudget, ControlGroup, watch_pressure};
use crate::protocol::{RouteProtocol, Routes, SharedHeaderRules};
use crate::proxy::{self, ClientLimits, Connections, Http2Limits, RouteSettings, RoutingTable};
use crate::scheduler;
use crate::socket;
use crate::telemetry::log::LevelHandle;
use crate::telemetry::{LossyWriter, Metrics};
use crate::upstream::{self, Upstream, UpstreamPermits, UpstreamTarget};

/// Value of the metrics label `policy` for a policy that comes from a file.
const METRICS_POLICY: &str = "local";

/// Minimum time for the final drain if a `preStop` hook has used up the drain limit: a moment for
/// the calls that are still in flight.
const FINAL_DRAIN_MIN: Duration = Duration::from_secs(1);

/// Final part of the drain limit, in which the remaining calls are answered with the error
/// `draining`: enough to write some thousand small responses. It is at most a quarter of the limit.
const FINAL_RESPONSES_MAX: Duration = Duration::from_millis(500);

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

/// A running proxy.
#[derive(Debug)]
pub struct RunningApp {
    /// Bound downstream addresses, port by port.
    pub listen: Vec<SocketAddr>,
    /// Bound addresses of the admin ports.
    pub admin: AdminAddresses,
    /// Metrics of the process. With several ports, those of the first port; all ports share its
    /// registry.
    pub metrics: Arc<Metrics>,
    ports: Vec<RunningPort>,
    clock: Clock,
    drainer: DrainHandle,
    access_log: Option<AccessLog>,
    drain: config::DrainConfig,
    control: SettingsHandle,
    folder: Option<StateDir>,
    admin_thread: AdminServer,
}

/// Starts a proxy. Must be called inside a tokio runtime.
///
/// # Errors
/// If no upstream is named, certificates are unusable, a port cannot be bound, or the system
/// provides no thread or timer.
pub fn start(starting: AppOptions) -> Result<RunningApp, BoxError> {
    let (places, folder) = places(&starting.policy)?;
    let begun = folder.as_ref().map(StateDir::record_start).unwrap_or_default();
    // A process that fails to start has not crashed: remove its run record.
    build_app(starting, places, folder.clone(), &begun).inspect_err(|_| {
        if let Some(folder) = folder {
            folder.record_end();
        }
    })
}

fn build_app(
    starting: AppOptions,
    places: Vec<BoundPort>,
    folder: Option<StateDir>,
    begun: &StartRecord,
) -> Result<RunningApp, BoxError> {
    let AppOptions { policy: wanted, level, seed, drain_token } = starting;
    let clock = Clock::start();
    // After repeated crashes everything passes through for a while, whatever the policy contains.
    let aside = begun.aside.map(|left| CrashPassthrough { until: clock.now().after(left) });
    let policy = if aside.is_some() { wanted.clone().into_passthrough(CRASH_GUARD_SOURCE) } else { wanted.clone() };
    let buffers = BufferBudget::new(policy.proxy.process.buffered_bytes_max, clock);
    let certs = TlsCertificates::load(&policy.proxy)?;
    let metrics = places.first().map(|place| place.metrics.clone()).ok_or("no port is configured")?;
    let ProcessLimits { connections_max, buffered_bytes_max } = policy.proxy.process;
    let connections = Connections::new(connections_max, buffered_bytes_max, clock, metrics.clone());
    let upstream_places = UpstreamPermits::new(connections_max, clock, buffers.clone());
    let mut scopes = ScopeRegistry::default();
    let ids = scopes.take(&policy)?;
    control::publish(&metrics, None, &policy);
    let access_log = access_log(&policy)?;
    let shared = Shared {
        policy: &policy,
        scopes: &scopes,
        ids: &ids,
        clock,
        buffers: &buffers,
        upstream_places: &upstream_places,
        access_log: access_log.as_ref(),
        seed,
        certs: &certs,
    };
    let targets: Vec<UpstreamTarget> = places.iter().map(|place| place.target.clone()).collect();
    let made = places.into_iter().map(|place| place.make(shared)).collect::<Result<Vec<_>, _>>()?;
    let listen: Vec<SocketAddr> = made.iter().flat_map(|port| port.listen.iter().copied()).collect();
    let reaches: Vec<PortHandle> = made.iter().map(|port| port.reach.clone()).collect();
    let drain = policy.proxy.drain.clone();
    let admin_ports = AdminAddresses { metrics: policy.proxy.metrics, local: policy.proxy.admin };
    let parts = control::Parts { ports: reaches.clone(), metrics: metrics.clone(), clock };
    let control = SettingsHandle::new(parts, policy, scopes, aside.map(|aside| (aside, wanted)));
    let listening: Vec<_> = made.iter().map(ReadyPort::host).collect();
    let drainer = {
        let parts = drain::Parts {
            clock,
            ports: reaches.iter().cloned().zip(listening).collect(),
            connections: connections.clone(),
            metrics: metrics.clone(),
        };
        DrainHandle::start(DrainTimes { delay: drain.delay, limit: drain.limit }, parts)
    };
    let ready = {
        let (drainer, control) = (drainer.clone(), control.clone());
        Arc::new(move || drainer.wants_calls() && control.is_ready())
    };
    let state = admin::AdminState {
        metrics: metrics.clone(),
        buffers: buffers.clone(),
        level,
        clock,
        started: clock.now(),
        ready,
        config: shown(&control, SettingsHandle::config),
        reload: shown(&control, SettingsHandle::reload),
        connects: connects(&reaches),
        scheduler: learned(reaches, control.clone()),
        drain: prestop_handlers(&drainer, drain_token),
    };
    let admin = admin::start(admin_ports, state)?;
    for watched in certs.watch(&metrics) {
        admin.spawn(watched);
    }
    if let Some(group) = ControlGroup::find(Path::new("/")) {
        let (buffers, connections) = (buffers.clone(), connections.clone());
        admin.spawn(watch_pressure(group, move |level| {
            buffers.set_pressure(level);
            connections.set_pressure(level);
        }));
    }
    log_listening(&listen, &admin.bound, &targets);
    begun.log();
    if let Some(left) = begun.aside {
        let control = control.clone();
        admin.spawn(async move {
            tokio::time::sleep(left).await;
            control.resume().await;
        });
    }
    let ports = made.into_iter().map(|port| port.serve(&connections)).collect::<io::Result<Vec<_>>>()?;
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

/// Binds every port and opens the state folder, if one is configured. All ports are bound before
/// any of them is served.
fn places(policy: &Policy) -> Result<(Vec<BoundPort>, Option<StateDir>), BoxError> {
    let bind =
        |addresses: &[SocketAddr]| addresses.iter().map(|address| bind(*address)).collect::<io::Result<Vec<_>>>();
    let captures = &policy.proxy.captures;
    let state = policy.proxy.state.clone();
    if captures.is_empty() {
        let target = target(policy).ok_or(
            "GRP1102: no upstream: set the model server with --upstream URL, or with proxy.upstream in the policy",
        )?;
        let folder = state.map(|path| StateDir::new(path, target.to_string()));
        let metrics = Arc::new(Metrics::new(METRICS_POLICY));
        let sockets = bind(&policy.proxy.listen)?;
        return Ok((vec![BoundPort { capture: None, target, sockets, metrics, folder: folder.clone() }], folder));
    }
    let numbers: Vec<u16> = captures.iter().map(|capture| capture.port).collect();
    let folder = state.map(|path| StateDir::new(path, String::new()));
    let place = |(capture, metrics): (&Capture, Arc<Metrics>)| {
        let target = UpstreamTarget::Loopback(capture.application);
        let folder = folder.as_ref().map(|folder| folder.of_port(capture.port, target.to_string(), captures.len()));
        Ok(BoundPort { sockets: bind(&capture.listen)?, capture: Some(capture.clone()), target, metrics, folder })
    };
    let places = captures.iter().zip(Metrics::of_ports(METRICS_POLICY, &numbers)).map(place);
    Ok((places.collect::<io::Result<_>>()?, folder))
}

// === impl RunningApp ===

impl RunningApp {
    /// Drains the proxy: holds no call any longer and answers every accepted call, within the drain
    /// limit. Returns `true` if all calls were answered in time. The others receive the error
    /// `draining`, unless a part of their response has already been sent.
    ///
    /// Calls are accepted for another `drain.delay`, in which clients and load balancers learn to
    /// use other endpoints. Only then does readiness fail, and no more calls are accepted. If a
    /// `preStop` hook has started the drain earlier, both times count from the hook.
    pub async fn drain(&mut self) -> bool {
        // From here on the shutdown is deliberate: a kill because of slowness does not count as a
        // crash.
        let ended = self.folder.clone().map(|folder| tokio::task::spawn_blocking(move || folder.record_end()));
        let now = self.clock.now();
        let since = self.drainer.drain().await.unwrap_or(now);
        let limit = since.after(self.drain.limit).since(now).max(FINAL_DRAIN_MIN.min(self.drain.limit));
        let leaving = self.drainer.clone();
        let ports = &mut self.ports;
        let end = async {
            leaving.leaving().await;
            join_all(ports.iter_mut().map(|port| port.listening.stop())).await;
            // The `preStop` hook of the application is answered before this process ends.
            leaving.flush().await;
        };
        // The last moment is reserved for calls that would otherwise end without a response: they
        // receive an error that contains the reason.
        let last = FINAL_RESPONSES_MAX.min(limit / 4);
        let whole = tokio::time::timeout(limit - last, end).await.is_ok();
        if !whole {
            self.ports.iter().for_each(|port| port.reach.proxy.cut());
            // Connections that have not taken their response by then are closed.
            let stopped = join_all(self.ports.iter_mut().map(|port| port.listening.stop()));
            tokio::time::timeout(last, stopped).await.ok();
        }
        for keeper in self.ports.iter().filter_map(|port| port.keeper.as_ref()) {
            keeper.save().await;
        }
        if let Some(ended) = ended {
            // The task logs its own errors.
            ended.await.ok();
        }
        if let Some(log) = &self.access_log {
            log.flush(Duration::from_secs(1));
        }
        whole
    }

    /// Returns what the scheduler has learned, with several ports that of the first one, or `None`
    /// if the scheduler has stopped.
    pub async fn learned(&self) -> Option<crate::batching::BatcherReport> {
        self.ports.first()?.reach.scheduler.report().await
    }

    /// Returns the state folder, if one is configured.
    pub(super) fn state_folder(&self) -> Option<StateDir> {
        self.folder.clone()
    }

    /// Spawns a background task on the thread of the admin ports. It runs as long as the proxy
    /// does.
    pub(super) fn beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.admin_thread.spawn(work);
    }

    /// Returns the handle that applies new settings.
    #[must_use]
    pub fn control(&self) -> SettingsHandle {
        self.control.clone()
    }

    /// Resolves when a scheduler has failed permanently.
    pub async fn failed(&self) {
        futures_util::future::select_all(self.ports.iter().map(|port| Box::pin(port.scheduler.failed()))).await;
    }
}

/// Logs the bound addresses as the first line, so that port 0 is usable.
fn log_listening(listen: &[SocketAddr], admin: &AdminAddresses, upstreams: &[UpstreamTarget]) {
    let listen: Vec<String> = listen.iter().map(ToString::to_string).collect();
    let upstream: Vec<String> = upstreams.iter().map(ToString::to_string).collect();
    let or_off = |address: Option<SocketAddr>| address.map_or("off".to_owned(), |address| address.to_string());
    tracing::info!(
        ?listen,
        metrics = or_off(admin.metrics),
        admin = or_off(admin.local),
        upstream = upstream.join(", "),
        version = env!("CARGO_PKG_VERSION"),
        "listening"
    );
}

/// Builds the handlers of the containers' `preStop` hooks.
fn prestop_handlers(drainer: &DrainHandle, token: Option<String>) -> admin::DrainHooks {
    let (flush, drain, stage) = (drainer.clone(), drainer.clone(), drainer.clone());
    admin::DrainHooks {
        token,
        flush: Arc::new(move || {
            let flush = flush.clone();
            async move { flush.flush().await }.boxed()
        }),
        drain: Arc::new(move || {
            let drain = drain.clone();
            async move { drain.drain().await.is_some() }.boxed()
        }),
        stage: Arc::new(move || stage.stage()),
    }
}

/// Builds the handler that tests whether the application accepts connections at a captured port.
fn connects(ports: &[PortHandle]) -> admin::ConnectTest {
    let captured = ports.iter().filter_map(|port| Some((port.capture.as_ref()?.port, port.upstream.clone())));
    let ports: BTreeMap<u16, Upstream> = captured.collect();
    Arc::new(move |number| {
        let upstream = ports.get(&number).cloned();
        async move { Some(upstream?.accepts().await) }.boxed()
    })
}

/// Builds an admin page that reads the current state on each request.
fn shown(control: &SettingsHandle, what: fn(&SettingsHandle) -> serde_json::Value) -> admin::JsonView {
    let control = control.clone();
    Arc::new(move || what(&control))
}

/// Builds the page `/api/scheduler`, which on each request reads what each scheduler has learned
/// and the proxy's outcome counts. Several ports are listed one by one.
fn learned(ports: Vec<PortHandle>, control: SettingsHandle) -> admin::SchedulerReport {
    Arc::new(move || {
        let (ports, control) = (ports.clone(), control.clone());
        Box::pin(async move {
            if let [port] = &ports[..] {
                return scheduler_page_of_port(port, &control).await;
            }
            let all = join_all(ports.iter().map(|port| scheduler_page_of_port(port, &control))).await;
            Some(json!({"ports": all.into_iter().collect::<Option<Vec<_>>>()?}))
        })
    })
}

async fn scheduler_page_of_port(port: &PortHandle, control: &SettingsHandle) -> Option<serde_json::Value> {
    let mut learned = port.learned().await?;
    learned["crash_guard"] = control.crash_passthrough_json();
    Some(learned)
}

fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    socket::bind(address).map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}

fn access_log(policy: &Policy) -> io::Result<Option<AccessLog>> {
    let share = policy.proxy.log.access.ppm();
    if share == 0 {
        return Ok(None);
    }
    Ok(Some(AccessLog::new(LossyWriter::start("access-log", io::stdout())?, share)))
}

/// Builds the upstream of a policy without a proxy in front of it.
pub(super) fn build_upstream(
    policy: &Policy,
    clock: Clock,
    buffers: BufferBudget,
    metrics: Arc<Metrics>,
) -> Result<Upstream, String> {
    let target = target(policy).ok_or("no upstream is configured")?;
    let certs = TlsCertificates::load(&policy.proxy).map_err(|error| error.to_string())?;
    let places = UpstreamPermits::new(policy.proxy.process.connections_max, clock, buffers.clone());
    Ok(Upstream::new(upstream_config(policy, target, &certs), clock, (buffers, places), metrics))
}

/// Builds the route table of a policy, independently of any port.
pub(super) fn recognised(policy: &Policy) -> Result<RoutingTable, String> {
    let ids = ScopeRegistry::default().take(policy)?;
    table(policy, &ids, None, None)
}

/// Returns the address of a policy's model server.
fn target(policy: &Policy) -> Option<UpstreamTarget> {
    Some(match policy.proxy.upstream.as_ref()? {
        config::UpstreamAddress::Http { host, port, tls, .. } => {
            UpstreamTarget::Tcp { host: host.clone(), port: *port, tls: *tls }
        }
        config::UpstreamAddress::Unix(path) => UpstreamTarget::Unix(path.clone()),
    })
}

fn upstream_config(policy: &Policy, target: UpstreamTarget, certs: &TlsCertificates) -> upstream::UpstreamConfig {
    let config::UpstreamConnection { connect_timeout, body_idle_timeout, answer_bytes_max, http2, reuse } =
        policy.proxy.connection.clone();
    upstream::UpstreamConfig {
        target,
        tls: certs.servers.clone(),
        connect_timeout,
        body_idle_timeout,
        answer_bytes_max,
        pass_through_idle_timeout: policy.proxy.client.pass_through_idle_timeout,
        http2: match http2 {
            api::Http2Mode::Always => upstream::Http2::Always,
            api::Http2Mode::Never => upstream::Http2::Never,
            api::Http2Mode::Auto => upstream::Http2::Auto,
        },
        reuse: reuse == api::ConnectionReuse::Always,
        isolate_above: policy.failure.isolate_above,
        replay_permille: policy.failure.replay_budget.ppm() / 1000,
    }
}

/// Converts the treatment of late calls to the core's type.
const fn to_core_late(late: api::LateHandling) -> LateTreatment {
    match late {
        api::LateHandling::Serve => LateTreatment::Serve,
        api::LateHandling::Refuse => LateTreatment::Refuse,
    }
}

/// Converts the limits of one route, and its treatment of late calls, to the core's type.
fn to_scope_limits(limits: &config::Limits, late: api::LateHandling) -> ScopeLimits {
    ScopeLimits {
        batch_items_max: limits.batch_items_max,
        batch_weight_max: limits.batch_weight_max,
        batch_bytes_max: limits.batch_bytes_max as u64,
        queue_delay_max: limits.queue_delay_max,
        queue_items_max: limits.queue_items_max,
        queue_bytes_max: limits.queue_bytes_max as u64,
        slots_max: limits.slots_max.unwrap_or(u32::MAX),
        late: to_core_late(late),
    }
}

/// Converts the limits of a policy to the core's type. `scopes` has every route since the start of
/// the process.
fn core_limits(policy: &Policy, scopes: &[ScopeLimits]) -> Limits {
    let config::SchedulingConfig { items, delay, slots, preset, policy: kind } = policy.scheduling;
    let adaptive = kind == config::SchedulingPolicy::Adaptive;
    // Without a limit in the policy, the limit of the process applies, as for unbatched calls.
    let wall = policy.limits.slots_max.unwrap_or(scheduler::COMPLETIONS_MAX / 2);
    // Share of the SLO that a call may be held beside an idle upstream to obtain a larger batch.
    let hold_permille = match preset {
        api::Preset::Latency => 0,
        api::Preset::Balanced => 100,
        api::Preset::Throughput => 400,
    };
    Limits {
        policy: match kind {
            config::SchedulingPolicy::Adaptive => CorePolicy::Adaptive { hold_permille },
            config::SchedulingPolicy::WorkConserving => CorePolicy::WorkConserving,
            config::SchedulingPolicy::Window => CorePolicy::Window { items, delay },
            config::SchedulingPolicy::Static => CorePolicy::Static { items, delay },
        },
        slots: if adaptive { wall } else { slots.min(wall) },
        stand_aside_max: policy.limits.stand_aside_max.min(scheduler::COMPLETIONS_MAX / 2),
        queue_items_max: policy.limits.queue_items_max,
        queue_bytes_max: policy.limits.queue_bytes_max as u64,
        scopes: scopes.to_vec(),
        priorities: policy.priority.classes.iter().map(|class| self::class(class, policy.slo)).collect(),
        quarantine: policy.failure.quarantine,
    }
}

/// Converts a priority class to the core's type.
fn class(class: &config::PriorityClass, slo: Option<Duration>) -> PriorityClass {
    let own = class.slo.or(slo).map(|slo| slo * PriorityClass::AGES_SLOS);
    PriorityClass {
        weight: class.weight,
        strict: class.strict,
        filler: class.filler,
        ages: own.unwrap_or(PriorityClass::AGES_WITHOUT_SLO),
    }
}

/// Name, source and value of the limits that are published as gauges.
fn published_limits(policy: &Policy) -> [(&'static str, &'static str, f64); 7] {
    let source = |key: &str| match policy.effective().iter().find(|setting| setting.path == key) {
        Some(setting) if setting.source.to_string() == "default" => "default",
        _ => "policy",
    };
    let limits = &policy.limits;
    // Exact up to 2^32; no limit here is larger and odd.
    let real = |number: u64| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    [
        ("batch_items_max", source("limits.batchItemsMax"), f64::from(limits.batch_items_max)),
        ("queue_items_max", source("limits.queueItemsMax"), f64::from(limits.queue_items_max)),
        ("queue_delay_max_seconds", source("limits.queueDelayMax"), limits.queue_delay_max.as_secs_f64()),
        ("slots_max", source("limits.slotsMax"), limits.slots_max.map_or(f64::INFINITY, f64::from)),
        ("batch_weight_max", source("limits.batchWeightMax"), limits.batch_weight_max.map_or(f64::INFINITY, real)),
        ("batch_bytes_max", source("limits.batchBytesMax"), real(limits.batch_bytes_max as u64)),
        ("stand_aside_max", source("limits.standAsideMax"), f64::from(limits.stand_aside_max)),
    ]
}

/// Builds the route table of a port. `scopes` are those of the policy's routes in order, followed
/// by that of the default route.
fn table(
    policy: &Policy,
    scopes: &[ScopeId],
    capture: Option<&Capture>,
    earlier: Option<&RoutingTable>,
) -> Result<RoutingTable, String> {
    let holds = |route: &&config::Route| route.applies_to(capture);
    let routes = || policy.routes.iter().filter(holds);
    let rules = routes().map(|route| routes::written(policy, route)).collect::<Result<Vec<_>, String>>()?;
    let scope = |index: usize| scopes.get(index).copied().unwrap_or(ScopeId(u16::MAX));
    let settings = |name: &str, index: Option<usize>, (slo, late), timeout, mode, item_bytes_max| RouteSettings {
        name: name.to_owned(),
        index: index.and_then(|index| u16::try_from(index).ok()),
        scope: scope(index.unwrap_or(policy.routes.len())),
        slo,
        late: to_core_late(late),
        timeout,
        mode: match mode {
            config::Mode::Batch => proxy::RouteMode::Batch,
            config::Mode::Observe => proxy::RouteMode::Observe,
            config::Mode::Passthrough => proxy::RouteMode::Passthrough,
        },
        item_bytes_max,
        durations: None,
    };
    let written = policy.routes.iter().enumerate().filter(|(_, route)| holds(route)).map(|(index, route)| {
        let item_bytes_max = policy.limits.overridden(&route.limits).item_bytes_max;
        settings(&route.path, Some(index), (route.slo, route.late), route.timeout, route.mode, item_bytes_max)
    });
    let promise = (policy.slo, policy.late);
    let default = settings("default", None, promise, None, policy.mode, policy.limits.item_bytes_max);
    let settings = written.chain([default]).collect();
    // If all routes of the policy are for other ports, this port has no default route and relays
    // everything.
    let relays = rules.is_empty() && !policy.routes.is_empty();
    let default = if relays { routes::none(policy) } else { routes::default(policy) };
    let common = SharedHeaderRules {
        tenant_header: policy.tenant_header.clone(),
        deadline_headers: policy.deadline.headers.clone(),
        priority_header: policy.priority.header.clone(),
    };
    let named = |class: &config::PriorityClass| proxy::PriorityClass {
        name: class.name.clone(),
        slo: class.slo,
        ended: earlier.map(|table| table.priorities.ended(&class.name)).unwrap_or_default(),
    };
    Ok(RoutingTable {
        routes: Routes::after(earlier.map(|table| &table.routes), rules, default, common),
        settings,
        relays,
        names_protocol: routes().any(|route| {
            route.mode != config::Mode::Passthrough
                && !matches!(route.protocol, RouteProtocol::Auto | RouteProtocol::PassThrough)
        }),
        shift_permille: policy.shift_permille,
        deadline_headers: policy.deadline.headers.clone(),
        tenant_header: policy.tenant_header.clone(),
        priorities: proxy::PriorityClasses {
            header: policy.priority.header.clone(),
            classes: policy.priority.classes.iter().map(named).collect(),
        },
        tenant_weights: proxy::TenantWeights {
            header: policy.tenant_header.clone(),
            weights: policy.tenant_weights.clone(),
        },
    })
}

fn proxy_config(policy: &Policy, certs: &TlsCertificates) -> proxy::ProxyConfig {
    let client = &policy.proxy.client;
    let http2 = &client.http2;
    proxy::ProxyConfig {
        client: ClientLimits {
            head_bytes_max: client.head_bytes_max,
            headers_max: client.headers_max,
            head_timeout: client.head_timeout,
            body_idle_timeout: client.body_idle_timeout,
            body_timeout: client.body_timeout,
            pass_through_idle_timeout: client.pass_through_idle_timeout,
            keep_alive_timeout: client.keep_alive_timeout,
            write_timeout: client.write_timeout,
            requests_per_connection_max: client.requests_per_connection_max.into(),
            http2: Http2Limits {
                streams_max: http2.streams_max,
                stream_window: http2.stream_window,
                connection_window: http2.connection_window,
                ping_interval: http2.ping_interval,
                ping_timeout: http2.ping_timeout,
                resets_max: http2.resets_max,
                age_max: http2.age_max,
            },
        },
        captured: !policy.proxy.captures.is_empty(),
        tls: certs.callers.clone().map(|callers| Arc::new(proxy::TlsTermination::new(callers))),
        answer_bytes_max: policy.proxy.connection.answer_bytes_max,
        answer_idle_timeout: policy.proxy.connection.body_idle_timeout,
    }
}
