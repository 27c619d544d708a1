//! Validation of a file against the schema: collects all problems, and keeps the valid values.
//!
//! The result contains valid values only, so that the rules between keys can still be applied to a
//! file with problems. Each problem is reported once.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::code::ConfigCode;
use super::finding::{Finding, Notice};
use super::foreign_keys;
use super::hints;
use super::schema::{Availability, KeyDefault, SPEC, SchemaKey, ValueType, walk};
use super::text::RejectReason;
use super::tree::{Span, YamlNode, YamlValue};
use super::units::{CHARS_MAX, parse_duration, parse_share, parse_size};
use crate::api::v1alpha1::API_VERSION;

/// Positions of a key as written and of its value.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyPosition {
    pub(super) key: Span,
    pub(super) value: Span,
}

/// State and result of a validation.
#[derive(Debug, Default)]
pub(super) struct Validator {
    pub(super) findings: Vec<Finding>,
    pub(super) notices: Vec<Notice>,
    /// Every key that is present, valid or not, by path.
    pub(super) places: BTreeMap<String, KeyPosition>,
}

type Object = serde_json::Map<String, Json>;

// === impl Validator ===

impl Validator {
    /// Validates a complete `BatchPolicy`, or its bare spec.
    pub(super) fn document(&mut self, root: &YamlNode) -> Object {
        let has_envelope = ["apiVersion", "kind", "metadata", "spec"].iter().any(|name| root.get(name).is_some());
        if !has_envelope {
            return self.map(SPEC, root, "").unwrap_or_default();
        }
        self.envelope(root, "apiVersion", API_VERSION);
        self.envelope(root, "kind", "BatchPolicy");
        let mut lines = BTreeMap::new();
        for (key, _) in root.entries() {
            let name = key.text().unwrap_or_default();
            if self.repeated(&mut lines, key, name, "") {
                continue;
            }
            if !["apiVersion", "kind", "metadata", "spec", "status"].contains(&name) {
                let is_spec_key = SPEC.iter().any(|key| key.name == name);
                let message = format!("`{name}` is not a top-level key of a BatchPolicy");
                let finding = Finding::new(ConfigCode::UnknownKey, name, key.at, &message).value(name);
                let finding = finding.allowed("apiVersion, kind, metadata, spec");
                self.findings.push(if is_spec_key {
                    finding.help("move it under `spec`")
                } else {
                    finding.nearest(nearest(name, ["apiVersion", "kind", "metadata", "spec"].into_iter()))
                });
            }
        }
        root.get("spec").and_then(|spec| self.map(SPEC, spec, "")).unwrap_or_default()
    }

    /// Validates a value of a type; `None` if it is invalid.
    pub(super) fn value(&mut self, value_type: &'static ValueType, node: &YamlNode, path: &str) -> Option<Json> {
        match value_type {
            ValueType::Map(keys) => self.map(keys, node, path).map(Json::Object),
            ValueType::IntOrMap(_, _, keys) if matches!(node.value, YamlValue::Map(_)) => {
                self.map(keys, node, path).map(Json::Object)
            }
            ValueType::Names(of, max) => self.names(of, *max, value_type, node, path),
            ValueType::List(of, max) => self.list(of, *max, value_type, node, path),
            ValueType::OneOrList(of, max) => match &node.value {
                YamlValue::List(items) if items.is_empty() => {
                    self.push_rejection(value_type, node, path, "an empty list")
                }
                YamlValue::List(_) => self.list(of, *max, value_type, node, path),
                _ => self.value(of, node, path),
            },
            leaf => self.leaf(leaf, node, path),
        }
    }

