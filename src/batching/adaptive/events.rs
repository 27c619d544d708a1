//! Event handlers of the adaptive policy: they update arrival profiles, cost curves, slot counts,
//! concurrency limiters, admission and the clocks of the flows.
//!
//! Nothing is decided here.

use super::super::batch::{BatchId, BatchOutcome, Observation};
use super::super::call::{Call, CostClassId};
use super::super::cost::CostSample;
use super::super::limiter::{ConnectionUse, ExecutionEnd, ExecutionStart};
use super::super::math::to_f64;
use super::super::queue::{Queue, QueuedCall};
use super::super::slots::{SampleUse, SlotFlight};
use super::super::tick::{Tick, nanos};
use super::decision::DispatchKind;
use super::fair_queueing::{self, BatchWork};
use super::models::{ClassModel, Dispatch, InFlight, evict_oldest, items_in_flight};
use super::state::Adaptive;

/// Minimum number of samples of a cost curve from which on the limiter receives its predictions.
const PREDICTION_SAMPLES_MIN: u32 = 6;
/// Inverse weight of a new execution in the mean execution time T, an EWMA.
const MEAN_TIME_PARTS: u64 = 10;
/// Maximum number of batches in flight that are scanned at each arrival.
const FLIGHTS_MAX: usize = 16;
/// Maximum number of merge keys with tracked arrivals. An upstream commonly has fewer. Beyond the
/// maximum, the least recently used key is evicted.
const KEYS_MAX: usize = 64;

/// Returns `value` × `to` ÷ `from`.
fn scale(value: u64, to: u64, from: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(to) / u128::from(from.max(1))).unwrap_or(u64::MAX)
}

// === impl Adaptive ===

impl Adaptive {
    /// Records that a call was queued. `idle`: nothing was queued or in flight before it. `queued`:
    /// number of items that its key queue had before it.
    pub(in super::super) fn on_arrival(&mut self, now: Tick, call: &Call, idle: bool, queued: u64) {
        self.mix.on_arrival(now, call.priority);
        // A call that must not be merged has a merge key of its own, which no later call has, so
        // there are no arrivals of that key to learn.
        if call.unmergeable {
            return;
        }
        self.uses += 1;
        if !self.keys.contains_key(&call.key) && self.keys.len() >= KEYS_MAX {
            evict_oldest(&mut self.keys, |key_model| key_model.last_use);
        }
        let key_model = self.keys.entry(call.key).or_default();
        key_model.last_use = self.uses;
        key_model.class = Some(call.cost_class);
        key_model.arrivals.on_arrival(now, call.items, idle, self.mean_time);
        // In pass-through many requests are in flight and nothing is held, so the peak of the items
        // present is not needed.
        if self.flights.len() <= FLIGHTS_MAX {
            let in_flight = items_in_flight(&self.flights, call.key);
            key_model.arrivals.record_present(queued.saturating_add(u64::from(call.items)).saturating_add(in_flight));
        }
    }

    /// Records an arrival that is held by a limit of the policy. `limit`: number of requests that
    /// it allows in flight.
    pub(in super::super) fn on_policy_hold(&mut self, now: Tick, class: CostClassId, limit: u32) {
        self.ensure_model(class);
        if let Some(model) = self.models.get_mut(&class) {
            model.flow.on_policy_limit(now, limit);
        }
    }

    /// Records the dispatch of a batch. Returns the nanoseconds until it is expected back, or
    /// `None` if nothing is known of its cost.
    pub(in super::super) fn on_dispatch(&mut self, now: Tick, id: BatchId, batch: Dispatch) -> Option<u64> {
        self.ensure_model(batch.class);
        let earliest_due = self.earliest_due(batch.class);
        let has_partner = self.keys.get_mut(&batch.key).is_some_and(|key_model| {
            key_model.held = None;
            key_model.cohort_merge.on_dispatch(batch.items);
            key_model.requests_in_flight += 1;
            key_model.requests_in_flight > 1 || batch.left > 0
        });
        let model = self.models.get_mut(&batch.class)?;
        let others = model.flow.in_flight();
        // A batch that was sent before a slot is free waits in the server.
        let wait = match batch.kind {
            DispatchKind::Batch | DispatchKind::Plain if !model.flow.is_open() => {
                model.slots.expected_wait(others, earliest_due, now)
            }
            _ => 0,
        };
        let predicted = model.cost.predict_weighted(batch.items, batch.weight);
        let known = model.cost.samples() > 0;
        let due = Tick(now.0.saturating_add(wait).saturating_add(predicted));
        let flight = model.slots.on_dispatch(now, others);
        // For the limiter, a single call is also one that shares no batch if no other call of its
        // key is in flight or queued.
        let unmergeable = batch.unbatched || batch.calls < 2 && !has_partner;
        let expected = if model.cost.samples() >= PREDICTION_SAMPLES_MIN { predicted } else { 0 };
        let start = ExecutionStart {
            items: batch.items,
            calls: batch.calls,
            unmergeable,
            permit: batch.permit(),
            queued: batch.queued,
            expected,
        };
        let mark = model.flow.on_dispatch(now, &start);
        model.backlog = batch.left >= u64::from(batch.items.max(1)) && others + 1 >= model.slots.in_use();
        let explores_size = std::mem::take(&mut self.explores_size);
        let explores = explores_size && batch.kind == DispatchKind::Batch || batch.is_test();
        self.sends += 1;
        let lone_at_send = self.flights.is_empty().then_some(self.sends);
        let created_use = model.created_use;
        let sent = InFlight { flight, created_use, mark, due, predicted, lone_at_send, batch, explores };
        self.flights.insert(id, sent);
        known.then_some(due.0.saturating_sub(now.0))
    }

