//! Invariants of the core that hold in every step, whatever the adaptive policy has learned.
//!
//! The adaptive policy has no model that predicts its decisions exactly, as `sim::model` predicts
//! those of the other policies. What is expected is therefore reduced to what every decision must
//! satisfy.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use groupage::batching::{
    Batch, BatchId, BatchOutcome, Batcher, Call, CallId, CostClassId, DeadlineSource, Decision, DispatchCause,
    DispatchPolicy, ExpiryReason, InvariantId, KeyId, Limits, Observation, Rejection, ScopeId, Tick, UnbatchedReason,
};

use super::batch::{self, CheckInputs, QueuedCall, ReportedLimits};
use super::displacement::DisplacedCalls;
use crate::sim::invariant::{AbortState, CheckResult, Coverage, Violation, check_all_ended, ensure_invariant};
use crate::sim::trace::{CoreResponse, Event};

/// The expected state of the core.
#[derive(Debug)]
pub(super) struct InvariantChecker {
    pub(super) tally: Coverage,
    now: Tick,
    limits: Limits,
    draining: bool,
    queue: BTreeMap<CallId, QueuedCall>,
    displaced: DisplacedCalls,
    in_flight: BTreeMap<BatchId, InFlightBatch>,
    classes: BTreeMap<CostClassId, ReportedLimits>,
    /// Accepted calls and the way in which each left the queue; `None` while it is queued.
    fates: BTreeMap<CallId, Option<&'static str>>,
    /// Merge keys that the upstream has paused, with the end of each pause.
    paused: BTreeMap<KeyId, Tick>,
    /// Number of dispatched batches, which is the id of the next one.
    batches: u64,
    /// The longest successful execution by class.
    slowest: BTreeMap<CostClassId, Duration>,
    /// `true` if the simulation polls the core without a delay after a requested wake-up.
    punctual: bool,
    /// Half of the least time that a single item ever takes. A core that knows this upstream never
    /// concludes that a shorter SLO can be met.
    pub(super) hopeless: Duration,
}

#[derive(Debug)]
struct InFlightBatch {
    /// `None` for a call that shares no batch.
    key: Option<KeyId>,
    class: CostClassId,
    scope: ScopeId,
    items: u32,
    members: usize,
    /// Weight of the heaviest item.
    heaviest: u64,
    /// Members that are neither cancelled nor answered.
    waiting: BTreeSet<CallId>,
    abort: AbortState,
}

// === impl InvariantChecker ===

impl InvariantChecker {
    pub(super) fn new(limits: Limits, hopeless: Duration, punctual: bool) -> Self {
        Self {
            tally: Coverage::new(),
            now: Tick::default(),
            limits,
            draining: false,
            queue: BTreeMap::new(),
            displaced: DisplacedCalls::default(),
            in_flight: BTreeMap::new(),
            classes: BTreeMap::new(),
            fates: BTreeMap::new(),
            paused: BTreeMap::new(),
            batches: 0,
            slowest: BTreeMap::new(),
            punctual,
            hopeless,
        }
    }

    pub(super) fn record_situation(&mut self, situation: &'static str) {
        *self.tally.entry(situation).or_default() += 1;
    }

