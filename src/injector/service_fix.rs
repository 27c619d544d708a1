//! Services that bypass a sidecar because their `targetPort` is a number, and the port name that
//! leads them through it.
//!
//! The injection moves a port's name from the application's container to the sidecar, but not its
//! number. If the port has no name yet, the pods need one first: a Service whose `targetPort` is a
//! name that no pod has leads nowhere.

use std::collections::BTreeSet;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, ReplaceOperation, TestOperation};
use serde_json::{Value, json};

use super::access::{as_integer, list, text};
use super::bypass::executes_model;
use super::planned::PortCapture;
use super::ports::is_tcp;
use super::referrers;
use super::status::{CapturedPort, InjectionStatus};

/// A Service port with a numeric `targetPort` (or none, which means its own number), and the name
/// that replaces it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceFix {
    /// Name of the Service.
    pub service: String,
    /// Index of the port in `spec.ports`.
    pub index: usize,
    /// The Service's own port number.
    pub port: u16,
    /// Name of the application's container.
    pub container: String,
    /// Current `targetPort`, which is the application's port number.
    pub number: u16,
    /// Port name that leads to the sidecar.
    pub name: String,
    /// `true` if the container's port has no name yet and must get this one first.
    pub needs_name: bool,
}

// === impl ServiceFix ===

impl ServiceFix {
    /// Returns the JSON Patch (RFC 6902) of the Service. Its `test` operations let it fail if the
    /// port was changed in the meantime.
    #[must_use]
    pub fn patch(&self) -> json_patch::Patch {
        let at = |field: &str| {
            let index = self.index.to_string();
            PointerBuf::from_tokens(["spec", "ports", &index, field])
        };
        let test = |field, value: u16| PatchOperation::Test(TestOperation { path: at(field), value: value.into() });
        let replace = ReplaceOperation { path: at("targetPort"), value: self.name.as_str().into() };
        json_patch::Patch(vec![
            test("port", self.port),
            test("targetPort", self.number),
            PatchOperation::Replace(replace),
        ])
    }
}

/// Returns the Services that have to refer to a captured port by its name; empty if the annotation
/// `groupage.dev/status` cannot be parsed. `objects` are those that select the pod.
#[must_use]
pub fn service_fixes(status: &str, objects: &[&Value]) -> Vec<ServiceFix> {
    let captured = InjectionStatus::parse(status).map(|status| status.capture).unwrap_or_default();
    // The name leads to the sidecar's port number. A NetworkPolicy that allows only the
    // application's number would block it.
    let is_restricted =
        |captured: &&CapturedPort| objects.iter().any(|object| referrers::restricts_port(object, captured.port));
    let mut fixes: Vec<ServiceFix> = captured
        .iter()
        .filter(|captured| !is_restricted(captured))
        // In the other modes, references by number reach the sidecar. A name that was not moved
        // leads to the application, as the number does; a port without a name can get one.
        .filter(|captured| captured.mode == PortCapture::Named || (captured.mode == PortCapture::None && captured.name.is_none()))
        .flat_map(|captured| objects.iter().flat_map(move |object| fixes_of(captured, object)))
        .collect();
    fixes.sort();
    fixes.dedup();
    fixes
}

fn fixes_of(captured: &CapturedPort, object: &Value) -> Vec<ServiceFix> {
    let Some(service) = text(object, &["metadata", "name"]).filter(|_| object["kind"] == "Service") else {
        return Vec::new();
    };
    let by_number = referrers::by_number(object, captured.port);
    let fix = |(index, port): (usize, u16)| ServiceFix {
        service: service.to_owned(),
        index,
        port,
        container: captured.container.clone(),
        number: captured.port,
        name: captured.name.clone().unwrap_or_else(|| format!("http-{}", captured.port)),
        needs_name: captured.name.is_none(),
    };
    by_number.into_iter().map(fix).collect()
}

