//! A concurrency limiter for one cost class: how many requests may be in flight, and when merging pays.
//!
//! It starts *open*: with nothing learned, every call is forwarded at once, as without a proxy. Two measurements close it. The **load curve** (`curve`) is the
//! mean latency of lone calls by the number in flight when they were sent; where throughput stops growing there is a queue inside the server, and the limit
//! falls to the knee at once. A **trial** (`trial`) sends a few requests less for one wave of calls and keeps that only if callers wait less. While limited,
//! calls that are held leave in equal shares, and the largest batch doubles only as long as each size is measured to be cheaper per item (`growth`). The
//! limiter opens again when a probe beside the limit is not slowed, when a larger limit answers sooner, when a batch does not pay, when the server does not
//! drain, or when it answers less than before. Each conclusion that changed nothing doubles the time to its next test.
//!
//! Related work: concurrency limiters that compare latency with a base (TCP Vegas; the gradient limiters of Netflix `concurrency-limits`; Envoy's adaptive
//! concurrency filter) take the least latency for the base, which noise and batches make too small, or a long mean, which is the queue itself once a closed
//! loop of callers is steady. Here the base is the mean latency at few requests in flight. Gunther's Universal Scalability Law is the shape that the
//! load curve samples: throughput over concurrency with a knee.
//!
//! Pure: time is an argument. It leaves out which calls of a line leave together and how large a batch is wanted (`adaptive`), and the lead by which a batch
//! may leave before another returns (`slots`).

mod curve;
mod growth;
mod learn;
mod level;
mod show;
mod sojourn;
mod trial;
mod wave;

#[cfg(test)]
mod tests;

pub(super) use learn::{Completion, FlightMark};
pub use show::{FlowMode, FlowReport, FlowSnapshot, LoadPoint, OpenReason};

use curve::{Knee, LoadCurve};
use growth::Growth;
use level::Level;
use sojourn::Sojourns;
use trial::Trial;
use wave::WaveTest;

use super::math::float;
use super::tick::Tick;

/// Requests in flight that hold mergeable calls from which on pairs and trials are made while open: with fewer, a partner is too far off.
const OPEN_MIN: u32 = 12;
/// Calls before the first pair, between pairs, and after a pair that found no partner: at most two calls in four hundred are touched, so that no p99 is.
const PAIR_FIRST: u64 = 200;
const PAIR_EVERY: u64 = 400;
const PAIR_AGAIN: u64 = 20;
/// The part of a lone call's latency for which a call may be held: for a partner, and by a trial
/// that lowers an open limit. Twice as much costs twice as much where nothing is found, and finds
/// no more.
const HOLD: f64 = 1.0 / 32.0;
/// A pair that costs this many lone calls or more ends trials and jumps for a while: what is merged
/// would gain too little.
const PAIR_COST_MAX: f64 = 1.3;
/// Limits up to this are probed upward by as many requests more; larger ones by trials.
const PROBE_LIMIT_MAX: f64 = 2.0;
/// A probe is sent this early in the life of the batches beside it, as a part of their latency: later it would overlap too little.
const PROBE_EARLY: f64 = 0.4;
/// Time between probes in batches, and at least.
const PROBE_GAP: f64 = 5.0;
const PROBE_GAP_MIN: f64 = 500e6;
/// A probe of few items leaves too few for the next batch: it is sent this much later, in
/// nanoseconds, if none of more was sent by then.
const PROBE_FEW: f64 = 3e9;
/// Where one batch takes all callers, nothing is queued beside it to probe with. Then a batch is cut in two, the second half being the probe: so seldom,
/// in batches, and at least this long after the last. A serial server loses the fixed cost of a batch for it.
const SPLIT_GAP: f64 = 6.0;
const SPLIT_GAP_MIN: f64 = 1e9;
/// Fewest items that are cut in two.
const SPLIT_ITEMS: u64 = 4;
/// The part of the knee below which batches that came late do not lower a limit: noise would.
const REFINE_MIN: f64 = 0.75;
/// The part above which refinements say that the server has more room: the limit is found anew.
const REFINE_MAX: f64 = 1.5;
/// Requests allowed beyond those in flight when the limiter opens with a queue, and for each that returns where the server is saturated and where it is not:
/// all at once would stop a server that shares its processor among requests for a whole wave.
const GATE_FIRST: f64 = 2.0;
const GATE_STEP_SATURATED: f64 = 0.25;
const GATE_STEP: f64 = 1.0;

