//! Rules between keys in the Common Expression Language (CEL): the rules of `rules`, as far as an
//! API server can evaluate them.
//!
//! Lists of names are shared with `rules`, so the two cannot disagree, and a message combines the
//! message and the advice of the loader. A rule is attached to the map of its keys, so that the API
//! server reports the position. No rule costs more than ten million by the server's own estimate,
//! in which every list has its maximum length. Therefore no rule compares two lists if both are
//! inside a list.
//!
//! Left out are rules about positions in JSON (`generic`), rules that ignore letter case on both
//! sides, and notices.

use serde_json::{Value as Json, json};

use crate::config::rules::cluster::GROUPS;
use crate::config::rules::{CREDENTIALS, HOP_HEADERS, IDENTITY_EXCEPTION};
use crate::config::schema::{self, ValueType};
use crate::protocol::headers::IDENTITY;

pub(super) struct CelRule {
    /// Path of the map to which it is attached, from `spec`; empty for `spec` itself.
    pub(super) at: &'static str,
    /// Key that is reported, relative to the map.
    field: &'static str,
    rule: String,
    message: &'static str,
    reason: &'static str,
}

/// Creates a rule about two keys that exclude each other.
fn exclusion_rule(at: &'static str, field: &'static str, rule: impl Into<String>, message: &'static str) -> CelRule {
    CelRule { at, field, rule: rule.into(), message, reason: "FieldValueForbidden" }
}

/// Creates a rule about a value that conflicts with others.
fn conflict_rule(at: &'static str, field: &'static str, rule: impl Into<String>, message: &'static str) -> CelRule {
    CelRule { at, field, rule: rule.into(), message, reason: "FieldValueInvalid" }
}

/// Creates a rule about a key that others require.
fn requirement_rule(at: &'static str, field: &'static str, rule: impl Into<String>, message: &'static str) -> CelRule {
    CelRule { at, field, rule: rule.into(), message, reason: "FieldValueRequired" }
}

/// Returns the rule that the group of a target must be that of its kind.
fn group_rule() -> String {
    let known = GROUPS.map(|(kind, group)| format!("(self.kind == '{kind}' && self.group == '{group}')")).join(" || ");
    format!("has(self.group) && self.group != '' ? {known} : self.kind == 'Service'")
}

pub(super) fn policy_rules() -> Vec<CelRule> {
    let mut rules = vec![
        exclusion_rule(
            "",
            ".selector",
            "!has(self.targetRefs) || !has(self.selector)",
            "`targetRefs` and `selector` exclude each other: leave one of them out",
        ),
        exclusion_rule(
            "",
            ".profileRef",
            "!has(self.profileRef) || !has(self.limits)",
            "`profileRef` and `limits` exclude each other: leave one of them out",
        ),
        exclusion_rule(
            "",
            ".profileRef",
            "!has(self.profileRef) || !has(self.scheduling)",
            "`profileRef` and `scheduling` exclude each other: leave one of them out",
        ),
        conflict_rule(
            "",
            ".tenants.header",
            "!has(self.tenants) || !has(self.tenants.header) || !has(self.routes) || self.routes.all(r, \
             !has(r.mergeOver) || !has(r.mergeOver.headers) || r.mergeOver.headers.all(h, \
             h.lowerAscii() != self.tenants.header.lowerAscii()))",
            "a route's `mergeOver` cannot name the tenants' header: calls with different identities never share a batch",
        ),
        conflict_rule(
            "targetRefs[]",
            ".group",
            group_rule(),
            "a kind needs its group: `apps` for Deployment, StatefulSet and DaemonSet, `serving.kserve.io` for InferenceService, `inference.networking.k8s.io` for InferencePool, none for Service",
        ),
        conflict_rule(
            "selector.matchExpressions[]",
            ".values",
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "In and NotIn need `values`, Exists and DoesNotExist take none: add them, or leave them out",
        ),
        conflict_rule(
            "tenants",
            ".header",
            format!("!has(self.header) || !({})", header_condition("self.header", &HOP_HEADERS)),
            "the header describes one connection or message, not the caller: name another header",
        ),
        conflict_rule(
            "tenants",
            ".header",
            format!("!has(self.header) || !has(self.weights) || !({})", header_condition("self.header", &CREDENTIALS)),
            "`weights` cannot be used with a header that carries a credential, because the names are shown: identify tenants by another header",
        ),
        conflict_rule(
            "priority",
            ".header",
            format!("!has(self.header) || !({})", header_condition("self.header", &HOP_HEADERS)),
            "the header describes one connection or message, not a priority class: name another header",
        ),
        conflict_rule(
            "priority",
            ".classes",
            "!has(self.classes) || self.classes.all(c, self.classes.exists_one(d, d.name == c.name))",
            "two classes have the same name: give each class a unique name",
        ),
        exclusion_rule(
            "priority.classes[]",
            ".filler",
            "!(has(self.strict) && self.strict && has(self.filler) && self.filler)",
            "a class is `strict` or `filler`, not both: leave one of them out",
        ),
        conflict_rule(
            "proxy.upstreamTls",
            ".certFile",
            "!has(self.certFile) || has(self.keyFile)",
            "a certificate needs its key: name both files, or neither",
        ),
        conflict_rule(
            "proxy.upstreamTls",
            ".keyFile",
            "!has(self.keyFile) || has(self.certFile)",
            "a key needs its certificate: name both files, or neither",
        ),
    ];
    rules.extend(route_rules());
    rules.extend(rollout_rules());
    rules
}

