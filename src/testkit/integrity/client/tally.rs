//! Counts of a completed call in the report, by the outcome of its items.

use std::time::Duration;

use super::super::report::LedgerReport;
use super::verification::{ClientCall, ItemOutcome};

/// Maximum number of different error codes of the proxy that are counted separately. Fewer exist.
const CODES_MAX: usize = 64;

/// Further facts about a completed call.
pub(super) struct CallFacts {
    /// `true` if the call was part of a shared upstream call at least once.
    pub(super) shared: bool,
    /// `true` if the call arrived upstream, and never in a shared call.
    pub(super) unbatched: bool,
    /// `true` if unsolicited bytes arrived on the connection of the call.
    pub(super) unasked: bool,
    /// Time from the start of the call to its end.
    pub(super) waited: Duration,
}

// === impl LedgerReport ===

impl LedgerReport {
    /// Counts a completed call with `n` items.
    pub(super) fn record(&mut self, n: u64, call: &ClientCall, outcome: ItemOutcome, facts: &CallFacts) {
        self.items += n;
        self.calls += 1;
        self.shared += if facts.shared { n } else { 0 };
        self.unasked += u64::from(facts.unasked);
        if outcome != ItemOutcome::Cancelled {
            self.slowest = self.slowest.max(facts.waited);
        }
        if call.poison {
            self.poisoned += n;
            let is_wrong = matches!(outcome, ItemOutcome::Served | ItemOutcome::Misdelivered | ItemOutcome::Lost);
            self.poisoned_answered += if is_wrong { 0 } else { n };
        } else if outcome != ItemOutcome::Cancelled {
            self.innocent += n;
            self.innocent_served += if outcome == ItemOutcome::Served { n } else { 0 };
            self.innocent_unreplayable += if outcome.is_unreplayable(facts.unbatched) { n } else { 0 };
        }
        *match outcome {
            ItemOutcome::Served => &mut self.served,
            ItemOutcome::ProxyError(code) => {
                let known = self.own_errors.len() < CODES_MAX || self.own_errors.contains_key(&code);
                self.own_errors.entry(if known { code } else { "other".to_owned() }).or_default()
            }
            ItemOutcome::Overloaded | ItemOutcome::Upstream => &mut self.upstream_errors,
            ItemOutcome::Faulted => &mut self.faulted,
            ItemOutcome::Cancelled => &mut self.cancelled,
            ItemOutcome::Misdelivered => &mut self.misdelivered,
            ItemOutcome::WrongError => &mut self.blamed,
            ItemOutcome::Lost => &mut self.lost,
        } += n;
    }
}

// === impl ItemOutcome ===

impl ItemOutcome {
    /// Returns `true` if an innocent call ended this way because of an event that must not be
    /// replayed.
    fn is_unreplayable(&self, unbatched: bool) -> bool {
        match self {
            Self::Served | Self::Cancelled | Self::Misdelivered | Self::WrongError | Self::Lost => false,
            Self::Overloaded | Self::Faulted => true,
            // Timeout, connection refused and response too large. A call that was forwarded alone
            // is never replayed.
            Self::ProxyError(code) => unbatched || matches!(code.as_str(), "GRP3301" | "GRP3303" | "GRP3306"),
            Self::Upstream => unbatched,
        }
    }
}
