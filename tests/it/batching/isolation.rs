//! Property tests of isolation: whichever members fail, every member is settled once, in order, at
//! a bounded cost.

use std::collections::BTreeSet;

use groupage::batching::{IsolationPlan, MemberRange, PartOutcome};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

/// Executes an isolation plan: a part that holds one of `failing` fails, and a part of more than
/// `accepts_max` items is too large, which names that limit if `is_limit_named`. Returns the parts
/// that were tried.
fn execute_plan(
    items: &[u32],
    isolate_above: u32,
    failing: &BTreeSet<usize>,
    accepts_max: u32,
    is_limit_named: bool,
) -> Vec<MemberRange> {
    let sum = |part: &MemberRange| items[part.clone()].iter().sum::<u32>();
    let outcome = |part: &MemberRange| {
        if sum(part) > accepts_max {
            Some(PartOutcome::TooLarge { limit: is_limit_named.then_some(accepts_max) })
        } else if part.clone().any(|member| failing.contains(&member)) {
            Some(PartOutcome::Failed)
        } else {
            None
        }
    };
    let whole = 0..items.len();
    let Some(first) = outcome(&whole) else { return Vec::new() };
    let mut plan = IsolationPlan::new(items.to_vec(), isolate_above, first);
    let mut tried = Vec::new();
    // A binary tree over the members has fewer than two nodes for each member.
    for _ in 0..=2 * items.len() {
        let Some(part) = plan.next_part() else { return tried };
        if let Some(outcome) = outcome(&part) {
            plan.record_outcome(part.clone(), outcome);
        }
        tried.push(part);
    }
    panic!("isolation of {} members does not end: {tried:?}", items.len());
}

fn members() -> impl Strategy<Value = (Vec<u32>, BTreeSet<usize>)> {
    (2..70_usize).prop_flat_map(|members| {
        (prop::collection::vec(1..6_u32, members), prop::collection::btree_set(0..members, 0..5))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_member_is_settled_once_in_order(
        (items, failing) in members(),
        isolate_above in 1..8_u32,
        accepts_max in prop_oneof![1..40_u32, Just(u32::MAX)],
        is_limit_named in any::<bool>(),
    ) {
        let tried = execute_plan(&items, isolate_above, &failing, accepts_max, is_limit_named);
        let settles = |part: &&MemberRange| {
            let sum: u32 = items[(*part).clone()].iter().sum();
            part.len() == 1 || sum <= accepts_max && !(*part).clone().any(|member| failing.contains(&member))
        };
        let settled: Vec<usize> = tried.iter().filter(settles).flat_map(Clone::clone).collect();
        let all: Vec<usize> = if tried.is_empty() { Vec::new() } else { (0..items.len()).collect() };
        prop_assert_eq!(settled, all, "tried {:?}", tried);
        if accepts_max == u32::MAX {
            for good in (0..items.len()).filter(|member| !failing.contains(member)) {
                let single = tried.iter().filter(|part| part.len() == 1 && part.contains(&good)).count();
                prop_assert!(single <= 1, "member {good} was tried alone {single} times");
            }
        }
    }

    #[test]
    fn up_to_the_threshold_members_are_replayed_one_by_one_and_above_it_halved(members in 2..20_usize, isolate_above in 1..12_u32) {
        let mut plan = IsolationPlan::new(vec![1; members], isolate_above, PartOutcome::Failed);
        let parts: Vec<MemberRange> = std::iter::from_fn(|| plan.next_part()).collect();
        if members <= usize::try_from(isolate_above).unwrap_or(usize::MAX) {
            prop_assert_eq!(parts, (0..members).map(|member| member..member + 1).collect::<Vec<_>>());
        } else {
            prop_assert_eq!(parts, [0..members / 2, members / 2..members]);
        }
    }

    #[test]
    fn isolation_ends_even_if_every_part_fails((items, _) in members(), limits in prop::collection::vec(prop::option::of(0..60_u32), 140)) {
        let members = items.len();
        let outcome = |at: usize| limits[at].map_or(PartOutcome::Failed, |limit| PartOutcome::TooLarge { limit: Some(limit) });
        let mut plan = IsolationPlan::new(items, 4, outcome(0));
        let mut settled = Vec::new();
        // Every part that is tried is smaller than its parent, so there are fewer than two parts
        // for each member.
        for at in 0..2 * members {
            let Some(part) = plan.next_part() else { break };
            if part.len() == 1 {
                settled.push(part.start);
            }
            plan.record_outcome(part, outcome(at));
        }
        prop_assert!(plan.is_done());
        prop_assert_eq!(settled, (0..members).collect::<Vec<_>>());
    }

    #[test]
    fn one_failing_member_costs_logarithmic_calls(members in 2..300_usize, at in any::<prop::sample::Index>(), isolate_above in 1..=4_u32) {
        let failing = BTreeSet::from([at.index(members)]);
        let calls = 1 + execute_plan(&vec![1; members], isolate_above, &failing, u32::MAX, false).len();
        let log = usize::try_from(members.next_power_of_two().ilog2()).unwrap_or(0);
        // Members are tried one by one up to the threshold, and by bisection above it.
        let one_by_one = u32::try_from(members).is_ok_and(|members| members <= isolate_above);
        let most = if one_by_one { 1 + members } else { 1 + 2 * log };
        prop_assert!(calls <= most, "{calls} calls for {members} members, not {most}");
    }

    #[test]
    fn a_named_limit_is_kept_by_every_part_but_a_single_member((items, _) in members(), accepts_max in 1..40_u32) {
        for part in execute_plan(&items, 4, &BTreeSet::new(), accepts_max, true) {
            let sum: u32 = items[part.clone()].iter().sum();
            prop_assert!(sum <= accepts_max || part.len() == 1, "part {part:?} holds {sum} items of {accepts_max}");
        }
    }

    #[test]
    fn give_up_returns_untried_members((items, failing) in members(), after in 0..20_usize) {
        let whole = items.len();
        let mut plan = IsolationPlan::new(items, 4, PartOutcome::Failed);
        let mut settled = Vec::new();
        for _ in 0..after {
            let Some(part) = plan.next_part() else { break };
            if part.len() > 1 && part.clone().any(|member| failing.contains(&member)) {
                plan.record_outcome(part, PartOutcome::Failed);
            } else {
                settled.extend(part);
            }
        }
        settled.extend(plan.take_untried().into_iter().flatten());
        prop_assert_eq!(settled, (0..whole).collect::<Vec<_>>());
        prop_assert!(plan.is_done());
    }
}
