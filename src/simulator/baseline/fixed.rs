//! Baselines that learn nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::batching::{KeyId, Tick};

use super::super::curve::CostCurve;
use super::super::proxy::SimProxy;
use super::{BaselineQueue, BaselineRule};

/// Time that a deferred batch leaves before the deadline of its head.
const DEFERRED_SPARE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct DirectForwarding;

#[derive(Debug)]
pub(super) struct FixedWindow {
    pub(super) items: u32,
    pub(super) delay: Duration,
}

#[derive(Debug)]
pub(super) struct FixedSize {
    pub(super) items: u32,
}

#[derive(Debug)]
pub(super) struct KServe {
    pub(super) items: u32,
    pub(super) delay: Duration,
    /// Instant at which the loop read the first call of the next batch.
    pub(super) read: Option<Tick>,
}

#[derive(Debug)]
pub(super) struct Greedy {
    pub(super) slots: u32,
    pub(super) items: u32,
    pub(super) delay: Duration,
    pub(super) expire: bool,
}

#[derive(Debug)]
pub(super) struct DeferredBatching {
    pub(super) curve: CostCurve,
    pub(super) items: u32,
}

#[derive(Debug)]
pub(super) struct SizeTable {
    pub(super) sizes: Arc<[u32]>,
}

// === impl DirectForwarding ===

impl BaselineRule for DirectForwarding {
    fn step(&mut self, queue: &mut BaselineQueue, proxy: &mut SimProxy) {
        while let Some(key) = queue.oldest_key() {
            queue.send(proxy, key, 1);
        }
    }
}

// === impl FixedWindow ===

impl FixedWindow {
    /// Sends the due batches of a key. Returns the instant at which the rest is due.
    fn flush(&self, queue: &mut BaselineQueue, proxy: &mut SimProxy, key: KeyId) -> Option<Tick> {
        while let Some(head) = queue.head(key) {
            let due = proxy.arrival(head).at.after(self.delay);
            if queue.items(key) < self.items && due > proxy.now() {
                return Some(due);
            }
            queue.send(proxy, key, self.items);
        }
        None
    }
}

impl BaselineRule for FixedWindow {
    fn step(&mut self, queue: &mut BaselineQueue, proxy: &mut SimProxy) {
        let wake = queue.keys().into_iter().filter_map(|key| self.flush(queue, proxy, key)).min();
        proxy.set_wakeup(wake);
    }
}

// === impl FixedSize ===

impl BaselineRule for FixedSize {
    fn step(&mut self, queue: &mut BaselineQueue, proxy: &mut SimProxy) {
        for key in queue.keys() {
            while queue.items(key) >= self.items {
                queue.send(proxy, key, self.items);
            }
        }
    }
}

// === impl KServe ===

impl BaselineRule for KServe {
    fn step(&mut self, queue: &mut BaselineQueue, proxy: &mut SimProxy) {
        let Some(key) = queue.oldest_key().filter(|_| queue.in_flight == 0) else { return };
        let read = *self.read.get_or_insert(proxy.now());
        let due = read.after(self.delay);
        if queue.items(key) >= self.items || proxy.now() >= due {
            self.read = None;
            queue.send(proxy, key, self.items);
        } else {
            proxy.set_wakeup(Some(due));
        }
    }
}

// === impl Greedy ===

impl BaselineRule for Greedy {
    fn step(&mut self, queue: &mut BaselineQueue, proxy: &mut SimProxy) {
        if self.expire {
            expire_heads(queue, proxy);
        }
        while queue.in_flight < self.slots {
            let Some(key) = queue.oldest_key() else { return };
            let due = queue.head(key).map_or(proxy.now(), |head| proxy.arrival(head).at.after(self.delay));
            if !self.delay.is_zero() && queue.items(key) < self.items && proxy.now() < due {
                proxy.set_wakeup(Some(due));
                return;
            }
            queue.send(proxy, key, self.items);
        }
    }
}

/// Expires late heads. The original does not look at the calls behind them.
fn expire_heads(queue: &mut BaselineQueue, proxy: &mut SimProxy) {
    for key in queue.keys() {
        while queue.head(key).is_some_and(|head| proxy.arrival(head).deadline() <= proxy.now()) {
            queue.expire_head(proxy, key);
        }
    }
}

// === impl DeferredBatching ===

impl DeferredBatching {
    fn time(&self, items: u32) -> Duration {
        Duration::from_secs_f64(self.curve.millis_of(items) / 1e3)
    }
}

impl BaselineRule for DeferredBatching {
    fn step(&mut self, queue: &mut BaselineQueue, proxy: &mut SimProxy) {
        while queue.in_flight == 0 {
            let Some((key, head)) = queue.oldest_key().and_then(|key| Some((key, queue.head(key)?))) else {
                return;
            };
            let last = proxy.arrival(head).deadline().before(DEFERRED_SPARE);
            let slack = last.since(proxy.now());
            if slack < self.time(1) {
                queue.expire_head(proxy, key);
                continue;
            }
            // The largest batch that still meets the deadline of the head.
            let queued = queue.items(key).min(self.items);
            let fitting = (1..=queued).rev().find(|items| self.time(*items) <= slack).unwrap_or(1);
            // If it holds the whole queue, wait for one more call as long as the larger batch would
            // still be in time.
            let with_one_more = last.before(self.time((fitting + 1).min(self.items)));
            if fitting == queue.items(key) && fitting < self.items && proxy.now() < with_one_more {
                proxy.set_wakeup(Some(with_one_more));
                return;
            }
            queue.send(proxy, key, fitting);
        }
    }
}

// === impl SizeTable ===

impl BaselineRule for SizeTable {
    fn step(&mut self, queue: &mut BaselineQueue, proxy: &mut SimProxy) {
        let Some(key) = queue.oldest_key().filter(|_| queue.in_flight == 0) else { return };
        let place = usize::try_from(queue.items(key)).unwrap_or(usize::MAX).min(self.sizes.len().saturating_sub(1));
        let size = self.sizes.get(place).copied().unwrap_or(0);
        if size > 0 {
            queue.send(proxy, key, size);
        }
    }
}
