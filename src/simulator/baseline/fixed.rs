//! Baselines that learn nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::batching::{KeyId, Tick};

use super::super::curve::CostCurve;
use super::super::proxy::SimProxy;
use super::{BaselineQueue, BaselineRule};

/// Time that a deferred batch leaves before the deadline of its head.
const DEFERRED_SPARE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct DirectForwarding {
    queue: BaselineQueue,
}

#[derive(Debug)]
pub(super) struct FixedWindow {
    queue: BaselineQueue,
    items: u32,
    delay: Duration,
}

#[derive(Debug)]
pub(super) struct FixedSize {
    queue: BaselineQueue,
    items: u32,
}

#[derive(Debug)]
pub(super) struct KServe {
    queue: BaselineQueue,
    items: u32,
    delay: Duration,
    /// Instant at which the loop read the first call of the next batch.
    read: Option<Tick>,
}

#[derive(Debug)]
pub(super) struct Greedy {
    queue: BaselineQueue,
    slots: u32,
    items: u32,
    delay: Duration,
    expire: bool,
}

#[derive(Debug)]
pub(super) struct DeferredBatching {
    queue: BaselineQueue,
    curve: CostCurve,
    items: u32,
}

#[derive(Debug)]
pub(super) struct SizeTable {
    queue: BaselineQueue,
    sizes: Arc<[u32]>,
}

// === impl DirectForwarding ===

impl BaselineRule for DirectForwarding {
    fn queue(&mut self) -> &mut BaselineQueue {
        &mut self.queue
    }

    fn step(&mut self, proxy: &mut SimProxy) {
        while let Some(key) = self.queue.oldest_key() {
            self.queue.send(proxy, key, 1);
        }
    }
}

// === impl FixedWindow ===

impl FixedWindow {
    pub(super) fn new(items: u32, delay: Duration) -> Self {
        Self { queue: BaselineQueue::default(), items, delay }
    }

    /// Sends the due batches of a key. Returns the instant at which the rest is due.
    fn flush(&mut self, proxy: &mut SimProxy, key: KeyId) -> Option<Tick> {
        while let Some(head) = self.queue.head(key) {
            let due = proxy.arrival(head).at.after(self.delay);
            if self.queue.items(key) < self.items && due > proxy.now() {
                return Some(due);
            }
            self.queue.send(proxy, key, self.items);
        }
        None
    }
}

impl BaselineRule for FixedWindow {
    fn queue(&mut self) -> &mut BaselineQueue {
        &mut self.queue
    }

    fn step(&mut self, proxy: &mut SimProxy) {
        let wake = self.queue.keys().into_iter().filter_map(|key| self.flush(proxy, key)).min();
        proxy.set_wakeup(wake);
    }
}

// === impl FixedSize ===

impl FixedSize {
    pub(super) fn new(items: u32) -> Self {
        Self { queue: BaselineQueue::default(), items }
    }
}

impl BaselineRule for FixedSize {
    fn queue(&mut self) -> &mut BaselineQueue {
        &mut self.queue
    }

    fn step(&mut self, proxy: &mut SimProxy) {
        for key in self.queue.keys() {
            while self.queue.items(key) >= self.items {
                self.queue.send(proxy, key, self.items);
            }
        }
    }
}

// === impl KServe ===

impl KServe {
    pub(super) fn new(items: u32, delay: Duration) -> Self {
        Self { queue: BaselineQueue::default(), items, delay, read: None }
    }
}

impl BaselineRule for KServe {
    fn queue(&mut self) -> &mut BaselineQueue {
        &mut self.queue
    }

    fn step(&mut self, proxy: &mut SimProxy) {
        let Some(key) = self.queue.oldest_key().filter(|_| self.queue.in_flight == 0) else { return };
        let read = *self.read.get_or_insert(proxy.now());
        let due = read.after(self.delay);
        if self.queue.items(key) >= self.items || proxy.now() >= due {
            self.read = None;
            self.queue.send(proxy, key, self.items);
        } else {
            proxy.set_wakeup(Some(due));
        }
    }
}

// === impl Greedy ===

impl Greedy {
    pub(super) fn new(slots: u32, items: u32, delay: Duration, expire: bool) -> Self {
        Self { queue: BaselineQueue::default(), slots, items, delay, expire }
    }

    /// Expires late heads. The original does not look at the calls behind them.
    fn expire_heads(&mut self, proxy: &mut SimProxy) {
        for key in self.queue.keys() {
            while self.queue.head(key).is_some_and(|head| proxy.arrival(head).deadline() <= proxy.now()) {
                self.queue.expire_head(proxy, key);
            }
        }
    }
}

impl BaselineRule for Greedy {
    fn queue(&mut self) -> &mut BaselineQueue {
        &mut self.queue
    }

    fn step(&mut self, proxy: &mut SimProxy) {
        if self.expire {
            self.expire_heads(proxy);
        }
        while self.queue.in_flight < self.slots {
            let Some(key) = self.queue.oldest_key() else { return };
            let due = self.queue.head(key).map_or(proxy.now(), |head| proxy.arrival(head).at.after(self.delay));
            if !self.delay.is_zero() && self.queue.items(key) < self.items && proxy.now() < due {
                proxy.set_wakeup(Some(due));
                return;
            }
            self.queue.send(proxy, key, self.items);
        }
    }
}

// === impl DeferredBatching ===

impl DeferredBatching {
    pub(super) fn new(curve: CostCurve, items: u32) -> Self {
        Self { queue: BaselineQueue::default(), curve, items }
    }

    fn time(&self, items: u32) -> Duration {
        Duration::from_secs_f64(self.curve.millis_of(items) / 1e3)
    }
}

impl BaselineRule for DeferredBatching {
    fn queue(&mut self) -> &mut BaselineQueue {
        &mut self.queue
    }

    fn step(&mut self, proxy: &mut SimProxy) {
        while self.queue.in_flight == 0 {
            let Some((key, head)) = self.queue.oldest_key().and_then(|key| Some((key, self.queue.head(key)?))) else {
                return;
            };
            let last = proxy.arrival(head).deadline().before(DEFERRED_SPARE);
            let slack = last.since(proxy.now());
            if slack < self.time(1) {
                self.queue.expire_head(proxy, key);
                continue;
            }
            // The largest batch that still meets the deadline of the head.
            let queued = self.queue.items(key).min(self.items);
            let fitting = (1..=queued).rev().find(|items| self.time(*items) <= slack).unwrap_or(1);
            // If it holds the whole queue, wait for one more call as long as the larger batch would
            // still be in time.
            let with_one_more = last.before(self.time((fitting + 1).min(self.items)));
            if fitting == self.queue.items(key) && fitting < self.items && proxy.now() < with_one_more {
                proxy.set_wakeup(Some(with_one_more));
                return;
            }
            self.queue.send(proxy, key, fitting);
        }
    }
}

// === impl SizeTable ===

impl SizeTable {
    pub(super) fn new(sizes: Arc<[u32]>) -> Self {
        Self { queue: BaselineQueue::default(), sizes }
    }
}

impl BaselineRule for SizeTable {
    fn queue(&mut self) -> &mut BaselineQueue {
        &mut self.queue
    }

    fn step(&mut self, proxy: &mut SimProxy) {
        let Some(key) = self.queue.oldest_key().filter(|_| self.queue.in_flight == 0) else { return };
        let place =
            usize::try_from(self.queue.items(key)).unwrap_or(usize::MAX).min(self.sizes.len().saturating_sub(1));
        let size = self.sizes.get(place).copied().unwrap_or(0);
        if size > 0 {
            self.queue.send(proxy, key, size);
        }
    }
}
