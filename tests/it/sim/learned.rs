//! What a cost class must have taught the core by now, counted plainly.

use std::time::Duration;

use groupage::batching::{Limits, Observed, ObservedOutcome, Tick};

/// Executions whose shortest one says what a lone call can hope for.
const RECENT: usize = 16;

/// What is known of the batch that ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) items: u32,
    /// More than one member.
    pub(crate) shared: bool,
    /// It held as many items as a batch of its class might when it left.
    pub(crate) full: bool,
}

/// One cost class.
#[derive(Debug, Clone, Default)]
pub(crate) struct Learned {
    /// The smallest size that was named, published or found by halving.
    named: Option<u32>,
    /// The size since the upstream said that it is overloaded.
    overload: Option<u32>,
    /// Full good batches since the overload size last moved.
    good: u32,
    /// Since when on, and how long the last quarantine was.
    quarantine: Option<(Tick, Duration)>,
    /// Whole batches since the last mismatch.
    whole: u32,
    times: Vec<Duration>,
}

// === impl Learned ===

impl Learned {
    pub(crate) fn ceiling(&self) -> Option<u32> {
        [self.named, self.overload].into_iter().flatten().min()
    }

    pub(crate) fn quarantined(&self, now: Tick) -> bool {
        self.quarantine.is_some_and(|(start, length)| now < start.after(length))
    }

    /// The length of the last quarantine.
    pub(crate) fn quarantine(&self) -> Option<Duration> {
        self.quarantine.map(|(_, length)| length)
    }

    pub(crate) fn last(&self) -> Option<Duration> {
        self.times.last().copied()
    }

    /// Whether even the fastest of the last executions took longer than this SLO.
    pub(crate) fn cannot_meet(&self, slo: Duration) -> bool {
        let from = self.times.len().saturating_sub(RECENT);
        self.times.get(from..).is_some_and(|recent| !recent.is_empty() && recent.iter().all(|time| *time > slo))
    }

    pub(crate) fn publish(&mut self, items_max: u32) {
        self.name(items_max.max(1));
    }

    pub(crate) fn observe(&mut self, now: Tick, quarantine: Duration, size: Size, observed: &Observed) {
        match observed.outcome {
            ObservedOutcome::Ok => {
                self.times.push(observed.duration);
                self.whole += u32::from(size.shared);
                if size.full && self.overload.is_some() {
                    self.good += 1;
                }
                // One item more for every eight full good batches.
                if self.good == 8 {
                    self.good = 0;
                    self.overload = self.overload.map(|max| max + 1);
                }
            }
            // A limit that the refused batch kept already is none.
            ObservedOutcome::TooLarge { limit: Some(limit) } if limit > 0 && limit < size.items => self.name(limit),
            // What is not shared says nothing about how large a batch may be. A size without a name rises again as after an overload.
            ObservedOutcome::TooLarge { .. } | ObservedOutcome::Overloaded { .. } if size.shared => {
                let half = size.items / 2;
                // An overload never lets batches grow.
                self.overload = Some(self.overload.map_or(half, |known| known.min(half)));
                self.good = 0;
            }
            ObservedOutcome::Mismatched => {
                let doubled =
                    self.quarantine.filter(|_| self.whole < 100).map_or(Duration::ZERO, |(_, length)| length * 2);
                self.quarantine = Some((now, doubled.max(quarantine).min(Limits::QUARANTINE_MAX)));
                self.whole = 0;
            }
            ObservedOutcome::TooLarge { .. }
            | ObservedOutcome::Overloaded { .. }
            | ObservedOutcome::OutOfMemory
            | ObservedOutcome::Failed
            | ObservedOutcome::Cancelled => {}
        }
    }

    fn name(&mut self, items_max: u32) {
        self.named = Some(self.named.map_or(items_max, |known| known.min(items_max)));
    }
}
