//! Facts about a proxy, independent of their source: the admin API or an access log. Times are in
//! microseconds.

/// Counts by label, as metrics and logs report them.
pub(super) type LabelCounts = Vec<(String, u64)>;

/// The facts from which an explanation is composed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ProxyFacts {
    /// The proxy that the explanation is about, and the period that it covers.
    pub(super) description: String,
    /// Calls received, merged or not.
    pub(super) calls: u64,
    /// `true` if the counts outside `kinds` cover the time since the start of the process.
    pub(super) since_start: bool,
    /// Calls that were not merged, by reason.
    pub(super) passed: LabelCounts,
    /// Calls that no adapter recognised, by cause; empty if the source has none.
    pub(super) unrecognised: LabelCounts,
    /// Calls that a route of the policy passed through, by route.
    pub(super) passing_routes: LabelCounts,
    /// Items that were rejected or expired, by reason.
    pub(super) unserved: LabelCounts,
    /// Items that were accepted or rejected. `unserved` is reported as a share of them.
    pub(super) items: u64,
    /// Slots of the upstream, if known.
    pub(super) slots: Option<SlotFacts>,
    /// Predicted effect of batching on the calls that passed in mode `Observe`.
    pub(super) predicted: Option<Prediction>,
    /// Remaining seconds in pass-through mode after a crash loop.
    pub(super) crashed_seconds: Option<u64>,
    /// Seconds since the upstream was found to have been replaced by another one.
    pub(super) changed_seconds: Option<u64>,
    /// Failed batches, if they were counted.
    pub(super) failures: Option<BatchFailures>,
    /// Calls of each priority class, by outcome.
    pub(super) priorities: Vec<(String, LabelCounts)>,
    /// Calls by route, or by route and model.
    pub(super) kinds: Vec<CallKind>,
}

/// Execution slots of the upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SlotFacts {
    /// Number of slots: learned, or set by the policy.
    pub(super) learned: u32,
    /// Maximum number of slots, `limits.slotsMax`.
    pub(super) max: u32,
    /// `true` if the policy sets the number and none is learned.
    pub(super) fixed: bool,
}

/// State of the concurrency limiter for one kind of calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ConcurrencyFacts {
    /// The limit; `None` while calls are forwarded at once.
    pub(super) limit: Option<u32>,
    /// Reason for forwarding, as `/api/scheduler` names it.
    pub(super) reason: String,
    /// `true` while too few calls have been answered to derive a limit.
    pub(super) learning: bool,
    /// Requests in flight now.
    pub(super) in_flight: u32,
    /// Knee of the load curve in thousandths: the requests in flight beyond which throughput does
    /// not grow; 0 if unknown.
    pub(super) knee_milli: u64,
    /// Highest number of requests in flight observed, in thousandths.
    pub(super) most_milli: u64,
    /// Mean latency of an unbatched call at `most_milli` requests in flight.
    pub(super) most_us: u64,
    /// Latency of an unbatched call below the knee.
    pub(super) lone_us: u64,
    /// Mean number of items in recent batches, in thousandths.
    pub(super) batch_items_milli: u64,
    /// Mean latency of recent batches.
    pub(super) batch_us: u64,
    /// Cost of an item in a batch that did not pay, in thousandths of an unbatched call.
    pub(super) item_permille: Option<u64>,
}

/// Predicted effect of batching over the last one to two minutes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Prediction {
    /// Seconds that the prediction covers.
    pub(super) over_seconds: u64,
    /// Verdict on the benefit, as `/api/scheduler` names it.
    pub(super) benefit: String,
    /// Number of calls that the server was observed to run at once.
    pub(super) side_by_side: u64,
    /// `true` if the load does not vary, so that the time of a call without a queue is unknown.
    pub(super) steady_load: bool,
    /// Calls that the prediction covers.
    pub(super) calls: u64,
    /// Upstream calls that batching would have made.
    pub(super) executions: u64,
    /// Calls that these upstream calls would have carried.
    pub(super) carried: u64,
    /// Items that these upstream calls would have carried.
    pub(super) items: u64,
    /// Mean time from arrival to answer, had the calls been batched.
    pub(super) latency_us: u64,
    /// Mean time from arrival to answer as the calls passed.
    pub(super) passed_us: u64,
    /// Calls that would have been rejected or would have expired.
    pub(super) unserved: u64,
    /// Largest number of items in one call for which the execution time was measured.
    pub(super) measured_items: u32,
}

/// Failed batches, batches of one call included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BatchFailures {
    /// Number of batches.
    pub(super) batches: u64,
    /// Number of batches that failed.
    pub(super) failed: u64,
    /// Number of answers that could not be split.
    pub(super) mismatched: u64,
    /// Number of upstream calls made to isolate members of failed batches.
    pub(super) executions: u64,
    /// Number of items answered by isolation.
    pub(super) items: u64,
}

/// Suspension of merging because the server refuses batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MergeSuspension {
    /// Kind of the answer to a batch.
    pub(super) answer: String,
    /// HTTP status of that answer, if the refusal was a status.
    pub(super) status: Option<u64>,
    /// `true` if the calls of that batch were answered when they were sent alone.
    pub(super) answered_unbatched: bool,
    /// Time until one batch of two calls is tried.
    pub(super) retest_us: u64,
}