    /// Validates `apiVersion` or `kind`, which have one allowed value.
    fn envelope(&mut self, root: &YamlNode, name: &str, expected: &str) {
        match root.get(name) {
            Some(node) if node.text() == Some(expected) => {}
            Some(node) => {
                let value = node.text().unwrap_or_default();
                let message = format!("`{name}` cannot be `{value}`");
                self.findings
                    .push(Finding::new(ConfigCode::BadValue, name, node.at, &message).value(value).allowed(expected));
            }
            None => {
                let message = format!("a BatchPolicy needs `{name}`");
                let finding = Finding::new(ConfigCode::BadValue, name, start(root.at), &message).allowed(expected);
                self.findings.push(finding.help(format!("write `{name}: {expected}`, or only the contents of `spec`")));
            }
        }
    }

    /// Validates a map. Returns its valid entries, or `None` if the value is no map.
    fn map(&mut self, keys: &'static [SchemaKey], node: &YamlNode, path: &str) -> Option<Object> {
        let entries = match &node.value {
            YamlValue::Map(entries) => entries.as_slice(),
            // A section in which all keys are commented out counts as absent, unless it has
            // required keys.
            YamlValue::Null => &[],
            YamlValue::Scalar { .. } | YamlValue::List(_) => {
                let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
                let name = if path.is_empty() { "a policy" } else { &format!("`{path}`") };
                let message = format!("{name} cannot be {}", kind(node));
                let finding =
                    Finding::new(ConfigCode::BadValue, path, node.at, &message).value(node.text().unwrap_or_default());
                let help = (path == "slo" || path.ends_with(".slo")).then(|| slo_hint(node)).flatten();
                let finding = finding.allowed(format!("a map with the keys {}", names.join(", ")));
                self.findings.push(Finding { help, ..finding });
                return None;
            }
        };
        let mut out = Object::new();
        let mut lines = BTreeMap::new();
        let mut intended = Vec::new();
        for (key_node, value) in entries {
            let name = key_node.text().unwrap_or_default();
            let at = join(path, name);
            if self.repeated(&mut lines, key_node, name, path) {
                continue;
            }
            let Some(key) = keys.iter().find(|key| key.name == name) else {
                // The finding of a misspelt required key already contains the correct name.
                intended.extend(self.unknown(keys, key_node, name, path));
                continue;
            };
            self.places.insert(at.clone(), KeyPosition { key: key_node.at, value: value.at });
            if let Some(json) = self.key(key, value, &at, key_node.at) {
                out.insert(name.to_owned(), json);
            }
        }
        for key in keys.iter().filter(|key| key.required) {
            if !lines.contains_key(key.name) && !intended.iter().any(|name| name == key.name) {
                let name = if path.is_empty() { "a policy" } else { &format!("`{path}`") };
                let message = format!("{name} needs `{}`", key.name);
                let finding = Finding::new(ConfigCode::BadValue, &join(path, key.name), start(node.at), &message);
                self.findings.push(finding.allowed(key.value_type.allowed()));
            }
        }
        Some(out)
    }

    /// Validates the value of a known key, and whether the key is available.
    fn key(&mut self, key: &'static SchemaKey, value: &YamlNode, path: &str, at: Span) -> Option<Json> {
        let before = self.findings.len();
        let json = self.value(&key.value_type, value, path);
        if self.findings.len() > before {
            return json;
        }
        match key.availability {
            Availability::Stable => {}
            Availability::Later if is_noop(key, value) => {}
            Availability::Later => {
                let finding =
                    Finding::new(ConfigCode::NotSupportedYet, path, at, &format!("`{path}` is not supported yet"));
                self.findings.push(finding.value(value.text().unwrap_or_default()).help("leave it out"));
            }
            Availability::ClusterOnly => {
                let message = format!("`{path}` applies only in a cluster and is ignored");
                self.notices.push(Notice { path: path.to_owned(), line: at.line, message });
            }
        }
        json
    }

