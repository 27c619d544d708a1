//! Jumps of the limit to a knee, the drain that follows, and the rests after conclusions that
//! changed nothing.

use super::super::math::to_f64;
use super::super::tick::Tick;
use super::curve::Knee;
use super::growth::GrowthRamp;
use super::latency_line::nanos_between;
use super::narrow::{NARROWED_MAX, NarrowingSearch};
use super::probe::UpwardProbe;
use super::room::RoomTest;
use super::schedule::ROOM_REST;
use super::{ConcurrencyLimiter, OpenReason, after_nanos};

/// Minimum number in flight for a jump, in knees, and time for which the evidence must have held,
/// in base latencies: a server that returns whole batches looks serial after the first answer of
/// one.
pub(super) const JUMP_KNEES: f64 = 2.0;
const JUMP_HELD: f64 = 0.5;
/// Factor on the expected time to drain to the new limit. A server that needs more has no queue.
const DRAIN: f64 = 1.5;
/// Maximum number of executions of other cost classes in front of those that drain, as a multiple
/// of the latter: more are hardly ahead of them, and a wrong jump would be detected too late.
const DRAIN_OTHERS: f64 = 4.0;
/// Factor up to which a server that drains more slowly than measured has become slower. Beyond it
/// the server does not drain.
const DRAIN_SLOWER: f64 = 8.0;
/// Minimum and maximum rest after a jump that changed nothing, each in base latencies and in
/// nanoseconds.
const JUMP_REST_MIN: (f64, f64) = (50.0, 5e9);
const JUMP_REST_MAX: (f64, f64) = (640.0, 300e9);
/// Ratio of the next limit to the previous one from which room was found. Otherwise probes rest.
const ROOM_FOUND: f64 = 2.0;

