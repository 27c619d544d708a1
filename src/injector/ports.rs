//! Which ports of a pod may be captured, and which numbers are free for the sidecar.

use std::collections::BTreeSet;

use serde_json::Value;

use super::access::{at, list, number, text};
use super::apply::RENAMED;
use super::{Skip, Skipped, dialled, referrers};
use crate::api::v1alpha1::Port;

/// Containers of other proxies, whose ports are theirs: capturing them breaks their scraping and their health.
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

/// Ports of Istio's proxy, declared by no container before Istio has come (istio.io, "Ports used by Istio").
const ISTIO: [u16; 11] = [15000, 15001, 15002, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090];

/// Ports that one sidecar captures; what the proxy takes (`--capture`).
pub(super) const CAPTURED_MAX: usize = 64;

/// The first number that a captured port listens on.
const LISTEN_FIRST: u16 = 15080;
/// Where `/metrics` is, if that is free.
const METRICS: u16 = 9190;
/// Where `/api` is, if that is free.
const ADMIN: u16 = 9191;

/// A port that may be captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The application's container.
    pub(super) container: String,
    pub(super) name: Option<String>,
    pub(super) number: u16,
    /// The port of the node that leads to it, past everything.
    pub(super) host_port: Option<u16>,
}

/// The numbers that the sidecar listens on.
#[derive(Debug, Clone)]
pub(super) struct Numbers {
    taken: BTreeSet<u16>,
    pub(super) metrics: u16,
    pub(super) admin: u16,
}

/// The application's containers: all but other proxies.
pub(super) fn applications(pod: &Value) -> impl Iterator<Item = &Value> {
    let own = |container: &&Value| text(container, &["name"]).is_some_and(|name| !PROXIES.contains(&name));
    list(pod, &["spec", "containers"]).iter().filter(own)
}

/// The containers whose ports are never captured: other proxies, and everything that runs before the application.
pub(super) fn others(pod: &Value) -> impl Iterator<Item = &Value> {
    proxies(pod).chain(list(pod, &["spec", "initContainers"]))
}

/// Other proxies, where they are plain containers.
fn proxies(pod: &Value) -> impl Iterator<Item = &Value> {
    let proxy = |container: &&Value| text(container, &["name"]).is_some_and(|name| PROXIES.contains(&name));
    list(pod, &["spec", "containers"]).iter().filter(proxy)
}

/// The ports that may be captured: those that the user names, else all that are declared or that a Service leads to. What nobody declares is taken to be the
/// port of the container `teller`, that of the application's knob, else of the first.
///
/// # Errors
/// There is no port to stand before.
pub(super) fn candidates(
    pod: &Value,
    objects: &[Value],
    wanted: &[Port],
    teller: Option<&str>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Candidate>, Skipped> {
    let declared: Vec<Candidate> = applications(pod).flat_map(of_container).collect();
    let first = teller.or_else(|| applications(pod).find_map(|container| text(container, &["name"])));
    let theirs: BTreeSet<u16> = others(pod).flat_map(of_container).map(|port| port.number).collect();
    let undeclared = |number: u16| {
        let container = first.filter(|_| !theirs.contains(&number))?;
        Some(Candidate { container: container.to_owned(), name: None, number, host_port: None })
    };
    let mut chosen = if wanted.is_empty() {
        let mut all = declared.clone();
        for number in referrers::numbers(pod, objects, all.is_empty()) {
            if !all.iter().any(|port| port.number == number) {
                all.extend(undeclared(number));
            }
        }
        if all.is_empty() {
            return Err(none(pod));
        }
        all
    } else {
        let chosen = asked_for(&declared, wanted, undeclared, warnings);
        if chosen.is_empty() {
            return Err(Skip::NoTcpPort.because("none of the ports that are asked for is there"));
        }
        chosen
    };
    // In the order in which they are declared, as a Service looks for a name.
    let place = |port: &Candidate| declared.iter().position(|declared| declared == port).unwrap_or(usize::MAX);
    chosen.sort_by_key(place);
    let numbers: BTreeSet<u16> = chosen.iter().map(|port| port.number).collect();
    if numbers.len() > CAPTURED_MAX {
        return Err(Skip::TooLarge.because(format!(
            "it has {} ports, and a sidecar captures {CAPTURED_MAX}: name those that matter in groupage.dev/ports",
            numbers.len()
        )));
    }
    Ok(chosen)
}

fn asked_for(
    declared: &[Candidate],
    wanted: &[Port],
    undeclared: impl Fn(u16) -> Option<Candidate>,
    warnings: &mut Vec<String>,
) -> Vec<Candidate> {
    let mut chosen: Vec<Candidate> = Vec::new();
    for port in wanted {
        let mut found: Vec<Candidate> = declared.iter().filter(|candidate| is(candidate, port)).cloned().collect();
        match port {
            Port::Number(number) if found.is_empty() => {
                found.extend(undeclared(*number));
                if found.is_empty() {
                    warnings.push(format!("port {number} belongs to another proxy: it is not captured"));
                }
            }
            Port::Name(name) if found.is_empty() => {
                warnings.push(format!("no container declares a TCP port named {name}: it is not captured"));
            }
            _ => {}
        }
        found.retain(|port| !chosen.contains(port));
        chosen.extend(found);
    }
    chosen
}

fn is(candidate: &Candidate, port: &Port) -> bool {
    match port {
        Port::Number(number) => candidate.number == *number,
        Port::Name(name) => candidate.name.as_ref() == Some(name),
    }
}

/// Whether a declared port is one of those that the user names; of all where none is named.
pub(super) fn is_wanted(candidate: &Candidate, wanted: &[Port]) -> bool {
    wanted.is_empty() || wanted.iter().any(|port| is(candidate, port))
}

/// The TCP ports that a container declares.
pub(super) fn of_container(container: &Value) -> impl Iterator<Item = Candidate> + '_ {
    let name = text(container, &["name"]).unwrap_or_default();
    list(container, &["ports"]).iter().filter(|port| is_tcp(port)).filter_map(move |port| {
        Some(Candidate {
            container: name.to_owned(),
            name: text(port, &["name"]).filter(|name| !name.is_empty()).map(str::to_owned),
            number: number(at(port, &["containerPort"]))?,
            host_port: number(at(port, &["hostPort"])),
        })
    })
}

