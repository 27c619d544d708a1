//! Capture of all ports of a container together. A setting moves several listeners of a server at
//! once, so the modes of its ports depend on each other.

use serde_json::Value;

use super::capture_plan::CapturePlan;
use super::decision::{CaptureOptions, PortDecision};
use crate::access::text;
use crate::planned::PortCapture;
use crate::ports::{self, PortCandidate};
use crate::probe_ports;
use crate::recipe::{MoveKind, RecipeMatch};

// === impl CapturePlan ===

impl CapturePlan {
    /// Moves all captured ports of a server if its recipe moves at least one of them, and records
    /// the recipes that move any.
    pub(super) fn extend_recipes(&mut self, options: &CaptureOptions<'_>, decided: &mut Vec<PortDecision>) {
        for recipe in options.recipes {
            let is_own_moved = |each: &PortDecision| each.port.container == recipe.container && is_moved(each);
            if !decided.iter().any(is_own_moved) {
                continue;
            }
            let mut applications = ports::application_containers(options.pod);
            let container = applications.find(|own| text(own, &["name"]) == Some(&recipe.container));
            add_probed_ports(options, recipe, container, decided);
            move_ports(recipe, container, decided);
            let captured = |number: u16| decided.iter().any(|each| each.port.number == number && is_own_moved(each));
            self.notes.extend(recipe.ports_moved_along(captured).into_iter().map(|number| {
                format!(
                    "container {}: recipe {} also moves port {number} to loopback; declare it if other pods call it",
                    recipe.container,
                    recipe.name()
                )
            }));
            self.recipes.push(recipe.clone());
        }
    }
}

fn is_moved(decision: &PortDecision) -> bool {
    matches!(decision.mode, PortCapture::Loopback | PortCapture::Moved)
}

/// Returns `true` if the server already has the port on loopback.
fn is_local(recipe: &RecipeMatch, container: Option<&Value>, number: u16) -> bool {
    container.is_some_and(|container| recipe.is_local(number, container))
}

/// Adds the ports that the container's own probes and scrapes use. They must be captured too,
/// because they move to loopback with the others.
fn add_probed_ports(
    options: &CaptureOptions<'_>,
    recipe: &RecipeMatch,
    container: Option<&Value>,
    decided: &mut Vec<PortDecision>,
) {
    let probed = container.map(probe_ports::probe_ports).unwrap_or_default();
    for number in probed.into_iter().chain(probe_ports::scraped_ports(options.pod)) {
        let is_known = decided.iter().any(|each| each.port.number == number);
        if recipe.move_kind(number).is_some() && !is_local(recipe, container, number) && !is_known {
            let container = recipe.container.clone();
            decided.push(options.decide(PortCandidate { container, name: None, number, host_port: None }));
        }
    }
}

/// Sets the modes of the ports that a recipe moves.
fn move_ports(recipe: &RecipeMatch, container: Option<&Value>, decided: &mut [PortDecision]) {
    let own = decided.iter_mut().filter(|each| each.port.container == recipe.container);
    for each in own.filter(|each| each.mode != PortCapture::None || !is_local(recipe, container, each.port.number)) {
        match recipe.move_kind(each.port.number) {
            Some(MoveKind::Loopback) => each.mode = PortCapture::Loopback,
            Some(MoveKind::Number) => each.mode = PortCapture::Moved,
            None => {}
        }
    }
}

/// Extends mode `Loopback` to all ports of a container, because an `app-listen` override moves all
/// listeners of its application. In the container of the override this includes undeclared ports
/// that the container's own probes and hooks connect to. A container without an override is not
/// reconfigured: its probes keep reaching undeclared ports, and the sidecar could not listen there.
/// Returns warnings about ports that move but are not captured.
pub(super) fn extend_loopback(options: &CaptureOptions<'_>, decided: &mut Vec<PortDecision>) -> Vec<String> {
    let mut warnings = Vec::new();
    let moved: Vec<String> = decided
        .iter()
        .filter(|each| each.mode == PortCapture::Loopback)
        .map(|each| each.port.container.clone())
        .collect();
    for container in ports::application_containers(options.pod) {
        let name = text(container, &["name"]).unwrap_or_default();
        if !moved.iter().any(|moved| moved == name) {
            continue;
        }
        for port in ports::container_ports(container) {
            match decided.iter_mut().find(|known| known.port == port) {
                Some(known) => known.mode = PortCapture::Loopback,
                None => decided.push(PortDecision { mode: PortCapture::Loopback, ..options.decide(port) }),
            }
        }
        if options.listen_container() != Some(name) {
            continue;
        }
        warnings.extend(ports::non_tcp_ports(container).map(|(number, protocol)| {
            format!(
                "container {name}: app-listen may also move port {number} ({protocol}) to loopback, where other pods cannot reach it: the sidecar captures only TCP"
            )
        }));
        extend_undeclared(options, container, name, decided);
    }
    warnings
}

/// Extends mode `Loopback` to the undeclared ports that a container connects to itself.
fn extend_undeclared(options: &CaptureOptions<'_>, container: &Value, name: &str, decided: &mut Vec<PortDecision>) {
    // Istio rewrites the probes of a pod to a port of its proxy.
    let declared = |number: u16| {
        ports::declared_ports(options.pod).any(|port| port.number == number) || ports::ISTIO_PORTS.contains(&number)
    };
    for number in probe_ports::probe_ports(container).into_iter().filter(|number| !declared(*number)) {
        match decided.iter_mut().find(|known| known.port.number == number) {
            Some(known) if known.port.container == name => known.mode = PortCapture::Loopback,
            Some(_) => {}
            None => {
                let port = PortCandidate { container: name.to_owned(), name: None, number, host_port: None };
                decided.push(PortDecision { mode: PortCapture::Loopback, ..options.decide(port) });
            }
        }
    }
}
