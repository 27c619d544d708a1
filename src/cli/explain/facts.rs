//! What is known of a proxy, wherever it comes from. Times are in microseconds.

/// Counts by word, as metrics and logs have them.
pub(super) type Words = Vec<(String, u64)>;

/// Everything that sentences are made of.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Facts {
    /// Of what the sentences tell: which proxy, over how long.
    pub(super) over: String,
    /// Calls seen, merged or not.
    pub(super) calls: u64,
    /// Those that were not merged, by reason.
    pub(super) passed: Words,
    /// Items that were refused or ended early, by reason.
    pub(super) unserved: Words,
    /// Items that were accepted or refused: what `unserved` is a share of.
    pub(super) items: u64,
    /// What is known of the upstream's slots.
    pub(super) slots: Option<Slots>,
    /// What batching would have done with calls that passed in mode `Observe`.
    pub(super) predicted: Option<Predicted>,
    /// Everything passes through after crashes, for so many seconds more.
    pub(super) crashed_seconds: Option<u64>,
    /// Seconds since the upstream was found to be another one.
    pub(super) changed_seconds: Option<u64>,
    /// Batches that failed, where somebody counted.
    pub(super) failures: Option<Failures>,
    /// By priority class: calls by how they ended.
    pub(super) priorities: Vec<(String, Words)>,
    /// By route, or by route and model.
    pub(super) kinds: Vec<Kind>,
}

/// Slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Slots {
    /// C.
    pub(super) learned: u32,
    /// The wall.
    pub(super) max: u32,
    /// The number is the policy's; none was learned.
    pub(super) fixed: bool,
}

/// What the concurrency limiter of a kind does, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Concurrency {
    /// The limit; none while calls are forwarded at once.
    pub(super) limit: Option<u32>,
    /// The reason for forwarding, as `/api/scheduler` names it.
    pub(super) reason: String,
    /// Too little has been answered to judge it.
    pub(super) learning: bool,
    /// Requests in flight beyond which throughput does not grow, in thousandths; 0 if unknown.
    pub(super) knee_milli: u64,
    /// The most requests in flight that were seen, in thousandths, and the mean latency of a lone call then.
    pub(super) most_milli: u64,
    /// See there.
    pub(super) most_us: u64,
    /// A lone call below the knee.
    pub(super) lone_us: u64,
    /// Recent batches: items in thousandths, and latency.
    pub(super) batch_items_milli: u64,
    /// See there.
    pub(super) batch_us: u64,
    /// The cost of an item in a batch that did not pay, in thousandths of a lone call.
    pub(super) item_permille: Option<u64>,
}

/// What batching would have done in the last one to two minutes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Predicted {
    /// Seconds that it covers.
    pub(super) over_seconds: u64,
    /// Whether it would be worth it, as `/api/scheduler` words it.
    pub(super) benefit: String,
    /// Calls that the server was seen to run at once.
    pub(super) side_by_side: u64,
    /// Calls that it is about.
    pub(super) calls: u64,
    /// Upstream calls that they would have been, and what those would have carried.
    pub(super) executions: u64,
    /// See `executions`.
    pub(super) carried: u64,
    /// Items in those.
    pub(super) items: u64,
    /// Mean from arrival to answer, had they been batched.
    pub(super) latency_us: u64,
    /// The same as they passed.
    pub(super) passed_us: u64,
    /// Calls that would have been refused or given up.
    pub(super) unserved: u64,
    /// The most items in one call of which it is known what they take.
    pub(super) measured_items: u32,
}

/// Batches that failed, those of one call among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Failures {
    /// All batches.
    pub(super) batches: u64,
    /// Those that failed.
    pub(super) failed: u64,
    /// Answers that could not be split.
    pub(super) mismatched: u64,
    /// Upstream calls that isolation made.
    pub(super) executions: u64,
    /// Items that it answered.
    pub(super) items: u64,
}

