//! The queue of accepted calls that are not yet dispatched, with one sub-queue per merge key.
//!
//! The calls themselves are stored in `calls`. The queue of a key is a sorted deque of ids in the
//! order that the policy requires (`order`), with ties by arrival. Once the queue has reached its
//! usual length, calls are added and removed without an allocation.

mod call_map;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::call::{Call, CallId, CostClassId, FairFlow, KeyId, PriorityId, ScopeId, TenantId};
use super::limits::Limits;
use super::sorted_deque::SortedDeque;
use super::tick::Tick;
use call_map::CallMap;

/// Maximum number of cost classes with a counter that is kept while none of their calls is queued:
/// the number of cost curves.
const CLASSES_MAX: usize = 64;
/// Maximum number of empty deques kept for reuse, so that short key queues are created and dropped
/// without an allocation.
const SPARE_MAX: usize = 16;

/// A queued call.
#[derive(Debug, Clone)]
pub(super) struct QueuedCall {
    pub(super) call: Call,
    pub(super) arrived: Tick,
    /// Sort key in the queue of its merge key; ties are broken by arrival.
    pub(super) order: Tick,
    /// Total time for which a slot had been free when the call arrived.
    pub(super) free_before: Duration,
}

/// Items, weight and bytes of a set of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) items: u64,
    pub(super) weight: u64,
    pub(super) bytes: u64,
}

/// The queue of one merge key.
#[derive(Debug, Clone, Default)]
struct KeyQueue {
    ids: SortedDeque<(Tick, CallId)>,
    held: Load,
}

/// The calls of one flow in the queue of a merge key, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct FlowQueue {
    pub(super) calls: SortedDeque<(Tick, CallId)>,
    pub(super) items: u64,
}

/// The queue of all calls, with its indexes.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue {
    calls: CallMap<QueuedCall>,
    key_queues: BTreeMap<KeyId, KeyQueue>,
    /// The first call of each key queue, which orders the keys.
    heads: SortedDeque<(Tick, CallId, KeyId)>,
    deadlines: SortedDeque<(Tick, CallId)>,
    held: Load,
    scopes: BTreeMap<ScopeId, Load>,
    /// Items by cost class. Classes without items are kept, so that their calls are added and
    /// removed without an allocation.
    classes: BTreeMap<CostClassId, u64>,
    flows: BTreeMap<FairFlow, Load>,
    /// Number of tenants with queued calls.
    tenants: usize,
    by_flow: BTreeMap<(KeyId, FairFlow), FlowQueue>,
    /// Empty deques for reuse.
    spare: Vec<SortedDeque<(Tick, CallId)>>,
}

// === impl Load ===

