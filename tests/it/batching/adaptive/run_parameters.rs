//! The parameters that a seed draws for a run: limits and client behaviour.

use std::time::Duration;

use groupage::batching::{
    Call, CallId, CallOrigin, CostClassId, Deadline, DeadlineSource, DispatchPolicy, KeyId, LateTreatment, Limits,
    PriorityClass, PriorityId, ScopeId, ScopeLimits, TenantId, Tick, Weight,
};

use super::upstream::ServerProperties;
use crate::sim::random::RandomSource;

const MS: Duration = Duration::from_millis(1);

/// The arrival process of the clients.
#[derive(Debug, Clone, Copy)]
pub(super) enum ArrivalProcess {
    /// Independent calls with this mean interval.
    Poisson { gap: Duration },
    /// A closed loop: each client calls again shortly after its answer.
    Loop { clients: u32 },
    /// Many calls at once, spread over a short time.
    FanOut { calls: u64, gap: Duration },
    /// Bursts at whole milliseconds, several calls at one instant.
    Bursts { calls: u64, gap: u64 },
}

/// The parameters of a run.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each field is drawn independently")]
pub(super) struct RunParameters {
    pub(super) arrivals: ArrivalProcess,
    /// Total number of calls.
    pub(super) calls: u64,
    /// Properties of the server at the start.
    pub(super) server: ServerProperties,
    /// Probability that a client cancels its call, in thousandths.
    pub(super) cancels: u64,
    /// Probability that the limits are edited, in thousandths.
    pub(super) edits: u64,
    /// Probability that the upstream changes, in thousandths.
    pub(super) changes: u64,
    /// Maximum delay of `poll` after the requested wake-up, in microseconds.
    pub(super) poll_delay_max: u64,
    /// `true` if plans are solved and installed.
    pub(super) plans: bool,
    /// `true` if the process drains after the last arrival, with calls still queued.
    pub(super) drains: bool,
    /// `true` if the edits of the limits include the policy.
    policies: bool,
    /// Setting of the adaptive policy.
    hold_permille: u32,
    /// Cost class and route of each key.
    keys: Vec<(CostClassId, ScopeId)>,
    /// Maximum number of items of a call.
    items: u32,
    /// Maximum weight of an item.
    weight: u64,
    /// `true` if calls have exclusive values, which occur only once in a batch.
    exclusive: bool,
    /// SLO of the calls.
    slo: Option<Duration>,
    /// Probability that a client sets a deadline, in thousandths.
    deadlines: u64,
    /// Maximum time to such a deadline, in milliseconds.
    deadline: u64,
    /// Timeout of the routes.
    timeout: Option<Duration>,
    /// Initial duration of a quarantine.
    quarantine: Duration,
    /// `true` if the limits of the queue are rarely reached.
    roomy: bool,
    /// Number of tenants and classes that the calls are spread over; 0 for one of each.
    flows: u64,
    /// `true` if no limit of the policy holds calls of one item, so that the measurements of the
    /// server decide.
    unbounded: bool,
}

// === impl RunParameters ===

impl RunParameters {
    pub(super) fn new(draw: &mut RandomSource) -> Self {
        // Some properties are measured only after many calls and need a long run: a server that
        // batches by itself, and the gain of batching.
        let long = draw.chance(60);
        let linear = long && draw.clone().chance(500);
        let server = match long {
            true if linear => ServerProperties::linear(draw),
            true => ServerProperties::batching(draw),
            false => ServerProperties::new(draw),
        };
        let work = server.unbatched_time(1);
        let gap = work.mul_f64(*draw.pick(&[0.05, 0.3, 1.0, 3.0, 10.0]));
        let arrivals = match draw.between(0, 6) {
            // Fewer clients than the largest limit on requests in flight, which would hold calls
            // whatever was measured.
            _ if linear => ArrivalProcess::Loop { clients: 14 },
            _ if long => ArrivalProcess::Loop { clients: *draw.pick(&[16, 40]) },
            0..=2 => ArrivalProcess::Poisson { gap },
            3 | 4 => ArrivalProcess::Loop { clients: *draw.pick(&[1, 4, 16, 40]) },
            5 => ArrivalProcess::FanOut { calls: draw.between(4, 40), gap: (work * 6).max(MS) },
            _ => ArrivalProcess::Bursts { calls: draw.between(1, 20), gap: draw.between(1, 40) },
        };
        let keys = (0..if long { 1 } else { *draw.pick(&[1, 1, 2, 5]) })
            .map(|_| (CostClassId(draw.count(0, 2)), ScopeId(u16::try_from(draw.between(0, 2)).unwrap_or(0))))
            .collect();
        let parameters = Self {
            arrivals,
            calls: if long { 3000 } else { *draw.pick(&[60, 300, 300, 900]) },
            server,
            cancels: *draw.pick(&[0, 0, 30, 200]),
            edits: if long { 0 } else { *draw.pick(&[0, 0, 5, 30]) },
            changes: if long { 0 } else { *draw.pick(&[0, 2, 10]) },
            poll_delay_max: *draw.pick(&[0, 0, 0, 60, 3000]),
            plans: draw.chance(400),
            drains: draw.chance(500),
            policies: draw.chance(150),
            hold_permille: *draw.pick(&[0, 0, 100, 400]),
            keys,
            items: *draw.pick(&[1, 1, 4, 12]),
            weight: *draw.pick(&[1, 9, 500]),
            exclusive: draw.chance(150),
            slo: draw.chance(600).then(|| work.mul_f64(*draw.pick(&[0.2, 0.8, 2.0, 4.0, 12.0, 40.0]))),
            deadlines: *draw.pick(&[0, 0, 200, 900]),
            deadline: *draw.pick(&[5, 40, 200]),
            timeout: draw.chance(600).then(|| work.mul_f64(*draw.pick(&[0.5, 10.0, 1000.0]))),
            quarantine: draw.count(1, 200) * MS,
            roomy: draw.chance(800),
            // Drawn from a clone of the generator, so that the rest of the run does not depend on
            // tenants and classes.
            flows: *draw.clone().pick(&[0, 0, 2, 5]),
            unbounded: linear,
        };
        // With calls of one item that are all served, the relative cost of a batch is easy to
        // measure.
        if linear { Self { items: 1, slo: None, deadlines: 0, timeout: None, ..parameters } } else { parameters }
    }

