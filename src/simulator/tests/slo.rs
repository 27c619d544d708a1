//! Acceptance tests in virtual time: over sockets, their figures would need a dedicated machine.

use std::time::Duration;

use crate::batching::Tick;
use crate::curve::CostCurve;
use crate::groupage_policy::GroupagePolicy;
use crate::metrics::CallFilter;
use crate::scenario::Scenario;
use crate::upstream::SlotServer;
use crate::workload::{ArrivalProcess, ThinkTime};
use crate::{RunResult, run};

/// Creates a row with a server of 20 ms per batch and 1 ms per item, a cap of 32, and an SLO of 100
/// ms.
fn slo_scenario(arrivals: ArrivalProcess) -> Scenario {
    let server = SlotServer { sigma: 0.0, ..SlotServer::new(CostCurve::Affine { a: 20.0, b: 1.0 }) };
    Scenario { cap: 32, slo: Duration::from_millis(100), ..Scenario::new("promised", arrivals).with_server(server) }
}

/// Scope of the calls that arrive after batches have grown to their final size.
const SETTLED: CallFilter = CallFilter { from: Tick::from_millis(2000), until: None, tenant: None, class: None };

fn run_unbounded(row: &Scenario, seed: u64) -> RunResult {
    run(row, &mut GroupagePolicy::with_cap_only(row.cap, seed), seed)
}

#[test]
fn slo_holds_for_16_clients_and_90_percent_of_capacity_in_overload() {
    let think = ThinkTime::Uniform(Duration::ZERO, Duration::from_micros(500));
    let few = run_unbounded(&slo_scenario(ArrivalProcess::Closed { clients: 16, think }), 1).summary_of(&SETTLED);
    assert!(few.p99_ms <= 100.0 && few.expired + few.rejected == 0.0, "{few}");
    let ceiling = 32.0 / 0.052;
    for seed in 0..3 {
        let over =
            run_unbounded(&slo_scenario(ArrivalProcess::Poisson { rate: 1.5 * ceiling }), seed).summary_of(&SETTLED);
        assert!(over.goodput * 1.5 >= 0.9 && over.p99_ms <= 100.0, "{over}, seed {seed}");
    }
}

/// A batch of n takes as long as n calls, so batching would only make the first call wait for the
/// last.
#[test]
fn a_server_that_gains_nothing_by_batches_gets_single_calls() {
    let server = SlotServer { sigma: 0.0, ..SlotServer::new(CostCurve::Affine { a: 0.0, b: 5.0 }) };
    let row = Scenario {
        cap: 32,
        slo: Duration::from_secs(1),
        ..Scenario::new("linear", ArrivalProcess::Poisson { rate: 150.0 }).with_server(server)
    };
    let run = run_unbounded(&row, 1);
    let (calls, batches) = (run.calls.len() as f64, run.counts.batches as f64);
    assert!(calls / batches < 1.5, "{calls} calls in {batches} batches");
    assert!(run.summary_of(&SETTLED).expired == 0.0);
}

/// Returns the seconds from the change of a server to eight times its latency until half of the
/// calls of each second are answered in two executions of the slower server.
fn seconds_until_settled(at: Duration, seed: u64) -> usize {
    let change = Some((Tick::default().after(at), 8.0));
    let curve = CostCurve::Affine { a: 5.0, b: 0.05 };
    let server = SlotServer { shift: change, jitter: Duration::from_micros(100), ..SlotServer::new(curve) };
    let think = ThinkTime::Exponential(Duration::from_millis(2550));
    let row = Scenario {
        slo: Duration::from_secs(60),
        horizon: at + Duration::from_secs(60),
        ..Scenario::new("slower", ArrivalProcess::Closed { clients: 256, think }).with_server(server)
    };
    let mut latencies = vec![Vec::new(); 60];
    for call in run_unbounded(&row, seed).calls {
        let since = call.at.since(Tick::default()).checked_sub(at);
        let second = since.and_then(|since| usize::try_from(since.as_secs()).ok());
        if let Some(calls) = second.and_then(|second| latencies.get_mut(second)) {
            calls.push(call.latency());
        }
    }
    let settled = |calls: &mut Vec<Duration>| {
        calls.sort_unstable();
        calls.get(calls.len() / 2).is_some_and(|median| *median < Duration::from_millis(150))
    };
    let last = latencies.iter_mut().rposition(|calls| !settled(calls));
    last.map_or(0, |last| last + 1)
}

/// The curve is measured anew after the change, when hundreds of calls queue inside the server. Its
/// least loaded point is a queue, and no base.
#[test]
fn a_server_that_becomes_slower_under_load_is_limited_to_its_new_knee() {
    let mut seconds: Vec<usize> = (0..20).map(|seed| seconds_until_settled(Duration::from_secs(1), seed)).collect();
    seconds.sort_unstable();
    // The queue at the change takes 4 s to drain.
    assert!(seconds[17] <= 12, "{seconds:?}");
}
