//! Records of the most recent calls of each client, and of what happened to their items.
//!
//! The mock and the clients of a run share them. A client has one call in flight, so a short ring
//! buffer for each client suffices for any number of items. A nonce that arrives after the ring has
//! wrapped is counted as stale.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::nonce::{ITEMS_MAX, LedgerItem};

/// Number of calls of each client that are kept.
const CALLS_KEPT: usize = 16;

/// The records of one run.
#[derive(Debug)]
pub(super) struct ItemRecords {
    clients: Box<[Mutex<CallRing>]>,
    /// Set if the proxy may send a call in parts: runs of its items.
    divides: bool,
    /// Violations, and related events that may explain them.
    pub(super) counts: ArrivalCounts,
}

/// Counters of what arrives upstream.
#[derive(Debug, Default)]
pub(super) struct ArrivalCounts {
    /// Items sent upstream more often than isolation explains.
    pub(super) replayed_too_often: AtomicU64,
    /// Items sent upstream after their client had received its 200.
    pub(super) after_answer: AtomicU64,
    /// Items that arrived after their call had ended without a 200, for example because it was
    /// cancelled or timed out meanwhile.
    pub(super) arrived_after_end: AtomicU64,
    /// Items of calls that are no longer in the ring, or never existed.
    pub(super) unknown_calls: AtomicU64,
    /// Upstream calls with items of several tenants or forms.
    pub(super) mixed_tenants: AtomicU64,
    /// Items that are not genuine items of this run.
    pub(super) corrupt: AtomicU64,
    /// Upstream calls with items out of order, or with a part of a client's call although the proxy
    /// may divide none.
    pub(super) partial_calls: AtomicU64,
    /// Number of upstream calls that arrived.
    pub(super) calls: AtomicU64,
    /// Number of items that arrived, including repeated ones.
    pub(super) items: AtomicU64,
    /// Largest number of items in one upstream call.
    pub(super) items_max: AtomicU64,
}

/// The most recent calls of one client. Call `n` is in entry `n % CALLS_KEPT`.
#[derive(Debug, Clone, Copy, Default)]
struct CallRing {
    calls: [CallRecord; CALLS_KEPT],
}

#[derive(Debug, Clone, Copy, Default)]
struct CallRecord {
    /// Number of the call plus one, or 0 for an unused entry.
    call: u64,
    items: usize,
    state: CallState,
    /// `true` if an upstream call with items of other client calls contained it.
    shared: bool,
    /// Maximum number of times that each item may arrive, derived from the largest upstream call
    /// that contained it.
    allowed: u32,
    /// Number of times that each item arrived.
    sent: [u32; ITEMS_MAX],
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum CallState {
    #[default]
    Open,
    /// Ended with the correct 200 response.
    Answered,
    /// Ended in another way.
    Ended,
}

// === impl ItemRecords ===

impl ItemRecords {
    pub(super) fn new(clients: usize, divides: bool) -> Self {
        Self { clients: (0..clients).map(|_| Mutex::default()).collect(), divides, counts: ArrivalCounts::default() }
    }

    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Records that a client is about to make a call.
    pub(super) fn on_call_start(&self, client: usize, call: u64, items: usize) {
        if let Some(mut ring) = self.ring(client) {
            *ring.entry(call) = CallRecord { call: call + 1, items, ..CallRecord::default() };
        }
    }

    /// Records the end of a client's call. Returns whether its items were ever part of a shared
    /// upstream call, and whether they arrived upstream at all.
    pub(super) fn on_call_end(&self, client: usize, call: u64, answered: bool) -> (bool, bool) {
        let Some(mut ring) = self.ring(client) else { return (false, false) };
        let entry = ring.entry(call);
        entry.state = if answered { CallState::Answered } else { CallState::Ended };
        (entry.shared, entry.sent.iter().any(|&sent| sent > 0))
    }

    /// Records the arrival of an upstream call with these items. Returns the number of client calls
    /// that it contains.
    pub(super) fn on_arrival(&self, items: &[LedgerItem]) -> usize {
        let call_of = |item: &LedgerItem| (item.client, item.call);
        let members = items.chunk_by(|a, b| call_of(a) == call_of(b)).count();
        add(&self.counts.calls, 1);
        add(&self.counts.items, items.len());
        self.counts.items_max.fetch_max(items.len() as u64, Ordering::Relaxed);
        let mut is_partial = false;
        for call in items.chunk_by(|a, b| call_of(a) == call_of(b)) {
            is_partial |= !self.record_client_call(call, (members, items.len()));
        }
        add(&self.counts.partial_calls, usize::from(is_partial));
        members
    }

