//! Tests of `docs/configuration.md` and of the doc comments of the types against the table.

use std::collections::BTreeMap;

use super::super::foreign_keys::PEERS;
use super::super::schema::{Availability, KeyDefault, SPEC, SchemaKey, ValueType, walk};
use super::*;

/// Returns the fields of the types by struct: name in a file, type, doc comment.
fn types() -> BTreeMap<String, Vec<(String, String, String)>> {
    let mut out: BTreeMap<String, Vec<(String, String, String)>> = BTreeMap::new();
    for file in ["v1alpha1.rs", "v1alpha1/cluster.rs", "v1alpha1/engine.rs", "v1alpha1/proxy.rs", "v1alpha1/route.rs"] {
        let source = std::fs::read_to_string(root().join("src/policy/api").join(file)).unwrap();
        let (mut owner, mut doc) = (String::new(), Vec::new());
        for line in source.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {")) {
                owner = name.to_owned();
                doc.clear();
            } else if let Some(text) = line.strip_prefix("///") {
                doc.push(text.trim().to_owned());
            } else if let Some((name, kind)) = line.strip_prefix("pub ").and_then(|rest| rest.split_once(": Option<")) {
                let fields = out.entry(owner.clone()).or_default();
                fields.push((camel(name), kind.trim_end_matches(">,").to_owned(), doc.join(" ")));
                doc.clear();
            } else if line == "}" {
                doc.clear();
            }
        }
    }
    out
}

fn camel(name: &str) -> String {
    let mut out = String::new();
    let mut up = false;
    for c in name.chars() {
        if c == '_' {
            up = true;
        } else {
            out.push(if up { c.to_ascii_uppercase() } else { c });
            up = false;
        }
    }
    out
}

/// Returns the doc comment of every key by path, found by walking types and table together.
fn documented() -> BTreeMap<String, String> {
    fn descend(
        types: &BTreeMap<String, Vec<(String, String, String)>>,
        owner: &str,
        keys: &'static [SchemaKey],
        prefix: &str,
        out: &mut BTreeMap<String, String>,
    ) {
        let fields = types.get(owner).unwrap_or_else(|| panic!("no type {owner}"));
        let names: Vec<_> = fields.iter().map(|(name, ..)| name.as_str()).collect();
        let known: Vec<_> = keys.iter().map(|key| key.name).collect();
        assert_eq!(names, known, "{owner} and the table at `{prefix}` differ");
        for ((name, kind, doc), key) in fields.iter().zip(keys) {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            assert!(doc.ends_with('.'), "{owner}.{name} has no sentence");
            out.insert(path.clone(), doc.clone());
            let inner = kind.trim_start_matches("Vec<").trim_end_matches('>');
            match &key.value_type {
                ValueType::Map(keys) => descend(types, inner, keys, &path, out),
                ValueType::List(ValueType::Map(keys), _) => descend(types, inner, keys, &format!("{path}[]"), out),
                _ => {}
            }
        }
    }
    let mut out = BTreeMap::new();
    descend(&types(), "BatchPolicySpec", SPEC, "", &mut out);
    out
}

fn row(path: &str, key: &SchemaKey, availability: Availability, doc: &str) -> String {
    let default = match key.default {
        KeyDefault::Value("") => "`\"\"`".to_owned(),
        KeyDefault::Value(default) => format!("`{default}`"),
        KeyDefault::Absent("required") => "required".to_owned(),
        KeyDefault::Absent(meaning) => format!("absent: {meaning}"),
        KeyDefault::Nested => String::new(),
    };
    let mut allowed = match &key.value_type {
        ValueType::Map(_) | ValueType::List(ValueType::Map(_), _) => String::new(),
        ValueType::Word(words, _) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" "),
        value_type => value_type.allowed(),
    };
    if let ValueType::List(ValueType::Map(_), max) = key.value_type {
        allowed = format!("a list of at most {max}");
    }
    if let ValueType::Word(_, later) = key.value_type
        && !later.is_empty()
    {
        allowed.push_str(&format!(
            "; not yet: {}",
            later.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" ")
        ));
    }
    let since = match availability {
        Availability::Stable => "0.1",
        Availability::Later => "not yet",
        Availability::ClusterOnly => "cluster",
    };
    format!("| `{path}` | {default} | {allowed} | {since} | {} |\n", doc.replace('|', "\\|"))
}

#[test]
fn the_reference_page_matches_the_table() {
    let documented = documented();
    let mut page = include_str!("head.md").to_owned();
    let mut rows = String::new();
    // A key below an unsupported one is not supported either.
    let mut above: Vec<(String, Availability)> = Vec::new();
    walk(SPEC, "", &mut |path, key| {
        // Listed once above; a page that repeats them is harder to read.
        if path.starts_with("routes[].limits.") || path.starts_with("routes[].slo.") {
            return;
        }
        if !path.contains('.') {
            page.push_str(&std::mem::take(&mut rows));
            page.push_str(&format!(
                "\n## `{path}`\n\n| key | default | allowed | since | description |\n|---|---|---|---|---|\n"
            ));
        }
        let doc = documented.get(path).cloned().unwrap_or_else(|| match key.name {
            "status" => "Status code of the response.".to_owned(),
            _ => "Content of the response body.".to_owned(),
        });
        let availability = above
            .iter()
            .find(|(prefix, _)| path.starts_with(prefix))
            .map_or(key.availability, |(_, availability)| *availability);
        if key.availability != Availability::Stable {
            above.push((format!("{path}."), key.availability));
            above.push((format!("{path}[]."), key.availability));
        }
        rows.push_str(&row(path, key, availability, &doc));
    });
    page.push_str(&rows);
    page.push_str("\n## Keys of other batchers\n\nThey are refused like any unknown key. The error names the corresponding key of Groupage, whatever the spelling.\n\n");
    page.push_str("| key there | of | key here |\n|---|---|---|\n");
    for peer in PEERS {
        let names = peer.names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" ");
        page.push_str(&format!("| {names} | {} | `{}`{} |\n", peer.of, peer.key, peer.note));
    }
    golden(&root().join("docs/configuration.md"), &page);
}
