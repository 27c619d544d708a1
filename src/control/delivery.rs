//! Delivery of reports and events: numbering and acknowledgement, so that a lost message or a
//! broken stream neither loses nor duplicates counts.
//!
//! Reports contain differences, because differences add up in any order and a quiet sidecar sends
//! almost nothing. A difference must not be applied twice, so each report is numbered within one
//! epoch (one process of the sidecar), and the controller acknowledges the last number in `Ping`.
//! At most one report is in flight: until it is acknowledged, counts accumulate for the next one,
//! and after a reconnect the same bytes are sent again under the same number. The controller
//! accepts each number once. A peer that does not acknowledge gets everything once
//! (`assume_delivered`). Events are bounded: the oldest are dropped and counted.
//!
//! Cumulative counters would need no acknowledgement. However, every frame would then carry all
//! counts since the start, the controller would keep the last state of every pod, and a new leader,
//! which has no such state, would have to discard everything since the previous leader's last
//! report. With this scheme a new leader receives everything that is not acknowledged, and an
//! overloaded controller receives fewer and larger reports.
//!
//! Both halves are pure. A controller that restarts loses the numbers together with the counts it
//! had added up, so it does not count anything twice.

use std::collections::VecDeque;

use super::wire::{Acknowledgement, SidecarEvent, SidecarReport};

/// Maximum number of unacknowledged events. Beyond it the oldest is dropped, and the number of
/// dropped events is reported. A pod emits a handful in its lifetime.
const EVENTS_MAX: usize = 32;

/// The sidecar's half: messages in flight and their numbers.
#[derive(Debug)]
pub struct ReportOutbox {
    epoch: u64,
    /// Numbers of the last report and of the last event.
    reports: u64,
    events: u64,
    /// The report in flight, as it was first written.
    report: Option<SidecarReport>,
    /// Unacknowledged events, oldest first.
    waiting: VecDeque<SidecarEvent>,
    /// Number of the last event that was written on the current stream.
    written: u64,
}

/// The controller's half for one pod: the last numbers received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DuplicateFilter {
    acked: Acknowledgement,
}

// === impl ReportOutbox ===

impl ReportOutbox {
    /// Creates an empty outbox. `epoch` must differ from that of every earlier process of the same
    /// pod.
    #[must_use]
    pub const fn new(epoch: u64) -> Self {
        Self { epoch, reports: 0, events: 0, report: None, waiting: VecDeque::new(), written: 0 }
    }

    /// Returns the epoch of this process.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the report in flight, to be sent again. No other report is sent until it is
    /// acknowledged.
    #[must_use]
    pub const fn report_in_flight(&self) -> Option<&SidecarReport> {
        self.report.as_ref()
    }

    /// Numbers a report and puts it in flight. If one is already in flight, `report` is discarded;
    /// the caller checks [`Self::report_in_flight`] first.
    pub fn push_report(&mut self, mut report: SidecarReport) -> &SidecarReport {
        let reports = &mut self.reports;
        let epoch = self.epoch;
        self.report.get_or_insert_with(|| {
            *reports += 1;
            (report.epoch, report.seq) = (epoch, *reports);
            report
        })
    }

    /// Numbers an event and enqueues it.
    pub fn push_event(&mut self, mut event: SidecarEvent) {
        self.events += 1;
        (event.epoch, event.seq) = (self.epoch, self.events);
        event.dropped = if self.waiting.len() >= EVENTS_MAX {
            // The oldest event may itself report dropped events, which must not be forgotten.
            self.waiting.pop_front().map_or(0, |oldest| oldest.dropped + 1)
        } else {
            0
        };
        self.waiting.push_back(event);
    }

    /// Returns the next event that has not been written on this stream, and marks it as written.
    pub fn next_event(&mut self) -> Option<&SidecarEvent> {
        let next = self.waiting.iter().find(|event| event.seq > self.written)?;
        self.written = next.seq;
        Some(next)
    }

    /// Records that a new stream was opened: everything unacknowledged is sent again.
    pub const fn on_stream_opened(&mut self) {
        self.written = 0;
    }

    /// Processes an acknowledgement. Acknowledgements of another epoch are ignored.
    pub fn on_ack(&mut self, acked: &Acknowledgement) {
        if acked.epoch != self.epoch {
            return;
        }
        self.report.take_if(|report| report.seq <= acked.report);
        self.waiting.retain(|event| event.seq > acked.event);
    }

    /// Removes everything that was written. Used with a controller that does not acknowledge, where
    /// a written message counts as delivered.
    pub fn assume_delivered(&mut self) {
        self.report = None;
        let written = self.written;
        self.waiting.retain(|event| event.seq > written);
    }
}

// === impl DuplicateFilter ===

impl DuplicateFilter {
    /// Returns `true` if the report with this number is new, and `false` if it is a duplicate.
    pub fn accept_report(&mut self, epoch: u64, seq: u64) -> bool {
        self.is_new(epoch, seq, |acked| &mut acked.report)
    }

    /// Returns `true` if the event with this number is new, and `false` if it is a duplicate.
    pub fn accept_event(&mut self, epoch: u64, seq: u64) -> bool {
        self.is_new(epoch, seq, |acked| &mut acked.event)
    }

    /// Returns the acknowledgement to send to the sidecar.
    #[must_use]
    pub const fn acked(&self) -> Acknowledgement {
        self.acked
    }

