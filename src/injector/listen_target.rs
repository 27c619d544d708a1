//! Selects the container that an `app-listen` override applies to if it names none, and reports
//! overrides that have no effect.
//!
//! If the override is applied to the wrong container, the right one keeps listening on every
//! address, and the sidecar cannot bind its port. Therefore no container is selected if several
//! qualify.

use serde_json::Value;

use super::access::text;
use super::app_listen::{AppListen, ListenOverride};
use super::candidates::is_wanted;
use super::message::listed;
use super::planned::{PlannedPort, PortCapture};
use super::status::InjectionStatus;
use super::{argument_edit, ports, referrers};
use crate::api::v1alpha1::{CaptureMode, PortRef};

/// Selects the container that an override applies to, among the application's containers. The
/// candidates are narrowed, in this order, to the containers that declare a port of the override's
/// values, that have the variable or flag already, that an earlier pass changed (other webhooks may
/// have added containers since), and that have a port which may be captured. A criterion that no
/// candidate meets is skipped. Returns `None` if the pod has no application container.
///
/// # Errors
/// Returns the names of the remaining containers if several qualify.
pub(super) fn select_container(
    pod: &Value,
    previous: Option<&InjectionStatus>,
    objects: &[Value],
    app_listen: &AppListen,
    requested: &[PortRef],
) -> Result<Option<String>, Vec<String>> {
    let mut candidates: Vec<&Value> = ports::application_containers(pod).collect();
    let declares = |container: &Value, numbers: &[u16]| {
        ports::container_ports(container).any(|port| numbers.contains(&port.number))
    };
    let has_setting =
        |container: &Value| app_listen.overrides.iter().any(|setting| argument_edit::has_setting(container, setting));
    let has_wanted_port = |container: &Value| ports::container_ports(container).any(|port| is_wanted(&port, requested));
    let (address_ports, plain_numbers) = (address_ports(app_listen), plain_numbers(app_listen));
    retain_if_any(&mut candidates, |container| declares(container, &address_ports));
    retain_if_any(&mut candidates, |container| declares(container, &plain_numbers));
    retain_if_any(&mut candidates, has_setting);
    // A change that a recipe made is no evidence of an override.
    let undo = previous.filter(|status| status.recipes.is_empty()).map(|status| &status.undo);
    let was_changed = |name: &str| {
        undo.is_some_and(|undo| {
            undo.env.iter().any(|change| change.container == name)
                || undo.args.iter().any(|change| change.container == name)
        })
    };
    retain_if_any(&mut candidates, |container| text(container, &["name"]).is_some_and(was_changed));
    // A port that is referred to but declared by no container may belong to any of them, including
    // one that declares no port. Containers with ports are then not preferred.
    let referred_ports =
        || requested_numbers(requested).chain(referrers::numbers(pod, objects, true)).collect::<Vec<u16>>();
    let is_declared = ports::application_containers(pod).any(|container| declares(container, &address_ports));
    if is_declared || !address_ports.iter().any(|number| referred_ports().contains(number)) {
        retain_if_any(&mut candidates, has_wanted_port);
    }
    let mut names = candidates.into_iter().filter_map(|container| text(container, &["name"])).map(str::to_owned);
    match (names.next(), names.next()) {
        (one, None) => Ok(one),
        (one, two) => Err(one.into_iter().chain(two).chain(names).collect()),
    }
}

/// Returns warnings for an override that is not applied, or that sets a port other than the one
/// that the sidecar connects to.
pub(super) fn unused_app_listen(
    app_listen: &AppListen,
    container: &str,
    requested: CaptureMode,
    planned: &[PlannedPort],
) -> Vec<String> {
    let own_ports = || planned.iter().filter(|planned| planned.port.container == container);
    let loopback: Vec<u16> = own_ports()
        .filter(|planned| planned.mode == PortCapture::Loopback)
        .map(|planned| planned.port.number)
        .collect();
    if loopback.is_empty() {
        let cause = match requested {
            CaptureMode::Named => "capture is Named: remove one of the two settings",
            CaptureMode::Redirect => "capture is Redirect: remove one of the two settings",
            _ if own_ports().next().is_none() => {
                "the container has no captured port: declare one, or select another container"
            }
            // All callers reach the sidecar through the port's name, so the override is not needed.
            CaptureMode::Auto | CaptureMode::Loopback => return Vec::new(),
        };
        return vec![format!("app-listen for container {container} is not used: {cause}")];
    }
    let numbers: Vec<String> = loopback.iter().map(u16::to_string).collect();
    let other_ports = address_ports(app_listen).into_iter().filter(|number| !loopback.contains(number));
    other_ports
        .map(|number| {
            format!(
                "app-listen sets container {container} to port {number}, but the sidecar connects to {}: set that port, or declare {number}",
                listed(&numbers)
            )
        })
        .collect()
}

/// Keeps only the containers that satisfy the predicate, if any of them does.
fn retain_if_any(candidates: &mut Vec<&Value>, predicate: impl Fn(&Value) -> bool) {
    if candidates.len() > 1 && candidates.iter().any(|container| predicate(container)) {
        candidates.retain(|container| predicate(container));
    }
}

