//! The deadline shift: a feedback controller that moves deadlines forward to compensate for latency
//! outside the core.
//!
//! Clients wait longer than the time between arrival and response in the core: the way of the
//! response to the client, a mesh, a load balancer and the client's own stack add to it. Calls
//! served at the edge of their deadline then miss it. The controller is fed with end-to-end
//! latencies, and its output is the time by which deadlines have to be earlier so that the 99th
//! percentile lies just within the SLO. It affects deadlines and never the size of batches.
//!
//! Late responses alone do not show the reason: a server's own tail is no reason to give up more
//! calls earlier, and a shift would do just that. The controller is therefore also fed with the
//! part of a latency that the core did not see, where it is known, and the shift stays below the
//! 99th percentile of that part.
//!
//! Left out: measuring latencies and applying the shift to deadlines, which are both up to the
//! caller.

use std::time::Duration;

use super::tick::{Tick, nanos};

/// Interval between two adjustments.
const PERIOD: Duration = Duration::from_secs(1);
/// Minimum number of samples for an estimate of the 99th percentile.
const SAMPLES_MIN: u32 = 100;
/// The controlled percentile, and its target in thousandths of the SLO.
const QUANTILE: u64 = 99;
const TARGET_PERMILLE: u64 = 980;
/// Gain of the controller: share of the error that is corrected per adjustment, in tenths.
const GAIN_TENTHS: i64 = 4;
/// Maximum step down and maximum step up, each as one part in this number of the SLO. Late
/// responses do harm and early ones do not, so the shift grows faster than it shrinks.
const DOWN_PARTS: u64 = 50;
const UP_PARTS: u64 = 10;
/// Maximum shift, in tenths of the SLO: the rest must still allow for an execution.
const SHIFT_TENTHS_MAX: u64 = 6;
/// Resolution and size of the histogram: buckets of one part in 256 of the SLO, up to four times
/// the SLO. This takes 4 KB, and half a bucket of error is 0.2 % of the SLO.
const STEPS: u64 = 256;
const BUCKETS: usize = 1024;

/// A controller for the time by which deadlines are moved forward.
///
/// # Properties
/// The shift is between 0 and 0.6 of the SLO. Only integers are used: the same latencies lead to
/// the same shift.
#[derive(Debug, Clone)]
pub struct DeadlineShift {
    slo: u64,
    shift: u64,
    /// End-to-end latencies.
    latency: LatencyHistogram,
    /// Parts of the latencies that the core did not see.
    unseen: LatencyHistogram,
    next: Option<Tick>,
}

/// A linear histogram of the latencies of one period.
#[derive(Debug, Clone)]
struct LatencyHistogram {
    width: u64,
    counts: Vec<u32>,
    samples: u32,
}

// === impl DeadlineShift ===

impl DeadlineShift {
    /// Creates a controller for this SLO without a shift. An SLO of zero is never shifted.
    #[must_use]
    pub fn new(slo: Duration) -> Self {
        let slo = nanos(slo);
        Self { slo, shift: 0, latency: LatencyHistogram::new(slo), unseen: LatencyHistogram::new(slo), next: None }
    }

    /// Records a response with this end-to-end latency, of which `unseen` passed outside the core,
    /// if that is known. Adjusts the shift once per second and then returns `true`.
    pub fn observe(&mut self, now: Tick, latency: Duration, unseen: Option<Duration>) -> bool {
        self.latency.add(latency);
        if let Some(unseen) = unseen {
            self.unseen.add(unseen);
        }
        let next = *self.next.get_or_insert(now.after(PERIOD));
        if now < next {
            return false;
        }
        self.next = Some(now.after(PERIOD));
        let moves = self.latency.samples > SAMPLES_MIN;
        if moves {
            self.step();
        }
        moves
    }

    /// Returns the time by which deadlines are moved forward.
    #[must_use]
    pub fn shift(&self) -> Duration {
        Duration::from_nanos(self.shift)
    }

    fn step(&mut self) {
        let target = self.slo / 1000 * TARGET_PERMILLE;
        let error = signed(self.latency.percentile()) - signed(target);
        let step = (error / 10 * GAIN_TENTHS).clamp(-signed(self.slo / DOWN_PARTS), signed(self.slo / UP_PARTS));
        // The shift stays below the 99th percentile of the unseen part, at the lower edge of its
        // bucket.
        let most = if self.unseen.samples > 0 { self.unseen.percentile() - self.unseen.width / 2 } else { u64::MAX };
        self.shift = self.shift.saturating_add_signed(step).min(self.slo / 10 * SHIFT_TENTHS_MAX).min(most);
        self.latency.clear();
        self.unseen.clear();
    }
}

