//! Closed-loop load: each of N clients makes one call at a time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use super::{CallOutcome, LoadStats, PreparedCall, PreparedCalls, Report};
use crate::boxed_future::BoxedFuture;
use crate::http1::{HttpConnection, ServerAddr};
use crate::time::{Timer, elapsed_since, now};

/// Delay after a failed attempt to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(5);
/// Maximum time to wait for a response, far above any timeout of a proxy.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval over which served calls of a closed load are counted separately, so that a change of
/// the server becomes visible.
pub const SLICE_INTERVAL: Duration = Duration::from_millis(250);

/// Configuration of a closed-loop load.
#[derive(Debug, Clone)]
pub struct ClosedConfig {
    /// Address to send the calls to.
    pub target: ServerAddr,
    /// Calls to send.
    pub calls: PreparedCalls,
    /// Number of clients, each with one call in flight.
    pub clients: usize,
    /// Duration of the measurement.
    pub duration: Duration,
    /// Duration of the load before the measurement.
    pub warm_up: Duration,
    /// `true` to open a new connection for each call. The time to connect is part of the latency.
    pub fresh: bool,
    /// Minimum and maximum think time of a client after each response, or `None` to make the next
    /// call immediately.
    pub think: Option<(Duration, Duration)>,
}

struct ClosedLoopClient {
    config: Arc<ClosedConfig>,
    tally: Arc<LoadStats>,
    turn: Arc<AtomicU64>,
    begin: Instant,
    end: Instant,
    rng: SmallRng,
}

/// Runs the load to its end. Calls are counted if they end within `duration` after the warm-up.
pub fn run_closed_loop(config: ClosedConfig) -> BoxedFuture<'static, Report> {
    Box::pin(run_clients(config))
}

async fn run_clients(config: ClosedConfig) -> Report {
    let config = Arc::new(config);
    let tally = Arc::new(LoadStats::new());
    let turn = Arc::new(AtomicU64::new(0));
    let begin = now() + config.warm_up;
    let end = begin + config.duration;
    let mut clients = JoinSet::new();
    for seed in 0..config.clients {
        let client = ClosedLoopClient {
            config: Arc::clone(&config),
            tally: Arc::clone(&tally),
            turn: Arc::clone(&turn),
            begin,
            end,
            rng: SmallRng::seed_from_u64(seed as u64),
        };
        clients.spawn(client.run());
    }
    clients.join_all().await;
    Report { made: turn.load(Ordering::Relaxed), ..tally.report(config.calls.items, config.duration) }
}

// === impl ClosedLoopClient ===

impl ClosedLoopClient {
    async fn run(mut self) {
        let mut connection = None;
        let mut timer = self.config.think.and_then(|_| Timer::new().ok());
        while now() < self.end {
            let prepared = self.config.calls.get(self.turn.fetch_add(1, Ordering::Relaxed));
            let begun = now();
            let outcome = match tokio::time::timeout(RESPONSE_TIMEOUT, self.call(&mut connection, prepared)).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) | Err(_) => {
                    connection = None;
                    CallOutcome::Failed
                }
            };
            let ended = now();
            if (self.begin..self.end).contains(&ended) {
                self.tally.counts().report.offered += 1;
                self.tally.record(outcome, ended.saturating_duration_since(begun));
                if outcome == CallOutcome::Served {
                    self.tally.record_slice(ended.saturating_duration_since(self.begin));
                }
            }
            if outcome == CallOutcome::Failed && connection.is_none() && elapsed_since(begun) < CONNECT_PAUSE {
                tokio::time::sleep(CONNECT_PAUSE).await;
            }
            if let (Some(timer), Some((least, most))) = (&mut timer, self.config.think) {
                // If the timer fails, the client waits less.
                timer.sleep(least + most.saturating_sub(least).mul_f64(self.rng.random())).await.ok();
            }
        }
    }

    async fn call(&self, connection: &mut Option<HttpConnection>, prepared: &PreparedCall) -> io::Result<CallOutcome> {
        if let Some(mut conn) = connection.take() {
            match exchange(&mut conn, prepared).await {
                Ok((outcome, close)) => {
                    *connection = (!close).then_some(conn);
                    return Ok(outcome);
                }
                // Closed while idle: the only failure after which a client may retry.
                Err(_) if conn.inbox.unread().is_empty() => {}
                Err(error) => return Err(error),
            }
        }
        let mut conn = self.config.target.connect().await?;
        let (outcome, close) = exchange(&mut conn, prepared).await?;
        *connection = (!close && !self.config.fresh).then_some(conn);
        Ok(outcome)
    }
}

async fn exchange(conn: &mut HttpConnection, prepared: &PreparedCall) -> io::Result<(CallOutcome, bool)> {
    let answer = conn.call(&prepared.request).await?;
    Ok((prepared.outcome(&answer), answer.close))
}
