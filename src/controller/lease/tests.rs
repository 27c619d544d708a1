//! Candidates with clocks of their own compete for one lease. Under any delays, losses and pauses
//! no two lead at once, and one leads eventually.

use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

const ME: &str = "me";

fn held(by: &str, renewed: i64) -> LeaseRecord {
    LeaseRecord {
        holder: Some(by.into()),
        duration: LEASE_DURATION,
        renewed,
        version: "1".into(),
        ..LeaseRecord::default()
    }
}

fn seconds(seconds: u64) -> Tick {
    Tick::from_millis(seconds * 1000)
}

#[test]
fn a_lease_that_is_not_there_is_made_and_a_free_one_taken() {
    assert_eq!(evaluate(None, ME, seconds(1), None), LeaseAction::Create);
    let free = LeaseRecord { holder: None, ..held("x", 1) };
    assert_eq!(evaluate(Some(&free), ME, seconds(1), None), LeaseAction::Acquire);
    let empty = held("", 1);
    assert_eq!(evaluate(Some(&empty), ME, seconds(1), None), LeaseAction::Acquire);
}

#[test]
fn our_own_lease_is_renewed() {
    assert_eq!(evaluate(Some(&held(ME, 1)), ME, seconds(100), None), LeaseAction::Renew);
}

#[test]
fn an_old_lease_is_respected_when_first_observed() {
    let old = held("other", 0);
    assert_eq!(evaluate(Some(&old), ME, seconds(100), None), LeaseAction::Yield(seconds(115)));
}

#[test]
fn a_lease_not_renewed_for_its_duration_is_taken_and_not_a_moment_earlier() {
    let record = held("other", 5);
    let observed = observe(None, &record, seconds(100));
    let before = Tick(seconds(115).0 - 1);
    assert_eq!(evaluate(Some(&record), ME, before, Some(&observed)), LeaseAction::Yield(seconds(115)));
    assert_eq!(evaluate(Some(&record), ME, seconds(115), Some(&observed)), LeaseAction::Acquire);
}

#[test]
fn a_renewal_counts_from_its_observation_and_not_from_its_time() {
    let observed = observe(None, &held("other", 500), seconds(100));
    let renewed = held("other", 3);
    let observed = observe(Some(observed), &renewed, seconds(110));
    assert_eq!(evaluate(Some(&renewed), ME, seconds(116), Some(&observed)), LeaseAction::Yield(seconds(125)));
}

#[test]
fn another_version_of_the_same_record_is_no_renewal() {
    let record = held("other", 5);
    let observed = observe(None, &record, seconds(100));
    let labelled = LeaseRecord { version: "2".into(), ..record };
    let observed = observe(Some(observed), &labelled, seconds(114));
    assert_eq!(evaluate(Some(&labelled), ME, seconds(115), Some(&observed)), LeaseAction::Acquire);
}

#[test]
fn a_lease_with_an_unlimited_duration_expires() {
    let record = LeaseRecord { duration: Duration::from_secs(1 << 30), ..held("other", 5) };
    let observed = observe(None, &record, seconds(0));
    assert_eq!(evaluate(Some(&record), ME, seconds(300), Some(&observed)), LeaseAction::Acquire);
}

#[test]
fn a_term_counts_from_before_the_request() {
    let mut me = Candidate::new(ME, None);
    assert_eq!(me.next_request(seconds(1), 0), LeaseRequest::Read);
    assert!(me.on_response(seconds(2), LeaseResponse::Read(None)));
    assert!(matches!(me.next_request(seconds(2), 0), LeaseRequest::Create(_)));
    assert!(!me.on_response(seconds(6), LeaseResponse::Wrote(held(ME, 0))));
    assert_eq!(me.until(), seconds(12));
    assert!(me.is_leader(Tick(seconds(12).0 - 1)) && !me.is_leader(seconds(12)));
}

