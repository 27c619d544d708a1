//! Connection permits of a port, limited in total and per peer address.
//!
//! A connection with a request in progress is busy, otherwise it is idle. At a limit, a new
//! connection evicts the one that has been idle the longest: of the same address if that address
//! has reached its limit, otherwise of the address with the most connections. Connections that send
//! nothing therefore block neither kubelet probes nor calls, and an address cannot evict
//! connections of another one while it holds more itself.

pub mod host;
mod serve;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

pub use serve::{LocalAddress, serve_router};

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
    evicted: Arc<Notify>,
}

/// Marks a connection as busy, and therefore not evictable, until it is dropped.
#[derive(Debug)]
pub struct ActiveRequest<'a>(&'a ConnectionPermit);

#[derive(Debug)]
struct LimiterInner {
    limits: ConnectionLimits,
    table: Mutex<PermitTable>,
}

#[derive(Debug, Default)]
struct PermitTable {
    next_id: u64,
    /// Logical clock: the number of transitions to idle, which orders the idle connections.
    idle_clock: u64,
    /// The connections by id.
    connections: HashMap<u64, PermitState>,
    /// Number of connections by address.
    peers: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct PermitState {
    peer: IpAddr,
    /// Value of the idle clock when the connection became idle; `None` while it is busy.
    idle_since: Option<u64>,
    /// Number of requests in progress.
    busy: usize,
    evicted: Arc<Notify>,
}

// === impl ConnectionLimiter ===

impl ConnectionLimiter {
    /// Creates the permits of a port without connections. Limits of zero are raised to one.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Self {
        let limits = ConnectionLimits { total: limits.total.max(1), per_peer: limits.per_peer.max(1) };
        Self(Arc::new(LimiterInner { limits, table: Mutex::default() }))
    }

    /// Takes a permit for a connection of `peer`, evicting an idle connection if necessary. Returns
    /// `None` if all candidates for eviction are busy, or the address of the new connection holds
    /// more than the candidates' address.
    #[must_use]
    pub fn take(&self, peer: IpAddr) -> Option<ConnectionPermit> {
        // An IPv4 address counts as the same peer in its IPv6-mapped form.
        let peer = peer.to_canonical();
        let mut table = self.0.lock();
        if table.count_of(peer) >= self.0.limits.per_peer {
            table.evict_from(peer)?;
        } else if table.connections.len() >= self.0.limits.total {
            table.evict_for(peer)?;
        }
        let id = table.next_id;
        table.next_id += 1;
        let evicted = Arc::new(Notify::new());
        // A connection is idle until its first request.
        let idle_since = Some(table.advance_idle_clock());
        table.connections.insert(id, PermitState { peer, idle_since, busy: 0, evicted: evicted.clone() });
        *table.peers.entry(peer).or_default() += 1;
        Some(ConnectionPermit { shared: self.0.clone(), id, evicted })
    }

    /// Evicts the connection that would make room for one of `peer` at the limit. Returns `false`
    /// if there is none.
    #[must_use]
    pub fn make_room(&self, peer: IpAddr) -> bool {
        self.0.lock().evict_for(peer.to_canonical()).is_some()
    }

    /// Returns the number of connections that hold a permit.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.lock().connections.len()
    }
}

// === impl ConnectionPermit ===

