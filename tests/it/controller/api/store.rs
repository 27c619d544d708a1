//! Stores objects, their versions and their history.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

use super::patch;
use super::select::Selection;

/// A resource that the server serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ResourceKind {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) resource: &'static str,
    pub(super) kind: &'static str,
    pub(super) namespaced: bool,
}

const fn kind(
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    kind: &'static str,
    namespaced: bool,
) -> ResourceKind {
    ResourceKind { group, version, resource, kind, namespaced }
}

const KINDS: [ResourceKind; 18] = [
    kind("", "v1", "pods", "Pod", true),
    kind("", "v1", "services", "Service", true),
    kind("", "v1", "secrets", "Secret", true),
    kind("", "v1", "namespaces", "Namespace", false),
    kind("", "v1", "nodes", "Node", false),
    kind("apps", "v1", "deployments", "Deployment", true),
    kind("apps", "v1", "statefulsets", "StatefulSet", true),
    kind("apps", "v1", "daemonsets", "DaemonSet", true),
    kind("apps", "v1", "replicasets", "ReplicaSet", true),
    kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", true),
    kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", false),
    kind("coordination.k8s.io", "v1", "leases", "Lease", true),
    kind("events.k8s.io", "v1", "events", "Event", true),
    kind("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", false),
    kind("groupage.dev", "v1alpha1", "batchpolicies", "BatchPolicy", true),
    kind("groupage.dev", "v1alpha1", "batchprofiles", "BatchProfile", true),
    kind("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool", true),
    kind("serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService", true),
];

/// Resources without a definition until a test adds it.
const OPTIONAL: [&str; 2] = ["inferencepools", "inferenceservices"];

/// The reason why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// A recorded change of an object.
#[derive(Debug, Clone)]
struct HistoryEntry {
    version: u64,
    resource: &'static str,
    before: Option<Value>,
    after: Option<Value>,
}

type ObjectKey = (&'static str, String, String);

/// A change of an object.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Merge(Value),
    Json(json_patch::Patch),
    Apply { manager: String, value: Value },
}

pub(in super::super) struct Store {
    version: u64,
    /// Versions up to this one are no longer available.
    forgotten: u64,
    uids: u64,
    objects: BTreeMap<ObjectKey, Value>,
    log: Vec<HistoryEntry>,
    applied: HashMap<(ObjectKey, String, String), Value>,
    absent: BTreeSet<&'static str>,
    /// The server's own clock, in seconds since 1970.
    wall: i64,
}

fn refuse(code: u16, reason: &'static str, message: impl Into<String>) -> ApiError {
    ApiError { code, reason, message: message.into() }
}

// === impl Store ===

impl Store {
    pub(super) fn new() -> Self {
        Self {
            version: 100,
            forgotten: 0,
            uids: 0,
            objects: BTreeMap::new(),
            log: Vec::new(),
            applied: HashMap::new(),
            absent: OPTIONAL.into(),
            wall: 1_700_000_000,
        }
    }

