//! Reachability of the model server.
//!
//! The server is ready once it has accepted a connection, and not ready while connects have failed
//! for three seconds. It is probed only until it accepts a connection and while connects fail, so
//! an idle process with a reachable server has no timer here. A full queue never affects readiness:
//! load would shift to the peers and could overload them in turn.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::batching::Tick;
use crate::clock::Clock;

use super::permits::ConnectionPurpose;
use super::{Http2, Inner, UpstreamTarget};
use crate::tls::{AlpnProtocols, TlsFailure};

/// Duration of continuous connect failures after which the process reports that it is not ready.
const UNREADY_AFTER: Duration = Duration::from_secs(3);
/// Bounds of the exponential backoff between probes: short at first, so that recovery is detected
/// within a second, then longer to save resources.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(800);
/// Timeout of the first probe. It doubles with each failure, up to the configured timeout: a server
/// that is back is usually found by a new attempt earlier than by the repeated packets of an old
/// one, which the kernel sends after 1 s and 3 s, while a distant server may need the whole time.
const PROBE_LIMIT_MIN: Duration = Duration::from_millis(300);

/// Connection state of the server.
#[derive(Debug)]
pub(super) struct Reachability {
    clock: Clock,
    accepted: AtomicBool,
    times: Mutex<ConnectTimes>,
    probing: AtomicBool,
    /// The HTTP/2 probe has completed since the server was last unreachable.
    http2_probed: AtomicBool,
    /// Held during the HTTP/2 probe, so that only one runs at a time.
    http2_probe: tokio::sync::Mutex<()>,
    /// Number of times that the server became reachable again after a failure.
    returns: watch::Sender<u64>,
    /// The last TLS failure, kept so that repetitions are not logged.
    last_tls_error: Mutex<Option<TlsFailure>>,
}

#[derive(Debug, Default)]
struct ConnectTimes {
    accepted_at: Tick,
    /// Instant from which on no connect has succeeded. `None`: the last one succeeded.
    failing_since: Option<Tick>,
}

// === impl Reachability ===

impl Reachability {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            accepted: AtomicBool::new(false),
            times: Mutex::default(),
            probing: AtomicBool::new(false),
            http2_probed: AtomicBool::new(false),
            http2_probe: tokio::sync::Mutex::new(()),
            returns: watch::Sender::new(0),
            last_tls_error: Mutex::new(None),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        let failing = self.times.lock().ok().and_then(|times| times.failing_since);
        self.accepted.load(Ordering::Relaxed)
            && failing.is_none_or(|since| self.clock.now().since(since) < UNREADY_AFTER)
    }

    /// Records a successful connect. Returns `true` the first time, and the first time after a
    /// failure.
    pub(super) fn on_connected(&self) -> bool {
        let first = !self.accepted.swap(true, Ordering::Relaxed);
        let now = self.clock.now();
        let failed = self.times.lock().is_ok_and(|mut times| {
            times.accepted_at = now;
            times.failing_since.take().is_some()
        });
        if failed {
            self.returns.send_modify(|returns| *returns += 1);
        }
        first || failed
    }

    pub(super) fn returns(&self) -> watch::Receiver<u64> {
        self.returns.subscribe()
    }

    /// Returns the number of times that the server became reachable again after a failure.
    pub(super) fn recovery_count(&self) -> u64 {
        *self.returns.borrow()
    }

    /// Returns `true` if the TLS failure differs from the last one, and stores it.
    fn replace_tls_error(&self, failure: &TlsFailure) -> bool {
        self.last_tls_error.lock().is_ok_and(|mut last| last.replace(failure.clone()).as_ref() != Some(failure))
    }

    /// Records a failed connect that was started at this instant. Returns `true` for the first of
    /// consecutive failures. The outage counts from the start of the connect, which may have waited
    /// for seconds, unless another one has succeeded since then.
    fn on_connect_failed(&self, began: Tick) -> bool {
        self.times.lock().is_ok_and(|mut times| {
            let first = times.failing_since.is_none();
            let since = began.max(times.accepted_at);
            times.failing_since.get_or_insert(since);
            first
        })
    }
}

// === impl Inner ===

impl Inner {
    /// Opens a connection for calls, which takes a permit.
    ///
    /// # Errors
    /// Returns [`NoPermit`](super::permits::NoPermit) if no permit is free, or the error of
    /// [`Self::connect`].
    pub(super) async fn connect_for(
        self: &std::sync::Arc<Self>,
        purpose: &ConnectionPurpose,
        speak: AlpnProtocols,
    ) -> std::io::Result<super::connect::UpstreamIo> {
        let permit = self.permits.acquire(purpose).await.map_err(std::io::Error::other)?;
        Ok(self.connect(speak).await?.with_permit(permit))
    }

    /// Opens a connection and records the result for readiness. A failure starts the probe unless
    /// it is running.
    pub(super) async fn connect(
        self: &std::sync::Arc<Self>,
        speak: AlpnProtocols,
    ) -> std::io::Result<super::connect::UpstreamIo> {
        let began = self.clock.now();
        match self.connector.connect(speak).await {
            Ok(io) => {
                if self.health.on_connected() {
                    self.reprobe();
                }
                Ok(io)
            }
            Err(error) => {
                self.record_unreachable(&error, began);
                let inner = self.clone();
                tokio::spawn(async move { inner.probe().await });
                Err(error)
            }
        }
    }

