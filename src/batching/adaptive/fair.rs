//! Whose turn it is while several tenants are queued: start-time fair queueing over work (`scheduling.md` §2.5).
//!
//! Every tenant has a clock of virtual time, which moves by the work that is done for it; the one whose clock shows least is served next, by its most
//! urgent call. Idleness earns no credit, and whoever is alone gets everything. It decides at dispatch, not at arrival, so within a tenant the order
//! stays by deadline whatever came between.
//!
//! What it leaves out: shares of the queue (`batcher`), and weights of classes and tenants.

use std::collections::{BTreeMap, BTreeSet};

use super::super::call::{CallId, TenantId};
use super::super::cost::Cost;
use super::Line;

/// Clocks kept. Beyond it those that show no more than virtual time are dropped, which loses nothing, and then the earliest.
const CLOCKS_MAX: usize = 1024;
/// Tenants and calls looked at for one batch.
const TENANTS_MAX: usize = 1024;
const LOOK_MAX: usize = 1024;

/// The clocks.
#[derive(Debug, Clone, Default)]
pub(super) struct Clocks {
    /// Nanoseconds of work; a tenant that is not there shows `now`.
    shown: BTreeMap<TenantId, u64>,
    /// Virtual time: the latest start that was served.
    now: u64,
}

// === impl Clocks ===

impl Clocks {
    /// Nobody owes anybody anything.
    pub(super) fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// When the next call of a tenant starts, in virtual time.
    pub(super) fn start(&self, tenant: TenantId) -> u64 {
        self.shown.get(&tenant).copied().unwrap_or(0).max(self.now)
    }

    /// Work was done for a tenant. `alone`: nobody else was queued, so it owes nobody anything.
    pub(super) fn charge(&mut self, tenant: TenantId, work: u64, alone: bool) {
        let start = self.start(tenant);
        self.now = self.now.max(start);
        if alone {
            self.shown.remove(&tenant);
            return;
        }
        self.shown.insert(tenant, start.saturating_add(work));
        if self.shown.len() > CLOCKS_MAX {
            let now = self.now;
            self.shown.retain(|_, shown| *shown > now);
            if self.shown.len() > CLOCKS_MAX
                && let Some(earliest) = self.shown.iter().min_by_key(|(_, shown)| **shown).map(|(tenant, _)| *tenant)
            {
                self.shown.remove(&earliest);
            }
        }
    }
}

/// The calls to send together: up to `want` items, tenants in turn; those that would be late in such a batch are left out.
pub(super) fn choose(line: &Line<'_>, cost: &Cost, clocks: &Clocks, want: u32) -> Vec<CallId> {
    let queue = line.ctx.queue;
    let time = cost.time(want);
    let needs =
        if cost.samples() == 0 || line.infeasible(cost) { 0 } else { line.wait.saturating_add(cost.late(time)) };
    let mut waiting: BTreeMap<TenantId, _> = queue.tenant_lines(line.key).take(TENANTS_MAX).collect();
    let mut turns: BTreeSet<(u64, TenantId)> = waiting.keys().map(|tenant| (clocks.start(*tenant), *tenant)).collect();
    let (mut chosen, mut items) = (Vec::new(), 0_u32);
    for _ in 0..LOOK_MAX {
        let Some((start, tenant)) = turns.pop_first() else { break };
        let next = waiting.get_mut(&tenant).and_then(Iterator::next).and_then(|id| queue.get(id));
        let Some(queued) = next else { continue };
        let own = queued.call.items;
        if line.slack(queued) < needs {
            turns.insert((start, tenant));
            continue;
        }
        if queued.call.alone || items.saturating_add(own) > want && !chosen.is_empty() {
            if chosen.is_empty() {
                chosen.push(queued.call.id);
            }
            break;
        }
        chosen.push(queued.call.id);
        items = items.saturating_add(own);
        turns.insert((start.saturating_add(work(cost, want, own)), tenant));
        if items >= want {
            break;
        }
    }
    if chosen.is_empty() {
        chosen.push(line.head.call.id);
    }
    chosen
}

/// What so many items of a batch of `batch` are charged, in nanoseconds.
pub(super) fn work(cost: &Cost, batch: u32, items: u32) -> u64 {
    cost.time(batch.max(1)) / u64::from(batch.max(1)) * u64::from(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idleness_earns_nothing_and_who_is_alone_owes_nothing() {
        let mut clocks = Clocks::default();
        let (busy, fresh) = (TenantId(1), TenantId(2));
        for _ in 0..10 {
            clocks.charge(busy, 100, false);
        }
        assert_eq!((clocks.start(busy), clocks.start(fresh)), (1000, 900));
        clocks.charge(busy, 100, true);
        assert_eq!((clocks.start(busy), clocks.start(fresh)), (1000, 1000));
    }

    #[test]
    fn clocks_are_bounded() {
        let mut clocks = Clocks::default();
        for tenant in 0..10_000 {
            clocks.charge(TenantId(tenant), 1 + tenant % 7, false);
        }
        assert!(clocks.shown.len() <= CLOCKS_MAX);
    }
}
