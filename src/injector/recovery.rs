//! Recovery of the changes of an injection if the undo record is lost or containers were renamed.
//!
//! Users edit injected manifests. Without recovery, a name that the injector assigned would be
//! taken for the user's and moved to the sidecar, where no Service looks for it, and an old drain
//! hook would use an unknown token. The sidecar container itself shows what it captured: its ports
//! have the names that were moved to it. Variables, arguments and references by name leave no trace
//! there and are not recovered.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::access::{at, at_mut, list, map_mut, number, text};
use super::names::{CONNECT_PATH, DRAIN_PATH, PROBES, is_assigned_name};
use super::ports::{self, is_tcp};
use super::status::{InjectionStatus, UndoRecord};

/// Reverts the changes that can be derived from the sidecar container alone.
pub(super) fn restore_without_record(pod: &mut Value, sidecar: &Value) {
    let args: Vec<&str> = list(sidecar, &["args"]).iter().filter_map(Value::as_str).collect();
    let after = |flag: &'static str| args.windows(2).filter(move |pair| pair[0] == flag).map(|pair| pair[1]);
    let metrics = after("--metrics").find_map(|address| address.rsplit_once(':')?.1.parse::<u16>().ok());
    // Versions before 0.2 wrote the flag and its value as two words.
    let captures = args.iter().filter_map(|arg| arg.strip_prefix("--capture=")).chain(after("--capture"));
    let moved: Vec<(u16, Vec<&str>)> = captures.filter_map(|capture| moved_names(capture, sidecar)).collect();
    let applications = ports::application_names(pod);
    let containers = at_mut(pod, &["spec", "containers"]).and_then(Value::as_array_mut);
    for own in containers.into_iter().flatten() {
        if !text(own, &["name"]).is_some_and(|name| applications.iter().any(|application| application == name)) {
            continue;
        }
        moved.iter().for_each(|(number, names)| restore_names(own, *number, names));
        if let Some(metrics) = metrics {
            remove_drain_hook(own, metrics);
            PROBES.iter().for_each(|probe| restore_tcp_probe(own, probe, metrics));
        }
    }
}

/// Returns a captured port number and the names that were moved with it. The sidecar's listener
/// port has these names.
fn moved_names<'a>(capture: &str, sidecar: &'a Value) -> Option<(u16, Vec<&'a str>)> {
    let (captured, listen) = capture.rsplit_once('@')?;
    let captured = captured.rsplit_once(':')?.1.parse().ok()?;
    let listen: u16 = listen.parse().ok()?;
    let here = list(sidecar, &["ports"]).iter().filter(|port| number(at(port, &["containerPort"])) == Some(listen));
    let names: Vec<&str> = here.filter_map(|port| text(port, &["name"])).collect();
    (!names.is_empty()).then_some((captured, names))
}

/// Restores the names of a container's ports of this number, in order. No name is given twice in a
/// container.
fn restore_names(own: &mut Value, captured: u16, names: &[&str]) {
    let there: Vec<String> =
        list(own, &["ports"]).iter().filter_map(|port| text(port, &["name"])).map(str::to_owned).collect();
    let mut names = names.iter().filter(|name| !there.iter().any(|there| there == *name));
    let ports = at_mut(own, &["ports"]).and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten() {
        let is_ours = is_tcp(port)
            && number(at(port, &["containerPort"])) == Some(captured)
            && text(port, &["name"]).is_some_and(is_assigned_name);
        if is_ours && let Some(name) = names.next() {
            port["name"] = json!(name);
        }
    }
}

fn remove_drain_hook(own: &mut Value, metrics: u16) {
    if !is_sidecar_handler(at(own, &["lifecycle", "preStop"]), DRAIN_PATH, metrics) {
        return;
    }
    let lifecycle = map_mut(own, &["lifecycle"]);
    lifecycle.remove("preStop");
    if lifecycle.is_empty() {
        map_mut(own, &[]).remove("lifecycle");
    }
}

/// Turns a probe of the sidecar's connect endpoint back into a TCP probe of the application.
fn restore_tcp_probe(own: &mut Value, probe: &str, metrics: u16) {
    let probed = at(own, &[probe]);
    if !is_sidecar_handler(probed, CONNECT_PATH, metrics) || !at(probed, &["tcpSocket"]).is_null() {
        return;
    }
    let number =
        text(probed, &["httpGet", "path"]).and_then(|path| path.strip_prefix(CONNECT_PATH)?.parse::<u16>().ok());
    let Some(number) = number else { return };
    let probed = map_mut(own, &[probe]);
    probed.remove("httpGet");
    probed.insert("tcpSocket".to_owned(), json!({"port": number}));
}

