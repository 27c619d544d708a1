//! Start-time fair queueing (SFQ) over upstream work, for key queues in which several flows are
//! queued.
//!
//! A key queue holds the calls of one merge key. A flow is one tenant's calls of one priority
//! class. Its virtual clock advances by the work done for it divided by its weight, and the flow
//! with the smallest start tag is served next, by its most urgent call. An idle flow earns no
//! credit, and a flow that is alone gets the full capacity. The decision is made at dispatch, not
//! at arrival, so the calls of a flow stay in deadline order. See Goyal, Vin and Cheng, "Start-time
//! Fair Queuing", SIGCOMM 1996. Shares of the queue are in `batcher`, the order of key queues is in
//! `service_order`, and grouping by weight is in `weight_group`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use super::super::call::{Call, CallId, FairFlow, KeyId};
use super::super::cost::CostModel;
use super::super::priority::Rank;
use super::super::queue::{FlowQueue, Queue, QueuedCall};
use super::super::tick::Tick;
use super::decision::DecisionContext;
use super::queue_view::QueueView;

/// Maximum number of clocks. Beyond it the clocks at or below virtual time are dropped, which costs
/// a flow at most its turn in one batch, and then the smallest clock.
const CLOCKS_MAX: usize = 1024;
/// Maximum lag of a clock behind virtual time, in multiples of the largest recent batch. It keeps
/// shares accurate to one or two batches, and gives no credit for time spent waiting behind a
/// strict class.
const LAG_MAX: u64 = 2;
/// Inverse weight of a new call in the means of [`WeightPrice`].
const PRICE_PARTS: u64 = 32;
/// Divisor of the largest batch time that gives its decay per call.
const DECAY_DIVISOR: u64 = 256;
/// Maximum number of flows, and of calls, examined for one batch.
const FLOWS_MAX: usize = 1024;
const CALLS_MAX: usize = 1024;

/// Virtual clocks of the flows.
#[derive(Debug, Clone, Default)]
pub(super) struct VirtualClocks {
    /// Finish tag of the last call that was served: work divided by weight, in nanoseconds. A flow
    /// without an entry is at `virtual_time`.
    finish_tags: BTreeMap<FairFlow, u64>,
    /// Virtual time: the largest start tag that was served.
    virtual_time: u64,
    /// Decaying maximum of the batch times, in nanoseconds.
    largest_batch: u64,
}

/// The next call of a flow and its start tag. The least value is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowTurn {
    pub(super) rank: Rank,
    /// Start tag, in virtual time.
    pub(super) start: u64,
    /// Position of the call in the key queue.
    pub(super) position: (Tick, CallId),
    pub(super) flow: FairFlow,
}

/// Key queues with their turns, in order.
pub(super) type ServiceOrder = Vec<(FlowTurn, KeyId)>;

/// Size of a batch, from which the charges of its calls are computed.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct BatchWork {
    pub(in super::super) items: u32,
    pub(in super::super) weight: u64,
}

/// Price of a unit of weight, for calls that are charged by weight: the mean charge of such calls
/// by time, divided by their mean weight. All such calls of a server have one price, because they
/// share its capacity whatever their cost class.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WeightPrice {
    /// EWMA of the weight of a call; 0 before the first one.
    weight: u64,
    /// EWMA of the charge by time.
    time: u64,
}

/// Heap storage that is reused between decisions, so that a decision does not allocate.
#[derive(Debug, Clone, Default)]
pub(super) struct TurnHeap(Vec<Reverse<FlowTurn>>);

// === impl VirtualClocks ===

impl VirtualClocks {
    /// Returns `true` if no flow has a clock, so that no flow is ahead of its share or behind it.
    pub(super) fn is_empty(&self) -> bool {
        self.finish_tags.is_empty()
    }

    /// Returns the start tag of a flow's next call, in virtual time.
    pub(super) fn start_tag(&self, flow: FairFlow) -> u64 {
        let earliest = self.virtual_time.saturating_sub(LAG_MAX * self.largest_batch);
        self.finish_tags.get(&flow).map_or(self.virtual_time, |tag| (*tag).max(earliest))
    }

