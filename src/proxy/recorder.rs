//! Records each call exactly once, however it ends: metrics, the access log if the call is sampled,
//! and the debug header if the client requested it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Response, StatusCode};

use super::debug::ServerTiming;
use super::priority::{OutcomeCounters, PriorityClass};
use super::{Proxy, RouteSettings};
use crate::access_log::{CallRecord, short_digest};
use crate::batching::{ScopeId, Tick};
use crate::body::Body;
use crate::clock::Clock;
use crate::error::{Failure, FailureKind};
use crate::protocol::{
    Call, DigestKey, Endpoint, KEY_BYTES_MAX, KeyPart, MergeEligibility, PARTS_MAX, UnmergeableReason,
    UnrecognisedCause,
};
use crate::scheduler::ExecutionDetails;
use crate::telemetry::names::Outcome;
use crate::telemetry::{CompletedCall, RouteDurations};

/// Records a call exactly once. If dropped without an outcome, the call is counted as cancelled by
/// the client.
#[derive(Debug)]
pub(super) struct CallRecorder {
    proxy: Arc<Proxy>,
    /// Label of the adapter in metrics.
    protocol: &'static str,
    outcome: Outcome,
    /// Number of items to count; zero until the call is parsed.
    items: u32,
    /// The line of the access log; `None` if the call is not sampled.
    record: Option<Box<CallRecord>>,
    /// Details for the `Server-Timing` header; `None` if the client did not request them.
    server_timing: Option<Box<ServerTiming>>,
    slo: Option<std::time::Duration>,
    /// Instant at which the response to the call's batch arrived.
    answered: Option<Tick>,
    /// The outcome counters of the call's priority class, set once the call is parsed.
    class: Option<OutcomeCounters>,
    /// `true` if the response has status 5xx or 429.
    server_error: bool,
    /// Scope of the route, set once the call is recognised.
    scope: Option<ScopeId>,
    /// The latency histograms of the route; `None` selects those of the adapter.
    durations: Option<RouteDurations>,
    /// `true` if a [`ResponseTimer`] records the latency.
    is_timed: bool,
    /// Instant at which the head of the call was received.
    began: Tick,
}

/// Records the end-to-end latency of a call when the body of its response is dropped: after the last
/// byte, or when the connection of the client ends.
struct ResponseTimer {
    durations: RouteDurations,
    outcome: Outcome,
    clock: Clock,
    began: Tick,
}

// === impl CallRecorder ===

impl CallRecorder {
    pub(super) fn begin(proxy: &Arc<Proxy>, began: Tick) -> Self {
        let sampled = proxy.access_log.as_ref().is_some_and(crate::access_log::AccessLog::is_sampled);
        let record = sampled.then(|| Box::new(CallRecord { time_us: Clock::wall_micros(), ..CallRecord::default() }));
        Self {
            proxy: proxy.clone(),
            protocol: "none",
            outcome: Outcome::Cancelled,
            items: 0,
            record,
            server_timing: None,
            slo: None,
            answered: None,
            class: None,
            server_error: false,
            scope: None,
            durations: None,
            is_timed: false,
            began,
        }
    }

    /// Enables the `Server-Timing` header in the response.
    pub(super) fn enable_debug(&mut self) {
        self.server_timing = Some(Box::default());
    }

    /// Returns the time at which the call began.
    pub(super) fn began(&self) -> Tick {
        self.began
    }

    /// Returns the latency histograms that the call counts for.
    pub(super) fn durations(&self) -> Option<&RouteDurations> {
        self.durations.as_ref().or_else(|| self.proxy.durations.get(self.protocol))
    }

    /// Sets the SLO that the latency of the call is compared with.
    pub(super) fn set_slo(&mut self, slo: Option<std::time::Duration>) {
        self.slo = slo;
    }

    /// Records that an adapter recognised the call.
    pub(super) fn on_recognised(&mut self, protocol: &'static str, route: &RouteSettings) {
        (self.protocol, self.scope) = (protocol, Some(route.scope));
        self.durations.clone_from(&route.durations);
        if let Some(record) = &mut self.record {
            record.route.clone_from(&route.name);
        }
    }