    /// Records a failed connect and logs it once until the server is reachable again. A new TLS
    /// failure is logged even after a different failure.
    fn record_unreachable(&self, error: &std::io::Error, began: Tick) {
        let tls = error.get_ref().and_then(|error| error.downcast_ref::<TlsFailure>());
        let news = tls.is_some_and(|failure| self.health.replace_tls_error(failure));
        if self.health.on_connect_failed(began) || news {
            tracing::warn!(%error, upstream = %self.config.target, "upstream not reachable");
        }
    }

    /// Records that the server accepted a connection and closed it with a TLS error, and logs a new
    /// error.
    pub(super) fn record_tls_error(&self, failure: &TlsFailure) {
        if self.health.replace_tls_error(failure) {
            tracing::warn!(error = %failure, upstream = %self.config.target, "upstream closes connections with a TLS error");
        }
    }

    /// Returns the HTTP versions to offer on a connection that carries no call.
    pub(super) const fn http_version(&self) -> AlpnProtocols {
        match self.config.http2 {
            Http2::Auto => AlpnProtocols::Either,
            Http2::Always => AlpnProtocols::Http2,
            Http2::Never => AlpnProtocols::Http1,
        }
    }

    /// Connects with exponential backoff until the server accepts.
    pub(super) async fn probe(self: std::sync::Arc<Self>) {
        if self.health.probing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (mut pause, mut limit) = (PAUSE_MIN, PROBE_LIMIT_MIN);
        loop {
            let began = self.clock.now();
            match self.connector.connect_within(self.http_version(), limit).await {
                Ok(_) => break,
                Err(error) => self.record_unreachable(&error, began),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            limit = limit.saturating_mul(2);
        }
        self.health.probing.store(false, Ordering::Release);
        if self.health.on_connected() {
            tracing::info!(upstream = %self.config.target, "upstream accepts connections");
            self.reprobe();
        }
    }

    /// Probes the HTTP version again, because the server is new or may have been replaced while it
    /// was unreachable. For the same reason, limits that it published are looked up again after a
    /// recovery (`published`).
    fn reprobe(self: &std::sync::Arc<Self>) {
        self.health.http2_probed.store(false, Ordering::Relaxed);
        // With TLS, the version is negotiated during the handshake, without a trace in the server's
        // log. In plain text, the probe sends an HTTP/2 preface, which an HTTP/1 server logs as a
        // malformed request, so the probe is postponed until the first HTTP/2 client connects.
        if self.connector.negotiates_alpn() {
            let inner = self.clone();
            tokio::spawn(async move { inner.probe_http2().await });
        }
    }

    fn is_captured(&self) -> bool {
        matches!(self.config.target, UpstreamTarget::Loopback(_))
    }

    /// Returns `true` if calls of HTTP/2 clients are forwarded in HTTP/2. On a captured port, the
    /// version of the client is used without a probe: the client would have used it towards the
    /// server directly.
    pub(super) async fn forwards_http2(&self) -> bool {
        if self.is_captured() && self.config.http2 == Http2::Auto {
            return true;
        }
        self.probe_http2().await;
        self.speaks_http2.load(Ordering::Relaxed)
    }

    /// Determines whether the server supports HTTP/2. The probe runs once, and again after the
    /// server was unreachable.
    pub(super) async fn probe_http2(&self) {
        if self.config.http2 != Http2::Auto || self.health.http2_probed.load(Ordering::Relaxed) {
            return;
        }
        let _turn = self.health.http2_probe.lock().await;
        if self.health.http2_probed.load(Ordering::Relaxed) {
            return;
        }
        let speaks = super::client::probe_http2(&self.connector).await;
        tracing::debug!(speaks, "probed the upstream for HTTP/2");
        self.speaks_http2.store(speaks, Ordering::Relaxed);
        self.health.http2_probed.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_ready_once_it_accepted_and_until_connects_failed_for_long() {
        let health = Reachability::new(Clock::start());
        assert!(!health.is_ready());
        assert!(health.on_connected());
        assert!(health.is_ready());
        health.on_connect_failed(health.clock.now());
        assert!(health.is_ready(), "one failure is not an outage");
        health.times.lock().unwrap().failing_since = Some(Tick(0));
        let now = health.clock.now();
        assert_eq!(health.is_ready(), now.since(Tick(0)) < UNREADY_AFTER);
        assert_eq!(*health.returns().borrow(), 0);
        assert!(health.on_connected(), "reachable again after a failure: it may be another server");
        assert!(!health.on_connected());
        assert_eq!(*health.returns().borrow(), 1);
    }

    #[test]
    fn an_outage_counts_from_the_start_of_a_connect_or_from_the_last_that_succeeded() {
        let health = Reachability::new(Clock::start());
        let failing_since = || health.times.lock().unwrap().failing_since;
        health.on_connect_failed(Tick(5));
        health.on_connect_failed(Tick(7));
        assert_eq!(failing_since(), Some(Tick(5)));
        health.on_connected();
        assert_eq!(failing_since(), None);
        let accepted_at = health.times.lock().unwrap().accepted_at;
        health.on_connect_failed(Tick(8));
        assert_eq!(failing_since(), Some(accepted_at.max(Tick(8))), "connects succeeded after this one was started");
    }
}
