//! The parameters that a seed draws for a run: limits small enough to be reached, clients, and
//! upstream behaviour.

use std::time::Duration;

use groupage::batching::{
    BatchOutcome, Call, CallId, CostClassId, Deadline, DeadlineSource, DispatchPolicy, KeyId, LateTreatment, Limits,
    Observation, ScopeId, ScopeLimits, TenantId, Tick, Weight,
};

use super::random::RandomSource;

/// The parameters of a run.
#[derive(Debug, Clone)]
pub(crate) struct RunParameters {
    /// `true` if all instants are whole milliseconds.
    pub(crate) coarse: bool,
    /// Total number of calls.
    pub(crate) calls: u64,
    /// Maximum time between bursts, in milliseconds.
    pub(crate) gap: u64,
    /// Maximum number of calls in a burst.
    pub(crate) burst: u64,
    /// Probability that a client cancels its call, in thousandths.
    pub(crate) cancels: u64,
    /// Probability of another event beside a burst, in thousandths.
    pub(crate) turns: u64,
    /// Maximum delay of `poll` after `next_wakeup`, in milliseconds.
    pub(crate) late: u64,
    /// Instant at which the drain starts, in milliseconds; `None` for a drain after the last call.
    pub(crate) drain: Option<u64>,
    /// `true` if large batches are likely.
    friendly: bool,
    /// Cost class and route of each key.
    keys: Vec<(CostClassId, ScopeId)>,
    tenants: u32,
    items: u32,
    exclusive: bool,
    /// Probability that a call has a deadline, in thousandths.
    deadlines: u64,
    /// Maximum time to a deadline, in milliseconds.
    deadline: u64,
    quarantine: Duration,
    /// An execution takes `base + each * items` and up to `jitter`, in milliseconds.
    base: u64,
    each: u64,
    jitter: u64,
    /// Probability that an execution fails, in thousandths.
    faults: u64,
    /// The outcome of every failed execution; `None` if it is drawn each time.
    fault: Option<BatchOutcome>,
    refuses: Option<UpstreamLimits>,
}

/// Sizes above which the upstream refuses a batch.
#[derive(Debug, Clone, Copy)]
struct UpstreamLimits {
    items: Option<u32>,
    weight: Option<u64>,
    /// `true` if a heavier batch runs out of memory instead of being refused.
    memory: bool,
}

// === impl RunParameters ===

impl RunParameters {
    pub(crate) fn new(draw: &mut RandomSource) -> Self {
        let long = draw.chance(40);
        // Large batches need calls of one item, few keys, room in the queue, and an upstream that
        // mostly succeeds.
        let friendly = long || draw.chance(400);
        let slow = draw.chance(100);
        let scopes = draw.between(1, 3);
        let classes = if friendly { 1 } else { draw.count(1, 3) };
        let quarantine = match draw.between(0, 5) {
            0 => Duration::from_secs(draw.between(60, 9000)),
            1 => Duration::from_secs(2),
            _ => Duration::from_millis(draw.between(1, 40)),
        };
        let keys = (0..*draw.pick(if friendly { &[1, 2] } else { &[1, 2, 3, 6] }))
            .map(|_| {
                (CostClassId(draw.count(0, classes - 1)), ScopeId(u16::try_from(draw.between(0, scopes)).unwrap_or(0)))
            })
            .collect();
        Self {
            coarse: draw.chance(800),
            calls: if long { draw.between(800, 2000) } else { draw.between(20, 150) },
            gap: *draw.pick(&[1, 3, 3, 10, 30, if quarantine.as_secs() > 0 { 400_000 } else { 60 }]),
            burst: if friendly { *draw.pick(&[3, 10]) } else { *draw.pick(&[1, 1, 3, 10]) },
            cancels: *draw.pick(&[0, 30, 150, 400]),
            turns: *draw.pick(&[0, 20, 100]),
            late: if draw.chance(850) { 0 } else { 4 },
            drain: draw.chance(100).then(|| draw.between(0, 400)),
            friendly,
            keys,
            tenants: draw.count(1, 4),
            items: if friendly { 1 } else { *draw.pick(&[1, 2, 5, 12]) },
            exclusive: draw.chance(250),
            deadlines: *draw.pick(&[0, 300, 900]),
            deadline: *draw.pick(&[10, 40, 200]),
            quarantine,
            base: if slow { draw.between(100, 5000) } else { draw.between(0, 15) },
            each: draw.between(0, 3),
            jitter: *draw.pick(&[0, 2, 20]),
            faults: if friendly { *draw.pick(&[0, 5, 15]) } else { *draw.pick(&[0, 50, 300, 900]) },
            fault: *draw.pick(&[
                None,
                None,
                Some(BatchOutcome::Mismatched),
                Some(BatchOutcome::Overloaded { retry_after: None }),
            ]),
            refuses: draw.chance(200).then(|| UpstreamLimits {
                items: draw.chance(500).then(|| draw.count(1, 6)),
                weight: draw.chance(600).then(|| draw.between(4, 40)),
                memory: draw.chance(300),
            }),
        }
    }

