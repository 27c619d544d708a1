//! Look-up of the limits that the model server publishes, in a task beside the calls that depend on
//! them. No call waits for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use http::header::{HOST, HeaderValue};

use super::Inner;
use crate::backend::LimitsLookUp;
use crate::batching::Tick;
use crate::body::Body;
use crate::protocol::{LimitsSource, PublishedLimits, Reply, parse_info_model};

/// Maximum time to wait for the response.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(1);
/// Bounds of the exponential backoff between failed look-ups: short at first, because a server that
/// starts answers within seconds, and one request a minute at last, which is no load.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Number of consecutive failures after which the server is treated as one that publishes nothing,
/// until a later look-up succeeds. With the times above this takes at most 5 s, enough for a server
/// that starts, and a server with a broken `/info` is merged nevertheless.
const FAILURES_MAX: u32 = 3;
/// Maximum number of documents whose look-up is remembered: those of a server with many models, at
/// about 200 bytes each.
const SOURCES_MAX: usize = 256;
/// Maximum number of look-ups at a time. Paths are written by clients, so their number must not
/// decide how many requests the server receives.
const RUNNING_MAX: usize = 8;

/// The limits that the server publishes, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct LimitsCache(Mutex<LookUpStates>);

#[derive(Debug, Default)]
struct LookUpStates(HashMap<LimitsSource, LookUpState>);

/// State of the look-up of one document. It applies to one server: it starts again once the server
/// has become reachable after a failure, because it may have been replaced.
#[derive(Debug, Default)]
struct LookUpState {
    /// Number of recoveries of the server to which the other fields apply.
    recoveries: u64,
    is_running: bool,
    /// The conclusive result, if there is one. The inner `None` means that the server publishes no
    /// limits.
    known: Option<Option<PublishedLimits>>,
    failures: u32,
    /// Instant before which a failed look-up is not repeated.
    retry_at: Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LookUpResult {
    /// A conclusive response.
    Found(Option<PublishedLimits>),
    /// No response, or one that does not come from the model server itself.
    Failed,
}

/// A look-up in progress. Its end is recorded on drop, so that it is repeated also after a panic.
struct LookUp {
    inner: Arc<Inner>,
    source: LimitsSource,
    recoveries: u64,
    result: LookUpResult,
}

/// Returns what is known of the limits that the server publishes in a document, and starts to look
/// them up if that is due.
pub(super) fn published_limits(inner: &Arc<Inner>, source: &LimitsSource) -> LimitsLookUp {
    let recoveries = inner.health.recovery_count();
    let (known, is_due) = inner.published.states().read(source, inner.clock.now(), recoveries);
    if is_due {
        let (inner, source) = (inner.clone(), source.clone());
        tokio::spawn(LookUp { inner, source, recoveries, result: LookUpResult::Failed }.run());
    }
    known
}

/// Returns whether the server is known to batch text generation by itself. An engine names itself
/// in the head of its responses or in a document. Any other server is known not to be one once each
/// of these look-ups has succeeded and a call was answered.
pub(super) fn batches_text(inner: &Arc<Inner>) -> Option<bool> {
    let recoveries = inner.health.recovery_count();
    if inner.identity.is_engine() {
        return Some(true);
    }
    let mut are_known = inner.identity.has_answered(recoveries);
    for source in &LimitsSource::OF_ENGINES {
        published_limits(inner, source);
        match inner.published.states().conclusion(source) {
            Some(Some(limits)) if limits.batches_itself => return Some(true),
            Some(_) => {}
            None => are_known = false,
        }
    }
    are_known.then_some(false)
}

// === impl LimitsCache ===

impl LimitsCache {
    fn states(&self) -> MutexGuard<'_, LookUpStates> {
        // No code panics while holding this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl LookUpStates ===

impl LookUpStates {
    /// Returns what is known of a document, and `true` if a look-up is due. The caller then starts
    /// it.
    fn read(&mut self, source: &LimitsSource, now: Tick, recoveries: u64) -> (LimitsLookUp, bool) {
        if !self.0.contains_key(source) {
            let is_room = self.0.len() < SOURCES_MAX;
            // The order of the map is random, which serves as random replacement.
            let idle = || self.0.iter().find(|(_, state)| !state.is_running).map(|(source, _)| source.clone());
            if let Some(evicted) = (!is_room).then(idle).flatten() {
                self.0.remove(&evicted);
            }
        }
        let is_free = self.0.values().filter(|state| state.is_running).take(RUNNING_MAX).count() < RUNNING_MAX;
        self.0.entry(source.clone()).or_default().read(now, recoveries, is_free)
    }

