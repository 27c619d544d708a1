//! Merges closed-loop cohorts that take turns and have no slack to wait for each other.
//!
//! Closed-loop clients can split into two cohorts: one is served while the other waits, and the one
//! that waited has no slack left for a batch of all. Each batch is then as small as the remaining
//! deadlines allow, and calls that do not fit are refused for ever, although all of them would be
//! in time if they arrived at once. From time to time, therefore, the waiting cohort is held until
//! the one in flight has been answered and has returned, and leaves with it, late once. From then
//! on they arrive together.
//!
//! Out of scope: clients with slack to wait (`hold`), several slots, and deadlines set by
//! clients, for which a later answer is useless.

use std::time::Duration;

use super::super::arrivals::EDGES;
use super::super::call::DeadlineSource;
use super::super::math::float;
use super::super::tick::{Tick, nanos};
use super::deadline::fit;
use super::{Action, Adaptive, DispatchCause, DispatchKind, HoldReason, KeyDecision, QueueView, QueuedCall, slo_of};

/// Part of an answered batch that must return within a quarter of the SLO, in tenths.
const BACK: u64 = 8;
/// Part of the returning items that a hold waits for, in hundredths.
const ALMOST_ALL: u64 = 95;
/// Minimum ratio of the throughput of all together to that of two cohorts. The prediction is an
/// estimate, and the held calls are late for it.
const FASTER: f64 = 1.2;
/// Credit that a late call costs, in calls that were sent before.
const PRICE: u64 = 8;
/// Initial credit: enough for the largest batch of the default limits.
const CREDIT_START: u64 = 128 * PRICE;
/// Maximum credit.
const CREDIT_MAX: u64 = 2 * CREDIT_START;
/// Maximum factor on the price after merges that failed: then at most one call in this many times 8
/// is late in vain.
const DEARER_MAX: u64 = 64;

/// Credit of a line for merging its cohorts, and the merge in progress.
#[derive(Debug, Clone)]
pub(super) struct CohortMerge {
    credit: u64,
    /// Factor on the price. It doubles with each merge that failed.
    dearer: u64,
    open: Option<PendingMerge>,
}

/// A merge in progress, during which the line is held.
#[derive(Debug, Clone, Copy)]
struct PendingMerge {
    /// Nanoseconds from the answer within which the other cohort returns.
    span: u64,
    /// Held items that credit was spent on.
    paid: u32,
    /// Expected items of both cohorts.
    items: u32,
    /// Most items that would be in time together if they arrived at once. Clients that were refused
    /// may return too.
    most: u32,
}

// === impl CohortMerge ===

impl Default for CohortMerge {
    fn default() -> Self {
        Self { credit: CREDIT_START, dearer: 1, open: None }
    }
}

impl CohortMerge {
    /// Starts a merge if the credit pays for the held items, which may be late. Returns `true` if
    /// it does.
    fn begin(&mut self, open: PendingMerge) -> bool {
        let price = self.price(open.paid);
        let may = price <= self.credit;
        if may {
            self.credit -= price;
            self.open = Some(open);
        }
        may
    }

    /// Charges items that joined the held ones before the other cohort is answered.
    fn wait(&mut self, items: u32) {
        let Some(open) = &mut self.open else { return };
        let more = items.saturating_sub(open.paid);
        open.paid += more;
        self.credit = self.credit.saturating_sub(self.price(more));
    }

    /// Ends a merge that failed: too few items returned, or they can no longer leave together.
    fn end(&mut self) {
        if self.open.take().is_some() {
            self.dearer = (self.dearer * 2).min(DEARER_MAX);
        }
    }

    /// Records the dispatch of a batch of the line.
    pub(super) fn sent(&mut self, items: u32) {
        self.credit = (self.credit + u64::from(items)).min(CREDIT_MAX);
        if self.open.is_some_and(|open| open.came(items)) {
            self.open = None;
            self.dearer = 1;
        }
        self.end();
    }

    fn price(&self, late: u32) -> u64 {
        u64::from(late) * PRICE * self.dearer
    }
}

// === impl PendingMerge ===

impl PendingMerge {
    /// Returns `true` if these are nearly all of the expected items.
    fn came(&self, items: u32) -> bool {
        u64::from(items) * 10 >= u64::from(self.items) * BACK
    }
}

// === impl Adaptive ===