/// Why and until when nothing is merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suspended {
    /// How the server answered a batch.
    pub(super) answer: String,
    /// Its status, if that was it.
    pub(super) status: Option<u64>,
    /// When one batch of two is tried.
    pub(super) retest_us: u64,
}

/// How often the server told calls of a kind to come back later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pauses {
    /// How often.
    pub(super) count: u64,
    /// When last.
    pub(super) ago_seconds: u64,
    /// What it asked for then.
    pub(super) asked_us: u64,
    /// For how long nothing was sent then.
    pub(super) held_us: u64,
    /// One is not over.
    pub(super) now: bool,
}

/// Calls of one kind.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Kind {
    /// As a user would call it.
    pub(super) name: String,
    /// Seconds that the counts cover; `None` where all is counted.
    pub(super) over_seconds: Option<u64>,
    /// Batches of mergeable calls, those of one call among them.
    pub(super) batches: u64,
    /// Their calls.
    pub(super) calls: u64,
    /// Their items.
    pub(super) items: u64,
    /// Batches that left while others were in flight; `None` where nobody counted.
    pub(super) beside: Option<u64>,
    /// Batches with room left beside which calls of another merge key waited.
    pub(super) apart_batches: u64,
    /// Calls forwarded one by one because merging them was measured not to pay.
    pub(super) passed: u64,
    /// Mean wait of a call.
    pub(super) wait_us: u64,
    /// Mean time of an execution, where no curve was learned.
    pub(super) exec_us: Option<u64>,
    /// Batches by cause.
    pub(super) causes: Words,
    /// The policy's most items.
    pub(super) items_max: Option<u32>,
    /// The most items that were learned or published.
    pub(super) ceiling: Option<u32>,
    /// Where that ceiling comes from, if it is known.
    pub(super) ceiling_from: Option<CeilingFrom>,
    /// Nothing is merged for now.
    pub(super) quarantined: bool,
    /// What its concurrency limiter does.
    pub(super) concurrency: Option<Concurrency>,
    /// The server refuses batches.
    pub(super) suspended: Option<Suspended>,
    /// The server asked for pauses.
    pub(super) pauses: Option<Pauses>,
    /// What users want.
    pub(super) slo_us: Option<u64>,
    /// Thousandths of an item a second.
    pub(super) rate_milli: Option<u64>,
    /// Where on its curve it works.
    pub(super) point: Option<Point>,
    /// Merge keys of late.
    pub(super) keys: u64,
    /// What differs between them, what alone keeps most apart first.
    pub(super) differs: Vec<Differs>,
}

/// Where a ceiling comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CeilingFrom {
    /// The server published it; otherwise it refused more.
    pub(super) published: bool,
    /// For so many seconds.
    pub(super) age_seconds: u64,
    /// In so many seconds a larger batch may be tried again.
    pub(super) retest_seconds: Option<u64>,
}

/// Where on its curve a kind of calls works.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Point {
    /// The most efficient size.
    pub(super) best_items: u32,
    /// What it takes.
    pub(super) best_us: u64,
    /// What twice as many would take.
    pub(super) double_us: u64,
    /// What one takes.
    pub(super) lone_us: u64,
    /// What one takes in 98 of 100 cases.
    pub(super) lone_late_us: u64,
}

/// A part of merge keys that is not the same in all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Differs {
    /// What it is, as `/api/scheduler` has it.
    pub(super) what: String,
    /// The header or field.
    pub(super) name: String,
    /// Its values.
    pub(super) values: u64,
    /// Keys left without it.
    pub(super) keys_without: u64,
}

// === impl Kind ===

impl Kind {
    /// Batches that left for this cause, as a share.
    pub(super) fn share(&self, cause: &str) -> f64 {
        let count = self.causes.iter().find(|(word, _)| word == cause).map_or(0, |(_, count)| *count);
        ratio(count, self.batches)
    }
}

/// A share or a mean; 0 of nothing.
#[expect(clippy::cast_precision_loss, reason = "counts of calls stay below 2^53, and these are told with two digits")]
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
