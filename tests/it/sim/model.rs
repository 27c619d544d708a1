//! A reference model of the core: it receives the same events, and checks each decision of the core
//! against the invariants. It is simple on purpose, without indexes and optimizations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use groupage::batching::{
    Batch, BatchId, BatchOutcome, Batcher, Call, CallId, CostClassId, DeadlineSource, Decision, DispatchCause,
    InvariantId, KeyId, Limits, Observation, QueueGauges, Rejection, RejectionReason, ScopeId, SizeMeasure, Tick,
    UnbatchedReason,
};

use super::batch;
use super::invariant::{AbortState, CheckResult, Coverage, Violation, check_all_ended, ensure_invariant};
use super::key_queue::{DecisionInputs, DispatchTime, ExpectedBatch, KeyQueue, QueuedCall};
use super::learned::{CompletedBatch, CostClassState};
use super::trace::{CoreResponse, Event};

/// The expected state of the core.
#[derive(Debug)]
pub(crate) struct Model {
    /// Time of the last event.
    pub(crate) now: Tick,
    pub(crate) tally: Coverage,
    limits: Limits,
    draining: bool,
    /// Queued calls in order of arrival.
    queue: Vec<QueuedCall>,
    in_flight: BTreeMap<BatchId, InFlightBatch>,
    learned: BTreeMap<CostClassId, CostClassState>,
    /// Merge keys that the upstream has paused, with the end of each pause.
    paused: BTreeMap<KeyId, Tick>,
    /// Accepted calls and the way in which each left the queue; `None` while it is queued.
    fates: BTreeMap<CallId, Option<&'static str>>,
    /// Number of dispatched batches, which is the id of the next one.
    batches: u64,
    /// The smallest and the largest duration and item count of successful executions.
    pace: Option<(ExecutionSample, ExecutionSample)>,
    /// `true` if the last step ignored an expired SLO, which justifies a wake-up without a
    /// decision.
    pub(crate) ignored_slo: bool,
    /// The core before the event that is checked.
    before: Option<Batcher>,
}

#[derive(Debug, Clone, Copy)]
struct ExecutionSample {
    duration: Duration,
    items: u32,
}

#[derive(Debug)]
struct InFlightBatch {
    /// `None` for a call that shares no batch.
    key: Option<KeyId>,
    class: CostClassId,
    scope: ScopeId,
    size: CompletedBatch,
    /// Members that are neither cancelled nor answered.
    waiting: BTreeSet<CallId>,
    abort: AbortState,
}

// === impl Model ===

