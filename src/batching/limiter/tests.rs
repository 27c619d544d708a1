//! Tests of the limiter in front of small simulated servers.

mod ordering;
mod shared_server;
mod streams;

use std::collections::BTreeMap;

use super::super::tick::Tick;
use super::curve::Knee;
use super::pair_probe::PairControl;
use super::{
    ConcurrencyLimiter, ConnectionUse, ExecutionEnd, ExecutionStart, FlowMode, OpenReason, Permit, PermitRequest,
};

/// One millisecond in nanoseconds.
const MS: u64 = 1_000_000;

/// A simulated server that runs this many requests at once, in order of arrival. A batch of n takes
/// `1 + (n - 1) * per_item` unbatched calls.
#[derive(Clone, Copy)]
struct ServerModel {
    workers: u32,
    unbatched: u64,
    per_item: f64,
}

/// A request at the server.
struct Request {
    items: u32,
    /// `true` until the server accepts its connection.
    connecting: bool,
    arrived: Vec<u64>,
    mark: super::InFlightExecution,
}

/// Closed-loop clients in front of a limiter and a server.
struct ClosedLoop {
    flow: ConcurrencyLimiter,
    server: ServerModel,
    mergeable: bool,
    /// Items of each call.
    items: u32,
    /// Number of first calls that arrive in any order, as over connections that are opened side by
    /// side.
    mixed: u64,
    /// Set for an event loop: it accepts a connection in one round of the calls that wait, and
    /// reads from it in the next.
    event_loop: bool,
    queue: Vec<u64>,
    waiting: Vec<Request>,
    running: BTreeMap<(u64, u64), Request>,
    sent: u64,
    answered: u64,
    now: u64,
}

impl ClosedLoop {
    fn new(server: ServerModel, callers: usize, mergeable: bool) -> Self {
        Self {
            flow: ConcurrencyLimiter::new(),
            server,
            mergeable,
            items: 1,
            mixed: 0,
            event_loop: false,
            queue: vec![0; callers],
            waiting: Vec::new(),
            running: BTreeMap::new(),
            sent: 0,
            answered: 0,
            now: 0,
        }
    }

    fn queued(&self) -> u64 {
        self.queue.len() as u64 * u64::from(self.items)
    }

    fn send(&mut self) {
        while let Some(first) = self.queue.first().copied() {
            let request = PermitRequest {
                now: Tick(self.now),
                unmergeable: !self.mergeable,
                arrived: Tick(first),
                has_second: self.mergeable && self.queue.len() > 1,
                queued: self.queued(),
            };
            let permit = self.flow.permit(&request);
            let items = match permit {
                Permit::Forward | Permit::Control => 1,
                Permit::Pair => 2,
                Permit::Share(items) | Permit::Probe(items) => items as usize,
                Permit::Hold(_) | Permit::Full => break,
            };
            let calls = (items / self.items as usize).max(1);
            let items = if self.mergeable { calls.min(self.queue.len()) } else { 1 };
            let arrived: Vec<u64> = self.queue.drain(..items).collect();
            let calls = u32::try_from(items).unwrap();
            let start = ExecutionStart {
                items: calls * self.items,
                calls,
                unmergeable: !self.mergeable,
                permit,
                queued: self.queued(),
                expected: 0,
            };
            let mark = self.flow.on_dispatch(Tick(self.now), &start);
            let connecting = self.event_loop && (calls > 1 || mark.connection == ConnectionUse::Own);
            self.waiting.push(Request { items: calls, connecting, arrived, mark });
        }
        while self.running.len() < self.server.workers as usize && !self.waiting.is_empty() {
            let first = self.mixed.saturating_sub(self.sent).min(self.waiting.len() as u64).max(1);
            let mut request = self.waiting.remove(usize::try_from(self.sent * 7 % first).unwrap());
            if std::mem::take(&mut request.connecting) {
                self.waiting.push(request);
                continue;
            }
            let factor = 1.0 + f64::from(request.items - 1) * self.server.per_item;
            // Times differ a little, because with equal ones all requests would end at once.
            let takes =
                super::super::math::round_to_u64(self.server.unbatched as f64 * factor) + self.sent % 7 * MS / 20;
            self.running.insert((self.now + takes, self.sent), request);
            self.sent += 1;
        }
    }

