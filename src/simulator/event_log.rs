//! Records the inputs and outputs of a core, and replays them.
//!
//! Equal events must lead to equal decisions: a run is kept as an [`EventLog`], and
//! [`EventLog::replay`] feeds it to a fresh core, without arrivals, upstream or clock. A log does
//! not contain the contents of batches beyond ids.

use std::fmt::Write as _;

use crate::batching::{BatchId, Batcher, Call, CallId, Decision, Limits, Observation, Rejection, Tick, solve};

/// An input of the core, with the output of the core for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoreEvent {
    /// A call was enqueued, or rejected.
    Enqueue(Tick, Call, Result<(), Rejection>),
    /// A call was cancelled.
    Cancel(Tick, CallId, bool),
    /// A member of a batch was answered.
    AnswerMember(CallId),
    /// An execution completed.
    Complete(Tick, BatchId, Observation),
    /// The limits changed.
    SetLimits(Limits),
    /// The due plans were solved; the number is their count.
    SolvePlans(Tick, u32),
    /// A decision was polled.
    Poll(Tick, Option<Decision>),
    /// The next wakeup was queried.
    QueryWakeup(Option<Tick>),
}

/// A sequence of recorded events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventLog(Vec<CoreEvent>);

/// A core with an optional log of its events.
#[derive(Debug)]
pub(super) struct CoreRecorder {
    pub(super) batcher: Batcher,
    log: Option<EventLog>,
}

// === impl EventLog ===

impl EventLog {
    /// Returns the number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if the log holds no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Formats the log as text, one line per event.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, event| {
            writeln!(text, "{event:?}").expect("writing to a String cannot fail");
            text
        })
    }

    /// Replays all events on a fresh core.
    ///
    /// # Errors
    /// Returns the index of the first event for which the output differs, and that event with the
    /// output of the replay.
    pub fn replay(&self, batcher: Batcher) -> Result<(), Box<(usize, CoreEvent)>> {
        let mut recorder = CoreRecorder { batcher, log: Some(Self::default()) };
        for (index, event) in self.0.iter().enumerate() {
            match event {
                CoreEvent::Enqueue(now, call, _) => drop(recorder.enqueue(*now, call.clone())),
                CoreEvent::Cancel(now, id, _) => recorder.cancel(*now, *id),
                CoreEvent::AnswerMember(id) => recorder.on_member_answered(*id),
                CoreEvent::Complete(now, batch, observed) => recorder.complete(*now, *batch, *observed),
                CoreEvent::SetLimits(limits) => recorder.set_limits(limits.clone()),
                CoreEvent::SolvePlans(now, _) => recorder.solve_due_plans(*now),
                CoreEvent::Poll(now, _) => drop(recorder.poll(*now)),
                CoreEvent::QueryWakeup(_) => drop(recorder.next_wakeup()),
            }
            let replayed = recorder.log.as_mut().and_then(|log| log.0.pop());
            if let Some(replayed) = replayed.filter(|replayed| replayed != event) {
                return Err(Box::new((index, replayed)));
            }
        }
        Ok(())
    }
}

// === impl CoreRecorder ===

impl CoreRecorder {
    pub(super) fn new(batcher: Batcher) -> Self {
        Self { batcher, log: None }
    }

    pub(super) fn enable_log(&mut self) {
        self.log = Some(EventLog::default());
    }

    pub(super) fn log(&self) -> Option<&EventLog> {
        self.log.as_ref()
    }

    pub(super) fn enqueue(&mut self, now: Tick, call: Call) -> Result<(), Rejection> {
        let enqueued = self.log.is_some().then(|| call.clone());
        let result = self.batcher.enqueue(now, call);
        if let (Some(log), Some(call)) = (&mut self.log, enqueued) {
            log.0.push(CoreEvent::Enqueue(now, call, result));
        }
        result
    }

    pub(super) fn cancel(&mut self, now: Tick, id: CallId) {
        let result = self.batcher.cancel(now, id);
        self.push_event(|| CoreEvent::Cancel(now, id, result));
    }

    pub(super) fn on_member_answered(&mut self, id: CallId) {
        self.batcher.on_member_answered(id);
        self.push_event(|| CoreEvent::AnswerMember(id));
    }

    pub(super) fn complete(&mut self, now: Tick, batch: BatchId, observed: Observation) {
        self.batcher.complete(now, batch, observed);
        self.push_event(|| CoreEvent::Complete(now, batch, observed));
    }

    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.batcher.set_limits(limits.clone());
        self.push_event(|| CoreEvent::SetLimits(limits));
    }

    /// Solves all plans that are due, synchronously.
    pub(super) fn solve_due_plans(&mut self, now: Tick) {
        let mut solved = 0;
        while let Some((class, input)) = self.batcher.take_due_plan_input() {
            self.batcher.set_plan(now, class, solve(&input));
            solved += 1;
        }
        self.push_event(|| CoreEvent::SolvePlans(now, solved));
    }

    pub(super) fn poll(&mut self, now: Tick) -> Option<Decision> {
        let decision = self.batcher.poll(now);
        if let Some(log) = &mut self.log {
            log.0.push(CoreEvent::Poll(now, decision.clone()));
        }
        decision
    }

    pub(super) fn next_wakeup(&mut self) -> Option<Tick> {
        let wakeup = self.batcher.next_wakeup();
        self.push_event(|| CoreEvent::QueryWakeup(wakeup));
        wakeup
    }

    fn push_event(&mut self, event: impl FnOnce() -> CoreEvent) {
        if let Some(log) = &mut self.log {
            log.0.push(event());
        }
    }
}
