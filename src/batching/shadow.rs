//! The shadow of mode `Observe`: a second core that simulates batching for calls that are passed
//! through.
//!
//! The calls pass through whatever the shadow decides. It is notified of each arrival and of each
//! real response, and feeds the same calls to a [`Batcher`]. Its batches are answered by a
//! simulated server ([`ServerModel`]), which is learned from the real calls. Time advances only
//! with these notifications: nothing runs in between, and no timer is needed.
//!
//! Left out: failures of batches, of which nothing can be known, and the cost of batching beyond
//! the server's time. The execution time of several items is measured only if clients send several
//! items themselves; [`ShadowKnowledge`] reports up to how many.

mod light_load;
mod concurrency;
mod server_model;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use self::server_model::ServerModel;
use super::batch::{Batch, BatchId, BatchOutcome, Decision, Observation};
use super::batcher::Batcher;
use super::call::{Call, CallId, CostClassId, ScopeId, Weight};
use super::limits::Limits;
use super::plan::{Plan, PlanInput};
use super::tick::Tick;

/// A core that simulates decisions about calls that are passed through.
///
/// # Bounds
/// Calls: those that the limits allow to queue, and those of the batches in the slots. Outcomes
/// accumulate until [`Shadow::take_outcomes`] takes them: a few for each call.
#[derive(Debug, Clone)]
pub struct Shadow {
    core: Batcher,
    server: ServerModel,
    calls: BTreeMap<CallId, SimulatedCall>,
    /// Simulated executions by their end.
    running: BTreeMap<(Tick, BatchId), SimulatedExecution>,
    would: Vec<ShadowOutcome>,
    now: Tick,
}

/// A call held by the simulated core.
#[derive(Debug, Clone, Copy)]
struct SimulatedCall {
    began: Tick,
    arrived: Tick,
    scope: ScopeId,
    items: u32,
    weight: Weight,
    slo: Option<Duration>,
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
    Leave {
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
        how: ShadowEnd,
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

/// The measurements that the simulation is based on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowKnowledge {
    /// Number of calls that the server was measured to run concurrently, at least 1.
    pub side_by_side: u32,
    /// For each cost class, the time of an unbatched call in nanoseconds and the largest number of
    /// items per call that was measured. Predictions beyond that number are extrapolations.
    pub classes: Vec<(CostClassId, u64, u32)>,
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
            running: BTreeMap::new(),
            would: Vec::new(),
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

    /// Applies the maximum number of items and the maximum weight that the server publishes for a
    /// cost class.
    pub fn publish(&mut self, now: Tick, class: CostClassId, (items, weight): (Option<u32>, Option<u64>)) {
        if let Some(items) = items {
            self.core.set_published_items_max(now, class, items);
        }
        if let Some(weight) = weight {
            self.core.set_published_weight_max(now, class, weight);
        }
    }

    /// Records a call that is forwarded at `now`. `began` is the arrival of its head. Returns
    /// `false` if too little is known of its execution time to simulate it.
    pub fn on_arrival(&mut self, now: Tick, began: Tick, call: Call) -> bool {
        self.advance(now);
        let now = self.now;
        let (id, class, unbatched) = (call.id, call.cost_class, call.alone);
        let work = (!unbatched).then_some((class, call.items, call.weight));
        self.server.on_dispatch(now, id, work);
        if !self.server.can_predict(class) {
            return false;
        }
        let simulated = SimulatedCall {
            began,
            arrived: now,
            scope: call.scope,
            items: call.items,
            weight: call.weight,
            slo: call.slo,
        };
        self.calls.insert(id, simulated);
        if self.core.enqueue(now, call).is_err() {
            self.end(now, id, ShadowEnd::Rejected);
        }
        self.poll_core();
        true
    }

    /// Records the real response of a call; `well` is `true` if it was successful.
    pub fn on_response(&mut self, now: Tick, id: CallId, well: bool) {
        self.advance(now);
        self.server.on_completion(self.now, id, well);
    }

    /// Records that the client disconnected before the response.
    pub fn on_disconnect(&mut self, now: Tick, id: CallId) {
        self.on_response(now, id, false);
        self.core.cancel(self.now, id);
        self.end(self.now, id, ShadowEnd::Cancelled);
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
                for id in members {
                    self.end(self.now, id, ShadowEnd::Answered);
                }
                let observed = Observation { duration, first_byte: Some(duration), outcome: BatchOutcome::Ok };
                self.core.complete(self.now, batch, observed);
            }
            self.poll_core();
        }
        self.now = self.now.max(now);
    }

    /// Takes the outcomes simulated since the last call.
    pub fn take_outcomes(&mut self) -> Vec<ShadowOutcome> {
        std::mem::take(&mut self.would)
    }

    /// Returns the input of a plan that is due. Solve it with [`solve`](super::solve) on a thread
    /// that may block, then call [`Shadow::set_plan`].
    pub fn plan_due(&mut self) -> Option<(CostClassId, PlanInput)> {
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
        }
    }

    fn poll_core(&mut self) {
        while let Some(decision) = self.core.poll(self.now) {
            match decision {
                Decision::Dispatch(batch) => self.dispatch(&batch),
                Decision::Expire { id, .. } => self.end(self.now, id, ShadowEnd::Expired),
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
        let find_call = |id| self.calls.get(&id).map(|simulated| (id, *simulated));
        let members: Vec<(CallId, SimulatedCall)> =
            batch.members.iter().filter_map(|member| find_call(member.id)).collect();
        let max = members.iter().map(|(_, simulated)| simulated.weight.max).max().unwrap_or_default();
        let takes = self.server.predict_time(batch.cost_class, batch.items, Weight { sum: batch.weight, max });
        // The execution starts at once if the server has a free place, else when enough of the
        // running ones have ended.
        let places = self.server.concurrency_limit();
        let before = self.running.len().saturating_sub(places);
        let full = self.running.len() >= places;
        let begins = self.running.keys().nth(before).filter(|_| full).map_or(self.now, |(at, _)| *at);
        let ends = begins.after(Duration::from_nanos(takes));
        let ids = members.iter().map(|(id, _)| *id).collect();
        self.running.insert((ends, batch.id), SimulatedExecution { sent: self.now, members: ids });
        self.would.push(ShadowOutcome::Leave {
            scope: members.first().map_or(ScopeId(u16::MAX), |(_, simulated)| simulated.scope),
            members: members.into_iter().map(|(id, simulated)| (id, self.now.since(simulated.arrived))).collect(),
            items: batch.items,
        });
    }

    fn end(&mut self, now: Tick, id: CallId, how: ShadowEnd) {
        let Some(SimulatedCall { began, scope, items, slo, .. }) = self.calls.remove(&id) else { return };
        self.would.push(ShadowOutcome::End { id, scope, items, how, latency: now.since(began), slo });
    }
}
