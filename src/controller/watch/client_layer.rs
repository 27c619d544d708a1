//! A client layer for reflectors: response timeout and size limit, request pacing, and liveness
//! tracking.
//!
//! The watcher of kube-runtime waits for a list without a timeout, restarts a watch immediately if
//! it ended successfully, and does not expose the bookmarks that show that it is alive. Each kind
//! therefore uses its own client, which wraps the common one and observes every request and
//! response.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;

use super::{SharedState, WatchTiming, WatchedKind};
use crate::batching::Tick;
use crate::error::BoxError;

/// Maximum size of a page of a list in bytes. A page has 500 objects; etcd accepts at most 1.5 MiB
/// per object, and most objects are a hundredth of that.
const PAGE_BYTES_MAX: usize = 256 << 20;

/// Earliest instant of the next request.
#[derive(Debug)]
struct RequestPacing {
    /// End of the pause that `Retry-After` requested.
    not_before: Tick,
    /// Start of the last watch.
    began: Option<Tick>,
    /// Minimum delay of the next watch after that start.
    wait: Duration,
}

pub(super) fn wrap_client(
    client: &kube::Client,
    kind: WatchedKind,
    shared: &SharedState,
    timing: WatchTiming,
) -> kube::Client {
    let gate = RequestPacing { not_before: Tick(0), began: None, wait: timing.pace };
    let guard =
        Arc::new(WatchClient { client: client.clone(), kind, shared: shared.clone(), timing, gate: Mutex::new(gate) });
    let service = tower::service_fn(move |request: Request<Body>| {
        let guard = guard.clone();
        async move { guard.send_paced(request).await }
    });
    kube::Client::new(service, client.default_namespace())
}

struct WatchClient {
    client: kube::Client,
    kind: WatchedKind,
    shared: SharedState,
    timing: WatchTiming,
    gate: Mutex<RequestPacing>,
}

// === impl WatchClient ===

impl WatchClient {
    async fn send_paced(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let watch = request.uri().query().is_some_and(|query| query.split('&').any(|part| part.starts_with("watch=")));
        let clock = self.shared.clock;
        let wait = self.gate().next(watch, clock.now(), &self.timing);
        tokio::time::sleep(wait).await;
        if watch {
            self.gate().began = Some(clock.now());
        }
        let answer = tokio::time::timeout(self.timing.answer, self.send(request, watch)).await;
        self.shared.on_response(self.kind);
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(self.on_no_response(error)),
            Err(_) => return Err(self.on_no_response(format!("no answer within {:?}", self.timing.answer).into())),
        };
        // An overloaded server gets no request of this kind before its `Retry-After`.
        if let Some(after) = retry_after(&answer) {
            self.gate().not_before = clock.now().after(after.min(self.timing.retry_after_max));
        }
        Ok(answer)
    }

    /// Resets the pacing. A watch that failed to start did not end early: its backoff is applied by
    /// the follower.
    fn on_no_response(&self, error: BoxError) -> BoxError {
        let mut gate = self.gate();
        (gate.began, gate.wait) = (None, self.timing.pace);
        drop(gate);
        self.shared.reach().request_check();
        error
    }

    /// Reads a list completely, so that timeout and size limit cover its whole body; of a watch
    /// only the head.
    async fn send(&self, request: Request<Body>, watch: bool) -> Result<Response<Body>, BoxError> {
        let answer = self.client.send(request).await?;
        if watch && answer.status().is_success() {
            return Ok(answer);
        }
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, PAGE_BYTES_MAX).collect().await?.to_bytes();
        Ok(Response::from_parts(parts, Body::from(body)))
    }

    fn gate(&self) -> std::sync::MutexGuard<'_, RequestPacing> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl RequestPacing ===

impl RequestPacing {
    /// Returns the delay of the next request.
    fn next(&mut self, watch: bool, now: Tick, timing: &WatchTiming) -> Duration {
        let closed = self.not_before.since(now);
        let Some(began) = self.began.filter(|_| watch) else { return closed };
        // A watch that ended soon after its start is followed by a longer delay; one that lasted
        // resets it.
        if now.since(began) < self.wait.saturating_mul(2) {
            let due = began.after(self.wait);
            self.wait = self.wait.saturating_mul(2).min(timing.backoff.1);
            return due.since(now).max(closed);
        }
        self.wait = timing.pace;
        closed
    }
}

/// Returns the `Retry-After` of an overloaded server.
fn retry_after(answer: &Response<Body>) -> Option<Duration> {
    if !matches!(answer.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let seconds = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Exponential backoff with jitter: a delay is drawn between zero and the current bound ("full
/// jitter", AWS Architecture Blog, "Exponential Backoff And Jitter"), but is never below the lower
/// bound.
#[derive(Debug)]
pub(super) struct Backoff {
    bounds: (Duration, Duration),
    next: Duration,
    last: Option<Tick>,
}

// === impl Backoff ===

impl Backoff {
    pub(super) const fn new(bounds: (Duration, Duration)) -> Self {
        Self { bounds, next: bounds.0, last: None }
    }

    /// Restarts with the shortest delay.
    pub(super) const fn reset(&mut self) {
        self.last = None;
    }

    /// Returns the delay after an error at `now`. `draw` is a random number between 0 and 1. The
    /// backoff restarts after twice the longest delay without an error.
    pub(super) fn after_error(&mut self, now: Tick, draw: f64) -> Duration {
        let (least, most) = self.bounds;
        if self.last.is_none_or(|last| now.since(last) > most.saturating_mul(2)) {
            self.next = least;
        }
        self.last = Some(now);
        let wait = least.max(self.next.mul_f64(draw));
        self.next = self.next.saturating_mul(2).min(most);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing() -> WatchTiming {
        WatchTiming {
            pace: Duration::from_secs(1),
            backoff: (Duration::from_millis(500), Duration::from_secs(8)),
            ..WatchTiming::default()
        }
    }

    fn at(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1000)
    }

    #[test]
    fn short_watches_are_delayed_exponentially_and_a_long_one_resets_the_delay() {
        let mut gate = RequestPacing { not_before: Tick(0), began: None, wait: Duration::from_secs(1) };
        assert_eq!(gate.next(true, at(0), &timing()), Duration::ZERO);
        let mut now = at(0);
        let mut waits = Vec::new();
        for _ in 0..6 {
            gate.began = Some(now);
            let wait = gate.next(true, now, &timing());
            waits.push(wait.as_secs());
            now = now.after(wait);
        }
        assert_eq!(waits, [1, 2, 4, 8, 8, 8]);
        gate.began = Some(now);
        assert_eq!(gate.next(true, now.after(Duration::from_secs(200)), &timing()), Duration::ZERO);
        assert_eq!(gate.wait, Duration::from_secs(1));
    }

    #[test]
    fn a_list_is_delayed_only_until_the_time_given_by_the_server() {
        let mut gate = RequestPacing { not_before: at(5), began: Some(at(4)), wait: Duration::from_secs(8) };
        assert_eq!(gate.next(false, at(4), &timing()), Duration::from_secs(1));
        assert_eq!(gate.next(false, at(6), &timing()), Duration::ZERO);
    }

    #[test]
    fn waits_grow_to_the_maximum_and_restart_after_a_quiet_time() {
        let mut backoff = Backoff::new(timing().backoff);
        let waits: Vec<u128> = (0..7).map(|_| backoff.after_error(at(1), 1.0).as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 8000, 8000]);
        assert_eq!(backoff.after_error(at(2), 0.0), Duration::from_millis(500), "never none");
        assert_eq!(backoff.after_error(at(30), 1.0), Duration::from_millis(500));
    }
}