    /// Returns the decaying maximum of the batch times, in nanoseconds.
    pub(super) fn largest_batch(&self) -> u64 {
        self.largest_batch
    }

    /// Records that a flow has calls again. Its clock is raised to virtual time, so idleness earns
    /// no credit, and it is kept, so that work done for other flows counts from now on.
    pub(super) fn on_backlogged(&mut self, flow: FairFlow) {
        let start = self.start_tag(flow).max(self.virtual_time);
        self.set_clock(flow, start);
    }

    /// Records that a flow is no longer the only one queued. It gets a clock, so that work done for
    /// other flows counts from now on.
    pub(super) fn on_contended(&mut self, flow: FairFlow) {
        if !self.finish_tags.contains_key(&flow) {
            self.set_clock(flow, self.virtual_time);
        }
    }

    /// Charges a flow for work, already divided by its weight, in a batch that takes `batch_nanos`.
    /// `sole_flow`: no other flow was queued, so the flow keeps no debt.
    pub(super) fn charge_flow(&mut self, flow: FairFlow, work: u64, batch_nanos: u64, sole_flow: bool) {
        let start = self.start_tag(flow);
        self.virtual_time = self.virtual_time.max(start);
        self.largest_batch = batch_nanos.max(self.largest_batch - self.largest_batch / DECAY_DIVISOR);
        if sole_flow {
            self.finish_tags.remove(&flow);
        } else {
            self.set_clock(flow, start.saturating_add(work));
        }
    }

    fn set_clock(&mut self, flow: FairFlow, tag: u64) {
        self.finish_tags.insert(flow, tag);
        if self.finish_tags.len() > CLOCKS_MAX {
            let virtual_time = self.virtual_time;
            self.finish_tags.retain(|_, tag| *tag > virtual_time);
            if self.finish_tags.len() > CLOCKS_MAX
                && let Some(earliest) = self.finish_tags.iter().min_by_key(|(_, tag)| **tag).map(|(flow, _)| *flow)
            {
                self.finish_tags.remove(&earliest);
            }
        }
    }

    /// Returns the first turn of a key queue.
    pub(super) fn first_turn(&self, ctx: DecisionContext<'_>, key: KeyId) -> Option<FlowTurn> {
        ctx.queue.flow_queues(key).take(FLOWS_MAX).filter_map(|(flow, queue)| self.turn_of(ctx, flow, queue)).min()
    }

    /// Returns the turn of the first call of a flow in a key queue.
    fn turn_of(&self, ctx: DecisionContext<'_>, flow: FairFlow, queue: &FlowQueue) -> Option<FlowTurn> {
        let position = queue.calls.first()?;
        Some(FlowTurn { rank: rank(ctx, flow, position.1), start: self.start_tag(flow), position, flow })
    }
}

/// Returns the rank of a queued call. A filler that has waited long enough ranks as a plain call.
/// Without a strict class, old calls need no rank above the others: each class has its share.
fn rank(ctx: DecisionContext<'_>, flow: FairFlow, id: CallId) -> Rank {
    let class = ctx.limits.priority(flow.priority);
    let Some(queued) = ctx.queue.get(id) else { return class.rank(Duration::ZERO) };
    match class.rank(ctx.now.since(queued.arrived)) {
        Rank::Filler if filler_until(ctx, queued).is_none() => Rank::Plain,
        Rank::Strict if !ctx.limits.has_strict_class() => Rank::Plain,
        rank => rank,
    }
}

/// Returns the instant until which a filler waits beside a free slot for calls that are held: at
/// most the limit of any hold, and at most half of its time to the deadline. `None` once that time
/// is over.
pub(super) fn filler_until(ctx: DecisionContext<'_>, queued: &QueuedCall) -> Option<Tick> {
    let waited = ctx.free.saturating_sub(queued.free_before);
    let remaining = ctx.limits.scope(queued.call.scope).queue_delay_max.saturating_sub(waited);
    let half_time = queued.call.deadline.map(|deadline| queued.arrived.after(deadline.at.since(queued.arrived) / 2));
    let until = ctx.now.after(remaining).min(half_time.unwrap_or(Tick(u64::MAX)));
    (waited.is_zero() || until > ctx.now).then_some(until)
}

