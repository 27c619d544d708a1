//! Removes the sidecar and reverts the changes of the injection, except what was changed since.
//!
//! Items are found by name and not by position: other webhooks may have added containers, volumes
//! and variables since the injection, and these stay. A forged undo record has no more power than a
//! genuine one: only places that an injection changes are reverted.

use serde_json::{Map, Value, json};

use super::access::{at, at_mut, container_mut, find_named, list, map_mut, text};
use super::names::{
    CONNECT_PATH, CREATED_PATHS, DEFAULT_CONTAINER, DRAIN_PATH, HANDLERS, MADE_IN_CONTAINERS, PROBES, RENAMED_PREFIX,
    STATE_VOLUME, TOKEN_VOLUME,
};
use super::status::{
    AddedHook, AddedRequest, ArgumentChange, InjectionStatus, PortReference, PortRename, ProbeChange, UndoRecord,
    VariableChange,
};
use super::{CONTAINER, INJECTED, REDIRECT, RestoredPod, STATUS, recovery};

/// Removes the sidecar from a pod or a pod template; `None` if it has no sidecar of Groupage.
#[must_use]
pub fn uninject(pod: &Value) -> Option<RestoredPod> {
    let status = InjectionStatus::from_pod(pod);
    let labelled = text(pod, &["metadata", "labels", INJECTED]) == Some("true");
    let runs_proxy = |key: &str| {
        let found = find_named(list(pod, &["spec", key]), CONTAINER);
        found.is_some_and(|found| list(found, &["args"]).first().is_some_and(|word| word == "proxy"))
    };
    let form = match &status {
        Some(status) if status.form == "classic" => "containers",
        Some(_) => "initContainers",
        None if labelled => ["initContainers", "containers"].into_iter().find(|key| runs_proxy(key))?,
        None => return None,
    };
    let sidecar = find_named(list(pod, &["spec", form]), CONTAINER).cloned().unwrap_or_default();
    let record = status.as_ref().map(|status| recovery::resolve_renamed_containers(pod, status));
    let mut pod = pod.clone();
    let mut warnings = Vec::new();
    for (key, name) in [(form, CONTAINER), ("initContainers", REDIRECT)] {
        remove_named(&mut pod, &["spec", key], |found| found == name);
    }
    remove_named(&mut pod, &["spec", "volumes"], |name| matches!(name, TOKEN_VOLUME | STATE_VOLUME));
    let empty = UndoRecord::default();
    let undo = record.as_ref().unwrap_or(&empty);
    for (map, key, was) in [("labels", INJECTED, &undo.label), ("annotations", STATUS, &undo.status)] {
        if let Some(map) = at_mut(&mut pod, &["metadata", map]).and_then(Value::as_object_mut) {
            restore_key(map, key, was.clone());
        }
    }
    if status.is_some() {
        restore(&mut pod, undo, &mut warnings);
    } else {
        recovery::restore_without_record(&mut pod, &sidecar);
        warnings.push(format!(
            "annotation {STATUS} is missing: port names, probes and hooks are restored from the sidecar container, and other changes of the injection (variables, arguments) are left in place"
        ));
    }
    Some(RestoredPod { pod, warnings })
}

/// Reverts the changes of the record. The functions `restore_*` for one change return `false` if
/// the place was changed since; they then leave it as it is.
fn restore(pod: &mut Value, undo: &UndoRecord, warnings: &mut Vec<String>) {
    let mut warn_changed =
        |what: String| warnings.push(format!("{what} was changed after the injection and is left unchanged"));
    restore_handlers(pod, undo, &mut warn_changed);
    restore_names(pod, undo, &mut warn_changed);
    restore_commands(pod, undo, &mut warn_changed);
    for requested in &undo.requests {
        if !restore_request(pod, requested) {
            warn_changed(format!("the pod-level request of {}", requested.resource));
        }
    }
    remove_pod_fields(pod, undo);
    remove_created(pod, undo);
}

