//! Which reports and events have arrived: so that a lost one, or a stream that breaks, loses and doubles nothing.
//!
//! Counts go up as differences, since they add up in any order and a quiet sidecar says nearly nothing. A difference that may or may not have arrived is the
//! trouble with that, so each is numbered within one life of the sidecar (`epoch`), and the controller says with `Ping` which one it has. The sidecar has at most
//! one report on the way: until that one is acknowledged, what happens adds up for the next one, and after a break the same bytes go again under the same
//! number. The controller takes each number once.
//!
//! Counters that only grow would need no answer, but every frame would carry all that ever happened, the controller would keep the last state of every pod,
//! and a new leader, which has none, would have to drop what happened since the old one heard last. Here a new leader gets all that nobody acknowledged, and
//! a controller that is behind gets fewer and larger reports by itself.
//!
//! Both halves are pure. What a controller forgets when it restarts it has not added up either, so to it nothing is doubled.

use std::collections::VecDeque;

use super::wire::{Acked, Event, Report};

/// Events that wait; beyond it the oldest goes, and how many went is told. A pod says a handful in its life.
const EVENTS_MAX: usize = 32;

/// The sidecar's half.
#[derive(Debug)]
pub struct Outbox {
    epoch: u64,
    reports: u64,
    events: u64,
    /// The report that is on the way, as it was first written.
    report: Option<Report>,
    /// Events on the way, oldest first.
    waiting: VecDeque<Event>,
    /// The last event that was written on this stream.
    written: u64,
    dropped: u64,
}

/// The controller's half, for one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inbox {
    acked: Acked,
}

// === impl Outbox ===

impl Outbox {
    /// Of a process that calls its life by this number, which no life of the same pod before had.
    #[must_use]
    pub const fn new(epoch: u64) -> Self {
        Self { epoch, reports: 0, events: 0, report: None, waiting: VecDeque::new(), written: 0, dropped: 0 }
    }

    /// The number of this life.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether a report is on the way. Until it has arrived there is no other.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.report.is_some()
    }

    /// The report that is on the way, to be written once more.
    #[must_use]
    pub const fn again(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// Takes a report on its way. One that is on the way already stays; call it only when none is.
    pub fn report(&mut self, mut report: Report) -> &Report {
        let reports = &mut self.reports;
        let epoch = self.epoch;
        self.report.get_or_insert_with(|| {
            *reports += 1;
            (report.epoch, report.seq) = (epoch, *reports);
            report
        })
    }

    /// Takes an event on its way.
    pub fn event(&mut self, mut event: Event) {
        self.events += 1;
        (event.epoch, event.seq) = (self.epoch, self.events);
        if self.waiting.len() >= EVENTS_MAX {
            let gone = self.waiting.pop_front().map_or(0, |gone| gone.dropped);
            self.dropped += 1 + gone;
        }
        event.dropped = std::mem::take(&mut self.dropped);
        self.waiting.push_back(event);
    }

    /// The next event that is not written on this stream.
    pub fn next_event(&mut self) -> Option<&Event> {
        let next = self.waiting.iter().find(|event| event.seq > self.written)?;
        self.written = next.seq;
        Some(next)
    }

    /// A new stream: nothing is written on it, and whatever is on the way goes again.
    pub const fn opened(&mut self) {
        self.written = 0;
    }

    /// The controller has so much.
    pub fn acked(&mut self, acked: &Acked) {
        if acked.epoch != self.epoch {
            return;
        }
        self.report.take_if(|report| report.seq <= acked.report);
        self.waiting.retain(|event| event.seq > acked.event);
    }

    /// The controller never says what it has: what is written counts as arrived.
    pub fn written(&mut self) {
        self.report = None;
        let written = self.written;
        self.waiting.retain(|event| event.seq > written);
    }
}

// === impl Inbox ===

impl Inbox {
    /// Whether a report with this number is to be counted; if not, it was before.
    pub fn report(&mut self, epoch: u64, seq: u64) -> bool {
        self.is_new(epoch, seq, |acked| &mut acked.report)
    }

    /// Whether an event with this number is to be heard; if not, it was before.
    pub fn event(&mut self, epoch: u64, seq: u64) -> bool {
        self.is_new(epoch, seq, |acked| &mut acked.event)
    }

    /// What to tell the sidecar.
    #[must_use]
    pub const fn acked(&self) -> Acked {
        self.acked
    }