/// Where room that was looked for was not found, it is looked for after this long, in nanoseconds:
/// at first, and at most.
const ROOM_REST: (f64, f64) = (5e9, 300e9);

/// The limiter of one cost class.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    /// The limit; `None` while open.
    limit: Option<f64>,
    /// The limit during a trial.
    in_force: Option<f64>,
    /// A queue is being released.
    gate: Option<Gate>,
    /// The server is known to batch by itself: it stays open.
    pinned: bool,
    /// A limit of the policy that calls were held by: nothing looks for room beyond it.
    wall: Option<u32>,
    curve: LoadCurve,
    wave: WaveTest,
    /// What the waves showed, until the limit is set by it.
    wave_knee: Option<Knee>,
    level: Level,
    growth: Growth,
    sojourns: Sojourns,
    trial: Option<Trial>,
    pairs: Pairs,
    probe: Probe,
    /// The limit was found by a jump and is being drained to.
    draining: Option<Draining>,
    /// The knee that the last jump was made for; `None`: the limit was found by trials, or was learned before.
    knee: Option<Knee>,
    /// The limit or knee that was measured last: refinements stay near it.
    refine_from: f64,
    schedule: Schedule,
    /// Why it is open, for reports.
    reason: OpenReason,
    /// Requests in flight.
    flights: u32,
    /// Of these, those that hold mergeable calls, and their items.
    merged_flights: u32,
    merged_items: u64,
    /// Batches of several calls in flight: lone calls beside them say nothing of the load curve.
    batches: u32,
    /// Batches in flight of the newest size.
    newest: u32,
    /// Mergeable items answered.
    answered: u64,
    /// Calls answered.
    answered_calls: u64,
    /// The last request with mergeable calls was answered then.
    last_merged: Tick,
    /// And the last one left then.
    last_sent: Tick,
    now: Tick,
}

/// How a queue is released when the limiter opens.
#[derive(Debug, Clone, Copy)]
struct Gate {
    /// Requests that may be in flight.
    limit: f64,
    /// By how much that grows with each that returns.
    step: f64,
}

/// Pairs sent while open, to learn what a batch of two costs.
#[derive(Debug, Clone, Copy)]
struct Pairs {
    count: u32,
    /// Cost of a pair ÷ cost of a lone call sent under the same load.
    cost: f64,
    /// Whether the last ones were cheap enough to look for a limit; `None` before there was one.
    cheap: Option<bool>,
    next: u64,
    hold_until: Option<Tick>,
}

/// Probes upward under a small limit.
#[derive(Debug, Clone, Copy, Default)]
struct Probe {
    id: u32,
    left: u32,
    sum: f64,
    count: u32,
    done: bool,
    hits: u32,
    next: Tick,
    /// When a batch may be cut in two for one.
    split: Tick,
    /// When its first batch left, and the requests that were in flight beside it and are not
    /// answered yet.
    sent: Tick,
    companions: u32,
    /// How many times what was expected the slowest of these took: a server without an order may
    /// answer the probe first.
    slowed: f64,
}

/// What follows a jump: the server drains to the limit.
#[derive(Debug, Clone, Copy)]
struct Draining {
    until: Tick,
    /// When it began, and the requests in flight then; `None` once the time was prolonged.
    begun: Option<(Tick, u32)>,
}

/// When what may be tested next, and how long the next rest is, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Schedule {
    trial: Tick,
    trial_gap: f64,
    jump: Tick,
    jump_gap: f64,
    /// Since when the evidence for a jump has held.
    evident: Option<Tick>,
    /// The last change of state: what was answered before does not count for trials.
    since: Tick,
    /// The next trial raises the limit.
    upward: bool,
    /// The last trial that was kept gained nearly in proportion.
    steep: bool,
    /// The limit before it opened for room, and since when; room that was not there is looked for later each time.
    room: Option<(f64, Tick)>,
    room_gap: f64,
    room_from: Tick,
}

