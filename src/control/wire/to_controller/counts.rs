//! The report of one route ([`RouteReport`]: latencies, outcomes and executions) and the counts by
//! outcome in it ([`OutcomeCounts`]). Both add up over routes, sidecars and time.

use serde::{Deserialize, Serialize};

use super::super::super::histogram::Histogram;

/// Counts of one route since the previous report. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteReport {
    /// Name of the route as written in the policy; `default` for calls that match no written route,
    /// `other` for routes beyond the maximum of a report.
    pub route: String,
    /// The route's SLO, a bound on the 99th percentile of latency, in microseconds, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_us: Option<u64>,
    /// Latency at the proxy, from arrival to response, of calls that were served without a server
    /// error.
    pub latency: Histogram,
    /// The same latency, of calls with an SLO only.
    pub slo_latency: Histogram,
    /// Latency, from arrival to response, of recognised calls that passed through.
    pub passed_latency: Histogram,
    /// Time from acceptance to dispatch, per call.
    pub queue_delay: Histogram,
    /// Time of successful executions, including isolation.
    pub execution: Histogram,
    /// Number of items per execution.
    pub batch_items: Histogram,
    /// Calls by outcome.
    pub calls: OutcomeCounts,
    /// Items by the outcome of their calls.
    pub items: OutcomeCounts,
    /// Calls that the server answered with 429 or 5xx. `calls` counts them as served or passed; the
    /// latencies exclude them.
    pub server_errors: u64,
    /// Calls that were answered later than their SLO.
    pub late: u64,
    /// Calls with an SLO that were rejected, expired in the queue, or failed.
    pub lost: u64,
    /// Executions: upstream calls, without those made by isolation.
    pub executions: u64,
    /// Calls that these executions carried. The difference to `executions` is what batching saved.
    pub carried: u64,
    /// Executions that did not succeed.
    pub failed: u64,
}

/// Counts by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OutcomeCounts {
    /// Answered by the upstream, unbatched or in a batch.
    pub served: u64,
    /// Rejected at admission, for lack of room.
    pub rejected: u64,
    /// Expired: the deadline passed in the queue.
    pub expired: u64,
    /// Cancelled by the client.
    pub cancelled: u64,
    /// Answered by the proxy with an error.
    pub failed: u64,
    /// Forwarded unmodified.
    pub passed: u64,
}

// === impl RouteReport ===

impl RouteReport {
    /// Adds the counts of another report.
    pub fn merge(&mut self, other: &Self) {
        let sketches = [
            (&mut self.latency, &other.latency),
            (&mut self.slo_latency, &other.slo_latency),
            (&mut self.passed_latency, &other.passed_latency),
            (&mut self.queue_delay, &other.queue_delay),
            (&mut self.execution, &other.execution),
            (&mut self.batch_items, &other.batch_items),
        ];
        for (own, other) in sketches {
            own.merge(other);
        }
        self.calls.merge(&other.calls);
        self.items.merge(&other.items);
        let counts = [
            (&mut self.server_errors, other.server_errors),
            (&mut self.late, other.late),
            (&mut self.lost, other.lost),
            (&mut self.executions, other.executions),
            (&mut self.carried, other.carried),
            (&mut self.failed, other.failed),
        ];
        for (own, other) in counts {
            *own = own.saturating_add(other);
        }
    }

    /// Returns the number of upstream calls that batching made unnecessary.
    #[must_use]
    pub const fn calls_saved(&self) -> u64 {
        self.carried.saturating_sub(self.executions)
    }
}

// === impl OutcomeCounts ===

impl OutcomeCounts {
    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        let counts = [
            (&mut self.served, other.served),
            (&mut self.rejected, other.rejected),
            (&mut self.expired, other.expired),
            (&mut self.cancelled, other.cancelled),
            (&mut self.failed, other.failed),
            (&mut self.passed, other.passed),
        ];
        for (own, other) in counts {
            *own = own.saturating_add(other);
        }
    }

    /// Returns the sum of all outcomes.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let Self { served, rejected, expired, cancelled, failed, passed } = *self;
        [served, rejected, expired, cancelled, failed, passed].into_iter().fold(0, u64::saturating_add)
    }
}
