//! Clients, a simulated upstream and a virtual clock around one core.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use groupage::batching::{
    Batch, BatchId, BatchOutcome, Batcher, CallId, CostClassId, Decision, InvariantId, Limits, Observation, Plan, Tick,
    solve,
};

use super::invariants::InvariantChecker;
use super::run_parameters::{ArrivalProcess, RunParameters};
use super::upstream::{ServerReaction, Upstream};
use crate::sim::invariant::{CheckResult, Violation, ensure_invariant};
use crate::sim::random::RandomSource;
use crate::sim::trace::{CoreResponse, Event, apply_event};

const MS: Duration = Duration::from_millis(1);

/// A scheduled event.
#[derive(Debug)]
enum ScheduledEvent {
    /// Arrival of this many calls. It schedules the next arrival if it is `leading`.
    Arrive {
        calls: u64,
        leading: bool,
    },
    Cancel(CallId),
    Answer(CallId),
    End(BatchId, Observation),
    /// End of the current run of a server that batches by itself.
    RunEnd,
    Plan(CostClassId, Plan),
    Drain,
}

/// An entry of the log: an event with the core's response, or a plan.
#[derive(Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "plans are few beside events")]
pub(super) enum LogEntry {
    Event(Event, CoreResponse),
    Plan(Tick, CostClassId),
}

/// A simulation in progress.
#[derive(Debug)]
pub(super) struct Simulation {
    pub(super) log: Vec<LogEntry>,
    pub(super) checker: InvariantChecker,
    limits: Limits,
    core: Batcher,
    draw: RandomSource,
    parameters: RunParameters,
    upstream: Upstream,
    /// Events by time and by [`Self::schedule_count`], so that those of one instant keep their
    /// order.
    scheduled: BTreeMap<(Tick, u64), ScheduledEvent>,
    /// Number of events that were scheduled.
    schedule_count: u64,
    /// Number of calls that have arrived, which is the id of the next one.
    calls: u64,
    now: Tick,
}

// === impl Simulation ===

impl Simulation {
    pub(super) fn new(seed: u64) -> Self {
        let mut draw = RandomSource::new(seed);
        let parameters = RunParameters::new(&mut draw);
        let limits = parameters.limits(&mut draw);
        Self {
            log: Vec::new(),
            checker: InvariantChecker::new(
                limits.clone(),
                parameters.server.unbatched_time(1) / 2,
                parameters.poll_delay_max == 0,
            ),
            core: Batcher::new(limits.clone(), seed),
            limits,
            draw,
            upstream: Upstream::new(parameters.server.clone()),
            parameters,
            scheduled: BTreeMap::new(),
            schedule_count: 0,
            calls: 0,
            now: Tick::default(),
        }
    }

    /// Returns the last steps as text.
    pub(super) fn text(&self, steps: usize) -> String {
        let mut text = format!("{:?}\nlimits {:?}\n", self.parameters, self.limits);
        for entry in self.log.iter().skip(self.log.len().saturating_sub(steps)) {
            _ = match entry {
                LogEntry::Event(event, CoreResponse::Nothing) => writeln!(text, "{event}"),
                LogEntry::Event(event, response) => writeln!(text, "{event} -> {response}"),
                LogEntry::Plan(at, class) => writeln!(text, "{at:?} plan of class {}", class.0),
            };
        }
        text
    }

    /// Runs the simulation to its end, or to the first invariant violation.
    pub(super) fn run(&mut self) -> CheckResult {
        match self.parameters.arrivals {
            ArrivalProcess::Loop { clients } => {
                for _ in 0..clients {
                    let at = Tick::from_millis(1).after(self.draw.span(false, 5));
                    self.schedule(at, ScheduledEvent::Arrive { calls: 1, leading: false });
                }
            }
            _ => self.schedule(Tick::from_millis(1), ScheduledEvent::Arrive { calls: 1, leading: true }),
        }
        // Each call arrives, is cancelled, is answered and ends at most once, and causes some
        // wake-ups: for a lead, a hold, a plan or a deadline.
        let steps_max = 20 * self.parameters.calls + 200;
        let mut wakeup = None;
        for _ in 0..steps_max {
            let next = self.scheduled.first_key_value().map(|((at, _), _)| *at);
            let Some(woken) = self.draw.wakes_first(next, wakeup) else { return self.end() };
            if woken {
                let delay = Duration::from_micros(self.draw.between(0, self.parameters.poll_delay_max));
                let at = wakeup.unwrap_or(self.now).after(delay);
                self.now = next.map_or(at, |next| at.min(next)).max(self.now);
            } else {
                self.apply_next_event()?;
            }
            wakeup = self.poll_until_idle()?;
        }
        ensure_invariant(InvariantId::Ends, false, || format!("not at its end after {steps_max} steps"))
    }

    fn end(&mut self) -> CheckResult {
        if !self.parameters.drains {
            self.checker.record_situation("left without drain");
        }
        self.checker.check_end()
    }

    fn schedule(&mut self, at: Tick, event: ScheduledEvent) {
        self.scheduled.insert((at.max(self.now), self.schedule_count), event);
        self.schedule_count += 1;
    }

