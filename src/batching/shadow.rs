//! The shadow of mode `Observe`: a second core that simulates batching for calls that are passed
//! through.
//!
//! The calls pass through whatever the shadow decides. It is notified of each arrival and of each
//! real response, and feeds the same calls to a [`Batcher`]. Its batches are answered by a
//! simulated server ([`ServerModel`]), which is learned from the real calls. Time advances only
//! with these notifications: nothing runs in between, and no timer is needed.
//!
//! Callers that wait for each answer before they send the next call would send more calls if they
//! were answered sooner. Where such a closed loop is detected (`closed_loop`), the simulation keeps
//! as many calls of each merge key outstanding as are in flight in reality: a call that ends in the
//! simulation is followed by another one like it, in place of those that arrive in fact.
//!
//! Left out: failures of batches, of which nothing can be known, and the cost of batching beyond
//! the server's time. The execution time of several items is measured only if clients send several
//! items themselves; [`ShadowKnowledge`] reports up to how many.

mod light_load;
mod closed_loop;
mod concurrency;
mod server_model;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use self::server_model::ServerModel;
use super::batch::{Batch, BatchId, BatchOutcome, Decision, Observation};
use super::batcher::Batcher;
use super::call::{Call, CallId, CostClassId, Deadline, KeyId, ScopeId, Weight};
use super::limits::Limits;
use super::plan::{Plan, PlanInput};
use super::tick::Tick;

/// Maximum number of simulated calls that follow others between two real arrivals or responses.
/// A higher number occurs only if simulated batches are answered this many times faster than real
/// ones, or if the server has stopped answering.
const FOLLOW_UPS_MAX: u32 = 256;

/// A core that simulates decisions about calls that are passed through.
///
/// # Bounds
/// Calls: those that the limits allow to queue, and those of the batches in the slots. Outcomes
/// accumulate until [`Shadow::take_outcomes`] takes them: a few for each call.
#[derive(Debug, Clone)]
pub struct Shadow {
    core: Batcher,
    server: ServerModel,
    /// Simulated calls by their id in the core, in the order of their arrival.
    calls: BTreeMap<CallId, SimulatedCall>,
    /// Number of ids in the core that were used.
    last_id: u64,
    /// Ids in the core by the id of the real call, for calls that have not ended in the simulation.
    ids: BTreeMap<CallId, CallId>,
    /// Number of simulated calls that may be merged, by key.
    outstanding: BTreeMap<KeyId, u32>,
    /// Number of calls that may still follow others before the next real event.
    follow_ups_left: u32,
    /// Simulated executions by their end.
    running: BTreeMap<(Tick, BatchId), SimulatedExecution>,
    /// Outcomes that were not taken yet.
    outcomes: Vec<ShadowOutcome>,
    now: Tick,
}

/// A call held by the simulated core.
#[derive(Debug, Clone)]
struct SimulatedCall {
    /// Arrival of the head of its request at the proxy.
    head_received: Tick,
    /// Arrival at the simulated core.
    arrived: Tick,
    /// The call, with its real id. In a closed loop it may follow the real call of that id.
    call: Call,
}

#[derive(Debug, Clone)]
struct SimulatedExecution {
    sent: Tick,
    members: Vec<CallId>,
}

/// A simulated outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShadowOutcome {
    /// These calls would have been dispatched together.
    Dispatched {
        /// Members, each with its waiting time.
        members: Vec<(CallId, Duration)>,
        /// Route of the first member.
        scope: ScopeId,
        /// Total number of items.
        items: u32,
    },
    /// A call would have ended.
    End {
        /// Id of the call.
        id: CallId,
        /// Route of the call.
        scope: ScopeId,
        /// Number of items of the call.
        items: u32,
        /// Manner of its end.
        end: ShadowEnd,
        /// Time since its arrival at the proxy.
        latency: Duration,
        /// SLO of the call.
        slo: Option<Duration>,
    },
}

/// The manner in which a call would have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShadowEnd {
    /// Answered by the upstream.
    Answered,
    /// Rejected for lack of room.
    Rejected,
    /// Expired in the queue.
    Expired,
    /// Cancelled by its client.
    Cancelled,
}

/// Treatment of a forwarded call by the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShadowArrival {
    /// It is simulated, and its end is reported.
    Simulated,
    /// Its caller is simulated already: in a closed loop, by calls that follow an earlier one.
    Represented,
    /// Too little is known of its execution time.
    Unlearned,
}

/// Maxima of a batch that the server publishes, as far as it does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublishedMax {
    /// Maximum number of items.
    pub items: Option<u32>,
    /// Maximum weight.
    pub weight: Option<u64>,
}

