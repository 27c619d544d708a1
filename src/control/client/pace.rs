//! When the stream is opened again: pure, given what ended, how long it lived, and a random number.

use std::time::Duration;

use super::Reason;
use super::session::End;

/// How often, how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// Between two reports, less or more a fifth.
    pub report: Duration,
    /// How long a stream is open, less or more a fifth.
    pub lifetime: Duration,
    /// For TCP, TLS and HTTP/2 together.
    pub connect: Duration,
    /// For the answer to the request, in which the controller may have the token reviewed.
    pub answer: Duration,
    /// For an acknowledgement, and for room to write: after it the controller counts as gone.
    pub silence: Duration,
}

/// The shortest wait, and the longest.
const WAIT_MIN: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The longest wait after the first end: ten thousand streams that break together come back over two seconds.
const WAIT_FIRST: Duration = Duration::from_secs(2);
/// Within so long a stream that is to go elsewhere, or was open long enough, is opened again.
const WAIT_MOVE: Duration = Duration::from_millis(500);
/// A stream that lived so long was a good one: the next wait is a first one again.
const GOOD: Duration = Duration::from_secs(30);

/// How often in a row it went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Pace {
    ends: u32,
}

// === impl Times ===

impl Default for Times {
    fn default() -> Self {
        Self {
            report: Duration::from_secs(5),
            lifetime: Duration::from_secs(3600),
            connect: Duration::from_secs(3),
            answer: Duration::from_secs(10),
            silence: Duration::from_secs(30),
        }
    }
}

// === impl Pace ===

impl Pace {
    /// How long to wait. `lived`: how long the stream was open, if it was; `took`: how long all of it took.
    pub(super) fn again(&mut self, end: &End, lived: Option<Duration>, took: Duration, random: u64) -> Duration {
        if lived.is_some_and(|lived| lived >= GOOD) {
            self.ends = 0;
        }
        let moves = end.reason == Reason::Lifetime || end.reason == Reason::Goaway && end.named.is_some();
        // Whoever is sent about between replicas waits longer each time, as after any other end.
        if moves && self.ends == 0 {
            self.ends = u32::from(end.reason == Reason::Goaway);
            return part(WAIT_MOVE, random);
        }
        let most = WAIT_FIRST.saturating_mul(2_u32.saturating_pow(self.ends)).min(WAIT_MAX);
        self.ends = self.ends.saturating_add(1);
        let wait = WAIT_MIN + part(most - WAIT_MIN, random);
        // What a timeout took already was a wait too, down to the shortest.
        let wait = wait.saturating_sub(took.saturating_sub(lived.unwrap_or_default())).max(WAIT_MIN);
        // Told by the controller, and jittered all the same: it tells many the same.
        wait.max(end.not_before + part(end.not_before, random))
    }
}

/// About so long: less or more a fifth.
pub(super) fn about(time: Duration, random: u64) -> Duration {
    time * 4 / 5 + part(time * 2 / 5, random)
}

/// A part of this time, all equally likely.
pub(super) fn part(time: Duration, random: u64) -> Duration {
    let nanos = time.as_nanos() * u128::from(random) / (u128::from(u64::MAX) + 1);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::client::Address;

    const S: Duration = Duration::from_secs(1);

    fn end(reason: Reason) -> End {
        End::new(reason, "")
    }

    fn waits(mut pace: Pace, random: u64) -> Vec<Duration> {
        (0..8).map(|_| pace.again(&end(Reason::Connect), None, Duration::ZERO, random)).collect()
    }

    #[test]
    fn the_longest_wait_doubles_up_to_half_a_minute_and_the_shortest_stays() {
        let longest: Vec<u128> =
            waits(Pace::default(), u64::MAX).iter().map(|wait| wait.as_millis().div_ceil(1000)).collect();
        assert_eq!(longest, [2, 4, 8, 16, 30, 30, 30, 30]);
        assert!(waits(Pace::default(), 0).iter().all(|wait| *wait == WAIT_MIN));
    }

    #[test]
    fn a_stream_that_lived_makes_the_next_wait_a_first_one() {
        let mut pace = Pace::default();
        waits(pace, 0);
        (0..6).for_each(|_| {
            pace.again(&end(Reason::Connect), None, Duration::ZERO, 0);
        });
        let short = pace.again(&end(Reason::Broken), Some(S), S, u64::MAX);
        assert!(short > 29 * S, "{short:?}: it was hardly open");
        let long = pace.again(&end(Reason::Broken), Some(GOOD), GOOD, u64::MAX);
        assert!(long <= WAIT_FIRST, "{long:?}");
    }

    #[test]
    fn who_is_sent_elsewhere_goes_soon_and_who_is_sent_about_waits() {
        let mut pace = Pace::default();
        let away = End { named: Some(Address { host: "b".into(), port: 1 }), ..end(Reason::Goaway) };
        assert!(pace.again(&away, Some(S), S, u64::MAX) < WAIT_MOVE);
        assert!(pace.again(&away, Some(S), S, u64::MAX) > 3 * S, "sent on at once");
        assert!(Pace::default().again(&end(Reason::Goaway), Some(S), S, u64::MAX) > S, "anywhere: not all at once");
        assert!(Pace::default().again(&end(Reason::Lifetime), Some(3600 * S), 3600 * S, u64::MAX) < WAIT_MOVE);
    }

    #[test]
    fn what_the_controller_asks_for_is_waited_at_least() {
        let busy = End { not_before: 20 * S, ..end(Reason::Busy) };
        assert_eq!(Pace::default().again(&busy, None, Duration::ZERO, 0), 20 * S);
        assert!(Pace::default().again(&busy, None, Duration::ZERO, u64::MAX) > 39 * S);
    }

    #[test]
    fn a_timeout_counts_as_a_part_of_the_wait() {
        let mut pace = Pace { ends: 10 };
        let wait = pace.again(&end(Reason::Connect), None, 3 * S, u64::MAX);
        assert!((26 * S..=27 * S).contains(&wait), "{wait:?}");
        assert_eq!(pace.again(&end(Reason::Connect), None, 40 * S, u64::MAX), WAIT_MIN);
    }

    proptest! {
        #[test]
        fn every_wait_is_within_its_bounds(ends in 0..1000_u32, random: u64, reason in 0..Reason::ALL.len(), took in 0..100_u32) {
            let wait = Pace { ends }.again(&end(Reason::ALL[reason]), None, S * took, random);
            prop_assert!(wait <= WAIT_MAX && (wait >= WAIT_MIN || ends == 0));
            let report = about(5 * S, random);
            prop_assert!((4 * S..=6 * S).contains(&report));
        }
    }
}
