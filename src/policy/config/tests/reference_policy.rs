//! Tests of the table against `tests/data/config/policy.yaml`, key by key.

use std::collections::BTreeSet;

use super::super::effective::text;
use super::super::schema::{KeyDefault, SPEC, SchemaKey, ValueType, walk};
use super::super::tree::{self, YamlNode, YamlValue};
use super::*;

/// Returns the text of `policy.yaml` with its examples as values.
pub(in crate::config) fn examples() -> String {
    std::fs::read_to_string(root().join("tests/data/config/policy.yaml")).unwrap().replace("e.g. ", "")
}

/// Returns every leaf of the table with its path.
pub(in crate::config) fn leaves() -> Vec<(String, &'static SchemaKey)> {
    let mut out = Vec::new();
    walk(SPEC, "", &mut |path, key| {
        let map =
            matches!(key.value_type, ValueType::Map(_) | ValueType::List(ValueType::Map(_), _) | ValueType::Names(..));
        if !map {
            out.push((path.to_owned(), key));
        }
    });
    out
}

#[test]
fn every_key_and_value_of_the_reference_policy_is_accepted() {
    let errors = load(&examples(), "policy.yaml").unwrap_err();
    let found: Vec<_> = errors.findings.iter().map(|finding| (finding.code.as_str(), finding.path.as_str())).collect();
    // The file shows keys that exclude each other. It has no unknown key and no bad value.
    let expected = [("GRP1105", "selector"), ("GRP1105", "routes[0].generic"), ("GRP1105", "profileRef")];
    assert_eq!(found, expected);
}

fn paths_of(node: &YamlNode, prefix: &str, out: &mut BTreeSet<String>) {
    match &node.value {
        YamlValue::Map(entries) => {
            for (key, value) in entries {
                let name = key.text().unwrap();
                let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
                out.insert(path.clone());
                paths_of(value, &path, out);
            }
        }
        YamlValue::List(items) => items.iter().for_each(|item| paths_of(item, &format!("{prefix}[]"), out)),
        YamlValue::Null | YamlValue::Scalar { .. } => {}
    }
}

#[test]
fn the_table_has_no_key_outside_the_reference_policy() {
    let document = tree::parse(&examples()).unwrap();
    let mut design = BTreeSet::new();
    paths_of(document.get("spec").unwrap(), "", &mut design);
    let mut extra = BTreeSet::new();
    walk(SPEC, "", &mut |path, _| {
        // The SLO and limits of a route are described as "as above"; a selector has a type of
        // Kubernetes.
        let elsewhere = ["routes[].slo.", "routes[].limits.", "selector.matchExpressions"];
        if !design.contains(path) && !elsewhere.iter().any(|prefix| path.starts_with(prefix)) {
            extra.insert(path.to_owned());
        }
    });
    // Keys that only comments of the file mention.
    let commented = [
        "priority.classes[].filler",
        "priority.classes[].latencyP99",
        "priority.classes[].strict",
        "rollout.experiment.arms[].profileRef",
        "rollout.experiment.arms[].profileRef.name",
        "rollout.experiment.arms[].weight",
        "routes[].generic.tooLarge[].bodyContains",
        "routes[].generic.tooLarge[].status",
        "tuning.bounds.batchWeightMax.max",
        "tuning.bounds.batchWeightMax.min",
        "tuning.bounds.slotsMax.max",
    ];
    assert_eq!(extra.iter().map(String::as_str).collect::<Vec<_>>(), commented);
}

#[test]
fn every_default_matches_the_reference_policy() {
    let source = std::fs::read_to_string(root().join("tests/data/config/policy.yaml")).unwrap();
    let document = tree::parse(&examples()).unwrap();
    let spec = document.get("spec").unwrap();
    let example_line = |node: &YamlNode| {
        let line = source.lines().nth(node.at.line - 1).unwrap();
        // Marked at the value itself, or by a comment that begins with the mark.
        let value = line.split_at(line.find(node.text().unwrap_or("\0")).unwrap_or(0)).0;
        value.trim_end_matches('"').ends_with("e.g. ") || line.contains("# e.g.")
    };
    let mut compared = 0;
    for (path, key) in leaves() {
        // Examples of lists of maps, and words that mean "inherited".
        if path.contains("[]") && !path.starts_with("routes[].") || path == "routes[].mode" {
            continue;
        }
        let mut node = Some(spec);
        for name in path.split('.') {
            node = node.and_then(|node| node.get(name.trim_end_matches("[]")));
            if let Some(YamlValue::List(items)) = node.map(|node| &node.value).filter(|_| name.ends_with("[]")) {
                node = items.first();
            }
        }
        let Some(node) = node else { continue };
        match key.default {
            KeyDefault::Value(default) => {
                let expected = tree::parse(default).unwrap();
                assert_eq!(written(node), written(&expected), "{path}");
                compared += 1;
            }
            KeyDefault::Absent(_) if !key.required => {
                let inside_example =
                    ["slo.", "profileRef.", "tuning.bounds"].iter().any(|prefix| path.starts_with(prefix));
                assert!(example_line(node) || inside_example, "{path} has a default in the example");
            }
            KeyDefault::Absent(_) | KeyDefault::Nested => {}
        }
    }
    assert!(compared >= 90, "only {compared} defaults were compared");
}

