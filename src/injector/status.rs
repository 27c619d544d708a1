//! The annotation `groupage.dev/status`: what was injected, for people and the controller, and how it is undone.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::access::{list, text};
use super::capture::Mode;
use super::sidecar::DRAIN_TOKEN;
use super::{CONTAINER, STATUS};

/// What was injected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    /// Of Groupage.
    pub(super) version: String,
    /// `native` or `classic`.
    pub(super) form: String,
    /// The captured ports.
    #[serde(default)]
    pub(super) capture: Vec<Captured>,
    /// The recipes by which servers were moved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) recipes: Vec<String>,
    /// The number where `/metrics` is.
    pub(super) metrics: u16,
    /// The number where `/api` is, on loopback.
    pub(super) admin: u16,
    /// The policy's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<String>,
    /// The profile's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) profile: Option<String>,
    /// Over the sidecar's container; no time in it.
    pub(super) hash: String,
    /// The token of the drain hook, as versions before 0.2 wrote it: annotations are read by more
    /// than specs are, and it is in the sidecar's environment.
    #[serde(default, skip_serializing)]
    pub(super) token: Option<String>,
    /// By container, a hash of each of its fields as we wrote it: what is still wanted so stays on a later pass with all that others did to it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) fields: BTreeMap<String, BTreeMap<String, String>>,
    /// What to do in reverse.
    #[serde(default)]
    pub(super) undo: Undo,
}

/// One captured port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Captured {
    pub(super) container: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) port: u16,
    pub(super) mode: Mode,
    pub(super) listen: u16,
    /// What goes around the sidecar.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) bypass: Vec<String>,
}

/// What was changed in the user's own part of the pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Undo {
    /// Maps and lists that we made, by path; `true` where there was an explicit null.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) made: BTreeMap<String, bool>,
    /// Ports that have another name now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) names: Vec<Renamed>,
    /// References to such names that are numbers now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) refs: Vec<Reference>,
    /// Probes that ask the sidecar now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) probes: Vec<Probe>,
    /// Variables that were set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) env: Vec<Variable>,
    /// Arguments that were set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) args: Vec<Argument>,
    /// Containers that got a drain hook.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) hooks: Vec<Hook>,
    /// The default container that we named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) default_container: Option<String>,
    /// Image pull secrets that we added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) pull_secrets: Vec<String>,
    /// Requests of the pod as a whole that we wrote out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) requests: Vec<Requested>,
    /// Kernel settings that we added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sysctls: Vec<String>,
    /// What stood where our label stands.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub(super) label: Option<Value>,
    /// What stood where this annotation stands, and was none of ours.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Value>,
}

/// A port with another name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Renamed {
    pub(super) container: String,
    pub(super) port: u16,
    pub(super) was: String,
    pub(super) now: String,
}

/// A reference to a port's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reference {
    pub(super) container: String,
    /// Such as `livenessProbe/httpGet`.
    pub(super) at: String,
    pub(super) was: String,
    pub(super) now: u16,
}

/// A probe that only connected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Probe {
    pub(super) container: String,
    /// Such as `livenessProbe`.
    pub(super) at: String,
    /// Its `tcpSocket`.
    pub(super) was: Value,
    /// Whether an explicit null stood where its `httpGet` stands.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) null: bool,
}

/// A variable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Variable {
    pub(super) container: String,
    pub(super) name: String,
    pub(super) set: String,
    /// The whole entry as it was; absent: there was none.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub(super) was: Option<Value>,
}

/// An argument.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Argument {
    pub(super) container: String,
    /// `args` or `command`.
    pub(super) list: String,
    pub(super) index: usize,
    pub(super) set: String,
    /// Absent: there was none.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub(super) was: Option<Value>,
}

/// A request of the pod as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Requested {
    /// Such as `cpu`.
    pub(super) resource: String,
    pub(super) set: Value,
    /// Whether an explicit null stood in its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) null: bool,
}

/// A drain hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hook {
    pub(super) container: String,
    /// Whether an explicit null stood in its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) null: bool,
}

/// A value that is there, also where it is null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

// === impl Status ===

impl Status {
    /// The status in a pod's annotations, if there is one that can be read.
    pub(super) fn of(pod: &Value) -> Option<Self> {
        Self::read(text(pod, &["metadata", "annotations", STATUS])?)
    }

    /// The status that a text is, if it can be read.
    pub(super) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The token by which the drain hook of a pod is called, of its sidecar or of an older status.
    pub(super) fn drain_token(&self, pod: &Value) -> Option<String> {
        let sidecar = ["initContainers", "containers"]
            .iter()
            .flat_map(|key| list(pod, &["spec", key]))
            .find(|container| text(container, &["name"]) == Some(CONTAINER));
        let env = sidecar.map(|sidecar| list(sidecar, &["env"])).unwrap_or_default();
        let variable = env.iter().find(|entry| text(entry, &["name"]) == Some(DRAIN_TOKEN));
        let token = variable.and_then(|entry| text(entry, &["value"])).or(self.token.as_deref());
        // It becomes part of a path, so it is one that we could have made.
        let is_ours = |token: &&str| {
            (16..=64).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        token.filter(is_ours).map(str::to_owned)
    }
}
