//! A log-linear histogram with fixed buckets. Sidecars record into it, reports carry it as counts
//! to be added, and the tuner reads quantiles from it.
//!
//! The bucket boundaries never change, so merging two histograms yields the histogram of all
//! values, in any order, and a difference of counts is a histogram again. Each value below 32 has
//! its own bucket; above, each power of two is divided into 16 buckets, so a quantile is off by
//! less than 1/16, and by about 3 % if values are spread evenly within a bucket. Values are
//! integers in the owner's unit: microseconds for times, items for sizes. Only non-empty buckets
//! take memory: about 60 for the latencies of one route.
//!
//! There are no time windows. An owner that needs one keeps a histogram per part of the window.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Binary logarithm of the number of buckets per power of two: 16 buckets, each at most 1/16 as
/// wide as its lower bound.
const PART_BITS: u32 = 4;
const BUCKETS_PER_OCTAVE: u64 = 1 << PART_BITS;
/// Values below this one have their own bucket.
const LINEAR_BUCKETS: u64 = 2 * BUCKETS_PER_OCTAVE;
/// Largest value, 2^36 - 1; larger values are counted as this one. In microseconds it is 19 hours,
/// and no batch has this number of items.
const VALUE_MAX: u64 = (1 << 36) - 1;

/// A log-linear histogram.
///
/// # Properties
/// Merging is commutative and associative, and merging an empty histogram changes nothing. A
/// quantile lies within the bucket of the true value: it is exact below 32, and otherwise off by
/// less than 1/16. Counts saturate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "EncodedHistogram")]
pub struct Histogram {
    /// Pairs of bucket and count, sorted by bucket. No count is zero.
    counts: Vec<(u16, u64)>,
    /// Exact sum of all values.
    sum: u64,
}

/// The encoded form of a histogram. It comes from a peer and is validated in the conversion.
#[derive(Debug, Deserialize)]
struct EncodedHistogram {
    #[serde(default)]
    counts: Vec<(u16, u64)>,
    #[serde(default)]
    sum: u64,
}

// === impl Histogram ===

impl Histogram {
    /// Number of buckets.
    pub const BUCKETS: u16 = bucket_of(VALUE_MAX) + 1;

    /// Records a value.
    pub fn add(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Records a duration in microseconds.
    pub fn add_time(&mut self, time: Duration) {
        self.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// Records a value `count` times.
    pub fn record_n(&mut self, value: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.sum = self.sum.saturating_add(value.saturating_mul(count));
        self.add_to_bucket(bucket_of(value), count);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.sum = self.sum.saturating_add(other.sum);
        for (bucket, count) in &other.counts {
            self.add_to_bucket(*bucket, *count);
        }
    }

    /// Returns the number of recorded values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |all: u64, (_, count)| all.saturating_add(*count))
    }

    /// Returns the sum of all values, which is exact unless it saturates.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the mean of all values, rounded down, or `None` if the histogram is empty.
    #[must_use]
    pub fn mean(&self) -> Option<u64> {
        self.sum.checked_div(self.count())
    }

    /// Returns `true` if no value was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the value that `permille` thousandths of all values do not exceed, or `None` if the
    /// histogram is empty: 990 selects the 99th percentile. Within a bucket, values are assumed to
    /// be spread evenly.
    #[must_use]
    pub fn quantile(&self, permille: u32) -> Option<u64> {
        let all = u128::from(self.count());
        // Rank of the value, starting at 1.
        let rank = (all * u128::from(permille.min(1000))).div_ceil(1000).max(1);
        let mut before = 0_u128;
        for (bucket, count) in &self.counts {
            let count = u128::from(*count);
            if before + count >= rank {
                let (from, width) = bucket_range(*bucket);
                // The bucket is divided into `count` equal parts, and the result is the middle of
                // the part of this rank.
                let within = u128::from(width) * (2 * (rank - before) - 1) / (2 * count);
                return Some(from + u64::try_from(within).unwrap_or(0));
            }
            before += count;
        }
        None
    }

    /// Returns the number of values above `value`. The count of the bucket that contains `value` is
    /// interpolated.
    #[must_use]
    pub fn count_above(&self, value: u64) -> u64 {
        let own = bucket_of(value);
        let mut above = 0_u64;
        for (bucket, count) in &self.counts {
            let part = match bucket.cmp(&own) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Greater => *count,
                std::cmp::Ordering::Equal => {
                    let (from, width) = bucket_range(own);
                    let beyond = (from + width - 1).saturating_sub(value);
                    u64::try_from(u128::from(*count) * u128::from(beyond) / u128::from(width)).unwrap_or(0)
                }
            };
            above = above.saturating_add(part);
        }
        above
    }

    /// Returns the non-empty buckets as pairs of lower bound and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.counts.iter().map(|(bucket, count)| (bucket_range(*bucket).0, *count))
    }

    fn add_to_bucket(&mut self, bucket: u16, by: u64) {
        match self.counts.binary_search_by_key(&bucket, |(known, _)| *known) {
            Ok(at) => {
                if let Some((_, count)) = self.counts.get_mut(at) {
                    *count = count.saturating_add(by);
                }
            }
            Err(at) => self.counts.insert(at, (bucket, by)),
        }
    }
}

const fn bucket_of(value: u64) -> u16 {
    let value = if value > VALUE_MAX { VALUE_MAX } else { value };
    let index = if value < LINEAR_BUCKETS {
        value
    } else {
        let octave = value.ilog2() - PART_BITS;
        // Octave 1 is the first power of two above the exact values.
        (octave as u64 - 1) * BUCKETS_PER_OCTAVE + LINEAR_BUCKETS + ((value >> octave) - BUCKETS_PER_OCTAVE)
    };
    #[expect(clippy::cast_possible_truncation, reason = "VALUE_MAX has bucket 527")]
    let index = index as u16;
    index
}

/// Returns the lower bound of a bucket and the number of values in it.
const fn bucket_range(bucket: u16) -> (u64, u64) {
    let index = bucket as u64;
    if index < LINEAR_BUCKETS {
        return (index, 1);
    }
    let octave = (index - LINEAR_BUCKETS) / BUCKETS_PER_OCTAVE + 1;
    ((BUCKETS_PER_OCTAVE + (index - LINEAR_BUCKETS) % BUCKETS_PER_OCTAVE) << octave, 1 << octave)
}

// === impl EncodedHistogram ===

impl TryFrom<EncodedHistogram> for Histogram {
    type Error = &'static str;

    fn try_from(written: EncodedHistogram) -> Result<Self, Self::Error> {
        let EncodedHistogram { counts, sum } = written;
        if counts.len() > usize::from(Self::BUCKETS) || counts.iter().any(|(bucket, _)| *bucket >= Self::BUCKETS) {
            return Err("a histogram contains a bucket that does not exist");
        }
        if counts.iter().any(|(_, count)| *count == 0) || !counts.is_sorted_by(|one, next| one.0 < next.0) {
            return Err("the buckets of a histogram are out of order, or one is empty");
        }
        Ok(Self { counts, sum })
    }
}

#[cfg(test)]
mod tests;
