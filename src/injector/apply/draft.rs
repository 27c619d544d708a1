//! A pod during injection: the changes of its parts, each with an undo record.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::FieldHashes;
use crate::access::{at, at_mut, container_mut, find_named, list, list_mut, map_mut, text};
use crate::effective::InjectionSettings;
use crate::names::{
    CONNECT_PATH, CREATED_PATHS, DEFAULT_CONTAINER, DRAIN_PATH, HANDLERS, MADE_IN_CONTAINERS, PROBES, RENAMED_PREFIX,
};
use crate::planned::{PlannedPort, PortCapture};
use crate::recipe::RecipeMatch;
use crate::sidecar::{self, ManifestInputs};
use crate::status::{AddedHook, AddedRequest, InjectionStatus, PortReference, PortRename, ProbeChange, UndoRecord};
use crate::{CONTAINER, INJECTED, InjectionReport, REDIRECT, STATUS, argument_edit, converge, ports};

/// Sysctl with the first port number that needs no privileges to bind.
const UNPRIVILEGED_SYSCTL: &str = "net.ipv4.ip_unprivileged_port_start";
/// Default value of that sysctl.
const UNPRIVILEGED_DEFAULT: u16 = 1024;
/// Lists of containers that may declare ports.
const CONTAINERS: [&str; 2] = ["containers", "initContainers"];

/// A pod during injection.
pub(super) struct PodDraft {
    pub(super) pod: Value,
    pub(super) undo: UndoRecord,
    pub(super) report: InjectionReport,
}

// === impl PodDraft ===

impl PodDraft {
    /// Moves the names of captured ports to the sidecar. They are moved in every container, because
    /// a Service would otherwise resolve to the next container with the name.
    pub(super) fn move_names(&mut self, planned: &[PlannedPort]) {
        let named = planned.iter().filter(|planned| planned.mode == PortCapture::Named);
        let moved: Vec<&str> = named.flat_map(PlannedPort::names).collect();
        // A new name must not occur in the pod, before or after the move: a Service resolves names
        // across all containers, and the undo looks the name up.
        let all = CONTAINERS.iter().flat_map(|key| list(&self.pod, &["spec", key]));
        let names = all.flat_map(|own| list(own, &["ports"])).filter_map(|port| text(port, &["name"]));
        let taken: Vec<String> = names.chain(moved.iter().copied()).map(str::to_owned).collect();
        for container in ports::application_names(&self.pod) {
            let from = self.undo.names.len();
            self.rename(&container, &moved, taken.clone());
            // If a name occurs twice in a container, which the API server rejects, the first port
            // resolves it.
            let mut renamed_from: Vec<&str> = Vec::new();
            let renamed = self.undo.names.get(from..).unwrap_or_default().to_vec();
            for PortRename { port, was, .. } in &renamed {
                if !renamed_from.contains(&was.as_str()) {
                    renamed_from.push(was);
                    self.replace_references(&container, was, *port);
                }
            }
        }
    }

    /// Renames a container's TCP ports of these names, in one pass, because an assigned name may
    /// equal the previous name of another port.
    fn rename(&mut self, container: &str, moved: &[&str], mut taken: Vec<String>) {
        let ports = container_mut(&mut self.pod, container).and_then(|own| at_mut(own, &["ports"])?.as_array_mut());
        let Some(ports) = ports else { return };
        for port in ports.iter_mut().filter(|port| ports::is_tcp(port)) {
            let number = at(port, &["containerPort"]);
            let Some(number) = crate::access::number(number) else { continue };
            let Some(name) =
                port.get_mut("name").filter(|name| name.as_str().is_some_and(|name| moved.contains(&name)))
            else {
                continue;
            };
            let again = (2..).map(|again| format!("{RENAMED_PREFIX}{number}-{again}"));
            let Some(now) =
                std::iter::once(format!("{RENAMED_PREFIX}{number}")).chain(again).find(|now| !taken.contains(now))
            else {
                continue;
            };
            taken.push(now.clone());
            let was = std::mem::replace(name, json!(now));
            let was = was.as_str().unwrap_or_default().to_owned();
            self.undo.names.push(PortRename { container: container.to_owned(), port: number, was, now });
        }
    }

