//! Composition: a policy becomes running parts. Used by `proxy` and `demo`, by tests and benches.

mod control;
mod report;
mod routes;
mod scopes;
mod why;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

pub use self::control::{Applied, Control, Refusal};
use self::scopes::Scopes;
use super::keep::{Folder, Keeper};
use crate::accesslog::AccessLog;
use crate::admin::{self, Admin, Ports};
use crate::api::v1alpha1 as api;
use crate::batching::{Limits, Policy as CorePolicy, Priority, ScopeId, ScopeLimits};
use crate::buffer::BufferBudget;
use crate::clock::Clock;
use crate::config::{self, Policy};
use crate::error::BoxError;
use crate::protocol::{Common, Named, Routes};
use crate::proxy::{self, ClientLimits, Http2Limits, Listening, Proxy, RouteSettings, Table};
use crate::scheduler::{self, Scheduler};
use crate::telemetry::log::LevelHandle;
use crate::telemetry::{LossyWriter, Metrics};
use crate::upstream::{self, Target, Upstream};

/// `routes[].timeout` of the schema, where no route is written.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(30);

/// The end of the drain limit, in which those who still wait are told so: time to write some thousand small answers. At most a quarter of the limit.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What a proxy is started with.
#[derive(Debug)]
pub struct Starting {
    /// The policy in effect; it names an upstream.
    pub policy: Policy,
    /// Changes the log's level.
    pub level: LevelHandle,
    /// Draws `Retry-After`.
    pub seed: u64,
}

/// A running proxy.
#[derive(Debug)]
pub struct Running {
    /// The data ports.
    pub listen: Vec<SocketAddr>,
    /// The admin ports.
    pub admin: Ports,
    /// Counters.
    pub metrics: Arc<Metrics>,
    proxy: Arc<Proxy>,
    listening: Listening,
    scheduler: Scheduler,
    draining: Arc<AtomicBool>,
    access_log: Option<AccessLog>,
    drain: config::Drain,
    control: Control,
    keeper: Option<Keeper>,
    _admin: Admin,
}

