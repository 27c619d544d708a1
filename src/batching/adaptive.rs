//! The adaptive policy: learns the cost of each batch size, the upstream's concurrency and the
//! arrival process, and decides dispatches from them.
//!
//! [`Adaptive`] owns everything that is learned and is notified of every event; [`Adaptive::next`]
//! decides. Each submodule makes one decision: `batch_size` selects the batch size, `hold` decides
//! whether holding for expected arrivals pays, `cohort` merges closed-loop cohorts that take turns,
//! `deadline` reduces a batch to what deadlines allow, `weight_group` and `fair_queueing` select the members, and
//! `service_order` orders the key queues. `events` updates the models from events. The behaviour is
//! described in `docs/scheduling.md`.
//!
//! Left out: hard limits and the members that fit together (`select`), ceilings (`class`), and
//! solving plans, which belongs on a thread that may block.

mod deadline;
mod exploration;
mod fair_queueing;
mod hold;
mod weight_group;
mod late_calls;
mod events;
mod queue_view;
mod lone_time;
mod lost_requests;
mod cohort;
mod report;
mod service_order;
mod batch_size;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ablation::{DisabledFeatures, Feature};
use super::admission::AdmissionLimit;
use super::batch::{BatchId, DispatchCause, ExpiryReason, UnbatchedReason};
use super::call::{Call, CallId, CostClassId, KeyId};
use super::class::merging::MergeLimit;
use super::class::{ClassState, ClassTable};
use super::cost::CostMeasure;
use super::limiter::{ConcurrencyLimiter, Permit, PermitRequest};
use super::limits::Limits;
use super::queue::{Queue, QueuedCall};
use super::select::BatchCaps;
use super::slots::{SlotAvailability, SlotInputs as SlotView, UpstreamSnapshot};
use super::splitmix64::Draw;
use super::stats::HoldReason;
use super::tick::Tick;

pub(super) use events::{AdaptiveReport, Dispatch, DispatchKind};
pub(super) use exploration::DeadlineSpread;
pub(super) use fair_queueing::BatchWork;
pub(super) use queue_view::{slack_of, slo_of};
pub use report::{LearnedGauges, OperatingPoint, PlanAge};

use batch_size::SizeDecision;
use deadline::DeadlineChoice;
use events::{ClassModel, InFlight, KeyModel};
use exploration::ExplorationBudget;
use fair_queueing::{TurnHeap, VirtualClocks};
use lost_requests::SpareRoom;
use queue_view::QueueView;
use service_order::ServiceOrder;

/// Initial value of T, the running mean of execution times, in nanoseconds.
const MEAN_TIME_FIRST: u64 = 5_000_000;
/// Maximum number of cost classes at their limit that are remembered within one decision. Keys of
/// further classes are evaluated again, which costs time only.
const FULL_CLASSES_MAX: usize = 8;
/// Size of the candidate list for grouping by weight while several flows are queued, in batches.
/// The bound keeps a flow that is passed over because of its weight within a few batches of its
/// fair share.
const GROUP_BATCHES: u32 = 4;
/// Maximum number of merge keys evaluated for one decision. Fewer keys than this are usually queued
/// at once.
const LINES_MAX: usize = 256;

/// The learned state of one upstream and the decisions based on it.
#[derive(Debug, Clone)]
pub(super) struct Adaptive {
    draw: Draw,
    /// T: the running mean of execution times, in nanoseconds.
    mean_time: u64,
    flights: BTreeMap<BatchId, InFlight>,
    models: BTreeMap<CostClassId, ClassModel>,
    keys: BTreeMap<KeyId, KeyModel>,
    /// Calls at the front of a queue that are to expire so that more of the calls behind them meet
    /// their deadlines.
    given_up: Vec<CallId>,
    /// Members of the batch that [`Action::Chosen`] refers to.
    chosen: Vec<CallId>,
    /// AIMD limit on forwarded calls, lowered by refusals.
    admission: AdmissionLimit,
    /// Set if the server is known to batch by itself.
    known_batching: bool,
    /// Initial values for new cost classes, restored from an earlier process.
    begin: UpstreamSnapshot,
    clocks: VirtualClocks,
    /// Buffer for the service order, reused so that a decision does not allocate.
    order: ServiceOrder,
    room: TurnHeap,
    /// Keys that have been held beside a free slot since their last dispatch. Their next batch is
    /// reported with [`DispatchCause::Delay`]. At most [`LINES_MAX`] entries.
    held: BTreeSet<KeyId>,
    exploration: ExplorationBudget,
    /// Set if the size of the batch about to be dispatched was chosen for exploration.
    trial: bool,
    /// Instant at which to decide again after the last [`Action::Nothing`].
    wake: Option<Tick>,
    uses: u64,
    /// Number of holds by reason, in the order of [`HoldReason::ALL`].
    holds: [u64; HoldReason::ALL.len()],
    /// Number of detected upstream changes, and the time of the last one.
    changes: u64,
    changed: Option<Tick>,
    /// Requests sent since the start. A request during which this number did not grow, and that was
    /// sent with nothing in flight, had the server for itself.
    sends: u64,
    /// Cost class of the last sample.
    last_class: Option<CostClassId>,
}

/// Inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecisionContext<'a> {
    pub(super) now: Tick,
    pub(super) limits: &'a Limits,
    pub(super) queue: &'a Queue,
    /// Total time for which a slot has been free.
    pub(super) free: Duration,
    /// Share of an SLO that a call may be held beside an idle upstream, in thousandths.
    pub(super) hold_permille: u32,
    /// Features that are disabled for an ablation run.
    pub(super) missing: DisabledFeatures,
}

/// The next action of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Dispatch up to `items` items from the front of this key's queue.
    Send { key: KeyId, items: u32, cause: DispatchCause, kind: DispatchKind },
    /// Dispatch the calls of [`Adaptive::chosen`].
    Chosen { key: KeyId, cause: DispatchCause, kind: DispatchKind },
    /// Expire this queued call: it would be late, or it was given up in favour of others.
    Expire { id: CallId, reason: ExpiryReason },
    /// Do nothing before [`Adaptive::wake`].
    Nothing,
}

/// The decision for one merge key.
enum KeyDecision {
    Do(Action),
    /// Hold the queue deliberately until this instant.
    Hold(Tick),
    /// No slot is free. One may be available at this instant, if it is known.
    NoSlot(Option<Tick>),
    Skip,
}

// === impl Adaptive ===

impl Adaptive {
    pub(super) fn new(seed: u64, stand_aside_max: u32) -> Self {
        Self {
            draw: Draw::new(seed),
            mean_time: MEAN_TIME_FIRST,
            flights: BTreeMap::new(),
            models: BTreeMap::new(),
            keys: BTreeMap::new(),
            given_up: Vec::new(),
            chosen: Vec::new(),
            admission: AdmissionLimit::new(stand_aside_max),
            known_batching: false,
            begin: UpstreamSnapshot::default(),
            clocks: VirtualClocks::default(),
            order: ServiceOrder::new(),
            room: TurnHeap::default(),
            held: BTreeSet::new(),
            exploration: ExplorationBudget::default(),
            trial: false,
            wake: None,
            uses: 0,
            holds: [0; HoldReason::ALL.len()],
            changes: 0,
            changed: None,
            sends: 0,
            last_class: None,
        }
    }

    pub(super) fn set_known_batching(&mut self, now: Tick, known: bool) {
        self.known_batching = known;
        for model in self.models.values_mut() {
            model.flow.pin_open(now, known);
        }
    }

    pub(super) fn set_passthrough_max(&mut self, stand_aside_max: u32) {
        self.admission.set_calls_max(stand_aside_max);
    }

    /// Returns the number of requests that the learned limits allow in flight, or 0 while a class
    /// has no limit.
    pub(super) fn slots(&self) -> u32 {
        let limits = self.models.values().map(|model| model.flow.limit());
        limits.sum::<Option<u32>>().unwrap_or(0)
    }

    /// Returns `true` if at least one class may send another request.
    pub(super) fn has_room(&self) -> bool {
        self.models.is_empty() || self.models.values().any(|model| model.flow.has_room())
    }

    /// Returns `true` if a limit of at least one class is being tested.
    pub(super) fn is_testing(&self) -> bool {
        self.models.values().any(|model| model.flow.is_testing(0))
    }

    /// Returns the instant at which to decide again after [`Action::Nothing`].
    pub(super) const fn wake(&self) -> Option<Tick> {
        self.wake
    }

