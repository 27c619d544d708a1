//! Ports of the engine: those that the user lists, otherwise those to which Services and pools of
//! the pod lead and that no container declares.

use serde_json::Value;

use super::EnginePort;
use crate::access::{list, text};
use crate::api::v1alpha1::PortRef;
use crate::ports::{ISTIO_PORTS, PortCandidate, declared_ports};
use crate::probe_ports::{probe_ports, scraped_ports};
use crate::{SkipReason, SkippedPod, referrers};

/// Port of an engine to which no Service leads by number: that of most model servers.
const PORT_DEFAULT: u16 = 8080;
/// Name of that port, unless a container has it.
const NAME_DEFAULT: &str = "http";
/// Maximum number of ports, equal to that of the addresses of a process (`proxy.listen`).
const PORTS_MAX: usize = 16;

/// The ports of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortSelection {
    /// The ports, in the order of their numbers.
    pub(super) ports: Vec<EnginePort>,
    /// Facts for the report.
    pub(super) notes: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Selects the ports. Each name belongs to a number of its own, because the API server rejects two
/// ports of a container with the same number in a server-side apply.
///
/// # Errors
/// A container uses a port that the engine needs, or there are too many.
pub(super) fn select(pod: &Value, objects: &[Value], requested: &[PortRef]) -> Result<PortSelection, SkippedPod> {
    let theirs: Vec<PortCandidate> = declared_ports(pod).collect();
    let (mut notes, mut warnings) = (Vec::new(), Vec::new());
    let (mut numbers, mut names): (Vec<u16>, Vec<String>) = if requested.is_empty() {
        let is_free = |number: &u16| theirs.iter().all(|port| port.number != *number);
        let is_unused = |name: &String| theirs.iter().all(|port| port.name.as_ref() != Some(name));
        let numbers: Vec<u16> = referrers::engine_numbers(pod, objects).into_iter().filter(is_free).collect();
        notes.extend(
            numbers.iter().map(|number| format!("port {number} is served by the sidecar, not by the application")),
        );
        // Clients of a headless Service may call the engine or the application: only the user knows.
        let headless = referrers::headless_ports(pod, objects).into_iter();
        let (taken, _) = of_other_containers(pod);
        let unknown = headless.filter(|(_, number)| !taken.contains(number) && !numbers.contains(number));
        warnings.extend(unknown.map(|(service, number)| {
            format!("clients of the headless {service} connect to port {number}, on which the engine does not listen: if they call it, list its ports in groupage.dev/ports, otherwise declare the port in its container")
        }));
        (numbers, referrers::target_names(pod, objects).into_iter().filter(is_unused).collect())
    } else {
        split(requested)
    };
    numbers.sort_unstable();
    numbers.dedup();
    names.sort_unstable();
    names.dedup();
    if numbers.is_empty() {
        numbers.push(PORT_DEFAULT);
    }
    let has_default_name = theirs.iter().any(|port| port.name.as_deref() == Some(NAME_DEFAULT));
    if names.is_empty() && !has_default_name {
        names.push(NAME_DEFAULT.to_owned());
    }
    check_free(pod, &theirs, &numbers, &names)?;
    add_numbers(pod, &mut numbers, names.len());
    if numbers.len() > PORTS_MAX {
        return Err(SkipReason::TooLarge.with_detail(format!(
            "{} ports lead to the engine, which listens on at most {PORTS_MAX}: list them in groupage.dev/ports",
            numbers.len()
        )));
    }
    let mut names = names.into_iter();
    let ports = numbers.into_iter().map(|number| EnginePort { number, name: names.next() }).collect();
    Ok(PortSelection { ports, notes, warnings })
}

/// Returns the port numbers of the pod's containers, declared or used by their probes, and the names
/// of the declared ports, each once.
pub(super) fn of_other_containers(pod: &Value) -> (Vec<u16>, Vec<String>) {
    let dialled = probed_ports(pod).map(|(_, number)| number);
    let mut numbers: Vec<u16> = declared_ports(pod).map(|port| port.number).chain(dialled).collect();
    let mut names: Vec<String> = declared_ports(pod).filter_map(|port| port.name).collect();
    numbers.sort_unstable();
    numbers.dedup();
    names.sort_unstable();
    names.dedup();
    (numbers, names)
}