/// Starts a proxy. Call it inside a tokio runtime.
///
/// # Errors
/// When no upstream is named, a port cannot be bound, or the system gives no thread or timer.
pub fn start(starting: Starting) -> Result<Running, BoxError> {
    let Starting { policy, level, seed } = starting;
    let target = match &policy.proxy.upstream {
        Some(config::Upstream::Http { host, port, .. }) => Target::Tcp { host: host.clone(), port: *port },
        Some(config::Upstream::Unix(path)) => Target::Unix(path.clone()),
        None => {
            return Err(
                "GRP1102: no upstream: name the model server with --upstream URL, or with proxy.upstream in the policy"
                    .into(),
            );
        }
    };
    let clock = Clock::start();
    let metrics = Arc::new(Metrics::new("local"));
    let buffers = BufferBudget::new(policy.proxy.process.buffered_bytes_max);
    let ports = policy.proxy.listen.iter().map(|address| bind(*address)).collect::<io::Result<Vec<_>>>()?;
    let listen = ports.iter().map(tokio::net::TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;

    let upstream = Upstream::new(upstream_config(&policy, target.clone()), clock, buffers.clone(), metrics.clone());
    let mut scopes = Scopes::default();
    let ids = scopes.take(&policy)?;
    control::publish(&metrics, None, &policy);
    let folder = policy.proxy.state.clone().map(|path| Folder::new(path, target.to_string()));
    let (kept, found) = folder.as_ref().map(Folder::learned).unwrap_or_default();
    let learned = folder.is_some().then(|| Arc::new(Notify::new()));
    let limits = core_limits(&policy, scopes.limits());
    let scheduler_config = scheduler::Config { limits, seed, kept, learned: learned.clone() };
    let scheduler = Scheduler::start(scheduler_config, clock, upstream.backend(), metrics.clone())?;
    let access_log = access_log(&policy)?;
    let proxy = Arc::new(Proxy::new(
        proxy_config(&policy),
        table(&policy, &ids, None)?,
        proxy::Parts {
            clock,
            scheduler: scheduler.handle.clone(),
            backend: upstream.backend(),
            forward: upstream.forward(),
            buffers: buffers.clone(),
            metrics: metrics.clone(),
            access_log: access_log.clone(),
        },
    ));
    let parts = control::Parts {
        proxy: proxy.clone(),
        scheduler: scheduler.handle.clone(),
        upstream: upstream.clone(),
        metrics: metrics.clone(),
        clock,
    };
    let control = Control::new(parts, policy.clone(), scopes);
    let draining = Arc::new(AtomicBool::new(false));
    let ready = {
        let (draining, upstream) = (draining.clone(), upstream.clone());
        Arc::new(move || !draining.load(Ordering::Relaxed) && upstream.is_ready())
    };
    let state = admin::State {
        metrics: metrics.clone(),
        buffers,
        level,
        clock,
        started: clock.now(),
        ready,
        config: shown(&control, Control::config),
        reload: shown(&control, Control::reload),
        scheduler: self::learned(scheduler.handle.clone(), proxy.clone()),
    };
    let admin = admin::start(Ports { metrics: policy.proxy.metrics, local: policy.proxy.admin }, state)?;
    announce(&listen, &admin.bound, &target);
    let keeper = folder
        .zip(learned)
        .map(|(folder, learned)| Keeper::start(folder, found, learned, scheduler.handle.clone(), upstream.identity()));
    let listening = proxy::serve(&proxy, ports);
    upstream.watch();
    Ok(Running {
        listen,
        admin: admin.bound,
        metrics,
        proxy,
        listening,
        scheduler,
        draining,
        access_log,
        drain: policy.proxy.drain,
        control,
        keeper,
        _admin: admin,
    })
}

// === impl Running ===

impl Running {
    /// Ends: nothing waits any more, everything accepted is answered, within the drain limit. Returns whether all was answered in time; whoever
    /// was not is told `draining`, as far as he has not got part of an answer.
    ///
    /// Calls are accepted for `drain.delay` more, in which those who send them learn to go elsewhere; only after it the process is not ready, and then it
    /// accepts no more.
    pub async fn drain(&mut self) -> bool {
        let limit = self.drain.limit;
        let end = async {
            self.scheduler.handle.drain().await;
            tokio::time::sleep(self.drain.delay).await;
            self.draining.store(true, Ordering::Relaxed);
            self.listening.stop().await;
        };
        // The last moment is for those who would go without an answer: they get one that says why.
        let last = LAST_WORDS.min(limit / 4);
        let whole = tokio::time::timeout(limit - last, end).await.is_ok();
        if !whole {
            self.proxy.cut();
            // Who has not taken it by then is cut off.
            tokio::time::timeout(last, self.listening.stop()).await.ok();
        }
        if let Some(keeper) = &self.keeper {
            keeper.save().await;
        }
        if let Some(log) = &self.access_log {
            log.flush(Duration::from_secs(1));
        }
        whole
    }

    /// What the scheduler has learned so far; `None` where it has ended.
    pub async fn learned(&self) -> Option<crate::batching::Report> {
        self.scheduler.handle.report().await
    }

    /// Where the settings in force are kept, if anywhere.
    pub(super) fn state_folder(&self) -> Option<Folder> {
        self.keeper.as_ref().map(Keeper::folder)
    }

    /// Changes the settings.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Resolves when the scheduler cannot be kept running.
    pub async fn failed(&self) {
        self.scheduler.failed().await;
    }
}

/// The first log line names the bound addresses, so that port 0 can be used.
fn announce(listen: &[SocketAddr], admin: &Ports, upstream: &Target) {
    let listen: Vec<String> = listen.iter().map(ToString::to_string).collect();
    let or_off = |address: Option<SocketAddr>| address.map_or("off".to_owned(), |address| address.to_string());
    tracing::info!(
        ?listen,
        metrics = or_off(admin.metrics),
        admin = or_off(admin.local),
        %upstream,
        version = env!("CARGO_PKG_VERSION"),
        "listening"
    );
}

/// Asks what is in force, each time.
fn shown(control: &Control, what: fn(&Control) -> serde_json::Value) -> admin::Shown {
    let control = control.clone();
    Arc::new(move || what(&control))
}

/// Asks the scheduler what it learned, and the proxy how calls ended, each time.
fn learned(handle: scheduler::Handle, proxy: Arc<Proxy>) -> admin::Learned {
    Arc::new(move || {
        let (handle, proxy) = (handle.clone(), proxy.clone());
        Box::pin(async move {
            let mut learned = report::json(&handle.report().await?);
            why::add(&mut learned, &handle.why().await?);
            learned["priorities"] = why::priorities(&proxy.table().priorities);
            Some(learned)
        })
    })
}

fn bind(address: SocketAddr) -> io::Result<tokio::net::TcpListener> {
    proxy::bind(address).map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}

fn access_log(policy: &Policy) -> io::Result<Option<AccessLog>> {
    let share = policy.proxy.log.access.ppm();
    if share == 0 {
        return Ok(None);
    }
    Ok(Some(AccessLog::new(LossyWriter::start("access-log", io::stdout())?, share)))
}

fn upstream_config(policy: &Policy, target: Target) -> upstream::Config {
    let config::Connection { connect_timeout, body_idle_timeout, answer_bytes_max, http2, reuse } =
        policy.proxy.connection.clone();
    upstream::Config {
        target,
        connect_timeout,
        body_idle_timeout,
        answer_bytes_max,
        pass_through_idle_timeout: policy.proxy.client.pass_through_idle_timeout,
        http2: match http2 {
            api::Http2::Always => upstream::Http2::Always,
            api::Http2::Never => upstream::Http2::Never,
            api::Http2::Auto => upstream::Http2::Auto,
        },
        reuse: reuse == api::Reuse::Always,
        isolate_above: policy.failure.isolate_above,
        replay_permille: policy.failure.replay_budget.ppm() / 1000,
    }
}

/// The limits of one route.
fn core_scope(limits: &config::Limits) -> ScopeLimits {
    ScopeLimits {
        batch_items_max: limits.batch_items_max,
        batch_weight_max: limits.batch_weight_max,
        batch_bytes_max: limits.batch_bytes_max as u64,
        queue_delay_max: limits.queue_delay_max,
        queue_items_max: limits.queue_items_max,
        queue_bytes_max: limits.queue_bytes_max as u64,
        slots_max: limits.slots_max,
    }
}

/// The walls, with the scopes of every route that there was.
fn core_limits(policy: &Policy, scopes: &[ScopeLimits]) -> Limits {
    let config::Scheduling { items, delay, slots, preset, policy: kind } = policy.scheduling;
    let adaptive = kind == config::SchedulingPolicy::Adaptive;
    // `scheduling.md` §2.8.
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
        slots: if adaptive { policy.limits.slots_max } else { slots.min(policy.limits.slots_max) },
        stand_aside_max: policy.limits.stand_aside_max.min(scheduler::SLOTS_BOUND / 2),
        queue_items_max: policy.limits.queue_items_max,
        queue_bytes_max: policy.limits.queue_bytes_max as u64,
        scopes: scopes.to_vec(),
        priorities: policy.priority.classes.iter().map(|class| self::class(class, policy.slo)).collect(),
        quarantine: policy.failure.quarantine,
    }
}

