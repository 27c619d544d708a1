//! Referrers of a pod's ports: objects that refer to a port by its name, which moves to the
//! sidecar, or by its number, which does not.

mod egress;

use serde_json::Value;

use super::Namespace;
use super::access::{as_integer, at, list, matches_labels, matches_selector, number, text};
use super::ports::{PortCandidate, is_tcp};
use crate::api::v1alpha1::PortRef;

/// Mesh annotations that refer to application ports by number.
const MESH_PORTS: [&str; 6] = [
    "traffic.sidecar.istio.io/includeInboundPorts",
    "traffic.sidecar.istio.io/excludeInboundPorts",
    "config.linkerd.io/opaque-ports",
    "config.linkerd.io/skip-inbound-ports",
    "config.linkerd.io/proxy-inbound-connect-ports",
    "traffic.kuma.io/exclude-inbound-ports",
];

/// Key prefix of the annotations that are also read from the namespace if the pod has none of its
/// own. linkerd copies them to the pods.
const NAMESPACE_KEY_PREFIX: &str = "config.linkerd.io/";

/// Label by which Cilium selects the namespace of a pod.
const CILIUMS_NAMESPACE: &str = "io.kubernetes.pod.namespace";

/// Kinds of objects that lead to ports or restrict access to them.
pub const KINDS: [&str; 8] = [
    "Service",
    "InferencePool",
    "NetworkPolicy",
    "CiliumNetworkPolicy",
    "CiliumClusterwideNetworkPolicy",
    "AuthorizationPolicy",
    "PeerAuthentication",
    "Server",
];

/// Objects that refer to one port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Referrers {
    /// Services that refer to it by name.
    pub(super) by_name: Vec<String>,
    /// Services, pools and clients that use its number.
    pub(super) by_number: Vec<NumericReference>,
    /// Rules that restrict access by its number. They do not cover the sidecar's own port number.
    pub(super) rules: Vec<String>,
}

/// A Service, pool or client that uses the number of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NumericReference {
    /// Text for a warning.
    pub(super) text: String,
    /// `true` if it could use the port's name instead.
    pub(super) may_name: bool,
}

/// Labels that controllers add to the pods that they create; a pod template does not have them.
const ADDED_LATER: [&str; 4] = [
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "leaderworkerset.sigs.k8s.io/name",
    "leaderworkerset.sigs.k8s.io/worker-index",
];

/// Returns `true` if a Service selects pods with these labels, or some of the pods of a template
/// with these labels.
fn selects_labels(labels: &Value, selector: &Value) -> bool {
    let is_added = |key: &str| ADDED_LATER.contains(&key) && labels.get(key).is_none();
    selector.as_object().is_some_and(|required| {
        let matches = |(key, value): (&String, &Value)| labels.get(key) == Some(value);
        // A selector of added labels alone could match pods of any workload.
        required.iter().all(|each| is_added(each.0) || matches(each)) && required.iter().any(matches)
    })
}

/// Returns `true` if an object selects pods with these labels.
pub(super) fn selects(object: &Value, labels: &Value) -> bool {
    match text(object, &["kind"]) {
        Some("Service") => {
            let selector = at(object, &["spec", "selector"]);
            let is_empty = selector.as_object().is_none_or(serde_json::Map::is_empty);
            // The endpoints of a Service without a selector are managed externally.
            !is_empty && text(object, &["spec", "type"]) != Some("ExternalName") && selects_labels(labels, selector)
        }
        Some("InferencePool") => {
            let selector = at(object, &["spec", "selector"]);
            // v1 has `matchLabels`; in v1alpha2 the selector is the map of labels.
            let labels_wanted = selector.get("matchLabels").filter(|required| required.is_object()).unwrap_or(selector);
            labels_wanted.as_object().is_some_and(|required| !required.is_empty())
                && matches_labels(labels, labels_wanted)
        }
        Some("NetworkPolicy") => {
            let types = list(object, &["spec", "policyTypes"]);
            (types.is_empty() || types.iter().any(|word| word == "Ingress"))
                && matches_selector(labels, at(object, &["spec", "podSelector"]))
        }
        // Without an endpoint selector the policy applies to nodes.
        Some("CiliumNetworkPolicy" | "CiliumClusterwideNetworkPolicy") => {
            let selector = at(object, &["spec", "endpointSelector"]);
            selector.is_object() && egress::selects_endpoint(selector, labels)
        }
        // Istio's kinds. Without a selector they apply to the whole namespace; with `targetRefs`
        // they apply to its gateways.
        Some("AuthorizationPolicy" | "PeerAuthentication") => {
            at(object, &["spec", "targetRefs"]).is_null() && matches_selector(labels, at(object, &["spec", "selector"]))
        }
        // Linkerd's `Server`. Other projects have kinds of the same name.
        Some("Server") => {
            let selector = at(object, &["spec", "podSelector"]);
            selector.is_object() && matches_selector(labels, selector)
        }
        _ => false,
    }
}

