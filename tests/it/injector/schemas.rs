//! What comes out of an injection, held to the schemas of Kubernetes: every version of which one is supported, and strictly.
//!
//! It takes `kubernetes-validate` from `PyPI` in the virtual environment of `tests/servers` (`just servers-setup`); where that is missing it says so and nothing is run.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::binary::folder;

/// Those that a sidecar runs natively on (`kubernetes.md` §2), up to the newest whose schemas there are.
const VERSIONS: [&str; 5] = ["1.33", "1.34", "1.35", "1.36", "1.37"];
/// Objects that come out with a sidecar, at least.
const OBJECTS_MIN: u64 = 70;
/// Cases that are no object of that version before anything is done to them: a field of the future, a slip in a probe.
const AS_THEY_CAME_MAX: u64 = 2;

/// The interpreter with the package, if both are there.
fn python() -> Option<PathBuf> {
    let venv = std::env::var_os("GROUPAGE_SERVERS_VENV").filter(|venv| !venv.is_empty()).map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("servers-venv"),
        |venv| Path::new(env!("CARGO_MANIFEST_DIR")).join(venv),
    );
    let python = venv.join("bin/python");
    let has = Command::new(&python).args(["-c", "import kubernetes_validate"]).output();
    has.is_ok_and(|out| out.status.success()).then_some(python)
}

#[test]
fn every_version_of_kubernetes_takes_what_comes_out() {
    let Some(python) = python() else {
        crate::skipped("no kubernetes-validate in the environment of tests/servers (just servers-setup)");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/schemas.py");
    let out = Command::new(python).arg("-B").arg(script).arg(folder()).args(VERSIONS).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let told: Value = serde_json::from_slice(&out.stdout).unwrap();
    let faults: Vec<&str> = told["faults"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for version in VERSIONS {
        let count = |what: &str| told[what][version].as_u64().unwrap();
        assert!(count("valid") >= OBJECTS_MIN && count("as_it_came") <= AS_THEY_CAME_MAX, "{version}: {told}");
    }
}