impl Schedule {
    /// The next trial raises the limit, and is due. If nothing comes of it, it is looked for later
    /// each time.
    fn look_for_room(&mut self, now: Tick) {
        (self.upward, self.trial) = (true, now);
        self.room_gap = (self.room_gap * 2.0).clamp(ROOM_REST.0, ROOM_REST.1);
        self.room_from = after(now, self.room_gap);
    }
}

/// What the limiter is asked about a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) now: Tick,
    /// The first call may not be merged.
    pub(super) alone: bool,
    /// When the first call of the line arrived.
    pub(super) arrived: Tick,
    /// A second call of the line may join the first.
    pub(super) has_second: bool,
    /// Items of the class that are queued.
    pub(super) queued: u64,
}

/// A request that leaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Departure {
    pub(super) items: u32,
    pub(super) calls: u32,
    /// It cannot share a batch.
    pub(super) alone: bool,
    pub(super) permit: Permit,
    /// Items of the class that stay queued.
    pub(super) queued: u64,
    /// What it takes with its slot idle, in nanoseconds; 0 where that is not known.
    pub(super) expected: u64,
}

/// What the limiter allows a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permit {
    /// Forward one call now.
    Forward,
    /// Send two calls together, to learn what that costs.
    Pair,
    /// Send a batch of at most so many items.
    Share(u32),
    /// Send a batch beyond the limit, to see whether the server has room.
    Probe(u32),
    /// Nothing before then.
    Hold(Tick),
    /// The limit is reached.
    Full,
}

// === impl Pairs ===

impl Pairs {
    const fn new() -> Self {
        Self { count: 0, cost: 1.0, cheap: None, next: PAIR_FIRST, hold_until: None }
    }
}

// === impl Flow ===

impl Flow {
    pub(super) fn new() -> Self {
        Self {
            limit: None,
            in_force: None,
            gate: None,
            pinned: false,
            wall: None,
            curve: LoadCurve::default(),
            wave: WaveTest::default(),
            wave_knee: None,
            level: Level::default(),
            growth: Growth::whole(),
            sojourns: Sojourns::default(),
            trial: None,
            pairs: Pairs::new(),
            probe: Probe::default(),
            draining: None,
            knee: None,
            refine_from: 1.0,
            schedule: Schedule::default(),
            reason: OpenReason::Learning,
            flights: 0,
            merged_flights: 0,
            merged_items: 0,
            batches: 0,
            newest: 0,
            answered: 0,
            answered_calls: 0,
            last_merged: Tick(0),
            last_sent: Tick(0),
            now: Tick(0),
        }
    }

    /// A limiter that begins at a limit that was learned before, with low confidence: it is probed at once.
    pub(super) fn limited(limit: u32, lone: u64) -> Self {
        let mut flow = Self::new();
        flow.set_limit(f64::from(limit.max(1)));
        flow.level.lone = float(lone);
        flow
    }

    /// Whether calls are forwarded as they come.
    pub(super) fn is_open(&self) -> bool {
        self.limit.is_none() && self.trial.is_none()
    }

    /// Whether a conclusion is being tested, so many items being queued: nothing is held for company meanwhile, and nothing that is learned of leads moves
    /// the limit.
    pub(super) fn is_testing(&self, queued: u64) -> bool {
        let splitting = self.probe.left > 0 && self.probe.count == 0;
        self.trial.is_some()
            || self.draining.is_some()
            || splitting
            || self.gate.is_some()
            || self.growth.cap() <= 2
            || self.is_growing(queued)
    }

    /// Whether the largest size allowed is less than an equal share of what is here.
    pub(super) fn is_growing(&self, queued: u64) -> bool {
        let all = float(self.items_here(queued));
        !self.growth.is_whole() && self.limit.is_some_and(|limit| all / limit.max(1.0) > f64::from(self.growth.cap()))
    }