fn requested_numbers(requested: &[PortRef]) -> impl Iterator<Item = u16> + '_ {
    requested.iter().filter_map(|port| match port {
        PortRef::Number(number) => Some(*number),
        PortRef::Name(_) => None,
    })
}

/// Returns the ports of the addresses among an override's values: `127.0.0.1:8080`,
/// `http://[::1]:8080/x`.
fn address_ports(app_listen: &AppListen) -> Vec<u16> {
    override_values(app_listen).filter_map(port_of).collect()
}

/// Returns the values that consist of a number alone, as in `--port=8080`. Such a number is a port
/// only if a container declares it.
fn plain_numbers(app_listen: &AppListen) -> Vec<u16> {
    override_values(app_listen).filter_map(|value| value.parse().ok()).collect()
}

fn override_values(app_listen: &AppListen) -> impl Iterator<Item = &str> {
    app_listen.overrides.iter().filter_map(|setting| match setting {
        ListenOverride::Env(_, value) => Some(value.as_str()),
        ListenOverride::Arg(words) => {
            let last = words.last()?;
            Some(last.split_once('=').map_or(last.as_str(), |(_, value)| value))
        }
    })
}

/// Parses the port of an address, if it has one. An IPv6 address without brackets has none.
fn port_of(value: &str) -> Option<u16> {
    let address = value.split_once("://").map_or(value, |(_, rest)| rest);
    let address = address.split('/').next().unwrap_or_default();
    let (host, port) = address.rsplit_once(':')?;
    let is_host = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
    port.parse().ok().filter(|port| is_host && *port > 0)
}

/// Formats the names of the application's containers for a sentence.
pub(super) fn applications(pod: &Value) -> String {
    listed(&ports::application_names(pod))
}

/// Returns `true` if the pod has an application container of this name.
pub(super) fn is_application(pod: &Value, name: &str) -> bool {
    ports::application_containers(pod).any(|container| text(container, &["name"]) == Some(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn select(containers: &Value, app_listen: &str) -> Result<Option<String>, Vec<String>> {
        let service = json!({"kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"app": "x"}, "ports": [{"port": 80, "targetPort": 7000}]}});
        let pod = json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": containers}});
        select_container(&pod, None, &[service], &AppListen::parse(app_listen).unwrap(), &[])
    }

    fn selected(name: &str) -> Result<Option<String>, Vec<String>> {
        Ok(Some(name.to_owned()))
    }

    #[test]
    fn the_container_that_declares_the_port_of_the_value_is_selected() {
        let two = json!([{"name": "exporter", "ports": [{"containerPort": 9100}]}, {"name": "ollama", "ports": [{"containerPort": 11434}]}]);
        for setting in ["env:A=127.0.0.1:11434", "arg:--listen=http://[::1]:11434/", "arg:--port 11434"] {
            assert_eq!(select(&two, setting), selected("ollama"), "{setting}");
        }
        assert_eq!(select(&two, "env:A=127.0.0.1:9100"), selected("exporter"));
        assert_eq!(select(&two, "env:A=127.0.0.1"), Err(vec!["exporter".to_owned(), "ollama".to_owned()]));
    }

    #[test]
    fn container_with_the_variable_or_flag_is_selected() {
        let two = json!([
            {"name": "a", "ports": [{"containerPort": 1}], "args": ["--host", "::"]},
            {"name": "b", "ports": [{"containerPort": 2}], "env": [{"name": "HOST", "value": "x"}]},
        ]);
        assert_eq!(select(&two, "env:HOST=127.0.0.1"), selected("b"));
        assert_eq!(select(&two, "arg:--host=127.0.0.1"), selected("a"));
    }

    #[test]
    fn the_only_container_with_a_port_is_selected_unless_a_service_uses_another_port() {
        let two = json!([{"name": "a"}, {"name": "b", "ports": [{"containerPort": 2}]}, {"name": "daprd", "ports": [{"containerPort": 3}]}]);
        assert_eq!(select(&two, "env:HOST=127.0.0.1"), selected("b"));
        assert_eq!(select(&two, "env:HOST=127.0.0.1:9999"), selected("b"));
        assert_eq!(select(&two, "env:HOST=127.0.0.1:7000").unwrap_err().len(), 2);
        assert_eq!(select(&json!([{"name": "a"}, {"name": "b"}]), "env:HOST=::1").unwrap_err().len(), 2);
    }

    #[test]
    fn a_pod_of_one_application_needs_no_name() {
        assert_eq!(select(&json!([{"name": "a"}, {"name": "daprd"}]), "env:HOST=127.0.0.1:1"), selected("a"));
        assert_eq!(select(&json!([{"name": "daprd"}]), "env:HOST=127.0.0.1:1"), Ok(None));
    }

    #[test]
    fn the_port_of_an_address_is_parsed_or_absent() {
        for (value, port) in [
            ("::1", None),
            ("[::1]:80", Some(80)),
            ("localhost:0", None),
            ("tcp://0.0.0.0:90", Some(90)),
            ("a:b", None),
        ] {
            assert_eq!(port_of(value), port, "{value}");
        }
    }
}
