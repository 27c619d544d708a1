//! Validation of the structure of a pod, on which the other modules rely. A pod with another
//! structure is not changed, because the changes could not be reverted.
//!
//! A pod that the API server would reject anyway (a list in place of a map, two containers of one
//! name) is skipped here, so every other module may look up containers by name. The limits bound
//! the work for a hostile object.

use std::collections::BTreeSet;

use serde_json::Value;

use super::access::{at, list, number};
use super::message::describe_value;
use super::{SkipReason, SkippedPod};

/// Maximum number of containers of a pod, of every kind. The API server has no limit; real pods
/// have at most some tens.
const CONTAINERS_MAX: usize = 256;
/// Maximum length of one list, because the lists are scanned for each captured port.
const ENTRIES_MAX: usize = 4096;
/// The API server's limit for all annotations together, keys and values
/// (`TotalAnnotationSizeLimitB` in `k8s.io/apimachinery/pkg/api/validation`).
const ANNOTATIONS_BYTES_MAX: usize = 256 << 10;

/// Expected JSON type of a value, which may also be absent or null.
#[derive(Clone, Copy)]
enum JsonKind {
    Map,
    List,
}

const POD: [(&[&str], JsonKind); 12] = [
    (&["metadata"], JsonKind::Map),
    (&["metadata", "labels"], JsonKind::Map),
    (&["metadata", "annotations"], JsonKind::Map),
    (&["metadata", "ownerReferences"], JsonKind::List),
    (&["spec"], JsonKind::Map),
    (&["spec", "containers"], JsonKind::List),
    (&["spec", "initContainers"], JsonKind::List),
    (&["spec", "ephemeralContainers"], JsonKind::List),
    (&["spec", "volumes"], JsonKind::List),
    (&["spec", "imagePullSecrets"], JsonKind::List),
    (&["spec", "securityContext"], JsonKind::Map),
    (&["spec", "securityContext", "sysctls"], JsonKind::List),
];

const CONTAINER: [(&[&str], JsonKind); 5] = [
    (&["ports"], JsonKind::List),
    (&["env"], JsonKind::List),
    (&["args"], JsonKind::List),
    (&["command"], JsonKind::List),
    (&["lifecycle"], JsonKind::Map),
];

/// Returns the first structural error of a pod.
pub(super) fn check(pod: &Value) -> Option<SkippedPod> {
    let malformed = |what: String| Some(SkipReason::Malformed.with_detail(what));
    if let Some(what) = check_types(pod, &POD) {
        return malformed(format!("{what}: the API server would reject it"));
    }
    let spec = at(pod, &["spec"]);
    let kinds = ["containers", "initContainers", "ephemeralContainers"];
    let containers: Vec<&Value> = kinds.iter().flat_map(|key| list(spec, &[key])).collect();
    if list(spec, &["containers"]).is_empty() {
        return malformed("it has no containers".to_owned());
    }
    if containers.len() > CONTAINERS_MAX {
        return Some(SkipReason::TooLarge.with_detail(format!("it has more than {CONTAINERS_MAX} containers")));
    }
    let mut names = BTreeSet::new();
    for (index, container) in containers.into_iter().enumerate() {
        let name = match at(container, &["name"]) {
            Value::String(name) if is_dns_label(name) => name.as_str(),
            Value::Null => return malformed(format!("container {} has no name", index + 1)),
            name => {
                let found = describe_value(name);
                return malformed(format!(
                    "the name of container {} is {found}: allowed are a-z, 0-9 and -, {QUOTES}",
                    index + 1
                ));
            }
        };
        if !names.insert(name) {
            return malformed(format!("two containers are named {name}"));
        }
        if let Some(what) = check_types(container, &CONTAINER) {
            return malformed(format!("container {name}: {what}: the API server would reject it"));
        }
        if let Some(what) = check_ports(container) {
            return malformed(format!("container {name}: {what}: the API server would reject it"));
        }
        let longest = ["ports", "env", "args", "command"].iter().map(|key| list(container, &[key]).len()).max();
        if longest > Some(ENTRIES_MAX) {
            return Some(
                SkipReason::TooLarge
                    .with_detail(format!("container {name} has a list of more than {ENTRIES_MAX} entries")),
            );
        }
    }
    None
}

/// Returns the reason for a skip if the annotations exceed the API server's limit.
pub(super) fn check_annotations_size(pod: &Value) -> Option<SkippedPod> {
    let annotations = at(pod, &["metadata", "annotations"]).as_object();
    let bytes: usize =
        annotations.into_iter().flatten().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    (bytes > ANNOTATIONS_BYTES_MAX).then(|| {
        SkipReason::TooLarge.with_detail(format!(
            "with the injection record its annotations have {bytes} bytes, but the API server allows {ANNOTATIONS_BYTES_MAX}"
        ))
    })
}

fn check_types(value: &Value, rules: &[(&[&str], JsonKind)]) -> Option<String> {
    rules.iter().find_map(|(path, kind)| {
        let found = at(value, path);
        let (fits, what) = match kind {
            JsonKind::Map => (found.is_object(), "map"),
            JsonKind::List => (found.is_array(), "list"),
        };
        (!fits && !found.is_null()).then(|| format!("{} is not a {what}", path.join(".")))
    })
}

/// End of the message about a container name that YAML does not parse as a string.
const QUOTES: &str = "at most 63 characters; put on, yes and numbers in quotes";

/// Returns the error of the first invalid port.
fn check_ports(container: &Value) -> Option<String> {
    let mut ports = list(container, &["ports"]).iter().enumerate();
    ports.find_map(|(index, port)| {
        if !port.is_object() {
            return Some(format!("ports[{index}] is {}, expected a map", describe_value(port)));
        }
        let found = at(port, &["containerPort"]);
        let wrong = number(found).is_none();
        wrong.then(|| {
            format!("ports[{index}].containerPort is {}, expected a number from 1 to 65535", describe_value(found))
        })
    })
}

/// Returns `true` for a DNS label, the form of container names (RFC 1123).
pub(super) fn is_dns_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}
