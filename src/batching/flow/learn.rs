//! What an answer teaches the limiter: evidence for a jump while open; sizes, probes and the level while limited; and when a trial begins and ends.

use std::time::Duration;

use super::super::math::float;
use super::super::tick::{Tick, nanos};
use super::curve::Knee;
use super::growth::{Base, Growing, Growth};
use super::level::span;
use super::sojourn::Sojourn;
use super::trial::{Ended, Trial};
use super::{Draining, Flow, Gate, OPEN_MIN, OpenReason, PAIR_COST_MAX, PROBE_GAP, Permit, Probe, ROOM_REST, after};

/// A jump sets this much more than the knee: it is an estimate, and a request too many costs little.
const MARGIN: f64 = 1.15;
/// A jump is taken while this many knees are in flight, after the evidence has held for this part of the base latency: a server that returns whole batches
/// looks serial after the first answer of one.
const JUMP_KNEES: f64 = 2.0;
const JUMP_HELD: f64 = 0.5;
/// A server that needs more than this many times the expected time to drain to the new limit has no queue.
const DRAIN: f64 = 1.5;
/// One that drains at this part of the rate is slower than it was measured to be.
const DRAIN_SLOWER: f64 = 8.0;
/// Lone calls under the new limit that take this many times what they would by the base latency
/// show that it was measured before a change of the server: beyond the noise of some calls, as for
/// the cells of the load curve.
const BASE_STALE: f64 = 1.5;
/// Lone calls under the new limit, by Little's law, must have this part of the rate before, where the limit is high enough for a mean of some answers.
const RATE_KEPT: f64 = 0.8;
const RATE_LIMIT_MIN: f64 = 4.0;
/// The first trial lowers an open limit to this part of what is in flight; later ones lower a limit to these, the second after a steep gain; upward ones raise it.
const STEP_FIRST: f64 = 0.8;
const STEP_DOWN: f64 = 0.7;
const STEP_DOWN_STEEP: f64 = 0.5;
const STEP_UP: f64 = 1.5;
/// A limit whose increase gained nearly in proportion is raised once more at once.
const STEP_STEEP: f64 = 1.5;
/// A limit is lowered where this many items are here for each request of it: with fewer, calls that
/// run at once would wait to be merged.
const HELD_MIN: f64 = 1.2;
/// Answers that a trial needs: one for each item in the system, between these; and an open limit is compared over this many times as many.
const TRIAL_ANSWERS: (u64, u64) = (24, 256);
const TRIAL_WAVES: u64 = 3;
/// The rest after a jump that changed nothing: at least, in base latencies and nanoseconds, and at most.
const JUMP_REST_MIN: (f64, f64) = (50.0, 5e9);
const JUMP_REST_MAX: (f64, f64) = (640.0, 300e9);
/// The same after a trial, in its base.
const TRIAL_REST_MIN: (f64, f64) = (8.0, 1e9);
const TRIAL_REST_MAX: (f64, f64) = (64.0, 60e9);
/// A pair that costs this many lone calls is dear without another one.
const PAIR_COST_CLEAR: f64 = 1.6;
/// The rest of trials after a pair that showed too little gain.
const PAIR_REST: (f64, f64) = (10e9, 300e9);
/// A probe hit if its batches took less than this many times what was expected; one that queued behind another takes 1.5 times and more. So many in a row open.
const PROBE_HIT: f64 = 1.15;
const PROBE_HITS: u32 = 2;
/// A request in flight when the probe left was slowed by it if it took this many times what was
/// expected: half of the probe.
const COMPANION_SLOWED: f64 = 1.4;
/// Room was found if the next limit is this many times the one before; otherwise probes rest.
const ROOM_FOUND: f64 = 2.0;
/// Without an answer to mergeable calls for so many batches, and at least so long, a limit has nothing to gain.
const UNMERGED: (f64, f64) = (20.0, 1e9);

/// What is kept of a request in flight.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct FlightMark {
    pub(super) sent: Tick,
    pub(super) beside: u32,
    pub(super) alone: bool,
    pub(super) newest: bool,
    pub(super) permit: Permit,
    pub(super) probe: u32,
    pub(super) items: u32,
    /// Its number in the busy period, where that is measured.
    pub(super) wave: Option<usize>,
    /// No batch was in flight when it was sent.
    pub(super) clean: bool,
    /// What it takes with its slot idle, in nanoseconds; 0 where that is not known.
    pub(super) expected: u64,
}