    /// Replaces a container's own references to a moved name by the number, because the kubelet
    /// resolves port names in the same container.
    fn replace_references(&mut self, container: &str, name: &str, number: u16) {
        for handler in HANDLERS {
            for kind in ["httpGet", "tcpSocket"] {
                let path: Vec<&str> = handler.split('/').chain([kind, "port"]).collect();
                let Some(port) = container_mut(&mut self.pod, container).and_then(|own| at_mut(own, &path)) else {
                    continue;
                };
                if port == name {
                    *port = json!(number);
                    let (container, was) = (container.to_owned(), name.to_owned());
                    self.undo.refs.push(PortReference { container, at: format!("{handler}/{kind}"), was, now: number });
                }
            }
        }
    }

    /// Applies the `app-listen` override to the application, and adds the sysctl that allows the
    /// sidecar to bind a port below 1024 if it takes over such a port.
    pub(super) fn apply_app_listen(
        &mut self,
        original: &Value,
        overrides: &InjectionSettings,
        planned: &[PlannedPort],
    ) {
        let on_loopback: Vec<&PlannedPort> = planned
            .iter()
            .filter(|planned| matches!(planned.mode, PortCapture::Loopback | PortCapture::Moved))
            .collect();
        if on_loopback.is_empty() {
            return;
        }
        if let Some(app_listen) = &overrides.app_listen
            && let Some(name) = &app_listen.container
            && let Some(own) = container_mut(&mut self.pod, name)
        {
            for setting in &app_listen.overrides {
                argument_edit::apply_override(own, name, setting, &mut self.undo, &mut self.report);
            }
        }
        if let Some(lowest) = on_loopback.iter().map(|planned| planned.port.number).min() {
            self.allow_low_port(original, lowest);
        }
    }

    /// Adds the sysctl that allows the sidecar to bind its lowest port, if that is below 1024.
    pub(super) fn allow_low_port(&mut self, original: &Value, lowest: u16) {
        if lowest >= UNPRIVILEGED_DEFAULT {
            return;
        }
        let set = find_named(list(original, &["spec", "securityContext", "sysctls"]), UNPRIVILEGED_SYSCTL);
        if let Some(set) = set {
            let from = text(set, &["value"]).and_then(|value| value.trim().parse::<u16>().ok());
            if from.is_none_or(|from| from > lowest) {
                self.report.warnings.push(format!(
                    "the sidecar cannot listen on {lowest}: sysctl {UNPRIVILEGED_SYSCTL} is {}, but must be {lowest} or less",
                    at(set, &["value"])
                ));
            }
            return;
        }
        let sysctl = json!({"name": UNPRIVILEGED_SYSCTL, "value": lowest.to_string()});
        list_mut(&mut self.pod, &["spec", "securityContext", "sysctls"]).push(sysctl);
        self.undo.sysctls.push(UNPRIVILEGED_SYSCTL.to_owned());
        self.report
            .facts
            .push(format!("sysctl {UNPRIVILEGED_SYSCTL}={lowest}, so that the sidecar can listen on {lowest}"));
    }

    /// Moves servers off their ports by their recipes.
    pub(super) fn apply_recipes(&mut self, recipes: &[RecipeMatch], planned: &[PlannedPort]) {
        for recipe in recipes {
            let own = planned.iter().filter(|planned| planned.port.container == recipe.container);
            let numbers: BTreeMap<u16, u16> = own
                .filter(|planned| matches!(planned.mode, PortCapture::Loopback | PortCapture::Moved))
                .map(|planned| (planned.port.number, planned.application))
                .collect();
            let Some(own) = container_mut(&mut self.pod, &recipe.container) else { continue };
            let name = recipe.name();
            self.report.facts.push(format!("container {}: recipe {name} ({})", recipe.container, recipe.source()));
            for edit in recipe.edits(own, |number| numbers.get(&number).copied()) {
                argument_edit::apply_edit(own, &recipe.container, &edit, &mut self.undo, &mut self.report);
            }
        }
    }

