//! Changes by other components between two passes, and the result of the second pass.

use serde_json::{Value, json};

use super::super::{InjectionOutcome, inject, uninject};
use super::{context, injected, pod, pod_with_app_listen};

fn sidecar(pod: &mut Value) -> &mut Value {
    let all = pod["spec"]["initContainers"].as_array_mut().unwrap();
    all.iter_mut().find(|container| container["name"] == "groupage").unwrap()
}

#[test]
fn defaults_of_the_api_server_are_kept_and_need_no_patch() {
    let mut filled = injected(&pod(), &context());
    let container = sidecar(&mut filled);
    container["terminationMessagePath"] = json!("/dev/termination-log");
    container["startupProbe"]["successThreshold"] = json!(1);
    container["startupProbe"]["httpGet"]["scheme"] = json!("HTTP");
    filled["spec"]["volumes"][0]["projected"]["defaultMode"] = json!(420);
    filled["spec"]["containers"][0]["lifecycle"]["preStop"]["httpGet"]["scheme"] = json!("HTTP");
    filled["spec"]["restartPolicy"] = json!("Always");
    assert_eq!(injected(&filled, &context()), filled);
    let mut plain = pod();
    plain["spec"]["restartPolicy"] = json!("Always");
    assert_eq!(uninject(&filled).unwrap().pod, plain);
}

#[test]
fn a_probe_of_the_sidecar_keeps_the_defaults_of_the_api_server_and_is_restored() {
    let mut plain = pod();
    plain["metadata"]["annotations"]["groupage.dev/capture"] = json!("Loopback");
    plain["spec"]["containers"][0]["startupProbe"] = json!({"tcpSocket": {"port": "http"}, "failureThreshold": 120});
    let mut filled = injected(&plain, &context());
    let probe = &mut filled["spec"]["containers"][0]["startupProbe"];
    assert_eq!(*probe, json!({"httpGet": {"path": "/connect/8080", "port": 9190}, "failureThreshold": 120}));
    probe["httpGet"]["scheme"] = json!("HTTP");
    assert_eq!(injected(&filled, &context()), filled);
    assert_eq!(uninject(&filled).unwrap().pod, plain);
    // A handler of another webhook is kept and reported.
    filled["spec"]["containers"][0]["startupProbe"]["httpGet"] =
        json!({"path": "/app-health/app/startupz", "port": 15020});
    let back = uninject(&filled).unwrap();
    assert_eq!(back.pod["spec"]["containers"][0]["startupProbe"]["httpGet"]["port"], 15020);
    assert!(back.warnings[0].contains("startupProbe of container app"), "{:?}", back.warnings);
}

#[test]
fn foreign_changes_to_the_sidecar_are_kept_while_its_settings_are_unchanged() {
    let mut changed = injected(&pod(), &context());
    let container = sidecar(&mut changed);
    container["image"] = json!("mirror.local/groupage");
    container["startupProbe"]["httpGet"] = json!({"path": "/app-health/groupage/startupz", "port": 15020});
    container["env"].as_array_mut().unwrap().push(json!({"name": "HTTPS_PROXY", "value": "http://p"}));
    container["volumeMounts"].as_array_mut().unwrap().push(json!({"name": "zone", "mountPath": "/etc/localtime"}));
    changed["spec"]["volumes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "zone", "hostPath": {"path": "/etc/localtime"}}));
    let again = injected(&changed, &context());
    assert_eq!(again["spec"]["initContainers"], changed["spec"]["initContainers"]);
    assert_eq!(injected(&again, &context()), again);
}

#[test]
fn a_second_pass_captures_new_containers_and_keeps_foreign_additions() {
    let mut changed = injected(&pod(), &context());
    sidecar(&mut changed)["image"] = json!("mirror.local/groupage");
    sidecar(&mut changed)["env"].as_array_mut().unwrap().insert(0, json!({"name": "P", "value": "1"}));
    let later = json!({"name": "late", "image": "late", "ports": [{"name": "grpc", "containerPort": 15080}], "livenessProbe": {"tcpSocket": {"port": "grpc"}}});
    changed["spec"]["containers"].as_array_mut().unwrap().push(later);
    changed["spec"]["initContainers"].as_array_mut().unwrap().push(json!({"name": "log", "restartPolicy": "Always"}));
    let mut again = injected(&changed, &context());
    assert_eq!(injected(&again, &context()), again);
    let names: Vec<&Value> =
        again["spec"]["initContainers"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["log", "groupage"], "the sidecar comes last again");
    let late = &again["spec"]["containers"][1];
    assert_eq!(
        (&late["ports"][0]["name"], &late["livenessProbe"]["tcpSocket"]["port"]),
        (&json!("gpg-15080"), &json!(15080))
    );
    let container = sidecar(&mut again);
    assert_eq!(container["image"], "mirror.local/groupage");
    let listens: Vec<&Value> =
        container["ports"].as_array().unwrap().iter().map(|port| &port["containerPort"]).collect();
    assert_eq!(listens, [15081, 15082, 9190], "15080 is the newcomer's");
    assert!(container["env"].as_array().unwrap().contains(&json!({"name": "P", "value": "1"})));
}

#[test]
fn later_changes_are_kept_and_reported() {
    let mut before = pod();
    let app = &mut before["spec"]["containers"][0];
    app["livenessProbe"] = json!({"httpGet": {"path": "/", "port": "http"}});
    app["env"] = json!([{"name": "HOST", "value": "0.0.0.0"}]);
    before["metadata"]["annotations"]["groupage.dev/app-listen"] = json!("env:HOST=127.0.0.1");
    before["metadata"]["annotations"]["groupage.dev/capture"] = json!("Named");
    let mut changed = injected(&before, &context());
    // Istio rewrites probes in this form.
    changed["spec"]["containers"][0]["livenessProbe"]["httpGet"] =
        json!({"path": "/app-health/app/livez", "port": 15020});
    changed["spec"]["containers"][0]["lifecycle"]["preStop"] = json!({"exec": {"command": ["sleep", "5"]}});
    let undone = uninject(&changed).unwrap();
    assert_eq!(undone.pod["spec"]["containers"][0]["ports"][0]["name"], "http");
    assert_eq!(undone.pod["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"], 15020);
    assert_eq!(undone.pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][0], "sleep");
    assert_eq!(undone.warnings.len(), 2, "{:?}", undone.warnings);
    // A second pass keeps both changes too, and a third changes nothing.
    let again = injected(&changed, &context());
    assert_eq!(again["spec"]["containers"][0]["livenessProbe"], changed["spec"]["containers"][0]["livenessProbe"]);
    assert_eq!(injected(&again, &context()), again);
}