/// Quarantine of merge keys whose batches failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QuarantineFacts {
    /// Kind of the answer to a batch.
    pub(super) answer: String,
    /// HTTP status of that answer, if the refusal was a status.
    pub(super) status: Option<u64>,
    /// `true` if no other merge key is merged.
    pub(super) ends_merging: bool,
}

/// Pauses of one kind of calls that the server requested with `Retry-After`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RetryAfterPauses {
    /// Number of pauses.
    pub(super) count: u64,
    /// Seconds since the last pause.
    pub(super) ago_seconds: u64,
    /// Duration that the server requested for the last pause.
    pub(super) requested_us: u64,
    /// Duration of the last pause, in which no call was sent.
    pub(super) held_us: u64,
    /// `true` while a pause is in effect.
    pub(super) now: bool,
}

/// Calls of one kind: a route, or a route and a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct CallKind {
    /// Name shown to the user.
    pub(super) name: String,
    /// Seconds that the counts cover; `None` if they cover the whole period.
    pub(super) over_seconds: Option<u64>,
    /// Batches of mergeable calls, batches of one call included.
    pub(super) batches: u64,
    /// Calls in these batches.
    pub(super) calls: u64,
    /// Items in these batches.
    pub(super) items: u64,
    /// Batches dispatched while others were in flight; `None` if they were not counted.
    pub(super) overlapping: Option<u64>,
    /// Batches with room left, dispatched while calls of another merge key were queued.
    pub(super) separated_batches: u64,
    /// Calls forwarded unbatched because batching was measured not to pay.
    pub(super) passed: u64,
    /// Mean queueing time of a call.
    pub(super) wait_us: u64,
    /// Mean execution time, if no latency curve was learned.
    pub(super) exec_us: Option<u64>,
    /// Batches by the cause of their dispatch.
    pub(super) causes: LabelCounts,
    /// Maximum number of items in a batch that the policy sets.
    pub(super) items_max: Option<u32>,
    /// Maximum number of items in a batch that was learned or published by the server.
    pub(super) ceiling: Option<u32>,
    /// Source of that ceiling, if known.
    pub(super) ceiling_from: Option<CeilingSource>,
    /// `true` while calls are in quarantine and are not merged.
    pub(super) quarantined: bool,
    /// Cause of the quarantine, if known.
    pub(super) quarantine: Option<QuarantineFacts>,
    /// State of the concurrency limiter.
    pub(super) concurrency: Option<ConcurrencyFacts>,
    /// Suspension of merging, if the server refuses batches.
    pub(super) suspended: Option<MergeSuspension>,
    /// Pauses that the server requested.
    pub(super) pauses: Option<RetryAfterPauses>,
    /// Latency objective of the calls.
    pub(super) slo_us: Option<u64>,
    /// Arrival rate in thousandths of an item per second.
    pub(super) rate_milli: Option<u64>,
    /// Operating point on the learned latency curve.
    pub(super) point: Option<OperatingPoint>,
    /// Number of merge keys seen recently.
    pub(super) keys: u64,
    /// Parts in which the merge keys differ. The part that alone separates the most keys comes
    /// first.
    pub(super) differs: Vec<KeyDifference>,
}

/// Source of a learned or published ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CeilingSource {
    /// `true` if the server published the ceiling; `false` if it refused larger batches.
    pub(super) published: bool,
    /// Seconds since the ceiling was set.
    pub(super) age_seconds: u64,
    /// Seconds until a larger batch may be tried again.
    pub(super) retest_seconds: Option<u64>,
}

/// Operating point of one kind of calls on its latency curve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OperatingPoint {
    /// Most efficient batch size, in items.
    pub(super) best_items: u32,
    /// Execution time of a batch of that size.
    pub(super) best_us: u64,
    /// Execution time of a batch of twice that size.
    pub(super) double_us: u64,
    /// Mean execution time of a single item.
    pub(super) lone_us: u64,
    /// 98th percentile of the execution time of a single item.
    pub(super) lone_late_us: u64,
}

/// A part of the merge key in which the merge keys differ.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct KeyDifference {
    /// Kind of the part, as `/api/scheduler` names it.
    pub(super) what: String,
    /// Name of the header or field.
    pub(super) name: String,
    /// Number of distinct values.
    pub(super) values: u64,
    /// Number of merge keys that would remain without this part.
    pub(super) keys_without: u64,
}

// === impl CallKind ===

impl CallKind {
    /// Returns the share of batches that were dispatched for `cause`.
    pub(super) fn share(&self, cause: &str) -> f64 {
        let count = self.causes.iter().find(|(word, _)| word == cause).map_or(0, |(_, count)| *count);
        ratio(count, self.batches)
    }
}

/// Returns a share or a mean; 0 if `whole` is 0.
#[expect(clippy::cast_precision_loss, reason = "counts of calls stay below 2^53, and are shown with two digits")]
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Returns counts by label, for tests.
#[cfg(test)]
pub(super) fn words(words: &[(&str, u64)]) -> LabelCounts {
    words.iter().map(|(word, count)| ((*word).to_owned(), *count)).collect()
}
