//! `groupage demo` without a terminal.

use std::process::{Command, Stdio};

#[test]
fn piped_output_has_no_progress_lines() {
    let output = Command::new(env!("CARGO_BIN_EXE_groupage"))
        .args(["demo", "--seconds", "1", "--rate", "40", "--idle-rate", "10"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, report) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{out}{report}");
    assert!(!out.contains('\r') && !report.contains('\r'), "{out}{report}");
    let heading = out.lines().position(|line| line.starts_with("load ") && line.ends_with("refused"));
    let rows: Vec<&str> = out.lines().skip(heading.unwrap() + 1).take(6).collect();
    for (row, load) in rows.iter().zip(["busy", "busy", "idle", "idle", "self-batching", "self-batching"]) {
        assert!(row.starts_with(load), "{out}");
    }
    assert_eq!(rows.len(), 6, "{out}");
}
