//! Ports of a pod that may be captured, and allocation of port numbers for the sidecar.

use std::collections::BTreeSet;

use serde_json::Value;

use super::access::{at, list, number, text};
use super::apply::RENAMED_PREFIX;
use super::{SkipReason, SkippedPod, dialled, referrers};
use crate::api::v1alpha1::PortRef;

/// Containers of other proxies. Capturing their ports would break their scraping and their health
/// checks.
const PROXIES: [&str; 9] = [
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

/// Ports of Istio's proxy, which no container declares before Istio's webhook has run (istio.io,
/// "Ports used by Istio").
const ISTIO: [u16; 11] = [15000, 15001, 15002, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090];

/// Maximum number of captured ports per sidecar, equal to that of the proxy (`--capture`).
pub(super) const CAPTURED_MAX: usize = 64;

/// First port number tried for the listener of a captured port.
const LISTEN_FIRST: u16 = 15080;
/// Preferred port of `/metrics`.
const METRICS: u16 = 9190;
/// Preferred port of `/api`.
const ADMIN: u16 = 9191;

/// A port that may be captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortCandidate {
    /// Name of the application's container.
    pub(super) container: String,
    pub(super) name: Option<String>,
    pub(super) number: u16,
    /// Port of the node that leads directly to this port.
    pub(super) host_port: Option<u16>,
}

/// Port numbers of the sidecar's listeners.
#[derive(Debug, Clone)]
pub(super) struct PortAllocator {
    taken: BTreeSet<u16>,
    pub(super) metrics: u16,
    pub(super) admin: u16,
}

/// Returns the application's containers: all except those of other proxies.
pub(super) fn applications(pod: &Value) -> impl Iterator<Item = &Value> {
    let own = |container: &&Value| text(container, &["name"]).is_some_and(|name| !PROXIES.contains(&name));
    list(pod, &["spec", "containers"]).iter().filter(own)
}

/// Returns the containers without capturable ports: other proxies and init containers.
pub(super) fn others(pod: &Value) -> impl Iterator<Item = &Value> {
    proxy_containers(pod).chain(list(pod, &["spec", "initContainers"]))
}

/// Returns the containers of other proxies that are plain containers.
fn proxy_containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let proxy = |container: &&Value| text(container, &["name"]).is_some_and(|name| PROXIES.contains(&name));
    list(pod, &["spec", "containers"]).iter().filter(proxy)
}

/// Returns the ports that may be captured: those that the user lists, otherwise all that are
/// declared or that a Service leads to. A port that no container declares is attributed to the
/// container `teller`, the one of the `app-listen` override, otherwise to the first container.
///
/// # Errors
/// The pod has no port to capture, or too many.
pub(super) fn candidates(
    pod: &Value,
    objects: &[Value],
    wanted: &[PortRef],
    teller: Option<&str>,
    warnings: &mut Vec<String>,
) -> Result<Vec<PortCandidate>, SkippedPod> {
    let declared: Vec<PortCandidate> = applications(pod).flat_map(of_container).collect();
    let first = teller.or_else(|| applications(pod).find_map(|container| text(container, &["name"])));
    let theirs: BTreeSet<u16> = others(pod).flat_map(of_container).map(|port| port.number).collect();
    let undeclared = |number: u16| {
        let container = first.filter(|_| !theirs.contains(&number))?;
        Some(PortCandidate { container: container.to_owned(), name: None, number, host_port: None })
    };
    let mut chosen = if wanted.is_empty() {
        let mut all = declared.clone();
        for number in referrers::numbers(pod, objects, all.is_empty()) {
            if !all.iter().any(|port| port.number == number) {
                all.extend(undeclared(number));
            }
        }
        if all.is_empty() {
            return Err(no_port_skip(pod));
        }
        all
    } else {
        let chosen = select_listed(&declared, wanted, undeclared, warnings);
        if chosen.is_empty() {
            return Err(SkipReason::NoTcpPort.because("none of the requested ports exists"));
        }
        chosen
    };
    // The order is that of the declarations, in which a Service resolves a port name.
    let place = |port: &PortCandidate| declared.iter().position(|declared| declared == port).unwrap_or(usize::MAX);
    chosen.sort_by_key(place);
    let numbers: BTreeSet<u16> = chosen.iter().map(|port| port.number).collect();
    if numbers.len() > CAPTURED_MAX {
        return Err(SkipReason::TooLarge.because(format!(
            "it has {} ports, but a sidecar captures at most {CAPTURED_MAX}: list the ports to capture in groupage.dev/ports",
            numbers.len()
        )));
    }
    Ok(chosen)
}

fn select_listed(
    declared: &[PortCandidate],
    wanted: &[PortRef],
    undeclared: impl Fn(u16) -> Option<PortCandidate>,
    warnings: &mut Vec<String>,
) -> Vec<PortCandidate> {
    let mut chosen: Vec<PortCandidate> = Vec::new();
    for port in wanted {
        let mut found: Vec<PortCandidate> = declared.iter().filter(|candidate| is(candidate, port)).cloned().collect();
        match port {
            PortRef::Number(number) if found.is_empty() => {
                found.extend(undeclared(*number));
                if found.is_empty() {
                    warnings.push(format!(
                        "port {number} belongs to another proxy or an init container: it is not captured"
                    ));
                }
            }
            PortRef::Name(name) if found.is_empty() => {
                warnings.push(format!("no container declares a TCP port named {name}: it is not captured"));
            }
            _ => {}
        }
        found.retain(|port| !chosen.contains(port));
        chosen.extend(found);
    }
    chosen
}