    /// Returns the conclusive result of the look-up of a document, if there is one.
    fn conclusion(&self, source: &LimitsSource) -> Option<Option<PublishedLimits>> {
        self.0.get(source).and_then(|state| state.known)
    }

    fn on_end(&mut self, source: &LimitsSource, now: Tick, recoveries: u64, result: LookUpResult) {
        if let Some(state) = self.0.get_mut(source) {
            state.on_end(now, recoveries, result);
        }
    }
}

// === impl LookUpState ===

impl LookUpState {
    /// Returns what is known, and `true` if a look-up is due and may start.
    fn read(&mut self, now: Tick, recoveries: u64, may_start: bool) -> (LimitsLookUp, bool) {
        if self.recoveries != recoveries {
            *self = Self { recoveries, is_running: self.is_running, ..Self::default() };
        }
        let is_due = may_start && self.known.is_none() && !self.is_running && self.retry_at <= now;
        self.is_running |= is_due;
        let look_up = match self.known {
            Some(known) => LimitsLookUp::Known(known),
            None if self.failures >= FAILURES_MAX => LimitsLookUp::Known(None),
            None => LimitsLookUp::Pending,
        };
        (look_up, is_due)
    }

    /// Records the end of a look-up that was started after this number of recoveries.
    fn on_end(&mut self, now: Tick, recoveries: u64, result: LookUpResult) {
        self.is_running = false;
        if self.recoveries != recoveries {
            // The response may be that of another server.
            return;
        }
        match result {
            LookUpResult::Found(limits) => self.known = Some(limits),
            LookUpResult::Failed => {
                let pause = RETRY_MIN.saturating_mul(2_u32.saturating_pow(self.failures)).min(RETRY_MAX);
                self.retry_at = now.after(pause);
                self.failures = self.failures.saturating_add(1);
            }
        }
    }
}

// === impl LookUp ===

impl LookUp {
    async fn run(mut self) {
        self.result = self.request().await;
        tracing::debug!(result = ?self.result, "looked up the limits that the server publishes");
    }

