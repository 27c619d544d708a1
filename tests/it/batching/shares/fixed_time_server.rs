//! A server with one slot and a fixed time for each size, and the core in front of it, so that
//! shares can be checked to the batch.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use groupage::batching::{
    Batch, BatchOutcome, Batcher, Call, CallId, Decision, DispatchPolicy, Feature, Limits, Observation, PriorityClass,
    ScopeLimits, Tick, Weight, solve,
};

const US: Duration = Duration::from_micros(1);

/// Weight of a heavy item; a light one weighs 1.
pub(super) const HEAVY: u64 = 20;

/// Returns the execution time of a batch of this many items.
pub(super) fn execution_time(items: u32) -> Duration {
    4000 * US + 250 * US * items
}

/// The server, the core in front of it, and its calls.
#[derive(Debug)]
pub(super) struct FixedTimeServer {
    pub(super) core: Batcher,
    pub(super) now: Tick,
    /// Queued calls, with their arrival times.
    pub(super) queued: BTreeMap<CallId, (Call, Tick)>,
    /// The batch in flight, with the end and the duration of its execution.
    in_flight: Option<(Tick, Duration, Batch)>,
    /// Number of offered calls, which is the id of the next one.
    calls: u64,
    /// `true` if the server spends as much on each item as on the heaviest one.
    padded: bool,
}

/// A dispatched batch, with the arrival times of its calls.
#[derive(Debug)]
pub(super) struct DispatchedBatch {
    pub(super) batch: Batch,
    /// Time of dispatch.
    pub(super) sent: Tick,
    pub(super) calls: Vec<(Call, Tick)>,
}

/// Returns limits with this many items per batch, these classes, one slot, and an unbounded queue.
pub(super) fn limits(items: u32, priorities: &[PriorityClass]) -> Limits {
    let scope = ScopeLimits {
        batch_items_max: items,
        queue_items_max: u32::MAX,
        queue_bytes_max: u64::MAX,
        ..ScopeLimits::default()
    };
    Limits {
        policy: DispatchPolicy::Adaptive { hold_permille: 0 },
        queue_items_max: u32::MAX,
        scopes: vec![scope],
        priorities: priorities.to_vec(),
        ..Limits::default()
    }
}

/// Returns a class of this weight.
pub(super) fn class_with_weight(weight: u32) -> PriorityClass {
    PriorityClass { weight, ..PriorityClass::PLAIN }
}

// === impl FixedTimeServer ===

impl FixedTimeServer {
    pub(super) fn new(limits: Limits) -> Self {
        Self::of(Batcher::new(limits, 7))
    }

    fn of(core: Batcher) -> Self {
        let queued = BTreeMap::new();
        Self { core, now: Tick::from_millis(1), queued, in_flight: None, calls: 0, padded: false }
    }

    /// Returns a server that its core knows: it has answered calls of every size up to this one.
    pub(super) fn warm(limits: Limits, items: u32) -> Self {
        // Without pass-through, the core treats the server as serial from the start.
        let mut server = Self::of(Batcher::new(limits, 7).without_feature(Feature::StandAside));
        // A pair of calls shows that the server accepts batches.
        for _ in 0..2 {
            server.offer(|call| call);
        }
        server.run_until_empty();
        for round in 0..40 {
            server.offer(|call| Call { items: 1 + round % items, ..call });
            server.run_until_empty();
        }
        server
    }

    /// Returns a padding server that its core knows: it has answered batches of light calls, of
    /// heavy calls and of both.
    pub(super) fn padded(limits: Limits) -> Self {
        let core = Batcher::new(limits, 7).without_feature(Feature::StandAside);
        let mut server = Self { padded: true, ..Self::of(core) };
        for round in 0..60 {
            for place in 0..1 + round % 8 {
                let max = if (round + place) % 3 == 0 { HEAVY } else { 1 };
                server.offer_weighing(max, |call| call);
            }
            server.run_until_empty();
        }
        server
    }

    /// Offers a call with light items. `of` completes it.
    pub(super) fn offer(&mut self, of: impl FnOnce(Call) -> Call) -> CallId {
        self.offer_weighing(1, of)
    }

    /// Offers a call with items of this weight. `of` completes it.
    pub(super) fn offer_weighing(&mut self, weight: u64, of: impl FnOnce(Call) -> Call) -> CallId {
        let call = of(Call::new(CallId(self.calls)));
        let call = Call { weight: Weight { sum: weight * u64::from(call.items), max: weight }, ..call };
        self.calls += 1;
        let id = call.id;
        self.core.enqueue(self.now, call.clone()).expect("the queue is far from full");
        self.queued.insert(id, (call, self.now));
        id
    }

