//! Traffic that bypasses the sidecar of an injected pod, in the current state of the cluster.
//!
//! A pod is injected once, but the Services that select it are created, changed and deleted later.
//! Manifests often list the Deployment before the Service, so the first pods may be admitted before
//! the Service exists.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Namespace;
use super::capture::bypass;
use super::ports::PortCandidate;
use super::referrers;
use super::sidecar::METRICS_NAMES;
use super::status::{EngineStatus, InjectionStatus};
use crate::api::v1alpha1::PortRef;

/// Prefixes of lines about objects that a controller watches; the current objects supersede such
/// lines.
const WATCHED_PREFIXES: [&str; 4] = ["svc/", "clients of the headless svc/", "inferencepool/", "networkpolicy/"];

/// Returns the current bypasses of a pod's sidecar; `None` if its annotation `groupage.dev/status`
/// cannot be parsed.
///
/// `objects` are the Services, pools and network policies that select pods with these labels. Other
/// bypasses that the injection recorded do not change during the life of the pod.
#[must_use]
pub fn current_bypasses(status: &str, labels: &BTreeMap<String, String>, objects: &[&Value]) -> Option<Vec<String>> {
    let status = InjectionStatus::parse(status)?;
    let pod = json!({"metadata": {"labels": labels}});
    let mut ways = Vec::new();
    for captured in status.capture {
        let fixed =
            captured.bypass.into_iter().filter(|line| !WATCHED_PREFIXES.iter().any(|start| line.starts_with(start)));
        ways.extend(fixed);
        let (container, name, number) = (captured.container, captured.name, captured.port);
        let port = PortCandidate { container, name, number, host_port: None };
        let named = referrers::find(&port, &pod, &Namespace::default(), objects.iter().copied());
        ways.extend(bypass(&port, captured.mode, captured.listen, named));
    }
    if let Some(engine) = &status.engine {
        let targets = objects.iter().flat_map(|object| referrers::targets(object));
        ways.extend(targets.filter_map(|(way, target)| lost_traffic(&way, &target, engine, status.metrics)));
    }
    Some(ways)
}

/// Returns `true` if the sidecar of an injected pod executes a model, by its annotation
/// `groupage.dev/status`.
pub(super) fn executes_model(status: &str) -> bool {
    InjectionStatus::parse(status).is_some_and(|status| status.engine.is_some())
}

/// Returns a description of traffic to a port on which neither the sidecar nor another container is
/// known to listen; `None` if one is. The ports of a sidecar are those of the Services that existed
/// when its pod was created.
fn lost_traffic(way: &str, target: &PortRef, engine: &EngineStatus, metrics: u16) -> Option<String> {
    let EngineStatus { ports, names, declared, declared_names, .. } = engine;
    let (is_served, port) = match target {
        PortRef::Number(number) => {
            (*number == metrics || ports.contains(number) || declared.contains(number), number.to_string())
        }
        PortRef::Name(name) => (
            METRICS_NAMES.contains(&name.as_str()) || names.contains(name) || declared_names.contains(name),
            name.clone(),
        ),
    };
    let served: Vec<String> = ports.iter().map(u16::to_string).chain(names.iter().cloned()).collect();
    (!is_served).then(|| {
        format!(
            "{way} leads to port {port}, on which nothing is known to listen: use {}, or restart the pod",
            served.join(" or ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(target: &Value) -> Value {
        json!({"kind": "Service", "metadata": {"name": "web"}, "spec": {"selector": {"app": "x"}, "ports": [{"port": 80, "targetPort": target}]}})
    }

    fn status(mode: &str, bypass: &[&str]) -> String {
        let capture =
            json!([{"container": "c", "name": "http", "port": 8080, "mode": mode, "listen": 15080, "bypass": bypass}]);
        json!({"version": "0.1.0", "form": "native", "metrics": 9190, "admin": 9191, "hash": "h", "capture": capture})
            .to_string()
    }

    fn found(status: &str, objects: &[&Value]) -> Vec<String> {
        current_bypasses(status, &BTreeMap::from([("app".to_owned(), "x".to_owned())]), objects).unwrap()
    }

    #[test]
    fn bypasses_follow_the_current_services_and_not_the_record() {
        let (number, name) = (service(&json!(8080)), service(&json!("http")));
        let way = "svc/web:80 has the number 8080 as targetPort, bypassing the sidecar: use the port name http";
        assert_eq!(found(&status("Named", &[]), &[&number]), [way]);
        assert_eq!(found(&status("Named", &[way]), &[&name]), [] as [&str; 0]);
        assert_eq!(found(&status("Named", &[way]), &[]), [] as [&str; 0]);
        assert_eq!(found(&status("Loopback", &[]), &[&number]), [] as [&str; 0], "the number is the sidecar's");
    }

    #[test]
    fn a_recorded_bypass_without_an_object_is_kept() {
        let host = "hostPort 8080 leads directly to the application";
        assert_eq!(found(&status("Named", &[host]), &[&service(&json!("http"))]), [host]);
        assert_eq!(current_bypasses("no status", &BTreeMap::new(), &[]), None);
    }

    #[test]
    fn a_later_service_to_a_port_that_nothing_serves_is_reported() {
        let engine = json!({"model": "/m", "volume": "v", "device": "Cpu", "ports": [8080], "names": ["http"],
            "declared": [3000], "declaredNames": ["web"]});
        let status = json!({"version": "0.1.0", "form": "native", "metrics": 9190, "admin": 9191, "hash": "h",
            "engine": engine})
        .to_string();
        for served in [json!(8080), json!("http"), json!(3000), json!("web"), json!(9190), json!("gpg-metrics")] {
            assert_eq!(found(&status, &[&service(&served)]), [] as [&str; 0]);
        }
        let lost =
            "svc/web:80 leads to port 8000, on which nothing is known to listen: use 8080 or http, or restart the pod";
        assert_eq!(found(&status, &[&service(&json!(8000))]), [lost]);
        let lost =
            "svc/web:80 leads to port api, on which nothing is known to listen: use 8080 or http, or restart the pod";
        assert_eq!(found(&status, &[&service(&json!("api"))]), [lost]);
        let mut headless = service(&json!(6379));
        headless["spec"]["clusterIP"] = json!("None");
        assert_eq!(found(&status, &[&headless]), [] as [&str; 0], "its clients choose the port");
        assert!(executes_model(&status) && !executes_model("no status"));
    }
}
