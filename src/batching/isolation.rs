//! Isolation of the failing members of a batch: selects the parts of a failed or too large batch
//! that are sent again, and their order.
//!
//! The plan is pure; `proxy::upstream` executes it, one part after the other on the batch's own
//! slot. A failed batch of up to `isolate_above` members (`failure.isolateAbove`) is replayed
//! member by member. A larger one is bisected, and the half that fails again is bisected again.
//! With the default of 4, one bad member among N therefore costs at most `1 + 2·⌈log2 N⌉` calls. A
//! batch that was too large is sent again in parts of at most as many items as the upstream named
//! in its refusal, or in halves if it named no number.

use std::ops::Range;

/// The outcome of a part that has to be divided further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartOutcome {
    /// The part failed, and its members may be tried in smaller parts.
    Failed,
    /// The upstream refused the part because of its size.
    TooLarge {
        /// Maximum number of items, if the response names it.
        limit: Option<u32>,
    },
    /// The response to any part of several members would be as unusable, so single members are
    /// tried next: for example, 401 or 405 for a credential or method that all members share.
    Inseparable,
}

/// Members that are tried together, as a range of indexes into the batch.
pub type MemberRange = Range<usize>;

/// The isolation plan of one batch. Parts are tried in the order of the members.
#[derive(Debug, Clone)]
pub struct IsolationPlan {
    /// Number of items of each member.
    items: Vec<u32>,
    /// Maximum number of members of a part that is divided into single members at once.
    isolate_above: usize,
    /// Stack of the parts that have not been tried; the last one is tried next.
    todo: Vec<MemberRange>,
}

// === impl IsolationPlan ===

impl IsolationPlan {
    /// Creates a plan for a batch with this outcome. `items` has the number of items of each
    /// member.
    #[must_use]
    pub fn new(items: Vec<u32>, isolate_above: u32, outcome: PartOutcome) -> Self {
        let whole = 0..items.len();
        let isolate_above = usize::try_from(isolate_above).unwrap_or(usize::MAX);
        let mut this = Self { items, isolate_above, todo: Vec::new() };
        this.record_outcome(whole, outcome);
        this
    }

    /// Returns the next part to try, if any is left.
    pub fn next_part(&mut self) -> Option<MemberRange> {
        self.todo.pop()
    }

    /// Records the outcome of a part of more than one member and schedules its smaller parts next.
    /// The response to a single member is final, whatever it is.
    pub fn record_outcome(&mut self, part: MemberRange, outcome: PartOutcome) {
        if part.len() < 2 {
            return;
        }
        let parts = match outcome {
            PartOutcome::Inseparable => return self.split(part),
            PartOutcome::Failed if part.len() <= self.isolate_above => part.map(|i| i..i + 1).collect(),
            PartOutcome::Failed | PartOutcome::TooLarge { limit: None } => halves(&part),
            PartOutcome::TooLarge { limit: Some(limit) } => {
                let packed = self.pack(&part, limit);
                // A limit that the part already satisfies cannot be the intended one: bisect, so
                // that isolation ends.
                if packed.len() < 2 { halves(&part) } else { packed }
            }
        };
        self.todo.extend(parts.into_iter().rev());
    }

    /// Divides a part into single members, which are tried next. The part itself need not have been
    /// tried.
    pub fn split(&mut self, part: MemberRange) {
        self.todo.extend(part.rev().map(|member| member..member + 1));
    }

    /// Returns `true` if no part is left to try.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.todo.is_empty()
    }

    /// Removes and returns the parts that have not been tried, in the order of the members.
    pub fn take_untried(&mut self) -> Vec<MemberRange> {
        let mut rest = std::mem::take(&mut self.todo);
        rest.reverse();
        rest
    }

    /// Divides a part into ranges of whole members with at most `limit` items each. A member with
    /// more items is a range of its own.
    fn pack(&self, part: &MemberRange, limit: u32) -> Vec<MemberRange> {
        let mut parts = Vec::new();
        let (mut start, mut packed) = (part.start, 0_u32);
        for i in part.clone() {
            let items = self.items.get(i).copied().unwrap_or(1);
            if i > start && packed.saturating_add(items) > limit {
                parts.push(start..i);
                (start, packed) = (i, 0);
            }
            packed = packed.saturating_add(items);
        }
        parts.push(start..part.end);
        parts
    }
}

fn halves(part: &MemberRange) -> Vec<MemberRange> {
    let middle = part.start + part.len() / 2;
    vec![part.start..middle, middle..part.end]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a plan in which any part that holds one of `bad` fails; returns the parts tried.
    fn run(n: usize, isolate_above: u32, bad: &[usize]) -> Vec<MemberRange> {
        let mut plan = IsolationPlan::new(vec![1; n], isolate_above, PartOutcome::Failed);
        let mut tried = Vec::new();
        while let Some(part) = plan.next_part() {
            tried.push(part.clone());
            if bad.iter().any(|b| part.contains(b)) {
                plan.record_outcome(part, PartOutcome::Failed);
            }
        }
        tried
    }

    #[test]
    fn members_of_an_inseparable_batch_of_any_size_are_tried_unbatched() {
        let mut plan = IsolationPlan::new(vec![1; 9], 4, PartOutcome::Inseparable);
        let parts: Vec<MemberRange> = std::iter::from_fn(|| plan.next_part()).collect();
        assert_eq!(parts, (0..9).map(|member| member..member + 1).collect::<Vec<_>>());
    }

    #[test]
    fn up_to_four_members_are_replayed_one_by_one() {
        assert_eq!(run(3, 4, &[1]), [0..1, 1..2, 2..3]);
    }

    #[test]
    fn five_members_are_bisected_and_then_replayed() {
        assert_eq!(run(5, 4, &[4]), [0..2, 2..5, 2..3, 3..4, 4..5]);
    }

    #[test]
    fn one_bad_member_of_thirty_two_costs_at_most_eleven_calls() {
        for bad in 0..32 {
            let tried = run(32, 1, &[bad]);
            // The call for the whole batch came before the plan.
            assert!(tried.len() <= 10, "{} calls for member {bad}", tried.len() + 1);
            assert!(tried.contains(&(bad..bad + 1)));
        }
    }

    #[test]
    fn a_named_limit_packs_whole_members_under_it() {
        let mut plan = IsolationPlan::new(vec![2, 2, 3, 1, 5], 4, PartOutcome::TooLarge { limit: Some(4) });
        let parts: Vec<_> = std::iter::from_fn(|| plan.next_part()).collect();
        assert_eq!(parts, [0..2, 2..4, 4..5]);
    }

    #[test]
    fn a_named_limit_above_the_size_of_the_batch_halves_the_batch() {
        let mut plan = IsolationPlan::new(vec![1, 1], 4, PartOutcome::TooLarge { limit: Some(9) });
        assert_eq!(plan.next_part(), Some(0..1));
        assert_eq!(plan.next_part(), Some(1..2));
        assert!(plan.is_done());
    }

    #[test]
    fn every_member_is_settled_exactly_once_for_any_failures() {
        for n in 2..20 {
            for bad in 0..n {
                let tried = run(n, 4, &[bad, (bad * 7) % n]);
                let singles_or_good: Vec<_> = tried
                    .iter()
                    .filter(|p| p.len() == 1 || (!p.contains(&bad) && !p.contains(&((bad * 7) % n))))
                    .collect();
                let mut settled: Vec<usize> = singles_or_good.into_iter().flat_map(Clone::clone).collect();
                settled.sort_unstable();
                assert_eq!(settled, (0..n).collect::<Vec<_>>());
            }
        }
    }
}
