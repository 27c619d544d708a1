//! Open-loop load: calls are made on a schedule that is independent of the responses.
//!
//! One task follows the schedule and writes each call, when it is due, to an idle connection. A
//! separate task for each connection reads the responses. A call therefore costs one timer, one
//! write and one read, and sending wakes no task. Latency is measured from the scheduled time, so
//! the time that a call waits for the generator, a connection or the server is included (no
//! coordinated omission).

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{CallOutcome, LoadSnapshot, LoadStats, PreparedCalls, Report};
use crate::boxed_future::BoxedFuture;
use crate::http1::{MessageReader, MessageWriter, ServerAddr};
use crate::time::{Timer, now};

/// Maximum number of calls that wait for a connection, equal to at least one second of any load
/// that two cores can generate. Further calls are given up as unsent.
const BACKLOG_MAX: usize = 65_536;

/// Configuration of an open-loop load.
#[derive(Debug, Clone)]
pub struct OpenConfig {
    /// Address to send the calls to.
    pub target: ServerAddr,
    /// Calls to send.
    pub calls: PreparedCalls,
    /// Mean number of calls per second of the Poisson process.
    pub rate: f64,
    /// Times at which calls are due, in order. They replace the Poisson process, so that several
    /// loads are identical.
    pub times: Option<Arc<[Duration]>>,
    /// Length of the schedule.
    pub duration: Duration,
    /// Length of the warm-up. Calls due in it are sent but not counted.
    pub warm_up: Duration,
    /// Seed of the schedule. The same seed produces the same schedule.
    pub seed: u64,
    /// Number of connections opened before the first call.
    pub connections_min: usize,
    /// Maximum number of connections. If all are in use, calls wait in the backlog.
    pub connections_max: usize,
    /// Maximum time to wait for responses after the last call.
    pub grace: Duration,
}

/// A running open-loop load. Dropping it ends the load.
#[derive(Debug)]
pub struct OpenLoad {
    shared: Arc<LoadState>,
    driver: tokio::task::JoinHandle<io::Result<Duration>>,
}

#[derive(Debug)]
struct LoadState {
    config: OpenConfig,
    tally: LoadStats,
    pool: Mutex<ConnectionPool>,
    /// Number of calls without an outcome.
    open: AtomicU64,
    /// Notified when `open` falls to zero.
    all_done: Notify,
    /// `true` if no further calls become due.
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct ConnectionPool {
    /// Idle connections, the longest idle first. It is used next, so that all connections are used
    /// equally. A Kubernetes Service balances connections, not calls: using the most recently idle
    /// connection would direct nearly all calls to a fast server to one pod.
    idle: VecDeque<Arc<LoadConnection>>,
    connections: usize,
    backlog: VecDeque<ScheduledCall>,
}

/// One connection as seen by the sender.
#[derive(Debug)]
struct LoadConnection {
    outbox: MessageWriter,
    pending: Mutex<Option<ScheduledCall>>,
    alive: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
struct ScheduledCall {
    due: Instant,
    turn: u64,
    retried: bool,
    counts: bool,
}

/// Action for a call that is due.
enum SendAction {
    Send(Arc<LoadConnection>),
    Connect,
    Wait,
    GiveUp,
}

/// Starts the load on the current runtime.
#[must_use]
pub fn start_open_loop(config: OpenConfig) -> OpenLoad {
    let shared = Arc::new(LoadState {
        config,
        tally: LoadStats::new(),
        pool: Mutex::default(),
        open: AtomicU64::new(0),
        all_done: Notify::new(),
        stopped: AtomicBool::new(false),
    });
    let driver = tokio::spawn(run_schedule(Arc::clone(&shared)));
    OpenLoad { shared, driver }
}

// === impl OpenConfig ===

impl OpenConfig {
    /// Creates a load with the default limits: 16 to 2048 connections, and 5 s for the last
    /// responses.
    #[must_use]
    pub fn new(target: ServerAddr, calls: PreparedCalls, rate: f64, duration: Duration) -> Self {
        let grace = Duration::from_secs(5);
        Self {
            target,
            calls,
            rate,
            times: None,
            duration,
            warm_up: Duration::ZERO,
            seed: 1,
            connections_min: 16,
            connections_max: 2048,
            grace,
        }
    }
}

// === impl OpenLoad ===

impl OpenLoad {
    /// Returns the progress. The quantiles cover the calls served since the last snapshot.
    #[must_use]
    pub fn snapshot(&self) -> LoadSnapshot {
        self.shared.tally.snapshot()
    }

