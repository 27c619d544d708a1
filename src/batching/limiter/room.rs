//! Verification of an opening for room: detects that the server had none, so that the limit is set
//! again.
//!
//! A probe compares the time of one execution with that of others under the limit. If calls of
//! other cost classes queue in the server, each execution waits behind them, and one more of this
//! class adds little to the wait: the probe hits, although the server has no room. Once the limiter
//! is open, clients then wait several times as long, at a lower rate.

use super::super::tick::Tick;
use super::ConcurrencyLimiter;
use super::curve::Knee;
use super::sojourn_mean::SojournMean;

/// Number of answers after which the means are compared for the last time, and the memory of the
/// mean while open.
const ANSWERS: f64 = 64.0;
/// Memory of the mean under the limit. While batches grow, calls wait longer.
const MEMORY: f64 = 32.0;
/// Ratio of the sojourn time while open to that under the limit, and of the rate under the limit to
/// that while open, from which the server had no room. More calls also take longer, but at a higher
/// rate.
const WORSE: (f64, f64) = (1.25, 1.1);
/// Number of answers after which the means are compared for the first time, and the ratios from
/// which the opening ends then: two waves of a dozen clients beside as many of another class, which
/// wait four times as long.
const ANSWERS_FIRST: f64 = 24.0;
const WORSE_FIRST: (f64, f64) = (2.0, 1.33);

/// Mean sojourn times under the limit and since it was given up for more room.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RoomTest {
    limited: SojournMean,
    open: SojournMean,
    given_up: Option<GivenUpLimit>,
}

/// A limit that was given up for more room.
#[derive(Debug, Clone, Copy)]
struct GivenUpLimit {
    at: Tick,
    limit: f64,
    knee: Knee,
}

// === impl RoomTest ===

impl RoomTest {
    /// Returns the test of an opening now. `limit` and `knee` are those before it.
    fn on_opening(self, now: Tick, limit: f64, knee: Knee) -> Self {
        let is_known = self.limited.answers >= ANSWERS_FIRST;
        let given_up = is_known.then_some(GivenUpLimit { at: now, limit, knee });
        Self { limited: self.limited, open: SojournMean::default(), given_up }
    }

    /// Records the sojourn time of calls, the first of which arrived at `first`, after an opening.
    /// Returns the limit that was given up if clients wait longer without it.
    fn observe_open(&mut self, now: Tick, first: Tick, sojourn: f64, calls: u32) -> Option<GivenUpLimit> {
        let given_up = self.given_up.filter(|given_up| first >= given_up.at)?;
        self.open.add(now, sojourn, calls, ANSWERS);
        let worse = match self.open.answers {
            ..ANSWERS_FIRST => return None,
            ..ANSWERS => WORSE_FIRST,
            _ => WORSE,
        };
        if self.open.answers >= ANSWERS {
            self.given_up = None;
        }
        let is_longer = self.open.sojourn > worse.0 * self.limited.sojourn;
        let is_slower = self.open.gap > worse.1 * self.limited.gap;
        (is_longer && is_slower).then_some(given_up)
    }
}

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    /// Opens the limiter after a measurement that the server has more room.
    pub(super) fn open_for_room(&mut self, now: Tick) {
        self.schedule.jump = now;
        self.schedule.room = self.limit.map(|limit| (limit, now));
        let before = self.limit.map(|limit| (limit, self.knee.unwrap_or_else(|| self.knee_of_limit(limit))));
        let room = before.map(|(limit, knee)| self.room.on_opening(now, limit, knee));
        // Released in steps: a server with a knee above the limit shows it on the way.
        self.release(now, super::OpenReason::RoomFound);
        self.room = room.unwrap_or_default();
    }

    /// Records the sojourn time of calls. Returns `true` if the limit is set again, because it was
    /// given up for room that the server does not have.
    pub(super) fn verify_room(&mut self, now: Tick, first: Tick, sojourn: f64, calls: u32) -> bool {
        if self.limit.is_some() {
            self.room.limited.add(now, sojourn, calls, MEMORY);
            return false;
        }
        let Some(given_up) = self.room.observe_open(now, first, sojourn, calls) else {
            return false;
        };
        self.set_knee(now, given_up.knee, given_up.limit);
        true
    }

    /// Returns the knee for a limit that was found by trials or was restored.
    fn knee_of_limit(&self, limit: f64) -> Knee {
        let base = self.level.unbatched.max(1.0);
        Knee { at: limit, base, rate: limit / base, is_bound: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNEE: Knee = Knee { at: 1.0, base: 20e6, rate: 5e-8, is_bound: false };

    /// Returns `true` if a limit is set again, with these mean sojourn times and times between
    /// answers in milliseconds under the limit and after it.
    fn is_set_again(limited: (u64, u64), open: (u64, u64)) -> bool {
        let mut test = RoomTest::default();
        for number in 1..=100 {
            test.limited.add(Tick::from_millis(number * limited.1), limited.0 as f64 * 1e6, 1, ANSWERS);
        }
        let from = 100 * limited.1;
        test = test.on_opening(Tick::from_millis(from), 1.0, KNEE);
        (1..=100).any(|number| {
            let now = Tick::from_millis(from + number * open.1);
            test.observe_open(now, now, open.0 as f64 * 1e6, 1).is_some()
        })
    }

    #[test]
    fn a_limit_is_set_again_if_calls_wait_longer_at_a_lower_rate() {
        assert!(is_set_again((50, 4), (300, 25)));
        assert!(!is_set_again((50, 4), (40, 3)), "the server has room");
        assert!(!is_set_again((50, 4), (300, 4)), "more calls arrive");
        assert!(!is_set_again((50, 4), (60, 8)), "fewer calls arrive");
    }

    #[test]
    fn an_opening_soon_after_the_limit_is_not_verified() {
        let mut test = RoomTest::default().on_opening(Tick(0), 1.0, KNEE);
        let late = |number: u64| Tick::from_millis(100 * number);
        assert!((1..=100).all(|number| test.observe_open(late(number), late(number), 1e9, 1).is_none()));
    }
}