    /// Decides the next action. `lines` yields the key queues with a free slot on their route, in
    /// service order.
    pub(super) fn next<'a>(
        &mut self,
        ctx: DecisionContext<'a>,
        lines: impl Iterator<Item = (KeyId, &'a QueuedCall)>,
        classes: &ClassTable,
    ) -> Action {
        self.wake = None;
        self.trial = false;
        // Calls given up by an earlier decision expire first; some may have left the queue
        // meanwhile.
        while let Some(id) = self.given_up.pop() {
            if ctx.queue.get(id).is_some() {
                return Action::Expire { id, reason: ExpiryReason::LatePredicted };
            }
        }
        // The configured slots and the admission limit bound all classes together.
        let in_flight = self.in_flight();
        if in_flight >= ctx.limits.slots
            || self.admission.limit(self.known_batching).is_some_and(|limit| in_flight >= limit)
        {
            return Action::Nothing;
        }
        // With a single flow, the queues are evaluated in the given order.
        if ctx.queue.flows() <= 1 {
            return self.ask(ctx, lines.take(LINES_MAX), classes).unwrap_or(Action::Nothing);
        }
        let mut order = std::mem::take(&mut self.order);
        self.in_turn(ctx, lines, &mut order);
        let others = self.remove_fillers(ctx, &mut order);
        let in_turn = order.iter().take(LINES_MAX).filter_map(|(_, key)| Some((*key, ctx.queue.head(*key)?)));
        let next = self.ask(ctx, in_turn, classes);
        self.order = order;
        if next.is_none() {
            self.wake = self.wake.into_iter().chain(others).min();
        }
        next.unwrap_or(Action::Nothing)
    }

    /// Evaluates the key queues in order until one of them yields an action.
    fn ask<'a>(
        &mut self,
        ctx: DecisionContext<'a>,
        lines: impl Iterator<Item = (KeyId, &'a QueuedCall)>,
        classes: &ClassTable,
    ) -> Option<Action> {
        // Limits apply to cost classes: once one key of a class is at its limit, the other keys of
        // that class are skipped.
        let mut without = [None; FULL_CLASSES_MAX];
        for (key, head) in lines {
            if without.contains(&Some(head.call.cost_class)) {
                continue;
            }
            let merge = classes.merge_bound(ctx.now, &head.call, false);
            match self.line(ctx, key, head, (classes.get(head.call.cost_class), merge)) {
                KeyDecision::Do(next) => return Some(next),
                KeyDecision::Hold(until) => {
                    if self.held.len() >= LINES_MAX {
                        self.held.clear();
                    }
                    self.held.insert(key);
                    self.wake = Some(self.wake.map_or(until, |wake| wake.min(until)));
                }
                KeyDecision::NoSlot(at) => {
                    let free = without.iter_mut().find(|class| class.is_none());
                    if let Some(free) = free {
                        *free = Some(head.call.cost_class);
                    }
                    self.wake = self.wake.into_iter().chain(at).min();
                }
                KeyDecision::Skip => {}
            }
        }
        None
    }

