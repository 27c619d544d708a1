//! Golden tests of every case: the output is as recorded, a second injection changes nothing,
//! `uninject` restores the input, and the patch yields the same result.

use std::path::Path;

use json_patch::Patch;
use serde_json::Value;

use super::binary::{CommandOutput, folder, groupage};

/// Exit code for errors in the user's input.
const FINDINGS: i32 = 79;
/// Placeholder for the version, so that a release changes no file.
const VERSION: &str = "VERSION";

/// A golden test case.
struct GoldenCase {
    name: String,
    text: String,
    flags: Vec<String>,
}

// === impl GoldenCase ===

impl GoldenCase {
    fn all() -> Vec<Self> {
        let mut names: Vec<String> = std::fs::read_dir(folder())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| name.strip_suffix(".yaml").map(str::to_owned))
            .filter(|name| !name.ends_with(".out"))
            .collect();
        names.sort();
        assert!(names.len() >= 40, "{} cases are not all", names.len());
        names.into_iter().map(|name| Self::read(&name)).collect()
    }

    fn read(name: &str) -> Self {
        let text = std::fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap();
        let flags = text.lines().next().and_then(|line| line.strip_prefix("# groupage inject "));
        let flags = flags.into_iter().flat_map(str::split_whitespace).map(str::to_owned).collect();
        Self { name: name.to_owned(), text, flags }
    }

    fn inject(&self, more: &[&str], input: &str) -> CommandOutput {
        // The image reference is part of the hash, so it is fixed.
        let mut args = vec!["inject", "-f", "-", "--image", "groupage.dev/groupage:VERSION"];
        args.extend(self.flags.iter().map(String::as_str));
        args.extend(more);
        groupage(&args, input)
    }

    fn uninject(input: &str) -> Value {
        let ran = groupage(&["uninject", "-f", "-", "-o", "json"], input);
        assert_eq!(ran.exit, 0, "{}", ran.report);
        ran.json()
    }
}

fn without_version(text: &str) -> String {
    let own = |quote: &str| format!("{quote}version{quote}:{quote}{}{quote}", env!("CARGO_PKG_VERSION"));
    let neutral = |quote: &str| format!("{quote}version{quote}:{quote}{VERSION}{quote}");
    ["\"", "\\\""].iter().fold(text.to_owned(), |text, quote| text.replace(&own(quote), &neutral(quote)))
}

/// Compares `found` with the golden file, or writes it. `None` requires that the file does not
/// exist.
fn golden(name: &str, found: Option<&str>) {
    let path = folder().join(name);
    if std::env::var_os("UPDATE").is_some() {
        match found {
            Some(found) => std::fs::write(path, found).unwrap(),
            None if Path::exists(&path) => std::fs::remove_file(path).unwrap(),
            None => {}
        }
        return;
    }
    let was = std::fs::read_to_string(path).ok();
    assert_eq!(was.as_deref(), found, "{name} is out of date: run with UPDATE=1");
}

#[test]
fn the_output_of_every_case_matches_its_golden_file() {
    for case in GoldenCase::all() {
        let ran = case.inject(&["--verbose"], &case.text);
        golden(&format!("{}.report.txt", case.name), Some(&ran.report));
        if ran.exit == FINDINGS {
            assert_eq!(ran.out, "", "{}: a refused manifest is not printed in part", case.name);
            golden(&format!("{}.out.yaml", case.name), None);
            continue;
        }
        assert_eq!(ran.exit, 0, "{}: {}", case.name, ran.report);
        golden(&format!("{}.out.yaml", case.name), Some(&without_version(&ran.out)));
    }
}

#[test]
fn a_second_injection_changes_nothing_and_removal_restores_the_input() {
    for case in GoldenCase::all() {
        let first = case.inject(&[], &case.text);
        if first.exit == FINDINGS {
            continue;
        }
        let second = case.inject(&["--verbose"], &first.out);
        assert_eq!(second.out, first.out, "{}: the second time", case.name);
        // `deployment/x injected`, possibly with the name of the template before the verb.
        let is_done = |line: &str| line.ends_with(" injected") && line.split(' ').count() <= 3;
        let again = second.report.lines().any(is_done);
        assert!(!again, "{}: {}", case.name, second.report);
        assert_eq!(GoldenCase::uninject(&first.out), GoldenCase::uninject(&case.text), "{}: taken out", case.name);
    }
}

#[test]
fn the_patch_turns_the_input_into_the_output() {
    let mut patched = 0;
    for case in GoldenCase::all() {
        let wanted = case.inject(&["-o", "json"], &case.text);
        if wanted.exit == FINDINGS {
            continue;
        }
        let patches = case.inject(&["-o", "patch"], &case.text).json();
        let mut object = GoldenCase::uninject(&case.text);
        apply(&mut object, &patches, &case.name);
        assert_eq!(object, wanted.json(), "{}", case.name);
        patched += 1;
    }
    assert!(patched > 40);
}

/// Applies a patch, or a map of patches by object.
fn apply(object: &mut Value, patches: &Value, case: &str) {
    let one = |object: &mut Value, patch: &Value| {
        let patch: Patch = serde_json::from_value(patch.clone()).unwrap();
        json_patch::patch(object, &patch).unwrap_or_else(|error| panic!("{case}: {error}"));
    };
    let name_of = |object: &Value| {
        let kind = object["kind"].as_str().unwrap_or_default().to_ascii_lowercase();
        let name = object.pointer("/metadata/name").or_else(|| object.pointer("/metadata/generateName"));
        let name = format!("{kind}/{}", name.and_then(Value::as_str).unwrap_or("?"));
        let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
        namespace.map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"))
    };
    match patches {
        Value::Object(patches) => {
            for (name, patch) in patches {
                let items = object["items"].as_array_mut().unwrap();
                let found = items.iter_mut().find(|item| name_of(item) == *name);
                one(found.unwrap_or_else(|| panic!("{case}: no {name}")), patch);
            }
        }
        patch => one(object, patch),
    }
}