/// Restores hooks and probes. Probes come before names, because a restored probe may refer to its
/// port by name.
fn restore_handlers(pod: &mut Value, undo: &UndoRecord, warn_changed: &mut impl FnMut(String)) {
    for hook in &undo.hooks {
        if !restore_hook(pod, hook) {
            warn_changed(format!("the preStop hook of container {}", hook.container));
        }
    }
    for probe in &undo.probes {
        if !restore_probe(pod, probe) {
            warn_changed(format!("{} of container {}", probe.at, probe.container));
        }
    }
}

/// Restores port names and the references to them.
fn restore_names(pod: &mut Value, undo: &UndoRecord, warn_changed: &mut impl FnMut(String)) {
    let mut restored = Vec::new();
    for renamed in &undo.names {
        if restore_name(pod, renamed) {
            restored.push((&renamed.container, &renamed.was));
        } else {
            warn_changed(format!("port {} of container {}", renamed.was, renamed.container));
        }
    }
    for reference in &undo.refs {
        // If the port name was not restored, the reference would not resolve. The number still
        // works.
        if !restored.contains(&(&reference.container, &reference.was)) || !restore_reference(pod, reference) {
            warn_changed(format!("{} of container {}", reference.at, reference.container));
        }
    }
}

/// Restores variables and arguments in reverse order, because a later change may build on an
/// earlier one.
fn restore_commands(pod: &mut Value, undo: &UndoRecord, warn_changed: &mut impl FnMut(String)) {
    for variable in undo.env.iter().rev() {
        if !restore_variable(pod, variable) {
            warn_changed(format!("variable {} of container {}", variable.name, variable.container));
        }
    }
    for argument in undo.args.iter().rev() {
        if !restore_argument(pod, argument) {
            warn_changed(format!("argument {} of container {}", argument.set, argument.container));
        }
    }
}

/// Removes the default container, the pull secrets and the sysctls of the injection.
fn remove_pod_fields(pod: &mut Value, undo: &UndoRecord) {
    if let Some(ours) = &undo.default_container
        && text(pod, &["metadata", "annotations", DEFAULT_CONTAINER]) == Some(ours)
    {
        map_mut(pod, &["metadata", "annotations"]).remove(DEFAULT_CONTAINER);
    }
    remove_named(pod, &["spec", "imagePullSecrets"], |name| undo.pull_secrets.iter().any(|ours| ours == name));
    remove_named(pod, &["spec", "securityContext", "sysctls"], |name| undo.sysctls.iter().any(|ours| ours == name));
}

fn restore_hook(pod: &mut Value, AddedHook { container, null }: &AddedHook) -> bool {
    let Some(own) = container_mut(pod, container) else { return false };
    let is_ours =
        text(own, &["lifecycle", "preStop", "httpGet", "path"]).is_some_and(|path| path.starts_with(DRAIN_PATH));
    if is_ours {
        restore_key(map_mut(own, &["lifecycle"]), "preStop", null.then_some(Value::Null));
    }
    is_ours
}

fn restore_probe(pod: &mut Value, ProbeChange { container, at: place, was, null }: &ProbeChange) -> bool {
    let Some(own) = container_mut(pod, container).filter(|_| PROBES.contains(&place.as_str())) else { return false };
    let is_ours = text(own, &[place, "httpGet", "path"]).is_some_and(|path| path.starts_with(CONNECT_PATH))
        && at(own, &[place, "tcpSocket"]).is_null();
    if is_ours {
        let probe = map_mut(own, &[place]);
        restore_key(probe, "httpGet", null.then_some(Value::Null));
        probe.insert("tcpSocket".to_owned(), was.clone());
    }
    is_ours
}

fn restore_reference(pod: &mut Value, PortReference { container, at: place, was, now }: &PortReference) -> bool {
    let Some((handler, kind)) = place.rsplit_once('/') else { return false };
    if !HANDLERS.contains(&handler) {
        return false;
    }
    let keys: Vec<&str> = handler.split('/').chain([kind, "port"]).collect();
    match container_mut(pod, container).and_then(|own| at_mut(own, &keys)) {
        Some(port) if *port == json!(now) => *port = json!(was),
        _ => return false,
    }
    true
}

