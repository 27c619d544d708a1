//! BentoML's `CorkDispatcher`, as of 2026-04. The constants are from
//! `src/bentoml/_internal/marshal/dispatcher.py`.
//!
//! One batch is in flight at a time. The duration of a batch is fitted as a linear function of its
//! size, over the last 50 batches and every 5 s. The dispatcher decides once per millisecond: the
//! head expires if the fit predicts it to be late, and the queue is held while waiting for one more
//! call costs the queued items less than the mean wait of recent heads. The first eleven batches
//! have fixed sizes (the training), as samples for the fit.

use std::collections::VecDeque;
use std::time::Duration;

use crate::batching::{KeyId, Tick};

use super::super::batch::{BatchCompletion, ResponseStatus};
use super::super::proxy::SimProxy;
use super::super::upstream::millis;
use super::{BaselineQueue, BaselineRule};

/// Interval between two decisions while the queue is held.
const TICK: Duration = Duration::from_millis(1);
/// [`TICK`] in milliseconds.
const TICK_MS: f64 = 1.0;
/// Number of batches that are fitted (`N_KEPT_SAMPLE`).
const SAMPLES: usize = 50;
/// Minimum interval between two fits (`INTERVAL_REFRESH_PARAMS`).
const FIT_PERIOD: Duration = Duration::from_secs(5);
/// Number of first batches that are not fitted, because the model warms up (`N_SKIPPED_SAMPLE`).
const SKIPPED: u32 = 2;
/// Safety factor: the share of the mean wait, or of the SLO, up to which a hold may cost (`decay`).
const HOLD_SHARE: f64 = 0.95;
/// Batch sizes sent first, whatever is queued, as samples for the fit: eight to warm up, then one
/// each of one, two and three items.
const TRAINING: [u32; 11] = [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3];
/// Queue length in items above which heads past their deadline expire during training. BentoML
/// uses 6 or less, by phase.
const TRAINING_QUEUE: u32 = 6;

#[derive(Debug)]
pub(super) struct Cork {
    /// Maximum number of items in a batch.
    items_max: u32,
    /// `None` before the first fit.
    fit: Option<LinearFit>,
    samples: VecDeque<Sample>,
    /// Number of batches that were answered without an error.
    answered: u32,
    /// Number of training batches that were sent.
    trained: usize,
    next_fit: Tick,
    wakeup: Tick,
    /// Time that the head of the batch in flight had waited, in milliseconds; 0 during training.
    head_waited: f64,
}

/// The linear fit and the mean wait, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct LinearFit {
    per_item: f64,
    per_batch: f64,
    wait: f64,
}

/// An answered batch: its size, its duration and the wait of its head, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Sample {
    items: f64,
    time: f64,
    waited: f64,
}

/// The next action for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CorkAction {
    /// Expires the head.
    Expire,
    /// Decides again after a tick.
    Hold,
    /// Sends a batch of up to this number of items.
    Send(u32),
}

// === impl Cork ===

impl Cork {
    pub(super) fn new(items_max: u32) -> Self {
        Self {
            items_max,
            fit: None,
            samples: VecDeque::new(),
            answered: 0,
            trained: 0,
            next_fit: Tick::default(),
            wakeup: Tick::default(),
            head_waited: 0.0,
        }
    }

    /// Returns the next action for a queue, and the wait of its head in milliseconds as a sample of
    /// the mean wait; 0 during training.
    fn decide(&self, queue: &BaselineQueue, proxy: &SimProxy, key: KeyId) -> Option<(CorkAction, f64)> {
        let waited = |id| millis(proxy.now().since(proxy.arrival(id).at));
        let head = waited(queue.head(key)?);
        let newest = waited(queue.newest(key)?);
        let (queued, slo, is_busy) = (queue.items(key), millis(proxy.slo()), queue.in_flight > 0);
        let fit = self.fit.unwrap_or_else(|| LinearFit::guess(slo));
        let items = f64::from(queued);
        if let Some(&size) = TRAINING.get(self.trained) {
            let step = if queued > TRAINING_QUEUE && head >= slo {
                CorkAction::Expire
            } else if is_busy || (queued < size && fit.is_worth_waiting(f64::from(size), head, slo)) {
                CorkAction::Hold
            } else {
                CorkAction::Send(size)
            };
            return Some((step, 0.0));
        }
        // The head expires if the fit predicts it to miss the SLO. Otherwise the queue is held
        // while a batch is in flight, or while another tick and the time of one more item cost the
        // queued items at most the mean wait.
        let late = queued > 1 && head + fit.per_item * items + fit.per_batch >= slo;
        let step = if late || (is_busy && queued == 1 && head >= slo) {
            CorkAction::Expire
        } else if is_busy
            || (queued < self.items_max && items * (newest + TICK_MS + fit.per_item) <= fit.wait * HOLD_SHARE)
        {
            CorkAction::Hold
        } else {
            CorkAction::Send(self.items_max)
        };
        Some((step, head))
    }