    /// Returns `true` if a request is an unbatched call that has to be sent as a batch would be.
    pub(in super::super) fn has_own_connection(&self, id: BatchId) -> bool {
        self.flights.get(&id).is_some_and(|flight| flight.mark.connection == ConnectionUse::Own)
    }

    /// Records the end of a batch. Returns `true` if its sample showed that the server was
    /// replaced. `tokens`: number of tokens of all streams of its class so far, if the response was
    /// a generated stream; `queued`: number of queued items of its class; `items_max`: maximum
    /// number of items of a batch by the limits.
    pub(in super::super) fn on_completion(
        &mut self,
        now: Tick,
        id: BatchId,
        (observed, tokens): (&Observation, Option<u64>),
        (queued, items_max): (u64, u32),
    ) -> bool {
        let Some(InFlight { flight, created_use, mark, lone_at_send, batch, explores, .. }) = self.flights.remove(&id)
        else {
            return false;
        };
        // Nothing else was in flight at its dispatch, and nothing was sent since.
        let was_lone = lone_at_send == Some(self.sends);
        self.exploration.record_duration(nanos(observed.duration), self.mean_time, explores);
        let (items, missed) = batch.deadlines.count_missed(now);
        self.exploration.record_ended(now, items, missed);
        if let Some(key_model) = self.keys.get_mut(&batch.key) {
            key_model.requests_in_flight = key_model.requests_in_flight.saturating_sub(1);
        }
        // If the model was evicted since the dispatch, the class may have a new one, which did not
        // record the dispatch.
        let Some(model) = self.models.get_mut(&batch.class).filter(|model| model.created_use == created_use) else {
            return false;
        };
        if observed.outcome == BatchOutcome::Ok {
            model.answered_sent = model.answered_sent.max(flight.sent_at());
        }
        model.on_return(self.flights.values_mut().filter(|other| other.batch.class == batch.class), now);
        // A batch of another policy or of a drain was not sent by the rules of the limiter, so its
        // times are no evidence for it.
        let answered = observed.outcome == BatchOutcome::Ok && batch.kind != DispatchKind::Plain;
        let mut done = ExecutionEnd::new(answered, batch.calls, batch.first, batch.last, queued, items_max);
        done.first_byte = observed.first_byte.map(|time| to_f64(nanos(time)));
        done.tokens = tokens;
        let limit_before = model.flow.limit();
        model.flow.on_completion(now, &mark, done);
        if let Some(limit) = model.flow.limit().filter(|limit| limit_before != Some(*limit)) {
            // The number of slots was a refinement of the previous limit, so the new limit replaces
            // it.
            model.slots.set_count(limit);
        }
        if batch.kind == DispatchKind::Forward {
            self.update_admission(now, flight.sent_at(), observed);
        }
        // A call that cannot be merged may stream its response for an unbounded time, so only the
        // time to its first byte counts.
        let took = observed.first_byte.filter(|_| batch.unbatched).unwrap_or(observed.duration);
        observed.outcome == BatchOutcome::Ok
            && self.learn(now, (&flight, was_lone), &batch, nanos(took), limit_before.map(|_| queued))
    }

    /// Updates the limit on forwarded calls after the end of one that was sent at `sent`.
    fn update_admission(&mut self, now: Tick, sent: Tick, observed: &Observation) {
        let in_flight = self.in_flight();
        match observed.outcome {
            BatchOutcome::Overloaded { .. } => self.admission.on_refusal(now, sent, in_flight),
            BatchOutcome::Ok => self.admission.on_success(in_flight + 1),
            _ => {}
        }
    }

