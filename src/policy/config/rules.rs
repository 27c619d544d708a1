//! Rules between keys: exclusions and dependencies.
//!
//! Presence is tested first: a key with an invalid value is still present, and its value has
//! already been reported.

pub(super) mod cluster;
mod generic;
mod route;

use serde_json::Value as Json;

use super::check::Validator;
use super::code::ConfigCode;
use super::finding::{Finding, Notice};
use super::schema::{self, KeyDefault};
use super::units::parse_duration;
use crate::protocol::headers::IDENTITY;

/// A header that matches a prefix of [`IDENTITY`] but carries no identity.
pub(super) const IDENTITY_EXCEPTION: &str = "x-amz-cf-id";

/// Identity headers with a secret value. `*` begins a suffix: a token is a secret whatever its full
/// name is.
pub(super) const CREDENTIALS: [&str; 7] =
    ["authorization", "proxy-authorization", "cookie", "*api-key", "*-token", "*-secret", "*-password"];

/// Headers that belong to a connection or to one message.
pub(super) const HOP_HEADERS: [&str; 12] = [
    "host",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "content-type",
    "expect",
    "date",
];

/// Applies every rule to the values that `check` accepted.
pub(super) fn apply(check: &mut Validator, spec: &Json) {
    check.exclude("targetRefs", "selector");
    check.exclude("profileRef", "limits");
    check.exclude("profileRef", "scheduling");
    let slots = spec["scheduling"]["slots"].as_u64().unwrap_or(1);
    if let Some(slots_max) = spec["limits"]["slotsMax"].as_u64().filter(|slots_max| slots > *slots_max)
        && check.has("scheduling.slots")
    {
        check.notice("scheduling.slots", &format!("limits.slotsMax is {slots_max} and caps it"));
    }
    let tenant = spec["tenants"]["header"].as_str().map(str::to_ascii_lowercase);
    if let Some(header) = tenant.as_deref().filter(|header| HOP_HEADERS.contains(header)) {
        let message = format!("`tenants.header` cannot be `{header}`");
        check.push_bad_value(
            "tenants.header",
            &message,
            "the header describes one connection or message, not the caller: name another header",
        );
    }
    if let Some(header) = tenant.as_deref().filter(|header| is_credential(header) && check.has("tenants.weights")) {
        let message = format!("`tenants.weights` cannot be used with `{header}`, which carries a credential");
        check.push_bad_value(
            "tenants.header",
            &message,
            "the names of `weights` are shown by /api/config and the log: identify tenants by another header",
        );
    }
    check_engine(check, spec);
    check_shares(check, spec);
    check_hold_limits(check, spec);
    cluster::apply(check, spec);
    check_drain(check, spec);
    check_client_certificate(check);
    for (index, route) in list(&spec["routes"]).iter().enumerate() {
        let path = format!("routes[{index}]");
        check_merge_names(check, &path, route, tenant.as_deref());
        generic::apply(check, &path, route);
    }
    route::apply(check, spec);
}

/// Reports settings of an engine without a model, and a model that most pods do not find.
fn check_engine(check: &mut Validator, spec: &Json) {
    let model = spec["engine"]["model"].as_str().filter(|_| check.has("targetRefs") || check.has("selector"));
    if model.is_some_and(|model| !model.starts_with('/')) {
        check.notice(
            "engine.model",
            "the directory is relative, so only pods with groupage.dev/engine-volume get a sidecar: write the absolute directory at which a container mounts it",
        );
    }
    for key in ["device", "memory", "batchInvariant", "itemTokensMax"].map(|key| format!("engine.{key}")) {
        if check.has(&key) && !check.has("engine.model") {
            check.notice(&key, "engine.model is not set, so it applies only with --engine or groupage.dev/engine");
        }
    }
}