/// Returns the JSON Patch (RFC 6902) of a workload that names the unnamed ports of its pod
/// template; `None` if all are named.
///
/// # Errors
/// The template has no such container, or another port has the name.
pub fn name_ports(workload: &Value, fixes: &[ServiceFix]) -> Result<Option<json_patch::Patch>, String> {
    let containers = list(workload, &["spec", "template", "spec", "containers"]);
    let mut operations = Vec::new();
    let unnamed: BTreeSet<(&str, u16, &str)> = fixes
        .iter()
        .filter(|fix| fix.needs_name)
        .map(|fix| (fix.container.as_str(), fix.number, fix.name.as_str()))
        .collect();
    for (container, number, name) in unnamed {
        let found = containers.iter().position(|found| text(found, &["name"]) == Some(container));
        let index = found.ok_or_else(|| format!("its template has no container {container}"))?;
        let ports = |container: &Value| list(container, &["ports"]).to_vec();
        if containers.iter().flat_map(ports).any(|port| text(&port, &["name"]) == Some(name)) {
            return Err(format!("another port already has the name {name}: name port {number} manually"));
        }
        let (index_text, own_ports) = (index.to_string(), ports(&containers[index]));
        let at = |rest: &[&str]| {
            let head = ["spec", "template", "spec", "containers", &index_text];
            PointerBuf::from_tokens(head.into_iter().chain(rest.iter().copied()))
        };
        let is_captured = |port: &Value| is_tcp(port) && as_integer(&port["containerPort"]) == Some(number.into());
        // The patch refers to containers and ports by index, so it tests that they are the same.
        operations.push(PatchOperation::Test(TestOperation { path: at(&["name"]), value: container.into() }));
        let change = match own_ports.iter().position(is_captured).map(|port| port.to_string()) {
            Some(port) => {
                let (path, value) = (at(&["ports", &port, "containerPort"]), number.into());
                operations.push(PatchOperation::Test(TestOperation { path, value }));
                PatchOperation::Add(AddOperation { path: at(&["ports", &port, "name"]), value: name.into() })
            }
            None => {
                let port = json!({"containerPort": number, "name": name, "protocol": "TCP"});
                let path = if own_ports.is_empty() { at(&["ports"]) } else { at(&["ports", "-"]) };
                let value = if own_ports.is_empty() { json!([port]) } else { port };
                PatchOperation::Add(AddOperation { path, value })
            }
        };
        operations.push(change);
    }
    Ok((!operations.is_empty()).then_some(json_patch::Patch(operations)))
}

