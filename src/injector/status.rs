//! Annotation `groupage.dev/status`: a report of the injection for users and the controller, and
//! the undo record.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::access::{list, text};
use super::names::DRAIN_TOKEN;
use super::planned::PortCapture;
use super::{CONTAINER, STATUS};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InjectionStatus {
    /// Version of Groupage.
    pub(super) version: String,
    /// Either `native` or `classic`.
    pub(super) form: String,
    #[serde(default)]
    pub(super) capture: Vec<CapturedPort>,
    /// Names of the recipes that were applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) recipes: Vec<String>,
    /// The model that the sidecar executes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) engine: Option<EngineStatus>,
    /// Port number of `/metrics`.
    pub(super) metrics: u16,
    /// Port number of `/api`, on loopback.
    pub(super) admin: u16,
    /// Name of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<String>,
    /// Name of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) profile: Option<String>,
    /// Hash of the sidecar container, without any timestamp.
    pub(super) hash: String,
    /// Token of the drain hook, written by versions before 0.2. It is now only in the sidecar's
    /// environment, because annotations are readable by more principals than pod specs.
    #[serde(default, skip_serializing)]
    pub(super) token: Option<String>,
    /// Field hashes by container, as written by the injection. If the desired value of a field has
    /// the same hash in a later pass, the field keeps its current value with the changes of other
    /// components.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) fields: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    pub(super) undo: UndoRecord,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CapturedPort {
    pub(super) container: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) port: u16,
    pub(super) mode: PortCapture,
    pub(super) listen: u16,
    /// Traffic that bypasses the sidecar.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) bypass: Vec<String>,
}

/// A model that the sidecar executes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EngineStatus {
    /// Directory of the model.
    pub(super) model: String,
    /// Volume of the pod that has the model.
    pub(super) volume: String,
    /// Requested device.
    pub(super) device: String,
    /// Ports on which the sidecar serves the model.
    pub(super) ports: Vec<u16>,
    /// Names of these ports that Services resolve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) names: Vec<String>,
    /// Ports of the other containers: those that they declare and that their probes connect to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) declared: Vec<u16>,
    /// Names of these ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "declaredNames")]
    pub(super) declared_names: Vec<String>,
}

/// Undo record: the changes in the user's own part of the pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct UndoRecord {
    /// Maps and lists that the injection created, by path; `true` if there was an explicit null.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) made: BTreeMap<String, bool>,
    /// Ports that were renamed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) names: Vec<PortRename>,
    /// References to such names that were replaced by numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) refs: Vec<PortReference>,
    /// Probes that were directed to the sidecar.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) probes: Vec<ProbeChange>,
    /// Variables that were set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) env: Vec<VariableChange>,
    /// Arguments that were set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) args: Vec<ArgumentChange>,
    /// Containers that got a drain hook.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) hooks: Vec<AddedHook>,
    /// Value of the default-container annotation that was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) default_container: Option<String>,
    /// Image pull secrets that were added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) pull_secrets: Vec<String>,
    /// Pod-level requests that were added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) requests: Vec<AddedRequest>,
    /// Sysctls that were added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sysctls: Vec<String>,
    /// Previous value of the label `groupage.dev/injected`.
    #[serde(deserialize_with = "deserialize_present", skip_serializing_if = "Option::is_none")]
    pub(super) label: Option<Value>,
    /// Previous value of this annotation, if it was no status of Groupage.
    #[serde(deserialize_with = "deserialize_present", skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PortRename {
    pub(super) container: String,
    pub(super) port: u16,
    pub(super) was: String,
    pub(super) now: String,
}

/// A reference to a port by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PortReference {
    pub(super) container: String,
    /// Path of the handler, such as `livenessProbe/httpGet`.
    pub(super) at: String,
    pub(super) was: String,
    pub(super) now: u16,
}

/// A TCP probe that was replaced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ProbeChange {
    pub(super) container: String,
    /// Name of the probe, such as `livenessProbe`.
    pub(super) at: String,
    /// Previous `tcpSocket`.
    pub(super) was: Value,
    /// `true` if `httpGet` was an explicit null before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) null: bool,
}

/// A variable that was set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct VariableChange {
    pub(super) container: String,
    pub(super) name: String,
    pub(super) set: String,
    /// The previous entry; `None` if there was none.
    #[serde(default, deserialize_with = "deserialize_present", skip_serializing_if = "Option::is_none")]
    pub(super) was: Option<Value>,
}

/// An argument that was set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ArgumentChange {
    pub(super) container: String,
    /// Either `args` or `command`.
    pub(super) list: String,
    pub(super) index: usize,
    pub(super) set: String,
    /// The previous argument; `None` if it was added.
    #[serde(default, deserialize_with = "deserialize_present", skip_serializing_if = "Option::is_none")]
    pub(super) was: Option<Value>,
}

/// A pod-level request that was added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct AddedRequest {
    /// Resource name, such as `cpu`.
    pub(super) resource: String,
    pub(super) set: Value,
    /// `true` if it was an explicit null before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) null: bool,
}

/// A drain hook that was added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AddedHook {
    pub(super) container: String,
    /// `true` if it was an explicit null before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) null: bool,
}

/// Deserializes a value that is present, so that an explicit null becomes `Some`.
fn deserialize_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

// === impl InjectionStatus ===

impl InjectionStatus {
    /// Parses the status in a pod's annotations; `None` if it is absent or invalid.
    pub(super) fn from_pod(pod: &Value) -> Option<Self> {
        Self::parse(text(pod, &["metadata", "annotations", STATUS])?)
    }

    /// Parses a status; `None` if it is invalid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns the token of a pod's drain hook, from its sidecar or from a status of an older
    /// version.
    pub(super) fn drain_token(&self, pod: &Value) -> Option<String> {
        let sidecar = ["initContainers", "containers"]
            .iter()
            .flat_map(|key| list(pod, &["spec", key]))
            .find(|container| text(container, &["name"]) == Some(CONTAINER));
        let env = sidecar.map(|sidecar| list(sidecar, &["env"])).unwrap_or_default();
        let variable = env.iter().find(|entry| text(entry, &["name"]) == Some(DRAIN_TOKEN));
        let token = variable.and_then(|entry| text(entry, &["value"])).or(self.token.as_deref());
        // The token becomes part of a path, so only the format of generated tokens is accepted.
        let is_ours = |token: &&str| {
            (16..=64).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        token.filter(is_ours).map(str::to_owned)
    }
}