    /// Runs for this long and returns the number of calls answered meanwhile.
    fn run(&mut self, millis: u64) -> u64 {
        let (before, until) = (self.answered, self.now + millis * MS);
        self.send();
        while let Some(entry) = self.running.first_entry() {
            if entry.key().0 > until {
                break;
            }
            let ((at, _), request) = entry.remove_entry();
            self.now = at;
            let (first, last) = (request.arrived[0], *request.arrived.last().unwrap());
            let calls = u32::try_from(request.arrived.len()).unwrap();
            let done = ExecutionEnd::new(true, calls, Tick(first), Tick(last), self.queued(), 64);
            self.flow.on_completion(Tick(at), &request.mark, done);
            self.answered += u64::from(calls);
            self.queue.extend(request.arrived.iter().map(|_| at));
            self.send();
        }
        self.now = until;
        self.answered - before
    }
}

const SERIAL: ServerModel = ServerModel { workers: 1, unbatched: 20 * MS, per_item: 0.05 };

#[test]
fn calls_to_a_serial_server_are_merged_under_a_limit_of_one() {
    let mut callers = ClosedLoop::new(SERIAL, 48, true);
    callers.run(2000);
    assert_eq!(callers.flow.mode(), FlowMode::Limited(1));
    assert!(callers.run(2000) >= 10 * 100, "directly there are 100");
}

#[test]
fn a_server_with_room_for_all_is_never_limited() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 64, ..SERIAL }, 48, true);
    for _ in 0..20 {
        let answered = callers.run(1000);
        assert!((2200..=2400).contains(&answered), "{answered}");
        assert!(matches!(callers.flow.mode(), FlowMode::Open(_)));
    }
}

#[test]
fn four_workers_are_found() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 4, ..SERIAL }, 48, true);
    callers.run(3000);
    let FlowMode::Limited(limit) = callers.flow.mode() else { panic!("open") };
    assert!((4..=12).contains(&limit), "{limit}");
    assert!(callers.run(2000) >= 4 * 400, "directly there are 400");
}

#[test]
fn the_rate_is_that_of_calls_if_each_has_several_items() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 4, ..SERIAL }, 48, true);
    (callers.items, callers.mergeable) = (4, false);
    callers.run(3000);
    let rate = callers.flow.curve.estimate().unwrap().rate * 1e9;
    assert!((150.0..=300.0).contains(&rate), "{rate} calls per second, of 200");
}

#[test]
fn a_queue_is_detected_in_the_first_waves_in_mixed_order() {
    for (workers, limit) in [(1, 1), (4, 4), (8, 9)] {
        let mut callers = ClosedLoop::new(ServerModel { workers, ..SERIAL }, 48, true);
        callers.mixed = 48;
        callers.run(u64::from(2000 / workers));
        let FlowMode::Limited(found) = callers.flow.mode() else { panic!("open with {workers} workers") };
        assert!(found.abs_diff(limit) <= 2, "{found} with {workers} workers");
    }
    let mut callers = ClosedLoop::new(ServerModel { workers: 64, ..SERIAL }, 48, true);
    callers.mixed = 48;
    callers.run(2000);
    assert!(matches!(callers.flow.mode(), FlowMode::Open(_)));
}

#[test]
fn a_server_that_accepts_connections_late_is_found_by_pairs() {
    for workers in [1, 4] {
        let mut callers = ClosedLoop::new(ServerModel { workers, ..SERIAL }, 48, true);
        callers.event_loop = true;
        // Neither the load curve nor the first waves show the queue.
        callers.flow.schedule.jump = Tick(u64::MAX);
        callers.run(u64::from(24_000 / workers));
        assert_eq!(callers.flow.pairs.cheap, Some(true), "{workers} workers");
        let FlowMode::Limited(limit) = callers.flow.mode() else { panic!("open before {workers} workers") };
        assert!(limit <= 16, "{limit} before {workers} workers");
    }
}

