//! Number of cases by adapter and result, as a table for people.

use std::collections::BTreeMap;

use crate::support::report::Totals;

/// Headings of the columns.
const HEADINGS: [&str; 4] = ["adapter", "passed", "failed", "skipped"];

/// Number of cases by result, for each adapter.
#[derive(Debug, Default)]
pub(crate) struct AdapterTable(BTreeMap<String, Totals>);

// === impl AdapterTable ===

impl AdapterTable {
    /// Returns the numbers of an adapter, to be increased.
    pub(crate) fn row(&mut self, adapter: &str) -> &mut Totals {
        self.0.entry(adapter.to_owned()).or_default()
    }

    /// Returns the sums over all adapters.
    pub(crate) fn totals(&self) -> Totals {
        self.0.values().fold(Totals::default(), |sum, own| Totals {
            passed: sum.passed + own.passed,
            failed: sum.failed + own.failed,
            skipped: sum.skipped + own.skipped,
        })
    }

    /// Returns the lines of the table, sorted by adapter; none without a case.
    pub(crate) fn lines(&self) -> Vec<String> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let numbers = |own: &Totals| [own.passed, own.failed, own.skipped].map(|number| number.to_string());
        let mut rows = vec![HEADINGS.map(str::to_owned)];
        rows.extend(self.0.iter().map(|(adapter, own)| {
            let [passed, failed, skipped] = numbers(own);
            [adapter.clone(), passed, failed, skipped]
        }));
        let [first, second, third, fourth] =
            [0, 1, 2, 3].map(|column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
        let line = |[adapter, passed, failed, skipped]: &[String; 4]| {
            format!("{adapter:<first$}  {passed:>second$}  {failed:>third$}  {skipped:>fourth$}")
        };
        rows.iter().map(line).collect()
    }
}