    /// Whether the server still has the requests of before a jump, and may.
    pub(super) fn is_draining(&self, now: Tick) -> bool {
        self.draining.is_some_and(|draining| now <= draining.until)
    }

    /// The last change of state: what was sent before is no evidence for the limit.
    pub(super) fn settled_since(&self) -> Tick {
        self.schedule.since
    }

    /// Requests in flight.
    pub(super) fn flights(&self) -> u32 {
        self.flights
    }

    /// Requests that may be in flight; `None` while open.
    pub(super) fn limit(&self) -> Option<u32> {
        self.in_force.or(self.limit).map(count)
    }

    /// Whether another request may leave, by the limit alone.
    pub(super) fn has_room(&self) -> bool {
        let below = |limit: f64| f64::from(self.flights) < limit.floor().max(1.0);
        self.gate.is_none_or(|gate| f64::from(self.flights) < gate.limit)
            && self.in_force.or(self.limit).is_none_or(below)
    }

    /// The server is known to batch by itself, or not any more.
    pub(super) fn pin_open(&mut self, now: Tick, pinned: bool) {
        if pinned && !self.pinned {
            self.open(now, OpenReason::ServerBatches);
        } else if !pinned && self.pinned {
            self.reason = OpenReason::Learning;
        }
        self.pinned = pinned;
    }

    /// Calls are held by a limit of the policy: where they wait anyway, they are merged meanwhile.
    pub(super) fn hold_at(&mut self, now: Tick, wall: u32) {
        if !self.is_open() || self.pinned || self.gate.is_some() || now < self.schedule.jump {
            return;
        }
        self.set_limit(f64::from(wall.max(1)));
        self.wall = Some(wall.max(1));
        self.refine_from = f64::from(wall.max(1));
        self.growth = Growth::whole();
        self.level.restart();
        self.level.lone = 0.0;
        self.sojourns.clear();
        self.schedule.since = now;
    }

    /// Whether the limit is below the one that the policy sets, if it sets one.
    fn is_below_wall(&self) -> bool {
        self.wall.is_none_or(|wall| self.limit.is_some_and(|limit| limit < f64::from(wall)))
    }

    /// Takes over a limit that was refined elsewhere (`slots`), while nothing is being tested.
    pub(super) fn refine(&mut self, now: Tick, limit: u32, queued: u64) {
        if self.limit.is_none() || self.is_testing(queued) {
            return;
        }
        if f64::from(limit) > REFINE_MAX * self.refine_from + 1.0 {
            let early = now < self.schedule.room_from;
            match self.limit {
                _ if early => {}
                // Executions that overlap are a hint; a probe decides, which a server that runs one
                // at a time slows down.
                Some(limit) if limit <= PROBE_LIMIT_MAX => {
                    (self.probe.next, self.probe.split) = (self.probe.next.min(now), self.probe.split.min(now));
                }
                // Batches that share a processor overlap without room: a trial decides.
                _ => self.schedule.look_for_room(now),
            }
            return;
        }
        let least = float(super::math::whole(REFINE_MIN * self.refine_from)).max(1.0);
        self.limit = Some(f64::from(limit).max(least));
    }

    /// What a line of the class may do now.
    pub(super) fn permit(&mut self, ask: &Ask) -> Permit {
        self.now = self.now.max(ask.now);
        if let Some(gate) = self.gate {
            return if f64::from(self.flights) < gate.limit { Permit::Forward } else { Permit::Full };
        }
        if self.is_open() {
            return self.permit_open(ask);
        }
        let in_force = self.in_force.or(self.limit).unwrap_or(f64::INFINITY);
        if self.splits(ask) {
            return Permit::Share(self.share(2.0, ask.queued));
        }
        if f64::from(self.flights) < in_force.floor().max(1.0) {
            return if ask.alone { Permit::Forward } else { Permit::Share(self.share(in_force, ask.queued)) };
        }
        if let Some(trial) = &self.trial {
            return match trial.held_until(ask.arrived) {
                Some(until) if ask.now >= until => {
                    if ask.alone {
                        Permit::Forward
                    } else {
                        Permit::Share(2)
                    }
                }
                Some(until) => Permit::Hold(until),
                None => Permit::Full,
            };
        }
        if !ask.alone && self.probes(ask) {
            return Permit::Probe(self.share(in_force, ask.queued));
        }
        Permit::Full
    }