    /// Records that no adapter recognised the call. `route` is the route of the policy that matches
    /// it: the latency of the call counts for that route, although nothing else of the route
    /// applies.
    pub(super) fn on_unrecognised(
        &mut self,
        reason: UnmergeableReason,
        cause: UnrecognisedCause,
        route: Option<&RouteSettings>,
    ) {
        let durations = route.and_then(|route| route.durations.as_ref());
        if reason == UnmergeableReason::NotRecognised {
            self.proxy.count_unrecognised(cause);
            if let Some(durations) = durations.filter(|_| cause == UnrecognisedCause::Route) {
                durations.on_passthrough();
            }
        }
        let Some(route) = route else { return };
        self.durations.clone_from(&route.durations);
        if let Some(record) = &mut self.record {
            record.route.clone_from(&route.name);
        }
    }

    /// Records the properties of the parsed call.
    pub(super) fn on_parsed(
        &mut self,
        endpoint: &Endpoint,
        call: &Call,
        class: Option<&PriorityClass>,
        deadline: Option<Tick>,
    ) {
        self.items = call.items;
        self.class = class.map(|class| class.ended.clone());
        let began = self.began;
        if let Some(record) = &mut self.record {
            record.items = call.items;
            record.weight = call.weight.sum;
            record.bytes = call.bytes as u64;
            class.map_or("", |class| &class.name).clone_into(&mut record.class);
            record.deadline_us = deadline.map_or(0, |deadline| micros(deadline.since(began)));
            if !call.tenant.is_anonymous() {
                record.tenant = short_digest(&call.tenant.0);
            }
            if let MergeEligibility::With(key) = &call.merge {
                let secret = &self.proxy.secret;
                record.key = short_digest(&secret.digest([&b"key"[..], key]));
                record.process = short_digest(&secret.digest([&b"process"[..]]));
                if key.len() <= KEY_BYTES_MAX {
                    let parts = endpoint.key_parts(key).into_iter().flatten().take(PARTS_MAX);
                    record.parts = parts.map(|part| digest(secret, part)).collect();
                }
            }
        }
    }

    /// Records that the call is not merged, with the reason.
    pub(super) fn on_passthrough(&mut self, reason: UnmergeableReason) {
        self.proxy.count_unmerged(reason);
        if let Some(timing) = &mut self.server_timing {
            timing.reason = Some(reason.as_str());
        }
        if let Some(record) = &mut self.record {
            reason.as_str().clone_into(&mut record.reason);
        }
    }

    pub(super) fn on_execution(&mut self, details: &ExecutionDetails) {
        let began = self.began;
        self.answered = details.answered;
        if let Some(timing) = &mut self.server_timing {
            timing.execution = *details;
        }
        if let Some(record) = &mut self.record {
            record.queue_us = micros(details.queue_delay);
            record.exec_us = micros(self.proxy.clock.now().since(began)).saturating_sub(record.queue_us);
            record.batch = details.batch.map_or(0, |batch| batch.0);
            record.batch_items = details.batch_items;
            record.cause = details.cause.map_or(String::new(), |cause| cause.as_str().to_owned());
        }
    }

    /// Ends the call with a response.
    pub(super) fn end(mut self, outcome: Outcome, response: &mut Response<Body>) {
        self.outcome = outcome;
        let status = response.status();
        self.server_error = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        if let Some(record) = &mut self.record {
            record.status = status.as_u16();
        }
        if let Some(timing) = &mut self.server_timing {
            timing.forwarded = outcome == Outcome::Passed;
        }
        self.write_debug_header(response);
        self.time_body(response);
    }

    /// Has the latency recorded at the end of a response that is still to arrive.
    fn time_body(&mut self, response: &mut Response<Body>) {
        let Some(durations) = self.durations().filter(|_| response.body().is_pending()).cloned() else { return };
        let Self { outcome, began, .. } = *self;
        let timer = ResponseTimer { durations, outcome, clock: self.proxy.clock, began };
        let body = std::mem::replace(response.body_mut(), Body::empty());
        *response.body_mut() = body.with_guard(timer);
        self.is_timed = true;
    }

