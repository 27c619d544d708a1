//! A sliding-window budget for the extra upstream calls that isolation makes.
//!
//! Upstream calls, batches and replays together, stay within the number of client calls plus a
//! share of it plus a small rate, so the proxy cannot amplify the clients' load. Calls are counted
//! over ten seconds in steps of one second, so a burst is paid back within that time. The second at
//! the edge of the window counts in full for replays, and not at all for client calls: the bound
//! therefore holds over any ten seconds, not only over those that start with a whole second. The
//! one unbatched retry of each member is counted too, but never refused. First sends are paid for
//! by their own calls, which are counted at the same instant; if they were counted for longer than
//! those, a burst would suspend merging ten seconds later.

use super::tick::Tick;

/// Length of the window.
const WINDOW_SECONDS: u64 = 10;
/// Number of seconds with counts: each one that the window touches.
const SECONDS_KEPT: usize = 11;
/// Replays per second that are always allowed. Over the window this is the reserve of 30 replays
/// that a new process has.
const FLOOR_PER_SECOND: u64 = 3;

/// A sliding-window counter of client calls, first sends and replays.
#[derive(Debug, Clone, Default)]
pub struct ReplayBudget {
    share_ppm: u64,
    seconds: [SecondCounts; SECONDS_KEPT],
}

#[derive(Debug, Clone, Copy, Default)]
struct SecondCounts {
    second: u64,
    client: u64,
    /// First sends: batches and unbatched calls.
    upstream: u64,
    replays: u64,
}

// === impl ReplayBudget ===

impl ReplayBudget {
    /// Creates a budget that allows replays for this share of the client calls, in millionths, in
    /// addition to the floor.
    #[must_use]
    pub fn new(share_ppm: u32) -> Self {
        Self { share_ppm: u64::from(share_ppm), ..Self::default() }
    }

    /// Changes the share. The counts are kept.
    pub fn set_share(&mut self, share_ppm: u32) {
        self.share_ppm = u64::from(share_ppm);
    }

    /// Records a client call.
    pub fn record_client_call(&mut self, now: Tick) {
        self.counts_at(now).client += 1;
    }

    /// Records a first send: a batch or an unbatched call.
    pub fn record_first_send(&mut self, now: Tick) {
        self.counts_at(now).upstream += 1;
    }

    /// Records a replay that needs no permission: the one unbatched attempt that a member is always
    /// granted.
    pub fn record_replay(&mut self, now: Tick) {
        self.counts_at(now).replays += 1;
    }

    /// Takes one replay from the budget. Returns `false` if the budget is empty.
    #[must_use]
    pub fn try_take_replay(&mut self, now: Tick) -> bool {
        if self.replays_left(now) == 0 {
            return false;
        }
        self.record_replay(now);
        true
    }

    /// Returns the number of replays left.
    #[must_use]
    pub fn replays_left(&self, now: Tick) -> u64 {
        let second = now.0 / 1_000_000_000;
        let (mut client, mut sent) = (0, 0);
        for counts in &self.seconds {
            let age = second.saturating_sub(counts.second);
            if age < WINDOW_SECONDS {
                client += counts.client;
                sent += counts.upstream;
            }
            if age <= WINDOW_SECONDS {
                sent += counts.replays;
            }
        }
        let allowed = client + client * self.share_ppm / 1_000_000 + FLOOR_PER_SECOND * WINDOW_SECONDS;
        allowed.saturating_sub(sent)
    }

    fn counts_at(&mut self, now: Tick) -> &mut SecondCounts {
        let second = now.0 / 1_000_000_000;
        let index = usize::try_from(second % (WINDOW_SECONDS + 1)).expect("below eleven");
        let counts = &mut self.seconds[index];
        if counts.second != second {
            *counts = SecondCounts { second, ..SecondCounts::default() };
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_process_has_a_reserve_of_thirty() {
        let mut budget = ReplayBudget::new(100_000);
        let taken = (0..100).filter(|_| budget.try_take_replay(Tick::from_millis(5))).count();
        assert_eq!(taken, 30);
    }

    #[test]
    fn batching_leaves_room_for_replays() {
        let mut budget = ReplayBudget::new(100_000);
        for _ in 0..100 {
            budget.record_client_call(Tick::from_millis(0));
        }
        budget.record_first_send(Tick::from_millis(0));
        let taken = (0..1000).filter(|_| budget.try_take_replay(Tick::from_millis(1))).count();
        assert_eq!(taken, 100 + 10 + 30 - 1);
    }

    #[test]
    fn a_burst_leaves_the_reserve_once_its_second_has_half_left_the_window() {
        let mut budget = ReplayBudget::new(100_000);
        for _ in 0..200 {
            (0..32).for_each(|_| budget.record_client_call(Tick::from_millis(500)));
            budget.record_first_send(Tick::from_millis(500));
        }
        assert_eq!(budget.replays_left(Tick::from_millis(10_100)), 30);
    }

    #[test]
    fn replays_do_not_count_once_their_second_has_left_the_window() {
        let mut budget = ReplayBudget::new(100_000);
        while budget.try_take_replay(Tick::from_millis(999)) {}
        assert!(!budget.try_take_replay(Tick::from_millis(10_000)), "nine seconds later the window still holds them");
        assert!(!budget.try_take_replay(Tick::from_millis(10_999)));
        assert!(budget.try_take_replay(Tick::from_millis(11_000)));
    }
}