    fn apply(&mut self, event: Event) -> Result<CoreResponse, Violation> {
        let ceilings: Vec<_> = (0..3).map(|class| self.core.ceiling(CostClassId(class))).collect();
        // Logged before it is applied, so that an event at which the core panics is the last of the
        // log.
        self.log.push(LogEntry::Event(event, CoreResponse::Nothing));
        let Some(LogEntry::Event(event, last)) = self.log.last_mut() else { unreachable!("just pushed") };
        let response = apply_event(&mut self.core, event);
        *last = response.clone();
        let ceiling =
            |class: CostClassId| usize::try_from(class.0).ok().and_then(|class| ceilings.get(class).copied()).flatten();
        self.checker.step(event, &response, &self.core, ceiling)?;
        Ok(response)
    }

    /// Applies the next scheduled event, and sometimes the others of the same instant before the
    /// next poll.
    fn apply_next_event(&mut self) -> CheckResult {
        while let Some(((at, _), event)) = self.scheduled.pop_first() {
            self.now = self.now.max(at);
            match event {
                ScheduledEvent::Arrive { calls, leading } => self.arrive(calls, leading)?,
                ScheduledEvent::Cancel(id) => {
                    let queued = self.checker.is_queued(id);
                    self.apply(Event::Cancel(self.now, id))?;
                    // If a call is cancelled during its execution, its client calls again when the
                    // batch completes.
                    self.on_calls_ended(usize::from(queued), MS);
                }
                ScheduledEvent::Answer(id) => _ = self.apply(Event::Answered(id))?,
                ScheduledEvent::End(batch, observed) => self.complete(batch, observed)?,
                ScheduledEvent::RunEnd => self.on_run_end()?,
                ScheduledEvent::Plan(class, plan) => {
                    self.log.push(LogEntry::Plan(self.now, class));
                    self.core.set_plan(self.now, class, plan);
                    self.checker.record_situation("planned");
                }
                ScheduledEvent::Drain => _ = self.apply(Event::Drain(self.now))?,
            }
            let more = self.scheduled.first_key_value().is_some_and(|((next, _), _)| *next == at);
            if !more || self.draw.chance(300) {
                break;
            }
        }
        Ok(())
    }

    fn arrive(&mut self, calls: u64, leading: bool) -> CheckResult {
        for _ in 0..calls {
            self.offer()?;
        }
        if self.draw.chance(self.parameters.edits) {
            self.change_limits()?;
        }
        if self.draw.chance(self.parameters.changes) {
            let unbatched_time = self.upstream.change(&mut self.draw);
            self.checker.hopeless = self.checker.hopeless.min(unbatched_time / 2);
        }
        if !leading {
            return Ok(());
        }
        if self.calls >= self.parameters.calls {
            if self.parameters.drains {
                let at = self.now.after(self.draw.span(false, 10));
                self.schedule(at, ScheduledEvent::Drain);
            }
            return Ok(());
        }
        let calls = match self.parameters.arrivals {
            ArrivalProcess::Loop { .. } | ArrivalProcess::Poisson { .. } => 1,
            ArrivalProcess::FanOut { calls, .. } => {
                for _ in 1..calls {
                    let at = self.now.after(self.draw.span(false, 1) * 6 / 10);
                    self.schedule(at, ScheduledEvent::Arrive { calls: 1, leading: false });
                }
                1
            }
            ArrivalProcess::Bursts { calls, .. } => self.draw.between(1, calls),
        };
        let gap = match self.parameters.arrivals {
            ArrivalProcess::Bursts { gap, .. } => MS * self.draw.count(0, u32::try_from(2 * gap).unwrap_or(0)),
            ArrivalProcess::Poisson { gap } | ArrivalProcess::FanOut { gap, .. } => exponential(&mut self.draw, gap),
            ArrivalProcess::Loop { .. } => MS,
        };
        self.schedule(self.now.after(gap), ScheduledEvent::Arrive { calls, leading: true });
        Ok(())
    }

    fn offer(&mut self) -> CheckResult {
        if self.calls >= self.parameters.calls {
            return Ok(());
        }
        let id = CallId(self.calls);
        self.calls += 1;
        let call = self.parameters.call(&mut self.draw, self.now, id);
        if self.draw.chance(self.parameters.cancels) {
            let at = self.now.after(self.draw.span(false, 40));
            self.schedule(at, ScheduledEvent::Cancel(id));
        }
        if let CoreResponse::Offered(Err(_)) = self.apply(Event::Offer(self.now, call))? {
            self.on_calls_ended(1, 5 * MS);
        }
        Ok(())
    }

    /// Records that calls have ended, answered or not. In a closed loop their clients call again,
    /// after `pause` and a think time.
    fn on_calls_ended(&mut self, clients: usize, pause: Duration) {
        if let ArrivalProcess::Loop { .. } = self.parameters.arrivals {
            for _ in 0..clients {
                let think = self.draw.span(false, 1) / 5 + MS / 10;
                self.schedule(self.now.after(think + pause), ScheduledEvent::Arrive { calls: 1, leading: false });
            }
        }
    }