/// Returns `true` if a call waits for capacity that other calls leave unused.
pub(super) fn is_filler(ctx: DecisionContext<'_>, queued: &QueuedCall) -> bool {
    let class = ctx.limits.priority(queued.call.priority);
    class.filler && rank(ctx, queued.call.flow(), queued.call.id) == Rank::Filler
}

/// Returns the number of items of a key queue that determine the batch size. Fillers do not count,
/// because they join a batch that leaves without them, unless the key queue has no other calls.
pub(super) fn sizing_items(ctx: DecisionContext<'_>, key: KeyId) -> u32 {
    let queue: &Queue = ctx.queue;
    let all = u32::try_from(queue.load_of_key(key).items).unwrap_or(u32::MAX);
    if !ctx.limits.has_fillers() || !queue.is_mixed(key) {
        return all;
    }
    let mut items = 0_u64;
    for (flow, flow_queue) in queue.flow_queues(key).take(FLOWS_MAX) {
        if !ctx.limits.priority(flow.priority).filler {
            items += flow_queue.items;
            continue;
        }
        // Fillers that have waited long enough count as plain calls.
        let ids = flow_queue.calls.keys().take(CALLS_MAX).map(|(_, id)| id);
        let aged = ids.take_while(|id| rank(ctx, flow, *id) != Rank::Filler).filter_map(|id| queue.get(id));
        items += aged.map(|queued| u64::from(queued.call.items)).sum::<u64>();
    }
    if items == 0 { all } else { u32::try_from(items).unwrap_or(u32::MAX) }
}

/// Returns the arrival time of the last call of a key queue, fillers excluded.
pub(super) fn newest_arrival(ctx: DecisionContext<'_>, key: KeyId) -> Option<Tick> {
    if !ctx.limits.has_fillers() || !ctx.queue.is_mixed(key) {
        return ctx.queue.newest(key);
    }
    let plain = ctx.queue.flow_queues(key).filter(|(flow, _)| !ctx.limits.priority(flow.priority).filler);
    let last =
        plain.filter_map(|(_, flow_queue)| ctx.queue.get(flow_queue.calls.last()?.1)).map(|queued| queued.arrived);
    last.max().or_else(|| ctx.queue.newest(key))
}

/// Chooses the calls to send together, up to `items_max` items, in fair order. A call that would be
/// late in such a batch is skipped. A call that does not fit ends the batch, because the turn is
/// its own. Fillers take the room that is left.
pub(super) fn choose_fair(
    view: &QueueView<'_>,
    cost: &CostModel,
    clocks: &VirtualClocks,
    items_max: u32,
    storage: &mut TurnHeap,
    chosen: &mut Vec<CallId>,
) {
    let QueueView { ctx, key, .. } = *view;
    let min_slack = if cost.samples() == 0 || view.is_infeasible(cost) {
        0
    } else {
        view.wait.saturating_add(cost.tail_time(cost.time(items_max)))
    };
    let load = ctx.queue.load_of_key(key);
    // The weight of the batch is known only once it is chosen. Until then the key queue's average
    // weight per item is used.
    let size = BatchWork { items: items_max, weight: load.weight / load.items.max(1) * u64::from(items_max) };
    let mut turns = turn_heap(ctx, key, clocks, storage);
    chosen.clear();
    let (mut items, mut full) = (0_u32, false);
    for _ in 0..CALLS_MAX {
        let Some(Reverse(turn)) = turns.pop() else { break };
        let Some(queued) = ctx.queue.get(turn.position.1) else { continue };
        let call_items = queued.call.items;
        let mut start = turn.start;
        if view.slack(queued) >= min_slack {
            // The first call always fits. A call that shares no batch fits only as the first one.
            let fits = chosen.is_empty() || !queued.call.unmergeable && items.saturating_add(call_items) <= items_max;
            if !fits || full && turn.rank != Rank::Filler {
                full = true;
                continue;
            }
            chosen.push(queued.call.id);
            items = items.saturating_add(call_items);
            if queued.call.unmergeable || items >= items_max {
                break;
            }
            start = start.saturating_add(charged_work(cost, size, &queued.call, ctx.limits.fair_weight(&queued.call)));
        }
        turns.extend(turn.next(ctx, key, start));
    }
    if chosen.is_empty() {
        chosen.push(view.head.call.id);
    }
    storage.0 = turns.into_vec();
}

