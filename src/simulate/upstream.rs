//! Simulated upstreams. A policy observes them only through their responses.
//!
//! Three kinds exist: a [`Server`] with slots, an [`Engine`] that batches by itself, and a
//! [`Shared`] one that computes all requests at once. The types here are data; the submodules
//! implement their behavior in a run. Other clients of the upstream and losses in the network are
//! left out.

mod engine;
mod server;
mod shared;

use std::time::Duration;

use crate::batching::Tick;

use super::agenda::{Agenda, Step};
use super::curve::{Curve, Load};
use super::draw::Draw;
use super::policy::SentId;

/// Time that a server takes to refuse a batch that it does not even queue, in addition to the round
/// trip.
const REFUSAL: Duration = Duration::from_micros(300);

/// The kind of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Slots with a queue in front.
    Server(Server),
    /// A server that batches by itself.
    Engine(Engine),
    /// A server that computes all requests at once.
    Shared(Shared),
}

/// A server that runs `slots` executions at once, first come first served. Host work before and
/// after an execution overlaps with other batches; an execution occupies its slot alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// Cost of an execution.
    pub curve: Curve,
    /// Number of slots at the start.
    pub slots: u32,
    /// Changes of the number of slots, in order of time.
    pub slots_from: Vec<(Tick, u32)>,
    /// Host work before the slot.
    pub host_before: Duration,
    /// Host work after the slot.
    pub host_after: Duration,
    /// Network round-trip time.
    pub round_trip: Duration,
    /// Mean of an exponential delay that is added in each direction: threads that wake late, a
    /// processor that is shared.
    pub jitter: Duration,
    /// Standard deviation of the logarithm of an execution's time.
    pub sigma: f64,
    /// Relative increase of an execution's time for each other slot in use: a device that is
    /// shared.
    pub contention: f64,
    /// Occasional executions that take much longer.
    pub stalls: Option<Stalls>,
    /// Instant from which every execution takes longer, and the factor.
    pub shift: Option<(Tick, f64)>,
    /// Number of first executions that take longer, and the factor.
    pub cold: Option<(u32, f64)>,
    /// Limits above which batches are refused.
    pub ceilings: Ceilings,
}

/// Executions that take longer by an exponential time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stalls {
    /// Share of the executions that stall.
    pub share: f64,
    /// Mean of the added time.
    pub mean: Duration,
}

/// Limits above which a server refuses a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ceilings {
    /// Status 413 above this number of items.
    pub items_max: Option<u32>,
    /// Status 413 above this total weight.
    pub weight_max: Option<u64>,
    /// Out of memory above this padded weight: the batch fails on the slot, after half the time of
    /// an execution.
    pub memory_max: Option<u64>,
    /// The response names `items_max`.
    pub named: bool,
    /// Instant from which no limit applies.
    pub lifted_at: Option<Tick>,
}

/// A front end with one thread, followed by an engine that takes everything queued, up to its
/// limits, in each iteration (TEI, vLLM pooling).
#[derive(Debug, Clone, PartialEq)]
pub struct Engine {
    /// Cost of an iteration.
    pub curve: Curve,
    /// Time of the front end for a batch.
    pub front: Duration,
    /// Additional time of the front end for each item.
    pub front_item: Duration,
    /// Network round-trip time.
    pub round_trip: Duration,
    /// Maximum number of items in an iteration.
    pub items_max: u32,
    /// Maximum weight in an iteration.
    pub weight_max: u64,
    /// Standard deviation of the logarithm of an iteration's time.
    pub sigma: f64,
    /// Status 413 above this number of items in a batch.
    pub batch_items_max: u32,
    /// Status 429 above this number of items inside.
    pub inside_max: u32,
}

/// A server without a queue: all requests are computed at once, and each slows the others down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shared {
    /// Cost of an execution without others at the same time.
    pub curve: Curve,
    /// Slowdown by concurrent requests.
    pub slowdown: Slowdown,
    /// Standard deviation of the logarithm of an execution's time.
    pub sigma: f64,
}

/// The slowdown of requests that are computed at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Slowdown {
    /// Processor sharing: up to this number of requests there is no slowdown, and beyond it they
    /// share this number of cores equally.
    Cores(u32),
    /// Continuous batching: a step costs `1 − item + item × active items`, in steps of one item.
    Step {
        /// Share of the cost of a one-item step that belongs to the item.
        item: f64,
    },
}

/// The state of an upstream in a run.
#[derive(Debug)]
pub(super) enum Upstream {
    Server(server::State),
    Engine(engine::State),
    Shared(shared::State),
    /// A real upstream: the driver of the policy transmits these batches.
    Elsewhere(Vec<SentId>),
}

// === impl Server ===

impl Server {
    /// Creates a server with one slot, a round trip of 0.2 ms and 4 % of noise.
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
    /// Creates an engine with the structure and the default limits of Text Embeddings Inference
    /// (TEI).
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

    /// Returns the share of the slot time up to `now` that was spent executing.
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
