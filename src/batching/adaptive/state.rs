//! The state of the adaptive policy for one upstream.
//!
//! `events` updates it, `pipeline` decides from it, and `learned_state` and `report` expose it.

use std::collections::{BTreeMap, BTreeSet};

use super::super::admission::AdmissionLimit;
use super::super::arrivals::ArrivalRate;
use super::super::batch::BatchId;
use super::super::call::{CallId, CostClassId, KeyId};
use super::super::rng::SplitMix64;
use super::super::slots::UpstreamSnapshot;
use super::super::stats::HoldReason;
use super::super::tick::Tick;
use super::class_mix::ClassMix;
use super::exploration::ExplorationBudget;
use super::fair_queueing::{ServiceOrder, TurnHeap, VirtualClocks, WeightPrice};
use super::models::{ClassModel, InFlight, KeyModel, evict_oldest, in_flight_of};

/// Initial value of T, the running mean of execution times, in nanoseconds.
pub(super) const MEAN_TIME_FIRST: u64 = 5_000_000;
/// Maximum number of merge keys evaluated for one decision. Fewer keys than this are usually queued
/// at once.
pub(super) const KEY_QUEUES_MAX: usize = 256;
/// Maximum number of cost classes with a cost curve of their own.
const MODELS_MAX: usize = 64;

/// The learned state of one upstream and the decisions based on it.
#[derive(Debug, Clone)]
pub(in super::super) struct Adaptive {
    /// Random numbers for exploration.
    pub(super) draw: SplitMix64,
    /// T: the running mean of execution times, in nanoseconds.
    pub(super) mean_time: u64,
    pub(super) flights: BTreeMap<BatchId, InFlight>,
    pub(super) models: BTreeMap<CostClassId, ClassModel>,
    pub(super) keys: BTreeMap<KeyId, KeyModel>,
    /// Calls at the front of a queue that are to expire so that more of the calls behind them meet
    /// their deadlines.
    pub(super) given_up: Vec<CallId>,
    /// Members of the batch that `Action::Chosen` refers to.
    pub(super) chosen: Vec<CallId>,
    /// AIMD limit on forwarded calls, lowered by refusals.
    pub(super) admission: AdmissionLimit,
    /// `true` if the server is known to batch by itself.
    pub(super) known_batching: bool,
    /// Initial values for new cost classes, restored from an earlier process.
    pub(super) begin: UpstreamSnapshot,
    pub(super) mix: ClassMix,
    pub(super) clocks: VirtualClocks,
    pub(super) weight_price: WeightPrice,
    /// Buffer for the service order, reused so that a decision does not allocate.
    pub(super) order: ServiceOrder,
    /// The same for the heap of the turns of flows.
    pub(super) room: TurnHeap,
    /// Keys that have been held beside a free slot since their last dispatch. Their next batch is
    /// reported with `DispatchCause::Delay`. At most [`KEY_QUEUES_MAX`] entries.
    pub(super) held: BTreeSet<KeyId>,
    pub(super) exploration: ExplorationBudget,
    /// `true` if the size of the batch about to be dispatched was chosen for exploration.
    pub(super) explores_size: bool,
    /// Instant at which to decide again after the last `Action::Nothing`.
    pub(super) wake: Option<Tick>,
    /// Number of uses of models of classes and keys, by which the least recently used one is found.
    pub(super) uses: u64,
    /// Number of holds by reason, in the order of [`HoldReason::ALL`].
    pub(super) holds: [u64; HoldReason::ALL.len()],
    /// Number of detected upstream changes, and the time of the last one.
    pub(super) changes: u64,
    pub(super) changed: Option<Tick>,
    /// Requests sent since the start. A request during which this number did not grow, and that was
    /// sent with nothing in flight, had the server for itself.
    pub(super) sends: u64,
    /// Cost class of the last sample.
    pub(super) last_class: Option<CostClassId>,
}

// === impl Adaptive ===

