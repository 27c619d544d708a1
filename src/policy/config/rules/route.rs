//! Routes that no call reaches, and keys of routes without effect. A policy with them works, but
//! hardly as meant, so each is accepted with a notice.

use serde_json::Value as Json;

use super::list;
use crate::config::check::Validator;
use crate::config::values::to_route_protocol;
use crate::protocol::{PathPattern, RouteProtocol};

/// Prefix of the paths of models in the Open Inference Protocol.
const OPEN_INFERENCE_MODELS: &str = "/v2/models/";

/// Checks every route, also against the earlier ones, which take precedence.
pub(super) fn apply(check: &mut Validator, spec: &Json) {
    let routes = list(&spec["routes"]);
    for (index, route) in routes.iter().enumerate() {
        let path = format!("routes[{index}]");
        check_endpoint(check, &path, route);
        check_order(check, &path, route, routes.get(..index).unwrap_or_default());
        check_passing(check, &path, route, &spec["mode"]);
        let aside = format!("{path}.limits.standAsideMax");
        if check.has(&aside) {
            check.notice(&aside, "is ignored, because all routes share the server: write limits.standAsideMax");
        }
    }
    check_late(check, spec, routes);
    if spec["mode"] == "Passthrough" && check.has("slo") {
        check.notice("slo", "in mode Passthrough every call is forwarded at once, so it orders and refuses no call");
    }
}

/// Reports ports without effect, and a path at which the protocol of its route merges nothing or
/// cannot merge.
fn check_endpoint(check: &mut Validator, path: &str, route: &Json) {
    if !list(&route["ports"]).is_empty() {
        check.notice(&format!("{path}.ports"), "applies only to captured ports (--capture), and is ignored otherwise");
    }
    let (Some(protocol), Some(pattern)) = (protocol(check, path, route), route["path"].as_str()) else { return };
    if route["mode"] == "Passthrough" || passes_all(protocol) {
        return;
    }
    let at = format!("{path}.path");
    if protocol == RouteProtocol::Generic && is_open_inference(pattern) {
        check.notice(
            &at,
            "calls at this path are of the Open Inference Protocol (KServe V2), whose tensors Generic cannot merge: \
             write protocol OpenInferenceV2",
        );
    }
    if !pattern.ends_with("/*") && !protocol.is_recognised(pattern) {
        let word = route["protocol"].as_str().unwrap_or("Auto");
        check
            .notice(&at, &format!("protocol {word} has no endpoint at this path, so its calls pass through unbatched"));
    }
}

/// Reports a route that never matches, because an earlier one matches all of its calls.
fn check_order(check: &mut Validator, path: &str, route: &Json, earlier: &[Json]) {
    let Some(own) = route["path"].as_str() else { return };
    let hides = |other: &Json| {
        let pattern = other["path"].as_str().and_then(|pattern| PathPattern::parse(pattern).ok());
        // A prefix covers the text of every pattern below it.
        pattern.is_some_and(|pattern| pattern.matches(own)) && method(other) == method(route) && covers(other, route)
    };
    let Some(index) = earlier.iter().position(hides) else { return };
    let at = format!("{path}.path");
    if earlier.get(index).is_some_and(|other| other["path"] == own) {
        check.notice(&at, "an earlier route has the same path and method, so this one never matches");
    } else {
        let message = format!(
            "routes[{index}] matches all of its calls, and the first match applies, so this one never matches: move \
             it before routes[{index}]"
        );
        check.notice(&at, &message);
    }
}

