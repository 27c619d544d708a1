//! What a core was told and what it said, to be told again.
//!
//! Equal events must give equal decisions: a run is kept as a [`Log`], and [`Log::replay`] tells it to a fresh core, without arrivals, upstream or clock.
//! It leaves out what is in a batch beyond ids; that is the caller's.

use std::fmt::Write as _;

use crate::batching::{BatchId, Batcher, Call, CallId, Decision, Limits, Observed, Rejection, Tick, solve};

/// One thing told, with what was said to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A call came.
    Offer(Tick, Call, Result<(), Rejection>),
    /// A caller left.
    Cancel(Tick, CallId, bool),
    /// A member of a batch has its answer.
    Answered(CallId),
    /// An execution ended.
    Complete(Tick, BatchId, Observed),
    /// The walls moved.
    Limits(Limits),
    /// It was asked for plans, and given so many.
    Plans(Tick, u32),
    /// It was asked what to do.
    Poll(Tick, Option<Decision>),
    /// It was asked when to ask again.
    Wakeup(Option<Tick>),
}

/// Events in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log(Vec<Event>);

/// A core, and what happens to it if that is kept.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) batcher: Batcher,
    log: Option<Log>,
}

// === impl Log ===

impl Log {
    /// How many events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One line an event.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, event| {
            writeln!(text, "{event:?}").expect("a string takes what is written to it");
            text
        })
    }

    /// Tells all of it to a fresh core; the place of the first event to which it says something else, and what it says there.
    ///
    /// # Errors
    /// That place and the event as it went this time.
    pub fn replay(&self, batcher: Batcher) -> Result<(), Box<(usize, Event)>> {
        let mut again = Recorder { batcher, log: Some(Self::default()) };
        for (place, event) in self.0.iter().enumerate() {
            match event {
                Event::Offer(now, call, _) => drop(again.offer(*now, call.clone())),
                Event::Cancel(now, id, _) => again.cancel(*now, *id),
                Event::Answered(id) => again.answered(*id),
                Event::Complete(now, batch, observed) => again.complete(*now, *batch, *observed),
                Event::Limits(limits) => again.set_limits(limits.clone()),
                Event::Plans(now, _) => again.plan(*now),
                Event::Poll(now, _) => drop(again.poll(*now)),
                Event::Wakeup(_) => drop(again.next_wakeup()),
            }
            let said = again.log.as_mut().and_then(|log| log.0.pop());
            if let Some(said) = said.filter(|said| said != event) {
                return Err(Box::new((place, said)));
            }
        }
        Ok(())
    }
}

// === impl Recorder ===

impl Recorder {
    pub(super) fn new(batcher: Batcher) -> Self {
        Self { batcher, log: None }
    }

    pub(super) fn keep(&mut self) {
        self.log = Some(Log::default());
    }

    pub(super) fn log(&self) -> Option<&Log> {
        self.log.as_ref()
    }

    pub(super) fn offer(&mut self, now: Tick, call: Call) -> Result<(), Rejection> {
        let kept = self.log.is_some().then(|| call.clone());
        let said = self.batcher.offer(now, call);
        if let (Some(log), Some(call)) = (&mut self.log, kept) {
            log.0.push(Event::Offer(now, call, said));
        }
        said
    }

    pub(super) fn cancel(&mut self, now: Tick, id: CallId) {
        let said = self.batcher.cancel(now, id);
        self.note(|| Event::Cancel(now, id, said));
    }

    pub(super) fn answered(&mut self, id: CallId) {
        self.batcher.answered(id);
        self.note(|| Event::Answered(id));
    }

    pub(super) fn complete(&mut self, now: Tick, batch: BatchId, observed: Observed) {
        self.batcher.complete(now, batch, observed);
        self.note(|| Event::Complete(now, batch, observed));
    }

    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.batcher.set_limits(limits.clone());
        self.note(|| Event::Limits(limits));
    }

    /// Solves what plans are due, there and then.
    pub(super) fn plan(&mut self, now: Tick) {
        let mut solved = 0;
        while let Some((class, input)) = self.batcher.plan_due() {
            self.batcher.set_plan(now, class, solve(&input));
            solved += 1;
        }
        self.note(|| Event::Plans(now, solved));
    }

    pub(super) fn poll(&mut self, now: Tick) -> Option<Decision> {
        let said = self.batcher.poll(now);
        if let Some(log) = &mut self.log {
            log.0.push(Event::Poll(now, said.clone()));
        }
        said
    }

    pub(super) fn next_wakeup(&mut self) -> Option<Tick> {
        let said = self.batcher.next_wakeup();
        self.note(|| Event::Wakeup(said));
        said
    }

    fn note(&mut self, event: impl FnOnce() -> Event) {
        if let Some(log) = &mut self.log {
            log.0.push(event());
        }
    }
}
