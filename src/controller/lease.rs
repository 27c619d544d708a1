//! One leader among the replicas, by a Lease.
//!
//! The rules are those of client-go, and pure: a [`Candidate`] is told what came back and says what to ask next; `elector` only carries that to and fro.
//! No two clocks are ever compared. A candidate notes on its own clock when it *saw* a renewal and takes the lease over once that is longer ago than the
//! lease says; a leader counts from before it *sent* a renewal, and stops earlier than that. Clocks may be set to anything and may run apart by a third.
//! Writes carry the version that was read, so of two candidates one is refused.

mod elector;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::elector::{Leader, Leadership, Reign, Settings, elect};
use crate::batching::Tick;

/// How long a lease holds after its last renewal was seen.
pub const LEASE: Duration = Duration::from_secs(15);
/// A leader that could not renew for so long leads no more. Below [`LEASE`] by what clocks may run apart.
pub const RENEW_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at the lease.
pub const RETRY: Duration = Duration::from_secs(2);
/// A lease that says to hold longer is not believed: somebody wrote it by hand.
const LEASE_MAX: Duration = Duration::from_secs(300);

/// What a Lease says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Who holds it; nobody after a release.
    pub holder: Option<String>,
    /// Where the holder answers streams, to send sidecars there.
    pub address: Option<String>,
    /// How long it holds after a renewal.
    pub duration: Duration,
    /// When the holder took it, in microseconds since 1970 on the holder's clock; for people.
    pub acquired: i64,
    /// When it was renewed last, on the holder's clock; only ever compared for being another one.
    pub renewed: i64,
    /// How often the holder changed.
    pub transitions: i32,
    /// The version of the object; a write that names another is refused.
    pub version: String,
}

/// A record, and when it was first seen as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    record: Record,
    at: Tick,
}

/// What a candidate may do about a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There is none: make one.
    Create,
    /// Nobody holds it, or its holder was not heard of for too long.
    Acquire,
    /// It is ours.
    Renew,
    /// It is another's, until then at least.
    Yield(Tick),
}

/// The next question to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Read the lease.
    Read,
    /// Make it.
    Create(Record),
    /// Write it if its version is still that of the record.
    Write(Record),
    /// Nothing for now.
    Nothing,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The lease, or that there is none.
    Read(Option<Record>),
    /// It was written, and is this now.
    Wrote(Record),
    /// Somebody was quicker.
    Conflict,
    /// No answer, or another error; the write may have come through.
    Failed,
}

/// One replica that wants to lead.
#[derive(Debug)]
pub struct Candidate {
    me: String,
    address: Option<String>,
    observed: Option<Observed>,
    /// What was read or written last, until an error makes it doubtful.
    lease: Option<Option<Record>>,
    /// When the question under way was sent.
    sent: Tick,
    /// Until when we lead.
    until: Tick,
}

/// What may be done about a lease as it was read just now. `observed` is what [`observe`] made of it and all earlier readings.
#[must_use]
pub fn evaluate(lease: Option<&Record>, me: &str, now: Tick, observed: Option<&Observed>) -> Verdict {
    let Some(record) = lease else { return Verdict::Create };
    match record.holder.as_deref() {
        None | Some("") => Verdict::Acquire,
        Some(holder) if holder == me => Verdict::Renew,
        Some(_) => {
            // A record never seen before counts from now.
            let at = observed.filter(|seen| seen.is(record)).map_or(now, |seen| seen.at);
            let until = at.after(record.duration.min(LEASE_MAX));
            if now >= until { Verdict::Acquire } else { Verdict::Yield(until) }
        }
    }
}

/// Notes a reading: a record that says the same as before keeps the time at which it was first seen.
#[must_use]
pub fn observe(before: Option<Observed>, record: &Record, now: Tick) -> Observed {
    match before {
        Some(before) if before.is(record) => before,
        _ => Observed { record: record.clone(), at: now },
    }
}

// === impl Observed ===

