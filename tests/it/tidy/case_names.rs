//! Names of protocol cases: that of a case whose upstream simulates a server has the basis of its
//! answers.

use serde_json::Value;

use super::{files, read};

/// Forms of `basis`: answers that a server was recorded to give, and those of its source code,
/// its documentation or a specification; forms of other cases; rules of Groupage and of protocols.
const FORMS: [&str; 7] = ["observed", "code", "docs", "spec", "derived", "rule", "protocol"];

#[test]
fn every_protocol_case_states_the_basis_of_its_answers() {
    let is_case = |path: &String| path.starts_with("tests/data/protocol") && path.ends_with(".jsonl");
    let mut cases = 0;
    for path in files().into_iter().filter(is_case) {
        for (at, line) in read(&path).lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let case: Value = serde_json::from_str(line).unwrap();
            let basis = case["basis"].as_str().unwrap_or_default();
            let (form, server) = basis.split_once(':').unwrap_or((basis, ""));
            let names_server = ["observed", "code", "docs", "spec"].contains(&form);
            assert!(FORMS.contains(&form) && names_server != server.is_empty(), "{path}:{}: {basis:?}", at + 1);
            cases += 1;
        }
    }
    assert!(cases >= 190, "{cases}");
}