/// A request that ended.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Completion {
    /// It was answered well, as it was sent.
    pub(in super::super) answered: bool,
    pub(in super::super) calls: u32,
    /// When its first and its last call arrived.
    pub(in super::super) first: Tick,
    pub(in super::super) last: Tick,
    /// Items of the class that are queued.
    pub(in super::super) queued: u64,
    /// The largest batch that any limit allows.
    pub(in super::super) items_max: u32,
    pub(super) items: u32,
    /// Items that were here until now, itself included.
    pub(super) here: u64,
    /// Nanoseconds to the first byte of its answer, where that was seen.
    pub(super) first_byte: Option<f64>,
}

// === impl Completion ===

impl Completion {
    pub(in super::super) fn new(
        answered: bool,
        calls: u32,
        first: Tick,
        last: Tick,
        queued: u64,
        items_max: u32,
    ) -> Self {
        Self { answered, calls, first, last, queued, items_max, items: 1, here: 1, first_byte: None }
    }

    /// The same with the time to the first byte of its answer: a call that streams shows by it how
    /// busy the server is.
    pub(in super::super) fn with_first_byte(self, first_byte: Option<Duration>) -> Self {
        Self { first_byte: first_byte.map(|time| float(nanos(time))), ..self }
    }

    /// The items whose calls arrived from `from` on, with their mean time until now: as if arrivals were spread evenly.
    pub(super) fn since(&self, now: Tick, from: Tick) -> (u64, f64) {
        let items = u64::from(self.items);
        if self.last < from {
            return (0, 0.0);
        }
        if self.first >= from {
            return (items, (span(self.first, now) + span(self.last, now)) / 2.0);
        }
        let part = span(from, self.last) / span(self.first, self.last).max(1.0);
        let counted = super::super::math::whole(part * float(items)).clamp(1, items);
        (counted, (span(from, now) + span(self.last, now)) / 2.0)
    }
}

// === impl Flow ===

impl Flow {
    /// Takes in a request that ended.
    pub(in super::super) fn on_completion(&mut self, now: Tick, mark: &FlightMark, mut done: Completion) {
        self.now = self.now.max(now);
        done.items = mark.items;
        self.batches = self.batches.saturating_sub(u32::from(done.calls > 1));
        self.flights = self.flights.saturating_sub(1);
        if !mark.alone {
            self.merged_flights = self.merged_flights.saturating_sub(1);
            self.merged_items = self.merged_items.saturating_sub(u64::from(mark.items));
            self.newest = self.newest.saturating_sub(u32::from(mark.newest));
        }
        self.gate = self.gate.filter(|_| done.queued > 0).map(|gate| Gate { limit: gate.limit + gate.step, ..gate });
        if !done.answered {
            self.wave.give_up();
        }
        if !done.answered || self.pinned {
            return;
        }
        self.answered_calls += u64::from(done.calls);
        // A stream lasts as long as it has to say something; the server was busy with others until
        // its first byte.
        let latency = done.first_byte.filter(|_| mark.alone).unwrap_or_else(|| span(mark.sent, now));
        let limited = self.limit.is_some();
        if done.calls == 1 && mark.clean && (!limited || mark.alone) && self.trial.is_none() {
            self.learn_lone(now, mark, latency);
        } else if done.calls == 1 && !limited && self.trial.is_none() {
            // Beside a pair, which is compared with the calls around it.
            self.level.observe_lone(latency);
        }
        if limited {
            self.curve.forget_rate();
        } else {
            self.curve.record_completion(mark.sent, now, mark.items);
        }
        let settled = !limited || self.trial.is_some() || self.settle(now);
        let mean = (span(done.first, now) + span(done.last, now)) / 2.0;
        done.here = self.items_here(done.queued) + u64::from(mark.items);
        let here = done.here;
        self.sojourns.push(Sojourn { arrived: done.first, mean, here, items: mark.items, beside: mark.beside });
        if mark.alone {
            if self.trial.is_some() {
                self.learn_trial(now, mark, &done);
            }
            let new = mark.sent >= self.schedule.since;
            if settled && new && self.limit.is_some() && self.trial.is_none() && self.growth.cap() == 1 {
                self.grow(now, mark, latency, &done);
            }
            self.open_unmerged(now);
            return;
        }
        self.last_merged = now;
        self.answered += u64::from(mark.items);
        if mark.permit == Permit::Pair {
            self.learn_pair(now, latency);
        }
        if self.trial.is_some() {
            self.learn_trial(now, mark, &done);
        } else if !limited {
            self.jump(now);
        } else if settled && self.limit.is_some() {
            self.learn_limited(now, mark, latency, &done);
        }
        self.begin_trial(now, &done);
    }