fn is(candidate: &PortCandidate, port: &PortRef) -> bool {
    match port {
        PortRef::Number(number) => candidate.number == *number,
        PortRef::Name(name) => candidate.name.as_ref() == Some(name),
    }
}

/// Returns `true` if the user lists this port, or lists none at all.
pub(super) fn is_wanted(candidate: &PortCandidate, wanted: &[PortRef]) -> bool {
    wanted.is_empty() || wanted.iter().any(|port| is(candidate, port))
}

/// Returns the TCP ports that a container declares.
pub(super) fn of_container(container: &Value) -> impl Iterator<Item = PortCandidate> + '_ {
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

/// Returns every TCP port that a container of the pod declares.
pub(super) fn declared(pod: &Value) -> impl Iterator<Item = PortCandidate> + '_ {
    applications(pod).chain(others(pod)).flat_map(of_container)
}

/// Returns `true` if the number is a port of Istio's proxy, to which Istio points the probes that
/// it rewrites.
pub(super) fn is_istio_port(number: u16) -> bool {
    ISTIO.contains(&number)
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

/// Returns `true` if the name has the form of a name that an injection assigns. The original name
/// is then unknown.
pub(super) fn is_given(name: &str) -> bool {
    name.strip_prefix(RENAMED_PREFIX).is_some_and(|rest| {
        rest.starts_with(|first: char| first.is_ascii_digit()) && rest.bytes().all(|b| b.is_ascii_digit() || b == b'-')
    })
}

/// Returns the reason why a port's name cannot be moved to the sidecar, or `None` if it can.
/// `native` is `true` for a native sidecar.
///
/// A Service resolves a port name to the first container that has it: plain containers before
/// native sidecars, and never init containers that terminate (`FindPort` in Kubernetes). So only
/// the first application container with the name can move it. Ports of applications can be renamed,
/// those of another proxy cannot, and such a port would be found before the sidecar's. A plain
/// sidecar is found before every native one.
pub(super) fn unmovable(pod: &Value, port: &PortCandidate, native: bool) -> Option<String> {
    let PortCandidate { container, name, number, .. } = port;
    let Some(name) = name else {
        return Some(format!("port {number} of container {container} has no name that can be moved to the sidecar"));
    };
    let has = |other: &&Value| of_container(other).any(|port| port.name.as_ref() == Some(name));
    let name_of = |container: &Value| text(container, &["name"]).unwrap_or_default().to_owned();
    let first = applications(pod).flat_map(of_container).find(|first| first.name.as_ref() == Some(name));
    if let Some(first) = first.filter(|first| (&first.container, first.number) != (container, *number)) {
        return Some(format!(
            "port name {name} resolves to port {} of container {} first, so port {number} of {container} is reachable only by number",
            first.number, first.container
        ));
    }
    if is_given(name) {
        return Some(format!(
            "port {number} of container {container} is named {name}, which is a name that an injection assigns, and its original name is not recorded"
        ));
    }
    let natives = list(pod, &["spec", "initContainers"]).iter();
    let natives = natives.filter(|own| native && text(own, &["restartPolicy"]) == Some("Always"));
    let other = proxy_containers(pod).chain(natives).find(has).map(name_of)?;
    Some(format!("container {other} also has a port named {name}, which callers would reach instead"))
}

fn no_port_skip(pod: &Value) -> SkippedPod {
    let declares = applications(pod).any(|container| !list(container, &["ports"]).is_empty());
    if declares {
        return SkipReason::UdpOnly.because("its containers declare no TCP port");
    }
    SkipReason::NoTcpPort.because(
        "its containers declare no port and no Service targets one by number: declare the port, or list it in groupage.dev/ports",
    )
}

// === impl PortAllocator ===

impl PortAllocator {
    /// Collects the port numbers in use and allocates those of `/metrics` and `/api`. `more` are
    /// captured ports that no container declares.
    ///
    /// # Errors
    /// No port number is free.
    pub(super) fn new(pod: &Value, more: &[PortCandidate]) -> Result<Self, SkippedPod> {
        let dialled = applications(pod).flat_map(dialled::by_itself);
        let known = declared(pod).map(|port| port.number).chain(more.iter().map(|port| port.number));
        let taken = known.chain(dialled).chain(ISTIO).collect();
        let mut numbers = Self { taken, metrics: 0, admin: 0 };
        numbers.metrics = numbers.free(METRICS)?;
        numbers.admin = numbers.free(ADMIN)?;
        Ok(numbers)
    }

    /// Reserves numbers that the application listens on without declaring them. `/metrics` or
    /// `/api` moves if it had one of them.
    ///
    /// # Errors
    /// No port number is free.
    pub(super) fn take(&mut self, more: impl Iterator<Item = u16>) -> Result<(), SkippedPod> {
        let own = [self.metrics, self.admin];
        let more: Vec<u16> = more.filter(|number| self.taken.insert(*number) || own.contains(number)).collect();
        if more.contains(&self.metrics) {
            self.metrics = self.free(METRICS)?;
        }
        if more.contains(&self.admin) {
            self.admin = self.free(ADMIN)?;
        }
        Ok(())
    }

    /// Allocates the next number for a captured port.
    ///
    /// # Errors
    /// No port number is free.
    pub(super) fn listen(&mut self) -> Result<u16, SkippedPod> {
        self.free(LISTEN_FIRST)
    }

    /// Allocates the first free number from `first` on.
    fn free(&mut self, first: u16) -> Result<u16, SkippedPod> {
        let number = (first..=u16::MAX).find(|number| !self.taken.contains(number));
        let number = number.ok_or_else(|| {
            SkipReason::TooLarge
                .because(format!("every port from {first} on is in use: no port is left for the sidecar"))
        })?;
        self.taken.insert(number);
        Ok(number)
    }
}