impl Adaptive {
    /// Returns the decision for a line that waits for its other cohort, or begins to; `None` if it
    /// does neither. `hold_max` returns the time for which the line may still be held, `hold` a
    /// hold until an instant, cut to every bound.
    pub(super) fn rejoin(
        &mut self,
        line: &QueueView<'_>,
        leading: bool,
        hold_max: impl Fn() -> Duration,
        hold: impl Fn(Tick) -> Option<KeyDecision>,
    ) -> Option<KeyDecision> {
        let (key, items) = (line.key, line.items);
        if self.keys.get(&key)?.rejoin.open.is_none() {
            if line.late(&self.models.get(&line.head.call.cost_class)?.cost).is_some() {
                return None;
            }
            let open = self.apart(line, leading).filter(|open| Duration::from_nanos(open.span) <= hold_max())?;
            if !self.keys.get_mut(&key)?.rejoin.begin(open) {
                return None;
            }
        }
        let watched = self.keys.get_mut(&key)?;
        let open = watched.rejoin.open?;
        if leading {
            // The other cohort is not answered yet.
            watched.rejoin.wait(items);
            self.note_hold(key, HoldReason::Gather);
            return Some(KeyDecision::NoSlot(None));
        }
        let now = line.ctx.now;
        let gone = watched.arrivals.returns().present(now).map_or(0, |(gone, _)| gone);
        let until = Tick(now.0.saturating_sub(gone).saturating_add(open.span));
        if items < open.most.min(line.cap)
            && let Some(held) = hold(until)
        {
            self.note_hold(key, HoldReason::Gather);
            return Some(held);
        }
        if !open.came(items) && items < line.cap {
            watched.rejoin.end();
            return None;
        }
        self.held.remove(&key);
        let next =
            Action::Send { key, items: items.min(line.cap), cause: DispatchCause::Delay, kind: DispatchKind::Batch };
        Some(KeyDecision::Do(next))
    }

    /// Returns the merge to start, if one would serve more items in time from then on.
    fn apart(&self, line: &QueueView<'_>, leading: bool) -> Option<PendingMerge> {
        let cost = &self.models.get(&line.head.call.cost_class)?.cost;
        let slo = nanos(slo_of(line.head)?);
        if self.slots() > 1 || line.ctx.queue.lines().nth(1).is_some() {
            return None;
        }
        let now = line.ctx.now;
        let returns = self.keys.get(&line.key)?.arrivals.returns();
        let (answered, items) = if leading {
            let own = self
                .flights
                .values()
                .filter(|sent| sent.batch.key == line.key && sent.batch.kind == DispatchKind::Batch);
            let ahead = own.min_by_key(|sent| sent.due)?;
            (ahead.due, ahead.batch.items)
        } else {
            let (gone, items) = returns.present(now)?;
            (Tick(now.0.saturating_sub(gone)), items)
        };
        // The cohort counts as returning if its items come back within a quarter of the SLO.
        let back = |edge: u64| returns.caused(items, 0, edge);
        let edges = || EDGES.into_iter().take_while(|edge| *edge <= slo / 4);
        let come = edges().map(back).max().filter(|come| *come >= u64::from(items) * BACK * 100)?;
        let span = edges().find(|edge| back(*edge) * 100 >= come * ALMOST_ALL)?;
        let until = answered.0.saturating_add(span);
        let most = fit(cost, slo.saturating_sub(span), line.cap);
        let all = line.items.saturating_add(items).min(most);
        let together = cost.time(all);
        let hold = until.saturating_sub(now.0);
        // A hold ends half-way to the head's deadline, and the held calls must still be queued when
        // the others are back.
        if hold == 0
            || line.slack(line.head) / 2 <= hold
            || all <= line.items
            || line.slack(line.head) >= hold.saturating_add(cost.late(together))
        {
            return None;
        }
        // Without a merge: the items that fit now, then the items of the rest that fit after them.
        let first = fit(cost, line.slack(line.head).saturating_sub(line.wait), line.items);
        let alone = cost.time(first.max(1));
        let second = fit(cost, slo.saturating_sub(alone), all.saturating_sub(first));
        let lost = (line.items - first) + all.saturating_sub(first + second);
        let worth = u64::from(lost) * PRICE >= u64::from(line.items);
        let rate = |items: u32, nanos: u64| f64::from(items) / float(nanos.max(1));
        let in_turns = rate(first + second, alone.saturating_add(cost.time(second.max(1))));
        let faster = rate(all, together.saturating_add(span)) > FASTER * in_turns;
        let own =
            |queued: &QueuedCall| queued.call.deadline.is_some_and(|deadline| deadline.source != DeadlineSource::Slo);
        if line.ctx.queue.line(line.key).any(own) {
            return None;
        }
        (worth && faster).then_some(PendingMerge { span, paid: line.items, items: all, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(items: u32, late: u32) -> PendingMerge {
        PendingMerge { span: 1, paid: late, items, most: items }
    }

    #[test]
    fn price_doubles_after_failed_merge_and_resets_after_success() {
        let mut rejoin = CohortMerge::default();
        assert!(rejoin.begin(open(32, 16)) && rejoin.open.is_some());
        rejoin.sent(26);
        assert!(rejoin.open.is_none() && rejoin.dearer == 1, "eight tenths arrived");
        for dearer in [2, 4, 8] {
            (0..100).for_each(|_| rejoin.sent(32));
            assert!(rejoin.begin(open(32, 1)));
            rejoin.sent(16);
            assert_eq!(rejoin.dearer, dearer);
        }
    }

    #[test]
    fn one_call_in_eight_may_be_late_for_it_at_most() {
        let mut rejoin = CohortMerge::default();
        let (mut late, mut sent) = (0_u64, 0_u64);
        for _ in 0..100_000 {
            if rejoin.begin(open(20, 4)) {
                late += 4;
            }
            rejoin.sent(20);
            sent += 20;
        }
        assert!(late * PRICE <= sent + CREDIT_START, "{late} of {sent}");
    }
}