    /// Updates the model with a batch that was answered successfully. Returns `true` if the sample
    /// shows that the server was replaced. `was_lone`: nothing else was in flight meanwhile.
    /// `took`: time of the batch in nanoseconds. `limited`: number of queued items of the class, if
    /// the class had a limit.
    fn learn(
        &mut self,
        now: Tick,
        (flight, was_lone): (&SlotFlight, bool),
        batch: &Dispatch,
        took: u64,
        limited: Option<u64>,
    ) -> bool {
        let Some(model) = self.models.get_mut(&batch.class) else { return false };
        let mut changed = false;
        model.batches += 1;
        self.last_class = Some(batch.class);
        model.largest_answered = model.largest_answered.max(batch.items);
        let predicted = model.cost.predict_weighted(batch.items, batch.weight);
        let sample = match batch.kind {
            DispatchKind::Batch | DispatchKind::Forward if limited.is_some() => {
                model.slots.on_completion(now, flight, predicted)
            }
            _ if flight.is_lone() => SampleUse::Lone,
            _ => SampleUse::No,
        };
        if let Some(queued) = limited {
            model.flow.refine(now, model.slots.in_use(), queued);
        }
        if was_lone {
            // Before the first sample the curve predicts nothing, so the measured time is also the
            // expected one.
            let expected = if model.cost.samples() > 0 { predicted } else { took };
            model.unloaded.observe(took, expected);
        }
        if sample != SampleUse::No {
            changed = model.cost.observe(CostSample { items: batch.items, weight: batch.weight, nanos: took });
            if sample == SampleUse::Lone || limited.is_some() {
                self.mean_time = self.mean_time - self.mean_time / MEAN_TIME_PARTS + took / MEAN_TIME_PARTS;
            }
            if changed {
                model.on_server_change();
                self.changes += 1;
                self.changed = Some(now);
                self.exploration.restart();
            }
        }
        if let Some(key_model) = self.keys.get_mut(&batch.key) {
            key_model.arrivals.on_completion(now, batch.items, self.mean_time);
        }
        changed
    }

    /// Records a queued call that ended without an answer.
    pub(in super::super) fn on_expiry(&mut self, now: Tick, queued: &QueuedCall) {
        if let Some(key_model) = self.keys.get_mut(&queued.call.key) {
            key_model.arrivals.on_expiry(queued.call.items);
        }
        let items = u64::from(queued.call.items);
        self.exploration.record_ended(now, items, items);
    }

    /// Charges a dispatched call to the virtual clock of its flow. `batch` is the size of its batch
    /// and `share` the weight of its flow; `sole_flow` is `true` if no other flow is queued.
    pub(in super::super) fn charge(&mut self, call: &Call, batch: BatchWork, share: u64, sole_flow: bool) {
        if sole_flow && self.clocks.is_empty() {
            return;
        }
        let (mut work, mut time, mut learning) = (0, 0, false);
        if let Some(ClassModel { cost, flow, .. }) = self.models.get(&call.cost_class) {
            (work, time) = (fair_queueing::charged_work(cost, batch, call, share), cost.time(batch.items));
            // Under a limit that only orders calls, a call also waits in the server, for a time
            // that changes with the limit. Work is scaled to the latency below the knee: otherwise
            // a flow that is charged after a change would fall behind the others by several turns.
            if let Some(base) = flow.ordered_base() {
                work = scale(work, base, cost.time(1));
            }
            learning = flow.is_learning();
        }
        if call.charged_by_weight {
            // The price is a mean over all flows, so it is that of work before the division by the
            // weight of a flow.
            let price = self.weight_price.charge(call.weight.sum, work.saturating_mul(share));
            work = price.div_ceil(share.max(1));
            time = time.max(price);
        }
        // While the limit is being found, the cost of a call is not known, and no flow keeps a
        // debt: a charge that is too large would cost its flow several turns.
        self.clocks.charge_flow(call.flow(), work, time, sole_flow || learning);
    }

    /// Updates the clocks of the flows for a call that was queued. If its flow is one of several,
    /// work done for the others counts from now on.
    pub(in super::super) fn on_enqueue(&mut self, queue: &Queue, call: &Call) {
        // The call may be the first of a second flow, so that the first flow is no longer alone.
        if queue.flows() == 2 {
            queue.flow_loads().for_each(|(flow, _)| self.clocks.on_contended(flow));
        }
        // The call is the only one that its flow has in the queue.
        if queue.flows() > 1 && queue.held_by_flow(call.flow()) == u64::from(call.items) {
            self.clocks.on_backlogged(call.flow());
        }
    }
}
