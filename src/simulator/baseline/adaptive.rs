//! Baselines that adapt one number to the completions of batches.

use std::time::Duration;

use crate::batching::Tick;

use super::super::batch::{BatchCompletion, ResponseStatus};
use super::super::proxy::SimProxy;
use super::super::random::saturating_u32;
use super::{BaselineQueue, BaselineRule};

/// Factor of Clipper's decrease of the cap. The increase is one item.
const AIMD_DOWN: f64 = 0.9;

/// Initial and maximum limit of the batches in flight of TF Serving's scheduler (ASBS).
const ASBS_START: f64 = 3.0;
const ASBS_MAX: f64 = 16.0;
/// Number of batches between two adjustments of that limit.
const ASBS_BATCHES: u32 = 1000;
/// Bounds of an adjustment, as a part of the limit.
const ASBS_STEP_MAX: f64 = 1.0 / 8.0;
const ASBS_STEP_MIN: f64 = 1.0 / 128.0;

/// Period of the p99 controller: a control loop outside of the proxy would read metrics as often.
const LOOP_PERIOD: Duration = Duration::from_secs(1);
/// Initial cap of the p99 controller.
const LOOP_START: f64 = 32.0;

/// [`Baseline::Aimd`](super::Baseline::Aimd).
#[derive(Debug)]
pub(super) struct Aimd {
    /// Maximum number of items in a batch.
    cap: f64,
}

/// [`Baseline::NaiveLoop`](super::Baseline::NaiveLoop).
#[derive(Debug)]
pub(super) struct CapByP99 {
    /// Maximum number of items in a batch.
    cap: f64,
    /// Latencies of the calls that were answered since the last adjustment.
    latencies: Vec<Duration>,
    /// Instant of the next adjustment.
    next: Tick,
}

/// [`Baseline::Asbs`](super::Baseline::Asbs).
#[derive(Debug)]
pub(super) struct AdaptiveSharedBatch {
    /// Maximum number of items in a batch.
    items: u32,
    /// Maximum number of batches in flight.
    limit: f64,
    /// Number of batches since the last adjustment.
    batches: u32,
    /// Sum of the latencies of their first calls, in seconds.
    sum: f64,
    /// Mean of these latencies at the last adjustment.
    last_mean: f64,
    /// `true` if the mean had fallen at the last adjustment.
    was_better: bool,
    /// `true` if the limit is being raised.
    is_rising: bool,
    /// Size of the next adjustment, as a part of the limit.
    step: f64,
}

// === impl Aimd ===

impl Default for Aimd {
    fn default() -> Self {
        Self { cap: 1.0 }
    }
}

impl BaselineRule for Aimd {
    fn on_completion(&mut self, proxy: &mut SimProxy, done: &BatchCompletion) {
        if done.status != ResponseStatus::Ok || proxy.now().since(done.sent) > proxy.slo() {
            self.cap = (self.cap * AIMD_DOWN).max(1.0);
        } else if done.items >= saturating_u32(self.cap) {
            self.cap += 1.0;
        }
    }

    fn step(&mut self, queue: &mut BaselineQueue, proxy: &mut SimProxy) {
        send_one(queue, proxy, saturating_u32(self.cap));
    }
}

// === impl CapByP99 ===

impl Default for CapByP99 {
    fn default() -> Self {
        Self { cap: LOOP_START, latencies: Vec::new(), next: Tick::default().after(LOOP_PERIOD) }
    }
}

impl BaselineRule for CapByP99 {
    fn on_completion(&mut self, proxy: &mut SimProxy, done: &BatchCompletion) {
        let now = proxy.now();
        if done.status == ResponseStatus::Ok {
            self.latencies.extend(done.members.iter().map(|id| now.since(proxy.arrival(*id).at)));
        }
        if now < self.next {
            return;
        }
        self.next = now.after(LOOP_PERIOD);
        self.latencies.sort_unstable();
        if let Some(p99) = self.latencies.get(self.latencies.len() * 99 / 100) {
            if *p99 > proxy.slo() {
                self.cap = (self.cap * 0.8).max(1.0);
            } else if *p99 < proxy.slo().mul_f64(0.8) {
                self.cap += 1.0;
            }
            self.latencies.clear();
        }
    }

    fn step(&mut self, queue: &mut BaselineQueue, proxy: &mut SimProxy) {
        send_one(queue, proxy, saturating_u32(self.cap));
    }
}

/// Sends a batch of the oldest queue, unless one is in flight.
fn send_one(queue: &mut BaselineQueue, proxy: &mut SimProxy, items: u32) {
    if queue.in_flight == 0
        && let Some(key) = queue.oldest_key()
    {
        queue.send(proxy, key, items);
    }
}

// === impl AdaptiveSharedBatch ===

impl AdaptiveSharedBatch {
    pub(super) fn new(items: u32) -> Self {
        Self {
            items,
            limit: ASBS_START,
            batches: 0,
            sum: 0.0,
            last_mean: 0.0,
            was_better: false,
            is_rising: true,
            step: ASBS_STEP_MAX,
        }
    }

    fn adjust_limit(&mut self) {
        let mean = self.sum / f64::from(self.batches);
        let is_better = mean < self.last_mean;
        // Without an improvement the direction is reversed and the step halved; after two
        // improvements in sequence the step is doubled.
        if !is_better {
            self.is_rising = !self.is_rising;
            self.step = (self.step / 2.0).max(ASBS_STEP_MIN);
        } else if self.was_better {
            self.step = (self.step * 2.0).min(ASBS_STEP_MAX);
        }
        let by = if self.is_rising { self.step } else { -self.step };
        self.limit = (self.limit * (1.0 + by)).clamp(1.0, ASBS_MAX);
        (self.last_mean, self.was_better, self.batches, self.sum) = (mean, is_better, 0, 0.0);
    }
}

impl BaselineRule for AdaptiveSharedBatch {
    fn on_completion(&mut self, proxy: &mut SimProxy, done: &BatchCompletion) {
        let Some(first) = done.members.first() else { return };
        self.batches += 1;
        self.sum += proxy.now().since(proxy.arrival(*first).at).as_secs_f64();
        if self.batches >= ASBS_BATCHES {
            self.adjust_limit();
        }
    }

    /// Dispatches while the limit has room. A fractional slot is used with that probability.
    fn step(&mut self, queue: &mut BaselineQueue, proxy: &mut SimProxy) {
        while let Some(key) = queue.oldest_key() {
            let room = self.limit - f64::from(queue.in_flight);
            if room <= 0.0 || (room < 1.0 && proxy.rng().next_f64() > room) {
                return;
            }
            queue.send(proxy, key, self.items);
        }
    }
}
