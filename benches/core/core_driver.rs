//! A driver of the batching core that mirrors the proxy: one event, then `poll` until it returns
//! `None`, then `next_wakeup`. The server behind it is simulated in virtual time.
//!
//! The overhead of the driver is a few nanoseconds per item and counts as cost of the core.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use groupage::batching::rng::SplitMix64;
use groupage::batching::{
    Batch, BatchId, BatchOutcome, Batcher, Call, CallId, Deadline, DeadlineSource, Decision, DispatchPolicy, KeyId,
    Limits, Observation, ScopeLimits, TenantId, Tick, Weight, solve,
};

use crate::allocations;

/// A load on the core, and the server that it is meant for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    /// Number of calls that are kept queued. With `None`, calls arrive at `rate`.
    pub(crate) queued: Option<u64>,
    /// Number of closed-loop clients. Each makes its next call after a think time with a mean of
    /// 1/`rate` seconds. With 0, arrivals do not depend on answers.
    pub(crate) clients: usize,
    /// Calls per second.
    pub(crate) rate: u64,
    /// Maximum number of items of a batch.
    pub(crate) batch_max: u32,
    pub(crate) slo: Option<Duration>,
    pub(crate) tenants: u64,
    pub(crate) keys: u64,
    /// `true` if the server pads all items to the heaviest one and weights differ.
    pub(crate) weights: bool,
}

/// Measurements of a stretch of batches.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StretchMeasurement {
    pub(crate) items: u64,
    pub(crate) batches: u64,
    pub(crate) allocations: u64,
    pub(crate) spent: Duration,
    /// Part of `spent` in polls that dispatched a batch.
    pub(crate) deciding: Duration,
    /// Time to solve plans, which is not part of `spent` because the proxy solves them on another
    /// thread.
    pub(crate) solving: Duration,
    pub(crate) plans: u64,
}

/// The core, its load and its server.
pub(crate) struct CoreDriver {
    load: Load,
    batcher: Batcher,
    now: Tick,
    next_call: u64,
    next_arrival: Tick,
    /// Times at which clients make their next calls.
    thinking: BinaryHeap<Reverse<Tick>>,
    /// Time at which the server has executed all batches in flight.
    free_at: Tick,
    /// Executions in flight: time of completion, time of dispatch, batch and number of items.
    in_flight: VecDeque<(Tick, Tick, BatchId, u32)>,
    random: SplitMix64,
    measured: StretchMeasurement,
    time_decisions: bool,
}

// === impl Load ===

impl Load {
    /// 2048 calls queued all the time, one key, one tenant, and an SLO that is met.
    pub(crate) const DEEP: Self = Self {
        name: "2048 queued",
        queued: Some(2048),
        clients: 0,
        rate: 0,
        batch_max: 64,
        slo: Some(Duration::from_secs(3)),
        tenants: 1,
        keys: 1,
        weights: false,
    };
    /// Poisson arrivals at 80 % of the capacity with batches of 64.
    pub(crate) const MID: Self =
        Self { name: "80 % load", queued: None, rate: 2560, slo: Some(Duration::from_millis(200)), ..Self::DEEP };
    /// 32 clients with a think time of 2 ms.
    pub(crate) const LOOP: Self =
        Self { name: "32 clients in a loop", queued: None, clients: 32, rate: 500, ..Self::MID };
    /// A server that pads and texts of all lengths, somewhat below its capacity.
    pub(crate) const PADDED: Self =
        Self { name: "weights that matter", queued: None, rate: 900, weights: true, ..Self::MID };

    /// More than the capacity, so that a decision has the most calls to choose from.
    pub(crate) const PADDED_OVER: Self =
        Self { name: "weights, overload", rate: 2600, slo: Some(Duration::from_millis(80)), ..Self::PADDED };

    /// Returns `true` if the limit for the cost of an item applies: to batches of 8 and more with
    /// 2048 calls queued.
    pub(crate) fn is_judged(&self) -> bool {
        self.queued.is_some()
    }
}

// === impl CoreDriver ===

impl CoreDriver {
    pub(crate) fn new(load: Load) -> Self {
        let scope = ScopeLimits { batch_items_max: load.batch_max, ..ScopeLimits::default() };
        let limits = Limits {
            policy: DispatchPolicy::Adaptive { hold_permille: 0 },
            // The server executes one batch at a time. Without this limit, all queued calls would
            // be in flight before the first answer.
            slots: 1,
            queue_items_max: 2048,
            scopes: vec![scope],
            ..Limits::default()
        };
        Self {
            load,
            batcher: Batcher::new(limits, 1),
            now: Tick::default(),
            next_call: 0,
            next_arrival: Tick::default(),
            thinking: std::iter::repeat_n(Reverse(Tick::default()), load.clients).collect(),
            free_at: Tick::default(),
            in_flight: VecDeque::new(),
            random: SplitMix64::new(1),
            measured: StretchMeasurement::default(),
            time_decisions: false,
        }
    }

    /// Enables the timing of each decision, which takes time itself.
    pub(crate) fn timing_decisions(mut self) -> Self {
        self.time_decisions = true;
        self
    }

    pub(crate) fn now(&self) -> Tick {
        self.now
    }

