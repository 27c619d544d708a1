//! Leader election among the replicas with a Kubernetes Lease.
//!
//! The algorithm is that of client-go's `leaderelection` package
//! (<https://pkg.go.dev/k8s.io/client-go/tools/leaderelection>), as a pure state machine: a
//! [`Candidate`] receives responses and returns the next request; `elector` does the I/O. Clocks of
//! different replicas are never compared. A candidate records on its own clock when it observed a
//! renewal, and acquires the lease once the lease duration has passed since then. A leader counts
//! from before it sent a renewal, and stops before the lease ends. Clocks may be set arbitrarily,
//! and their rates may differ by a third. Writes contain the version that was read (optimistic
//! concurrency), so one of two competing candidates is rejected.

mod elector;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::elector::{ElectionSettings, LeaderReplica, Leadership, LeadershipTerm, elect};
use crate::batching::Tick;

/// Duration of a lease after its last observed renewal.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Maximum time without a renewal for which a leader leads. It is shorter than [`LEASE_DURATION`]
/// by the tolerated difference of clock rates.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Interval between two checks of the lease.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Longest lease duration that is honored. A longer one can only have been written by hand.
const LEASE_MAX: Duration = Duration::from_secs(300);

/// Contents of a Lease.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaseRecord {
    /// The holder; `None` after a release.
    pub holder: Option<String>,
    /// Address at which the holder serves streams, for redirecting sidecars.
    pub address: Option<String>,
    /// Duration of the lease after a renewal.
    pub duration: Duration,
    /// Time of acquisition in microseconds since 1970, on the holder's clock; informational.
    pub acquired: i64,
    /// Time of the last renewal, on the holder's clock. It is only compared for equality.
    pub renewed: i64,
    /// Number of changes of the holder.
    pub transitions: i32,
    /// Resource version of the object; a write with another version is rejected.
    pub version: String,
}

/// A record, with the instant at which it was first observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedLease {
    record: LeaseRecord,
    at: Tick,
}

/// The permitted action of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseAction {
    /// The Lease does not exist and can be created.
    Create,
    /// The lease is free, or its holder has not renewed it in time.
    Acquire,
    /// This replica holds the lease.
    Renew,
    /// Another replica holds the lease, at least until this instant.
    Yield(Tick),
}

/// The next request to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseRequest {
    /// Read the Lease.
    Read,
    /// Create the Lease.
    Create(LeaseRecord),
    /// Write the Lease if its version is still that of the record.
    Write(LeaseRecord),
    /// No request.
    Nothing,
}

/// The response to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseResponse {
    /// The Lease, or `None` if it does not exist.
    Read(Option<LeaseRecord>),
    /// The Lease as written.
    Wrote(LeaseRecord),
    /// Another replica has written first.
    Conflict,
    /// No response, or another error; the write may have succeeded.
    Failed,
}

/// A replica that takes part in the election.
#[derive(Debug)]
pub struct Candidate {
    me: String,
    address: Option<String>,
    observed: Option<ObservedLease>,
    /// The Lease as last read or written; `None` once an error makes it uncertain.
    lease: Option<Option<LeaseRecord>>,
    /// Instant at which the current request was sent.
    sent: Tick,
    /// End of the leadership.
    until: Tick,
}

/// Returns the permitted action on a lease that was just read. `observed` is the result of
/// [`observe`] over this and all earlier reads.
#[must_use]
pub fn evaluate(lease: Option<&LeaseRecord>, me: &str, now: Tick, observed: Option<&ObservedLease>) -> LeaseAction {
    let Some(record) = lease else { return LeaseAction::Create };
    match record.holder.as_deref() {
        None | Some("") => LeaseAction::Acquire,
        Some(holder) if holder == me => LeaseAction::Renew,
        Some(_) => {
            // The duration of a record that was never observed before starts now.
            let at = observed.filter(|last| last.is_same_renewal(record)).map_or(now, |last| last.at);
            let until = at.after(record.duration.min(LEASE_MAX));
            if now >= until { LeaseAction::Acquire } else { LeaseAction::Yield(until) }
        }
    }
}

/// Records an observation. An unchanged record keeps the instant at which it was first observed.
#[must_use]
pub fn observe(before: Option<ObservedLease>, record: &LeaseRecord, now: Tick) -> ObservedLease {
    match before {
        Some(before) if before.is_same_renewal(record) => before,
        _ => ObservedLease { record: record.clone(), at: now },
    }
}

// === impl ObservedLease ===