    /// Reports a key that is set twice, and returns `true` if it is. `lines` has the line of each
    /// previous key of the map.
    fn repeated<'a>(
        &mut self,
        lines: &mut BTreeMap<&'a str, usize>,
        key: &YamlNode,
        name: &'a str,
        path: &str,
    ) -> bool {
        if let Some(line) = lines.get(name) {
            let message = format!("`{name}` is set twice, first on line {line}");
            self.findings.push(Finding::new(ConfigCode::BadValue, &join(path, name), key.at, &message).value(name));
            return true;
        }
        lines.insert(name, key.at.line);
        false
    }

    /// Reports an unknown key, and returns the key that was probably meant.
    fn unknown(&mut self, keys: &'static [SchemaKey], node: &YamlNode, name: &str, path: &str) -> Option<String> {
        let names: Vec<&'static str> = keys.iter().map(|key| key.name).collect();
        let owner = if path.is_empty() { "a policy".to_owned() } else { format!("`{path}`") };
        let message = format!("`{name}` is not a key of {owner}");
        let foreign = foreign_keys::hint(name, path);
        let near = nearest(name, names.iter().copied()).or_else(|| {
            let meant = if foreign.is_none() { hints::key_for(name, path, &names) } else { None };
            meant.map(str::to_owned)
        });
        let elsewhere = if near.is_none() { path_of_key(name) } else { None };
        let mut finding = Finding::new(ConfigCode::UnknownKey, &join(path, name), node.at, &message)
            .value(name)
            .allowed(names.join(", "))
            .nearest(near.clone());
        if name == "<<" {
            finding = finding.help("YAML merge keys are not supported: write the keys out");
        } else if let Some(hint) = foreign {
            finding = finding.help(hint);
        } else if let Some(place) = elsewhere {
            finding = finding.help(format!("a key of this name exists at `{place}`"));
        }
        self.findings.push(finding);
        near
    }

    fn names(
        &mut self,
        of: &'static ValueType,
        max: usize,
        value_type: &'static ValueType,
        node: &YamlNode,
        path: &str,
    ) -> Option<Json> {
        let entries = match &node.value {
            YamlValue::Map(entries) if entries.len() > max => {
                return self.push_rejection(value_type, node, path, &format!("a map of {} entries", entries.len()));
            }
            YamlValue::Map(entries) => entries,
            YamlValue::Null => return Some(Json::Object(Object::new())),
            YamlValue::Scalar { .. } | YamlValue::List(_) => {
                return self.push_rejection(value_type, node, path, kind(node));
            }
        };
        let mut out = Object::new();
        let mut lines = BTreeMap::new();
        for (key, value) in entries {
            let name = key.text().unwrap_or_default();
            let at = join(path, name);
            if self.repeated(&mut lines, key, name, path) {
                continue;
            }
            self.places.insert(at.clone(), KeyPosition { key: key.at, value: value.at });
            if let Some(json) = self.value(of, value, &at) {
                out.insert(name.to_owned(), json);
            }
        }
        Some(Json::Object(out))
    }

    fn list(
        &mut self,
        of: &'static ValueType,
        max: usize,
        value_type: &'static ValueType,
        node: &YamlNode,
        path: &str,
    ) -> Option<Json> {
        let items = match &node.value {
            YamlValue::List(items) => items,
            YamlValue::Null => return Some(Json::Array(Vec::new())),
            YamlValue::Scalar { .. } => {
                let written = node.text().unwrap_or_default();
                let message = format!("`{path}` cannot be a single value");
                let finding = Finding::new(ConfigCode::BadValue, path, node.at, &message)
                    .value(written)
                    .allowed(value_type.allowed());
                self.findings.push(finding.help(format!("write a list: [{:?}]", hints::list_element_for(of, written))));
                return None;
            }
            YamlValue::Map(_) => return self.push_rejection(value_type, node, path, kind(node)),
        };
        if items.len() > max {
            return self.push_rejection(value_type, node, path, &format!("a list of {} elements", items.len()));
        }
        let mut out = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let at = format!("{path}[{index}]");
            self.places.insert(at.clone(), KeyPosition { key: item.at, value: item.at });
            // A missing element would shift the indices by which the rules find positions.
            out.push(self.value(of, item, &at).unwrap_or(Json::Null));
        }
        Some(Json::Array(out))
    }

    fn leaf(&mut self, value_type: &'static ValueType, node: &YamlNode, path: &str) -> Option<Json> {
        let YamlValue::Scalar { text, plain } = &node.value else {
            return self.push_rejection(value_type, node, path, kind(node));
        };
        if let ValueType::Word(_, later) = value_type
            && later.contains(&text.as_str())
        {
            let message = format!("`{path}: {text}` is not supported yet");
            let finding = Finding::new(ConfigCode::NotSupportedYet, path, node.at, &message).value(text);
            let finding = finding.allowed(value_type.allowed());
            self.findings.push(Finding { help: hints::hint(value_type, text), ..finding });
            return None;
        }
        match parse_scalar(value_type, text, *plain) {
            Ok(json) => Some(json),
            Err(RejectReason("")) => self.push_invalid_leaf(value_type, node, path, text, *plain),
            Err(RejectReason(reason)) => {
                let message = format!("`{path}` cannot be `{text}`");
                let finding = Finding::new(ConfigCode::BadValue, path, node.at, &message).value(text);
                self.findings.push(finding.allowed(value_type.allowed()).help(reason));
                None
            }
        }
    }

    /// Reports a scalar that is invalid, with the most specific reason known.
    fn push_invalid_leaf(
        &mut self,
        value_type: &ValueType,
        node: &YamlNode,
        path: &str,
        text: &str,
        plain: bool,
    ) -> Option<Json> {
        let prefix: String = text.chars().take(80).collect();
        let message = format!("`{path}` cannot be `{prefix}`");
        let mut finding =
            Finding::new(ConfigCode::BadValue, path, node.at, &message).value(text).allowed(value_type.allowed());
        let zero = matches!(text, "0" | "0s" | "0ms" | "0Ki" | "0Mi");
        if let Some(hint) = hints::hint(value_type, text) {
            self.findings.push(finding.help(hint));
            return None;
        }
        match value_type {
            ValueType::Word(words, later) => {
                let other = hints::other_name(value_type, path, text).map(str::to_owned);
                let near = || nearest(text, words.iter().chain(later.iter()).copied());
                finding = finding.nearest(other.or_else(near));
            }
            ValueType::Int(..) | ValueType::Switch if !plain => finding = finding.help("write it without quotes"),
            ValueType::Int(..) | ValueType::Time(..) | ValueType::Size(..) if zero => {
                finding = finding.help("0 never means unlimited");
            }
            ValueType::Time(..) if text.bytes().all(|b| b.is_ascii_digit()) => {
                finding = finding.help(format!("a duration needs a unit, such as {prefix}ms"));
            }
            ValueType::Quantity(_) if is_number(text, plain) => {
                finding = finding.help(format!("write it in quotes: \"{prefix}\""));
            }
            ValueType::Share if !text.ends_with('%') => {
                finding = finding.help("a share is written with %, such as 10%");
            }
            _ => {}
        }
        self.findings.push(finding);
        None
    }

    fn push_rejection(&mut self, value_type: &ValueType, node: &YamlNode, path: &str, what: &str) -> Option<Json> {
        let message = if matches!(node.value, YamlValue::Null) {
            format!("`{path}` has no value")
        } else {
            format!("`{path}` cannot be {what}")
        };
        self.findings.push(Finding::new(ConfigCode::BadValue, path, node.at, &message).allowed(value_type.allowed()));
        None
    }
}