/// The drain that follows a jump, until the server has no more executions than the limit allows.
#[derive(Debug, Clone, Copy)]
pub(super) struct LimitDrain {
    pub(super) until: Tick,
    /// Start of the drain and executions in flight then; `None` once its time was extended.
    pub(super) begun: Option<(Tick, u32)>,
}

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    /// Sets the limit at once if the first waves or the load curve have a knee.
    pub(super) fn jump_to_knee(&mut self, now: Tick) {
        let wave_knee = self.wave_knee.take();
        if now < self.schedule.jump || self.pairs.cheap == Some(false) {
            return;
        }
        let Some(knee) = wave_knee.or_else(|| self.evident_knee(now)) else { return };
        if f64::from(self.flights) >= JUMP_KNEES * knee.at {
            self.set_knee(now, knee, to_f64(knee.limit()));
        }
    }

    /// Returns the knee of the load curve, once the evidence for it has held.
    pub(super) fn evident_knee(&mut self, now: Tick) -> Option<Knee> {
        let Some(knee) = self.curve.knee(self.pairs.cheap == Some(true)) else {
            self.schedule.evident = None;
            return None;
        };
        let evident = *self.schedule.evident.get_or_insert(now);
        (nanos_between(evident, now) >= JUMP_HELD * knee.base && !self.curve.is_unsettled()).then_some(knee)
    }

    /// Sets the limit to a knee and starts the drain to it.
    pub(super) fn set_knee(&mut self, now: Tick, knee: Knee, limit: f64) {
        // A server that has become slower has the rate of its latest answers.
        let knee = Knee { rate: self.curve.recent_rate(knee.at).map_or(knee.rate, |rate| rate.min(knee.rate)), ..knee };
        let drains = f64::from(self.flights) / knee.rate;
        self.gate = None;
        self.harm.on_limit(now, self.level.recent_unbatched);
        self.back_off_room(now, limit);
        self.room = RoomTest::default();
        self.set_limit(limit);
        self.growth = GrowthRamp::unbatched_only();
        self.level.reset_batches();
        self.level.set_unbatched(knee.base, 1.0, limit);
        self.level.batch = 0.0;
        self.level.batch_items = 0.0;
        self.sojourns.clear();
        self.begin_drain(now, limit, knee.rate, knee.base);
        self.knee = Some(knee);
        self.narrowing = (knee.is_bound && limit <= to_f64(NARROWED_MAX)).then(NarrowingSearch::default);
        self.refine_from = knee.at;
        let schedule = &mut self.schedule;
        schedule.evident = None;
        schedule.upward = limit > 2.0;
        schedule.since = now;
        schedule.trial_gap = 0.0;
        schedule.trial = after_nanos(now, 4.0 * knee.base + drains);
        self.probe = UpwardProbe {
            id: self.probe.id,
            next: after_nanos(now, drains + 3.0 * knee.base),
            ..UpwardProbe::default()
        };
    }

    /// Starts the drain to a new limit, at this rate and with this base latency.
    pub(super) fn begin_drain(&mut self, now: Tick, limit: f64, rate: f64, base: f64) {
        let flights = f64::from(self.flights);
        let ahead = f64::from(self.others).min(DRAIN_OTHERS * flights);
        let over = (flights + ahead - limit).max(0.0) / rate;
        let until = after_nanos(now, DRAIN * over + base);
        self.draining = Some(LimitDrain { until, begun: Some((now, self.flights)) });
    }

    /// Tracks the drain to a new limit. Returns `false` while the answers are to executions from
    /// before the jump.
    pub(super) fn track_drain(&mut self, now: Tick) -> bool {
        let Some(draining) = self.draining else { return true };
        if f64::from(self.flights) <= self.limit.unwrap_or(1.0) {
            self.draining = None;
            self.schedule.since = now;
            self.sojourns.clear();
        } else if now > draining.until {
            match self.extend_drain(now, draining) {
                Some(prolonged) => self.draining = Some(prolonged),
                None => {
                    self.back_off_jumps(now);
                    self.release(now, OpenReason::NoQueue);
                }
            }
        }
        false
    }

    /// Extends the time, once, for a server that drains steadily but more slowly than measured,
    /// because it has become slower since.
    fn extend_drain(&mut self, now: Tick, draining: LimitDrain) -> Option<LimitDrain> {
        let (begun, flights) = draining.begun?;
        let (drained, time) = (f64::from(flights.saturating_sub(self.flights)), nanos_between(begun, now));
        let over = f64::from(self.flights) - self.limit.unwrap_or(1.0);
        let rest = DRAIN * over * time / drained.max(1.0);
        let knee = self.knee.as_mut()?;
        let prolongs = drained * DRAIN_SLOWER >= knee.rate * time;
        knee.rate = knee.rate.min(drained / time);
        prolongs.then(|| LimitDrain { until: after_nanos(now, rest), begun: None })
    }

    /// Lengthens the rest before the next search for room, if the jump leads to about the limit
    /// that was given up for more room.
    fn back_off_room(&mut self, now: Tick, limit: f64) {
        let Some((previous, since)) = self.schedule.room.take() else { return };
        if limit > ROOM_FOUND * previous || nanos_between(since, now) > ROOM_REST.1 {
            self.schedule.room_gap = 0.0;
            return;
        }
        self.schedule.room_gap = (self.schedule.room_gap * 2.0).clamp(ROOM_REST.0, ROOM_REST.1);
        self.schedule.room_from = after_nanos(now, self.schedule.room_gap);
    }

    /// Lengthens the rest before the next jump and trial, because a conclusion changed nothing.
    pub(in super::super) fn back_off_jumps(&mut self, now: Tick) {
        let base = self.level.unbatched;
        let least = (JUMP_REST_MIN.0 * base).max(JUMP_REST_MIN.1);
        let most = (JUMP_REST_MAX.0 * base).max(JUMP_REST_MAX.1);
        self.schedule.jump_gap = (self.schedule.jump_gap * 2.0).max(least).min(most);
        self.schedule.jump = after_nanos(now, self.schedule.jump_gap);
        self.schedule.trial = self.schedule.jump;
    }
}
