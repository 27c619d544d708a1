//! Properties of an injection that hold for every pod.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::recipe::{RecipeMatch, find_matches};
use super::super::{InjectionContext, InjectionOutcome, STATUS, inject, patch, template_locations, uninject};
use super::strategies::{any_json, context, foreign, pod};

/// Places of a pod that an injection may change, with everything below them. `*` matches one key or
/// index.
const MAY_CHANGE: [&str; 21] = [
    "/metadata/labels/groupage.dev~1injected",
    "/metadata/annotations/groupage.dev~1status",
    "/metadata/annotations/kubectl.kubernetes.io~1default-container",
    "/spec/imagePullSecrets",
    "/spec/securityContext/sysctls",
    "/spec/resources/requests",
    "/spec/containers/*/ports/*/name",
    "/spec/containers/*/livenessProbe/httpGet/port",
    "/spec/containers/*/livenessProbe/tcpSocket",
    "/spec/containers/*/readinessProbe/httpGet/port",
    "/spec/containers/*/readinessProbe/tcpSocket",
    "/spec/containers/*/startupProbe/httpGet/port",
    "/spec/containers/*/startupProbe/tcpSocket",
    "/spec/containers/*/lifecycle/postStart/httpGet/port",
    "/spec/containers/*/lifecycle/postStart/tcpSocket/port",
    "/spec/containers/*/lifecycle/preStop/httpGet/port",
    "/spec/containers/*/lifecycle/preStop/tcpSocket/port",
    "/spec/containers/*/lifecycle/preStop",
    "/spec/containers/*/env",
    "/spec/containers/*/args",
    "/spec/containers/*/command",
];

/// Collects every leaf of a value with its JSON Pointer.
fn leaves(value: &Value, at: &str, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                leaves(value, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, value) in items.iter().enumerate() {
                leaves(value, &format!("{at}/{index}"), found);
            }
        }
        // An empty value, which an injection may replace.
        Value::Null | Value::Object(_) | Value::Array(_) => {}
        leaf => found.push((at.to_owned(), leaf.clone())),
    }
}

fn may_change(pointer: &str) -> bool {
    MAY_CHANGE.iter().any(|pattern| {
        let mut keys = pointer.split('/');
        pattern.split('/').all(|part| keys.next().is_some_and(|key| part == "*" || part == key))
    })
}

/// Checks the properties of an injected pod.
fn check_properties(pod: &Value, whole: &Value, context: &InjectionContext) -> Result<(), TestCaseError> {
    let InjectionOutcome::Injected(again) = inject(whole, context) else {
        return Err(TestCaseError::fail("a second time it is not injected"));
    };
    prop_assert_eq!(&again.pod, whole, "the second time");
    let back = uninject(whole).unwrap();
    prop_assert_eq!(&back.pod, pod, "taken out");
    prop_assert!(back.warnings.is_empty(), "{:?}", back.warnings);
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &patch(pod, whole)).unwrap();
    prop_assert_eq!(&patched, whole, "by its patch");
    Ok(())
}