/// Returns `true` if an object restricts access to pods by this port number, such as a network
/// policy.
pub(super) fn restricts_port(object: &Value, number: u16) -> bool {
    let kind = text(object, &["kind"]).unwrap_or_default();
    restricted_ranges(object, kind).iter().any(|(first, last)| (*first..=*last).contains(&number))
}

/// Returns the referrers of this port. `namespace` is the pod's; its name is empty if unknown.
pub(super) fn find<'a>(
    port: &PortCandidate,
    pod: &Value,
    namespace: &Namespace,
    objects: impl Iterator<Item = &'a Value>,
) -> Referrers {
    let labels = at(pod, &["metadata", "labels"]);
    let mut found = Referrers::default();
    for object in objects {
        let kind = text(object, &["kind"]).unwrap_or_default();
        let name = text(object, &["metadata", "name"]).unwrap_or("?");
        let has_port =
            |ranges: Vec<(u16, u16)>| ranges.iter().any(|(first, last)| (*first..=*last).contains(&port.number));
        let selects = selects(object, labels) && !is_for_other_namespace(object, namespace);
        if has_port(egress::restricted_ranges(object, labels)) || (selects && has_port(restricted_ranges(object, kind)))
        {
            found.rules.push(format!("{}/{name} lists port {}", kind.to_ascii_lowercase(), port.number));
        }
        if !selects {
            continue;
        }
        match kind {
            "Service" => add_service_references(object, name, port, &mut found),
            "InferencePool" if pool_numbers(object).contains(&port.number) => {
                let text = format!("inferencepool/{name} connects to port {}", port.number);
                found.by_number.push(NumericReference { text, may_name: false });
            }
            _ => {}
        }
    }
    for key in MESH_PORTS {
        let own = text(pod, &["metadata", "annotations", key]);
        let inherited =
            namespace.annotations.get(key).filter(|_| own.is_none() && key.starts_with(NAMESPACE_KEY_PREFIX));
        let origin = if inherited.is_some() { " of the namespace" } else { "" };
        let lists_port = |ports: &str| in_ranges(ports, port.number);
        if own.or(inherited.map(String::as_str)).is_some_and(lists_port) {
            found.rules.push(format!("annotation {key}{origin} lists port {}", port.number));
        }
    }
    found
}

/// Returns `true` if a cluster-wide policy applies to the pods of another namespace only.
fn is_for_other_namespace(object: &Value, namespace: &Namespace) -> bool {
    let required = at(object, &["spec", "endpointSelector", "matchLabels"]).as_object();
    let mut required =
        required.into_iter().flatten().filter(|(key, _)| egress::strip_source_prefix(key) == CILIUMS_NAMESPACE);
    !namespace.name.is_empty() && required.any(|(_, name)| *name != namespace.name)
}

/// Returns the TCP port numbers that Services and pools refer to. Headless Services count only if
/// no other port is known: their clients choose the port themselves, and the manifest often lists a
/// port only because one is required.
pub(super) fn numbers(pod: &Value, objects: &[Value], headless: bool) -> Vec<u16> {
    let labels = at(pod, &["metadata", "labels"]);
    let mut found = Vec::new();
    for object in objects.iter().filter(|object| selects(object, labels)) {
        match text(object, &["kind"]) {
            Some("Service") if headless || !is_headless(object) => {
                found.extend(service_ports(object).filter_map(|port| number(target_port(port))));
            }
            Some("InferencePool") => found.extend(pool_numbers(object)),
            _ => {}
        }
    }
    found
}