    /// Decides the next action for one merge key. `head` is its first call.
    fn line(
        &mut self,
        ctx: DecisionContext<'_>,
        key: KeyId,
        head: &QueuedCall,
        (class, merge): (Option<&ClassState>, MergeLimit),
    ) -> KeyDecision {
        let now = ctx.now;
        let class_id = head.call.cost_class;
        self.learn_of(class_id);
        let in_line = ctx.queue.load_of_key(key).items;
        let lonely = head.call.alone || matches!(merge, MergeLimit::Alone(_));
        let has_second = !lonely && in_line > u64::from(head.call.items);
        let ask = PermitRequest {
            now,
            alone: lonely,
            arrived: head.arrived,
            has_second,
            queued: ctx.queue.held_by_class(class_id),
        };
        let lone = self.begin.mean_nanos;
        let Some(model) = self.models.get_mut(&class_id) else { return KeyDecision::Skip };
        // Ablation only: start at a limit of one instead of passing calls through.
        if ctx.missing.has(Feature::StandAside) && model.flow.is_open() {
            model.flow = ConcurrencyLimiter::limited(1, lone);
        }
        // The server refuses batches of this class, so a limit has nothing to gain.
        if merge == MergeLimit::Alone(Some(UnbatchedReason::Refused)) {
            model.flow.open_for_refused_batches(now);
        }
        // 1. The concurrency limiter of the class decides whether anything may be sent, and how
        //    many items. At its limit, overdue requests may still leave room.
        let permit = model.flow.permit(&ask);
        let full = permit == Permit::Full;
        let spare = if full { self.spare_room(class_id, merge, now) } else { SpareRoom::None(None) };
        let Some(model) = self.models.get_mut(&class_id) else { return KeyDecision::Skip };
        if let Some(limit) = model.flow.limit() {
            model.slots.set_count(limit);
        }
        // A probe must not wait for anything. Holding is also pointless while overdue requests are
        // counted as lost, because no slot is about to free.
        let testing =
            model.flow.is_testing(ask.queued) || spare == SpareRoom::Lost || matches!(permit, Permit::Probe(_));
        let growing = model.flow.is_growing(ask.queued);
        let mixed = ctx.queue.is_mixed(key);
        let scope = ctx.limits.scope(head.call.scope);
        let Some(model) = self.models.get(&class_id) else { return KeyDecision::Skip };
        let walls = BatchCaps::new(scope, class, model.cost.base_kind() == CostMeasure::Padded);
        let in_flight = model.flow.flights();
        // 2. Permits that fix the batch, and those that send or hold nothing, are final. The others
        //    leave `share`, the upper bound on the items.
        let share = match permit {
            Permit::Forward => {
                let line = QueueView { ctx, key, head, items: 1, cap: 1, wait: 0, walls };
                if let Some(late) = line.head_late_for_client(model.lone_nanos()) {
                    return KeyDecision::Do(Action::Expire { id: late, reason: ExpiryReason::LatePredicted });
                }
                return KeyDecision::Do(self.single(&line, mixed && !head.call.alone, DispatchKind::Forward));
            }
            Permit::Pair => {
                return KeyDecision::Do(Action::Send {
                    key,
                    items: 2,
                    cause: DispatchCause::Probe,
                    kind: DispatchKind::Pair,
                });
            }
            Permit::Hold(until) if self.in_flight() > 0 => {
                self.note_hold(key, HoldReason::Gather);
                return if model_is_open(&self.models, class_id) {
                    KeyDecision::Hold(until)
                } else {
                    KeyDecision::NoSlot(Some(until))
                };
            }
            Permit::Share(items) | Permit::Probe(items) => items,
            Permit::Hold(_) => 1,
            Permit::Full if spare == SpareRoom::OneCall => {
                let line = QueueView { ctx, key, head, items: 1, cap: 1, wait: 0, walls };
                return KeyDecision::Do(self.single(&line, mixed && !head.call.alone, DispatchKind::Batch));
            }
            Permit::Full if spare == SpareRoom::Lost => model.flow.lead_share(ask.queued),
            Permit::Full => {
                let overdue = if let SpareRoom::None(next) = spare { next } else { None };
                let earliest_due = self.earliest_due(class_id);
                match self.lead(ctx, class_id, earliest_due, testing) {
                    SlotAvailability::Free => {
                        self.models.get(&class_id).map_or(1, |model| model.flow.lead_share(ask.queued))
                    }
                    SlotAvailability::At(at) => {
                        self.note_hold(key, HoldReason::SlotBusy);
                        return KeyDecision::NoSlot(overdue.into_iter().chain([at]).min());
                    }
                    SlotAvailability::No => {
                        self.note_hold(key, HoldReason::SlotBusy);
                        return KeyDecision::NoSlot(overdue);
                    }
                }
            }
        };
        let kind = if matches!(permit, Permit::Probe(_)) { DispatchKind::Probe } else { DispatchKind::Batch };
        let earliest_due = self.earliest_due(class_id);
        let Some(model) = self.models.get(&class_id) else { return KeyDecision::Skip };
        let limit = model.slots.in_use();
        let send = |items, cause| KeyDecision::Do(Action::Send { key, items, cause, kind });
        // A call that cannot be merged is dispatched alone.
        if lonely {
            let line = QueueView { ctx, key, head, items: 1, cap: 1, wait: 0, walls };
            return KeyDecision::Do(self.single(&line, mixed && !head.call.alone, kind));
        }
        // Where several requests may be in flight, each takes an equal share of the items present.
        let shared = if limit > 1 || testing { share } else { u32::MAX };
        // 3. The batch size is bounded by the limits, by twice the largest size that has worked so
        //    far, and by the share.
        let cap = walls.items.min(model.worked.saturating_mul(2).max(2)).min(shared).max(1);
        // If the weight limit ends a batch before its item limit does, only sizes up to that point
        // are available. Grouping by weight selects its own members instead.
        let weighted = model.cost.weights_matter();
        let room = if weighted { cap } else { within(walls, ctx.queue.line(key), cap) };
        let (weighs, cap) = (room < cap, room);
        let items = fair_queueing::counted(ctx, key);
        let wait = model.slots.wait(in_flight, earliest_due, now);
        let line = QueueView { ctx, key, head, items, cap, wait, walls };
        let fillers = mixed && ctx.limits.has_fillers();
        // Scans the whole queue, so it is a closure that is evaluated only if a hold is considered.
        let hold_max = || {
            let held = ctx.queue.line(key).filter(|queued| !fillers || !fair_queueing::is_filler(ctx, queued));
            let first = held.map(|queued| queued.free_before).min().unwrap_or(head.free_before);
            scope.queue_delay_max.saturating_sub(ctx.free.saturating_sub(first))
        };
        // A hold ends at its own bound, at the route's limit, or half-way to the head's deadline.
        let hold = |until: Tick| {
            let until = until.min(now.after(hold_max())).min(Tick(now.0.saturating_add(line.room() / 2)));
            (until > now).then_some(KeyDecision::Hold(until))
        };
        // 4. Reasons to hold: a cohort that is about to return, arrivals predicted by the profiles,
        //    and the share of the SLO that a preset spends on an idle upstream.
        let leading = in_flight >= limit;
        let together = !testing && !mixed && !weighted && !ctx.missing.has(Feature::Gather) && slo_of(head).is_some();
        if together && let Some(answer) = self.rejoin(&line, leading, hold_max, hold) {
            return answer;
        }
        let Some(model) = self.models.get(&class_id) else { return KeyDecision::Skip };
        if let Some(late) = line.late(&model.cost) {
            return KeyDecision::Do(Action::Expire { id: late, reason: ExpiryReason::LatePredicted });
        }
        if !testing && in_flight + 1 >= limit && !ctx.missing.has(Feature::Gather) {
            let gain = self.gather(&line, leading, hold_max);
            if gain > 0
                && let Some(held) = hold(Tick(now.0.saturating_add(gain)))
            {
                self.note_hold(key, HoldReason::Gather);
                return held;
            }
        }
        if in_flight == 0
            && !testing
            && let Some(until) = line.preset_hold(&model.cost)
            && let Some(held) = hold(until)
        {
            self.note_hold(key, HoldReason::Preset);
            return held;
        }
        // 5. From here on only the plan may hold the queue. The members are selected by weight, in
        //    fair order, or from the front.
        let waited = self.held.remove(&key);
        let groups =
            |model: &&ClassModel| model.cost.weights_matter() && !fillers && !ctx.missing.has(Feature::Grouping);
        if let Some(model) = self.models.get(&class_id).filter(groups) {
            let in_turn = if mixed {
                let items = line.cap.saturating_mul(GROUP_BATCHES);
                fair_queueing::list_candidates(&line, &model.cost, &self.clocks, items, &mut self.room)
            } else {
                Vec::new()
            };
            self.chosen = weight_group::group(&line, &model.cost, self.rate(key, now), self.mean_time, &in_turn);
            if !self.chosen.is_empty() {
                return KeyDecision::Do(Action::Chosen { key, cause: cause(leading, waited), kind });
            }
        }
        let want = match self.want(&line) {
            // The test is about the limit, or about the cost of a batch of the newest size.
            _ if testing => line.items.min(line.cap),
            SizeDecision::Send(items) => items,
            SizeDecision::Hold { until, otherwise } => match hold(until) {
                Some(held) => {
                    self.note_hold(key, HoldReason::Plan);
                    return held;
                }
                None => otherwise,
            },
        };
        if mixed && let Some(model) = self.models.get(&class_id) {
            fair_queueing::choose(&line, &model.cost, &self.clocks, want, &mut self.room, &mut self.chosen);
            return KeyDecision::Do(Action::Chosen { key, cause: cause(leading, waited), kind });
        }
        if growing {
            // Deadlines would select smaller sizes for ever, and the larger size that meets more of
            // them would never be measured. The limiter allows only a few batches of it at once.
            return send(want, cause(leading, waited));
        }
        // Earliest deadline first: the batch shrinks for an urgent head, or urgent heads are given
        // up for more calls served in time.
        let Some(model) = self.models.get(&class_id) else { return KeyDecision::Skip };
        match deadline::choose(&line, &model.cost, self.rate(key, now), want, &mut self.draw) {
            DeadlineChoice::First(items) => {
                let cause = match () {
                    () if items < want => DispatchCause::Deadline,
                    () if weighs && items == cap => DispatchCause::Weight,
                    () => cause(leading, waited),
                };
                send(items, cause)
            }
            DeadlineChoice::GiveUp(heads) => {
                self.given_up = ctx.queue.line(key).take(heads).map(|queued| queued.call.id).collect();
                match self.given_up.pop() {
                    Some(id) => KeyDecision::Do(Action::Expire { id, reason: ExpiryReason::LatePredicted }),
                    None => send(want, DispatchCause::Idle),
                }
            }
        }
    }