    /// Records the items of one client call. `members` and `batch_items` are the numbers of client
    /// calls and of items in the upstream call. Returns `true` if the items are consecutive, and
    /// are all items of the call unless calls may be divided.
    fn record_client_call(&self, items: &[LedgerItem], (members, batch_items): (usize, usize)) -> bool {
        let Some(first) = items.first() else { return true };
        let counts = &self.counts;
        let ring = self.ring(first.client);
        let Some(mut ring) = ring else {
            add(&counts.unknown_calls, items.len());
            return true;
        };
        let entry = ring.entry(first.call);
        if entry.call != first.call + 1 {
            add(&counts.unknown_calls, items.len());
            return true;
        }
        match entry.state {
            CallState::Open => {}
            CallState::Answered => add(&counts.after_answer, items.len()),
            CallState::Ended => add(&counts.arrived_after_end, items.len()),
        }
        entry.shared |= members > 1;
        // Each item of a divided call may be a part of its own, and a call whose responses cannot be
        // joined is sent again, whole.
        let allowed = if self.divides { 2 * sends_allowed(members.max(batch_items)) } else { sends_allowed(members) };
        entry.allowed = entry.allowed.max(allowed);
        for item in items {
            if let Some(sent) = entry.sent.get_mut(item.place) {
                *sent += 1;
                add(&counts.replayed_too_often, usize::from(*sent > entry.allowed));
            }
        }
        let is_consecutive = items.iter().enumerate().all(|(offset, item)| item.place == first.place + offset);
        is_consecutive && (self.divides || items.len() == entry.items)
    }

    fn ring(&self, client: usize) -> Option<MutexGuard<'_, CallRing>> {
        self.clients.get(client).map(|ring| ring.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl CallRing ===

impl CallRing {
    fn entry(&mut self, call: u64) -> &mut CallRecord {
        let place = usize::try_from(call % CALLS_KEPT as u64).unwrap_or_default();
        &mut self.calls[place]
    }
}

/// Returns the maximum number of times that an item may be sent upstream: twice, or 1 + ⌈log2 N⌉
/// times if that is more, which the bisection of a call of N members explains.
fn sends_allowed(members: usize) -> u32 {
    let halvings = members.next_power_of_two().trailing_zeros();
    (1 + halvings).max(2)
}

pub(super) fn add(count: &AtomicU64, n: usize) {
    if n > 0 {
        count.fetch_add(n as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::nonce::CallForm;
    use super::*;

    fn items(client: usize, call: u64, n: usize) -> Vec<LedgerItem> {
        let item = |place| LedgerItem { client, call, place, tenant: 0, form: CallForm::Generic, poison: false };
        (0..n).map(item).collect()
    }

    fn get(count: &AtomicU64) -> u64 {
        count.load(Ordering::Relaxed)
    }

    #[test]
    fn a_batch_of_several_calls_is_shared_and_one_call_is_not() {
        let records = ItemRecords::new(2, false);
        records.on_call_start(0, 0, 2);
        records.on_call_start(1, 0, 1);
        assert_eq!(records.on_arrival(&[items(0, 0, 2), items(1, 0, 1)].concat()), 2);
        assert_eq!(records.on_call_end(0, 0, true), (true, true));
        records.on_call_start(0, 1, 2);
        assert_eq!(records.on_arrival(&items(0, 1, 2)), 1);
        assert_eq!(records.on_call_end(0, 1, true), (false, true));
        assert_eq!(get(&records.counts.partial_calls), 0);
    }

    #[test]
    fn an_item_may_be_sent_twice_and_not_a_third_time() {
        let records = ItemRecords::new(1, false);
        records.on_call_start(0, 0, 1);
        for (sent, oversent) in [(1, 0), (2, 0), (3, 1)] {
            records.on_arrival(&items(0, 0, 1));
            assert_eq!(get(&records.counts.replayed_too_often), oversent, "sent {sent} times");
        }
    }

    #[test]
    fn a_member_of_a_batch_of_32_may_be_sent_six_times() {
        assert_eq!([1, 2, 3, 4, 5, 32].map(sends_allowed), [2, 2, 3, 3, 4, 6]);
    }

    #[test]
    fn an_arrival_after_the_answer_is_a_violation_and_after_a_cancellation_late() {
        let records = ItemRecords::new(1, false);
        records.on_call_start(0, 0, 1);
        records.on_call_end(0, 0, true);
        records.on_call_start(0, 1, 1);
        records.on_call_end(0, 1, false);
        records.on_arrival(&items(0, 0, 1));
        records.on_arrival(&items(0, 1, 1));
        records.on_arrival(&items(0, 2, 1));
        let counts = &records.counts;
        assert_eq!([&counts.after_answer, &counts.arrived_after_end, &counts.unknown_calls].map(get), [1, 1, 1]);
    }

    #[test]
    fn a_call_that_arrives_in_part_or_out_of_order_is_torn() {
        let records = ItemRecords::new(1, false);
        records.on_call_start(0, 0, 3);
        records.on_arrival(&items(0, 0, 2));
        records.on_arrival(&items(0, 0, 3).into_iter().rev().collect::<Vec<_>>());
        assert_eq!(get(&records.counts.partial_calls), 2);
    }

    #[test]
    fn a_part_of_a_divided_call_is_a_run_of_its_items() {
        let records = ItemRecords::new(1, true);
        records.on_call_start(0, 0, 3);
        records.on_arrival(&items(0, 0, 3)[1..]);
        assert_eq!(get(&records.counts.partial_calls), 0);
        records.on_arrival(&items(0, 0, 3));
        records.on_arrival(&items(0, 0, 3)[1..]);
        records.on_arrival(&items(0, 0, 3));
        assert_eq!(get(&records.counts.replayed_too_often), 0, "in parts, then whole");
        let [first, _, last] = items(0, 0, 3)[..] else { panic!("three items") };
        records.on_arrival(&[first, last]);
        assert_eq!(get(&records.counts.partial_calls), 1);
    }
}