/// Returns the TCP port numbers that lead to a model that the sidecar executes. A headless Service
/// counts only if no other port is known and its target differs from its port: otherwise it is often
/// the governing Service of the application, and the API server writes the default of `targetPort`.
pub(super) fn engine_numbers(pod: &Value, objects: &[Value]) -> Vec<u16> {
    let found = numbers(pod, objects, false);
    if !found.is_empty() {
        return found;
    }
    let ports = headless_services(pod, objects).flat_map(service_ports);
    let has_target = |port: &&Value| number(target_port(port)) != number(at(port, &["port"]));
    ports.filter(has_target).filter_map(|port| number(target_port(port))).collect()
}

/// Returns the headless Services of a pod with the port numbers that their clients use.
pub(super) fn headless_ports(pod: &Value, objects: &[Value]) -> Vec<(String, u16)> {
    let ports = |object| {
        let name = text(object, &["metadata", "name"]).unwrap_or("?");
        service_ports(object).filter_map(move |port| Some((format!("svc/{name}"), number(target_port(port))?)))
    };
    headless_services(pod, objects).flat_map(ports).collect()
}

fn headless_services<'a>(pod: &'a Value, objects: &'a [Value]) -> impl Iterator<Item = &'a Value> {
    let labels = at(pod, &["metadata", "labels"]);
    let services = objects.iter().filter(|object| text(object, &["kind"]) == Some("Service"));
    services.filter(move |object| is_headless(object) && selects(object, labels))
}