    /// Publishes a limit of the server, or replaces the configured limits.
    fn change_limits(&mut self) -> CheckResult {
        if self.draw.chance(150) {
            let class = CostClassId(self.draw.count(0, 2));
            if self.draw.chance(500) {
                let weight_max = self.draw.between(0, 2000);
                return self.apply(Event::PublishWeight(self.now, class, weight_max)).map(|_| ());
            }
            let items_max = self.draw.count(0, 40);
            return self.apply(Event::Publish(self.now, class, items_max)).map(|_| ());
        }
        self.limits = self.parameters.limits(&mut self.draw);
        self.apply(Event::SetLimits(self.limits.clone())).map(|_| ())
    }

    /// Polls until there is no decision. Returns the next wake-up.
    fn poll_until_idle(&mut self) -> Result<Option<Tick>, Violation> {
        for _ in 0..=self.checker.decisions_max() {
            match self.apply(Event::Poll(self.now))? {
                CoreResponse::Decided(Decision::Dispatch(batch)) => self.execute(&batch),
                CoreResponse::Decided(Decision::Abort(batch)) => self.abort(batch),
                CoreResponse::Decided(Decision::Expire { .. }) => self.on_calls_ended(1, MS),
                CoreResponse::Idle(wakeup) => {
                    if self.parameters.plans
                        && let Some((class, input)) = self.core.take_due_plan_input()
                    {
                        let at = self.now.after(self.draw.span(false, 100));
                        self.schedule(at, ScheduledEvent::Plan(class, solve(&input)));
                    }
                    return Ok(wakeup);
                }
                response => unreachable!("poll returns {response:?}"),
            }
        }
        Err(Violation { invariant: InvariantId::Ends, how: format!("does not stop deciding at {:?}", self.now) })
    }

    fn execute(&mut self, batch: &Batch) {
        let heaviest = self.checker.heaviest(batch.id);
        let others = self.checker.in_flight_count() - 1;
        match self.upstream.handle_batch(&mut self.draw, self.now, batch, heaviest, others) {
            ServerReaction::Ends(at, observed) => {
                let early = observed.outcome != BatchOutcome::Ok || self.draw.chance(50);
                if early {
                    self.answer_early(batch.id, at);
                }
                self.schedule(at, ScheduledEvent::End(batch.id, observed));
            }
            ServerReaction::Collects => {}
            ServerReaction::Runs(at) => self.schedule(at, ScheduledEvent::RunEnd),
        }
    }

    /// Answers some members early: isolation answers members one by one before the end of the
    /// execution, and so does an upstream that answers early.
    fn answer_early(&mut self, batch: BatchId, end: Tick) {
        for id in self.checker.waiting(batch) {
            if self.draw.chance(600) {
                let permille = self.draw.count(0, 1000);
                let at = self.now.after(end.since(self.now) / 1000 * permille);
                self.schedule(at, ScheduledEvent::Answer(id));
            }
        }
    }

    fn complete(&mut self, batch: BatchId, observed: Observation) -> CheckResult {
        let clients = self.checker.members(batch);
        self.apply(Event::Complete(self.now, batch, observed))?;
        self.on_calls_ended(clients, Duration::ZERO);
        Ok(())
    }

    fn on_run_end(&mut self) -> CheckResult {
        let (answered, next) = self.upstream.on_run_end(&mut self.draw, self.now);
        for (batch, sent) in answered {
            let observed = Observation { duration: self.now.since(sent), first_byte: None, outcome: BatchOutcome::Ok };
            self.complete(batch, observed)?;
        }
        if let Some(at) = next {
            self.schedule(at, ScheduledEvent::RunEnd);
        }
        Ok(())
    }

    /// Drops the execution. Its completion is reported at once or shortly afterwards.
    fn abort(&mut self, batch: BatchId) {
        self.upstream.cancel_batch(batch);
        let end = self.scheduled.iter().find(|(_, event)| matches!(event, ScheduledEvent::End(id, _) if *id == batch));
        if let Some(at) = end.map(|(at, _)| *at) {
            self.scheduled.remove(&at);
        }
        let observed = Observation { duration: MS, first_byte: None, outcome: BatchOutcome::Cancelled };
        let at = self.now.after(MS * self.draw.count(0, 2));
        self.schedule(at, ScheduledEvent::End(batch, observed));
    }
}

/// Returns an exponentially distributed duration with this mean. Uses von Neumann's comparison
/// method ("Various techniques used in connection with random digits", 1951), which needs no
/// floating-point logarithm, so the result is the same on every machine.
pub(super) fn exponential(draw: &mut RandomSource, mean: Duration) -> Duration {
    let mut whole = 0_u32;
    loop {
        let first = draw.next();
        let (mut last, mut run) = (first, 1_u32);
        loop {
            let next = draw.next();
            if next >= last {
                break;
            }
            (last, run) = (next, run + 1);
        }
        if run % 2 == 1 {
            let part = u32::try_from(first >> 44).unwrap_or(u32::MAX);
            return mean * whole + mean / (1 << 20) * part;
        }
        whole += 1;
    }
}
