//! What a run of the ledger has found.

use std::collections::BTreeMap;
use std::time::Duration;

/// What a run of the ledger has found, in items unless said.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Items sent by clients.
    pub items: u64,
    /// Calls they were in.
    pub calls: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// The longest wait for an answer.
    pub slowest: Duration,

    /// Answered 200 with the right answer.
    pub served: u64,
    /// Answered by the proxy's own error, by its code.
    pub own_errors: BTreeMap<String, u64>,
    /// Answered by an error of the upstream: its 429 or 503 as it is, or what it said to the call alone.
    pub upstream_errors: u64,
    /// Met by a fault while alone in the upstream call, and given exactly that.
    pub faulted: u64,
    /// Left by the client before the answer.
    pub cancelled: u64,
    /// **Violation.** Answered 200 with anything but the right answer.
    pub misdelivered: u64,
    /// **Violation.** Neither answered nor left.
    pub lost: u64,
    /// **Violation.** Given the error of a neighbour's poison.
    pub blamed: u64,

    /// **Violation.** Answers that nobody asked for, on a client's connection (calls).
    pub unasked: u64,
    /// **Violation.** Sent upstream more often than isolation explains.
    pub oversent: u64,
    /// **Violation.** Sent upstream after the caller had its 200.
    pub after_answer: u64,
    /// **Violation.** Upstream calls with items of several tenants or forms, or under another tenant's header.
    pub mixed: u64,
    /// **Violation.** Arrived upstream damaged.
    pub corrupt: u64,
    /// **Violation** until calls are split. Upstream calls that held a part of a client's call.
    pub torn: u64,
    /// Arrived upstream after their call was cancelled or had timed out: possible, if rare.
    pub late: u64,
    /// Arrived upstream long after; as `late`, but beyond what the books keep.
    pub stale: u64,
    /// Upstream calls still open some seconds after the last client was done.
    pub upstream_open: u64,

    /// Items of calls with a poison item.
    pub poisoned: u64,
    /// Those that got an error, as they should, or were cancelled.
    pub poisoned_answered: u64,
    /// Neither of a call with a poison item nor cancelled.
    pub innocent: u64,
    /// Innocent and served.
    pub innocent_served: u64,
    /// Innocent, not served, and met by what may not be sent again: a timeout, a refused connection, the upstream's 429 or 503, an answer over the
    /// cap, or a fault while alone.
    pub innocent_unreplayable: u64,

    /// Items that were part of an upstream call of two members or more at least once.
    pub shared: u64,
    /// Calls that arrived upstream.
    pub upstream_calls: u64,
    /// Items in them, replays counted again.
    pub upstream_items: u64,
    /// The most items in one of them.
    pub upstream_items_max: u64,
    /// Faults drawn, by kind.
    pub faults: Vec<(&'static str, u64)>,
}

// === impl Report ===

impl Report {
    /// Served, answered or delivered twice in any way.
    #[must_use]
    pub fn doubled(&self) -> u64 {
        self.unasked + self.oversent + self.after_answer
    }

    /// Everything that must not happen.
    #[must_use]
    pub fn violations(&self) -> u64 {
        let unbalanced = self.items.abs_diff(self.outcomes());
        self.misdelivered
            + self.lost
            + self.blamed
            + self.doubled()
            + self.mixed
            + self.corrupt
            + self.torn
            + unbalanced
    }

    /// Items that have an outcome; each has exactly one if this equals `items`.
    #[must_use]
    pub fn outcomes(&self) -> u64 {
        let own: u64 = self.own_errors.values().sum();
        let errors = own + self.upstream_errors + self.faulted;
        self.served + errors + self.cancelled + self.misdelivered + self.lost + self.blamed
    }

    /// Share of the innocent that were served.
    #[must_use]
    pub fn innocent_served_ratio(&self) -> f64 {
        ratio(self.innocent_served, self.innocent)
    }

    /// The same without those whom no replay could have saved.
    #[must_use]
    pub fn innocent_served_ratio_replayable(&self) -> f64 {
        ratio(self.innocent_served, self.innocent - self.innocent_unreplayable)
    }

    /// Share of all items that left in a shared call.
    #[must_use]
    pub fn shared_ratio(&self) -> f64 {
        ratio(self.shared, self.items)
    }

    /// Items in a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.items as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