/// Finds the port by the assigned name and not by the number, which an edit of the manifest may
/// have changed.
fn restore_name(pod: &mut Value, PortRename { container, was, now, .. }: &PortRename) -> bool {
    let Some(ports) = container_mut(pod, container).and_then(|own| at_mut(own, &["ports"])?.as_array_mut()) else {
        return false;
    };
    let mut found = ports.iter_mut().filter(|entry| text(entry, &["name"]) == Some(now));
    let (Some(entry), None, true) = (found.next(), found.next(), now.starts_with(RENAMED_PREFIX)) else { return false };
    entry["name"] = json!(was);
    true
}

fn restore_variable(pod: &mut Value, VariableChange { container, name, set, was }: &VariableChange) -> bool {
    let Some(env) = container_mut(pod, container).and_then(|own| at_mut(own, &["env"])?.as_array_mut()) else {
        return false;
    };
    let ours = json!({"name": name, "value": set});
    let Some(index) = env.iter().rposition(|entry| *entry == ours) else { return false };
    match (was, env.get_mut(index)) {
        (Some(was), Some(entry)) => *entry = was.clone(),
        _ => drop(env.remove(index)),
    }
    true
}

fn restore_request(pod: &mut Value, AddedRequest { resource, set, null }: &AddedRequest) -> bool {
    let requests = at_mut(pod, &["spec", "resources", "requests"]).and_then(Value::as_object_mut);
    let Some(requests) = requests.filter(|requests| requests.get(resource) == Some(set)) else { return false };
    restore_key(requests, resource, null.then_some(Value::Null));
    true
}

fn restore_argument(pod: &mut Value, ArgumentChange { container, list, index, set, was }: &ArgumentChange) -> bool {
    if !matches!(list.as_str(), "args" | "command") {
        return false;
    }
    let Some(items) = container_mut(pod, container).and_then(|own| at_mut(own, &[list])?.as_array_mut()) else {
        return false;
    };
    // Other webhooks may have inserted arguments before it, so the occurrence nearest to the
    // recorded index is used.
    let places = items.iter().enumerate().filter(|(_, item)| *item == set).map(|(place, _)| place);
    let Some(place) = places.min_by_key(|place| place.abs_diff(*index)) else { return false };
    match (was, items.get_mut(place)) {
        (Some(was), Some(item)) => *item = was.clone(),
        _ => drop(items.remove(place)),
    }
    true
}

/// Removes the maps and lists that the injection created, inner ones first, if they are empty
/// again.
fn remove_created(pod: &mut Value, undo: &UndoRecord) {
    let mut created: Vec<(&String, &bool)> = undo.made.iter().collect();
    created.sort_by_key(|(path, _)| std::cmp::Reverse(path.matches('/').count()));
    for (path, was_null) in created {
        let keys: Vec<&str> = path.split('/').collect();
        let (parent, last) = match keys.as_slice() {
            ["containers", name, last] if MADE_IN_CONTAINERS.contains(last) => (container_mut(pod, name), *last),
            [path @ .., last] if CREATED_PATHS.contains(&keys.join("/").as_str()) => (at_mut(pod, path), *last),
            _ => continue,
        };
        let Some(parent) = parent.and_then(Value::as_object_mut) else { continue };
        let empty = parent.get(last).is_some_and(|value| {
            value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
        });
        if empty {
            restore_key(parent, last, was_null.then_some(Value::Null));
        }
    }
}

/// Removes the items of a list whose names `is_removed` selects.
fn remove_named(pod: &mut Value, path: &[&str], is_removed: impl Fn(&str) -> bool) {
    if let Some(items) = at_mut(pod, path).and_then(Value::as_array_mut) {
        items.retain(|item| !text(item, &["name"]).is_some_and(&is_removed));
    }
}

/// Restores the previous value of a key, or removes the key if there was none.
fn restore_key(map: &mut Map<String, Value>, key: &str, was: Option<Value>) {
    match was {
        Some(was) => drop(map.insert(key.to_owned(), was)),
        None => drop(map.remove(key)),
    }
}