/// Returns the ports to which probes and hooks of the containers connect, with the container.
fn probed_ports(pod: &Value) -> impl Iterator<Item = (&str, u16)> {
    let containers = ["containers", "initContainers"].into_iter().flat_map(|key| list(pod, &["spec", key]));
    containers.flat_map(|container| {
        let name = text(container, &["name"]).unwrap_or_default();
        probe_ports(container).into_iter().map(move |number| (name, number))
    })
}

/// Adds free numbers until there is one for each name.
fn add_numbers(pod: &Value, numbers: &mut Vec<u16>, names: usize) {
    let (taken, _) = of_other_containers(pod);
    while numbers.len() < names.min(PORTS_MAX + 1) {
        let is_free =
            |number: &u16| !taken.contains(number) && !numbers.contains(number) && !ISTIO_PORTS.contains(number);
        let Some(number) = (PORT_DEFAULT..=u16::MAX).find(is_free) else { return };
        numbers.push(number);
    }
    numbers.sort_unstable();
}

/// Checks that no container uses a port of the engine.
fn check_free(pod: &Value, theirs: &[PortCandidate], numbers: &[u16], names: &[String]) -> Result<(), SkippedPod> {
    for port in theirs {
        let has_name = port.name.as_ref().is_some_and(|name| names.contains(name));
        if has_name || numbers.contains(&port.number) {
            let PortCandidate { container, name, number, .. } = port;
            let name = name.as_ref().map_or_else(String::new, |name| format!(" (named {name})"));
            return Err(SkipReason::EnginePortTaken.with_detail(format!(
                "the engine needs port {number}{name}, which container {container} declares: remove it there, or list another port in groupage.dev/ports"
            )));
        }
    }
    // A port that is used without a declaration is one on which the application listens.
    let probed = probed_ports(pod).find(|(_, number)| numbers.contains(number));
    let probed = probed.map(|(container, number)| (number, format!("a probe of container {container} connects to it")));
    let scraped = scraped_ports(pod).find(|number| numbers.contains(number));
    let scraped = scraped.map(|number| (number, "an annotation for Prometheus names it".to_owned()));
    match probed.or(scraped) {
        Some((number, cause)) => Err(SkipReason::EnginePortTaken.with_detail(format!(
            "the engine needs port {number}, on which the application listens ({cause}): declare the port in its container, or list another port for the engine in groupage.dev/ports"
        ))),
        None => Ok(()),
    }
}