impl ObservedLease {
    /// Returns `true` if a record is the same renewal. The version is ignored: adding a label to
    /// the Lease does not renew it.
    fn is_same_renewal(&self, record: &LeaseRecord) -> bool {
        let same = |a: &LeaseRecord, b: &LeaseRecord| {
            a.holder == b.holder && a.renewed == b.renewed && a.transitions == b.transitions && a.acquired == b.acquired
        };
        same(&self.record, record)
    }
}

// === impl Candidate ===

impl Candidate {
    /// Creates a candidate with a unique name and the address at which it serves streams.
    #[must_use]
    pub fn new(me: impl Into<String>, address: Option<String>) -> Self {
        Self { me: me.into(), address, observed: None, lease: None, sent: Tick(0), until: Tick(0) }
    }

    /// Returns the next request. `wall` is the time since 1970 in microseconds, used only in the
    /// record.
    pub fn next_request(&mut self, now: Tick, wall: i64) -> LeaseRequest {
        self.sent = now;
        let Some(lease) = &self.lease else { return LeaseRequest::Read };
        match evaluate(lease.as_ref(), &self.me, now, self.observed.as_ref()) {
            LeaseAction::Create => LeaseRequest::Create(self.record(None, wall)),
            LeaseAction::Acquire | LeaseAction::Renew => LeaseRequest::Write(self.record(lease.as_ref(), wall)),
            LeaseAction::Yield(_) => LeaseRequest::Nothing,
        }
    }

    /// Processes the response to the last request. Returns `true` if another request is due at
    /// once.
    pub fn on_response(&mut self, now: Tick, answer: LeaseResponse) -> bool {
        match answer {
            LeaseResponse::Read(lease) => {
                if let Some(record) = &lease {
                    self.observed = Some(observe(self.observed.take(), record, now));
                    if record.holder.as_deref() != Some(&self.me) {
                        // Another replica has acquired the lease, or it was released: the
                        // leadership has ended.
                        self.until = Tick(0);
                    }
                } else {
                    self.until = Tick(0);
                }
                let may = evaluate(lease.as_ref(), &self.me, now, self.observed.as_ref());
                self.lease = Some(lease);
                !matches!(may, LeaseAction::Yield(_))
            }
            LeaseResponse::Wrote(record) => {
                // Counted from before the request was sent: other replicas cannot have observed the
                // renewal earlier.
                self.until = self.sent.after(RENEW_DEADLINE);
                self.observed = Some(observe(self.observed.take(), &record, now));
                self.lease = Some(Some(record));
                false
            }
            LeaseResponse::Conflict | LeaseResponse::Failed => {
                self.lease = None;
                false
            }
        }
    }

    /// Starts another round. A lease held by another replica is read again.
    pub fn start_round(&mut self) {
        let ours = |record: &LeaseRecord| record.holder.as_deref() == Some(&self.me);
        if !self.lease.as_ref().is_some_and(|lease| lease.as_ref().is_some_and(ours)) {
            self.lease = None;
        }
    }

    /// Returns the instant at which the leadership ends, which is in the past if this replica does
    /// not lead.
    #[must_use]
    pub const fn until(&self) -> Tick {
        self.until
    }

    /// Returns `true` if this replica leads.
    #[must_use]
    pub fn is_leader(&self, now: Tick) -> bool {
        now < self.until
    }

    /// Returns the last observed record with a holder.
    #[must_use]
    pub fn holder(&self) -> Option<&LeaseRecord> {
        self.observed.as_ref().map(|last| &last.record).filter(|record| record.holder.is_some())
    }

    /// Gives up the leadership, and returns the record that lets another replica acquire the lease
    /// at once; `None` if this replica is not known to hold the lease.
    pub fn release(&mut self) -> Option<LeaseRecord> {
        self.until = Tick(0);
        let record = self.lease.take()??;
        (record.holder.as_deref() == Some(&self.me)).then_some(LeaseRecord { holder: None, address: None, ..record })
    }

    fn record(&self, before: Option<&LeaseRecord>, wall: i64) -> LeaseRecord {
        let ours = before.is_some_and(|record| record.holder.as_deref() == Some(&self.me));
        let transitions = before.map_or(0, |record| record.transitions);
        LeaseRecord {
            holder: Some(self.me.clone()),
            address: self.address.clone(),
            duration: LEASE_DURATION,
            acquired: before.filter(|_| ours).map_or(wall, |record| record.acquired),
            // It must differ from the previous value even if the clock has stopped.
            renewed: before.map_or(wall, |record| wall.max(record.renewed.saturating_add(1))),
            transitions: if ours || before.is_none() { transitions } else { transitions.saturating_add(1) },
            version: before.map(|record| record.version.clone()).unwrap_or_default(),
        }
    }
}