impl Adaptive {
    pub(in super::super) fn new(seed: u64, stand_aside_max: u32) -> Self {
        Self {
            draw: SplitMix64::new(seed),
            mean_time: MEAN_TIME_FIRST,
            flights: BTreeMap::new(),
            models: BTreeMap::new(),
            keys: BTreeMap::new(),
            given_up: Vec::new(),
            chosen: Vec::new(),
            admission: AdmissionLimit::new(stand_aside_max),
            known_batching: false,
            begin: UpstreamSnapshot::default(),
            mix: ClassMix::default(),
            clocks: VirtualClocks::default(),
            weight_price: WeightPrice::default(),
            order: ServiceOrder::new(),
            room: TurnHeap::default(),
            held: BTreeSet::new(),
            exploration: ExplorationBudget::default(),
            explores_size: false,
            wake: None,
            uses: 0,
            holds: [0; HoldReason::ALL.len()],
            changes: 0,
            changed: None,
            sends: 0,
            last_class: None,
        }
    }

    pub(in super::super) fn set_known_batching(&mut self, now: Tick, known: bool) {
        self.known_batching = known;
        for model in self.models.values_mut() {
            model.flow.pin_open(now, known);
        }
    }

    pub(in super::super) fn set_stand_aside_max(&mut self, stand_aside_max: u32) {
        self.admission.set_stand_aside_max(stand_aside_max);
    }

    /// Returns the number of requests that the learned limits for batches allow in flight, or 0
    /// while a class has none.
    pub(in super::super) fn slots(&self) -> u32 {
        let limits = self.models.values().map(|model| model.flow.batch_limit());
        limits.sum::<Option<u32>>().unwrap_or(0)
    }

    /// Returns `true` if at least one class may send another request.
    pub(in super::super) fn has_room(&self) -> bool {
        self.models.is_empty() || self.models.values().any(|model| model.flow.has_room())
    }

    /// Returns `true` if a limit of at least one class is being tested.
    pub(in super::super) fn is_testing(&self) -> bool {
        self.models.values().any(|model| model.flow.is_testing(0))
    }

    /// Returns the instant at which to decide again after `Action::Nothing`.
    pub(in super::super) const fn wake(&self) -> Option<Tick> {
        self.wake
    }

    /// Returns the calls of the last `Action::Chosen` in order of urgency.
    pub(in super::super) fn chosen(&self) -> &[CallId] {
        &self.chosen
    }

    /// Adds a model for a class that has none, and records its use.
    pub(super) fn ensure_model(&mut self, class: CostClassId) {
        self.uses += 1;
        if let Some(model) = self.models.get_mut(&class) {
            model.last_use = self.uses;
            return;
        }
        if self.models.len() >= MODELS_MAX {
            evict_oldest(&mut self.models, |model| model.last_use);
        }
        let mut model = ClassModel::new(self.uses, self.known_batching);
        if in_flight_of(&self.flights, class).next().is_some() {
            model.flow.on_loaded_start();
        }
        self.models.insert(class, model);
    }

    /// Returns the model of a class with a cost curve that has samples.
    pub(super) fn measured_model(&self, class: CostClassId) -> Option<&ClassModel> {
        self.models.get(&class).filter(|model| model.cost.samples() > 0)
    }

    pub(super) fn in_flight(&self) -> u32 {
        u32::try_from(self.flights.len()).unwrap_or(u32::MAX)
    }

    /// Returns the earliest expected completion among the requests of a limited class.
    pub(super) fn earliest_due(&self, class: CostClassId) -> Option<Tick> {
        self.models.get(&class)?.earliest_due(in_flight_of(&self.flights, class))
    }

    pub(super) fn rate(&self, key: KeyId, now: Tick) -> ArrivalRate {
        self.keys.get(&key).map(|key_model| key_model.arrivals.rate(now, self.mean_time)).unwrap_or_default()
    }
}