/// Returns advice about a bare latency in the place of an SLO.
fn slo_hint(node: &YamlNode) -> Option<String> {
    let text = node.text().and_then(bounded)?;
    let unit = if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) { "ms" } else { "" };
    let meant = format!("{text}{unit}");
    parse_duration(&meant).map(|_| format!("write `slo: {{latencyP99: {meant}}}`"))
}

/// Returns the value of a scalar, or the reason why it is invalid. `plain` is `true` without
/// quotes.
fn parse_scalar(value_type: &ValueType, text: &str, plain: bool) -> Result<Json, RejectReason> {
    let in_range = |number: Option<u64>, min: u64, max: u64| number.filter(|number| (min..=max).contains(number));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let value = match value_type {
        ValueType::Int(min, max) | ValueType::IntOrMap(min, max, _) => {
            in_range(digits(text).filter(|_| plain), *min, *max).map(Json::from)
        }
        ValueType::Time(min, max) => {
            let micros =
                bounded(text).and_then(parse_duration).and_then(|duration| u64::try_from(duration.as_micros()).ok());
            in_range(micros, *min, *max).map(|_| Json::from(text))
        }
        ValueType::Size(min, max) => in_range(bounded(text).and_then(parse_size), *min, *max).map(|_| Json::from(text)),
        ValueType::Share => bounded(text).and_then(parse_share).map(|_| Json::from(text)),
        ValueType::Switch => match text {
            "true" if plain => Some(Json::from(true)),
            "false" if plain => Some(Json::from(false)),
            _ => None,
        },
        ValueType::Word(words, _) => words.contains(&text).then(|| Json::from(text)),
        ValueType::Text(rule) => {
            rule.validate(text)?;
            Some(Json::from(text))
        }
        ValueType::Quantity(amount) if bounded(text).is_some_and(|text| amount.contains(text)) => {
            // The API server accepts only text here.
            (!is_number(text, plain)).then(|| Json::from(text))
        }
        ValueType::Quantity(_)
        | ValueType::Map(_)
        | ValueType::Names(..)
        | ValueType::List(..)
        | ValueType::OneOrList(..) => None,
    };
    value.ok_or(RejectReason(""))
}

