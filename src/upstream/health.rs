//! Whether the model server is there.
//!
//! Ready once it accepted a connection; not ready while connects have failed for three seconds. It is probed only until it accepts and while connects
//! fail, so a healthy idle process has no timer here. A full queue never makes us unready: that would shift load and collapse peers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::batching::Tick;
use crate::clock::Clock;

use super::places::Purpose;
use super::{Http2, Inner, Target};
use crate::tls::{Refused, Speak};

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
    /// The server was asked whether it speaks HTTP/2, since it was last away.
    asked: AtomicBool,
    /// Held while it is asked, so that it is asked once.
    asking: tokio::sync::Mutex<()>,
    /// How often it was back after it had refused.
    returns: watch::Sender<u64>,
    /// Why there was no TLS with it when that was so last.
    said: Mutex<Option<Refused>>,
}

// === impl Health ===

impl Health {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            accepted: AtomicBool::new(false),
            failing_since: Mutex::new(None),
            probing: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            asking: tokio::sync::Mutex::new(()),
            returns: watch::Sender::new(0),
            said: Mutex::new(None),
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
        if failed {
            self.returns.send_modify(|returns| *returns += 1);
        }
        first || failed
    }

    pub(super) fn returns(&self) -> watch::Receiver<u64> {
        self.returns.subscribe()
    }

    /// Whether TLS failed for another reason when it did last.
    fn is_new(&self, why: &Refused) -> bool {
        self.said.lock().is_ok_and(|mut said| said.replace(why.clone()).as_ref() != Some(why))
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
    /// A connection for calls, which holds a place.
    ///
    /// # Errors
    /// [`PlacesFull`](super::places::PlacesFull), or that of [`Self::connect`].
    pub(super) async fn connect_for(
        self: &std::sync::Arc<Self>,
        purpose: &Purpose,
        speak: Speak,
    ) -> std::io::Result<super::connect::Io> {
        let place = self.places.take(purpose).await.map_err(std::io::Error::other)?;
        Ok(self.connect(speak).await?.holding(place))
    }

    /// A connection, counted towards readiness. Failing ones start the probe, unless it runs.
    pub(super) async fn connect(self: &std::sync::Arc<Self>, speak: Speak) -> std::io::Result<super::connect::Io> {
        match self.connector.connect(speak).await {
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

    /// Counts a failed connect, and says so once until the server is back; what TLS has to say is said also where it comes after another reason.
    fn not_reachable(&self, error: &std::io::Error) {
        let tls = error.get_ref().and_then(|error| error.downcast_ref::<Refused>());
        let news = tls.is_some_and(|why| self.health.is_new(why));
        if self.health.failed() || news {
            tracing::warn!(%error, upstream = %self.config.target, "upstream not reachable");
        }
    }

    /// The server took the connection and ended it by TLS; what is new of it is said.
    pub(super) fn refused_by_tls(&self, why: &Refused) {
        if self.health.is_new(why) {
            tracing::warn!(error = %why, upstream = %self.config.target, "upstream ends connections");
        }
    }

    /// What is offered where nothing is sent.
    pub(super) const fn speaks(&self) -> Speak {
        match self.config.http2 {
            Http2::Auto => Speak::Either,
            Http2::Always => Speak::Http2,
            Http2::Never => Speak::Http1,
        }
    }

    /// Connects until the server accepts, with growing pauses.
    pub(super) async fn probe(self: std::sync::Arc<Self>) {
        if self.health.probing.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut pause = PAUSE_MIN;
        loop {
            match self.connector.connect(self.speaks()).await {
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
        self.health.asked.store(false, Ordering::Relaxed);
        // Inside TLS a server answers without a word in its log. In plain text the question is a preface, which a server of HTTP/1 logs as a broken
        // request: there the first client that speaks HTTP/2 comes first.
        if self.connector.says_what_is_spoken() {
            let inner = self.clone();
            tokio::spawn(async move { inner.learn_http2().await });
        }
    }

    fn is_captured(&self) -> bool {
        matches!(self.config.target, Target::Loopback(_))
    }

    /// Whether a client that speaks HTTP/2 is spoken for in HTTP/2. On a captured port it is whatever was found: without us it would have spoken so to the
    /// server itself.
    pub(super) async fn speaks_as_its_clients(&self) -> bool {
        if self.is_captured() && self.config.http2 == Http2::Auto {
            return true;
        }
        self.learn_http2().await;
        self.shared.speaks_http2()
    }

    /// Whether the server speaks HTTP/2 is known after this: it is asked once, until it was away.
    pub(super) async fn learn_http2(&self) {
        if self.config.http2 != Http2::Auto || self.health.asked.load(Ordering::Relaxed) {
            return;
        }
        let _turn = self.health.asking.lock().await;
        if self.health.asked.load(Ordering::Relaxed) {
            return;
        }
        let speaks = super::client::speaks_http2(&self.connector).await;
        tracing::debug!(speaks, "probed the upstream for HTTP/2");
        self.shared.set_http2(speaks);
        self.health.asked.store(true, Ordering::Relaxed);
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
        assert_eq!(*health.returns().borrow(), 0);
        assert!(health.succeeded(), "back after a failure: it may be another server");
        assert!(!health.succeeded());
        assert_eq!(*health.returns().borrow(), 1);
    }
}
