//! Limits the memory of request bodies, in total and per peer address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;

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
    held: Mutex<BodyUsage>,
}

#[derive(Debug, Default)]
struct BodyUsage {
    total: usize,
    peers: HashMap<IpAddr, usize>,
}

/// The share of one body in the budget, returned when dropped.
#[derive(Debug)]
pub(super) struct BodyShare<'a> {
    budget: &'a BodyBudget,
    peer: IpAddr,
    bytes: usize,
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
        let mut share = BodyShare { budget: self, peer: peer.to_canonical(), bytes: 0 };
        let mut read = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| BodyRefusal::Broken)?.into_data() else { continue };
            if read.len() + data.len() > max {
                return Err(BodyRefusal::TooLarge);
            }
            share.grow(data.len())?;
            read.extend_from_slice(&data);
        }
        Ok((read.freeze(), share))
    }

    fn lock(&self) -> MutexGuard<'_, BodyUsage> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl BodyShare ===

impl BodyShare<'_> {
    fn grow(&mut self, bytes: usize) -> Result<(), BodyRefusal> {
        let mut held = self.budget.lock();
        let own = held.peers.get(&self.peer).copied().unwrap_or(0);
        if held.total + bytes > self.budget.bounds.total || own + bytes > self.budget.bounds.per_peer {
            return Err(BodyRefusal::Full);
        }
        held.total += bytes;
        held.peers.insert(self.peer, own + bytes);
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for BodyShare<'_> {
    fn drop(&mut self) {
        let mut held = self.budget.lock();
        held.total -= self.bytes;
        let left = held.peers.get(&self.peer).map_or(0, |own| own - self.bytes);
        if left == 0 {
            held.peers.remove(&self.peer);
        } else {
            held.peers.insert(self.peer, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_limited_to_its_share_and_releases_it() {
        let budget = BodyBudget::new(BodyBounds { total: 10, per_peer: 6 });
        let share = |number: u8| BodyShare { budget: &budget, peer: IpAddr::from([10, 0, 0, number]), bytes: 0 };
        let (mut one, mut more, mut other) = (share(1), share(1), share(2));
        assert_eq!(one.grow(4), Ok(()));
        assert_eq!(more.grow(3), Err(BodyRefusal::Full), "the address has its share");
        assert_eq!(other.grow(6), Ok(()));
        assert_eq!(more.grow(1), Err(BodyRefusal::Full), "all bytes are held");
        drop((one, other));
        assert_eq!(more.grow(6), Ok(()));
        drop(more);
        let held = budget.lock();
        assert_eq!((held.total, held.peers.len()), (0, 0));
    }
}
