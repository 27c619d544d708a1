//! An adaptive concurrency limiter for one cost class. It decides how many executions may be in
//! flight, and whether merging pays.
//!
//! The limiter starts *open*: with nothing learned, every call is forwarded at once, as without a
//! proxy. Two measurements close it. The **load curve** (`curve`) is the mean latency of unbatched
//! calls over the number in flight when they were sent. Beyond its *knee*, the load at which
//! throughput stops growing, calls queue inside the server: the limit is set to the knee at once,
//! which is a *jump* (`jump`). If calls queued at every load that was measured, the knee is
//! searched below the limit (`narrow`). A **trial** (`trial`) lowers the limit slightly for one
//! wave of calls, and keeps the lower limit only if the mean sojourn time decreases.
//!
//! While the limiter is closed, the queued calls are dispatched in batches of equal size, and the
//! maximum batch size doubles only as long as each size is measured to be cheaper per item
//! (`growth`). The limiter opens again if a probe, which is an execution beyond the limit, is not
//! slowed down; if a larger limit shortens the sojourn time; if a batch costs as much as its calls
//! one by one; if the executions from before a jump do not drain; or if throughput is lower or
//! sojourn times are longer than while it was open (`harm`). An opening for room is verified
//! (`room`), because a probe also hits where the calls of other cost classes queue. Each test that
//! changes nothing doubles the interval to the next one of its kind.
//!
//! Related work: concurrency limiters that compare latency with a base latency (TCP Vegas; the
//! gradient limiters of Netflix `concurrency-limits`; Envoy's adaptive concurrency filter) use the
//! least latency as the base, which noise and batches make too small, or a long mean, which
//! includes the queueing time once a closed loop of clients has reached its steady state. Here the
//! base is the mean latency at few executions in flight. The load curve samples the throughput over
//! concurrency that Gunther's Universal Scalability Law describes.
//!
//! The limiter is pure: time is an argument. Left out: the selection of the calls of a batch and of
//! the desired batch size (`adaptive`), and the lead by which a batch may be dispatched before
//! another completes (`slots`).

mod burst;
mod curve;
mod execution_record;
mod dispatch;
mod growth;
mod harm;
mod jump;
mod evidence;
mod latency_line;
mod narrow;
mod open_limiter;
mod ordering;
mod pair_probe;
mod permit;
mod probe;
mod room;
mod schedule;
mod report;
mod sojourn;
mod sojourn_mean;
mod trials;
mod streams;
mod trial;
mod wave;

#[cfg(test)]
mod tests;

use execution_record::LoadIntegral;
pub(super) use execution_record::{ConnectionUse, ExecutionEnd, ExecutionStart, InFlightExecution};
pub(super) use permit::{Permit, PermitRequest};
pub use report::{FlowMode, FlowReport, FlowSnapshot, LoadPoint, OpenReason};

use burst::BurstTest;
use curve::{Knee, LoadCurve};
use growth::GrowthRamp;
use harm::HarmTest;
use jump::LimitDrain;
use latency_line::LatencyModel;
use narrow::NarrowingSearch;
use open_limiter::QueueRelease;
use ordering::{OrderingTest, StreamOccupancy};
use pair_probe::PairTest;
use probe::{PROBE_LIMIT_MAX, UpwardProbe};
use room::RoomTest;
use schedule::Schedule;
use sojourn::Sojourns;
use streams::StreamLimiter;
use trial::LimitTrial;
use wave::WaveTest;

use super::math::to_f64;
use super::tick::Tick;

/// Lower bound of a refined limit (see `refine`), as a share of the limit measured last. Without
/// it, noise in the latency of slow batches would lower the limit step by step.
const REFINE_MIN: f64 = 0.75;
/// Refined limits above this multiple of the limit measured last indicate that the server has more
/// room: the limit is then measured again.
const REFINE_MAX: f64 = 1.5;

