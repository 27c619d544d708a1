//! Choice of the ports of a pod that may be captured.

use std::collections::BTreeSet;

use serde_json::Value;

use super::access::{list, text};
use super::ports::{CAPTURED_MAX, PortCandidate, application_containers, container_ports, uncapturable_containers};
use super::{SkipReason, SkippedPod, referrers};
use crate::api::v1alpha1::PortRef;

/// Returns the ports that may be captured: those that the user lists, otherwise all that are
/// declared or that a Service leads to. A port that no container declares is attributed to
/// `listen_container`, the container of the `app-listen` override, otherwise to the first container.
///
/// # Errors
/// The pod has no port to capture, or too many.
pub(super) fn choose(
    pod: &Value,
    objects: &[Value],
    requested: &[PortRef],
    listen_container: Option<&str>,
    warnings: &mut Vec<String>,
) -> Result<Vec<PortCandidate>, SkippedPod> {
    let declared: Vec<PortCandidate> = application_containers(pod).flat_map(container_ports).collect();
    let first =
        listen_container.or_else(|| application_containers(pod).find_map(|container| text(container, &["name"])));
    let theirs: BTreeSet<u16> =
        uncapturable_containers(pod).flat_map(container_ports).map(|port| port.number).collect();
    let undeclared = |number: u16| {
        let container = first.filter(|_| !theirs.contains(&number))?;
        Some(PortCandidate { container: container.to_owned(), name: None, number, host_port: None })
    };
    let mut chosen = if requested.is_empty() {
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
        let chosen = select_listed(&declared, requested, undeclared, warnings);
        if chosen.is_empty() {
            return Err(SkipReason::NoTcpPort.with_detail("none of the requested ports exists"));
        }
        chosen
    };
    // The order is that of the declarations, in which a Service resolves a port name.
    let place = |port: &PortCandidate| declared.iter().position(|declared| declared == port).unwrap_or(usize::MAX);
    chosen.sort_by_key(place);
    let numbers: BTreeSet<u16> = chosen.iter().map(|port| port.number).collect();
    if numbers.len() > CAPTURED_MAX {
        return Err(SkipReason::TooLarge.with_detail(format!(
            "it has {} ports, but a sidecar captures at most {CAPTURED_MAX}: list the ports to capture in groupage.dev/ports",
            numbers.len()
        )));
    }
    Ok(chosen)
}

fn select_listed(
    declared: &[PortCandidate],
    requested: &[PortRef],
    undeclared: impl Fn(u16) -> Option<PortCandidate>,
    warnings: &mut Vec<String>,
) -> Vec<PortCandidate> {
    let mut chosen: Vec<PortCandidate> = Vec::new();
    for port in requested {
        let mut found: Vec<PortCandidate> =
            declared.iter().filter(|candidate| matches_port(candidate, port)).cloned().collect();
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

fn matches_port(candidate: &PortCandidate, port: &PortRef) -> bool {
    match port {
        PortRef::Number(number) => candidate.number == *number,
        PortRef::Name(name) => candidate.name.as_ref() == Some(name),
    }
}

/// Returns `true` if the user lists this port, or lists none at all.
pub(super) fn is_wanted(candidate: &PortCandidate, requested: &[PortRef]) -> bool {
    requested.is_empty() || requested.iter().any(|port| matches_port(candidate, port))
}

fn no_port_skip(pod: &Value) -> SkippedPod {
    let declares = application_containers(pod).any(|container| !list(container, &["ports"]).is_empty());
    if declares {
        return SkipReason::UdpOnly.with_detail("its containers declare no TCP port");
    }
    SkipReason::NoTcpPort.with_detail(
        "its containers declare no port and no Service targets one by number: declare the port, or list it in groupage.dev/ports",
    )
}