    /// Directs TCP probes to the sidecar's connect endpoint, which connects to the application
    /// itself. A connection of the kubelet would be accepted by the sidecar, whatever the state of
    /// the application. A probe with a `host` is not directed at this pod's port and is left
    /// unchanged.
    pub(super) fn redirect_probes(&mut self, incoming: &Value, planned: &[PlannedPort], metrics: u16) {
        let ours = planned.iter().filter(|planned| {
            matches!(planned.mode, PortCapture::Loopback | PortCapture::Moved | PortCapture::Redirect)
        });
        let ours: Vec<u16> = ours.map(|planned| planned.port.number).collect();
        for container in ports::application_names(&self.pod) {
            for probe in PROBES {
                let Some(own) = container_mut(&mut self.pod, &container) else { continue };
                let Some(number) = connects_to(own, probe).filter(|number| ours.contains(number)) else { continue };
                let there = find_named(list(incoming, &["spec", "containers"]), &container);
                let there = there.map(|there| at(there, &[probe, "httpGet"]));
                let desired = json!({"path": format!("{CONNECT_PATH}{number}"), "port": metrics});
                let own = map_mut(own, &[probe]);
                let was = own.remove("tcpSocket").unwrap_or_default();
                let null = own.insert("httpGet".to_owned(), converge::existing_or(there, desired)).is_some();
                self.undo.probes.push(ProbeChange { container: container.clone(), at: probe.to_owned(), was, null });
                self.report.facts.push(format!(
                    "{probe} of container {container}: the sidecar probes port {number}, because connections from outside reach only the sidecar"
                ));
            }
        }
    }

    /// Adds a preStop hook that makes the kubelet drain the sidecar before it stops an application.
    /// A native sidecar outlives the application and may still hold a queue. `needs_hook` is `true`
    /// for the containers whose end also ends the service of the sidecar.
    pub(super) fn add_drain_hooks(
        &mut self,
        incoming: &Value,
        needs_hook: impl Fn(&str) -> bool,
        metrics: u16,
        token: &str,
    ) {
        for container in ports::application_names(&self.pod) {
            if !needs_hook(&container) {
                continue;
            }
            let Some(own) = container_mut(&mut self.pod, &container) else { continue };
            if !at(own, &["lifecycle", "preStop"]).is_null() {
                self.report.facts.push(format!(
                    "container {container} keeps its own preStop hook; the sidecar drains by its own hook"
                ));
                continue;
            }
            let desired = json!({"httpGet": {"path": format!("{DRAIN_PATH}{token}?wait"), "port": metrics}});
            let there = find_named(list(incoming, &["spec", "containers"]), &container);
            let hook = converge::existing_or(there.map(|there| at(there, &["lifecycle", "preStop"])), desired);
            let null = map_mut(own, &["lifecycle"]).insert("preStop".to_owned(), hook).is_some();
            self.undo.hooks.push(AddedHook { container, null });
        }
    }

    /// Adds the containers and volumes. Returns the hash of the sidecar container, and the field
    /// hashes of each container.
    pub(super) fn add_containers(
        &mut self,
        incoming: &Value,
        known: Option<&InjectionStatus>,
        parts: &ManifestInputs<'_>,
    ) -> (String, FieldHashes) {
        let mut fields = BTreeMap::new();
        let mut put = |pod: &mut Value, key: &str, name: &str, desired: Value| {
            fields.insert(name.to_owned(), converge::field_hashes(&desired));
            let there = find_named(list(incoming, &["spec", key]), name);
            let before = known.and_then(|known| known.fields.get(name));
            list_mut(pod, &["spec", key]).push(converge::merge_container(there, desired, before));
        };
        let desired = parts.sidecar_container();
        let hash = blake3::hash(desired.to_string().as_bytes()).to_hex().chars().take(10).collect();
        if let Some(redirect) = parts.redirect_container() {
            put(&mut self.pod, "initContainers", REDIRECT, redirect);
        }
        // The sidecar is last: init containers that load a model run before it, and it is the first
        // of the native sidecars to be terminated.
        put(&mut self.pod, if parts.native { "initContainers" } else { "containers" }, CONTAINER, desired);
        for volume in sidecar::volumes() {
            let there =
                text(&volume, &["name"]).and_then(|name| find_named(list(incoming, &["spec", "volumes"]), name));
            let volume = converge::existing_or(there, volume);
            list_mut(&mut self.pod, &["spec", "volumes"]).push(volume);
        }
        for secret in &parts.context.sidecar.pull_secrets {
            if find_named(list(&self.pod, &["spec", "imagePullSecrets"]), secret).is_none() {
                list_mut(&mut self.pod, &["spec", "imagePullSecrets"]).push(json!({"name": secret}));
                self.undo.pull_secrets.push(secret.clone());
            }
        }
        (hash, fields)
    }

