//! The expected learned state of a cost class, computed by simple counting.

use std::time::Duration;

use groupage::batching::{BatchOutcome, Observation, SizeMeasure, Tick};

use super::ceiling::Ceiling;

/// Number of recent executions, the shortest of which is the best time that an unbatched call can
/// expect.
const RECENT: usize = 16;

/// Properties of a completed batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompletedBatch {
    pub(crate) items: u32,
    pub(crate) weight: u64,
    /// Weight of the heaviest item.
    pub(crate) heaviest: u64,
    /// `true` if the batch had more than one member.
    pub(crate) shared: bool,
    /// `true` if it held as many items as its class allowed when it was dispatched.
    pub(crate) full: bool,
    /// The ceiling that it was sent to retest.
    pub(crate) retest: Option<SizeMeasure>,
}

/// The learned state of one cost class.
#[derive(Debug, Clone, Default)]
pub(crate) struct CostClassState {
    items: Ceiling,
    weight: Ceiling,
    padded: Ceiling,
    /// Ceiling on items since the upstream reported an overload.
    overload: Option<u32>,
    /// Number of full successful batches since the overload ceiling last changed.
    good: u32,
    /// `true` after an overload response with a retry delay, until the next successful response.
    refusing: bool,
    times: Vec<Duration>,
}

// === impl CostClassState ===

impl CostClassState {
    pub(crate) fn ceiling(&self) -> Option<u32> {
        let items = self.items.max().map(|max| u32::try_from(max).unwrap_or(u32::MAX));
        [items, self.overload].into_iter().flatten().min()
    }

    /// Returns the ceiling by one measure, overload excluded.
    pub(crate) fn max(&self, bounded: SizeMeasure) -> Option<u64> {
        self.ceiling_by(bounded).max()
    }

    /// Returns the ceiling that may be retested now, the size up to which it may be tested, and the
    /// duration of the last refusal.
    pub(crate) fn retest(&self, now: Tick) -> Option<(SizeMeasure, u64, Duration)> {
        if self.overload.is_some() {
            return None;
        }
        SizeMeasure::ALL.into_iter().find_map(|bounded| {
            self.ceiling_by(bounded)
                .retest(now, bounded == SizeMeasure::Items)
                .map(|(up_to, took)| (bounded, up_to, took))
        })
    }

    pub(crate) fn testing(&mut self, bounded: SizeMeasure) {
        self.by_mut(bounded).set_testing(true);
    }

    fn ceiling_by(&self, bounded: SizeMeasure) -> &Ceiling {
        match bounded {
            SizeMeasure::Items => &self.items,
            SizeMeasure::Weight => &self.weight,
            SizeMeasure::PaddedWeight => &self.padded,
        }
    }

    fn by_mut(&mut self, bounded: SizeMeasure) -> &mut Ceiling {
        match bounded {
            SizeMeasure::Items => &mut self.items,
            SizeMeasure::Weight => &mut self.weight,
            SizeMeasure::PaddedWeight => &mut self.padded,
        }
    }

    pub(crate) fn last_duration(&self) -> Option<Duration> {
        self.times.last().copied()
    }

    /// Returns `true` if even the fastest of the recent executions took longer than this SLO.
    pub(crate) fn is_slo_unreachable(&self, slo: Duration) -> bool {
        let from = self.times.len().saturating_sub(RECENT);
        self.times.get(from..).is_some_and(|recent| !recent.is_empty() && recent.iter().all(|time| *time > slo))
    }

    pub(crate) fn publish(&mut self, bounded: SizeMeasure, max: u64) {
        self.by_mut(bounded).publish(max.max(1));
    }

    pub(crate) fn observe(&mut self, now: Tick, most: u32, size: CompletedBatch, observed: &Observation) {
        let sizes = [u64::from(size.items), size.weight, size.heaviest * u64::from(size.items)];
        let took = observed.first_byte.unwrap_or(observed.duration);
        match observed.outcome {
            BatchOutcome::Ok => {
                self.times.push(observed.duration);
                self.refusing = false;
                for (bounded, size) in SizeMeasure::ALL.into_iter().zip(sizes) {
                    self.by_mut(bounded).on_success(now, size);
                }
                if size.full && self.overload.is_some() {
                    self.good += 1;
                }
                // The ceiling rises by one item for every eight full successful batches.
                if self.good == 8 {
                    self.good = 0;
                    // It is dropped once it no longer bounds anything.
                    let most = self.items.max().map_or(u64::from(most), |max| max.min(u64::from(most)));
                    self.overload = self.overload.map(|max| max + 1).filter(|max| u64::from(*max) < most);
                }
            }
            // A named limit that the refused batch did not exceed is no limit.
            BatchOutcome::TooLarge { limit: Some(limit) } if limit > 0 && limit < size.items => {
                self.items.on_named_limit(now, limit.into(), took);
            }
            // The refusal of a call that is not shared is no evidence about the size of batches.
            BatchOutcome::TooLarge { .. } if size.shared => {
                // If the batch was larger than ever by both measures, the one that grew more is
                // blamed; by default the number of items.
                let (items, weight) = (self.items.worked, self.weight.worked);
                let by_weight = sizes[1] > weight
                    && (sizes[0] <= items
                        || u128::from(sizes[1]) * u128::from(items) > u128::from(sizes[0]) * u128::from(weight));
                let blamed = if by_weight { SizeMeasure::Weight } else { SizeMeasure::Items };
                let bounded = size.retest.unwrap_or(blamed);
                let size =
                    SizeMeasure::ALL.into_iter().zip(sizes).find(|(of, _)| *of == bounded).map_or(0, |(_, size)| size);
                self.by_mut(bounded).on_refusal(now, size, took);
            }
            BatchOutcome::OutOfMemory if size.shared => {
                // If the items have no weight, the number of items is blamed.
                let (ceiling, size) =
                    if sizes[2] > 0 { (&mut self.padded, sizes[2]) } else { (&mut self.items, sizes[0]) };
                ceiling.on_out_of_memory(now, size, took);
            }
            // The upstream refuses any size at the moment, so the size is not the reason.
            BatchOutcome::Overloaded { retry_after: Some(_) } if size.shared && self.refusing => {}
            BatchOutcome::Overloaded { retry_after } if size.shared => {
                self.refusing = retry_after.is_some();
                let half = size.items / 2;
                // An overload never raises the ceiling.
                self.overload = Some(self.overload.map_or(half, |known| known.min(half)));
                self.good = 0;
            }
            BatchOutcome::Mismatched
            | BatchOutcome::Withheld
            | BatchOutcome::TooLarge { .. }
            | BatchOutcome::Overloaded { .. }
            | BatchOutcome::OutOfMemory
            | BatchOutcome::Failed
            | BatchOutcome::Refused(_)
            | BatchOutcome::NotRetried(_)
            | BatchOutcome::TimedOut
            | BatchOutcome::Cancelled => {}
        }
        // The retest is over, whatever its outcome.
        if let Some(bounded) = size.retest {
            self.by_mut(bounded).end_retest(now);
        }
    }
}
