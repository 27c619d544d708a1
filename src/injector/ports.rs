//! Containers of a pod with ports that may be captured, the ports that they declare, and the port
//! names that can be moved to the sidecar.
//!
//! Capture by name moves the name of a port from the application to the sidecar, so that a Service
//! which refers to the port by name leads to the sidecar.

use serde_json::Value;

use super::access::{at, list, number, text};
use super::names::is_assigned_name;

/// Names of the containers of other proxies. If their ports were captured, the scraping of their
/// metrics and their health checks would fail.
const PROXY_CONTAINERS: [&str; 9] = [
    "istio-proxy",
    "linkerd-proxy",
    "queue-proxy",
    "kuma-sidecar",
    "consul-dataplane",
    "daprd",
    "envoy-sidecar",
    "cloud-sql-proxy",
    "vault-agent",
];

/// Ports of Istio's proxy (istio.io, "Ports used by Istio"). They are listed here because Istio's
/// webhook may run later, so that no container of the pod declares them yet.
pub(super) const ISTIO_PORTS: [u16; 11] = [15000, 15001, 15002, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090];

/// Maximum number of captured ports per sidecar, equal to that of the proxy (`--capture`).
pub(super) const CAPTURED_MAX: usize = 64;

/// A port that may be captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortCandidate {
    /// Name of the application's container.
    pub(super) container: String,
    pub(super) name: Option<String>,
    pub(super) number: u16,
    /// The `hostPort`, by which clients reach this port through the node and past the sidecar.
    pub(super) host_port: Option<u16>,
}

/// Returns the application's containers: all except those of other proxies.
pub(super) fn application_containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let is_application =
        |container: &&Value| text(container, &["name"]).is_some_and(|name| !PROXY_CONTAINERS.contains(&name));
    list(pod, &["spec", "containers"]).iter().filter(is_application)
}

/// Returns the names of the application's containers.
pub(super) fn application_names(pod: &Value) -> Vec<String> {
    application_containers(pod).filter_map(|container| text(container, &["name"])).map(str::to_owned).collect()
}

/// Returns the containers without capturable ports: those of other proxies, and init containers.
pub(super) fn uncapturable_containers(pod: &Value) -> impl Iterator<Item = &Value> {
    proxy_containers(pod).chain(list(pod, &["spec", "initContainers"]))
}

/// Returns the containers of other proxies in `spec.containers`.
fn proxy_containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let is_proxy = |container: &&Value| text(container, &["name"]).is_some_and(|name| PROXY_CONTAINERS.contains(&name));
    list(pod, &["spec", "containers"]).iter().filter(is_proxy)
}

/// Returns the TCP ports that a container declares.
pub(super) fn container_ports(container: &Value) -> impl Iterator<Item = PortCandidate> + '_ {
    let name = text(container, &["name"]).unwrap_or_default();
    list(container, &["ports"]).iter().filter(|port| is_tcp(port)).filter_map(move |port| {
        Some(PortCandidate {
            container: name.to_owned(),
            name: text(port, &["name"]).filter(|name| !name.is_empty()).map(str::to_owned),
            number: number(at(port, &["containerPort"]))?,
            host_port: number(at(port, &["hostPort"])),
        })
    })
}

/// Returns every TCP port that any container of the pod declares, whether or not it may be
/// captured.
pub(super) fn declared_ports(pod: &Value) -> impl Iterator<Item = PortCandidate> + '_ {
    application_containers(pod).chain(uncapturable_containers(pod)).flat_map(container_ports)
}

/// Returns `true` for a TCP port. An absent or empty protocol is TCP: typed clients serialize an
/// unset field as an empty string, which the API server also replaces by the default.
pub(super) fn is_tcp(port: &Value) -> bool {
    matches!(text(port, &["protocol"]), None | Some("" | "TCP"))
}

/// Returns the non-TCP ports of a container with their protocols.
pub(super) fn non_tcp_ports(container: &Value) -> impl Iterator<Item = (u16, &str)> {
    let ports = list(container, &["ports"]).iter().filter(|port| !is_tcp(port));
    ports.filter_map(|port| Some((number(at(port, &["containerPort"]))?, text(port, &["protocol"])?)))
}

/// Returns the reason why the name of a port cannot be moved to the sidecar, or `None` if it can.
/// `native` is `true` if the sidecar is a native one, which is an init container with
/// `restartPolicy: Always`.
///
/// A Service resolves a port name to the first container that declares it (`FindPort` in
/// Kubernetes): first those in `spec.containers`, then native sidecars, and never init containers
/// that terminate. The name can therefore be moved only from the first application container that
/// declares it. Ports of other proxies cannot be renamed, and would be found before that of the
/// sidecar. The same holds for another native sidecar, but only if Groupage's is native too.
pub(super) fn immovable_reason(pod: &Value, port: &PortCandidate, native: bool) -> Option<String> {
    let PortCandidate { container, name, number, .. } = port;
    let Some(name) = name else {
        return Some(format!("port {number} of container {container} has no name that can be moved to the sidecar"));
    };
    let has_name = |other: &&Value| container_ports(other).any(|port| port.name.as_ref() == Some(name));
    let name_of = |container: &Value| text(container, &["name"]).unwrap_or_default().to_owned();
    let first = application_containers(pod).flat_map(container_ports).find(|first| first.name.as_ref() == Some(name));
    if let Some(first) = first.filter(|first| (&first.container, first.number) != (container, *number)) {
        return Some(format!(
            "port name {name} resolves to port {} of container {} first, so port {number} of {container} is reachable only by number",
            first.number, first.container
        ));
    }
    if is_assigned_name(name) {
        return Some(format!(
            "port {number} of container {container} is named {name}, which is a name that an injection assigns, and its original name is not recorded"
        ));
    }
    let natives = list(pod, &["spec", "initContainers"]).iter();
    let natives = natives.filter(|own| native && text(own, &["restartPolicy"]) == Some("Always"));
    let other = proxy_containers(pod).chain(natives).find(has_name).map(name_of)?;
    Some(format!("container {other} also has a port named {name}, which callers would reach instead"))
}
