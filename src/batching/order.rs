//! Order of calls in the queue of their merge key, and length buckets, which divide a merge key.
//!
//! Short calls go first by virtual deadlines: the arrival of a call plus a time that grows with its
//! weight. A short call thus passes the longer ones that arrived shortly before it, and a long call
//! is passed only for a limited time. The order needs no sorting while calls wait, in contrast to
//! one by weight alone with aging.

use super::call::{Call, KeyId};
use super::limits::{CallOrder, DispatchPolicy, Limits};
use super::tick::{Tick, nanos};

/// Steps of the virtual deadline: four for each power of two. Calls in one step keep their order of
/// arrival, because a weight is an estimate.
const STEPS_PER_OCTAVE: u64 = 4;
/// Number of steps after which a call waits the longest: a million tokens, more than the longest
/// context of a model.
const STEPS_MAX: u64 = 20 * STEPS_PER_OCTAVE;
/// Maximum number of boundaries between buckets, so that a bucket fits into the bits above an
/// interned key.
pub(super) const BUCKETS_MAX: usize = 255;
/// Position of the bucket in a key. Keys are interned in sequence, so that no process reaches this
/// number.
const BUCKET_SHIFT: u32 = 56;

// === impl Limits ===

impl Limits {
    /// Returns the sort key of a call in the queue of its merge key. Ties are broken by arrival.
    pub(super) fn order_key(&self, arrived: Tick, call: &Call) -> Tick {
        let deadline = call.deadline.map_or(Tick(u64::MAX), |deadline| deadline.at);
        match (self.order, self.policy) {
            (CallOrder::ShortFirst, _) => self.virtual_deadline(arrived, call).min(deadline),
            (CallOrder::Deadline, DispatchPolicy::Adaptive { .. }) => deadline,
            (
                CallOrder::Deadline,
                DispatchPolicy::WorkConserving | DispatchPolicy::Window { .. } | DispatchPolicy::Static { .. },
            ) => Tick(0),
        }
    }

    /// Returns the merge key of a call within its length bucket, which is that of its heaviest
    /// item. Calls of different buckets have different keys, so that they share no batch under any
    /// policy.
    pub(super) fn bucketed_key(&self, call: &Call) -> KeyId {
        let buckets = self.length_buckets.get(..BUCKETS_MAX).unwrap_or(&self.length_buckets);
        call.key.in_bucket(buckets.partition_point(|last| *last < call.weight.max))
    }

    /// Iterates over the keys of all length buckets of a key.
    pub(super) fn keys_of_buckets(&self, key: KeyId) -> impl Iterator<Item = KeyId> + use<> {
        (0..=self.length_buckets.len().min(BUCKETS_MAX)).map(move |bucket| key.in_bucket(bucket))
    }

    /// Returns the arrival of a call plus a part of the time after which calls of its class rise in
    /// rank.
    fn virtual_deadline(&self, arrived: Tick, call: &Call) -> Tick {
        let longest = nanos(self.priority(call.priority).aging_interval);
        let wait = longest / STEPS_MAX * weight_steps(call.weight.sum);
        Tick(arrived.0.saturating_add(wait))
    }
}

// === impl KeyId ===

impl KeyId {
    /// Returns the interned key, which all length buckets share. What the server does with calls of
    /// a key, such as a refusal of their batches, concerns all of its buckets.
    #[must_use]
    pub(super) const fn without_bucket(self) -> Self {
        Self(self.0 & ((1 << BUCKET_SHIFT) - 1))
    }

    fn in_bucket(self, bucket: usize) -> Self {
        Self(self.without_bucket().0 | u64::try_from(bucket).unwrap_or(0) << BUCKET_SHIFT)
    }
}

/// Returns a weight in quarter octaves: four steps per power of two.
pub(super) fn quarter_octave(weight: u64) -> u64 {
    let weight = weight.max(1);
    let octave = u64::from(weight.ilog2());
    // The two bits below the highest one.
    let quarter = if octave >= 2 { weight >> (octave - 2) & 3 } else { (weight << (2 - octave)) & 3 };
    octave * STEPS_PER_OCTAVE + quarter
}

/// Returns a weight in steps, up to the maximum.
fn weight_steps(weight: u64) -> u64 {
    quarter_octave(weight).min(STEPS_MAX)
}

#[cfg(test)]
mod tests {
    use super::super::call::{CallId, Deadline, DeadlineSource, Weight};
    use super::*;

    fn weighing(weight: u64) -> Call {
        Call { weight: Weight { sum: weight, max: weight }, ..Call::new(CallId(0)) }
    }

    fn due(call: Call, millis: u64) -> Call {
        let deadline = Some(Deadline { at: Tick::from_millis(millis), source: DeadlineSource::Slo });
        Call { deadline, ..call }
    }

    #[test]
    fn steps_grow_with_the_logarithm_of_the_weight() {
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7, 8, 64, 80].map(weight_steps), [0, 0, 4, 6, 8, 9, 10, 11, 12, 24, 25]);
        assert_eq!([1 << 20, 1 << 40, u64::MAX].map(weight_steps), [STEPS_MAX; 3]);
        assert!((1..100_000).all(|weight| weight_steps(weight) <= weight_steps(weight + 1)));
    }

    #[test]
    fn a_short_call_passes_longer_ones_for_a_limited_time() {
        let limits = Limits { order: CallOrder::ShortFirst, ..Limits::default() };
        let at = |millis: u64, weight: u64| limits.order_key(Tick::from_millis(millis), &weighing(weight));
        assert!(at(100, 16) < at(0, 1024), "six octaves are worth 0.6 s of the 2 s of a class without an SLO");
        assert!(at(601, 16) > at(0, 1024));
        assert!(at(2000, 1) >= at(0, u64::MAX), "no call is passed by one that arrives 2 s later");
    }

    #[test]
    fn a_deadline_comes_before_a_later_virtual_one() {
        let limits = Limits { order: CallOrder::ShortFirst, ..Limits::default() };
        let key = |call: Call| limits.order_key(Tick::from_millis(0), &call);
        assert_eq!(key(due(weighing(1 << 20), 50)), Tick::from_millis(50));
        assert_eq!(key(due(weighing(2), 5000)), Tick::from_millis(100));
    }

    #[test]
    fn by_default_calls_are_ordered_by_deadline_or_by_arrival() {
        let fixed = Limits::default();
        let adaptive = Limits { policy: DispatchPolicy::Adaptive { hold_permille: 0 }, ..Limits::default() };
        let keys = |call: &Call| [&fixed, &adaptive].map(|limits| limits.order_key(Tick::from_millis(7), call));
        assert_eq!(keys(&due(weighing(9), 50)), [Tick(0), Tick::from_millis(50)]);
        assert_eq!(keys(&weighing(9)), [Tick(0), Tick(u64::MAX)]);
    }

    #[test]
    fn a_bucket_is_part_of_the_key() {
        let limits = Limits { length_buckets: vec![64, 256], ..Limits::default() };
        let key = |id: u64, weight: u64| limits.bucketed_key(&Call { key: KeyId(id), ..weighing(weight) });
        assert_eq!([1, 64].map(|weight| key(5, weight)), [KeyId(5); 2]);
        assert_eq!(key(5, 65), key(5, 256));
        let keys = [key(5, 64), key(5, 65), key(5, 257), key(6, 65)];
        assert!((0..4).all(|one| (0..one).all(|other| keys[one] != keys[other])), "{keys:?}");
        let call = Call { key: key(5, 65), ..weighing(65) };
        assert_eq!(Limits::default().bucketed_key(&call), KeyId(5), "without buckets, the key is the interned one");
    }
}