    fn is_new(&mut self, epoch: u64, seq: u64, last: impl FnOnce(&mut Acked) -> &mut u64) -> bool {
        if seq == 0 {
            // A sidecar that does not count: it sends nothing twice.
            return true;
        }
        if epoch != self.acked.epoch {
            // Another life; the one before says nothing any more.
            self.acked = Acked { epoch, ..Acked::default() };
        }
        let last = last(&mut self.acked);
        let new = seq > *last;
        *last = seq.max(*last);
        new
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn report(over_ms: u64) -> Report {
        Report { over_ms, ..Report::default() }
    }

    fn event(message: &str) -> Event {
        Event { message: message.to_owned(), ..Event::default() }
    }

    #[test]
    fn a_report_goes_again_as_it_was_until_it_is_acknowledged() {
        let mut out = Outbox::new(7);
        assert_eq!((out.report(report(5)).seq, out.is_waiting()), (1, true));
        assert_eq!(out.report(report(9)).over_ms, 5, "one at a time");
        out.opened();
        assert_eq!(out.again().map(|report| (report.epoch, report.seq, report.over_ms)), Some((7, 1, 5)));
        out.acked(&Acked { epoch: 6, report: 1, event: 0 });
        assert!(out.is_waiting(), "that was another life");
        out.acked(&Acked { epoch: 7, report: 1, event: 0 });
        assert_eq!((out.is_waiting(), out.report(report(9)).seq), (false, 2));
        out.written();
        assert!(!out.is_waiting());
    }

    #[test]
    fn events_go_once_on_a_stream_and_again_on_the_next_one() {
        let mut out = Outbox::new(1);
        out.event(event("a"));
        out.event(event("b"));
        let all = |out: &mut Outbox| {
            std::iter::from_fn(|| out.next_event().map(|event| event.message.clone())).collect::<Vec<_>>()
        };
        assert_eq!((all(&mut out), all(&mut out)), (vec!["a".to_owned(), "b".to_owned()], vec![]));
        out.acked(&Acked { epoch: 1, report: 0, event: 1 });
        out.opened();
        out.event(event("c"));
        assert_eq!(all(&mut out), ["b", "c"]);
        out.written();
        out.opened();
        assert!(all(&mut out).is_empty());
    }

    #[test]
    fn of_too_many_events_the_oldest_go_and_it_is_told_how_many() {
        let mut out = Outbox::new(1);
        (0..EVENTS_MAX + 5).for_each(|at| out.event(event(&at.to_string())));
        let mut dropped = 0;
        let mut kept = Vec::new();
        while let Some(event) = out.next_event() {
            dropped += event.dropped;
            kept.push(event.message.clone());
        }
        assert_eq!((kept.len(), kept[0].as_str(), dropped), (EVENTS_MAX, "5", 5));
    }

    #[test]
    fn a_process_that_starts_again_is_heard_from_the_beginning() {
        let mut inbox = Inbox::default();
        assert!(inbox.report(1, 1) && inbox.report(1, 2) && !inbox.report(1, 2) && !inbox.report(1, 1));
        assert!(inbox.event(1, 1));
        assert!(inbox.report(2, 1) && inbox.event(2, 1), "another life");
        assert!(inbox.report(0, 0) && inbox.report(0, 0), "one that does not count");
        assert_eq!(inbox.acked(), Acked { epoch: 2, report: 1, event: 1 });
    }

    /// What may happen to one report on its way.
    #[derive(Debug, Clone, Copy)]
    enum Fate {
        Arrives,
        AnswerLost,
        Lost,
        Twice,
    }

    proptest! {
        #[test]
        fn whatever_is_lost_on_the_way_everything_is_counted_once(
            steps in prop::collection::vec((1..100_u64, 0..4_u8), 1..60),
        ) {
            let (mut out, mut inbox, mut counted, mut happened, mut since) = (Outbox::new(3), Inbox::default(), 0, 0, 0);
            let mut step = |amount: u64, fate: Fate| {
                happened += amount;
                since += amount;
                if !out.is_waiting() {
                    out.report(report(since));
                    since = 0;
                }
                let sent = out.again().cloned().unwrap();
                let mut arrives = |sent: &Report| if inbox.report(sent.epoch, sent.seq) { counted += sent.over_ms };
                match fate {
                    Fate::Lost => out.opened(),
                    Fate::AnswerLost => {
                        arrives(&sent);
                        out.opened();
                    }
                    Fate::Arrives | Fate::Twice => {
                        arrives(&sent);
                        if matches!(fate, Fate::Twice) {
                            arrives(&sent);
                        }
                        out.acked(&inbox.acked());
                    }
                }
                (happened, counted, since)
            };
            for (amount, fate) in steps {
                let fate = [Fate::Arrives, Fate::AnswerLost, Fate::Lost, Fate::Twice][usize::from(fate)];
                let (happened, counted, _) = step(amount, fate);
                prop_assert!(counted <= happened, "nothing is doubled");
            }
            step(0, Fate::Arrives);
            let (happened, counted, since) = step(0, Fate::Arrives);
            prop_assert_eq!((counted, since), (happened, 0));
        }
    }
}
