//! Limits the memory of request bodies, in total and per peer address.
//!
//! At a limit, the largest unfinished body makes room for a smaller one: of the same address if
//! that address has reached its limit, otherwise of the address that holds the most in unfinished
//! ones. Bodies that are sent slowly therefore refuse no review of an address that holds less.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::Notify;

/// Limits in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyBounds {
    pub(super) total: usize,
    pub(super) per_peer: usize,
}

/// A budget for bodies. It counts the bytes read, not the announced `Content-Length`.
#[derive(Debug)]
pub(super) struct BodyBudget {
    bounds: BodyBounds,
    held: Mutex<BodyTable>,
}

#[derive(Debug, Default)]
struct BodyTable {
    total: usize,
    next_id: u64,
    /// The bodies by id, which is the order of their arrival.
    bodies: HashMap<u64, BodyState>,
    /// Bytes of all bodies of an address.
    peers: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct BodyState {
    peer: IpAddr,
    bytes: usize,
    /// A complete body is under review and not evicted.
    is_complete: bool,
    /// Notified when the body is evicted.
    evicted: Arc<Notify>,
}

/// The share of one body in the budget, returned when dropped.
#[derive(Debug)]
pub(super) struct BodyShare<'a> {
    budget: &'a BodyBudget,
    id: u64,
    evicted: Arc<Notify>,
}

/// The reason for which a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyRefusal {
    /// The budget, or the peer address's share of it, is exhausted.
    Full,
    /// The body exceeds the maximum size.
    TooLarge,
    /// The peer aborted the body.
    Broken,
}

// === impl BodyBudget ===

impl BodyBudget {
    pub(super) fn new(bounds: BodyBounds) -> Self {
        Self { bounds, held: Mutex::default() }
    }

    /// Reads a body of at most `max` bytes.
    pub(super) async fn read(
        &self,
        mut body: Incoming,
        peer: IpAddr,
        max: usize,
    ) -> Result<(Bytes, BodyShare<'_>), BodyRefusal> {
        let share = self.share(peer);
        let mut read = BytesMut::new();
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = share.evicted.notified() => return Err(BodyRefusal::Full),
            };
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|_| BodyRefusal::Broken)?.into_data() else { continue };
            if read.len() + data.len() > max {
                return Err(BodyRefusal::TooLarge);
            }
            share.grow(data.len())?;
            read.extend_from_slice(&data);
        }
        share.complete()?;
        Ok((read.freeze(), share))
    }

    /// Adds a body without bytes.
    fn share(&self, peer: IpAddr) -> BodyShare<'_> {
        let mut held = self.lock();
        let (id, evicted) = (held.next_id, Arc::new(Notify::new()));
        held.next_id += 1;
        let body = BodyState { peer: peer.to_canonical(), bytes: 0, is_complete: false, evicted: evicted.clone() };
        held.bodies.insert(id, body);
        BodyShare { budget: self, id, evicted }
    }

    fn lock(&self) -> MutexGuard<'_, BodyTable> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl BodyShare ===

impl BodyShare<'_> {
    fn grow(&self, bytes: usize) -> Result<(), BodyRefusal> {
        let bounds = self.budget.bounds;
        let mut held = self.budget.lock();
        // The body was evicted.
        let body = held.bodies.get(&self.id).ok_or(BodyRefusal::Full)?;
        let (peer, size) = (body.peer, body.bytes + bytes);
        while held.bytes_of(peer) + bytes > bounds.per_peer {
            held.evict_from(peer, self.id, size)?;
        }
        while held.total + bytes > bounds.total {
            held.evict_for(peer, self.id, bytes)?;
        }
        held.bodies.get_mut(&self.id).ok_or(BodyRefusal::Full)?.bytes = size;
        held.total += bytes;
        *held.peers.entry(peer).or_default() += bytes;
        Ok(())
    }

    fn complete(&self) -> Result<(), BodyRefusal> {
        let mut held = self.budget.lock();
        held.bodies.get_mut(&self.id).ok_or(BodyRefusal::Full)?.is_complete = true;
        Ok(())
    }
}

impl Drop for BodyShare<'_> {
    fn drop(&mut self) {
        self.budget.lock().remove(self.id);
    }
}

// === impl BodyTable ===

impl BodyTable {
    fn bytes_of(&self, peer: IpAddr) -> usize {
        self.peers.get(&peer).copied().unwrap_or(0)
    }

