//! Property test of the replay budget over any ten seconds.

use std::time::Duration;

use groupage::batching::{ReplayBudget, Tick};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_assert, prop_oneof, proptest};

#[derive(Debug, Clone, Copy)]
enum Op {
    /// Advances the time by this many milliseconds.
    Pass(u64),
    Clients(u8),
    /// Batches of this many members, each counted when it is sent.
    Sends(u8, u8),
    /// Unbatched calls that members are always granted.
    Owed(u8),
    Takes(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => prop_oneof![0..1500_u64, Just(1000), Just(9999), Just(10_000), Just(1)].prop_map(Op::Pass),
        1 => any::<u8>().prop_map(Op::Clients),
        1 => (0..100_u8, 1..4_u8).prop_map(|(batches, members)| Op::Sends(batches, members)),
        1 => (0..100_u8).prop_map(Op::Owed),
        3 => any::<u8>().prop_map(Op::Takes),
    ]
}

/// Returns the number of instants within the last `seconds` before `now`, including `now` and
/// excluding the other end.
fn count_within(instants: &[Tick], now: Tick, seconds: u64) -> u64 {
    let recent = instants.iter().filter(|at| now.since(**at) < Duration::from_secs(seconds));
    u64::try_from(recent.count()).unwrap_or(u64::MAX)
}

fn allowed(clients: u64, ppm: u64) -> u64 {
    clients + clients * ppm / 1_000_000 + 30
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn replays_stay_within_the_budget_over_the_last_ten_seconds(
        ppm in prop_oneof![Just(0_u32), Just(100_000), 0..1_000_000_u32],
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut budget = ReplayBudget::new(ppm);
        let ppm = u64::from(ppm);
        let (mut now, mut clients, mut upstream) = (Tick::default(), Vec::new(), Vec::new());
        for op in ops {
            match op {
                Op::Pass(millis) => now = now.after(Duration::from_millis(millis)),
                Op::Clients(calls) => for _ in 0..calls {
                    budget.record_client_call(now);
                    clients.push(now);
                },
                Op::Sends(batches, members) => for _ in 0..batches {
                    for _ in 0..members {
                        budget.record_client_call(now);
                        clients.push(now);
                    }
                    budget.record_first_send(now);
                    upstream.push(now);
                },
                Op::Owed(calls) => for _ in 0..calls {
                    budget.record_replay(now);
                    upstream.push(now);
                },
                Op::Takes(calls) => for _ in 0..calls {
                    if budget.try_take_replay(now) {
                        upstream.push(now);
                        let (sent, client_calls) = (count_within(&upstream, now, 10), count_within(&clients, now, 10));
                        prop_assert!(sent <= allowed(client_calls, ppm), "{sent} upstream calls for {client_calls} client calls at {now:?}");
                    } else {
                        // The budget counts in whole seconds, so it may refuse a little early, but
                        // not more.
                        let (sent, client_calls) = (count_within(&upstream, now, 11), count_within(&clients, now, 9));
                        prop_assert!(sent >= allowed(client_calls, ppm), "refused: {sent} upstream calls for {client_calls} client calls at {now:?}");
                    }
                },
            }
        }
    }
}
