//! A budget of the extra upstream calls that isolation may make.
//!
//! Upstream calls, batches and replays together, stay within what the clients sent plus a share,
//! plus a small rate: never more load upstream than without us. Counted over ten seconds in
//! one-second buckets, so a burst is paid back within that time. The second that the window has half
//! left still counts for replays and no more for what came: the promise holds over any ten seconds,
//! not only over those that start with a bucket. First sends are paid for by their own calls, which
//! are counted at the same instant; counted longer than these, a burst would end merging ten seconds
//! later.

use super::tick::Tick;

/// The window (README decision 9).
const WINDOW_SECONDS: u64 = 10;
/// One bucket for each second that the window touches.
const BUCKETS: usize = 11;
/// Replays a second that are always allowed; over the window this is the reserve of 30 that a fresh process has.
const FLOOR_PER_SECOND: u64 = 3;

/// A sliding count of client calls and upstream calls.
#[derive(Debug, Clone)]
pub struct ReplayBudget {
    share_permille: u64,
    buckets: [Bucket; BUCKETS],
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    second: u64,
    client: u64,
    /// First sends: batches, and calls alone.
    upstream: u64,
    replays: u64,
}

// === impl ReplayBudget ===

impl ReplayBudget {
    /// A budget of this share of the client calls, in thousandths, beyond their number.
    #[must_use]
    pub fn new(share_permille: u32) -> Self {
        Self { share_permille: u64::from(share_permille), buckets: [Bucket::default(); BUCKETS] }
    }

    /// Another share. What was counted stays.
    pub fn set_share(&mut self, share_permille: u32) {
        self.share_permille = u64::from(share_permille);
    }

    /// Records a call of a client.
    pub fn client(&mut self, now: Tick) {
        self.bucket(now).client += 1;
    }

    /// Records a first send: a batch, or a call alone.
    pub fn upstream(&mut self, now: Tick) {
        self.bucket(now).upstream += 1;
    }

    /// Records a replay that needs no permission: the lone call that a member is owed.
    pub fn replay(&mut self, now: Tick) {
        self.bucket(now).replays += 1;
    }

    /// Takes one replay from the budget. False if it is empty.
    #[must_use]
    pub fn take(&mut self, now: Tick) -> bool {
        if self.room(now) == 0 {
            return false;
        }
        self.replay(now);
        true
    }

    /// How many replays are left.
    #[must_use]
    pub fn room(&self, now: Tick) -> u64 {
        let second = now.0 / 1_000_000_000;
        let (mut client, mut sent) = (0, 0);
        for bucket in &self.buckets {
            let age = second.saturating_sub(bucket.second);
            if age < WINDOW_SECONDS {
                client += bucket.client;
                sent += bucket.upstream;
            }
            if age <= WINDOW_SECONDS {
                sent += bucket.replays;
            }
        }
        let allowed = client + client * self.share_permille / 1000 + FLOOR_PER_SECOND * WINDOW_SECONDS;
        allowed.saturating_sub(sent)
    }

    fn bucket(&mut self, now: Tick) -> &mut Bucket {
        let second = now.0 / 1_000_000_000;
        let index = usize::try_from(second % (WINDOW_SECONDS + 1)).expect("below eleven");
        let bucket = &mut self.buckets[index];
        if bucket.second != second {
            *bucket = Bucket { second, ..Bucket::default() };
        }
        bucket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_process_has_a_reserve_of_thirty() {
        let mut budget = ReplayBudget::new(100);
        let taken = (0..100).filter(|_| budget.take(Tick::from_millis(5))).count();
        assert_eq!(taken, 30);
    }

    #[test]
    fn batching_leaves_room_for_replays() {
        let mut budget = ReplayBudget::new(100);
        for _ in 0..100 {
            budget.client(Tick::from_millis(0));
        }
        budget.upstream(Tick::from_millis(0));
        let taken = (0..1000).filter(|_| budget.take(Tick::from_millis(1))).count();
        assert_eq!(taken, 100 + 10 + 30 - 1);
    }

    #[test]
    fn a_burst_costs_no_room_once_its_second_has_half_left_the_window() {
        let mut budget = ReplayBudget::new(100);
        for _ in 0..200 {
            (0..32).for_each(|_| budget.client(Tick::from_millis(500)));
            budget.upstream(Tick::from_millis(500));
        }
        assert_eq!(budget.room(Tick::from_millis(10_100)), 30);
    }

    #[test]
    fn what_was_taken_is_forgotten_once_its_second_has_left_the_window() {
        let mut budget = ReplayBudget::new(100);
        while budget.take(Tick::from_millis(999)) {}
        assert!(!budget.take(Tick::from_millis(10_000)), "nine seconds later the window still holds them");
        assert!(!budget.take(Tick::from_millis(10_999)));
        assert!(budget.take(Tick::from_millis(11_000)));
    }
}