    async fn request(&self) -> LookUpResult {
        let host = self.inner.config.target.authority();
        let Ok(host) = HeaderValue::from_str(&host) else { return LookUpResult::Failed };
        let mut request = self.source.request().map(Body::full);
        request.headers_mut().insert(HOST, host);
        let Ok(answer) = self.inner.exchange(request, Some(LOOK_UP_LIMIT)).await else {
            return LookUpResult::Failed;
        };
        let Reply { status, headers, body, trailers } = &answer.reply;
        let status = self.source.response_status(*status, headers, trailers.as_ref());
        if status.is_success()
            && self.source == LimitsSource::Info
            && let Some(model) = parse_info_model(body)
        {
            self.inner.identity.on_published_model(&model);
        }
        judge_response(&self.source, status, body)
    }
}

impl Drop for LookUp {
    fn drop(&mut self) {
        let now = self.inner.clock.now();
        self.inner.published.states().on_end(&self.source, now, self.recoveries, self.result);
    }
}

/// Judges a response to the request for a document. An error of the client, such as 404, is that of
/// a server without this path, and 501 that of one without this method.
fn judge_response(source: &LimitsSource, status: StatusCode, body: &[u8]) -> LookUpResult {
    if status.is_success() {
        return source.parse(body).map_or(LookUpResult::Failed, LookUpResult::Found);
    }
    if source.is_absent(status) { LookUpResult::Found(None) } else { LookUpResult::Failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PublishedLimits = PublishedLimits {
        items_max: Some(8),
        weight_max: None,
        has_no_batch: false,
        batches_itself: false,
        model_kind: None,
    };

    fn seconds(seconds: u64) -> Tick {
        Tick::from_millis(1000 * seconds)
    }

    #[test]
    fn one_look_up_runs_at_a_time_and_its_result_is_kept() {
        let mut state = LookUpState::default();
        assert_eq!(state.read(seconds(0), 0, true), (LimitsLookUp::Pending, true));
        assert_eq!(state.read(seconds(9), 0, true), (LimitsLookUp::Pending, false));
        state.on_end(seconds(9), 0, LookUpResult::Found(Some(LIMITS)));
        assert_eq!(state.read(seconds(9999), 0, true), (LimitsLookUp::Known(Some(LIMITS)), false));
    }

    #[test]
    fn a_failed_look_up_is_repeated_with_backoff_and_counts_as_no_limits_after_three() {
        let mut state = LookUpState::default();
        let (mut now, mut pauses) = (Tick::default(), Vec::new());
        for failures in 0..10 {
            let expected = if failures < 3 { LimitsLookUp::Pending } else { LimitsLookUp::Known(None) };
            assert_eq!(state.read(now, 0, true), (expected, true), "{failures}");
            state.on_end(now, 0, LookUpResult::Failed);
            pauses.push(state.retry_at.since(now).as_millis());
            assert!(!state.read(state.retry_at.before(Duration::from_nanos(1)), 0, true).1, "{failures}");
            now = state.retry_at;
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]);
        assert!(state.read(now, 0, true).1);
        state.on_end(now, 0, LookUpResult::Found(Some(LIMITS)));
        assert_eq!(state.read(now, 0, true), (LimitsLookUp::Known(Some(LIMITS)), false), "a late result is used");
    }

    #[test]
    fn a_server_that_became_reachable_again_is_looked_up_anew() {
        let mut state = LookUpState::default();
        for _ in 0..3 {
            state.read(state.retry_at, 0, true);
            state.on_end(state.retry_at, 0, LookUpResult::Failed);
        }
        assert_eq!(
            state.read(seconds(0), 1, true),
            (LimitsLookUp::Pending, true),
            "the failures of the other do not count"
        );
        assert_eq!(state.read(seconds(0), 2, true), (LimitsLookUp::Pending, false), "one at a time");
        state.on_end(seconds(1), 1, LookUpResult::Found(Some(LIMITS)));
        assert_eq!(
            state.read(seconds(1), 2, true),
            (LimitsLookUp::Pending, true),
            "the limits may be those of another"
        );
    }

    #[test]
    fn only_a_response_of_the_server_itself_is_conclusive() {
        let judge = |status: u16, body: &str| {
            judge_response(&LimitsSource::Info, StatusCode::from_u16(status).unwrap(), body.as_bytes())
        };
        assert_eq!(judge(200, r#"{"max_client_batch_size":8}"#), LookUpResult::Found(Some(LIMITS)));
        for (status, body) in [(200, "{}"), (404, "not found"), (401, ""), (405, "{}"), (501, "")] {
            assert_eq!(judge(status, body), LookUpResult::Found(None), "{status} {body}");
        }
        for (status, body) in [(200, "<html>"), (500, "{}"), (503, ""), (429, ""), (302, "")] {
            assert_eq!(judge(status, body), LookUpResult::Failed, "{status} {body}");
        }
    }

    #[test]
    fn the_documents_and_their_look_ups_are_bounded() {
        let source = |model: usize| LimitsSource::ModelConfig(format!("/v2/models/m{model}/config"));
        let mut states = LookUpStates::default();
        let due = (0..SOURCES_MAX).filter(|model| states.read(&source(*model), seconds(0), 0).1).count();
        assert_eq!(due, RUNNING_MAX);
        for model in 0..RUNNING_MAX {
            states.on_end(&source(model), seconds(0), 0, LookUpResult::Found(Some(LIMITS)));
        }
        for model in SOURCES_MAX..2 * SOURCES_MAX {
            states.read(&source(model), seconds(0), 0);
        }
        assert_eq!(states.0.len(), SOURCES_MAX);
    }
}
