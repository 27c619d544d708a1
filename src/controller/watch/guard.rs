//! What stands between a reflector and the API server: a bound on every answer, a pace, and an ear.
//!
//! The reflector of kube-runtime waits for a list for ever, begins a watch anew at once when it ended in good order, and does not show the bookmarks that say
//! that it lives. So each kind asks through a client of its own, which wraps the common one and sees every question and answer go by.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;

use super::{Kind, Shared, Timing};
use crate::batching::Tick;
use crate::error::BoxError;

/// The largest page of a list: 500 objects, none of which etcd takes above 1.5 MiB, and most are a hundredth of it.
const PAGE_BYTES_MAX: usize = 256 << 20;

/// When the next question may be asked.
#[derive(Debug)]
struct Gate {
    /// Not before this time.
    closed: Tick,
    /// When the last watch began.
    began: Option<Tick>,
    /// What the next one waits from then on.
    wait: Duration,
}

/// A client for one kind.
pub(super) fn guarded(client: &kube::Client, kind: Kind, shared: &Shared, timing: Timing) -> kube::Client {
    let gate = Gate { closed: Tick(0), began: None, wait: timing.pace };
    let guard =
        Arc::new(Guard { client: client.clone(), kind, shared: shared.clone(), timing, gate: Mutex::new(gate) });
    let service = tower::service_fn(move |request: Request<Body>| {
        let guard = guard.clone();
        async move { guard.ask(request).await }
    });
    kube::Client::new(service, client.default_namespace())
}

struct Guard {
    client: kube::Client,
    kind: Kind,
    shared: Shared,
    timing: Timing,
    gate: Mutex<Gate>,
}

// === impl Guard ===

impl Guard {
    async fn ask(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let watch = request.uri().query().is_some_and(|query| query.split('&').any(|part| part.starts_with("watch=")));
        let clock = self.shared.clock;
        let wait = self.gate().next(watch, clock.now(), &self.timing);
        tokio::time::sleep(wait).await;
        if watch {
            self.gate().began = Some(clock.now());
        }
        let answer = tokio::time::timeout(self.timing.answer, self.send(request, watch)).await;
        self.shared.heard(self.kind);
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(self.unanswered(error)),
            Err(_) => return Err(self.unanswered(format!("no answer within {:?}", self.timing.answer).into())),
        };
        if let Some(after) = retry_after(&answer) {
            self.gate().closed = clock.now().after(after.min(self.timing.retry_after_max));
        }
        Ok(answer)
    }

    /// A watch that did not begin is not one that ended too soon: its backoff is the follower's.
    fn unanswered(&self, error: BoxError) -> BoxError {
        let mut gate = self.gate();
        (gate.began, gate.wait) = (None, self.timing.pace);
        drop(gate);
        self.shared.reach().doubt();
        error
    }

    /// A list comes back whole, so that the bound is on all of it; of a watch, the head.
    async fn send(&self, request: Request<Body>, watch: bool) -> Result<Response<Body>, BoxError> {
        let answer = self.client.send(request).await?;
        if watch && answer.status().is_success() {
            return Ok(answer);
        }
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, PAGE_BYTES_MAX).collect().await?.to_bytes();
        Ok(Response::from_parts(parts, Body::from(body)))
    }

    fn gate(&self) -> std::sync::MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Gate ===

impl Gate {
    /// How long the next question waits.
    fn next(&mut self, watch: bool, now: Tick, timing: &Timing) -> Duration {
        let closed = self.closed.since(now);
        let Some(began) = self.began.filter(|_| watch) else { return closed };
        // One that ended soon after it was let through is followed by a longer wait; one that lasted is forgotten.
        if now.since(began) < self.wait.saturating_mul(2) {
            let due = began.after(self.wait);
            self.wait = self.wait.saturating_mul(2).min(timing.backoff.1);
            return due.since(now).max(closed);
        }
        self.wait = timing.pace;
        closed
    }
}

/// When a server that has too much to do wants to be asked again.
fn retry_after(answer: &Response<Body>) -> Option<Duration> {
    if !matches!(answer.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let seconds = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Time between tries, with full jitter.
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

    /// Begins anew with the shortest wait.
    pub(super) const fn reset(&mut self) {
        self.last = None;
    }

    /// How long to wait after an error now. `draw` is between 0 and 1. After twice the longest wait without an error it begins anew.
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

    fn timing() -> Timing {
        Timing {
            pace: Duration::from_secs(1),
            backoff: (Duration::from_millis(500), Duration::from_secs(8)),
            ..Timing::default()
        }
    }

    fn at(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1000)
    }

    #[test]
    fn watches_that_end_at_once_come_ever_more_slowly_and_one_that_lasts_is_forgiven() {
        let mut gate = Gate { closed: Tick(0), began: None, wait: Duration::from_secs(1) };
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
    fn a_list_waits_for_the_server_only() {
        let mut gate = Gate { closed: at(5), began: Some(at(4)), wait: Duration::from_secs(8) };
        assert_eq!(gate.next(false, at(4), &timing()), Duration::from_secs(1));
        assert_eq!(gate.next(false, at(6), &timing()), Duration::ZERO);
    }

    #[test]
    fn waits_grow_to_the_longest_and_begin_anew_after_a_quiet_time() {
        let mut backoff = Backoff::new(timing().backoff);
        let waits: Vec<u128> = (0..7).map(|_| backoff.after_error(at(1), 1.0).as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 8000, 8000]);
        assert_eq!(backoff.after_error(at(2), 0.0), Duration::from_millis(500), "never none");
        assert_eq!(backoff.after_error(at(30), 1.0), Duration::from_millis(500));
    }
}
