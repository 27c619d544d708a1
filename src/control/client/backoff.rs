//! Reconnect delays: exponential backoff with full jitter ("Exponential Backoff And Jitter", AWS
//! Architecture Blog). Pure: the reason, the lifetime and a random number are arguments.

use std::time::Duration;

use super::{DisconnectReason, SessionEnd};

/// Intervals and timeouts of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamTimeouts {
    /// Interval between two reports, randomized by ±20 %.
    pub report: Duration,
    /// Maximum lifetime of a stream, randomized by ±20 %.
    pub lifetime: Duration,
    /// Timeout for TCP and TLS setup together.
    pub connect: Duration,
    /// Timeout for the response to the request. It covers the controller's review of the token.
    pub answer: Duration,
    /// Timeout for an acknowledgement and for a blocked write, after which the controller counts as
    /// unreachable.
    pub silence: Duration,
}

/// Bounds of the delay.
const WAIT_MIN: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Maximum delay after the first failure. Ten thousand streams that break together reconnect within
/// two seconds.
const WAIT_FIRST: Duration = Duration::from_secs(2);
/// Maximum delay before a stream is reopened that was redirected or reached its lifetime.
const REDIRECT_DELAY_MAX: Duration = Duration::from_millis(500);
/// Lifetime after which a stream counts as successful and resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// State of the exponential backoff: the number of consecutive failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Backoff {
    ends: u32,
}

// === impl StreamTimeouts ===

impl Default for StreamTimeouts {
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

// === impl Backoff ===

impl Backoff {
    /// Returns the delay before the next attempt. `lived` is how long the stream was open, if it
    /// was, and `took` the duration of the whole attempt.
    pub(super) fn next_delay(
        &mut self,
        end: &SessionEnd,
        lived: Option<Duration>,
        took: Duration,
        random: u64,
    ) -> Duration {
        if lived.is_some_and(|lived| lived >= STABLE_AFTER) {
            self.ends = 0;
        }
        let moves = end.reason == DisconnectReason::Lifetime
            || end.reason == DisconnectReason::Goaway && end.redirect_address.is_some();
        // Repeated redirects between replicas back off like any other failure.
        if moves && self.ends == 0 {
            self.ends = u32::from(end.reason == DisconnectReason::Goaway);
            return uniform_below(REDIRECT_DELAY_MAX, random);
        }
        let most = WAIT_FIRST.saturating_mul(2_u32.saturating_pow(self.ends)).min(WAIT_MAX);
        self.ends = self.ends.saturating_add(1);
        let wait = WAIT_MIN + uniform_below(most - WAIT_MIN, random);
        // Time spent in a timeout counts as part of the delay, down to the minimum.
        let wait = wait.saturating_sub(took.saturating_sub(lived.unwrap_or_default())).max(WAIT_MIN);
        // The controller's `Retry-After` gets jitter too, because many sidecars receive the same
        // value.
        wait.max(end.not_before + uniform_below(end.not_before, random))
    }
}

/// Returns a random duration within ±20 % of `time`.
pub(super) fn jittered(time: Duration, random: u64) -> Duration {
    time * 4 / 5 + uniform_below(time * 2 / 5, random)
}

/// Returns a uniformly distributed duration below `time`.
pub(super) fn uniform_below(time: Duration, random: u64) -> Duration {
    let nanos = time.as_nanos() * u128::from(random) / (u128::from(u64::MAX) + 1);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use strum::VariantArray as _;

    use super::*;
    use crate::client::address::ControllerAddress;

    const S: Duration = Duration::from_secs(1);

    fn end(reason: DisconnectReason) -> SessionEnd {
        SessionEnd::new(reason, "")
    }

    fn waits(mut pace: Backoff, random: u64) -> Vec<Duration> {
        (0..8).map(|_| pace.next_delay(&end(DisconnectReason::Connect), None, Duration::ZERO, random)).collect()
    }

    #[test]
    fn the_longest_wait_doubles_up_to_half_a_minute_and_the_shortest_stays() {
        let longest: Vec<u128> =
            waits(Backoff::default(), u64::MAX).iter().map(|wait| wait.as_millis().div_ceil(1000)).collect();
        assert_eq!(longest, [2, 4, 8, 16, 30, 30, 30, 30]);
        assert!(waits(Backoff::default(), 0).iter().all(|wait| *wait == WAIT_MIN));
    }

    #[test]
    fn a_stable_stream_resets_the_backoff() {
        let mut pace = Backoff::default();
        waits(pace, 0);
        (0..6).for_each(|_| {
            pace.next_delay(&end(DisconnectReason::Connect), None, Duration::ZERO, 0);
        });
        let short = pace.next_delay(&end(DisconnectReason::Broken), Some(S), S, u64::MAX);
        assert!(short > 29 * S, "{short:?}: it was hardly open");
        let long = pace.next_delay(&end(DisconnectReason::Broken), Some(STABLE_AFTER), STABLE_AFTER, u64::MAX);
        assert!(long <= WAIT_FIRST, "{long:?}");
    }

    #[test]
    fn a_redirect_to_a_named_controller_is_fast_and_one_to_any_is_delayed() {
        let mut pace = Backoff::default();
        let away = SessionEnd {
            redirect_address: Some(ControllerAddress { host: "b".into(), port: 1 }),
            ..end(DisconnectReason::Goaway)
        };
        assert!(pace.next_delay(&away, Some(S), S, u64::MAX) < REDIRECT_DELAY_MAX);
        assert!(pace.next_delay(&away, Some(S), S, u64::MAX) > 3 * S, "sent on at once");
        assert!(
            Backoff::default().next_delay(&end(DisconnectReason::Goaway), Some(S), S, u64::MAX) > S,
            "anywhere: not all at once"
        );
        assert!(
            Backoff::default().next_delay(&end(DisconnectReason::Lifetime), Some(3600 * S), 3600 * S, u64::MAX)
                < REDIRECT_DELAY_MAX
        );
    }

    #[test]
    fn the_delay_of_the_controller_is_a_lower_bound() {
        let busy = SessionEnd { not_before: 20 * S, ..end(DisconnectReason::Busy) };
        assert_eq!(Backoff::default().next_delay(&busy, None, Duration::ZERO, 0), 20 * S);
        assert!(Backoff::default().next_delay(&busy, None, Duration::ZERO, u64::MAX) > 39 * S);
    }

    #[test]
    fn a_timeout_counts_as_a_part_of_the_wait() {
        let mut pace = Backoff { ends: 10 };
        let wait = pace.next_delay(&end(DisconnectReason::Connect), None, 3 * S, u64::MAX);
        assert!((26 * S..=27 * S).contains(&wait), "{wait:?}");
        assert_eq!(pace.next_delay(&end(DisconnectReason::Connect), None, 40 * S, u64::MAX), WAIT_MIN);
    }

    proptest! {
        #[test]
        fn every_wait_is_within_its_bounds(ends in 0..1000_u32, random: u64, reason in 0..DisconnectReason::VARIANTS.len(), took in 0..100_u32) {
            let wait = Backoff { ends }.next_delay(&end(DisconnectReason::VARIANTS[reason]), None, S * took, random);
            prop_assert!(wait <= WAIT_MAX && (wait >= WAIT_MIN || ends == 0));
            let report = jittered(5 * S, random);
            prop_assert!((4 * S..=6 * S).contains(&report));
        }
    }
}
