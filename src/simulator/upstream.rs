//! Simulated upstreams. A policy observes them only through their responses.
//!
//! Three kinds exist: a [`SlotServer`] with slots, a [`BatchingServer`] that batches by itself, and
//! a [`SharedServer`] that computes all requests at once. The types here are data; the submodules
//! implement their behavior in a run. Other clients of the upstream and losses in the network are
//! left out.

mod engine;
mod server;
mod shared;

use std::time::Duration;

use crate::batching::Tick;

use super::batch::SimBatchId;
use super::curve::{BatchLoad, CostCurve};
use super::event_queue::{EventQueue, UpstreamStep};
use super::random::RandomStream;

/// Time in which a server refuses a batch without queueing it, in addition to the round trip.
const REFUSAL_TIME: Duration = Duration::from_micros(300);

/// The kind of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub enum UpstreamKind {
    /// Slots with a queue in front.
    Server(SlotServer),
    /// A server that batches by itself.
    Engine(BatchingServer),
    /// A server that computes all requests at once.
    Shared(SharedServer),
}

/// A server that runs `slots` executions at once, first come first served. Host work before and
/// after an execution overlaps with other batches; an execution occupies its slot alone.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotServer {
    /// Cost of an execution.
    pub curve: CostCurve,
    /// Number of slots at the start.
    pub slots: u32,
    /// Changes of the number of slots, in order of time.
    pub slot_changes: Vec<(Tick, u32)>,
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
    pub stalls: Option<StallModel>,
    /// Instant from which every execution takes longer, and the factor.
    pub shift: Option<(Tick, f64)>,
    /// Number of first executions that take longer, and the factor.
    pub cold: Option<(u32, f64)>,
    /// Limits above which batches are refused.
    pub ceilings: ServerLimits,
}

/// Executions that take longer by an exponential time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StallModel {
    /// Share of the executions that stall.
    pub share: f64,
    /// Mean of the added time.
    pub mean: Duration,
}

/// Limits above which a server refuses a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerLimits {
    /// Status 413 above this number of items.
    pub items_max: Option<u32>,
    /// Status 413 above this total weight.
    pub weight_max: Option<u64>,
    /// Out of memory above this padded weight: the batch fails on the slot, after half the time of
    /// an execution.
    pub memory_max: Option<u64>,
    /// `true` if the response to a batch above `items_max` names that limit.
    pub named: bool,
    /// Instant from which no limit applies.
    pub lifted_at: Option<Tick>,
}

/// A front end with one thread, followed by an engine that takes everything queued, up to its
/// limits, in each iteration (TEI, vLLM pooling).
#[derive(Debug, Clone, PartialEq)]
pub struct BatchingServer {
    /// Cost of an iteration.
    pub curve: CostCurve,
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
    /// Status 429 if the server would have more than this number of items, queued and in execution.
    pub items_inside_max: u32,
}

/// A server without a queue: all requests are computed at once, and each slows the others down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SharedServer {
    /// Cost of an execution without others at the same time.
    pub curve: CostCurve,
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
    /// Continuous batching: with `n` active items, a step costs `1 − item + item × n` times as much
    /// as with one.
    Step {
        /// Share of the cost of a one-item step that belongs to the item.
        item: f64,
    },
}

/// The state of an upstream in a run.
#[derive(Debug)]
pub(super) enum UpstreamState {
    Server(server::SlotServerState),
    Engine(engine::BatchingServerState),
    Shared(shared::SharedServerState),
    /// A real upstream, to which the driver of the policy transmits the batches in this list.
    External(Vec<SimBatchId>),
}

// === impl SlotServer ===

impl SlotServer {
    /// Creates a server with one slot, a round trip of 0.2 ms and 4 % of noise.
    #[must_use]
    pub fn new(curve: CostCurve) -> Self {
        Self {
            curve,
            slots: 1,
            slot_changes: Vec::new(),
            host_before: Duration::ZERO,
            host_after: Duration::ZERO,
            round_trip: Duration::from_micros(200),
            jitter: Duration::ZERO,
            sigma: 0.04,
            contention: 0.0,
            stalls: None,
            shift: None,
            cold: None,
            ceilings: ServerLimits::default(),
        }
    }
}

// === impl BatchingServer ===

impl BatchingServer {
    /// Creates an engine with the structure and the default limits of Text Embeddings Inference
    /// (TEI).
    #[must_use]
    pub fn new(curve: CostCurve) -> Self {
        Self {
            curve,
            front: Duration::from_micros(300),
            front_item: Duration::from_micros(20),
            round_trip: Duration::from_micros(200),
            items_max: 256,
            weight_max: 16_384,
            sigma: 0.04,
            batch_items_max: 32,
            items_inside_max: 512,
        }
    }
}

// === impl UpstreamState ===

impl UpstreamState {
    pub(super) fn new(kind: UpstreamKind, random: RandomStream) -> Self {
        match kind {
            UpstreamKind::Server(spec) => Self::Server(server::SlotServerState::new(spec, random)),
            UpstreamKind::Engine(spec) => Self::Engine(engine::BatchingServerState::new(spec, random)),
            UpstreamKind::Shared(spec) => Self::Shared(shared::SharedServerState::new(spec, random)),
        }
    }

    pub(super) fn start(&self, events: &mut EventQueue) {
        if let Self::Server(server) = self {
            server.start(events);
        }
    }

    /// Handles a batch that is sent now.
    pub(super) fn submit(&mut self, now: Tick, id: SimBatchId, load: BatchLoad, events: &mut EventQueue) {
        match self {
            Self::Server(server) => server.submit(now, id, load, events),
            Self::Engine(engine) => engine.submit(now, id, load, events),
            Self::Shared(shared) => shared.submit(now, id, load, events),
            Self::External(sent) => sent.push(id),
        }
    }

    /// Handles an event that the upstream has scheduled.
    pub(super) fn step(&mut self, now: Tick, step: UpstreamStep, events: &mut EventQueue) {
        match self {
            Self::Server(server) => server.step(now, step, events),
            Self::Engine(engine) => engine.step(now, step, events),
            Self::Shared(shared) => shared.step(now, step, events),
            Self::External(_) => {}
        }
    }

    /// Returns the share of the slot time up to `now` that was spent executing.
    pub(super) fn busy_share(&self, now: Tick) -> f64 {
        match self {
            Self::Server(server) => server.busy_share(now),
            Self::Engine(engine) => engine.busy_share(now),
            Self::Shared(shared) => shared.busy_share(now),
            Self::External(_) => 0.0,
        }
    }
}

pub(super) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn nanos(millis: f64) -> u64 {
    u64::try_from(duration(millis).as_nanos()).unwrap_or(u64::MAX)
}

fn duration(millis: f64) -> Duration {
    Duration::from_secs_f64(millis / 1e3)
}
