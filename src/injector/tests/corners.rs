//! Unusual pods: numbers in floating-point notation, undeclared ports, servers with a flag for each
//! protocol.

use serde_json::{Value, json};

use super::super::{InjectionContext, InjectionOutcome, SkipReason, inject, uninject};
use super::{context, inject_pod, injected, pod, pod_with_app_listen, policies, skipped};

/// Returns the ports that the sidecar is configured to capture.
fn captures(pod: &Value) -> Vec<&str> {
    let sidecars = pod["spec"]["initContainers"].as_array().unwrap();
    let args = sidecars.last().unwrap()["args"].as_array().unwrap();
    args.iter().filter_map(|arg| arg.as_str()?.strip_prefix("--capture=")).collect()
}

#[test]
fn a_whole_number_may_be_written_as_a_float() {
    let mut plain = pod();
    plain["spec"]["containers"][0]["ports"][0]["containerPort"] = json!(8080.0);
    plain["spec"]["terminationGracePeriodSeconds"] = json!(120.0);
    plain["spec"]["securityContext"] = json!({"runAsUser": 0.0});
    let whole = injected(&plain, &context());
    assert_eq!(captures(&whole), ["http:8080@15080"]);
    let sidecar = &whole["spec"]["initContainers"][0];
    assert_eq!(sidecar["securityContext"]["runAsUser"], 65532);
    assert!(sidecar["env"].as_array().unwrap().contains(&json!({"name": "GROUPAGE_GRACE", "value": "120s"})));
    assert_eq!(uninject(&whole).unwrap().pod, plain);
    plain["spec"]["containers"][0]["ports"][0]["containerPort"] = json!(8080.5);
    assert_ne!(inject(&plain, &context()).injected().map(|whole| captures(&whole.pod).len()), Some(1));
}

#[test]
fn an_empty_protocol_is_tcp() {
    let mut plain = pod();
    plain["spec"]["containers"][0]["ports"][0]["protocol"] = json!("");
    assert_eq!(captures(&injected(&plain, &context())), ["http:8080@15080"]);
    plain["spec"]["containers"][0]["ports"][0]["protocol"] = json!("UDP");
    assert_eq!(skipped(&plain, &context()), SkipReason::UdpOnly);
}

