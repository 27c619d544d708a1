//! Limits for generated streams, in front of a simulated engine that batches continuously.

use super::super::InFlightExecution;
use super::*;

/// A simulated engine. Each step gives every running call one token; the first step of a call also
/// reads its prompt.
#[derive(Clone, Copy)]
struct EngineModel {
    /// Maximum number of running calls.
    calls: usize,
    /// Tokens that the KV cache holds. A call reserves those of its prompt and its answer.
    cache: u64,
    /// Time of a step, of each call in it, of each prompt, and of each token of a prompt.
    step: u64,
    call: u64,
    prompt: u64,
    prompt_token: u64,
}

struct Stream {
    mark: InFlightExecution,
    arrived: u64,
    sent: u64,
    first: u64,
    prompt: u64,
    length: u32,
    left: u32,
}

/// Closed-loop clients in front of a limiter and an engine.
struct Streams {
    flow: ConcurrencyLimiter,
    engine: EngineModel,
    idle: usize,
    prompts: (u32, u32),
    lengths: (u32, u32),
    waiting: std::collections::VecDeque<Stream>,
    running: Vec<Stream>,
    tokens: u64,
    calls: u64,
    now: u64,
    /// `true` while no client sends a call.
    is_paused: bool,
}

impl Streams {
    fn new(engine: EngineModel, clients: usize, ordered: bool) -> Self {
        let mut flow = ConcurrencyLimiter::new();
        flow.set_ordered(Tick(0), ordered);
        Self {
            flow,
            engine,
            idle: clients,
            prompts: (1, 1),
            lengths: (20, 200),
            waiting: std::collections::VecDeque::new(),
            running: Vec::new(),
            tokens: 0,
            calls: 0,
            now: 1,
            is_paused: false,
        }
    }

    fn send(&mut self) {
        while self.idle > 0 && !self.is_paused {
            let (now, queued) = (Tick(self.now), self.queued());
            let request = PermitRequest { now, unmergeable: true, arrived: now, has_second: false, queued };
            let permit = self.flow.permit(&request);
            if matches!(permit, Permit::Full | Permit::Hold(_)) {
                return;
            }
            self.idle -= 1;
            let start =
                ExecutionStart { items: 1, calls: 1, unmergeable: true, permit, queued: self.queued(), expected: 0 };
            let mark = self.flow.on_dispatch(now, &start);
            self.calls += 1;
            // Lengths of a multiplicative congruential generator.
            let random = self.calls.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = |(least, most): (u32, u32), bits: u64| {
                least + u32::try_from(bits % u64::from(most - least + 1)).unwrap()
            };
            let (prompt, length) = (u64::from(draw(self.prompts, random >> 45)), draw(self.lengths, random >> 33));
            let (arrived, sent) = (self.now, self.now);
            self.waiting.push_back(Stream { mark, arrived, sent, first: 0, prompt, length, left: length });
        }
    }

    /// Number of calls that wait for a permit.
    fn queued(&self) -> u64 {
        if self.is_paused { 0 } else { self.idle as u64 }
    }

    /// Runs without new calls for this long.
    fn pause(&mut self, millis: u64) {
        self.is_paused = true;
        self.run(millis);
        self.is_paused = false;
    }

    /// Returns the median limit of the next minutes, without limits that are under test for a short
    /// time.
    fn median_limit(&mut self) -> Option<usize> {
        let mut limits: Vec<Option<u32>> = Vec::new();
        for _ in 0..31 {
            self.run(10_000);
            limits.push(self.flow.limit());
        }
        limits.sort_unstable();
        limits[15].map(|limit| limit as usize)
    }