#[test]
fn an_error_does_not_end_leadership_at_once_but_another_holder_does() {
    let mut me = Candidate::new(ME, None);
    me.next_request(seconds(1), 0);
    me.on_response(seconds(1), LeaseResponse::Read(Some(held(ME, 1))));
    me.next_request(seconds(1), 0);
    me.on_response(seconds(1), LeaseResponse::Wrote(held(ME, 2)));
    me.start_round();
    assert!(matches!(me.next_request(seconds(3), 0), LeaseRequest::Write(_)), "a renewal needs no read before it");
    me.on_response(seconds(4), LeaseResponse::Failed);
    assert!(me.is_leader(seconds(5)));
    me.start_round();
    assert_eq!(me.next_request(seconds(5), 0), LeaseRequest::Read, "it is unknown whether the last write succeeded");
    me.on_response(seconds(5), LeaseResponse::Read(Some(held("other", 9))));
    assert!(!me.is_leader(seconds(5)));
}

#[test]
fn a_release_clears_the_holder_and_applies_to_our_own_lease_only() {
    let mut me = Candidate::new(ME, None);
    assert_eq!(me.release(), None);
    me.on_response(seconds(1), LeaseResponse::Wrote(held(ME, 2)));
    let released = me.release().unwrap();
    assert_eq!((released.holder, released.version.as_str()), (None, "1"));
    assert!(!me.is_leader(seconds(1)));
    me.on_response(seconds(1), LeaseResponse::Read(Some(held("other", 2))));
    assert_eq!(me.release(), None);
}

#[test]
fn renewals_on_a_stopped_clock_differ_and_a_change_of_holder_is_counted() {
    let mut me = Candidate::new(ME, None);
    me.on_response(seconds(0), LeaseResponse::Read(Some(held(ME, 50))));
    let LeaseRequest::Write(renewed) = me.next_request(seconds(1), 50) else { panic!("ours is renewed") };
    assert_eq!((renewed.renewed, renewed.transitions), (51, 0));
    let mut other = Candidate::new("other", None);
    other.on_response(seconds(0), LeaseResponse::Read(Some(LeaseRecord { holder: None, ..held("x", 50) })));
    let LeaseRequest::Write(taken) = other.next_request(seconds(1), 10) else { panic!("free, so it is taken") };
    assert_eq!((taken.renewed, taken.acquired, taken.transitions), (51, 10, 1));
}

/// The error of a candidate's clock: its offset and its rate.
#[derive(Debug, Clone, Copy)]
struct ClockSkew {
    offset: u64,
    /// Rate in thousandths; 1000 is exact.
    rate: u64,
}

/// The fate of one request: milliseconds to the server and back, loss on either way, and the pause
/// of the process after it.
#[derive(Debug, Clone, Copy)]
struct RequestFate {
    there: u64,
    back: u64,
    lost: u8,
    pause: u64,
}

fn skew() -> impl Strategy<Value = ClockSkew> {
    (0..10_000_000_u64, 850..1150_u64).prop_map(|(offset, rate)| ClockSkew { offset, rate })
}

fn luck() -> impl Strategy<Value = RequestFate> {
    let pause = prop_oneof![9 => Just(0_u64), 1 => 0..60_000_u64];
    (0..4_000_u64, 0..4_000_u64, 0..12_u8, pause).prop_map(|(there, back, lost, pause)| RequestFate {
        there,
        back,
        lost,
        pause,
    })
}

/// Scheduled events, in true milliseconds; the earliest first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ScheduledEvent {
    Round(usize),
    Arrives(usize, usize, u64),
    Returns(usize, usize, SimulatedResponse),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum SimulatedResponse {
    Read,
    Wrote(String),
    Conflict,
    Failed,
}

struct ElectionSim {
    lease: Option<LeaseRecord>,
    writes: u64,
    candidates: Vec<(Candidate, ClockSkew)>,
    /// All requests ever sent by each candidate. A request arrives even if its sender has given up.
    requests: Vec<Vec<LeaseRequest>>,
    /// The request that each candidate waits for.
    waits: Vec<Option<usize>>,
    /// Leadership intervals in true milliseconds, the end excluded.
    reigns: Vec<(usize, u64, u64)>,
    agenda: BinaryHeap<std::cmp::Reverse<(u64, u64, ScheduledEvent)>>,
    order: u64,
    luck: Vec<RequestFate>,
    drawn: usize,
    reading: Vec<Option<LeaseRecord>>,
}