    /// Returns random limits, for the start or for an edit.
    pub(super) fn limits(&self, draw: &mut RandomSource) -> Limits {
        let adaptive = DispatchPolicy::Adaptive { hold_permille: self.hold_permille };
        let policy = if self.policies && draw.chance(500) {
            let (items, delay) = (draw.count(1, 20), draw.span(false, 10));
            *draw.pick(&[
                DispatchPolicy::WorkConserving,
                DispatchPolicy::Window { items, delay },
                DispatchPolicy::Static { items, delay },
                adaptive,
            ])
        } else {
            adaptive
        };
        let mut scopes: Vec<ScopeLimits> = (0..draw.between(1, 3))
            .map(|_| ScopeLimits {
                batch_items_max: *draw.pick(&[1, 5, 16, 64, 64]),
                batch_weight_max: draw.chance(250).then(|| draw.between(4, 2000)),
                batch_bytes_max: *draw.pick(&[150, 2000, 1 << 20, 1 << 20]),
                queue_delay_max: *draw.pick(&[0, 1, 5, 20, 20, 100]) * MS,
                queue_items_max: if self.roomy { 4096 } else { draw.count(1, 30) },
                queue_bytes_max: if self.roomy { 1 << 20 } else { draw.between(20, 2000) },
                slots_max: *draw.pick(&[1, 2, 16, 16, 16]),
                late: LateTreatment::Refuse,
                merges_always: false,
            })
            .collect();
        let mut slots = *draw.pick(&[1, 2, 4, 16, 16]);
        if self.unbounded {
            slots = 16;
            scopes.iter_mut().for_each(|scope| (scope.batch_items_max, scope.slots_max) = (64, 16));
        }
        Limits {
            policy,
            slots,
            queue_items_max: if self.roomy { 4096 } else { draw.count(3, 60) },
            queue_bytes_max: if self.roomy { 1 << 20 } else { draw.between(200, 2000) },
            scopes,
            quarantine: self.quarantine,
            priorities: self.priorities(&mut draw.clone()),
            ..Limits::default()
        }
    }

    fn priorities(&self, draw: &mut RandomSource) -> Vec<PriorityClass> {
        let class = |draw: &mut RandomSource| PriorityClass {
            weight: draw.count(1, 8),
            strict: draw.chance(200),
            filler: draw.chance(200),
            aging_interval: draw.count(1, 200) * MS,
        };
        (0..self.flows.min(3)).map(|_| class(draw)).collect()
    }

    /// Returns a random call.
    pub(super) fn call(&self, draw: &mut RandomSource, now: Tick, id: CallId) -> Call {
        let at = draw.between(0, u64::try_from(self.keys.len()).unwrap_or(1) - 1);
        let (cost_class, scope) = self.keys[usize::try_from(at).unwrap_or(0)];
        let unmergeable = draw.chance(20);
        let items = if draw.chance(500) { 1 } else { draw.count(1, self.items) };
        let max = draw.between(1, self.weight);
        let mut exclusive: Vec<u64> = Vec::new();
        if self.exclusive {
            exclusive.extend((0..draw.between(0, 2)).map(|_| draw.between(0, 30)));
            exclusive.dedup();
        }
        // As in the proxy, the earliest deadline applies, and after an SLO the earliest of the
        // others.
        let until = |after: Duration, source| Deadline { at: now.after(after), source };
        let caller = draw.chance(self.deadlines).then(|| draw.span(false, self.deadline));
        let caller = caller.map(|after| until(after, DeadlineSource::Caller));
        let timeout = self.timeout.map(|after| until(after, DeadlineSource::Timeout));
        let hard = caller.into_iter().chain(timeout).min_by_key(|deadline| deadline.at);
        // Routes that share a key may have different SLOs.
        let slo = self.slo.map(|slo| until(if draw.chance(900) { slo } else { slo / 8 }, DeadlineSource::Slo));
        let (deadline, later) = match (slo, hard) {
            (Some(slo), hard) if hard.is_none_or(|hard| slo.at < hard.at) => (Some(slo), hard),
            (_, hard) => (hard, None),
        };
        let flow = if self.flows == 0 { 0 } else { draw.clone().between(0, self.flows - 1) };
        Call {
            id,
            key: if unmergeable && draw.chance(700) { KeyId(1000 + id.0) } else { KeyId(at) },
            cost_class,
            tenant: TenantId(flow / 2),
            tenant_weight: 1,
            priority: PriorityId(u8::try_from(flow).unwrap_or(0)),
            scope,
            unmergeable,
            replayable: true,
            deadline,
            fallback_deadline: later,
            slo: None,
            charged_by_weight: unmergeable && id.0.is_multiple_of(3),
            items,
            weight: Weight { sum: max + draw.between(0, max) * u64::from(items - 1), max },
            bytes: draw.between(0, 80),
            origin: CallOrigin::Client,
            exclusive,
        }
    }
}