    /// Returns random limits, for the start or for an edit.
    pub(crate) fn limits(&self, draw: &mut RandomSource) -> Limits {
        let (items, delay) = (draw.count(1, 8), draw.span(self.coarse, 20) * draw.count(0, 2));
        let policy = match draw.between(0, 4) {
            0 | 1 => DispatchPolicy::WorkConserving,
            2 | 3 => DispatchPolicy::Window { items, delay },
            _ => DispatchPolicy::Static { items, delay },
        };
        let roomy = self.friendly || draw.chance(600);
        let scopes = (0..draw.between(1, 3))
            .map(|_| ScopeLimits {
                batch_items_max: draw.count(if self.friendly { 4 } else { 1 }, 9),
                batch_weight_max: draw.chance(if self.friendly { 100 } else { 500 }).then(|| draw.between(4, 60)),
                batch_bytes_max: *draw.pick(&[100, 300, 1000]),
                queue_delay_max: draw.span(self.coarse, 25),
                queue_items_max: if roomy { 1000 } else { draw.count(1, 30) },
                queue_bytes_max: if roomy { 100_000 } else { draw.between(20, 2000) },
                slots_max: draw.count(1, 4),
                late: LateTreatment::Refuse,
                merges_always: false,
            })
            .collect();
        Limits {
            policy,
            slots: draw.count(1, 4),
            stand_aside_max: 512,
            queue_items_max: *draw.pick(&[3, 12, 40, 150]),
            queue_bytes_max: *draw.pick(&[200, 2000, 20_000, 20_000]),
            scopes,
            quarantine: self.quarantine,
            ..Limits::default()
        }
    }

    /// Returns a random call.
    pub(crate) fn call(&self, draw: &mut RandomSource, now: Tick, id: CallId) -> Call {
        let at = draw.between(0, u64::try_from(self.keys.len()).unwrap_or(1) - 1);
        let (cost_class, scope) = self.keys[usize::try_from(at).unwrap_or(0)];
        let unmergeable = draw.chance(40);
        // An unmergeable call has a key of its own. That it shares no batch must hold for any
        // key.
        let key = if unmergeable && draw.chance(700) { KeyId(1000 + id.0) } else { KeyId(at) };
        let items = if draw.chance(600) { 1 } else { draw.count(1, self.items) };
        let max = draw.between(0, 9);
        let mut exclusive: Vec<u64> = Vec::new();
        if self.exclusive {
            exclusive.extend((0..draw.between(0, 2)).map(|_| draw.between(0, 4)));
            exclusive.dedup();
        }
        let deadline = draw.chance(self.deadlines).then(|| Deadline {
            at: now.after(draw.span(self.coarse, self.deadline)),
            source: *draw.pick(&[DeadlineSource::Slo, DeadlineSource::Caller, DeadlineSource::Timeout]),
        });
        let later = deadline.filter(|_| draw.chance(500)).map(|first| Deadline {
            at: first.at.after(draw.span(self.coarse, self.deadline)),
            source: DeadlineSource::Timeout,
        });
        Call {
            id,
            key,
            cost_class,
            tenant: TenantId(if draw.chance(400) { 0 } else { draw.count(0, self.tenants - 1).into() }),
            scope,
            unmergeable,
            replayable: true,
            deadline,
            fallback_deadline: later,
            items,
            weight: Weight { sum: max * u64::from(items), max },
            bytes: draw.between(0, 80),
            exclusive,
            ..Call::new(id)
        }
    }

    /// Returns the outcome of an execution with this many items and this weight.
    pub(crate) fn execution(&self, draw: &mut RandomSource, items: u32, weight: u64) -> Observation {
        let millis = self.base + self.each * u64::from(items);
        let duration = Duration::from_millis(millis) + draw.span(self.coarse, self.jitter);
        let heavy = self.refuses.is_some_and(|refuses| refuses.weight.is_some_and(|max| weight > max));
        let many = self.refuses.is_some_and(|refuses| refuses.items.is_some_and(|max| items > max));
        let outcome = if heavy && self.refuses.is_some_and(|refuses| refuses.memory) {
            BatchOutcome::OutOfMemory
        } else if heavy || many {
            BatchOutcome::TooLarge { limit: None }
        } else if draw.chance(self.faults) {
            self.fault.unwrap_or_else(|| match draw.between(0, 7) {
                0 | 1 => BatchOutcome::TooLarge { limit: draw.chance(600).then(|| draw.count(0, 10)) },
                2 | 3 => {
                    BatchOutcome::Overloaded { retry_after: draw.chance(300).then(|| draw.span(self.coarse, 3000)) }
                }
                4 | 5 => BatchOutcome::Mismatched,
                6 => BatchOutcome::OutOfMemory,
                _ => BatchOutcome::Failed,
            })
        } else {
            BatchOutcome::Ok
        };
        Observation { duration, first_byte: None, outcome }
    }
}