/// Reports keys about queued calls on a route that queues none.
fn check_passing(check: &mut Validator, path: &str, route: &Json, policy_mode: &Json) {
    let own = if policy_mode == "Passthrough" { policy_mode } else { &route["mode"] };
    let mode = own.as_str().or(policy_mode.as_str()).unwrap_or("Batch");
    let passes = protocol(check, path, route).is_some_and(passes_all);
    let reason = if passes {
        format!("protocol {} passes every call through", route["protocol"].as_str().unwrap_or_default())
    } else {
        format!("in mode {mode} every call is forwarded at once")
    };
    let (timeout, slo) = (format!("{path}.timeout"), format!("{path}.slo"));
    if check.has(&timeout) && (passes || mode != "Batch") {
        check.notice(&timeout, &format!("{reason}, and only proxy.client.passThroughIdleTimeout applies to it"));
    }
    let merge = format!("{path}.merge");
    if route["merge"] == "Always" && (passes || mode == "Passthrough") {
        check.notice(&merge, &format!("{reason}, so none is merged"));
    }
    // In mode Observe, predictions depend on the SLO.
    if check.has(&slo) && (passes || mode == "Passthrough") {
        check.notice(&slo, &format!("{reason}, so it orders and refuses no call"));
    }
}

/// Reports `late: Refuse` where no latency is set that a call could miss.
fn check_late(check: &mut Validator, spec: &Json, routes: &[Json]) {
    let has_latency = |slo: &Json| slo["latencyP99"].is_string();
    // Without a header, every call belongs to the first class.
    let count = if check.has("priority.header") { usize::MAX } else { 1 };
    let of_all = has_latency(&spec["slo"]) || list(&spec["priority"]["classes"]).iter().take(count).any(has_latency);
    let inherits = |route: &Json| has_latency(&route["slo"]) && route["slo"]["late"] != "Serve";
    let message = "no latencyP99 applies to these calls, so none is ever late and none is refused: add latencyP99";
    if spec["slo"]["late"] == "Refuse" && !of_all && !routes.iter().any(inherits) {
        check.notice("slo.late", message);
    }
    for (index, route) in routes.iter().enumerate() {
        if route["slo"]["late"] == "Refuse" && !of_all && !has_latency(&route["slo"]) {
            check.notice(&format!("routes[{index}].slo.late"), message);
        }
    }
}

/// Returns the protocol of a route; `None` if it is invalid, which has already been reported.
fn protocol(check: &Validator, path: &str, route: &Json) -> Option<RouteProtocol> {
    match &route["protocol"] {
        Json::Null if !check.has(&format!("{path}.protocol")) => Some(RouteProtocol::Auto),
        word => serde_json::from_value(word.clone()).ok().map(to_route_protocol),
    }
}

/// Returns `true` if every call of this protocol passes through.
const fn passes_all(protocol: RouteProtocol) -> bool {
    matches!(protocol, RouteProtocol::PassThrough)
}

/// Returns `true` if every call that the pattern matches is of the Open Inference Protocol, or all
/// that a server of this protocol receives there.
fn is_open_inference(pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => prefix.starts_with(OPEN_INFERENCE_MODELS),
        None => RouteProtocol::OpenInferenceV2.is_recognised(pattern) && pattern.contains(OPEN_INFERENCE_MODELS),
    }
}

/// Returns `true` if all ports of a route are among those of another one.
fn covers(other: &Json, route: &Json) -> bool {
    let (all, own) = (list(&other["ports"]), list(&route["ports"]));
    all.is_empty() || !own.is_empty() && own.iter().all(|port| all.contains(port))
}

fn method(route: &Json) -> &str {
    route["method"].as_str().unwrap_or("POST")
}

#[cfg(test)]
mod tests {
    use crate::config::load;

    /// Returns the paths of the notices about a policy.
    fn noticed(text: &str) -> Vec<String> {
        load(text, "p").unwrap().notices.into_iter().map(|notice| notice.path).collect()
    }

