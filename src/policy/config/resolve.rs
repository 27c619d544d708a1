//! Resolution of the effective policy: flags over environment over file over built-in defaults,
//! with every value filled in.

mod engine;
mod sources;

use std::time::Duration;

use http::Method;

use self::sources::{apply_machine_limits, apply_overrides_and_captures, merge_file};
use super::capture;
use super::code::ConfigCode;
use super::effective::{self, Setting};
use super::env::{MachineLimits, Overrides};
use super::file::{LoadedPolicy, to_spec};
use super::finding::{ConfigErrors, Finding};
use super::policy::{
    DownstreamHttp2, DownstreamLimits, DownstreamTls, DrainConfig, FailureHandling, Limits, LimitsOverride, LogConfig,
    MergeNames, Policy, Priority, PriorityClass, ProcessConfig, ProcessLimits, Route, SchedulingConfig,
};
use super::tree::Span;
use super::upstream::{UpstreamAddress, UpstreamConnection, UpstreamTls};
use super::values::{
    MissingDefault, ValueResult, headers, narrow, pointers, require, share, size, time, to_route_protocol, word,
};
use super::{generic, text};
use crate::api::v1alpha1::{
    BatchPolicySpec, ClientSpec, LateHandling, LimitsSpec, MergeFields, Mode, OpenEnum, PortRef, PrioritySpec,
    ProxySpec, RouteSpec, SchedulingSpec, SizeText, TlsSpec, UpstreamTlsSpec,
};

/// Builds the effective policy: flags and environment over the file, the file over the defaults,
/// all limited to what the machine allows.
///
/// # Errors
///
/// Every flag or variable that is invalid, and every conflict between the sources. The file itself
/// is validated by [`load`](super::load).
pub fn build(
    loaded: Option<&LoadedPolicy>,
    overrides: &Overrides,
    machine: &MachineLimits,
) -> Result<Policy, ConfigErrors> {
    let (mut json, mut sources) = merge_file(loaded, machine);
    // Flags and environment override the file. The limits of the machine apply last, to every
    // source.
    let captures = apply_overrides_and_captures(&mut json, &mut sources, overrides)?;
    let executes_model = engine::apply_settings(&mut json, &mut sources, overrides, !captures.is_empty())?;
    apply_machine_limits(&mut json, &mut sources, machine);
    let mut settings = effective::list(&json, &sources);
    if !captures.is_empty() {
        capture::replace_listen_settings(&captures, &mut settings);
    }
    let invalid = |key: &str, message: String| {
        ConfigErrors::for_overrides(vec![Finding::new(ConfigCode::BadValue, key, Span::default(), &message)])
    };
    let spec = to_spec(&json).map_err(|error| invalid("", error))?;
    let mut policy =
        policy(&spec, settings).map_err(|MissingDefault(key)| invalid(key, format!("`{key}` has no default")))?;
    policy.proxy.captures = captures;
    if executes_model {
        engine::apply_to_routes(&mut policy);
    } else {
        policy.engine = None;
    }
    check_upstream_tls(&policy)?;
    Ok(policy)
}

/// Checks that `upstreamTls` is set only for an upstream with TLS.
fn check_upstream_tls(policy: &Policy) -> Result<(), ConfigErrors> {
    let secure = match &policy.proxy.upstream {
        Some(UpstreamAddress::Http { tls, .. }) => *tls,
        Some(UpstreamAddress::Unix(_)) => false,
        // With captured ports, or without an upstream, no plaintext upstream contradicts
        // `upstreamTls`.
        None => true,
    };
    if secure || policy.proxy.upstream_tls == UpstreamTls::default() {
        return Ok(());
    }
    let (path, at) = ("proxy.upstreamTls", Span::default());
    let message = "`proxy.upstreamTls` requires an `https://` upstream, but `proxy.upstream` is not one";
    let finding = Finding::new(ConfigCode::Excluded, path, at, message);
    Err(ConfigErrors::for_overrides(vec![
        finding.help("write `https://` in `proxy.upstream`, or leave `proxy.upstreamTls` out"),
    ]))
}