    pub(super) fn kind(&self, group: &str, version: &str, resource: &str) -> Option<ResourceKind> {
        let found =
            KINDS.iter().find(|kind| kind.group == group && kind.version == version && kind.resource == resource)?;
        (!self.absent.contains(found.resource)).then_some(*found)
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    pub(super) fn compact(&mut self) {
        self.version += 1;
        self.forgotten = self.version;
        self.log.clear();
    }

    pub(super) fn serves(&mut self, resource: &'static str, there: bool) {
        if there {
            self.absent.remove(resource);
            return;
        }
        self.absent.insert(resource);
        let gone: Vec<ObjectKey> = self.objects.keys().filter(|key| key.0 == resource).cloned().collect();
        for key in gone {
            self.objects.remove(&key);
        }
        self.compact();
    }

    pub(super) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<&Value> {
        let resource = KINDS.iter().find(|kind| kind.resource == resource)?.resource;
        self.objects.get(&(resource, namespace.to_owned(), name.to_owned()))
    }

    pub(super) fn all<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |(key, _)| key.0 == resource).map(|(_, object)| object)
    }

    /// Creates or replaces an object, including its status.
    pub(super) fn put(&mut self, object: Value) -> Result<Value, ApiError> {
        let (api, name) =
            (object["apiVersion"].as_str().unwrap_or_default(), object["kind"].as_str().unwrap_or_default());
        let (group, version) = api.split_once('/').unwrap_or(("", api));
        let kind = KINDS.iter().find(|kind| kind.group == group && kind.version == version && kind.kind == name);
        let kind = *kind.ok_or_else(|| refuse(404, "NotFound", format!("no kind {api} {name}")))?;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let key =
            (kind.resource, namespace.clone(), object["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        if self.objects.contains_key(&key) {
            Ok(self.store(&key, object))
        } else {
            self.create(kind, &namespace, object)
        }
    }

    pub(super) fn create(&mut self, kind: ResourceKind, namespace: &str, mut object: Value) -> Result<Value, ApiError> {
        let Some(name) = object["metadata"]["name"].as_str().map(str::to_owned) else {
            return Err(refuse(422, "Invalid", "metadata.name is required"));
        };
        let key = (kind.resource, namespace.to_owned(), name.clone());
        if self.objects.contains_key(&key) {
            return Err(refuse(409, "AlreadyExists", format!("{} {name:?} already exists", kind.resource)));
        }
        if object["metadata"].get("resourceVersion").is_some() {
            return Err(refuse(422, "Invalid", "resourceVersion should not be set on objects to be created"));
        }
        self.uids += 1;
        let metadata = object["metadata"].as_object_mut().expect("it has a name");
        metadata.insert("uid".to_owned(), json!(format!("uid-{}", self.uids)));
        metadata.entry("generation").or_insert(json!(1));
        metadata.entry("creationTimestamp").or_insert(json!(time(self.wall + i64::try_from(self.uids).unwrap())));
        if kind.namespaced {
            metadata.insert("namespace".to_owned(), json!(namespace));
        }
        object["apiVersion"] = json!(api_version(kind));
        object["kind"] = json!(kind.kind);
        Ok(self.store(&key, object))
    }

    pub(super) fn remove(&mut self, resource: &str, namespace: &str, name: &str) -> Result<Value, ApiError> {
        let kind = KINDS.iter().find(|kind| kind.resource == resource).expect("a resource that is served");
        let key = (kind.resource, namespace.to_owned(), name.to_owned());
        let mut object = self.objects.remove(&key).ok_or_else(|| missing(resource, name))?;
        self.applied.retain(|(owned, ..), _| *owned != key);
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.log.push(HistoryEntry {
            version: self.version,
            resource: kind.resource,
            before: Some(object.clone()),
            after: None,
        });
        Ok(object)
    }

    /// Changes an object, or only its part `status`, which cannot be changed in any other way.
    #[expect(clippy::needless_pass_by_value, reason = "as a request is")]
    pub(super) fn change(
        &mut self,
        kind: ResourceKind,
        at: (&str, &str),
        part: &str,
        change: Change,
    ) -> Result<Value, ApiError> {
        let (namespace, name) = at;
        let key = (kind.resource, namespace.to_owned(), name.to_owned());
        let Some(before) = self.objects.get(&key).cloned() else {
            return match change {
                Change::Apply { ref value, .. } if part.is_empty() => {
                    let made = self.create(kind, namespace, value.clone())?;
                    self.note_applied(&key, part, &change);
                    Ok(made)
                }
                _ => Err(missing(kind.resource, name)),
            };
        };
        let mut after = before.clone();
        match &change {
            Change::Merge(patch) => {
                checked(&before, patch)?;
                json_patch::merge(&mut after, patch);
            }
            Change::Json(patch) => json_patch::patch(&mut after, patch)
                .map_err(|error| refuse(422, "Invalid", format!("the patch cannot be applied: {error}")))?,
            Change::Apply { manager, value } => {
                if value["apiVersion"] != json!(api_version(kind)) || value["kind"] != json!(kind.kind) {
                    return Err(refuse(400, "BadRequest", "an applied object needs apiVersion and kind"));
                }
                if value["metadata"]["name"] != json!(name) || value["metadata"].get("managedFields").is_some() {
                    return Err(refuse(400, "BadRequest", "an applied object needs its name and no managedFields"));
                }
                if value["status"].as_object().is_some_and(serde_json::Map::is_empty) {
                    return Err(refuse(
                        422,
                        "Invalid",
                        "status: Invalid value: \"null\": status must be of type object",
                    ));
                }
                checked(&before, value)?;
                let last = self.applied.get(&(key.clone(), part.to_owned(), manager.clone()));
                patch::apply(&mut after, last, value);
            }
        }
        self.note_applied(&key, part, &change);
        // Each part is written only through its own endpoint.
        let (written, kept) = if part == "status" { (&before, &after) } else { (&after, &before) };
        let mut whole = written.clone();
        match kept.get("status") {
            Some(status) => whole["status"] = status.clone(),
            None => drop(whole.as_object_mut().and_then(|fields| fields.remove("status"))),
        }
        if part != "status" && whole["spec"] != before["spec"] {
            whole["metadata"]["generation"] = json!(before["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
        }
        Ok(self.store(&key, whole))
    }

    fn note_applied(&mut self, key: &ObjectKey, part: &str, change: &Change) {
        if let Change::Apply { manager, value } = change {
            self.applied.insert((key.clone(), part.to_owned(), manager.clone()), value.clone());
        }
    }

    fn store(&mut self, key: &ObjectKey, mut object: Value) -> Value {
        let before = self.objects.get(key).cloned();
        if let Some(before) = &before {
            object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            object["metadata"]["uid"] = before["metadata"]["uid"].clone();
            // A write that changes nothing creates no version.
            if *before == object {
                return object;
            }
            if object["spec"] != before["spec"] && object["metadata"]["generation"] == before["metadata"]["generation"]
            {
                object["metadata"]["generation"] = json!(before["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
            }
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(key.clone(), object.clone());
        self.log.push(HistoryEntry { version: self.version, resource: key.0, before, after: Some(object.clone()) });
        object
    }

    /// Returns the events that a watch on a selection receives after a version.
    pub(super) fn since(&self, version: u64, resource: &str, selection: &Selection) -> Vec<(u64, &'static str, Value)> {
        let to_event = |logged: &HistoryEntry| {
            let was = logged.before.as_ref().filter(|object| selection.matches(object));
            let is = logged.after.as_ref().filter(|object| selection.matches(object));
            let (word, object) = match (was, is) {
                (None, None) => return None,
                (None, Some(is)) => ("ADDED", is.clone()),
                (Some(_), Some(is)) => ("MODIFIED", is.clone()),
                (Some(was), None) => {
                    let mut last = logged.after.clone().unwrap_or_else(|| was.clone());
                    last["metadata"]["resourceVersion"] = json!(logged.version.to_string());
                    ("DELETED", last)
                }
            };
            Some((logged.version, word, object))
        };
        self.log
            .iter()
            .filter(|logged| logged.version > version && logged.resource == resource)
            .filter_map(to_event)
            .collect()
    }
}

fn missing(resource: &str, name: &str) -> ApiError {
    refuse(404, "NotFound", format!("{resource} {name:?} not found"))
}

fn checked(before: &Value, change: &Value) -> Result<(), ApiError> {
    match change["metadata"].get("resourceVersion") {
        Some(wanted) if *wanted != before["metadata"]["resourceVersion"] => Err(refuse(
            409,
            "Conflict",
            "the object has been modified; please apply your changes to the latest version",
        )),
        _ => Ok(()),
    }
}

pub(super) fn api_version(kind: ResourceKind) -> String {
    if kind.group.is_empty() { kind.version.to_owned() } else { format!("{}/{}", kind.group, kind.version) }
}

fn time(seconds: i64) -> String {
    k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap().to_string()
}