    /// Evicts the largest unfinished body of an address, and the oldest of several, for the body
    /// `id` that will have `size` bytes.
    ///
    /// # Errors
    /// Returns `Full` if there is none that is larger.
    fn evict_from(&mut self, peer: IpAddr, id: u64, size: usize) -> Result<(), BodyRefusal> {
        let own = self.bodies.iter().filter(|(other, body)| body.peer == peer && **other != id && !body.is_complete);
        let largest = own.map(|(other, body)| (body.bytes, Reverse(*other))).max();
        let (_, Reverse(evicted)) = largest.filter(|(bytes, _)| *bytes > size).ok_or(BodyRefusal::Full)?;
        self.remove(evicted);
        Ok(())
    }

    /// Evicts a body of the address that holds the most bytes in unfinished ones.
    ///
    /// # Errors
    /// Returns `Full` if the address `peer` of the body `id` will hold as many in unfinished ones,
    /// with `bytes` more.
    fn evict_for(&mut self, peer: IpAddr, id: u64, bytes: usize) -> Result<(), BodyRefusal> {
        let mut peers = HashMap::<IpAddr, usize>::new();
        for body in self.bodies.values().filter(|body| !body.is_complete) {
            *peers.entry(body.peer).or_default() += body.bytes;
        }
        let own = peers.get(&peer).copied().unwrap_or(0);
        let (most, held) = peers.into_iter().max_by_key(|(_, held)| *held).ok_or(BodyRefusal::Full)?;
        if most == peer || held <= own + bytes {
            return Err(BodyRefusal::Full);
        }
        self.evict_from(most, id, 0)
    }

    fn remove(&mut self, id: u64) {
        let Some(body) = self.bodies.remove(&id) else { return };
        self.total -= body.bytes;
        let left = self.bytes_of(body.peer).saturating_sub(body.bytes);
        if left == 0 {
            self.peers.remove(&body.peer);
        } else {
            self.peers.insert(body.peer, left);
        }
        body.evicted.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(total: usize, per_peer: usize) -> BodyBudget {
        BodyBudget::new(BodyBounds { total, per_peer })
    }

    fn peer(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[test]
    fn an_address_is_limited_to_its_share_and_releases_it() {
        let budget = budget(10, 6);
        let (one, more, other) = (budget.share(peer(1)), budget.share(peer(1)), budget.share(peer(2)));
        assert_eq!(one.grow(3), Ok(()));
        assert_eq!(more.grow(4), Err(BodyRefusal::Full), "the address has its share");
        assert_eq!(other.grow(6), Ok(()));
        other.complete().unwrap();
        assert_eq!(more.grow(2), Err(BodyRefusal::Full), "all bytes are held");
        drop((one, other));
        assert_eq!(more.grow(6), Ok(()));
        drop(more);
        let held = budget.lock();
        assert_eq!((held.total, held.bodies.len(), held.peers.len()), (0, 0, 0));
    }

    #[test]
    fn the_largest_unfinished_body_of_an_address_makes_room_for_a_smaller_one() {
        let budget = budget(100, 10);
        let [large, small, complete] = [5, 1, 4].map(|bytes| {
            let share = budget.share(peer(1));
            share.grow(bytes).unwrap();
            share
        });
        complete.complete().unwrap();
        let newcomer = budget.share(peer(1));
        assert_eq!(newcomer.grow(4), Ok(()));
        assert_eq!(large.grow(1), Err(BodyRefusal::Full), "it is evicted");
        assert_eq!(large.complete(), Err(BodyRefusal::Full));
        assert_eq!(newcomer.grow(2), Err(BodyRefusal::Full), "none is larger, but a complete one");
        assert_eq!((small.grow(1), complete.complete()), (Ok(()), Ok(())));
        drop(large);
        assert_eq!(budget.lock().total, 10);
    }

    #[test]
    fn unfinished_bodies_of_many_addresses_refuse_no_other_address() {
        let budget = budget(40, 12);
        let slow: Vec<_> = (1..5).flat_map(|number| [budget.share(peer(number)), budget.share(peer(number))]).collect();
        for share in &slow {
            share.grow(5).unwrap();
        }
        for number in 5..=8 {
            let review = budget.share(peer(number));
            assert_eq!(review.grow(3), Ok(()));
            review.complete().unwrap();
        }
        assert_eq!(slow.iter().filter(|share| share.grow(0).is_err()).count(), 1, "others made room once");
        let equal = budget.share(peer(9));
        let refused = (0..12).find(|_| equal.grow(1).is_err());
        assert_eq!(refused, Some(10), "none takes the place of its equals");
    }

    #[tokio::test]
    async fn an_evicted_body_is_notified() {
        let budget = budget(10, 10);
        let slow = budget.share(peer(1));
        slow.grow(10).unwrap();
        budget.share(peer(2)).grow(1).unwrap();
        slow.evicted.notified().await;
    }
}