/// Converts a spec in which every value is filled in.
fn policy(spec: &BatchPolicySpec, settings: Vec<Setting>) -> ValueResult<Policy> {
    let mode = word(spec.mode.as_ref(), "mode")?;
    let target = (slo(spec.slo.as_ref())?, late(spec.slo.as_ref()).unwrap_or(LateHandling::Serve));
    let limits = require(spec.limits.as_ref(), "limits")?;
    let limits = policy_limits(limits)?;
    let failure = require(spec.failure.as_ref(), "failure")?;
    let routes =
        spec.routes.iter().flatten().map(|route| self::route(route, mode, target)).collect::<ValueResult<_>>()?;
    let deadline = require(spec.deadline.as_ref(), "deadline")?;
    Ok(Policy {
        mode,
        slo: target.0,
        late: target.1,
        routes,
        scheduling: scheduling(require(spec.scheduling.as_ref(), "scheduling")?, limits.slots_max)?,
        limits,
        shift_permille: 0,
        deadline_headers: headers(deadline.headers.as_ref())?,
        tenant_header: match spec.tenants.as_ref().and_then(|tenants| tenants.header.as_deref()) {
            Some(name) => Some(text::parse_header_name(name).ok_or(MissingDefault("tenants.header"))?),
            None => None,
        },
        tenant_weights: spec.tenants.as_ref().and_then(|tenants| tenants.weights.clone()).unwrap_or_default(),
        priority: priority(require(spec.priority.as_ref(), "priority")?)?,
        failure: FailureHandling {
            isolate_above: require(failure.isolate_above, "failure.isolateAbove")?,
            replay_budget: share(failure.replay_budget.as_ref(), "failure.replayBudget")?,
            quarantine: time(failure.quarantine.as_ref(), "failure.quarantine")?,
        },
        verify: share(spec.verify.as_ref(), "verify")?,
        engine: engine::resolve(spec.engine.as_ref())?,
        proxy: proxy(require(spec.proxy.as_ref(), "proxy")?)?,
        settings,
    })
}

fn priority(spec: &PrioritySpec) -> ValueResult<Priority> {
    let class = |class: &crate::api::v1alpha1::PriorityClass| {
        Ok(PriorityClass {
            name: require(class.name.clone(), "priority.classes[].name")?,
            weight: require(class.weight, "priority.classes[].weight")?,
            slo: class
                .latency_p99
                .as_ref()
                .map(|text| time(Some(text), "priority.classes[].latencyP99"))
                .transpose()?,
            strict: require(class.strict, "priority.classes[].strict")?,
            filler: require(class.filler, "priority.classes[].filler")?,
        })
    };
    let header = |name: &str| text::parse_header_name(name).ok_or(MissingDefault("priority.header"));
    Ok(Priority {
        header: spec.header.as_deref().map(header).transpose()?,
        classes: spec.classes.iter().flatten().map(class).collect::<ValueResult<_>>()?,
    })
}

fn route(
    spec: &RouteSpec,
    policy_mode: Mode,
    (policy_slo, policy_late): (Option<Duration>, LateHandling),
) -> ValueResult<Route> {
    let own = spec.mode.as_ref().map(|mode| word(Some(mode), "routes[].mode")).transpose()?;
    let limits = spec.limits.as_ref().map(limits_override).transpose()?.unwrap_or_default();
    let method = require(spec.method.as_ref(), "routes[].method")?;
    Ok(Route {
        path: require(spec.path.clone(), "routes[].path")?,
        method: Method::from_bytes(method.as_bytes()).map_err(|_| MissingDefault("routes[].method"))?,
        ports: spec.ports.iter().flatten().map(port).collect(),
        protocol: to_route_protocol(word(spec.protocol.as_ref(), "routes[].protocol")?),
        // Mode `Passthrough` of the policy is the kill switch: it must work whatever the routes
        // contain.
        mode: if policy_mode == Mode::Passthrough { policy_mode } else { own.unwrap_or(policy_mode) },
        slo: slo(spec.slo.as_ref())?.or(policy_slo),
        late: late(spec.slo.as_ref()).unwrap_or(policy_late),
        limits,
        merge_on: names(spec.merge_on.as_ref())?,
        merge_over: names(spec.merge_over.as_ref())?,
        respond_with: match &spec.respond_with {
            Some(parts) => MergeNames {
                headers: headers(parts.headers.as_ref())?,
                fields: pointers(parts.fields.as_ref(), "respondWith.fields")?,
            },
            None => MergeNames::default(),
        },
        merge: word(spec.merge.as_ref(), "routes[].merge")?,
        idempotent: word(spec.idempotent.as_ref(), "routes[].idempotent")?,
        timeout: spec.timeout.as_ref().map(|text| time(Some(text), "routes[].timeout")).transpose()?,
        tokenizer: spec.tokenizer.as_ref().map(Into::into),
        generic: spec.generic.as_ref().map(generic::to_spec).transpose()?,
    })
}

/// Converts a port of a route. A port name contains a letter, so a value that parses as a number is
/// a number, with or without quotes.
fn port(spec: &PortRef) -> PortRef {
    match spec {
        PortRef::Name(name) => name.parse().map_or_else(|_| spec.clone(), PortRef::Number),
        PortRef::Number(_) => spec.clone(),
    }
}

fn names(fields: Option<&MergeFields>) -> ValueResult<MergeNames> {
    let Some(fields) = fields else { return Ok(MergeNames::default()) };
    Ok(MergeNames { headers: headers(fields.headers.as_ref())?, fields: pointers(fields.fields.as_ref(), "fields")? })
}

