//! Connection permits of a port, limited in total and per peer address.
//!
//! A connection that waits for its peer is idle; one that is answering is busy. At a limit, a new
//! connection evicts the one that has been idle the longest: of the same address if that address
//! has reached its share, otherwise of the address with the most connections. Idle and silent
//! connections therefore block neither probes nor calls, and an address cannot evict connections of
//! another one while it holds more itself.

mod serve;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

pub use serve::serve_router;

/// Limits on the connections of a port.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Maximum number of connections.
    pub total: usize,
    /// Maximum number of connections per address.
    pub per_peer: usize,
}

/// The connection permits of a port. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ConnectionLimiter(Arc<LimiterInner>);

/// The permit of one connection, released when dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    shared: Arc<LimiterInner>,
    id: u64,
    /// Notified when the connection is evicted.
    leave: Arc<Notify>,
}

/// Marks a connection as busy, and therefore not evictable, until it is dropped.
#[derive(Debug)]
pub struct ActiveRequest<'a>(&'a ConnectionPermit);

#[derive(Debug)]
struct LimiterInner {
    bounds: ConnectionLimits,
    held: Mutex<PermitTable>,
}

#[derive(Debug, Default)]
struct PermitTable {
    next: u64,
    /// Counter of transitions to idle, which orders the idle connections.
    turn: u64,
    slots: HashMap<u64, PermitState>,
    peers: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct PermitState {
    peer: IpAddr,
    /// Value of the counter when the connection became idle; `None` while it is busy.
    idle: Option<u64>,
    busy: usize,
    leave: Arc<Notify>,
}

// === impl ConnectionLimiter ===

impl ConnectionLimiter {
    /// Creates the permits of a port without connections. Limits of zero are raised to one.
    #[must_use]
    pub fn new(bounds: ConnectionLimits) -> Self {
        let bounds = ConnectionLimits { total: bounds.total.max(1), per_peer: bounds.per_peer.max(1) };
        Self(Arc::new(LimiterInner { bounds, held: Mutex::default() }))
    }

    /// Takes a permit for a connection of `peer`, evicting an idle connection if necessary. Returns
    /// `None` if all candidates for eviction are busy, or the address of the new connection holds
    /// more than the candidates' address.
    #[must_use]
    pub fn take(&self, peer: IpAddr) -> Option<ConnectionPermit> {
        // An IPv4 address counts as the same peer in its IPv6-mapped form.
        let peer = peer.to_canonical();
        let mut held = self.0.lock();
        if held.of_peer(peer) >= self.0.bounds.per_peer {
            held.evict(peer)?;
        } else if held.slots.len() >= self.0.bounds.total {
            held.evict_for(peer)?;
        }
        let id = held.next;
        held.next += 1;
        let leave = Arc::new(Notify::new());
        let idle = Some(held.next_turn());
        held.slots.insert(id, PermitState { peer, idle, busy: 0, leave: leave.clone() });
        *held.peers.entry(peer).or_default() += 1;
        Some(ConnectionPermit { shared: self.0.clone(), id, leave })
    }

    /// Returns the number of connections that hold a permit.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.lock().slots.len()
    }
}

// === impl ConnectionPermit ===

impl ConnectionPermit {
    /// Marks the connection as busy.
    #[must_use]
    pub fn mark_busy(&self) -> ActiveRequest<'_> {
        if let Some(slot) = self.shared.lock().slots.get_mut(&self.id) {
            slot.busy += 1;
            slot.idle = None;
        }
        ActiveRequest(self)
    }

    /// Resolves when the connection is evicted, or has been idle for at least `limit` and at most
    /// twice that.
    pub async fn wait_for_end(&self, limit: Duration) {
        tokio::select! {
            () = self.leave.notified() => {}
            () = self.idle_for(limit) => {}
        }
    }

    async fn idle_for(&self, limit: Duration) {
        let idle = || self.shared.lock().slots.get(&self.id).and_then(|slot| slot.idle);
        loop {
            let before = idle();
            sleep(limit).await;
            if before.is_some() && before == idle() {
                return;
            }
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.shared.lock().remove(self.id);
    }
}