    /// Dispatches a single call: the head, or the first call in fair order if several flows are
    /// queued.
    fn single(&mut self, line: &QueueView<'_>, mixed: bool, kind: DispatchKind) -> Action {
        let (key, cause) = (line.key, DispatchCause::Idle);
        let Some(model) = self.models.get(&line.head.call.cost_class).filter(|_| mixed) else {
            return Action::Send { key, items: 1, cause, kind };
        };
        fair_queueing::choose(line, &model.cost, &self.clocks, 1, &mut self.room, &mut self.chosen);
        Action::Chosen { key, cause, kind }
    }

    /// Decides whether a batch may be dispatched shortly before another one completes.
    fn lead(
        &mut self,
        ctx: DecisionContext<'_>,
        class: CostClassId,
        earliest_due: Option<Tick>,
        testing: bool,
    ) -> SlotAvailability {
        let mean_time = self.mean_time;
        let Some(model) = self.models.get_mut(&class) else { return SlotAvailability::No };
        if testing || ctx.missing.has(Feature::Lead) {
            return SlotAvailability::No;
        }
        let view = SlotView {
            in_flight: model.flow.flights(),
            earliest_due,
            slots_max: ctx.limits.slots,
            samples: u64::from(model.cost.samples()),
            mean_time,
            backlog: model.backlog,
        };
        model.slots.decide(ctx.now, view, &mut self.draw)
    }