impl ConnectionPermit {
    /// Marks the connection as busy.
    #[must_use]
    pub fn mark_busy(&self) -> ActiveRequest<'_> {
        if let Some(connection) = self.shared.lock().connections.get_mut(&self.id) {
            connection.busy += 1;
            connection.idle_since = None;
        }
        ActiveRequest(self)
    }

    /// Resolves when the connection is evicted, or has been idle for at least `limit` and at most
    /// twice that.
    pub async fn wait_for_end(&self, limit: Duration) {
        tokio::select! {
            () = self.evicted.notified() => {}
            () = self.idle_for(limit) => {}
        }
    }

    /// Resolves once the connection has stayed idle for a whole period of `limit`. The periods
    /// follow each other, so that requests need not reset a timer.
    async fn idle_for(&self, limit: Duration) {
        let idle_since = || self.shared.lock().connections.get(&self.id).and_then(|connection| connection.idle_since);
        loop {
            let before = idle_since();
            sleep(limit).await;
            if before.is_some() && before == idle_since() {
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
        let mut table = self.0.shared.lock();
        let now = table.advance_idle_clock();
        if let Some(connection) = table.connections.get_mut(&self.0.id) {
            connection.busy = connection.busy.saturating_sub(1);
            if connection.busy == 0 {
                connection.idle_since = Some(now);
            }
        }
    }
}

// === impl LimiterInner ===

impl LimiterInner {
    fn lock(&self) -> MutexGuard<'_, PermitTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl PermitTable ===

impl PermitTable {
    fn advance_idle_clock(&mut self) -> u64 {
        self.idle_clock += 1;
        self.idle_clock
    }

    fn count_of(&self, peer: IpAddr) -> usize {
        self.peers.get(&peer).copied().unwrap_or(0)
    }

    /// Evicts that connection of an address that has been idle the longest. Returns `None` if all
    /// of them are busy.
    fn evict_from(&mut self, peer: IpAddr) -> Option<()> {
        let own = self.connections.iter().filter(|(_, connection)| connection.peer == peer);
        let (_, id) = own.filter_map(|(id, connection)| Some((connection.idle_since?, *id))).min()?;
        self.remove(id);
        Some(())
    }

    /// Evicts a connection of the address with the most connections, among the addresses that have
    /// an idle one; on a tie, of the address with the connection that has been idle the longest.
    /// Returns `None` if the address of the new connection holds more itself.
    fn evict_for(&mut self, newcomer: IpAddr) -> Option<()> {
        let idle = self.connections.values().filter_map(|connection| Some((connection.idle_since?, connection.peer)));
        let (_, peer) = idle.max_by_key(|(since, peer)| (self.count_of(*peer), Reverse(*since)))?;
        if self.count_of(peer) < self.count_of(newcomer) {
            return None;
        }
        self.evict_from(peer)
    }

    fn remove(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        connection.evicted.notify_one();
        if let Some(count) = self.peers.get_mut(&connection.peer) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&connection.peer);
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

    fn limiter(total: usize, per_peer: usize) -> ConnectionLimiter {
        ConnectionLimiter::new(ConnectionLimits { total, per_peer })
    }

    async fn is_evicted(permit: &ConnectionPermit) -> bool {
        tokio::time::timeout(Duration::ZERO, permit.wait_for_end(LONG)).await.is_ok()
    }

    #[tokio::test]
    async fn the_connection_idle_longest_makes_room() {
        let limiter = limiter(8, 2);
        let first = limiter.take(peer(1)).unwrap();
        let second = limiter.take(peer(1)).unwrap();
        drop(first.mark_busy());
        let third = limiter.take(peer(1)).unwrap();
        assert!(!is_evicted(&first).await && is_evicted(&second).await && !is_evicted(&third).await);
        let _busy = (first.mark_busy(), third.mark_busy());
        assert!(limiter.take(peer(1)).is_none(), "both answer");
        assert!(limiter.take(peer(2)).is_some(), "another address has permits of its own");
    }

    #[tokio::test]
    async fn the_address_that_holds_most_permits_loses_one_to_a_new_address() {
        let limiter = limiter(6, 4);
        let many: Vec<ConnectionPermit> = (0..4).map(|_| limiter.take(peer(1)).unwrap()).collect();
        let few: Vec<ConnectionPermit> = (0..2).map(|_| limiter.take(peer(2)).unwrap()).collect();
        let newcomer = limiter.take(peer(3)).unwrap();
        let mut evicted = 0;
        for permit in &many {
            evicted += usize::from(is_evicted(permit).await);
        }
        assert_eq!(evicted, 1);
        assert!(!is_evicted(&few[0]).await && !is_evicted(&few[1]).await && !is_evicted(&newcomer).await);
        assert_eq!(limiter.count(), 6);
        drop(many);
        assert_eq!(limiter.count(), 3);
    }

    #[tokio::test]
    async fn a_connection_that_answers_does_not_time_out() {
        let limiter = limiter(1, 1);
        let permit = limiter.take(peer(1)).unwrap();
        let busy = permit.mark_busy();
        let moment = Duration::from_millis(1);
        assert!(tokio::time::timeout(10 * moment, permit.wait_for_end(moment)).await.is_err());
        drop(busy);
        permit.wait_for_end(moment).await;
        assert!(limiter.take("::ffff:10.0.0.1".parse().unwrap()).is_some(), "the idle one makes room");
    }
}
