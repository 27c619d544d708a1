//! The event loop: one proxy in front of one upstream, in virtual time.
//!
//! The same scenario, policy and seed give the same run. Calls come from an open workload, fixed beforehand and the same for every policy, or
//! from clients that wait for their answer and think. After the horizon nothing new comes, and what is left is worked off for a while. It leaves
//! out what the proxy itself costs.

use std::time::Duration;

use crate::batching::Tick;

use super::agenda::Event;
use super::call::{Arrival, Ended};
use super::desk::{Counts, Desk};
use super::draw::Draw;
use super::policy::Policy;
use super::scenario::Scenario;
use super::upstream::Upstream;
use super::workload::{Client, Source};

/// How long after the horizon a run may go on, beyond half the horizon: a queue of a few seconds drains, and one that never will does not hold us
/// up.
const TAIL: Duration = Duration::from_secs(5);

/// Calls that are freed together.
const PART: usize = 1 << 18;

/// Purposes of random numbers: one stream each, so that a policy that draws more changes no arrival.
const PURPOSE_UPSTREAM: u64 = 1;
const PURPOSE_POLICY: u64 = 2;
const PURPOSE_WORKLOAD: u64 = 3;

/// What a run left.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Every call that came, in order of arrival.
    pub calls: Vec<Ended>,
    /// What was sent.
    pub counts: Counts,
    /// Share of the upstream's slot time that was spent executing.
    pub busy: f64,
    /// When calls stopped coming.
    pub horizon: Tick,
}

/// Runs a scenario under a policy.
///
/// # Panics
/// If the policy ends or sends a call twice.
pub fn run(scenario: &Scenario, policy: &mut dyn Policy, seed: u64) -> Run {
    let horizon = Tick::default().after(scenario.horizon);
    let mut draw = Draw::new(seed, PURPOSE_WORKLOAD);
    let source = Source::new(&scenario.workload, scenario.slo, scenario.horizon, &mut draw);
    let upstream = Upstream::new(scenario.upstream.clone(), Draw::new(seed, PURPOSE_UPSTREAM));
    let mut desk = Desk::new(scenario.slo, upstream, Draw::new(seed, PURPOSE_POLICY));
    desk.upstream.start(&mut desk.agenda);
    let mut engine = Engine { desk, clients: source.clients, horizon };
    engine.start_clients();
    engine.drive(source.open, policy);
    let Engine { desk, .. } = engine;
    Run { counts: desk.counts, busy: desk.upstream.busy_share(desk.now), calls: desk.into_ended(), horizon }
}

struct Engine {
    desk: Desk,
    clients: Vec<Client>,
    horizon: Tick,
}

/// What comes first; where instants are equal, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum First {
    Arrival,
    Event,
    Wake,
}

/// What is handed out of a long run is freed under way: a day of calls is half a gigabyte.
fn in_parts(mut open: Vec<Arrival>) -> impl Iterator<Item = Arrival> {
    let mut parts = Vec::new();
    while open.len() > PART {
        parts.push(open.split_off(open.len() - PART));
        open.shrink_to_fit();
    }
    parts.push(open);
    parts.into_iter().rev().flatten()
}

// === impl Engine ===

impl Engine {
    fn start_clients(&mut self) {
        for (i, client) in (0_u32..).zip(&mut self.clients) {
            self.desk.agenda.at(Tick::default().after(client.first()), Event::Client(i));
        }
    }

    fn drive(&mut self, open: Vec<Arrival>, policy: &mut dyn Policy) {
        let end = self.horizon.after(self.horizon.since(Tick::default()) / 2).after(TAIL);
        let mut open = in_parts(open).peekable();
        loop {
            let due = [
                (open.peek().map(|arrival| arrival.at), First::Arrival),
                (self.desk.agenda.next_at(), First::Event),
                (self.desk.wake, First::Wake),
            ];
            let next = due.into_iter().filter_map(|(at, what)| at.map(|at| (at, what))).min();
            let Some((at, what)) = next.filter(|(at, _)| *at <= end) else { return };
            // A policy may ask for an instant that has passed: it gets the present one.
            self.desk.now = self.desk.now.max(at);
            match what {
                First::Arrival => {
                    if let Some(arrival) = open.next() {
                        let id = self.desk.admit(arrival, None);
                        policy.arrival(&mut self.desk, id);
                    }
                }
                First::Event => {
                    if let Some(event) = self.desk.agenda.pop() {
                        self.handle(event, policy);
                    }
                }
                First::Wake => {
                    self.desk.wake = None;
                    policy.tick(&mut self.desk);
                }
            }
            self.free_clients();
        }
    }

    fn handle(&mut self, event: Event, policy: &mut dyn Policy) {
        match event {
            Event::Client(client) => {
                let now = self.desk.now;
                if now > self.horizon {
                    return;
                }
                let arrival = self.clients[client as usize].call(now);
                let id = self.desk.admit(arrival, Some(client));
                policy.arrival(&mut self.desk, id);
            }
            Event::Cancel(id) => {
                if self.desk.leave(id) {
                    policy.cancel(&mut self.desk, id);
                }
            }
            Event::Upstream(step) => {
                let Desk { upstream, agenda, now, .. } = &mut self.desk;
                upstream.step(*now, step, agenda);
            }
            Event::Answer(id, status) => {
                if let Some(done) = self.desk.answer(id, status) {
                    policy.done(&mut self.desk, &done);
                }
            }
        }
    }

    /// Whoever has the end of a call thinks, and comes again.
    fn free_clients(&mut self) {
        while let Some(client) = self.desk.freed_clients.pop() {
            let think = self.clients[client as usize].think();
            self.desk.agenda.at(self.desk.now.after(think), Event::Client(client));
        }
    }
}
