//! Checks that apply to every batch.

use std::collections::BTreeSet;

use groupage::batching::{Batch, Call, DispatchCause, InvariantId, Tick, UnbatchedReason};

use super::invariant::{CheckResult, ensure_invariant};
use super::key_queue::{DecisionInputs, ExpectedBatch, QueuedCall};

/// Checks that the batch reports the limit that bounded it, or the reason why its queue was due.
pub(crate) fn check_cause(batch: &Batch, expected: &ExpectedBatch, due: DispatchCause) -> CheckResult {
    // Batches of a drain report the drain, whatever bounded them.
    let cause = match due {
        DispatchCause::Drain => due,
        _ if expected.retest.is_some() || expected.trial => DispatchCause::Probe,
        _ => expected.bound.unwrap_or(due),
    };
    let reported = (batch.cause, batch.unbatched_reason);
    // A batch that holds too many calls is reported by the checks below, which name the exceeded
    // limit.
    let broken = if expected.unbatched_reason == Some(UnbatchedReason::Quarantined) {
        InvariantId::Quarantined
    } else {
        InvariantId::TrueCause
    };
    ensure_invariant(
        broken,
        batch.members.len() > expected.calls || reported == (cause, expected.unbatched_reason),
        || {
            format!(
                "batch {} reports {reported:?} and was dispatched for {:?}",
                batch.id.0,
                (cause, expected.unbatched_reason)
            )
        },
    )
}

/// Checks that the calls of a batch have its key, and that its totals match them.
pub(crate) fn check_members<'a>(batch: &Batch, calls: impl Iterator<Item = &'a Call>) -> CheckResult {
    let id = batch.id.0;
    let (mut next, mut weight, mut bytes) = (0, 0, 0);
    for (member, call) in batch.members.iter().zip(calls) {
        ensure_invariant(InvariantId::OneKey, call.key == batch.key && call.cost_class == batch.cost_class, || {
            format!("call {} of key {} is in batch {id} of key {}", call.id.0, call.key.0, batch.key.0)
        })?;
        ensure_invariant(InvariantId::Balanced, member.items == (next..next + call.items), || {
            format!("call {} has items {:?} of batch {id} and holds {}", call.id.0, member.items, call.items)
        })?;
        next += call.items;
        weight += call.weight.sum;
        bytes += call.bytes;
    }
    ensure_invariant(InvariantId::Balanced, (batch.items, batch.weight, batch.bytes) == (next, weight, bytes), || {
        format!("batch {id} counts {} items, its members {next}; or weight {weight}, bytes {bytes}", batch.items)
    })
}

/// Checks that the totals of the batch match its members and that no member is late.
pub(crate) fn check_totals(batch: &Batch, members: &[QueuedCall], now: Tick) -> CheckResult {
    let id = batch.id.0;
    check_members(batch, members.iter().map(|waiting| &waiting.call))?;
    let late = members.iter().find(|waiting| waiting.deadline().is_some_and(|deadline| deadline <= now));
    ensure_invariant(InvariantId::NotLate, late.is_none(), || format!("batch {id} contains {late:?} past its deadline"))
}

/// Checks that a batch of several members exceeds no limit. A single call may.
pub(crate) fn check_limits(
    batch: &Batch,
    members: &[QueuedCall],
    inputs: DecisionInputs<'_>,
    expected: &ExpectedBatch,
) -> CheckResult {
    let [first, _, ..] = members else { return Ok(()) };
    let id = batch.id.0;
    let scope = inputs.limits.scope(first.call.scope);
    let (cap, caps) = (expected.caps.items, expected.caps);
    ensure_invariant(InvariantId::WithinLimits, batch.items <= cap, || {
        format!("batch {id} has {} items of {cap}", batch.items)
    })?;
    let heaviest = members.iter().map(|waiting| waiting.call.weight.max).max().unwrap_or(0);
    let padded = heaviest * u64::from(batch.items);
    ensure_invariant(InvariantId::WithinLimits, batch.weight <= caps.weight && padded <= caps.padded, || {
        format!("batch {id} weighs {}, padded {padded}, of {caps:?}", batch.weight)
    })?;
    // A learned ceiling may be exceeded by a retest; a configured limit never is.
    let limits = (scope.batch_items_max, scope.batch_weight_max.unwrap_or(u64::MAX));
    ensure_invariant(InvariantId::WithinLimits, batch.items <= limits.0 && batch.weight <= limits.1, || {
        format!("batch {id} has {} items and weighs {} of {limits:?}", batch.items, batch.weight)
    })?;
    ensure_invariant(InvariantId::WithinLimits, batch.bytes <= scope.batch_bytes_max, || {
        format!("batch {id} has {} bytes of {}", batch.bytes, scope.batch_bytes_max)
    })?;
    let unmergeable = members.iter().any(|waiting| waiting.call.unmergeable);
    ensure_invariant(InvariantId::OneKey, !unmergeable, || format!("an unbatchable call shares batch {id}"))?;
    let (calls_max, unbatched_reason) = inputs.merge_limit(&first.call);
    ensure_invariant(InvariantId::Quarantined, members.len() <= calls_max, || {
        format!("batch {id} is shared by {}, where {calls_max} may leave together, {unbatched_reason:?}", members.len())
    })?;
    let mut values = BTreeSet::new();
    let mut all = members.iter().flat_map(|waiting| &waiting.call.exclusive);
    ensure_invariant(InvariantId::Exclusive, all.all(|value| values.insert(*value)), || {
        format!("a value is twice in batch {id}")
    })
}