/// A class of calls as the core knows it.
fn class(class: &config::PriorityClass, slo: Option<Duration>) -> Priority {
    let own = class.slo.or(slo).map(|slo| slo * Priority::AGES_SLOS);
    Priority {
        weight: class.weight,
        strict: class.strict,
        filler: class.filler,
        ages: own.unwrap_or(Priority::AGES_WITHOUT_SLO),
    }
}

/// Name, source and value of the limits that are shown as gauges.
fn published_limits(policy: &Policy) -> [(&'static str, &'static str, f64); 7] {
    let source = |key: &str| match policy.effective().iter().find(|setting| setting.path == key) {
        Some(setting) if setting.source.to_string() == "default" => "default",
        _ => "policy",
    };
    let limits = &policy.limits;
    // Exact to 2^32; no limit here is larger and odd.
    let real = |number: u64| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    [
        ("batch_items_max", source("limits.batchItemsMax"), f64::from(limits.batch_items_max)),
        ("queue_items_max", source("limits.queueItemsMax"), f64::from(limits.queue_items_max)),
        ("queue_delay_max_seconds", source("limits.queueDelayMax"), limits.queue_delay_max.as_secs_f64()),
        ("slots_max", source("limits.slotsMax"), f64::from(limits.slots_max)),
        ("batch_weight_max", source("limits.batchWeightMax"), limits.batch_weight_max.map_or(f64::INFINITY, real)),
        ("batch_bytes_max", source("limits.batchBytesMax"), real(limits.batch_bytes_max as u64)),
        ("stand_aside_max", source("limits.standAsideMax"), f64::from(limits.stand_aside_max)),
    ]
}