/// Every TCP port that a container of the pod declares.
pub(super) fn declared(pod: &Value) -> impl Iterator<Item = Candidate> + '_ {
    applications(pod).chain(others(pod)).flat_map(of_container)
}

/// Whether a number is one of Istio's proxy, to which it leads probes that it has rewritten.
pub(super) fn is_meshs(number: u16) -> bool {
    ISTIO.contains(&number)
}

/// Absent means TCP, and so does an empty text: a typed client's zero, for which the API server writes the default too.
pub(super) fn is_tcp(port: &Value) -> bool {
    matches!(text(port, &["protocol"]), None | Some("" | "TCP"))
}

/// The ports of a container that are not TCP, with their protocols.
pub(super) fn not_tcp(container: &Value) -> impl Iterator<Item = (u16, &str)> {
    let ports = list(container, &["ports"]).iter().filter(|port| !is_tcp(port));
    ports.filter_map(|port| Some((number(at(port, &["containerPort"]))?, text(port, &["protocol"])?)))
}

/// Whether a name is one that an injection gives: what it stood for is not known here.
pub(super) fn is_given(name: &str) -> bool {
    name.strip_prefix(RENAMED).is_some_and(|rest| {
        rest.starts_with(|first: char| first.is_ascii_digit()) && rest.bytes().all(|b| b.is_ascii_digit() || b == b'-')
    })
}

/// Why the name of a port cannot be moved to the sidecar, if it cannot; `native`: the sidecar is a native one.
///
/// A Service finds the first container of the pod that has the name, the containers before the native sidecars, and never looks at init containers that end
/// (`FindPort` in Kubernetes). So it is the first application's to move; every application's port can be renamed, another proxy's cannot, and it would be found
/// before the sidecar. A plain sidecar is found before every native one.
pub(super) fn unmovable(pod: &Value, port: &Candidate, native: bool) -> Option<String> {
    let Candidate { container, name, number, .. } = port;
    let Some(name) = name else {
        return Some(format!("port {number} of container {container} has no name that could be moved"));
    };
    let has = |other: &&Value| of_container(other).any(|port| port.name.as_ref() == Some(name));
    let name_of = |container: &Value| text(container, &["name"]).unwrap_or_default().to_owned();
    let first = applications(pod).flat_map(of_container).find(|first| first.name.as_ref() == Some(name));
    if let Some(first) = first.filter(|first| (&first.container, first.number) != (container, *number)) {
        return Some(format!(
            "port name {name} leads to port {} of container {} first, and port {number} of {container} is reached by its number alone",
            first.number, first.container
        ));
    }
    if is_given(name) {
        return Some(format!(
            "port {number} of container {container} is named {name}, as an injection names ports, and no record says what it was called"
        ));
    }
    let natives = list(pod, &["spec", "initContainers"]).iter();
    let natives = natives.filter(|own| native && text(own, &["restartPolicy"]) == Some("Always"));
    let other = proxies(pod).chain(natives).find(has).map(name_of)?;
    Some(format!("container {other} has a port named {name} too, which callers would reach instead"))
}

fn none(pod: &Value) -> Skipped {
    let declares = applications(pod).any(|container| !list(container, &["ports"]).is_empty());
    if declares {
        return Skip::UdpOnly.because("its containers declare no TCP port");
    }
    Skip::NoTcpPort.because(
        "its containers declare no port and no Service leads to it: declare one, or name it in groupage.dev/ports",
    )
}

// === impl Numbers ===

impl Numbers {
    /// Looks what is taken in a pod; `more` are numbers that are captured without being declared.
    ///
    /// # Errors
    /// There is no free number.
    pub(super) fn new(pod: &Value, more: &[Candidate]) -> Result<Self, Skipped> {
        let dialled = applications(pod).flat_map(dialled::by_itself);
        let known = declared(pod).map(|port| port.number).chain(more.iter().map(|port| port.number));
        let taken = known.chain(dialled).chain(ISTIO).collect();
        let mut numbers = Self { taken, metrics: 0, admin: 0 };
        numbers.metrics = numbers.free(METRICS)?;
        numbers.admin = numbers.free(ADMIN)?;
        Ok(numbers)
    }

    /// Takes numbers on which the application listens without declaring them.
    ///
    /// # Errors
    /// There is no free number for what had one of them.
    pub(super) fn take(&mut self, more: impl Iterator<Item = u16>) -> Result<(), Skipped> {
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

    /// The next number for a captured port.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn listen(&mut self) -> Result<u16, Skipped> {
        self.free(LISTEN_FIRST)
    }

    /// The first number from `first` on that is not taken, and takes it.
    fn free(&mut self, first: u16) -> Result<u16, Skipped> {
        let number = (first..=u16::MAX).find(|number| !self.taken.contains(number));
        let number = number.ok_or_else(|| {
            Skip::TooLarge.because(format!("every port from {first} on is declared: there is none for the sidecar"))
        })?;
        self.taken.insert(number);
        Ok(number)
    }
}
