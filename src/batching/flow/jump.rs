//! The jump to a knee, the drain that follows, and the rests after conclusions that changed
//! nothing.

use super::super::math::{float, whole};
use super::super::tick::Tick;
use super::curve::Knee;
use super::growth::Growth;
use super::level::span;
use super::probe::Probe;
use super::schedule::ROOM_REST;
use super::{Flow, OpenReason, after};

/// A jump sets this much more than the knee: it is an estimate, and a request too many costs
/// little.
const MARGIN: f64 = 1.15;
/// A jump is taken while this many knees are in flight, after the evidence has held for this part
/// of the base latency: a server that returns whole batches looks serial after the first answer of
/// one.
const JUMP_KNEES: f64 = 2.0;
const JUMP_HELD: f64 = 0.5;
/// A server that needs more than this many times the expected time to drain to the new limit has no
/// queue.
const DRAIN: f64 = 1.5;
/// One that drains this many times slower than it was measured to be, or less, has become slower;
/// beyond, it does not drain.
const DRAIN_SLOWER: f64 = 8.0;
/// The rest after a jump that changed nothing: at least, in base latencies and nanoseconds, and at
/// most.
const JUMP_REST_MIN: (f64, f64) = (50.0, 5e9);
const JUMP_REST_MAX: (f64, f64) = (640.0, 300e9);
/// Room was found if the next limit is this many times the one before; otherwise probes rest.
const ROOM_FOUND: f64 = 2.0;

/// The drain that follows a jump, until the server has no more than the limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draining {
    pub(super) until: Tick,
    /// Its beginning, and the requests in flight then; `None` once the time was prolonged.
    pub(super) begun: Option<(Tick, u32)>,
}

// === impl Flow ===

impl Flow {
    /// Sets the limit at once where the first waves or the load curve have a knee.
    pub(super) fn jump(&mut self, now: Tick) {
        let wave_knee = self.wave_knee.take();
        if now < self.schedule.jump || self.pairs.cheap == Some(false) {
            return;
        }
        let Some(knee) = wave_knee.or_else(|| self.evident_knee(now)) else { return };
        if f64::from(self.flights) >= JUMP_KNEES * knee.at {
            self.set_knee(now, knee);
        }
    }

    /// The knee of the load curve, once the evidence for it has held.
    fn evident_knee(&mut self, now: Tick) -> Option<Knee> {
        let Some(knee) = self.curve.knee(self.pairs.cheap == Some(true)) else {
            self.schedule.evident = None;
            return None;
        };
        let evident = *self.schedule.evident.get_or_insert(now);
        (span(evident, now) >= JUMP_HELD * knee.base && !self.curve.is_unsettled()).then_some(knee)
    }

    /// Sets the limit to a knee, which the server then has to drain to.
    fn set_knee(&mut self, now: Tick, knee: Knee) {
        let limit = whole(MARGIN * knee.at).max(1);
        // A server that has become slower has the rate of its last answers.
        let knee = Knee { rate: self.curve.recent_rate(knee.at).map_or(knee.rate, |rate| rate.min(knee.rate)), ..knee };
        let drains = f64::from(self.flights) / knee.rate;
        let over = (f64::from(self.flights) - float(limit)).max(0.0) / knee.rate;
        self.gate = None;
        self.harm.on_limit(now, self.level.recent_lone);
        self.rest_room(now, float(limit));
        self.set_limit(float(limit));
        self.growth = Growth::lone();
        self.level.restart();
        self.level.lone = knee.base;
        self.level.lone_items = 1.0;
        self.level.batch = 0.0;
        self.level.batch_items = 0.0;
        self.sojourns.clear();
        let until = after(now, DRAIN * over + knee.base);
        self.draining = Some(Draining { until, begun: Some((now, self.flights)) });
        self.knee = Some(knee);
        self.refine_from = knee.at;
        let schedule = &mut self.schedule;
        schedule.evident = None;
        schedule.upward = limit > 2;
        schedule.since = now;
        schedule.trial_gap = 0.0;
        schedule.trial = after(now, 4.0 * knee.base + drains);
        self.probe = Probe { id: self.probe.id, next: after(now, drains + 3.0 * knee.base), ..Probe::default() };
    }

    /// Watches the server drain to a new limit. False while what is answered was sent before it.
    pub(super) fn settle(&mut self, now: Tick) -> bool {
        let Some(draining) = self.draining else { return true };
        if f64::from(self.flights) <= self.limit.unwrap_or(1.0) {
            self.draining = None;
            self.schedule.since = now;
            self.sojourns.clear();
        } else if now > draining.until {
            match self.prolong(now, draining) {
                Some(prolonged) => self.draining = Some(prolonged),
                None => {
                    self.rest_jumps(now);
                    self.release(now, OpenReason::NoQueue);
                }
            }
        }
        false
    }

    /// Gives a server that drains steadily, but slower than was measured, more time, once: it has
    /// become slower since.
    fn prolong(&mut self, now: Tick, draining: Draining) -> Option<Draining> {
        let (begun, flights) = draining.begun?;
        let (drained, time) = (f64::from(flights.saturating_sub(self.flights)), span(begun, now));
        let over = f64::from(self.flights) - self.limit.unwrap_or(1.0);
        let rest = DRAIN * over * time / drained.max(1.0);
        let knee = self.knee.as_mut()?;
        let prolongs = drained * DRAIN_SLOWER >= knee.rate * time;
        knee.rate = knee.rate.min(drained / time);
        prolongs.then(|| Draining { until: after(now, rest), begun: None })
    }

    /// A jump to about the limit that was left for more room: there was none, and it is looked for
    /// later each time.
    fn rest_room(&mut self, now: Tick, limit: f64) {
        let Some((previous, since)) = self.schedule.room.take() else { return };
        if limit > ROOM_FOUND * previous || span(since, now) > ROOM_REST.1 {
            self.schedule.room_gap = 0.0;
            return;
        }
        self.schedule.room_gap = (self.schedule.room_gap * 2.0).clamp(ROOM_REST.0, ROOM_REST.1);
        self.schedule.room_from = after(now, self.schedule.room_gap);
    }

    /// A conclusion changed nothing: the next jump and trial come later each time.
    pub(in super::super) fn rest_jumps(&mut self, now: Tick) {
        let base = self.level.lone;
        let least = (JUMP_REST_MIN.0 * base).max(JUMP_REST_MIN.1);
        let most = (JUMP_REST_MAX.0 * base).max(JUMP_REST_MAX.1);
        self.schedule.jump_gap = (self.schedule.jump_gap * 2.0).max(least).min(most);
        self.schedule.jump = after(now, self.schedule.jump_gap);
        self.schedule.trial = self.schedule.jump;
    }
}