impl Load {
    /// Returns the sum of both.
    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            items: self.items + other.items,
            weight: self.weight.saturating_add(other.weight),
            bytes: self.bytes + other.bytes,
        }
    }

    /// Returns what is left without another load.
    pub(super) const fn without(self, other: Self) -> Self {
        Self {
            items: self.items.saturating_sub(other.items),
            weight: self.weight.saturating_sub(other.weight),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    fn add(&mut self, call: &Call) {
        self.items += u64::from(call.items);
        self.weight = self.weight.saturating_add(call.weight.sum);
        self.bytes += call.bytes;
    }

    fn sub(&mut self, call: &Call) {
        self.items -= u64::from(call.items);
        self.weight = self.weight.saturating_sub(call.weight.sum);
        self.bytes -= call.bytes;
    }
}

// === impl Queue ===

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn held(&self) -> Load {
        self.held
    }

    pub(super) fn held_by_scope(&self, scope: ScopeId) -> Load {
        self.scopes.get(&scope).copied().unwrap_or_default()
    }

    pub(super) fn held_by_class(&self, class: CostClassId) -> u64 {
        self.classes.get(&class).copied().unwrap_or(0)
    }

    pub(super) fn held_by_tenant(&self, tenant: TenantId) -> u64 {
        self.flows.range(flows_of(tenant)).map(|(_, held)| held.items).sum()
    }

    pub(super) fn held_by_priority(&self, priority: PriorityId) -> Load {
        let own = self.flows.iter().filter(|(flow, _)| flow.priority == priority);
        own.fold(Load::default(), |sum, (_, held)| sum.and(*held))
    }

    pub(super) fn flows(&self) -> usize {
        self.flows.len()
    }

    pub(super) fn held_by_flow(&self, flow: FairFlow) -> u64 {
        self.flows.get(&flow).map_or(0, |held| held.items)
    }

    /// Iterates over the flows with their items, weight and bytes.
    pub(super) fn flow_loads(&self) -> impl Iterator<Item = (FairFlow, Load)> {
        self.flows.iter().map(|(flow, held)| (*flow, *held))
    }

    /// Returns the arrival time of the oldest queued call, if any.
    pub(super) fn oldest(&self) -> Option<Tick> {
        self.calls.first().map(|queued| queued.arrived)
    }

    /// Iterates over the calls, the last arrival first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = &QueuedCall> {
        self.calls.values_rev()
    }

    /// Returns `true` if a tenant other than this one has queued calls.
    pub(super) fn has_others(&self, tenant: TenantId) -> bool {
        self.tenants > usize::from(self.flows.range(flows_of(tenant)).next().is_some())
    }

    pub(super) fn push(&mut self, now: Tick, free_before: Duration, order: Tick, call: Call) {
        self.insert(QueuedCall { call, arrived: now, order, free_before });
    }

    /// Inserts a call at its place in the order.
    pub(super) fn insert(&mut self, queued: QueuedCall) {
        let (call, order) = (&queued.call, queued.order);
        let (id, key) = (call.id, call.key);
        self.held.add(call);
        self.scopes.entry(call.scope).or_default().add(call);
        if self.classes.len() >= CLASSES_MAX && !self.classes.contains_key(&call.cost_class) {
            self.classes.retain(|_, items| *items > 0);
        }
        *self.classes.entry(call.cost_class).or_default() += u64::from(call.items);
        let flow = call.flow();
        if !self.flows.contains_key(&flow) && self.flows.range(flows_of(flow.tenant)).next().is_none() {
            self.tenants += 1;
        }
        self.flows.entry(flow).or_default().add(call);
        if let Some(deadline) = call.deadline {
            self.deadlines.insert((deadline.at, id), ());
        }
        let fresh = || FlowQueue { calls: self.spare.pop().unwrap_or_default(), items: 0 };
        let own = self.by_flow.entry((key, flow)).or_insert_with(fresh);
        own.items += u64::from(call.items);
        own.calls.insert((order, id), ());
        let fresh = || KeyQueue { ids: self.spare.pop().unwrap_or_default(), held: Load::default() };
        let key_queue = self.key_queues.entry(key).or_insert_with(fresh);
        let place = (order, id);
        let head = key_queue.ids.first();
        // A new first call moves its key in `heads`.
        if head.is_none_or(|head| place < head) {
            if let Some((order, id)) = head {
                self.heads.remove((order, id, key));
            }
            self.heads.insert((order, id, key), ());
        }
        key_queue.ids.insert(place, ());
        key_queue.held.add(call);
        self.calls.insert(id, queued);
    }

    /// Removes a call, wherever it is in the order.
    pub(super) fn remove(&mut self, id: CallId) -> Option<QueuedCall> {
        let queued = self.calls.remove(id)?;
        let call = &queued.call;
        self.held.sub(call);
        if let Some(held) = self.scopes.get_mut(&call.scope) {
            held.sub(call);
            if held.items == 0 {
                self.scopes.remove(&call.scope);
            }
        }
        if let Some(items) = self.classes.get_mut(&call.cost_class) {
            *items -= u64::from(call.items);
        }
        let flow = call.flow();
        if let Some(held) = self.flows.get_mut(&flow) {
            held.sub(call);
            if held.items == 0 {
                self.flows.remove(&flow);
                self.tenants -= usize::from(self.flows.range(flows_of(flow.tenant)).next().is_none());
            }
        }
        if let Some(deadline) = call.deadline {
            self.deadlines.remove((deadline.at, id));
        }
        if let Some(own) = self.by_flow.get_mut(&(call.key, flow)) {
            own.items -= u64::from(call.items);
            own.calls.remove((queued.order, id));
            if own.calls.is_empty() {
                let row = self.by_flow.remove(&(call.key, flow)).map(|own| own.calls);
                recycle(&mut self.spare, row);
            }
        }
        self.remove_from_key_queue(call, queued.order);
        Some(queued)
    }

    /// Drops the deadline of a call. It stays queued until its later deadline, if it has one.
    pub(super) fn give_up_deadline(&mut self, id: CallId, limits: &Limits) {
        let Some(mut queued) = self.remove(id) else { return };
        queued.call.deadline = queued.call.fallback_deadline.take();
        queued.order = limits.order_key(queued.arrived, &queued.call);
        self.insert(queued);
    }

    /// Sorts all calls again, by the order and the length buckets of other limits.
    pub(super) fn reorder(&mut self, limits: &Limits) {
        for mut queued in std::mem::take(self).calls.into_values() {
            queued.call.key = limits.bucketed_key(&queued.call);
            queued.order = limits.order_key(queued.arrived, &queued.call);
            self.insert(queued);
        }
    }

    /// Returns the call with the earliest deadline.
    pub(super) fn first_deadline(&self) -> Option<(Tick, CallId)> {
        self.deadlines.first()
    }

    pub(super) fn get(&self, id: CallId) -> Option<&QueuedCall> {
        self.calls.get(id)
    }

    /// Iterates over the merge keys and their first calls, in the order of these calls.
    pub(super) fn heads(&self) -> impl Iterator<Item = (KeyId, &QueuedCall)> {
        self.heads.keys().filter_map(|(_, id, key)| self.calls.get(id).map(|queued| (key, queued)))
    }

    /// Iterates over the calls of a merge key, in order.
    pub(super) fn calls_of(&self, key: KeyId) -> impl Iterator<Item = &QueuedCall> {
        self.key_queues
            .get(&key)
            .into_iter()
            .flat_map(|queue| queue.ids.keys())
            .filter_map(|(_, id)| self.calls.get(id))
    }

    /// Returns the first call of a merge key.
    pub(super) fn head(&self, key: KeyId) -> Option<&QueuedCall> {
        self.calls_of(key).next()
    }

    /// Iterates over the flows of a merge key and their calls.
    pub(super) fn flow_queues(&self, key: KeyId) -> impl Iterator<Item = (FairFlow, &FlowQueue)> {
        let first = FairFlow { tenant: TenantId(0), priority: PriorityId(0) };
        let last = FairFlow { tenant: TenantId(u64::MAX), priority: PriorityId(u8::MAX) };
        self.by_flow.range((key, first)..=(key, last)).map(|((_, flow), flow_queue)| (*flow, flow_queue))
    }

    /// Returns `true` if the calls of a merge key belong to more than one flow.
    pub(super) fn is_mixed(&self, key: KeyId) -> bool {
        self.flows.len() > 1 && self.flow_queues(key).nth(1).is_some()
    }

    /// Returns the call of a flow that follows this one in the queue of a merge key.
    pub(super) fn flow_next(&self, key: KeyId, flow: FairFlow, after: (Tick, CallId)) -> Option<(Tick, CallId)> {
        self.by_flow.get(&(key, flow))?.calls.after(after)
    }

    /// Returns the items, weight and bytes of a merge key.
    pub(super) fn load_of_key(&self, key: KeyId) -> Load {
        self.key_queues.get(&key).map(|queue| queue.held).unwrap_or_default()
    }

    /// Returns the arrival time of the last call in the queue of a merge key.
    pub(super) fn newest(&self, key: KeyId) -> Option<Tick> {
        let key_queue = self.key_queues.get(&key)?;
        key_queue.ids.keys().rev().find_map(|(_, id)| self.calls.get(id)).map(|queued| queued.arrived)
    }

    /// Returns the earliest deadline in the queue of a merge key that a hold must respect. Only the
    /// calls that could be in the next batch are examined.
    pub(super) fn earliest_deadline(&self, key: KeyId, within: usize) -> Option<Tick> {
        self.calls_of(key).take(within).filter_map(|queued| queued.call.deadline).map(|deadline| deadline.at).min()
    }

    fn remove_from_key_queue(&mut self, call: &Call, order: Tick) {
        let Some(key_queue) = self.key_queues.get_mut(&call.key) else { return };
        key_queue.held.sub(call);
        let was_head = key_queue.ids.first() == Some((order, call.id));
        key_queue.ids.remove((order, call.id));
        if was_head {
            self.heads.remove((order, call.id, call.key));
        }
        let Some((order, id)) = key_queue.ids.first() else {
            let emptied = self.key_queues.remove(&call.key);
            recycle(&mut self.spare, emptied.map(|key_queue| key_queue.ids));
            return;
        };
        if was_head {
            self.heads.insert((order, id, call.key), ());
        }
    }
}

/// Keeps an empty deque for reuse, unless there are enough.
fn recycle(spare: &mut Vec<SortedDeque<(Tick, CallId)>>, row: Option<SortedDeque<(Tick, CallId)>>) {
    if let Some(row) = row
        && spare.len() < SPARE_MAX
    {
        spare.push(row);
    }
}

/// Returns the range of all possible flows of a tenant.
fn flows_of(tenant: TenantId) -> RangeInclusive<FairFlow> {
    FairFlow { tenant, priority: PriorityId(0) }..=FairFlow { tenant, priority: PriorityId(u8::MAX) }
}

#[cfg(test)]
mod tests;
