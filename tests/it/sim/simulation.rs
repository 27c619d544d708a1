//! Clients, a fake upstream and a virtual clock around one core.

use std::collections::BTreeMap;

use groupage::batching::{
    Batch, BatchId, BatchOutcome, Batcher, CallId, CostClassId, Decision, InvariantId, Observation, Tick,
};

use super::invariant::{CheckResult, Violation, ensure_invariant};
use super::model::Model;
use super::random::RandomSource;
use super::run_parameters::RunParameters;
use super::trace::{CoreResponse, Event, Trace, apply_event};

/// A scheduled event.
#[derive(Debug, Clone, Copy)]
enum ScheduledEvent {
    Burst,
    Cancel(CallId),
    Answer(CallId),
    End(BatchId, Observation),
    Drain,
}

/// A simulation in progress.
#[derive(Debug)]
pub(crate) struct Simulation {
    pub(crate) trace: Trace,
    pub(crate) model: Model,
    core: Batcher,
    draw: RandomSource,
    parameters: RunParameters,
    planned: BTreeMap<(Tick, u64), ScheduledEvent>,
    plans: u64,
    calls: u64,
    now: Tick,
}

// === impl Simulation ===

impl Simulation {
    pub(crate) fn new(seed: u64) -> Self {
        let mut draw = RandomSource::new(seed);
        let parameters = RunParameters::new(&mut draw);
        let limits = parameters.limits(&mut draw);
        Self {
            trace: Trace { limits: limits.clone(), seed, events: Vec::new(), responses: Vec::new() },
            model: Model::new(limits.clone()),
            core: Batcher::new(limits, seed),
            draw,
            parameters,
            planned: BTreeMap::new(),
            plans: 0,
            calls: 0,
            now: Tick::default(),
        }
    }

    /// Runs the simulation to its end, or to the first invariant violation.
    pub(crate) fn run(&mut self) -> CheckResult {
        self.schedule(Tick::from_millis(1), ScheduledEvent::Burst);
        if let Some(at) = self.parameters.drain {
            self.schedule(Tick::from_millis(at), ScheduledEvent::Drain);
        }
        // Each call arrives, is cancelled, is answered and ends its execution at most once, and
        // causes at most three wake-ups of its own.
        let steps_max = 8 * self.parameters.calls + 100;
        let mut wakeup = None;
        for _ in 0..steps_max {
            let next = self.planned.first_key_value().map(|((at, _), _)| *at);
            let Some(woken) = self.draw.wakes_first(next, wakeup) else { return self.end() };
            if woken {
                let late = self.draw.span(self.parameters.coarse, self.parameters.late);
                let at = wakeup.unwrap_or(self.now).after(late);
                self.now = next.map_or(at, |next| at.min(next));
            } else {
                self.apply_next_event()?;
            }
            wakeup = self.poll_until_idle(woken)?;
        }
        ensure_invariant(InvariantId::Ends, false, || format!("not at its end after {steps_max} steps"))
    }

    fn end(&mut self) -> CheckResult {
        self.model.check_end()
    }

    fn schedule(&mut self, at: Tick, what: ScheduledEvent) {
        self.planned.insert((at, self.plans), what);
        self.plans += 1;
    }

    fn apply(&mut self, event: Event) -> Result<CoreResponse, Violation> {
        self.trace.events.push(event);
        let event = &self.trace.events[self.trace.events.len() - 1];
        let response = apply_event(&mut self.core, event);
        self.trace.responses.push(response.clone());
        self.model.step(event, &response, &self.core)?;
        Ok(response)
    }

    /// Applies the next scheduled event, and sometimes the others of the same instant before the
    /// next poll.
    fn apply_next_event(&mut self) -> CheckResult {
        while let Some(((at, _), planned)) = self.planned.pop_first() {
            self.now = self.now.max(at);
            match planned {
                ScheduledEvent::Burst => self.burst()?,
                ScheduledEvent::Cancel(id) => _ = self.apply(Event::Cancel(self.now, id))?,
                ScheduledEvent::Answer(id) => _ = self.apply(Event::Answered(id))?,
                ScheduledEvent::End(batch, observed) => _ = self.apply(Event::Complete(self.now, batch, observed))?,
                ScheduledEvent::Drain => _ = self.apply(Event::Drain(self.now))?,
            }
            let more = self.planned.first_key_value().is_some_and(|((next, _), _)| *next == at);
            if !more || self.draw.chance(300) {
                break;
            }
        }
        Ok(())
    }