/// Checks the API server's rules for the parts that the injection writes.
fn check_manifest(whole: &Value) -> Result<(), TestCaseError> {
    let all =
        ["initContainers", "containers"].iter().flat_map(|key| whole["spec"][key].as_array().into_iter().flatten());
    let all: Vec<&Value> = all.collect();
    let sidecars: Vec<&&Value> = all.iter().filter(|one| one["name"] == "groupage").collect();
    prop_assert_eq!(sidecars.len(), 1);
    let sidecar = sidecars[0];
    let declared = |one: &Value| one["ports"].as_array().cloned().unwrap_or_default();
    let names: Vec<Value> =
        declared(sidecar).iter().map(|port| port["name"].clone()).filter(|name| !name.is_null()).collect();
    for (index, name) in names.iter().enumerate() {
        prop_assert!(!names[..index].contains(name), "{} occurs twice on the sidecar", name);
    }
    let tcp = |port: &Value| matches!(port["protocol"].as_str(), None | Some("TCP"));
    let of_others: Vec<Value> = all
        .iter()
        .filter(|one| one["name"] != "groupage")
        .flat_map(|one| declared(one))
        .filter(tcp)
        .map(|port| port["containerPort"].clone())
        .collect();
    for port in declared(sidecar) {
        prop_assert!(!of_others.contains(&port["containerPort"]), "{} is taken", port["containerPort"]);
    }
    let args: Vec<&str> = sidecar["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let captures: Vec<&str> =
        args.iter().filter_map(|arg| arg.strip_prefix("--capture=")?.split([':', '@']).nth(1)).collect();
    for (index, port) in captures.iter().enumerate() {
        prop_assert!(!captures[..index].contains(port), "{port} is captured twice");
    }
    let executes_model = args.iter().any(|arg| arg.starts_with("--engine="));
    prop_assert_eq!(captures.is_empty(), executes_model, "{:?}", args);
    Ok(())
}

/// Returns the path of a drain hook with the token of the sidecar.
fn drain(whole: &Value) -> String {
    let all =
        ["initContainers", "containers"].iter().flat_map(|key| whole["spec"][key].as_array().into_iter().flatten());
    let env = all.filter(|one| one["name"] == "groupage").flat_map(|one| one["env"].as_array().into_iter().flatten());
    let token = env.filter(|entry| entry["name"] == "GROUPAGE_DRAIN_TOKEN").find_map(|entry| entry["value"].as_str());
    format!("/drain/{}?wait", token.unwrap())
}

/// Collects the JSON Pointers of all values in a value.
fn pointers(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                pointers(value, format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                pointers(value, format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
    found.push(at);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn injection_is_idempotent_and_reversible(pod in pod(), context in context()) {
        if let InjectionOutcome::Injected(whole) = inject(&pod, &context) {
            check_properties(&pod, &whole.pod, &context)?;
            check_manifest(&whole.pod)?;
        }
    }

    #[test]
    fn the_sidecar_uses_no_port_of_a_known_server(pod in pod(), context in context()) {
        let InjectionOutcome::Injected(done) = inject(&pod, &context) else { return Ok(()) };
        let record = done.pod["metadata"]["annotations"][STATUS].as_str().unwrap_or_default();
        let record: Value = serde_json::from_str(record).unwrap();
        let apart = record["capture"].as_array().unwrap().iter().filter(|port| port["listen"] != port["port"]);
        let own: Vec<&Value> = apart.map(|port| &port["listen"]).chain([&record["metrics"], &record["admin"]]).collect();
        for number in find_matches(&pod, None).iter().flat_map(RecipeMatch::all_ports) {
            prop_assert!(!own.contains(&&json!(number)), "{number} of {own:?}");
        }
    }

    #[test]
    fn only_fields_that_may_change_are_changed(pod in pod(), context in context()) {
        if let InjectionOutcome::Injected(whole) = inject(&pod, &context) {
            let mut before = Vec::new();
            leaves(&pod, "", &mut before);
            for (pointer, leaf) in before.into_iter().filter(|(pointer, _)| !may_change(pointer)) {
                prop_assert_eq!(whole.pod.pointer(&pointer), Some(&leaf), "{}", pointer);
            }
        }
    }

    #[test]
    fn foreign_additions_are_kept(pod in pod(), context in context(), foreign in foreign()) {
        if let InjectionOutcome::Injected(whole) = inject(&pod, &context) {
            let (mut plain, mut changed) = (pod.clone(), whole.pod);
            for (index, foreign) in foreign.iter().enumerate() {
                foreign.apply(&mut plain, index);
                foreign.apply(&mut changed, index);
            }
            prop_assert_eq!(&uninject(&changed).unwrap().pod, &plain, "taken out");
            // The next pass processes the changed pod, and the pass after that changes nothing.
            if let InjectionOutcome::Injected(next) = inject(&changed, &context) {
                check_properties(&plain, &next.pod, &context)?;
                check_manifest(&next.pod)?;
            }
        }
    }

    #[test]
    fn a_pod_without_its_record_is_injected_again_with_valid_properties(pod in pod(), context in context()) {
        if let InjectionOutcome::Injected(whole) = inject(&pod, &context) {
            let mut bare = whole.pod;
            bare["metadata"]["annotations"].as_object_mut().unwrap().remove(STATUS);
            let plain = uninject(&bare).unwrap().pod;
            if let InjectionOutcome::Injected(again) = inject(&bare, &context) {
                check_properties(&plain, &again.pod, &context)?;
                check_manifest(&again.pod)?;
                let text = again.pod.to_string();
                prop_assert_eq!(text.matches("/drain/").count(), text.matches(&drain(&again.pod)).count());
            }
        }
    }

    #[test]
    fn a_renamed_container_is_restored_or_reported(pod in pod(), context in context()) {
        let rename = |pod: &Value| {
            let mut renamed = pod.clone();
            let all = renamed["spec"]["containers"].as_array_mut().unwrap();
            all.iter_mut().filter(|one| one["name"] == "c").for_each(|one| one["name"] = json!("z"));
            renamed
        };
        if let InjectionOutcome::Injected(whole) = inject(&pod, &context) {
            let back = uninject(&rename(&whole.pod)).unwrap();
            prop_assert!(!back.warnings.is_empty() || back.pod == rename(&pod), "{:?}", back.pod);
        }
    }

    #[test]
    fn an_arbitrary_json_value_in_a_pod_causes_no_panic(pod in pod(), context in context(), at in any::<prop::sample::Index>(), odd in any_json()) {
        let mut found = Vec::new();
        pointers(&pod, String::new(), &mut found);
        let mut broken = pod;
        *broken.pointer_mut(at.get::<String>(&found)).unwrap() = odd;
        if let InjectionOutcome::Injected(whole) = inject(&broken, &context) {
            check_properties(&broken, &whole.pod, &context)?;
        }
        let _places = template_locations(&broken);
    }

    #[test]
    fn arbitrary_json_is_not_injected_and_causes_no_panic(any in any_json(), context in context()) {
        prop_assert!(inject(&any, &context).injected().is_none());
        prop_assert_eq!(uninject(&any), None);
        let _places = template_locations(&any);
    }

    #[test]
    fn no_forged_record_causes_a_panic(
        pod in pod(), context in context(), at in any::<prop::sample::Index>(), odd in any_json()
    ) {
        if let InjectionOutcome::Injected(whole) = inject(&pod, &context) {
            let mut forged = whole.pod;
            let mut status: Value = serde_json::from_str(forged["metadata"]["annotations"][STATUS].as_str().unwrap()).unwrap();
            let mut found = Vec::new();
            pointers(&status, String::new(), &mut found);
            *status.pointer_mut(at.get::<String>(&found)).unwrap() = odd;
            forged["metadata"]["annotations"][STATUS] = json!(status.to_string());
            let _undone = uninject(&forged);
            if let InjectionOutcome::Injected(again) = inject(&forged, &context) {
                check_manifest(&again.pod)?;
            }
        }
    }
}
