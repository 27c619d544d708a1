//! Kubernetes Events on workloads and policies, deduplicated and rate-limited.
//!
//! An [`EventNotice`] is plain data produced by pure code. One task publishes notices through the
//! process's only `Recorder`, which aggregates repetitions into an event series.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::{mpsc, watch};

use super::FIELD_MANAGER;
use super::cluster_state::{ObjectMetadata, OwnerRef};
use crate::api::v1alpha1::API_VERSION;
use crate::batching::Tick;
use crate::clock::Clock;
use crate::telemetry::ControllerMetrics;
use crate::telemetry::names::EventResult;

/// Capacity of the queue of notices; notices beyond it are dropped and counted.
pub const QUEUE_MAX: usize = 256;
/// Interval within which an identical notice about the same object is suppressed.
const REPEAT_INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum number of remembered pairs of object and reason. The oldest is evicted and may be
/// published again.
const REMEMBERED_MAX: usize = 4096;
/// Token bucket for all Events: `BURST` at once, then one per `REFILL_INTERVAL`. Notices about pods
/// are grouped by workload, so a thousand missed pods need only a few Events.
const BURST: u32 = 20;
const REFILL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of one API call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest note that the API server accepts.
const NOTE_BYTES_MAX: usize = 1024;

/// The object that an Event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct EventTarget {
    /// API version, for example `apps/v1`.
    pub api_version: String,
    /// Kind, for example `Pod`.
    pub kind: String,
    /// Namespace, in which the Event is created too.
    pub namespace: String,
    /// Name in that namespace.
    pub name: String,
    /// UID, by which `kubectl describe` finds the Event.
    pub uid: String,
}

/// An Event to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventNotice {
    /// The object concerned.
    pub about: EventTarget,
    /// Selects the Event type: `Warning` if set, else `Normal`.
    pub warning: bool,
    /// Machine-readable reason, in one word.
    pub reason: &'static str,
    /// Human-readable description.
    pub note: String,
}

// === impl EventTarget ===

impl EventTarget {
    /// Refers to a policy.
    #[must_use]
    pub fn policy(meta: &ObjectMetadata) -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: "BatchPolicy".to_owned(), ..Self::object(meta) }
    }

    /// Refers to a pod.
    #[must_use]
    pub fn pod(meta: &ObjectMetadata) -> Self {
        Self { api_version: "v1".to_owned(), kind: "Pod".to_owned(), ..Self::object(meta) }
    }

    /// Refers to the workload that owns a pod.
    #[must_use]
    pub fn workload(namespace: &str, made: &OwnerRef) -> Self {
        Self {
            api_version: made.api_version.clone(),
            kind: made.kind.clone(),
            namespace: namespace.to_owned(),
            name: made.name.clone(),
            uid: made.uid.clone(),
        }
    }

    fn object(meta: &ObjectMetadata) -> Self {
        let (namespace, name) = (meta.key.namespace.clone(), meta.key.name.clone());
        Self { namespace, name, uid: meta.uid.clone(), ..Self::default() }
    }
}

// === impl EventNotice ===

impl EventNotice {
    /// Creates a notice of type `Warning`.
    #[must_use]
    pub fn warning(about: EventTarget, reason: &'static str, note: impl Into<String>) -> Self {
        Self { about, warning: true, reason, note: note.into() }
    }

    /// Creates a notice of type `Normal`.
    #[must_use]
    pub fn normal(about: EventTarget, reason: &'static str, note: impl Into<String>) -> Self {
        Self { about, warning: false, reason, note: note.into() }
    }
}