/// The concurrency limiter of one cost class.
#[derive(Debug, Clone, Default)]
pub(super) struct ConcurrencyLimiter {
    /// The limit; `None` while open.
    limit: Option<f64>,
    /// The limit during a trial.
    trial_limit: Option<f64>,
    /// Set while the calls that queued under a limit are dispatched after the limiter opened.
    gate: Option<QueueRelease>,
    /// `true` if the server is known to batch by itself, in which case the limiter stays open.
    pinned: bool,
    /// Configured limit by which calls were held. No test raises the limit above it.
    policy_limit: Option<u32>,
    curve: LoadCurve,
    wave: WaveTest,
    burst: BurstTest,
    /// The knee found by the wave test or the burst test, until the limit is set by it.
    wave_knee: Option<Knee>,
    /// `true` if unbatched calls take longer than before at the same concurrency, or may have taken
    /// longer from the start, and no trial has determined yet whether they queue in the server.
    slower: bool,
    level: LatencyModel,
    growth: GrowthRamp,
    sojourns: Sojourns,
    harm: HarmTest,
    room: RoomTest,
    trial: Option<LimitTrial>,
    pairs: PairTest,
    probe: UpwardProbe,
    /// Set after a jump, until the executions that were in flight before it have been answered.
    draining: Option<LimitDrain>,
    /// The knee that the last jump was made for; `None` if the limit was found by trials or was
    /// restored.
    knee: Option<Knee>,
    /// Set while the knee is searched below the limit of the last jump.
    narrowing: Option<NarrowingSearch>,
    /// The limit or knee measured last, which bounds refinements; 1 before the first one.
    refine_from: f64,
    /// Set if the policy orders calls, so that calls queue here while the server is saturated, even
    /// if none can be merged.
    ordered: bool,
    /// Set while the limit serves only to order calls by the policy, and not to merge them.
    ordering: Option<OrderingTest>,
    /// End of the period after a streamed answer in which no limit is set to order calls.
    streams_until: Tick,
    occupancy: StreamOccupancy,
    /// Limiter of a cost class with generated, streamed answers. No other limit applies to
    /// such a class.
    streams: StreamLimiter,
    schedule: Schedule,
    /// The reason for being open, for reports.
    reason: OpenReason,
    /// Executions in flight.
    flights: u32,
    /// Executions of other cost classes that are in flight, before which calls may queue.
    others: u32,
    load: LoadIntegral,
    /// Executions in flight that hold mergeable calls, and their items.
    merged_flights: u32,
    merged_items: u64,
    /// Batches of several calls in flight. Unbatched calls beside them are no samples of the load
    /// curve.
    batches: u32,
    /// Batches in flight of the newest size, which is the largest one that `growth` allows.
    newest: u32,
    /// Number of answered calls, and of those among them that could be merged.
    answered_calls: u64,
    answered_mergeable: u64,
    /// Time of the last response to an execution with mergeable calls.
    last_merged: Tick,
    /// Number of responses since `last_merged` to calls that could not be merged, while calls were
    /// queued.
    unmerged: u32,
    /// Dispatch time of the last execution with mergeable calls.
    last_sent: Tick,
    now: Tick,
}

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    pub(super) fn new() -> Self {
        Self { refine_from: 1.0, ..Self::default() }
    }

    /// Creates a limiter that starts at a restored limit and the latency of an unbatched call, in
    /// nanoseconds. Both may be outdated, so the limit is probed at once.
    pub(super) fn limited(limit: u32, unbatched: u64) -> Self {
        let mut limiter = Self::new();
        let limit = f64::from(limit.max(1));
        limiter.set_limit(limit);
        limiter.level.set_unbatched(to_f64(unbatched), 1.0, limit);
        limiter
    }

    /// Records that executions of an earlier limiter are in flight. If they saturate the server,
    /// the load curve has no measurement without a queue, so a trial is made as if calls had become
    /// slower.
    pub(super) fn on_loaded_start(&mut self) {
        self.slower = true;
    }

    /// Returns `true` if calls are forwarded as they arrive.
    pub(super) fn is_open(&self) -> bool {
        self.limit.is_none() && self.trial.is_none()
    }

    /// Returns `true` while a limit is being tested. `queued` is the number of queued items.
    /// Meanwhile no batch is held for further calls, and `refine` does not change the limit.
    pub(super) fn is_testing(&self, queued: u64) -> bool {
        let splitting = self.probe.left > 0 && self.probe.count == 0;
        self.trial.is_some()
            || self.draining.is_some()
            || splitting
            || self.gate.is_some()
            || self.growth.cap() <= 2
            || self.is_growing(queued)
    }

    /// Returns `true` if the maximum batch size is still smaller than the equal share of a batch in
    /// the items that are queued or in flight.
    pub(super) fn is_growing(&self, queued: u64) -> bool {
        let all = to_f64(self.items_here(queued));
        !self.growth.is_uncapped()
            && self.limit.is_some_and(|limit| all / limit.max(1.0) > f64::from(self.growth.cap()))
    }

    /// Returns `true` while the server may still be working on executions from before a jump.
    pub(super) fn is_draining(&self, now: Tick) -> bool {
        self.draining.is_some_and(|draining| now <= draining.until)
    }

    /// Returns the time of the last change of state. Executions that were sent before it are not
    /// evidence about the current limit.
    pub(super) fn settled_since(&self) -> Tick {
        self.schedule.since
    }

    /// Sets the number of executions in flight of all cost classes.
    pub(super) fn set_all_in_flight(&mut self, all: usize) {
        self.others = u32::try_from(all).unwrap_or(u32::MAX).saturating_sub(self.flights);
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.flights
    }

    /// Returns the number of executions that may be in flight, or `None` while open.
    pub(super) fn limit(&self) -> Option<u32> {
        self.trial_limit.or(self.limit).map(count)
    }

    /// Returns `true` if the limit allows another execution.
    pub(super) fn has_room(&self) -> bool {
        let below = |limit: f64| f64::from(self.flights) < limit.floor().max(1.0);
        self.gate.is_none_or(|gate| f64::from(self.flights) < gate.limit)
            && self.trial_limit.or(self.limit).is_none_or(below)
    }

    /// Sets whether the server is known to batch by itself. While it is, the limiter stays open.
    pub(super) fn pin_open(&mut self, now: Tick, pinned: bool) {
        if pinned && !self.pinned {
            self.open(now, OpenReason::ServerBatches);
        } else if !pinned && self.pinned {
            self.reason = OpenReason::Learning;
        }
        self.pinned = pinned;
    }

    /// Records that calls are held by a configured limit. Since they wait in any case, the limiter
    /// closes at this limit, so that they are merged.
    pub(super) fn on_policy_limit(&mut self, now: Tick, policy_limit: u32) {
        if !self.is_open() || self.pinned || self.gate.is_some() || now < self.schedule.jump {
            return;
        }
        self.set_limit(f64::from(policy_limit.max(1)));
        self.policy_limit = Some(policy_limit.max(1));
        self.refine_from = f64::from(policy_limit.max(1));
        self.growth = GrowthRamp::uncapped();
        self.level.reset_batches();
        self.level.clear_unbatched();
        self.sojourns.clear();
        self.room = RoomTest::default();
        self.schedule.since = now;
    }

    /// Returns `true` if the limit is below the configured one, or if none is configured.
    fn is_below_policy_limit(&self) -> bool {
        self.policy_limit.is_none_or(|policy_limit| self.limit.is_some_and(|limit| limit < f64::from(policy_limit)))
    }

    /// Applies the limit that `slots` estimates from the executions in flight, unless a limit is
    /// being tested.
    pub(super) fn refine(&mut self, now: Tick, limit: u32, queued: u64) {
        if self.limit.is_none() || self.ordering.is_some() || self.is_testing(queued) {
            return;
        }
        if f64::from(limit) > REFINE_MAX * self.refine_from + 1.0 {
            let early = now < self.schedule.room_from;
            match self.limit {
                _ if early => {}
                // Overlapping executions are only weak evidence. A probe decides: it is slowed down
                // by a server that runs one execution at a time.
                Some(current) if current <= PROBE_LIMIT_MAX => {
                    (self.probe.next, self.probe.split) = (self.probe.next.min(now), self.probe.split.min(now));
                }
                // Batches that share a processor overlap even if the server has no room for more,
                // so a trial decides.
                _ => self.schedule.schedule_upward_trial(now),
            }
            return;
        }
        let least = to_f64(super::math::round_to_u64(REFINE_MIN * self.refine_from)).max(1.0);
        self.limit = Some(f64::from(limit).max(least));
    }

    fn set_limit(&mut self, limit: f64) {
        self.wave_knee = None;
        self.limit = Some(limit);
        self.trial_limit = None;
    }
}

/// Returns the instant this many nanoseconds later.
fn after_nanos(now: Tick, nanos: f64) -> Tick {
    Tick(now.0.saturating_add(super::math::round_to_u64(nanos)))
}

/// Converts a limit to a number of executions, at least one.
fn count(limit: f64) -> u32 {
    u32::try_from(super::math::round_to_u64(limit.floor())).unwrap_or(u32::MAX).max(1)
}