impl ElectionSim {
    fn at(&mut self, time: u64, what: ScheduledEvent) {
        self.order += 1;
        self.agenda.push(std::cmp::Reverse((time, self.order, what)));
    }

    fn luck(&mut self) -> RequestFate {
        self.drawn += 1;
        self.luck[self.drawn % self.luck.len()]
    }

    /// Returns a candidate's own time at a true time.
    fn local(&self, who: usize, time: u64) -> Tick {
        let skew = self.candidates[who].1;
        Tick((skew.offset * 1000 + time * skew.rate) * 1000)
    }

    /// Returns the true time at which a candidate's clock shows a time.
    fn true_time(&self, who: usize, tick: Tick) -> u64 {
        let skew = self.candidates[who].1;
        (tick.0 / 1000).saturating_sub(skew.offset * 1000) / skew.rate
    }

    fn send_request(&mut self, candidate: usize, now: u64) {
        let local = self.local(candidate, now);
        // The wall clock is arbitrarily wrong.
        let wall = i64::try_from(self.candidates[candidate].1.offset).unwrap() * 7 + i64::try_from(now).unwrap();
        let request = self.candidates[candidate].0.next_request(local, wall);
        let luck = self.luck();
        if request == LeaseRequest::Nothing {
            return self.at(now + 2000 + luck.pause, ScheduledEvent::Round(candidate));
        }
        self.requests[candidate].push(request);
        let number = self.requests[candidate].len() - 1;
        self.waits[candidate] = Some(number);
        if luck.lost != 1 {
            self.at(
                now + luck.there,
                ScheduledEvent::Arrives(
                    candidate,
                    number,
                    luck.back + luck.pause + u64::from(luck.lost == 2) * 100_000,
                ),
            );
        }
        // The call times out after five seconds.
        self.at(now + 5000 + luck.pause, ScheduledEvent::Returns(candidate, number, SimulatedResponse::Failed));
    }

    fn arrives(&mut self, who: usize, number: usize, now: u64, back: u64) {
        let answer = match self.requests[who][number].clone() {
            LeaseRequest::Read => SimulatedResponse::Read,
            LeaseRequest::Create(_) if self.lease.is_some() => SimulatedResponse::Conflict,
            LeaseRequest::Write(record) if self.lease.as_ref().is_none_or(|lease| lease.version != record.version) => {
                SimulatedResponse::Conflict
            }
            LeaseRequest::Create(record) | LeaseRequest::Write(record) => {
                self.writes += 1;
                let version = self.writes.to_string();
                self.lease = Some(LeaseRecord { version: version.clone(), ..record });
                SimulatedResponse::Wrote(version)
            }
            LeaseRequest::Nothing => return,
        };
        if self.waits[who] == Some(number) {
            self.reading[who] = self.lease.clone();
        }
        self.at(now + back, ScheduledEvent::Returns(who, number, answer));
    }

    fn returns(&mut self, who: usize, number: usize, now: u64, back: SimulatedResponse) {
        if self.waits[who] != Some(number) {
            return;
        }
        self.waits[who] = None;
        let read = self.reading[who].clone();
        let answer = match back {
            SimulatedResponse::Read => LeaseResponse::Read(read),
            SimulatedResponse::Wrote(version) => {
                LeaseResponse::Wrote(read.filter(|record| record.version == version).expect("it was just written"))
            }
            SimulatedResponse::Conflict => LeaseResponse::Conflict,
            SimulatedResponse::Failed => LeaseResponse::Failed,
        };
        let local = self.local(who, now);
        let more = self.candidates[who].0.on_response(local, answer);
        let until = self.candidates[who].0.until();
        let leads = self.candidates[who].0.is_leader(local);
        let end = self.true_time(who, until);
        if let Some(reign) = self.reigns.iter_mut().rev().find(|reign| reign.0 == who && reign.2 > now) {
            // The leadership ends now or is extended.
            reign.2 = if leads { end } else { now };
        } else if leads {
            self.reigns.push((who, now, end));
        }
        if more {
            self.send_request(who, now);
        } else {
            self.at(now + 2000, ScheduledEvent::Round(who));
        }
    }

