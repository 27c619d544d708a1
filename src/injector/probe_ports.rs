//! Undeclared ports that a container's own probes and hooks connect to.
//!
//! Port declarations are informational: a server may listen on any port. An application that an
//! `app-listen` override moves to loopback moves such ports too, and a kubelet that connects to
//! them would be refused. Ports that only other pods connect to are excluded, because the pod
//! contains no trace of them.

use serde_json::Value;

use super::access::{at, number, text};
use super::names::{CONNECT_PATH, DRAIN_PATH, HANDLERS};

/// Returns the port numbers, each once, in the order of the handlers.
pub(super) fn probe_ports(container: &Value) -> Vec<u16> {
    let mut found = Vec::new();
    for handler in HANDLERS {
        for kind in ["httpGet", "tcpSocket", "grpc"] {
            let path: Vec<&str> = handler.split('/').chain([kind]).collect();
            let way = at(container, &path);
            let elsewhere = text(way, &["host"]).is_some_and(|host| !host.is_empty());
            // A leftover of an injection without an undo record: the port is the sidecar's.
            let ours =
                text(way, &["path"]).is_some_and(|path| path.starts_with(CONNECT_PATH) || path.starts_with(DRAIN_PATH));
            let dialled = number(at(way, &["port"])).filter(|number| !elsewhere && !ours && !found.contains(number));
            found.extend(dialled);
        }
    }
    found
}

/// Annotations with the scraped port: the convention of Prometheus, and that of KServe.
const SCRAPES: [&str; 2] = ["prometheus.io/port", "prometheus.kserve.io/port"];

/// Returns the port numbers that are scraped according to the pod's annotations.
pub(super) fn scraped_ports(pod: &Value) -> impl Iterator<Item = u16> + '_ {
    let annotations = at(pod, &["metadata", "annotations"]);
    SCRAPES.iter().filter_map(|name| text(annotations, &[name])?.parse().ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_of_probes_and_hooks_in_their_own_container_are_found_once() {
        let container = json!({
            "startupProbe": {"tcpSocket": {"port": 8083}},
            "livenessProbe": {"grpc": {"port": 8082}},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8081.0}},
            "lifecycle": {"postStart": {"httpGet": {"path": "/warm", "port": 8081}}},
        });
        assert_eq!(probe_ports(&container), [8082, 8081, 8083]);
    }

    #[test]
    fn scraped_ports_are_read_from_annotations() {
        let pod =
            json!({"metadata": {"annotations": {"prometheus.io/port": "8002", "prometheus.kserve.io/port": "x"}}});
        assert_eq!(scraped_ports(&pod).collect::<Vec<_>>(), [8002]);
    }

    #[test]
    fn named_ports_other_hosts_and_hooks_of_the_sidecar_are_ignored() {
        let container = json!({
            "startupProbe": {"tcpSocket": {"port": 8083, "host": "elsewhere"}},
            "livenessProbe": {"httpGet": {"path": "/connect/8080", "port": 9190}},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}},
            "lifecycle": {"preStop": {"httpGet": {"path": "/drain/x?wait", "port": 9190}}},
        });
        assert_eq!(probe_ports(&container), [] as [u16; 0]);
    }
}