    fn is_new(&mut self, epoch: u64, seq: u64, last: impl FnOnce(&mut Acknowledgement) -> &mut u64) -> bool {
        if seq == 0 {
            // The sidecar does not number its messages, and therefore sends none twice.
            return true;
        }
        if epoch != self.acked.epoch {
            // A new epoch: the numbers of the previous process no longer apply.
            self.acked = Acknowledgement { epoch, ..Acknowledgement::default() };
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

    fn report(over_ms: u64) -> SidecarReport {
        SidecarReport { over_ms, ..SidecarReport::default() }
    }

    fn event(message: &str) -> SidecarEvent {
        SidecarEvent { message: message.to_owned(), ..SidecarEvent::default() }
    }

    #[test]
    fn a_report_is_sent_again_unchanged_until_it_is_acknowledged() {
        let mut out = ReportOutbox::new(7);
        assert_eq!((out.push_report(report(5)).seq, out.report_in_flight().is_some()), (1, true));
        assert_eq!(out.push_report(report(9)).over_ms, 5, "one at a time");
        out.on_stream_opened();
        assert_eq!(out.report_in_flight().map(|report| (report.epoch, report.seq, report.over_ms)), Some((7, 1, 5)));
        out.on_ack(&Acknowledgement { epoch: 6, report: 1, event: 0 });
        assert!(out.report_in_flight().is_some(), "of another epoch");
        out.on_ack(&Acknowledgement { epoch: 7, report: 1, event: 0 });
        assert_eq!((out.report_in_flight().is_some(), out.push_report(report(9)).seq), (false, 2));
        out.assume_delivered();
        assert!(out.report_in_flight().is_none());
    }

    #[test]
    fn events_go_once_on_a_stream_and_again_on_the_next_one() {
        let mut out = ReportOutbox::new(1);
        out.push_event(event("a"));
        out.push_event(event("b"));
        let all = |out: &mut ReportOutbox| {
            std::iter::from_fn(|| out.next_event().map(|event| event.message.clone())).collect::<Vec<_>>()
        };
        assert_eq!((all(&mut out), all(&mut out)), (vec!["a".to_owned(), "b".to_owned()], vec![]));
        out.on_ack(&Acknowledgement { epoch: 1, report: 0, event: 1 });
        out.on_stream_opened();
        out.push_event(event("c"));
        assert_eq!(all(&mut out), ["b", "c"]);
        out.assume_delivered();
        out.on_stream_opened();
        assert!(all(&mut out).is_empty());
    }

    #[test]
    fn the_oldest_of_too_many_events_are_dropped_and_counted() {
        let mut out = ReportOutbox::new(1);
        (0..EVENTS_MAX + 5).for_each(|at| out.push_event(event(&at.to_string())));
        let mut dropped = 0;
        let mut retained = Vec::new();
        while let Some(event) = out.next_event() {
            dropped += event.dropped;
            retained.push(event.message.clone());
        }
        assert_eq!((retained.len(), retained[0].as_str(), dropped), (EVENTS_MAX, "5", 5));
    }

    #[test]
    fn reports_of_a_new_epoch_are_accepted_from_the_first() {
        let mut inbox = DuplicateFilter::default();
        assert!(
            inbox.accept_report(1, 1)
                && inbox.accept_report(1, 2)
                && !inbox.accept_report(1, 2)
                && !inbox.accept_report(1, 1)
        );
        assert!(inbox.accept_event(1, 1));
        assert!(inbox.accept_report(2, 1) && inbox.accept_event(2, 1), "of another epoch");
        assert!(inbox.accept_report(0, 0) && inbox.accept_report(0, 0), "not counted");
        assert_eq!(inbox.acked(), Acknowledgement { epoch: 2, report: 1, event: 1 });
    }

    /// Delivery of one report in the simulation.
    #[derive(Debug, Clone, Copy)]
    enum DeliveryOutcome {
        Arrives,
        AnswerLost,
        Lost,
        Twice,
    }

    proptest! {
        #[test]
        fn amounts_are_counted_once_despite_lost_and_repeated_messages(
            steps in prop::collection::vec((1..100_u64, 0..4_u8), 1..60),
        ) {
            let (mut out, mut inbox, mut counted, mut happened, mut since) = (ReportOutbox::new(3), DuplicateFilter::default(), 0, 0, 0);
            let mut step = |amount: u64, fate: DeliveryOutcome| {
                happened += amount;
                since += amount;
                if out.report_in_flight().is_none() {
                    out.push_report(report(since));
                    since = 0;
                }
                let sent = out.report_in_flight().cloned().unwrap();
                let mut arrives = |sent: &SidecarReport| if inbox.accept_report(sent.epoch, sent.seq) { counted += sent.over_ms };
                match fate {
                    DeliveryOutcome::Lost => out.on_stream_opened(),
                    DeliveryOutcome::AnswerLost => {
                        arrives(&sent);
                        out.on_stream_opened();
                    }
                    DeliveryOutcome::Arrives | DeliveryOutcome::Twice => {
                        arrives(&sent);
                        if matches!(fate, DeliveryOutcome::Twice) {
                            arrives(&sent);
                        }
                        out.on_ack(&inbox.acked());
                    }
                }
                (happened, counted, since)
            };
            for (amount, fate) in steps {
                let outcomes = [
                    DeliveryOutcome::Arrives,
                    DeliveryOutcome::AnswerLost,
                    DeliveryOutcome::Lost,
                    DeliveryOutcome::Twice,
                ];
                let fate = outcomes[usize::from(fate)];
                let (happened, counted, _) = step(amount, fate);
                prop_assert!(counted <= happened, "nothing is doubled");
            }
            step(0, DeliveryOutcome::Arrives);
            let (happened, counted, since) = step(0, DeliveryOutcome::Arrives);
            prop_assert_eq!((counted, since), (happened, 0));
        }
    }
}