    fn run(&mut self, until: u64) {
        while let Some(std::cmp::Reverse((now, _, what))) = self.agenda.pop() {
            if now > until {
                return;
            }
            match what {
                ScheduledEvent::Round(who) => {
                    self.candidates[who].0.start_round();
                    self.send_request(who, now);
                }
                ScheduledEvent::Arrives(who, number, back) => self.arrives(who, number, now, back),
                ScheduledEvent::Returns(who, number, back) => self.returns(who, number, now, back),
            }
        }
    }
}

fn simulation(skews: &[ClockSkew], luck: Vec<RequestFate>) -> ElectionSim {
    let candidates: Vec<_> =
        skews.iter().enumerate().map(|(at, skew)| (Candidate::new(format!("replica-{at}"), None), *skew)).collect();
    let count = candidates.len();
    let mut simulation = ElectionSim {
        lease: None,
        writes: 0,
        candidates,
        requests: vec![Vec::new(); count],
        waits: vec![None; count],
        reigns: Vec::new(),
        agenda: BinaryHeap::new(),
        order: 0,
        luck,
        drawn: 0,
        reading: vec![None; count],
    };
    for who in 0..count {
        simulation.at(who as u64, ScheduledEvent::Round(who));
    }
    simulation
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_two_replicas_lead_at_once_under_any_clock_skew_or_request_fate(
        skews in prop::collection::vec(skew(), 2..5),
        luck in prop::collection::vec(luck(), 20..200),
    ) {
        let mut simulation = simulation(&skews, luck);
        simulation.run(600_000);
        for (at, (who, from, to)) in simulation.reigns.iter().enumerate() {
            for (other, begin, end) in simulation.reigns.iter().skip(at + 1) {
                prop_assert!(who == other || end <= from || to <= begin,
                    "{who} led from {from} to {to} and {other} from {begin} to {end}");
            }
        }
    }

    #[test]
    fn one_replica_leads_while_requests_succeed(skews in prop::collection::vec(skew(), 1..5)) {
        let quick = RequestFate { there: 5, back: 5, lost: 0, pause: 0 };
        let mut simulation = simulation(&skews, vec![quick]);
        simulation.run(60_000);
        let led: u64 = simulation.reigns.iter().map(|(_, from, to)| to.min(&60_000) - from).sum();
        prop_assert!(led > 59_000, "a leader for {led} ms of a minute: {:?}", simulation.reigns);
    }

    #[test]
    fn after_the_loss_of_the_leader_another_leads_within_a_lease_and_a_round(skews in prop::collection::vec(skew(), 2..5)) {
        let quick = RequestFate { there: 5, back: 5, lost: 0, pause: 0 };
        let mut simulation = simulation(&skews, vec![quick]);
        simulation.run(30_000);
        let stopped = simulation.reigns.last().unwrap().0;
        // Its next round never starts.
        simulation.agenda.retain(|std::cmp::Reverse((_, _, what))| !matches!(what,
            ScheduledEvent::Round(who) | ScheduledEvent::Arrives(who, ..) | ScheduledEvent::Returns(who, ..) if *who == stopped));
        let alive = simulation.agenda.len();
        prop_assert!(alive > 0);
        simulation.run(60_000);
        let next = simulation.reigns.iter().find(|reign| reign.0 != stopped).copied();
        // 15 s on the slowest clock, plus one interval between checks.
        prop_assert!(next.is_some_and(|(_, from, _)| from <= 30_000 + 17_700 + 2_100), "{next:?}");
    }
}