/// Checks that a drain has time left after its delay.
fn check_drain(check: &mut Validator, spec: &Json) {
    let drain = |key: &str| or_default(&format!("proxy.drain.{key}"), &spec["proxy"]["drain"][key]);
    if let (Some(delay), Some(limit)) = (parse_duration(&drain("delay")), parse_duration(&drain("limit")))
        && delay >= limit
    {
        let key = if check.has("proxy.drain.delay") { "proxy.drain.delay" } else { "proxy.drain.limit" };
        let limit = drain("limit");
        check.notice(
            key,
            &format!("proxy.drain.limit is {limit} and counts from the signal, so it ends before the delay does"),
        );
    }
}

/// Checks that a client certificate has a key.
fn check_client_certificate(check: &mut Validator) {
    for (there, missing) in [("certFile", "keyFile"), ("keyFile", "certFile")] {
        let (there, missing) = (format!("proxy.upstreamTls.{there}"), format!("proxy.upstreamTls.{missing}"));
        if check.has(&there) && !check.has(&missing) {
            let message = format!("`{there}` needs `{missing}`");
            check.push_bad_value(
                &there,
                &message,
                "a certificate and its key belong together: name both files, or neither",
            );
        }
    }
}

fn or_default(path: &str, written: &Json) -> String {
    match (written, schema::find_key(path).map(|key| key.default)) {
        (Json::Null, Some(KeyDefault::Value(text))) => text.to_owned(),
        (Json::String(text), _) => text.clone(),
        (other, _) => other.to_string(),
    }
}

/// Checks priority classes and tenants: class names are unique, and settings without effect are
/// reported.
fn check_shares(check: &mut Validator, spec: &Json) {
    let priority = &spec["priority"];
    let header = priority["header"].as_str().map(str::to_ascii_lowercase);
    if let Some(header) = header.as_deref().filter(|header| HOP_HEADERS.contains(header)) {
        let message = format!("`priority.header` cannot be `{header}`");
        check.push_bad_value(
            "priority.header",
            &message,
            "the header describes one connection or message, not a priority class: name another header",
        );
    }
    let classes = list(&priority["classes"]);
    for (index, class) in classes.iter().enumerate() {
        let at = |key: &str| format!("priority.classes[{index}].{key}");
        let name = class["name"].as_str();
        if name.is_some() && classes.iter().take(index).any(|other| other["name"].as_str() == name) {
            let message = format!("another class is already called `{}`", name.unwrap_or_default());
            check.push_bad_value(&at("name"), &message, "give each class a unique name");
        }
        if class["strict"] == true && class["filler"] == true {
            check.excluded(&at("filler"), "a class is `strict` or `filler`, not both");
        }
    }
    if check.has("priority.classes") && !check.has("priority.header") {
        check.notice("priority.classes", "priority.header is not set, so every call belongs to the first class");
    }
    if check.has("tenants.weights") && !check.has("tenants.header") {
        check.notice(
            "tenants.weights",
            "tenants.header is not set, so tenants have no names and the weights have no effect",
        );
    }
    let policy = or_default("scheduling.policy", &spec["scheduling"]["policy"]);
    for key in ["priority.header", "tenants.weights"].iter().filter(|_| policy != "Adaptive") {
        if check.has(key) {
            check.notice(key, "applies only to the policy Adaptive");
        }
    }
}

/// Reports holding times and batch sizes that exceed the limits, which cap them.
fn check_hold_limits(check: &mut Validator, spec: &Json) {
    let own = &spec["scheduling"];
    if !matches!(own["policy"].as_str(), Some("Window" | "Static")) {
        for key in ["items", "delay"].map(|key| format!("scheduling.{key}")) {
            if check.has(&key) {
                check.notice(&key, "applies only to the policies Window and Static");
            }
        }
        return;
    }
    let value = |path: &str, written: &Json| or_default(path, written);
    let (delay, items) = (value("scheduling.delay", &own["delay"]), value("scheduling.items", &own["items"]));
    let delay_max = value("limits.queueDelayMax", &spec["limits"]["queueDelayMax"]);
    let items_max = value("limits.batchItemsMax", &spec["limits"]["batchItemsMax"]);
    if parse_duration(&delay) > parse_duration(&delay_max) {
        let at = if check.has("scheduling.delay") { "scheduling.delay" } else { "limits.queueDelayMax" };
        check.notice(at, &format!("limits.queueDelayMax is {delay_max} and caps scheduling.delay, {delay}"));
    }
    if items.parse::<u64>().ok() > items_max.parse().ok() {
        let at = if check.has("scheduling.items") { "scheduling.items" } else { "limits.batchItemsMax" };
        check.notice(at, &format!("limits.batchItemsMax is {items_max} and caps scheduling.items, {items}"));
    }
}