/// Returns `true` if a probe or hook is directed at this endpoint of the sidecar.
fn is_sidecar_handler(handler: &Value, path: &str, metrics: u16) -> bool {
    text(handler, &["httpGet", "path"]).is_some_and(|requested| requested.starts_with(path))
        && number(at(handler, &["httpGet", "port"])) == Some(metrics)
}

/// Returns the undo record with the current names of renamed containers, as far as the changes in
/// them identify each one.
pub(super) fn resolve_renamed_containers(pod: &Value, status: &InjectionStatus) -> UndoRecord {
    let mut undo = status.undo.clone();
    let mut known: BTreeSet<String> = status.capture.iter().map(|captured| captured.container.clone()).collect();
    known.extend(container_names_mut(&mut undo).into_iter().map(|name| name.clone()));
    let containers = list(pod, &["spec", "containers"]);
    let named = |own: &Value, name: &str| text(own, &["name"]) == Some(name);
    let mut missing: Vec<String> =
        known.iter().filter(|name| !containers.iter().any(|own| named(own, name))).cloned().collect();
    // Containers with assigned port names come first, because such a name occurs only once in the
    // pod.
    missing.sort_by_key(|name| !undo.names.iter().any(|renamed| renamed.container == *name));
    for was in missing {
        let mut marked = containers.iter().filter_map(|own| {
            let name = text(own, &["name"])?;
            (!known.contains(name) && has_recorded_changes(own, &was, &undo)).then(|| name.to_owned())
        });
        let (Some(now), None) = (marked.next(), marked.next()) else { continue };
        container_names_mut(&mut undo)
            .into_iter()
            .filter(|owner| **owner == was)
            .for_each(|owner| owner.clone_from(&now));
        let made = std::mem::take(&mut undo.made).into_iter();
        undo.made = made
            .map(|(path, null)| match path.strip_prefix("containers/").and_then(|rest| rest.strip_prefix(&*was)) {
                Some(rest) if rest.starts_with('/') => (format!("containers/{now}{rest}"), null),
                _ => (path, null),
            })
            .collect();
        known.insert(now);
    }
    undo
}

/// Returns `true` if a container has the changes that were made in the container named `was`. Only
/// the strongest kind of change that the record has is compared, because weaker ones may also have
/// another origin.
fn has_recorded_changes(own: &Value, was: &str, undo: &UndoRecord) -> bool {
    let mut names = undo.names.iter().filter(|renamed| renamed.container == was).peekable();
    if names.peek().is_some() {
        let ports = list(own, &["ports"]);
        return names.any(|renamed| ports.iter().any(|port| text(port, &["name"]) == Some(&renamed.now)));
    }
    let path = |keys: &[&str]| text(own, keys).unwrap_or_default();
    if undo.hooks.iter().any(|hook| hook.container == was) {
        return path(&["lifecycle", "preStop", "httpGet", "path"]).starts_with(DRAIN_PATH);
    }
    let mut probes = undo.probes.iter().filter(|probe| probe.container == was);
    let mut env = undo.env.iter().filter(|variable| variable.container == was);
    let mut args = undo.args.iter().filter(|argument| argument.container == was);
    probes.any(|probe| path(&[&probe.at, "httpGet", "path"]).starts_with(CONNECT_PATH))
        || env.any(|set| list(own, &["env"]).contains(&json!({"name": set.name, "value": set.set})))
        || args.any(|set| list(own, &[&set.list]).contains(&json!(set.set)))
}

/// Returns every container name of an undo record, except those inside paths.
fn container_names_mut(undo: &mut UndoRecord) -> Vec<&mut String> {
    let UndoRecord { names, refs, probes, env, args, hooks, .. } = undo;
    let names = names.iter_mut().map(|it| &mut it.container);
    let refs = refs.iter_mut().map(|it| &mut it.container);
    let probes = probes.iter_mut().map(|it| &mut it.container);
    let env = env.iter_mut().map(|it| &mut it.container);
    let args = args.iter_mut().map(|it| &mut it.container);
    let hooks = hooks.iter_mut().map(|it| &mut it.container);
    names.chain(refs).chain(probes).chain(env).chain(args).chain(hooks).collect()
}
