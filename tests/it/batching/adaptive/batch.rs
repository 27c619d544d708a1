//! Checks that apply to every batch, and the expected state that they read.

use std::collections::BTreeSet;
use std::time::Duration;

use groupage::batching::{Batch, Call, DeadlineSource, DispatchCause, InvariantId, KeyId, Limits, Tick};

use crate::sim::batch::check_members;
use crate::sim::invariant::{CheckResult, ensure_invariant};

/// A queued call.
#[derive(Debug, Clone)]
pub(super) struct QueuedCall {
    pub(super) call: Call,
    pub(super) arrived: Tick,
    /// Time for which it has waited with nothing in flight.
    pub(super) beside_idle: Duration,
    /// `true` if its first deadline was an SLO that has passed, so that the later one applies.
    pub(super) slo_ignored: bool,
}

/// Limits of a class that the upstream has reported.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReportedLimits {
    /// Limit that the upstream named in a refusal. It may be retested.
    pub(super) items_max: Option<u32>,
    /// Smallest number of items that it refused.
    pub(super) refused: Option<u32>,
    /// Published limit, which is never exceeded.
    pub(super) published: Option<u32>,
    pub(super) weight_published: Option<u64>,
    /// Key of the last batch with a mismatched response, and the end of its quarantine.
    pub(super) quarantined: Option<(KeyId, Tick)>,
}

/// The inputs of the checks of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckInputs<'a> {
    pub(super) now: Tick,
    pub(super) limits: &'a Limits,
    pub(super) known: ReportedLimits,
    /// Maximum number of items that the core itself has learned for the class.
    pub(super) ceiling: Option<u32>,
}

// === impl QueuedCall ===

impl QueuedCall {
    pub(super) fn deadline(&self) -> Option<Tick> {
        let applicable = if self.slo_ignored { self.call.fallback_deadline } else { self.call.deadline };
        applicable.map(|deadline| deadline.at)
    }
}

/// Checks that the totals of the batch match its members and that no member is late.
pub(super) fn check_totals(batch: &Batch, members: &[QueuedCall], now: Tick) -> CheckResult {
    let id = batch.id.0;
    check_members(batch, members.iter().map(|waiting| &waiting.call))?;
    // An SLO that no execution can meet expires nothing, so a call may be dispatched after it. A
    // deadline of the client or of the route is never passed.
    let hard = |waiting: &QueuedCall| {
        let deadlines = [waiting.call.deadline, waiting.call.fallback_deadline].into_iter().flatten();
        deadlines.filter(|deadline| deadline.source != DeadlineSource::Slo).map(|deadline| deadline.at).min()
    };
    let late = members
        .iter()
        .find(|waiting| waiting.deadline().is_some_and(|at| at <= now) || hard(waiting).is_some_and(|at| at <= now));
    ensure_invariant(InvariantId::NotLate, late.is_none(), || format!("batch {id} contains {late:?} past its deadline"))
}

/// Checks that a batch of several members exceeds no limit. A single call may, and reports it.
pub(super) fn check_limits(batch: &Batch, members: &[QueuedCall], rules: CheckInputs<'_>) -> CheckResult {
    let id = batch.id.0;
    let scope = rules.limits.scope(members[0].call.scope);
    let known = rules.known;
    // A configured or published limit is never exceeded. A learned ceiling may be retested; one
    // that the server named, by one item more.
    let firm = [known.published, known.items_max.map(|max| max.saturating_add(1))].into_iter().flatten();
    let firm = firm.fold(scope.batch_items_max, u32::min);
    let cap = [rules.ceiling, known.items_max].into_iter().flatten().fold(firm, u32::min);
    let cap = if batch.cause == DispatchCause::Probe { firm } else { cap };
    if members.len() == 1 {
        let larger = batch.items > cap && !members[0].call.unmergeable;
        return ensure_invariant(InvariantId::TrueCause, !larger || batch.unbatched_reason.is_some(), || {
            format!("batch {id} has {} items of {cap} without a reason", batch.items)
        });
    }
    ensure_invariant(InvariantId::WithinLimits, batch.items <= cap, || {
        format!("batch {id} has {} items of {cap}", batch.items)
    })?;
    ensure_invariant(InvariantId::WithinLimits, scope.batch_weight_max.is_none_or(|max| batch.weight <= max), || {
        format!("batch {id} weighs {} of {:?}", batch.weight, scope.batch_weight_max)
    })?;
    ensure_invariant(InvariantId::WithinLimits, known.weight_published.is_none_or(|max| batch.weight <= max), || {
        format!("batch {id} weighs {} of {:?}, which the server publishes", batch.weight, known.weight_published)
    })?;
    ensure_invariant(InvariantId::WithinLimits, batch.bytes <= scope.batch_bytes_max, || {
        format!("batch {id} has {} bytes of {}", batch.bytes, scope.batch_bytes_max)
    })?;
    let unbatched = members.iter().any(|waiting| waiting.call.unmergeable) || batch.unbatched_reason.is_some();
    ensure_invariant(InvariantId::OneKey, !unbatched, || format!("an unbatchable call shares batch {id}"))?;
    let quarantined = known.quarantined.is_some_and(|(key, until)| key == batch.key && rules.now < until);
    ensure_invariant(InvariantId::Quarantined, !quarantined, || {
        format!("batch {id} is shared, its key being in quarantine")
    })?;
    let mut values = BTreeSet::new();
    let mut all = members.iter().flat_map(|waiting| &waiting.call.exclusive);
    ensure_invariant(InvariantId::Exclusive, all.all(|value| values.insert(*value)), || {
        format!("a value is twice in batch {id}")
    })
}
