//! The planted faults of `tests/faults`: a patch that does not apply to the tree tests nothing, and
//! `run.sh` is too slow to show it with every change.

use std::io::ErrorKind;
use std::process::{Command, Output};

use super::{files, root};
use crate::report_skipped;

/// Checks whether a patch applies to the tree, which is not changed. Returns `None` without git.
fn check_patch(patch: &str) -> Option<Output> {
    match Command::new("git").args(["apply", "--check", patch]).current_dir(root()).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        out => Some(out.unwrap_or_else(|error| panic!("git apply --check {patch}: {error}"))),
    }
}

#[test]
fn every_planted_fault_applies_to_the_tree() {
    let is_patch = |path: &String| path.starts_with("tests/faults/") && path.ends_with(".patch");
    let patches: Vec<String> = files().into_iter().filter(is_patch).collect();
    assert!(!patches.is_empty(), "no patches in tests/faults");
    let mut broken = Vec::new();
    for patch in patches {
        let Some(out) = check_patch(&patch) else {
            report_skipped("planted faults: git is not installed, so their patches were not checked");
            return;
        };
        if !out.status.success() {
            broken.push(format!("{patch}: {}", String::from_utf8_lossy(&out.stderr).trim_end()));
        }
    }
    assert!(broken.is_empty(), "patches that do not apply, to be updated:\n{}", broken.join("\n"));
}
