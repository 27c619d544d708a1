//! What batching would have done with calls that pass: a second core on the same calls, before a server that is predicted (`mode: Observe`).
//!
//! The calls pass, whatever this says. It is told when each came and when its own answer was there, and gives the same calls to a [`Batcher`] whose batches are
//! answered by a [`Server`] that was learned from those that passed. Time moves when it is told of something: nothing runs in between, and nobody is woken.
//!
//! What it leaves out: failures of batches, for nothing can be known of them, and what batching itself costs beside the server's time. What a batch of several
//! items takes is measured only where callers send several items themselves; [`Known`] says up to how many.

mod light;
mod load;
mod server;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use self::server::Server;
use super::batch::{Batch, BatchId, Decision, Observed, ObservedOutcome};
use super::batcher::Batcher;
use super::call::{Call, CallId, CostClassId, ScopeId, Weight};
use super::limits::Limits;
use super::plan::{Plan, PlanInput};
use super::tick::Tick;

/// A core that decides about calls that pass all the same.
///
/// # Bounds
/// Calls: what the limits let queue, and those of the slots' batches. Outcomes wait in [`Shadow::would`] until they are taken: some for each call.
#[derive(Debug, Clone)]
pub struct Shadow {
    core: Batcher,
    server: Server,
    calls: BTreeMap<CallId, Asked>,
    /// By when they end.
    running: BTreeMap<(Tick, BatchId), Running>,
    would: Vec<Would>,
    now: Tick,
}

/// A call that the core holds.
#[derive(Debug, Clone, Copy)]
struct Asked {
    began: Tick,
    arrived: Tick,
    scope: ScopeId,
    items: u32,
    weight: Weight,
    slo: Option<Duration>,
}

#[derive(Debug, Clone)]
struct Running {
    sent: Tick,
    members: Vec<CallId>,
}

/// What would have happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Would {
    /// These calls would have left together.
    Leave {
        /// Who, each after waiting so long.
        members: Vec<(CallId, Duration)>,
        /// The route of the first one.
        scope: ScopeId,
        /// Items in all.
        items: u32,
    },
    /// A call would have ended.
    End {
        /// Which.
        id: CallId,
        /// Its route.
        scope: ScopeId,
        /// Its items.
        items: u32,
        /// How.
        how: End,
        /// From its arrival at the proxy.
        latency: Duration,
        /// Within how long it was to be answered.
        slo: Option<Duration>,
    },
}

/// How a call would have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With its answer.
    Answered,
    /// It would not have been accepted.
    Rejected,
    /// It would have been too late for it.
    Expired,
    /// Its caller left.
    Cancelled,
}

/// What the prediction rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Calls that the server was seen to run side by side, at least 1.
    pub side_by_side: u32,
    /// By cost class what a lone call takes, in nanoseconds, and the most items in one call of which that was learned: what a batch of more takes is a guess.
    pub classes: Vec<(CostClassId, u64, u32)>,
}

// === impl Shadow ===

