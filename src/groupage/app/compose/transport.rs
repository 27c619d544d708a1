//! Converts the connection settings of a policy: those towards clients, and those towards the model
//! server.

use std::sync::Arc;

use super::certs::TlsCertificates;
use crate::api::v1alpha1 as api;
use crate::clock::Clock;
use crate::config::{self, Policy};
use crate::memory::BufferBudget;
use crate::proxy::{self, ClientLimits, Http2Limits};
use crate::telemetry::Metrics;
use crate::upstream::{self, Upstream, UpstreamPermits, UpstreamTarget};

/// Builds the upstream of a policy without a proxy in front of it.
pub(crate) fn build_upstream(
    policy: &Policy,
    clock: Clock,
    buffers: BufferBudget,
    metrics: Arc<Metrics>,
) -> Result<Upstream, String> {
    let target = upstream_target(policy).ok_or("no upstream is configured")?;
    let certs = TlsCertificates::load(&policy.proxy).map_err(|error| error.to_string())?;
    let places = UpstreamPermits::new(policy.proxy.process.connections_max, clock, buffers.clone());
    Ok(Upstream::new(upstream_config(policy, target, &certs), clock, (buffers, places), metrics))
}

/// Returns the address of a policy's model server, if it names one.
pub(super) fn upstream_target(policy: &Policy) -> Option<UpstreamTarget> {
    Some(match policy.proxy.upstream.as_ref()? {
        config::UpstreamAddress::Http { host, port, tls, .. } => {
            UpstreamTarget::Tcp { host: host.clone(), port: *port, tls: *tls }
        }
        config::UpstreamAddress::Unix(path) => UpstreamTarget::Unix(path.clone()),
    })
}

/// Converts the settings of the connections to the model server.
pub(super) fn upstream_config(
    policy: &Policy,
    target: UpstreamTarget,
    certs: &TlsCertificates,
) -> upstream::UpstreamConfig {
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
        replay_ppm: policy.failure.replay_budget.ppm(),
    }
}

/// Converts the settings of the connections of clients.
pub(super) fn proxy_config(policy: &Policy, certs: &TlsCertificates) -> proxy::ProxyConfig {
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