    /// Stops the schedule. The load ends with the last response.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the load has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.driver.is_finished()
    }

    /// Waits until the load has ended, and returns its results.
    ///
    /// # Errors
    /// The target accepts no connection at the start.
    pub fn finish(mut self) -> BoxedFuture<'static, io::Result<Report>> {
        Box::pin(async move {
            let elapsed = (&mut self.driver).await.map_err(io::Error::other)??;
            Ok(self.shared.tally.report(self.shared.config.calls.items, elapsed))
        })
    }
}

impl Drop for OpenLoad {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Follows the schedule. Returns the time from its start until every call is answered or the grace
/// period expires, which is at least `duration` unless the load is stopped.
async fn run_schedule(shared: Arc<LoadState>) -> io::Result<Duration> {
    let mut timer = Timer::new()?;
    let mut lanes = JoinSet::new();
    let config = &shared.config;
    for _ in 0..config.connections_min.min(config.connections_max) {
        shared.pool().connections += 1;
        let (lane, inbox) = shared.connect().await?;
        shared.pool().idle.push_back(Arc::clone(&lane));
        lanes.spawn(read_responses(Arc::clone(&shared), lane, inbox));
    }
    let begin = now();
    let mut rng = SmallRng::seed_from_u64(config.seed);
    let mut due = Duration::ZERO;
    let mut times = config.times.as_deref().map(|times| times.iter());
    for turn in 0.. {
        due = match &mut times {
            Some(times) => times.next().copied().unwrap_or(Duration::MAX),
            None => {
                // Exponentially distributed gap of a Poisson process. The argument of the logarithm
                // is never 0.
                let gap = -(1.0 - rng.random::<f64>()).ln() / config.rate.max(f64::MIN_POSITIVE);
                due.saturating_add(Duration::try_from_secs_f64(gap).unwrap_or(Duration::MAX))
            }
        };
        if due >= config.duration || shared.stopped.load(Ordering::Relaxed) {
            break;
        }
        let arrival = ScheduledCall { due: begin + due, turn, retried: false, counts: due >= config.warm_up };
        timer.sleep_until(arrival.due).await?;
        shared.tally.counts().report.offered += u64::from(arrival.counts);
        shared.open.fetch_add(1, Ordering::Relaxed);
        shared.dispatch(arrival, &mut lanes).await;
    }
    if !shared.stopped.load(Ordering::Relaxed) {
        timer.sleep_until(begin + config.duration).await?;
    }
    let last = tokio::time::timeout(config.grace, shared.wait_until_quiet()).await;
    let elapsed = now().saturating_duration_since(begin);
    // The grace period has expired: calls that are still open count as failed.
    if last.is_err() {
        for _ in 0..shared.open.load(Ordering::Relaxed) {
            shared.tally.record(CallOutcome::Failed, Duration::ZERO);
        }
    }
    Ok(elapsed)
}

/// Reads the responses of one connection until it closes.
async fn read_responses(shared: Arc<LoadState>, lane: Arc<LoadConnection>, mut inbox: MessageReader) {
    loop {
        let answer = inbox.read_answer().await;
        let arrival = {
            let mut pending = lane.pending();
            if answer.is_err() || pending.is_none() {
                // Set while the lock is held, so that a sender that already took the lane from the
                // pool observes that it has no reader.
                lane.alive.store(false, Ordering::Release);
            }
            pending.take()
        };
        let keep = match (answer, arrival) {
            (Ok(answer), Some(arrival)) => {
                let outcome = shared.config.calls.get(arrival.turn).outcome(&answer);
                shared.record_outcome(outcome, arrival);
                !answer.close
            }
            (Err(_), Some(arrival)) => {
                if inbox.unread().is_empty() && !arrival.retried {
                    // Closed while idle: every client retries in this case.
                    shared.pool().backlog.push_front(ScheduledCall { retried: true, ..arrival });
                } else {
                    shared.record_outcome(CallOutcome::Failed, arrival);
                }
                false
            }
            (_, None) => false,
        };
        let Some(next) = shared.take_next_call(&lane, keep) else {
            if keep {
                continue;
            }
            return;
        };
        if keep {
            lane.send(&shared, next).await;
        } else {
            // This task continues as the reader of a new connection.
            shared.pool().connections += 1;
            match LoadState::connect_and_send(&shared, next).await {
                Some((fresh, its_inbox)) => return Box::pin(read_responses(shared, fresh, its_inbox)).await,
                None => return,
            }
        }
    }
}

// === impl LoadState ===

impl LoadState {
    fn pool(&self) -> MutexGuard<'_, ConnectionPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> io::Result<(Arc<LoadConnection>, MessageReader)> {
        let conn = self.config.target.connect().await?;
        let lane = LoadConnection { outbox: conn.outbox, pending: Mutex::new(None), alive: AtomicBool::new(true) };
        Ok((Arc::new(lane), conn.inbox))
    }

