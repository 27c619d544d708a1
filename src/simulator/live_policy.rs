//! Drives a simulator policy with real events, in front of a real upstream.
//!
//! A benchmark over sockets compares Groupage with the rules of other systems, and a second
//! implementation of a rule could behave differently. Here the owner of the sockets and the clock
//! reports events and carries out the returned actions. The record of calls is that of the
//! simulator, so it grows with every call.
//!
//! Left out: bytes, sockets, the clock, and cancellation by clients.

use std::fmt;
use std::time::Duration;

use crate::batching::{Call, CallId, Tick};

use super::batch::{ResponseStatus, SimBatchId};
use super::call::{Arrival, CallOutcome};
use super::event_queue::EventQueue;
use super::policy::SimPolicy;
use super::proxy::SimProxy;
use super::random::RandomStream;
use super::upstream::UpstreamState;

/// An action to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveAction {
    /// Send these calls upstream as one batch, then report the response to
    /// [`LivePolicy::on_response`].
    Send(SimBatchId, Vec<CallId>),
    /// Answer this call with a failure, since it ended with this outcome.
    Fail(CallId, CallOutcome),
}

/// A policy with its simulated proxy.
pub struct LivePolicy {
    proxy: SimProxy,
    policy: Box<dyn SimPolicy>,
    arrivals: u32,
}

// === impl LivePolicy ===

impl LivePolicy {
    /// Creates a driver for a fresh policy under this SLO.
    #[must_use]
    pub fn new(policy: Box<dyn SimPolicy>, slo: Duration, seed: u64) -> Self {
        let upstream = UpstreamState::External(Vec::new());
        Self { proxy: SimProxy::new(slo, upstream, RandomStream::new(seed, 0)), policy, arrivals: 0 }
    }

    /// Handles the arrival of a call. Its id is the number of calls before it.
    pub fn on_arrival(&mut self, now: Tick, call: Call) -> (CallId, Vec<LiveAction>) {
        self.advance(now);
        let arrival = Arrival { at: self.proxy.now, call, class: 0, cancel_at: None };
        // Each call is its own client, so that the proxy reports the calls that have ended.
        let id = self.proxy.admit(arrival, Some(self.arrivals));
        self.arrivals = self.arrivals.saturating_add(1);
        self.policy.on_arrival(&mut self.proxy, id);
        (id, self.actions())
    }

    /// Handles the response to a batch.
    pub fn on_response(&mut self, now: Tick, id: SimBatchId, status: ResponseStatus) -> Vec<LiveAction> {
        self.advance(now);
        if let Some(done) = self.proxy.on_response(id, status) {
            self.policy.on_completion(&mut self.proxy, &done);
        }
        self.actions()
    }

    /// Handles the instant returned by [`LivePolicy::wakeup`].
    pub fn on_wakeup(&mut self, now: Tick) -> Vec<LiveAction> {
        self.advance(now);
        self.proxy.wake = None;
        self.policy.on_tick(&mut self.proxy);
        self.actions()
    }

    /// Returns the instant at which the policy requests its next tick.
    #[must_use]
    pub fn wakeup(&self) -> Option<Tick> {
        self.proxy.wake
    }

    fn advance(&mut self, now: Tick) {
        self.proxy.now = self.proxy.now.max(now);
        // No event is due in virtual time.
        self.proxy.events = EventQueue::default();
    }

    fn actions(&mut self) -> Vec<LiveAction> {
        let mut actions = Vec::new();
        if let UpstreamState::External(sent) = &mut self.proxy.upstream {
            let sent = std::mem::take(sent);
            actions.extend(sent.into_iter().map(|id| LiveAction::Send(id, self.proxy.members(id).to_vec())));
        }
        for client in std::mem::take(&mut self.proxy.freed_clients) {
            let id = CallId(u64::from(client));
            let ended = self.proxy.outcome(id).filter(|outcome| *outcome != CallOutcome::Answered);
            actions.extend(ended.map(|outcome| LiveAction::Fail(id, outcome)));
        }
        actions
    }
}

impl fmt::Debug for LivePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LivePolicy")
            .field("policy", &self.policy.name())
            .field("arrivals", &self.arrivals)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::Baseline;

    #[test]
    fn a_blocking_window_policy_runs_outside_the_simulator() {
        let delay = Duration::from_millis(10);
        let mut live = LivePolicy::new(Baseline::KServe { items: 2, delay }.build(), delay, 1);
        let call = || Call::new(CallId(0));
        let (first, actions) = live.on_arrival(Tick::from_millis(1), call());
        assert_eq!((first, actions, live.wakeup()), (CallId(0), Vec::new(), Some(Tick::from_millis(11))));
        let (second, actions) = live.on_arrival(Tick::from_millis(2), call());
        assert_eq!(actions, [LiveAction::Send(SimBatchId(0), vec![first, second])]);
        let (third, actions) = live.on_arrival(Tick::from_millis(3), call());
        assert!(actions.is_empty(), "one batch is out");
        assert!(live.on_response(Tick::from_millis(30), SimBatchId(0), ResponseStatus::Ok).is_empty());
        let due = live.wakeup().expect("the window of the third has begun");
        assert_eq!(live.on_wakeup(due), [LiveAction::Send(SimBatchId(1), vec![third])]);
        assert_eq!(
            live.on_response(due, SimBatchId(1), ResponseStatus::TooLarge { limit: None }),
            [LiveAction::Fail(third, CallOutcome::Refused)]
        );
    }
}