/// Returns the targets of a Service or pool that lead to a pod by number or name, each with its
/// origin for messages: `svc/NAME:PORT` or `inferencepool/NAME`. A headless Service has none,
/// because its clients choose the port themselves.
pub(super) fn targets(object: &Value) -> Vec<(String, PortRef)> {
    let name = text(object, &["metadata", "name"]).unwrap_or("?");
    match text(object, &["kind"]) {
        Some("Service") if !is_headless(object) => {
            let target = |port: &Value| match target_port(port) {
                Value::String(name) => Some(PortRef::Name(name.clone())),
                target => number(target).map(PortRef::Number),
            };
            let origin = |port: &Value| number(at(port, &["port"])).map(|own| format!("svc/{name}:{own}"));
            service_ports(object).filter_map(|port| Some((origin(port)?, target(port)?))).collect()
        }
        Some("InferencePool") => {
            let pool = |number| (format!("inferencepool/{name}"), PortRef::Number(number));
            pool_numbers(object).into_iter().map(pool).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the port names that Services refer to.
pub(super) fn target_names(pod: &Value, objects: &[Value]) -> Vec<String> {
    let labels = at(pod, &["metadata", "labels"]);
    let services = objects.iter().filter(|object| text(object, &["kind"]) == Some("Service"));
    let ports = services.filter(|object| selects(object, labels)).flat_map(service_ports);
    ports.filter_map(|port| target_port(port).as_str().map(str::to_owned)).collect()
}

/// Returns the ports of a Service that refer to this target number, as index and Service port. A
/// headless Service has none, because its clients connect to the pods directly.
pub(super) fn by_number(object: &Value, port: u16) -> Vec<(usize, u16)> {
    if is_headless(object) {
        return Vec::new();
    }
    let entries = list(object, &["spec", "ports"]).iter().enumerate();
    entries
        .filter(|(_, entry)| is_tcp(entry) && number(target_port(entry)) == Some(port))
        .filter_map(|(index, entry)| Some((index, number(at(entry, &["port"]))?)))
        .collect()
}

fn add_service_references(object: &Value, name: &str, port: &PortCandidate, found: &mut Referrers) {
    for entry in service_ports(object) {
        let port_text = number(at(entry, &["port"])).map_or_else(|| "?".to_owned(), |port| port.to_string());
        if is_headless(object) {
            // Clients of a headless Service resolve the pod's address and connect to a port of
            // their own choice.
            if number(at(entry, &["port"])) == Some(port.number) || number(target_port(entry)) == Some(port.number) {
                let text = format!("clients of the headless svc/{name}:{port_text} connect to port {}", port.number);
                found.by_number.push(NumericReference { text, may_name: false });
            }
        } else if number(target_port(entry)) == Some(port.number) {
            let text = format!("svc/{name}:{port_text} has the number {} as targetPort", port.number);
            found.by_number.push(NumericReference { text, may_name: true });
        } else if target_port(entry).as_str().is_some() && target_port(entry).as_str() == port.name.as_deref() {
            found.by_name.push(format!("svc/{name}:{port_text}"));
        }
    }
}

/// Returns the ranges of port numbers in a policy or mesh rule.
fn restricted_ranges(object: &Value, kind: &str) -> Vec<(u16, u16)> {
    let one = |value: &Value| numeric(value).map(|number| (number, number));
    let ingress = list(object, &["spec", "ingress"]).iter();
    match kind {
        "NetworkPolicy" => ingress.flat_map(|rule| list(rule, &["ports"])).filter_map(port_range).collect(),
        "CiliumNetworkPolicy" | "CiliumClusterwideNetworkPolicy" => ingress
            .flat_map(|rule| list(rule, &["toPorts"]))
            .flat_map(|ports| list(ports, &["ports"]))
            .filter_map(port_range)
            .collect(),
        "AuthorizationPolicy" => list(object, &["spec", "rules"])
            .iter()
            .flat_map(|rule| list(rule, &["to"]))
            .flat_map(|to| {
                list(to, &["operation", "ports"]).iter().chain(list(to, &["operation", "notPorts"])).filter_map(one)
            })
            .collect(),
        "PeerAuthentication" => {
            let ports = at(object, &["spec", "portLevelMtls"]).as_object();
            let numbers = ports.into_iter().flatten().filter_map(|(number, _)| number.parse::<u16>().ok());
            numbers.map(|number| (number, number)).collect()
        }
        "Server" => one(at(object, &["spec", "port"])).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Returns the range of port numbers in one entry of a policy's ports.
fn port_range(entry: &Value) -> Option<(u16, u16)> {
    let first = numeric(at(entry, &["port"]))?;
    let last = number(at(entry, &["endPort"])).unwrap_or(first);
    (is_tcp(entry) || text(entry, &["protocol"]) == Some("ANY")).then_some((first, last))
}

/// Parses a port number, which may be a JSON string.
fn numeric(value: &Value) -> Option<u16> {
    number(value).or_else(|| value.as_str()?.parse().ok()).filter(|number| *number > 0)
}

fn service_ports(object: &Value) -> impl Iterator<Item = &Value> {
    let ports = list(object, &["spec", "ports"]).iter();
    ports.filter(|port| is_tcp(port))
}

/// Returns the target port, which defaults to the Service's own port.
fn target_port(port: &Value) -> &Value {
    match at(port, &["targetPort"]) {
        Value::Null => at(port, &["port"]),
        // Typed clients serialize an unset `targetPort` as 0.
        target if as_integer(target) == Some(0) => at(port, &["port"]),
        target => target,
    }
}

fn is_headless(object: &Value) -> bool {
    text(object, &["spec", "clusterIP"]) == Some("None")
}

fn pool_numbers(object: &Value) -> Vec<u16> {
    let listed = list(object, &["spec", "targetPorts"]).iter().filter_map(|port| number(at(port, &["number"])));
    listed.chain(number(at(object, &["spec", "targetPortNumber"]))).collect()
}

/// Returns `true` if a list such as `80,8000-8010` contains a number.
fn in_ranges(text: &str, number: u16) -> bool {
    text.split(',').any(|part| {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        matches!((first.trim().parse::<u16>(), last.trim().parse::<u16>()), (Ok(first), Ok(last)) if (first..=last).contains(&number))
    })
}
