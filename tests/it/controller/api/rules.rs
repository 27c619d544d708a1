//! The permissions of the installed roles. Tests fail if the controller requests anything else.
//!
//! They are read from `manifests/install.yaml`, so that a permission removed there is missing here.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde::Deserialize;

/// Name of the controller's service account in the manifest. Its roles have the same name.
const CONTROLLER: &str = "groupage-controller";

#[derive(Debug, Deserialize)]
struct Role {
    metadata: Metadata,
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    resources: Vec<String>,
    verbs: BTreeSet<String>,
    /// Names that the rule is restricted to; empty for any name.
    #[serde(default)]
    resource_names: Vec<String>,
}

static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let manifest = include_str!("../../../../manifests/install.yaml");
    let is_role = |text: &&str| text.lines().any(|line| matches!(line, "kind: Role" | "kind: ClusterRole"));
    let roles = manifest.split("\n---\n").filter(is_role);
    let roles = roles.map(|text| serde_saphyr::from_str::<Role>(text).unwrap());
    roles.filter(|role| role.metadata.name == CONTROLLER).flat_map(|role| role.rules).collect()
});

pub(super) fn allow(verb: &str, resource: &str, name: &str) -> bool {
    // Any client may read the server's version.
    (verb, resource) == ("get", "version")
        || RULES.iter().any(|rule| {
            rule.resources.iter().any(|known| known == resource)
                && rule.verbs.contains(verb)
                && (rule.resource_names.is_empty() || rule.resource_names.iter().any(|only| only == name))
        })
}

#[test]
fn the_role_allows_the_needed_requests_and_no_other_writes() {
    for (verb, resource, name) in [
        ("patch", "batchpolicies/status", "p"),
        ("get", "leases", CONTROLLER),
        ("patch", "leases", CONTROLLER),
        ("create", "leases", ""),
        ("patch", "secrets", "groupage-tls"),
    ] {
        assert!(allow(verb, resource, name), "{verb} {resource} {name}");
    }
    for (verb, resource, name) in [
        ("update", "leases", CONTROLLER),
        ("patch", "leases", "other"),
        ("get", "secrets", "other"),
        ("list", "secrets", "groupage-tls"),
        ("update", "secrets", "groupage-tls"),
        ("patch", "pods", "p"),
        ("patch", "batchpolicies", "p"),
    ] {
        assert!(!allow(verb, resource, name), "{verb} {resource} {name}");
    }
    let verbs = RULES.iter().flat_map(|rule| &rule.verbs).chain(RULES.iter().flat_map(|rule| &rule.resources));
    assert!(!verbs.into_iter().any(|word| word == "*"));
}