    /// Runs until this number of further batches are complete.
    pub(crate) fn run(&mut self, batches: u64) -> StretchMeasurement {
        self.measured = StretchMeasurement::default();
        let (start, count_before) = (now(), allocations::count());
        while self.measured.batches < batches {
            self.step();
        }
        self.measured.spent = since(start).saturating_sub(self.measured.solving);
        self.measured.allocations = allocations::count() - count_before;
        self.measured
    }

    /// Stops arrivals and returns the wake-up that the core requests once all calls are answered.
    pub(crate) fn wakeup_when_idle(mut self) -> Option<Tick> {
        self.load.queued = Some(0);
        while !self.in_flight.is_empty() || self.batcher.counts().queue_calls > 0 {
            self.step();
        }
        self.batcher.next_wakeup()
    }

    fn step(&mut self) {
        if let Some(queued) = self.load.queued {
            while self.next_arrival <= self.now && (self.batcher.counts().queue_calls as u64) < queued {
                self.offer();
            }
        }
        // The next event is the earliest of an arrival, a completion and the wake-up of the core.
        let arrival = match self.load {
            Load { queued: Some(_), .. } => None,
            Load { clients: 0, .. } => Some(self.next_arrival),
            _ => self.thinking.peek().map(|at| at.0),
        };
        let completion = self.in_flight.front().map(|(due, ..)| *due);
        let wake = self.batcher.next_wakeup();
        let Some(next) = [arrival, completion, wake].into_iter().flatten().min() else { return };
        self.now = self.now.max(next);
        if arrival.is_some_and(|at| at <= self.now) {
            if self.thinking.pop().is_none() {
                self.next_arrival = self.next_call_time();
            }
            self.offer();
        } else if completion.is_some_and(|at| at <= self.now) {
            self.complete();
        } else {
            self.poll();
        }
    }

    fn offer(&mut self) {
        let id = self.next_call;
        self.next_call += 1;
        let deadline = self.load.slo.map(|slo| Deadline { at: self.now.after(slo), source: DeadlineSource::Slo });
        let weight = self.weight(id);
        let call = Call {
            key: KeyId(id % self.load.keys),
            tenant: TenantId(id % self.load.tenants),
            deadline,
            weight: Weight { sum: weight, max: weight },
            bytes: 256,
            ..Call::new(CallId(id))
        };
        if self.batcher.enqueue(self.now, call).is_ok() {
            self.poll();
        }
    }

    fn poll(&mut self) {
        loop {
            let start = self.time_decisions.then(now);
            let Some(decision) = self.batcher.poll(self.now) else { return };
            if let Decision::Dispatch(batch) = decision {
                if let Some(start) = start {
                    self.measured.deciding += since(start);
                }
                self.on_dispatch(&batch);
            }
        }
    }

    fn on_dispatch(&mut self, batch: &Batch) {
        let n = u64::from(batch.items);
        let mut nanos = 4_000_000 + 250_000 * n;
        if self.load.weights {
            let heaviest = batch.members.iter().map(|member| self.weight(member.id.0)).max().unwrap_or(1);
            nanos = 4_000_000 + 50_000 * n + 2_000 * n * heaviest;
        }
        // Uniform noise of ±4 %.
        nanos = nanos / 100 * (96 + self.draw() % 9);
        let starts = self.free_at.max(self.now);
        self.free_at = Tick(starts.0 + nanos);
        self.in_flight.push_back((self.free_at, self.now, batch.id, batch.items));
    }

    fn complete(&mut self) {
        let Some((_, sent, id, items)) = self.in_flight.pop_front() else { return };
        let duration = self.now.since(sent);
        self.measured.batches += 1;
        self.measured.items += u64::from(items);
        if self.load.clients > 0 {
            for _ in 0..items {
                let at = self.next_call_time();
                self.thinking.push(Reverse(at));
            }
        }
        self.batcher.complete(self.now, id, Observation { duration, first_byte: None, outcome: BatchOutcome::Ok });
        while let Some((class, input)) = self.batcher.take_due_plan_input() {
            let start = now();
            let plan = solve(&input);
            self.measured.solving += since(start);
            self.measured.plans += 1;
            self.batcher.set_plan(self.now, class, plan);
        }
        self.poll();
    }

    /// Returns the time of the next arrival, or of the next call of a client.
    fn next_call_time(&mut self) -> Tick {
        let from = if self.load.clients > 0 { self.now } else { self.next_arrival };
        Tick(from.0 + exponential(self.draw(), self.load.rate))
    }

    /// Returns the weight of a call, which depends on its ID alone.
    fn weight(&self, id: u64) -> u64 {
        if self.load.weights { 8 + SplitMix64::new(id).next_u64() % 504 } else { 1 }
    }

    fn draw(&mut self) -> u64 {
        self.random.next_u64()
    }
}

/// Returns the nanoseconds until the next call of a Poisson process, by inversion.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and a gap is no more than seconds"
)]
#[expect(clippy::cast_precision_loss, reason = "the numbers of a bench")]
fn exponential(random: u64, rate: u64) -> u64 {
    let unit = ((random >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-unit.ln() * 1e9 / rate as f64) as u64
}

#[expect(clippy::disallowed_methods, reason = "a bench measures from outside")]
fn now() -> Instant {
    Instant::now()
}

fn since(start: Instant) -> Duration {
    now().saturating_duration_since(start)
}