    /// Returns the batch that the core dispatches now, or `None`.
    pub(super) fn poll(&mut self) -> Option<DispatchedBatch> {
        while let Some((class, input)) = self.core.take_due_plan_input() {
            self.core.set_plan(self.now, class, solve(&input));
        }
        loop {
            match self.core.poll(self.now)? {
                Decision::Dispatch(batch) => {
                    assert!(self.in_flight.is_none(), "there is one slot");
                    let out = |id| self.queued.remove(&id).expect("a dispatched call was queued");
                    let calls: Vec<_> = batch.members.iter().map(|member| member.id).map(out).collect();
                    let took = self.duration(&calls);
                    self.in_flight = Some((self.now.after(took), took, batch.clone()));
                    return Some(DispatchedBatch { batch, sent: self.now, calls });
                }
                Decision::Expire { id, .. } => _ = self.queued.remove(&id),
                Decision::Abort(_) => unreachable!("no call is dispatched"),
            }
        }
    }

    /// Returns the execution time of a batch of these calls.
    fn duration(&self, calls: &[(Call, Tick)]) -> Duration {
        let items: u32 = calls.iter().map(|(call, _)| call.items).sum();
        let heaviest = calls.iter().map(|(call, _)| call.weight.max).max().unwrap_or(1);
        let heaviest = u32::try_from(heaviest).unwrap_or(u32::MAX);
        if self.padded { 4000 * US + 50 * US * items * heaviest } else { execution_time(items) }
    }

    /// Advances the time to the end of the batch in flight, or to the core's next wake-up. Returns
    /// `false` if there is neither.
    pub(super) fn step(&mut self) -> bool {
        if let Some((at, took, batch)) = self.in_flight.take() {
            self.now = self.now.max(at);
            let observed = Observation { duration: took, first_byte: None, outcome: BatchOutcome::Ok };
            self.core.complete(self.now, batch.id, observed);
            return true;
        }
        let wakeup = self.core.next_wakeup();
        self.now = self.now.max(wakeup.unwrap_or(self.now));
        wakeup.is_some()
    }

    /// Advances the time as [`Self::step`] does, if the next event is before this instant. Returns
    /// `false` otherwise.
    pub(super) fn step_until(&mut self, end: Tick) -> bool {
        let next = self.in_flight.as_ref().map(|(at, ..)| *at).or_else(|| self.core.next_wakeup());
        next.is_some_and(|next| next < end) && self.step()
    }

    /// Returns the next batch, advancing the time as needed.
    pub(super) fn next(&mut self) -> DispatchedBatch {
        loop {
            if let Some(dispatched) = self.poll() {
                return dispatched;
            }
            assert!(self.step(), "{} calls wait without a reason", self.queued.len());
        }
    }

    pub(super) fn run_until_empty(&mut self) {
        while !self.queued.is_empty() || self.in_flight.is_some() {
            if self.poll().is_none() {
                assert!(self.step(), "{} calls wait without a reason", self.queued.len());
            }
        }
    }

    /// Offers the calls of `arrivals` at their arrival times until an instant. Returns the
    /// dispatched batches.
    pub(super) fn run(&mut self, until: Tick, mut arrivals: VecDeque<(Tick, Call)>) -> Vec<DispatchedBatch> {
        let mut all = Vec::new();
        while self.now < until {
            while arrivals.front().is_some_and(|(at, _)| *at <= self.now) {
                if let Some((_, call)) = arrivals.pop_front() {
                    self.offer(|given| Call { id: given.id, ..call });
                }
            }
            while let Some(dispatched) = self.poll() {
                all.push(dispatched);
            }
            let arrival = arrivals.front().map(|(at, _)| *at);
            let end = self.in_flight.as_ref().map(|(at, ..)| *at).or_else(|| self.core.next_wakeup());
            match (arrival, end) {
                (Some(arrival), end) if end.is_none_or(|end| arrival < end) => self.now = arrival,
                (_, Some(_)) => _ = self.step(),
                (_, None) => break,
            }
        }
        all
    }
}

// === impl DispatchedBatch ===

impl DispatchedBatch {
    pub(super) fn ids(&self) -> Vec<CallId> {
        self.calls.iter().map(|(call, _)| call.id).collect()
    }

    /// Returns the number of items of the calls that match.
    pub(super) fn items(&self, such: impl Fn(&Call) -> bool) -> u32 {
        self.calls.iter().filter(|(call, _)| such(call)).map(|(call, _)| call.items).sum()
    }
}