#[test]
fn pairs_are_as_rare_if_calls_have_many_items() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 64, ..SERIAL }, 48, true);
    callers.items = 32;
    let answered = callers.run(65);
    assert!((96..200).contains(&answered), "{answered}");
    assert_eq!(callers.flow.pairs.control, PairControl::Due, "the first is due after 200 calls");
}

#[test]
fn batches_grow_before_a_server_that_accepts_connections_late() {
    let mut callers = ClosedLoop::new(SERIAL, 48, true);
    callers.event_loop = true;
    callers.flow.schedule.jump = Tick(u64::MAX);
    callers.run(1000);
    // The knee was measured too high, so that calls queue in the server under the limit.
    let knee = Knee { at: 5.0, base: 1e8, rate: 5e-8, is_bound: false };
    callers.flow.set_knee(Tick(callers.now), knee, 5.0);
    callers.run(3000);
    assert!(callers.run(2000) >= 4 * 100, "directly there are 100: {:?}", callers.flow.mode());
}

#[test]
fn calls_that_cannot_be_merged_are_never_held() {
    let mut callers = ClosedLoop::new(SERIAL, 48, false);
    callers.run(5000);
    assert_eq!(callers.flow.mode(), FlowMode::Open(OpenReason::NothingToMerge), "the queue was measured");
    assert!(callers.queue.is_empty());
    callers.mergeable = true;
    callers.run(5000);
    assert_eq!(callers.flow.mode(), FlowMode::Limited(1));
}

#[test]
fn unmergeable_calls_to_a_server_with_room_are_no_reason_to_report() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 64, ..SERIAL }, 48, false);
    callers.run(5000);
    assert_eq!(callers.flow.mode(), FlowMode::Open(OpenReason::Learning));
}

#[test]
fn calls_are_forwarded_if_a_batch_costs_as_much_as_its_calls() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 1, unbatched: 20 * MS, per_item: 1.0 }, 48, true);
    callers.run(8000);
    let FlowMode::Open(OpenReason::NoGain { permille }) = callers.flow.mode() else {
        panic!("{:?}", callers.flow.mode())
    };
    assert!((900..=1200).contains(&permille), "{permille}");
    assert!(callers.run(2000) >= 95, "directly there are 100");
}

#[test]
fn more_workers_are_noticed_within_seconds() {
    let mut callers = ClosedLoop::new(SERIAL, 48, true);
    callers.run(3000);
    callers.server.workers = 64;
    callers.run(3000);
    assert!(callers.run(1000) >= 2200, "directly there are 2400");
}

#[test]
fn a_loss_of_workers_is_detected_with_many_callers() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 64, ..SERIAL }, 48, true);
    callers.run(2000);
    callers.server.workers = 1;
    callers.run(30_000);
    assert!(callers.run(2000) >= 10 * 100, "directly there are 100");
}

#[test]
fn a_loss_of_workers_is_detected_with_few_callers() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 64, ..SERIAL }, 8, true);
    callers.run(2000);
    callers.server.workers = 1;
    callers.run(10_000);
    assert!(callers.run(2000) >= 3 * 100, "directly there are 100");
}

#[test]
fn few_callers_of_a_slower_server_are_not_held() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 64, ..SERIAL }, 8, true);
    callers.run(2000);
    callers.server.unbatched *= 20;
    callers.run(2000);
    assert!(callers.run(8000) >= 155, "directly there are 160");
    assert!(matches!(callers.flow.mode(), FlowMode::Open(_)));
}