    /// Returns the calls of the last [`Action::Chosen`] in order of urgency.
    pub(super) fn chosen(&self) -> &[CallId] {
        &self.chosen
    }

    /// Records a queued call that ended without an answer.
    pub(super) fn expired(&mut self, now: Tick, queued: &QueuedCall) {
        if let Some(watched) = self.keys.get_mut(&queued.call.key) {
            watched.arrivals.ended_early(queued.call.items);
        }
        let items = u64::from(queued.call.items);
        self.exploration.ended(now, items, items);
    }

    /// Charges a dispatched call to the virtual clock of its flow. `batch` is the size of its batch
    /// and `share` the weight of its flow; `alone` is `true` if no other flow is queued.
    pub(super) fn charge(&mut self, call: &Call, batch: BatchWork, share: u64, alone: bool) {
        if alone && self.clocks.is_empty() {
            return;
        }
        let (mut work, mut time) = (0, 0);
        if let Some(ClassModel { cost, .. }) = self.models.get(&call.cost_class) {
            (work, time) = (fair_queueing::charge(cost, batch, call, share), cost.time(batch.items));
        }
        self.clocks.charge(call.flow(), work, time, alone);
    }

    /// Records a call that was queued. If its flow is one of several, work done for the others
    /// counts from now on.
    pub(super) fn joined(&mut self, queue: &Queue, call: &Call) {
        if queue.flows() == 2 {
            queue.flow_items().for_each(|(flow, _)| self.clocks.accompanied(flow));
        }
        if queue.flows() > 1 && queue.held_by_flow(call.flow()) == u64::from(call.items) {
            self.clocks.joined(call.flow());
        }
    }
}

fn model_is_open(models: &BTreeMap<CostClassId, ClassModel>, class: CostClassId) -> bool {
    models.get(&class).is_some_and(|model| model.flow.is_open())
}

/// Returns the cause of a batch that no limit or deadline cut short.
const fn cause(leading: bool, waited: bool) -> DispatchCause {
    match (leading, waited) {
        (true, _) => DispatchCause::Lead,
        (false, true) => DispatchCause::Delay,
        (false, false) => DispatchCause::Idle,
    }
}

/// Returns the number of items from the front of a queue that fit into one batch: `cap`, or less
/// where the weight limits end the batch earlier.
fn within<'a>(walls: BatchCaps, line: impl Iterator<Item = &'a QueuedCall>, cap: u32) -> u32 {
    if !walls.has_weight_cap() {
        return cap;
    }
    let (mut items, mut sum, mut heaviest) = (0_u32, 0_u64, 0_u64);
    for queued in line {
        let call = &queued.call;
        let more = items.saturating_add(call.items);
        sum = sum.saturating_add(call.weight.sum);
        heaviest = heaviest.max(call.weight.max);
        if more > cap {
            return cap;
        }
        if !walls.admits_weight(sum, more, heaviest) {
            return items.max(1);
        }
        items = more;
    }
    cap
}
