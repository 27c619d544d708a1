//! Validation of injected manifests against the Kubernetes schemas, strictly and for every
//! supported version.
//!
//! Requires `kubernetes-validate` from `PyPI` in the virtual environment of `tests/servers`
//! (`just servers-setup`). If it is missing, the test reports it and is skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::binary::folder;

/// Versions in which native sidecars are stable (since Kubernetes 1.33, KEP-753), up to the newest
/// one with published schemas.
const VERSIONS: [&str; 5] = ["1.33", "1.34", "1.35", "1.36", "1.37"];
/// Minimum number of objects with a sidecar in the output.
const OBJECTS_MIN: u64 = 70;
/// Maximum number of cases that are invalid in a version before injection: a field of a later
/// version, a misspelled probe.
const INVALID_INPUTS_MAX: u64 = 2;

/// Returns the interpreter, if it exists and has the package.
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
fn the_output_is_valid_in_every_supported_version_of_kubernetes() {
    let Some(python) = python() else {
        crate::report_skipped("no kubernetes-validate in the environment of tests/servers (just servers-setup)");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/schemas.py");
    let out = Command::new(python).arg("-B").arg(script).arg(folder()).args(VERSIONS).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let faults: Vec<&str> = report["faults"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for version in VERSIONS {
        let count = |what: &str| report[what][version].as_u64().unwrap();
        assert!(count("valid") >= OBJECTS_MIN && count("invalid_input") <= INVALID_INPUTS_MAX, "{version}: {report}");
    }
}
