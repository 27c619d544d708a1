//! Binding of the ports and of the state folder. All ports are bound before any of them is served.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use super::super::state_dir::StateDir;
use super::engine::EngineModel;
use super::model_server::ServerTarget;
use super::port::BoundPort;
use super::transport::upstream_target;
use crate::config::{Capture, Policy};
use crate::error::BoxError;
use crate::socket;
use crate::telemetry::Metrics;
use crate::upstream::UpstreamTarget;

/// Value of the metrics label `policy` for a policy that comes from a file.
const METRICS_POLICY: &str = "local";

/// Binds every port and opens the state folder, if one is configured. An engine keeps compiled
/// kernels in `kernel_folder`.
pub(super) fn bind_ports(
    policy: &Policy,
    kernel_folder: Option<&Path>,
) -> Result<(Vec<BoundPort>, Option<StateDir>), BoxError> {
    if policy.proxy.captures.is_empty() {
        let (port, folder) = bind_single_port(policy, kernel_folder)?;
        return Ok((vec![port], folder));
    }
    Ok(bind_captured_ports(policy)?)
}

/// Binds the addresses of a proxy that captures no port.
fn bind_single_port(policy: &Policy, kernel_folder: Option<&Path>) -> Result<(BoundPort, Option<StateDir>), BoxError> {
    let target = server_target(policy, kernel_folder)?;
    let folder = policy.proxy.state.clone().map(|path| StateDir::new(path, target.to_string()));
    let metrics = Arc::new(Metrics::new(METRICS_POLICY));
    let sockets = bind_all(&policy.proxy.listen)?;
    Ok((BoundPort { capture: None, target, sockets, metrics, folder: folder.clone() }, folder))
}

/// Returns the model server of a policy. A model is opened before any port is bound.
fn server_target(policy: &Policy, kernel_folder: Option<&Path>) -> Result<ServerTarget, BoxError> {
    if let Some(engine) = &policy.engine {
        return Ok(ServerTarget::Engine(EngineModel::open(engine, kernel_folder)?));
    }
    let target = upstream_target(policy).ok_or(
        "GRP1102: no upstream: set the model server with --upstream URL, or with proxy.upstream in the policy",
    )?;
    Ok(ServerTarget::Upstream(target))
}

/// Binds one port for each captured port of the pod.
fn bind_captured_ports(policy: &Policy) -> io::Result<(Vec<BoundPort>, Option<StateDir>)> {
    let captures = &policy.proxy.captures;
    let numbers: Vec<u16> = captures.iter().map(|capture| capture.port).collect();
    let folder = policy.proxy.state.clone().map(|path| StateDir::new(path, String::new()));
    let bind_port = |(capture, metrics): (&Capture, Arc<Metrics>)| {
        let target = UpstreamTarget::Loopback(capture.application);
        let folder = folder.as_ref().map(|folder| folder.of_port(capture.port, target.to_string(), captures.len()));
        let (sockets, target) = (bind_all(&capture.listen)?, ServerTarget::Upstream(target));
        Ok(BoundPort { sockets, capture: Some(capture.clone()), target, metrics, folder })
    };
    let ports = captures.iter().zip(Metrics::of_ports(METRICS_POLICY, &numbers)).map(bind_port);
    let ports = ports.collect::<io::Result<_>>()?;
    Ok((ports, folder))
}

fn bind_all(addresses: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
    addresses.iter().map(|address| bind(*address)).collect()
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    socket::bind(address).map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}
