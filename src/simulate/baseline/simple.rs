//! Baselines that learn nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::batching::{KeyId, Tick};

use super::super::curve::Curve;
use super::super::desk::Desk;
use super::{Queue, Rule};

/// Time that a deferred batch leaves before the deadline of its head.
const DEFERRED_SPARE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Direct {
    queue: Queue,
}

#[derive(Debug)]
pub(super) struct Window {
    queue: Queue,
    items: u32,
    delay: Duration,
}

#[derive(Debug)]
pub(super) struct Static {
    queue: Queue,
    items: u32,
}

#[derive(Debug)]
pub(super) struct KServe {
    queue: Queue,
    items: u32,
    delay: Duration,
    /// Instant at which the loop read the first call of the next batch.
    read: Option<Tick>,
}

#[derive(Debug)]
pub(super) struct Greedy {
    queue: Queue,
    slots: u32,
    items: u32,
    delay: Duration,
    expire: bool,
}

#[derive(Debug)]
pub(super) struct Deferred {
    queue: Queue,
    curve: Curve,
    items: u32,
}

#[derive(Debug)]
pub(super) struct Table {
    queue: Queue,
    sizes: Arc<[u32]>,
}

// === impl Direct ===

impl Rule for Direct {
    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn step(&mut self, desk: &mut Desk) {
        while let Some(key) = self.queue.oldest() {
            self.queue.send(desk, key, 1);
        }
    }
}

// === impl Window ===

impl Window {
    pub(super) fn new(items: u32, delay: Duration) -> Self {
        Self { queue: Queue::default(), items, delay }
    }

    /// Sends the due batches of a key. Returns the instant at which the rest is due.
    fn flush(&mut self, desk: &mut Desk, key: KeyId) -> Option<Tick> {
        while let Some(head) = self.queue.head(key) {
            let due = desk.arrival(head).at.after(self.delay);
            if self.queue.items(key) < self.items && due > desk.now() {
                return Some(due);
            }
            self.queue.send(desk, key, self.items);
        }
        None
    }
}

impl Rule for Window {
    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn step(&mut self, desk: &mut Desk) {
        let wake = self.queue.keys().into_iter().filter_map(|key| self.flush(desk, key)).min();
        desk.wake(wake);
    }
}

// === impl Static ===

impl Static {
    pub(super) fn new(items: u32) -> Self {
        Self { queue: Queue::default(), items }
    }
}

impl Rule for Static {
    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn step(&mut self, desk: &mut Desk) {
        for key in self.queue.keys() {
            while self.queue.items(key) >= self.items {
                self.queue.send(desk, key, self.items);
            }
        }
    }
}

// === impl KServe ===

impl KServe {
    pub(super) fn new(items: u32, delay: Duration) -> Self {
        Self { queue: Queue::default(), items, delay, read: None }
    }
}

impl Rule for KServe {
    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn step(&mut self, desk: &mut Desk) {
        let Some(key) = self.queue.oldest().filter(|_| self.queue.in_flight == 0) else { return };
        let read = *self.read.get_or_insert(desk.now());
        let due = read.after(self.delay);
        if self.queue.items(key) >= self.items || desk.now() >= due {
            self.read = None;
            self.queue.send(desk, key, self.items);
        } else {
            desk.wake(Some(due));
        }
    }
}

// === impl Greedy ===

impl Greedy {
    pub(super) fn new(slots: u32, items: u32, delay: Duration, expire: bool) -> Self {
        Self { queue: Queue::default(), slots, items, delay, expire }
    }

    /// Expires late heads. The original does not look at the calls behind them.
    fn expire_heads(&mut self, desk: &mut Desk) {
        for key in self.queue.keys() {
            while self.queue.head(key).is_some_and(|head| desk.arrival(head).deadline() <= desk.now()) {
                self.queue.expire_head(desk, key);
            }
        }
    }
}

impl Rule for Greedy {
    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn step(&mut self, desk: &mut Desk) {
        if self.expire {
            self.expire_heads(desk);
        }
        while self.queue.in_flight < self.slots {
            let Some(key) = self.queue.oldest() else { return };
            let due = self.queue.head(key).map_or(desk.now(), |head| desk.arrival(head).at.after(self.delay));
            if !self.delay.is_zero() && self.queue.items(key) < self.items && desk.now() < due {
                desk.wake(Some(due));
                return;
            }
            self.queue.send(desk, key, self.items);
        }
    }
}

// === impl Deferred ===

impl Deferred {
    pub(super) fn new(curve: Curve, items: u32) -> Self {
        Self { queue: Queue::default(), curve, items }
    }

    fn time(&self, items: u32) -> Duration {
        Duration::from_secs_f64(self.curve.millis_of(items) / 1e3)
    }
}

impl Rule for Deferred {
    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn step(&mut self, desk: &mut Desk) {
        while self.queue.in_flight == 0 {
            let Some((key, head)) = self.queue.oldest().and_then(|key| Some((key, self.queue.head(key)?))) else {
                return;
            };
            let last = desk.arrival(head).deadline().before(DEFERRED_SPARE);
            let slack = last.since(desk.now());
            if slack < self.time(1) {
                self.queue.expire_head(desk, key);
                continue;
            }
            // The largest batch that still meets the deadline of the head.
            let queued = self.queue.items(key).min(self.items);
            let fitting = (1..=queued).rev().find(|items| self.time(*items) <= slack).unwrap_or(1);
            // If it holds the whole queue, wait for one more call as long as the larger batch would
            // still be in time.
            let with_one_more = last.before(self.time((fitting + 1).min(self.items)));
            if fitting == self.queue.items(key) && fitting < self.items && desk.now() < with_one_more {
                desk.wake(Some(with_one_more));
                return;
            }
            self.queue.send(desk, key, fitting);
        }
    }
}

// === impl Table ===

impl Table {
    pub(super) fn new(sizes: Arc<[u32]>) -> Self {
        Self { queue: Queue::default(), sizes }
    }
}

impl Rule for Table {
    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn step(&mut self, desk: &mut Desk) {
        let Some(key) = self.queue.oldest().filter(|_| self.queue.in_flight == 0) else { return };
        let place =
            usize::try_from(self.queue.items(key)).unwrap_or(usize::MAX).min(self.sizes.len().saturating_sub(1));
        let size = self.sizes.get(place).copied().unwrap_or(0);
        if size > 0 {
            self.queue.send(desk, key, size);
        }
    }
}