    /// Moves calls into the engine in their order, and returns the time in which it reads their
    /// prompts.
    fn admit(&mut self) -> u64 {
        let EngineModel { calls, cache, prompt, prompt_token, .. } = self.engine;
        let reserved = |stream: &Stream| stream.prompt + u64::from(stream.length);
        let mut free = cache.saturating_sub(self.running.iter().map(reserved).sum());
        let mut time = 0;
        while self.running.len() < calls {
            let Some(stream) = self.waiting.pop_front_if(|next| reserved(next) <= free) else { break };
            free -= reserved(&stream);
            time += prompt + prompt_token * stream.prompt;
            self.running.push(stream);
        }
        time
    }

    /// Runs for this long and returns the number of tokens meanwhile.
    fn run(&mut self, millis: u64) -> u64 {
        let (before, until) = (self.tokens, self.now + millis * MS);
        while self.now < until {
            self.send();
            let EngineModel { step, call, .. } = self.engine;
            let reading = self.admit();
            self.now += step + call * self.running.len() as u64 + reading;
            for stream in &mut self.running {
                stream.first = if stream.first == 0 { self.now } else { stream.first };
                stream.left -= 1;
            }
            self.tokens += self.running.len() as u64;
            let (ended, running) = std::mem::take(&mut self.running).into_iter().partition(|one| one.left == 0);
            self.running = running;
            let ended: Vec<Stream> = ended;
            for stream in ended {
                let first_byte = Some((stream.first - stream.sent) as f64);
                let arrived = Tick(stream.arrived);
                let done = ExecutionEnd::new(true, 1, arrived, arrived, self.queued(), 1);
                let done = ExecutionEnd { first_byte, tokens: Some(self.tokens), ..done };
                self.flow.on_completion(Tick(self.now), &stream.mark, done);
                self.idle += 1;
            }
        }
        self.tokens - before
    }
}

const ENGINE: EngineModel =
    EngineModel { calls: 48, cache: u64::MAX, step: 20 * MS, call: MS / 5, prompt: 10 * MS, prompt_token: 0 };

/// Runs the same clients with and without a limit for this long. Returns the tokens under the
/// limit, as a part of the others, and the median limit afterwards.
fn compare(engine: EngineModel, clients: usize, lengths: (u32, u32), seconds: u64) -> (f64, Option<usize>) {
    let mut streams = Streams { lengths, ..Streams::new(engine, clients, true) };
    let mut direct = Streams { lengths, ..Streams::new(engine, clients, false) };
    let (ours, theirs) = (streams.run(seconds * 1000), direct.run(seconds * 1000));
    (ours as f64 / theirs as f64, streams.median_limit())
}

#[test]
fn calls_beyond_what_the_engine_runs_wait_here_at_no_cost_in_tokens() {
    for (calls, clients, lengths) in [
        (48, 300, (20, 200)),
        (48, 100, (20, 200)),
        (8, 100, (20, 200)),
        (1, 30, (20, 200)),
        (48, 300, (5, 20)),
        (48, 300, (1, 400)),
        (128, 600, (100, 400)),
    ] {
        let (part, limit) = compare(EngineModel { calls, ..ENGINE }, clients, lengths, 600);
        let tested = format!("{calls} places, {clients} clients, {lengths:?}: {part}, limit {limit:?}");
        assert!(part >= 0.98, "{tested}");
        assert!(limit.is_some_and(|limit| (calls * 9 / 10..=calls + calls / 4 + 2).contains(&limit)), "{tested}");
    }
}

#[test]
fn the_limit_is_what_the_cache_holds_if_lengths_differ() {
    // Calls of 270 tokens on average.
    let (prompts, lengths) = ((20, 400), (20, 100));
    for (held, clients) in [(8, 60), (16, 60), (16, 300), (48, 100), (48, 300)] {
        let cache = held * 270;
        let engine = EngineModel { calls: 100, cache, call: MS / 2, prompt: 0, prompt_token: MS / 40, ..ENGINE };
        let run = |ordered| Streams { prompts, lengths, ..Streams::new(engine, clients, ordered) };
        let (mut streams, mut direct) = (run(true), run(false));
        streams.run(180_000);
        direct.run(180_000);
        let (mut limits, mut ours, mut theirs) = (Vec::new(), 0, 0);
        for _ in 0..30 {
            ours += streams.run(10_000);
            theirs += direct.run(10_000);
            limits.push(u64::from(streams.flow.limit().unwrap()));
        }
        limits.sort_unstable();
        let part = ours as f64 / theirs as f64;
        let tested = format!("{held} calls held, {clients} clients: {part}, limits {limits:?}");
        assert!(part >= 0.98, "{tested}");
        // A test of more room is in progress at some times.
        assert!(limits[15] <= held + held / 4 && limits[29] <= 2 * held, "{tested}");
    }
}

