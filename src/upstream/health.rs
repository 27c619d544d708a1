//! Whether the model server is there.
//!
//! Ready once it accepted a connection; not ready while connects have failed for three seconds. It is probed only until it accepts and while connects
//! fail, so a healthy idle process has no timer here. A full queue never makes us unready: that would shift load and collapse peers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::batching::Tick;
use crate::clock::Clock;

use super::{Http2, Inner};

/// How long connects may fail before the process says that it is not ready (README R19).
const UNREADY_AFTER: Duration = Duration::from_secs(3);
/// Pauses between probes: from quick, so that recovery is seen within a second, to sparing.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(800);

/// What is known of the server.
#[derive(Debug)]
pub(super) struct Health {
    clock: Clock,
    accepted: AtomicBool,
    failing_since: Mutex<Option<Tick>>,
    probing: AtomicBool,
}

// === impl Health ===

impl Health {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            accepted: AtomicBool::new(false),
            failing_since: Mutex::new(None),
            probing: AtomicBool::new(false),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        let failing = self.failing_since.lock().ok().and_then(|since| *since);
        self.accepted.load(Ordering::Relaxed)
            && failing.is_none_or(|since| self.clock.now().since(since) < UNREADY_AFTER)
    }

    /// A connect succeeded. True the first time, and the first time after a failure.
    pub(super) fn succeeded(&self) -> bool {
        let first = !self.accepted.swap(true, Ordering::Relaxed);
        let failed = self.failing_since.lock().ok().and_then(|mut since| since.take()).is_some();
        first || failed
    }

    /// A connect failed. True the first time in a row.
    fn failed(&self) -> bool {
        self.failing_since.lock().is_ok_and(|mut since| {
            let first = since.is_none();
            since.get_or_insert(self.clock.now());
            first
        })
    }
}

// === impl Inner ===

impl Inner {
    /// A connection, counted towards readiness. Failing ones start the probe, unless it runs.
    pub(super) async fn connect(self: &std::sync::Arc<Self>) -> std::io::Result<super::connect::Io> {
        match self.connector.connect().await {
            Ok(io) => {
                if self.health.succeeded() {
                    self.learn_again();
                }
                Ok(io)
            }
            Err(error) => {
                self.not_reachable(&error);
                let inner = self.clone();
                tokio::spawn(async move { inner.probe().await });
                Err(error)
            }
        }
    }

    /// Counts a failed connect, and says so once until the server is back.
    fn not_reachable(&self, error: &std::io::Error) {
        if self.health.failed() {
            tracing::warn!(%error, upstream = %self.config.target, "upstream not reachable");
        }
    }

    /// Connects until the server accepts, with growing pauses.
    pub(super) async fn probe(self: std::sync::Arc<Self>) {
        if self.health.probing.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut pause = PAUSE_MIN;
        loop {
            match self.connector.connect().await {
                Ok(_) => break,
                Err(error) => {
                    self.not_reachable(&error);
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        self.health.probing.store(false, Ordering::Release);
        if self.health.succeeded() {
            tracing::info!(upstream = %self.config.target, "upstream accepts connections");
            self.learn_again();
        }
    }

    /// The server is new, or was away and may be another one: what it speaks and publishes is asked again.
    fn learn_again(self: &std::sync::Arc<Self>) {
        self.published.forget();
        if self.config.http2 == Http2::Auto {
            let inner = self.clone();
            tokio::spawn(async move {
                let speaks = super::client::speaks_http2(&inner.connector).await;
                tracing::debug!(speaks, "probed the upstream for HTTP/2");
                inner.shared.set_http2(speaks);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_ready_once_it_accepted_and_until_connects_failed_for_long() {
        let health = Health::new(Clock::start());
        assert!(!health.is_ready());
        assert!(health.succeeded());
        assert!(health.is_ready());
        health.failed();
        assert!(health.is_ready(), "one failure is not an outage");
        *health.failing_since.lock().unwrap() = Some(Tick(0));
        let now = health.clock.now();
        assert_eq!(health.is_ready(), now.since(Tick(0)) < UNREADY_AFTER);
        assert!(health.succeeded(), "back after a failure: it may be another server");
        assert!(!health.succeeded());
    }
}