    fn burst(&mut self) -> CheckResult {
        for _ in 0..self.draw.between(1, self.parameters.burst) {
            let id = CallId(self.calls);
            self.calls += 1;
            let call = self.parameters.call(&mut self.draw, self.now, id);
            if self.draw.chance(self.parameters.cancels) {
                let at = self.now.after(self.draw.span(self.parameters.coarse, 40));
                self.schedule(at, ScheduledEvent::Cancel(id));
            }
            // The shell may read the clock before another event is applied.
            let seen = if self.draw.chance(30) { self.now.before(self.draw.span(true, 5)) } else { self.now };
            self.apply(Event::Offer(seen, call))?;
        }
        if self.draw.chance(self.parameters.turns) {
            self.apply_rare_event()?;
        }
        if self.calls < self.parameters.calls {
            let at = self.now.after(self.draw.span(self.parameters.coarse, self.parameters.gap));
            self.schedule(at, ScheduledEvent::Burst);
        } else if self.parameters.drain.is_none() {
            let at = self.now.after(self.draw.span(self.parameters.coarse, 40));
            self.schedule(at, ScheduledEvent::Drain);
        }
        Ok(())
    }

    /// Applies a rare event or one without effect.
    fn apply_rare_event(&mut self) -> CheckResult {
        let unknown = 1_000_000;
        let event = match self.draw.between(0, 7) {
            0..=2 => Event::SetLimits(self.parameters.limits(&mut self.draw)),
            3 => Event::Publish(self.now, CostClassId(self.draw.count(0, 2)), self.draw.count(0, 9)),
            4 => Event::Cancel(self.now, CallId(self.draw.between(0, unknown))),
            7 => Event::PublishWeight(self.now, CostClassId(self.draw.count(0, 2)), self.draw.between(0, 60)),
            5 => Event::Answered(CallId(unknown + self.calls)),
            _ => Event::Complete(self.now, BatchId(unknown), self.parameters.execution(&mut self.draw, 3, 9)),
        };
        self.apply(event).map(|_| ())
    }

    /// Polls until there is no decision. Returns the next wake-up.
    fn poll_until_idle(&mut self, woken: bool) -> Result<Option<Tick>, Violation> {
        for decision in 0..=self.model.decisions_max() {
            match self.apply(Event::Poll(self.now))? {
                CoreResponse::Decided(Decision::Dispatch(batch)) => self.execute(&batch),
                CoreResponse::Decided(Decision::Abort(batch)) => self.abort(batch),
                CoreResponse::Decided(Decision::Expire { .. }) => {}
                CoreResponse::Idle(wakeup) => {
                    let moved = decision > 0 || self.model.ignored_slo;
                    ensure_invariant(InvariantId::WakesLater, !woken || moved, || {
                        format!("woken at {:?} without a reason", self.now)
                    })?;
                    return Ok(wakeup);
                }
                response => unreachable!("poll returns {response:?}"),
            }
        }
        Err(Violation { invariant: InvariantId::Ends, how: format!("does not stop deciding at {:?}", self.now) })
    }

    fn execute(&mut self, batch: &Batch) {
        let observed = self.parameters.execution(&mut self.draw, batch.items, batch.weight);
        let end = self.now.after(observed.duration);
        self.schedule(end, ScheduledEvent::End(batch.id, observed));
        // Isolation answers members one by one before the end of the execution, and so does an
        // upstream that answers early.
        let early = observed.outcome != BatchOutcome::Ok || self.draw.chance(100);
        if early && self.draw.chance(700) {
            for member in &batch.members {
                if self.draw.chance(800) {
                    let at = self
                        .now
                        .after(self.draw.span(true, 1 + u64::try_from(observed.duration.as_millis()).unwrap_or(0)));
                    self.schedule(at.min(end), ScheduledEvent::Answer(member.id));
                }
            }
        }
    }

    /// Drops the execution. Its completion is reported at once or shortly afterwards.
    fn abort(&mut self, batch: BatchId) {
        let end = self.planned.iter().find_map(|(at, planned)| match planned {
            ScheduledEvent::End(id, observed) if *id == batch => Some((*at, *observed)),
            _ => None,
        });
        let Some((at, observed)) = end else { return };
        self.planned.remove(&at);
        let cancelled = Observation { outcome: BatchOutcome::Cancelled, ..observed };
        let end = self.now.after(self.draw.span(true, 2)).min(at.0);
        self.schedule(end, ScheduledEvent::End(batch, cancelled));
    }
}