#[test]
fn a_limit_outlives_a_pause_and_ends_where_nothing_is_merged() {
    let mut flow = ConcurrencyLimiter::limited(1, 20 * MS);
    let mut now = 10_000 * MS;
    let mut answer_unbatched = |flow: &mut ConcurrencyLimiter, queued: u64| {
        let start =
            ExecutionStart { items: 1, calls: 1, unmergeable: true, permit: Permit::Share(1), queued, expected: 0 };
        let mark = flow.on_dispatch(Tick(now), &start);
        let arrived = Tick(now);
        now += 20 * MS;
        flow.on_completion(Tick(now), &mark, ExecutionEnd::new(true, 1, arrived, arrived, queued, 64));
        flow.mode()
    };
    for queued in std::iter::repeat_n(0, 200).chain([255]) {
        assert_eq!(
            answer_unbatched(&mut flow, queued),
            FlowMode::Limited(1),
            "one caller, and the first call of a burst"
        );
    }
    let modes: Vec<FlowMode> = (0..4).map(|_| answer_unbatched(&mut flow, 7)).collect();
    assert_eq!(modes[3], FlowMode::Open(OpenReason::NothingToMerge));
}

#[test]
fn a_server_that_batches_by_itself_stays_open() {
    let mut callers = ClosedLoop::new(SERIAL, 48, true);
    callers.flow.pin_open(Tick(0), true);
    callers.run(5000);
    assert_eq!(callers.flow.mode(), FlowMode::Open(OpenReason::ServerBatches));
}

#[test]
fn a_restored_limit_is_given_up_if_the_server_has_room() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 64, ..SERIAL }, 48, true);
    callers.flow = ConcurrencyLimiter::limited(1, 20 * MS);
    callers.run(4000);
    assert!(callers.run(1000) >= 2200, "directly there are 2400");
}

#[test]
fn calls_held_by_a_limit_of_the_policy_are_merged_and_the_limit_is_kept() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 64, ..SERIAL }, 48, true);
    callers.flow.on_policy_limit(Tick(0), 2);
    callers.run(3000);
    assert_eq!(callers.flow.mode(), FlowMode::Limited(2));
    assert!(callers.run(1000) >= 500, "one by one, two at once, there are 100");
}

#[test]
fn requests_in_flight_return_to_zero_after_success_and_failure() {
    let mut flow = ConcurrencyLimiter::new();
    let start =
        ExecutionStart { items: 3, calls: 2, unmergeable: false, permit: Permit::Share(3), queued: 0, expected: 0 };
    let marks: Vec<_> = (0..5).map(|at| flow.on_dispatch(Tick(at), &start)).collect();
    assert_eq!(flow.in_flight(), 5);
    for (at, mark) in (10..).zip(&marks) {
        flow.on_completion(Tick(at), mark, ExecutionEnd::new(at % 2 == 0, 2, Tick(0), Tick(0), 0, 64));
    }
    assert_eq!((flow.in_flight(), flow.merged_flights, flow.merged_items, flow.batches), (0, 0, 0, 0));
}

#[test]
fn a_limit_on_trial_is_not_refined() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 4, ..SERIAL }, 48, true);
    callers.run(3000);
    for _ in 0..100_000 {
        if callers.flow.trial.is_some() {
            break;
        }
        callers.run(1);
    }
    assert!(callers.flow.trial.is_some(), "limits are tried again and again");
    let limit = callers.flow.limit;
    for found in [1, 6, 100] {
        callers.flow.refine(Tick(callers.now), found, callers.queue.len() as u64);
        assert_eq!((callers.flow.limit, callers.flow.trial.is_some()), (limit, true), "{found}");
    }
}

#[test]
fn a_batch_that_leaves_early_is_no_larger_than_the_others() {
    let mut callers = ClosedLoop::new(ServerModel { workers: 4, ..SERIAL }, 48, true);
    callers.run(3000);
    let share = callers.flow.lead_share(callers.queue.len() as u64);
    assert!((6..=16).contains(&share), "{share} of 48 beside four others");
    let serial = ConcurrencyLimiter::limited(1, 20 * MS);
    assert_eq!(serial.lead_share(47), u32::MAX);
}