// === impl LatencyHistogram ===

impl LatencyHistogram {
    fn new(slo: u64) -> Self {
        Self { width: (slo / STEPS).max(1), counts: vec![0; BUCKETS], samples: 0 }
    }

    fn add(&mut self, latency: Duration) {
        let bucket = usize::try_from(nanos(latency) / self.width).unwrap_or(BUCKETS).min(BUCKETS - 1);
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
        self.samples = self.samples.saturating_add(1);
    }

    /// Returns the middle of the bucket that contains the percentile.
    fn percentile(&self) -> u64 {
        let rank = u64::from(self.samples) * QUANTILE / 100;
        let mut before = 0;
        for (count, at) in self.counts.iter().zip(0_u64..) {
            before += u64::from(*count);
            if before > rank {
                return at * self.width + self.width / 2;
            }
        }
        0
    }

    fn clear(&mut self) {
        self.counts.fill(0);
        self.samples = 0;
    }
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: Duration = Duration::from_millis(50);

    /// Records one second of responses with this latency.
    fn second(shift: &mut DeadlineShift, from: u64, answers: u64, latency: Duration) {
        for i in 0..answers {
            shift.observe(Tick::from_millis(1000 * from + 999 * i / answers), latency, None);
        }
    }

    #[test]
    fn shift_grows_on_late_and_shrinks_on_early_responses() {
        let mut shift = DeadlineShift::new(SLO);
        let mut before = Duration::ZERO;
        for at in 0..4 {
            second(&mut shift, at, 1000, Duration::from_millis(60));
            assert!(shift.shift() >= before, "{:?}", shift.shift());
            before = shift.shift();
        }
        // 0.4 of 11 ms is 4.4 ms per second, less than the maximum step of 5 ms.
        assert!((12_000..=13_600).contains(&before.as_micros()), "{before:?}");
        for at in 4..60 {
            second(&mut shift, at, 1000, Duration::from_millis(5));
        }
        assert_eq!(shift.shift(), Duration::ZERO);
    }

    #[test]
    fn the_shift_moves_in_bounded_steps_within_its_bounds() {
        let mut shift = DeadlineShift::new(SLO);
        for at in 0..3 {
            second(&mut shift, at, 1000, Duration::from_secs(5));
        }
        assert_eq!(
            shift.shift(),
            Duration::from_millis(10),
            "two steps of a tenth: the first second is still being counted"
        );
        for at in 3..100 {
            second(&mut shift, at, 1000, Duration::from_secs(5));
        }
        assert_eq!(shift.shift(), Duration::from_millis(30));
        second(&mut shift, 100, 1000, Duration::ZERO);
        second(&mut shift, 101, 1000, Duration::ZERO);
        assert!(shift.shift() >= Duration::from_millis(28), "{:?}", shift.shift());
    }

    #[test]
    fn the_shift_does_not_exceed_the_unseen_latency_of_a_late_server() {
        let mut shift = DeadlineShift::new(SLO);
        for at in 0..10_000_u64 {
            let unseen = Duration::from_millis(if at % 50 == 0 { 3 } else { 1 });
            shift.observe(Tick::from_millis(at), Duration::from_millis(80), Some(unseen));
        }
        assert!((2_900..=3_100).contains(&shift.shift().as_micros()), "{:?}", shift.shift());
        for at in 10_000..12_000_u64 {
            shift.observe(Tick::from_millis(at), Duration::from_millis(80), Some(Duration::ZERO));
        }
        assert!(shift.shift() < Duration::from_micros(200), "nothing is unseen any more: {:?}", shift.shift());
    }

    #[test]
    fn few_answers_do_not_change_the_shift() {
        let mut shift = DeadlineShift::new(SLO);
        for at in 0..20 {
            second(&mut shift, at, 5, Duration::from_secs(1));
        }
        assert_eq!(shift.shift(), Duration::ZERO);
    }

    #[test]
    fn without_an_slo_the_shift_is_zero() {
        let mut shift = DeadlineShift::new(Duration::ZERO);
        for at in 0..5 {
            second(&mut shift, at, 1000, Duration::from_secs(1));
        }
        assert_eq!(shift.shift(), Duration::ZERO);
    }
}