    #[test]
    fn a_route_behind_a_pattern_that_covers_it_never_matches() {
        for (routes, found) in [
            ("{path: /*}, {path: /v1/embeddings, mode: Passthrough}", true),
            ("{path: /v1/*}, {path: /v1/models/*, protocol: KServeV1}", true),
            ("{path: /v1/embeddings}, {path: /v1/*}", false),
            ("{path: /x/*, protocol: PassThrough}, {path: /x, protocol: PassThrough}", false),
            ("{path: /v1/*, method: PUT}, {path: /v1/embeddings}", false),
        ] {
            let noticed = noticed(&format!("routes: [{routes}]"));
            assert_eq!(noticed.contains(&"routes[1].path".to_owned()), found, "{routes}: {noticed:?}");
        }
        let notices = load("routes: [{path: /v1/*}, {path: /v1/embeddings}]", "p").unwrap().notices;
        assert!(notices[0].message.contains("move it before routes[0]"), "{}", notices[0].message);
    }

    #[test]
    fn a_refusal_of_late_calls_without_a_latency_has_no_effect() {
        assert_eq!(noticed("slo: {late: Refuse}"), ["slo.late"]);
        assert_eq!(noticed("routes: [{path: /embed, slo: {late: Refuse}}]"), ["routes[0].slo.late"]);
        for text in [
            "slo: {late: Refuse, latencyP99: 1s}",
            "slo: {late: Refuse}\nroutes: [{path: /embed, slo: {latencyP99: 1s}}]",
            "slo: {latencyP99: 1s}\nroutes: [{path: /embed, slo: {late: Refuse}}]",
            "slo: {late: Refuse}\npriority: {header: x-p, classes: [{name: a}, {name: b, latencyP99: 1s}]}",
            "slo: {late: Serve}",
        ] {
            assert!(noticed(text).is_empty(), "{text}");
        }
        let overridden = "slo: {late: Refuse}\nroutes: [{path: /embed, slo: {late: Serve, latencyP99: 1s}}]";
        assert_eq!(noticed(overridden), ["slo.late"]);
    }

    #[test]
    fn keys_about_queued_calls_have_no_effect_where_calls_pass_through() {
        let keys = "timeout: 1s, slo: {latencyP99: 1s}";
        let both = ["routes[0].timeout", "routes[0].slo"];
        assert_eq!(noticed(&format!("routes: [{{path: /x, protocol: PassThrough, {keys}}}]")), both);
        assert_eq!(noticed(&format!("routes: [{{path: /embed, mode: Passthrough, {keys}}}]")), both);
        assert_eq!(noticed(&format!("mode: Passthrough\nroutes: [{{path: /embed, mode: Batch, {keys}}}]")), both);
        assert_eq!(noticed(&format!("mode: Observe\nroutes: [{{path: /embed, {keys}}}]")), &both[..1]);
        assert!(noticed(&format!("mode: Observe\nroutes: [{{path: /embed, mode: Batch, {keys}}}]")).is_empty());
        assert_eq!(noticed("mode: Passthrough\nslo: {latencyP99: 1s}"), ["slo"]);
    }

    #[test]
    fn a_stand_aside_limit_of_a_route_is_reported() {
        let found = noticed("limits: {standAsideMax: 8}\nroutes: [{path: /embed, limits: {standAsideMax: 8}}]");
        assert_eq!(found, ["routes[0].limits.standAsideMax"]);
    }

    #[test]
    fn generic_is_not_taken_for_a_protocol_of_tensors() {
        let generic = "protocol: Generic, generic: {items: /inputs, results: /outputs}";
        for path in ["/v2/models/m/infer", "/v2/models/*", "/v2/models/m/versions/1/infer"] {
            assert_eq!(noticed(&format!("routes: [{{path: {path}, {generic}}}]")), ["routes[0].path"], "{path}");
        }
        for path in ["/*", "/v2/embed", "/v2/*"] {
            assert!(noticed(&format!("routes: [{{path: {path}, {generic}}}]")).is_empty(), "{path}");
        }
        let passes = format!("routes: [{{path: /v2/models/m/infer, mode: Passthrough, {generic}}}]");
        assert!(noticed(&passes).is_empty());
    }
}