fn route_rules() -> Vec<CelRule> {
    let patterns: Vec<String> = IDENTITY.patterns().collect();
    let names: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let identity = format!("h.lowerAscii() != '{IDENTITY_EXCEPTION}' && ({})", header_condition("h", &names));
    vec![
        requirement_rule(
            "routes[]",
            ".generic",
            "!has(self.protocol) || self.protocol != 'Generic' || has(self.generic)",
            "`protocol: Generic` needs `generic`: write generic: {items: /POINTER, results: /POINTER}",
        ),
        exclusion_rule(
            "routes[]",
            ".generic",
            "!has(self.generic) || (has(self.protocol) && self.protocol == 'Generic')",
            "`generic` requires protocol Generic: write protocol: Generic, or leave `generic` out",
        ),
        exclusion_rule(
            "routes[]",
            ".mergeOver.headers",
            "!has(self.mergeOn) || !has(self.mergeOn.headers) || !has(self.mergeOver) || !has(self.mergeOver.headers) || \
             self.mergeOver.headers.all(h, !(h in self.mergeOn.headers) && !(h.lowerAscii() in self.mergeOn.headers))",
            "a header is in both `mergeOn` and `mergeOver`: leave it out of one of them",
        ),
        exclusion_rule(
            "routes[]",
            ".mergeOver.fields",
            "!has(self.mergeOn) || !has(self.mergeOn.fields) || !has(self.mergeOver) || !has(self.mergeOver.fields) || \
             self.mergeOver.fields.all(f, !(f in self.mergeOn.fields))",
            "a field is in both `mergeOn` and `mergeOver`: leave it out of one of them",
        ),
        conflict_rule(
            "routes[].mergeOver",
            ".headers",
            format!("!has(self.headers) || self.headers.all(h, !({identity}))"),
            "`mergeOver` cannot name a header that identifies the caller, because calls with different identities never share a batch: leave it out",
        ),
        conflict_rule(
            "routes[].mergeOn",
            ".fields",
            NOT_THE_BODY,
            "it cannot name the whole body: name a field, such as /user",
        ),
        conflict_rule(
            "routes[].mergeOver",
            ".fields",
            NOT_THE_BODY,
            "it cannot name the whole body: name a field, such as /user",
        ),
        conflict_rule(
            "routes[].respondWith",
            ".fields",
            NOT_THE_BODY,
            "it cannot name the whole body: name a field, such as /version",
        ),
        requirement_rule(
            "routes[].generic",
            ".single.results",
            "!has(self.single) || !has(self.single.items) || has(self.single.results) || has(self.resultWrap)",
            "`single.items` needs `single.results`, or `resultWrap`: give the location of the single result",
        ),
        requirement_rule(
            "routes[].generic",
            ".single.items",
            "!has(self.single) || !has(self.single.results) || has(self.single.items) || has(self.single.wrapScalar)",
            "`single.results` needs `single.items`, or `single.wrapScalar: true`: give the location of the single item",
        ),
        requirement_rule(
            "routes[].generic",
            ".resultWrap",
            "!has(self.single) || !has(self.single.wrapScalar) || !self.single.wrapScalar || has(self.single.results) || \
             has(self.resultWrap)",
            "`single.wrapScalar: true` needs `resultWrap`, or `single.results`: write resultWrap: None if the server \
             answers a bare value with a bare result, List if with a list of one",
        ),
        exclusion_rule(
            "routes[].generic",
            ".resultKey",
            "!has(self.resultKey) || !(has(self.index) || (has(self.select) && self.select == 'Sorted') || \
             (has(self.single) && (has(self.single.items) || has(self.single.results) || \
             (has(self.single.wrapScalar) && self.single.wrapScalar))))",
            "`resultKey` cannot be combined with `index`, `select` or `single`: leave it out, or leave them out",
        ),
        requirement_rule(
            "routes[].generic",
            ".index",
            "!has(self.select) || self.select != 'Sorted' || has(self.index)",
            "`select: Sorted` needs `index`: give the location of the item's index in a result",
        ),
        conflict_rule(
            "routes[].generic",
            ".index",
            "!has(self.index) || self.index != ''",
            "the pointer must point inside a result: write /NAME",
        ),
        conflict_rule(
            "routes[].generic.perItemError",
            ".field",
            "self.field != ''",
            "the pointer must point inside a result: write /NAME",
        ),
    ]
}