fn check_merge_names(check: &mut Validator, path: &str, route: &Json, tenant: Option<&str>) {
    for kind in ["headers", "fields"] {
        let fold = |json: &Json| {
            let text = json.as_str().unwrap_or_default();
            if kind == "headers" { text.to_ascii_lowercase() } else { text.to_owned() }
        };
        let on: Vec<String> = list(&route["mergeOn"][kind]).iter().map(fold).collect();
        for (index, entry) in list(&route["mergeOver"][kind]).iter().enumerate() {
            let (name, at) = (fold(entry), format!("{path}.mergeOver.{kind}[{index}]"));
            if on.contains(&name) {
                check.excluded(&at, &format!("`{name}` is in both mergeOn and mergeOver"));
            } else if kind == "headers" && (is_identity(&name) || tenant == Some(name.as_str())) {
                check.push_bad_value(
                    &at,
                    &format!("`mergeOver` cannot name `{name}`"),
                    "calls with different identities never share a batch",
                );
            }
        }
    }
    for (side, field) in [("mergeOn", "/user"), ("mergeOver", "/user"), ("respondWith", "/version")] {
        for (index, entry) in list(&route[side]["fields"]).iter().enumerate() {
            if entry == "" {
                check.push_bad_value(
                    &format!("{path}.{side}.fields[{index}]"),
                    &format!("`{side}.fields` cannot name the whole body"),
                    &format!("name a field, such as {field}"),
                );
            }
        }
    }
}

fn is_identity(name: &str) -> bool {
    name != IDENTITY_EXCEPTION && IDENTITY.contains(name)
}

fn is_credential(name: &str) -> bool {
    CREDENTIALS.iter().any(|known| known.strip_prefix('*').map_or(*known == name, |suffix| name.ends_with(suffix)))
}

fn list(json: &Json) -> &[Json] {
    json.as_array().map(Vec::as_slice).unwrap_or_default()
}

// === impl Validator ===

impl Validator {
    fn has(&self, path: &str) -> bool {
        self.places.contains_key(path)
    }

    /// Reports two keys that exclude each other, at the one that comes later.
    fn exclude(&mut self, one: &str, other: &str) {
        let (Some(first), Some(second)) = (self.places.get(one), self.places.get(other)) else { return };
        let later = if first.key > second.key { one } else { other };
        self.excluded(later, &format!("`{one}` and `{other}` exclude each other"));
    }

    fn excluded(&mut self, path: &str, message: &str) {
        self.push_finding(ConfigCode::Excluded, path, message, "leave one of them out");
    }

    fn push_finding(&mut self, code: ConfigCode, path: &str, message: &str, help: &str) {
        let at = self.places.get(path).map(|place| place.key).unwrap_or_default();
        self.push_once(Finding::new(code, path, at, message).help(help));
    }

    fn push_bad_value(&mut self, path: &str, message: &str, help: &str) {
        let at = self.places.get(path).map(|place| place.value).unwrap_or_default();
        self.push_once(Finding::new(ConfigCode::BadValue, path, at, message).help(help));
    }

    /// Adds a finding, unless the key already has one, which has to be corrected first.
    fn push_once(&mut self, finding: Finding) {
        if !self.findings.iter().any(|other| other.path == finding.path) {
            self.findings.push(finding);
        }
    }

    fn notice(&mut self, path: &str, message: &str) {
        let line = self.places.get(path).map_or(0, |place| place.key.line);
        self.notices.push(Notice { path: path.to_owned(), line, message: format!("`{path}`: {message}") });
    }
}