/// Returns the text unless it is longer than a value with a unit can be.
fn bounded(text: &str) -> Option<&str> {
    (text.len() <= CHARS_MAX).then_some(text)
}

/// Returns `true` if a scalar without quotes is a number in YAML.
fn is_number(text: &str, plain: bool) -> bool {
    plain && text.parse::<f64>().is_ok()
}

/// Returns the known word that is nearest to `word`, if it is near enough to have been meant. Words
/// are compared by optimal string alignment distance, and ties are broken by Jaro-Winkler
/// similarity.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let lower = word.to_lowercase();
    // A third of the letters: one for words such as `mode`, four for `batchItemsMax`.
    let near = (word.chars().count() / 3).clamp(1, 5);
    // Words far longer than any key are not compared: the cost is the product of the lengths.
    if word.len() > 64 {
        return None;
    }
    known
        .map(|candidate| (strsim::osa_distance(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= near)
        .min_by(|(one, a), (other, b)| {
            let alike = |candidate| strsim::jaro_winkler(word, candidate);
            one.cmp(other).then_with(|| alike(b).total_cmp(&alike(a)))
        })
        .map(|(_, candidate)| candidate.to_owned())
}

/// Returns the shortest path in the schema of a key with that name.
fn path_of_key(name: &str) -> Option<String> {
    let mut found = None;
    walk(SPEC, "", &mut |path, key| {
        let shorter = found.as_ref().is_none_or(|known: &String| path.len() < known.len());
        if shorter && key.name == name {
            found = Some(path.to_owned());
        }
    });
    found
}

/// Returns `true` if a key that is not supported yet is written so that it changes nothing.
fn is_noop(key: &SchemaKey, node: &YamlNode) -> bool {
    match &node.value {
        YamlValue::Null => true,
        YamlValue::Scalar { text, .. } => matches!(key.default, KeyDefault::Value(default) if default == text),
        YamlValue::List(items) => items.is_empty(),
        YamlValue::Map(entries) => entries.is_empty(),
    }
}

fn kind(node: &YamlNode) -> &'static str {
    match node.value {
        YamlValue::Null => "empty",
        YamlValue::Scalar { .. } => "a single value",
        YamlValue::List(_) => "a list",
        YamlValue::Map(_) => "a map",
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Returns the beginning of a position. A finding about a whole map would otherwise underline all
/// of it.
const fn start(at: Span) -> Span {
    Span { len: 0, ..at }
}