    fn permit_open(&mut self, ask: &Ask) -> Permit {
        let due = !self.pinned
            && self.answered >= self.pairs.next
            && self.pairs.count < 2
            && self.merged_flights >= OPEN_MIN
            && ask.now >= self.schedule.trial;
        if !due || ask.alone {
            return Permit::Forward;
        }
        if ask.has_second {
            self.pairs.hold_until = None;
            self.pairs.next = self.answered + PAIR_EVERY;
            return Permit::Pair;
        }
        let until = *self.pairs.hold_until.get_or_insert_with(|| after(ask.now, self.level.recent_lone * HOLD));
        if ask.now < until {
            return Permit::Hold(until);
        }
        self.pairs.hold_until = None;
        self.pairs.next = self.answered + PAIR_AGAIN;
        Permit::Forward
    }

    /// Whether a batch is cut in two for a probe, which it begins then.
    fn splits(&mut self, ask: &Ask) -> bool {
        let serial = self.limit.is_some_and(|limit| limit < 2.0) && self.trial.is_none() && self.draining.is_none();
        let known = self.growth.cap() > 2 && self.level.batches >= 3 && self.is_below_wall();
        let early = ask.now < self.schedule.room_from;
        if !serial
            || !known
            || early
            || ask.alone
            || self.flights > 0
            || ask.queued < SPLIT_ITEMS
            || ask.now < self.probe.split
        {
            return false;
        }
        self.begin_probe(ask.now);
        true
    }

    fn begin_probe(&mut self, now: Tick) {
        self.probe = Probe {
            id: self.probe.id.wrapping_add(1),
            left: self.limit.map_or(1, count),
            next: after(now, (PROBE_GAP * self.level.batch).max(PROBE_GAP_MIN)),
            split: after(now, (SPLIT_GAP * self.level.batch).max(SPLIT_GAP_MIN)),
            hits: self.probe.hits,
            ..Probe::default()
        };
    }

    /// Whether a probe upward may leave now; begins one that is due.
    fn probes(&mut self, ask: &Ask) -> bool {
        let now = ask.now;
        let small = self.limit.is_some_and(|limit| limit <= PROBE_LIMIT_MAX) && self.is_below_wall();
        let early =
            float(now.since(self.last_sent).as_nanos().try_into().unwrap_or(u64::MAX)) < PROBE_EARLY * self.level.batch;
        if !small
            || !early
            || now < self.schedule.room_from
            || self.draining.is_some()
            || self.growth.cap() <= 1
            || self.level.batches < 3
        {
            return false;
        }
        let next = if ask.queued < SPLIT_ITEMS { after(self.probe.next, PROBE_FEW) } else { self.probe.next };
        if self.probe.left == 0 && now >= next {
            self.begin_probe(now);
        }
        let may = self.probe.left > 0 && self.probe.count == 0;
        self.probe.left -= u32::from(may);
        may
    }

    /// Items of a batch that leaves just before another returns: all that wait where one is in
    /// flight at a time, else an equal share.
    pub(super) fn lead_share(&self, queued: u64) -> u32 {
        match self.limit {
            Some(limit) if limit >= 2.0 => self.share(limit, queued),
            _ => u32::MAX,
        }
    }

    /// Items that are here: queued and in flight, those that cannot be merged included.
    fn items_here(&self, queued: u64) -> u64 {
        let others = u64::from(self.flights - self.merged_flights.min(self.flights));
        queued.saturating_add(self.merged_items).saturating_add(others)
    }

    /// Items of a batch when all that is queued and in flight is shared equally among so many requests.
    fn share(&self, limit: f64, queued: u64) -> u32 {
        let all = float(self.items_here(queued));
        let share = (all / limit.max(1.0)).ceil().max(1.0);
        let cap = self.growth.cap_beside(self.newest, limit);
        // A lower limit is tried with the larger batches that it stands for.
        let lowers = self.trial.is_some_and(|trial| !trial.is_upward());
        let cap = if lowers { cap.saturating_mul(2) } else { cap };
        if share >= f64::from(cap) { cap } else { count(share) }
    }