/// Converts the limits of the policy, all of which but the optional ones have a value.
fn policy_limits(spec: &LimitsSpec) -> ValueResult<Limits> {
    let written = limits_override(spec)?;
    Ok(Limits {
        batch_items_max: require(written.batch_items_max, "limits.batchItemsMax")?,
        batch_weight_max: written.batch_weight_max,
        batch_bytes_max: require(written.batch_bytes_max, "limits.batchBytesMax")?,
        item_bytes_max: require(written.item_bytes_max, "limits.itemBytesMax")?,
        item_nesting_max: require(written.item_nesting_max, "limits.itemNestingMax")?,
        queue_delay_max: require(written.queue_delay_max, "limits.queueDelayMax")?,
        queue_items_max: require(written.queue_items_max, "limits.queueItemsMax")?,
        queue_bytes_max: require(written.queue_bytes_max, "limits.queueBytesMax")?,
        slots_max: written.slots_max,
        passthrough_calls_max: require(spec.stand_aside_max, "limits.standAsideMax")?,
    })
}

/// Converts limits of which each may be absent, such as those of a route.
fn limits_override(spec: &LimitsSpec) -> ValueResult<LimitsOverride> {
    let bytes = |text: &Option<SizeText>, key| text.as_ref().map(|text| size(Some(text), key)).transpose();
    Ok(LimitsOverride {
        batch_items_max: spec.batch_items_max,
        batch_weight_max: spec.batch_weight_max,
        batch_bytes_max: bytes(&spec.batch_bytes_max, "limits.batchBytesMax")?,
        item_bytes_max: bytes(&spec.item_bytes_max, "limits.itemBytesMax")?,
        item_nesting_max: spec.item_nesting_max.map(|depth| narrow(depth, "limits.itemNestingMax")).transpose()?,
        queue_delay_max: spec
            .queue_delay_max
            .as_ref()
            .map(|text| time(Some(text), "limits.queueDelayMax"))
            .transpose()?,
        queue_items_max: spec.queue_items_max,
        queue_bytes_max: bytes(&spec.queue_bytes_max, "limits.queueBytesMax")?,
        slots_max: spec.slots_max,
    })
}

fn scheduling(spec: &SchedulingSpec, slots_max: Option<u32>) -> ValueResult<SchedulingConfig> {
    Ok(SchedulingConfig {
        policy: word(spec.policy.as_ref(), "scheduling.policy")?,
        preset: word(spec.preset.as_ref(), "scheduling.preset")?,
        order: word(spec.order.as_ref(), "scheduling.order")?,
        length_buckets: {
            let mut bounds = require(spec.length_buckets.clone(), "scheduling.lengthBuckets")?;
            bounds.sort_unstable();
            bounds.dedup();
            bounds
        },
        slots: require(spec.slots, "scheduling.slots")?.min(slots_max.unwrap_or(u32::MAX)),
        items: require(spec.items, "scheduling.items")?,
        delay: time(spec.delay.as_ref(), "scheduling.delay")?,
    })
}

fn proxy(spec: &ProxySpec) -> ValueResult<ProcessConfig> {
    let listen = require(spec.listen.as_ref(), "proxy.listen")?;
    let process = require(spec.process.as_ref(), "proxy.process")?;
    let connection = require(spec.connection.as_ref(), "proxy.connection")?;
    let drain = require(spec.drain.as_ref(), "proxy.drain")?;
    let admin = require(spec.admin.as_ref(), "proxy.admin")?;
    let log = require(spec.log.as_ref(), "proxy.log")?;
    let address_or_off = |address: &Option<String>, key: &'static str| match require(address.as_deref(), key)? {
        "off" => Ok(None),
        address => text::parse_address(address).map(Some).ok_or(MissingDefault(key)),
    };
    Ok(ProcessConfig {
        listen: listen
            .iter()
            .map(|one| text::parse_address(one).ok_or(MissingDefault("proxy.listen")))
            .collect::<ValueResult<_>>()?,
        upstream: spec
            .upstream
            .as_deref()
            .map(|upstream| text::parse_upstream(upstream).map_err(|_| MissingDefault("proxy.upstream")))
            .transpose()?,
        tls: spec.tls.as_ref().map(tls).transpose()?,
        upstream_tls: spec.upstream_tls.as_ref().map(upstream_tls).unwrap_or_default(),
        captures: Vec::new(),
        client: client(require(spec.client.as_ref(), "proxy.client")?)?,
        process: ProcessLimits {
            connections_max: narrow(require(process.connections_max, "proxy.process")?, "proxy.process")?,
            buffered_bytes_max: size(process.buffered_bytes_max.as_ref(), "proxy.process.bufferedBytesMax")?,
        },
        connection: UpstreamConnection {
            connect_timeout: time(connection.connect_timeout.as_ref(), "proxy.connection.connectTimeout")?,
            body_idle_timeout: time(connection.body_idle_timeout.as_ref(), "proxy.connection.bodyIdleTimeout")?,
            answer_bytes_max: size(connection.answer_bytes_max.as_ref(), "proxy.connection.answerBytesMax")?,
            http2: word(connection.http2.as_ref(), "proxy.connection.http2")?,
            reuse: word(connection.reuse.as_ref(), "proxy.connection.reuse")?,
        },
        drain: DrainConfig {
            delay: time(drain.delay.as_ref(), "proxy.drain.delay")?,
            limit: time(drain.limit.as_ref(), "proxy.drain.limit")?,
        },
        metrics: address_or_off(&admin.metrics, "proxy.admin.metrics")?,
        admin: address_or_off(&admin.local, "proxy.admin.local")?,
        log: LogConfig {
            format: word(log.format.as_ref(), "proxy.log.format")?,
            level: require(log.level.clone(), "proxy.log.level")?,
            access: share(log.access.as_ref(), "proxy.log.access")?,
        },
        state: spec.state.as_ref().map(std::path::PathBuf::from),
    })
}

