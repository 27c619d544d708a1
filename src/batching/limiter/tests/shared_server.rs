//! Tests of the limiters of two cost classes before one serial server.

use std::collections::{BTreeSet, VecDeque};

use super::super::super::math::round_to_u64;
use super::super::super::rng::SplitMix64;
use super::super::super::tick::Tick;
use super::super::{ConcurrencyLimiter, ExecutionEnd, ExecutionStart, FlowMode, OpenReason, Permit, PermitRequest};
use super::{MS, Request, SERIAL, ServerModel};

/// Closed-loop clients of a cost class.
struct ClassClients {
    flow: ConcurrencyLimiter,
    queue: Vec<u64>,
}

/// A server that runs one request at a time, in order of arrival, and the clients of its classes.
struct SharedServer {
    model: ServerModel,
    classes: Vec<ClassClients>,
    waiting: VecDeque<(usize, Request)>,
    running: Option<(u64, usize, Request)>,
    /// Next calls of clients that were answered, with the index of their class.
    returning: BTreeSet<(u64, usize, u64)>,
    random: SplitMix64,
    now: u64,
}

impl SharedServer {
    fn new(model: ServerModel, callers: &[usize], seed: u64) -> Self {
        let class = |count: &usize| ClassClients { flow: ConcurrencyLimiter::new(), queue: vec![0; *count] };
        Self {
            model,
            classes: callers.iter().map(class).collect(),
            waiting: VecDeque::new(),
            running: None,
            returning: BTreeSet::new(),
            random: SplitMix64::new(seed),
            now: 0,
        }
    }

    /// Sends what the limiters permit, one execution of each class in turn.
    fn send(&mut self) {
        let mut has_sent = true;
        while has_sent {
            has_sent = false;
            let all = self.waiting.len() + usize::from(self.running.is_some());
            for (index, class) in self.classes.iter_mut().enumerate() {
                class.flow.set_all_in_flight(all);
                if let Some(request) = class.send_one(Tick(self.now)) {
                    self.waiting.push_back((index, request));
                    has_sent = true;
                }
            }
        }
        if self.running.is_none()
            && let Some((index, request)) = self.waiting.pop_front()
        {
            let factor = 1.0 + f64::from(request.items - 1) * self.model.per_item;
            // The times of a real server differ.
            let takes = round_to_u64(self.model.unbatched as f64 * factor) * (900 + self.draw(200)) / 1000;
            self.running = Some((self.now + takes, index, request));
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random.next_u64() % below
    }

    /// Runs for this long and returns the number of calls answered meanwhile.
    fn run(&mut self, millis: u64) -> u64 {
        let (until, mut answered) = (self.now + millis * MS, 0);
        self.send();
        loop {
            let end = self.running.as_ref().map_or(u64::MAX, |(at, ..)| *at);
            let arrival = self.returning.first().map_or(u64::MAX, |(at, ..)| *at);
            if end.min(arrival) > until {
                break;
            }
            self.now = end.min(arrival);
            if arrival <= end
                && let Some((at, index, _)) = self.returning.pop_first()
            {
                self.classes[index].queue.push(at);
            } else if let Some((at, index, request)) = self.running.take() {
                answered += self.classes[index].complete(at, &request);
                // Clients need some time for their next call.
                for number in 0..u64::from(request.items) {
                    let next = at + MS / 2 + self.draw(3 * MS);
                    self.returning.insert((next, index, number));
                }
            }
            self.send();
        }
        self.now = until;
        answered
    }
}

impl ClassClients {
    fn send_one(&mut self, now: Tick) -> Option<Request> {
        let queued = self.queue.len() as u64;
        let arrived = Tick(*self.queue.first()?);
        let request = PermitRequest { now, unmergeable: false, arrived, has_second: queued > 1, queued };
        let permit = self.flow.permit(&request);
        let calls = match permit {
            Permit::Forward | Permit::Control => 1,
            Permit::Pair => 2,
            Permit::Share(items) | Permit::Probe(items) => items as usize,
            Permit::Hold(_) | Permit::Full => return None,
        };
        let arrived: Vec<u64> = self.queue.drain(..calls.min(self.queue.len())).collect();
        let items = u32::try_from(arrived.len()).unwrap();
        let queued = self.queue.len() as u64;
        let start = ExecutionStart { items, calls: items, unmergeable: false, permit, queued, expected: 0 };
        Some(Request { items, connecting: false, arrived, mark: self.flow.on_dispatch(now, &start) })
    }

    fn complete(&mut self, at: u64, request: &Request) -> u64 {
        let (first, last) = (request.arrived[0], *request.arrived.last().unwrap());
        let done = ExecutionEnd::new(true, request.items, Tick(first), Tick(last), self.queue.len() as u64, 64);
        self.flow.on_completion(Tick(at), &request.mark, done);
        request.arrived.len() as u64
    }
}

/// Returns the calls answered per second in two minutes, and the number of times that a limiter was
/// open for room at the end of a second.
fn measure_rate(model: ServerModel, callers: &[usize], seed: u64) -> (u64, usize) {
    let mut server = SharedServer::new(model, callers, seed);
    let (mut answered, mut openings) = (0, 0);
    for _ in 0..120 {
        answered += server.run(1000);
        let modes = server.classes.iter().map(|class| class.flow.mode());
        openings += modes.filter(|mode| *mode == FlowMode::Open(OpenReason::RoomFound)).count();
    }
    (answered / 120, openings)
}

#[test]
fn two_classes_before_a_serial_server_are_merged() {
    let mut all_openings = 0;
    // Two limits of one give these rates, of 50 calls a second without batches.
    for (callers, rate) in [([18, 6], 230), ([6, 18], 230), ([12, 12], 235), ([22, 2], 195), ([9, 3], 137)] {
        for seed in 1..=12 {
            let (measured, openings) = measure_rate(SERIAL, &callers, seed);
            assert!(measured >= rate * 95 / 100, "{measured} calls a second of {callers:?} with seed {seed}");
            all_openings += openings;
        }
    }
    // The few calls of one class add little to the wait behind the many of the other one, so that
    // its probes hit.
    assert!(all_openings > 0, "no opening was verified");
}

#[test]
fn two_classes_before_a_server_that_gains_nothing_from_batches_lose_nothing() {
    let model = ServerModel { per_item: 1.0, ..SERIAL };
    for callers in [[12, 12], [18, 6], [6, 18], [22, 2]] {
        for seed in 1..=6 {
            let (measured, _) = measure_rate(model, &callers, seed);
            assert!(measured >= 49, "{measured} calls a second of {callers:?} with seed {seed}, 50 directly");
        }
    }
}
