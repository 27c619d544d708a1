//! Report of `inject` and `uninject` about the objects of the input files.

use super::one_line;

/// Report lines about the objects, in the order of the input.
#[derive(Debug, Default)]
pub(super) struct ObjectReport {
    lines: Vec<ReportLine>,
    any_injected: bool,
}

/// A line of the report. Its importance is a field, because the text has names from the input,
/// which may contain any character.
#[derive(Debug)]
struct ReportLine {
    /// The line with its line feed.
    text: String,
    /// `true` if the line is printed only with `--verbose`.
    is_detail: bool,
}

// === impl ObjectReport ===

impl ObjectReport {
    /// Reports a new sidecar in a pod template.
    pub(super) fn push_injected(&mut self, template: &str) {
        self.push(&format!("{template} injected"));
        self.any_injected = true;
    }

    /// Adds a line about an object, which is always printed.
    pub(super) fn push(&mut self, line: &str) {
        self.lines.push(ReportLine { text: one_line(line), is_detail: false });
    }

    /// Adds a warning about the pod template of the previous line.
    pub(super) fn push_warning(&mut self, warning: &str) {
        self.push(&format!("    ‼ {warning}"));
    }

    /// Adds a change of the pod template of the previous line, which is printed only with
    /// `--verbose`.
    pub(super) fn push_fact(&mut self, fact: &str) {
        self.lines.push(ReportLine { text: one_line(&format!("    √ {fact}")), is_detail: true });
    }

    /// Returns `true` if at least one pod template has a new sidecar.
    pub(super) fn any_injected(&self) -> bool {
        self.any_injected
    }

    /// Formats the report, without details unless `verbose` is set.
    pub(super) fn format(&self, verbose: bool) -> String {
        self.lines.iter().filter(|line| verbose || !line.is_detail).map(|line| line.text.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_mark_in_a_name_hides_no_line() {
        let mut report = ObjectReport::default();
        report.push_injected("deployment/√");
        report.push_fact("port 8000 (unnamed) of container √: captured");
        report.push_warning("container √ has no memory limit");
        report.push("    √ kind/web left unchanged");
        assert_eq!(
            report.format(false),
            "deployment/√ injected\n    ‼ container √ has no memory limit\n    √ kind/web left unchanged\n"
        );
        assert_eq!(report.format(true).lines().count(), 4);
    }

    #[test]
    fn a_line_that_ends_in_injected_is_no_new_sidecar() {
        let mut report = ObjectReport::default();
        report.push("deployment/web skipped: injected");
        assert!(!report.any_injected());
        report.push_injected("deployment/web");
        assert!(report.any_injected());
    }
}