fn tls(spec: &TlsSpec) -> ValueResult<DownstreamTls> {
    Ok(DownstreamTls {
        cert_file: require(spec.cert_file.as_ref(), "proxy.tls.certFile")?.into(),
        key_file: require(spec.key_file.as_ref(), "proxy.tls.keyFile")?.into(),
        client_ca_file: spec.client_ca_file.as_ref().map(Into::into),
    })
}

fn upstream_tls(spec: &UpstreamTlsSpec) -> UpstreamTls {
    UpstreamTls {
        ca_file: spec.ca_file.as_ref().map(Into::into),
        server_name: spec.server_name.clone(),
        // The rules reject a certificate without its key and a key without its certificate.
        pair: spec.cert_file.as_ref().zip(spec.key_file.as_ref()).map(|(cert, key)| (cert.into(), key.into())),
    }
}

fn client(spec: &ClientSpec) -> ValueResult<DownstreamLimits> {
    let http2 = require(spec.http2.as_ref(), "proxy.client.http2")?;
    let window =
        |text: &Option<SizeText>, key| u32::try_from(size(text.as_ref(), key)?).map_err(|_| MissingDefault(key));
    Ok(DownstreamLimits {
        head_bytes_max: size(spec.head_bytes_max.as_ref(), "proxy.client.headBytesMax")?,
        headers_max: narrow(require(spec.headers_max, "proxy.client.headersMax")?, "proxy.client.headersMax")?,
        head_timeout: time(spec.head_timeout.as_ref(), "proxy.client.headTimeout")?,
        body_idle_timeout: time(spec.body_idle_timeout.as_ref(), "proxy.client.bodyIdleTimeout")?,
        body_timeout: time(spec.body_timeout.as_ref(), "proxy.client.bodyTimeout")?,
        pass_through_idle_timeout: time(
            spec.pass_through_idle_timeout.as_ref(),
            "proxy.client.passThroughIdleTimeout",
        )?,
        keep_alive_timeout: time(spec.keep_alive_timeout.as_ref(), "proxy.client.keepAliveTimeout")?,
        write_timeout: time(spec.write_timeout.as_ref(), "proxy.client.writeTimeout")?,
        requests_per_connection_max: require(
            spec.requests_per_connection_max,
            "proxy.client.requestsPerConnectionMax",
        )?,
        http2: DownstreamHttp2 {
            streams_max: require(http2.streams_max, "proxy.client.http2.streamsMax")?,
            stream_window: window(&http2.stream_window, "proxy.client.http2.streamWindow")?,
            connection_window: window(&http2.connection_window, "proxy.client.http2.connectionWindow")?,
            ping_interval: time(http2.ping_interval.as_ref(), "proxy.client.http2.pingInterval")?,
            ping_timeout: time(http2.ping_timeout.as_ref(), "proxy.client.http2.pingTimeout")?,
            resets_max: narrow(
                require(http2.resets_max, "proxy.client.http2.resetsMax")?,
                "proxy.client.http2.resetsMax",
            )?,
            age_max: time(http2.age_max.as_ref(), "proxy.client.http2.ageMax")?,
        },
    })
}

fn slo(spec: Option<&crate::api::v1alpha1::Slo>) -> ValueResult<Option<Duration>> {
    spec.and_then(|slo| slo.latency_p99.as_ref()).map(|text| time(Some(text), "slo.latencyP99")).transpose()
}

/// Returns the treatment of late calls, if set. A word of a later version counts as absent.
fn late(spec: Option<&crate::api::v1alpha1::Slo>) -> Option<LateHandling> {
    spec.and_then(|slo| slo.late.as_ref()).and_then(OpenEnum::as_known)
}
