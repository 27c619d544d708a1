//! Formatting of findings as text or JSON.

use serde_json::json;

use super::Output;
use super::evaluate::{CheckResult, Severity, worst_level};

pub(super) fn format_results(findings: &[CheckResult], output: Output) -> String {
    if output == Output::Json {
        return format!("{:#}\n", json!({"checks": findings}));
    }
    let mut out = String::new();
    let mut category = "";
    for finding in findings.iter().filter(|finding| output == Output::Table || finding.level != Severity::Ok) {
        if finding.category != category {
            category = finding.category;
            out.push_str(&format!("{}{category}\n", if out.is_empty() { "" } else { "\n" }));
        }
        let mark = match finding.level {
            Severity::Ok => '√',
            Severity::Warning => '‼',
            Severity::Error => '×',
        };
        out.push_str(&format!("{mark} {}\n", finding.what));
        if let Some(hint) = &finding.hint {
            out.push_str(&format!("    {hint}\n"));
        }
    }
    let verdict = match worst_level(findings) {
        Severity::Ok => "√",
        Severity::Warning => "√ with warnings",
        Severity::Error => "×",
    };
    out.push_str(&format!("\nstatus: {verdict}\n"));
    out
}