fn split(requested: &[PortRef]) -> (Vec<u16>, Vec<String>) {
    let (mut numbers, mut names) = (Vec::new(), Vec::new());
    for port in requested {
        match port {
            PortRef::Number(number) => numbers.push(*number),
            PortRef::Name(name) => names.push(name.clone()),
        }
    }
    (numbers, names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(target: &Value) -> Value {
        json!({"kind": "Service", "metadata": {"name": "s"},
            "spec": {"selector": {"app": "m"}, "ports": [{"port": 80, "targetPort": target}]}})
    }

    fn chosen(ports: &Value, objects: &[Value], requested: &[PortRef]) -> Result<Vec<(u16, String)>, SkipReason> {
        let pod =
            json!({"metadata": {"labels": {"app": "m"}}, "spec": {"containers": [{"name": "app", "ports": ports}]}});
        let found = select(&pod, objects, requested).map_err(|skipped| skipped.reason)?;
        Ok(found.ports.into_iter().map(|port| (port.number, port.name.unwrap_or_default())).collect())
    }

    #[test]
    fn services_lead_to_the_engine_by_number_and_by_name() {
        let none = json!([]);
        let port = |number: u16, name: &str| (number, name.to_owned());
        assert_eq!(chosen(&none, &[], &[]), Ok(vec![port(8080, "http")]));
        assert_eq!(chosen(&none, &[service(&json!(8000))], &[]), Ok(vec![port(8000, "http")]));
        assert_eq!(chosen(&none, &[service(&json!("web"))], &[]), Ok(vec![port(8080, "web")]));
        let both = [service(&json!(9000)), service(&json!("web")), service(&json!(8000))];
        assert_eq!(chosen(&none, &both, &[]), Ok(vec![port(8000, "web"), port(9000, "")]));
        let listed = [PortRef::Number(7000), PortRef::Name("api".to_owned())];
        assert_eq!(chosen(&none, &both, &listed), Ok(vec![port(7000, "api")]));
    }

    #[test]
    fn a_port_of_the_application_stays_its_own() {
        let web = json!([{"name": "http", "containerPort": 3000}]);
        assert_eq!(chosen(&web, &[service(&json!("http"))], &[]), Ok(vec![(8080, String::new())]));
        let same = json!([{"containerPort": 8080}]);
        assert_eq!(chosen(&same, &[], &[]), Err(SkipReason::EnginePortTaken));
        assert_eq!(chosen(&web, &[], &[PortRef::Name("http".to_owned())]), Err(SkipReason::EnginePortTaken));
        assert_eq!(chosen(&web, &[], &[PortRef::Number(3000)]), Err(SkipReason::EnginePortTaken));
        let many: Vec<PortRef> = (1..=17).map(PortRef::Number).collect();
        assert_eq!(chosen(&web, &[], &many), Err(SkipReason::TooLarge));
    }

    #[test]
    fn every_name_has_a_number_of_its_own() {
        let port = |number: u16, name: &str| (number, name.to_owned());
        let names = [service(&json!("web")), service(&json!("api"))];
        assert_eq!(chosen(&json!([]), &names, &[]), Ok(vec![port(8080, "api"), port(8081, "web")]));
        let taken = json!([{"containerPort": 8081}]);
        assert_eq!(chosen(&taken, &names, &[]), Ok(vec![port(8080, "api"), port(8082, "web")]));
        let all = [service(&json!("web")), service(&json!("api")), service(&json!(9000))];
        assert_eq!(chosen(&json!([]), &all, &[]), Ok(vec![port(8080, "api"), port(9000, "web")]));
    }

    #[test]
    fn a_port_that_is_probed_or_scraped_is_that_of_the_application() {
        let reason = |pod: &Value, objects: &[Value], requested: &[PortRef]| {
            select(pod, objects, requested).map_err(|skipped| (skipped.reason, skipped.detail))
        };
        let probe = json!({"httpGet": {"path": "/", "port": 8000}});
        let container = json!({"name": "app", "readinessProbe": probe});
        let pod = json!({"metadata": {"labels": {"app": "m"}}, "spec": {"containers": [container]}});
        for (objects, requested) in [(vec![service(&json!(8000))], vec![]), (vec![], vec![PortRef::Number(8000)])] {
            let (reason, detail) = reason(&pod, &objects, &requested).unwrap_err();
            assert_eq!(reason, SkipReason::EnginePortTaken);
            assert!(detail.contains("probe of container app"), "{detail}");
        }
        assert!(reason(&pod, &[], &[]).is_ok(), "the default is another port");
        let scraped = json!({"metadata": {"annotations": {"prometheus.io/port": "8080"}}, "spec": {}});
        assert!(reason(&scraped, &[], &[]).unwrap_err().1.contains("Prometheus"));
    }

    #[test]
    fn a_headless_service_leads_to_the_engine_only_with_another_target_port() {
        let headless = |target: &Value| {
            let mut service = service(target);
            service["spec"]["clusterIP"] = json!("None");
            service
        };
        let pod = json!({"metadata": {"labels": {"app": "m"}}, "spec": {"containers": [{"name": "app"}]}});
        let numbers = |objects: &[Value]| {
            let found = select(&pod, objects, &[]).unwrap();
            let numbers: Vec<u16> = found.ports.iter().map(|port| port.number).collect();
            (numbers, found.notes.len(), found.warnings.len())
        };
        // The API server writes the default of `targetPort` into the Service.
        assert_eq!(numbers(&[headless(&json!(80))]), (vec![8080], 0, 1));
        assert_eq!(numbers(&[headless(&Value::Null)]), (vec![8080], 0, 1));
        assert_eq!(numbers(&[headless(&json!(6000))]), (vec![6000], 1, 0));
        assert_eq!(numbers(&[headless(&json!(6000)), service(&json!(8000))]), (vec![8000], 1, 1));
    }
}