/// What is recognised; `scopes` are those of the routes in order, the default route's last.
fn table(policy: &Policy, scopes: &[ScopeId], earlier: Option<&Table>) -> Result<Table, String> {
    let rules = policy.routes.iter().map(|route| routes::written(policy, route)).collect::<Result<Vec<_>, String>>()?;
    let settings = |name: &str, index: usize, slo, timeout, mode, item_bytes_max| RouteSettings {
        name: name.to_owned(),
        scope: scopes.get(index).copied().unwrap_or(ScopeId(u16::MAX)),
        slo,
        timeout,
        passthrough: mode == config::Mode::Passthrough,
        item_bytes_max,
    };
    let written = policy.routes.iter().enumerate().map(|(index, route)| {
        let item_bytes_max = policy.limits.overridden(&route.limits).item_bytes_max;
        settings(&route.path, index, route.slo, route.timeout, route.mode, item_bytes_max)
    });
    let default =
        settings("default", policy.routes.len(), policy.slo, ROUTE_TIMEOUT, policy.mode, policy.limits.item_bytes_max);
    let settings = written.chain([default]).collect();
    let common = Common {
        tenant_header: policy.tenant_header.clone(),
        deadline_headers: policy.deadline.headers.clone(),
        priority_header: policy.priority.header.clone(),
    };
    let named = |class: &config::PriorityClass| proxy::PriorityClass {
        name: class.name.clone(),
        slo: class.slo,
        ended: earlier.map(|table| table.priorities.ended(&class.name)).unwrap_or_default(),
    };
    Ok(Table {
        routes: Routes::after(earlier.map(|table| &table.routes), rules, routes::default(policy), common),
        settings,
        passthrough: policy.mode == config::Mode::Passthrough,
        names_protocol: policy.routes.iter().any(|route| {
            route.mode != config::Mode::Passthrough && !matches!(route.protocol, Named::Auto | Named::PassThrough)
        }),
        deadline_headers: policy.deadline.headers.clone(),
        tenant_header: policy.tenant_header.clone(),
        priorities: proxy::Priorities {
            header: policy.priority.header.clone(),
            classes: policy.priority.classes.iter().map(named).collect(),
        },
        tenant_weights: proxy::TenantWeights {
            header: policy.tenant_header.clone(),
            weights: policy.tenant_weights.clone(),
        },
    })
}

fn proxy_config(policy: &Policy) -> proxy::Config {
    let client = &policy.proxy.client;
    let http2 = &client.http2;
    proxy::Config {
        client: ClientLimits {
            head_bytes_max: client.head_bytes_max,
            headers_max: client.headers_max,
            head_timeout: client.head_timeout,
            body_idle_timeout: client.body_idle_timeout,
            body_timeout: client.body_timeout,
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
        connections_max: policy.proxy.process.connections_max,
        answer_bytes_max: policy.proxy.connection.answer_bytes_max,
        answer_idle_timeout: policy.proxy.connection.body_idle_timeout,
    }
}