/// The measurements that the simulation is based on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowKnowledge {
    /// Number of calls that the server was measured to run concurrently, at least 1.
    pub side_by_side: u32,
    /// For each cost class, the time of an unbatched call in nanoseconds and the largest number of
    /// items per call that was measured. Predictions beyond that number are extrapolations.
    pub classes: Vec<(CostClassId, u64, u32)>,
    /// `true` if the time of an unbatched call cannot be determined for some cost class, because
    /// the load does not vary.
    pub steady_load: bool,
}

// === impl Shadow ===

impl Shadow {
    /// Creates a shadow with these limits. The seed also determines the slow answers of the
    /// simulated server.
    ///
    /// # Panics
    /// If `limits.scopes` is empty.
    #[must_use]
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self {
            core: Batcher::new(limits, seed),
            server: ServerModel::new(seed.rotate_left(32)),
            calls: BTreeMap::new(),
            last_id: 0,
            ids: BTreeMap::new(),
            outstanding: BTreeMap::new(),
            follow_ups_left: 0,
            running: BTreeMap::new(),
            outcomes: Vec::new(),
            now: Tick::default(),
        }
    }

    /// Replaces the limits.
    ///
    /// # Panics
    /// If `limits.scopes` is empty.
    pub fn set_limits(&mut self, limits: Limits) {
        self.core.set_limits(limits);
    }

    /// Sets whether the server is known to batch by itself.
    pub fn set_known_batching(&mut self, known: bool) {
        self.core.set_known_batching(known);
    }

    /// Applies the maxima that the server publishes for a cost class.
    pub fn set_published_limits(&mut self, now: Tick, class: CostClassId, published: PublishedMax) {
        if let Some(items) = published.items {
            self.core.set_published_items_max(now, class, items);
        }
        if let Some(weight) = published.weight {
            self.core.set_published_weight_max(now, class, weight);
        }
    }

    /// Records a call that is forwarded at `now`. `head_received` is the arrival of the head of its
    /// request.
    pub fn on_arrival(&mut self, now: Tick, head_received: Tick, call: &Call) -> ShadowArrival {
        self.advance(now);
        self.follow_ups_left = FOLLOW_UPS_MAX;
        self.server.on_dispatch(self.now, call);
        if !self.server.can_predict(call.cost_class) {
            return ShadowArrival::Unlearned;
        }
        let in_flight = if call.unmergeable { None } else { self.server.closed_loop_calls(call.key) };
        if in_flight.is_some_and(|in_flight| self.outstanding(call.key) >= in_flight) {
            return ShadowArrival::Represented;
        }
        let id = self.enqueue(head_received, call.clone());
        // A rejected call has ended already.
        if self.calls.contains_key(&id) {
            self.ids.insert(call.id, id);
        }
        self.poll_core();
        ShadowArrival::Simulated
    }

    /// Records the real response of a call; `succeeded` is `true` if it was successful.
    pub fn on_response(&mut self, now: Tick, id: CallId, succeeded: bool) {
        self.advance(now);
        self.follow_ups_left = FOLLOW_UPS_MAX;
        self.server.on_completion(self.now, id, succeeded);
    }

    /// Records that the client disconnected before the response.
    pub fn on_disconnect(&mut self, now: Tick, id: CallId) {
        self.on_response(now, id, false);
        if let Some(id) = self.ids.get(&id).copied() {
            self.core.cancel(self.now, id);
            self.end(id, ShadowEnd::Cancelled);
        }
        self.poll_core();
    }

    /// Advances the simulation to `now`.
    pub fn advance(&mut self, now: Tick) {
        loop {
            // Completions and wake-ups are processed in order of time up to `now`.
            let ends = self.running.first_key_value().map(|((at, _), _)| *at);
            let Some(next) = ends.into_iter().chain(self.core.next_wakeup()).min().filter(|at| *at <= now) else {
                break;
            };
            self.now = self.now.max(next);
            while let Some(entry) = self.running.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let ((_, batch), SimulatedExecution { sent, members }) = entry.remove_entry();
                let duration = self.now.since(sent);
                let ended: Vec<SimulatedCall> =
                    members.into_iter().filter_map(|id| self.end(id, ShadowEnd::Answered)).collect();
                let observed = Observation { duration, first_byte: Some(duration), outcome: BatchOutcome::Ok };
                self.core.complete(self.now, batch, observed);
                ended.into_iter().for_each(|ended| self.send_follow_up(ended));
            }
            self.poll_core();
        }
        self.now = self.now.max(now);
    }

    /// Takes the outcomes simulated since the last call.
    pub fn take_outcomes(&mut self) -> Vec<ShadowOutcome> {
        std::mem::take(&mut self.outcomes)
    }

    /// Returns the input of a plan that is due. Solve it with [`solve`](super::solve) on a thread
    /// that may block, then call [`Shadow::set_plan`].
    pub fn take_due_plan_input(&mut self) -> Option<(CostClassId, PlanInput)> {
        self.core.take_due_plan_input()
    }

    /// Applies a solved plan.
    pub fn set_plan(&mut self, class: CostClassId, plan: Plan) {
        self.core.set_plan(self.now, class, plan);
    }

    /// Returns the measurements that the simulation is based on.
    #[must_use]
    pub fn knowledge(&self) -> ShadowKnowledge {
        ShadowKnowledge {
            side_by_side: u32::try_from(self.server.measured_concurrency()).unwrap_or(u32::MAX),
            classes: self.server.lone_times().collect(),
            steady_load: self.server.has_steady_load(),
        }
    }

    /// Offers a call to the core at the present. Returns its id there.
    fn enqueue(&mut self, head_received: Tick, call: Call) -> CallId {
        self.last_id += 1;
        let id = CallId(self.last_id);
        if !call.unmergeable {
            *self.outstanding.entry(call.key).or_default() += 1;
        }
        self.calls.insert(id, SimulatedCall { head_received, arrived: self.now, call: call.clone() });
        if self.core.enqueue(self.now, Call { id, ..call }).is_err() {
            self.end(id, ShadowEnd::Rejected);
        }
        id
    }

    /// Sends the next call of a caller that was answered in the simulation, if it would have sent
    /// one by now.
    fn send_follow_up(&mut self, SimulatedCall { arrived, call, .. }: SimulatedCall) {
        let in_flight = if call.unmergeable { None } else { self.server.closed_loop_calls(call.key) };
        if self.follow_ups_left == 0 || in_flight.is_none_or(|in_flight| self.outstanding(call.key) >= in_flight) {
            return;
        }
        self.follow_ups_left -= 1;
        let later = |deadline: Deadline| Deadline { at: self.now.after(deadline.at.since(arrived)), ..deadline };
        let (deadline, fallback_deadline) = (call.deadline.map(later), call.fallback_deadline.map(later));
        self.enqueue(self.now, Call { deadline, fallback_deadline, ..call });
    }

    fn outstanding(&self, key: KeyId) -> u32 {
        self.outstanding.get(&key).copied().unwrap_or(0)
    }

    fn poll_core(&mut self) {
        while let Some(decision) = self.core.poll(self.now) {
            match decision {
                Decision::Dispatch(batch) => self.dispatch(&batch),
                Decision::Expire { id, .. } => {
                    self.end(id, ShadowEnd::Expired);
                }
                Decision::Abort(batch) => {
                    let found = self.running.keys().find(|(_, id)| *id == batch).copied();
                    if let Some(SimulatedExecution { sent, .. }) = found.and_then(|key| self.running.remove(&key)) {
                        let duration = self.now.since(sent);
                        let observed = Observation { duration, first_byte: None, outcome: BatchOutcome::Cancelled };
                        self.core.complete(self.now, batch, observed);
                    }
                }
            }
        }
    }

    fn dispatch(&mut self, batch: &Batch) {
        let members: Vec<(CallId, &SimulatedCall)> =
            batch.members.iter().filter_map(|member| Some((member.id, self.calls.get(&member.id)?))).collect();
        let max = members.iter().map(|(_, simulated)| simulated.call.weight.max).max().unwrap_or_default();
        let duration = self.server.predict_time(batch.cost_class, batch.items, Weight { sum: batch.weight, max });
        // The execution starts at once if the server has a free slot, else when enough of the
        // running ones have ended.
        let slots = self.server.concurrency_limit();
        let is_full = self.running.len() >= slots;
        // Number of executions that end without making room for this one. `running` is in the order
        // of ends.
        let before = self.running.len().saturating_sub(slots);
        let begins = self.running.keys().nth(before).filter(|_| is_full).map_or(self.now, |(at, _)| *at);
        let ends = begins.after(Duration::from_nanos(duration));
        let ids = members.iter().map(|(id, _)| *id).collect();
        self.running.insert((ends, batch.id), SimulatedExecution { sent: self.now, members: ids });
        self.outcomes.push(ShadowOutcome::Dispatched {
            scope: members.first().map_or(ScopeId(u16::MAX), |(_, simulated)| simulated.call.scope),
            members: members
                .into_iter()
                .map(|(_, simulated)| (simulated.call.id, self.now.since(simulated.arrived)))
                .collect(),
            items: batch.items,
        });
    }

    /// Ends a call of the simulation, and returns it.
    fn end(&mut self, id: CallId, end: ShadowEnd) -> Option<SimulatedCall> {
        let ended = self.calls.remove(&id)?;
        let SimulatedCall { head_received, call, .. } = &ended;
        if self.ids.get(&call.id) == Some(&id) {
            self.ids.remove(&call.id);
        }
        if let Some(count) = self.outstanding.get_mut(&call.key).filter(|_| !call.unmergeable) {
            *count -= 1;
            if *count == 0 {
                self.outstanding.remove(&call.key);
            }
        }
        self.outcomes.push(ShadowOutcome::End {
            id: call.id,
            scope: call.scope,
            items: call.items,
            end,
            latency: self.now.since(*head_received),
            slo: call.slo,
        });
        Some(ended)
    }
}
