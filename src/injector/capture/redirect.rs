//! Permission to redirect the ports of a pod, which needs an init container with `NET_ADMIN`.

use serde_json::Value;

use crate::access::{at, list, text};
use crate::api::v1alpha1::CaptureMode;
use crate::{InjectionContext, RedirectUse, SkipReason, SkippedPod};

/// Containers of meshes that redirect, and init containers that set up the redirects.
const MESH_CONTAINERS: [&str; 8] = [
    "istio-proxy",
    "istio-init",
    "istio-validation",
    "linkerd-proxy",
    "linkerd-init",
    "linkerd-network-validator",
    "kuma-sidecar",
    "consul-dataplane",
];

/// Keys of labels and annotations that enable a mesh for a pod or namespace, with the values that
/// enable it; an empty list accepts any value. A different value on the pod disables the mesh,
/// whatever its namespace has.
const MESH_KEYS: [(&str, &[&str]); 7] = [
    ("sidecar.istio.io/inject", &["true"]),
    ("istio-injection", &["enabled"]),
    ("istio.io/rev", &[]),
    ("istio.io/dataplane-mode", &["ambient"]),
    ("linkerd.io/inject", &["enabled", "ingress"]),
    ("kuma.io/sidecar-injection", &["enabled", "true"]),
    ("consul.hashicorp.com/connect-inject", &["true"]),
];

/// Returns the permitted use of a redirect for a pod.
///
/// # Errors
/// A redirect is requested but forbidden.
pub(super) fn permitted_use(
    pod: &Value,
    context: &InjectionContext,
    requested: CaptureMode,
) -> Result<RedirectUse, SkippedPod> {
    match redirect_forbidden(pod, context) {
        Some(skipped) if requested == CaptureMode::Redirect => Err(skipped),
        Some(_) => Ok(RedirectUse::Never),
        None => Ok(context.redirect),
    }
}

/// Returns the reason why a redirect is forbidden, or `None` if it is allowed.
fn redirect_forbidden(pod: &Value, context: &InjectionContext) -> Option<SkippedPod> {
    if context.redirect == RedirectUse::Never {
        return Some(SkipReason::RedirectForbidden.with_detail(
            "the installation adds no init container with NET_ADMIN (injector.redirect of the chart, or --redirect offline, is Never); an annotation cannot override this",
        ));
    }
    let enforced = context.namespace.labels.get("pod-security.kubernetes.io/enforce").map(String::as_str);
    if let Some(level @ ("restricted" | "baseline")) = enforced {
        return Some(
            SkipReason::RedirectForbidden
                .with_detail(format!("the namespace enforces Pod Security {level}, which forbids NET_ADMIN")),
        );
    }
    if is_meshed(pod, context) {
        return Some(SkipReason::RedirectMeshed.with_detail(
            "a mesh already redirects this pod's ports, and two redirects would conflict: use Named or Loopback",
        ));
    }
    None
}

/// Returns `true` if a redirecting mesh is in the pod, or will be injected.
fn is_meshed(pod: &Value, context: &InjectionContext) -> bool {
    let mut containers = list(pod, &["spec", "containers"]).iter().chain(list(pod, &["spec", "initContainers"]));
    if containers.any(|container| text(container, &["name"]).is_some_and(|name| MESH_CONTAINERS.contains(&name))) {
        return true;
    }
    let enables =
        |words: &[&str], value: &str| words.is_empty() || words.iter().any(|word| word.eq_ignore_ascii_case(value));
    let of_pod = |key: &str| {
        let maps = ["labels", "annotations"].map(|map| at(pod, &["metadata", map]));
        maps.into_iter().find_map(|map| map.get(key)?.as_str()).map(str::to_owned)
    };
    let of_namespace = |key: &str| {
        let InjectionContext { namespace, .. } = context;
        namespace.labels.get(key).or_else(|| namespace.annotations.get(key)).map(String::as_str)
    };
    let is_enabled = |key: &str, words: &[&str]| match of_pod(key) {
        Some(value) => enables(words, &value),
        None => of_namespace(key).is_some_and(|value| enables(words, value)),
    };
    let no_sidecar = of_pod("sidecar.istio.io/inject").is_some_and(|value| !value.eq_ignore_ascii_case("true"));
    MESH_KEYS
        .iter()
        // The pod's own opt-out takes precedence over the keys that add Istio's sidecar to a whole
        // namespace.
        .filter(|(key, _)| !(no_sidecar && matches!(*key, "istio-injection" | "istio.io/rev")))
        .any(|(key, words)| is_enabled(key, words))
}
