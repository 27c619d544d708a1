//! Results of a ledger run: counts of items by outcome, and of violated invariants.
//!
//! Every item has exactly one outcome. Fields marked as a violation must be 0.

use std::collections::BTreeMap;
use std::time::Duration;

/// Results of a ledger run. Fields count items unless stated otherwise.
#[derive(Debug, Clone, Default)]
pub struct LedgerReport {
    /// Items sent by clients.
    pub items: u64,
    /// Number of calls that contained them.
    pub calls: u64,
    /// Duration of the run.
    pub elapsed: Duration,
    /// Longest time until a response.
    pub slowest: Duration,

    /// Items that received a correct 200 response.
    pub served: u64,
    /// Items answered with an error of the proxy, by its code.
    pub own_errors: BTreeMap<String, u64>,
    /// Items answered with an error of the upstream: its unmodified 429 or 503, or its response to
    /// a call that was forwarded alone.
    pub upstream_errors: u64,
    /// Items that met a fault while forwarded alone, and received exactly the faulty response.
    pub faulted: u64,
    /// Items of calls that the client cancelled.
    pub cancelled: u64,
    /// **Violation.** Items that received an incorrect 200 response.
    pub misdelivered: u64,
    /// **Violation.** Items that were neither answered nor cancelled.
    pub lost: u64,
    /// **Violation.** Items that received the error of another call's poison item.
    pub blamed: u64,

    /// **Violation.** Unsolicited responses on a client's connection (counts calls).
    pub unasked: u64,
    /// **Violation.** Items sent upstream more often than isolation explains.
    pub oversent: u64,
    /// **Violation.** Items sent upstream after their client had received its 200.
    pub after_answer: u64,
    /// **Violation.** Upstream calls with items of several tenants or forms, or with the header of
    /// another tenant.
    pub mixed: u64,
    /// **Violation.** Items that arrived upstream damaged.
    pub corrupt: u64,
    /// **Violation.** Upstream calls with items out of order, or with only a part of a client's
    /// call although the proxy may divide none.
    pub torn: u64,
    /// Items that arrived upstream after their call had been cancelled or had timed out. This is
    /// rare but allowed.
    pub late: u64,
    /// Items as in `late`, of calls that are no longer in the records.
    pub stale: u64,
    /// Upstream calls that were still open several seconds after the last client had finished.
    pub upstream_open: u64,

    /// Items of calls that contained a poison item.
    pub poisoned: u64,
    /// Poisoned items that were answered with an error, as required, or cancelled.
    pub poisoned_answered: u64,
    /// Items that were neither in a call with a poison item nor cancelled.
    pub innocent: u64,
    /// Innocent items that were served.
    pub innocent_served: u64,
    /// Innocent items that were not served because of an event that must not be replayed: a
    /// timeout, a refused connection, a 429 or 503 of the upstream, a response above the size
    /// limit, or a fault while forwarded alone.
    pub innocent_unreplayable: u64,

    /// Items that were at least once part of an upstream call with two or more members.
    pub shared: u64,
    /// Number of calls that arrived upstream.
    pub upstream_calls: u64,
    /// Items in those calls. Replayed items are counted each time.
    pub upstream_items: u64,
    /// Largest number of items in one upstream call.
    pub upstream_items_max: u64,
    /// Number of injected faults, by kind.
    pub faults: Vec<(&'static str, u64)>,
}

// === impl LedgerReport ===

impl LedgerReport {
    /// Returns the number of items that were served, answered or delivered more than once.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.unasked + self.oversent + self.after_answer
    }

    /// Returns the number of violations, and of items without exactly one outcome.
    #[must_use]
    pub fn violations(&self) -> u64 {
        // Items with no outcome, or with several.
        let unbalanced = self.items.abs_diff(self.outcomes());
        self.misdelivered
            + self.lost
            + self.blamed
            + self.duplicates()
            + self.mixed
            + self.corrupt
            + self.torn
            + unbalanced
    }

    /// Returns the sum of all outcomes. It equals `items` if each item has exactly one.
    #[must_use]
    pub fn outcomes(&self) -> u64 {
        let own: u64 = self.own_errors.values().sum();
        let errors = own + self.upstream_errors + self.faulted;
        self.served + errors + self.cancelled + self.misdelivered + self.lost + self.blamed
    }

    /// Returns the share of innocent items that were served.
    #[must_use]
    pub fn innocent_served_ratio(&self) -> f64 {
        ratio(self.innocent_served, self.innocent)
    }

    /// Returns the share of innocent items that were served, without those that must not be
    /// replayed.
    #[must_use]
    pub fn innocent_served_ratio_replayable(&self) -> f64 {
        ratio(self.innocent_served, self.innocent - self.innocent_unreplayable)
    }

    /// Returns the share of items that were part of a shared call.
    #[must_use]
    pub fn shared_ratio(&self) -> f64 {
        ratio(self.shared, self.items)
    }

    /// Returns the number of items per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.items as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
