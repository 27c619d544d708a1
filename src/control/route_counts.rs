//! Counts for reports, by route, accumulated between two reports.
//!
//! A single lock protects all counts: recording takes about 100 ns and happens once per call and
//! execution, which is negligible beside their cost. Route names are not stored here; they are
//! resolved when a report is created, since settings change.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::wire::{OutcomeCounts, RouteReport};
use crate::batching::ScopeId;
use crate::telemetry::names::Outcome;
use crate::telemetry::{CallObserver, CompletedCall};

/// Maximum number of routes that are counted separately between two reports. A route takes at most
/// about 10 KiB with real traffic. A report names fewer routes.
const SCOPES_MAX: usize = 64;

/// Counts since the last [`RouteCounts::take`].
#[derive(Debug, Default)]
pub struct RouteCounts {
    routes: Mutex<BTreeMap<Option<ScopeId>, RouteReport>>,
    isolated: AtomicU64,
}

// === impl RouteCounts ===

impl RouteCounts {
    /// Takes the counts by route. Routes beyond the maximum are counted together under `None`.
    /// Route names are empty.
    #[must_use]
    pub fn take(&self) -> BTreeMap<Option<ScopeId>, RouteReport> {
        std::mem::take(&mut *self.routes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the number of upstream calls made by isolation.
    #[must_use]
    pub fn take_isolation_executions(&self) -> u64 {
        self.isolated.swap(0, Ordering::Relaxed)
    }

    fn count(&self, scope: ScopeId, count: impl FnOnce(&mut RouteReport)) {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = routes.contains_key(&Some(scope)) || routes.len() < SCOPES_MAX;
        count(routes.entry(known.then_some(scope)).or_default());
    }
}

impl CallObserver for RouteCounts {
    fn on_completion(&self, scope: ScopeId, call: &CompletedCall) {
        let CompletedCall { outcome, latency, items, slo, server_error } = *call;
        self.count(scope, |route| {
            *count_for_outcome(&mut route.calls, outcome) += 1;
            *count_for_outcome(&mut route.items, outcome) += u64::from(items);
            match outcome {
                // A fast error response is not a good latency, so it is excluded from the latency
                // histograms.
                Outcome::Served | Outcome::Passed if server_error => route.server_errors += 1,
                Outcome::Served => {
                    route.latency.add_time(latency);
                    if let Some(slo) = slo {
                        route.slo_latency.add_time(latency);
                        route.late += u64::from(latency > slo);
                    }
                }
                Outcome::Passed => route.passed_latency.add_time(latency),
                Outcome::Rejected | Outcome::Expired | Outcome::Failed => route.lost += u64::from(slo.is_some()),
                Outcome::Cancelled => {}
            }
        });
    }

    fn on_dispatch(&self, scope: ScopeId, items: u32, delays: &mut dyn Iterator<Item = Duration>) {
        self.count(scope, |route| {
            route.executions += 1;
            route.batch_items.add(u64::from(items));
            for delay in delays {
                route.carried += 1;
                route.queue_delay.add_time(delay);
            }
        });
    }

    fn on_isolation(&self) {
        self.isolated.fetch_add(1, Ordering::Relaxed);
    }

    fn on_execution(&self, scope: ScopeId, took: Duration, well: bool) {
        self.count(scope, |route| {
            if well {
                route.execution.add_time(took);
            } else {
                route.failed += 1;
            }
        });
    }
}

const fn count_for_outcome(counts: &mut OutcomeCounts, outcome: Outcome) -> &mut u64 {
    match outcome {
        Outcome::Served => &mut counts.served,
        Outcome::Rejected => &mut counts.rejected,
        Outcome::Expired => &mut counts.expired,
        Outcome::Cancelled => &mut counts.cancelled,
        Outcome::Failed => &mut counts.failed,
        Outcome::Passed => &mut counts.passed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_call_is_counted_by_route_and_by_how_it_ended() {
        let tally = RouteCounts::default();
        let end = |outcome, millis: u32, slo: Option<u32>| CompletedCall {
            outcome,
            latency: MS * millis,
            items: 2,
            slo: slo.map(|slo| MS * slo),
            server_error: false,
        };
        tally.on_completion(ScopeId(0), &end(Outcome::Served, 5, Some(10)));
        tally.on_completion(ScopeId(0), &end(Outcome::Served, 15, Some(10)));
        tally.on_completion(ScopeId(0), &end(Outcome::Served, 20, None));
        tally.on_completion(ScopeId(0), &end(Outcome::Expired, 10, Some(10)));
        tally.on_completion(ScopeId(0), &end(Outcome::Rejected, 1, None));
        tally.on_completion(ScopeId(0), &end(Outcome::Cancelled, 1, Some(10)));
        tally.on_completion(ScopeId(1), &end(Outcome::Passed, 7, Some(10)));
        tally.on_dispatch(ScopeId(0), 5, &mut [MS, 3 * MS].into_iter());
        tally.on_execution(ScopeId(0), 4 * MS, true);
        tally.on_execution(ScopeId(0), 400 * MS, false);
        for outcome in [Outcome::Served, Outcome::Passed] {
            tally.on_completion(ScopeId(2), &CompletedCall { server_error: true, ..end(outcome, 1, Some(10)) });
        }
        let taken = tally.take();
        let refused = &taken[&Some(ScopeId(2))];
        assert_eq!((refused.server_errors, refused.calls.served, refused.calls.passed), (2, 1, 1));
        assert_eq!([&refused.latency, &refused.slo_latency, &refused.passed_latency].map(Histogram::count), [0; 3]);
        let route = &taken[&Some(ScopeId(0))];
        let calls = OutcomeCounts { served: 3, expired: 1, rejected: 1, cancelled: 1, ..OutcomeCounts::default() };
        assert_eq!((route.calls, route.items.served, route.late, route.lost), (calls, 6, 1, 1));
        assert_eq!((route.latency.count(), route.slo_latency.count(), route.slo_latency.sum()), (3, 2, 20_000));
        assert_eq!((route.executions, route.carried, route.calls_saved(), route.failed), (1, 2, 1, 1));
        assert_eq!((route.queue_delay.sum(), route.batch_items.sum(), route.execution.sum()), (4000, 5, 4000));
        let passed = &taken[&Some(ScopeId(1))];
        assert_eq!(
            (passed.calls.passed, passed.passed_latency.sum(), passed.latency.count(), passed.lost),
            (1, 7000, 0, 0)
        );
        assert!(tally.take().is_empty(), "what was taken is gone");
        tally.on_isolation();
        tally.on_isolation();
        assert_eq!((tally.take_isolation_executions(), tally.take_isolation_executions()), (2, 0));
    }

    #[test]
    fn routes_beyond_the_bound_are_counted_together() {
        let tally = RouteCounts::default();
        for scope in 0..200 {
            tally.on_execution(ScopeId(scope), MS, true);
            tally.on_execution(ScopeId(0), MS, true);
        }
        let taken = tally.take();
        assert_eq!((taken.len(), taken[&None].execution.count()), (SCOPES_MAX + 1, 200 - SCOPES_MAX as u64));
        assert_eq!(taken[&Some(ScopeId(0))].execution.count(), 201);
    }
}