/// Returns the rules of tuning and rollout.
fn rollout_rules() -> Vec<CelRule> {
    let steps = match schema::find_key("rollout.canary.steps").map(|key| &key.value_type) {
        Some(ValueType::List(_, max)) => *max,
        _ => 0,
    };
    // The indices are written out, because API servers before 1.32 iterate over values only.
    let indices: Vec<String> = (1..steps).map(|index| index.to_string()).collect();
    let least = "!has(self.min) || !has(self.max) || self.min <= self.max";
    let above = "`min` is above `max`: swap them, or leave one of them out";
    vec![
        conflict_rule("tuning.bounds.slotsMax", ".min", least, above),
        conflict_rule("tuning.bounds.batchWeightMax", ".min", least, above),
        conflict_rule(
            "rollout.canary",
            ".steps",
            format!(
                "!has(self.steps) || [{}].all(i, i >= self.steps.size() || self.steps[i - 1].percent < self.steps[i].percent)",
                indices.join(", ")
            ),
            "each step must reach more pods than the previous one: increase `percent`",
        ),
        requirement_rule(
            "rollout",
            ".experiment",
            "!has(self.strategy) || self.strategy != 'Experiment' || (has(self.experiment) && has(self.experiment.arms) && \
             self.experiment.arms.size() >= 2)",
            "`strategy: Experiment` needs two `experiment.arms` or more: write arms: [{profileRef: {name: A}}, {profileRef: {name: B}}]",
        ),
        conflict_rule(
            "rollout.experiment",
            ".arms",
            "!has(self.arms) || self.arms.all(a, self.arms.exists_one(b, b.profileRef.name == a.profileRef.name))",
            "two arms have the same profile: compare different profiles, or write one arm with the sum of their weights",
        ),
    ]
}

pub(super) fn profile_rules() -> Vec<CelRule> {
    vec![exclusion_rule(
        "",
        "",
        "self == oldSelf",
        "a profile is immutable: create another one, and name it in the policy's `profileRef`",
    )]
}

const NOT_THE_BODY: &str = "!has(self.fields) || self.fields.all(f, f != '')";

/// Returns the condition that a header is one of these names; `*` ends a prefix or begins a suffix.
fn header_condition(header: &str, names: &[&str]) -> String {
    let header = format!("{header}.lowerAscii()");
    let whole: Vec<String> = names.iter().filter(|name| !name.contains('*')).map(|name| format!("'{name}'")).collect();
    let mut ways = vec![format!("{header} in [{}]", whole.join(", "))];
    for name in names {
        if let Some(prefix) = name.strip_suffix('*') {
            ways.push(format!("{header}.startsWith('{prefix}')"));
        } else if let Some(suffix) = name.strip_prefix('*') {
            ways.push(format!("{header}.endsWith('{suffix}')"));
        }
    }
    ways.join(" || ")
}

// === impl CelRule ===

impl CelRule {
    /// Formats the rule for a schema.
    pub(super) fn json(&self) -> Json {
        let mut json = json!({ "rule": self.rule, "message": self.message, "reason": self.reason });
        if !self.field.is_empty() {
            json["fieldPath"] = json!(self.field);
        }
        json
    }
}
