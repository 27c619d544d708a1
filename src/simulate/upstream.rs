//! The upstream as it behaves, which a policy never sees but through answers.
//!
//! Three kinds: a [`Server`] with slots, an [`Engine`] that batches by itself, and a [`Shared`] one
//! that computes all requests at once. All are data; what they do in a run stands in their own
//! files. They leave out other clients and what a network loses.

mod engine;
mod server;
mod shared;

use std::time::Duration;

use crate::batching::Tick;

use super::agenda::{Agenda, Step};
use super::curve::{Curve, Load};
use super::draw::Draw;
use super::policy::SentId;

/// How long a server needs to refuse a batch that it does not even queue, beyond the way.
const REFUSAL: Duration = Duration::from_micros(300);

/// What stands upstream.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Slots with a queue in front.
    Server(Server),
    /// It batches by itself.
    Engine(Engine),
    /// It computes all requests at once.
    Shared(Shared),
}

/// `slots` executions at once, first come first served. Host work before and after overlaps with other batches; execution does not.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// What an execution takes.
    pub curve: Curve,
    /// Executions at once, at the start.
    pub slots: u32,
    /// And from an instant on, in order of time.
    pub slots_from: Vec<(Tick, u32)>,
    /// Host work before the slot.
    pub host_before: Duration,
    /// Host work after the slot.
    pub host_after: Duration,
    /// The way there and back.
    pub round_trip: Duration,
    /// And longer each way by an exponential time of this mean: threads that wake late, a processor that is shared.
    pub jitter: Duration,
    /// Deviation of the logarithm of an execution's time.
    pub sigma: f64,
    /// Longer by this share for each other slot in use: a device that is shared.
    pub contention: f64,
    /// Now and then an execution takes much longer.
    pub stalls: Option<Stalls>,
    /// From an instant on everything takes this many times as long.
    pub shift: Option<(Tick, f64)>,
    /// The first executions take this many times as long.
    pub cold: Option<(u32, f64)>,
    /// What it refuses.
    pub ceilings: Ceilings,
}

/// Executions that take longer by an exponential time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stalls {
    /// Of all executions.
    pub share: f64,
    /// Mean of what is added.
    pub mean: Duration,
}

/// What a server refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ceilings {
    /// 413 above this many items.
    pub items_max: Option<u32>,
    /// 413 above this weight in all.
    pub weight_max: Option<u64>,
    /// Out of memory above this padded weight: it fails on the slot, after half of an execution.
    pub memory_max: Option<u64>,
    /// The answer names `items_max`.
    pub named: bool,
    /// From here on there are no ceilings.
    pub lifted_at: Option<Tick>,
}

/// A front end with one thread, then an engine that takes everything queued, up to its limits, each iteration (TEI, vLLM pooling).
#[derive(Debug, Clone, PartialEq)]
pub struct Engine {
    /// What an iteration takes.
    pub curve: Curve,
    /// The front end's time for a batch.
    pub front: Duration,
    /// And for each item of it.
    pub front_item: Duration,
    /// The way there and back.
    pub round_trip: Duration,
    /// Most items in an iteration.
    pub items_max: u32,
    /// Most weight in an iteration.
    pub weight_max: u64,
    /// Deviation of the logarithm of an iteration's time.
    pub sigma: f64,
    /// 413 above this many items in a batch.
    pub batch_items_max: u32,
    /// 429 above this many items inside.
    pub inside_max: u32,
}

/// A server without a queue: all requests are computed at once, and each slows the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shared {
    /// What an execution takes with nothing beside it.
    pub curve: Curve,
    /// How requests slow each other.
    pub slowdown: Slowdown,
    /// Deviation of the logarithm of an execution's time.
    pub sigma: f64,
}

/// How requests that are computed at once slow each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Slowdown {
    /// Not up to this many; beyond, they share these alike (processor sharing).
    Cores(u32),
    /// A step costs `1 − item + item × active items` (continuous batching).
    Step {
        /// Of a step of one item, the part that belongs to the item.
        item: f64,
    },
}

/// An upstream at work.
#[derive(Debug)]
pub(super) enum Upstream {
    Server(server::State),
    Engine(engine::State),
    Shared(shared::State),
    /// A real one: what was sent is carried there by whoever drives.
    Elsewhere(Vec<SentId>),
}

// === impl Server ===

impl Server {
    /// One slot, 0.2 ms of way, noise of 4 % (`scheduling.md` §5.1).
    #[must_use]
    pub fn new(curve: Curve) -> Self {
        Self {
            curve,
            slots: 1,
            slots_from: Vec::new(),
            host_before: Duration::ZERO,
            host_after: Duration::ZERO,
            round_trip: Duration::from_micros(200),
            jitter: Duration::ZERO,
            sigma: 0.04,
            contention: 0.0,
            stalls: None,
            shift: None,
            cold: None,
            ceilings: Ceilings::default(),
        }
    }
}

// === impl Engine ===

impl Engine {
    /// The shape of TEI with its defaults (`sim/core.py`).
    #[must_use]
    pub fn new(curve: Curve) -> Self {
        Self {
            curve,
            front: Duration::from_micros(300),
            front_item: Duration::from_micros(20),
            round_trip: Duration::from_micros(200),
            items_max: 256,
            weight_max: 16_384,
            sigma: 0.04,
            batch_items_max: 32,
            inside_max: 512,
        }
    }
}

// === impl Upstream ===

impl Upstream {
    pub(super) fn new(kind: Kind, draw: Draw) -> Self {
        match kind {
            Kind::Server(spec) => Self::Server(server::State::new(spec, draw)),
            Kind::Engine(spec) => Self::Engine(engine::State::new(spec, draw)),
            Kind::Shared(spec) => Self::Shared(shared::State::new(spec, draw)),
        }
    }

    pub(super) fn start(&self, agenda: &mut Agenda) {
        if let Self::Server(server) = self {
            server.start(agenda);
        }
    }

    pub(super) fn submit(&mut self, now: Tick, id: SentId, load: Load, agenda: &mut Agenda) {
        match self {
            Self::Server(server) => server.submit(now, id, load, agenda),
            Self::Engine(engine) => engine.submit(now, id, load, agenda),
            Self::Shared(shared) => shared.submit(now, id, load, agenda),
            Self::Elsewhere(sent) => sent.push(id),
        }
    }

    pub(super) fn step(&mut self, now: Tick, step: Step, agenda: &mut Agenda) {
        match self {
            Self::Server(server) => server.step(now, step, agenda),
            Self::Engine(engine) => engine.step(now, step, agenda),
            Self::Shared(shared) => shared.step(now, step, agenda),
            Self::Elsewhere(_) => {}
        }
    }

    /// Share of the slot time up to `now` that went into executions.
    pub(super) fn busy_share(&self, now: Tick) -> f64 {
        match self {
            Self::Server(server) => server.busy_share(now),
            Self::Engine(engine) => engine.busy_share(now),
            Self::Shared(shared) => shared.busy_share(now),
            Self::Elsewhere(_) => 0.0,
        }
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn nanos(millis: f64) -> u64 {
    u64::try_from(duration(millis).as_nanos()).unwrap_or(u64::MAX)
}

fn duration(millis: f64) -> Duration {
    Duration::from_secs_f64(millis / 1e3)
}