    pub(super) fn in_flight_count(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn is_queued(&self, id: CallId) -> bool {
        self.queue.contains_key(&id)
    }

    /// Returns the members of a batch in flight that are not answered yet.
    pub(super) fn waiting(&self, batch: BatchId) -> Vec<CallId> {
        self.in_flight.get(&batch).map(|flight| flight.waiting.iter().copied().collect()).unwrap_or_default()
    }

    /// Returns the number of calls in a batch in flight.
    pub(super) fn members(&self, batch: BatchId) -> usize {
        self.in_flight.get(&batch).map_or(0, |flight| flight.members)
    }

    /// Returns the weight of the heaviest item of a batch in flight.
    pub(super) fn heaviest(&self, batch: BatchId) -> u64 {
        self.in_flight.get(&batch).map_or(0, |flight| flight.heaviest)
    }

    /// Returns an upper bound on the number of decisions at one instant.
    pub(super) fn decisions_max(&self) -> usize {
        2 * self.queue.len() + self.in_flight.len() + 2
    }

    /// Checks the core's response to an event, and its state after it, against the invariants.
    /// `ceiling` returns the maximum number of items that the core had learned for a class before
    /// the event.
    pub(super) fn step(
        &mut self,
        event: &Event,
        response: &CoreResponse,
        core: &Batcher,
        ceiling: impl Fn(CostClassId) -> Option<u32>,
    ) -> CheckResult {
        if let Event::Offer(now, _)
        | Event::Cancel(now, _)
        | Event::Complete(now, ..)
        | Event::Publish(now, ..)
        | Event::PublishWeight(now, ..)
        | Event::Drain(now)
        | Event::Poll(now) = event
        {
            // The time since the last event counts as waiting beside an idle upstream.
            if self.in_flight.is_empty() {
                let elapsed = now.since(self.now);
                self.queue.values_mut().for_each(|waiting| waiting.beside_idle += elapsed);
            }
            self.now = *now;
        }
        match (event, response) {
            (Event::Offer(_, call), CoreResponse::Offered(result)) => self.offered(call, *result, core)?,
            (Event::Cancel(_, id), CoreResponse::Cancelled(left)) => {
                self.cancelled(*id, *left)?;
                self.displaced.on_cancelled(self.held(), core.counts());
            }
            (Event::Answered(id), _) => {
                self.in_flight.values_mut().for_each(|flight| _ = flight.waiting.remove(id));
            }
            (Event::Complete(_, batch, observed), _) => self.completed(*batch, observed),
            (Event::SetLimits(limits), _) => self.limits = limits.clone(),
            (Event::Publish(_, class, items_max), _) => {
                let known = self.classes.entry(*class).or_default();
                known.published = Some(known.published.unwrap_or(u32::MAX).min((*items_max).max(1)));
            }
            (Event::PublishWeight(_, class, weight_max), _) => {
                let known = self.classes.entry(*class).or_default();
                known.weight_published = Some(known.weight_published.unwrap_or(u64::MAX).min((*weight_max).max(1)));
            }
            (Event::Drain(_), _) => self.draining = true,
            (Event::Poll(_), CoreResponse::Decided(Decision::Dispatch(batch))) => {
                self.displaced.check_reported()?;
                self.ignore_hopeless_slos()?;
                self.dispatched(batch, ceiling(batch.cost_class))?;
            }
            (Event::Poll(_), CoreResponse::Decided(Decision::Expire { id, reason })) => self.expired(*id, *reason)?,
            (Event::Poll(_), CoreResponse::Decided(Decision::Abort(batch))) => self.aborted(*batch)?,
            (Event::Poll(_), CoreResponse::Idle(wakeup)) => self.idle(*wakeup)?,
            _ => unreachable!("{response:?} is not a response to {event:?}"),
        }
        // The core's counters match the calls and batches held here.
        let counts = core.counts();
        let (calls, items) = self.displaced.without(self.held());
        let held = (calls, items, self.in_flight.len());
        ensure_invariant(
            InvariantId::Balanced,
            (counts.queue_calls, counts.queue_items, counts.in_flight) == held,
            || format!("{counts:?} where {held:?} is held"),
        )
    }

    /// Returns the numbers of calls and items that are queued, or displaced and not reported.
    fn held(&self) -> (usize, u64) {
        (self.queue.len(), self.queue.values().map(|waiting| u64::from(waiting.call.items)).sum())
    }

    /// Checks the final state, when no event is left.
    pub(super) fn check_end(&self) -> CheckResult {
        check_all_ended(&self.fates, self.in_flight.len())
    }

    fn is_adaptive(&self) -> bool {
        matches!(self.limits.policy, DispatchPolicy::Adaptive { .. })
    }

    /// Records a limit that the upstream named in a refusal.
    fn record_named_limit(&mut self, class: CostClassId, items_max: u32) {
        let known = self.classes.entry(class).or_default();
        known.items_max = Some(known.items_max.map_or(items_max, |known| known.min(items_max)));
        known.refused = Some(known.refused.unwrap_or(u32::MAX).min(items_max.saturating_add(1)));
    }

    /// Returns the end of a key's pause, or `None` if it is not paused. A drain ignores pauses.
    fn paused(&self, key: KeyId) -> Option<Tick> {
        self.paused.get(&key).copied().filter(|until| !self.draining && *until > self.now)
    }

    /// Removes a call from the queue; `fate` is the way in which it left.
    fn remove_call(&mut self, id: CallId, fate: &'static str) -> Result<QueuedCall, Violation> {
        let known = self.fates.insert(id, Some(fate));
        let how = || format!("call {} is {fate} after it was {known:?}", id.0);
        ensure_invariant(InvariantId::LeavesOnce, known == Some(None), how)?;
        self.queue.remove(&id).ok_or_else(|| Violation { invariant: InvariantId::LeavesOnce, how: how() })
    }

    fn offered(&mut self, call: &Call, result: Result<(), Rejection>, core: &Batcher) -> CheckResult {
        let Err(rejection) = result else {
            self.record_situation("accepted");
            self.fates.insert(call.id, None);
            let waiting =
                QueuedCall { call: call.clone(), arrived: self.now, beside_idle: Duration::ZERO, slo_ignored: false };
            self.queue.insert(call.id, waiting);
            let counts = core.counts();
            self.displaced.on_accepted(call, self.held(), counts, &self.limits);
            let within = counts.queue_items <= u64::from(self.limits.queue_items_max)
                && counts.queue_bytes <= self.limits.queue_bytes_max;
            return ensure_invariant(InvariantId::QueueBound, within || counts.queue_calls == 1, || {
                format!("{counts:?} after call {}", call.id.0)
            });
        };
        self.record_situation("refused");
        let whole = rejection.retry_after.subsec_nanos() == 0 && rejection.retry_after.as_secs() >= 1;
        ensure_invariant(InvariantId::RetryLater, whole, || {
            format!("call {} is to be retried after {rejection:?}", call.id.0)
        })?;
        ensure_invariant(InvariantId::QueueBound, !self.queue.is_empty(), || {
            format!("call {} is refused an empty queue", call.id.0)
        })
    }

    fn cancelled(&mut self, id: CallId, left: bool) -> CheckResult {
        let queued = self.queue.contains_key(&id);
        let flight = self.in_flight.values_mut().find(|flight| flight.waiting.contains(&id));
        let known = queued || flight.is_some();
        ensure_invariant(InvariantId::LeavesOnce, left == known, || {
            format!("cancel of call {} returns {left}, not {known}", id.0)
        })?;
        if let Some(flight) = flight {
            flight.waiting.remove(&id);
            if flight.waiting.is_empty() {
                flight.abort = AbortState::Due;
            }
            self.record_situation("cancelled: in flight");
        }
        if queued {
            self.remove_call(id, "cancelled")?;
            self.record_situation("cancelled: queued");
        }
        Ok(())
    }

    fn completed(&mut self, batch: BatchId, observed: &Observation) {
        let Some(InFlightBatch { key, class, items, members, .. }) = self.in_flight.remove(&batch) else { return };
        match observed.outcome {
            BatchOutcome::Ok => {
                let slowest = self.slowest.entry(class).or_default();
                *slowest = observed.duration.max(*slowest);
                // The server accepted a size that it had refused, so the refusal no longer holds.
                let known = self.classes.entry(class).or_default();
                if known.refused.is_some_and(|refused| refused <= items) {
                    (known.refused, known.items_max) = (None, None);
                }
            }
            BatchOutcome::TooLarge { limit: Some(limit) } if (1..items).contains(&limit) => {
                self.record_named_limit(class, limit);
            }
            BatchOutcome::Overloaded { retry_after: Some(after) } if key.is_some() => {
                let until = self.paused.entry(key.unwrap_or(KeyId(0))).or_default();
                *until = self.now.after(after.min(Duration::from_millis(100))).max(*until);
                self.record_situation("paused");
            }
            BatchOutcome::Mismatched => {
                let known = self.classes.entry(class).or_default();
                known.quarantined = key.map(|key| (key, self.now.after(self.limits.quarantine))).or(known.quarantined);
            }
            BatchOutcome::TooLarge { .. } | BatchOutcome::OutOfMemory if members > 1 => {
                let known = self.classes.entry(class).or_default();
                known.refused = Some(known.refused.unwrap_or(u32::MAX).min(items));
                self.record_situation("ceiling lowered");
            }
            BatchOutcome::Overloaded { .. } if members > 1 => self.record_situation("ceiling lowered"),
            _ => {}
        }
    }

    fn aborted(&mut self, batch: BatchId) -> CheckResult {
        let abort =
            self.in_flight.get_mut(&batch).map(|flight| std::mem::replace(&mut flight.abort, AbortState::Reported));
        self.record_situation("aborted");
        ensure_invariant(InvariantId::Aborts, abort == Some(AbortState::Due), || {
            format!("batch {} is aborted, being {abort:?}", batch.0)
        })
    }

    fn expired(&mut self, id: CallId, reason: ExpiryReason) -> CheckResult {
        let waiting = self.remove_call(id, "expired")?;
        if reason == ExpiryReason::QueueFull {
            self.record_situation("expired: displaced");
            return self.displaced.on_reported(&waiting.call);
        }
        self.displaced.check_reported()?;
        if reason == ExpiryReason::Deadline {
            self.record_situation("expired: deadline");
            // An SLO that was ignored no longer applies, but this cannot be observed from outside.
            // So either deadline may have passed.
            let of = [waiting.call.deadline, waiting.call.fallback_deadline].into_iter().flatten();
            let passed = of.map(|deadline| deadline.at).any(|at| at <= self.now);
            ensure_invariant(InvariantId::OnTime, passed, || format!("call {} expires before its deadline", id.0))?;
            let held = self.punctual
                && self.in_flight.is_empty()
                && !waiting.beside_idle.is_zero()
                && !self.paused.contains_key(&waiting.call.key);
            return ensure_invariant(InvariantId::NoIdleWait, !(held && self.is_adaptive()), || {
                format!(
                    "call {} was held beside an idle upstream for {:?} until it was late",
                    id.0, waiting.beside_idle
                )
            });
        }
        self.record_situation("expired: late predicted");
        let first = waiting.call.deadline;
        let passed = first.is_some_and(|deadline| deadline.source == DeadlineSource::Slo && deadline.at <= self.now);
        let applicable = if passed { waiting.call.fallback_deadline } else { first };
        // The route's `timeout` bounds the wait in the queue: a call that is dispatched within it
        // is not late.
        let missed = applicable.filter(|deadline| deadline.source != DeadlineSource::Timeout);
        ensure_invariant(InvariantId::OnTime, missed.is_some(), || {
            format!("call {} is reported as late and has no deadline: {applicable:?}", id.0)
        })?;
        let slo = missed.filter(|deadline| deadline.source == DeadlineSource::Slo);
        let slo = slo.map(|deadline| deadline.at.since(waiting.arrived));
        ensure_invariant(InvariantId::OnTime, slo.is_none_or(|slo| slo >= self.hopeless), || {
            format!("call {} is shed for an SLO of {slo:?} that nothing can meet", id.0)
        })?;
        self.record_situation("late: slo, caller");
        Ok(())
    }

    fn dispatched(&mut self, batch: &Batch, ceiling: Option<u32>) -> CheckResult {
        let id = batch.id.0;
        ensure_invariant(InvariantId::LeavesOnce, id == self.batches, || {
            format!("batch {id} is the {}th", self.batches)
        })?;
        self.batches += 1;
        let mut members = Vec::new();
        for member in &batch.members {
            members.push(self.remove_call(member.id, "dispatched")?);
        }
        let Some(first) = members.first() else {
            return ensure_invariant(InvariantId::Balanced, false, || format!("batch {id} is empty"));
        };
        let scope = first.call.scope;
        let unmergeable = first.call.unmergeable;
        let shared = members.len() > 1;
        ensure_invariant(
            InvariantId::HoldsOut,
            self.paused(batch.key).is_none() || batch.cause == DispatchCause::Probe,
            || format!("batch {id} is dispatched before the upstream has room"),
        )?;
        self.within_slots(batch, scope)?;
        batch::check_totals(batch, &members, self.now)?;
        let known = self.classes.get(&batch.cost_class).copied().unwrap_or_default();
        batch::check_limits(batch, &members, CheckInputs { now: self.now, limits: &self.limits, known, ceiling })?;
        let waiting = batch.members.iter().map(|member| member.id).collect();
        let flight = InFlightBatch {
            key: (!unmergeable).then_some(batch.key),
            class: batch.cost_class,
            scope,
            items: batch.items,
            members: members.len(),
            heaviest: members.iter().map(|waiting| waiting.call.weight.max).max().unwrap_or(0),
            waiting,
            abort: AbortState::No,
        };
        self.in_flight.insert(batch.id, flight);
        self.record_situation(match batch.cause {
            DispatchCause::Full => "cause: full",
            DispatchCause::Weight => "cause: weight",
            DispatchCause::Bytes => "cause: bytes",
            DispatchCause::Deadline => "cause: deadline",
            DispatchCause::Delay => "cause: delay",
            DispatchCause::Idle => "cause: idle",
            DispatchCause::Lead => "cause: lead",
            DispatchCause::Probe => "cause: probe",
            DispatchCause::Drain => "cause: drain",
        });
        match batch.unbatched_reason {
            Some(UnbatchedReason::ClientBatchFull) => self.record_situation("alone: client batch full"),
            Some(UnbatchedReason::Quarantined | UnbatchedReason::Different) => {
                self.record_situation("alone: quarantined");
            }
            Some(UnbatchedReason::NoGain) => self.record_situation("alone: no gain"),
            Some(UnbatchedReason::Refused) => self.record_situation("alone: refused"),
            Some(UnbatchedReason::BudgetEmpty) => self.record_situation("alone: budget empty"),
            None => {}
        }
        if shared {
            self.record_situation("shared");
        }
        if self.in_flight.len() > 1 {
            self.record_situation("two in flight");
        }
        Ok(())
    }

    /// Checks the limits on requests in flight. Single calls that are passed through have a limit
    /// of their own.
    fn within_slots(&self, batch: &Batch, scope: ScopeId) -> CheckResult {
        let id = batch.id.0;
        // A passed-through call that is too large or in quarantine reports that reason instead. The
        // core's debug assertions check which single calls are passed through.
        let may_pass_through = batch.unbatched_reason.is_some() || self.tally.contains_key("alone: no gain");
        if may_pass_through && batch.members.len() == 1 {
            return ensure_invariant(
                InvariantId::WithinSlots,
                self.in_flight.len() < self.limits.stand_aside_max as usize,
                || format!("batch {id} is passed through beside {} others", self.in_flight.len()),
            );
        }
        let (others, slots) = (self.in_flight.len(), self.limits.slots);
        ensure_invariant(InvariantId::WithinSlots, others < slots as usize, || {
            format!("batch {id} is dispatched for {:?} beside {others} others in {slots} slots", batch.cause)
        })?;
        let others = self.in_flight.values().filter(|flight| flight.scope == scope).count();
        let slots = self.limits.scope(scope).slots_max;
        ensure_invariant(InvariantId::WithinSlots, others < slots as usize, || {
            format!(
                "batch {id} is dispatched for {:?} beside {others} others in the {slots} slots of its route",
                batch.cause
            )
        })
    }

    fn idle(&mut self, wakeup: Option<Tick>) -> CheckResult {
        self.displaced.check_reported()?;
        let abandoned = self.in_flight.iter().find(|(_, flight)| flight.abort == AbortState::Due);
        ensure_invariant(InvariantId::Aborts, abandoned.is_none(), || {
            format!("every member of {abandoned:?} was cancelled, and it is not aborted")
        })?;
        ensure_invariant(InvariantId::WakesLater, wakeup.is_none_or(|at| at > self.now), || {
            format!("requests a wake-up at {wakeup:?}, which is not later")
        })?;
        self.ignore_hopeless_slos()?;
        if !self.in_flight.is_empty() {
            return Ok(());
        }
        if self.queue.is_empty() {
            return ensure_invariant(InvariantId::WakesLater, wakeup.is_none(), || {
                format!("requests a wake-up at {wakeup:?} with nothing queued or in flight")
            });
        }
        let first = self.queue.values().map(|waiting| (waiting.call.id, waiting.arrived)).min();
        ensure_invariant(InvariantId::Ends, wakeup.is_some(), || {
            format!("{first:?} is queued, nothing is in flight, and no wake-up is requested")
        })?;
        self.record_situation("held beside an idle upstream");
        ensure_invariant(InvariantId::NoIdleWait, !self.draining, || {
            format!("{first:?} is held while the process ends")
        })?;
        let held = |waiting: &&QueuedCall| {
            let max = self.limits.scope(waiting.call.scope).queue_delay_max;
            waiting.beside_idle >= max && self.is_adaptive() && !self.paused.contains_key(&waiting.call.key)
        };
        let too_long = self.queue.values().find(held);
        ensure_invariant(InvariantId::NoIdleWait, too_long.is_none(), || {
            format!("held beside an idle upstream for longer than the limit: {too_long:?}")
        })
    }

    /// Checks that a call queued past its deadline had an SLO that cannot be met. No other call
    /// outlives its deadline.
    fn ignore_hopeless_slos(&mut self) -> CheckResult {
        let mut ignored = 0;
        for waiting in self.queue.values_mut() {
            let Some(deadline) = waiting.call.deadline.filter(|deadline| deadline.at <= self.now) else { continue };
            ensure_invariant(InvariantId::OnTime, deadline.source == DeadlineSource::Slo, || {
                format!("call {} stays queued past its deadline", waiting.call.id.0)
            })?;
            let slo = deadline.at.since(waiting.arrived);
            // The core uses the time that a single call exceeds only once in fifty times: at most
            // 1.6 times the mean.
            let hopeless = self.slowest.get(&waiting.call.cost_class).is_some_and(|slowest| *slowest * 16 / 10 > slo);
            ensure_invariant(InvariantId::OnTime, hopeless, || {
                format!("call {} stays queued past its SLO, which could be met", waiting.call.id.0)
            })?;
            ensure_invariant(
                InvariantId::OnTime,
                waiting.call.fallback_deadline.is_none_or(|later| later.at > self.now),
                || format!("call {} stays queued past its later deadline", waiting.call.id.0),
            )?;
            ignored += u64::from(!std::mem::replace(&mut waiting.slo_ignored, true));
        }
        if ignored > 0 {
            *self.tally.entry("slo forgiven").or_default() += ignored;
        }
        Ok(())
    }
}