impl Observed {
    /// Whether a record says the same. Its version is left out: a label put on the lease is no renewal.
    fn is(&self, record: &Record) -> bool {
        let same = |a: &Record, b: &Record| {
            a.holder == b.holder && a.renewed == b.renewed && a.transitions == b.transitions && a.acquired == b.acquired
        };
        same(&self.record, record)
    }
}

// === impl Candidate ===

impl Candidate {
    /// A replica by its name, which no other has, and where it answers streams.
    #[must_use]
    pub fn new(me: impl Into<String>, address: Option<String>) -> Self {
        Self { me: me.into(), address, observed: None, lease: None, sent: Tick(0), until: Tick(0) }
    }

    /// What to ask now. `wall` is the time since 1970 in microseconds, for the record only.
    pub fn ask(&mut self, now: Tick, wall: i64) -> Ask {
        self.sent = now;
        let Some(lease) = &self.lease else { return Ask::Read };
        match evaluate(lease.as_ref(), &self.me, now, self.observed.as_ref()) {
            Verdict::Create => Ask::Create(self.record(None, wall)),
            Verdict::Acquire | Verdict::Renew => Ask::Write(self.record(lease.as_ref(), wall)),
            Verdict::Yield(_) => Ask::Nothing,
        }
    }

    /// Takes in an answer to the last question. Whether there is another to ask at once.
    pub fn answered(&mut self, now: Tick, answer: Answer) -> bool {
        match answer {
            Answer::Read(lease) => {
                if let Some(record) = &lease {
                    self.observed = Some(observe(self.observed.take(), record, now));
                    if record.holder.as_deref() != Some(&self.me) {
                        // Somebody took it, or it was released for us: whatever we thought, we lead no more.
                        self.until = Tick(0);
                    }
                } else {
                    self.until = Tick(0);
                }
                let may = evaluate(lease.as_ref(), &self.me, now, self.observed.as_ref());
                self.lease = Some(lease);
                !matches!(may, Verdict::Yield(_))
            }
            Answer::Wrote(record) => {
                // From before the question was sent: others saw the renewal no earlier.
                self.until = self.sent.after(RENEW_WITHIN);
                self.observed = Some(observe(self.observed.take(), &record, now));
                self.lease = Some(Some(record));
                false
            }
            Answer::Conflict | Answer::Failed => {
                self.lease = None;
                false
            }
        }
    }

    /// Begins another round: a lease that another holds is read again.
    pub fn round(&mut self) {
        let ours = |record: &Record| record.holder.as_deref() == Some(&self.me);
        if !self.lease.as_ref().is_some_and(|lease| lease.as_ref().is_some_and(ours)) {
            self.lease = None;
        }
    }

    /// Until when we lead; nobody does at the start of time.
    #[must_use]
    pub const fn until(&self) -> Tick {
        self.until
    }

    /// Whether we lead.
    #[must_use]
    pub fn leads(&self, now: Tick) -> bool {
        now < self.until
    }

    /// Who was last seen to hold the lease.
    #[must_use]
    pub fn holder(&self) -> Option<&Record> {
        self.observed.as_ref().map(|seen| &seen.record).filter(|record| record.holder.is_some())
    }

    /// Leads no more, and gives the record that lets another begin at once; `None` where the lease is not known to be ours.
    pub fn release(&mut self) -> Option<Record> {
        self.until = Tick(0);
        let record = self.lease.take()??;
        (record.holder.as_deref() == Some(&self.me)).then_some(Record { holder: None, address: None, ..record })
    }

    fn record(&self, before: Option<&Record>, wall: i64) -> Record {
        let ours = before.is_some_and(|record| record.holder.as_deref() == Some(&self.me));
        let transitions = before.map_or(0, |record| record.transitions);
        Record {
            holder: Some(self.me.clone()),
            address: self.address.clone(),
            duration: LEASE,
            acquired: before.filter(|_| ours).map_or(wall, |record| record.acquired),
            // It has to be another one than before even on a clock that stands still.
            renewed: before.map_or(wall, |record| wall.max(record.renewed.saturating_add(1))),
            transitions: if ours || before.is_none() { transitions } else { transitions.saturating_add(1) },
            version: before.map(|record| record.version.clone()).unwrap_or_default(),
        }
    }
}