/// Deduplicates notices and limits their rate with a token bucket.
#[derive(Debug, Default)]
struct EventRateLimiter {
    published: BTreeMap<(EventTarget, &'static str), (Tick, String)>,
    /// Tokens taken from the bucket, and the instant of its last refill.
    tokens_taken: u32,
    since: Tick,
}

// === impl EventRateLimiter ===

impl EventRateLimiter {
    /// Decides about a notice: `Some(true)` publishes it, `Some(false)` exceeds the rate limit,
    /// `None` is a duplicate. The same reason about the same object passes again after
    /// [`REPEAT_INTERVAL`] or with another note.
    fn decide(&mut self, notice: &EventNotice, now: Tick) -> Option<bool> {
        let key = (notice.about.clone(), notice.reason);
        if self.published.get(&key).is_some_and(|(at, note)| now.since(*at) < REPEAT_INTERVAL && *note == notice.note) {
            return None;
        }
        let back = u32::try_from(now.since(self.since).as_millis() / REFILL_INTERVAL.as_millis()).unwrap_or(u32::MAX);
        if back > 0 {
            self.tokens_taken = self.tokens_taken.saturating_sub(back);
            // The fraction of a token that has been earned already counts for the next one.
            self.since = self.since.after(REFILL_INTERVAL.saturating_mul(back));
        }
        if self.tokens_taken >= BURST {
            return Some(false);
        }
        self.tokens_taken += 1;
        if self.published.len() >= REMEMBERED_MAX {
            let oldest = self.published.iter().min_by_key(|(_, (at, _))| *at).map(|(key, _)| key.clone());
            oldest.and_then(|key| self.published.remove(&key));
        }
        self.published.insert(key, (now, notice.note.clone()));
        Some(true)
    }
}

/// Publishes notices until shutdown is signalled.
pub async fn publish(
    client: kube::Client,
    instance: String,
    mut notices: mpsc::Receiver<EventNotice>,
    (clock, metrics): (Clock, ControllerMetrics),
    mut stop: watch::Receiver<bool>,
) {
    let recorder = Recorder::new(client, Reporter { controller: FIELD_MANAGER.to_owned(), instance: Some(instance) });
    let mut filter = EventRateLimiter::default();
    loop {
        let notice = tokio::select! {
            notice = notices.recv() => notice,
            () = crate::wait_for_shutdown(&mut stop) => None,
        };
        let Some(notice) = notice else { return };
        match filter.decide(&notice, clock.now()) {
            None => continue,
            Some(false) => {
                metrics.record_event(EventResult::Dropped);
                continue;
            }
            Some(true) => {}
        }
        let (event, about) = event(&notice);
        let result = match tokio::time::timeout(CALL_TIMEOUT, recorder.publish(&event, &about)).await {
            Ok(Ok(())) => EventResult::Sent,
            Ok(Err(error)) => {
                tracing::debug!(%error, reason = notice.reason, "the API server rejected an Event");
                EventResult::Failed
            }
            Err(_) => EventResult::Failed,
        };
        metrics.record_event(result);
    }
}

fn event(notice: &EventNotice) -> (Event, ObjectReference) {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let about = &notice.about;
    let about = ObjectReference {
        api_version: some(&about.api_version),
        kind: some(&about.kind),
        name: some(&about.name),
        namespace: some(&about.namespace),
        uid: some(&about.uid),
        ..ObjectReference::default()
    };
    let type_ = if notice.warning { EventType::Warning } else { EventType::Normal };
    let note = notice.note.char_indices().take_while(|(at, letter)| at + letter.len_utf8() <= NOTE_BYTES_MAX);
    let note: String = note.map(|(_, letter)| letter).collect();
    (
        Event {
            type_,
            reason: notice.reason.to_owned(),
            note: Some(note),
            action: notice.reason.to_owned(),
            secondary: None,
        },
        about,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(name: &str, note: &str) -> EventNotice {
        EventNotice::warning(EventTarget { name: name.to_owned(), ..EventTarget::default() }, "SidecarMissing", note)
    }

    fn at(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1000)
    }

    #[test]
    fn equal_events_are_limited_to_one_an_hour_and_others_pass_at_once() {
        let mut filter = EventRateLimiter::default();
        assert_eq!(filter.decide(&notice("a", "1 pod"), at(0)), Some(true));
        assert_eq!(filter.decide(&notice("a", "1 pod"), at(3599)), None);
        assert_eq!(filter.decide(&notice("a", "2 pods"), at(3599)), Some(true));
        assert_eq!(filter.decide(&notice("a", "2 pods"), at(9000)), Some(true));
        assert_eq!(filter.decide(&notice("b", "1 pod"), at(9000)), Some(true));
    }

    #[test]
    fn a_flood_is_cut_to_a_burst_and_one_a_second() {
        let mut filter = EventRateLimiter::default();
        let published = |filter: &mut EventRateLimiter, from: usize, second| {
            let all = (from..from + 100)
                .filter(|name| filter.decide(&notice(&name.to_string(), ""), at(second)) == Some(true));
            all.count()
        };
        assert_eq!(published(&mut filter, 0, 100), 20);
        assert_eq!(published(&mut filter, 1000, 105), 5);
        assert_eq!(published(&mut filter, 2000, 1000), 20);
        assert!(filter.published.len() <= REMEMBERED_MAX);
    }

    #[test]
    fn a_note_is_truncated_to_1024_bytes() {
        let (event, _) = event(&notice("a", &"é".repeat(2000)));
        assert_eq!(event.note.unwrap().len(), 1024);
    }
}