    /// Fits the durations of the recent batches by least squares.
    fn refit(&mut self) {
        let count = self.samples.len() as f64;
        let sum = |of: &dyn Fn(&Sample) -> f64| self.samples.iter().map(of).sum::<f64>();
        let (x, y) = (sum(&|s| s.items), sum(&|s| s.time));
        let (xx, xy) = (sum(&|s| s.items * s.items), sum(&|s| s.items * s.time));
        let determinant = count * xx - x * x;
        let (per_item, per_batch) = if determinant > 1e-9 {
            let per_item = (count * xy - x * y) / determinant;
            (per_item, (y - per_item * x) / count)
        } else {
            // All samples have one size: use the least-squares solution of minimum norm.
            let (x, y) = (x / count, y / count);
            (y * x / (x * x + 1.0), y / (x * x + 1.0))
        };
        let wait = (sum(&|s| s.waited) / count).max(0.0);
        self.fit = Some(LinearFit { per_item: per_item.max(1e-3), per_batch: per_batch.max(0.0), wait });
    }

    fn schedule_tick(&mut self, proxy: &mut SimProxy) {
        if self.wakeup <= proxy.now() {
            self.wakeup = proxy.now().after(TICK);
            proxy.set_wakeup(Some(self.wakeup));
        }
    }
}

impl BaselineRule for Cork {
    fn on_completion(&mut self, proxy: &mut SimProxy, done: &BatchCompletion) {
        if done.status != ResponseStatus::Ok {
            return;
        }
        self.answered += 1;
        if self.answered <= SKIPPED {
            return;
        }
        let time = millis(proxy.now().since(done.sent));
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { items: f64::from(done.items), time, waited: self.head_waited });
        // The last three training batches are fitted at once.
        if proxy.now() >= self.next_fit || matches!(self.answered, 9..=11) {
            self.next_fit = proxy.now().after(FIT_PERIOD);
            self.refit();
        }
    }

    fn step(&mut self, queue: &mut BaselineQueue, proxy: &mut SimProxy) {
        while let Some(key) = queue.oldest_key() {
            let Some((step, waited)) = self.decide(queue, proxy, key) else { return };
            match step {
                CorkAction::Expire => queue.expire_head(proxy, key),
                CorkAction::Hold => return self.schedule_tick(proxy),
                CorkAction::Send(items) => {
                    self.trained += usize::from(self.trained < TRAINING.len());
                    self.head_waited = waited;
                    queue.send(proxy, key, items);
                }
            }
        }
    }
}

// === impl LinearFit ===

impl LinearFit {
    /// Returns the fit before any answer: shares of the SLO, at most 2 s for an item and 1 s for a
    /// batch.
    fn guess(slo: f64) -> Self {
        Self { per_item: (slo * 2.0 / 30.0).min(2000.0), per_batch: (slo / 30.0).min(1000.0), wait: 0.0 }
    }

    /// Returns `true` if, during training, it is worth waiting until a batch of this size is
    /// queued. `head` is the time that the head has waited.
    fn is_worth_waiting(&self, size: f64, head: f64, slo: f64) -> bool {
        let until = (HOLD_SHARE * slo).min((2.0 * size + 1.0) * self.per_item + self.per_batch);
        size > 1.0 && size * self.per_item + self.per_batch + head <= until
    }
}