impl Model {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            now: Tick::default(),
            tally: Coverage::new(),
            limits,
            draining: false,
            queue: Vec::new(),
            in_flight: BTreeMap::new(),
            learned: BTreeMap::new(),
            paused: BTreeMap::new(),
            fates: BTreeMap::new(),
            batches: 0,
            pace: None,
            ignored_slo: false,
            before: None,
        }
    }

    /// Checks the core's response to an event, and its state after it, against the invariants.
    pub(crate) fn step(&mut self, event: &Event, response: &CoreResponse, core: &Batcher) -> CheckResult {
        let result = self.check_event(event, response, core);
        self.before = Some(core.clone());
        result
    }

    fn check_event(&mut self, event: &Event, response: &CoreResponse, core: &Batcher) -> CheckResult {
        if let Event::Offer(now, _)
        | Event::Cancel(now, _)
        | Event::Complete(now, ..)
        | Event::Publish(now, ..)
        | Event::PublishWeight(now, ..)
        | Event::Drain(now)
        | Event::Poll(now) = event
        {
            let now = self.now.max(*now);
            // The time since the last event counts as waiting beside a free slot.
            if self.has_free_slot() {
                let elapsed = now.since(self.now);
                self.queue.iter_mut().for_each(|waiting| waiting.beside_slot += elapsed);
            }
            self.now = now;
        }
        match (event, response) {
            (Event::Offer(_, call), CoreResponse::Offered(result)) => self.on_offer(call, result)?,
            (Event::Cancel(_, id), CoreResponse::Cancelled(left)) => self.on_cancel(*id, *left)?,
            (Event::Answered(id), CoreResponse::Nothing) => {
                self.in_flight.values_mut().for_each(|flight| _ = flight.waiting.remove(id));
            }
            (Event::Complete(_, batch, observed), CoreResponse::Nothing) => self.on_completion(*batch, observed),
            (Event::SetLimits(limits), CoreResponse::Nothing) => {
                self.limits = limits.clone();
            }
            (Event::Publish(_, class, items_max), CoreResponse::Nothing) => {
                self.learned.entry(*class).or_default().publish(SizeMeasure::Items, (*items_max).into());
            }
            (Event::PublishWeight(_, class, weight_max), CoreResponse::Nothing) => {
                self.learned.entry(*class).or_default().publish(SizeMeasure::Weight, *weight_max);
            }
            (Event::Drain(_), CoreResponse::Nothing) => self.draining = true,
            (Event::Poll(_), CoreResponse::Decided(decision)) => {
                self.ignore_hopeless_slos();
                match decision {
                    Decision::Dispatch(batch) => self.on_dispatch(batch)?,
                    Decision::Expire { id, .. } => self.on_expiry(*id)?,
                    Decision::Abort(batch) => self.on_abort(*batch)?,
                }
            }
            (Event::Poll(_), CoreResponse::Idle(wakeup)) => {
                self.ignore_hopeless_slos();
                self.on_idle(*wakeup)?;
            }
            _ => unreachable!("{response:?} is not a response to {event:?}"),
        }
        self.check_counters(core)
    }

    /// Returns an upper bound on the number of decisions at one instant.
    pub(crate) fn decisions_max(&self) -> usize {
        self.queue.len() + self.in_flight.len() + 2
    }

    /// Checks the final state, when no event is left.
    pub(crate) fn check_end(&self) -> CheckResult {
        check_all_ended(&self.fates, self.in_flight.len())
    }

    fn record_situation(&mut self, situation: &'static str) {
        *self.tally.entry(situation).or_default() += 1;
    }

    fn has_free_slot(&self) -> bool {
        self.in_flight.len() < self.limits.slots as usize
    }

    fn has_free_scope_slot(&self, scope: ScopeId) -> bool {
        let in_flight = self.in_flight.values().filter(|flight| flight.scope == scope).count();
        in_flight < self.limits.scope(scope).slots_max as usize
    }

    fn decision_inputs(&self, class: CostClassId) -> DecisionInputs<'_> {
        DecisionInputs {
            now: self.now,
            limits: &self.limits,
            learned: self.learned.get(&class),
            draining: self.draining,
            replays: self.before.as_ref().map_or(u64::MAX, |core| core.replays_left(self.now)),
            core: self.before.as_ref(),
        }
    }

    /// Returns the end of a key's pause, or `None` if it is not paused. A drain ignores pauses.
    fn paused(&self, key: KeyId) -> Option<Tick> {
        self.paused.get(&key).copied().filter(|until| !self.draining && *until > self.now)
    }

    /// Returns the key queues in order of their first calls.
    fn key_queues(&self) -> Vec<KeyQueue<'_>> {
        let mut queues: Vec<KeyQueue<'_>> = Vec::new();
        for waiting in &self.queue {
            match queues.iter_mut().find(|queue| queue.key == waiting.call.key) {
                Some(queue) => queue.calls.push(waiting),
                None => queues.push(KeyQueue { key: waiting.call.key, calls: vec![waiting] }),
            }
        }
        queues
    }

    fn dispatch_time(&self, queue: &KeyQueue<'_>) -> DispatchTime {
        queue.dispatch_time(self.decision_inputs(queue.head().call.cost_class))
    }

    /// Returns the number of items and of bytes of the queued calls that are selected.
    fn queued_totals(&self, is_selected: impl Fn(&Call) -> bool) -> (u64, u64) {
        let calls = self.queue.iter().map(|waiting| &waiting.call).filter(|call| is_selected(call));
        calls.fold((0, 0), |(items, bytes), call| (items + u64::from(call.items), bytes + call.bytes))
    }

    /// Marks the calls with an SLO that expires now but could not be met by any execution. Such an
    /// SLO expires nothing.
    fn ignore_hopeless_slos(&mut self) {
        self.ignored_slo = false;
        for waiting in &mut self.queue {
            let Some(deadline) = waiting.call.deadline else { continue };
            let slo = deadline.at.since(waiting.arrived);
            let is_unreachable =
                self.learned.get(&waiting.call.cost_class).is_some_and(|learned| learned.is_slo_unreachable(slo));
            if deadline.source == DeadlineSource::Slo
                && deadline.at <= self.now
                && is_unreachable
                && !waiting.slo_ignored
            {
                waiting.slo_ignored = true;
                self.ignored_slo = true;
            }
        }
        if self.ignored_slo {
            self.record_situation("slo forgiven");
        }
    }

    /// Removes a call from the queue; `fate` is the way in which it left.
    fn remove_call(&mut self, id: CallId, fate: &'static str) -> Result<QueuedCall, Violation> {
        let known = self.fates.insert(id, Some(fate));
        ensure_invariant(InvariantId::LeavesOnce, known == Some(None), || {
            format!("call {} is {fate} after it was {known:?}", id.0)
        })?;
        let at = self.queue.iter().position(|waiting| waiting.call.id == id);
        at.map(|at| self.queue.remove(at)).ok_or_else(|| Violation {
            invariant: InvariantId::LeavesOnce,
            how: format!("call {} is {fate} and was not queued", id.0),
        })
    }

    /// Returns the rejection that the limits require.
    fn expected_rejection(&self, call: &Call) -> Option<RejectionReason> {
        if self.queue.is_empty() {
            return None;
        }
        let scope = self.limits.scope(call.scope);
        let (items, bytes) = self.queued_totals(|_| true);
        let (scope_items, scope_bytes) = self.queued_totals(|other| other.scope == call.scope);
        let (own, _) = self.queued_totals(|other| other.tenant == call.tenant);
        let (more, items_max) = (u64::from(call.items), u64::from(self.limits.queue_items_max));
        let scope_over = |over: bool| scope_items > 0 && over;
        if items + more > items_max || scope_over(scope_items + more > u64::from(scope.queue_items_max)) {
            Some(RejectionReason::QueueFull)
        } else if bytes + call.bytes > self.limits.queue_bytes_max
            || scope_over(scope_bytes + call.bytes > scope.queue_bytes_max)
        {
            Some(RejectionReason::BytesFull)
        } else if own > 0 && own < items && items >= items_max / 2 && own + more > items_max / 2 {
            // Other tenants wait too and the queue is half full, so this tenant's share is half of
            // the queue.
            Some(RejectionReason::TenantShare)
        } else {
            None
        }
    }

    fn on_offer(&mut self, call: &Call, result: &Result<(), Rejection>) -> CheckResult {
        let expected = self.expected_rejection(call);
        let reason = result.err().map(|rejection| rejection.reason);
        ensure_invariant(InvariantId::QueueBound, reason == expected, || {
            format!("call {}: {reason:?} where the limits require {expected:?}", call.id.0)
        })?;
        match result {
            Ok(()) => {
                self.record_situation("accepted");
                self.fates.insert(call.id, None);
                self.queue.push(QueuedCall {
                    call: call.clone(),
                    arrived: self.now,
                    beside_slot: Duration::ZERO,
                    slo_ignored: false,
                });
                let (items, bytes) = self.queued_totals(|_| true);
                let within = items <= u64::from(self.limits.queue_items_max) && bytes <= self.limits.queue_bytes_max;
                ensure_invariant(InvariantId::QueueBound, within || self.queue.len() == 1, || {
                    format!("{items} items and {bytes} bytes are queued after call {}", call.id.0)
                })
            }
            Err(Rejection { reason, retry_after }) => {
                self.record_situation(match reason {
                    RejectionReason::QueueFull => "refused: queue full",
                    RejectionReason::BytesFull => "refused: bytes full",
                    RejectionReason::TenantShare => "refused: tenant share",
                });
                let (low, high) = self.drain_seconds();
                let seconds = retry_after.as_secs();
                ensure_invariant(InvariantId::RetryLater, seconds >= 1 && retry_after.subsec_nanos() == 0, || {
                    format!("call {} is to be retried after {retry_after:?}", call.id.0)
                })?;
                ensure_invariant(InvariantId::RetryLater, (low..=high).contains(&seconds), || {
                    format!(
                        "call {} is to be retried after {seconds} s: the queue drains in {low} to {high} s",
                        call.id.0
                    )
                })
            }
        }
    }

    /// Returns the bounds of `Retry-After` in seconds, which is the time to drain the queue by the
    /// mean duration and size of executions, times a random factor. The means lie between the
    /// extremes that were observed, and the factor between 1 and 1.5.
    fn drain_seconds(&self) -> (u64, u64) {
        let Some((least, most)) = self.pace else { return (1, 1) };
        let (items, _) = self.queued_totals(|_| true);
        let nanos = |pace: ExecutionSample, items_each: u32| {
            pace.duration.as_nanos() * u128::from(items.div_ceil(u64::from(items_each))) / u128::from(self.limits.slots)
        };
        let whole = |nanos: u128| u64::try_from(nanos.div_ceil(1_000_000_000)).unwrap_or(u64::MAX);
        // A tolerance of one thousandth covers the rounding of running means.
        let low = nanos(least, most.items) * 999 / 1000;
        let high = nanos(most, least.items) * 1501 / 1000;
        (whole(low).clamp(1, 3600), whole(high).clamp(1, 3600))
    }

    fn on_cancel(&mut self, id: CallId, left: bool) -> CheckResult {
        let queued = self.queue.iter().any(|waiting| waiting.call.id == id);
        let flight = self.in_flight.values_mut().find(|flight| flight.waiting.contains(&id));
        let known = queued || flight.is_some();
        ensure_invariant(InvariantId::LeavesOnce, left == known, || {
            format!("cancel of call {} returns {left}, and it was {}", id.0, if known { "there" } else { "not there" })
        })?;
        if let Some(flight) = flight {
            flight.waiting.remove(&id);
            if flight.waiting.is_empty() {
                flight.abort = AbortState::Due;
            }
        }
        if queued {
            self.remove_call(id, "cancelled")?;
            self.record_situation("cancelled: queued");
        } else if known {
            self.record_situation("cancelled: in flight");
        } else {
            self.record_situation("cancelled: unknown");
        }
        Ok(())
    }

    fn on_completion(&mut self, batch: BatchId, observed: &Observation) {
        let Some(InFlightBatch { key, class, size, .. }) = self.in_flight.remove(&batch) else { return };
        if let BatchOutcome::Overloaded { retry_after } = observed.outcome {
            // The core pauses a key for 100 ms at most.
            let until = retry_after.map(|after| self.now.after(after.min(Duration::from_millis(100))));
            if let (Some(key), Some(until)) = (key, until) {
                let known = self.paused.entry(key).or_default();
                *known = until.max(*known);
                self.record_situation("paused");
            }
        }
        let learned = self.learned.entry(class).or_default();
        let weights =
            |learned: &CostClassState| learned.max(SizeMeasure::Weight).min(learned.max(SizeMeasure::PaddedWeight));
        let before = learned.ceiling();
        let weight = weights(learned);
        let items_max = self.limits.scopes.iter().map(|scope| scope.batch_items_max).max().unwrap_or(u32::MAX);
        learned.observe(self.now, items_max, size, observed);
        let after = learned.ceiling();
        if weights(learned) != weight {
            self.record_situation("weight ceiling moved");
        }
        if after < before || before.is_none() && after.is_some() {
            self.record_situation("ceiling lowered");
        } else if after > before {
            self.record_situation("ceiling raised");
        }
        if observed.outcome == BatchOutcome::Ok {
            let sample = ExecutionSample { duration: observed.duration, items: size.items };
            let (least, most) = self.pace.unwrap_or((sample, sample));
            self.pace = Some((
                ExecutionSample { duration: least.duration.min(sample.duration), items: least.items.min(sample.items) },
                ExecutionSample { duration: most.duration.max(sample.duration), items: most.items.max(sample.items) },
            ));
        }
    }

    fn on_abort(&mut self, batch: BatchId) -> CheckResult {
        let abort = self.in_flight.get_mut(&batch).map(|flight| &mut flight.abort);
        let due = abort.as_deref() == Some(&AbortState::Due);
        if let Some(abort) = abort {
            *abort = AbortState::Reported;
        }
        self.record_situation("aborted");
        ensure_invariant(InvariantId::Aborts, due, || {
            format!("batch {} is aborted and was not abandoned just now", batch.0)
        })
    }

    fn on_expiry(&mut self, id: CallId) -> CheckResult {
        let deadline = self.remove_call(id, "expired")?.deadline();
        self.record_situation("expired");
        ensure_invariant(InvariantId::OnTime, deadline.is_some_and(|deadline| deadline <= self.now), || {
            format!("call {} expires before its deadline, {deadline:?}", id.0)
        })
    }

    fn on_dispatch(&mut self, batch: &Batch) -> CheckResult {
        let id = batch.id.0;
        ensure_invariant(InvariantId::WithinSlots, self.has_free_slot(), || {
            format!("batch {id} is dispatched without a free slot")
        })?;
        ensure_invariant(InvariantId::LeavesOnce, id == self.batches, || {
            format!("batch {id} is the {}th", self.batches)
        })?;
        self.batches += 1;
        let Some(first) = batch.members.first().map(|member| member.id) else {
            return ensure_invariant(InvariantId::Balanced, false, || format!("batch {id} is empty"));
        };
        let scope = self.queue.iter().find(|waiting| waiting.call.id == first).map(|waiting| waiting.call.scope);
        let Some(scope) = scope else {
            return ensure_invariant(InvariantId::LeavesOnce, false, || format!("call {} was not queued", first.0));
        };
        ensure_invariant(InvariantId::WithinSlots, self.has_free_scope_slot(scope), || {
            format!("batch {id} is dispatched without a free slot of its route")
        })?;
        let (expected, due, full) = self.check_order(batch)?;
        batch::check_cause(batch, &expected, due)?;
        let mut members = Vec::new();
        for member in &batch.members {
            members.push(self.remove_call(member.id, "dispatched")?);
        }
        batch::check_totals(batch, &members, self.now)?;
        batch::check_limits(batch, &members, self.decision_inputs(batch.cost_class), &expected)?;
        ensure_invariant(InvariantId::WithinLimits, members.len() <= expected.calls, || {
            format!("batch {id} holds {} calls where {} may share it", members.len(), expected.calls)
        })?;
        let size = CompletedBatch {
            items: batch.items,
            weight: batch.weight,
            heaviest: members.iter().map(|waiting| waiting.call.weight.max).max().unwrap_or(0),
            shared: members.len() > 1,
            full,
            retest: expected.retest,
        };
        if let Some(bounded) = expected.retest {
            self.learned.entry(batch.cost_class).or_default().testing(bounded);
            self.record_situation(if bounded == SizeMeasure::Items { "retest: items" } else { "retest: weight" });
        }
        self.in_flight.insert(
            batch.id,
            InFlightBatch {
                key: (!members[0].call.unmergeable).then_some(batch.key),
                class: batch.cost_class,
                scope,
                size,
                waiting: batch.members.iter().map(|member| member.id).collect(),
                abort: AbortState::No,
            },
        );
        self.record_situation(match batch.cause {
            DispatchCause::Full => "cause: full",
            DispatchCause::Weight => "cause: weight",
            DispatchCause::Bytes => "cause: bytes",
            DispatchCause::Deadline => "cause: deadline",
            DispatchCause::Delay => "cause: delay",
            DispatchCause::Idle => "cause: idle",
            DispatchCause::Drain => "cause: drain",
            DispatchCause::Probe => "cause: probe",
            DispatchCause::Lead => "cause: lead, which only the adaptive policy has",
        });
        if members.len() > 1 {
            self.record_situation("shared");
        }
        if expected.exclusive {
            self.record_situation("cut: exclusive");
        }
        match batch.unbatched_reason {
            Some(UnbatchedReason::ClientBatchFull) => self.record_situation("alone: client batch full"),
            Some(UnbatchedReason::Quarantined | UnbatchedReason::Different) => {
                self.record_situation("alone: quarantined");
            }
            Some(UnbatchedReason::Refused) => self.record_situation("alone: refused"),
            Some(UnbatchedReason::BudgetEmpty) => self.record_situation("alone: budget empty"),
            Some(UnbatchedReason::NoGain) | None => {}
        }
        Ok(())
    }

    /// Checks that the first key queue that is due is dispatched, from its front, with as many
    /// calls as the limits allow. Also returns `true` if the batch is as large as its class allows.
    fn check_order(&self, batch: &Batch) -> Result<(ExpectedBatch, DispatchCause, bool), Violation> {
        let id = batch.id.0;
        let queues = self.key_queues();
        let first = queues
            .iter()
            .filter(|queue| self.has_free_scope_slot(queue.head().call.scope) && self.paused(queue.key).is_none())
            .find_map(|queue| match self.dispatch_time(queue) {
                DispatchTime::Now(cause) => Some((queue, cause)),
                DispatchTime::At(_) => None,
            });
        let Some((queue, due)) = first else {
            return Err(Violation {
                invariant: InvariantId::HoldsOut,
                how: format!("batch {id} is dispatched while every key queue is held"),
            });
        };
        ensure_invariant(InvariantId::InOrder, queue.key == batch.key, || {
            format!("batch {id} is of key {}, and key {} has waited longer", batch.key.0, queue.key.0)
        })?;
        let inputs = self.decision_inputs(queue.head().call.cost_class);
        let expected = queue.expected_batch(inputs);
        let front: Vec<_> = queue.calls.iter().take(batch.members.len()).map(|waiting| waiting.call.id).collect();
        let members: Vec<_> = batch.members.iter().map(|member| member.id).collect();
        ensure_invariant(InvariantId::InOrder, front == members, || {
            format!("batch {id} holds {members:?} and the front of its key queue is {front:?}")
        })?;
        // A batch that holds more than the limits allow is reported by the checks that follow,
        // which name the limit.
        ensure_invariant(InvariantId::NoIdleWait, members.len() >= expected.calls, || {
            format!("batch {id} is dispatched with {} calls where {} may share it", members.len(), expected.calls)
        })?;
        let full = batch.items >= inputs.cap(self.limits.scope(queue.head().call.scope));
        Ok((expected, due, full))
    }

    fn on_idle(&mut self, wakeup: Option<Tick>) -> CheckResult {
        let abandoned = self.in_flight.iter().find(|(_, flight)| flight.abort == AbortState::Due);
        ensure_invariant(InvariantId::Aborts, abandoned.is_none(), || {
            format!("every member of {abandoned:?} was cancelled, and it is not aborted")
        })?;
        let late = self.queue.iter().find(|waiting| waiting.deadline().is_some_and(|deadline| deadline <= self.now));
        ensure_invariant(InvariantId::OnTime, late.is_none(), || format!("{late:?} stays queued past its deadline"))?;
        // The core must be woken at the first deadline and at the next dispatch time or end of a
        // pause. Queues without a free slot wait for a completion instead.
        let mut wakes: Vec<Tick> = self.queue.iter().filter_map(QueuedCall::deadline).collect();
        let mut held = false;
        let has_slot =
            |queue: &&KeyQueue<'_>| self.has_free_slot() && self.has_free_scope_slot(queue.head().call.scope);
        for queue in self.key_queues().iter().filter(has_slot) {
            match (self.dispatch_time(queue), self.paused(queue.key)) {
                (DispatchTime::At(at), Some(until)) => wakes.push(at.max(until)),
                (DispatchTime::Now(_), Some(until)) => wakes.push(until),
                (DispatchTime::Now(cause), None) => {
                    return ensure_invariant(InvariantId::NoIdleWait, false, || {
                        format!("key {} waits beside a free slot and is due: {cause:?}", queue.key.0)
                    });
                }
                (DispatchTime::At(at), None) => {
                    wakes.push(at);
                    held = true;
                }
            }
        }
        if held {
            self.record_situation("held");
        }
        ensure_invariant(InvariantId::WakesLater, wakeup.is_none_or(|at| at > self.now), || {
            format!("requests a wake-up at {wakeup:?}, which is not later")
        })?;
        let expected = wakes.into_iter().min();
        ensure_invariant(InvariantId::WakesLater, wakeup == expected, || {
            format!("requests a wake-up at {wakeup:?} where the next event is due at {expected:?}")
        })
    }

    /// Checks that the core's counters and ceilings match the model.
    fn check_counters(&self, core: &Batcher) -> CheckResult {
        let (items, bytes) = self.queued_totals(|_| true);
        let expected = QueueGauges {
            queue_calls: self.queue.len(),
            queue_items: items,
            queue_bytes: bytes,
            oldest: self.queue.first().map(|waiting| waiting.arrived),
            in_flight: self.in_flight.len(),
            slots: self.limits.slots,
        };
        let counts = core.counts();
        ensure_invariant(InvariantId::Balanced, counts == expected, || {
            format!("{counts:?} where {expected:?} is held")
        })?;
        for (class, learned) in &self.learned {
            let (reported, known) = (core.ceiling(*class), learned.ceiling());
            ensure_invariant(InvariantId::WithinLimits, reported == known, || {
                format!("the ceiling of class {} is reported as {reported:?} where {known:?} was learned", class.0)
            })?;
        }
        Ok(())
    }
}