/// Lists the next calls in fair order, up to `items` items, as candidates of a group by weight.
/// Only calls of the first one's rank are listed, because grouping must not put a strict class
/// behind others.
pub(super) fn list_candidates(
    view: &QueueView<'_>,
    cost: &CostModel,
    clocks: &VirtualClocks,
    items: u32,
    storage: &mut TurnHeap,
) -> Vec<CallId> {
    let QueueView { ctx, key, .. } = *view;
    let load = ctx.queue.load_of_key(key);
    let size = BatchWork { items: view.cap, weight: load.weight / load.items.max(1) * u64::from(view.cap) };
    let mut turns = turn_heap(ctx, key, clocks, storage);
    let (mut listed, mut count, mut first_rank) = (Vec::new(), 0_u32, None);
    while listed.len() < CALLS_MAX && count < items {
        let Some(Reverse(turn)) = turns.pop() else { break };
        let Some(queued) = ctx.queue.get(turn.position.1) else { continue };
        if *first_rank.get_or_insert(turn.rank) != turn.rank {
            break;
        }
        listed.push(queued.call.id);
        count = count.saturating_add(queued.call.items);
        let work = charged_work(cost, size, &queued.call, ctx.limits.fair_weight(&queued.call));
        turns.extend(turn.next(ctx, key, turn.start.saturating_add(work)));
    }
    storage.0 = turns.into_vec();
    listed
}

/// Returns a heap with the first turn of each flow of a key queue.
fn turn_heap(
    ctx: DecisionContext<'_>,
    key: KeyId,
    clocks: &VirtualClocks,
    storage: &mut TurnHeap,
) -> BinaryHeap<Reverse<FlowTurn>> {
    let mut turns = BinaryHeap::from(std::mem::take(&mut storage.0));
    turns.clear();
    let flows = ctx.queue.flow_queues(key).take(FLOWS_MAX);
    turns.extend(flows.filter_map(|(flow, queue)| clocks.turn_of(ctx, flow, queue)).map(Reverse));
    turns
}

// === impl WeightPrice ===

impl WeightPrice {
    /// Returns the charge for a call of this weight; `time` is its charge by time.
    pub(super) fn charge(&mut self, weight: u64, time: u64) -> u64 {
        let mean = |mean: u64, new: u64| if mean == 0 { new } else { mean - mean / PRICE_PARTS + new / PRICE_PARTS };
        // A mean below the divisor would not change.
        let weight = weight.clamp(1, u64::MAX / PRICE_PARTS);
        self.weight = mean(self.weight, weight.saturating_mul(PRICE_PARTS));
        self.time = mean(self.time, time);
        let part = u128::from(self.time) * u128::from(weight) * u128::from(PRICE_PARTS);
        u64::try_from(part / u128::from(self.weight.max(1))).unwrap_or(u64::MAX)
    }
}

// === impl FlowTurn ===

impl FlowTurn {
    /// Returns the turn of the flow's next call in the key queue, with start tag `start`.
    fn next(self, ctx: DecisionContext<'_>, key: KeyId, start: u64) -> Option<Reverse<Self>> {
        let position = ctx.queue.flow_next(key, self.flow, self.position)?;
        Some(Reverse(Self { rank: rank(ctx, self.flow, position.1), start, position, flow: self.flow }))
    }
}

/// Returns the charge for a call in a batch of this size, in nanoseconds: its part of the batch's
/// time, by weight where weights matter and by items otherwise, divided by the flow's weight.
pub(super) fn charged_work(cost: &CostModel, batch: BatchWork, call: &Call, fair_weight: u64) -> u64 {
    let time = cost.time(batch.items.max(1));
    let work = if cost.weights_matter() && batch.weight > 0 {
        let part = u128::from(time) * u128::from(call.weight.sum) / u128::from(batch.weight);
        u64::try_from(part).unwrap_or(u64::MAX)
    } else {
        time / u64::from(batch.items.max(1)) * u64::from(call.items)
    };
    work.div_ceil(fair_weight.max(1))
}

#[cfg(test)]
mod tests;