/// Returns the remedy for traffic that bypasses the sidecars of a workload: one command if Services
/// can be fixed and the workload is of a kind that the command can edit, otherwise the manual steps
/// or the annotation that moves the application to loopback. `status` is the annotation
/// `groupage.dev/status` of a pod. A sidecar that executes a model has no application behind it.
#[must_use]
pub fn remedy(status: &str, fixes: &[ServiceFix], namespace: &str, workload: Option<(&str, &str)>) -> String {
    match workload {
        _ if executes_model(status) => {
            "direct the Service to a port of the sidecar, or replace the pods (kubectl rollout restart)".to_owned()
        }
        Some((kind @ ("Deployment" | "StatefulSet" | "DaemonSet"), name)) if !fixes.is_empty() => {
            format!("groupage enable -n {namespace} {}/{name} --fix-services", kind.to_ascii_lowercase())
        }
        _ if !fixes.is_empty() => {
            "name the port in the pod template, roll out the pods, then use the name in the Service".to_owned()
        }
        _ => "set groupage.dev/app-listen on the pod template, so that the application listens on 127.0.0.1".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(name: Option<&str>, mode: &str) -> String {
        let capture = json!([{"container": "c", "name": name, "port": 8000, "mode": mode, "listen": 15080}]);
        json!({"version": "0.1.0", "form": "native", "metrics": 9190, "admin": 9191, "hash": "h", "capture": capture})
            .to_string()
    }

    fn service(ports: &Value) -> Value {
        json!({"kind": "Service", "metadata": {"name": "web"}, "spec": {"selector": {"app": "x"}, "ports": ports}})
    }

    #[test]
    fn a_number_becomes_the_ports_name_and_a_port_without_one_gets_it_first() {
        let by_number =
            service(&json!([{"port": 443, "targetPort": "tls"}, {"port": 80, "targetPort": 8000}, {"port": 8000}]));
        let fixes = service_fixes(&status(Some("api"), "Named"), &[&by_number]);
        let fields: Vec<_> = fixes.iter().map(|fix| (fix.index, fix.port, fix.name.as_str(), fix.needs_name)).collect();
        assert_eq!(fields, [(1, 80, "api", false), (2, 8000, "api", false)]);
        let fixes = service_fixes(&status(None, "None"), &[&by_number]);
        assert!(fixes.iter().all(|fix| fix.needs_name && fix.name == "http-8000"), "{fixes:?}");
    }

    #[test]
    fn services_that_reach_the_sidecar_or_cannot_use_a_port_name_are_not_fixed() {
        let by_number = service(&json!([{"port": 80, "targetPort": 8000}]));
        assert_eq!(service_fixes(&status(None, "Loopback"), &[&by_number]), []);
        assert_eq!(service_fixes(&status(Some("api"), "None"), &[&by_number]), []);
        let mut headless = by_number;
        headless["spec"]["clusterIP"] = json!("None");
        let pool =
            json!({"kind": "InferencePool", "metadata": {"name": "p"}, "spec": {"targetPorts": [{"number": 8000}]}});
        assert_eq!(service_fixes(&status(Some("api"), "Named"), &[&headless, &pool]), []);
    }

    #[test]
    fn a_service_is_not_fixed_if_a_network_policy_allows_only_the_port_number() {
        let by_number = service(&json!([{"port": 80, "targetPort": 8000}]));
        let policy = |port: u16| {
            json!({
                "kind": "NetworkPolicy", "metadata": {"name": "in"},
                "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": port}]}]},
            })
        };
        assert_eq!(service_fixes(&status(Some("api"), "Named"), &[&by_number, &policy(8000)]), []);
        assert_eq!(service_fixes(&status(Some("api"), "Named"), &[&by_number, &policy(9000)]).len(), 1);
    }

    #[test]
    fn a_patch_fails_if_the_service_has_changed_since() {
        let mut observed = service(&json!([{"port": 443, "targetPort": "tls"}, {"port": 80, "targetPort": 8000}]));
        let patch = service_fixes(&status(None, "None"), &[&observed])[0].patch();
        let mut changed = service(&json!([{"port": 443, "targetPort": "tls"}, {"port": 80, "targetPort": 9000}]));
        json_patch::patch(&mut observed, &patch).unwrap();
        assert_eq!(observed["spec"]["ports"][1]["targetPort"], "http-8000");
        assert!(json_patch::patch(&mut changed, &patch).is_err());
    }

    #[test]
    fn ports_get_a_name_once_each_where_they_have_none() {
        let services = service(&json!([{"port": 80, "targetPort": 8000}, {"port": 8000}]));
        let fixes = service_fixes(&status(None, "None"), &[&services]);
        let named = |ports: Value| {
            let mut workload =
                json!({"spec": {"template": {"spec": {"containers": [{"name": "a"}, {"name": "c", "ports": ports}]}}}});
            let patch = name_ports(&workload, &fixes).unwrap().unwrap();
            json_patch::patch(&mut workload, &patch).unwrap();
            workload["spec"]["template"]["spec"]["containers"][1]["ports"].take()
        };
        let udp = json!({"containerPort": 8000, "protocol": "UDP"});
        let ports = named(json!([udp, {"containerPort": 8000}]));
        assert_eq!(ports, json!([udp, {"containerPort": 8000, "name": "http-8000"}]));
        assert_eq!(named(json!([]))[0]["name"], "http-8000");
        let taken = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 1, "name": "http-8000"}]}]}}}});
        assert!(name_ports(&taken, &fixes).unwrap_err().contains("http-8000"));
        assert_eq!(name_ports(&taken, &[]), Ok(None));
    }

    #[test]
    fn one_command_names_the_workload() {
        let fixes = service_fixes(&status(None, "None"), &[&service(&json!([{"port": 8000}]))]);
        assert_eq!(
            remedy("", &fixes, "ml", Some(("Deployment", "web"))),
            "groupage enable -n ml deployment/web --fix-services"
        );
        assert!(remedy("", &fixes, "ml", Some(("Rollout", "web"))).starts_with("name the port"));
        assert!(remedy("", &[], "ml", Some(("Deployment", "web"))).contains("app-listen"));
        let engine = json!({"version": "1", "form": "native", "metrics": 9190, "admin": 9191, "hash": "h",
            "engine": {"model": "/m", "volume": "v", "device": "Cpu", "ports": [8080]}});
        assert!(remedy(&engine.to_string(), &[], "ml", None).contains("rollout restart"));
    }
}
