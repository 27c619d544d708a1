//! Reports of tests that a machine cannot run.

use std::io::Write as _;

/// Reports the reason why a test is skipped, in full or in part. Writes to standard error directly,
/// because the test harness discards the captured output of tests that pass.
pub fn report_skipped(reason: &str) {
    // The message is informational, so a write error is ignored.
    writeln!(std::io::stderr(), "SKIPPED: {reason}").ok();
}