#[test]
fn calls_to_an_engine_with_room_are_not_held() {
    for (clients, lengths) in [(30, (20, 200)), (47, (20, 200)), (47, (5, 20)), (47, (1, 400)), (10, (2, 5))] {
        let (part, limit) = compare(ENGINE, clients, lengths, 120);
        let is_held = limit.is_some_and(|limit| limit < clients);
        assert!(part >= 0.99 && !is_held, "{clients} clients, {lengths:?}: {part}, limit {limit:?}");
    }
}

#[test]
fn the_limit_follows_the_engine() {
    let mut streams = Streams::new(ENGINE, 300, true);
    streams.run(60_000);
    for (calls, step) in [(16, 20), (64, 20), (48, 60), (48, 10), (200, 20), (400, 20), (48, 20)] {
        streams.engine = EngineModel { calls, step: step * MS, ..ENGINE };
        let mut direct = Streams::new(streams.engine, 300, false);
        streams.run(240_000);
        direct.run(240_000);
        let (ours, theirs) = (streams.run(30_000) as f64, direct.run(30_000) as f64);
        let tested = format!("{calls} places, {step} ms: {}, limit {:?}", ours / theirs, streams.flow.limit());
        assert!(ours >= 0.97 * theirs, "{tested}");
        // All 300 calls fit into the engine of 400 places.
        assert!(calls == 400 || streams.flow.limit().is_some_and(|limit| limit < 300), "{tested}");
    }
}

#[test]
fn pauses_between_bursts_are_not_taken_for_a_slow_engine() {
    let mut streams = Streams::new(ENGINE, 300, true);
    streams.run(300_000);
    for _ in 0..20 {
        streams.run(40_000);
        streams.pause(60_000);
    }
    let limit = streams.median_limit();
    assert!(limit.is_some_and(|limit| (43..=62).contains(&limit)), "{limit:?}");
}

#[test]
fn a_search_takes_as_long_as_the_answers() {
    let engine = EngineModel { calls: 8, ..ENGINE };
    let mut streams = Streams { lengths: (1000, 3000), ..Streams::new(engine, 300, true) };
    streams.run(3_600_000);
    let limit = streams.median_limit();
    assert!(limit.is_some_and(|limit| (7..=14).contains(&limit)), "{limit:?}");
}

#[test]
fn a_limit_above_the_load_is_lowered_if_the_engine_shrinks() {
    let mut streams = Streams::new(EngineModel { calls: 200, ..ENGINE }, 400, true);
    streams.run(600_000);
    assert!(streams.flow.limit().is_some_and(|limit| limit >= 180), "{:?}", streams.flow.limit());
    // Two thirds of the clients leave.
    streams.pause(60_000);
    streams.idle = 130;
    streams.engine = ENGINE;
    streams.run(300_000);
    let limit = streams.median_limit();
    assert!(limit.is_some_and(|limit| (43..=62).contains(&limit)), "{limit:?}");
}

#[test]
fn calls_without_an_order_are_not_held() {
    let mut streams = Streams::new(ENGINE, 300, true);
    streams.run(240_000);
    assert!(streams.flow.limit().is_some());
    streams.flow.set_ordered(Tick(streams.now), false);
    streams.run(10_000);
    assert!(streams.flow.limit().is_none() && streams.idle <= 1, "{} are held", streams.idle);
}