    fn learn_lone(&mut self, now: Tick, mark: &FlightMark, latency: f64) {
        // Calls of many items, or heavy ones, take longer in service: what is compared is their wait and the service of a typical call.
        let typical = self.level.observe_service(mark.expected);
        let latency = if mark.expected > 0 { (latency - float(mark.expected) + typical).max(typical) } else { latency };
        if let Some(number) = mark.wave {
            self.wave_knee = self.wave.observe(number, latency).or(self.wave_knee);
        }
        if self.curve.observe((mark.beside, self.flights), latency) {
            self.wave.on_change();
            self.schedule.trial_gap = 0.0;
            self.schedule.trial = now;
            self.schedule.jump = now;
            self.schedule.since = now;
            self.sojourns.clear();
        }
        self.level.observe_lone(latency);
    }

    /// Opens a limit under which nothing has been merged for long.
    fn open_unmerged(&mut self, now: Tick) {
        let rest = (UNMERGED.0 * self.level.batch.max(self.level.lone)).max(UNMERGED.1);
        let limited = self.limit.is_some() || self.trial.is_some();
        if limited && self.merged_flights == 0 && span(self.last_merged, now) > rest {
            self.open(now, OpenReason::NothingToMerge);
        }
    }

    fn learn_pair(&mut self, now: Tick, latency: f64) {
        let cost = latency / self.level.recent_lone.max(self.level.near_lone).max(1.0);
        self.pairs.cost = if self.pairs.count == 0 { cost } else { (self.pairs.cost + cost) / 2.0 };
        self.pairs.count += 1;
        let cheap = self.pairs.cost < PAIR_COST_MAX;
        // Noise of one pair is not enough for a rest.
        if !cheap && self.pairs.cost < PAIR_COST_CLEAR && self.pairs.count < 2 {
            return;
        }
        self.pairs.cheap = Some(cheap);
        if !cheap {
            self.schedule.trial_gap = (self.schedule.trial_gap * 2.0).clamp(PAIR_REST.0, PAIR_REST.1);
            self.schedule.trial = after(now, self.schedule.trial_gap);
            self.pairs.count = 0;
        }
    }

    fn learn_trial(&mut self, now: Tick, mark: &FlightMark, done: &Completion) {
        let Some(trial) = &mut self.trial else { return };
        let limit = trial.next_limit(self.in_force.unwrap_or(trial.target));
        self.in_force = Some(limit);
        let Some(ended) = trial.observe(now, limit, mark.beside, done) else { return };
        self.end_trial(now, &ended);
    }

    fn end_trial(&mut self, now: Tick, ended: &Ended) {
        let Ended { trial, mean, kept, steep } = *ended;
        (self.trial, self.in_force) = (None, None);
        self.schedule.steep = steep;
        self.schedule.since = now;
        self.sojourns.clear();
        if !kept {
            let rest = (self.schedule.trial_gap * 2.0).max((TRIAL_REST_MIN.0 * trial.base).max(TRIAL_REST_MIN.1));
            self.schedule.trial_gap = rest.min((TRIAL_REST_MAX.0 * trial.base).max(TRIAL_REST_MAX.1));
            self.schedule.trial = after(now, self.schedule.trial_gap);
            self.schedule.upward = !self.schedule.upward;
            self.pairs.count = 0;
            return;
        }
        if let Some(previous) = trial.previous.filter(|previous| trial.target < *previous) {
            // Lone calls were measured under the higher limit, and some of their time was the queue that is gone.
            self.level.lone *= trial.target / previous;
        }
        if trial.previous.is_none() {
            self.level.lone = 0.0;
            self.growth = Growth::whole();
            self.schedule.upward = false;
        }
        self.level.restart();
        self.probe.hits = 0;
        self.refine_from = trial.target;
        let further = trial.is_upward() && steep;
        self.set_limit(if further { trial.target * STEP_STEEP } else { trial.target });
        self.schedule.trial_gap = 0.0;
        self.schedule.trial = now;
        self.probe.next = after(now, PROBE_GAP * mean);
    }

