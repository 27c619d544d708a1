//! Egress policies of callers that refer to a pod's port number. Such a policy would drop traffic
//! to the sidecar's port.
//!
//! The pods that such a policy selects are not examined: whichever they are, the policy exists to
//! let them reach this pod. Peers given by address, by DNS name or by Service are ignored, because
//! it is unknown here whether they include this pod.

use serde_json::Value;

use super::super::access::{at, list, matches_selector, text};
use super::port_range;

/// Returns the ranges of port numbers by which policies let callers reach pods with these labels.
pub(super) fn restricted_ranges(object: &Value, labels: &Value) -> Vec<(u16, u16)> {
    let rules = list(object, &["spec", "egress"]).iter();
    match text(object, &["kind"]) {
        Some("NetworkPolicy") => {
            let types = list(object, &["spec", "policyTypes"]);
            // Without `policyTypes`, a policy with egress rules applies to egress.
            let holds = types.is_empty() || types.iter().any(|word| word == "Egress");
            let rules = rules.filter(|rule| holds && leads_to(rule, labels));
            rules.flat_map(|rule| list(rule, &["ports"])).filter_map(port_range).collect()
        }
        Some("CiliumNetworkPolicy" | "CiliumClusterwideNetworkPolicy") => rules
            .filter(|rule| list(rule, &["toEndpoints"]).iter().any(|peer| selects_endpoint(peer, labels)))
            .flat_map(|rule| list(rule, &["toPorts"]))
            .flat_map(|ports| list(ports, &["ports"]))
            .filter_map(port_range)
            .collect(),
        _ => Vec::new(),
    }
}

/// Returns `true` if a rule covers these pods. A rule without peers covers all pods. A peer with a
/// namespace selector counts only if its pod selector is not empty, because it may then include
/// this namespace.
fn leads_to(rule: &Value, labels: &Value) -> bool {
    let peers = list(rule, &["to"]);
    peers.is_empty()
        || peers.iter().any(|peer| {
            let pods = at(peer, &["podSelector"]);
            let any_namespace = at(peer, &["namespaceSelector"]).is_null();
            pods.is_object() && matches_selector(labels, pods) && (any_namespace || is_nonempty_selector(pods))
        })
}

/// Returns `true` if a Cilium endpoint selector matches these labels. Its keys may have a prefix
/// with the source of the label.
pub(super) fn selects_endpoint(peer: &Value, labels: &Value) -> bool {
    let mut plain = peer.clone();
    if let Some(required) = plain.get_mut("matchLabels").and_then(Value::as_object_mut) {
        let named = std::mem::take(required).into_iter();
        let own = |key: &String| !key.contains("io.kubernetes.pod.namespace");
        required.extend(
            named.filter(|(key, _)| own(key)).map(|(key, value)| (strip_source_prefix(&key).to_owned(), value)),
        );
    }
    matches_selector(labels, &plain)
}

pub(super) fn strip_source_prefix(key: &str) -> &str {
    key.strip_prefix("k8s:").or_else(|| key.strip_prefix("any:")).unwrap_or(key)
}

fn is_nonempty_selector(selector: &Value) -> bool {
    at(selector, &["matchLabels"]).as_object().is_some_and(|map| !map.is_empty())
        || !list(selector, &["matchExpressions"]).is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn network_policy(egress: &Value) -> Value {
        json!({"kind": "NetworkPolicy", "spec": {"podSelector": {"matchLabels": {"app": "client"}}, "policyTypes": ["Egress"], "egress": egress}})
    }

    #[test]
    fn an_egress_policy_with_a_port_number_counts_if_it_selects_the_pod() {
        let labels = json!({"app": "m"});
        let ours = json!({"podSelector": {"matchLabels": {"app": "m"}}});
        let theirs = json!({"podSelector": {"matchLabels": {"app": "x"}}});
        let away = json!({"namespaceSelector": {"matchLabels": {"a": "b"}}, "podSelector": {}});
        let here = json!({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "m"}}});
        for (to, counts) in [
            (json!([ours]), true),
            (json!([theirs]), false),
            (json!([theirs, here]), true),
            (json!([away]), false),
            (json!([{"ipBlock": {"cidr": "10.0.0.0/8"}}]), false),
            (json!([]), true),
        ] {
            let policy = network_policy(&json!([{"to": to, "ports": [{"port": 8080}, {"port": "http"}]}]));
            assert_eq!(
                restricted_ranges(&policy, &labels),
                if counts { vec![(8080, 8080)] } else { vec![] },
                "{policy}"
            );
        }
    }

    #[test]
    fn cilium_keys_may_have_a_source_prefix() {
        let policy = |key: &str| {
            json!({"kind": "CiliumNetworkPolicy", "spec": {"egress": [{
                "toEndpoints": [{"matchLabels": {key: "m", "k8s:io.kubernetes.pod.namespace": "n"}}],
                "toPorts": [{"ports": [{"port": "8080", "protocol": "TCP"}]}],
            }]}})
        };
        for key in ["app", "k8s:app", "any:app"] {
            assert_eq!(restricted_ranges(&policy(key), &json!({"app": "m"})), [(8080, 8080)], "{key}");
        }
        assert_eq!(restricted_ranges(&policy("app"), &json!({"app": "x"})), []);
    }
}