    /// Adds the pod-level requests that the API server would no longer default to the limits.
    pub(super) fn add_pod_requests(&mut self, whole: &[(String, Value)]) {
        for (resource, amount) in whole {
            let requests = map_mut(&mut self.pod, &["spec", "resources", "requests"]);
            let null = requests.insert(resource.clone(), amount.clone()).is_some();
            self.undo.requests.push(AddedRequest { resource: resource.clone(), set: amount.clone(), null });
        }
    }

    /// Keeps the application as the default container of `kubectl logs`. A native sidecar is never
    /// chosen as the default.
    pub(super) fn keep_default_container(&mut self, native: bool) {
        let first = ports::application_names(&self.pod).into_iter().find(|name| name != CONTAINER);
        let Some(first) = first.filter(|_| !native) else { return };
        let annotations = map_mut(&mut self.pod, &["metadata", "annotations"]);
        if !annotations.contains_key(DEFAULT_CONTAINER) {
            annotations.insert(DEFAULT_CONTAINER.to_owned(), json!(first));
            self.undo.default_container = Some(first);
        }
    }

    /// Adds the label, and an empty status annotation that is filled in last.
    pub(super) fn add_marks(&mut self) {
        self.undo.label = map_mut(&mut self.pod, &["metadata", "labels"]).insert(INJECTED.to_owned(), json!("true"));
        self.undo.status = map_mut(&mut self.pod, &["metadata", "annotations"]).insert(STATUS.to_owned(), json!(""));
    }

    /// Records which maps and lists were absent, so that the undo removes them when they are empty.
    pub(super) fn record_created(&mut self, original: &Value) {
        for path in CREATED_PATHS {
            let pointer = format!("/{path}");
            let (before, after) = (original.pointer(&pointer), self.pod.pointer(&pointer));
            record_created_path(&mut self.undo, path.to_owned(), before, after);
        }
        for name in ports::application_names(&self.pod) {
            let find = |pod: &Value| find_named(list(pod, &["spec", "containers"]), &name).cloned();
            let (Some(before), Some(after)) = (find(original), find(&self.pod)) else { continue };
            for key in MADE_IN_CONTAINERS {
                record_created_path(
                    &mut self.undo,
                    format!("containers/{name}/{key}"),
                    before.get(key),
                    after.get(key),
                );
            }
        }
    }
}

/// Returns the port of this pod that a pure TCP probe connects to.
fn connects_to(container: &Value, probe: &str) -> Option<u16> {
    let socket = at(container, &[probe, "tcpSocket"]);
    let elsewhere = text(socket, &["host"]).is_some_and(|host| !host.is_empty());
    if elsewhere || !at(container, &[probe, "httpGet"]).is_null() {
        return None;
    }
    let port = at(socket, &["port"]);
    // A port name refers to the same container, as the kubelet resolves it.
    let declared = list(container, &["ports"]).iter().find(|entry| port.is_string() && at(entry, &["name"]) == port);
    crate::access::number(declared.map_or(port, |entry| at(entry, &["containerPort"])))
}

fn record_created_path(undo: &mut UndoRecord, path: String, before: Option<&Value>, after: Option<&Value>) {
    let absent = before.is_none_or(Value::is_null);
    if absent && after.is_some_and(|after| !after.is_null()) {
        undo.made.insert(path, before.is_some());
    }
}