    /// Sets the limit at once where the first waves or the load curve have a knee.
    fn jump(&mut self, now: Tick) {
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
        let limit = super::super::math::whole(MARGIN * knee.at).max(1);
        // A server that has become slower has the rate of its last answers.
        let knee = Knee { rate: self.curve.recent_rate(knee.at).map_or(knee.rate, |rate| rate.min(knee.rate)), ..knee };
        let drains = f64::from(self.flights) / knee.rate;
        let over = (f64::from(self.flights) - float(limit)).max(0.0) / knee.rate;
        self.gate = None;
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

    /// A request was answered under a limit that is not on trial.
    fn learn_limited(&mut self, now: Tick, mark: &FlightMark, latency: f64, done: &Completion) {
        self.learn_companion(now, mark, latency);
        if self.limit.is_none() {
            return;
        }
        match mark.permit {
            Permit::Probe(_) => return self.learn_probe(now, mark, latency),
            _ if mark.sent < self.schedule.since => return,
            _ => {}
        }
        if self.level.observe_batch(f64::from(mark.items), latency, mark.expected) {
            self.probe.next = now;
            self.schedule.trial = now;
            self.schedule.trial_gap = 0.0;
        }
        self.grow(now, mark, latency, done);
    }

    /// Takes a request under a limit as evidence of what its size costs.
    fn grow(&mut self, now: Tick, mark: &FlightMark, latency: f64, done: &Completion) {
        let limit = self.limit.unwrap_or(1.0);
        let service = self.knee.map_or(self.level.lone, |knee| knee.base.min(self.level.lone));
        let base = Base { latency: self.level.lone, service, items: self.level.lone_items };
        match self.growth.observe((mark.items, done.calls), latency, base, limit, done.items_max) {
            Growing::Nothing => {}
            Growing::Base { latency, .. } if !self.growth.is_renewed() && self.answers_less(limit, latency) => {
                self.rest_jumps(now);
                self.release(now, OpenReason::NoQueue);
            }
            Growing::Base { latency, items } => {
                (self.level.lone, self.level.lone_items) = (latency, items);
                self.renew_base(limit, latency);
                self.level.restart();
            }
            Growing::Larger => {
                self.level.batches = self.level.batches.min(1);
                self.schedule.since = now;
                self.sojourns.clear();
            }
            Growing::NoGain { ratio } => {
                self.rest_jumps(now);
                self.release(now, OpenReason::NoGain { permille: super::super::math::whole(ratio * 1000.0) });
            }
        }
    }

    /// Replaces a base latency that was measured before the server changed: lone calls under the
    /// limit wait for those that it has above the knee, and no longer. Beside a base that is too
    /// small, no batch pays.
    fn renew_base(&mut self, limit: f64, latency: f64) {
        if let Some(knee) = &mut self.knee
            && latency > BASE_STALE * knee.base * (limit / knee.at).max(1.0)
        {
            knee.base = latency;
        }
    }

    /// Whether lone calls under the limit have too little of the rate before the jump.
    fn answers_less(&self, limit: f64, latency: f64) -> bool {
        let before = self.knee.map_or(0.0, |knee| knee.rate);
        limit >= RATE_LIMIT_MIN && limit / latency < RATE_KEPT * before
    }

    /// Watches the server drain to a new limit. False while what is answered was sent before it.
    fn settle(&mut self, now: Tick) -> bool {
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

    /// More time for a server that drains steadily, but slower than was measured: it has become
    /// slower since. Once, and not beyond so many times what was expected.
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

    fn learn_probe(&mut self, now: Tick, mark: &FlightMark, latency: f64) {
        if mark.probe != self.probe.id || self.probe.done {
            return;
        }
        self.probe.left = 0;
        self.probe.count += 1;
        self.probe.sum += latency / self.expect(mark);
        self.conclude_probe(now);
    }

    /// Takes the answer to a request that was in flight when the probe left.
    fn learn_companion(&mut self, now: Tick, mark: &FlightMark, latency: f64) {
        let beside = self.probe.companions > 0 && mark.sent <= self.probe.sent;
        if beside && !matches!(mark.permit, Permit::Probe(_)) {
            self.probe.companions -= 1;
            self.probe.slowed = self.probe.slowed.max(latency / self.expect(mark));
            self.conclude_probe(now);
        }
    }

    /// What a request takes with its slot idle, in nanoseconds, at least one.
    fn expect(&self, mark: &FlightMark) -> f64 {
        match mark.expected {
            0 => self.level.predict(f64::from(mark.items), self.pairs.cost).max(1.0),
            expected => float(expected),
        }
    }

    /// Concludes from a probe, once it and those beside it are answered.
    fn conclude_probe(&mut self, now: Tick) {
        let half = (self.limit.unwrap_or(1.0) / 2.0).ceil();
        if self.probe.done || f64::from(self.probe.count) < half || self.probe.companions > 0 {
            return;
        }
        self.probe.done = true;
        let ratio = self.probe.sum / f64::from(self.probe.count);
        if ratio >= PROBE_HIT || self.probe.slowed >= COMPANION_SLOWED {
            self.probe.hits = 0;
            return;
        }
        self.probe.hits += 1;
        (self.probe.next, self.probe.split) = (now, now);
        if self.probe.hits >= PROBE_HITS {
            self.open_for_room(now);
        }
    }

    /// Begins a trial that is due, where the number in flight has been steady.
    fn begin_trial(&mut self, now: Tick, done: &Completion) {
        if self.trial.is_some() || now < self.schedule.trial || self.gate.is_some() {
            return;
        }
        let limit = self.limit;
        // A knee that is evident is found by a jump, at once.
        if self.draining.is_some() || limit.is_none() && self.schedule.evident.is_some() {
            return;
        }
        let total = self.items_here(done.queued);
        let flights = limit.unwrap_or(f64::from(self.flights));
        let grown = !self.is_growing(done.queued);
        let paired = self.merged_flights >= OPEN_MIN && self.pairs.count >= 1 && self.pairs.cost < PAIR_COST_MAX;
        if !grown || flights < 2.0 || limit.is_none() && !paired {
            return;
        }
        let need = total.clamp(TRIAL_ANSWERS.0, TRIAL_ANSWERS.1);
        let span = if limit.is_none() { TRIAL_WAVES * need } else { need };
        let Some(base) = self.sojourns.steady_mean(self.schedule.since, span, need) else { return };
        let upward = self.schedule.upward && self.is_below_wall() && limit.is_some_and(|limit| limit > 2.0);
        if !upward && limit.is_some_and(|limit| base.here < HELD_MIN * limit) {
            return;
        }
        let factor = match limit {
            Some(_) if upward => STEP_UP,
            Some(_) if self.schedule.steep => STEP_DOWN_STEEP,
            Some(_) => STEP_DOWN,
            None => STEP_FIRST,
        };
        let target = (flights * factor).floor().max(1.0);
        let trial = Trial::new(now, limit, flights, target, base, need);
        self.in_force = Some(trial.first_limit());
        self.trial = Some(trial);
    }

    /// A jump to about the limit that was left for more room: there was none, and it is looked for later each time.
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
    pub(super) fn rest_jumps(&mut self, now: Tick) {
        let base = self.level.lone;
        let least = (JUMP_REST_MIN.0 * base).max(JUMP_REST_MIN.1);
        let most = (JUMP_REST_MAX.0 * base).max(JUMP_REST_MAX.1);
        self.schedule.jump_gap = (self.schedule.jump_gap * 2.0).max(least).min(most);
        self.schedule.jump = after(now, self.schedule.jump_gap);
        self.schedule.trial = self.schedule.jump;
    }
}
