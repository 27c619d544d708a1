//! Callers without an identity, distinguished by the addresses of their clients.
//!
//! They are one tenant, so that the calls of many clients are ordered by deadline and share batches
//! like those of one. If some addresses flood the queue, the calls of addresses with little load
//! would wait behind them, so these become another tenant, with a share of its own.

use std::collections::HashMap;
use std::net::IpAddr;

/// Number of queued items from which on there is a flood: the default size of a batch, so that the
/// next call waits for more than one.
const FLOOD_ITEMS: u64 = 128;
/// A client is light if it sent at most this fraction of the items of the client that sent the
/// average item. Replicas of one client differ by less.
const LIGHT_DIVISOR: u64 = 8;
/// Number of recent items. When there are twice as many, the counts are halved, so that they decay
/// exponentially, and clients without any are forgotten.
const RECENT_ITEMS: u64 = 4096;

/// The items of calls without an identity: those that are queued, and recent ones by client.
#[derive(Debug, Default)]
pub(super) struct AnonymousCallers {
    queued: u64,
    recent: HashMap<IpAddr, u64>,
    /// Sum of the recent items.
    sum: u64,
    /// Sum of the squares of the recent items of each client. Divided by the sum, it is the number
    /// of items of the client of an average item, which many clients with a few items do not lower.
    squares: u64,
}

// === impl AnonymousCallers ===

impl AnonymousCallers {
    /// Records a call that is queued. Returns `true` if its client is light beside a flood.
    pub(super) fn on_arrival(&mut self, client: IpAddr, items: u32) -> bool {
        let items = u64::from(items);
        let own = self.recent.entry(client).or_default();
        // The square of the new count less that of the old one.
        self.squares = self.squares.saturating_add(items.saturating_mul(2 * *own + items));
        *own += items;
        self.sum += items;
        let is_light = own.saturating_mul(LIGHT_DIVISOR).saturating_mul(self.sum) <= self.squares;
        let is_flood = self.queued >= FLOOD_ITEMS;
        self.queued += items;
        if self.sum > 2 * RECENT_ITEMS {
            self.decay();
        }
        is_flood && is_light
    }

    /// Records that a call has left the queue.
    pub(super) fn on_leave(&mut self, items: u32) {
        self.queued = self.queued.saturating_sub(u64::from(items));
    }

    fn decay(&mut self) {
        self.recent.retain(|_, items| {
            *items /= 2;
            *items > 0
        });
        self.sum = self.recent.values().sum();
        self.squares = self.recent.values().map(|items| items * items).fold(0, u64::saturating_add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    /// Queues calls of one item, and returns the number of those that were light.
    fn queue(callers: &mut AnonymousCallers, calls: usize, client: u8) -> usize {
        (0..calls).filter(|_| callers.on_arrival(address(client), 1)).count()
    }

    #[test]
    fn clients_with_similar_load_are_not_light_even_in_bursts() {
        let mut callers = AnonymousCallers::default();
        for client in 0..4 {
            queue(&mut callers, 200, client);
        }
        for _ in 0..20 {
            for client in 0..4 {
                callers.on_leave(200);
                assert_eq!(queue(&mut callers, 200, client), 0);
            }
        }
    }

    #[test]
    fn a_short_queue_is_no_flood() {
        let mut callers = AnonymousCallers::default();
        queue(&mut callers, 127, 1);
        assert_eq!(queue(&mut callers, 1, 2), 0);
    }

    #[test]
    fn many_clients_with_a_call_each_are_light_beside_a_flood_until_it_ends() {
        let mut callers = AnonymousCallers::default();
        assert!(!callers.on_arrival(address(0), 1000));
        for client in 1..=100 {
            assert_eq!(queue(&mut callers, 1, client), 1);
        }
        callers.on_leave(1000);
        callers.on_leave(100);
        assert_eq!(queue(&mut callers, 1, 1), 0);
    }

    #[test]
    fn counts_decay_and_idle_clients_are_forgotten() {
        let mut callers = AnonymousCallers::default();
        queue(&mut callers, 1, 1);
        queue(&mut callers, 20_000, 2);
        assert_eq!(callers.recent.len(), 1);
        assert!(callers.sum <= 2 * RECENT_ITEMS);
        assert_eq!(callers.squares, callers.sum * callers.sum);
    }
}