// === impl ActiveRequest ===

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        let mut held = self.0.shared.lock();
        let turn = held.next_turn();
        if let Some(slot) = held.slots.get_mut(&self.0.id) {
            slot.busy = slot.busy.saturating_sub(1);
            if slot.busy == 0 {
                slot.idle = Some(turn);
            }
        }
    }
}

// === impl LimiterInner ===

impl LimiterInner {
    fn lock(&self) -> MutexGuard<'_, PermitTable> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl PermitTable ===

impl PermitTable {
    fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    fn of_peer(&self, peer: IpAddr) -> usize {
        self.peers.get(&peer).copied().unwrap_or(0)
    }

    /// Evicts the connection of an address that has been idle the longest.
    fn evict(&mut self, peer: IpAddr) -> Option<()> {
        let idle = self.slots.iter().filter(|(_, slot)| slot.peer == peer);
        let (_, id) = idle.filter_map(|(id, slot)| Some((slot.idle?, *id))).min()?;
        self.remove(id);
        Some(())
    }

    /// Evicts a connection of the address with the most connections, among the addresses that have
    /// an idle one; on a tie, of the address with the connection that has been idle the longest.
    /// Returns `None` if the address of the new connection holds more itself.
    fn evict_for(&mut self, newcomer: IpAddr) -> Option<()> {
        let idle = self.slots.values().filter_map(|slot| Some((slot.idle?, slot.peer)));
        let (_, peer) = idle.max_by_key(|(turn, peer)| (self.of_peer(*peer), Reverse(*turn)))?;
        if self.of_peer(peer) < self.of_peer(newcomer) {
            return None;
        }
        self.evict(peer)
    }

    fn remove(&mut self, id: u64) {
        let Some(slot) = self.slots.remove(&id) else { return };
        slot.leave.notify_one();
        if let Some(count) = self.peers.get_mut(&slot.peer) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&slot.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn peer(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn places(total: usize, per_peer: usize) -> ConnectionLimiter {
        ConnectionLimiter::new(ConnectionLimits { total, per_peer })
    }

    async fn has_left(place: &ConnectionPermit) -> bool {
        tokio::time::timeout(Duration::ZERO, place.wait_for_end(LONG)).await.is_ok()
    }

    #[tokio::test]
    async fn the_connection_idle_longest_makes_room() {
        let places = places(8, 2);
        let first = places.take(peer(1)).unwrap();
        let second = places.take(peer(1)).unwrap();
        drop(first.mark_busy());
        let third = places.take(peer(1)).unwrap();
        assert!(!has_left(&first).await && has_left(&second).await && !has_left(&third).await);
        let _busy = (first.mark_busy(), third.mark_busy());
        assert!(places.take(peer(1)).is_none(), "both answer");
        assert!(places.take(peer(2)).is_some(), "another address has places of its own");
    }

    #[tokio::test]
    async fn the_address_that_holds_most_permits_loses_one_to_a_new_address() {
        let places = places(6, 4);
        let many: Vec<ConnectionPermit> = (0..4).map(|_| places.take(peer(1)).unwrap()).collect();
        let few: Vec<ConnectionPermit> = (0..2).map(|_| places.take(peer(2)).unwrap()).collect();
        let newcomer = places.take(peer(3)).unwrap();
        let mut left = 0;
        for place in &many {
            left += usize::from(has_left(place).await);
        }
        assert_eq!(left, 1);
        assert!(!has_left(&few[0]).await && !has_left(&few[1]).await && !has_left(&newcomer).await);
        assert_eq!(places.count(), 6);
        drop(many);
        assert_eq!(places.count(), 3);
    }

    #[tokio::test]
    async fn a_connection_that_answers_does_not_time_out() {
        let places = places(1, 1);
        let place = places.take(peer(1)).unwrap();
        let busy = place.mark_busy();
        let moment = Duration::from_millis(1);
        assert!(tokio::time::timeout(10 * moment, place.wait_for_end(moment)).await.is_err());
        drop(busy);
        place.wait_for_end(moment).await;
        assert!(places.take("::ffff:10.0.0.1".parse().unwrap()).is_some(), "the idle one makes room");
    }
}