    /// Records a request that leaves.
    pub(super) fn on_send(&mut self, now: Tick, leaving: &Departure) -> FlightMark {
        let Departure { items, calls, alone, permit, queued, expected } = *leaving;
        let clean = self.batches == 0;
        self.batches += u32::from(calls > 1);
        self.now = self.now.max(now);
        self.flights += 1;
        let newest = !alone && self.growth.is_newest(items);
        if !alone {
            self.merged_flights += 1;
            self.merged_items += u64::from(items);
            self.last_sent = now;
            self.newest += u32::from(newest);
        }
        if queued == 0 {
            self.gate = None;
        }
        if matches!(permit, Permit::Probe(_)) && self.probe.sent == Tick::default() {
            (self.probe.sent, self.probe.companions) = (now, self.flights - 1);
        }
        let free = self.is_open() && self.gate.is_none();
        let lone = calls == 1 && clean && free;
        let wave = lone.then(|| self.wave.on_send(now, self.flights));
        if !free {
            self.wave.give_up();
        }
        FlightMark {
            sent: now,
            wave,
            beside: self.flights,
            alone,
            newest,
            permit,
            probe: self.probe.id,
            items,
            clean,
            expected,
        }
    }

    fn set_limit(&mut self, limit: f64) {
        self.wave_knee = None;
        self.limit = Some(limit);
        self.in_force = None;
    }

    /// Opens where the server refuses what is merged: a limit has nothing to gain.
    pub(super) fn open_unmergeable(&mut self, now: Tick) {
        if self.limit.is_some() || self.trial.is_some() {
            self.open(now, OpenReason::NothingToMerge);
        }
    }

    /// Opens: nothing that was measured under a limit holds any more.
    fn open(&mut self, now: Tick, reason: OpenReason) {
        self.limit = None;
        self.wall = None;
        self.in_force = None;
        self.trial = None;
        self.draining = None;
        self.reason = reason;
        self.schedule.since = now;
        self.schedule.evident = None;
        self.sojourns.clear();
        match reason {
            // What the limit was set by has proved to be wrong.
            OpenReason::NoQueue => self.curve.clear(),
            _ => self.curve.begin(self.knee.map_or(self.level.lone, |knee| knee.base)),
        }
        self.knee = None;
        self.wave.on_idle();
        self.growth = Growth::whole();
        self.level.restart();
        self.probe = Probe { id: self.probe.id.wrapping_add(1), ..Probe::default() };
        // A pair that was sent beside a queue that is gone is no evidence any more; where batches
        // do not pay it is one more reason.
        if !matches!(reason, OpenReason::NoGain { .. }) {
            self.pairs = Pairs { next: self.answered + PAIR_FIRST, ..Pairs::new() };
        }
    }

    /// Opens since the server was measured to have room for more.
    fn open_for_room(&mut self, now: Tick) {
        self.schedule.jump = now;
        self.schedule.room = self.limit.map(|limit| (limit, now));
        // In steps: what has a knee above the limit shows it on the way.
        self.release(now, OpenReason::RoomFound);
    }

    /// Opens with the queue released in order, a few requests at a time.
    fn release(&mut self, now: Tick, reason: OpenReason) {
        self.open(now, reason);
        let saturated = matches!(reason, OpenReason::NoGain { .. });
        let step = if saturated { GATE_STEP_SATURATED } else { GATE_STEP };
        self.gate = Some(Gate { limit: f64::from(self.flights) + GATE_FIRST, step });
    }
}

/// So many nanoseconds later.
fn after(now: Tick, nanos: f64) -> Tick {
    Tick(now.0.saturating_add(super::math::whole(nanos)))
}

/// A limit as a number of requests, at least one.
fn count(limit: f64) -> u32 {
    u32::try_from(super::math::whole(limit.floor())).unwrap_or(u32::MAX).max(1)
}