    async fn dispatch(self: &Arc<Self>, arrival: ScheduledCall, lanes: &mut JoinSet<()>) {
        loop {
            match self.select_connection(arrival) {
                // The lane was closed meanwhile and has no reader: select another one.
                SendAction::Send(lane) if !lane.send(self, arrival).await => continue,
                SendAction::Send(_) | SendAction::Wait => {}
                SendAction::Connect => {
                    let shared = Arc::clone(self);
                    lanes.spawn(async move {
                        if let Some((lane, inbox)) = Self::connect_and_send(&shared, arrival).await {
                            read_responses(shared, lane, inbox).await;
                        }
                    });
                    while lanes.try_join_next().is_some() {}
                }
                SendAction::GiveUp => self.record_outcome(CallOutcome::Unsent, arrival),
            }
            return;
        }
    }

    /// Takes the next call of the backlog. If there is none, the connection is idle. A connection
    /// that is not kept is removed from the pool.
    fn take_next_call(&self, lane: &Arc<LoadConnection>, keep: bool) -> Option<ScheduledCall> {
        let mut pool = self.pool();
        if !keep {
            lane.alive.store(false, Ordering::Release);
            pool.connections -= 1;
            pool.idle.retain(|other| !Arc::ptr_eq(other, lane));
        }
        let next = pool.backlog.pop_front();
        if next.is_none() && keep {
            pool.idle.push_back(Arc::clone(lane));
        }
        next
    }

    fn select_connection(&self, arrival: ScheduledCall) -> SendAction {
        let mut pool = self.pool();
        while let Some(lane) = pool.idle.pop_front() {
            if lane.alive.load(Ordering::Acquire) {
                return SendAction::Send(lane);
            }
        }
        if pool.connections < self.config.connections_max {
            pool.connections += 1;
            SendAction::Connect
        } else if pool.backlog.len() < BACKLOG_MAX {
            pool.backlog.push_back(arrival);
            SendAction::Wait
        } else {
            SendAction::GiveUp
        }
    }

    /// Opens a connection, which is already counted in the pool, and sends its first call.
    async fn connect_and_send(
        shared: &Arc<Self>,
        arrival: ScheduledCall,
    ) -> Option<(Arc<LoadConnection>, MessageReader)> {
        match shared.connect().await {
            Ok((lane, inbox)) => {
                lane.send(shared, arrival).await;
                Some((lane, inbox))
            }
            Err(_) => {
                shared.pool().connections -= 1;
                shared.record_outcome(CallOutcome::Failed, arrival);
                None
            }
        }
    }

    fn record_outcome(&self, outcome: CallOutcome, arrival: ScheduledCall) {
        if arrival.counts {
            self.tally.record(outcome, now().saturating_duration_since(arrival.due));
        }
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.all_done.notify_one();
        }
    }

    async fn wait_until_quiet(&self) {
        while self.open.load(Ordering::Acquire) > 0 {
            self.all_done.notified().await;
        }
    }
}

// === impl LoadConnection ===

impl LoadConnection {
    fn pending(&self) -> MutexGuard<'_, Option<ScheduledCall>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a call. Returns `false` if the lane has no reader for the response. A failed write is
    /// not reported here: the reader observes it as a read error.
    async fn send(&self, shared: &LoadState, arrival: ScheduledCall) -> bool {
        {
            let mut pending = self.pending();
            if !self.alive.load(Ordering::Acquire) {
                return false;
            }
            *pending = Some(arrival);
        }
        let request = &shared.config.calls.get(arrival.turn).request;
        match self.outbox.try_send(request) {
            Ok(n) if n == request.len() => {}
            Ok(n) => drop(self.outbox.send_shared(request.get(n..).unwrap_or_default()).await),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => drop(self.outbox.send_shared(request).await),
            Err(_) => {}
        }
        true
    }
}
