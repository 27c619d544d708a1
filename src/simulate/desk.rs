//! The proxy's desk: what a policy sees of the world, and what it may do.
//!
//! It also keeps the books: every call that came ends once, and a policy that ends one twice, or sends it twice, is stopped there and then.

use std::time::Duration;

use crate::batching::{CallId, Tick};

use super::agenda::{Agenda, Event};
use super::call::{Arrival, Ended, Outcome};
use super::curve::Load;
use super::draw::Draw;
use super::policy::{Done, SentId, Status};
use super::upstream::Upstream;

/// What a policy sees and may do.
#[derive(Debug)]
pub struct Desk {
    pub(super) now: Tick,
    pub(super) agenda: Agenda,
    pub(super) upstream: Upstream,
    pub(super) wake: Option<Tick>,
    /// Clients whose call ended since the engine last looked.
    pub(super) freed_clients: Vec<u32>,
    pub(super) counts: Counts,
    slo: Duration,
    draw: Draw,
    book: Vec<Entry>,
    sent: Vec<Sent>,
    outstanding: u32,
}

/// What was sent in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Batches sent, those sent again among them.
    pub batches: u64,
    /// Items in them.
    pub items: u64,
    /// Batches that the upstream refused.
    pub refusals: u64,
    /// Most calls that were there at once without an end.
    pub outstanding_max: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Queued,
    Sent,
    Ended,
}

#[derive(Debug)]
struct Entry {
    ended: Ended,
    phase: Phase,
    client: Option<u32>,
}

#[derive(Debug)]
struct Sent {
    at: Tick,
    items: u32,
    members: Vec<CallId>,
    aborted: bool,
}

// === impl Desk ===

impl Desk {
    pub(super) fn new(slo: Duration, upstream: Upstream, draw: Draw) -> Self {
        Self {
            now: Tick::default(),
            agenda: Agenda::default(),
            upstream,
            wake: None,
            freed_clients: Vec::new(),
            counts: Counts::default(),
            slo,
            draw,
            book: Vec::new(),
            sent: Vec::new(),
            outstanding: 0,
        }
    }

    /// The instant of this event.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.now
    }

    /// The policy's SLO.
    #[must_use]
    pub fn slo(&self) -> Duration {
        self.slo
    }

    /// A call that came.
    #[must_use]
    pub fn arrival(&self, id: CallId) -> &Arrival {
        &self.entry(id).ended.arrival
    }

    /// The policy has it: it came, and is neither upstream nor at its end.
    #[must_use]
    pub fn is_queued(&self, id: CallId) -> bool {
        self.entry(id).phase == Phase::Queued
    }

    /// Random numbers for policies that draw.
    pub fn draw(&mut self) -> &mut Draw {
        &mut self.draw
    }

    /// Asks for one [`super::Policy::tick`] at this instant instead of the one asked for before; `None` asks for none.
    pub fn wake(&mut self, at: Option<Tick>) {
        self.wake = at;
    }

    /// Sends calls upstream as one batch.
    ///
    /// # Panics
    /// If there are none, or one of them is not in the queue.
    pub fn send(&mut self, members: Vec<CallId>) -> SentId {
        assert!(!members.is_empty(), "a batch holds something");
        let mut load = Load::default();
        for &id in &members {
            let entry = self.entry_mut(id);
            assert!(entry.phase == Phase::Queued, "{id:?} is {:?} and cannot be sent", entry.phase);
            entry.phase = Phase::Sent;
            let call = &entry.ended.arrival.call;
            load.items += call.items;
            load.sum += call.weight.sum;
            load.max = load.max.max(call.weight.max);
        }
        self.counts.batches += 1;
        self.counts.items += u64::from(load.items);
        let id = SentId(self.sent.len() as u64);
        self.sent.push(Sent { at: self.now, items: load.items, members, aborted: false });
        self.upstream.submit(self.now, id, load, &mut self.agenda);
        id
    }

    /// Gives up a queued call.
    pub fn expire(&mut self, id: CallId) {
        self.end(id, Outcome::Expired);
    }

    /// Does not take a call that just came.
    pub fn reject(&mut self, id: CallId) {
        self.end(id, Outcome::Rejected);
    }

    /// Hands on the upstream's refusal.
    pub fn refuse(&mut self, id: CallId) {
        self.end(id, Outcome::Refused);
    }

    /// Ends an execution that nobody waits for any more: its answer is not told. The upstream works on, as most servers do.
    pub fn abort(&mut self, id: SentId) {
        self.sent[index(id.0)].aborted = true;
    }

    pub(super) fn admit(&mut self, mut arrival: Arrival, client: Option<u32>) -> CallId {
        let id = CallId(self.book.len() as u64);
        arrival.call.id = id;
        if let Some(at) = arrival.cancel_at {
            self.agenda.at(at, Event::Cancel(id));
        }
        let ended = Ended { arrival, outcome: Outcome::Unanswered, at: self.now };
        self.book.push(Entry { ended, phase: Phase::Queued, client });
        self.outstanding += 1;
        self.counts.outstanding_max = self.counts.outstanding_max.max(self.outstanding);
        id
    }

    /// The caller leaves: true if the call had no end yet.
    pub(super) fn leave(&mut self, id: CallId) -> bool {
        let waiting = self.entry(id).phase != Phase::Ended;
        if waiting {
            self.end(id, Outcome::Cancelled);
        }
        waiting
    }

    /// An answer came: what of it the policy is told, or nothing if the batch was aborted.
    pub(super) fn answer(&mut self, id: SentId, status: Status) -> Option<Done> {
        let sent = &mut self.sent[index(id.0)];
        let mut members = std::mem::take(&mut sent.members);
        let (at, items, aborted) = (sent.at, sent.items, sent.aborted);
        if status == Status::Ok {
            for &member in &members {
                if self.entry(member).phase == Phase::Sent {
                    self.end(member, Outcome::Answered);
                }
            }
        } else {
            self.counts.refusals += 1;
            members.retain(|&member| self.entry(member).phase == Phase::Sent);
            for &member in &members {
                self.entry_mut(member).phase = Phase::Queued;
            }
        }
        (!aborted).then_some(Done { id, sent: at, items, status, members })
    }

    /// The calls of a batch that was sent.
    pub(super) fn members(&self, id: SentId) -> &[CallId] {
        &self.sent[index(id.0)].members
    }

    /// How a call ended, if it has.
    pub(super) fn outcome(&self, id: CallId) -> Option<Outcome> {
        let entry = self.entry(id);
        (entry.phase == Phase::Ended).then_some(entry.ended.outcome)
    }

    pub(super) fn into_ended(self) -> Vec<Ended> {
        let now = self.now;
        let end = |mut entry: Entry| {
            if entry.phase != Phase::Ended {
                entry.ended.at = now;
            }
            entry.ended
        };
        self.book.into_iter().map(end).collect()
    }

    fn end(&mut self, id: CallId, outcome: Outcome) {
        let now = self.now;
        let entry = self.entry_mut(id);
        assert!(entry.phase != Phase::Ended, "{id:?} ended {:?} and again {outcome:?}", entry.ended.outcome);
        entry.phase = Phase::Ended;
        entry.ended.outcome = outcome;
        entry.ended.at = now;
        let client = entry.client;
        self.freed_clients.extend(client);
        self.outstanding -= 1;
    }

    fn entry(&self, id: CallId) -> &Entry {
        &self.book[index(id.0)]
    }

    fn entry_mut(&mut self, id: CallId) -> &mut Entry {
        &mut self.book[index(id.0)]
    }
}

fn index(id: u64) -> usize {
    usize::try_from(id).expect("ids count what is in memory")
}
