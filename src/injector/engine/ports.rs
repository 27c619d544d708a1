//! Ports of the engine: those that the user lists, otherwise those to which Services and pools of
//! the pod lead and that no container declares.

use serde_json::Value;

use super::EnginePort;
use crate::api::v1alpha1::PortRef;
use crate::ports::{PortCandidate, declared};
use crate::{SkipReason, SkippedPod, referrers};

/// Port of an engine to which no Service leads by number: that of most model servers.
const PORT_DEFAULT: u16 = 8080;
/// Name of that port, unless a container has it.
const NAME_DEFAULT: &str = "http";
/// Maximum number of ports, equal to that of the addresses of a process (`proxy.listen`).
const PORTS_MAX: usize = 16;

/// Selects the ports. Names belong to the first one: they all lead to the same process.
///
/// # Errors
/// A container declares a port that the engine needs, or there are too many.
pub(super) fn select(pod: &Value, objects: &[Value], requested: &[PortRef]) -> Result<Vec<EnginePort>, SkippedPod> {
    let theirs: Vec<PortCandidate> = declared(pod).collect();
    let (mut numbers, mut names): (Vec<u16>, Vec<String>) = if requested.is_empty() {
        let numbers = referrers::numbers(pod, objects, true);
        let is_free = |number: &u16| theirs.iter().all(|port| port.number != *number);
        let names = referrers::target_names(pod, objects);
        let is_unused = |name: &String| theirs.iter().all(|port| port.name.as_ref() != Some(name));
        (numbers.into_iter().filter(is_free).collect(), names.into_iter().filter(is_unused).collect())
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
    for port in &theirs {
        let has_name = port.name.as_ref().is_some_and(|name| names.contains(name));
        if has_name || numbers.contains(&port.number) {
            return Err(taken(port));
        }
    }
    if numbers.len() > PORTS_MAX {
        return Err(SkipReason::TooLarge.with_detail(format!(
            "{} ports lead to the engine, which listens on at most {PORTS_MAX}: list them in groupage.dev/ports",
            numbers.len()
        )));
    }
    let mut names = Some(names);
    Ok(numbers.into_iter().map(|number| EnginePort { number, names: names.take().unwrap_or_default() }).collect())
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

fn taken(port: &PortCandidate) -> SkippedPod {
    let PortCandidate { container, name, number, .. } = port;
    let name = name.as_ref().map_or_else(String::new, |name| format!(" (named {name})"));
    SkipReason::EnginePortTaken.with_detail(format!(
        "the engine needs port {number}{name}, which container {container} declares: remove it there, or list another port in groupage.dev/ports"
    ))
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
        Ok(found.into_iter().map(|port| (port.number, port.names.join(","))).collect())
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
}