#[test]
fn a_port_used_only_by_probes_moves_to_loopback_with_the_declared_ones() {
    let mut plain = pod_with_app_listen("env:HOST=127.0.0.1");
    let app = &mut plain["spec"]["containers"][0];
    app["startupProbe"] = json!({"tcpSocket": {"port": 8083}});
    app["livenessProbe"] = json!({"grpc": {"port": 9190}});
    app["readinessProbe"] = json!({"httpGet": {"path": "/ready", "port": 15021}});
    plain["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "second", "image": "x"}));
    let whole = injected(&plain, &context());
    assert_eq!(captures(&whole), ["http:8080@pod", ":9190@pod", ":8083@pod"], "15021 is Istio's");
    let app = &whole["spec"]["containers"][0];
    // Port 9190 is the application's here.
    assert_eq!(app["startupProbe"]["httpGet"], json!({"path": "/connect/8083", "port": 9191}));
    assert_eq!(app["livenessProbe"], json!({"grpc": {"port": 9190}}));
    assert_eq!(injected(&whole, &context()), whole);
    assert_eq!(uninject(&whole).unwrap().pod, plain);
    plain["metadata"]["annotations"]["groupage.dev/capture"] = json!("Named");
    assert_eq!(captures(&injected(&plain, &context())), ["http:8080@15080"], "only the declared port");
    plain["metadata"]["annotations"] = json!({"groupage.dev/inject": "enabled", "groupage.dev/capture": "Loopback"});
    assert_eq!(captures(&injected(&plain, &context())), ["http:8080@pod"], "only the declared port");
}

#[test]
fn several_app_listen_values_apply_to_one_server() {
    let mut plain =
        pod_with_app_listen("app/arg:--http-address=127.0.0.1, arg:--origins=a,b,env:GRPC=127.0.0.1:1,arg:--grpc ::1");
    plain["spec"]["containers"][0]["args"] = json!(["serve", "--grpc", "0.0.0.0"]);
    let whole = injected(&plain, &context());
    let app = &whole["spec"]["containers"][0];
    assert_eq!(app["args"], json!(["serve", "--grpc", "::1", "--http-address=127.0.0.1", "--origins=a,b"]));
    assert_eq!(app["env"], json!([{"name": "GRPC", "value": "127.0.0.1:1"}]));
    assert_eq!(injected(&whole, &context()), whole);
    assert_eq!(uninject(&whole).unwrap().pod, plain);
}

#[test]
fn two_flags_in_one_argument_and_values_of_two_containers_are_refused() {
    for app_listen in
        ["arg:--http=127.0.0.1 --grpc=127.0.0.1", "app/env:A=1,other/env:B=2", "env:A=1,arg:", "arg:-a,env:B"]
    {
        let InjectionOutcome::Refused(problems) = inject(&pod_with_app_listen(app_listen), &context()) else {
            panic!("{app_listen}")
        };
        assert!(problems[0].message.contains("several separated by commas"), "{}", problems[0].message);
    }
}

#[test]
fn a_shell_is_recognised_by_its_flags() {
    for (command, is_shell) in [
        (json!(["/bin/bash", "-lc"]), true),
        (json!(["sh", "-e", "-xc"]), true),
        (json!(["/bin/sh", "-c"]), true),
        (json!(["-c"]), true),
        (json!(["serve", "-rpc"]), false),
        (json!(["gunicorn", "-c", "conf.py"]), false),
        (json!(["bash", "--rc"]), false),
    ] {
        let mut plain = pod_with_app_listen("arg:--host=127.0.0.1");
        plain["spec"]["containers"][0]["command"] = command.clone();
        plain["spec"]["containers"][0]["args"] = json!(["serve x"]);
        let warned =
            inject_pod(&plain, &context()).report.warnings.iter().any(|warning| warning.contains("runs a shell"));
        assert_eq!(warned, is_shell, "{command}");
    }
}

#[test]
fn a_new_port_name_is_unique_in_the_pod() {
    let mut plain = pod();
    let other = json!({"name": "other", "image": "x", "ports": [{"name": "gpg-8080", "containerPort": 7000}]});
    plain["spec"]["containers"].as_array_mut().unwrap().push(other);
    plain["metadata"]["annotations"]["groupage.dev/ports"] = json!("http");
    let whole = injected(&plain, &context());
    assert_eq!(whole["spec"]["containers"][0]["ports"][0]["name"], "gpg-8080-2");
    assert_eq!(uninject(&whole).unwrap().pod, plain);
}

#[test]
fn a_number_that_was_edited_in_an_injected_manifest_keeps_its_name_and_its_probe() {
    let mut plain = pod();
    plain["spec"]["containers"][0]["readinessProbe"] = json!({"httpGet": {"path": "/", "port": "http"}});
    let mut edited = injected(&plain, &context());
    edited["spec"]["containers"][0]["ports"][0]["containerPort"] = json!(8081);
    plain["spec"]["containers"][0]["ports"][0]["containerPort"] = json!(8081);
    assert_eq!(uninject(&edited).unwrap().pod, plain);
    assert_eq!(captures(&injected(&edited, &context())), ["http:8081@15080"]);
    // The port was removed, so a probe that refers to its name would not resolve.
    edited["spec"]["containers"][0]["ports"] = json!([{"name": "web", "containerPort": 8080}]);
    let undone = uninject(&edited).unwrap();
    assert_eq!(undone.pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"], 8080);
    assert_eq!(undone.warnings.len(), 2, "{:?}", undone.warnings);
}

#[test]
fn a_port_name_stays_on_the_application_before_kubernetes_1_33() {
    let old = InjectionContext { supports_native_sidecars: false, ..context() };
    let mut forced = pod();
    forced["metadata"]["annotations"]["groupage.dev/native-sidecar"] = json!("Always");
    let done = inject_pod(&forced, &old);
    assert_eq!(done.pod["spec"]["containers"][0], forced["spec"]["containers"][0], "no name and no hook");
    let warnings = &done.report.warnings;
    assert!(warnings.iter().any(|warning| warning.contains("before Kubernetes 1.33")), "{warnings:?}");
    assert!(!done.report.captured);
    forced["metadata"]["annotations"]["groupage.dev/app-listen"] = json!("env:HOST=127.0.0.1");
    assert_eq!(captures(&injected(&forced, &old)), ["http:8080@pod"]);
}

#[test]
fn only_a_native_sidecar_before_ours_keeps_a_name_from_moving() {
    let with = |restart: Value| {
        let mut plain = pod();
        let ports = json!([{"name": "http", "containerPort": 7000}]);
        plain["spec"]["initContainers"] = json!([{"name": "migrate", "restartPolicy": restart, "ports": ports}]);
        plain
    };
    let named = |pod: &Value, context: &InjectionContext| {
        injected(pod, context)["spec"]["containers"][0]["ports"][0]["name"] == "gpg-8080"
    };
    assert!(named(&with(json!(null)), &context()), "Services ignore init containers that end");
    assert!(!named(&with(json!("Always")), &context()));
    assert!(
        named(&with(json!("Always")), &InjectionContext { supports_native_sidecars: false, ..context() }),
        "a plain one is found first"
    );
    assert_eq!(captures(&injected(&with(json!(null)), &context())), ["http:8080@15080"]);
}

#[test]
fn a_quoted_port_number_in_a_policy_is_a_number() {
    let policies = policies(json!({"injection": {"ports": ["8080", "0", "9000"]}}));
    let context = InjectionContext { policies, ..context() };
    assert_eq!(captures(&injected(&pod(), &context)), ["http:8080@15080", ":9000@15081"]);
}

#[test]
fn a_container_of_which_no_port_is_captured_has_no_drain_hook() {
    let mut plain = pod();
    plain["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080}]);
    let whole = injected(&plain, &context());
    assert_eq!(whole["spec"]["containers"], plain["spec"]["containers"]);
    assert_eq!(uninject(&whole).unwrap().pod, plain);
}

#[test]
fn the_opaque_ports_of_a_namespace_apply_to_pods_without_their_own() {
    let mut meshed = context();
    meshed.namespace.annotations.insert("config.linkerd.io/opaque-ports".to_owned(), "25,8000-8080".to_owned());
    meshed.namespace.annotations.insert("traffic.kuma.io/exclude-inbound-ports".to_owned(), "8080".to_owned());
    let warning = |pod: &Value| {
        inject_pod(pod, &meshed).report.warnings.into_iter().find(|warning| warning.starts_with("annotation "))
    };
    let found = warning(&pod()).unwrap();
    assert!(found.starts_with("annotation config.linkerd.io/opaque-ports of the namespace lists port 8080"), "{found}");
    let mut own = pod();
    own["metadata"]["annotations"]["config.linkerd.io/opaque-ports"] = json!("25");
    assert_eq!(warning(&own), None);
    own["metadata"]["annotations"]["traffic.kuma.io/exclude-inbound-ports"] = json!("8080");
    assert!(warning(&own).unwrap().starts_with("annotation traffic.kuma.io/exclude-inbound-ports lists port 8080"));
}

#[test]
fn a_policy_of_cilium_for_the_whole_cluster_counts_but_for_another_namespaces() {
    let policy = |selector: Value| {
        let ports = json!([{"ports": [{"port": "8080", "protocol": "TCP"}]}]);
        json!({"kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "c"}, "spec": {"endpointSelector": selector, "ingress": [{"toPorts": ports}]}})
    };
    for (selector, counts) in [
        (json!({}), true),
        (json!({"matchLabels": {"k8s:app": "p"}}), true),
        (json!({"matchLabels": {"app": "x"}}), false),
        (json!({"matchLabels": {"app": "p", "k8s:io.kubernetes.pod.namespace": "here"}}), true),
        (json!({"matchLabels": {"app": "p", "k8s:io.kubernetes.pod.namespace": "there"}}), false),
        (json!(null), false),
    ] {
        let mut context = InjectionContext { referrers: std::sync::Arc::from([policy(selector.clone())]), ..context() };
        context.namespace.name = "here".to_owned();
        let warnings = inject_pod(&pod(), &context).report.warnings;
        let warned = warnings.iter().any(|line| line.starts_with("ciliumclusterwidenetworkpolicy/c lists port 8080"));
        assert_eq!(warned, counts, "{selector}");
    }
}

#[test]
fn the_name_of_an_engine_does_not_resolve_before_kubernetes_1_33() {
    let mut pod = pod();
    pod["spec"] = json!({"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "app", "image": "app"}]});
    for (key, value) in [("engine", "m"), ("engine-volume", "v"), ("native-sidecar", "Always")] {
        pod["metadata"]["annotations"][format!("groupage.dev/{key}")] = json!(value);
    }
    let names = |context: &InjectionContext| {
        let injected = inject_pod(&pod, context);
        let status = injected.pod["metadata"]["annotations"][crate::STATUS].as_str().unwrap().to_owned();
        assert!(injected.pod["spec"]["containers"][0]["lifecycle"]["preStop"].is_object(), "every container drains it");
        let is_warned = injected.report.warnings.iter().any(|line| line.contains("port name http"));
        (status.contains(r#""names":["http"]"#), is_warned)
    };
    assert_eq!(names(&context()), (true, false));
    assert_eq!(names(&InjectionContext { supports_native_sidecars: false, ..context() }), (false, true));
}