fn written(node: &YamlNode) -> String {
    match &node.value {
        YamlValue::Null => "{}".to_owned(),
        YamlValue::Scalar { text, .. } => text.clone(),
        YamlValue::List(items) => format!("[{}]", items.iter().map(written).collect::<Vec<_>>().join(", ")),
        YamlValue::Map(entries) => {
            let entries: Vec<_> =
                entries.iter().map(|(key, value)| format!("{}: {}", written(key), written(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

/// Returns a valid value.
fn sample(key: &SchemaKey) -> String {
    match (&key.value_type, key.name) {
        (_, "profileRef") => "{name: p}".to_owned(),
        (ValueType::Word(words, _), _) => words.first().copied().unwrap().to_owned(),
        (ValueType::Int(min, _), _) => min.to_string(),
        (ValueType::Time(..), _) => "1s".to_owned(),
        _ => "/x".to_owned(),
    }
}

/// Returns a file with one key and what its surroundings require, and the line of the key.
pub(in crate::config) fn file_with(path: &str, value: &str) -> (String, usize) {
    let mut lines: Vec<String> = Vec::new();
    let mut keys = SPEC;
    let mut indent = 0;
    let mut names = path.split('.').peekable();
    while let Some(name) = names.next() {
        let item = name.ends_with("[]");
        let name = name.trim_end_matches("[]");
        for sibling in keys.iter().filter(|key| key.required && key.name != name) {
            lines.push(format!("{:indent$}{}: {}", "", sibling.name, sample(sibling)));
        }
        if name == "generic" {
            lines.push(format!("{:indent$}protocol: Generic", ""));
        }
        let key = keys.iter().find(|key| key.name == name);
        keys = match key.map(|key| &key.value_type) {
            Some(ValueType::Map(keys) | ValueType::List(ValueType::Map(keys) | ValueType::IntOrMap(_, _, keys), _)) => {
                keys
            }
            _ => &[],
        };
        if names.peek().is_none() {
            lines.push(format!("{:indent$}{name}: {value}", ""));
        } else {
            lines.push(format!("{:indent$}{name}:", ""));
            indent += 2;
            if item {
                lines.push(format!("{:indent$}-", ""));
                indent += 2;
            }
        }
    }
    (lines.join("\n"), lines.len())
}

#[test]
fn a_bad_value_of_any_key_is_reported_once_on_its_line() {
    for (path, key) in leaves() {
        let odd = match &key.value_type {
            ValueType::Int(..) | ValueType::IntOrMap(..) => "-1",
            ValueType::Time(..) => "5 parsecs",
            ValueType::Size(..) => "1 truck",
            ValueType::Share => "much",
            ValueType::Switch => "yes",
            ValueType::Word(..) => "Nonsense",
            _ => "[[1]]",
        };
        for value in [odd, "{zz: {}}", "[[1]]", "~"] {
            let (text, line) = file_with(&path, value);
            // An empty list is equivalent to an absent one.
            if value == "~" && matches!(key.value_type, ValueType::List(..)) {
                continue;
            }
            let errors = load(&text, "one.yaml").map(|_| ()).expect_err(&text);
            let findings: Vec<_> = errors.findings.iter().map(|f| (f.code, f.line().unwrap())).collect();
            assert_eq!(findings, [(ConfigCode::BadValue, line)], "{path}: {value}\n{text}\n{}", errors.render(false));
        }
    }
}

#[test]
fn every_number_is_refused_just_outside_its_range_and_taken_at_its_ends() {
    let micros = |n: u64| format_duration(Duration::from_micros(n));
    for (path, key) in leaves() {
        let (min, max, write): (u64, u64, &dyn Fn(u64) -> String) = match &key.value_type {
            ValueType::Int(min, max) => (*min, *max, &|n| n.to_string()),
            ValueType::Size(min, max) => (*min, *max, &|n| n.to_string()),
            ValueType::Time(min, max) => (*min, *max, &micros),
            _ => continue,
        };
        let codes = |value: u64| {
            let (text, _) = file_with(&path, &write(value));
            load(&text, "one.yaml")
                .map_or_else(|errors| errors.findings.iter().map(|f| f.code).collect(), |_| Vec::new())
        };
        for value in [min, max] {
            assert!(!codes(value).contains(&ConfigCode::BadValue), "{path}: {value}");
        }
        assert_eq!(codes(max + 1), [ConfigCode::BadValue], "{path}: {}", max + 1);
        if min > 0 {
            assert_eq!(codes(min - 1), [ConfigCode::BadValue], "{path}: {}", min - 1);
        }
    }
}

#[test]
fn a_misspelt_key_is_reported_with_the_nearest_known_one() {
    for (path, key) in leaves().into_iter().filter(|(_, key)| key.name.len() >= 4) {
        let (text, line) = file_with(&path, "1");
        let mut wrong = key.name.to_owned();
        wrong.remove(key.name.len() / 2);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let last = lines.last_mut().unwrap();
        *last = last.replace(key.name, &wrong);
        let errors = load(&lines.join("\n"), "typo.yaml").unwrap_err();
        let unknown = errors.findings.iter().find(|finding| finding.code == ConfigCode::UnknownKey).unwrap();
        assert_eq!((unknown.line(), unknown.nearest.as_deref()), (Some(line), Some(key.name)), "{path} as {wrong}");
    }
}

#[test]
fn a_value_is_shown_as_it_would_be_written() {
    for (path, key) in leaves() {
        let KeyDefault::Value(default) = key.default else { continue };
        let mut check = check::Validator::default();
        let json = check.value(
            &key.value_type,
            &tree::parse(if default.is_empty() { "\"\"" } else { default }).unwrap(),
            &path,
        );
        let written = text(&json.unwrap());
        let again = check.value(&key.value_type, &tree::parse(&written).unwrap(), &path).unwrap();
        assert!(check.findings.is_empty() && text(&again) == written, "{path}: {written}");
    }
}