    /// Ends the call with a failure and the response that reports it.
    pub(super) fn fail(mut self, failure: &Failure, response: &mut Response<Body>) {
        self.outcome = match failure.kind {
            FailureKind::QueueFull | FailureKind::BytesFull | FailureKind::TenantShare | FailureKind::Draining => {
                Outcome::Rejected
            }
            FailureKind::Deadline | FailureKind::LatePredicted => Outcome::Expired,
            _ => Outcome::Failed,
        };
        if let Some(record) = &mut self.record {
            record.status = failure.kind.status();
            failure.kind.reason().clone_into(&mut record.reason);
        }
        if self.items > 0 {
            self.proxy.metrics.record_unserved_items(self.outcome, failure.kind, self.items);
        }
        if let Some(timing) = &mut self.server_timing {
            timing.reason = Some(failure.kind.reason());
        }
        self.write_debug_header(response);
    }

    /// Writes the `Server-Timing` header if the client requested it.
    fn write_debug_header(&self, response: &mut Response<Body>) {
        if let Some(timing) = &self.server_timing {
            timing.write(self.began, self.proxy.clock.now(), response.headers_mut());
        }
    }
}

impl Drop for ResponseTimer {
    fn drop(&mut self) {
        self.durations.record(self.outcome, self.clock.now().since(self.began));
    }
}

impl Drop for CallRecorder {
    fn drop(&mut self) {
        let proxy = &self.proxy;
        if let Some(counters) = proxy.call_counters.get(self.protocol) {
            counters.record(self.outcome);
        }
        let now = proxy.clock.now();
        let latency = now.since(self.began);
        if let Some(durations) = self.durations().filter(|_| !self.is_timed) {
            durations.record(self.outcome, latency);
        }
        if let Some(class) = &self.class {
            class.count(self.outcome);
        }
        if self.items > 0 && self.outcome != Outcome::Passed {
            proxy.metrics.record_items(self.outcome, self.items);
        }
        if let Some(slo) = self.slo {
            match self.outcome {
                Outcome::Served => {
                    proxy.metrics.record_slo(latency <= slo);
                    // The part of the latency that the batching core does not see. It is not
                    // learned from while the concurrency limiter settles.
                    let unseen = self.answered.map_or(std::time::Duration::ZERO, |answered| now.since(answered));
                    let settled = !proxy.metrics.stats.settling.load(Ordering::Relaxed);
                    if let Some(largest) =
                        settled.then(|| proxy.shifts.on_response(now, slo, latency, unseen)).flatten()
                    {
                        proxy.metrics.set_deadline_shift(proxy.table().max_deadline_shift(largest));
                    }
                }
                Outcome::Rejected | Outcome::Expired | Outcome::Failed => proxy.metrics.record_slo(false),
                Outcome::Cancelled | Outcome::Passed => {}
            }
        }
        if let (Some(scope), Some(observer)) = (self.scope, proxy.metrics.observer()) {
            let Self { outcome, items, slo, server_error, .. } = *self;
            observer.on_completion(scope, &CompletedCall { outcome, latency, items, slo, server_error });
        }
        proxy.metrics.stats.answered.fetch_add(1, Ordering::Relaxed);
        if let (Some(mut record), Some(log)) = (self.record.take(), &proxy.access_log) {
            self.protocol.clone_into(&mut record.protocol);
            self.outcome.as_str().clone_into(&mut record.outcome);
            log.write(&record);
        }
    }
}

/// Returns the kind, the name, and a digest of the value of a part of a merge key, for the log.
fn digest(secret: &DigestKey, part: KeyPart<'_>) -> (String, String, String) {
    let kind = part.kind.as_str();
    let digest = secret.digest([kind.as_bytes(), part.name.as_bytes(), &part.value]);
    (kind.to_owned(), part.name.into_owned(), short_digest(&digest))
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