impl Shadow {
    /// A core with these limits. The seed is also that of the server's slow answers.
    ///
    /// # Panics
    /// If `limits.scopes` is empty.
    #[must_use]
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self {
            core: Batcher::new(limits, seed),
            server: Server::new(seed.rotate_left(32)),
            calls: BTreeMap::new(),
            running: BTreeMap::new(),
            would: Vec::new(),
            now: Tick::default(),
        }
    }

    /// Other walls from now on.
    ///
    /// # Panics
    /// If `limits.scopes` is empty.
    pub fn set_limits(&mut self, limits: Limits) {
        self.core.set_limits(limits);
    }

    /// Whether the server is known to batch by itself.
    pub fn set_known_batching(&mut self, known: bool) {
        self.core.set_known_batching(known);
    }

    /// The most items, and the most weight, that the server itself publishes for a cost class.
    pub fn publish(&mut self, now: Tick, class: CostClassId, (items, weight): (Option<u32>, Option<u64>)) {
        if let Some(items) = items {
            self.core.publish(now, class, items);
        }
        if let Some(weight) = weight {
            self.core.publish_weight(now, class, weight);
        }
    }

    /// A call came, whose head had come at `began`, and is on its way. False where nothing can be said of it yet: too little is known of what it takes.
    pub fn came(&mut self, now: Tick, began: Tick, call: Call) -> bool {
        self.advance(now);
        let now = self.now;
        let (id, class, alone) = (call.id, call.cost_class, call.alone);
        let work = (!alone).then_some((class, call.items, call.weight));
        self.server.sent(now, id, work);
        if !self.server.knows(class) {
            return false;
        }
        let asked =
            Asked { began, arrived: now, scope: call.scope, items: call.items, weight: call.weight, slo: call.slo };
        self.calls.insert(id, asked);
        if self.core.offer(now, call).is_err() {
            self.end(now, id, End::Rejected);
        }
        self.pump();
        true
    }

    /// Its own answer is there, `well` or not.
    pub fn answered(&mut self, now: Tick, id: CallId, well: bool) {
        self.advance(now);
        self.server.ended(self.now, id, well);
    }

    /// Its caller left before that.
    pub fn left(&mut self, now: Tick, id: CallId) {
        self.answered(now, id, false);
        self.core.cancel(self.now, id);
        self.end(self.now, id, End::Cancelled);
        self.pump();
    }

    /// Lets time pass.
    pub fn advance(&mut self, now: Tick) {
        loop {
            let ends = self.running.first_key_value().map(|((at, _), _)| *at);
            let Some(next) = ends.into_iter().chain(self.core.next_wakeup()).min().filter(|at| *at <= now) else {
                break;
            };
            self.now = self.now.max(next);
            while let Some(entry) = self.running.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let ((_, batch), Running { sent, members }) = entry.remove_entry();
                let duration = self.now.since(sent);
                for id in members {
                    self.end(self.now, id, End::Answered);
                }
                let observed = Observed { duration, first_byte: Some(duration), outcome: ObservedOutcome::Ok };
                self.core.complete(self.now, batch, observed);
            }
            self.pump();
        }
        self.now = self.now.max(now);
    }

    /// Takes what would have happened since this was asked last.
    pub fn would(&mut self) -> Vec<Would> {
        std::mem::take(&mut self.would)
    }

    /// A plan that is to be solved: on a thread that may block, then [`Shadow::set_plan`].
    pub fn plan_due(&mut self) -> Option<(CostClassId, PlanInput)> {
        self.core.plan_due()
    }

    /// Takes a plan that was solved.
    pub fn set_plan(&mut self, class: CostClassId, plan: Plan) {
        self.core.set_plan(self.now, class, plan);
    }

    /// What it rests on.
    #[must_use]
    pub fn known(&self) -> Known {
        Known {
            side_by_side: u32::try_from(self.server.side_by_side()).unwrap_or(u32::MAX),
            classes: self.server.learned().collect(),
        }
    }

    fn pump(&mut self) {
        while let Some(decision) = self.core.poll(self.now) {
            match decision {
                Decision::Dispatch(batch) => self.dispatch(&batch),
                Decision::Expire { id, .. } => self.end(self.now, id, End::Expired),
                Decision::Abort(batch) => {
                    let found = self.running.keys().find(|(_, id)| *id == batch).copied();
                    if let Some(Running { sent, .. }) = found.and_then(|key| self.running.remove(&key)) {
                        let duration = self.now.since(sent);
                        let observed = Observed { duration, first_byte: None, outcome: ObservedOutcome::Cancelled };
                        self.core.complete(self.now, batch, observed);
                    }
                }
            }
        }
    }

    fn dispatch(&mut self, batch: &Batch) {
        let asked = |id| self.calls.get(&id).map(|asked| (id, *asked));
        let members: Vec<(CallId, Asked)> = batch.members.iter().filter_map(|member| asked(member.id)).collect();
        let max = members.iter().map(|(_, asked)| asked.weight.max).max().unwrap_or_default();
        let takes = self.server.time(batch.cost_class, batch.items, Weight { sum: batch.weight, max });
        // It begins when fewer than all of what the server runs side by side are before it.
        let places = self.server.places();
        let before = self.running.len().saturating_sub(places);
        let full = self.running.len() >= places;
        let begins = self.running.keys().nth(before).filter(|_| full).map_or(self.now, |(at, _)| *at);
        let ends = begins.after(Duration::from_nanos(takes));
        let ids = members.iter().map(|(id, _)| *id).collect();
        self.running.insert((ends, batch.id), Running { sent: self.now, members: ids });
        self.would.push(Would::Leave {
            scope: members.first().map_or(ScopeId(u16::MAX), |(_, asked)| asked.scope),
            members: members.into_iter().map(|(id, asked)| (id, self.now.since(asked.arrived))).collect(),
            items: batch.items,
        });
    }

    fn end(&mut self, now: Tick, id: CallId, how: End) {
        let Some(Asked { began, scope, items, slo, .. }) = self.calls.remove(&id) else { return };
        self.would.push(Would::End { id, scope, items, how, latency: now.since(began), slo });
    }
}
