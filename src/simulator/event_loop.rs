//! The event loop: one proxy in front of one upstream, in virtual time.
//!
//! The same scenario, policy and seed give the same run. Calls come from an open workload, which is
//! drawn in advance and equal for every policy, or from the clients of a closed loop, which wait
//! for their answer and think. After the horizon no new calls arrive, and the remaining ones are
//! served for a limited time. The overhead of the proxy itself is left out.

use std::time::Duration;

use crate::batching::Tick;

use super::call::{Arrival, CompletedCall};
use super::event_queue::SimEvent;
use super::policy::SimPolicy;
use super::proxy::{DispatchCounts, SimProxy};
use super::random::RandomStream;
use super::scenario::Scenario;
use super::upstream::UpstreamState;
use super::workload::{ClosedLoopClient, DrawnWorkload};

/// Maximum time for which a run goes on after the horizon, in addition to half the horizon. A queue
/// of a few seconds drains within it, and a queue that never drains cannot prevent the end of the
/// run.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// Number of drawn calls whose memory is freed together.
const CHUNK_CALLS: usize = 1 << 18;

/// Purposes of random numbers. Each has its own stream, so that a policy that draws more numbers
/// does not change the arrivals.
const PURPOSE_UPSTREAM: u64 = 1;
const PURPOSE_POLICY: u64 = 2;
const PURPOSE_WORKLOAD: u64 = 3;

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// Every call that arrived, in order of arrival.
    pub calls: Vec<CompletedCall>,
    /// Counters of what was sent.
    pub counts: DispatchCounts,
    /// Share of the upstream's slot time spent executing.
    pub busy: f64,
    /// Instant after which no new calls arrive.
    pub horizon: Tick,
}

/// Runs a scenario under a policy.
///
/// # Panics
/// If the policy ends or sends a call twice.
pub fn run(scenario: &Scenario, policy: &mut dyn SimPolicy, seed: u64) -> RunResult {
    let horizon = Tick::default().after(scenario.horizon);
    let mut draw = RandomStream::new(seed, PURPOSE_WORKLOAD);
    let workload = DrawnWorkload::new(&scenario.workload, scenario.slo, scenario.horizon, &mut draw);
    let upstream = UpstreamState::new(scenario.upstream.clone(), RandomStream::new(seed, PURPOSE_UPSTREAM));
    let mut proxy = SimProxy::new(scenario.slo, upstream, RandomStream::new(seed, PURPOSE_POLICY));
    proxy.upstream.start(&mut proxy.events);
    let mut event_loop = EventLoop { proxy, clients: workload.clients, horizon };
    event_loop.start_clients();
    event_loop.run_until_end(workload.open, policy);
    let EventLoop { proxy, .. } = event_loop;
    RunResult {
        counts: proxy.counts,
        busy: proxy.upstream.busy_share(proxy.now),
        calls: proxy.into_outcomes(),
        horizon,
    }
}

/// The state of a run, except the calls of the open workload and the policy.
struct EventLoop {
    proxy: SimProxy,
    clients: Vec<ClosedLoopClient>,
    horizon: Tick,
}

/// The source of the next event. Where instants are equal, the order of the variants applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EventSource {
    /// The next call of the open workload.
    Arrival,
    /// The event queue.
    Event,
    /// The wake-up that the policy has requested.
    Wake,
}

/// Iterates over the arrivals in parts, each of which is freed once it is consumed: the calls of a
/// day take half a gigabyte.
fn drain_in_chunks(mut open: Vec<Arrival>) -> impl Iterator<Item = Arrival> {
    let mut parts = Vec::new();
    while open.len() > CHUNK_CALLS {
        parts.push(open.split_off(open.len() - CHUNK_CALLS));
        open.shrink_to_fit();
    }
    parts.push(open);
    parts.into_iter().rev().flatten()
}

// === impl EventLoop ===

impl EventLoop {
    /// Schedules the first calls of the closed-loop clients.
    fn start_clients(&mut self) {
        for (number, client) in (0_u32..).zip(&mut self.clients) {
            self.proxy.events.schedule(Tick::default().after(client.first_delay()), SimEvent::Client(number));
        }
    }

    /// Handles all events until the end of the run, or until none is left.
    fn run_until_end(&mut self, open: Vec<Arrival>, policy: &mut dyn SimPolicy) {
        let end = self.horizon.after(self.horizon.since(Tick::default()) / 2).after(DRAIN_TIME_MAX);
        let mut open = drain_in_chunks(open).peekable();
        loop {
            let due = [
                (open.peek().map(|arrival| arrival.at), EventSource::Arrival),
                (self.proxy.events.next_at(), EventSource::Event),
                (self.proxy.wake, EventSource::Wake),
            ];
            let next = due.into_iter().filter_map(|(at, source)| at.map(|at| (at, source))).min();
            let Some((at, source)) = next.filter(|(at, _)| *at <= end) else { return };
            // A policy may request an instant that has passed. It is then called now, because time
            // does not run backwards.
            self.proxy.now = self.proxy.now.max(at);
            match source {
                EventSource::Arrival => {
                    if let Some(arrival) = open.next() {
                        let id = self.proxy.admit(arrival, None);
                        policy.on_arrival(&mut self.proxy, id);
                    }
                }
                EventSource::Event => {
                    if let Some(event) = self.proxy.events.pop() {
                        self.handle_event(event, policy);
                    }
                }
                EventSource::Wake => {
                    self.proxy.wake = None;
                    policy.on_tick(&mut self.proxy);
                }
            }
            self.schedule_freed_clients();
        }
    }

    /// Handles an event of the event queue.
    fn handle_event(&mut self, event: SimEvent, policy: &mut dyn SimPolicy) {
        match event {
            SimEvent::Client(client) => {
                let now = self.proxy.now;
                if now > self.horizon {
                    return;
                }
                let arrival = self.clients[client as usize].sample_call(now);
                let id = self.proxy.admit(arrival, Some(client));
                policy.on_arrival(&mut self.proxy, id);
            }
            SimEvent::Cancel(id) => {
                if self.proxy.on_cancel(id) {
                    policy.on_cancel(&mut self.proxy, id);
                }
            }
            SimEvent::Upstream(step) => {
                let SimProxy { upstream, events, now, .. } = &mut self.proxy;
                upstream.step(*now, step, events);
            }
            SimEvent::Answer(id, status) => {
                if let Some(done) = self.proxy.on_response(id, status) {
                    policy.on_completion(&mut self.proxy, &done);
                }
            }
        }
    }

    /// Draws the think time of the clients of calls that have ended, and schedules their next
    /// calls.
    fn schedule_freed_clients(&mut self) {
        while let Some(client) = self.proxy.freed_clients.pop() {
            let think = self.clients[client as usize].think();
            self.proxy.events.schedule(self.proxy.now.after(think), SimEvent::Client(client));
        }
    }
}