#[test]
fn a_value_set_after_the_injection_is_kept() {
    let mut before = pod_with_app_listen("env:HOST=127.0.0.1");
    before["spec"]["containers"][0]["env"] = json!([{"name": "HOST", "value": "a"}]);
    let mut changed = injected(&before, &context());
    changed["spec"]["containers"][0]["env"][0]["value"] = json!("somebody's");
    let undone = uninject(&changed).unwrap();
    assert_eq!(undone.pod["spec"]["containers"][0]["env"], json!([{"name": "HOST", "value": "somebody's"}]));
    assert!(undone.warnings.iter().any(|warning| warning.contains("HOST")), "{:?}", undone.warnings);
}

#[test]
fn an_argument_is_restored_at_its_position_even_if_its_text_repeats() {
    let mut before = pod_with_app_listen("arg:--host=127.0.0.1");
    before["spec"]["containers"][0]["command"] = json!(["serve", "--host=::", 5]);
    before["spec"]["containers"][0]["args"] =
        json!(["--host", "0.0.0.0", "--alias", "127.0.0.1", "--host=x", "--host"]);
    let whole = injected(&before, &context());
    let app = &whole["spec"]["containers"][0];
    assert_eq!(app["args"], json!(["--host", "127.0.0.1", "--alias", "127.0.0.1", "--host=127.0.0.1", "--host"]));
    assert_eq!(app["command"], json!(["serve", "--host=127.0.0.1", 5]));
    assert_eq!(uninject(&whole).unwrap().pod, before);
    // Another component inserts two words before it.
    let mut changed = whole;
    for word in ["-v", "-q"] {
        changed["spec"]["containers"][0]["args"].as_array_mut().unwrap().insert(0, json!(word));
    }
    let back = uninject(&changed).unwrap().pod;
    assert_eq!(
        back["spec"]["containers"][0]["args"],
        json!(["-q", "-v", "--host", "0.0.0.0", "--alias", "127.0.0.1", "--host=x", "--host"])
    );
}

#[test]
fn a_container_of_the_same_name_in_the_other_list_is_kept() {
    let mut copied = injected(&pod(), &context());
    copied["spec"]["initContainers"] = json!([]);
    copied["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "groupage", "image": "own"}));
    let back = uninject(&copied).unwrap().pod;
    assert_eq!(back["spec"]["containers"][1], json!({"name": "groupage", "image": "own"}));
    assert!(matches!(inject(&copied, &context()), InjectionOutcome::Skipped(_)));
}

#[test]
fn without_its_record_only_the_sidecar_is_removed_and_the_rest_is_reported() {
    let mut bare = injected(&pod(), &context());
    bare["metadata"]["annotations"].as_object_mut().unwrap().remove("groupage.dev/status");
    let undone = uninject(&bare).unwrap();
    assert_eq!(undone.pod["spec"]["initContainers"], json!([]));
    assert_eq!(undone.warnings.len(), 1);
    assert_eq!(uninject(&undone.pod), None);
    // The label alone does not mark a sidecar.
    let mut labelled = pod();
    labelled["metadata"]["labels"]["groupage.dev/injected"] = json!("true");
    assert_eq!(uninject(&labelled), None);
    assert_eq!(uninject(&injected(&labelled, &context())).unwrap().pod, labelled);
}
